"""Sums and best trees on the CPU, compiled by numba: the explicit passes behind nestree.treecrf.ops.

Items and rules are those of reference.py; everything here works on one sentence after the other.
"""

import logging
import math
from dataclasses import dataclass

import numba
import numpy as np
import torch
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

logger = logging.getLogger(__name__)


def compiled(function):
    """Compile on first use without the GIL, and keep the machine code on disk where a place can be written."""
    try:
        return numba.njit(function, nogil=True, cache=True)
    except RuntimeError as why:  # a read-only install, and no home either
        logger.warning("compiled code is not kept: %s", why)
        return numba.njit(function, nogil=True)


@dataclass
class Chart:
    """What the inside pass hands to the outside pass."""

    cells: (
        np.ndarray
    )  # [batch, n + 1, n + 1, x] natural logs: headed where x lies in the span, hooked outside
    log_z: np.ndarray  # [batch]
    lengths: np.ndarray  # [batch]


def inside(potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Chart]:
    """log Z [batch] and the chart."""
    sizes = lengths.numpy()
    batch, posts, _ = potentials.span.shape
    log_z = np.empty(batch)
    if isinstance(potentials, PlainPotentials):
        cells = np.empty((batch, posts, posts, 1))
        for b in range(batch):
            log_z[b] = log_inside_plain(as_array(potentials.span[b]), sizes[b], cells[b, :, :, 0])
    else:
        cells = np.empty((batch, posts, posts, posts - 1))
        for b, arrays in enumerate(by_sentence(potentials)):
            log_z[b] = log_inside(*arrays, sizes[b], cells[b])
    return torch.from_numpy(log_z).clamp(min=IMPOSSIBLE).to(potentials.span.dtype), Chart(cells, log_z, sizes)


def outside(
    potentials: AnyPotentials, lengths: Tensor, chart: Chart, weight: Tensor, heads: bool
) -> AnyPotentials:
    """weight[b] times the marginals."""
    dtype = potentials.span.dtype
    weights = weight.detach().double().numpy()
    if isinstance(potentials, PlainPotentials):
        span = torch.zeros(potentials.span.shape, dtype=torch.float64)
        for b, n in enumerate(chart.lengths):
            log_outside_plain(
                as_array(potentials.span[b]), n, chart.cells[b, :, :, 0], chart.log_z[b], span[b].numpy()
            )
        return PlainPotentials((span * torch.from_numpy(weights)[:, None, None]).to(dtype))
    shapes = [t.shape for t in potentials[:4]]
    shapes.append(chart.cells.shape if heads else (len(chart.cells), 0, 0, 0))
    parts = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    for b, arrays in enumerate(by_sentence(potentials)):
        outputs = [part[b].numpy() for part in parts]
        log_outside(*arrays, chart.lengths[b], chart.cells[b], chart.log_z[b], weights[b], *outputs)
    parts = [part.to(dtype) for part in parts]
    return LexicalPotentials(*parts[:4], parts[4] if heads else None)


def as_array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().double().numpy()


def by_sentence(potentials: LexicalPotentials):
    head = potentials.head
    if head is None:
        head = torch.empty(len(potentials.span), 0, 0, 0)
    return zip(*(as_array(t) for t in (*potentials[:4], head)), strict=True)


def log_chart(chart: Chart) -> Tensor:
    cells = torch.full(chart.cells.shape, IMPOSSIBLE, dtype=torch.float64)
    for b, n in enumerate(chart.lengths):
        for i in range(n):
            row = torch.from_numpy(chart.cells[b, i, i + 1 : n + 1])
            cells[b, i, i + 1 : n + 1, :n] = row[:, :n].clamp(min=IMPOSSIBLE)
    return cells


def chart_bytes(potentials: Potentials, gradient: bool) -> int:
    batch, posts, _ = potentials.span.shape
    xs = posts if isinstance(potentials, LexicalPotentials) else 1
    return 8 * posts * posts * xs * (batch * (2 if gradient else 1) + torch.get_num_threads())


# Sums in the log domain


@compiled
def possible(score):
    """The score, and -inf for that of an impossible part."""
    return score if score > NO_TREE else -math.inf


@compiled
def plus(a, b):
    """log(exp(a) + exp(b))"""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


@compiled
def own(span, head, i, j, x):
    return possible(span[i, j]) + (possible(head[i, j, x]) if head.size else 0.0)


@compiled
def half(chart, inherit, i, j, x):
    """The item as one half of a larger span with the head x."""
    return chart[i, j, x] + (possible(inherit[i, j]) if i <= x < j else 0.0)


@compiled
def log_inside(span, arc, root, inherit, head, n, chart):
    """Fill the chart of one sentence with natural logs and return log Z."""
    for width in range(1, n + 1):
        for i in range(n - width + 1):
            j = i + width
            for h in range(i, j):  # COMPLETE
                total = 0.0 if width == 1 else -math.inf
                for k in range(i + 1, j):
                    total = plus(total, half(chart, inherit, i, k, h) + half(chart, inherit, k, j, h))
                chart[i, j, h] = own(span, head, i, j, h) + total
            for p in range(n):  # ATTACH
                if i <= p < j:
                    continue
                total = -math.inf
                for h in range(i, j):
                    total = plus(total, chart[i, j, h] + possible(arc[p, h]))
                chart[i, j, p] = total
    log_z = -math.inf
    for h in range(n):  # GOAL
        log_z = plus(log_z, chart[0, n, h] + possible(root[h]))
    return log_z


@compiled
def log_outside(
    span,
    arc,
    root,
    inherit,
    head,
    n,
    chart,
    log_z,
    weight,
    span_part,
    arc_part,
    root_part,
    inherit_part,
    head_part,
):
    """Add weight times the marginals of one sentence to the `_part` arrays."""
    outer = np.empty(
        (n + 1, n + 1, n)
    )  # log of (what surrounds the item) / Z, for headed items with their own score
    around = np.empty(n)  # the same for the item that a larger span is made of, hooked or with its head lent
    for width in range(n, 0, -1):
        for i in range(n - width + 1):
            j = i + width
            around[:] = -math.inf
            for end in range(j + 1, n + 1):  # COMPLETE of (i, end), in which (i, j) is the left half
                for x in range(i, end):
                    around[x] = plus(around[x], outer[i, end, x] + half(chart, inherit, j, end, x))
            for start in range(i):  # COMPLETE of (start, j), in which (i, j) is the right half
                for x in range(start, j):
                    around[x] = plus(around[x], outer[start, j, x] + half(chart, inherit, start, i, x))
            for x in range(i, j):
                lent = around[x] + possible(inherit[i, j])
                above = lent if width < n else possible(root[x]) - log_z  # GOAL
                for p in range(n):  # ATTACH
                    if not i <= p < j:
                        above = plus(above, around[p] + possible(arc[p, x]))
                        arc_part[p, x] += weight * math.exp(chart[i, j, x] + around[p] + possible(arc[p, x]))
                outer[i, j, x] = above + own(span, head, i, j, x)
                probability = weight * math.exp(chart[i, j, x] + above)
                span_part[i, j] += probability
                if head_part.size:
                    head_part[i, j, x] = probability
                if width == n:
                    root_part[x] = probability
                else:
                    inherit_part[i, j] += weight * math.exp(chart[i, j, x] + lent)


@compiled
def log_inside_plain(span, n, chart):
    for width in range(1, n + 1):
        for i in range(n - width + 1):
            j = i + width
            total = 0.0 if width == 1 else -math.inf
            for k in range(i + 1, j):
                total = plus(total, chart[i, k] + chart[k, j])
            chart[i, j] = possible(span[i, j]) + total
    return chart[0, n]


@compiled
def log_outside_plain(span, n, chart, log_z, span_part):
    outer = np.empty((n + 1, n + 1))
    for width in range(n, 0, -1):
        for i in range(n - width + 1):
            j = i + width
            above = -log_z if width == n else -math.inf
            for end in range(j + 1, n + 1):
                above = plus(above, outer[i, end] + chart[j, end])
            for start in range(i):
                above = plus(above, outer[start, j] + chart[start, i])
            outer[i, j] = above + possible(span[i, j])
            span_part[i, j] = math.exp(chart[i, j] + above)


# Best trees


def viterbi(potentials: Potentials, lengths: Tensor) -> Trees:
    """The best tree of each sentence; of equal ones, that with the first head, split and modifier."""
    batch, n = potentials.span.shape[0], potentials.span.shape[1] - 1
    lexical = isinstance(potentials, LexicalPotentials)
    if not lexical:
        score = potentials.span.new_empty(batch)
        spans = torch.full((batch, 2 * n - 1, 2), -1)
        for b in range(batch):
            best_plain(
                potentials.span[b].detach().contiguous().numpy(),
                int(lengths[b]),
                score[b : b + 1].numpy(),
                spans[b].numpy(),
            )
        return Trees(score, spans, None, None, lengths)
    head = potentials.head if potentials.head is not None else potentials.span.new_empty(batch, 0, 0, 0)
    score = potentials.span.new_empty(batch)
    spans = torch.full((batch, 2 * n - 1, 3), -1)
    arcs = torch.full((batch, n - 1, 2), -1)
    for b in range(batch):
        arrays = [t[b].detach().contiguous().numpy() for t in (*potentials[:4], head)]
        best_lexical(*arrays, int(lengths[b]), score[b : b + 1].numpy(), spans[b].numpy(), arcs[b].numpy())
    return Trees(score, spans, arcs, spans[:, 0, 2].clone(), lengths)


@compiled
def floor(score):
    """The score, but nothing below IMPOSSIBLE, in its own type."""
    low = type(score)(IMPOSSIBLE)
    return score if score > low else low


@compiled
def best_lexical(span, arc, root, inherit, head, n, score, spans, arcs):
    chart = np.empty((n + 1, n + 1, n), span.dtype)
    lent = np.empty((n + 1, n + 1, n), span.dtype)
    for width in range(1, n + 1):
        for i in range(n - width + 1):
            j = i + width
            for x in range(i, j):  # COMPLETE
                mine = floor(span[i, j])
                if head.size:
                    mine = mine + floor(head[i, j, x])
                if width > 1:
                    best = lent[i, i + 1, x] + lent[i + 1, j, x]
                    for k in range(i + 2, j):
                        best = max(best, lent[i, k, x] + lent[k, j, x])
                    mine = mine + best
                chart[i, j, x] = mine
                lent[i, j, x] = mine + floor(inherit[i, j]) if width < n else mine
            for p in range(n):  # ATTACH
                if i <= p < j:
                    continue
                best = chart[i, j, i] + floor(arc[p, i])
                for h in range(i + 1, j):
                    best = max(best, chart[i, j, h] + floor(arc[p, h]))
                chart[i, j, p] = lent[i, j, p] = best
    top = 0
    score[0] = chart[0, n, 0] + floor(root[0])
    for h in range(1, n):  # GOAL
        if chart[0, n, h] + floor(root[h]) > score[0]:
            top = h
            score[0] = chart[0, n, h] + floor(root[h])

    governor = np.full(n, -1)
    stack = np.empty((n + 1, 3), np.int64)
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, n, top
    depth = 1
    for step in range(2 * n - 1):
        depth -= 1
        i, j, h = stack[depth]
        spans[step, 0], spans[step, 1], spans[step, 2] = i, j, h
        if j - i == 1:
            continue
        k = i + 1
        for other in range(i + 2, j):  # COMPLETE, backwards
            if lent[i, other, h] + lent[other, j, h] > lent[i, k, h] + lent[k, j, h]:
                k = other
        start, end = (k, j) if h < k else (i, k)
        m = start
        for other in range(start + 1, end):  # ATTACH, backwards
            if chart[start, end, other] + floor(arc[h, other]) > chart[start, end, m] + floor(arc[h, m]):
                m = other
        governor[m] = h
        left, right = (h, m) if h < k else (m, h)
        stack[depth, 0], stack[depth, 1], stack[depth, 2] = k, j, right
        stack[depth + 1, 0], stack[depth + 1, 1], stack[depth + 1, 2] = i, k, left
        depth += 2
    row = 0
    for m in range(n):
        if governor[m] >= 0:
            arcs[row, 0], arcs[row, 1] = governor[m], m
            row += 1


@compiled
def best_plain(span, n, score, spans):
    chart = np.empty((n + 1, n + 1), span.dtype)
    for width in range(1, n + 1):
        for i in range(n - width + 1):
            j = i + width
            chart[i, j] = floor(span[i, j])
            if width > 1:  # COMPLETE
                best = chart[i, i + 1] + chart[i + 1, j]
                for k in range(i + 2, j):
                    best = max(best, chart[i, k] + chart[k, j])
                chart[i, j] += best
    score[0] = chart[0, n]
    stack = np.empty((n + 1, 2), np.int64)
    stack[0, 0], stack[0, 1] = 0, n
    depth = 1
    for step in range(2 * n - 1):
        depth -= 1
        i, j = stack[depth]
        spans[step, 0], spans[step, 1] = i, j
        if j - i == 1:
            continue
        k = i + 1
        for other in range(i + 2, j):
            if chart[i, other] + chart[other, j] > chart[i, k] + chart[k, j]:
                k = other
        stack[depth, 0], stack[depth, 1] = k, j
        stack[depth + 1, 0], stack[depth + 1, 1] = i, k
        depth += 2
