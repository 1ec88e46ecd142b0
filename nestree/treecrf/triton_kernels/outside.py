"""The outside pass: COMPLETE and ATTACH backwards, the widest spans first; then the marginals."""

import triton
import triton.language as tl

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
    WIDTHS,
    assign,
    far_parents,
    grid_barrier,
    log2,
    own_score,
    score,
    share_of,
)

# A head below MIN_TRUSTED can be ignored unless the rest of the tree weighs more than this.
MAX_IGNORED_WEIGHT = tl.constexpr(2.0**50)
SAFE_EXPONENT = tl.constexpr(100.0)
PRECISION = tl.constexpr("tf32x3")  # of matrix products: three products of halves, as good as float32


@triton.jit
def at_most_one(probability):
    """Clamp to 1 what rounding led beyond it. NaN stays NaN."""
    return tl.where(probability > 1.0, 1.0, probability)


@triton.jit
def fetch_parents(
    chart, exponent, base, inherit, outer, a, z, x, x_first, t, many, n, pitch,
    RIGHT: tl.constexpr, MODE: tl.constexpr, LEXICAL: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """The t-th parents of (a, z) with the other half to the right, or to the left.

    Returns the cells of the parent and of the other half [BT, BI, V], and for SCALED their exponents, for LOGSPACE the
    `inherit` of the other half [BT, BI]. They are zero if there is no such parent that has any of the words
    x_first .. x_first + V - 1.
    """
    ok = t < many[None, :]
    t = tl.minimum(t, tl.maximum(many - 1, 0)[None, :])
    if RIGHT:
        end = z[None, :] + 1 + t
        parent_row = a[None, :] * n + end - 1
        other_row = z[None, :] * n + end - 1
        if LEXICAL:
            ok = ok & (x_first + V > a)[None, :] & (x_first[None, :] < end)
    else:
        start = a[None, :] - 1 - t
        parent_row = start * n + z[None, :] - 1
        other_row = start * n + a[None, :] - 1
        if LEXICAL:
            ok = ok & (x_first < z)[None, :] & (x_first[None, :] + V > start)
    nothing: tl.constexpr = 0.0 if MODE == SCALED else LOG_ZERO
    parent = tl.load(outer + parent_row[:, :, None] * pitch + x[None, :, :], ok[:, :, None], other=nothing)
    other = tl.load(chart + other_row[:, :, None] * pitch + x[None, :, :], ok[:, :, None], other=nothing)
    if MODE == SCALED:
        of_parent = tl.load(base + parent_row, ok, other=-LOG_ZERO)
        of_other = tl.load(exponent + other_row, ok, other=0.0)
    else:
        of_parent = tl.zeros_like(t + parent_row).to(tl.float32)
        of_other = of_parent
        if LEXICAL:
            if RIGHT:
                lent = z[None, :] * (n + 1) + end
            else:
                lent = start * (n + 1) + a[None, :]
            of_other = tl.load(inherit + lent, ok, other=0.0)
    return parent, other, of_parent, of_other


@triton.jit
def add_parents(
    total, chart, exponent, base, inherit, outer, a, z, x, x_first, item, lends, own_exponent, many, most, n, pitch,
    RIGHT: tl.constexpr, MODE: tl.constexpr, LEXICAL: tl.constexpr,
    BT: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """COMPLETE, backwards, over the `many` nearest parents on one side: add to `total` the probability that they use
    the items x of (a, z); for SCALED, divided by the item. `most` is the maximum of `many`."""
    slot = tl.arange(0, BT)[:, None]
    for t0 in tl.range(0, tl.cdiv(most, BT * UNROLL) * BT * UNROLL, BT, loop_unroll_factor=UNROLL):
        parent, other, of_parent, of_other = fetch_parents(
            chart, exponent, base, inherit, outer, a, z, x, x_first, t0 + slot, many, n, pitch, RIGHT, MODE, LEXICAL, V
        )  # fmt: skip
        t = (t0 + slot)[:, :, None]
        if LEXICAL:
            reaches = (x - z[:, None])[None, :, :] <= t if RIGHT else (a[:, None] - 1 - x)[None, :, :] <= t
        if MODE == SCALED:
            scale = tl.exp2(own_exponent[None, :] + of_other - of_parent)  # of a whole number: exact
            term = other * scale[:, :, None] * parent
            if LEXICAL:
                term = tl.where(reaches, term, 0.0)
            total += term
        else:
            term = parent + other
            if LEXICAL:
                in_other = (x >= z[:, None]) if RIGHT else (x < a[:, None])
                of_other = tl.maximum(of_other, LOWEST) * LOG2_E
                term += tl.where(in_other[None, :, :], of_other[:, :, None], lends[None, :, None])
                term = tl.where(reaches, term, LOG_ZERO)
            total += tl.exp2(term + item[None, :, :])
    return total


@triton.jit
def outside_spans(
    inherit, root, chart, exponent, base, outer, d_root, over, first, last, width, wide, far, length, n, pitch,
    MODE: tl.constexpr, LEXICAL: tl.constexpr, FAR: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """COMPLETE, backwards, for the spans (a, z) of one width: the probability that each item of their rows is used.

    Writes into `outer`, SCALED: that probability over the item. LOGSPACE: where x lies in the span, the probability
    that x heads it and is lent; where it lies outside, log2 of the probability that the span is hooked to x,
    over hooked.
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
        item = tl.load(chart + row[:, None] * pitch + x, word, other=LOG_ZERO)
        if width == length:
            at_root = tl.zeros([BI, V], tl.float32)
            if LEXICAL:
                at_root = tl.load(root + x, word, other=LOG_ZERO)
            probability = item * tl.exp2(at_root - over) if MODE == SCALED else tl.exp2(item + (at_root - over))
            if LEXICAL:
                tl.store(d_root + x, at_most_one(probability), word)
            used = tl.exp2(at_root - over) if MODE == SCALED else probability
        else:
            own_exponent = tl.load(exponent + row, live, other=0.0)
            lends = tl.zeros([BI], tl.float32)
            if MODE == LOGSPACE and LEXICAL:
                lends = score(inherit + a * (n + 1) + z, live, MODE)
            a_first = first + e0 // per_span
            a_last = tl.minimum(first + (e0 + BI - 1) // per_span, last - 1)
            right = length - z
            left = a
            most_right = length - a_first - width
            most_left = a_last
            if FAR:
                if far:  # the rest was summed with the other widths of the block
                    a_even = a // STARTS * STARTS
                    right = tl.minimum(right, a_even + wide + STARTS - 1 - z)
                    left = tl.minimum(left, a - a_even + WIDTHS - 1)
                    most_right = tl.minimum(most_right, wide + STARTS - 1 - width)
                    most_left = tl.minimum(most_left, WIDTHS + STARTS - 2)
            total = tl.zeros([BT, BI, V], tl.float32)
            total = add_parents(
                total, chart, exponent, base, inherit, outer, a, z, x, x_first, item, lends, own_exponent,
                right, most_right, n, pitch, True, MODE, LEXICAL, BT, V, UNROLL,
            )  # fmt: skip
            if LEXICAL:
                total = tl.where((x >= a[:, None])[None, :, :], total, 0.0)
            other_side = add_parents(
                tl.zeros_like(total), chart, exponent, base, inherit, outer, a, z, x, x_first, item, lends,
                own_exponent, left, most_left, n, pitch, False, MODE, LEXICAL, BT, V, UNROLL,
            )  # fmt: skip
            if LEXICAL:
                other_side = tl.where((x < z[:, None])[None, :, :], other_side, 0.0)
            used = tl.sum(total + other_side, 0)  # [BI, V]
            if FAR:
                if far:
                    used += tl.load(outer + row[:, None] * pitch + x, word, other=0.0)
        if MODE == LOGSPACE:
            used = tl.where(within, used, log2(used) - item)
        tl.store(outer + row[:, None] * pitch + x, used, word)


@triton.jit
def outside_heads(
    span, inherit, head, head_words, arcs, chart, outer, status, first, last, width, length, n, pitch,
    MODE: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, HOOKS: tl.constexpr,
):  # fmt: skip
    """ATTACH, backwards, for the spans (a, z) of one width: the probability of each of them with head h.

    Writes into `outer`, where h lies in the span, that probability over the sum of COMPLETE; LOGSPACE: its log2. A
    SCALED cell that underflowed sets the status if the rest of the tree has so much weight that the cell matters.
    """
    per_span = (width + 2 * V - 2) // V if LEXICAL else 1
    nothing: tl.constexpr = 0.0 if MODE == SCALED else LOG_ZERO
    slot = tl.arange(0, BT)[:, None]
    for e0 in range(0, (last - first) * per_span, BI):
        e = e0 + tl.arange(0, BI)
        a = tl.minimum(first + e // per_span, last - 1)
        z = a + width
        live = e < (last - first) * per_span
        h = tl.zeros([BI, V], tl.int32)
        within = live[:, None] & (h == 0)
        if LEXICAL:
            h = ((a // V + e % per_span) * V)[:, None] + tl.arange(0, V)[None, :]
            within = live[:, None] & (h >= a[:, None]) & (h < z[:, None])
        row = (a * n + z - 1) * pitch
        cell = a * (n + 1) + z
        used = tl.load(outer + row[:, None] + h, within, other=0.0)
        if MODE == LOGSPACE:
            headed = tl.load(chart + row[:, None] + h, within, other=LOG_ZERO)
        if LEXICAL:
            if width < length:
                total = tl.zeros([BT, BI, V], tl.float32)
                padded = tl.cdiv(length - width, BT * HOOKS) * BT * HOOKS
                for t0 in tl.range(0, padded, BT, loop_unroll_factor=HOOKS):
                    t = tl.minimum(t0 + slot, length - width - 1)
                    p = tl.where(t < a[None, :], t, t + width)  # the t-th word outside (a, z)
                    arc = tl.load(arcs + p[:, :, None] * pitch + h[None, :, :])
                    hooked = tl.load(outer + row[None, :] + p)
                    hooked = tl.where(t0 + slot < length - width, hooked, nothing)
                    if MODE == SCALED:
                        total += hooked[:, :, None] * arc
                    else:
                        total += tl.exp2(arc + hooked[:, :, None] + headed[None, :, :])
                if MODE == SCALED:
                    used += tl.sum(total, 0) * tl.exp2(-score(inherit + cell, live, MODE))[:, None]
                else:
                    used += tl.sum(total, 0)
        own = own_score(span, inherit, cell, live, z - a < length, MODE, LEXICAL)
        evidence = (own - tl.floor(own) if MODE == SCALED else own)[:, None]
        if HEAD:
            evidence += score(head + cell[:, None].to(tl.int64) * n + h, within & (h < head_words), MODE)
        if MODE == SCALED:
            # What is impossible may have a weight beyond float32, and infinity times zero is NaN.
            result = tl.where(evidence > MIN_EXPONENT, used * tl.exp2(evidence), 0.0)
            if LEXICAL:
                # Both the cell and the sum in it are large enough, or else the rest of the tree has little weight.
                held = tl.load(chart + row[:, None] + h, within, other=0.0)
                fine = ((held > MIN_TRUSTED) | (used <= MAX_IGNORED_WEIGHT)) & (
                    (held * tl.exp2(-evidence) > MIN_TRUSTED) | (result <= MAX_IGNORED_WEIGHT)
                )
                status |= tl.max((within & (evidence > MIN_EXPONENT) & (fine == 0)).to(tl.int32), 1)
        else:
            result = log2(used) + evidence - headed
        tl.store(outer + row[:, None] + h, result, within)
    return status


@triton.jit(do_not_specialize=["heads", "n", "batch"])
def outside_kernel(
    span, inherit, head, arcs, root, chart, exponent, base, report, log2_rest, counter, outer, d_root, heads, n,
    pitch, batch,
    GROUPED: tl.constexpr, BATCH: tl.constexpr, MODE: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr,
    FAR: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr, HOOKS: tl.constexpr,
    FT: tl.constexpr, FI: tl.constexpr,
):  # fmt: skip
    """The outside pass of one sentence, and d_root, in the mode of its inside pass.

    SCALED checks heads that underflowed, and requests both passes in LOGSPACE if they matter.
    """
    b, member, group = assign(report + 2 * batch, batch, GROUPED, BATCH)
    length = tl.load(report + 2 * batch + b)
    needs_logspace = report + 4 * batch + b
    if (tl.load(needs_logspace) == 0) == (MODE == LOGSPACE):
        return
    over = tl.load(log2_rest + b)
    span += b * (n + 1) * (n + 1)
    chart += b * n * n * pitch
    outer += b * n * n * pitch
    exponent += b * n * n
    base += b * n * n
    counter += b
    if LEXICAL:
        inherit += b * (n + 1) * (n + 1)
        arcs += b * n * pitch
        root += b * pitch
        d_root += b * n
    if HEAD:
        head += b * (n + 1) * (n + 1) * n
    head_words = tl.where(b < heads, n, 0)  # words that have a score as head of a span: all, or none
    barriers = length * 0
    status = tl.zeros([BI], tl.int32)
    for step in range(1, length + 1):  # the widest spans first
        width = length + 1 - step
        wide = tl.minimum(((width - 1) // WIDTHS + 1) * WIDTHS, length)
        far = length - wide >= FAR_FROM
        if FAR:
            if far & (width == wide):
                far_parents(chart, exponent, base, outer, member, group, wide, length, n, pitch, FT, FI, V)
                barriers += 1
                grid_barrier(counter, barriers * group, GROUPED)
        first, last = share_of(step, member, group)
        outside_spans(
            inherit, root, chart, exponent, base, outer, d_root, over, first, last, width, wide, far, length, n, pitch,
            MODE, LEXICAL, FAR, BT, BI, V, UNROLL,
        )  # fmt: skip
        tl.debug_barrier()
        status = outside_heads(
            span, inherit, head, head_words, arcs, chart, outer, status, first, last, width, length, n, pitch,
            MODE, LEXICAL, HEAD, BT, BI, V, HOOKS,
        )  # fmt: skip
        barriers += 1
        grid_barrier(counter, barriers * group, GROUPED)
    if MODE == SCALED:
        tl.atomic_or(needs_logspace, tl.max(status, 0))


@triton.jit(do_not_specialize=["heads", "d_heads", "n"])
def spans_kernel(
    span, inherit, head, chart, outer, report, in_logs, d_span, d_inherit, d_head, heads, d_heads, n, pitch,
    LEXICAL: tl.constexpr, HEAD: tl.constexpr, D_HEAD: tl.constexpr, BR: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """The marginals of spans, heads and `inherit`, row by row; and `outer`, prepared for the marginals of arcs.

    A span lends its head unless it is hooked or the whole sentence. Afterwards headed cells of `outer` hold headed, and
    the others the factor that makes it the probability of an arc: as numbers, or as log2 in rows with `in_logs`. SCALED
    rows are always numbers.
    """
    b = tl.program_id(0).to(tl.int64)
    batch = tl.num_programs(0)
    length = tl.load(report + 2 * batch + b)
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
    # Rows are read and written as wide as they are, several cells at a time; cells that are no words are left out then.
    row = real[:, None] & (x[None, :] < pitch)
    item = tl.where(word, tl.load(chart + at, row, other=0.0), 0.0)
    mixed = tl.where(word, tl.load(outer + at, row, other=0.0), 0.0)
    evidence = tl.zeros([BR, BX], tl.float32)
    if HEAD:
        head_words = tl.where(b < heads, n, 0)
        evidence = score(head + cell[:, None] * n + x[None, :], within & (x[None, :] < head_words), SCALED)
    if tl.load(report + 4 * batch + b) == 0:
        own = own_score(span, inherit, cell, real, whole == 0, SCALED, LEXICAL)
        factor = tl.exp2(tl.floor(own) - own)[:, None]
        # Both factors include `head`: divide each by the root of exp(head), which float32 can hold. A head that
        # underflowed has probability 0, or LOGSPACE would have been requested.
        half = tl.exp2(evidence * -0.5)
        probability = tl.where(within & (item > MIN_TRUSTED), mixed * factor * half * (item * half), 0.0)
        hooked = tl.sum(tl.where(beyond, mixed * item, 0.0), 1)
        if LEXICAL:
            lends = score(inherit + cell, real & (whole == 0), SCALED)
            tl.store(outer + at, tl.where(within, item * tl.exp2(-lends)[:, None], mixed), row)
            tl.store(in_logs + b * n * n + r, 0, real)
    else:
        probability = mixed + item - score(span + cell, real, SCALED)[:, None] - evidence
        probability = tl.where(within, tl.exp2(probability), 0.0)
        hooked = tl.sum(tl.where(beyond, tl.exp2(mixed + item), 0.0), 1)
        if LEXICAL:
            shift = tl.max(tl.where(within, item, LOG_ZERO), 1)[:, None]
            row_in_logs = (tl.max(tl.where(beyond, mixed + shift, LOG_ZERO), 1) < SAFE_EXPONENT) == 0
            ready = tl.where(within, item - shift, mixed + shift)
            tl.store(outer + at, tl.where(row_in_logs[:, None], ready, tl.exp2(ready)), row)
            tl.store(in_logs + b * n * n + r, row_in_logs.to(tl.int32), real)
    span_probability = tl.sum(probability, 1)
    tl.store(d_span + cell, at_most_one(span_probability), real)
    if D_HEAD:
        head_words = tl.where(b < d_heads, n, 0)
        tl.store(
            d_head + cell[:, None] * n + x[None, :],
            at_most_one(probability),
            within & (x[None, :] < head_words),
        )
    if LEXICAL:
        tl.store(d_inherit + cell, at_most_one(tl.maximum(span_probability - hooked, 0.0)), real & (whole == 0))


@triton.jit
def rows_at(tile, tall, h_first, BI: tl.constexpr, BJ: tl.constexpr):
    """The spans (i, j) of a tile [BI * BJ]; `tall` tiles above each other, ends from h_first + 1 on."""
    r = tl.arange(0, BI * BJ)
    return tile % tall * BI + r // BJ, h_first + 1 + tile // tall * BJ + r % BJ


@triton.jit(do_not_specialize=["n"])
def arcs_kernel(
    arc, outer, in_logs, report, d_arc, n, pitch,
    BI: tl.constexpr, BJ: tl.constexpr, BP: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """The marginals of arcs, as a matrix product: P(p -> h) = sum over spans (i, j) with h inside and p outside.

    Only spans that begin before the last h and end after the first can hold an h of the tile. Several programs share
    them; the caller adds their sums [part, batch, p, h].
    """
    b = tl.program_id(0).to(tl.int64)
    batch = tl.num_programs(0)
    part = tl.program_id(2)
    length = tl.load(report + 2 * batch + b)
    p_first = tl.program_id(1) // tl.cdiv(n, BH) * BP
    h_first = tl.program_id(1) % tl.cdiv(n, BH) * BH
    if (p_first >= length) | (h_first >= length):
        return
    p = p_first + tl.arange(0, BP)
    h = h_first + tl.arange(0, BH)
    outer += b * n * n * pitch
    in_logs += b * n * n
    cell = (p[:, None] < length) & (h[None, :] < length) & (p[:, None] != h[None, :])
    score_of = tl.load(arc + (b * n + p[:, None]) * pitch + h[None, :], cell, other=LOG_ZERO)
    plain = tl.zeros([BP, BH], tl.float32)  # to be multiplied by exp2(arc)
    from_logs = tl.zeros([BP, BH], tl.float32)  # with the arc already in it
    tall = tl.cdiv(tl.minimum(h_first + BH, length), BI)
    tiles = tall * tl.cdiv(length - h_first, BJ)
    for tile in range(part, tiles, tl.num_programs(2)):
        i, j = rows_at(tile, tall, h_first, BI, BJ)
        ok = (i < j) & (j <= length)
        r = i * n + j - 1
        in_numbers = ok & (tl.load(in_logs + r, ok, other=0) == 0)
        headed = tl.load(outer + r[:, None] * pitch + h[None, :], in_numbers[:, None] & (h[None, :] < pitch), other=0.0)
        hooked = tl.load(outer + r[:, None] * pitch + p[None, :], in_numbers[:, None] & (p[None, :] < pitch), other=0.0)
        headed = tl.where((h[None, :] >= i[:, None]) & (h[None, :] < j[:, None]), headed, 0.0)
        outside = (p[None, :] < i[:, None]) | (p[None, :] >= j[:, None])
        hooked = tl.where(outside & (p[None, :] < length), hooked, 0.0)
        plain = tl.dot(tl.trans(hooked), headed, plain, input_precision=PRECISION)
    if tl.load(report + 4 * batch + b) != 0:
        for tile in range(part, tiles, tl.num_programs(2)):
            i, j = rows_at(tile, tall, h_first, BI, BJ)
            ok = (i < j) & (j <= length)
            if tl.max(tl.load(in_logs + i * n + j - 1, ok, other=0), 0) > 0:
                for r in range(BI * BJ):
                    start = tile % tall * BI + r // BJ
                    stop = h_first + 1 + tile // tall * BJ + r % BJ
                    row = start * n + stop - 1
                    counts = (start < stop) & (stop <= length)
                    counts = counts & (tl.load(in_logs + row, counts, other=0) != 0)
                    last = tl.where(counts, length, 0)  # no word is before this in rows that do not count
                    near = (h < last) & (h >= start) & (h < stop)
                    headed_row = tl.load(outer + row * pitch + h, near, other=LOG_ZERO)
                    far = (p < last) & ((p < start) | (p >= stop))
                    hooked_row = tl.load(outer + row * pitch + p, far, other=LOG_ZERO)
                    from_logs += tl.exp2(headed_row[None, :] + hooked_row[:, None] + score_of)
    power = tl.exp2(score_of)
    result = tl.where(power > 0, plain * power, 0.0) + from_logs
    tl.store(d_arc + ((part * batch + b) * n + p[:, None]) * n + h[None, :], result, cell)
