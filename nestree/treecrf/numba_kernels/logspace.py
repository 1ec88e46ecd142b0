"""Sums in natural logs: slow, and right for scores of any size. Cells [i, j, x] as in reference.py, one after the
other: the headed item without inherit for a word x in the span, the hooked item for a word outside."""

import math

import numpy as np

from nestree.treecrf.numba_kernels.jit import called, inlined
from nestree.treecrf.potentials import NO_TREE


@inlined
def minus_inf_if_impossible(score):
    """The score in float64, and -inf for that of an impossible part."""
    return np.float64(score) if score > NO_TREE else -math.inf


@inlined
def logaddexp(a, b):
    """log(exp(a) + exp(b))"""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


@inlined
def own_score(scores, b, i, j, x):
    return minus_inf_if_impossible(scores.span[b, i, j]) + (
        minus_inf_if_impossible(scores.head[b, i, j, x]) if scores.head.size else 0.0
    )


@inlined
def child_item(cells, scores, b, n, i, j, x):
    """The item as one half of a larger span with the head x."""
    return cells[(i * (n + 1) + j) * n + x] + (
        minus_inf_if_impossible(scores.inherit[b, i, j]) if i <= x < j else 0.0
    )


@called
def log_inside(cells, scores, b, n):
    """Fill the cells of one sentence and return log Z."""
    for width in range(1, n + 1):
        for i in range(n - width + 1):
            j, at = i + width, (i * (n + 1) + i + width) * n
            for h in range(i, j):  # COMPLETE
                total = 0.0 if width == 1 else -math.inf
                for k in range(i + 1, j):
                    total = logaddexp(
                        total,
                        child_item(cells, scores, b, n, i, k, h) + child_item(cells, scores, b, n, k, j, h),
                    )
                cells[at + h] = own_score(scores, b, i, j, h) + total
            for p in range(n):  # ATTACH
                if not i <= p < j:
                    total = -math.inf
                    for h in range(i, j):
                        total = logaddexp(total, cells[at + h] + minus_inf_if_impossible(scores.arc[b, p, h]))
                    cells[at + p] = total
    log_z = -math.inf
    for h in range(n):  # GOAL
        log_z = logaddexp(log_z, cells[n * n + h] + minus_inf_if_impossible(scores.root[b, h]))
    return log_z


@called
def log_outside(cells, scores, b, n, log_z, marginals, head_part, outer, around):
    """Write the marginals of one sentence.

    In `outer`, what surrounds a headed item over Z, times its own score; in `around`, what surrounds the row of
    one span as a half of larger ones.
    """
    marginals.span[b, :, :] = 0
    marginals.arc[b, :, :] = 0
    marginals.inherit[b, :, :] = 0
    for width in range(n, 0, -1):
        for i in range(n - width + 1):
            j, at = i + width, (i * (n + 1) + i + width) * n
            around[:n] = -math.inf
            for end in range(j + 1, n + 1):  # COMPLETE of (i, end), in which (i, j) is the left half
                for x in range(i, end):
                    parent = outer[(i * (n + 1) + end) * n + x]
                    around[x] = logaddexp(around[x], parent + child_item(cells, scores, b, n, j, end, x))
            for start in range(i):  # COMPLETE of (start, j), in which (i, j) is the right half
                for x in range(start, j):
                    parent = outer[(start * (n + 1) + j) * n + x]
                    around[x] = logaddexp(around[x], parent + child_item(cells, scores, b, n, start, i, x))
            for x in range(i, j):
                lent = (
                    around[x] + minus_inf_if_impossible(scores.inherit[b, i, j]) if width < n else -math.inf
                )
                above = lent if width < n else minus_inf_if_impossible(scores.root[b, x]) - log_z  # GOAL
                for p in range(n):  # ATTACH
                    if not i <= p < j:
                        hooked = around[p] + minus_inf_if_impossible(scores.arc[b, p, x])
                        above = logaddexp(above, hooked)
                        marginals.arc[b, p, x] += math.exp(cells[at + x] + hooked)
                outer[at + x] = above + own_score(scores, b, i, j, x)
                probability = math.exp(cells[at + x] + above)
                marginals.span[b, i, j] += probability
                marginals.inherit[b, i, j] += math.exp(cells[at + x] + lent)
                if head_part.size:
                    head_part[i, j, x] = probability
                if width == n:
                    marginals.root[b, x] = probability
