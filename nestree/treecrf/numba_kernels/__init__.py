"""Sums and best trees on the CPU, compiled by numba: the explicit passes behind nestree.treecrf.ops.

    inside, outside   sums of the numbers themselves, with a power of two per row of the chart
    logs              the same in logs, for scores that are too far apart for that
    plain             sums over plain trees
    best              best trees of both kinds
    vectors           the loops in which nearly all time is spent
    threads           who does what
    compiling         how kernels are compiled

Items and rules are those of reference.py. A sentence is summed in float32, if that is the type of its potentials;
if its scores are too far apart for that, in float64; and if need be in logs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nestree.treecrf.numba_kernels.best import Best, Desk, best_part, best_plain_part
from nestree.treecrf.numba_kernels.inside import PAD, Chart, Scratch, inside_part, logs_part
from nestree.treecrf.numba_kernels.outside import Around, outside_part
from nestree.treecrf.numba_kernels.plain import PlainChart, plain_inside, plain_outside
from nestree.treecrf.numba_kernels.threads import parts_of, run, share_out
from nestree.treecrf.numba_kernels.vectors import LN2, SPARE
from nestree.treecrf.potentials import (
    IMPOSSIBLE,
    AnyPotentials,
    LexicalPotentials,
    PlainPotentials,
    Potentials,
    cell_masks,
)
from nestree.treecrf.trees import Trees

CHECKS_LATER = False

redone_in_logs = 0  # sentences of this process, so far, whose scores were too far apart for anything but logs


class Precision(NamedTuple):
    """A way to take sums."""

    number: Any
    whole: Any  # an integer of the same size
    logs: bool


LADDER = Precision(np.float32, np.int32, False), Precision(np.float64, np.int64, False)
LOGS = Precision(np.float64, np.int64, True)


class Charts(NamedTuple):
    """What inside hands to outside: the scores as arrays, and a chart for each precision that was needed."""

    scores: Any
    lengths: Any
    charts: list[Chart]


def inside(potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Any]:
    """log Z [batch] and the chart."""
    scores, sizes = as_arrays(potentials), lengths.numpy()
    log_z = buffer(len(sizes))
    if isinstance(potentials, PlainPotentials):
        chart: Any = PlainChart(sizes, *(buffer(*scores.span.shape) for _ in range(4)))
        run_plain(plain_inside, sizes, chart, scores.span, log_z)
    else:
        chart = Charts(scores, sizes, [])
        left = np.arange(len(sizes))
        for precision in (*LADDER[int(scores.span.itemsize == 8) :], LOGS):
            if len(left):
                done = inside_in(precision, scores, left, sizes)
                chart.charts.append(done)
                log_z[left] = done.log_z
                left = left[~done.fits]
    return torch.from_numpy(log_z.astype(scores.span.dtype)), chart


def outside(
    potentials: AnyPotentials, lengths: Tensor, chart: Any, weight: Tensor, heads: bool
) -> AnyPotentials:
    """weight[b] times the marginals."""
    weights = weight.detach().contiguous().numpy()
    dtype = np.float64 if potentials.span.dtype == torch.float64 else np.float32
    shapes = [tuple(tensor.shape) for tensor in potentials[:4]]
    if isinstance(chart, PlainChart):
        marginals: Any = PlainPotentials(np.zeros(shapes[0], dtype))
        run_plain(plain_outside, chart.lengths, chart, weights, buffer(*shapes[0]), marginals.span)
        return type(potentials)(torch.from_numpy(marginals.span))
    shapes.append((*shapes[0], shapes[0][1] - 1) if heads else (1, 0, 0, 0))
    marginals = LexicalPotentials(*(np.zeros(shape, dtype) for shape in shapes))
    for done in chart.charts:
        fits = done.fits.copy()
        outside_in(chart.scores, done._replace(fits=fits), weights, marginals)
        left = done.sentences[done.fits & ~fits]
        if len(left):
            again = inside_in(LOGS, chart.scores, left, chart.lengths)
            outside_in(chart.scores, again, weights, marginals)
    tensors: list[Any] = [torch.from_numpy(marginal) for marginal in marginals]
    return type(potentials)(*tensors[:4], tensors[4] if heads else None)


def viterbi(potentials: Potentials, lengths: Tensor) -> Trees:
    """The best tree of each sentence; of equal ones, that with the first head, split and modifier."""
    scores, sizes = as_arrays(potentials), lengths.numpy()
    batch, n, dtype, plain = *lengths.shape, scores.span.shape[1] - 1, scores.span.dtype, len(scores) == 1
    best = Best(
        score=buffer(batch, dtype=dtype),
        spans=np.full((batch, 2 * n - 1, 2 if plain else 3), -1),
        arcs=np.full((0 if plain else batch, n - 1, 2), -1),
        root=np.full(0 if plain else batch, -1),
    )

    def desk(n: int, pitch: int) -> Desk:
        return Desk(
            cells=buffer((n + 1) * (n + 1) * pitch + PAD, dtype=dtype),
            by_modifier=buffer(n * n + 2 * PAD, dtype=dtype),
            stack=buffer(n + 1, 3, dtype=np.int64),
            governor=buffer(n, dtype=np.int64),
        )

    def prepare(n: int) -> Callable[[], tuple]:
        place = desk(n, n + SPARE)
        return lambda: (sizes, scores, place, buffer(n + PAD, dtype=dtype), best)

    def plain_trees(part: np.ndarray) -> None:
        n = int(sizes[part[0]])
        mirrored, no_arcs = buffer((n + 1) * (n + 1), dtype=dtype), np.empty((0, 0), dtype)
        best_plain_part(part, sizes, scores.span, mirrored, no_arcs, desk(n, 1), best)

    if plain:
        share_out(plain_trees, parts_of(sizes.tolist(), 3))
    else:
        run(best_part, sizes, prepare)
    score, spans, arcs, root = (torch.from_numpy(array) for array in best)
    return Trees(score, spans, None if plain else arcs, None if plain else root, lengths)


def log_chart(chart: Any) -> Tensor:
    """Natural logs of all items [batch, n + 1, n + 1, x]: headed where x lies in the span, hooked outside."""
    if isinstance(chart, PlainChart):
        spans = cell_masks(torch.from_numpy(chart.lengths), chart.cells.shape[1] - 1).span.numpy()
        with np.errstate(all="ignore"):
            logs = np.log(chart.cells) + chart.exponents * LN2
        return torch.from_numpy(np.where(spans, logs, IMPOSSIBLE).clip(IMPOSSIBLE)[..., None])
    logs = np.full((*chart.scores.span.shape, chart.scores.root.shape[1]), IMPOSSIBLE)
    for done in chart.charts:
        rows = rows_for(logs.shape[-1], done.cells.dtype)
        logs_part(np.arange(len(done.sentences)), done, chart.scores, rows, logs)
    return torch.from_numpy(logs)


def chart_bytes(potentials: Potentials, gradient: bool) -> int:
    """The charts of the batch, and what each thread works with."""
    batch, posts, _ = potentials.span.shape
    if isinstance(potentials, PlainPotentials):
        return 40 * batch * posts * posts
    return potentials.span.itemsize * posts**3 * (batch + (3 if gradient else 1) * torch.get_num_threads())


# Passes, in one precision


def inside_in(precision: Precision, scores: Any, sentences: np.ndarray, lengths: np.ndarray) -> Chart:
    """The inside pass for some sentences."""
    global redone_in_logs
    number, whole, logs = precision
    n, m, posts = scores.root.shape[1], len(sentences), scores.root.shape[1] + 1
    k = 0 if logs else m
    redone_in_logs += m - k
    chart = Chart(
        sentences,
        lengths[sentences],
        cells=buffer(m, posts * posts * (n + SPARE) + PAD, dtype=number),
        exponents=buffer(k, posts * posts + PAD, dtype=whole),
        under=buffer(k, posts * posts + PAD, dtype=whole),
        own=buffer(k, posts, posts + SPARE),
        holes=buffer(k, posts, posts, dtype=bool),
        lend=buffer(k, posts, posts + SPARE),
        by_modifier=buffer(k, n * n + 2 * PAD, dtype=number),
        by_head=buffer(k, n * n + PAD, dtype=number),
        root=buffer(k, n + SPARE),
        taken=buffer(k, n + SPARE),
        log_z=buffer(m),
        fits=np.ones(m, bool),
    )
    run(inside_part, chart.lengths, lambda n: lambda: (chart, scores, rows_for(n, number)))
    return chart


def outside_in(scores: Any, chart: Chart, weight: np.ndarray, marginals: Any) -> None:
    """The outside pass for the sentences of one chart."""
    number = chart.cells.dtype

    def prepare(n: int) -> Callable[[], tuple]:
        posts = n + 1
        around = Around(
            above=buffer(posts * posts * (n + SPARE) + PAD, dtype=number),
            hooks=buffer(posts * posts * (n + SPARE) + PAD, dtype=number),
            headed=buffer(n * n * posts + PAD, dtype=number),
            span=buffer(posts, posts, dtype=number),
            inherit=buffer(posts, posts, dtype=number),
            arc=buffer(n * (n + SPARE) + PAD, dtype=number),
        )
        return lambda: (chart, scores, rows_for(n, number), weight, around, marginals)

    run(outside_part, chart.lengths, prepare)


def run_plain(kernel: Callable, lengths: np.ndarray, *arguments: Any) -> None:
    rows = max(lengths, default=0)
    share_out(
        lambda part: kernel(part, *arguments, rows_for(rows, np.dtype(np.float64))),
        parts_of(lengths.tolist(), 3),
    )


# Memory


def buffer(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    """Memory with anything in it."""
    return np.empty(shape, dtype)


def rows_for(n: int, number: Any) -> Scratch:
    """Rows for one thread and sentences of up to n words."""
    row, other, own, weights = (buffer(n + 3 * PAD, dtype=number) for _ in range(4))
    row[:PAD] = 0
    return Scratch(row, other, own, weights, weights.view(f"i{weights.itemsize}"))


def as_arrays(potentials: Potentials) -> Any:
    """The potentials as arrays; an absent `head` is an array of no numbers."""
    arrays = [tensor.detach().contiguous().numpy() for tensor in potentials if tensor is not None]
    if len(arrays) == 4:
        arrays.append(np.empty((1, 0, 0, 0), arrays[0].dtype))
    return type(potentials)(*arrays)
