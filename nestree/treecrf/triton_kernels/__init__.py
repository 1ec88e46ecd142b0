"""Sums and maxima over trees on a CUDA device: the passes of reference.py as Triton kernels.

One chart per sentence, chart[i, j, x]: headed where x lies in the span, hooked where it lies outside, as
docs/method.md draws it. A row is one span; a group of programs shares a sentence, splits the spans of each width,
and meets at a barrier before the next width. Long sentences have larger groups. Short ones, and those of large batches,
have a group of one and no barrier. Several sums over the same sentences are one batch that holds them several times.

There are three ways to fill it, `MODE`:
    FAST     sums as plain numbers relative to a power of two per span, its `level`, so that products are all there is
             to do, and float32 keeps its precision however long the sentence is. The `crest` of a span says how large
             its cells are, so terms are added up without looking for their maximum first. Headed cells have the factor
             of `inherit` in them. From 17 words on, the terms of several widths are summed together (far.py).
    CAREFUL  sums as base-2 logarithms, the maximum of the terms first. For the sentences in which FAST sums cannot be
             trusted; seldom needed, always right.
    BEST     maxima, in float32 with the reference's order of additions: scores and ties come out the same, bit for bit.

FAST is trusted unless a sum came out too large or too small. If the outside pass follows, a head of a span may be too
small, even zero: the outside pass knows what the rest of the tree would be worth with this head and, if that is so much
that it matters, asks for CAREFUL. So nothing is lost, and labels that speak against a head by hundreds of nats, as they
do in training, cost nothing.

The outside pass works with marginals over items: FAST as numbers whose product with the items is a probability, CAREFUL
as exp2 of something that is at most 0. Nothing overflows, and what underflows is a probability of zero. Every cell
gathers from the larger spans that contain it; nothing is added up by atomics, so the same input gives the same bits.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nestree.treecrf import memory
from nestree.treecrf.later import watch
from nestree.treecrf.potentials import AnyPotentials, LexicalPotentials, Potentials
from nestree.treecrf.trees import Trees
from nestree.treecrf.triton_kernels import common
from nestree.treecrf.triton_kernels.inside import inside_kernel
from nestree.treecrf.triton_kernels.marginals import arcs_kernel, spans_kernel
from nestree.treecrf.triton_kernels.outside import outside_kernel
from nestree.treecrf.triton_kernels.prepare import prepare_kernel
from nestree.treecrf.triton_kernels.trace import trace_kernel

CHECKS_LATER = True
MAX_FUSED_WORDS = 128  # several sums over longer sentences are no faster in one launch
FAST, CAREFUL, BEST = common.FAST.value, common.CAREFUL.value, common.BEST.value


class Chart(NamedTuple):
    """What the inside pass begins with, and what it leaves for the outside pass."""

    # span, arc, root, inherit, head, laid out plainly; span in place of those that are absent
    given: tuple[Tensor, ...]
    lexical: bool
    log_z: Tensor  # [batch]
    cells: Tensor  # [batch, n, n, pitch] row (i, j - 1): headed or hooked; FAST: over 2^level; CAREFUL: log2; BEST: ln
    level: Tensor  # [batch, n, n] whole numbers that the rows are relative to; for sums
    base: Tensor  # [batch, n, n] whole numbers that the sums of COMPLETE were relative to; for FAST sums
    crest: Tensor  # [batch, n, n] whole numbers that the rows, with their level, hardly exceed; for FAST sums
    arc: Tensor  # [batch, n, pitch] by governor; for sums in base 2, none above 0
    arc_by_modifier: Tensor  # [batch, n, pitch] the other way round
    power: Tensor  # [batch, n, pitch] exp2(arc); for sums
    power_by_modifier: Tensor  # [batch, n, pitch] the other way round
    root: Tensor  # [batch, pitch] likewise
    taken: Tensor  # [batch, pitch] what was taken from the arcs into each word and from its root score
    rest: Tensor  # [batch] log2 Z less the level of the whole sentence and all that was taken
    # [6, batch] status, length as given, length, barrier, whether CAREFUL is needed, its barrier
    report: Tensor

    @property
    def heads(self) -> int:
        """How many sentences, the first ones, have `head`."""
        span, *_, head = self.given
        return 0 if head is span else len(head)


class Shape(NamedTuple):
    """How a pass is laid out: tiles of BT terms by BI blocks of V cells."""

    BT: int
    BI: int
    V: int
    UNROLL: int  # tiles of COMPLETE under way from memory
    HOOKS: int  # and of ATTACH
    num_warps: int
    programs: int  # in all; one for each sentence, or more
    FAR: bool = False  # whether the far terms of several widths are summed together; for FAST sums,
    FT: int = 4  # in tiles of FT terms
    FI: int = 64  # by FI blocks
    maxnreg: int | None = None  # registers of a thread: fewer, so that more programs fit


def shape_for(task: str, n: int, batch: int, lexical: bool, device: torch.device) -> Shape:
    """The fastest layout of `inside`, `outside` or `best` found by measurement (benchmarks/shapes.py, docs/log.md)."""
    best = task == "best"
    if not lexical:
        return Shape(16, 32, 1, 1, 1, 4, batch)
    if n <= 16:
        return Shape(4, 32, 4, 1, 2, 4, batch)
    if n <= 32:
        return Shape(2, 128, 4, 4, 4, 8, batch) if best else Shape(2, 128, 4, 1, 2, 8, batch, True, 2, 128)
    programs = processors(device)
    if programs < 2 * batch < 4 * programs and n > 48 and not best and device.type == "cuda":
        # Two on each processor, one of which works while the other waits: with 8 warps of 128 registers for each of
        # 32 threads they take its 65,536 registers, and little else.
        return Shape(2, 128, 4, 2, 4, 8, 2 * programs, True, 4, 64, 128)
    programs = batch if programs < 2 * batch else min(programs, batch * max(16, n // 2))
    if n <= 64:
        return (
            Shape(4, 128, 4, 2, 2, 16, programs) if best else Shape(2, 128, 4, 2, 4, 8, programs, True, 4, 64)
        )
    if not best:
        return Shape(2, 256, 4, 2, 8, 16, programs, True, 4, 128)
    return Shape(2, 256, 4, 2, 2, 16, programs) if n <= 128 else Shape(4, 128, 4, 2, 2, 16, programs)


def processors(device: torch.device) -> int:
    """How many programs surely run at once, whatever they need of a processor."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def table(batch: int, n: int, like: Tensor) -> Tensor:
    """A number for each span, with anything in it. A tile may read a few beyond the end."""
    return fresh(batch * n * n + 64, like=like)[:-64].view(batch, n, n)


def fresh(*shape: int, like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A buffer with anything in it."""
    return torch.empty(shape, dtype=dtype, device=like.device)


def rows(batch: int, n: int, pitch: int, like: Tensor) -> Tensor:
    """A chart with anything in it. A tile may read a few rows beyond the end."""
    return fresh((batch * n * n + 8) * pitch + 64, like=like)[: batch * n * n * pitch].view(
        batch, n, n, pitch
    )


def inside(potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Chart]:
    """log Z [batch] and the chart."""
    chart = prepared(potentials, lengths, FAST)
    for mode in (FAST, CAREFUL):
        inside_pass(chart, mode)
    watch(chart.report, chart.level.shape[1])
    return chart.log_z, chart


def inside_outside(potentials: AnyPotentials, lengths: Tensor, heads: bool) -> tuple[Tensor, AnyPotentials]:
    """log Z [batch] and the marginals; `heads`: those of `head`, too."""
    chart, part = both(potentials, lengths, len(potentials.span) if heads else None)
    return chart.log_z, part


def inside_outside_each(
    several: Sequence[Potentials], lengths: Tensor, heads: Sequence[bool]
) -> list[tuple[Tensor, Potentials]]:
    """The same for several potentials of the same sentences: in one launch if they are small enough and alike."""
    lexical = [one for one in several if isinstance(one, LexicalPotentials)]
    needed = sum(chart_bytes(one, True) for one in several)
    if (
        len(lexical) == len(several) > 1
        and len({one.span.shape for one in several}) == 1
        and several[0].span.shape[1] - 1 <= MAX_FUSED_WORDS
        and memory.fits(needed, several[0].span.device)
    ):
        return fused(lexical, lengths, heads)
    return [inside_outside(one, lengths, asked) for one, asked in zip(several, heads, strict=True)]


def fused(
    several: Sequence[LexicalPotentials], lengths: Tensor, heads: Sequence[bool]
) -> list[tuple[Tensor, Potentials]]:
    """Several sums as one batch that holds the sentences several times: one sum alone leaves most of a GPU idle."""
    batch = len(several[0].span)
    # First those that have `head`, then those whose heads are asked for: of both, kernels know the number.
    order = sorted(range(len(several)), key=lambda k: (several[k].head is None, not heads[k]))
    ordered = [several[k] for k in order]
    span, arc, root, inherit = (torch.cat(part) for part in list(zip(*ordered, strict=True))[:4])
    of_heads = [one.head for one in ordered if one.head is not None]
    given = LexicalPotentials(span, arc, root, inherit, torch.cat(of_heads) if of_heads else None)
    asked = sum(wanted or one.head is not None for one, wanted in zip(several, heads, strict=True))
    chart, part = both(given, lengths.repeat(len(several)), batch * asked if asked else None, batch)
    found: dict[int, tuple[Tensor, Potentials]] = {}
    for place, k in enumerate(order):
        rows = slice(place * batch, (place + 1) * batch)
        d_head = part.head[rows] if heads[k] and part.head is not None else None
        mine = LexicalPotentials(part.span[rows], part.arc[rows], part.root[rows], part.inherit[rows], d_head)
        found[k] = chart.log_z[rows], mine
    return [found[k] for k in range(len(several))]


def both(
    potentials: AnyPotentials, lengths: Tensor, heads: int | None, sentences: int | None = None
) -> tuple[Chart, AnyPotentials]:
    """The chart and the marginals; `heads`: for so many, the first of the batch, those of `head`, too.

    `sentences`: so many there are, if the batch holds them several times. Where it holds `head` for some, these come
    first.
    """
    chart = prepared(potentials, lengths, FAST)
    batch, n, like = chart.level.shape[0], chart.level.shape[1], potentials.span
    posts = n + 1
    sizes = [batch * size for size in (posts * posts, posts * posts, n * n, n, 1, 1)]
    whole = [-(-size // 4) * 4 for size in sizes]  # kernels are compiled anew for arrays that begin elsewhere
    zeros = torch.zeros(sum(whole), device=like.device).split(whole)
    d_span, d_inherit, d_arc, d_root, *barriers = (
        part[:size] for part, size in zip(zeros, sizes, strict=True)
    )
    outer = rows(batch, n, chart.cells.shape[-1], like=like)
    for mode, barrier in zip((FAST, CAREFUL), barriers, strict=True):
        inside_pass(chart, mode, later=chart.lexical)
        outside_pass(chart, mode, barrier, outer, d_root)
    watch(chart.report, n, sentences)
    d_head = None
    if heads is not None and chart.lexical:
        d_head = torch.zeros(heads, posts, posts, n, device=like.device)
    d_arc = marginals(chart, outer, d_span, d_inherit, d_arc, d_head)
    if not isinstance(potentials, LexicalPotentials):
        return chart, type(potentials)(d_span.view(batch, posts, posts))
    return chart, LexicalPotentials(  # type: ignore[return-value]
        d_span.view(batch, posts, posts),
        d_arc.view(batch, n, n),
        d_root.view(batch, n),
        d_inherit.view(batch, posts, posts),
        d_head,
    )


def prepared(potentials: Potentials, lengths: Tensor, mode: int) -> Chart:
    """A chart to fill: potentials checked, arcs laid out."""
    batch, n, like = potentials.span.shape[0], potentials.span.shape[1] - 1, potentials.span
    lexical = isinstance(potentials, LexicalPotentials)
    pitch = -(-n // 16) * 16 if lexical else 1
    arc, arc_by_modifier, power, power_by_modifier = fresh(4, batch, n, pitch, like=like)
    chart = Chart(
        given=contiguous(potentials),
        lexical=lexical,
        log_z=fresh(batch, like=like),
        cells=rows(batch, n, pitch, like=like),
        level=table(batch, n, like),
        base=table(batch, n, like),
        crest=table(batch, n, like),
        arc=arc,
        arc_by_modifier=arc_by_modifier,
        power=power,
        power_by_modifier=power_by_modifier,
        root=fresh(batch, pitch, like=like),
        taken=fresh(batch, pitch, like=like),
        rest=fresh(batch, like=like),
        report=torch.zeros(6, batch, device=like.device, dtype=torch.int32),
    )
    span, arc, root, inherit, _ = chart.given
    at_once = min(32, max(16, power_of_two(n)))
    if batch > 0:
        prepare_kernel[(batch, -(-n // at_once))](
            span, arc, root, inherit, lengths, chart.report, chart.arc, arc_by_modifier, power, power_by_modifier,
            chart.root, chart.taken, n, pitch,
            MODE=mode, LEXICAL=lexical, BR=2 * at_once, BX=at_once, num_warps=8 if n > 16 else 4,
        )  # fmt: skip
    return chart


def inside_pass(chart: Chart, mode: int, later: bool = False) -> None:
    """Fill the charts of the sentences that this mode is for. `later`: an outside pass looks after small heads."""
    batch, n, pitch = *chart.level.shape[:2], chart.cells.shape[-1]
    span, _, _, inherit, head = chart.given
    shape = shape_for("best" if mode == BEST else "inside", n, batch, chart.lexical, span.device)
    if batch > 0:
        inside_kernel[(shape.programs,)](
            span, inherit, head, chart.arc_by_modifier, chart.power_by_modifier, chart.root, chart.taken, chart.cells,
            chart.level, chart.base, chart.crest, chart.report, chart.log_z, chart.rest, chart.heads, n, pitch,
            MODE=mode, LATER=later and mode == FAST, LEXICAL=chart.lexical, HEAD=chart.heads > 0,
            WORDS=max(16, power_of_two(n)), **launch(shape, mode, batch, span.device),
        )  # fmt: skip


def outside_pass(chart: Chart, mode: int, barrier: Tensor, outer: Tensor, d_root: Tensor) -> None:
    """Fill `outer` for the sentences that this mode is for."""
    batch, n, pitch = *chart.level.shape[:2], chart.cells.shape[-1]
    span, _, _, inherit, head = chart.given
    shape = shape_for("outside", n, batch, chart.lexical, span.device)
    if batch > 0:
        outside_kernel[(shape.programs,)](
            span, inherit, head, chart.arc, chart.power, chart.root, chart.cells, chart.level, chart.base, chart.report,
            chart.rest, barrier.view(torch.int32), outer, d_root, chart.heads, n, pitch,
            MODE=mode, LEXICAL=chart.lexical, HEAD=chart.heads > 0, **launch(shape, mode, batch, span.device),
        )  # fmt: skip


def marginals(
    chart: Chart, outer: Tensor, d_span: Tensor, d_inherit: Tensor, d_arc: Tensor, d_head: Tensor | None
) -> Tensor:
    """The marginals of spans, of what they lend, and of heads, left in their places; those of arcs."""
    batch, n, pitch = *chart.level.shape[:2], chart.cells.shape[-1]
    span, _, _, inherit, head = chart.given
    if batch == 0:
        return d_arc
    words = max(16, power_of_two(n)) if chart.lexical else 1
    wild = fresh(batch * n * n + 64, like=span, dtype=torch.int32)  # a tile may read past the end
    at_once = max(1, 2048 // words) if chart.lexical else 64
    spans_kernel[(batch, -(-n * n // at_once))](
        span, inherit, head, chart.cells, outer, chart.report, wild, d_span, d_inherit,
        span if d_head is None else d_head, chart.heads, 0 if d_head is None else len(d_head), n, pitch,
        LEXICAL=chart.lexical, HEAD=chart.heads > 0, D_HEAD=d_head is not None, BR=at_once, BX=words, num_warps=4,
    )  # fmt: skip
    if not chart.lexical or n == 1:
        return d_arc
    tile = min(64, words)
    tiles = -(-n // tile)
    parts = 1 if n <= 16 else 4
    of_parts = d_arc if parts == 1 else torch.zeros(parts, batch, n, n, device=span.device)
    arcs_kernel[(batch, tiles * tiles, parts)](
        chart.arc, outer, wild, chart.report, of_parts, n, pitch,
        BI=8 if n <= 16 else 4, BJ=16, BP=tile, BH=tile, num_warps=4,
    )  # fmt: skip
    return (d_arc if parts == 1 else of_parts.sum(0)).clamp_(max=1.0)  # rounding may lead beyond 1


def contiguous(potentials: Potentials) -> tuple[Tensor, ...]:
    """span, arc, root, inherit, head, laid out plainly; `span` stands in for those that are absent."""
    tensors = [None if t is None else t.contiguous() for t in potentials] + [None] * 5
    return tuple(tensors[0] if t is None else t for t in tensors[:5])  # type: ignore[misc]


def launch(shape: Shape, mode: int, batch: int, device: torch.device) -> dict[str, int | bool]:
    """The layout as kernel arguments. Programs that wait for each other must all be running."""
    if mode == CAREFUL:
        shape = shape._replace(UNROLL=1, HOOKS=1, FAR=False)
    grouped = shape.programs > batch
    most = power_of_two(max(shape.programs, processors(device))) if grouped else 1  # sentences, at least
    together = {"launch_cooperative_grid": True} if grouped else {}
    given = {
        name: value for name, value in shape._asdict().items() if value is not None and name != "programs"
    }
    return given | {"batch": batch, "BATCH": most, "GROUPED": grouped} | together


def viterbi(potentials: Potentials, lengths: Tensor) -> Trees:
    """The best tree of each sentence."""
    chart = prepared(potentials, lengths, BEST)
    inside_pass(chart, BEST)
    watch(chart.report, chart.level.shape[1])
    batch, n, device, lexical = *chart.level.shape[:2], chart.log_z.device, chart.lexical
    spans = torch.full((batch, 2 * n - 1, 3 if lexical else 2), -1, device=device)
    arcs = torch.full((batch, n - 1, 2), -1, device=device)
    roots = torch.zeros(batch, dtype=torch.int64, device=device)
    if batch > 0:
        inherit = chart.given[3]
        stack = fresh(batch, n, 4, like=chart.log_z, dtype=torch.int32)
        trace_kernel[(batch,)](
            inherit, chart.arc, chart.root, chart.cells, chart.report, stack, spans, arcs, roots, n,
            chart.cells.shape[-1], LEXICAL=lexical, BX=max(16, power_of_two(n)), num_warps=1,
        )  # fmt: skip
    return Trees(chart.log_z, spans, arcs if lexical else None, roots if lexical else None, lengths)


def log_chart(chart: Chart) -> Tensor:
    """[batch, n + 1, n + 1, x] headed and hooked in natural logarithms."""
    _, n, _, pitch = chart.cells.shape
    fast = (chart.report[4] == 0)[:, None, None, None]
    cells = torch.where(fast, chart.cells.log2(), chart.cells) + chart.level[..., None]
    cells = cells[..., : n if pitch > 1 else 1]  # [batch, i, j - 1, x]
    if pitch > 1:
        # Every word of a span has had its arc, but for the head.
        word = torch.arange(n, device=cells.device)
        within = (word[:, None, None] <= word) & (word <= word[:, None])  # [i, j - 1, x]
        so_far = torch.nn.functional.pad(chart.taken[:, :n].cumsum(-1), (1, 0))  # [batch, fencepost]
        of_span = so_far[:, None, 1:] - so_far[:, :-1, None]  # [batch, i, j - 1]
        lent = torch.where(chart.report[4, :, None, None] == 0, chart.given[3][:, :-1, 1:], 0.0) * math.log2(
            math.e
        )
        whole = (word[:, None] == 0) & (word + 1 == chart.report[2, :, None, None])  # [batch, i, j - 1]
        lent = lent.masked_fill(whole, 0.0)  # FAST cells have `inherit` in them
        own = chart.taken[:, None, None, :n] + lent[..., None]
        cells = cells + of_span[..., None] - torch.where(within, own, 0.0)
    return torch.nn.functional.pad(cells / math.log2(math.e), (0, 0, 1, 0, 0, 1))


def chart_bytes(potentials: Potentials, gradient: bool) -> int:
    """One chart forward, one more backward."""
    batch, n = potentials.span.shape[0], potentials.span.shape[1] - 1
    pitch = -(-n // 16) * 16 if isinstance(potentials, LexicalPotentials) else 1
    return 4 * batch * n * n * (pitch * (2 if gradient else 1) + 3)
