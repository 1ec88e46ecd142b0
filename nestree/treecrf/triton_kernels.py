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

import os

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
HARDWARE = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")  # the interpreter has no PTX
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
    span, arc, root, inherit, lengths, report, arc_out, arc_by_modifier, power_by_modifier, root_out, taken,
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
                tl.store(power_by_modifier + (b * n + x[None, :]) * pitch + h, tl.exp2(a), cell)
    tl.store(report + b, status)
    tl.store(report + batch + b, given.to(tl.int32))
    tl.store(report + 2 * batch + b, length)
    tl.store(report + 3 * batch + b, 0)
    tl.store(report + 4 * batch + b, careful)


@triton.jit
def log2(x):
    """The hardware's logarithm: within 2^-22, and one instruction."""
    return tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1) if HARDWARE else tl.log2(x)


@triton.jit
def fetch_splits(
    chart, level, crest, inherit, i, j, x, t, width, n, pitch, MODE: tl.constexpr, LEXICAL: tl.constexpr
):
    """Both halves of the spans (i, j) at their splits i + 1 + t [BT, BI, V], and what else they are worth [BT, BI]:
    for FAST their levels and crests, else what each lends. Beyond the last split: the last split again.
    """
    k = (i + 1)[None, :] + tl.minimum(t, width - 2)[:, None]
    left_row = i[None, :] * n + k - 1
    right_row = k * n + (j - 1)[None, :]
    left = tl.load(chart + left_row[:, :, None] * pitch + x[None, :, :])
    right = tl.load(chart + right_row[:, :, None] * pitch + x[None, :, :])
    if MODE == FAST:
        of_left = tl.load(level + left_row)
        of_right = tl.load(level + right_row)
        more_left = tl.load(crest + left_row)
        more_right = tl.load(crest + right_row)
    else:
        of_left = tl.zeros_like(k).to(tl.float32)
        of_right = of_left
        if LEXICAL:
            of_left = tl.load(inherit + i[None, :] * (n + 1) + k)
            of_right = tl.load(inherit + k * (n + 1) + j[None, :])
        more_left = of_left
        more_right = of_left
    return left, right, of_left, of_right, more_left, more_right


@triton.jit
def lend(left, right, of_left, of_right, i, x, t, width, MODE: tl.constexpr, LEXICAL: tl.constexpr):
    """Both halves, added, the one that holds x with its `inherit`: it is headed by x, and lends it."""
    if LEXICAL:
        k = (i + 1)[None, :] + tl.minimum(t, width - 2)[:, None]
        is_left = x[None, :, :] < k[:, :, None]
        unit: tl.constexpr = 1.0 if MODE == BEST else LOG2_E
        left += tl.where(is_left, (tl.maximum(of_left, LOWEST) * unit)[:, :, None], 0.0)
        right += tl.where(is_left, 0.0, (tl.maximum(of_right, LOWEST) * unit)[:, :, None])
    return left + right


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
            # The values of the next splits are under way while those of the present ones are added up.
            left, right, of_left, of_right, more_left, more_right = fetch_splits(
                chart, level, crest, inherit, i, j, x, slot, width, n, pitch, MODE, LEXICAL
            )
            if MODE == FAST:
                reached = tl.full([BT, BI], NOTHING, tl.float32)  # the level of each running sum
                total = tl.zeros([BT, BI, V], tl.float32)
                for t0 in tl.range(0, width - 1, BT, loop_unroll_factor=UNROLL):
                    next_left, next_right, next_of_left, next_of_right, next_more_left, next_more_right = fetch_splits(
                        chart, level, crest, inherit, i, j, x, t0 + BT + slot, width, n, pitch, MODE, LEXICAL
                    )
                    bound = more_left + more_right
                    possible = (t0 + slot < width - 1)[:, None] & (bound > FLOOR)
                    raised = tl.maximum(reached, tl.where(possible, bound, NOTHING))
                    base = tl.where(possible, of_left + of_right - raised, NOTHING)
                    total *= tl.exp2(reached - raised)[:, :, None]
                    total += tl.exp2(left + right + base[:, :, None])
                    reached = raised
                    left = next_left
                    right = next_right
                    of_left = next_of_left
                    of_right = next_of_right
                    more_left = next_more_left
                    more_right = next_more_right
                top = tl.max(reached, 0)
                summed = tl.sum(total * tl.exp2(reached - top[None, :])[:, :, None], 0)  # [BI, V]
                distrust = ((summed > SMALL) & (summed < LARGE)) == 0
                doubt |= tl.where(within & distrust & (of_span > FLOOR)[:, None], 1, 0)
                done = tl.where((of_span > FLOOR)[:, None], done + log2(summed), of_span[:, None])
            else:
                best = tl.full([BT, BI, V], NOTHING, tl.float32)
                for t0 in tl.range(0, width - 1, BT, loop_unroll_factor=UNROLL):
                    next_left, next_right, next_of_left, next_of_right, _, _ = fetch_splits(
                        chart, level, crest, inherit, i, j, x, t0 + BT + slot, width, n, pitch, MODE, LEXICAL
                    )
                    term = lend(left, right, of_left, of_right, i, x, t0 + slot, width, MODE, LEXICAL)
                    best = tl.maximum(best, term)
                    left = next_left
                    right = next_right
                    of_left = next_of_left
                    of_right = next_of_right
                peak = tl.max(best, 0)
                if MODE == CAREFUL:
                    total = tl.zeros([BT, BI, V], tl.float32)
                    for t0 in range(0, width - 1, BT):
                        left, right, of_left, of_right, more_left, more_right = fetch_splits(
                            chart, level, crest, inherit, i, j, x, t0 + slot, width, n, pitch, MODE, LEXICAL
                        )
                        term = lend(left, right, of_left, of_right, i, x, t0 + slot, width, MODE, LEXICAL)
                        real = (t0 + slot < width - 1)[:, None, None]
                        total += tl.where(real, tl.exp2(term - peak[None, :, :]), 0.0)
                    peak += log2(tl.sum(total, 0))
                done += peak
        row = i * n + j - 1
        tl.store(chart + row[:, None] * pitch + x, done, within)
        if MODE != BEST:
            tl.store(level + row, top, live & (place == 0))
    return doubt


@triton.jit
def fetch_hooks(chart, arcs, row, i, x, t, width, pitch):
    """headed(i, j, h) [BT, BI] and the arcs from the words x to h [BT, BI, V], for the words h = i + t."""
    h = i[None, :] + tl.minimum(t, width - 1)[:, None]
    return tl.load(chart + row[None, :] + h), tl.load(arcs + h[:, :, None] * pitch + x[None, :, :])


@triton.jit
def attach(
    inherit, chart, arc_by_modifier, power_by_modifier, level, crest, doubt, first, last, width, length, n, pitch,
    MODE: tl.constexpr, BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """ATTACH for the spans of one width: hooked(i, j, x) = sum over h in (i, j) of headed(i, j, h) + arc(x, h).

    The blocks of a span are those before it, then those behind it; too many at the end are the last one again.
    """
    per_span = (length - width) // V + 3
    blocks = (last - first) * per_span
    slot = tl.arange(0, BT)
    for e0 in range(0, blocks, BI):
        e = e0 + tl.arange(0, BI)
        i = tl.minimum(first + e // per_span, last - 1)
        j = i + width
        place = e % per_span
        live = e < blocks
        block = tl.where(place <= i // V, place, j // V + place - i // V - 1)
        x = (tl.minimum(block, (length - 1) // V) * V)[:, None] + tl.arange(0, V)[None, :]
        beyond = live[:, None] & (x < length) & ((x < i[:, None]) | (x >= j[:, None]))
        row = (i * n + j - 1) * pitch
        if MODE == FAST:
            reached = tl.full([BT, BI], NOTHING, tl.float32)
            total = tl.zeros([BT, BI, V], tl.float32)
            headed, arc = fetch_hooks(chart, power_by_modifier, row, i, x, slot, width, pitch)
            for t0 in tl.range(0, width, BT, loop_unroll_factor=UNROLL):
                next_headed, next_arc = fetch_hooks(
                    chart, power_by_modifier, row, i, x, t0 + BT + slot, width, pitch
                )
                headed = tl.where((t0 + slot < width)[:, None], headed, NOTHING)
                raised = tl.maximum(reached, headed)
                total = total * tl.exp2(reached - raised)[:, :, None] + tl.exp2(headed - raised)[:, :, None] * arc
                reached = raised
                headed = next_headed
                arc = next_arc
            top = tl.max(reached, 0)
            summed = tl.sum(total * tl.exp2(reached - top[None, :])[:, :, None], 0)  # [BI, V]
            possible = (top > FLOOR)[:, None]
            doubt |= tl.where(beyond & ((summed > SMALL) == 0) & possible, 1, 0)
            lends = score(inherit + i * (n + 1) + j, live, MODE)
            done = tl.where(possible, log2(summed) + (top - lends)[:, None], top[:, None])
            first_block = live & (place == 0)
            tl.store(crest + i * n + j - 1, tl.load(level + i * n + j - 1, first_block) + tl.ceil(top), first_block)
        else:
            best = tl.full([BT, BI, V], NOTHING, tl.float32)
            headed, arc = fetch_hooks(chart, arc_by_modifier, row, i, x, slot, width, pitch)
            for t0 in tl.range(0, width, BT, loop_unroll_factor=UNROLL):
                next_headed, next_arc = fetch_hooks(chart, arc_by_modifier, row, i, x, t0 + BT + slot, width, pitch)
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
    return doubt


@triton.jit
def fill(
    span, inherit, head, arc_by_modifier, power_by_modifier, chart, level, crest, counter, member, met, length,
    n, pitch,
    GROUP: tl.constexpr, MODE: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr, WORDS: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """All widths of one sentence: COMPLETE and ATTACH for this program's share of each. Returns what went wrong."""
    doubt = tl.zeros([BI, V], tl.int32)
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
            doubt = attach(
                inherit, chart, arc_by_modifier, power_by_modifier, level, crest, doubt, first, last, width, length,
                n, pitch, MODE, BT, BI, V, UNROLL,
            )  # fmt: skip
        elif MODE == FAST:
            tl.debug_barrier()
            i = first + tl.arange(0, WORDS)
            row = i * n + i + width - 1
            mine = i < last
            tl.store(crest + row, tl.load(level + row, mine) + tl.ceil(tl.load(chart + row * pitch, mine)), mine)
        meet(counter, (met + width) * GROUP, GROUP)
    return tl.max(tl.max(doubt, 1), 0)


@triton.jit(do_not_specialize=["n"])
def inside_kernel(
    span, inherit, head, arc_by_modifier, power_by_modifier, root, taken, chart, level, crest, report, log_z, rest,
    n, pitch,
    GROUP: tl.constexpr, MODE: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr, WORDS: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The chart of one sentence, then GOAL. FAST turns to CAREFUL if it must."""
    b = (tl.program_id(0) // GROUP).to(tl.int64)
    member = tl.program_id(0) % GROUP
    batch = tl.num_programs(0) // GROUP
    length = tl.load(report + 2 * batch + b)
    counter = report + 3 * batch + b
    careful = report + 4 * batch + b
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
    met = 0
    wrong = 0
    if MODE == BEST or tl.load(careful) == 0:
        wrong = fill(
            span, inherit, head, arc_by_modifier, power_by_modifier, chart, level, crest, counter, member, 0, length,
            n, pitch, GROUP, MODE, LEXICAL, HEAD, WORDS, BT, BI, V, UNROLL,
        )  # fmt: skip
        tl.atomic_or(careful, wrong & 1)
        met = length + 1
        meet(counter, met * GROUP, GROUP)
    if MODE == FAST:
        if tl.load(careful) != 0:
            wrong |= fill(
                span, inherit, head, arc_by_modifier, power_by_modifier, chart, level, crest, counter, member, met,
                length, n, pitch, GROUP, CAREFUL, LEXICAL, HEAD, WORDS, BT, BI, V, 1,
            )  # fmt: skip
            met += length
    if HEAD:
        tl.atomic_or(report + b, (wrong >> 1) * HEAD_BIT)
        meet(counter, (met + 1) * GROUP, GROUP)

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
        status = tl.where((status == 0) & none, NO_TREE_FLAG, status)
        tl.store(report + b, status)
        tl.store(log_z + b, tl.where(status == 0, result, float("nan")))


@triton.jit
def parent_of(a, z, x_first, t, length, RIGHT: tl.constexpr, LEXICAL: tl.constexpr, V: tl.constexpr):
    """The t-th larger span (start, end) that has (a, z) as one half and the other half to the right, or to the left;
    and whether there is one, with any of the words x_first .. x_first + V - 1 in it."""
    if RIGHT:
        start = a[None, :] + t * 0
        end = z[None, :] + 1 + t
        ok = end <= length
        if LEXICAL:
            ok = ok & (x_first + V > a)[None, :] & (x_first[None, :] < end)
    else:
        start = a[None, :] - 1 - t
        end = z[None, :] + t * 0
        ok = start >= 0
        if LEXICAL:
            ok = ok & (x_first < z)[None, :] & (x_first[None, :] + V > start)
    return start, end, ok


@triton.jit
def fetch_parents(
    chart, level, inherit, outer, a, z, x, x_first, t, length, n, pitch,
    RIGHT: tl.constexpr, MODE: tl.constexpr, LEXICAL: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """What the t-th parent on this side and the other half of it are worth [BT, BI, V], and for FAST their levels, for
    CAREFUL what the other half lends [BT, BI]."""
    start, end, ok = parent_of(a, z, x_first, t, length, RIGHT, LEXICAL, V)
    other_start = z[None, :] + t * 0 if RIGHT else start
    other_end = end if RIGHT else a[None, :] + t * 0
    parent_row = start * n + end - 1
    other_row = other_start * n + other_end - 1
    parent = tl.load(outer + parent_row[:, :, None] * pitch + x[None, :, :], ok[:, :, None], other=NOTHING)
    other = tl.load(chart + other_row[:, :, None] * pitch + x[None, :, :], ok[:, :, None], other=NOTHING)
    if MODE == FAST:
        of_parent = tl.load(level + parent_row, ok, other=0.0)
        of_other = tl.load(level + other_row, ok, other=0.0)
    else:
        of_parent = tl.zeros_like(start).to(tl.float32)
        of_other = of_parent
        if LEXICAL:
            of_other = tl.load(inherit + other_start * (n + 1) + other_end, ok, other=0.0)
    return parent, other, of_parent, of_other


@triton.jit
def add_parents(
    total, chart, level, inherit, outer, a, z, x, x_first, item, lends, own_level, many, length, n, pitch,
    RIGHT: tl.constexpr, MODE: tl.constexpr, LEXICAL: tl.constexpr,
    BT: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Add to `total` the probabilities that the items x of (a, z) are used by its parents on one side."""
    slot = tl.arange(0, BT)[:, None]
    parent, other, of_parent, of_other = fetch_parents(
        chart, level, inherit, outer, a, z, x, x_first, slot, length, n, pitch, RIGHT, MODE, LEXICAL, V
    )
    for t0 in tl.range(0, many, BT, loop_unroll_factor=UNROLL):
        next_parent, next_other, next_of_parent, next_of_other = fetch_parents(
            chart, level, inherit, outer, a, z, x, x_first, t0 + BT + slot, length, n, pitch, RIGHT, MODE, LEXICAL, V
        )
        term = parent + other
        start, end, ok = parent_of(a, z, x_first, t0 + slot, length, RIGHT, LEXICAL, V)
        if MODE == FAST:
            term += (own_level[None, :] + of_other - of_parent)[:, :, None]  # whole numbers: exact
        elif LEXICAL:
            in_other = (x >= z[:, None]) if RIGHT else (x < a[:, None])
            of_other = tl.maximum(of_other, LOWEST) * LOG2_E
            term += tl.where(in_other[None, :, :], of_other[:, :, None], lends[None, :, None])
        if LEXICAL:
            term = tl.where((x[None, :, :] >= start[:, :, None]) & (x[None, :, :] < end[:, :, None]), term, NOTHING)
        total += tl.exp2(term + item[None, :, :])
        parent = next_parent
        other = next_other
        of_parent = next_of_parent
        of_other = next_of_other
    return total


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
            total = add_parents(
                total, chart, level, inherit, outer, a, z, x, x_first, item, lends, own_level,
                length - a_first - width, length, n, pitch, True, MODE, LEXICAL, BT, V, UNROLL,
            )  # fmt: skip
            total = add_parents(
                total, chart, level, inherit, outer, a, z, x, x_first, item, lends, own_level,
                a_last, length, n, pitch, False, MODE, LEXICAL, BT, V, UNROLL,
            )  # fmt: skip
            used = tl.sum(total, 0)  # [BI, V]
        tl.store(outer + row[:, None] * pitch + x, tl.where(within, used, log2(used) - item), word)


@triton.jit
def fetch_hooked(outer, arc, row, a, h, t, width, length, pitch):
    """For the t-th word p outside (a, z): what its hooked cell says [BT, BI], and the arcs to h [BT, BI, V]."""
    t = tl.minimum(t, length - width - 1)
    p = tl.where(t < a[None, :], t, t + width)
    return tl.load(outer + row[None, :] + p), tl.load(arc + p[:, :, None] * pitch + h[None, :, :])


@triton.jit
def outside_heads(
    span, inherit, head, arc, chart, outer, first, last, width, length, n, pitch,
    MODE: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """ATTACH, backwards, for the spans (a, z) of one width: the probability of each of them with head h.

    Leaves in `outer`, where h lies in the span: log2 of that probability, over the sum of COMPLETE.
    """
    per_span = (width + 2 * V - 2) // V if LEXICAL else 1
    blocks = (last - first) * per_span
    slot = tl.arange(0, BT)[:, None]
    for e0 in range(0, blocks, BI):
        e = e0 + tl.arange(0, BI)
        a = tl.minimum(first + e // per_span, last - 1)
        z = a + width
        live = e < blocks
        h = tl.zeros([BI, V], tl.int32)
        within = live[:, None] & (h == 0)
        if LEXICAL:
            h = ((a // V + e % per_span) * V)[:, None] + tl.arange(0, V)[None, :]
            within = live[:, None] & (h >= a[:, None]) & (h < z[:, None])
        row = (a * n + z - 1) * pitch
        cell = a * (n + 1) + z
        own = score(span + cell, live, MODE)
        headed = tl.load(chart + row[:, None] + h, within, other=NOTHING)
        used = tl.load(outer + row[:, None] + h, within, other=0.0)
        if LEXICAL:
            if MODE == FAST:  # the cells have `inherit` in them
                lends = score(inherit + cell, live & (width < length), MODE)
                headed -= lends[:, None]
            total = tl.zeros([BT, BI, V], tl.float32)
            if width < length:
                hooked, arcs = fetch_hooked(outer, arc, row, a, h, slot, width, length, pitch)
                for t0 in tl.range(0, length - width, BT, loop_unroll_factor=UNROLL):
                    next_hooked, next_arcs = fetch_hooked(
                        outer, arc, row, a, h, t0 + BT + slot, width, length, pitch
                    )
                    hooked = tl.where(t0 + slot < length - width, hooked, NOTHING)
                    total += tl.exp2(arcs + hooked[:, :, None] + headed[None, :, :])
                    hooked = next_hooked
                    arcs = next_arcs
            used += tl.sum(total, 0)
        left = own[:, None] - headed
        if HEAD:
            left += score(head + cell[:, None].to(tl.int64) * n + h, within, MODE)
        tl.store(outer + row[:, None] + h, log2(used) + left, within)


@triton.jit
def unfill(
    span, inherit, head, arc, root, chart, level, outer, d_root, weight, over, counter, member, length, n, pitch,
    GROUP: tl.constexpr, MODE: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """All widths of one sentence, the widest first: COMPLETE and ATTACH, backwards."""
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
        outside_heads(
            span, inherit, head, arc, chart, outer, first, last, width, length, n, pitch,
            MODE, LEXICAL, HEAD, BT, BI, V, UNROLL,
        )  # fmt: skip
        meet(counter, step * GROUP, GROUP)


@triton.jit(do_not_specialize=["n"])
def outside_kernel(
    span, inherit, head, arc, root, chart, level, report, rest, weights, counter, outer, d_root, n, pitch,
    GROUP: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The outside pass of one sentence, in the mode that its inside pass ended in; d_root on the way."""
    b = (tl.program_id(0) // GROUP).to(tl.int64)
    member = tl.program_id(0) % GROUP
    batch = tl.num_programs(0) // GROUP
    length = tl.load(report + 2 * batch + b)
    weight = tl.load(weights + b)
    over = tl.load(rest + b)
    span += b * (n + 1) * (n + 1)
    chart += b * n * n * pitch
    outer += b * n * n * pitch
    level += b * n * n
    counter += b
    if LEXICAL:
        inherit += b * (n + 1) * (n + 1)
        arc += b * n * pitch
        root += b * pitch
        d_root += b * n
    if HEAD:
        head += b * (n + 1) * (n + 1) * n
    if tl.load(report + 4 * batch + b) == 0:
        unfill(
            span, inherit, head, arc, root, chart, level, outer, d_root, weight, over, counter, member, length, n,
            pitch, GROUP, FAST, LEXICAL, HEAD, BT, BI, V, UNROLL,
        )  # fmt: skip
    else:
        unfill(
            span, inherit, head, arc, root, chart, level, outer, d_root, weight, over, counter, member, length, n,
            pitch, GROUP, CAREFUL, LEXICAL, HEAD, BT, BI, V, 1,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n"])
def spans_kernel(
    span, inherit, head, chart, outer, report, weights, wild, d_span, d_inherit, d_head, n, pitch,
    LEXICAL: tl.constexpr, HEAD: tl.constexpr, D_HEAD: tl.constexpr, BR: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """The marginals of spans, heads and `inherit`, each row by itself; and `outer` made ready for the arcs.

    A span is lent unless it is hooked (or the whole sentence). After this, headed cells of `outer` hold headed and
    the others what to multiply it by for the probability of an arc, both as numbers; in `wild` rows, as log2.
    """
    b = tl.program_id(0).to(tl.int64)
    batch = tl.num_programs(0)
    length = tl.load(report + 2 * batch + b)
    fast = tl.load(report + 4 * batch + b) == 0
    r = tl.program_id(1) * BR + tl.arange(0, BR)
    i = r // n
    j = r - i * n + 1
    real = (i < j) & (j <= length)
    if tl.max(real.to(tl.int32), 0) == 0:
        return
    whole = (i == 0) & (j == length)
    x = tl.arange(0, BX)
    word = real[:, None] & (x[None, :] < (length if LEXICAL else 1))
    within = word
    if LEXICAL:
        within = word & (x[None, :] >= i[:, None]) & (x[None, :] < j[:, None])
    beyond = word & (within == 0)
    at = (b * n * n + r)[:, None] * pitch + x[None, :]
    cell = b * (n + 1) * (n + 1) + i * (n + 1) + j
    headed = tl.load(chart + at, word, other=NOTHING)
    mixed = tl.load(outer + at, word, other=NOTHING)
    hooked = tl.sum(tl.where(beyond, tl.exp2(mixed + headed), 0.0), 1)
    if LEXICAL:
        lends = score(inherit + cell, real & (whole == 0) & fast, FAST)
        headed -= tl.where(within, lends[:, None], 0.0)
    chance = mixed + headed - score(span + cell, real, FAST)[:, None]
    if HEAD:
        chance -= score(head + cell[:, None] * n + x[None, :], within, FAST)
    chance = tl.where(within, tl.exp2(chance), 0.0)
    chosen = tl.sum(chance, 1)
    weight = tl.load(weights + b)
    tl.store(d_span + cell, chosen * weight, real)
    if D_HEAD:
        tl.store(d_head + cell[:, None] * n + x[None, :], chance * weight, within)
    if LEXICAL:
        tl.store(d_inherit + cell, tl.maximum(chosen - hooked, 0.0) * weight, real & (whole == 0))
        shift = tl.max(tl.where(within, headed, NOTHING), 1)[:, None]
        wild_row = (tl.max(tl.where(beyond, mixed + shift, NOTHING), 1) < SAFE_EXPONENT) == 0
        tl.store(wild + b * n * n + r, wild_row.to(tl.int32), real)
        ready = tl.where(within, headed - shift, mixed + shift)
        tl.store(outer + at, tl.where(wild_row[:, None], ready, tl.exp2(ready)), word)


@triton.jit(do_not_specialize=["n"])
def arcs_kernel(
    arc, outer, wild, report, weights, d_arc, n, pitch, BR: tl.constexpr, BP: tl.constexpr, BH: tl.constexpr
):
    """The marginals of arcs: a product of matrices, P(arc p h) = sum over spans that hold h but not p.

    The spans are dealt out to several programs, whose sums [part, batch, p, h] are added up by the caller.
    """
    b = tl.program_id(0).to(tl.int64)
    batch = tl.num_programs(0)
    part = tl.program_id(2)
    length = tl.load(report + 2 * batch + b)
    p_first = tl.program_id(1) // tl.cdiv(n, BH) * BP
    h_first = tl.program_id(1) % tl.cdiv(n, BH) * BH
    p = p_first + tl.arange(0, BP)
    h = h_first + tl.arange(0, BH)
    outer += b * n * n * pitch
    wild += b * n * n
    cell = (p[:, None] < length) & (h[None, :] < length) & (p[:, None] != h[None, :])
    score_of = tl.load(arc + (b * n + p[:, None]) * pitch + h[None, :], cell, other=NOTHING)
    plain = tl.zeros([BP, BH], tl.float32)  # to be multiplied by exp2(arc)
    careful = tl.zeros([BP, BH], tl.float32)  # with the arc already in it
    for r0 in range(part * BR, tl.minimum(h_first + BH, length) * n, tl.num_programs(2) * BR):
        r = r0 + tl.arange(0, BR)
        i = r // n
        j = r - i * n + 1
        ok = (i < j) & (j <= length) & (j > h_first)
        holds_h = ok[:, None] & (h[None, :] >= i[:, None]) & (h[None, :] < j[:, None])
        lacks_p = ok[:, None] & (p[None, :] < length) & ((p[None, :] < i[:, None]) | (p[None, :] >= j[:, None]))
        row_wild = tl.load(wild + r, ok, other=0)
        if tl.max(ok.to(tl.int32), 0) > 0:
            tame = (row_wild == 0)[:, None]
            headed = tl.load(outer + r[:, None] * pitch + h[None, :], holds_h & tame, other=0.0)
            hooked = tl.load(outer + r[:, None] * pitch + p[None, :], lacks_p & tame, other=0.0)
            plain = tl.dot(tl.trans(hooked), headed, plain, input_precision=PRECISION)
        if tl.max(row_wild, 0) > 0:
            for one_row in range(r0, r0 + BR):
                start = one_row // n
                stop = one_row - start * n + 1
                real = (start < stop) & (stop <= length)
                real = real & (tl.load(wild + one_row, real, other=0) != 0)
                one = tl.load(outer + one_row * pitch + h, real & (h >= start) & (h < stop), other=NOTHING)
                far = (p < length) & ((p < start) | (p >= stop))
                two = tl.load(outer + one_row * pitch + p, real & far, other=NOTHING)
                careful += tl.exp2(one[None, :] + two[:, None] + score_of)
    weight = tl.load(weights + b)
    result = (plain * tl.exp2(score_of) + careful) * weight
    tl.store(d_arc + ((part * batch + b) * n + p[:, None]) * n + h[None, :], result, cell)


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
