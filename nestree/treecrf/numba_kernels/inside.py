"""The chart of scaled sums, and the inside pass that fills it.

cells[i, j, x] is the headed item of the span (i, j) for a word x inside it, times exp(inherit) as a larger span needs
it, and the hooked item for a word x outside. A row is the cells of one span for all x. The value of an item is
cells[i, j, x] * 2 ** exponents[i, j].

A cell is exactly 0, if no tree contains the item, or so large that no product of COMPLETE and ATTACH can underflow
(`limits`). If the scores of a sentence are too far apart for that, the pass sets `fits` to False.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from nestree.treecrf.numba_kernels.simd import (
    LN2,
    SIMD_SLACK,
    ZERO_EXPONENT,
    compiled,
    compiled_inline,
    dot,
    exponentials,
    kernel,
    max_of_sums,
    multiply,
    row_max,
    scale,
    small_flags,
    sum_rows,
    write_powers_of_two,
)
from nestree.treecrf.potentials import IMPOSSIBLE, MAX_SCORE, NO_TREE

PAD = 16  # numbers at either end of a buffer that a register may touch
TILE = 8  # spans are visited in tiles of TILE starts by TILE ends, which share halves
MAX_SCALED_SCORE = 1e4  # keeps exponents far from overflow and from ZERO_EXPONENT


class Sentence(NamedTuple):
    """One sentence of n words: exponentials of its scores, and its chart."""

    n: Any
    pitch: Any  # the distance between rows
    span: Any  # [n + 1, n + 1] logs
    head: Any  # [n + 1, n + 1, n] logs, or empty
    cells: Any  # [(n + 1) * (n + 1) * pitch]
    exponents: Any  # [(n + 1) * (n + 1)], symmetric; ZERO_EXPONENT: the span is in no tree
    minus_base: (
        Any  # [(n + 1) * (n + 1)], symmetric: minus the exponent that the sum of COMPLETE has, without own scores
    )
    own: Any  # [n + 1, n + 1 + SIMD_SLACK] exp(span) without its power of two
    has_zero: Any  # [n + 1, n + 1] whether any cell of the row is 0
    lend: Any  # [n + 1, n + 1 + SIMD_SLACK] exp(inherit)
    by_modifier: Any  # [PAD + n * n + PAD] (m, h) exp(arc - offset[m])
    by_head: Any  # [n * n + PAD] (h, m)
    root: Any  # [n + SIMD_SLACK] exp(root - offset)
    offset: Any  # [n + SIMD_SLACK] the highest score of a word as modifier or root: in every tree it is one of them


class Chart(NamedTuple):
    """The charts of all sentences of a batch that are summed in one precision."""

    sentences: Any  # [m] indices into the batch
    lengths: Any  # [m]
    slots: Any  # the arrays of a Sentence, [slots, ...] each; in a chart of logarithms, all but the cells are empty
    log_z: Any  # [m]
    fits: Any  # [m] False: the scores are too far apart


class Scratch(NamedTuple):
    """Rows of n + 3 * PAD numbers for one thread."""

    row: Any
    other: Any
    own: Any
    weights: Any
    bits: Any  # the weights, viewed as integers


@kernel
def copy_valid_scores(given, copies):
    """Copy the first of the given flat arrays. Returns whether all numbers of all of them are scores."""
    wrong = 0
    for k in range(len(given)):
        numbers = given[k]
        for x in range(numbers.size):
            wrong += not (abs(numbers[x]) <= MAX_SCORE or numbers[x] < NO_TREE)
        if k < len(copies):
            for x in range(numbers.size):
                copies[k][x] = numbers[x]
    return wrong == 0


@compiled_inline
def limits(cells):
    """(t, s, f, p): cells lie between 2 ** -s and 2 ** t, other factors are at least 2 ** -f, p bits are precise.

    Then a product of two cells and a factor does not underflow, and the sum of n of them does not overflow.
    """
    return (56, 32, 62, 26) if cells.itemsize == 4 else (500, 256, 510, 56)


@compiled
def sentence_view(chart, scores, r, slot):
    n, b, of = chart.lengths[r], chart.sentences[r], chart.slots
    return Sentence(
        n, n + SIMD_SLACK, scores.span[b], scores.head[b if scores.head.size else 0], of.cells[slot],
        of.exponents[slot], of.minus_base[slot], of.own[slot], of.has_zero[slot], of.lend[slot], of.by_modifier[slot],
        of.by_head[slot], of.root[slot], of.offset[slot],
    )  # fmt: skip


@compiled_inline
def power_of_two(power, scratch):
    """2 ** power, which may underflow to 0 but must not overflow."""
    if scratch.bits.itemsize == 4:
        scratch.bits[0] = max(power + 127, 0) << 23
    else:
        scratch.bits[0] = max(power + 1023, 0) << 52
    return np.float64(scratch.weights[0])


@compiled_inline
def exponent_above(number, scratch):
    """The p for which 2 ** (p - 1) <= number < 2 ** p."""
    scratch.weights[0] = number
    return (scratch.bits[0] >> 23) - 126 if scratch.bits.itemsize == 4 else (scratch.bits[0] >> 52) - 1022


@compiled_inline
def scaling_power(high, t, scratch):
    """The p for which 2 ** (t - p) scales `high` to 2 ** t, or to less if no number of this type is that large."""
    return max(exponent_above(high, scratch), t - (127 if scratch.bits.itemsize == 4 else 1023))


@compiled_inline
def log_score(score):
    """The score in float64; -inf if the part is impossible."""
    return np.float64(score) if score > NO_TREE else -math.inf


@compiled
def exponentiate_scores(s, arc, root, inherit):
    """Write exp(score) of all parts of a sentence. False if the scores are too far apart.

    The power of two in a span's own score is kept in `exponents` until the span is filled.
    """
    n, posts = s.n, s.n + 1
    most = limits(s.cells)[2] * LN2
    for m in range(n):
        s.offset[m] = log_score(root[m])
    for h in range(n):
        for m in range(n):
            if h != m and arc[h, m] > max(s.offset[m], NO_TREE):
                s.offset[m] = arc[h, m]
    for m in range(n):
        s.offset[m] = s.offset[m] if s.offset[m] > NO_TREE else 0.0
    out_of_range = exponentials(root, 0, n, s.offset, 0, -most, 0.0, s.root, 0, None, 0)
    for h in range(n):
        for m, words in ((0, h), (h + 1, n - h - 1)):
            at = h * arc.shape[1] + m
            out_of_range |= exponentials(arc, at, words, s.offset, m, -most, 0.0, s.by_head, h * n + m, None, 0)
        s.by_head[h * n + h] = 0
        for m in range(n):
            s.by_modifier[PAD + m * n + h] = s.by_head[h * n + m]
    for i in range(n):
        width, at, here = n - i, i * inherit.shape[1] + i + 1, i * posts + i + 1
        to = i * s.own.shape[1] + i + 1
        out_of_range |= exponentials(inherit, at, width - (i == 0), None, 0, -most, most, s.lend, to, None, 0)
        out_of_range |= exponentials(
            s.span, at, width, None, 0, -MAX_SCALED_SCORE, MAX_SCALED_SCORE, s.own, to, s.exponents, here
        )
    s.lend[0, n] = 1.0
    return out_of_range == 0


@compiled_inline
def complete(s, i, j, scratch, row):
    """COMPLETE without the span's own score. Returns the exponent of the row, and whether the row fits.

    row[x - i] = sum over k in i < k < j of cells(i, k, x) cells(k, j, x), for x in (i, j)
    """
    if j - i == 1:
        row[0] = 1
        return 0, True
    posts, count = s.n + 1, j - i - 1
    left, right = i * posts + i + 1, j * posts + i + 1
    top = max_of_sums(s.exponents, left, s.exponents, right, count)
    if top <= ZERO_EXPONENT // 2:
        row[: j - i] = 0
        return ZERO_EXPONENT, True
    t, _, f, p = limits(s.cells)
    dropped = write_powers_of_two(scratch.bits, -top, s.exponents, left, s.exponents, right, count, -f)
    left, right, down = left * s.pitch + i, ((i + 1) * posts + j) * s.pitch + i, posts * s.pitch
    sum_rows(j - i, row, 0, count, scratch.weights, 0, s.cells, left, s.pitch, s.cells, right, down)
    if dropped <= ZERO_EXPONENT // 2:
        return top, True
    least = s.n * math.ldexp(1.0, dropped + 2 * t + p)  # larger sums keep their precise bits without these terms
    return top, small_flags(row, 0, j - i, least) == 0


@compiled
def own_scores(score, head, i, j, own):
    """own[x - i] = exp(score + head(i, j, x)) for x in (i, j). Returns the least of these scores that is possible."""
    last, here, number, least = 0.0, score, math.exp(score), math.inf
    for x in range(i, j):
        if head[i, j, x] != last:
            last = head[i, j, x]
            here = score + log_score(last)
            number = math.exp(here)
        if here > -math.inf:
            least = min(least, here)
        own[x - i] = number
    return least


@compiled_inline
def fill_span(s, i, j, t, least, scratch):
    """Fill the row of (i, j); headed items without inherit are at most 2 ** t. False if the row does not fit."""
    n, width, row, at = s.n, j - i, scratch.row, (i * (s.n + 1) + j) * s.pitch
    here, mirror = i * (n + 1) + j, j * (n + 1) + i
    _, _, f, _ = limits(s.cells)
    exponent, own_exponent, high, fits = 0, np.int64(s.exponents[here]), 0.0, True
    if s.head.size:
        best, score = -math.inf, log_score(s.span[i, j])
        for x in range(i, j):
            best = max(best, score + log_score(s.head[i, j, x]))
        fits = abs(best) < MAX_SCALED_SCORE or best == -math.inf
        own_exponent = math.floor(best * (1.0 / LN2)) if abs(best) < MAX_SCALED_SCORE else ZERO_EXPONENT
    if own_exponent > ZERO_EXPONENT:
        exponent, halves_fit = complete(s, i, j, scratch, row)
        fits &= halves_fit
        high = np.float64(row_max(row, 0, width))
    if s.head.size and high > 0.0:
        power = scaling_power(high, t, scratch)
        factor = power_of_two(t - power, scratch)
        fits &= small_flags(row, 0, width, least / factor) & 1 == 0
        scale(row, 0, width, factor, row, 0)
        exponent += power - t
        fits &= own_scores(s.span[i, j] - own_exponent * LN2, s.head, i, j, scratch.own) >= -f * LN2
        multiply(row, 0, width, scratch.own)
        s.own[i, j], high = 1.0, np.float64(row_max(row, 0, width))
    if high == 0.0:
        s.cells[at : at + n] = 0
        s.has_zero[i, j] = True
        s.exponents[here] = s.exponents[mirror] = s.minus_base[here] = s.minus_base[mirror] = ZERO_EXPONENT
        return fits
    power = scaling_power(high, t, scratch)
    factor = s.own[i, j] * power_of_two(t - power, scratch)
    fits &= small_flags(row, 0, width, least / factor) & 1 == 0
    scale(row, 0, width, factor, row, 0)
    exponent += power - t

    # ATTACH: cells(i, j, p) = sum over h in (i, j) of headed(i, j, h) arc(p, h), for p outside (i, j).
    # The registers for p < i end where the span begins, so that they do not overwrite it.
    lend = s.lend[i, j]
    scale(row, 0, width, lend, s.cells, at + i)
    before = -i % (16 // s.cells.itemsize)
    sum_rows(i + before, s.cells, at - before, width, row, 0, s.by_modifier, PAD + i * n - before, n, None, 0, 0)
    sum_rows(n - j, s.cells, at + j, width, row, 0, s.by_modifier, PAD + i * n + j, n, None, 0, 0)
    flags = small_flags(s.cells, at, n, least)
    if lend > 16.0:  # scale down, so that nothing overflows later
        fits &= flags & 1 == 0
        power = math.ceil(math.log2(lend))
        scale(s.cells, at, n, math.ldexp(1.0, -power), s.cells, at)
        for x in range(width):
            s.cells[at + i + x] = row[x] * math.ldexp(lend, -power)
        exponent += power
        flags = small_flags(s.cells, at, n, least)
    s.has_zero[i, j] = flags & 2
    s.exponents[here] = s.exponents[mirror] = exponent + own_exponent
    s.minus_base[here] = s.minus_base[mirror] = -exponent
    return fits and flags & 1 == 0


@compiled
def goal(s):
    """GOAL: the sum over h of headed(0, n, h) root(h), over 2 ** exponents[0, n]."""
    at, total = s.n * s.pitch, 0.0
    for h in range(s.n):
        total += np.float64(s.cells[at + h]) * s.root[h]
    return total


# Sums in natural logarithms: slow, and right for scores of any size. Cells [i, j, x] are those of reference.py: headed,
# without inherit, for a word x in the span, hooked for one outside.


@compiled_inline
def logaddexp(a, b):
    """log(exp(a) + exp(b))"""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


@compiled_inline
def own_log_score(scores, b, i, j, x):
    return log_score(scores.span[b, i, j]) + (log_score(scores.head[b, i, j, x]) if scores.head.size else 0.0)


@compiled_inline
def child_item(cells, scores, b, n, i, j, x):
    """The item as a half of a larger span with head x: `inherit` is added if it is headed."""
    return cells[(i * (n + 1) + j) * n + x] + (log_score(scores.inherit[b, i, j]) if i <= x < j else 0.0)


@compiled
def log_inside(cells, scores, b, n):
    """Fill the cells of one sentence and return log Z."""
    for width in range(1, n + 1):
        for i in range(n - width + 1):
            j, at = i + width, (i * (n + 1) + i + width) * n
            # COMPLETE: headed(i, j, h) = own(i, j, h) + logsumexp over k of child(i, k, h) + child(k, j, h)
            for h in range(i, j):
                total = 0.0 if width == 1 else -math.inf
                for k in range(i + 1, j):
                    total = logaddexp(
                        total, child_item(cells, scores, b, n, i, k, h) + child_item(cells, scores, b, n, k, j, h)
                    )
                cells[at + h] = own_log_score(scores, b, i, j, h) + total
            # ATTACH: hooked(i, j, p) = logsumexp over h in (i, j) of headed(i, j, h) + arc(p, h)
            for p in range(n):
                if not i <= p < j:
                    total = -math.inf
                    for h in range(i, j):
                        total = logaddexp(total, cells[at + h] + log_score(scores.arc[b, p, h]))
                    cells[at + p] = total
    # GOAL: log Z = logsumexp over h of headed(0, n, h) + root(h)
    log_z = -math.inf
    for h in range(n):
        log_z = logaddexp(log_z, cells[n * n + h] + log_score(scores.root[b, h]))
    return log_z


# Steps and kernels


def steps_per_pass(n):
    """The steps of one pass over a sentence: the first, one for each diagonal of tiles, the last."""
    return n // TILE + 3


@compiled
def inside_steps(r, slot, first, last, share, shares, chart, scores, scratch):
    """The steps from `first` to `last` of one sentence: exponentials, tile diagonals, GOAL. One share of each."""
    n, b = chart.lengths[r], chart.sentences[r]
    if chart.slots.exponents.size == 0:
        if first == 0 and share == 0:
            chart.log_z[r] = max(log_inside(chart.slots.cells[slot], scores, b, n), IMPOSSIBLE)
        return
    s = sentence_view(chart, scores, r, slot)
    # the sum of n numbers up to 2 ** t, and one of them times `lend`, stay within the limits
    t = limits(s.cells)[0] - np.int64(math.ceil(math.log2(n))) - 4
    least, tiles = math.ldexp(1.0, -limits(s.cells)[1]), n // TILE + 1
    for step in range(first, min(last, tiles + 2)):
        if step == 0:
            if share == 0:
                chart.fits[r] = exponentiate_scores(s, scores.arc[b], scores.root[b], scores.inherit[b])
        elif step <= tiles:
            for low in range(share, tiles - step + 1, shares):
                high = low + step - 1
                for i in range(min(n, low * TILE + TILE) - 1, low * TILE - 1, -1):
                    for j in range(max(i + 1, high * TILE), min(n + 1, high * TILE + TILE)):
                        if chart.fits[r] and not fill_span(s, i, j, t, least, scratch):
                            chart.fits[r] = False
        elif chart.fits[r] and share == 0:
            total = goal(s)
            chart.log_z[r] = IMPOSSIBLE
            if total > 0.0:
                chart.log_z[r] = math.log(total) + s.exponents[n] * LN2 + s.offset[:n].sum()


@kernel
def log_chart_kernel(chart, scores, scratch, logs):
    """The natural logarithms of all items, headed ones without inherit."""
    for r in range(chart.lengths.size):
        n, b = chart.lengths[r], chart.sentences[r]
        if not chart.fits[r]:
            continue
        if chart.slots.exponents.size == 0:
            for i in range(n):
                for j in range(i + 1, n + 1):
                    at = (i * (n + 1) + j) * n
                    for x in range(n):
                        logs[b, i, j, x] = max(chart.slots.cells[r, at + x], IMPOSSIBLE)
            continue
        s = sentence_view(chart, scores, r, r)
        for i in range(n):
            offset = 0.0
            for j in range(i + 1, n + 1):
                at, exponent, lend = (i * (n + 1) + j) * s.pitch, s.exponents[i * (n + 1) + j], s.lend[i, j]
                offset += s.offset[j - 1]
                for x in range(n):
                    if s.cells[at + x] > 0:
                        value = math.log(s.cells[at + x]) + exponent * LN2 + offset
                        logs[b, i, j, x] = value - math.log(lend) - s.offset[x] if i <= x < j else value
                if lend == 0.0 and exponent > ZERO_EXPONENT:
                    exponent, _ = complete(s, i, j, scratch, scratch.other)
                    for x in range(i, j):
                        if scratch.other[x - i] > 0:
                            value = math.log(scratch.other[x - i]) + exponent * LN2 + offset - s.offset[x]
                            logs[b, i, j, x] = max(value + own_log_score(scores, b, i, j, x), IMPOSSIBLE)


# Sums over plain trees, with a power of two for each cell, so that nothing underflows. Exponents are floating-point
# numbers, -inf for a span that is in no tree: scores may be of any size.


class PlainChart(NamedTuple):
    """[batch, n + 1, n + 1] each, and all but `own` symmetric: both halves of a span are then in one row."""

    lengths: Any  # [batch]
    cells: Any  # from 1/2 to 1, or 0
    exponents: Any
    minus_base: Any  # minus the exponent that the sum of COMPLETE has, without own scores; -inf: in no tree
    own: Any  # exp(span) without its power of two


@compiled_inline
def weighted_sum(a, b, offset, one, other, scratch):
    """The sum over t of a[t] * b[t] * 2 ** (offset + one[t] + other[t])"""
    for t in range(a.size):
        scratch.bits[t] = np.int64(max(offset + one[t] + other[t], -1023.0) + 1023.0) << 52
        scratch.row[t] = a[t] * b[t]
    return dot(scratch.weights, 0, scratch.row, 0, a.size)


@compiled
def plain_inside(b, chart, span, log_z, scratch):
    n, cells, exponents, minus_base = chart.lengths[b], chart.cells[b], chart.exponents[b], chart.minus_base[b]
    for width in range(1, n + 1):
        for i in range(n - width + 1):
            j = i + width
            total, top = 1.0, 0.0
            if width > 1:  # COMPLETE: total = sum over k in i < k < j of cells(i, k) cells(k, j)
                left, right = exponents[i, i + 1 : j], exponents[j, i + 1 : j]
                total, top = 0.0, -math.inf
                for k in range(left.size):
                    top = max(top, left[k] + right[k])
                if top > -math.inf:
                    one, other = cells[i, i + 1 : j], cells[j, i + 1 : j]
                    total = weighted_sum(one, other, -top, left, right, scratch)
            score = log_score(span[b, i, j])
            if total > 0.0 and score > -math.inf:
                own_exponent = math.floor(score / LN2)
                chart.own[b, i, j] = math.exp(score - own_exponent * LN2)
                cells[i, j], power = math.frexp(total * chart.own[b, i, j])
                exponents[i, j], minus_base[i, j] = top + power + own_exponent, -top - power
            else:
                chart.own[b, i, j], cells[i, j] = 0.0, 0.0
                exponents[i, j], minus_base[i, j] = -math.inf, -math.inf
            cells[j, i], exponents[j, i], minus_base[j, i] = cells[i, j], exponents[i, j], minus_base[i, j]
    log_z[b] = math.log(cells[0, n]) + exponents[0, n] * LN2 if cells[0, n] > 0.0 else IMPOSSIBLE
