"""The outside pass: the outside score of every item over Z, so that inside times outside is a probability.

A cell gathers from the larger spans that contain it. Probabilities may underflow, but their sums are known: a tree has
2n - 1 spans, of which n - 1 lend their head, and n - 1 arcs. If the sums differ, the sentence needs more precision.
"""

import math
from typing import Any, NamedTuple

from nestree.treecrf.numba_kernels.inside import (
    PAD,
    TILE,
    child_item,
    complete,
    goal,
    inside_steps,
    log_score,
    logaddexp,
    own_log_score,
    own_scores,
    plain_inside,
    sentence_view,
    steps_per_pass,
    weighted_sum,
)
from nestree.treecrf.numba_kernels.simd import (
    LN2,
    ZERO_EXPONENT,
    add_block,
    add_rows,
    compiled,
    compiled_inline,
    dot,
    kernel,
    multiply,
    next_item,
    scale,
    sum_block,
    write_powers_of_two,
)
from nestree.treecrf.potentials import NO_TREE

compiled_steps = compiled_inline(steps_per_pass)


class OutsideChart(NamedTuple):
    """Outside scores of one sentence, and the marginals that they give."""

    headed: Any  # [(n + 1) * (n + 1) * pitch] of headed items, times their own scores; 0 for PAD words beyond the span
    hooked: Any  # [(n + 1) * (n + 1) * pitch] of hooked items; 0 for words in the span
    inside_headed: Any  # [n * n * (n + 1) + PAD] (i, h, j) inside, without inherit; empty: arcs have no marginals
    span: Any  # [n + 1, n + 1] marginals
    inherit: Any  # [n + 1, n + 1]
    arc: Any  # [n * pitch + PAD] (m, h)


@compiled_inline
def gather_parents(s, i, j, at, outside, scratch):
    """COMPLETE, backwards: the outside scores of the row of (i, j) from the larger spans it is a half of.

    outside.hooked(i, j, x) = sum over end of outside.headed(i, end, x) cells(j, end, x)
                            + sum over start of outside.headed(start, j, x) cells(start, i, x)
    """
    n, pitch, posts, wide = s.n, s.pitch, s.n + 1, 64 // s.cells.itemsize
    here = s.exponents[i * posts + j]
    outside.hooked[at : at + (i if j < n else n)] = 0
    # as the left half of (i, end), j < end <= n
    write_powers_of_two(
        scratch.bits, here, s.exponents, j * posts + j + 1, s.minus_base, i * posts + j + 1, n - j, ZERO_EXPONENT
    )
    x = i if j < n else n
    while x < n:
        end = max(j, x) + 1  # outside.headed(i, end, x) is 0 for smaller ones
        x += sum_block(
            n - x, outside.hooked, at + x, posts - end, scratch.weights, end - j - 1,
            outside.headed, (i * posts + end) * pitch + x, pitch, s.cells, (j * posts + end) * pitch + x, pitch,
        )  # fmt: skip
    # as the right half of (start, j), 0 <= start < i
    write_powers_of_two(scratch.bits, here, s.exponents, i * posts, s.minus_base, j * posts, i, ZERO_EXPONENT)
    x = 0 if i > 0 else j
    while x < j:
        x += add_block(
            j - x, outside.hooked, at + x, min(i, x + wide), scratch.weights, 0,
            outside.headed, j * pitch + x, posts * pitch, s.cells, i * pitch + x, posts * pitch,
        )  # fmt: skip


@compiled
def zero_impossible(row, at, width, cells, cells_at):
    """Set the outside score of items that are in no tree to 0."""
    for x in range(width):
        if cells[cells_at + x] == 0:
            row[at + x] = 0


@compiled_inline
def outside_span(s, i, j, total, outside, head_marginals, scratch):
    """The outside scores of the items of (i, j), and their marginals."""
    n, width, at, row = s.n, j - i, (i * (s.n + 1) + j) * s.pitch, scratch.row
    hooked, exponent, lend = outside.hooked, s.exponents[i * (n + 1) + j], s.lend[i, j]
    inside, inside_at, inverse = s.cells, at + i, 1.0
    outside.span[i, j] = outside.inherit[i, j] = 0
    if width == n or exponent == ZERO_EXPONENT:
        hooked[at : at + n] = 0
        row[PAD : PAD + width] = 0
    if width == n:
        for x in range(n):
            row[PAD + x] = s.root[x] / total  # GOAL, backwards
    elif exponent > ZERO_EXPONENT:
        gather_parents(s, i, j, at, outside, scratch)
        if s.has_zero[i, j]:
            zero_impossible(hooked, at, n, s.cells, at)
        outside.inherit[i, j] = dot(hooked, at + i, s.cells, at + i, width)
        scale(hooked, at + i, width, lend, row, PAD)
        hooked[at + i : at + j] = 0
        # ATTACH, backwards: headed(i, j, h) gets the sum over p outside (i, j) of hooked(i, j, p) arc(p, h)
        add_rows(width, row, PAD, i, hooked, at, s.by_head, i, n, None, 0, 0)
        add_rows(width, row, PAD, n - j, hooked, at + j, s.by_head, j * n + i, n, None, 0, 0)
    if exponent > ZERO_EXPONENT:
        minus_base = s.minus_base[i * (n + 1) + j]
        if s.head.size:
            own_scores(s.span[i, j] - (exponent + minus_base) * LN2, s.head, i, j, scratch.own)
        if lend > 0.0:
            inverse = 1.0 / lend
        else:  # the headed items are not in the chart
            inside, inside_at = scratch.other, 0
            inside_exponent, _ = complete(s, i, j, scratch, inside)
            inverse = math.ldexp(s.own[i, j], inside_exponent + minus_base)
            if s.head.size:
                multiply(inside, 0, width, scratch.own)
        outside.span[i, j] = inverse * dot(inside, inside_at, row, PAD, width)
        if head_marginals.size:
            for x in range(width):
                # rounding may lead beyond 1
                head_marginals[i, j, i + x] = min(inverse * inside[inside_at + x] * row[PAD + x], 1.0)
        if s.has_zero[i, j]:
            zero_impossible(row, PAD, width, inside, inside_at)
        if s.head.size:
            multiply(row, PAD, width, scratch.own)
        else:
            scale(row, PAD, width, s.own[i, j], row, PAD)
    for x in range(width if outside.inside_headed.size else 0):
        outside.inside_headed[(i * n + i + x) * (n + 1) + j] = inside[inside_at + x] * inverse
    row[PAD + width : PAD + width + PAD] = 0
    first, last = max(0, i - PAD), min(n, j + PAD)
    scale(row, PAD - i + first, last - first, 1.0, outside.headed, at + first)


@compiled
def arc_marginals(s, h, outside):
    """ATTACH: P(p -> h) = arc(p, h) times the sum over (i, j) of headed(i, j, h) times the outside score of
    hooked(i, j, p), for h within (i, j).
    """
    n, posts, wide, at = s.n, s.n + 1, 64 // s.cells.itemsize, h * s.pitch
    outside.arc[at : at + s.pitch] = 0
    p = 0
    while p < n:
        done = wide
        for i in range(h + 1):
            last = n if i > p else min(n, p + wide - 1)  # beyond, (i, j) holds these p, and hooked is 0
            if last > h:
                done = add_block(
                    n - p, outside.arc, at + p, last - h, outside.inside_headed, (i * n + h) * posts + h + 1,
                    outside.hooked, (i * posts + h + 1) * s.pitch + p, s.pitch, None, 0, 0,
                )  # fmt: skip
        p += done
    for p in range(n):
        outside.arc[at + p] *= s.by_modifier[PAD + h * n + p]


@compiled
def counts_match(s, outside, with_arcs):
    """Whether the marginals sum to the numbers of spans, inherits and arcs of a tree."""
    spans, inherits, arcs = 0.0, 0.0, 0.0 if with_arcs else s.n - 1.0
    for i in range(s.n):
        for j in range(i + 1, s.n + 1):
            spans += outside.span[i, j]
            inherits += outside.inherit[i, j]
        for h in range(s.n if with_arcs else 0):
            arcs += outside.arc[i * s.pitch + h]
    error = max(abs(spans - 2 * s.n + 1), abs(inherits - s.n + 1), abs(arcs - s.n + 1))
    return error <= s.n * (2e-5 if s.cells.itemsize == 4 else 1e-9)


@compiled
def write_marginals(s, total, outside, b, marginals):
    for i in range(s.n):
        marginals.root[b, i] = s.cells[s.n * s.pitch + i] * s.root[i] / total
        for h in range(s.n if marginals.arc.size else 0):
            marginals.arc[b, h, i] = outside.arc[i * s.pitch + h]
        for j in range(i + 1, s.n + 1):
            marginals.span[b, i, j] = outside.span[i, j]
            marginals.inherit[b, i, j] = outside.inherit[i, j]


@compiled
def log_outside(cells, scores, b, n, log_z, marginals, head_marginals, headed, row):
    """Write the marginals of one sentence.

    `headed` and `row` are buffers: for the outside scores of headed items over Z, plus their own scores, and for those
    of the row of one span as a half of larger ones.
    """
    marginals.span[b, :, :] = 0
    if marginals.arc.size:
        marginals.arc[b, :, :] = 0
    marginals.inherit[b, :, :] = 0
    for width in range(n, 0, -1):
        for i in range(n - width + 1):
            j, at = i + width, (i * (n + 1) + i + width) * n
            row[:n] = -math.inf
            for end in range(j + 1, n + 1):  # COMPLETE of (i, end), in which (i, j) is the left half
                for x in range(i, end):
                    parent = headed[(i * (n + 1) + end) * n + x]
                    row[x] = logaddexp(row[x], parent + child_item(cells, scores, b, n, j, end, x))
            for start in range(i):  # COMPLETE of (start, j), in which (i, j) is the right half
                for x in range(start, j):
                    parent = headed[(start * (n + 1) + j) * n + x]
                    row[x] = logaddexp(row[x], parent + child_item(cells, scores, b, n, start, i, x))
            for x in range(i, j):
                lent = row[x] + log_score(scores.inherit[b, i, j]) if width < n else -math.inf
                outside = lent if width < n else log_score(scores.root[b, x]) - log_z  # GOAL
                for p in range(n):  # ATTACH
                    if not i <= p < j:
                        hooked = row[p] + log_score(scores.arc[b, p, x])
                        outside = logaddexp(outside, hooked)
                        if marginals.arc.size:
                            marginals.arc[b, p, x] += math.exp(cells[at + x] + hooked)
                headed[at + x] = outside + own_log_score(scores, b, i, j, x)
                probability = math.exp(cells[at + x] + outside)
                marginals.span[b, i, j] += probability
                marginals.inherit[b, i, j] += math.exp(cells[at + x] + lent)
                if head_marginals.size:
                    head_marginals[i, j, x] = min(probability, 1.0)
                if width == n:
                    marginals.root[b, x] = probability


@compiled
def outside_steps(r, slot, first, last, share, shares, chart, scores, scratch, outside, marginals):
    """The steps from `first` to `last` of one sentence: tile diagonals, arcs, write marginals. One share of each."""
    n, b = chart.lengths[r], chart.sentences[r]
    head_marginals = marginals.head[b if marginals.head.size else 0]
    if not chart.fits[r] or chart.log_z[r] < NO_TREE:
        return
    if chart.slots.exponents.size == 0:
        if first <= 0 < last and share == 0:
            cells, log_z = chart.slots.cells[slot], chart.log_z[r]
            log_outside(cells, scores, b, n, log_z, marginals, head_marginals, outside.headed, scratch.row)
        return
    s = sentence_view(chart, scores, r, slot)
    total, tiles = goal(s), n // TILE + 1
    scratch.row[:PAD] = 0
    for step in range(max(first, 0), min(last, tiles + 2)):
        if step < tiles:
            for low in range(share, step + 1, shares):
                high = low + tiles - step - 1
                for i in range(low * TILE, min(n, low * TILE + TILE)):
                    for j in range(min(n, high * TILE + TILE - 1), max(i, high * TILE - 1), -1):
                        outside_span(s, i, j, total, outside, head_marginals, scratch)
        elif step == tiles:
            for h in range(share, n if marginals.arc.size else 0, shares):
                arc_marginals(s, h, outside)
        elif share == 0:
            chart.fits[r] = counts_match(s, outside, marginals.arc.size > 0)
            if chart.fits[r]:
                write_marginals(s, total, outside, b, marginals)


@kernel
def sum_kernel(queue, slot, chart, scores, scratch, outside, marginals):
    """The inside and the outside pass, sentence by sentence, in the buffers of `slot`.

    Without `outside`, only the inside pass; then every sentence keeps its own chart.
    """
    first, last, share, shares = queue.first, queue.last, queue.share, queue.shares
    item = next_item(queue.next)
    while item < queue.order.size:
        r = queue.order[item]
        if outside is None:
            inside_steps(r, r, first, last, share, shares, chart, scores, scratch)
        else:
            done = compiled_steps(chart.lengths[r])
            inside_steps(r, slot, first, last, share, shares, chart, scores, scratch)
            outside_steps(r, slot, first - done, last - done, share, shares, chart, scores, scratch, outside, marginals)
        item = next_item(queue.next)


# Plain trees


@compiled
def plain_outside(b, chart, outside_own, marginals, scratch):
    """Write the marginals; `outside_own` is a buffer for the outside scores of spans over Z, times their own scores."""
    n, cells, exponents, minus_base = chart.lengths[b], chart.cells[b], chart.exponents[b], chart.minus_base[b]
    for width in range(n, 0, -1):
        for i in range(n - width + 1):
            j, here, outside = i + width, exponents[i, i + width], 0.0
            if width == n and here > -math.inf:
                outside = 1.0 / cells[0, n]
            elif here > -math.inf:
                # COMPLETE, backwards: as the left half of (i, end), and as the right half of (start, j)
                ends, starts = slice(j + 1, n + 1), slice(0, i)
                one, other = outside_own[b, i, ends], cells[j, ends]
                outside = weighted_sum(one, other, here, exponents[j, ends], minus_base[i, ends], scratch)
                one, other = outside_own[b, j, starts], cells[i, starts]
                outside += weighted_sum(one, other, here, exponents[i, starts], minus_base[j, starts], scratch)
            marginals[b, i, j] = outside * cells[i, j]
            outside_own[b, i, j] = outside_own[b, j, i] = outside * chart.own[b, i, j]


@kernel
def plain_kernel(queue, chart, span, log_z, outside_own, marginals, scratch):
    """The inside pass and, unless `marginals` is empty, the outside pass."""
    item = next_item(queue.next)
    while item < queue.order.size:
        b = queue.order[item]
        plain_inside(b, chart, span, log_z, scratch)
        if marginals.size:
            plain_outside(b, chart, outside_own, marginals, scratch)
        item = next_item(queue.next)
