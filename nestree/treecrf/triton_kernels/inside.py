"""The inside pass: arcs laid out, then COMPLETE and ATTACH width by width, then GOAL."""

import triton
import triton.language as tl

from nestree.treecrf.triton_kernels.common import (
    BEST,
    CAREFUL,
    FAST,
    FLOOR,
    GENTLE,
    HEAD_BIT,
    LARGE,
    LN_2,
    LOG2_E,
    LOWEST,
    NO_TREE_AT,
    NO_TREE_FLAG,
    NOTHING,
    SMALL,
    WRONG_LENGTH_FLAG,
    log2,
    meet,
    score,
    trouble,
)


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
            of_span += score(inherit + i * (n + 1) + j, live & (j - i < length), MODE)
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
                    next_left, next_right, next_of_left, next_of_right, next_more_left, next_more_right = (
                        fetch_splits(
                            chart,
                            level,
                            crest,
                            inherit,
                            i,
                            j,
                            x,
                            t0 + BT + slot,
                            width,
                            n,
                            pitch,
                            MODE,
                            LEXICAL,
                        )
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
                total = (
                    total * tl.exp2(reached - raised)[:, :, None] + tl.exp2(headed - raised)[:, :, None] * arc
                )
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
            tl.store(
                crest + i * n + j - 1, tl.load(level + i * n + j - 1, first_block) + tl.ceil(top), first_block
            )
        else:
            best = tl.full([BT, BI, V], NOTHING, tl.float32)
            headed, arc = fetch_hooks(chart, arc_by_modifier, row, i, x, slot, width, pitch)
            for t0 in tl.range(0, width, BT, loop_unroll_factor=UNROLL):
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
    return doubt


@triton.jit
def fill(
    span, inherit, head, arc_by_modifier, power_by_modifier, chart, level, crest, counter, member, met, length,
    n, pitch, group,
    GROUPED: tl.constexpr, MODE: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr, WORDS: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """All widths of one sentence: COMPLETE and ATTACH for this program's share of each. Returns what went wrong."""
    doubt = tl.zeros([BI, V], tl.int32)
    for width in range(1, length + 1):
        share = tl.cdiv(length - width + 1, group)
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
            tl.store(
                crest + row, tl.load(level + row, mine) + tl.ceil(tl.load(chart + row * pitch, mine)), mine
            )
        meet(counter, (met + width) * group, GROUPED)
    return tl.max(tl.max(doubt, 1), 0)


@triton.jit(do_not_specialize=["n", "group"])
def inside_kernel(
    span, inherit, head, arc_by_modifier, power_by_modifier, root, taken, chart, level, crest, report, log_z, rest,
    n, pitch, group,
    GROUPED: tl.constexpr, MODE: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr, WORDS: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The chart of one sentence, then GOAL. FAST turns to CAREFUL if it must."""
    b = (tl.program_id(0) // group).to(tl.int64)
    member = tl.program_id(0) % group
    batch = tl.num_programs(0) // group
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
            n, pitch, group, GROUPED, MODE, LEXICAL, HEAD, WORDS, BT, BI, V, UNROLL,
        )  # fmt: skip
        tl.atomic_or(careful, wrong & 1)
        met = length + 1
        meet(counter, met * group, GROUPED)
    if MODE == FAST:
        if tl.load(careful) != 0:
            wrong |= fill(
                span, inherit, head, arc_by_modifier, power_by_modifier, chart, level, crest, counter, member, met,
                length, n, pitch, group, GROUPED, CAREFUL, LEXICAL, HEAD, WORDS, BT, BI, V, 1,
            )  # fmt: skip
            met += length
    if HEAD:
        tl.atomic_or(report + b, (wrong >> 1) * HEAD_BIT)
        meet(counter, (met + 1) * group, GROUPED)

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
            over = best + tl.log2(
                tl.sum(tl.exp2(goal - best), 0)
            )  # relative to the level of the whole sentence
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
