"""Constants, modes and device functions that the kernels share, and the sums over far splits and far parents."""

import os

import triton
import triton.language as tl

from nestree.treecrf.potentials import IMPOSSIBLE

LOG_ZERO = tl.constexpr(-1e30)  # the logarithm of zero, where -inf - -inf would be NaN
LOWEST = tl.constexpr(IMPOSSIBLE)
LOG2_E = tl.constexpr(1.4426950408889634)
MIN_TRUSTED = tl.constexpr(2.0**-100)  # below this a sum may have lost terms that matter
MIN_EXPONENT = tl.constexpr(-1e8)  # the exponent of an impossible span is below this
WIDTHS = tl.constexpr(4)  # of a block, whose far splits are summed together
STARTS = tl.constexpr(2)  # of neighbouring spans of each width, likewise
ENDS = tl.constexpr(STARTS.value + WIDTHS.value - 1)
FAR_FROM = tl.constexpr(8)  # blocks of widths beyond this have far terms
SCALED = tl.constexpr(0)
LOGSPACE = tl.constexpr(1)
VITERBI = tl.constexpr(2)
HARDWARE = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")  # the interpreter has no PTX


@triton.jit
def score(pointer, mask, MODE: tl.constexpr):
    """A potential, never below IMPOSSIBLE; in base 2 for sums."""
    value = tl.maximum(tl.load(pointer, mask, other=0.0), LOWEST)
    return value if MODE == VITERBI else value * LOG2_E


@triton.jit
def own_score(span, inherit, cell, live, lends, MODE: tl.constexpr, LEXICAL: tl.constexpr):
    """The score of a span; for SCALED sums with its `inherit`, if it lends its head to anyone."""
    own = score(span + cell, live, MODE)
    if MODE == SCALED and LEXICAL:
        own += score(inherit + cell, live & lends, MODE)
    return own


@triton.jit
def assign(lengths, batch, GROUPED: tl.constexpr, BATCH: tl.constexpr):
    """The sentence of this program, its index in the group of programs of the sentence, and the size of the group.

    Every sentence has one program. The others are assigned in proportion to the work of each sentence, which grows with
    the fourth power of its length. Integer arithmetic makes all programs agree.
    """
    program = tl.program_id(0)
    begin = program
    end = program + 1
    sentence = program
    if GROUPED:
        b = tl.arange(0, BATCH)
        words = tl.load(lengths + b, b < batch, other=0).to(tl.int64)
        work = tl.cumsum(words * words * words * words, 0)
        extra = (tl.num_programs(0) - batch) * work // tl.max(work, 0)
        ends = b + 1 + extra.to(tl.int32)  # of the programs of each sentence
        sentence = tl.sum((ends <= program).to(tl.int32), 0)
        begin = tl.max(tl.where(b < sentence, ends, 0), 0)
        end = tl.max(tl.where(b == sentence, ends, 0), 0)
    return sentence.to(tl.int64), program - begin, end - begin


@triton.jit
def grid_barrier(counter, arrivals, GROUPED: tl.constexpr):
    """Wait until all programs of the group have arrived, so that each sees what the others wrote."""
    tl.debug_barrier()
    if GROUPED:
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
        while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < arrivals:
            pass
        tl.debug_barrier()


@triton.jit
def log2(x):
    """The hardware's logarithm: within 2^-22, and one instruction."""
    return (
        tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
        if HARDWARE
        else tl.log2(x)
    )


# Far splits and far parents: terms of a block of widths that depend on no span of the block, summed together.
#
# A block is WIDTHS widths, a tile STARTS neighbouring spans of each. When the block begins, all narrower spans are done
# (inside) or all wider ones (outside). Terms that only need those read the same rows for the whole tile: each row is
# loaded once and used for several spans. A handful of near terms remains for each width. Used for SCALED sums only.
#
# The spans of a tile are (i + u, j + u + w), u < STARTS, w < WIDTHS. Tuples hold something for each start u, for each
# of the ENDS words j + v where a span of the tile can end, or for each span, at index u * WIDTHS + w; v = u + w.


@triton.jit
def share_of(many, member, group):
    """The range (first, last) of `many` things that one program of a group works on."""
    share = tl.cdiv(many, group)
    first = tl.minimum(member * share, many)
    return first, tl.minimum(first + share, many)


@triton.jit
def far_bases(bound, first, last, narrow, length, n, FT: tl.constexpr, FI: tl.constexpr):
    """Write into `bound` the largest bound of the far splits of each span of the block, for starts first:last."""
    slot = tl.arange(0, FT)[:, None]
    splits = narrow - ENDS + 1
    for e0 in range(0, (last - first) * WIDTHS, FI):
        e = e0 + tl.arange(0, FI)
        i = tl.minimum(first + e // WIDTHS, last - 1)
        j = i + narrow + 1 + e % WIDTHS
        live = (e < (last - first) * WIDTHS) & (j <= length)
        j = tl.minimum(j, length)
        k_first = i // STARTS * STARTS + ENDS
        base = tl.full([FT, FI], LOG_ZERO, tl.float32)
        for t0 in range(0, splits, FT):
            k = k_first[None, :] + tl.minimum(t0 + slot, splits - 1)
            sum_of_bounds = tl.load(bound + i[None, :] * n + k - 1) + tl.load(bound + k * n + j[None, :] - 1)
            base = tl.maximum(base, sum_of_bounds)
        tl.store(bound + i * n + j - 1, tl.max(base, 0), live)


@triton.jit
def no_sums(FT: tl.constexpr, FI: tl.constexpr, V: tl.constexpr):
    """Zeros for the sum of each span of a tile."""
    totals = ()
    for _ in tl.static_range(STARTS * WIDTHS):
        totals = totals + (tl.zeros([FT, FI, V], tl.float32),)
    return totals


@triton.jit
def cells_at(rows, row, step, x, ok, pitch, MANY: tl.constexpr):
    """The cells x of MANY rows, `step` apart: a tuple of [FT, FI, V]."""
    cells = ()
    for v in tl.static_range(MANY):
        cells = cells + (tl.load(rows + (row + v * step)[:, :, None] * pitch + x[None, :, :], ok, other=0.0),)
    return cells


@triton.jit
def values_at(values, row, step, ok, other: tl.constexpr, MANY: tl.constexpr):
    """The values of MANY rows, `step` apart: a tuple of [FT, FI]."""
    loaded = ()
    for v in tl.static_range(MANY):
        loaded = loaded + (tl.load(values + row + v * step, ok, other=other),)
    return loaded


@triton.jit
def bases_of(bound, i, j, length, n):
    """The exponent of the far sum of each span; if no split is possible, so large that all terms vanish."""
    bases = ()
    for u in tl.static_range(STARTS):
        for w in tl.static_range(WIDTHS):
            inside = j + u + w <= length
            base = tl.load(bound + (i + u) * n + j + u + w - 1, inside, other=LOG_ZERO)
            bases = bases + (tl.where(base > MIN_EXPONENT, base, -LOG_ZERO)[None, :],)
    return bases


@triton.jit
def far_splits(
    chart, exponent, bound, member, group, narrow, length, n, pitch,
    FT: tl.constexpr, FI: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """COMPLETE over the far splits, for this program's share of all cells of the block.

    The far sums are stored in the headed cells, and their exponents in `bound`: COMPLETE writes the exponent of a span
    with its first cells, and may read that of the far sum for other cells later; ATTACH writes its bound.
    """
    tiles = tl.cdiv(length - narrow, STARTS)
    per_tile = (narrow + ENDS + 2 * V - 2) // V
    splits = narrow - ENDS + 1
    slot = tl.arange(0, FT)[:, None]
    first, last = share_of(tiles * per_tile, member, group)
    # Programs that share a tile find the same bases for it, each for itself.
    starts_end = tl.minimum(tl.cdiv(last, per_tile) * STARTS, length - narrow)
    far_bases(bound, first // per_tile * STARTS, starts_end, narrow, length, n, FT, FI)
    tl.debug_barrier()
    for e0 in range(first, last, FI):
        e = e0 + tl.arange(0, FI)
        live = e < last
        e = tl.minimum(e, last - 1)
        i = e // per_tile * STARTS
        x = ((i // V + e % per_tile) * V)[:, None] + tl.arange(0, V)[None, :]
        j = i + narrow + 1
        bases = bases_of(bound, i, j, length, n)
        totals = no_sums(FT, FI, V)
        for t0 in range(0, splits, FT):
            t = t0 + slot
            ok = (t < splits) & live[None, :]
            k = i[None, :] + ENDS + tl.minimum(t, splits - 1)
            # Ends beyond the sentence: rows of another start, whose sums are not kept.
            left = i[None, :] * n + k - 1
            right = k * n + j[None, :] - 1
            lefts = cells_at(chart, left, n, x, ok[:, :, None], pitch, STARTS)
            rights = cells_at(chart, right, 1, x, ok[:, :, None], pitch, ENDS)
            of_lefts = values_at(exponent, left, n, ok, LOG_ZERO, STARTS)
            of_rights = values_at(exponent, right, 1, ok, LOG_ZERO, ENDS)
            updated = ()
            for u in tl.static_range(STARTS):
                for w in tl.static_range(WIDTHS):
                    scale = tl.exp2(of_lefts[u] + of_rights[u + w] - bases[u * WIDTHS + w])
                    updated = updated + (totals[u * WIDTHS + w] + lefts[u] * scale[:, :, None] * rights[u + w],)
            totals = updated
        for u in tl.static_range(STARTS):
            for w in tl.static_range(WIDTHS):
                end = j + u + w
                within = (live & (end <= length))[:, None] & (x >= (i + u)[:, None]) & (x < end[:, None])
                row = (i + u) * n + end - 1
                tl.store(chart + row[:, None] * pitch + x, tl.sum(totals[u * WIDTHS + w], 0), within)


@triton.jit
def far_parents(
    chart, exponent, base, outer, member, group, wide, length, n, pitch,
    FT: tl.constexpr, FI: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """COMPLETE, backwards, over the far parents, for this program's share of all cells of the block.

    The sum for each item is stored in `outer`, to which the near parents add theirs.
    """
    tiles = tl.cdiv(length - wide + WIDTHS, STARTS)
    per_tile = (length + V - 1) // V
    slot = tl.arange(0, FT)[:, None]
    first, last = share_of(tiles * per_tile, member, group)
    for e0 in range(first, last, FI):
        e = e0 + tl.arange(0, FI)
        live = e < last
        e = tl.minimum(e, last - 1)
        a = e // per_tile * STARTS
        z = a + wide - WIDTHS + 1
        x_first = e % per_tile * V
        x = x_first[:, None] + tl.arange(0, V)[None, :]
        owns = ()
        for u in tl.static_range(STARTS):
            for w in tl.static_range(WIDTHS):
                real = live & (z + w > a) & (z + u + w <= length)
                owns = owns + (tl.load(exponent + (a + u) * n + z + u + w - 1, real, other=LOG_ZERO)[None, :],)
        totals = no_sums(FT, FI, V)

        # To the left: parents (start, z + v), and their other halves (start, a + u).
        many = a - WIDTHS + 1
        most = tl.minimum(e0 + FI - 1, last - 1) // per_tile * STARTS - WIDTHS + 1
        for t0 in range(0, most, FT):
            t = t0 + slot
            start = a[None, :] - WIDTHS - t
            ok = (t < many[None, :]) & (x_first < z + ENDS - 1)[None, :] & (x_first[None, :] + V > start)
            begun = ok[:, :, None] & (x[None, :, :] >= start[:, :, None])
            other = start * n + a[None, :] - 1
            parent = start * n + z[None, :] - 1
            others = cells_at(chart, other, 1, x, ok[:, :, None], pitch, STARTS)
            parents = cells_at(outer, parent, 1, x, ok[:, :, None], pitch, ENDS)
            of_others = values_at(exponent, other, 1, ok, LOG_ZERO, STARTS)
            of_parents = values_at(base, parent, 1, ok, -LOG_ZERO, ENDS)
            updated = ()
            for u in tl.static_range(STARTS):
                half = tl.where(begun, others[u], 0.0)
                for w in tl.static_range(WIDTHS):
                    scale = tl.exp2(owns[u * WIDTHS + w] + of_others[u] - of_parents[u + w])
                    updated = updated + (totals[u * WIDTHS + w] + half * scale[:, :, None] * parents[u + w],)
            totals = updated
        ended = ()
        for u in tl.static_range(STARTS):
            for w in tl.static_range(WIDTHS):
                ended = ended + (tl.where((x < (z + u + w)[:, None])[None, :, :], totals[u * WIDTHS + w], 0.0),)
        totals = ended

        # To the right: parents (a + u, end), and their other halves (z + v, end).
        many = length - wide - a - STARTS + 1
        most = length - wide - e0 // per_tile * STARTS - STARTS + 1
        for t0 in range(0, most, FT):
            t = t0 + slot
            end = a[None, :] + wide + STARTS + t
            ok = (t < many[None, :]) & (x_first + V > a)[None, :] & (x_first[None, :] < end)
            not_ended = ok[:, :, None] & (x[None, :, :] < end[:, :, None])
            parent = a[None, :] * n + end - 1
            other = z[None, :] * n + end - 1
            parents = cells_at(outer, parent, n, x, ok[:, :, None], pitch, STARTS)
            others = cells_at(chart, other, n, x, ok[:, :, None], pitch, ENDS)
            of_parents = values_at(base, parent, n, ok, -LOG_ZERO, STARTS)
            of_others = values_at(exponent, other, n, ok, LOG_ZERO, ENDS)
            updated = ()
            for u in tl.static_range(STARTS):
                whole = tl.where(not_ended & (x >= (a + u)[:, None])[None, :, :], parents[u], 0.0)
                for w in tl.static_range(WIDTHS):
                    scale = tl.exp2(owns[u * WIDTHS + w] + of_others[u + w] - of_parents[u])
                    updated = updated + (totals[u * WIDTHS + w] + others[u + w] * scale[:, :, None] * whole,)
            totals = updated
        for u in tl.static_range(STARTS):
            for w in tl.static_range(WIDTHS):
                word = (live & (z + w > a) & (z + u + w <= length))[:, None] & (x < length)
                row = (a + u) * n + z + u + w - 1
                tl.store(outer + row[:, None] * pitch + x, tl.sum(totals[u * WIDTHS + w], 0), word)
