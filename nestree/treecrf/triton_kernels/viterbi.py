"""Best trees: backtracking through a chart of maxima, from the top down."""

import triton
import triton.language as tl

from nestree.treecrf.triton_kernels.common import LOG_ZERO, VITERBI, score


@triton.jit
def first_best(values, options, none):
    """The first option with the highest value; `none` if all are NaN."""
    first = tl.min(tl.where(values == tl.max(values, 0), options, 1 << 30), 0)
    return tl.where(first == 1 << 30, none, first)


@triton.jit(do_not_specialize=["n"])
def viterbi_kernel(
    inherit, arc, root, chart, report, stack, spans, arcs, roots, n, pitch, LEXICAL: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """Backtrack through a chart of maxima, from the top down.

    A subtree of w words has 2w - 1 spans, so the preorder index of each span is known when it is pushed.
    """
    b = tl.program_id(0).to(tl.int64)
    batch = tl.num_programs(0)
    length = tl.load(report + 2 * batch + b)
    chart += b * n * n * pitch
    stack += b * n * 4
    fields = 3 if LEXICAL else 2
    spans += b * (2 * n - 1) * fields
    x = tl.arange(0, BX)
    top = 0
    if LEXICAL:
        inherit += b * (n + 1) * (n + 1)
        arc += b * n * pitch
        goal = tl.load(chart + (length - 1) * pitch + x, x < length, other=LOG_ZERO)
        goal += tl.load(root + b * pitch + x, x < length, other=0.0)
        top = first_best(goal, x, 0)
        tl.store(roots + b, top.to(tl.int64))
    tl.store(stack, 0)
    tl.store(stack + 1, length)
    tl.store(stack + 2, top)
    tl.store(stack + 3, 0)
    depth = 1
    while depth > 0:
        tl.debug_barrier()
        depth -= 1
        i = tl.load(stack + depth * 4)
        j = tl.load(stack + depth * 4 + 1)
        h = tl.load(stack + depth * 4 + 2)
        index = tl.load(stack + depth * 4 + 3)
        tl.store(spans + index * fields, i.to(tl.int64))
        tl.store(spans + index * fields + 1, j.to(tl.int64))
        if LEXICAL:
            tl.store(spans + index * fields + 2, h.to(tl.int64))
        if j - i > 1:  # COMPLETE, backwards: the best split k in i < k < j
            between = (x > i) & (x < j)
            left = tl.load(chart + (i * n + x - 1) * pitch + h, between, other=LOG_ZERO)
            right = tl.load(chart + (x * n + j - 1) * pitch + h, between, other=LOG_ZERO)
            if LEXICAL:
                left += tl.where(h < x, score(inherit + i * (n + 1) + x, between, VITERBI), 0.0)
                right += tl.where(h < x, 0.0, score(inherit + x * (n + 1) + j, between, VITERBI))
            k = first_best(left + right, x, i + 1)
            left_head = h
            right_head = h
            if LEXICAL:  # ATTACH, backwards: the best head m of the half without h
                start = tl.where(h < k, k, i)
                end = tl.where(h < k, j, k)
                half = (x >= start) & (x < end)
                modifiers = tl.load(chart + (start * n + end - 1) * pitch + x, half, other=LOG_ZERO)
                modifiers += tl.load(arc + h * pitch + x, half, other=LOG_ZERO)
                m = first_best(modifiers, x, start)
                slot = (b * (n - 1) + tl.where(m > top, m - 1, m)) * 2
                tl.store(arcs + slot, h.to(tl.int64))
                tl.store(arcs + slot + 1, m.to(tl.int64))
                left_head = tl.where(h < k, h, m)
                right_head = tl.where(h < k, m, h)
            tl.debug_barrier()
            tl.store(stack + depth * 4, k)
            tl.store(stack + depth * 4 + 1, j)
            tl.store(stack + depth * 4 + 2, right_head)
            tl.store(stack + depth * 4 + 3, index + 2 * (k - i))
            tl.store(stack + depth * 4 + 4, i)
            tl.store(stack + depth * 4 + 5, k)
            tl.store(stack + depth * 4 + 6, left_head)
            tl.store(stack + depth * 4 + 7, index + 1)
            depth += 2
