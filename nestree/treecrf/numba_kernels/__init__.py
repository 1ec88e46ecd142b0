"""The CPU backend, compiled by numba: buffers, precisions, passes and threads.

    inside, outside   sums of numbers that are scaled by a power of two per row of the chart; the same in logarithms,
                      for scores too far apart for that; sums over plain trees
    viterbi           best trees of both kinds
    simd              compilation; the inner loops, where nearly all time is spent

Items and rules are those of reference.py. A sentence is summed in float32, if its potentials are float32; if its scores
are too far apart for that, in float64; and if they are too far apart for that, in logarithms.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nestree.treecrf.numba_kernels.inside import (
    PAD,
    Chart,
    PlainChart,
    Scratch,
    Sentence,
    copy_valid_scores,
    log_chart_kernel,
    steps_per_pass,
)
from nestree.treecrf.numba_kernels.outside import OutsideChart, plain_kernel, sum_kernel
from nestree.treecrf.numba_kernels.simd import LN2, SIMD_SLACK
from nestree.treecrf.numba_kernels.viterbi import BestTrees, Workspace, plain_viterbi_kernel, viterbi_kernel
from nestree.treecrf.potentials import IMPOSSIBLE, AnyPotentials, PlainPotentials, Potentials, check_values, span_cells
from nestree.treecrf.trees import Trees

ASYNC_CHECKS = False
MIN_SPLIT_WORDS = 64  # shorter sentences are not worth several threads
MIN_THREAD_NANOSECONDS = 3e5  # of work per thread; waking one takes a tenth of that or more
ALL_STEPS = 1 << 30


def inside(potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Any]:
    """log Z [batch] and the chart: of plain trees, a PlainChart; else the scores and a chart for each precision."""
    scores, sizes = copy_to_arrays(potentials, lengths), lengths.numpy()
    if isinstance(potentials, PlainPotentials):
        return plain_sums(scores.span, sizes, buffer(0, 0, 0, dtype=scores.span.dtype))
    log_z, charts = sums(scores, sizes, None)
    return log_z, (scores, charts)


def inside_outside(
    potentials: AnyPotentials, lengths: Tensor, heads: bool, arcs: bool = True
) -> tuple[Tensor, AnyPotentials]:
    """log Z [batch] and the marginals; `heads`: with those of `head`; without `arcs`, those of arcs are empty."""
    scores, sizes = copy_to_arrays(potentials, lengths), lengths.numpy()
    shapes = [array.shape for array in scores]
    if isinstance(potentials, PlainPotentials):
        marginals = type(scores)(np.zeros(shapes[0], scores.span.dtype))
        log_z, _ = plain_sums(scores.span, sizes, marginals.span)
    else:
        shapes[1] = shapes[1] if arcs else (0, 0, 0)
        shapes[4] = (*scores.span.shape, scores.root.shape[1]) if heads else (1, 0, 0, 0)
        marginals = type(scores)(*(np.zeros(shape, scores.span.dtype) for shape in shapes))
        log_z, _ = sums(scores, sizes, marginals)
    for array in marginals[:4]:
        np.minimum(array, 1, out=array)  # rounding may lead beyond 1; kernels limit those of heads
    tensors: list[Any] = [torch.from_numpy(array) for array in marginals[: 5 if heads else 4]]
    return log_z, type(potentials)(*tensors)


def viterbi(potentials: Potentials, lengths: Tensor) -> Trees:
    """The best tree of each sentence; of equal ones, that with the first head, split and modifier."""
    scores, sizes = copy_to_arrays(potentials, lengths), lengths.numpy()
    batch, n, dtype, plain = *lengths.shape, scores.span.shape[1] - 1, scores.span.dtype, len(scores) == 1
    best = BestTrees(
        score=buffer(batch, dtype=dtype),
        spans=np.full((batch, 2 * n - 1, 2 if plain else 3), -1),
        arcs=np.full((0 if plain else batch, n - 1, 2), -1),
        root=np.full(0 if plain else batch, -1),
    )
    plan = plan_threads(sizes, 3 if plain else 4)
    posts, pitch = n + 1, 1 if plain else n + SIMD_SLACK
    workspaces = Workspace(
        cells=buffer(plan.slots, posts * posts * pitch + PAD, dtype=dtype),
        by_modifier=buffer(plan.slots, posts * posts + 2 * PAD, dtype=dtype),
        stack=buffer(plan.slots, posts, 3, dtype=np.int64),
        governor=buffer(plan.slots, n, dtype=np.int64),
    )

    def work(queue: WorkQueue, slot: int) -> None:
        workspace = Workspace(*(array[slot] for array in workspaces))
        if plain:
            plain_viterbi_kernel(queue, sizes, scores, workspace, buffer(0, 0, dtype=dtype), best)
        else:
            viterbi_kernel(queue, sizes, scores, workspace, buffer(n + PAD, dtype=dtype), best)

    run(plan, sizes, 1, work)
    score, spans, arcs, root = (torch.from_numpy(array) for array in best)
    return Trees(score, spans, None if plain else arcs, None if plain else root, lengths)


def log_chart(chart: Any) -> Tensor:
    """Natural logs of all items [batch, n + 1, n + 1, x]: headed where x lies in the span, hooked outside."""
    if isinstance(chart, PlainChart):
        spans = span_cells(torch.from_numpy(chart.lengths), chart.cells.shape[1] - 1).numpy()
        with np.errstate(all="ignore"):
            logs = np.log(chart.cells) + chart.exponents * LN2
        return torch.from_numpy(np.where(spans, logs, IMPOSSIBLE).clip(IMPOSSIBLE)[..., None])
    scores, charts = chart
    logs = np.full((*scores.span.shape, scores.root.shape[1]), IMPOSSIBLE)
    for part in charts:
        log_chart_kernel(part, scores, scratch_rows(logs.shape[-1], part.slots.cells.dtype), logs)
    return torch.from_numpy(logs)


def chart_bytes(potentials: Potentials, gradient: bool) -> int:
    """The charts of the batch; with a gradient, its marginals and the buffers of each thread."""
    batch, posts, _ = potentials.span.shape
    if isinstance(potentials, PlainPotentials):
        return 40 * batch * posts * posts
    rows = 3 * batch + 4 * posts * torch.get_num_threads() if gradient else posts * batch
    return potentials.span.itemsize * posts**2 * rows


def sums(scores: Any, sizes: np.ndarray, marginals: Any) -> tuple[Tensor, list[Chart]]:
    """log Z [batch], each sentence in the first precision that suffices, and the charts.

    With `marginals`, which are written then, sentences share the buffers of a chart one after the other; with None,
    each has its own.
    """
    n, plan = scores.root.shape[1], plan_threads(sizes, 4)
    log_z, remaining, charts = buffer(len(sizes)), np.arange(len(sizes)), []
    for dtype, logs in ((np.float32, False), (np.float64, False), (np.float64, True)):
        if not len(remaining) or scores.span.itemsize > np.dtype(dtype).itemsize:
            continue
        slots = len(remaining) if marginals is None else plan.slots
        chart = inside_buffers(dtype, logs, n, remaining, sizes[remaining], slots)
        outside = None if marginals is None else outside_buffers(dtype, n, slots, marginals.arc.size > 0)

        def work(queue: WorkQueue, slot: int, chart: Chart = chart, outside: Any = outside) -> None:
            rows = scratch_rows(n, chart.slots.cells.dtype)
            own = None if outside is None else OutsideChart(*(array[slot] for array in outside))
            sum_kernel(queue, slot, chart, scores, rows, own, marginals)

        run(plan, chart.lengths, 1 if marginals is None else 2, work)
        charts.append(chart)
        log_z[remaining] = chart.log_z
        remaining = remaining[~chart.fits]
    return torch.from_numpy(log_z.astype(scores.span.dtype)), charts


def plain_sums(span: np.ndarray, sizes: np.ndarray, marginals: np.ndarray) -> tuple[Tensor, PlainChart]:
    """log Z [batch] and the chart; writes the marginals unless that array is empty."""
    log_z, outside_own = buffer(len(sizes)), buffer(*marginals.shape)
    chart = PlainChart(sizes, *(buffer(*span.shape) for _ in range(4)))

    def work(queue: WorkQueue, _: int) -> None:
        plain_kernel(queue, chart, span, log_z, outside_own, marginals, scratch_rows(span.shape[1], np.float64))

    run(plan_threads(sizes, 3), sizes, 1, work)
    return torch.from_numpy(log_z.astype(span.dtype)), chart


# Buffers


def buffer(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    """An uninitialized array."""
    return np.empty(shape, dtype)


def inside_buffers(dtype: Any, logs: bool, n: int, sentences: np.ndarray, lengths: np.ndarray, slots: int) -> Chart:
    """Buffers for the inside charts of as many sentences at a time as there are slots."""
    m, posts, integer = len(sentences), n + 1, f"i{np.dtype(dtype).itemsize}"
    k = 0 if logs else slots  # a chart of logarithms is nothing but cells
    arrays = Sentence(
        *[None] * 4,  # n, pitch, span and head
        cells=buffer(slots, posts * posts * (n + SIMD_SLACK) + PAD, dtype=dtype),
        exponents=buffer(k, posts * posts + PAD, dtype=integer),
        minus_base=buffer(k, posts * posts + PAD, dtype=integer),
        own=buffer(k, posts, posts + SIMD_SLACK),
        has_zero=buffer(k, posts, posts, dtype=bool),
        lend=buffer(k, posts, posts + SIMD_SLACK),
        by_modifier=buffer(k, n * n + 2 * PAD, dtype=dtype),
        by_head=buffer(k, n * n + PAD, dtype=dtype),
        root=buffer(k, n + SIMD_SLACK),
        offset=buffer(k, n + SIMD_SLACK),
    )
    return Chart(sentences, lengths, arrays, log_z=buffer(m), fits=np.ones(m, bool))


def outside_buffers(dtype: Any, n: int, slots: int, arcs: bool) -> OutsideChart:
    posts, rows = n + 1, (n + 1) * (n + 1) * (n + SIMD_SLACK) + PAD
    return OutsideChart(
        headed=buffer(slots, rows, dtype=dtype),
        hooked=buffer(slots, rows, dtype=dtype),
        inside_headed=buffer(slots, n * n * posts + PAD if arcs else 0, dtype=dtype),
        span=buffer(slots, posts, posts, dtype=dtype),
        inherit=buffer(slots, posts, posts, dtype=dtype),
        arc=buffer(slots, n * (n + SIMD_SLACK) + PAD, dtype=dtype),
    )


def scratch_rows(n: int, dtype: Any) -> Scratch:
    """Scratch rows for one thread and sentences of up to n words."""
    row, other, own, weights = buffer(4, n + 3 * PAD, dtype=dtype)
    return Scratch(row, other, own, weights, weights.view(f"i{weights.itemsize}"))


def copy_to_arrays(potentials: Potentials, lengths: Tensor) -> Any:
    """The potentials as arrays; an absent `head` is an empty array. Raises if a value that a tree reads is no score.

    What registers may read beyond its end, all but `inherit` and `head`, is copied to have SIMD_SLACK there.
    """
    arrays = [np.ascontiguousarray(tensor.detach().numpy()) for tensor in potentials if tensor is not None]
    flat = [array.reshape(-1) for array in arrays]
    copies = [np.zeros(array.size + SIMD_SLACK, array.dtype)[: array.size] for array in flat[:3]]
    if not copy_valid_scores(tuple(flat), tuple(copies)):
        check_values(potentials, lengths)
    arrays[:3] = [copy.reshape(array.shape) for copy, array in zip(copies, arrays, strict=False)]
    if len(arrays) == 4:
        arrays.append(np.empty((1, 0, 0, 0), arrays[0].dtype))
    return type(potentials)(*arrays)


# Threads: work is shared by sentences, and within a sentence if there are fewer sentences than threads.
#
# Kernels release the GIL and run in Python threads: numba's own threads abort the process if two Python threads use
# them at the same time. Every cell is computed by one thread, in an order that depends only on the length of the
# sentence: the bits of a result depend neither on the number of threads nor on the rest of the batch.


class WorkQueue(NamedTuple):
    """The sentences that a kernel works on, and which of their steps."""

    next: np.ndarray  # [1] the next index into `order`, shared by all threads
    order: np.ndarray  # [m] sentences
    first: int  # step
    last: int  # step, exclusive
    share: int  # this thread's share of each step
    shares: int


@cache
def pool(process: int) -> ThreadPoolExecutor:
    """The thread pool of this process: a forked child has none of its threads."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="nestree")


def run_in_threads(work: Callable[[int], None], threads: int) -> None:
    """Call work(0), work(1), ..., each on its own thread, the first on this one."""
    futures = [(k, pool(os.getpid()).submit(work, k)) for k in range(1, threads)]
    try:
        work(0)
    finally:
        for k, future in futures:
            if future.cancel():  # it has not begun
                work(k)
            else:
                future.result()


class ThreadPlan(NamedTuple):
    """The number of threads, and whether all of them work on the same sentence."""

    threads: int
    split_sentences: bool

    @property
    def slots(self) -> int:
        """How many sentences are in work at the same time."""
        return 1 if self.split_sentences else self.threads


def plan_threads(lengths: np.ndarray, power: int) -> ThreadPlan:
    """How many threads pay off if work grows with this power of the length; with the fourth, sentences can be split."""
    threads, sentences, longest = torch.get_num_threads(), len(lengths), max(lengths.tolist(), default=1)
    if power == 4 and sentences < threads and longest >= MIN_SPLIT_WORDS:
        return ThreadPlan(threads, True)
    nanoseconds = sentences * (longest**power / 8 + 150 * longest**2)
    return ThreadPlan(max(1, min(threads, sentences, int(nanoseconds / MIN_THREAD_NANOSECONDS))), False)


def run(plan: ThreadPlan, lengths: np.ndarray, passes: int, work: Callable[[WorkQueue, int], None]) -> None:
    """Call work(queue, slot) on every thread of the plan, until all steps of all sentences are done."""
    if plan.split_sentences:
        for r, n in enumerate(lengths.tolist()):
            for step in range(passes * steps_per_pass(n)):

                def run_share(thread: int, r: int = r, step: int = step) -> None:
                    counter, order = np.zeros(1, np.int64), np.array([r])
                    work(WorkQueue(counter, order, step, step + 1, thread, plan.threads), 0)

                run_in_threads(run_share, plan.threads)
        return
    # A free thread takes the next sentence, the longest first.
    queue = WorkQueue(np.zeros(1, np.int64), (-lengths).argsort(kind="stable"), 0, ALL_STEPS, 0, 1)

    def take_items(thread: int) -> None:
        if queue.next[0] < len(queue.order):
            work(queue, thread)

    run_in_threads(take_items, plan.threads)
