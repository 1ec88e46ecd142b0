"""Best trees, with the same additions as in reference.py: scores agree bit for bit, and ties break alike."""

from typing import Any, NamedTuple

from nestree.treecrf.numba_kernels.inside import PAD, TILE
from nestree.treecrf.numba_kernels.simd import SIMD_SLACK, compiled, compiled_inline, kernel, max_rows, next_item
from nestree.treecrf.potentials import IMPOSSIBLE


class BestTrees(NamedTuple):
    """The fields of Trees; arcs and root are empty for plain trees."""

    score: Any
    spans: Any
    arcs: Any
    root: Any


class Workspace(NamedTuple):
    """Buffers for the best tree of one sentence."""

    cells: Any  # [(n + 1) * (n + 1) * pitch] rows as for sums; at [j, i], headed items without inherit
    by_modifier: Any  # [(n + 1) * (n + 1) + 2 * PAD] (m, h) arcs, from PAD on
    stack: Any  # [n + 1, 3] spans (i, j, h) to visit
    governor: Any  # [n] of each word


@compiled_inline
def clamp_impossible(score):
    """The score, not below IMPOSSIBLE."""
    return score if score > IMPOSSIBLE else type(score)(IMPOSSIBLE)


@compiled_inline
def fill_best_span(n, i, j, scores, b, workspace, row):
    """Fill the row of (i, j)."""
    cells, width, pitch, down = workspace.cells, j - i, n + SIMD_SLACK, (n + 1) * (n + SIMD_SLACK)
    at, headed = i * down + j * pitch, j * down + i * pitch
    if width > 1:  # COMPLETE: row[x] = max over k in i < k < j of cells(i, k, x) + cells(k, j, x)
        left, right = i * down + (i + 1) * pitch + i, (i + 1) * down + j * pitch + i
        max_rows(width, row, 0, width - 1, None, 0, cells, left, pitch, cells, right, down)
    span, inherit = clamp_impossible(scores.span[b, i, j]), clamp_impossible(scores.inherit[b, i, j])
    for x in range(width):
        own = span + clamp_impossible(scores.head[b, i, j, i + x]) if scores.head.size else span
        row[x] = own + row[x] if width > 1 else own
        cells[headed + i + x] = row[x]
        cells[at + i + x] = row[x] + inherit
    # ATTACH: cells(i, j, p) = max over h in (i, j) of headed(i, j, h) + arc(p, h), for p outside (i, j).
    # The registers for p < i end where the span begins, so that they do not overwrite it.
    before, arcs = -i % (16 // row.itemsize), PAD + i * n
    max_rows(i + before, cells, at - before, width, row, 0, workspace.by_modifier, arcs - before, n, None, 0, 0)
    max_rows(n - j, cells, at + j, width, row, 0, workspace.by_modifier, arcs + j, n, None, 0, 0)


@compiled
def backtrack(n, pitch, arc, head, b, workspace, best):
    """Backtrack from the top down; of equal choices, take the first."""
    cells, stack, down, depth = workspace.cells, workspace.stack, (n + 1) * pitch, 1
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, n, head
    for step in range(2 * n - 1):
        depth -= 1
        i, j, h = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        best.spans[b, step, 0], best.spans[b, step, 1] = i, j
        if arc.size:
            best.spans[b, step, 2] = h
        if j - i == 1:
            continue
        k = i + 1  # COMPLETE, backwards: the best split
        score = cells[i * down + k * pitch + h] + cells[k * down + j * pitch + h]
        for other in range(i + 2, j):
            candidate = cells[i * down + other * pitch + h] + cells[other * down + j * pitch + h]
            if candidate > score:
                k, score = other, candidate
        left = right = h
        if arc.size:  # ATTACH, backwards: the best head m of the half that does not hold h
            start, end = (k, j) if h < k else (i, k)
            m, headed = start, end * down + start * pitch
            score = cells[headed + m] + clamp_impossible(arc[h, m])
            for other in range(start + 1, end):
                candidate = cells[headed + other] + clamp_impossible(arc[h, other])
                if candidate > score:
                    m, score = other, candidate
            workspace.governor[m] = h
            left, right = (h, m) if h < k else (m, h)
        stack[depth, 0], stack[depth, 1], stack[depth, 2] = k, j, right
        stack[depth + 1, 0], stack[depth + 1, 1], stack[depth + 1, 2] = i, k, left
        depth += 2


@compiled
def viterbi_steps(b, n, workspace, first, last, share, shares, scores, row, best):
    """The steps from `first` to `last` of one sentence: prepare arcs, tile diagonals, backtrack. One share of each."""
    tiles = n // TILE + 1
    for step in range(first, min(last, tiles + 2)):
        if step == 0:
            for m in range(share, n, shares):
                for h in range(n):
                    workspace.by_modifier[PAD + m * n + h] = clamp_impossible(scores.arc[b, h, m]) if h != m else 0
        elif step <= tiles:
            for low in range(share, tiles - step + 1, shares):
                high = low + step - 1
                for i in range(min(n, low * TILE + TILE) - 1, low * TILE - 1, -1):
                    for j in range(max(i + 1, high * TILE), min(n + 1, high * TILE + TILE)):
                        fill_best_span(n, i, j, scores, b, workspace, row)
        elif share == 0:
            # GOAL: max over h of headed(0, n, h) + root(h)
            head, headed = 0, n * (n + 1) * (n + SIMD_SLACK)
            best.score[b] = workspace.cells[headed] + clamp_impossible(scores.root[b, 0])
            for h in range(1, n):
                score = workspace.cells[headed + h] + clamp_impossible(scores.root[b, h])
                if score > best.score[b]:
                    head, best.score[b] = h, score
            best.root[b] = head
            workspace.governor[:n] = -1
            backtrack(n, n + SIMD_SLACK, scores.arc[b], head, b, workspace, best)
            arcs = 0
            for m in range(n):
                if workspace.governor[m] >= 0:
                    best.arcs[b, arcs, 0], best.arcs[b, arcs, 1] = workspace.governor[m], m
                    arcs += 1


@kernel
def viterbi_kernel(queue, lengths, scores, workspace, row, best):
    """The best trees, one after the other in the same workspace."""
    first, last = queue.first, queue.last
    item = next_item(queue.next)
    while item < queue.order.size:
        b = queue.order[item]
        viterbi_steps(b, lengths[b], workspace, first, last, queue.share, queue.shares, scores, row, best)
        item = next_item(queue.next)


@kernel
def plain_viterbi_kernel(queue, lengths, scores, workspace, no_arcs, best):
    """The best plain trees. `workspace.by_modifier` holds the transposed cells, by end and start."""
    item = next_item(queue.next)
    while item < queue.order.size:
        b = queue.order[item]
        n, posts, cells, mirrored = lengths[b], lengths[b] + 1, workspace.cells, workspace.by_modifier
        for width in range(1, n + 1):
            for i in range(n - width + 1):
                j = i + width
                score = clamp_impossible(scores.span[b, i, j])
                if width > 1:  # COMPLETE: max over k in i < k < j of cells(i, k) + cells(k, j)
                    high = cells[i * posts + i + 1] + mirrored[j * posts + i + 1]
                    for k in range(i + 2, j):
                        high = max(high, cells[i * posts + k] + mirrored[j * posts + k])
                    score = score + high
                cells[i * posts + j] = mirrored[j * posts + i] = score
        best.score[b] = cells[n]
        backtrack(n, 1, no_arcs, 0, b, workspace, best)
        item = next_item(queue.next)
