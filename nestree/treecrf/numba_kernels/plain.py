"""Sums over plain trees, with a power of two for each cell, so that nothing underflows.

Exponents are floating-point numbers, -inf for a span that is in no tree: scores may be of any size.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from nestree.treecrf.numba_kernels.jit import compiled, compiled_inline, kernel
from nestree.treecrf.numba_kernels.logspace import log_score
from nestree.treecrf.numba_kernels.simd import LN2, dot, next_item
from nestree.treecrf.potentials import IMPOSSIBLE


class PlainChart(NamedTuple):
    """[batch, n + 1, n + 1] each, and all but `own` symmetric: both halves of a span are then in one row."""

    lengths: Any  # [batch]
    cells: Any  # from 1/2 to 1, or 0
    exponents: Any
    under: Any  # minus the exponent, but without the span's own score; -inf: in no tree
    own: Any  # exp(span) without its power of two


@compiled_inline
def weighted_sum(a, b, base, one, other, scratch):
    """The sum over t of a[t] * b[t] * 2 ** (base + one[t] + other[t])"""
    for t in range(a.size):
        scratch.bits[t] = np.int64(max(base + one[t] + other[t], -1023.0) + 1023.0) << 52
        scratch.row[t] = a[t] * b[t]
    return dot(scratch.weights, 0, scratch.row, 0, a.size)


@compiled
def plain_inside(b, chart, span, log_z, scratch):
    n, cells, exponents, under = chart.lengths[b], chart.cells[b], chart.exponents[b], chart.under[b]
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
                exponents[i, j], under[i, j] = top + power + own_exponent, -top - power
            else:
                chart.own[b, i, j], cells[i, j] = 0.0, 0.0
                exponents[i, j], under[i, j] = -math.inf, -math.inf
            cells[j, i], exponents[j, i], under[j, i] = cells[i, j], exponents[i, j], under[i, j]
    log_z[b] = math.log(cells[0, n]) + exponents[0, n] * LN2 if cells[0, n] > 0.0 else IMPOSSIBLE


@compiled
def plain_outside(b, chart, above, marginals, scratch):
    """Write the marginals; `above` holds the outside score of a span over Z, times its own score."""
    n, cells, exponents, under = chart.lengths[b], chart.cells[b], chart.exponents[b], chart.under[b]
    for width in range(n, 0, -1):
        for i in range(n - width + 1):
            j, here, around = i + width, exponents[i, i + width], 0.0
            if width == n and here > -math.inf:
                around = 1.0 / cells[0, n]
            elif here > -math.inf:
                # COMPLETE, backwards: as the left half of (i, end), and as the right half of (start, j)
                ends, starts = slice(j + 1, n + 1), slice(0, i)
                one, other = above[b, i, ends], cells[j, ends]
                around = weighted_sum(one, other, here, exponents[j, ends], under[i, ends], scratch)
                one, other = above[b, j, starts], cells[i, starts]
                around += weighted_sum(one, other, here, exponents[i, starts], under[j, starts], scratch)
            marginals[b, i, j] = around * cells[i, j]
            above[b, i, j] = above[b, j, i] = around * chart.own[b, i, j]


@kernel
def plain_kernel(queue, chart, span, log_z, above, marginals, scratch):
    """The inside pass and, unless `marginals` is empty, the outside pass."""
    item = next_item(queue.next)
    while item < queue.order.size:
        b = queue.order[item]
        plain_inside(b, chart, span, log_z, scratch)
        if marginals.size:
            plain_outside(b, chart, above, marginals, scratch)
        item = next_item(queue.next)
