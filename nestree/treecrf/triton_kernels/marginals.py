"""The marginals, from the charts of the inside and the outside pass."""

import triton
import triton.language as tl

from nestree.treecrf.triton_kernels.common import (
    LOG_ZERO,
    MIN_TRUSTED,
    PRECISION,
    SAFE_EXPONENT,
    SCALED,
    at_most_one,
    own_score,
    score,
)


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
        chance = tl.where(within & (item > MIN_TRUSTED), mixed * factor * half * (item * half), 0.0)
        hooked = tl.sum(tl.where(beyond, mixed * item, 0.0), 1)
        if LEXICAL:
            lends = score(inherit + cell, real & (whole == 0), SCALED)
            tl.store(outer + at, tl.where(within, item * tl.exp2(-lends)[:, None], mixed), row)
            tl.store(in_logs + b * n * n + r, 0, real)
    else:
        chance = mixed + item - score(span + cell, real, SCALED)[:, None] - evidence
        chance = tl.where(within, tl.exp2(chance), 0.0)
        hooked = tl.sum(tl.where(beyond, tl.exp2(mixed + item), 0.0), 1)
        if LEXICAL:
            shift = tl.max(tl.where(within, item, LOG_ZERO), 1)[:, None]
            row_in_logs = (tl.max(tl.where(beyond, mixed + shift, LOG_ZERO), 1) < SAFE_EXPONENT) == 0
            ready = tl.where(within, item - shift, mixed + shift)
            tl.store(outer + at, tl.where(row_in_logs[:, None], ready, tl.exp2(ready)), row)
            tl.store(in_logs + b * n * n + r, row_in_logs.to(tl.int32), real)
    chosen = tl.sum(chance, 1)
    tl.store(d_span + cell, at_most_one(chosen), real)
    if D_HEAD:
        head_words = tl.where(b < d_heads, n, 0)
        tl.store(
            d_head + cell[:, None] * n + x[None, :], at_most_one(chance), within & (x[None, :] < head_words)
        )
    if LEXICAL:
        tl.store(d_inherit + cell, at_most_one(tl.maximum(chosen - hooked, 0.0)), real & (whole == 0))


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
    """The marginals of arcs: a product of matrices, P(arc p h) = sum over spans that hold h but not p.

    Only spans that begin before the last h and end after the first are looked at. They are dealt out to several
    programs, whose sums [part, batch, p, h] are added up by the caller.
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
        headed = tl.load(
            outer + r[:, None] * pitch + h[None, :], in_numbers[:, None] & (h[None, :] < pitch), other=0.0
        )
        hooked = tl.load(
            outer + r[:, None] * pitch + p[None, :], in_numbers[:, None] & (p[None, :] < pitch), other=0.0
        )
        headed = tl.where((h[None, :] >= i[:, None]) & (h[None, :] < j[:, None]), headed, 0.0)
        outside = (p[None, :] < i[:, None]) | (p[None, :] >= j[:, None])
        hooked = tl.where(outside & (p[None, :] < length), hooked, 0.0)
        plain = tl.dot(tl.trans(hooked), headed, plain, input_precision=PRECISION)
    if tl.load(report + 4 * batch + b) != 0:
        for tile in range(part, tiles, tl.num_programs(2)):
            i, j = rows_at(tile, tall, h_first, BI, BJ)
            ok = (i < j) & (j <= length)
            if tl.max(tl.load(in_logs + i * n + j - 1, ok, other=0), 0) > 0:
                for one in range(BI * BJ):
                    start = tile % tall * BI + one // BJ
                    stop = h_first + 1 + tile // tall * BJ + one % BJ
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
