"""Sums in natural logarithms: slow, and right for scores of any size.

Cells [i, j, x] are those of reference.py: headed, without inherit, for a word x in the span, hooked for one outside.
"""

import math

import numpy as np

from nestree.treecrf.numba_kernels.jit import compiled, compiled_inline
from nestree.treecrf.potentials import NO_TREE


@compiled_inline
def log_score(score):
    """The score in float64; -inf if the part is impossible."""
    return np.float64(score) if score > NO_TREE else -math.inf


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
                        total,
                        child_item(cells, scores, b, n, i, k, h) + child_item(cells, scores, b, n, k, j, h),
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


@compiled
def log_outside(cells, scores, b, n, log_z, marginals, head_marginals, outer, around):
    """Write the marginals of one sentence.

    `outer` holds the outside scores of headed items over Z, plus their own scores; `around` the outside scores of the
    row of one span as a half of larger ones.
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
                lent = around[x] + log_score(scores.inherit[b, i, j]) if width < n else -math.inf
                above = lent if width < n else log_score(scores.root[b, x]) - log_z  # GOAL
                for p in range(n):  # ATTACH
                    if not i <= p < j:
                        hooked = around[p] + log_score(scores.arc[b, p, x])
                        above = logaddexp(above, hooked)
                        marginals.arc[b, p, x] += math.exp(cells[at + x] + hooked)
                outer[at + x] = above + own_log_score(scores, b, i, j, x)
                probability = math.exp(cells[at + x] + above)
                marginals.span[b, i, j] += probability
                marginals.inherit[b, i, j] += math.exp(cells[at + x] + lent)
                if head_marginals.size:
                    head_marginals[i, j, x] = probability
                if width == n:
                    marginals.root[b, x] = probability
