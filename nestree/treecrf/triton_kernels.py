"""Sums and maxima over trees on a CUDA device: the passes of reference.py as Triton kernels.

One chart per sentence, chart[i, j, x]: headed where x lies in the span, hooked where it lies outside, as
docs/method.md draws it. A row is one span; a group of programs shares a sentence, splits the spans of each width,
and meets at a barrier before the next width. Short sentences have a group of one and no barrier.

Numbers. Sums are kept as base-2 logarithms relative to one whole number per span, `scale`, so that float32 keeps
its precision however long the sentence is. Each term of a sum is then bounded from above, and the terms are added
up without looking for their maximum first. Where such a sum comes out too small to be trusted, the block of spans
is done again with a maximum: always right, seldom needed. Maxima (best trees) are taken in plain float32 with the
reference's order of additions, so that scores and ties come out the same, bit for bit.

The outside pass works with marginals: the probability of a rule is exp2 of something that is at most 0, so nothing
overflows, and what underflows is a probability of zero. Every cell gathers from the larger spans that contain it;
nothing is added up by atomics, so the same input gives the same bits.
"""

import triton
import triton.language as tl

from nestree.treecrf.later import NO_TREE_BIT, WRONG_LENGTH
from nestree.treecrf.potentials import IMPOSSIBLE, NO_TREE

NOTHING = tl.constexpr(-1e30)  # the logarithm of zero, where -inf - -inf would be NaN
LOWEST = tl.constexpr(IMPOSSIBLE)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
SMALL = tl.constexpr(2.0**-80)  # below this a sum has lost terms that matter
LARGE = tl.constexpr(2.0**120)
HEAD_BIT = tl.constexpr(16)
NO_TREE_FLAG = tl.constexpr(NO_TREE_BIT)
WRONG_LENGTH_FLAG = tl.constexpr(WRONG_LENGTH)
NO_TREE_AT = tl.constexpr(NO_TREE)
SAFE_EXPONENT = tl.constexpr(100.0)


@triton.jit
def score(pointer, mask, SUM: tl.constexpr):
    """A potential, never below IMPOSSIBLE; in base 2 for sums."""
    value = tl.maximum(tl.load(pointer, mask, other=0.0), LOWEST)
    return value * LOG2_E if SUM else value


@triton.jit
def trouble(pointer, mask):
    """1 if NaN or +inf stands in a cell of the mask."""
    value = tl.load(pointer, mask, other=0.0)
    bad = ((value < float("inf")) == 0) & mask
    return tl.max(tl.max(bad.to(tl.int32), 1), 0)


@triton.jit
def by_fours(x, start, end):
    """start <= x < end, rounded outwards to blocks of four, so that four floats are loaded at a time."""
    block = x // 4 * 4
    return (block + 3 >= start) & (block < end)


@triton.jit
def meet(counter, target, GROUP: tl.constexpr):
    """All programs of a group have written what they had to before any of them reads on."""
    tl.debug_barrier()
    if GROUP > 1:
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
        while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < target:
            pass
        tl.debug_barrier()


@triton.jit(do_not_specialize=["n"])
def prepare_kernel(
    span, arc, root, inherit, lengths, report, arc_out, arc_by_modifier, root_out, taken, n, pitch,
    SUM: tl.constexpr, LEXICAL: tl.constexpr, BR: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """Look for trouble, and lay out the arcs.

    Every word but the root has one governor, so a constant can be taken from all scores of the arcs into a word
    and from its root score: every tree loses it. For sums it is their maximum, after which none exceeds 0.
    """
    b = tl.program_id(0).to(tl.int64)
    given = tl.load(lengths + b)
    length = tl.minimum(tl.maximum(given, 1), n).to(tl.int32)
    status = tl.where(given == length, 0, WRONG_LENGTH_FLAG)
    posts = n + 1
    x = tl.arange(0, BX)
    r = tl.arange(0, BR)
    for i0 in range(0, length, BR):
        i = i0 + r[:, None]
        j = x[None, :] + 1
        cell = b * posts * posts + i * posts + j
        ok = (i < j) & (j <= length)
        status |= trouble(span + cell, ok)
        if LEXICAL:
            status |= trouble(inherit + cell, ok & ((i > 0) | (j < length))) * 8
    if LEXICAL:
        top = tl.full([BX], NOTHING, tl.float32)
        for h0 in range(0, length, BR):
            h = h0 + r[:, None]
            ok = (h < length) & (x[None, :] < length) & (h != x[None, :])
            status |= trouble(arc + b * n * n + h * n + x[None, :], ok) * 2
            if SUM:
                a = score(arc + b * n * n + h * n + x[None, :], ok, SUM)
                top = tl.maximum(top, tl.max(tl.where(ok, a, NOTHING), 0))
        word = x < length
        status |= trouble((root + b * n + x)[None, :], word[None, :]) * 4
        at_root = score(root + b * n + x, word, SUM)
        top = tl.maximum(top, at_root) if SUM else tl.zeros([BX], tl.float32)
        tl.store(root_out + b * pitch + x, at_root - top, word)
        for h0 in range(0, length, BR):
            h = h0 + r[:, None]
            ok = (h < length) & word[None, :] & (h != x[None, :])
            a = score(arc + b * n * n + h * n + x[None, :], ok, SUM) - top[None, :]
            tl.store(arc_out + (b * n + h) * pitch + x[None, :], a, ok)
            tl.store(arc_by_modifier + (b * n + x[None, :]) * pitch + h, a, ok)
        tl.store(taken + b * pitch + x, top, word)
    batch = tl.num_programs(0)
    tl.store(report + b, status)
    tl.store(report + batch + b, given.to(tl.int32))
    tl.store(report + 2 * batch + b, length)
    tl.store(report + 3 * batch + b, 0)


@triton.jit
def splits(
    chart, scale, inherit, i, j, live, t, x, n, pitch,
    SUM: tl.constexpr, LEXICAL: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Both halves of the spans (i, j), added, at their splits t + 1 .. t + BK [BS, BK, BX]; their scale [BS, BK]."""
    k = (i + 1 + t)[:, None] + tl.arange(0, BK)[None, :]
    ok = live[:, None] & (k < j[:, None])
    left_row = i[:, None] * n + k - 1
    right_row = k * n + (j - 1)[:, None]
    mask = ok[:, :, None]
    if LEXICAL:
        mask = mask & by_fours(x[None, None, :], i[:, None, None], j[:, None, None])  # what is too much is not kept
    left = tl.load(chart + left_row[:, :, None] * pitch + x[None, None, :], mask, other=NOTHING)
    right = tl.load(chart + right_row[:, :, None] * pitch + x[None, None, :], mask, other=NOTHING)
    level = ok.to(tl.float32)
    ceiling = level
    if SUM:
        level = tl.load(scale + left_row, ok, other=NOTHING) + tl.load(scale + right_row, ok, other=NOTHING)
        ceiling = level
    if LEXICAL:
        # The half that holds x is headed by it, and lends it.
        lend_left = score(inherit + i[:, None] * (n + 1) + k, ok, SUM)
        lend_right = score(inherit + k * (n + 1) + j[:, None], ok, SUM)
        is_left = x[None, None, :] < k[:, :, None]
        left += tl.where(is_left, lend_left[:, :, None], 0.0)
        right += tl.where(is_left, 0.0, lend_right[:, :, None])
        ceiling = level + tl.ceil(tl.maximum(lend_left, lend_right))
    return left + right, level, ceiling


@triton.jit
def complete(
    span, inherit, head, chart, scale, start, last, width, n, pitch,
    SUM: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr,
    BS: tl.constexpr, BK: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """COMPLETE for BS spans of one width: headed(i, j, x) = span + head + sum over k of both halves."""
    i = start + tl.arange(0, BS)
    j = i + width
    live = i < last
    x = tl.arange(0, BX)
    within = live[:, None] & (x[None, :] < 1)
    if LEXICAL:
        within = live[:, None] & (x[None, :] >= i[:, None]) & (x[None, :] < j[:, None])

    own = score(span + i * (n + 1) + j, live, SUM)[:, None] + tl.zeros([BS, BX], tl.float32)
    status = 0
    if HEAD:
        evidence = head + (i * (n + 1) + j)[:, None].to(tl.int64) * n + x[None, :]
        status = trouble(evidence, within) * HEAD_BIT
        own += score(evidence, within, SUM)

    top = tl.zeros([BS], tl.float32)
    done = own
    if width > 1:
        if SUM:
            reached = tl.full([BS, BK], NOTHING, tl.float32)  # the scale of each running sum
            total = tl.zeros([BS, BK, BX], tl.float32)
            for t in range(0, width - 1, BK):
                term, level, ceiling = splits(chart, scale, inherit, i, j, live, t, x, n, pitch, SUM, LEXICAL, BK)
                raised = tl.maximum(reached, ceiling)
                total *= tl.exp2(reached - raised)[:, :, None]
                total += tl.exp2(term + (level - raised)[:, :, None])
                reached = raised
            top = tl.max(reached, 1)
            summed = tl.sum(total * tl.exp2(reached - top[:, None])[:, :, None], 1)  # [BS, BX]
            peak = tl.zeros([BS, BX], tl.float32)
            distrust = within & (((summed > SMALL) & (summed < LARGE)) == 0)
            if tl.max(tl.max(distrust.to(tl.int32), 1), 0) > 0:
                peaks = tl.full([BS, BK, BX], NOTHING, tl.float32)
                for t in range(0, width - 1, BK):
                    term, level, ceiling = splits(
                        chart, scale, inherit, i, j, live, t, x, n, pitch, SUM, LEXICAL, BK
                    )
                    peaks = tl.maximum(peaks, term + (level - top[:, None])[:, :, None])
                peak = tl.max(peaks, 1)
                total = tl.zeros([BS, BK, BX], tl.float32)
                for t in range(0, width - 1, BK):
                    term, level, ceiling = splits(
                        chart, scale, inherit, i, j, live, t, x, n, pitch, SUM, LEXICAL, BK
                    )
                    total += tl.exp2(term + (level - top[:, None])[:, :, None] - peak[:, None, :])
                summed = tl.sum(total, 1)
            done += peak + tl.log2(summed)
        else:
            best = tl.full([BS, BK, BX], NOTHING, tl.float32)
            for t in range(0, width - 1, BK):
                term, level, ceiling = splits(chart, scale, inherit, i, j, live, t, x, n, pitch, SUM, LEXICAL, BK)
                best = tl.maximum(best, term)
            done += tl.max(best, 1)

    row = i * n + j - 1
    if SUM:
        # A whole number moves from the row into its scale: exactly, and the row's maximum is then in (-1, 0].
        whole = tl.ceil(tl.max(tl.where(within, done, NOTHING), 1))
        done -= whole[:, None]
        tl.store(scale + row, top + whole, live)
    tl.store(chart + row[:, None] * pitch + x[None, :], done, within)
    return status


@triton.jit
def hooks(chart, arc_by_modifier, row, i, j, live, t, p, pitch, BK: tl.constexpr):
    """headed(i, j, h) + arc(p, h) for the words t .. t + BK - 1 of each span [BS, BK, BX]."""
    h = (i + t)[:, None] + tl.arange(0, BK)[None, :]
    ok = live[:, None] & (h < j[:, None])
    headed = tl.load(chart + row[:, None] + h, ok, other=NOTHING)
    mask = ok[:, :, None] & (p[None, None, :] < pitch)
    arc = tl.load(arc_by_modifier + h[:, :, None] * pitch + p[None, None, :], mask, other=NOTHING)
    return headed[:, :, None] + arc


@triton.jit
def attach(
    chart, arc_by_modifier, start, last, width, length, n, pitch,
    SUM: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """ATTACH for BS spans of one width: hooked(i, j, p) = sum over h in (i, j) of headed(i, j, h) + arc(p, h)."""
    i = start + tl.arange(0, BS)
    j = i + width
    live = i < last
    p = tl.arange(0, BX)
    row = (i * n + j - 1) * pitch
    beyond = live[:, None] & (p[None, :] < length) & ((p[None, :] < i[:, None]) | (p[None, :] >= j[:, None]))

    if SUM:
        total = tl.zeros([BS, BK, BX], tl.float32)
        for t in range(0, width, BK):
            total += tl.exp2(hooks(chart, arc_by_modifier, row, i, j, live, t, p, pitch, BK))
        summed = tl.sum(total, 1)  # [BS, BX]
        peak = tl.zeros([BS, BX], tl.float32)
        distrust = beyond & ((summed > SMALL) == 0)
        if tl.max(tl.max(distrust.to(tl.int32), 1), 0) > 0:
            peaks = tl.full([BS, BK, BX], NOTHING, tl.float32)
            for t in range(0, width, BK):
                peaks = tl.maximum(peaks, hooks(chart, arc_by_modifier, row, i, j, live, t, p, pitch, BK))
            peak = tl.max(peaks, 1)
            total = tl.zeros([BS, BK, BX], tl.float32)
            for t in range(0, width, BK):
                term = hooks(chart, arc_by_modifier, row, i, j, live, t, p, pitch, BK)
                total += tl.exp2(term - peak[:, None, :])
            summed = tl.sum(total, 1)
        done = peak + tl.log2(summed)
    else:
        best = tl.full([BS, BK, BX], NOTHING, tl.float32)
        for t in range(0, width, BK):
            best = tl.maximum(best, hooks(chart, arc_by_modifier, row, i, j, live, t, p, pitch, BK))
        done = tl.max(best, 1)
    tl.store(chart + row[:, None] + p[None, :], done, beyond)


@triton.jit(do_not_specialize=["n"])
def inside_kernel(
    span, inherit, head, arc_by_modifier, root, taken, chart, scale, report, log_z, rest, n, pitch,
    GROUP: tl.constexpr, SUM: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr,
    BS: tl.constexpr, BK: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """All widths of one sentence: COMPLETE and ATTACH for this program's share of each, then GOAL."""
    b = (tl.program_id(0) // GROUP).to(tl.int64)
    member = tl.program_id(0) % GROUP
    batch = tl.num_programs(0) // GROUP
    length = tl.load(report + 2 * batch + b)
    span += b * (n + 1) * (n + 1)
    chart += b * n * n * pitch
    scale += b * n * n
    if LEXICAL:
        inherit += b * (n + 1) * (n + 1)
        arc_by_modifier += b * n * pitch
        root += b * pitch
    if HEAD:
        head += b * (n + 1) * (n + 1) * n
    status = 0
    for width in range(1, length + 1):
        share = tl.cdiv(length - width + 1, GROUP)
        first = member * share
        last = tl.minimum(first + share, length - width + 1)
        for start in range(first, last, BS):
            status |= complete(
                span, inherit, head, chart, scale, start, last, width, n, pitch, SUM, LEXICAL, HEAD, BS, BK, BX
            )
        if LEXICAL:
            tl.debug_barrier()
            for start in range(first, last, BS):
                attach(chart, arc_by_modifier, start, last, width, length, n, pitch, SUM, BS, BK, BX)
        meet(report + 3 * batch + b, width * GROUP, GROUP)
    if HEAD:
        tl.atomic_or(report + b, status)
        meet(report + 3 * batch + b, (length + 1) * GROUP, GROUP)

    if member == 0:
        # GOAL: sum over h of headed(0, n, h) + root(h)
        h = tl.arange(0, BX)
        goal = tl.load(chart + (length - 1) * pitch + h, h < (length if LEXICAL else 1), other=NOTHING)
        if LEXICAL:
            goal += tl.load(root + h, h < length, other=0.0)
        best = tl.max(goal, 0)
        status = tl.load(report + b)
        if SUM:
            over = best + tl.log2(tl.sum(tl.exp2(goal - best), 0))  # relative to the scale of the whole sentence
            tl.store(rest + b, over)
            whole = tl.load(scale + length - 1)
            value = (whole.to(tl.float64) + over.to(tl.float64)) * LN_2
            if LEXICAL:
                all_taken = tl.load(taken + b * pitch + h, h < length, other=0.0).to(tl.float64)
                value += tl.sum(all_taken, 0) * LN_2
            none = value < NO_TREE_AT
            result = value.to(tl.float32)
        else:
            none = best < NO_TREE_AT
            result = best
        status = tl.where((status == 0) & none, NO_TREE_FLAG, status)
        tl.store(report + b, status)
        tl.store(log_z + b, tl.where(status == 0, result, float("nan")))


@triton.jit
def parents(
    chart, scale, inherit, outer, a, z, live, t, x, own_level, lent, length, n, pitch,
    LEXICAL: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """For BK of the larger spans that (a, z) can be one half of: log2 of the probability of that split, by head x,
    over the value of the item itself.

    Parents t < length - z are (a, z + 1 + t) with the other half to the right; then come those with it to the left.
    """
    t = t + tl.arange(0, BK)[None, :]
    a = a[:, None]
    z = z[:, None]
    to_right = length - z
    is_right = t < to_right
    ok = live[:, None] & (t < to_right + a)
    start = tl.where(is_right, a, t - to_right)  # the parent (start, end)
    end = tl.where(is_right, z + 1 + t, z)
    other_start = tl.where(is_right, z, start)  # its other half
    other_end = tl.where(is_right, end, a)
    parent_row = start * n + end - 1
    other_row = other_start * n + other_end - 1
    xx = x[None, None, :]
    mask = ok[:, :, None]
    if LEXICAL:
        mask = mask & by_fours(xx, start[:, :, None], end[:, :, None])
    term = tl.load(outer + parent_row[:, :, None] * pitch + xx, mask, other=NOTHING)
    term += tl.load(chart + other_row[:, :, None] * pitch + xx, mask, other=NOTHING)
    level = tl.load(scale + other_row, ok, other=0.0) + own_level[:, None]  # whole numbers: exact
    level -= tl.load(scale + parent_row, ok, other=0.0)
    if LEXICAL:
        other_lends = score(inherit + other_start * (n + 1) + other_end, ok, True)
        in_other = (xx >= other_start[:, :, None]) & (xx < other_end[:, :, None])
        term += tl.where(in_other, other_lends[:, :, None], lent[:, None, None])
        term = tl.where((xx >= start[:, :, None]) & (xx < end[:, :, None]), term, NOTHING)
    return term + level[:, :, None]


@triton.jit
def outside_spans(
    inherit, root, chart, scale, outer, d_inherit, d_root, weight, over, start, last, width, length, n, pitch,
    LEXICAL: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """COMPLETE, backwards, for BS spans (a, z) of one width: the probability that each item of their rows is used.

    Leaves in `outer`: where x lies in the span, the probability that x heads it and is lent; where it lies outside,
    log2 of the probability that the span is hooked to x, over the value of hooked.
    """
    a = start + tl.arange(0, BS)
    z = a + width
    live = a < last
    x = tl.arange(0, BX)
    row = a * n + z - 1
    word = live[:, None] & (x[None, :] < (length if LEXICAL else 1))
    within = word
    if LEXICAL:
        within = word & (x[None, :] >= a[:, None]) & (x[None, :] < z[:, None])
    item = tl.load(chart + row[:, None] * pitch + x[None, :], word, other=NOTHING)
    if width == length:
        used = tl.exp2(item - over)
        if LEXICAL:
            used = tl.exp2(item + (tl.load(root + x, x < length, other=NOTHING) - over)[None, :])
            tl.store(d_root + a[:, None] + x[None, :], used * weight, word)  # the only span: a = 0
    else:
        own_level = tl.load(scale + row, live, other=0.0)
        lent = tl.zeros([BS], tl.float32)
        if LEXICAL:
            lent = score(inherit + a * (n + 1) + z, live, True)
        total = tl.zeros([BS, BK, BX], tl.float32)
        for t in range(0, length - width, BK):
            term = parents(
                chart, scale, inherit, outer, a, z, live, t, x, own_level, lent, length, n, pitch, LEXICAL, BK
            )
            total += tl.exp2(term + item[:, None, :])
        used = tl.sum(total, 1)  # [BS, BX]
        if LEXICAL:
            share = tl.sum(tl.where(within, used, 0.0), 1)
            tl.store(d_inherit + a * (n + 1) + z, share * weight, live)
    left = tl.where(within, used, tl.log2(used) - item)
    tl.store(outer + row[:, None] * pitch + x[None, :], left, word)


@triton.jit
def outside_heads(
    span, head, arc, chart, outer, d_span, d_head, weight, start, last, width, length, n, pitch,
    LEXICAL: tl.constexpr, HEAD: tl.constexpr, D_HEAD: tl.constexpr,
    BS: tl.constexpr, BK: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """ATTACH, backwards, for BS spans (a, z) of one width: the probability of each of them with head h.

    Leaves in `outer`, where h lies in the span: log2 of that probability, over the sum of COMPLETE.
    """
    a = start + tl.arange(0, BS)
    z = a + width
    live = a < last
    h = tl.arange(0, BX)
    row = (a * n + z - 1) * pitch
    within = live[:, None] & (h[None, :] < 1)
    if LEXICAL:
        within = live[:, None] & (h[None, :] >= a[:, None]) & (h[None, :] < z[:, None])
    headed = tl.load(chart + row[:, None] + h[None, :], within, other=NOTHING)
    used = tl.load(outer + row[:, None] + h[None, :], within, other=0.0)
    if LEXICAL:
        total = tl.zeros([BS, BK, BX], tl.float32)
        for t0 in range(0, length - width, BK):
            t = t0 + tl.arange(0, BK)[None, :]
            p = tl.where(t < a[:, None], t, t + width)  # the words outside the span
            ok = live[:, None] & (p < length)
            hooked = tl.load(outer + row[:, None] + p, ok, other=NOTHING)
            mask = ok[:, :, None] & by_fours(h[None, None, :], a[:, None, None], z[:, None, None])
            term = tl.load(arc + p[:, :, None] * pitch + h[None, None, :], mask, other=NOTHING)
            total += tl.exp2(term + hooked[:, :, None] + headed[:, None, :])
        used += tl.sum(total, 1)
    tl.store(d_span + a * (n + 1) + z, tl.sum(tl.where(within, used, 0.0), 1) * weight, live)
    own = score(span + a * (n + 1) + z, live, True)[:, None] - headed
    if HEAD:
        own += score(head + (a * (n + 1) + z)[:, None].to(tl.int64) * n + h[None, :], within, True)
    if D_HEAD:
        tl.store(d_head + (a * (n + 1) + z)[:, None].to(tl.int64) * n + h[None, :], used * weight, within)
    tl.store(outer + row[:, None] + h[None, :], tl.log2(used) + own, within)


@triton.jit(do_not_specialize=["n"])
def outside_kernel(
    span, inherit, head, arc, root, chart, scale, report, rest, weights, counter, outer,
    d_span, d_inherit, d_root, d_head, n, pitch,
    GROUP: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr, D_HEAD: tl.constexpr,
    BS: tl.constexpr, BK: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """All widths of one sentence, the widest first: the marginals of everything but arcs, times a weight."""
    b = (tl.program_id(0) // GROUP).to(tl.int64)
    member = tl.program_id(0) % GROUP
    batch = tl.num_programs(0) // GROUP
    length = tl.load(report + 2 * batch + b)
    weight = tl.load(weights + b)
    over = tl.load(rest + b)
    span += b * (n + 1) * (n + 1)
    d_span += b * (n + 1) * (n + 1)
    chart += b * n * n * pitch
    outer += b * n * n * pitch
    scale += b * n * n
    if LEXICAL:
        inherit += b * (n + 1) * (n + 1)
        d_inherit += b * (n + 1) * (n + 1)
        arc += b * n * pitch
        root += b * pitch
        d_root += b * n
    if HEAD:
        head += b * (n + 1) * (n + 1) * n
    if D_HEAD:
        d_head += b * (n + 1) * (n + 1) * n
    for step in range(1, length + 1):
        width = length + 1 - step
        share = tl.cdiv(step, GROUP)
        first = member * share
        last = tl.minimum(first + share, step)
        for start in range(first, last, BS):
            outside_spans(
                inherit, root, chart, scale, outer, d_inherit, d_root, weight, over, start, last, width, length,
                n, pitch, LEXICAL, BS, BK, BX,
            )  # fmt: skip
        tl.debug_barrier()
        for start in range(first, last, BS):
            outside_heads(
                span, head, arc, chart, outer, d_span, d_head, weight, start, last, width, length, n, pitch,
                LEXICAL, HEAD, D_HEAD, BS, BK, BX,
            )  # fmt: skip
        meet(counter + b, step * GROUP, GROUP)


@triton.jit(do_not_specialize=["n"])
def arcs_kernel(
    arc, chart, outer, report, weights, d_arc, n, pitch, BR: tl.constexpr, BP: tl.constexpr, BH: tl.constexpr
):
    """The marginals of arcs: a product of matrices, P(arc p h) = sum over spans that hold h but not p."""
    b = tl.program_id(0).to(tl.int64)
    batch = tl.num_programs(0)
    length = tl.load(report + 2 * batch + b)
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    h = tl.program_id(2) * BH + tl.arange(0, BH)
    chart += b * n * n * pitch
    outer += b * n * n * pitch
    cell = (p[:, None] < length) & (h[None, :] < length) & (p[:, None] != h[None, :])
    score_of = tl.load(arc + (b * n + p[:, None]) * pitch + h[None, :], cell, other=NOTHING)
    plain = tl.zeros([BP, BH], tl.float32)  # to be multiplied by exp2(arc)
    careful = tl.zeros([BP, BH], tl.float32)  # with the arc already in it
    end = tl.minimum(tl.program_id(2) * BH + BH, length) * n
    for r0 in range(0, end, BR):
        r = r0 + tl.arange(0, BR)
        i = r // n
        j = r - i * n + 1
        ok = (i < j) & (j <= length)
        holds_h = ok[:, None] & (h[None, :] >= i[:, None]) & (h[None, :] < j[:, None])
        lacks_p = ok[:, None] & (p[None, :] < length) & ((p[None, :] < i[:, None]) | (p[None, :] >= j[:, None]))
        headed = tl.load(chart + r[:, None] * pitch + h[None, :], holds_h, other=NOTHING)
        hooked = tl.load(outer + r[:, None] * pitch + p[None, :], lacks_p, other=NOTHING)
        if tl.max(tl.max(hooked, 1), 0) < SAFE_EXPONENT:
            plain = tl.dot(tl.trans(tl.exp2(hooked)), tl.exp2(headed), plain, input_precision="ieee")
        else:
            for one_row in range(r0, r0 + BR):
                start = one_row // n
                stop = one_row - start * n + 1
                real = (start < stop) & (stop <= length)
                one = tl.load(chart + one_row * pitch + h, real & (h >= start) & (h < stop), other=NOTHING)
                far = (p < length) & ((p < start) | (p >= stop))
                two = tl.load(outer + one_row * pitch + p, real & far, other=NOTHING)
                careful += tl.exp2(one[None, :] + two[:, None] + score_of)
    weight = tl.load(weights + b)
    result = (plain * tl.exp2(score_of) + careful) * weight
    tl.store(d_arc + (b * n + p[:, None]) * n + h[None, :], result, cell)


@triton.jit
def first_best(values, options, none):
    """The first option with the highest value; `none` if there is no such value, as among NaN."""
    first = tl.min(tl.where(values == tl.max(values, 0), options, 1 << 30), 0)
    return tl.where(first == 1 << 30, none, first)


@triton.jit(do_not_specialize=["n"])
def trace_kernel(
    inherit, arc, root, chart, report, stack, spans, arcs, roots, n, pitch, LEXICAL: tl.constexpr, BX: tl.constexpr
):
    """Read the best tree off a chart of maxima, from the top down.

    A subtree of w words takes 2w - 1 places in preorder, so each span knows its place when it is found.
    """
    b = tl.program_id(0).to(tl.int64)
    batch = tl.num_programs(0)
    length = tl.load(report + 2 * batch + b)
    chart += b * n * n * pitch
    stack += b * n * 4
    fields = 3 if LEXICAL else 2
    spans += b * (2 * n - 1) * fields
    x = tl.arange(0, BX)
    top = 0
    if LEXICAL:
        inherit += b * (n + 1) * (n + 1)
        arc += b * n * pitch
        goal = tl.load(chart + (length - 1) * pitch + x, x < length, other=NOTHING)
        goal += tl.load(root + b * pitch + x, x < length, other=0.0)
        top = first_best(goal, x, 0)
        tl.store(roots + b, top.to(tl.int64))
    tl.store(stack, 0)
    tl.store(stack + 1, length)
    tl.store(stack + 2, top)
    tl.store(stack + 3, 0)
    depth = 1
    while depth > 0:
        tl.debug_barrier()
        depth -= 1
        i = tl.load(stack + depth * 4)
        j = tl.load(stack + depth * 4 + 1)
        h = tl.load(stack + depth * 4 + 2)
        place = tl.load(stack + depth * 4 + 3)
        tl.store(spans + place * fields, i.to(tl.int64))
        tl.store(spans + place * fields + 1, j.to(tl.int64))
        if LEXICAL:
            tl.store(spans + place * fields + 2, h.to(tl.int64))
        if j - i > 1:
            between = (x > i) & (x < j)
            left = tl.load(chart + (i * n + x - 1) * pitch + h, between, other=NOTHING)
            right = tl.load(chart + (x * n + j - 1) * pitch + h, between, other=NOTHING)
            if LEXICAL:
                left += tl.where(h < x, score(inherit + i * (n + 1) + x, between, False), 0.0)
                right += tl.where(h < x, 0.0, score(inherit + x * (n + 1) + j, between, False))
            k = first_best(left + right, x, i + 1)
            left_head = h
            right_head = h
            if LEXICAL:
                start = tl.where(h < k, k, i)
                end = tl.where(h < k, j, k)
                side = (x >= start) & (x < end)
                modifiers = tl.load(chart + (start * n + end - 1) * pitch + x, side, other=NOTHING)
                modifiers += tl.load(arc + h * pitch + x, side, other=NOTHING)
                m = first_best(modifiers, x, start)
                seat = (b * (n - 1) + tl.where(m > top, m - 1, m)) * 2
                tl.store(arcs + seat, h.to(tl.int64))
                tl.store(arcs + seat + 1, m.to(tl.int64))
                left_head = tl.where(h < k, h, m)
                right_head = tl.where(h < k, m, h)
            tl.debug_barrier()
            tl.store(stack + depth * 4, k)
            tl.store(stack + depth * 4 + 1, j)
            tl.store(stack + depth * 4 + 2, right_head)
            tl.store(stack + depth * 4 + 3, place + 2 * (k - i))
            tl.store(stack + depth * 4 + 4, i)
            tl.store(stack + depth * 4 + 5, k)
            tl.store(stack + depth * 4 + 6, left_head)
            tl.store(stack + depth * 4 + 7, place + 1)
            depth += 2
