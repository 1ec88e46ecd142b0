"""The outside pass: with each item, what surrounds it in all trees over Z, so that the product is its probability.

A cell collects from the larger spans that contain it. Probabilities may vanish, but those of a sentence must add
up: a tree has 2n - 1 spans, of which n - 1 lend their head, and n - 1 arcs. Where they do not, the pass says so.
"""

import math
from typing import Any, NamedTuple

from nestree.treecrf.numba_kernels.inside import (
    PAD,
    TILE,
    complete,
    goal,
    inside_steps,
    own_scores,
    sentence_of,
    steps_of,
)
from nestree.treecrf.numba_kernels.jit import called, inlined, kernel
from nestree.treecrf.numba_kernels.logspace import log_outside
from nestree.treecrf.numba_kernels.simd import (
    LN2,
    ZERO_EXPONENT,
    chunk,
    chunk_onto,
    dot,
    multiply,
    next_item,
    scale,
    sweep_onto,
    write_powers,
)
from nestree.treecrf.potentials import NO_TREE

inside_steps_of = inlined(steps_of)


class Around(NamedTuple):
    """What the outside pass of a sentence works with; before all, the place."""

    above: Any  # [(n + 1) * (n + 1) * pitch] around headed items, times their own scores; 0 for PAD words either side
    hooks: Any  # [(n + 1) * (n + 1) * pitch] around hooked items; 0 for words in the span
    headed: Any  # [n * n * (n + 1) + PAD] (i, h, j) headed items, without inherit
    span: Any  # [n + 1, n + 1] marginals
    inherit: Any  # [n + 1, n + 1]
    arc: Any  # [n * pitch + PAD] (m, h)


@inlined
def gather(s, i, j, at, around, scratch):
    """COMPLETE, backwards: what surrounds the row of (i, j) as one half of larger spans, in around.hooks."""
    n, pitch, posts, wide = s.n, s.pitch, s.n + 1, 64 // s.cells.itemsize
    here = s.exponents[i * posts + j]
    around.hooks[at : at + (i if j < n else n)] = 0
    # the left half of (i, end)
    write_powers(
        scratch.bits, here, s.exponents, j * posts + j + 1, s.under, i * posts + j + 1, n - j, ZERO_EXPONENT
    )
    x = i if j < n else n
    while x < n:
        end = max(j, x) + 1  # above(i, end, x) is 0 for smaller ones
        x += chunk(
            n - x, around.hooks, at + x, posts - end, scratch.weights, end - j - 1,
            around.above, (i * posts + end) * pitch + x, pitch, s.cells, (j * posts + end) * pitch + x, pitch,
        )  # fmt: skip
    # the right half of (start, j)
    write_powers(scratch.bits, here, s.exponents, i * posts, s.under, j * posts, i, ZERO_EXPONENT)
    x = 0 if i > 0 else j
    while x < j:
        x += chunk_onto(
            j - x, around.hooks, at + x, min(i, x + wide), scratch.weights, 0,
            around.above, j * pitch + x, posts * pitch, s.cells, i * pitch + x, posts * pitch,
        )  # fmt: skip


@called
def clear(row, at, width, cells, cells_at):
    """Nothing surrounds what is in no tree."""
    for x in range(width):
        if cells[cells_at + x] == 0:
            row[at + x] = 0


@inlined
def outside_span(s, i, j, total, around, head_part, scratch):
    """What surrounds the items of (i, j), and their marginals."""
    n, width, at, row = s.n, j - i, (i * (s.n + 1) + j) * s.pitch, scratch.row
    hooks, exponent, lend = around.hooks, s.exponents[i * (n + 1) + j], s.lend[i, j]
    headed, headed_at, inverse = s.cells, at + i, 1.0
    around.span[i, j] = around.inherit[i, j] = 0
    if width == n or exponent == ZERO_EXPONENT:
        hooks[at : at + n] = 0
        row[PAD : PAD + width] = 0
    if width == n:
        for x in range(n):
            row[PAD + x] = s.root[x] / total  # GOAL, backwards
    elif exponent > ZERO_EXPONENT:
        gather(s, i, j, at, around, scratch)
        if s.has_zero[i, j]:
            clear(hooks, at, n, s.cells, at)
        around.inherit[i, j] = dot(hooks, at + i, s.cells, at + i, width)
        scale(hooks, at + i, width, lend, row, PAD)
        hooks[at + i : at + j] = 0
        # ATTACH, backwards
        sweep_onto(width, row, PAD, i, hooks, at, s.by_head, i, n, None, 0, 0)
        sweep_onto(width, row, PAD, n - j, hooks, at + j, s.by_head, j * n + i, n, None, 0, 0)
    if exponent > ZERO_EXPONENT:
        under = s.under[i * (n + 1) + j]
        if s.head.size:
            own_scores(s.span[i, j] - (exponent + under) * LN2, s.head, i, j, scratch.own)
        if lend > 0.0:
            inverse = 1.0 / lend
        else:  # the headed items are not in the chart
            headed, headed_at = scratch.other, 0
            again, _ = complete(s, i, j, scratch, headed)
            inverse = math.ldexp(s.own[i, j], again + under)
            if s.head.size:
                multiply(headed, 0, width, scratch.own)
        around.span[i, j] = inverse * dot(headed, headed_at, row, PAD, width)
        if head_part.size:
            for x in range(width):
                head_part[i, j, i + x] = inverse * headed[headed_at + x] * row[PAD + x]
        if s.has_zero[i, j]:
            clear(row, PAD, width, headed, headed_at)
        if s.head.size:
            multiply(row, PAD, width, scratch.own)
        else:
            scale(row, PAD, width, s.own[i, j], row, PAD)
    for x in range(width):
        around.headed[(i * n + i + x) * (n + 1) + j] = headed[headed_at + x] * inverse
    row[PAD + width : PAD + width + PAD] = 0
    first, last = max(0, i - PAD), min(n, j + PAD)
    scale(row, PAD - i + first, last - first, 1.0, around.above, at + first)


@called
def arcs_into(s, h, around):
    """ATTACH: the marginals of all arcs into h."""
    n, posts, wide, at = s.n, s.n + 1, 64 // s.cells.itemsize, h * s.pitch
    around.arc[at : at + s.pitch] = 0
    p = 0
    while p < n:
        done = wide
        for i in range(h + 1):
            last = n if i > p else min(n, p + wide - 1)  # the hooks of (i, j > last) are 0 for these p
            if last > h:
                done = chunk_onto(
                    n - p, around.arc, at + p, last - h, around.headed, (i * n + h) * posts + h + 1,
                    around.hooks, (i * posts + h + 1) * s.pitch + p, s.pitch, None, 0, 0,
                )  # fmt: skip
        p += done
    for p in range(n):
        around.arc[at + p] *= s.by_modifier[PAD + h * n + p]


@called
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


@called
def around_of(around, place):
    return Around(
        around.above[place],
        around.hooks[place],
        around.headed[place],
        around.span[place],
        around.inherit[place],
        around.arc[place],
    )


@called
def write_marginals(s, total, around, b, marginals):
    for i in range(s.n):
        marginals.root[b, i] = s.cells[s.n * s.pitch + i] * s.root[i] / total
        for h in range(s.n):
            marginals.arc[b, h, i] = around.arc[i * s.pitch + h]
        for j in range(i + 1, s.n + 1):
            marginals.span[b, i, j] = around.span[i, j]
            marginals.inherit[b, i, j] = around.inherit[i, j]


@called
def outside_steps(r, place, first, last, share, shares, chart, scores, scratch, around, marginals):
    """Steps of the outside pass for one sentence; of each step, one share. The last one writes the marginals."""
    n, b = chart.lengths[r], chart.sentences[r]
    head_part = marginals.head[b if marginals.head.size else 0]
    if not chart.fits[r] or chart.log_z[r] < NO_TREE:
        return
    if chart.exponents.size == 0:
        if first <= 0 < last and share == 0:
            outer, row = around.above[place], scratch.row
            log_outside(chart.cells[place], scores, b, n, chart.log_z[r], marginals, head_part, outer, row)
        return
    s, here = sentence_of(chart, scores, r, place), around_of(around, place)
    total, tiles = goal(s), n // TILE + 1
    scratch.row[:PAD] = 0
    for step in range(max(first, 0), min(last, tiles + 2)):
        if step < tiles:
            for low in range(share, step + 1, shares):
                high = low + tiles - step - 1
                for i in range(low * TILE, min(n, low * TILE + TILE)):
                    for j in range(min(n, high * TILE + TILE - 1), max(i, high * TILE - 1), -1):
                        outside_span(s, i, j, total, here, head_part, scratch)
        elif step == tiles:
            for h in range(share, n, shares):
                arcs_into(s, h, here)
        elif share == 0:
            chart.fits[r] = adds_up(s, here)
            if chart.fits[r]:
                write_marginals(s, total, here, b, marginals)


@kernel
def both_part(queue, place, chart, scores, scratch, around, marginals):
    """The inside pass and then the outside pass, sentence by sentence, each in the same place as the one before."""
    first, last, share, shares = queue.first, queue.last, queue.share, queue.shares
    item = next_item(queue.next)
    while item < queue.order.size:
        r = queue.order[item]
        done = inside_steps_of(chart.lengths[r])
        inside_steps(r, place, first, last, share, shares, chart, scores, scratch)
        outside_steps(
            r, place, first - done, last - done, share, shares, chart, scores, scratch, around, marginals
        )
        item = next_item(queue.next)
