"""Sums and maxima over trees, in plain PyTorch. The definition that the kernels must match.

Items, for fenceposts i < j and a word h (docs/method.md explains them with pictures):
    headed(i, j, h)   a finished span whose head is h
    hooked(i, j, p)   a finished span attached as a modifier of p, which lies outside it
Both live in one chart[i, j, x]: headed where x lies in the span, hooked where it lies outside.

The chart is filled width by width, all spans of a width at once, and autograd does the rest: the gradient of a
log-partition is the marginals. Autograd keeps every step, O(n^4) numbers per sentence; the kernels do not.

Sums are computed in float64, whatever the type of the potentials: in float32 an error of 1e-7 in a log-partition of 1e6
would be an error of 10 % in a probability. Maxima are computed in the type of the potentials, bit for bit as by the
kernels.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from nestree.treecrf.potentials import (
    IMPOSSIBLE,
    NO_TREE,
    AnyPotentials,
    LexicalPotentials,
    Potentials,
    map_tensors,
    sanitize,
)
from nestree.treecrf.trees import Trees, backtrack, first_argmax

ASYNC_CHECKS = False

Reduce = Callable[[Tensor, int], Tensor]  # torch.logsumexp or torch.amax


def in_float64(potentials: AnyPotentials) -> AnyPotentials:
    """The same potentials in float64, if the device has it."""
    return potentials if potentials.span.is_mps else map_tensors(potentials, torch.Tensor.double)


def inside(potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log Z [batch] and the chart [batch, n + 1, n + 1, x], which is float64; differentiable."""
    log_z, chart = fill_chart(sanitize(in_float64(potentials), lengths), lengths, torch.logsumexp)
    return log_z.to(potentials.span.dtype), chart


def inside_outside(
    potentials: AnyPotentials, lengths: Tensor, heads: bool, arcs: bool = True, create_graph: bool = False
) -> tuple[Tensor, AnyPotentials]:
    """log Z and the marginals; `heads`: with those of `head`. They are constants unless `create_graph`."""
    with torch.inference_mode(False), torch.enable_grad():
        copies = map_tensors(potentials, torch.clone if create_graph else lambda t: t.detach().clone())
        leaves = map_tensors(copies, torch.Tensor.requires_grad_)
        if isinstance(leaves, LexicalPotentials):
            head = leaves.head
            if heads and head is None:
                head = leaves.span.new_zeros(*leaves.span.shape, leaves.root.shape[1]).requires_grad_()
            leaves = leaves._replace(head=head if heads or head is None else head.detach())
        log_z, _ = inside(leaves, lengths)
        inputs = [t for t in leaves if t is not None and t.requires_grad]
        gradients = iter(torch.autograd.grad(log_z.sum(), inputs, create_graph=create_graph, materialize_grads=True))
        marginals = map_tensors(leaves, lambda t: next(gradients) if t.requires_grad else None)
    if create_graph:
        return log_z, marginals
    return log_z.detach(), map_tensors(marginals, lambda t: t.clamp(max=1.0))


def expected_score(potentials: AnyPotentials, marginals: AnyPotentials, penalty: float) -> Tensor:
    """[batch] the sum over parts of probability times score, less `penalty` for each impossible part that is needed."""
    values = []
    for score, probability in zip(potentials, marginals, strict=True):
        if score is None or probability is None:
            continue
        possible = score > NO_TREE
        finite = probability * torch.where(possible, score, 0.0)
        # Added, not multiplied: 0 times inf would make the gradient NaN.
        penalties = torch.where(~possible & (probability > 0), score.new_full((), -penalty), 0.0)
        values.append((finite + penalties).flatten(1).sum(1))
    return torch.stack(values).sum(0)


def viterbi(potentials: Potentials, lengths: Tensor) -> Trees:
    """The best tree of each sentence; of equal ones, that with the first head, split and modifier."""
    with torch.no_grad():
        clean = sanitize(potentials, lengths)
        score, chart = fill_chart(clean, lengths, torch.amax)
        return replace(backtrack(chart, clean, lengths, 1, first_argmax), score=score)


def fill_chart(potentials: Potentials, lengths: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    """GOAL [batch] and the chart [batch, n + 1, n + 1, x]. Plain trees have no heads: their chart has one x."""
    span, n = potentials.span, potentials.span.shape[1] - 1
    p = potentials if isinstance(potentials, LexicalPotentials) else None
    word = torch.arange(n, device=span.device)
    chart: list[Tensor] = []  # by width: [batch, starts, x], headed inside the span, hooked outside
    children: list[Tensor] = []  # the same with `inherit` added to headed: what a larger span is made of

    for width in range(1, n + 1):
        start = torch.arange(n - width + 1, device=span.device)
        end = start + width

        # COMPLETE: headed(i, j, h) = span(i, j) + head(i, j, h) + sum over k of both halves; one holds h
        headed = span[:, start, end, None]  # [batch, starts, h]
        if p is not None:
            headed = headed.expand(-1, -1, n) if p.head is None else headed + p.head[:, start, end]
        if width > 1:
            halves = [children[k - 1][:, start] + children[width - k - 1][:, start + k] for k in range(1, width)]
            headed = headed + reduce(torch.stack(halves), 0)
        if p is None:
            chart.append(headed)
            children.append(headed)
            continue
        within = (start[:, None] <= word) & (word < end[:, None])  # [starts, x]
        headed = headed.masked_fill(~within, IMPOSSIBLE)

        # ATTACH: hooked(i, j, p) = sum over h in (i, j) of headed(i, j, h) + arc(p, h)
        hooked = reduce(headed[:, :, None, :] + p.arc[:, None], -1)  # [batch, starts, p]
        chart.append(torch.where(within, headed, hooked))
        children.append(torch.where(within, headed + p.inherit[:, start, end, None], hooked))

    # GOAL: sum over h of headed(0, n, h) + root(h); `inherit` is 0 there, and has its gradient if n is 1
    whole = torch.stack([row[:, 0] for row in children], 1)  # [batch, length - 1, h]
    goal = whole[torch.arange(len(whole), device=whole.device), lengths - 1]
    if p is not None:
        goal = (goal + p.root).masked_fill(word >= lengths[:, None], IMPOSSIBLE)
    by_span = span.new_full((*span.shape, chart[0].shape[-1]), IMPOSSIBLE)
    with torch.no_grad():  # trees are read off the chart; only log Z has a gradient
        for width, row in enumerate(chart, 1):
            by_span[:, word[: n - width + 1], word[: n - width + 1] + width] = row
    return reduce(goal, -1), by_span


def log_chart(chart: Tensor) -> Tensor:
    return chart


def chart_bytes(potentials: Potentials, gradient: bool) -> int:
    """Autograd keeps the temporaries of every width; without it only those of one width exist."""
    batch, n = potentials.span.shape[0], potentials.span.shape[1] - 1
    xs = n if isinstance(potentials, LexicalPotentials) else 1
    temporaries = n**3 * xs if gradient else n * n * xs * 4
    return batch * 8 * (temporaries + 3 * n * n * xs)
