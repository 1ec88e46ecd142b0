"""Sums and best trees on the CPU, compiled by numba: the explicit passes behind nestree.treecrf.ops.

    inside, outside   sums of plain numbers, scaled by a power of two per row of the chart
    logspace          the same in logarithms, for scores that are too far apart for that
    plain             sums over plain trees
    viterbi           best trees of both kinds
    simd              the loops in which nearly all time is spent
    scheduling        which thread works on what
    jit               how kernels are compiled

Items and rules are those of reference.py. A sentence is summed in float32, if that is the type of its potentials;
if its scores are too far apart for that, in float64; and if need be in logs.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nestree.treecrf.numba_kernels.inside import PAD, Chart, Scratch, inside_part, log_chart_part
from nestree.treecrf.numba_kernels.outside import Around, both_part
from nestree.treecrf.numba_kernels.plain import PlainChart, plain_part
from nestree.treecrf.numba_kernels.scheduling import WorkQueue, plan_threads, run
from nestree.treecrf.numba_kernels.simd import LN2, SIMD_SLACK
from nestree.treecrf.numba_kernels.viterbi import Best, Workspace, best_part, best_plain_part
from nestree.treecrf.potentials import (
    IMPOSSIBLE,
    AnyPotentials,
    LexicalPotentials,
    PlainPotentials,
    Potentials,
    cell_masks,
)
from nestree.treecrf.trees import Trees

ASYNC_CHECKS = False

logspace_count = 0  # sentences of this process, so far, that were summed in logarithms


class Precision(NamedTuple):
    """A number type for sums, and whether they are logarithms."""

    number: Any
    whole: Any  # an integer of the same size
    logs: bool


PRECISIONS = Precision(np.float32, np.int32, False), Precision(np.float64, np.int64, False)
LOG_PRECISION = Precision(np.float64, np.int64, True)


class Charts(NamedTuple):
    """The scores as arrays, and a chart for each precision that was needed."""

    scores: Any
    charts: list[Chart]


def inside(potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Any]:
    """log Z [batch] and the chart."""
    scores, sizes = as_arrays(potentials), lengths.numpy()
    if isinstance(potentials, PlainPotentials):
        return plain_sums(scores.span, sizes, buffer(0, 0, 0, dtype=scores.span.dtype))
    plan = plan_threads(sizes, 4)

    def run_in(precision: Precision, sentences: np.ndarray) -> Chart:
        chart = chart_for(precision, scores, sentences, sizes, places=len(sentences))

        def work(queue: WorkQueue, _: int) -> None:
            inside_part(queue, chart, scores, rows_for(scores.root.shape[1], precision.number))

        run(plan, chart.lengths, 1, work)
        return chart

    log_z, charts = sum_with_fallback(scores, sizes, run_in)
    return log_z, Charts(scores, charts)


def inside_outside(potentials: AnyPotentials, lengths: Tensor, heads: bool) -> tuple[Tensor, AnyPotentials]:
    """log Z [batch] and the marginals, those of `head` too if there are to be `heads`."""
    scores, sizes = as_arrays(potentials), lengths.numpy()
    if isinstance(potentials, PlainPotentials):
        span = np.zeros_like(scores.span)
        log_z, _ = plain_sums(scores.span, sizes, span)
        return log_z, type(potentials)(torch.from_numpy(span).clamp_(max=1.0))
    plan = plan_threads(sizes, 4)
    shapes = [array.shape for array in scores[:4]]
    shapes.append((*scores.span.shape, scores.root.shape[1]) if heads else (1, 0, 0, 0))
    marginals = LexicalPotentials(*(np.zeros(shape, scores.span.dtype) for shape in shapes))

    def run_in(precision: Precision, sentences: np.ndarray) -> Chart:
        chart = chart_for(precision, scores, sentences, sizes, plan.places)
        around = around_for(precision, scores.root.shape[1], plan.places)

        def work(queue: WorkQueue, place: int) -> None:
            rows = rows_for(scores.root.shape[1], precision.number)
            both_part(queue, place, chart, scores, rows, around, marginals)

        run(plan, chart.lengths, 2, work)
        return chart

    log_z, _ = sum_with_fallback(scores, sizes, run_in)
    found = (torch.from_numpy(marginal) for marginal in marginals[: 5 if heads else 4])
    tensors: list[Any] = [marginal.clamp_(max=1.0) for marginal in found]  # rounding may lead beyond 1
    return log_z, type(potentials)(*tensors)


def inside_outside_each(
    several: Sequence[Potentials], lengths: Tensor, heads: Sequence[bool]
) -> list[tuple[Tensor, Potentials]]:
    """The same for several potentials of the same sentences."""
    return [inside_outside(one, lengths, asked) for one, asked in zip(several, heads, strict=True)]


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
    plan = plan_threads(sizes, 3 if plain else 4)
    posts, pitch = n + 1, 1 if plain else n + SIMD_SLACK
    workspaces = Workspace(
        cells=buffer(plan.places, posts * posts * pitch + PAD, dtype=dtype),
        by_modifier=buffer(plan.places, posts * posts + 2 * PAD, dtype=dtype),
        stack=buffer(plan.places, posts, 3, dtype=np.int64),
        governor=buffer(plan.places, n, dtype=np.int64),
    )

    def work(queue: WorkQueue, place: int) -> None:
        if plain:
            best_plain_part(queue, place, sizes, scores, workspaces, buffer(0, 0, dtype=dtype), best)
        else:
            best_part(queue, place, sizes, scores, workspaces, buffer(n + PAD, dtype=dtype), best)

    run(plan, sizes, 1, work)
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
        log_chart_part(np.arange(len(done.sentences)), done, chart.scores, rows, logs)
    return torch.from_numpy(logs)


def chart_bytes(potentials: Potentials, gradient: bool) -> int:
    """The charts of the batch; with a gradient its marginals, and what each thread works with: a chart and its like."""
    batch, posts, _ = potentials.span.shape
    if isinstance(potentials, PlainPotentials):
        return 40 * batch * posts * posts
    rows = 3 * batch + 4 * posts * torch.get_num_threads() if gradient else posts * batch
    return potentials.span.itemsize * posts**2 * rows


# Passes


def sum_with_fallback(
    scores: Any, sizes: np.ndarray, run_in: Callable[[Precision, np.ndarray], Chart]
) -> tuple[Tensor, list[Chart]]:
    """log Z [batch], each sentence in the first precision that it fits in, and the charts."""
    log_z, left, charts = buffer(len(sizes)), np.arange(len(sizes)), []
    for precision in (*PRECISIONS[int(scores.span.itemsize == 8) :], LOG_PRECISION):
        if len(left):
            chart = run_in(precision, left)
            charts.append(chart)
            log_z[left] = chart.log_z
            left = left[~chart.fits]
    return torch.from_numpy(log_z.astype(scores.span.dtype)), charts


def plain_sums(span: np.ndarray, sizes: np.ndarray, marginals: np.ndarray) -> tuple[Tensor, PlainChart]:
    """log Z [batch] and the chart; writes the marginals, if there is room for them."""
    log_z, above = buffer(len(sizes)), buffer(*marginals.shape)
    chart = PlainChart(sizes, *(buffer(*span.shape) for _ in range(4)))

    def work(queue: WorkQueue, _: int) -> None:
        plain_part(queue, chart, span, log_z, above, marginals, rows_for(span.shape[1], np.float64))

    run(plan_threads(sizes, 3), sizes, 1, work)
    return torch.from_numpy(log_z.astype(span.dtype)), chart


# Memory


def buffer(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    """An uninitialized array."""
    return np.empty(shape, dtype)


def chart_for(
    precision: Precision, scores: Any, sentences: np.ndarray, sizes: np.ndarray, places: int
) -> Chart:
    """Buffers for the charts of as many sentences at a time as there are places."""
    global logspace_count
    number, whole, logs = precision
    n, m, posts = scores.root.shape[1], len(sentences), scores.root.shape[1] + 1
    logspace_count += m if logs else 0
    k = 0 if logs else places
    return Chart(
        sentences,
        sizes[sentences],
        cells=buffer(places, posts * posts * (n + SIMD_SLACK) + PAD, dtype=number),
        exponents=buffer(k, posts * posts + PAD, dtype=whole),
        under=buffer(k, posts * posts + PAD, dtype=whole),
        own=buffer(k, posts, posts + SIMD_SLACK),
        has_zero=buffer(k, posts, posts, dtype=bool),
        lend=buffer(k, posts, posts + SIMD_SLACK),
        by_modifier=buffer(k, n * n + 2 * PAD, dtype=number),
        by_head=buffer(k, n * n + PAD, dtype=number),
        root=buffer(k, n + SIMD_SLACK),
        offset=buffer(k, n + SIMD_SLACK),
        log_z=buffer(m),
        fits=np.ones(m, bool),
    )


def around_for(precision: Precision, n: int, places: int) -> Around:
    number, posts = precision.number, n + 1
    return Around(
        above=buffer(places, posts * posts * (n + SIMD_SLACK) + PAD, dtype=number),
        hooks=buffer(places, posts * posts * (n + SIMD_SLACK) + PAD, dtype=number),
        headed=buffer(places, n * n * posts + PAD, dtype=number),
        span=buffer(places, posts, posts, dtype=number),
        inherit=buffer(places, posts, posts, dtype=number),
        arc=buffer(places, n * (n + SIMD_SLACK) + PAD, dtype=number),
    )


def rows_for(n: int, number: Any) -> Scratch:
    """Rows for one thread and sentences of up to n words."""
    row, other, own, weights = buffer(4, n + 3 * PAD, dtype=number)
    return Scratch(row, other, own, weights, weights.view(f"i{weights.itemsize}"))


def as_arrays(potentials: Potentials) -> Any:
    """The potentials as arrays; an absent `head` is an array of no numbers."""
    arrays = [tensor.detach().contiguous().numpy() for tensor in potentials if tensor is not None]
    if len(arrays) == 4:
        arrays.append(np.empty((1, 0, 0, 0), arrays[0].dtype))
    return type(potentials)(*arrays)
