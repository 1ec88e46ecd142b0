"""The chart of sums, and the inside pass that fills it.

cells[i, j, x] is the headed item of the span (i, j) for a word x inside it, times exp(inherit) as a larger span
needs it, and the hooked item for a word x outside. A row is a span's cells for all x. An item is worth
cells[i, j, x] * 2 ** exponents[i, j].

A cell is exactly 0, where no tree contains the item, or of a size such that nothing can vanish in what COMPLETE
and ATTACH multiply (`limits`). When the scores of a sentence are too far apart for that, the pass says so.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from nestree.treecrf.numba_kernels.jit import called, inlined, kernel
from nestree.treecrf.numba_kernels.logspace import log_inside, minus_inf_if_impossible, own_score
from nestree.treecrf.numba_kernels.simd import (
    LN2,
    SIMD_SLACK,
    ZERO_EXPONENT,
    exponentials,
    highest,
    largest,
    multiply,
    next_item,
    scale,
    sweep,
    too_small,
    write_powers,
)
from nestree.treecrf.potentials import IMPOSSIBLE, NO_TREE

PAD = 16  # numbers at either end of a buffer that a vector may touch
TILE = 8  # spans are visited in tiles of TILE starts and TILE ends: those share halves
MAX_SCALED_SCORE = 1e4  # exponents are then far from overflow, and from ZERO_EXPONENT


class Sentence(NamedTuple):
    """One sentence of n words: its scores, as numbers, and its chart."""

    n: Any
    pitch: Any  # from one row to the next
    cells: Any  # [(n + 1) * (n + 1) * pitch]
    exponents: Any  # [(n + 1) * (n + 1)], symmetric; ZERO_EXPONENT: the span is in no tree
    under: Any  # [(n + 1) * (n + 1)], symmetric: minus the exponent, but without the span's own score
    own: Any  # [n + 1, n + 1 + SIMD_SLACK] exp(span) without its power of two
    has_zero: Any  # [n + 1, n + 1] is any cell 0?
    span: Any  # [n + 1, n + 1] logs
    head: Any  # [n + 1, n + 1, n] logs, or nothing
    lend: Any  # [n + 1, n + 1 + SIMD_SLACK] exp(inherit)
    by_modifier: Any  # [PAD + n * n + PAD] (m, h) exp(arc - offset[m])
    by_head: Any  # [n * n + PAD] (h, m)
    root: Any  # [n + SIMD_SLACK] exp(root - offset)
    offset: Any  # [n + SIMD_SLACK] the best score of a word as a modifier or root; in every tree it is one of them


class Chart(NamedTuple):
    """The same for the sentences of a batch that are done in one precision, in as many places as are needed."""

    sentences: Any  # [m] which
    lengths: Any  # [m]
    cells: Any  # [places, ...]
    exponents: Any  # [places, (n + 1) * (n + 1)] ...; nothing: the chart is one of logs
    under: Any
    own: Any
    has_zero: Any
    lend: Any
    by_modifier: Any
    by_head: Any
    root: Any
    offset: Any
    log_z: Any  # [m]
    fits: Any  # [m] False: the scores are too far apart


class Scratch(NamedTuple):
    """Rows that a thread works with."""

    row: Any  # of n + 3 * PAD numbers, as the others
    other: Any
    own: Any
    weights: Any
    bits: Any  # the weights as whole numbers


@inlined
def limits(cells):
    """(t, s, f, p): cells are from 2 ** -s to 2 ** t, other factors at least 2 ** -f, and p bits are precise.

    Then a product of two cells and a factor is not too small for the type, and n of them are not too large.
    """
    return (56, 32, 62, 26) if cells.itemsize == 4 else (500, 256, 510, 56)


@called
def sentence_of(chart, scores, r, place):
    n, b = chart.lengths[r], chart.sentences[r]
    return Sentence(
        n,
        n + SIMD_SLACK,
        chart.cells[place],
        chart.exponents[place],
        chart.under[place],
        chart.own[place],
        chart.has_zero[place],
        scores.span[b],
        scores.head[b if scores.head.size else 0],
        chart.lend[place],
        chart.by_modifier[place],
        chart.by_head[place],
        chart.root[place],
        chart.offset[place],
    )


@inlined
def power_of_two(power, scratch):
    """2 ** power, which may be too small, but not too large for the type."""
    if scratch.bits.itemsize == 4:
        scratch.bits[0] = max(power + 127, 0) << 23
    else:
        scratch.bits[0] = max(power + 1023, 0) << 52
    return np.float64(scratch.weights[0])


@inlined
def exponent_above(number, scratch):
    """The p for which 2 ** (p - 1) <= number < 2 ** p."""
    scratch.weights[0] = number
    return (scratch.bits[0] >> 23) - 126 if scratch.bits.itemsize == 4 else (scratch.bits[0] >> 52) - 1022


@called
def exponentiate_scores(s, arc, root, inherit):
    """Turn the scores of a sentence into numbers. False if they are too far apart.

    The power of two in a span's own score waits for the span in `exponents`.
    """
    n, posts = s.n, s.n + 1
    most = limits(s.cells)[2] * LN2
    for m in range(n):
        s.offset[m] = minus_inf_if_impossible(root[m])
    for h in range(n):
        for m in range(n):
            if h != m and arc[h, m] > max(s.offset[m], NO_TREE):
                s.offset[m] = arc[h, m]
    for m in range(n):
        s.offset[m] = s.offset[m] if s.offset[m] > NO_TREE else 0.0
    off = exponentials(root, 0, n, s.offset, 0, -most, 0.0, s.root, 0, None, 0)
    for h in range(n):
        for m, words in ((0, h), (h + 1, n - h - 1)):
            at = h * arc.shape[1] + m
            off |= exponentials(arc, at, words, s.offset, m, -most, 0.0, s.by_head, h * n + m, None, 0)
        s.by_head[h * n + h] = 0
        for m in range(n):
            s.by_modifier[PAD + m * n + h] = s.by_head[h * n + m]
    for i in range(n):
        width, at, here = n - i, i * inherit.shape[1] + i + 1, i * posts + i + 1
        to = i * s.own.shape[1] + i + 1
        off |= exponentials(inherit, at, width - (i == 0), None, 0, -most, most, s.lend, to, None, 0)
        off |= exponentials(
            s.span, at, width, None, 0, -MAX_SCALED_SCORE, MAX_SCALED_SCORE, s.own, to, s.exponents, here
        )
    s.lend[0, n] = 1.0
    return off == 0


@inlined
def complete(s, i, j, scratch, row):
    """COMPLETE but for the span's own score: row[x - i] for x in (i, j). Returns its exponent, and if it fits."""
    if j - i == 1:
        row[0] = 1
        return 0, True
    posts, count = s.n + 1, j - i - 1
    left, right = i * posts + i + 1, j * posts + i + 1
    top = highest(s.exponents, left, s.exponents, right, count)
    if top <= ZERO_EXPONENT // 2:
        row[: j - i] = 0
        return ZERO_EXPONENT, True
    t, _, f, p = limits(s.cells)
    dropped = write_powers(scratch.bits, -top, s.exponents, left, s.exponents, right, count, -f)
    left, right, down = left * s.pitch + i, ((i + 1) * posts + j) * s.pitch + i, posts * s.pitch
    sweep(j - i, row, 0, count, scratch.weights, 0, s.cells, left, s.pitch, s.cells, right, down)
    if dropped <= ZERO_EXPONENT // 2:
        return top, True
    least = s.n * math.ldexp(1.0, dropped + 2 * t + p)  # what was dropped is no precise part of this or more
    return top, too_small(row, 0, j - i, least) == 0


@called
def own_scores(score, head, i, j, own):
    """own[x - i] = exp(score + head(i, j, x)) for x in (i, j). Returns the least score that is possible."""
    last, here, number, least = 0.0, score, math.exp(score), math.inf
    for x in range(i, j):
        if head[i, j, x] != last:
            last = head[i, j, x]
            here = score + minus_inf_if_impossible(last)
            number = math.exp(here)
        if here > -math.inf:
            least = min(least, here)
        own[x - i] = number
    return least


@inlined
def fill_span(s, i, j, t, least, scratch):
    """The row of (i, j), its headed items up to 2 ** t before they lend. False if it does not fit."""
    n, width, row, at = s.n, j - i, scratch.row, (i * (s.n + 1) + j) * s.pitch
    here, mirror = i * (n + 1) + j, j * (n + 1) + i
    _, _, f, _ = limits(s.cells)
    exponent, own_exponent, high, fits = 0, np.int64(s.exponents[here]), 0.0, True
    if s.head.size:
        best, score = -math.inf, minus_inf_if_impossible(s.span[i, j])
        for x in range(i, j):
            best = max(best, score + minus_inf_if_impossible(s.head[i, j, x]))
        fits = abs(best) < MAX_SCALED_SCORE or best == -math.inf
        own_exponent = math.floor(best * (1.0 / LN2)) if abs(best) < MAX_SCALED_SCORE else ZERO_EXPONENT
    if own_exponent > ZERO_EXPONENT:
        exponent, halves_fit = complete(s, i, j, scratch, row)
        fits &= halves_fit
        high = np.float64(largest(row, 0, width))
    if s.head.size and high > 0.0:
        power = exponent_above(high, scratch)
        factor = power_of_two(t - power, scratch)
        fits &= too_small(row, 0, width, least / factor) & 1 == 0
        scale(row, 0, width, factor, row, 0)
        exponent += power - t
        fits &= own_scores(s.span[i, j] - own_exponent * LN2, s.head, i, j, scratch.own) >= -f * LN2
        multiply(row, 0, width, scratch.own)
        s.own[i, j], high = 1.0, np.float64(largest(row, 0, width))
    if high == 0.0:
        s.cells[at : at + n] = 0
        s.has_zero[i, j] = True
        s.exponents[here] = s.exponents[mirror] = s.under[here] = s.under[mirror] = ZERO_EXPONENT
        return fits
    power = exponent_above(high, scratch)
    factor = s.own[i, j] * power_of_two(t - power, scratch)
    fits &= too_small(row, 0, width, least / factor) & 1 == 0
    scale(row, 0, width, factor, row, 0)
    exponent += power - t

    # ATTACH; registers end where the span begins, so as to keep what stands there
    lend = s.lend[i, j]
    scale(row, 0, width, lend, s.cells, at + i)
    before = -i % (16 // s.cells.itemsize)
    sweep(i + before, s.cells, at - before, width, row, 0, s.by_modifier, PAD + i * n - before, n, None, 0, 0)
    sweep(n - j, s.cells, at + j, width, row, 0, s.by_modifier, PAD + i * n + j, n, None, 0, 0)
    found = too_small(s.cells, at, n, least)
    if lend > 16.0:  # make room above
        fits &= found & 1 == 0
        power = math.ceil(math.log2(lend))
        scale(s.cells, at, n, math.ldexp(1.0, -power), s.cells, at)
        for x in range(width):
            s.cells[at + i + x] = row[x] * math.ldexp(lend, -power)
        exponent += power
        found = too_small(s.cells, at, n, least)
    s.has_zero[i, j] = found & 2
    s.exponents[here] = s.exponents[mirror] = exponent + own_exponent
    s.under[here] = s.under[mirror] = -exponent
    return fits and found & 1 == 0


@called
def goal(s):
    """GOAL, over 2 ** the exponent of the whole sentence."""
    at, total = s.n * s.pitch, 0.0
    for h in range(s.n):
        total += np.float64(s.cells[at + h]) * s.root[h]
    return total


def steps_of(n):
    """Of one pass over a sentence: the first and the last, and one for each diagonal of tiles between them."""
    return n // TILE + 3


@called
def inside_steps(r, place, first, last, share, shares, chart, scores, scratch):
    """Steps of the inside pass for one sentence; of each step, one share."""
    n, b = chart.lengths[r], chart.sentences[r]
    if chart.exponents.size == 0:
        if first == 0 and share == 0:
            chart.log_z[r] = max(log_inside(chart.cells[place], scores, b, n), IMPOSSIBLE)
        return
    s = sentence_of(chart, scores, r, place)
    # n numbers up to 2 ** t, or one that is lent, are in the limits
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
def inside_part(queue, chart, scores, scratch):
    """The inside pass; every sentence has a place of its own."""
    item = next_item(queue.next)
    while item < queue.order.size:
        r = queue.order[item]
        inside_steps(r, r, queue.first, queue.last, queue.share, queue.shares, chart, scores, scratch)
        item = next_item(queue.next)


@kernel
def log_chart_part(part, chart, scores, scratch, logs):
    """The natural logs of all items of some sentences, headed ones without inherit."""
    for r in part:
        n, b = chart.lengths[r], chart.sentences[r]
        if not chart.fits[r]:
            continue
        if chart.exponents.size == 0:
            for i in range(n):
                for j in range(i + 1, n + 1):
                    at = (i * (n + 1) + j) * n
                    for x in range(n):
                        logs[b, i, j, x] = max(chart.cells[r, at + x], IMPOSSIBLE)
            continue
        s = sentence_of(chart, scores, r, r)
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
                            logs[b, i, j, x] = max(value + own_score(scores, b, i, j, x), IMPOSSIBLE)
