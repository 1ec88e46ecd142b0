"""Sums and maxima over trees on a CUDA device: the passes of reference.py as Triton kernels.

One chart per sentence, chart[i, j, x]: headed where x lies in the span, hooked where it lies outside, as
docs/method.md draws it. A row is one span; a group of programs shares a sentence, splits the spans of each width,
and meets at a barrier before the next width. Short sentences have a group of one and no barrier.

There are three ways to fill it, `MODE`:
    FAST     sums as base-2 logarithms relative to one whole number per span, its `level`, so that float32 keeps its
             precision however long the sentence is. Each term is bounded from above by the `crest` of its spans, so
             terms are added up without looking for their maximum first. Headed cells hold `inherit` already.
    CAREFUL  sums as plain base-2 logarithms, the maximum of the terms first. For the sentences in which a FAST sum
             came out too small or too large to be trusted; seldom needed, always right.
    BEST     maxima, in float32 with the reference's order of additions: scores and ties come out the same, bit for bit.

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
SMALL = tl.constexpr(2.0**-100)  # below this a sum may have lost terms that matter
LARGE = tl.constexpr(2.0**120)
HEAD_BIT = tl.constexpr(16)
NO_TREE_FLAG = tl.constexpr(NO_TREE_BIT)
WRONG_LENGTH_FLAG = tl.constexpr(WRONG_LENGTH)
NO_TREE_AT = tl.constexpr(NO_TREE)
SAFE_EXPONENT = tl.constexpr(100.0)
FLOOR = tl.constexpr(-1e8)  # a level below this is that of an impossible span
GENTLE = tl.constexpr(64.0)  # `inherit` beyond this, in base 2, is not added to FAST cells
FAST = tl.constexpr(0)
CAREFUL = tl.constexpr(1)
BEST = tl.constexpr(2)
PRECISION = tl.constexpr("tf32x3")  # of matrix products: three products of halves, as good as float32


@triton.jit
def score(pointer, mask, MODE: tl.constexpr):
    """A potential, never below IMPOSSIBLE; in base 2 for sums."""
    value = tl.maximum(tl.load(pointer, mask, other=0.0), LOWEST)
    return value if MODE == BEST else value * LOG2_E


@triton.jit
def trouble(pointer, mask):
    """1 if NaN or +inf stands in a cell of the mask."""
    value = tl.load(pointer, mask, other=0.0)
    bad = ((value < float("inf")) == 0) & mask
    return tl.max(tl.max(bad.to(tl.int32), 1), 0)


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
    span, arc, root, inherit, lengths, report, arc_out, arc_by_modifier, power, power_by_modifier, root_out, taken,
    n, pitch, MODE: tl.constexpr, LEXICAL: tl.constexpr, BR: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """Look for trouble, and lay out the arcs.

    Every word but the root has one governor, so a constant can be taken from all scores of the arcs into a word
    and from its root score: every tree loses it. For sums it is their maximum, after which none exceeds 0.
    """
    b = tl.program_id(0).to(tl.int64)
    batch = tl.num_programs(0)
    given = tl.load(lengths + b)
    length = tl.minimum(tl.maximum(given, 1), n).to(tl.int32)
    status = tl.where(given == length, 0, WRONG_LENGTH_FLAG)
    careful = 0
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
            lends = ok & ((i > 0) | (j < length))
            status |= trouble(inherit + cell, lends) * 8
            rough = (tl.abs(score(inherit + cell, lends, MODE)) < GENTLE) == 0
            careful |= tl.max(tl.max(rough.to(tl.int32), 1), 0)
    if LEXICAL:
        top = tl.full([BX], NOTHING, tl.float32)
        for h0 in range(0, length, BR):
            h = h0 + r[:, None]
            ok = (h < length) & (x[None, :] < length) & (h != x[None, :])
            status |= trouble(arc + b * n * n + h * n + x[None, :], ok) * 2
            a = score(arc + b * n * n + h * n + x[None, :], ok, MODE)
            top = tl.maximum(top, tl.max(tl.where(ok, a, NOTHING), 0))
        word = x < length
        status |= trouble((root + b * n + x)[None, :], word[None, :]) * 4
        at_root = score(root + b * n + x, word, MODE)
        top = tl.zeros([BX], tl.float32) if MODE == BEST else tl.maximum(top, at_root)
        tl.store(root_out + b * pitch + x, at_root - top, word)
        tl.store(taken + b * pitch + x, top, word)
        for h0 in range(0, length, BR):
            h = h0 + r[:, None]
            ok = (h < length) & word[None, :] & (h != x[None, :])
            a = score(arc + b * n * n + h * n + x[None, :], ok, MODE) - top[None, :]
            a = tl.where(ok, a, NOTHING)
            cell = (h < length) & word[None, :]
            tl.store(arc_out + (b * n + h) * pitch + x[None, :], a, cell)
            tl.store(arc_by_modifier + (b * n + x[None, :]) * pitch + h, a, cell)
            if MODE != BEST:
                tl.store(power + (b * n + h) * pitch + x[None, :], tl.exp2(a), cell)
                tl.store(power_by_modifier + (b * n + x[None, :]) * pitch + h, tl.exp2(a), cell)
    tl.store(report + b, status)
    tl.store(report + batch + b, given.to(tl.int32))
    tl.store(report + 2 * batch + b, length)
    tl.store(report + 3 * batch + b, 0)  # the barriers of FAST or BEST, and of CAREFUL
    tl.store(report + 4 * batch + b, 0)
    tl.store(report + 5 * batch + b, careful)


@triton.jit
def split_terms(
    chart, level, crest, inherit, i, j, x, t, width, n, pitch, MODE: tl.constexpr, LEXICAL: tl.constexpr
):
    """Both halves of the spans (i, j), added, at their splits i + 1 + t [BT, BI, V]; their levels [BT, BI].

    What lies beyond the last split is the last split again, to be dropped by the caller.
    """
    k = (i + 1)[None, :] + tl.minimum(t, width - 2)[:, None]
    left_row = i[None, :] * n + k - 1
    right_row = k * n + (j - 1)[None, :]
    left = tl.load(chart + left_row[:, :, None] * pitch + x[None, :, :])
    right = tl.load(chart + right_row[:, :, None] * pitch + x[None, :, :])
    base = k.to(tl.float32)
    bound = base
    if MODE == FAST:
        base = tl.load(level + left_row) + tl.load(level + right_row)
        bound = tl.load(crest + left_row) + tl.load(crest + right_row)
    elif LEXICAL:
        # The half that holds x is headed by it, and lends it.
        is_left = x[None, :, :] < k[:, :, None]
        lend_left = score(inherit + i[None, :] * (n + 1) + k, k > 0, MODE)
        lend_right = score(inherit + k * (n + 1) + j[None, :], k > 0, MODE)
        left += tl.where(is_left, lend_left[:, :, None], 0.0)
        right += tl.where(is_left, 0.0, lend_right[:, :, None])
    return left + right, base, bound


@triton.jit
def complete(
    span, inherit, head, chart, level, crest, doubt, first, last, width, length, n, pitch,
    MODE: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """COMPLETE for the spans of one width from `first` to `last`: headed(i, j, x) = span + head + sum over k.

    The work of a tile is BI blocks of V neighbouring cells, packed: a span takes as many blocks as it needs. Cells of
    a block that are not in the span come along, hold nonsense, and are not stored.
    """
    per_span = (width + 2 * V - 2) // V if LEXICAL else 1
    blocks = (last - first) * per_span
    slot = tl.arange(0, BT)
    for e0 in range(0, blocks, BI):
        e = e0 + tl.arange(0, BI)
        i = tl.minimum(first + e // per_span, last - 1)
        j = i + width
        place = e % per_span
        live = e < blocks
        x = tl.zeros([BI, V], tl.int32)
        within = live[:, None] & (x == 0)
        if LEXICAL:
            x = ((i // V + place) * V)[:, None] + tl.arange(0, V)[None, :]
            within = live[:, None] & (x >= i[:, None]) & (x < j[:, None])
        of_span = score(span + i * (n + 1) + j, live, MODE)
        if MODE == FAST and LEXICAL:
            of_span += score(inherit + i * (n + 1) + j, live & (width < length), MODE)
        done = of_span[:, None] + tl.zeros([BI, V], tl.float32)
        if HEAD:
            evidence = head + (i * (n + 1) + j)[:, None].to(tl.int64) * n + x
            raw = tl.load(evidence, within, other=0.0)
            doubt |= tl.where((raw < float("inf")) == 0, 2, 0)
            done += score(evidence, within, MODE)
        top = tl.zeros([BI], tl.float32)
        if width > 1:
            if MODE == FAST:
                reached = tl.full([BT, BI], NOTHING, tl.float32)  # the level of each running sum
                total = tl.zeros([BT, BI, V], tl.float32)
                for t0 in tl.range(0, width - 1, BT, loop_unroll_factor=UNROLL):
                    term, base, bound = split_terms(
                        chart, level, crest, inherit, i, j, x, t0 + slot, width, n, pitch, MODE, LEXICAL
                    )
                    bound = tl.where((t0 + slot < width - 1)[:, None] & (bound > FLOOR), bound, NOTHING)
                    raised = tl.maximum(reached, bound)
                    base = tl.where(bound > FLOOR, base - raised, NOTHING)
                    total = total * tl.exp2(reached - raised)[:, :, None] + tl.exp2(term + base[:, :, None])
                    reached = raised
                top = tl.max(reached, 0)
                summed = tl.sum(total * tl.exp2(reached - top[None, :])[:, :, None], 0)  # [BI, V]
                distrust = ((summed > SMALL) & (summed < LARGE)) == 0
                doubt |= tl.where(within & distrust & (of_span > FLOOR)[:, None], 1, 0)
                done += tl.log2(summed)
                done = tl.where((of_span > FLOOR)[:, None], done, of_span[:, None])
            else:
                best = tl.full([BT, BI, V], NOTHING, tl.float32)
                for t0 in tl.range(0, width - 1, BT, loop_unroll_factor=UNROLL):
                    term, base, bound = split_terms(
                        chart, level, crest, inherit, i, j, x, t0 + slot, width, n, pitch, MODE, LEXICAL
                    )
                    best = tl.maximum(best, term)
                peak = tl.max(best, 0)
                if MODE == CAREFUL:
                    total = tl.zeros([BT, BI, V], tl.float32)
                    for t0 in tl.range(0, width - 1, BT, loop_unroll_factor=UNROLL):
                        term, base, bound = split_terms(
                            chart, level, crest, inherit, i, j, x, t0 + slot, width, n, pitch, MODE, LEXICAL
                        )
                        real = (t0 + slot < width - 1)[:, None, None]
                        total += tl.where(real, tl.exp2(term - peak[None, :, :]), 0.0)
                    peak += tl.log2(tl.sum(total, 0))
                done += peak
        row = i * n + j - 1
        tl.store(chart + row[:, None] * pitch + x, done, within)
        if MODE != BEST:
            tl.store(level + row, top, live & (place == 0))
    return doubt


@triton.jit
def hooks(chart, arc_by_modifier, row, i, j, live, h0, length, p, pitch, BK: tl.constexpr):
    """headed(i, j, h) + arc(p, h) for the words h0 .. h0 + BK - 1 [BA, BK, BX]."""
    h = h0 + tl.arange(0, BK)[None, :]
    ok = live[:, None] & (h >= i[:, None]) & (h < j[:, None])
    headed = tl.load(chart + row[:, None] + h, ok, other=NOTHING)
    mask = (h[:, :, None] < length) & (p[None, None, :] < pitch)
    arc = tl.load(arc_by_modifier + h[:, :, None] * pitch + p[None, None, :], mask, other=NOTHING)  # [1, BK, BX]
    return headed[:, :, None] + arc


@triton.jit
def attach(
    inherit, chart, arc_by_modifier, power_by_modifier, level, crest, doubt, start, last, width, length, n, pitch,
    MODE: tl.constexpr, BA: tl.constexpr, BK: tl.constexpr, BH: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """ATTACH for BA spans of one width: hooked(i, j, p) = sum over h in (i, j) of headed(i, j, h) + arc(p, h)."""
    i = start + tl.arange(0, BA)
    j = i + width
    live = i < last
    row = (i * n + j - 1) * pitch
    end = tl.minimum(start + BA, last) + width - 1  # of the last span
    shift = tl.zeros([BA], tl.float32)
    if MODE != BEST:
        highest = tl.full([BA, BH], NOTHING, tl.float32)
        for h0 in range(start, end, BH):
            h = h0 + tl.arange(0, BH)
            ok = live[:, None] & (h[None, :] >= i[:, None]) & (h[None, :] < j[:, None])
            highest = tl.maximum(highest, tl.load(chart + row[:, None] + h[None, :], ok, other=NOTHING))
        shift = tl.ceil(tl.max(highest, 1))
        tl.store(crest + i * n + j - 1, tl.load(level + i * n + j - 1, live, other=0.0) + shift, live)
    lends = tl.zeros([BA], tl.float32)
    if MODE == FAST:
        lends = score(inherit + i * (n + 1) + j, live, MODE)
    for p0 in range(0, length, BX):
        p = p0 + tl.arange(0, BX)
        beyond = live[:, None] & (p[None, :] < length) & ((p[None, :] < i[:, None]) | (p[None, :] >= j[:, None]))
        if MODE == FAST:
            summed = tl.zeros([BA, BX], tl.float32)
            for h0 in range(start, end, BH):
                h = h0 + tl.arange(0, BH)
                ok = live[:, None] & (h[None, :] >= i[:, None]) & (h[None, :] < j[:, None])
                headed = tl.load(chart + row[:, None] + h[None, :], ok, other=NOTHING) - shift[:, None]
                mask = (h[:, None] < length) & (p[None, :] < pitch)
                arc = tl.load(power_by_modifier + h[:, None] * pitch + p[None, :], mask, other=0.0)
                summed = tl.dot(tl.exp2(headed), arc, summed, input_precision=PRECISION)
            distrust = beyond & ((summed > SMALL) == 0) & (shift > FLOOR)[:, None]
            doubt |= tl.max(tl.max(distrust.to(tl.int32), 1), 0)
            done = tl.log2(summed) + (shift - lends)[:, None]
            done = tl.where((shift > FLOOR)[:, None], done, shift[:, None])
        else:
            best = tl.full([BA, BK, BX], NOTHING, tl.float32)
            for h0 in range(start, end, BK):
                best = tl.maximum(best, hooks(chart, arc_by_modifier, row, i, j, live, h0, length, p, pitch, BK))
            done = tl.max(best, 1)
            if MODE == CAREFUL:
                total = tl.zeros([BA, BK, BX], tl.float32)
                for h0 in range(start, end, BK):
                    term = hooks(chart, arc_by_modifier, row, i, j, live, h0, length, p, pitch, BK)
                    total += tl.exp2(term - done[:, None, :])
                done += tl.log2(tl.sum(total, 1))
        tl.store(chart + row[:, None] + p[None, :], done, beyond)
    return doubt


@triton.jit(do_not_specialize=["n"])
def inside_kernel(
    span, inherit, head, arc_by_modifier, power_by_modifier, root, taken, chart, level, crest, report, log_z, rest,
    n, pitch,
    GROUP: tl.constexpr, MODE: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr, WORDS: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
    BA: tl.constexpr, BK: tl.constexpr, BH: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """All widths of one sentence: COMPLETE and ATTACH for this program's share of each, then GOAL."""
    b = (tl.program_id(0) // GROUP).to(tl.int64)
    member = tl.program_id(0) % GROUP
    batch = tl.num_programs(0) // GROUP
    length = tl.load(report + 2 * batch + b)
    if MODE == FAST:
        length = tl.where(tl.load(report + 5 * batch + b) == 0, length, 0)
    if MODE == CAREFUL:
        length = tl.where(tl.load(report + 5 * batch + b) == 0, 0, length)
    if length == 0:
        return
    counter = report + (4 if MODE == CAREFUL else 3) * batch + b
    span += b * (n + 1) * (n + 1)
    chart += b * n * n * pitch
    level += b * n * n
    crest += b * n * n
    if LEXICAL:
        inherit += b * (n + 1) * (n + 1)
        arc_by_modifier += b * n * pitch
        power_by_modifier += b * n * pitch
        root += b * pitch
    if HEAD:
        head += b * (n + 1) * (n + 1) * n
    doubt = tl.zeros([BI, V], tl.int32)
    doubt_too = 0
    for width in range(1, length + 1):
        share = tl.cdiv(length - width + 1, GROUP)
        first = member * share
        last = tl.minimum(first + share, length - width + 1)
        doubt = complete(
            span, inherit, head, chart, level, crest, doubt, first, last, width, length, n, pitch,
            MODE, LEXICAL, HEAD, BT, BI, V, UNROLL,
        )  # fmt: skip
        if LEXICAL:
            tl.debug_barrier()
            for start in range(first, last, BA):
                doubt_too = attach(
                    inherit, chart, arc_by_modifier, power_by_modifier, level, crest, doubt_too, start, last, width,
                    length, n, pitch, MODE, BA, BK, BH, BX,
                )  # fmt: skip
        elif MODE == FAST:
            tl.debug_barrier()
            i = first + tl.arange(0, WORDS)
            row = i * n + i + width - 1
            mine = i < last
            tl.store(crest + row, tl.load(level + row, mine) + tl.ceil(tl.load(chart + row * pitch, mine)), mine)
        meet(counter, width * GROUP, GROUP)
    found = tl.max(tl.max(doubt, 1), 0)
    tl.atomic_or(report + 5 * batch + b, (found & 1) | doubt_too)
    tl.atomic_or(report + b, (found >> 1) * HEAD_BIT)
    meet(counter, (length + 1) * GROUP, GROUP)

    if member == 0:
        # GOAL: sum over h of headed(0, n, h) + root(h)
        h = tl.arange(0, WORDS)
        goal = tl.load(chart + (length - 1) * pitch + h, h < (length if LEXICAL else 1), other=NOTHING)
        if LEXICAL:
            goal += tl.load(root + h, h < length, other=0.0)
        best = tl.max(goal, 0)
        status = tl.load(report + b)
        if MODE == BEST:
            none = best < NO_TREE_AT
            result = best
        else:
            over = best + tl.log2(tl.sum(tl.exp2(goal - best), 0))  # relative to the level of the whole sentence
            tl.store(rest + b, over)
            whole = tl.load(level + length - 1)
            value = (whole.to(tl.float64) + over.to(tl.float64)) * LN_2
            if LEXICAL:
                all_taken = tl.load(taken + b * pitch + h, h < length, other=0.0).to(tl.float64)
                value += tl.sum(all_taken, 0) * LN_2
            none = value < NO_TREE_AT
            result = value.to(tl.float32)
        if MODE == FAST:
            none = none & (tl.load(report + 5 * batch + b) == 0)
        status = tl.where((status == 0) & none, NO_TREE_FLAG, status)
        tl.store(report + b, status)
        tl.store(log_z + b, tl.where(status == 0, result, float("nan")))


@triton.jit
def parent_terms(
    chart, level, inherit, outer, a, z, x, within, lends, own_level, start, end, other_start, other_end, ok, n, pitch,
    MODE: tl.constexpr, LEXICAL: tl.constexpr,
):  # fmt: skip
    """log2 of the probability that (a, z) and another half make (start, end) with head x, over the item itself."""
    parent_row = start * n + end - 1
    other_row = other_start * n + other_end - 1
    term = tl.load(outer + parent_row[:, :, None] * pitch + x[None, :, :], ok[:, :, None], other=NOTHING)
    term += tl.load(chart + other_row[:, :, None] * pitch + x[None, :, :], ok[:, :, None], other=NOTHING)
    if MODE == FAST:
        base = tl.load(level + other_row, ok, other=0.0) + own_level[None, :]  # whole numbers: exact
        term += (base - tl.load(level + parent_row, ok, other=0.0))[:, :, None]
    elif LEXICAL:
        in_other = (x[None, :, :] >= other_start[:, :, None]) & (x[None, :, :] < other_end[:, :, None])
        other_lends = score(inherit + other_start * (n + 1) + other_end, ok, MODE)
        term += tl.where(in_other, other_lends[:, :, None], lends[None, :, None])
    if LEXICAL:
        term = tl.where((x[None, :, :] >= start[:, :, None]) & (x[None, :, :] < end[:, :, None]), term, NOTHING)
    return term


@triton.jit
def outside_spans(
    inherit, root, chart, level, outer, d_root, weight, over, first, last, width, length, n, pitch,
    MODE: tl.constexpr, LEXICAL: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """COMPLETE, backwards, for the spans (a, z) of one width: the probability that each item of their rows is used.

    Leaves in `outer`: where x lies in the span, the probability that x heads it and is lent; where it lies outside,
    log2 of the probability that the span is hooked to x, over the value of hooked.
    """
    per_span = (length + V - 1) // V if LEXICAL else 1
    blocks = (last - first) * per_span
    slot = tl.arange(0, BT)[:, None]
    for e0 in range(0, blocks, BI):
        e = e0 + tl.arange(0, BI)
        a = tl.minimum(first + e // per_span, last - 1)
        z = a + width
        live = e < blocks
        x = tl.zeros([BI, V], tl.int32)
        x_first = e % per_span * V
        word = live[:, None] & (x == 0)
        within = word
        if LEXICAL:
            x = x_first[:, None] + tl.arange(0, V)[None, :]
            word = live[:, None] & (x < length)
            within = word & (x >= a[:, None]) & (x < z[:, None])
        row = a * n + z - 1
        item = tl.load(chart + row[:, None] * pitch + x, word, other=NOTHING)
        if width == length:
            used = tl.exp2(item - over)
            if LEXICAL:
                used = tl.exp2(item + (tl.load(root + x, word, other=NOTHING) - over))
                tl.store(d_root + x, used * weight, word)
        else:
            own_level = tl.load(level + row, live, other=0.0)
            lends = tl.zeros([BI], tl.float32)
            if MODE == CAREFUL and LEXICAL:
                lends = score(inherit + a * (n + 1) + z, live, MODE)
            total = tl.zeros([BT, BI, V], tl.float32)
            a_first = first + e0 // per_span
            a_last = tl.minimum(first + (e0 + BI - 1) // per_span, last - 1)
            for t0 in tl.range(0, length - a_first - width, BT, loop_unroll_factor=UNROLL):
                end = z[None, :] + 1 + t0 + slot
                ok = end <= length
                if LEXICAL:
                    ok = ok & (x_first + V > a)[None, :] & (x_first[None, :] < end)
                start = a[None, :] + slot * 0
                term = parent_terms(
                    chart, level, inherit, outer, a, z, x, within, lends, own_level, start, end, z[None, :] + slot * 0,
                    end, ok, n, pitch, MODE, LEXICAL,
                )  # fmt: skip
                total += tl.exp2(term + item[None, :, :])
            for t0 in tl.range(0, a_last, BT, loop_unroll_factor=UNROLL):
                start = a[None, :] - 1 - t0 - slot
                ok = start >= 0
                if LEXICAL:
                    ok = ok & (x_first < z)[None, :] & (x_first[None, :] + V > start)
                end = z[None, :] + slot * 0
                term = parent_terms(
                    chart, level, inherit, outer, a, z, x, within, lends, own_level, start, end, start,
                    a[None, :] + slot * 0, ok, n, pitch, MODE, LEXICAL,
                )  # fmt: skip
                total += tl.exp2(term + item[None, :, :])
            used = tl.sum(total, 0)  # [BI, V]
        tl.store(outer + row[:, None] * pitch + x, tl.where(within, used, tl.log2(used) - item), word)


@triton.jit
def outside_heads(
    span, inherit, head, arc, power, chart, level, crest, outer, d_span, d_inherit, d_head, weight,
    start, last, width, length, n, pitch,
    MODE: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr, D_HEAD: tl.constexpr,
    BA: tl.constexpr, BK: tl.constexpr, BH: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """ATTACH, backwards, for BA spans (a, z) of one width: the probability of each of them with head h.

    Leaves in `outer`, where h lies in the span: log2 of that probability, over the sum of COMPLETE.
    """
    a = start + tl.arange(0, BA)
    z = a + width
    live = a < last
    row = (a * n + z - 1) * pitch
    cell = a * (n + 1) + z
    of_span = score(span + cell, live, MODE)
    shift = tl.zeros([BA], tl.float32)  # between headed cells and what exp2 is taken of
    lends = tl.zeros([BA], tl.float32)  # what the headed cells have of `inherit` in them
    first_h = 0
    last_h = 1
    if LEXICAL:
        shift = tl.load(crest + a * n + z - 1, live, other=0.0) - tl.load(level + a * n + z - 1, live, other=0.0)
        if MODE == FAST:
            lends = score(inherit + cell, live & (width < length), MODE)
        first_h = start // 4 * 4
        last_h = tl.minimum(start + BA, last) + width - 1
    probability = tl.zeros([BA], tl.float32)
    lending = tl.zeros([BA], tl.float32)
    for h0 in range(first_h, last_h, BX):
        h = h0 + tl.arange(0, BX)
        within = live[:, None] & (h[None, :] < 1)
        if LEXICAL:
            within = live[:, None] & (h[None, :] >= a[:, None]) & (h[None, :] < z[:, None])
        headed = tl.load(chart + row[:, None] + h[None, :], within, other=NOTHING)
        used = tl.load(outer + row[:, None] + h[None, :], within, other=0.0)
        lending += tl.sum(used, 1)
        if LEXICAL:
            summed = tl.zeros([BA, BX], tl.float32)
            highest = tl.full([BA, BH], NOTHING, tl.float32)
            for p0 in range(0, length, BH):
                p = p0 + tl.arange(0, BH)
                beyond = (p[None, :] < a[:, None]) | (p[None, :] >= z[:, None])
                ok = live[:, None] & beyond & (p[None, :] < length)
                hooked = tl.load(outer + row[:, None] + p[None, :], ok, other=NOTHING) + (shift - lends)[:, None]
                highest = tl.maximum(highest, hooked)
                mask = (p[:, None] < length) & (h[None, :] < pitch)
                arcs = tl.load(power + p[:, None] * pitch + h[None, :], mask, other=0.0)
                summed = tl.dot(tl.exp2(hooked), arcs, summed, input_precision=PRECISION)
            hooking = summed * tl.exp2(headed - shift[:, None])
            if (tl.max(tl.max(highest, 1), 0) < SAFE_EXPONENT) == 0:
                total = tl.zeros([BA, BK, BX], tl.float32)
                for p0 in range(0, length, BK):
                    p = p0 + tl.arange(0, BK)[None, :]
                    beyond = (p < a[:, None]) | (p >= z[:, None])
                    hooked = tl.load(outer + row[:, None] + p, live[:, None] & beyond & (p < length), other=NOTHING)
                    mask = (p[:, :, None] < length) & (h[None, None, :] < pitch)
                    term = tl.load(arc + p[:, :, None] * pitch + h[None, None, :], mask, other=NOTHING)
                    term += (hooked - lends[:, None])[:, :, None]
                    total += tl.exp2(term + headed[:, None, :])
                hooking = tl.sum(total, 1)
            used += tl.where(within, hooking, 0.0)
        probability += tl.sum(used, 1)
        own = (of_span + lends)[:, None] - headed
        if HEAD:
            own += score(head + cell[:, None].to(tl.int64) * n + h[None, :], within, MODE)
        if D_HEAD:
            tl.store(d_head + cell[:, None].to(tl.int64) * n + h[None, :], used * weight, within)
        tl.store(outer + row[:, None] + h[None, :], tl.log2(used) + own, within)
    tl.store(d_span + cell, probability * weight, live)
    if LEXICAL:
        tl.store(d_inherit + cell, lending * weight, live & (width < length))


@triton.jit(do_not_specialize=["n"])
def outside_kernel(
    span, inherit, head, arc, power, root, chart, level, crest, report, rest, weights, counter, outer,
    d_span, d_inherit, d_root, d_head, n, pitch,
    GROUP: tl.constexpr, MODE: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr, D_HEAD: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
    BA: tl.constexpr, BK: tl.constexpr, BH: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """All widths of one sentence, the widest first: the marginals of everything but arcs, times a weight."""
    b = (tl.program_id(0) // GROUP).to(tl.int64)
    member = tl.program_id(0) % GROUP
    batch = tl.num_programs(0) // GROUP
    length = tl.load(report + 2 * batch + b)
    if (tl.load(report + 5 * batch + b) != 0) != (MODE == CAREFUL):
        return
    weight = tl.load(weights + b)
    over = tl.load(rest + b)
    span += b * (n + 1) * (n + 1)
    d_span += b * (n + 1) * (n + 1)
    chart += b * n * n * pitch
    outer += b * n * n * pitch
    level += b * n * n
    crest += b * n * n
    if LEXICAL:
        inherit += b * (n + 1) * (n + 1)
        d_inherit += b * (n + 1) * (n + 1)
        arc += b * n * pitch
        power += b * n * pitch
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
        outside_spans(
            inherit, root, chart, level, outer, d_root, weight, over, first, last, width, length, n, pitch,
            MODE, LEXICAL, BT, BI, V, UNROLL,
        )  # fmt: skip
        tl.debug_barrier()
        for start in range(first, last, BA):
            outside_heads(
                span, inherit, head, arc, power, chart, level, crest, outer, d_span, d_inherit, d_head, weight,
                start, last, width, length, n, pitch, MODE, LEXICAL, HEAD, D_HEAD, BA, BK, BH, BX,
            )  # fmt: skip
        meet(counter + b, step * GROUP, GROUP)


@triton.jit(do_not_specialize=["n"])
def arcs_kernel(
    inherit, arc, chart, level, crest, outer, report, weights, d_arc, n, pitch,
    BR: tl.constexpr, BP: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """The marginals of arcs: a product of matrices, P(arc p h) = sum over spans that hold h but not p."""
    b = tl.program_id(0).to(tl.int64)
    batch = tl.num_programs(0)
    length = tl.load(report + 2 * batch + b)
    fast = tl.load(report + 5 * batch + b) == 0
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    h = tl.program_id(2) * BH + tl.arange(0, BH)
    inherit += b * (n + 1) * (n + 1)
    chart += b * n * n * pitch
    outer += b * n * n * pitch
    level += b * n * n
    crest += b * n * n
    cell = (p[:, None] < length) & (h[None, :] < length) & (p[:, None] != h[None, :])
    score_of = tl.load(arc + (b * n + p[:, None]) * pitch + h[None, :], cell, other=NOTHING)
    plain = tl.zeros([BP, BH], tl.float32)  # to be multiplied by exp2(arc)
    careful = tl.zeros([BP, BH], tl.float32)  # with the arc already in it
    end = tl.minimum(tl.program_id(2) * BH + BH, length) * n
    for r0 in range(0, end, BR):
        r = r0 + tl.arange(0, BR)
        i = r // n
        j = r - i * n + 1
        ok = (i < j) & (j <= length) & ((i > 0) | (j < length))
        holds_h = ok[:, None] & (h[None, :] >= i[:, None]) & (h[None, :] < j[:, None])
        lacks_p = ok[:, None] & (p[None, :] < length) & ((p[None, :] < i[:, None]) | (p[None, :] >= j[:, None]))
        headed = tl.load(chart + r[:, None] * pitch + h[None, :], holds_h, other=NOTHING)
        hooked = tl.load(outer + r[:, None] * pitch + p[None, :], lacks_p, other=NOTHING)
        shift = tl.load(crest + r, ok, other=0.0) - tl.load(level + r, ok, other=0.0)
        lends = score(inherit + i * (n + 1) + j, ok & fast, FAST)
        hooked += (shift - lends)[:, None]
        headed -= shift[:, None]
        if tl.max(tl.max(hooked, 1), 0) < SAFE_EXPONENT:
            plain = tl.dot(tl.trans(tl.exp2(hooked)), tl.exp2(headed), plain, input_precision=PRECISION)
        else:
            for one_row in range(r0, r0 + BR):
                start = one_row // n
                stop = one_row - start * n + 1
                real = (start < stop) & (stop <= length) & ((start > 0) | (stop < length))
                one = tl.load(chart + one_row * pitch + h, real & (h >= start) & (h < stop), other=NOTHING)
                far = (p < length) & ((p < start) | (p >= stop))
                two = tl.load(outer + one_row * pitch + p, real & far, other=NOTHING)
                two -= score(inherit + start * (n + 1) + stop, real & fast, FAST)
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
                left += tl.where(h < x, score(inherit + i * (n + 1) + x, between, BEST), 0.0)
                right += tl.where(h < x, 0.0, score(inherit + x * (n + 1) + j, between, BEST))
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
