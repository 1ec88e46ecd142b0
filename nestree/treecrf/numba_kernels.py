"""Sums and best trees on the CPU, compiled by numba: the explicit passes behind nestree.treecrf.ops.

Items and rules are those of reference.py, and so is the one chart: cells[i, j, x] is the headed item of the span
(i, j) for a word x inside it and the hooked item for a word x outside. A row is a span's cells for all x. Here a
headed cell has `inherit` in it already, as a larger span needs it. All O(n^4) work is sums, or maxima, over t of
products of rows: `sweep`.

Sums are of the numbers themselves, not of their logs, with a power of two for each row: an item is worth
cells[i, j, x] * 2 ** exponents[i, j]. A cell is exactly 0, where no tree contains the item, or of a size such that
nothing can vanish in what COMPLETE and ATTACH multiply (`limits`). A sentence whose scores are too far apart for
that in float32 is redone in float64, and if need be in logs. The outside pass keeps with each item what surrounds
it in all trees, over Z, so that its product with the cell is a probability. Those may vanish, but they must add up:
a tree has 2n - 1 spans, of which n - 1 lend their head, and n - 1 arcs. A sentence where they do not is redone in
logs, too.

Every cell is computed by one thread, in an order that depends on nothing but the length of the sentence: the bits
of a result depend neither on the number of threads nor on the rest of the batch.

One file, long as it is: numba keeps compiled code until the file of a kernel changes, and looks at no other.
"""

import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from torch import Tensor

from nestree.treecrf.potentials import (
    IMPOSSIBLE,
    NO_TREE,
    AnyPotentials,
    LexicalPotentials,
    PlainPotentials,
    Potentials,
)
from nestree.treecrf.trees import Trees

CHECKS_LATER = False

redone_in_logs = 0  # sentences so far whose scores were too far apart for anything but logs

LN2 = math.log(2)
NEVER = -(1 << 50)  # the exponent of a row of zeros: no tree contains the span
TILE = 8  # spans are visited in tiles of TILE starts and TILE ends, which share rows
SPARE = 3  # numbers at the end of a row that a vector may touch
PAD = 16  # numbers at the ends of a buffer that a vector may touch
LONG = 64  # words of a sentence that is worth several threads

logger = logging.getLogger(__name__)


# Compilation, at the first call. Kernels own no memory: without numba's reference counts (_nrt=False) calls cost
# little, and threads do not meet at the counters.


def compiled(function: Callable) -> Callable:
    """A kernel, kept on disk where there is a place to write."""
    try:
        return numba.njit(function, nogil=True, _nrt=False, cache=True)
    except RuntimeError as why:  # so numba says that neither the package nor the home can be written
        logger.info("compiled code is not kept between runs: %s", why)
        return numba.njit(function, nogil=True, _nrt=False)


def inlined(function: Callable) -> Callable:
    """A piece of kernels."""
    return numba.njit(function, nogil=True, _nrt=False, forceinline=True)


def reordered(function: Callable) -> Callable:
    """A piece of kernels: a loop over a row in any order. No NaN may come in."""
    flags = {"nnan", "nsz", "reassoc", "contract"}
    return numba.njit(function, nogil=True, _nrt=False, forceinline=True, fastmath=flags)


# Vectors, spelt out: LLVM would vectorise these loops over t and not over x


def vector_loop(registers: int, kind: str) -> Callable:
    """An intrinsic for all x of some 16-byte registers: out[x] = sum over t < count of w[t] * a[t, x] * b[t, x].

    Kind "onto" adds to what stands in out; "best" takes the maximum of w[t] + a[t, x] + b[t, x]. Either of w and b
    may be None. Here out[x] is out[at + x] in memory, w[t] is w[w_at + t] and a[t, x] is a[a_at + t * a_step + x].
    """

    @intrinsic
    def loop(_typing, out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step):
        def generate(context, builder, signature, arguments):
            number = context.get_data_type(signature.args[0].dtype)
            size = context.get_abi_sizeof(number)
            vector = ir.VectorType(number, 16 * registers // size)
            out, w, a, b = (
                None if kind == types.none else context.make_array(kind)(context, builder, value).data
                for kind, value in [(signature.args[k], arguments[k]) for k in (0, 3, 5, 8)]
            )
            _, at, count, _, w_at, _, a_at, a_step, _, b_at, b_step = arguments

            def row(data, start, step, t):
                index = builder.add(start, builder.mul(step, t))
                return builder.load(
                    builder.bitcast(builder.gep(data, [index]), vector.as_pointer()), align=size
                )

            def everywhere(data, start, t):
                one = builder.load(builder.gep(data, [builder.add(start, t)]))
                blank = ir.Constant(vector, ir.Undefined)
                first = builder.insert_element(blank, one, ir.Constant(ir.IntType(32), 0))
                zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
                return builder.shuffle_vector(first, blank, zeros)

            target = builder.bitcast(builder.gep(out, [at]), vector.as_pointer())
            if kind == "onto":
                start = builder.load(target, align=size)
            else:
                start = ir.Constant(vector, [-math.inf if kind == "best" else 0.0] * vector.count)
            result = cgutils.alloca_once_value(builder, start)
            with cgutils.for_range(builder, count) as each:
                term = row(a, a_at, a_step, each.index)
                others = [] if b is None else [row(b, b_at, b_step, each.index)]
                others += [] if w is None else [everywhere(w, w_at, each.index)]
                before = builder.load(result)
                if kind == "best":
                    for other in others:
                        term = builder.fadd(term, other)
                    larger = builder.fcmp_ordered(">", term, before, flags=("nnan", "nsz"))
                    builder.store(builder.select(larger, term, before), result)
                else:
                    for other in others:
                        term = builder.fmul(term, other, flags=("contract",))
                    builder.store(builder.fadd(before, term, flags=("contract",)), result)
            builder.store(builder.load(result), target, align=size)
            return context.get_dummy_value()

        return types.void(out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step), generate

    return loop


def sweeps(kind: str) -> tuple[Callable, Callable]:
    """The loop for the first words of a row, and for all."""
    four, two, one = (vector_loop(registers, kind) for registers in (4, 2, 1))

    @inlined
    def chunk(width, out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step):
        """The loop for the first of `width` words. Returns for how many: at most SPARE more than there are."""
        lanes = 16 // out.itemsize
        if width > 3 * lanes:
            four(out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step)
            return 4 * lanes
        if width > lanes:
            two(out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step)
            return 2 * lanes
        one(out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step)
        return lanes

    @inlined
    def sweep(width, out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step):
        x = 0
        while x < width:
            x += chunk(width - x, out, at + x, count, w, w_at, a, a_at + x, a_step, b, b_at + x, b_step)

    return chunk, sweep


chunk, sweep = sweeps("sum")
chunk_onto, sweep_onto = sweeps("onto")
_, sweep_best = sweeps("best")


# Rows


@reordered
def largest_power(bits):
    """The smallest p such that all numbers of a row are below 2 ** p, given their bits; NEVER if all are 0."""
    high = bits.dtype.type(0)
    for x in range(bits.size):  # numbers from 0 up are in the order of their bits
        high = bits[x] if bits[x] > high else high
    if high == 0:
        return NEVER
    return (np.int64(high) >> 23) - 126 if bits.itemsize == 4 else (np.int64(high) >> 52) - 1022


@reordered
def lowest(row):
    low = row.dtype.type(math.inf)
    for x in range(row.size):
        low = row[x] if row[x] < low else low
    return low


@reordered
def too_small(row, least):
    """Is anything between 0 and the least? Is anything 0?"""
    least, zero, found, hole = row.dtype.type(least), row.dtype.type(0), False, False
    for x in range(row.size):
        cell = row[x]
        found |= (cell < least) & (cell > zero)
        hole |= cell == zero
    return found, hole


@reordered
def rescaled(row, factor, least):
    """Scale the row. Was anything in it between 0 and the least?"""
    factor, least, zero, found = row.dtype.type(factor), row.dtype.type(least), row.dtype.type(0), False
    for x in range(row.size):
        cell = row[x]
        row[x] = cell * factor
        found |= (cell < least) & (cell > zero)
    return found


@reordered
def scale(row, factor, target):
    factor = row.dtype.type(factor)
    for x in range(row.size):
        target[x] = row[x] * factor


@reordered
def multiply(row, factors):
    for x in range(row.size):
        row[x] *= factors[x]


@reordered
def dot(a, b):
    total = a.dtype.type(0)
    for x in range(a.size):
        total += a[x] * b[x]
    return total


@reordered
def clear(row, cells):
    """Nothing surrounds what is in no tree."""
    zero = row.dtype.type(0)
    for x in range(row.size):
        cell = row[x]
        row[x] = cell if cells[x] > zero else zero


@inlined
def power_of_two(power, bits, k):
    """Write 2 ** power, or 0 if it is too small, as the bits of number k."""
    if bits.itemsize == 4:
        bits[k] = min(max(power + 127, 0), 254) << 23
    else:
        bits[k] = min(max(power + 1023, 0), 2046) << 52


@inlined
def two_to(power, scratch):
    power_of_two(power, scratch.bits, 0)
    return np.float64(scratch.weights[0])


# Sums: what is kept


@inlined
def limits(cells):
    """(t, least, f, p): cells are at most 2 ** t and at least `least`, other factors 2 ** -f; p bits are precise.

    So products of two cells and a factor neither vanish nor, added up, overflow.
    """
    return (56, 2.0**-32, 62, 26) if cells.itemsize == 4 else (500, 2.0**-256, 510, 56)


class Sentence(NamedTuple):
    """One sentence of n words: its scores, as numbers, and its chart."""

    n: Any
    pitch: Any  # from one row to the next
    cells: Any  # [(n + 1) * (n + 1) * pitch]
    exponents: Any  # [n + 1, n + 1], symmetric
    outer: Any  # [n + 1, n + 1], symmetric: the exponent without that of the span's own score
    holes: Any  # [n + 1, n + 1] is any cell 0?
    own: Any  # [n + 1, n + 1] exp(span) over its power of two
    span: Any  # [n + 1, n + 1] logs
    head: Any  # [n + 1, n + 1, n] logs, or nothing
    lend: Any  # [n + 1, n + 1] exp(inherit)
    by_modifier: Any  # [PAD + n * n + PAD] (m, h) exp(arc - taken[m])
    by_head: Any  # [n * n + PAD] (h, m)
    root: Any  # [n] exp(root - taken)
    taken: (
        Any  # [n] the best score of a word as a modifier or root: it is one or the other, once, in every tree
    )


class Chart(NamedTuple):
    """The same for the sentences of a batch that are done in one precision."""

    sentences: Any  # [m] which
    lengths: Any  # [m]
    starts: Any  # [m] where their cells begin
    cells: Any
    exponents: (
        Any  # [m, n + 1, n + 1] ...; nothing: the cells are natural logs, and of headed items without inherit
    )
    outer: Any
    holes: Any
    own: Any
    lend: Any
    by_modifier: Any
    by_head: Any
    root: Any
    taken: Any
    log_z: Any  # [m]
    fits: Any  # [m] False: the scores are too far apart


class Scratch(NamedTuple):
    """Rows that a thread works with."""

    row: Any
    row_bits: Any  # the same as integers
    other: Any
    own: Any
    weights: Any
    bits: Any  # the same as integers


@compiled
def sentence_of(chart, scores, r):
    n, b = chart.lengths[r], chart.sentences[r]
    return Sentence(
        n,
        n + SPARE,
        chart.cells[chart.starts[r] :],
        chart.exponents[r],
        chart.outer[r],
        chart.holes[r],
        chart.own[r],
        scores.span[b],
        scores.head[b if scores.head.size else 0],
        chart.lend[r],
        chart.by_modifier[r],
        chart.by_head[r],
        chart.root[r],
        chart.taken[r],
    )


@inlined
def possible(score):
    """The score in float64, and -inf for that of an impossible part."""
    return np.float64(score) if score > NO_TREE else -math.inf


@compiled
def take_scores(s, arc, root, inherit):
    """Turn the scores of a sentence into numbers. False if they are too far apart."""
    n, fits = s.n, True
    least = -limits(s.cells)[2] * LN2
    for m in range(n):
        best = possible(root[m])
        for h in range(n):
            if h != m:
                best = max(best, possible(arc[h, m]))
        s.taken[m] = best if best > -math.inf else 0.0
        for h in range(-1, n):
            score = possible(root[m] if h < 0 else arc[h, m]) - s.taken[m] if h != m else -math.inf
            fits &= score >= least or score == -math.inf
            number = math.exp(score)
            if h < 0:
                s.root[m] = number
            else:
                s.by_head[h * n + m] = s.by_modifier[PAD + m * n + h] = number
    for i in range(n):
        for j in range(i + 1, n + 1):
            score = possible(inherit[i, j]) if j - i < n else 0.0
            fits &= least <= score <= -least or score == -math.inf
            s.lend[i, j] = math.exp(score) if score != 0.0 else 1.0
    return fits


# Inside


@inlined
def complete(s, i, j, scratch, row):
    """COMPLETE but for the span's own score: row[x - i] for x in (i, j). Returns its exponent, and if it fits."""
    if j - i == 1:
        row[0] = 1
        return 0, True
    left, right = s.exponents[i, i + 1 : j], s.exponents[j, i + 1 : j]
    top = NEVER
    for k in range(left.size):
        top = max(top, left[k] + right[k])
    if top < NEVER // 2:
        row[: j - i] = 0
        return NEVER, True
    t, _, f, p = limits(s.cells)
    dropped = NEVER
    for k in range(left.size):
        power = left[k] + right[k] - top
        power_of_two(power if power >= -f else NEVER, scratch.bits, k)
        dropped = max(dropped, power if power < -f else NEVER)
    down = (s.n + 1) * s.pitch
    first, second = i * down + (i + 1) * s.pitch + i, (i + 1) * down + j * s.pitch + i
    sweep(j - i, row, 0, left.size, scratch.weights, 0, s.cells, first, s.pitch, s.cells, second, down)
    if dropped < NEVER // 2:
        return top, True
    return top, lowest(row[: j - i]) >= s.n * math.ldexp(1.0, dropped + 2 * t + p)


@compiled
def own_scores(score, head, i, j, own):
    """own[x - i] = exp(score + head(i, j, x)) for x in (i, j)."""
    last, number = 0.0, math.exp(score)
    for x in range(i, j):
        if head[i, j, x] != last:
            last = head[i, j, x]
            number = math.exp(score + possible(last))
        own[x - i] = number


@inlined
def fill_span(s, i, j, slack, scratch):
    """The row of (i, j). False if it does not fit."""
    n, width, row, bits = s.n, j - i, scratch.row[: j - i], scratch.row_bits[: j - i]
    at = (i * (n + 1) + j) * s.pitch
    cells = s.cells[at : at + n]
    t, least, f, _ = limits(s.cells)
    t -= slack
    best = score = possible(s.span[i, j])
    if s.head.size:
        best = -math.inf
        for x in range(i, j):
            best = max(best, score + possible(s.head[i, j, x]))
    exponent, power, own_exponent, fits, own = NEVER, NEVER, 0, True, 1.0
    s.own[i, j] = 0
    if best > -math.inf:
        exponent, fits = complete(s, i, j, scratch, scratch.row)
        power = largest_power(bits)
    if power > NEVER:
        fits &= abs(best) < -NO_TREE
        own_exponent = math.floor(best / LN2) if fits else 0
        own = math.exp(best - own_exponent * LN2)
    if s.head.size and power > NEVER:
        factor = two_to(t - power, scratch)
        fits &= not rescaled(row, factor, least / factor)
        exponent += power - t
        own_scores(score - own_exponent * LN2, s.head, i, j, scratch.own)
        fits &= not too_small(scratch.own[:width], math.ldexp(1.0, -f))[0]
        multiply(row, scratch.own)
        power, own = largest_power(bits), 1.0
    if power == NEVER:
        cells[:] = 0
        s.exponents[i, j] = s.exponents[j, i] = NEVER
        s.outer[i, j] = s.outer[j, i] = -NEVER
        return fits
    factor = own * two_to(t - power, scratch)
    fits &= not rescaled(row, factor, least / factor)
    exponent += power - t

    # ATTACH
    lanes = 16 // cells.itemsize
    before = -i % lanes
    sweep(i + before, s.cells, at - before, width, row, 0, s.by_modifier, PAD + i * n - before, n, None, 0, 0)
    sweep(n - j, s.cells, at + j, width, row, 0, s.by_modifier, PAD + i * n + j, n, None, 0, 0)
    lend = s.lend[i, j]
    scale(row, lend, cells[i:j])
    small, s.holes[i, j] = too_small(cells, least)
    if lend > 16.0:
        power = math.ceil(math.log2(lend))
        fits &= not small
        scale(cells, two_to(-power, scratch), cells)
        scale(row, lend * two_to(-power, scratch), cells[i:j])
        exponent += power
        small, _ = too_small(cells, least)
    s.own[i, j] = own
    s.exponents[i, j] = s.exponents[j, i] = exponent + own_exponent
    s.outer[i, j] = s.outer[j, i] = exponent
    return fits and not small


@compiled
def goal(s):
    """GOAL, over 2 ** the exponent of the whole sentence."""
    at, total = s.n * s.pitch, 0.0
    for h in range(s.n):
        total += np.float64(s.cells[at + h]) * s.root[h]
    return total


@compiled
def inside_part(part, first, last, share, shares, chart, scores, scratch):
    """Steps of the inside pass for some sentences; of each step, one share."""
    for r in part:
        n, b = chart.lengths[r], chart.sentences[r]
        if chart.exponents.size == 0:
            if first == 0 and share == 0:
                cells = chart.cells[chart.starts[r] : chart.starts[r] + (n + 1) * (n + 1) * n].reshape(
                    (n + 1, n + 1, n)
                )
                chart.log_z[r] = log_inside(cells, scores, b, n)
            continue
        s = sentence_of(chart, scores, r)
        slack = np.int64(math.ceil(math.log2(n))) + 4
        tiles = n // TILE + 1
        for step in range(first, min(last, tiles + 2)):
            if step == 0:
                if share == 0:
                    chart.fits[r] = take_scores(s, scores.arc[b], scores.root[b], scores.inherit[b])
            elif step <= tiles:
                for low in range(share, tiles - step + 1, shares):
                    high = low + step - 1
                    for i in range(min(n, low * TILE + TILE) - 1, low * TILE - 1, -1):
                        for j in range(max(i + 1, high * TILE), min(n + 1, high * TILE + TILE)):
                            if chart.fits[r] and not fill_span(s, i, j, slack, scratch):
                                chart.fits[r] = False
            elif chart.fits[r] and share == 0:
                total = goal(s)
                chart.log_z[r] = -math.inf
                if total > 0.0:
                    chart.log_z[r] = math.log(total) + s.exponents[0, n] * LN2 + s.taken[:n].sum()


# Outside


class Around(NamedTuple):
    """What the outside pass of one sentence works with."""

    above: (
        Any  # [(n + 1) * (n + 1) * pitch] around headed items, times their own scores; 0 for words close by
    )
    hooks: Any  # [(n + 1) * (n + 1) * pitch] around hooked items, and 0 for words in the span
    headed: Any  # [n * n * (n + 1)] (i, h, j) headed items, without inherit
    span: Any  # [n + 1, n + 1] marginals
    inherit: Any  # [n + 1, n + 1]
    arc: Any  # [n * pitch] (m, h)


@inlined
def gather_weights(here, others, parents, bits):
    for t in range(others.size):
        power_of_two(here + others[t] - parents[t], bits, t)


@inlined
def gather(s, i, j, at, around, scratch):
    """COMPLETE, backwards: what surrounds the row of (i, j) as one half of larger spans, in around.hooks."""
    n, pitch, posts, wide = s.n, s.pitch, s.n + 1, 64 // s.cells.itemsize
    around.hooks[at : at + (i if j < n else n)] = 0
    # the left half of (i, end)
    gather_weights(s.exponents[i, j], s.exponents[j, j + 1 : posts], s.outer[i, j + 1 : posts], scratch.bits)
    x = i if j < n else n
    while x < n:
        end = max(j, x) + 1  # above(i, end, x) is 0 for smaller ones
        x += chunk(
            n - x, around.hooks, at + x, posts - end, scratch.weights, end - j - 1,
            around.above, (i * posts + end) * pitch + x, pitch, s.cells, (j * posts + end) * pitch + x, pitch,
        )  # fmt: skip
    # the right half of (start, j)
    gather_weights(s.exponents[i, j], s.exponents[i, :i], s.outer[j, :i], scratch.bits)
    x = 0 if i > 0 else j
    while x < j:
        x += chunk_onto(
            j - x, around.hooks, at + x, min(i, x + wide), scratch.weights, 0,
            around.above, j * pitch + x, posts * pitch, s.cells, i * pitch + x, posts * pitch,
        )  # fmt: skip


@inlined
def outside_span(s, i, j, total, around, weight, head_part, scratch):
    """What surrounds the items of (i, j), and their marginals."""
    n, width, at = s.n, j - i, (i * (s.n + 1) + j) * s.pitch
    cells, hooks = s.cells[at : at + n], around.hooks[at : at + n]
    headed, above = cells[i:j], scratch.row[PAD : PAD + width]
    lend, inverse = s.lend[i, j], 1.0
    around.span[i, j] = around.inherit[i, j] = 0
    if s.exponents[i, j] == NEVER:
        hooks[:] = 0
        above[:] = 0
    elif width == n:
        hooks[:] = 0
        for x in range(n):
            above[x] = s.root[x] / total
    else:
        gather(s, i, j, at, around, scratch)
        if s.holes[i, j]:
            clear(hooks, cells)
        around.inherit[i, j] = dot(hooks[i:j], headed)
        scale(hooks[i:j], lend, above)
        hooks[i:j] = 0
        # ATTACH, backwards
        sweep_onto(width, scratch.row, PAD, i, hooks, 0, s.by_head, i, n, None, 0, 0)
        sweep_onto(width, scratch.row, PAD, n - j, hooks, j, s.by_head, j * n + i, n, None, 0, 0)
    if s.exponents[i, j] > NEVER:
        score = s.span[i, j] - (s.exponents[i, j] - s.outer[i, j]) * LN2
        if s.head.size:
            own_scores(score, s.head, i, j, scratch.own)
        if lend > 0.0:
            inverse = 1.0 / lend
        else:  # the headed items are not in the chart
            headed = scratch.other[:width]
            exponent, _ = complete(s, i, j, scratch, scratch.other)
            inverse = math.ldexp(s.own[i, j], exponent - s.outer[i, j])
            if s.head.size:
                multiply(headed, scratch.own)
        around.span[i, j] = inverse * dot(headed, above)
        if head_part.size:
            for x in range(width):
                head_part[i, j, i + x] = weight * (inverse * headed[x] * above[x])
        if s.holes[i, j]:
            clear(above, headed)
    for x in range(width):
        around.headed[(i * n + i + x) * (n + 1) + j] = headed[x] * inverse
    if s.head.size:
        multiply(above, scratch.own)
    else:
        scale(above, s.own[i, j], above)
    scratch.row[PAD + width : PAD + width + PAD] = 0
    first, last = max(0, i - PAD), min(n, j + PAD)
    scale(scratch.row[PAD - i + first : PAD - i + last], 1.0, around.above[at + first : at + last])


@compiled
def arcs_into(s, h, around):
    """ATTACH: the marginals of all arcs into h."""
    n, posts, wide, at = s.n, s.n + 1, 64 // s.cells.itemsize, h * s.pitch
    around.arc[at : at + s.pitch] = 0
    p = 0
    while p < n:
        done = 0
        for i in range(h + 1):
            last = n if i > p else min(n, p + wide - 1)  # the hooks of (i, j > last) are 0 for these p
            if last > h:
                done = chunk_onto(
                    n - p, around.arc, at + p, last - h, around.headed, (i * n + h) * posts + h + 1,
                    around.hooks, (i * posts + h + 1) * s.pitch + p, s.pitch, None, 0, 0,
                )  # fmt: skip
        p += done if done else wide
    multiply(around.arc[at : at + n], s.by_modifier[PAD + h * n : PAD + h * n + n])


@compiled
def adds_up(s, around):
    """Do the marginals add up to what each tree has of them?"""
    spans, inherits, arcs = 0.0, 0.0, 0.0
    for i in range(s.n):
        for j in range(i + 1, s.n + 1):
            spans += around.span[i, j]
            inherits += around.inherit[i, j]
        for h in range(s.n):
            arcs += around.arc[i * s.pitch + h]
    off = max(abs(spans - 2 * s.n + 1), abs(inherits - s.n + 1), abs(arcs - s.n + 1))
    return off <= s.n * (2e-5 if s.cells.itemsize == 4 else 1e-9)


@compiled
def outside_part(part, first, last, share, shares, chart, scores, scratch, weight, around, marginals):
    """Steps of the outside pass for some sentences; of each step, one share."""
    for r in part:
        n, b = chart.lengths[r], chart.sentences[r]
        head_part = marginals.head[b if marginals.head.size else 0]
        if not chart.fits[r] or chart.log_z[r] == -math.inf:
            continue
        if chart.exponents.size == 0:
            if first == 0 and share == 0:
                cells = chart.cells[chart.starts[r] : chart.starts[r] + (n + 1) * (n + 1) * n].reshape(
                    (n + 1, n + 1, n)
                )
                outer = around.above[: cells.size].reshape(cells.shape)
                log_outside(
                    cells, scores, b, n, chart.log_z[r], weight[b], marginals, head_part, outer, scratch.row
                )
            continue
        s = sentence_of(chart, scores, r)
        tiles = n // TILE + 1
        total = goal(s)
        for step in range(first, min(last, tiles + 2)):
            if step < tiles:
                for low in range(share, step + 1, shares):
                    high = low + tiles - step - 1
                    for i in range(low * TILE, min(n, low * TILE + TILE)):
                        for j in range(min(n, high * TILE + TILE - 1), max(i, high * TILE - 1), -1):
                            outside_span(s, i, j, total, around, weight[b], head_part, scratch)
            elif step == tiles:
                for h in range(share, n, shares):
                    arcs_into(s, h, around)
            elif share > 0:
                pass
            elif adds_up(s, around):
                for i in range(n):
                    marginals.root[b, i] = weight[b] * (s.cells[n * s.pitch + i] * s.root[i] / total)
                    for h in range(n):
                        marginals.arc[b, h, i] = weight[b] * around.arc[i * s.pitch + h]
                    for j in range(i + 1, n + 1):
                        marginals.span[b, i, j] = weight[b] * around.span[i, j]
                        marginals.inherit[b, i, j] = weight[b] * around.inherit[i, j]
            else:
                chart.fits[r] = False


# Sums in logs: slow, and right for any scores


@inlined
def plus(a, b):
    """log(exp(a) + exp(b))"""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


@inlined
def own(scores, b, i, j, x):
    return possible(scores.span[b, i, j]) + (possible(scores.head[b, i, j, x]) if scores.head.size else 0.0)


@inlined
def half(cells, scores, b, i, j, x):
    """The item as one half of a larger span with the head x."""
    return cells[i, j, x] + (possible(scores.inherit[b, i, j]) if i <= x < j else 0.0)


@compiled
def log_inside(cells, scores, b, n):
    """Fill the chart of one sentence with natural logs and return log Z."""
    for width in range(1, n + 1):
        for i in range(n - width + 1):
            j = i + width
            for h in range(i, j):  # COMPLETE
                total = 0.0 if width == 1 else -math.inf
                for k in range(i + 1, j):
                    total = plus(total, half(cells, scores, b, i, k, h) + half(cells, scores, b, k, j, h))
                cells[i, j, h] = own(scores, b, i, j, h) + total
            for p in range(n):  # ATTACH
                if i <= p < j:
                    continue
                total = -math.inf
                for h in range(i, j):
                    total = plus(total, cells[i, j, h] + possible(scores.arc[b, p, h]))
                cells[i, j, p] = total
    log_z = -math.inf
    for h in range(n):  # GOAL
        log_z = plus(log_z, cells[0, n, h] + possible(scores.root[b, h]))
    return log_z


@compiled
def log_outside(cells, scores, b, n, log_z, weight, marginals, head_part, outer, around):
    """Fill in weight times the marginals of one sentence."""
    marginals.span[b, :, :] = 0
    marginals.arc[b, :, :] = 0
    marginals.inherit[b, :, :] = 0
    for width in range(n, 0, -1):
        for i in range(n - width + 1):
            j = i + width
            around[:n] = -math.inf
            for end in range(j + 1, n + 1):  # COMPLETE of (i, end), in which (i, j) is the left half
                for x in range(i, end):
                    around[x] = plus(around[x], outer[i, end, x] + half(cells, scores, b, j, end, x))
            for start in range(i):  # COMPLETE of (start, j), in which (i, j) is the right half
                for x in range(start, j):
                    around[x] = plus(around[x], outer[start, j, x] + half(cells, scores, b, start, i, x))
            for x in range(i, j):
                lent = around[x] + possible(scores.inherit[b, i, j]) if width < n else -math.inf
                above = lent if width < n else possible(scores.root[b, x]) - log_z  # GOAL
                for p in range(n):  # ATTACH
                    if not i <= p < j:
                        hooked = around[p] + possible(scores.arc[b, p, x])
                        above = plus(above, hooked)
                        marginals.arc[b, p, x] += weight * math.exp(cells[i, j, x] + hooked)
                outer[i, j, x] = above + own(scores, b, i, j, x)
                probability = weight * math.exp(cells[i, j, x] + above)
                marginals.span[b, i, j] += probability
                marginals.inherit[b, i, j] += weight * math.exp(cells[i, j, x] + lent)
                if head_part.size:
                    head_part[i, j, x] = probability
                if width == n:
                    marginals.root[b, x] = probability


@compiled
def logs_part(part, chart, scores, scratch, logs):
    """The natural logs of all items of some sentences, headed ones without inherit."""
    for r in part:
        n, b = chart.lengths[r], chart.sentences[r]
        if not chart.fits[r]:
            continue
        if chart.exponents.size == 0:
            cells = chart.cells[chart.starts[r] : chart.starts[r] + (n + 1) * (n + 1) * n].reshape(
                (n + 1, n + 1, n)
            )
            for i in range(n):
                for j in range(i + 1, n + 1):
                    for x in range(n):
                        logs[b, i, j, x] = max(cells[i, j, x], IMPOSSIBLE)
            continue
        s = sentence_of(chart, scores, r)
        for i in range(n):
            taken = 0.0
            for j in range(i + 1, n + 1):
                taken += s.taken[j - 1]
                if s.exponents[i, j] == NEVER:
                    continue
                at, base = (i * (n + 1) + j) * s.pitch, taken + s.exponents[i, j] * LN2
                for x in range(n):
                    cell = np.float64(s.cells[at + x])
                    lent = s.taken[x] + math.log(s.lend[i, j]) if i <= x < j and s.lend[i, j] > 0.0 else 0.0
                    if cell > 0.0:
                        logs[b, i, j, x] = math.log(cell) + base - lent
                if s.lend[i, j] == 0.0:
                    exponent, _ = complete(s, i, j, scratch, scratch.other)
                    for x in range(i, j):
                        score = own(scores, b, i, j, x)
                        if scratch.other[x - i] > 0 and score > -math.inf:
                            cell = math.log(scratch.other[x - i]) + exponent * LN2
                            logs[b, i, j, x] = cell + score + taken - s.taken[x]


# Plain trees: a power of two for each cell, so that nothing of weight can vanish


class PlainChart(NamedTuple):
    """[batch, n + 1, n + 1] each, and symmetric. Exponents are floating-point numbers; -inf: in no tree."""

    lengths: Any  # [batch]
    cells: Any  # from 1/2 to 1, or 0
    exponents: Any
    outer: Any  # minus the exponents, without those of the spans' own scores; -inf: in no tree
    own: Any  # the spans' own scores over their powers of two
    above: Any  # what surrounds a span, over Z, times its own score


@inlined
def plain_sum(a, b, base, ones, others, scratch):
    """The sum over t of a[t] * b[t] * 2 ** (base + ones[t] + others[t])"""
    for t in range(a.size):
        scratch.bits[t] = np.int64(max(base + ones[t] + others[t], -1023.0) + 1023.0) << 52
        scratch.row[t] = a[t] * b[t]
    return dot(scratch.weights[: a.size], scratch.row[: a.size])


@compiled
def plain_inside(part, chart, span, log_z, scratch):
    for b in part:
        n, cells, exponents = chart.lengths[b], chart.cells[b], chart.exponents[b]
        for width in range(1, n + 1):
            for i in range(n - width + 1):
                j = i + width
                total, top = 1.0, 0.0
                if width > 1:  # COMPLETE
                    left, right = exponents[i, i + 1 : j], exponents[j, i + 1 : j]
                    total, top = 0.0, -math.inf
                    for k in range(left.size):
                        top = max(top, left[k] + right[k])
                    if top > -math.inf:
                        total = plain_sum(
                            cells[i, i + 1 : j], cells[j, i + 1 : j], -top, left, right, scratch
                        )
                score, power, own_power = possible(span[b, i, j]), 0, 0.0
                own = 0.0
                if total > 0.0 and score > -math.inf:
                    own_power = math.floor(score / LN2)
                    own = math.exp(score - own_power * LN2)
                    total, power = math.frexp(total * own)
                else:
                    total, top = 0.0, -math.inf
                chart.own[b, i, j] = own
                cells[i, j] = cells[j, i] = total
                exponents[i, j] = exponents[j, i] = top + own_power + power
                chart.outer[b, i, j] = chart.outer[b, j, i] = -(top + power) if total > 0.0 else -math.inf
        log_z[b] = math.log(cells[0, n]) + exponents[0, n] * LN2 if cells[0, n] > 0.0 else -math.inf


@compiled
def plain_outside(part, chart, weight, marginals, scratch):
    for b in part:
        n, cells, exponents, outer = chart.lengths[b], chart.cells[b], chart.exponents[b], chart.outer[b]
        above = chart.above[b]
        for width in range(n, 0, -1):
            for i in range(n - width + 1):
                j, around, here = i + width, 0.0, exponents[i, i + width]
                if width == n and cells[0, n] > 0.0:
                    around = 1.0 / cells[0, n]
                elif (
                    here > -math.inf
                ):  # COMPLETE, backwards: the left half of (i, end), the right half of (start, j)
                    around = plain_sum(
                        above[i, j + 1 : n + 1],
                        cells[j, j + 1 : n + 1],
                        here,
                        exponents[j, j + 1 : n + 1],
                        outer[i, j + 1 : n + 1],
                        scratch,
                    )
                    around += plain_sum(
                        above[j, :i], cells[i, :i], here, exponents[i, :i], outer[j, :i], scratch
                    )
                marginals[b, i, j] = weight[b] * (around * cells[i, j])
                above[i, j] = above[j, i] = around * chart.own[b, i, j]


# Best trees, in the numbers of reference.py: the same sums in the same order give the same bits


class Best(NamedTuple):
    """Trees, as arrays; arcs and root are empty for plain trees."""

    score: Any
    spans: Any
    arcs: Any
    root: Any


@inlined
def at_least(score):
    """The score, but nothing below IMPOSSIBLE."""
    return score if score > IMPOSSIBLE else type(score)(IMPOSSIBLE)


@inlined
def best_span(n, i, j, cells, by_modifier, scores, b, row):
    """The row of (i, j). Headed items without inherit stand at [j, i]."""
    width, pitch, down = j - i, n + SPARE, (n + 1) * (n + SPARE)
    at, mirror = i * down + j * pitch, j * down + i * pitch
    first, second = i * down + (i + 1) * pitch + i, (i + 1) * down + j * pitch + i
    row[0] = 0
    if width > 1:  # COMPLETE
        sweep_best(width, row, 0, width - 1, None, 0, cells, first, pitch, cells, second, down)
    span, inherit = at_least(scores.span[b, i, j]), at_least(scores.inherit[b, i, j])
    for x in range(width):
        own = span + at_least(scores.head[b, i, j, i + x]) if scores.head.size else span
        row[x] = own + row[x] if width > 1 else own
        cells[mirror + i + x] = row[x]
    # ATTACH
    before = -i % (16 // row.itemsize)
    sweep_best(
        i + before, cells, at - before, width, row, 0, by_modifier, PAD + i * n - before, n, None, 0, 0
    )
    for x in range(width):
        cells[at + i + x] = row[x] + inherit
    sweep_best(n - j, cells, at + j, width, row, 0, by_modifier, PAD + i * n + j, n, None, 0, 0)


@inlined
def walk(n, pitch, cells, arc, head, b, best, stack, governor):
    """Read the best tree off its chart, from the top down; of equal choices, the first."""
    down = (n + 1) * pitch
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, n, head
    depth = 1
    for step in range(2 * n - 1):
        depth -= 1
        i, j, h = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        best.spans[b, step, 0], best.spans[b, step, 1] = i, j
        if arc.size:
            best.spans[b, step, 2] = h
        if j - i == 1:
            continue
        k = i + 1  # COMPLETE, backwards
        score = cells[i * down + k * pitch + h] + cells[k * down + j * pitch + h]
        for other in range(i + 2, j):
            rival = cells[i * down + other * pitch + h] + cells[other * down + j * pitch + h]
            if rival > score:
                k, score = other, rival
        left = right = h
        if arc.size:  # ATTACH, backwards
            start, end = (k, j) if h < k else (i, k)
            m, headed = start, end * down + start * pitch
            score = cells[headed + m] + at_least(arc[h, m])
            for other in range(start + 1, end):
                rival = cells[headed + other] + at_least(arc[h, other])
                if rival > score:
                    m, score = other, rival
            governor[m] = h
            left, right = (h, m) if h < k else (m, h)
        stack[depth, 0], stack[depth, 1], stack[depth, 2] = k, j, right
        stack[depth + 1, 0], stack[depth + 1, 1], stack[depth + 1, 2] = i, k, left
        depth += 2


@compiled
def best_part(
    part, first, last, share, shares, lengths, scores, row, cells, by_modifier, stack, governor, best
):
    """Steps of the best trees of some sentences; of each step, one share."""
    for b in part:
        n = lengths[b]
        tiles = n // TILE + 1
        for step in range(first, min(last, tiles + 2)):
            if step == 0:
                if share == 0:
                    for m in range(n):
                        for h in range(n):
                            by_modifier[PAD + m * n + h] = at_least(scores.arc[b, h, m]) if h != m else 0
            elif step <= tiles:
                for low in range(share, tiles - step + 1, shares):
                    high = low + step - 1
                    for i in range(min(n, low * TILE + TILE) - 1, low * TILE - 1, -1):
                        for j in range(max(i + 1, high * TILE), min(n + 1, high * TILE + TILE)):
                            best_span(n, i, j, cells, by_modifier, scores, b, row)
            elif share == 0:
                head, whole = 0, n * (n + 1) * (n + SPARE)  # GOAL
                best.score[b] = cells[whole] + at_least(scores.root[b, 0])
                for h in range(1, n):
                    score = cells[whole + h] + at_least(scores.root[b, h])
                    if score > best.score[b]:
                        head, best.score[b] = h, score
                best.root[b] = head
                governor[:n] = -1
                walk(n, n + SPARE, cells, scores.arc[b], head, b, best, stack, governor)
                row_of_arcs = 0
                for m in range(n):
                    if governor[m] >= 0:
                        best.arcs[b, row_of_arcs, 0], best.arcs[b, row_of_arcs, 1] = governor[m], m
                        row_of_arcs += 1


@compiled
def best_plain_part(part, lengths, span, no_arcs, cells, mirrored, stack, governor, best):
    for b in part:
        n = lengths[b]
        for width in range(1, n + 1):
            for i in range(n - width + 1):
                j = i + width
                score = at_least(span[b, i, j])
                if width > 1:  # COMPLETE
                    left, right = (
                        cells[i * (n + 1) + i + 1 : i * (n + 1) + j],
                        mirrored[j * (n + 1) + i + 1 : j * (n + 1) + j],
                    )
                    high = left[0] + right[0]
                    for k in range(1, left.size):
                        high = max(high, left[k] + right[k])
                    score = score + high
                cells[i * (n + 1) + j] = mirrored[j * (n + 1) + i] = score
        best.score[b] = cells[n]
        walk(n, 1, cells, no_arcs, 0, b, best, stack, governor)


# Threads


@cache
def pool(process: int) -> ThreadPoolExecutor:
    """The threads of this process: a fork has none."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="nestree")


def share_out(work: Callable[[Any], None], parts: Iterable) -> None:
    """Do the work for all parts, on as many threads as torch may use, this one among them."""
    left = deque(parts)

    def lend_a_hand() -> None:
        while True:
            try:
                part = left.popleft()
            except IndexError:
                return
            work(part)

    helpers = [
        pool(os.getpid()).submit(lend_a_hand) for _ in range(min(torch.get_num_threads(), len(left)) - 1)
    ]
    try:
        lend_a_hand()
    finally:
        left.clear()
        for helper in helpers:
            if not helper.cancel():
                helper.result()


def parts_of(lengths: Sequence[int], cost: Callable[[int], float]) -> list[np.ndarray]:
    """The sentences, longest first, in parts that are worth a thread: `cost` in nanoseconds."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    threads = torch.get_num_threads()
    if threads == 1:
        return [np.array(order)] if order else []
    costs = [cost(lengths[r]) for r in order]
    enough = max(1e5, sum(costs) / (4 * threads))
    cuts, size = [], 0.0
    for position, nanoseconds in enumerate(costs, 1):
        size += nanoseconds
        if size >= enough or position == len(order):
            cuts.append(position)
            size = 0.0
    return [np.array(order[start:end]) for start, end in zip([0, *cuts], cuts, strict=False)]


def run(kernel: Callable, lengths: np.ndarray, arguments: Callable[[int], Callable[[], tuple]]) -> None:
    """Run all steps of a kernel for all sentences.

    `arguments(n)` makes what is needed for sentences of up to n words, one after the other; what it returns makes
    the arguments for one thread.
    """
    sizes = lengths.tolist()
    threads = torch.get_num_threads()
    if len(sizes) < threads and max(sizes, default=0) >= LONG:
        for r, n in enumerate(sizes):
            part, common = np.array([r]), arguments(n)
            own = [common() for _ in range(threads)]
            for step in range(n // TILE + 3):
                share_out(
                    lambda k, s=step, p=part, o=own: kernel(p, s, s + 1, k, threads, *o[k]), range(threads)
                )
        return

    def work(part: np.ndarray) -> None:
        kernel(part, 0, 1 << 30, 0, 1, *arguments(sizes[part[0]])())

    share_out(work, parts_of(sizes, lambda n: n**4 / 15 + 120 * n * n))


# The backend


def buffer(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    """Memory with anything in it."""
    return np.empty(shape, dtype)


def as_arrays(potentials: Potentials) -> Any:
    arrays = [tensor.detach().contiguous().numpy() for tensor in potentials if tensor is not None]
    if len(arrays) == 4:
        arrays.append(np.empty((1, 0, 0, 0), arrays[0].dtype))
    return type(potentials)(*arrays)


def rows_for(n: int, dtype: Any) -> Scratch:
    row, weights = buffer(n + 3 * PAD, dtype=dtype), buffer(n + PAD, dtype=dtype)
    row[:PAD] = 0
    whole = np.int32 if dtype == np.float32 else np.int64
    return Scratch(
        row,
        row.view(whole),
        buffer(n + PAD, dtype=dtype),
        buffer(n + PAD, dtype=dtype),
        weights,
        weights.view(whole),
    )


class Charts(NamedTuple):
    """What inside hands to outside: one chart for each precision that was needed."""

    scores: Any
    lengths: Any
    charts: list[Chart]


RUNGS = (np.float32, False), (np.float64, False), (np.float64, True)  # the precisions, and in logs?


def inside(potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Any]:
    """log Z [batch] and the chart."""
    sizes = lengths.numpy()
    scores = as_arrays(potentials)
    log_z = buffer(len(sizes))
    if isinstance(potentials, PlainPotentials):
        chart: Any = PlainChart(sizes, *(buffer(*scores.span.shape) for _ in range(5)))
        rows = max(sizes, default=0)
        share_out(
            lambda part: plain_inside(part, chart, scores.span, log_z, rows_for(rows, np.float64)),
            parts_of(sizes.tolist(), plain_cost),
        )
    else:
        chart = Charts(scores, sizes, [])
        left = np.arange(len(sizes))
        for dtype, logs in RUNGS[int(scores.span.dtype == np.float64) :]:
            if len(left):
                chart.charts.append(inside_rung(scores, left, sizes, dtype, logs))
                log_z[left] = chart.charts[-1].log_z
                left = left[~chart.charts[-1].fits]
    return torch.from_numpy(log_z.clip(IMPOSSIBLE)).to(potentials.span.dtype), chart


def plain_cost(n: int) -> float:
    return n**3 / 6 + 40 * n * n


def inside_rung(scores: Any, sentences: np.ndarray, lengths: np.ndarray, dtype: Any, logs: bool) -> Chart:
    """The inside pass for some sentences in one precision."""
    global redone_in_logs
    n, m, sizes = scores.root.shape[1], len(sentences), lengths[sentences]
    redone_in_logs += m if logs else 0
    cells = (sizes + 1) * (sizes + 1) * (sizes + SPARE)
    starts = cells.cumsum()
    k = 0 if logs else m
    chart = Chart(
        sentences,
        sizes,
        starts - cells,
        buffer(int(starts[-1]) + PAD, dtype=dtype),
        exponents=buffer(k, n + 1, n + 1, dtype=np.int64),
        outer=buffer(k, n + 1, n + 1, dtype=np.int64),
        holes=buffer(k, n + 1, n + 1, dtype=bool),
        own=buffer(k, n + 1, n + 1),
        lend=buffer(k, n + 1, n + 1),
        by_modifier=buffer(k, n * n + 2 * PAD, dtype=dtype),
        by_head=buffer(k, n * n + PAD, dtype=dtype),
        root=buffer(k, n),
        taken=buffer(k, n),
        log_z=buffer(m),
        fits=np.ones(m, bool),
    )
    run(inside_part, sizes, lambda n: lambda: (chart, scores, rows_for(n, dtype)))
    return chart


def outside(
    potentials: AnyPotentials, lengths: Tensor, chart: Any, weight: Tensor, heads: bool
) -> AnyPotentials:
    """weight[b] times the marginals."""
    weights = weight.detach().double().numpy()
    dtype = np.float32 if potentials.span.dtype == torch.float32 else np.float64
    shapes = [tuple(t.shape) for t in potentials[:4]]
    if isinstance(chart, PlainChart):
        marginals: Any = PlainPotentials(np.zeros(shapes[0], dtype))
        rows = max(chart.lengths, default=0)
        share_out(
            lambda part: plain_outside(part, chart, weights, marginals.span, rows_for(rows, np.float64)),
            parts_of(chart.lengths.tolist(), plain_cost),
        )
        return type(potentials)(torch.from_numpy(marginals.span))
    shapes.append((*shapes[0], shapes[0][1] - 1) if heads else (1, 0, 0, 0))
    marginals = LexicalPotentials(*(np.zeros(shape, dtype) for shape in shapes))
    for rung in chart.charts:
        rung = rung._replace(fits=rung.fits.copy())
        left = rung.fits.copy()
        outside_rung(chart.scores, rung, weights, marginals)
        left &= ~rung.fits
        if left.any():
            again = inside_rung(chart.scores, rung.sentences[left], chart.lengths, np.float64, True)
            outside_rung(chart.scores, again, weights, marginals)
    tensors = [torch.from_numpy(marginal) for marginal in marginals]
    return type(potentials)(*tensors[:4], tensors[4] if heads else None)


def outside_rung(scores: Any, chart: Chart, weight: np.ndarray, marginals: Any) -> None:
    """The outside pass for the sentences of one chart."""
    dtype = chart.cells.dtype

    def arguments(n: int) -> Callable[[], tuple]:
        cells, posts = (n + 1) * (n + 1) * (n + SPARE) + PAD, (n + 1, n + 1)
        around = Around(
            above=buffer(cells, dtype=dtype),
            hooks=buffer(cells, dtype=dtype),
            headed=buffer(n * n * (n + 1) + PAD, dtype=dtype),
            span=buffer(*posts, dtype=dtype),
            inherit=buffer(*posts, dtype=dtype),
            arc=buffer(n * (n + SPARE) + PAD, dtype=dtype),
        )
        return lambda: (chart, scores, rows_for(n, dtype), weight, around, marginals)

    run(outside_part, chart.lengths, arguments)


def viterbi(potentials: Potentials, lengths: Tensor) -> Trees:
    """The best tree of each sentence; of equal ones, that with the first head, split and modifier."""
    scores, sizes = as_arrays(potentials), lengths.numpy()
    batch, n, dtype = len(sizes), scores.span.shape[1] - 1, scores.span.dtype
    plain = isinstance(potentials, PlainPotentials)
    best = Best(
        score=buffer(batch, dtype=dtype),
        spans=np.full((batch, 2 * n - 1, 2 if plain else 3), -1),
        arcs=np.full((0 if plain else batch, n - 1, 2), -1),
        root=np.empty(0 if plain else batch, np.int64),
    )

    def arguments(n: int) -> Callable[[], tuple]:
        cells = buffer((n + 1) * (n + 1) * (n + SPARE) + PAD, dtype=dtype)
        by_modifier = buffer(n * n + 2 * PAD, dtype=dtype)
        stack, governor = buffer(n + 1, 3, dtype=np.int64), buffer(n, dtype=np.int64)
        return lambda: (
            sizes,
            scores,
            buffer(n + PAD, dtype=dtype),
            cells,
            by_modifier,
            stack,
            governor,
            best,
        )

    def plain_work(part: np.ndarray) -> None:
        n = int(sizes[part[0]])
        charts = (buffer((n + 1) * (n + 1), dtype=dtype) for _ in range(2))
        stack, governor = buffer(n + 1, 3, dtype=np.int64), buffer(n, dtype=np.int64)
        best_plain_part(part, sizes, scores.span, np.empty((0, 0), dtype), *charts, stack, governor, best)

    if plain:
        share_out(plain_work, parts_of(sizes.tolist(), plain_cost))
    else:
        run(best_part, sizes, arguments)
    score, spans, arcs, root = (torch.from_numpy(array) for array in best)
    return Trees(score, spans, None if plain else arcs, None if plain else root, lengths)


def log_chart(chart: Any) -> Tensor:
    """Natural logs of all items [batch, n + 1, n + 1, x]: headed where x lies in the span, hooked outside."""
    if isinstance(chart, PlainChart):
        cells = np.full((*chart.cells.shape, 1), IMPOSSIBLE)
        for b, n in enumerate(chart.lengths):
            for i in range(n):
                row = chart.cells[b, i, i + 1 : n + 1]
                logs = (
                    np.log(row, where=row > 0, out=np.full(len(row), -np.inf))
                    + chart.exponents[b, i, i + 1 : n + 1] * LN2
                )
                cells[b, i, i + 1 : n + 1, 0] = logs.clip(IMPOSSIBLE)
        return torch.from_numpy(cells)
    logs = np.full((*chart.scores.span.shape, chart.scores.root.shape[1]), IMPOSSIBLE)
    for rung in chart.charts:
        rows = rows_for(logs.shape[-1], rung.cells.dtype)
        logs_part(np.arange(len(rung.sentences)), rung, chart.scores, rows, logs)
    return torch.from_numpy(logs)


def chart_bytes(potentials: Potentials, gradient: bool) -> int:
    """The charts of the batch, and what each thread works with."""
    batch, posts, _ = potentials.span.shape
    if isinstance(potentials, PlainPotentials):
        return 40 * batch * posts * posts
    size = max(4, *(tensor.itemsize for tensor in potentials if tensor is not None))
    return size * posts**3 * (batch + (3 if gradient else 0) * torch.get_num_threads())
