"""Best trees, in the numbers of reference.py: the same sums give the same bits, and equal choices fall alike."""

from typing import Any, NamedTuple

from nestree.treecrf.numba_kernels.compiling import called, inlined, kernel
from nestree.treecrf.numba_kernels.inside import PAD, TILE
from nestree.treecrf.numba_kernels.vectors import SPARE, next_turn, sweep_best
from nestree.treecrf.potentials import IMPOSSIBLE


class Best(NamedTuple):
    """The fields of Trees; arcs and root are empty for plain trees."""

    score: Any
    spans: Any
    arcs: Any
    root: Any


class Desk(NamedTuple):
    """What the best tree of a sentence is worked out on; before all, the place."""

    cells: Any  # [(n + 1) * (n + 1) * pitch] rows as for sums; at [j, i], headed items without inherit
    by_modifier: Any  # [(n + 1) * (n + 1) + 2 * PAD] (m, h) arcs, from PAD on
    stack: Any  # [n + 1, 3] spans (i, j, h) still to be opened
    governor: Any  # [n] of each word


@inlined
def at_least(score):
    """The score, but nothing below IMPOSSIBLE."""
    return score if score > IMPOSSIBLE else type(score)(IMPOSSIBLE)


@inlined
def best_span(n, i, j, scores, b, desk, row):
    """The row of (i, j)."""
    cells, width, pitch, down = desk.cells, j - i, n + SPARE, (n + 1) * (n + SPARE)
    at, headed = i * down + j * pitch, j * down + i * pitch
    if width > 1:  # COMPLETE
        left, right = i * down + (i + 1) * pitch + i, (i + 1) * down + j * pitch + i
        sweep_best(width, row, 0, width - 1, None, 0, cells, left, pitch, cells, right, down)
    span, inherit = at_least(scores.span[b, i, j]), at_least(scores.inherit[b, i, j])
    for x in range(width):
        own = span + at_least(scores.head[b, i, j, i + x]) if scores.head.size else span
        row[x] = own + row[x] if width > 1 else own
        cells[headed + i + x] = row[x]
        cells[at + i + x] = row[x] + inherit
    # ATTACH; registers end where the span begins, so as to keep what stands there
    before, arcs = -i % (16 // row.itemsize), PAD + i * n
    sweep_best(i + before, cells, at - before, width, row, 0, desk.by_modifier, arcs - before, n, None, 0, 0)
    sweep_best(n - j, cells, at + j, width, row, 0, desk.by_modifier, arcs + j, n, None, 0, 0)


@called
def walk(n, pitch, arc, head, b, desk, best):
    """Read the best tree off its chart, from the top down; of equal choices, the first."""
    cells, stack, down, depth = desk.cells, desk.stack, (n + 1) * pitch, 1
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, n, head
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
            desk.governor[m] = h
            left, right = (h, m) if h < k else (m, h)
        stack[depth, 0], stack[depth, 1], stack[depth, 2] = k, j, right
        stack[depth + 1, 0], stack[depth + 1, 1], stack[depth + 1, 2] = i, k, left
        depth += 2


@called
def desk_of(desks, place):
    return Desk(desks.cells[place], desks.by_modifier[place], desks.stack[place], desks.governor[place])


@called
def best_steps(b, n, desk, first, last, share, shares, scores, row, best):
    """Steps towards the best tree of one sentence; of each step, one share."""
    tiles = n // TILE + 1
    for step in range(first, min(last, tiles + 2)):
        if step == 0:
            for m in range(share, n, shares):
                for h in range(n):
                    desk.by_modifier[PAD + m * n + h] = at_least(scores.arc[b, h, m]) if h != m else 0
        elif step <= tiles:
            for low in range(share, tiles - step + 1, shares):
                high = low + step - 1
                for i in range(min(n, low * TILE + TILE) - 1, low * TILE - 1, -1):
                    for j in range(max(i + 1, high * TILE), min(n + 1, high * TILE + TILE)):
                        best_span(n, i, j, scores, b, desk, row)
        elif share == 0:
            head, headed = 0, n * (n + 1) * (n + SPARE)  # GOAL
            best.score[b] = desk.cells[headed] + at_least(scores.root[b, 0])
            for h in range(1, n):
                score = desk.cells[headed + h] + at_least(scores.root[b, h])
                if score > best.score[b]:
                    head, best.score[b] = h, score
            best.root[b] = head
            desk.governor[:n] = -1
            walk(n, n + SPARE, scores.arc[b], head, b, desk, best)
            arcs = 0
            for m in range(n):
                if desk.governor[m] >= 0:
                    best.arcs[b, arcs, 0], best.arcs[b, arcs, 1] = desk.governor[m], m
                    arcs += 1


@kernel
def best_part(turns, place, lengths, scores, desks, row, best):
    """The best trees, one after the other on the same desk."""
    desk, first, last = desk_of(desks, place), turns.first, turns.last
    turn = next_turn(turns.next)
    while turn < turns.order.size:
        b = turns.order[turn]
        best_steps(b, lengths[b], desk, first, last, turns.share, turns.shares, scores, row, best)
        turn = next_turn(turns.next)


@kernel
def best_plain_part(turns, place, lengths, scores, desks, no_arcs, best):
    """The best plain trees. On the desk, `by_modifier` has the cells by end and start."""
    desk, turn = desk_of(desks, place), next_turn(turns.next)
    while turn < turns.order.size:
        b = turns.order[turn]
        n, posts, cells, mirrored = lengths[b], lengths[b] + 1, desk.cells, desk.by_modifier
        for width in range(1, n + 1):
            for i in range(n - width + 1):
                j = i + width
                score = at_least(scores.span[b, i, j])
                if width > 1:  # COMPLETE
                    high = cells[i * posts + i + 1] + mirrored[j * posts + i + 1]
                    for k in range(i + 2, j):
                        high = max(high, cells[i * posts + k] + mirrored[j * posts + k])
                    score = score + high
                cells[i * posts + j] = mirrored[j * posts + i] = score
        best.score[b] = cells[n]
        walk(n, 1, no_arcs, 0, b, desk, best)
        turn = next_turn(turns.next)
