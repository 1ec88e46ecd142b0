"""The inside pass: COMPLETE and ATTACH width by width, then GOAL."""

import triton
import triton.language as tl

from nestree.treecrf.triton_kernels.attach import attach, log_attach, store_crest
from nestree.treecrf.triton_kernels.common import (
    BEST,
    CAREFUL,
    FAINT,
    FAR_FROM,
    FAST,
    FLOOR,
    HEAD_BIT,
    LARGE,
    LN_2,
    LOG2_E,
    LOWEST,
    NO_TREE_AT,
    NO_TREE_FLAG,
    NOTHING,
    PRECISE_LEVEL,
    PRECISE_LOG,
    SMALL,
    STARTS,
    TOO_LARGE_FLAG,
    WIDTHS,
    log2,
    meet,
    not_a_score,
    own_score,
    place_of,
    score,
)
from nestree.treecrf.triton_kernels.far import far_splits, share_of


@triton.jit
def split_at(i, t, width, skipped):
    """The t-th split of the spans from i on [BT, BI]; those between the near ones are skipped. Beyond the last split:
    the last one again."""
    t = tl.minimum(t, width - 2 - skipped)[:, None]
    far = t + (i % STARTS)[None, :] >= WIDTHS + STARTS - 2
    return i[None, :] + 1 + t + tl.where(far, skipped, 0)


@triton.jit
def fetch_splits(
    chart,
    level,
    crest,
    inherit,
    i,
    j,
    x,
    t,
    width,
    skipped,
    n,
    pitch,
    MODE: tl.constexpr,
    LEXICAL: tl.constexpr,
):
    """Both halves of the spans (i, j) at their t-th splits [BT, BI, V], and what else they are worth [BT, BI]: for
    FAST their levels and crests, else what each lends."""
    k = split_at(i, t, width, skipped)
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
        k = split_at(i, t, width, 0)
        is_left = x[None, :, :] < k[:, :, None]
        unit: tl.constexpr = 1.0 if MODE == BEST else LOG2_E
        left += tl.where(is_left, (tl.maximum(of_left, LOWEST) * unit)[:, :, None], 0.0)
        right += tl.where(is_left, 0.0, (tl.maximum(of_right, LOWEST) * unit)[:, :, None])
    return left + right


@triton.jit
def sum_of_splits(
    chart, level, crest, inherit, i, j, x, width, skipped, n, pitch,
    LEXICAL: tl.constexpr, FAR: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """FAST: the sum over all splits [BI, V], and the whole number that it is relative to [BI].

    The sum begins with that over the far splits, where there are any: far_splits has left it in the row.
    """
    slot = tl.arange(0, BT)
    reached = tl.full([BT, BI], NOTHING, tl.float32)  # the level of each running sum
    total = tl.zeros([BT, BI, V], tl.float32)
    if FAR:
        if skipped > 0:
            row = i * n + j - 1
            first = (slot == 0)[:, None]
            reached = tl.where(first, tl.load(level + row)[None, :], NOTHING)
            far = tl.load(chart + row[:, None] * pitch + x)
            total = tl.where(first[:, :, None], far[None, :, :], 0.0)
    splits = width - 1 - skipped
    for t0 in tl.range(0, tl.cdiv(splits, BT * UNROLL) * BT * UNROLL, BT, loop_unroll_factor=UNROLL):
        left, right, of_left, of_right, more_left, more_right = fetch_splits(
            chart, level, crest, inherit, i, j, x, t0 + slot, width, skipped, n, pitch, FAST, LEXICAL
        )  # fmt: skip
        real = (t0 + slot < splits)[:, None]
        raised = tl.maximum(reached, tl.where(real, more_left + more_right, NOTHING))
        # Where nothing is possible yet, everything is at NOTHING, and the cells are 0.
        scale = tl.where(real, tl.exp2(of_left + of_right - raised), 0.0)
        total = total * tl.exp2(reached - raised)[:, :, None] + left * scale[:, :, None] * right
        reached = raised
    top = tl.max(reached, 0)
    return tl.sum(total * tl.exp2(reached - top[None, :])[:, :, None], 0), top


@triton.jit
def log_of_splits(
    chart, level, crest, inherit, i, j, x, width, n, pitch,
    MODE: tl.constexpr, LEXICAL: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """BEST: the greatest term over all splits [BI, V]; CAREFUL: log2 of the sum, that term taken out first."""
    slot = tl.arange(0, BT)
    best = tl.full([BT, BI, V], NOTHING, tl.float32)
    left, right, of_left, of_right, _, _ = fetch_splits(
        chart, level, crest, inherit, i, j, x, slot, width, 0, n, pitch, MODE, LEXICAL
    )
    for t0 in tl.range(0, width - 1, BT, loop_unroll_factor=UNROLL):
        # The next values are under way while the present ones are compared.
        next_left, next_right, next_of_left, next_of_right, _, _ = fetch_splits(
            chart, level, crest, inherit, i, j, x, t0 + BT + slot, width, 0, n, pitch, MODE, LEXICAL
        )
        best = tl.maximum(best, lend(left, right, of_left, of_right, i, x, t0 + slot, width, MODE, LEXICAL))
        left = next_left
        right = next_right
        of_left = next_of_left
        of_right = next_of_right
    peak = tl.max(best, 0)
    if MODE == CAREFUL:
        total = tl.zeros([BT, BI, V], tl.float32)
        for t0 in range(0, width - 1, BT):
            left, right, of_left, of_right, _, _ = fetch_splits(
                chart, level, crest, inherit, i, j, x, t0 + slot, width, 0, n, pitch, MODE, LEXICAL
            )
            term = lend(left, right, of_left, of_right, i, x, t0 + slot, width, MODE, LEXICAL)
            real = (t0 + slot < width - 1)[:, None, None]
            total += tl.where(real, tl.exp2(term - peak[None, :, :]), 0.0)
        peak += log2(tl.sum(total, 0))
    return peak


@triton.jit
def complete(
    span, inherit, head, reach, chart, level, base, crest, doubt, first, last, width, skipped, length, n, pitch,
    MODE: tl.constexpr, LATER: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr, FAR: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """COMPLETE for the spans of one width from `first` to `last`: headed(i, j, x) = span + head + sum over k.

    The work of a tile is BI blocks of V neighbouring cells, packed: a span takes as many blocks as it needs. Cells of
    a block that are not in the span come along, hold nonsense, and are not stored.
    """
    per_span = (width + 2 * V - 2) // V if LEXICAL else 1
    blocks = (last - first) * per_span
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
        row = i * n + j - 1
        own = own_score(span, inherit, i * (n + 1) + j, live, j - i < length, MODE, LEXICAL)
        evidence = tl.zeros([BI, V], tl.float32)
        if HEAD:
            at = head + (i * (n + 1) + j)[:, None].to(tl.int64) * n + x
            raw = tl.load(at, within & (x < reach), other=0.0)
            doubt |= tl.where(not_a_score(raw), 2, 0)
            evidence = score(at, within & (x < reach), MODE)
        if MODE == FAST:
            summed = tl.full([BI, V], 1.0, tl.float32)
            top = tl.zeros([BI], tl.float32)
            if width > 1:
                summed, top = sum_of_splits(
                    chart, level, crest, inherit, i, j, x, width, skipped, n, pitch, LEXICAL, FAR, BT, BI, V, UNROLL
                )  # fmt: skip
            whole = tl.floor(own)
            cell = summed * tl.exp2((own - whole)[:, None] + evidence)
            possible = (own > FLOOR) & (top > FLOOR)
            cell = tl.where(possible[:, None], cell, 0.0)
            trusted = (summed < LARGE) & (cell < LARGE)
            if not LATER:
                trusted &= (summed > SMALL) & ((cell > SMALL) | (evidence < FLOOR))
            doubt |= tl.where(within & (trusted == 0) & possible[:, None], 1, 0)
            tl.store(chart + row[:, None] * pitch + x, cell, within)
            first_block = live & (place == 0)
            tl.store(level + row, tl.where(possible, top + whole, NOTHING), first_block)
            tl.store(base + row, tl.where(possible, top, -NOTHING), first_block)
        else:
            done = own[:, None] + evidence
            if width > 1:
                done += log_of_splits(
                    chart, level, crest, inherit, i, j, x, width, n, pitch, MODE, LEXICAL, BT, BI, V, UNROLL
                )
            tl.store(chart + row[:, None] * pitch + x, done, within)
            if MODE == CAREFUL:
                tl.store(level + row, 0.0, live & (place == 0))
    return doubt


@triton.jit
def fill(
    span, inherit, head, reach, arc_by_modifier, power_by_modifier, chart, level, base, crest, counter, member, length,
    n, pitch, group,
    GROUPED: tl.constexpr, MODE: tl.constexpr, LATER: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr,
    FAR: tl.constexpr, WORDS: tl.constexpr, BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr,
    UNROLL: tl.constexpr, HOOKS: tl.constexpr, FT: tl.constexpr, FI: tl.constexpr,
):  # fmt: skip
    """All widths of one sentence: COMPLETE and ATTACH for this program's share of each.

    Returns what went wrong, and how often the programs of the group have met.
    """
    doubt = tl.zeros([BI, V], tl.int32)
    met = length * 0
    for width in range(1, length + 1):
        skipped = 0
        if FAR:
            narrow = (width - 1) // WIDTHS * WIDTHS
            if narrow >= FAR_FROM:
                skipped = narrow - WIDTHS - STARTS + 2
                if width == narrow + 1:
                    far_splits(chart, level, crest, member, group, narrow, length, n, pitch, FT, FI, V)
                    met += 1
                    meet(counter, met * group, GROUPED)
        first, last = share_of(length - width + 1, member, group)
        doubt = complete(
            span, inherit, head, reach, chart, level, base, crest, doubt, first, last, width, skipped, length, n,
            pitch, MODE, LATER, LEXICAL, HEAD, FAR, BT, BI, V, UNROLL,
        )  # fmt: skip
        if LEXICAL:
            tl.debug_barrier()
            if MODE == FAST:
                doubt = attach(
                    inherit, chart, power_by_modifier, level, crest, doubt, first, last, width, length, n, pitch,
                    LATER, BT, BI, V, HOOKS,
                )  # fmt: skip
            else:
                log_attach(
                    chart, arc_by_modifier, first, last, width, length, n, pitch, MODE, BT, BI, V, HOOKS
                )
        elif MODE == FAST:
            tl.debug_barrier()
            i = first + tl.arange(0, WORDS)
            row = i * n + i + width - 1
            store_crest(level, crest, row, tl.load(chart + row * pitch, i < last, other=0.0), i < last)
        met += 1
        meet(counter, met * group, GROUPED)
    return tl.max(tl.max(doubt, 1), 0), met


@triton.jit
def missed(chart, root, length, pitch, WORDS: tl.constexpr):
    """1 if all trees together came out too small: heads that can be the root may have been lost."""
    h = tl.arange(0, WORDS)
    headed = tl.load(chart + (length - 1) * pitch + h, h < length, other=0.0)
    at_root = tl.load(root + h, h < length, other=NOTHING)
    return (tl.sum(headed * tl.exp2(at_root), 0) < FAINT).to(tl.int32)


@triton.jit(do_not_specialize=["heads", "n", "batch"])
def inside_kernel(
    span, inherit, head, arc_by_modifier, power_by_modifier, root, taken, chart, level, base, crest, report, log_z,
    rest, heads, n, pitch, batch,
    GROUPED: tl.constexpr, BATCH: tl.constexpr, MODE: tl.constexpr, LATER: tl.constexpr, LEXICAL: tl.constexpr,
    HEAD: tl.constexpr, FAR: tl.constexpr, WORDS: tl.constexpr, BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr,
    UNROLL: tl.constexpr, HOOKS: tl.constexpr, FT: tl.constexpr, FI: tl.constexpr,
):  # fmt: skip
    """The chart of one sentence, then GOAL. FAST asks for CAREFUL where it cannot be trusted; CAREFUL does these.

    `heads`: so many sentences, the first ones, have `head`.
    """
    b, member, group = place_of(report + 2 * batch, batch, GROUPED, BATCH)
    length = tl.load(report + 2 * batch + b)
    counter = report + (5 if MODE == CAREFUL else 3) * batch + b
    careful = report + 4 * batch + b
    if MODE != BEST:
        if (tl.load(careful) == 0) == (MODE == CAREFUL):
            return
    span += b * (n + 1) * (n + 1)
    chart += b * n * n * pitch
    level += b * n * n
    base += b * n * n
    crest += b * n * n
    if LEXICAL:
        inherit += b * (n + 1) * (n + 1)
        arc_by_modifier += b * n * pitch
        power_by_modifier += b * n * pitch
        root += b * pitch
    if HEAD:
        head += b * (n + 1) * (n + 1) * n
    reach = tl.where(b < heads, n, 0)  # words that have a score as head of a span: all, or none
    wrong, met = fill(
        span, inherit, head, reach, arc_by_modifier, power_by_modifier, chart, level, base, crest, counter, member,
        length, n, pitch, group, GROUPED, MODE, LATER, LEXICAL, HEAD, FAR, WORDS, BT, BI, V, UNROLL, HOOKS, FT, FI,
    )  # fmt: skip
    if LATER:
        wrong |= missed(chart, root, length, pitch, WORDS)
    if MODE == FAST:
        tl.atomic_or(careful, wrong & 1)
    if HEAD:
        tl.atomic_or(report + b, (wrong >> 1) * HEAD_BIT)
    meet(counter, (met + 1) * group, GROUPED)

    done = member == 0
    if MODE == FAST:
        done = done & (tl.load(careful) == 0)
    if done:
        # GOAL: sum over h of headed(0, n, h) + root(h)
        h = tl.arange(0, WORDS)
        goal = tl.load(chart + (length - 1) * pitch + h, h < (length if LEXICAL else 1), other=NOTHING)
        if MODE == FAST:
            goal = tl.where(goal > 0, tl.log2(goal), NOTHING)
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
            too_large = tl.abs(whole) > PRECISE_LEVEL if MODE == FAST else tl.abs(over) > PRECISE_LOG
            result = value.to(tl.float32)
            status = tl.where((status == 0) & (none == 0) & too_large, TOO_LARGE_FLAG, status)
        status = tl.where((status == 0) & none, NO_TREE_FLAG, status)
        tl.store(report + b, status)
        tl.store(log_z + b, tl.where(status == 0, result, float("nan")))
