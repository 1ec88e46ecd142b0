"""The outside pass: COMPLETE and ATTACH backwards, the widest spans first, and the marginals read off."""

import triton
import triton.language as tl

from nestree.treecrf.triton_kernels.common import (
    CAREFUL,
    FAST,
    LOG2_E,
    LOWEST,
    NOTHING,
    PRECISION,
    SAFE_EXPONENT,
    log2,
    meet,
    score,
)


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
            chart,
            level,
            inherit,
            outer,
            a,
            z,
            x,
            x_first,
            t0 + BT + slot,
            length,
            n,
            pitch,
            RIGHT,
            MODE,
            LEXICAL,
            V,
        )
        term = parent + other
        start, end, _ = parent_of(a, z, x_first, t0 + slot, length, RIGHT, LEXICAL, V)
        if MODE == FAST:
            term += (own_level[None, :] + of_other - of_parent)[:, :, None]  # whole numbers: exact
        elif LEXICAL:
            in_other = (x >= z[:, None]) if RIGHT else (x < a[:, None])
            of_other = tl.maximum(of_other, LOWEST) * LOG2_E
            term += tl.where(in_other[None, :, :], of_other[:, :, None], lends[None, :, None])
        if LEXICAL:
            term = tl.where(
                (x[None, :, :] >= start[:, :, None]) & (x[None, :, :] < end[:, :, None]), term, NOTHING
            )
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
                lends = score(inherit + cell, live & (z - a < length), MODE)
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
    span, inherit, head, arc, root, chart, level, outer, d_root, weight, over, counter, member, length, n, pitch, group,
    GROUPED: tl.constexpr, MODE: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """All widths of one sentence, the widest first: COMPLETE and ATTACH, backwards."""
    for step in range(1, length + 1):
        width = length + 1 - step
        share = tl.cdiv(step, group)
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
        meet(counter, step * group, GROUPED)


@triton.jit(do_not_specialize=["n", "group"])
def outside_kernel(
    span, inherit, head, arc, root, chart, level, report, rest, weights, counter, outer, d_root, n, pitch, group,
    GROUPED: tl.constexpr, LEXICAL: tl.constexpr, HEAD: tl.constexpr,
    BT: tl.constexpr, BI: tl.constexpr, V: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The outside pass of one sentence, in the mode that its inside pass ended in; d_root on the way."""
    b = (tl.program_id(0) // group).to(tl.int64)
    member = tl.program_id(0) % group
    batch = tl.num_programs(0) // group
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
            pitch, group, GROUPED, FAST, LEXICAL, HEAD, BT, BI, V, UNROLL,
        )  # fmt: skip
    else:
        unfill(
            span, inherit, head, arc, root, chart, level, outer, d_root, weight, over, counter, member, length, n,
            pitch, group, GROUPED, CAREFUL, LEXICAL, HEAD, BT, BI, V, 1,
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
        lends = tl.where(fast, score(inherit + cell, real & (whole == 0), FAST), 0.0)
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
        lacks_p = (
            ok[:, None] & (p[None, :] < length) & ((p[None, :] < i[:, None]) | (p[None, :] >= j[:, None]))
        )
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
                counts = (start < stop) & (stop <= length) & (tl.load(wild + one_row) != 0)
                end = tl.where(counts, length, 0)  # no word is before this in rows that do not count
                one = tl.load(
                    outer + one_row * pitch + h, (h < end) & (h >= start) & (h < stop), other=NOTHING
                )
                far = (p < end) & ((p < start) | (p >= stop))
                two = tl.load(outer + one_row * pitch + p, far, other=NOTHING)
                careful += tl.exp2(one[None, :] + two[:, None] + score_of)
    weight = tl.load(weights + b)
    result = (plain * tl.exp2(score_of) + careful) * weight
    tl.store(d_arc + ((part * batch + b) * n + p[:, None]) * n + h[None, :], result, cell)
