"""Sums and maxima over trees on a CUDA device: the passes of reference.py as Triton kernels.

Each sentence has one chart, chart[i, j, x]: headed where x lies in the span, hooked where it lies outside, as in
docs/method.md. A row is one span. A group of programs shares a sentence: it splits the spans of each width, and waits
at a barrier before the next width. Long sentences have larger groups. Short ones, and those of large batches, have a
group of one and no barrier. Several sums over the same sentences are one batch that holds the sentences several times.

The inside pass has three modes, `MODE`:
    SCALED    Cells are plain numbers, relative to a power of two per span (`exponent`). A sum is a sum of products,
              and float32 keeps its precision in long sentences. The `bound` of a span limits the size of its cells, so
              terms are added without looking for their maximum first. Headed cells include the factor of `inherit`.
              From 17 words on, the terms of several widths are summed together (common.py).
    LOGSPACE  Cells are base-2 logarithms, and each sum subtracts the maximum of its terms. For the sentences whose
              SCALED sums cannot be trusted: slower, seldom needed, always right.
    VITERBI   Cells are maxima in float32, added in the order of the reference: scores and ties agree bit for bit.

A SCALED sum is trusted unless it is too large or too small. If an outside pass follows, a head of a span may underflow:
the outside pass knows the weight of the rest of the tree with this head, and requests LOGSPACE if that weight is so
large that the head matters. Labels that lower a head by hundreds of nats, as in training, therefore cost nothing.

The outside pass stores probabilities over items: SCALED as numbers, LOGSPACE as logarithms. Nothing overflows, and what
underflows is a probability of zero. Every cell gathers from the larger spans that contain it. There are no
floating-point atomics, so the same input gives the same bits.
"""

import gc
import logging
import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.runtime import driver

from nestree.treecrf.ops import fits_in_memory
from nestree.treecrf.potentials import (
    AnyPotentials,
    LexicalPotentials,
    Potentials,
    error_record,
    map_tensors,
    raise_pending,
)
from nestree.treecrf.trees import Trees
from nestree.treecrf.triton_kernels import common
from nestree.treecrf.triton_kernels.inside import backtrack_kernel, error_kernel, inside_kernel, prepare_kernel
from nestree.treecrf.triton_kernels.outside import arcs_kernel, outside_kernel, spans_kernel

log = logging.getLogger(__name__)
ASYNC_CHECKS = True
MAX_FUSED_WORDS = 128  # several sums over longer sentences are no faster in one launch
SCALED, LOGSPACE, VITERBI = common.SCALED.value, common.LOGSPACE.value, common.VITERBI.value


class Chart(NamedTuple):
    """The inputs of the inside pass, and its results for the outside pass."""

    inputs: tuple[Tensor, ...]  # span, arc, root, inherit, head, contiguous; `span` stands in for absent ones
    lexical: bool
    log_z: Tensor  # [batch]
    # [batch, n, n, pitch] row (i, j - 1): headed or hooked; SCALED: over 2^exponent; LOGSPACE: log2; VITERBI: ln
    cells: Tensor
    exponent: Tensor  # [batch, n, n] integer: the cells of the row are relative to 2^exponent; for sums
    base: Tensor  # [batch, n, n] integer: the sum of COMPLETE is relative to 2^base; for SCALED sums
    bound: Tensor  # [batch, n, n] integer: no headed item of the row exceeds 2^bound by much; for SCALED sums
    arc: Tensor  # [batch, n, pitch] by governor; for sums in base 2, none above 0
    arc_by_modifier: Tensor  # [batch, n, pitch] transposed
    power: Tensor  # [batch, n, pitch] exp2(arc); for sums
    power_by_modifier: Tensor  # [batch, n, pitch]
    root: Tensor  # [batch, pitch]
    offset: Tensor  # [batch, pitch] subtracted from all arcs into a word and from its root score
    log2_rest: Tensor  # [batch] log2 Z less the exponent of the whole sentence and all offsets
    # [6, batch] status, unchecked length, length, barrier, whether LOGSPACE is needed, barrier of LOGSPACE
    report: Tensor

    @property
    def heads(self) -> int:
        """How many sentences have `head`; they come first."""
        span, *_, head = self.inputs
        return 0 if head is span else len(head)


class Shape(NamedTuple):
    """The launch shape of a pass: tiles of BT terms by BI blocks of V cells."""

    BT: int
    BI: int
    V: int
    UNROLL: int  # loop unrolling of COMPLETE
    HOOKS: int  # loop unrolling of ATTACH
    num_warps: int
    programs: int  # the grid: one for each sentence, or more
    FAR: bool = False  # whether the far terms of several widths are summed together (SCALED),
    FT: int = 4  # in tiles of FT terms
    FI: int = 64  # by FI blocks
    maxnreg: int | None = None  # registers per thread


def shape_for(task: str, n: int, batch: int, lexical: bool, device: torch.device) -> Shape:
    """The fastest measured shape for `inside`, `outside` or `best` (benchmarks/kernels.py, docs/design-notes.md)."""
    best = task == "best"
    if not lexical:
        return Shape(16, 32, 1, 1, 1, 4, batch)
    if n <= 16:
        return Shape(4, 32, 4, 1, 2, 4, batch)
    if n <= 32:
        return Shape(2, 128, 4, 4, 4, 8, batch) if best else Shape(2, 128, 4, 1, 2, 8, batch, True, 2, 128)
    programs = processors(device)
    if programs < 2 * batch < 4 * programs and n > 48 and not best and device.type == "cuda":
        # Two programs on each processor: one works while the other waits. With 8 warps of 32 threads and 128 registers
        # each they fill its 65,536 registers.
        return Shape(2, 128, 4, 2, 4, 8, 2 * programs, True, 4, 64, 128)
    programs = batch if programs < 2 * batch else min(programs, batch * max(16, n // 2))
    if n <= 64:
        return Shape(4, 128, 4, 2, 2, 16, programs) if best else Shape(2, 128, 4, 2, 4, 8, programs, True, 4, 64)
    if not best:
        return Shape(2, 256, 4, 2, 8, 16, programs, True, 4, 128)
    return Shape(2, 256, 4, 2, 2, 16, programs) if n <= 128 else Shape(4, 128, 4, 2, 2, 16, programs)


def processors(device: torch.device) -> int:
    """The number of multiprocessors: as many programs can always run at the same time."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def fresh(*shape: int, like: Tensor, dtype: torch.dtype = torch.float32, slack: int = 0) -> Tensor:
    """An uninitialized buffer; a tile may read up to `slack` numbers beyond its end."""
    size = math.prod(shape)
    return torch.empty(size + slack, dtype=dtype, device=like.device)[:size].view(shape)


def inside(potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Chart]:
    """log Z [batch] and the chart."""
    chart = make_chart(potentials, lengths, SCALED)
    for mode in (SCALED, LOGSPACE):
        inside_pass(chart, mode)
    report_errors(chart)
    return chart.log_z, chart


def inside_outside(
    potentials: AnyPotentials, lengths: Tensor, heads: bool, arcs: bool = True
) -> tuple[Tensor, AnyPotentials]:
    """log Z [batch] and the marginals; `heads`: with those of `head`. Those of arcs are always computed."""
    return run_inside_outside(potentials, lengths, len(potentials.span) if heads else None)


def inside_outside_each(
    several: Sequence[Potentials], lengths: Tensor, heads: Sequence[bool]
) -> list[tuple[Tensor, Potentials]]:
    """inside_outside for several potentials of the same sentences.

    If they are small and of one kind, in one launch, as a batch that holds the sentences several times.
    """
    lexical = [potentials for potentials in several if isinstance(potentials, LexicalPotentials)]
    if not (
        len(lexical) == len(several) > 1
        and len({potentials.span.shape for potentials in several}) == 1
        and several[0].span.shape[1] - 1 <= MAX_FUSED_WORDS
        and fits_in_memory(sum(chart_bytes(p, True) for p in several), several[0].span.device)
    ):
        return [inside_outside(p, lengths, flag) for p, flag in zip(several, heads, strict=True)]
    batch = len(lexical[0].span)
    # First those with `head`, then those whose head marginals are requested: kernels get the number of each.
    order = sorted(range(len(lexical)), key=lambda k: (lexical[k].head is None, not heads[k]))
    *parts, head = zip(*(lexical[k] for k in order), strict=True)
    span, arc, root, inherit = (torch.cat(part) for part in parts)
    given = [part for part in head if part is not None]
    together = LexicalPotentials(span, arc, root, inherit, torch.cat(given) if given else None)
    with_heads = batch * sum(flag or p.head is not None for p, flag in zip(lexical, heads, strict=True))
    log_z, marginals = run_inside_outside(together, lengths.repeat(len(order)), with_heads or None, batch)
    results: list[tuple[Tensor, Potentials]] = []
    for k, flag in enumerate(heads):
        rows = slice(order.index(k) * batch, (order.index(k) + 1) * batch)
        span, arc, root, inherit = (part[rows] for part in marginals[:4])
        d_head = marginals.head[rows] if flag and marginals.head is not None else None
        results.append((log_z[rows].clone(), LexicalPotentials(span, arc, root, inherit, d_head)))
    return results


def run_inside_outside(
    potentials: AnyPotentials, lengths: Tensor, heads: int | None, sentences: int | None = None
) -> tuple[Tensor, AnyPotentials]:
    """log Z and the marginals; for the first `heads` sentences of the batch, also those of `head`.

    `sentences`: the number of different sentences, if the batch holds them several times. If only some have `head`,
    they come first.
    """
    result = replay_graph(potentials, lengths, heads, sentences)
    if result is None:
        result = launch_inside_outside(potentials, lengths, heads, sentences)
    return result.log_z, type(potentials)(*result.marginals)


class Result(NamedTuple):
    """What an inside-outside run computes."""

    log_z: Tensor  # [batch]
    report: Tensor  # see Chart
    marginals: list[Any]  # the fields of the potentials; None: not computed


def launch_inside_outside(
    potentials: Potentials, lengths: Tensor, heads: int | None, sentences: int | None = None
) -> Result:
    """Launch all kernels of an inside-outside run."""
    chart = make_chart(potentials, lengths, SCALED)
    (batch, n, _, pitch), like = chart.cells.shape, potentials.span
    posts = n + 1
    sizes = [batch * size for size in (posts * posts, posts * posts, n * n, n, 1, 1)]
    aligned = [-(-size // 4) * 4 for size in sizes]  # kernels are recompiled for other alignments
    zeros = torch.zeros(sum(aligned), device=like.device).split(aligned)
    d_span, d_inherit, d_arc, d_root, *barriers = (part[:size] for part, size in zip(zeros, sizes, strict=True))
    outer = fresh(batch, n, n, pitch, like=like, slack=8 * pitch + 64)
    for mode, barrier in zip((SCALED, LOGSPACE), barriers, strict=True):
        inside_pass(chart, mode, outside_follows=chart.lexical)
        outside_pass(chart, mode, barrier, outer, d_root)
    d_head = None
    if heads is not None and chart.lexical:
        d_head = torch.zeros(heads, posts, posts, n, device=like.device)
    d_arc = write_marginals(chart, outer, d_span, d_inherit, d_arc, d_head)
    report_errors(chart, sentences)
    spans, inherits = d_span.view(batch, posts, posts), d_inherit.view(batch, posts, posts)
    marginals: list[Any] = [spans, d_arc.view(batch, n, n), d_root.view(batch, n), inherits, d_head]
    return Result(chart.log_z, chart.report, marginals[: 5 if chart.lexical else 1])


# CUDA graphs. Launching the kernels of a run takes longer than a small run itself, so runs of shapes that recur
# are captured once and replayed.

MAX_CHART_BYTES = 1 << 29  # of a run: larger ones keep the GPU busy while kernels are launched
MAX_GRAPH_BYTES = 1 << 30  # of the charts of all graphs, and at most
MAX_GRAPH_SHARE = 1 / 32  # of the memory of the device
MAX_GRAPHS = 32  # shapes that are remembered, the most recently used ones
CALLS_BEFORE_CAPTURE = 3  # of a shape


class Captured(NamedTuple):
    """The CUDA graph of a run, with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]  # the potentials that there are, and the lengths as floats
    result: Result
    outputs: list[Tensor]  # log Z and the marginals that there are
    chart_bytes: int


_graphs: dict[tuple[Any, ...], Captured | int] = {}  # the graph of a shape, or how many calls it had; oldest first
_graphs_lock = threading.Lock()  # a graph has one set of inputs and outputs


def replay_graph(potentials: Potentials, lengths: Tensor, heads: int | None, sentences: int | None) -> Result | None:
    """The result of a run by its CUDA graph; None: there is no graph for this shape."""
    span = potentials.span
    if not span.is_cuda or torch.cuda.is_current_stream_capturing():
        return None
    inputs = [tensor for tensor in potentials if tensor is not None]
    device = span.get_device()
    stream = driver.active.get_current_stream(device)
    key = (device, stream, heads, sentences, *[tensor.shape for tensor in inputs])
    with _graphs_lock:
        captured = _graphs.pop(key, 0)
        if isinstance(captured, int):
            captured = count_or_capture(captured, potentials, lengths, heads, sentences)
            if captured is None:
                return None
        _graphs[key] = captured
        if len(_graphs) > MAX_GRAPHS:
            del _graphs[next(iter(_graphs))]
        if isinstance(captured, int):
            return None
        torch._foreach_copy_(captured.inputs, [*inputs, as_floats(lengths)])
        captured.graph.replay()
        copies = iter(torch._foreach_mul(captured.outputs, 1.0))  # one call: faster than as many clones
    log_z, marginals = next(copies), captured.result.marginals
    copied = [None if tensor is None else next(copies) for tensor in marginals]
    return Result(log_z, captured.result.report, copied)


def count_or_capture(
    calls: int, potentials: Potentials, lengths: Tensor, heads: int | None, sentences: int | None
) -> Captured | int | None:
    """The graph of a shape that had so many calls, or one call more; None: its charts are too large, or empty."""
    needed, device = chart_bytes(potentials, True), potentials.span.device
    total = torch.cuda.get_device_properties(device).total_memory
    limit = min(MAX_GRAPH_BYTES, int(MAX_GRAPH_SHARE * total))
    if not 0 < needed <= min(MAX_CHART_BYTES, limit):
        return None
    if calls != CALLS_BEFORE_CAPTURE:
        return calls + 1
    while graph_bytes() + needed > limit:
        del _graphs[next(iter(_graphs))]
    return capture_graph(potentials, lengths, heads, sentences)


def graph_bytes() -> int:
    """The bytes of the charts of all graphs."""
    return sum(graph.chart_bytes for graph in _graphs.values() if isinstance(graph, Captured))


def as_floats(lengths: Tensor) -> Tensor:
    """The bits of lengths as float32, so that they are copied with the potentials in one kernel."""
    return lengths.contiguous().view(torch.float32)


def capture_graph(potentials: Potentials, lengths: Tensor, heads: int | None, sentences: int | None) -> Captured | int:
    """The graph of a run; a number beyond CALLS_BEFORE_CAPTURE if it cannot be captured, so that nobody tries again."""
    collecting = gc.isenabled()
    gc.disable()  # a collection that frees another graph would break the capture
    try:
        with torch.inference_mode(False), torch.no_grad():
            own = map_tensors(potentials, Tensor.clone)
            own_lengths, graph = lengths.clone(), torch.cuda.CUDAGraph()
            launch_inside_outside(own, own_lengths, heads, sentences)  # kernels are compiled and loaded
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                result = launch_inside_outside(own, own_lengths, heads, sentences)
        inputs = [*(tensor for tensor in own if tensor is not None), as_floats(own_lengths)]
        outputs = [result.log_z, *(tensor for tensor in result.marginals if tensor is not None)]
        return Captured(graph, inputs, result, outputs, chart_bytes(potentials, True))
    except RuntimeError as why:  # out of memory included
        log.info("an inside-outside run cannot be captured as a CUDA graph: %s", why)
        return CALLS_BEFORE_CAPTURE + 1
    finally:
        if collecting:
            gc.enable()


def make_chart(potentials: Potentials, lengths: Tensor, mode: int) -> Chart:
    """A new chart: potentials checked, arcs arranged."""
    batch, n, like = potentials.span.shape[0], potentials.span.shape[1] - 1, potentials.span
    lexical = isinstance(potentials, LexicalPotentials)
    pitch = -(-n // 16) * 16 if lexical else 1
    arc, arc_by_modifier, power, power_by_modifier = fresh(4, batch, n, pitch, like=like)
    inputs = [None if t is None else t.contiguous() for t in potentials] + [None] * 5
    chart = Chart(
        inputs=tuple(inputs[0] if t is None else t for t in inputs[:5]),  # type: ignore[misc]
        lexical=lexical,
        log_z=fresh(batch, like=like),
        cells=fresh(batch, n, n, pitch, like=like, slack=8 * pitch + 64),
        exponent=fresh(batch, n, n, like=like, slack=64),
        base=fresh(batch, n, n, like=like, slack=64),
        bound=fresh(batch, n, n, like=like, slack=64),
        arc=arc,
        arc_by_modifier=arc_by_modifier,
        power=power,
        power_by_modifier=power_by_modifier,
        root=fresh(batch, pitch, like=like),
        offset=fresh(batch, pitch, like=like),
        log2_rest=fresh(batch, like=like),
        report=torch.zeros(6, batch, device=like.device, dtype=torch.int32),
    )
    span, arc, root, inherit, _ = chart.inputs
    at_once = min(32, max(16, power_of_two(n)))
    if batch > 0:
        prepare_kernel[(batch, -(-n // at_once))](
            span, arc, root, inherit, lengths, chart.report, chart.arc, arc_by_modifier, power, power_by_modifier,
            chart.root, chart.offset, n, pitch,
            MODE=mode, LEXICAL=lexical, BR=2 * at_once, BX=at_once, num_warps=8 if n > 16 else 4,
        )  # fmt: skip
    return chart


def inside_pass(chart: Chart, mode: int, outside_follows: bool = False) -> None:
    """Fill the charts of the sentences that need this mode.

    `outside_follows`: an outside pass will check heads that underflow.
    """
    batch, n, _, pitch = chart.cells.shape
    span, _, _, inherit, head = chart.inputs
    shape = shape_for("best" if mode == VITERBI else "inside", n, batch, chart.lexical, span.device)
    if batch > 0:
        inside_kernel[(shape.programs,)](
            span, inherit, head, chart.power_by_modifier if mode == SCALED else chart.arc_by_modifier, chart.root,
            chart.offset, chart.cells, chart.exponent, chart.base, chart.bound, chart.report, chart.log_z,
            chart.log2_rest, chart.heads, n, pitch,
            MODE=mode, OUTSIDE_FOLLOWS=outside_follows and mode == SCALED, LEXICAL=chart.lexical, HEAD=chart.heads > 0,
            WORDS=max(16, power_of_two(n)), **launch(shape, mode, batch, span.device),
        )  # fmt: skip


def outside_pass(chart: Chart, mode: int, barrier: Tensor, outer: Tensor, d_root: Tensor) -> None:
    """Fill `outer` for the sentences that need this mode."""
    batch, n, _, pitch = chart.cells.shape
    span, _, _, inherit, head = chart.inputs
    shape = shape_for("outside", n, batch, chart.lexical, span.device)
    if batch > 0:
        outside_kernel[(shape.programs,)](
            span, inherit, head, chart.power if mode == SCALED else chart.arc, chart.root, chart.cells, chart.exponent,
            chart.base, chart.report, chart.log2_rest, barrier.view(torch.int32), outer, d_root, chart.heads, n, pitch,
            MODE=mode, LEXICAL=chart.lexical, HEAD=chart.heads > 0, **launch(shape, mode, batch, span.device),
        )  # fmt: skip


def write_marginals(
    chart: Chart, outer: Tensor, d_span: Tensor, d_inherit: Tensor, d_arc: Tensor, d_head: Tensor | None
) -> Tensor:
    """Write the marginals of spans, `inherit` and heads into the given tensors; return those of arcs."""
    batch, n, _, pitch = chart.cells.shape
    span, _, _, inherit, head = chart.inputs
    if batch == 0:
        return d_arc
    words = max(16, power_of_two(n)) if chart.lexical else 1
    in_logs = fresh(batch, n, n, like=span, dtype=torch.int32, slack=64)
    at_once = max(1, 2048 // words) if chart.lexical else 64
    spans_kernel[(batch, -(-n * n // at_once))](
        span, inherit, head, chart.cells, outer, chart.report, in_logs, d_span, d_inherit,
        span if d_head is None else d_head, chart.heads, 0 if d_head is None else len(d_head), n, pitch,
        LEXICAL=chart.lexical, HEAD=chart.heads > 0, D_HEAD=d_head is not None, BR=at_once, BX=words, num_warps=4,
    )  # fmt: skip
    if not chart.lexical or n == 1:
        return d_arc
    tile = min(64, words)
    tiles = -(-n // tile)
    parts = 1 if n <= 16 else 4
    partial_sums = d_arc if parts == 1 else torch.zeros(parts, batch, n, n, device=span.device)
    arcs_kernel[(batch, tiles * tiles, parts)](
        chart.arc, outer, in_logs, chart.report, partial_sums, n, pitch,
        BI=8 if n <= 16 else 4, BJ=16, BP=tile, BH=tile, num_warps=4,
    )  # fmt: skip
    return (d_arc if parts == 1 else partial_sums.sum(0)).clamp_(max=1.0)  # rounding may lead beyond 1


def report_errors(chart: Chart, sentences: int | None = None) -> None:
    """Have the first error of the batch raised later; `sentences`: as in run_inside_outside."""
    (batch, n), device = chart.exponent.shape[:2], chart.exponent.device
    record = error_record(device)
    if batch > 0 and record is not None:
        error_kernel[(1,)](chart.report, record, batch, sentences or batch, n, BLOCK=256, num_warps=4)
    if device.type != "cuda":
        raise_pending()


def launch(shape: Shape, mode: int, batch: int, device: torch.device) -> dict[str, int | bool]:
    """The shape as kernel arguments. Programs that wait for each other must run at the same time."""
    if mode == LOGSPACE:
        shape = shape._replace(UNROLL=1, HOOKS=1, FAR=False)
    grouped = shape.programs > batch
    max_batch = power_of_two(max(shape.programs, processors(device))) if grouped else 1
    cooperative = {"launch_cooperative_grid": True} if grouped else {}
    options = {key: value for key, value in shape._asdict().items() if value is not None}
    del options["programs"]
    return options | {"batch": batch, "BATCH": max_batch, "GROUPED": grouped} | cooperative


def viterbi(potentials: Potentials, lengths: Tensor) -> Trees:
    """The best tree of each sentence."""
    chart = make_chart(potentials, lengths, VITERBI)
    inside_pass(chart, VITERBI)
    report_errors(chart)
    batch, n, device, lexical = *chart.exponent.shape[:2], chart.log_z.device, chart.lexical
    spans = torch.full((batch, 2 * n - 1, 3 if lexical else 2), -1, device=device)
    arcs = torch.full((batch, n - 1, 2), -1, device=device)
    roots = torch.zeros(batch, dtype=torch.int64, device=device)
    if batch > 0:
        inherit = chart.inputs[3]
        stack = fresh(batch, n, 4, like=chart.log_z, dtype=torch.int32)
        backtrack_kernel[(batch,)](
            inherit, chart.arc, chart.root, chart.cells, chart.report, stack, spans, arcs, roots, n,
            chart.cells.shape[-1], LEXICAL=lexical, BX=max(16, power_of_two(n)), num_warps=1,
        )  # fmt: skip
    return Trees(chart.log_z, spans, arcs if lexical else None, roots if lexical else None, lengths)


def log_chart(chart: Chart) -> Tensor:
    """[batch, n + 1, n + 1, x] headed and hooked in natural logarithms."""
    _, n, _, pitch = chart.cells.shape
    scaled = (chart.report[4] == 0)[:, None, None, None]
    cells = torch.where(scaled, chart.cells.log2(), chart.cells) + chart.exponent[..., None]
    cells = cells[..., : n if pitch > 1 else 1]  # [batch, i, j - 1, x]
    if pitch > 1:
        # The offsets of all words of the span were subtracted, but for that of the head.
        word = torch.arange(n, device=cells.device)
        within = (word[:, None, None] <= word) & (word <= word[:, None])  # [i, j - 1, x]
        cumulative = torch.nn.functional.pad(chart.offset[:, :n].cumsum(-1), (1, 0))  # [batch, fencepost]
        of_span = cumulative[:, None, 1:] - cumulative[:, :-1, None]  # [batch, i, j - 1]
        whole = (word[:, None] == 0) & (word + 1 == chart.report[2, :, None, None])  # [batch, i, j - 1]
        inherit = chart.inputs[3][:, :-1, 1:] * math.log2(math.e)
        inherit = torch.where(scaled[..., 0] & ~whole, inherit, 0.0)  # SCALED cells include it
        own = chart.offset[:, None, None, :n] + inherit[..., None]
        cells = cells + of_span[..., None] - torch.where(within, own, 0.0)
    return torch.nn.functional.pad(cells / math.log2(math.e), (0, 0, 1, 0, 0, 1))


def chart_bytes(potentials: Potentials, gradient: bool) -> int:
    """One chart forward, one more backward."""
    batch, n = potentials.span.shape[0], potentials.span.shape[1] - 1
    pitch = -(-n // 16) * 16 if isinstance(potentials, LexicalPotentials) else 1
    return 4 * batch * n * n * (pitch * (2 if gradient else 1) + 3)
