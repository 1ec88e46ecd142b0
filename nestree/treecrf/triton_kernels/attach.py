"""ATTACH, in the inside pass."""

import triton
import triton.language as tl

from nestree.treecrf.triton_kernels.common import (
    CAREFUL,
    FAINT,
    FAST,
    FLOOR,
    LARGE,
    NOTHING,
    SMALL,
    log2,
    score,
)


@triton.jit
def store_crest(level, crest, row, most, live):
    """The crest of rows whose greatest headed cell is `most`."""
    height = tl.ceil(log2(tl.maximum(most, SMALL)))
    tl.store(crest + row, tl.where(most > 0, tl.load(level + row, live, other=0.0) + height, NOTHING), live)


@triton.jit
def fetch_hooks(chart, arcs, row, i, x, t, width, pitch):
    """headed(i, j, h) [BT, BI] and the arcs from the words x to h [BT, BI, V], for the words h = i + t. Beyond the last
    word of the span: the last one again."""
    h = i[None, :] + tl.minimum(t, width - 1)[:, None]
    return tl.load(chart + row[None, :] + h), tl.load(arcs + h[:, :, None] * pitch + x[None, :, :])


@triton.jit
def hooked_words(e, per_span, first, last, width, length, V: tl.constexpr):
    """The spans (i, j) of some blocks [BI], and the words x of the blocks [BI, V].

    The blocks of a span are those before it, then those behind it; too many at the end are the last one again.
    """
    i = tl.minimum(first + e // per_span, last - 1)
    place = e % per_span
    block = tl.where(place <= i // V, place, (i + width) // V + place - i // V - 1)
    return i, i + width, place, (tl.minimum(block, (length - 1) // V) * V)[:, None] + tl.arange(0, V)[None, :]


@triton.jit
def attach(
    inherit, chart, power_by_modifier, level, crest, doubt, first, last, width, length, n, pitch,
    LATER: tl.constexpr, BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, HOOKS: tl.constexpr,
):  # fmt: skip
    """ATTACH for the spans of one width, FAST: hooked(i, j, x) = sum over h in (i, j) of headed(i, j, h) arc(x, h)."""
    per_span = (length - width) // V + 3
    blocks = (last - first) * per_span
    slot = tl.arange(0, BT)
    for e0 in range(0, blocks, BI):
        e = e0 + tl.arange(0, BI)
        live = e < blocks
        i, j, place, x = hooked_words(e, per_span, first, last, width, length, V)
        beyond = live[:, None] & (x < length) & ((x < i[:, None]) | (x >= j[:, None]))
        row = i * n + j - 1
        top = tl.zeros([BT, BI], tl.float32)
        total = tl.zeros([BT, BI, V], tl.float32)
        for t0 in tl.range(0, tl.cdiv(width, BT * HOOKS) * BT * HOOKS, BT, loop_unroll_factor=HOOKS):
            headed, arc = fetch_hooks(chart, power_by_modifier, row * pitch, i, x, t0 + slot, width, pitch)
            headed = tl.where((t0 + slot < width)[:, None], headed, 0.0)
            top = tl.maximum(top, headed)
            total += headed[:, :, None] * arc
        most = tl.max(top, 0)
        lends = score(inherit + i * (n + 1) + j, live, FAST)
        done = tl.sum(total, 0) * tl.exp2(-lends)[:, None]
        trusted = (done > SMALL) & (done < LARGE)
        doubt |= tl.where(beyond & (trusted == 0) & (most > 0)[:, None], 1, 0)
        if LATER:
            faint = live & (most < FAINT) & (tl.load(level + row, live, other=NOTHING) > FLOOR)
            doubt |= tl.where(faint[:, None] & (x >= 0), 1, 0)
        tl.store(chart + row[:, None] * pitch + x, done, beyond)
        store_crest(level, crest, row, most, live & (place == 0))
    return doubt


@triton.jit
def log_attach(
    chart, arc_by_modifier, first, last, width, length, n, pitch,
    MODE: tl.constexpr, BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, HOOKS: tl.constexpr,
):  # fmt: skip
    """The same for CAREFUL and BEST, whose cells and arcs are logarithms."""
    per_span = (length - width) // V + 3
    blocks = (last - first) * per_span
    slot = tl.arange(0, BT)
    for e0 in range(0, blocks, BI):
        e = e0 + tl.arange(0, BI)
        i, j, _, x = hooked_words(e, per_span, first, last, width, length, V)
        beyond = (e < blocks)[:, None] & (x < length) & ((x < i[:, None]) | (x >= j[:, None]))
        row = (i * n + j - 1) * pitch
        best = tl.full([BT, BI, V], NOTHING, tl.float32)
        headed, arc = fetch_hooks(chart, arc_by_modifier, row, i, x, slot, width, pitch)
        for t0 in tl.range(0, width, BT, loop_unroll_factor=HOOKS):
            # The next values are under way while the present ones are compared.
            next_headed, next_arc = fetch_hooks(
                chart, arc_by_modifier, row, i, x, t0 + BT + slot, width, pitch
            )
            best = tl.maximum(best, headed[:, :, None] + arc)
            headed = next_headed
            arc = next_arc
        done = tl.max(best, 0)
        if MODE == CAREFUL:
            total = tl.zeros([BT, BI, V], tl.float32)
            for t0 in range(0, width, BT):
                headed, arc = fetch_hooks(chart, arc_by_modifier, row, i, x, t0 + slot, width, pitch)
                headed = tl.where((t0 + slot < width)[:, None], headed, NOTHING)
                total += tl.exp2(headed[:, :, None] + arc - done[None, :, :])
            done += log2(tl.sum(total, 0))
        tl.store(chart + row[:, None] + x, done, beyond)
