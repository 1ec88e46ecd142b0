"""The inside pass: check the values, then COMPLETE and ATTACH width by width, then GOAL; and backtracking."""

import triton
import triton.language as tl

from nestree.treecrf.potentials import MAX_SCORE, NO_TREE, NO_TREE_BIT, TOO_LARGE_BIT, WRONG_LENGTH
from nestree.treecrf.triton_kernels.common import (
    FAR_FROM,
    LOG2_E,
    LOG_ZERO,
    LOGSPACE,
    LOWEST,
    MIN_EXPONENT,
    MIN_TRUSTED,
    SCALED,
    STARTS,
    VITERBI,
    WIDTHS,
    assign,
    far_splits,
    grid_barrier,
    log2,
    own_score,
    score,
    share_of,
)

LN_2 = tl.constexpr(0.6931471805599453)
MAX_TRUSTED = tl.constexpr(2.0**120)
MIN_ROW_MAXIMUM = tl.constexpr(2.0**-50)  # a row whose cells are all below this does not fit its exponent
HEAD_BIT = tl.constexpr(16)
NO_TREE_FLAG = tl.constexpr(NO_TREE_BIT)
TOO_LARGE_FLAG = tl.constexpr(TOO_LARGE_BIT)
WRONG_LENGTH_FLAG = tl.constexpr(WRONG_LENGTH)
MAX_PRECISE_LOG = tl.constexpr(2.0**16)  # float32 holds larger logarithms to less than 2^-7
MAX_EXACT_EXPONENT = tl.constexpr(2.0**23)  # float32 holds whole numbers up to twice this
IMPOSSIBLE_BELOW = tl.constexpr(NO_TREE)
MAX_SCALED_INHERIT = tl.constexpr(32.0)  # `inherit` beyond this, in base 2, needs LOGSPACE
MAX_ABS_SCORE = tl.constexpr(MAX_SCORE)


@triton.jit
def is_invalid_score(value):
    """Which values are neither between -MAX_SCORE and MAX_SCORE nor IMPOSSIBLE; NaN counts."""
    valid = (tl.abs(value) <= MAX_ABS_SCORE) | (value < IMPOSSIBLE_BELOW)
    return valid == 0


@triton.jit
def any_invalid(pointer, mask):
    """1 if a cell of the mask does not hold a score."""
    bad = is_invalid_score(tl.load(pointer, mask, other=0.0)) & mask
    return tl.max(tl.max(bad.to(tl.int32), 1), 0)


@triton.jit(do_not_specialize=["n"])
def prepare_kernel(
    span, arc, root, inherit, lengths, report, arc_out, arc_by_modifier, power, power_by_modifier, root_out, offset,
    n, pitch, MODE: tl.constexpr, LEXICAL: tl.constexpr, BR: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """Check the values, and arrange the arcs. A program has BX words of a sentence, as modifiers and as ends of spans.

    Every word but the root has one governor, so a constant (`offset`) can be subtracted from the scores of all arcs
    into a word and from its root score: every tree loses the same. For sums it is their maximum: none exceeds 0.
    """
    b = tl.program_id(0).to(tl.int64)
    batch = tl.num_programs(0)
    unchecked = tl.load(lengths + b)
    length = tl.minimum(tl.maximum(unchecked, 1), n).to(tl.int32)
    status = tl.where(unchecked == length, 0, WRONG_LENGTH_FLAG)
    needs_logspace = 0
    posts = n + 1
    x = tl.program_id(1) * BX + tl.arange(0, BX)
    r = tl.arange(0, BR)
    for i0 in range(0, length, BR):
        i = i0 + r[:, None]
        j = x[None, :] + 1
        cell = b * posts * posts + i * posts + j
        ok = (i < j) & (j <= length)
        status |= any_invalid(span + cell, ok)
        if LEXICAL:
            lends = ok & ((i > 0) | (j < length))
            status |= any_invalid(inherit + cell, lends) * 8
            too_large_to_scale = (tl.abs(score(inherit + cell, lends, MODE)) < MAX_SCALED_INHERIT) == 0
            needs_logspace |= tl.max(tl.max(too_large_to_scale.to(tl.int32), 1), 0)
    if LEXICAL:
        top = tl.full([BX], LOG_ZERO, tl.float32)
        for h0 in range(0, length, BR):
            h = h0 + r[:, None]
            ok = (h < length) & (x[None, :] < length) & (h != x[None, :])
            status |= any_invalid(arc + b * n * n + h * n + x[None, :], ok) * 2
            a = score(arc + b * n * n + h * n + x[None, :], ok, MODE)
            top = tl.maximum(top, tl.max(tl.where(ok, a, LOG_ZERO), 0))
        word = x < length
        status |= any_invalid((root + b * n + x)[None, :], word[None, :]) * 4
        at_root = score(root + b * n + x, word, MODE)
        top = tl.zeros([BX], tl.float32) if MODE == VITERBI else tl.maximum(top, at_root)
        tl.store(root_out + b * pitch + x, at_root - top, word)
        tl.store(offset + b * pitch + x, top, word)
        for h0 in range(0, length, BR):
            h = h0 + r[:, None]
            ok = (h < length) & word[None, :] & (h != x[None, :])
            a = score(arc + b * n * n + h * n + x[None, :], ok, MODE) - top[None, :]
            a = tl.where(ok, a, LOG_ZERO)
            cell = (h < length) & word[None, :]
            tl.store(arc_out + (b * n + h) * pitch + x[None, :], a, cell)
            tl.store(arc_by_modifier + (b * n + x[None, :]) * pitch + h, a, cell)
            if MODE != VITERBI:
                tl.store(power + (b * n + h) * pitch + x[None, :], tl.exp2(a), cell)
                tl.store(power_by_modifier + (b * n + x[None, :]) * pitch + h, tl.exp2(a), cell)
    tl.atomic_or(report + b, status)
    tl.atomic_or(report + 4 * batch + b, needs_logspace)
    if tl.program_id(1) == 0:
        tl.store(report + batch + b, unchecked.to(tl.int32))
        tl.store(report + 2 * batch + b, length)


@triton.jit
def split_at(i, t, width, skipped):
    """The t-th split k of the spans that start at i [BT, BI], without the `skipped` far splits in the middle.

    Beyond the last split: the last one again.
    """
    t = tl.minimum(t, width - 2 - skipped)[:, None]
    far = t + (i % STARTS)[None, :] >= WIDTHS + STARTS - 2
    return i[None, :] + 1 + t + tl.where(far, skipped, 0)


@triton.jit
def fetch_splits(
    chart, exponent, bound, inherit, i, j, x, t, width, skipped, n, pitch, MODE: tl.constexpr, LEXICAL: tl.constexpr,
):  # fmt: skip
    """Both halves of the spans (i, j) at their t-th splits [BT, BI, V], with their exponents and bounds (SCALED) or
    `inherit` scores (other modes) [BT, BI]."""
    k = split_at(i, t, width, skipped)
    left_row = i[None, :] * n + k - 1
    right_row = k * n + (j - 1)[None, :]
    left = tl.load(chart + left_row[:, :, None] * pitch + x[None, :, :])
    right = tl.load(chart + right_row[:, :, None] * pitch + x[None, :, :])
    if MODE == SCALED:
        of_left = tl.load(exponent + left_row)
        of_right = tl.load(exponent + right_row)
        more_left = tl.load(bound + left_row)
        more_right = tl.load(bound + right_row)
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
def add_inherit(left, right, of_left, of_right, i, x, t, width, MODE: tl.constexpr, LEXICAL: tl.constexpr):
    """The sum of both halves; the half that holds x is headed by x and gets its `inherit` score."""
    if LEXICAL:
        k = split_at(i, t, width, 0)
        is_left = x[None, :, :] < k[:, :, None]
        unit: tl.constexpr = 1.0 if MODE == VITERBI else LOG2_E
        left += tl.where(is_left, (tl.maximum(of_left, LOWEST) * unit)[:, :, None], 0.0)
        right += tl.where(is_left, 0.0, (tl.maximum(of_right, LOWEST) * unit)[:, :, None])
    return left + right


@triton.jit
def sum_of_splits(
    chart, exponent, bound, inherit, i, j, x, width, skipped, n, pitch,
    LEXICAL: tl.constexpr, FAR: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """SCALED: the sum over k of left(i, k, x) right(k, j, x) [BI, V], relative to 2^top [BI]. Returns sum and top.

    If there are far splits, far_splits has left their sum in the row: the sum starts with it.
    """
    slot = tl.arange(0, BT)
    reached = tl.full([BT, BI], LOG_ZERO, tl.float32)  # the exponent of each running sum
    total = tl.zeros([BT, BI, V], tl.float32)
    if FAR:
        if skipped > 0:
            row = i * n + j - 1
            first = (slot == 0)[:, None]
            reached = tl.where(first, tl.load(bound + row)[None, :], LOG_ZERO)
            far = tl.load(chart + row[:, None] * pitch + x)
            total = tl.where(first[:, :, None], far[None, :, :], 0.0)
    splits = width - 1 - skipped
    for t0 in tl.range(0, tl.cdiv(splits, BT * UNROLL) * BT * UNROLL, BT, loop_unroll_factor=UNROLL):
        left, right, of_left, of_right, more_left, more_right = fetch_splits(
            chart, exponent, bound, inherit, i, j, x, t0 + slot, width, skipped, n, pitch, SCALED, LEXICAL
        )  # fmt: skip
        real = (t0 + slot < splits)[:, None]
        raised = tl.maximum(reached, tl.where(real, more_left + more_right, LOG_ZERO))
        # Where nothing is possible yet, everything is at LOG_ZERO, and the cells are 0.
        scale = tl.where(real, tl.exp2(of_left + of_right - raised), 0.0)
        total = total * tl.exp2(reached - raised)[:, :, None] + left * scale[:, :, None] * right
        reached = raised
    top = tl.max(reached, 0)
    return tl.sum(total * tl.exp2(reached - top[None, :])[:, :, None], 0), top


@triton.jit
def log_of_splits(
    chart, exponent, bound, inherit, i, j, x, width, n, pitch,
    MODE: tl.constexpr, LEXICAL: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """VITERBI: the maximum over k of left(i, k, x) + right(k, j, x) [BI, V]; LOGSPACE: log2 of the sum over k."""
    slot = tl.arange(0, BT)
    best = tl.full([BT, BI, V], LOG_ZERO, tl.float32)
    left, right, of_left, of_right, _, _ = fetch_splits(
        chart, exponent, bound, inherit, i, j, x, slot, width, 0, n, pitch, MODE, LEXICAL
    )
    for t0 in tl.range(0, width - 1, BT, loop_unroll_factor=UNROLL):
        # Prefetch the next values while the present ones are compared.
        next_left, next_right, next_of_left, next_of_right, _, _ = fetch_splits(
            chart, exponent, bound, inherit, i, j, x, t0 + BT + slot, width, 0, n, pitch, MODE, LEXICAL
        )
        best = tl.maximum(best, add_inherit(left, right, of_left, of_right, i, x, t0 + slot, width, MODE, LEXICAL))
        left = next_left
        right = next_right
        of_left = next_of_left
        of_right = next_of_right
    peak = tl.max(best, 0)
    if MODE == LOGSPACE:
        total = tl.zeros([BT, BI, V], tl.float32)
        for t0 in range(0, width - 1, BT):
            left, right, of_left, of_right, _, _ = fetch_splits(
                chart, exponent, bound, inherit, i, j, x, t0 + slot, width, 0, n, pitch, MODE, LEXICAL
            )
            term = add_inherit(left, right, of_left, of_right, i, x, t0 + slot, width, MODE, LEXICAL)
            real = (t0 + slot < width - 1)[:, None, None]
            total += tl.where(real, tl.exp2(term - peak[None, :, :]), 0.0)
        peak += log2(tl.sum(total, 0))
    return peak


@triton.jit
def complete(
    span, inherit, head, head_words, chart, exponent, base, bound, status, first, last, width, skipped, length, n,
    pitch, MODE: tl.constexpr, OUTSIDE_FOLLOWS: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr,
    FAR: tl.constexpr, BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """COMPLETE for the spans (i, i + width), first <= i < last.

    headed(i, j, x) = span(i, j) + head(i, j, x) + sum over k in i < k < j of both halves, for x in (i, j)

    A tile is BI blocks of V neighbouring cells: a span takes as many blocks as it needs. Cells of a block outside the
    span are computed but not stored.
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
            raw = tl.load(at, within & (x < head_words), other=0.0)
            status |= tl.where(is_invalid_score(raw), 2, 0)
            evidence = score(at, within & (x < head_words), MODE)
        if MODE == SCALED:
            summed = tl.full([BI, V], 1.0, tl.float32)
            top = tl.zeros([BI], tl.float32)
            if width > 1:
                summed, top = sum_of_splits(
                    chart, exponent, bound, inherit, i, j, x, width, skipped, n, pitch, LEXICAL, FAR, BT, BI, V, UNROLL
                )  # fmt: skip
            whole = tl.floor(own)
            cell = summed * tl.exp2((own - whole)[:, None] + evidence)
            possible = (own > MIN_EXPONENT) & (top > MIN_EXPONENT)
            cell = tl.where(possible[:, None], cell, 0.0)
            trusted = (summed < MAX_TRUSTED) & (cell < MAX_TRUSTED)
            if not OUTSIDE_FOLLOWS:
                trusted &= (summed > MIN_TRUSTED) & ((cell > MIN_TRUSTED) | (evidence < MIN_EXPONENT))
            status |= tl.where(within & (trusted == 0) & possible[:, None], 1, 0)
            tl.store(chart + row[:, None] * pitch + x, cell, within)
            first_block = live & (place == 0)
            tl.store(exponent + row, tl.where(possible, top + whole, LOG_ZERO), first_block)
            tl.store(base + row, tl.where(possible, top, -LOG_ZERO), first_block)
        else:
            done = own[:, None] + evidence
            if width > 1:
                done += log_of_splits(
                    chart, exponent, bound, inherit, i, j, x, width, n, pitch, MODE, LEXICAL, BT, BI, V, UNROLL
                )  # fmt: skip
            tl.store(chart + row[:, None] * pitch + x, done, within)
            if MODE == LOGSPACE:
                tl.store(exponent + row, 0.0, live & (place == 0))
    return status


@triton.jit
def store_bound(exponent, bound, row, most, live):
    """Store the bound of rows whose largest headed cell is `most`."""
    top = tl.load(exponent + row, live, other=0.0) + tl.ceil(log2(tl.maximum(most, MIN_TRUSTED)))
    tl.store(bound + row, tl.where(most > 0, top, LOG_ZERO), live)


@triton.jit
def fetch_hooks(chart, arcs, row, i, x, t, width, pitch):
    """headed(i, j, h) [BT, BI] and arc(x, h) [BT, BI, V] for h = i + t. Beyond the last word of the span: the last one
    again."""
    h = i[None, :] + tl.minimum(t, width - 1)[:, None]
    return tl.load(chart + row[None, :] + h), tl.load(arcs + h[:, :, None] * pitch + x[None, :, :])


@triton.jit
def attach(
    inherit, chart, arcs, exponent, bound, status, first, last, width, length, n, pitch, MODE: tl.constexpr,
    OUTSIDE_FOLLOWS: tl.constexpr, BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, HOOKS: tl.constexpr,
):  # fmt: skip
    """ATTACH for the spans (i, i + width), first <= i < last. SCALED: arcs are exp2(arc); other modes: logarithms.

    hooked(i, j, x) = sum over h in (i, j) of headed(i, j, h) + arc(x, h), for x outside (i, j)

    The blocks of a span are those before it, then those behind it; surplus blocks repeat the last one.
    """
    per_span = (length - width) // V + 3
    blocks = (last - first) * per_span
    slot = tl.arange(0, BT)
    for e0 in range(0, blocks, BI):
        e = e0 + tl.arange(0, BI)
        live = e < blocks
        i = tl.minimum(first + e // per_span, last - 1)
        j = i + width
        place = e % per_span
        block = tl.where(place <= i // V, place, j // V + place - i // V - 1)
        x = (tl.minimum(block, (length - 1) // V) * V)[:, None] + tl.arange(0, V)[None, :]
        beyond = live[:, None] & (x < length) & ((x < i[:, None]) | (x >= j[:, None]))
        row = i * n + j - 1
        if MODE == SCALED:
            top = tl.zeros([BT, BI], tl.float32)
            total = tl.zeros([BT, BI, V], tl.float32)
            for t0 in tl.range(0, tl.cdiv(width, BT * HOOKS) * BT * HOOKS, BT, loop_unroll_factor=HOOKS):
                headed, arc = fetch_hooks(chart, arcs, row * pitch, i, x, t0 + slot, width, pitch)
                headed = tl.where((t0 + slot < width)[:, None], headed, 0.0)
                top = tl.maximum(top, headed)
                total += headed[:, :, None] * arc
            most = tl.max(top, 0)
            lends = score(inherit + i * (n + 1) + j, live, MODE)
            done = tl.sum(total, 0) * tl.exp2(-lends)[:, None]
            trusted = (done > MIN_TRUSTED) & (done < MAX_TRUSTED)
            status |= tl.where(beyond & (trusted == 0) & (most > 0)[:, None], 1, 0)
            if OUTSIDE_FOLLOWS:
                possible = tl.load(exponent + row, live, other=LOG_ZERO) > MIN_EXPONENT
                status |= tl.where((live & (most < MIN_ROW_MAXIMUM) & possible)[:, None] & (x >= 0), 1, 0)
            store_bound(exponent, bound, row, most, live & (place == 0))
        else:
            best = tl.full([BT, BI, V], LOG_ZERO, tl.float32)
            headed, arc = fetch_hooks(chart, arcs, row * pitch, i, x, slot, width, pitch)
            for t0 in tl.range(0, width, BT, loop_unroll_factor=HOOKS):
                # Prefetch the next values while the present ones are compared.
                next_headed, next_arc = fetch_hooks(chart, arcs, row * pitch, i, x, t0 + BT + slot, width, pitch)
                best = tl.maximum(best, headed[:, :, None] + arc)
                headed = next_headed
                arc = next_arc
            done = tl.max(best, 0)
            if MODE == LOGSPACE:
                total = tl.zeros([BT, BI, V], tl.float32)
                for t0 in range(0, width, BT):
                    headed, arc = fetch_hooks(chart, arcs, row * pitch, i, x, t0 + slot, width, pitch)
                    headed = tl.where((t0 + slot < width)[:, None], headed, LOG_ZERO)
                    total += tl.exp2(headed[:, :, None] + arc - done[None, :, :])
                done += log2(tl.sum(total, 0))
        tl.store(chart + row[:, None] * pitch + x, done, beyond)
    return status


@triton.jit(do_not_specialize=["heads", "n", "batch"])
def inside_kernel(
    span, inherit, head, arcs, root, offset, chart, exponent, base, bound, report, log_z,
    log2_rest, heads, n, pitch, batch,
    GROUPED: tl.constexpr, BATCH: tl.constexpr, MODE: tl.constexpr, OUTSIDE_FOLLOWS: tl.constexpr,
    LEXICAL: tl.constexpr, HEAD: tl.constexpr, FAR: tl.constexpr, WORDS: tl.constexpr, BT: tl.constexpr,
    BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr, HOOKS: tl.constexpr, FT: tl.constexpr, FI: tl.constexpr,
):  # fmt: skip
    """The chart of one sentence, then GOAL. SCALED requests LOGSPACE for the sentences whose sums cannot be trusted.

    `heads`: the number of sentences, the first ones, that have `head`.
    """
    b, member, group = assign(report + 2 * batch, batch, GROUPED, BATCH)
    length = tl.load(report + 2 * batch + b)
    counter = report + (5 if MODE == LOGSPACE else 3) * batch + b
    needs_logspace = report + 4 * batch + b
    if MODE != VITERBI:
        if (tl.load(needs_logspace) == 0) == (MODE == LOGSPACE):
            return
    span += b * (n + 1) * (n + 1)
    chart += b * n * n * pitch
    exponent += b * n * n
    base += b * n * n
    bound += b * n * n
    if LEXICAL:
        inherit += b * (n + 1) * (n + 1)
        arcs += b * n * pitch
        root += b * pitch
    if HEAD:
        head += b * (n + 1) * (n + 1) * n
    head_words = tl.where(b < heads, n, 0)  # words that have a score as head of a span: all, or none
    states = tl.zeros([BI, V], tl.int32)  # bit 1: SCALED cannot be trusted, bit 2: `head` holds an invalid score
    barriers = length * 0
    for width in range(1, length + 1):
        skipped = 0
        if FAR:
            narrow = (width - 1) // WIDTHS * WIDTHS
            if narrow >= FAR_FROM:
                skipped = narrow - WIDTHS - STARTS + 2
                if width == narrow + 1:
                    far_splits(chart, exponent, bound, member, group, narrow, length, n, pitch, FT, FI, V)
                    barriers += 1
                    grid_barrier(counter, barriers * group, GROUPED)
        first, last = share_of(length - width + 1, member, group)
        states = complete(
            span, inherit, head, head_words, chart, exponent, base, bound, states, first, last, width, skipped, length,
            n, pitch, MODE, OUTSIDE_FOLLOWS, LEXICAL, HEAD, FAR, BT, BI, V, UNROLL,
        )  # fmt: skip
        if LEXICAL:
            tl.debug_barrier()
            states = attach(
                inherit, chart, arcs, exponent, bound, states, first, last, width, length, n, pitch, MODE,
                OUTSIDE_FOLLOWS, BT, BI, V, HOOKS,
            )  # fmt: skip
        elif MODE == SCALED:
            tl.debug_barrier()
            i = first + tl.arange(0, WORDS)
            row = i * n + i + width - 1
            store_bound(exponent, bound, row, tl.load(chart + row * pitch, i < last, other=0.0), i < last)
        barriers += 1
        grid_barrier(counter, barriers * group, GROUPED)
    wrong = tl.max(tl.max(states, 1), 0)
    h = tl.arange(0, WORDS)
    if OUTSIDE_FOLLOWS:  # heads that can be the root may have underflowed if the sum over all trees is too small
        headed = tl.load(chart + (length - 1) * pitch + h, h < length, other=0.0)
        at_root = tl.load(root + h, h < length, other=LOG_ZERO)
        wrong |= (tl.sum(headed * tl.exp2(at_root), 0) < MIN_ROW_MAXIMUM).to(tl.int32)
    if MODE == SCALED:
        tl.atomic_or(needs_logspace, wrong & 1)
    if HEAD:
        tl.atomic_or(report + b, (wrong >> 1) * HEAD_BIT)
    grid_barrier(counter, (barriers + 1) * group, GROUPED)

    done = member == 0
    if MODE == SCALED:
        done = done & (tl.load(needs_logspace) == 0)
    if done:
        # GOAL: sum over h of headed(0, n, h) + root(h)
        goal = tl.load(chart + (length - 1) * pitch + h, h < (length if LEXICAL else 1), other=LOG_ZERO)
        if MODE == SCALED:
            goal = tl.where(goal > 0, tl.log2(goal), LOG_ZERO)
        if LEXICAL:
            goal += tl.load(root + h, h < length, other=0.0)
        best = tl.max(goal, 0)
        status = tl.load(report + b)
        if MODE == VITERBI:
            none = best < IMPOSSIBLE_BELOW
            result = best
        else:
            over = best + tl.log2(tl.sum(tl.exp2(goal - best), 0))  # relative to the exponent of (0, n)
            tl.store(log2_rest + b, over)
            whole = tl.load(exponent + length - 1)
            value = (whole.to(tl.float64) + over.to(tl.float64)) * LN_2
            if LEXICAL:
                offsets = tl.load(offset + b * pitch + h, h < length, other=0.0).to(tl.float64)
                value += tl.sum(offsets, 0) * LN_2
            none = value < IMPOSSIBLE_BELOW
            if MODE == SCALED:
                too_large = tl.abs(whole) > MAX_EXACT_EXPONENT
            else:
                too_large = tl.abs(over) > MAX_PRECISE_LOG
            result = value.to(tl.float32)
            status = tl.where((status == 0) & (none == 0) & too_large, TOO_LARGE_FLAG, status)
        status = tl.where((status == 0) & none, NO_TREE_FLAG, status)
        tl.store(report + b, status)
        tl.store(log_z + b, tl.where(status == 0, result, float("nan")))


# Best trees


@triton.jit
def first_argmax(values, options, none):
    """The first option with the highest value; `none` if all are NaN."""
    first = tl.min(tl.where(values == tl.max(values, 0), options, 1 << 30), 0)
    return tl.where(first == 1 << 30, none, first)


@triton.jit(do_not_specialize=["n"])
def backtrack_kernel(
    inherit, arc, root, chart, report, stack, spans, arcs, roots, n, pitch, LEXICAL: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """Backtrack through a chart of maxima, from the top down.

    A subtree of w words has 2w - 1 spans, so the preorder index of each span is known when it is pushed.
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
        goal = tl.load(chart + (length - 1) * pitch + x, x < length, other=LOG_ZERO)
        goal += tl.load(root + b * pitch + x, x < length, other=0.0)
        top = first_argmax(goal, x, 0)
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
        index = tl.load(stack + depth * 4 + 3)
        tl.store(spans + index * fields, i.to(tl.int64))
        tl.store(spans + index * fields + 1, j.to(tl.int64))
        if LEXICAL:
            tl.store(spans + index * fields + 2, h.to(tl.int64))
        if j - i > 1:  # COMPLETE, backwards: the best split k in i < k < j
            between = (x > i) & (x < j)
            left = tl.load(chart + (i * n + x - 1) * pitch + h, between, other=LOG_ZERO)
            right = tl.load(chart + (x * n + j - 1) * pitch + h, between, other=LOG_ZERO)
            if LEXICAL:
                left += tl.where(h < x, score(inherit + i * (n + 1) + x, between, VITERBI), 0.0)
                right += tl.where(h < x, 0.0, score(inherit + x * (n + 1) + j, between, VITERBI))
            k = first_argmax(left + right, x, i + 1)
            left_head = h
            right_head = h
            if LEXICAL:  # ATTACH, backwards: the best head m of the half without h
                start = tl.where(h < k, k, i)
                end = tl.where(h < k, j, k)
                half = (x >= start) & (x < end)
                modifiers = tl.load(chart + (start * n + end - 1) * pitch + x, half, other=LOG_ZERO)
                modifiers += tl.load(arc + h * pitch + x, half, other=LOG_ZERO)
                m = first_argmax(modifiers, x, start)
                slot = (b * (n - 1) + tl.where(m > top, m - 1, m)) * 2
                tl.store(arcs + slot, h.to(tl.int64))
                tl.store(arcs + slot + 1, m.to(tl.int64))
                left_head = tl.where(h < k, h, m)
                right_head = tl.where(h < k, m, h)
            tl.debug_barrier()
            tl.store(stack + depth * 4, k)
            tl.store(stack + depth * 4 + 1, j)
            tl.store(stack + depth * 4 + 2, right_head)
            tl.store(stack + depth * 4 + 3, index + 2 * (k - i))
            tl.store(stack + depth * 4 + 4, i)
            tl.store(stack + depth * 4 + 5, k)
            tl.store(stack + depth * 4 + 6, left_head)
            tl.store(stack + depth * 4 + 7, index + 1)
            depth += 2


@triton.jit(do_not_specialize=["batch", "sentences", "n"])
def error_kernel(report, record, batch, sentences, n, BLOCK: tl.constexpr):
    """Write the first error of a batch to the record (see ErrorRecord) unless there is one already."""
    first = batch
    for start in range(0, batch, BLOCK):
        b = start + tl.arange(0, BLOCK)
        status = tl.load(report + b, b < batch, other=0)
        first = tl.minimum(first, tl.min(tl.where(status != 0, b, batch), 0))
    if first < batch:
        if tl.load(record) == 0:
            tl.store(record + 1, first % sentences)
            tl.store(record + 2, tl.load(report + batch + first))
            tl.store(record + 3, n)
            tl.store(record, tl.load(report + first))
