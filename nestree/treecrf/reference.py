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

from collections.abc import Callable, Sequence
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
from nestree.treecrf.trees import Trees, first_best, walk

ASYNC_CHECKS = False

Reduce = Callable[[Tensor, int], Tensor]  # torch.logsumexp or torch.amax


def in_float64(potentials: AnyPotentials) -> AnyPotentials:
    """The same potentials in float64, if the device has it."""
    return potentials if potentials.span.is_mps else map_tensors(potentials, torch.Tensor.double)


def inside(potentials: Potentials, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log Z [batch] and the chart [batch, n + 1, n + 1, x], which is float64; differentiable."""
    log_z, chart = fill_chart(sanitize(in_float64(potentials), lengths), lengths, torch.logsumexp)
    return log_z.to(potentials.span.dtype), chart


def inside_outside(potentials: AnyPotentials, lengths: Tensor, heads: bool) -> tuple[Tensor, AnyPotentials]:
    """log Z and the marginals, as constants; `heads`: with those of `head`."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves = map_tensors(potentials, lambda t: t.detach().clone().requires_grad_())
        if heads:
            leaves = with_head(leaves)
        elif isinstance(leaves, LexicalPotentials) and leaves.head is not None:
            leaves = leaves._replace(head=leaves.head.detach())
        log_z, marginals = log_z_and_gradients(leaves, lengths, create_graph=False)
    return log_z.detach(), map_tensors(marginals, lambda t: t.clamp(max=1.0))


def inside_outside_each(
    several: Sequence[Potentials], lengths: Tensor, heads: Sequence[bool]
) -> list[tuple[Tensor, Potentials]]:
    """inside_outside for several potentials of the same sentences."""
    return [
        inside_outside(potentials, lengths, flag) for potentials, flag in zip(several, heads, strict=True)
    ]


def with_head(potentials: AnyPotentials) -> AnyPotentials:
    """The same potentials with zeros for an absent `head`."""
    if not isinstance(potentials, LexicalPotentials) or potentials.head is not None:
        return potentials
    span = potentials.span
    return potentials._replace(head=span.new_zeros(*span.shape, span.shape[1] - 1).requires_grad_())


def log_z_and_gradients(
    potentials: AnyPotentials, lengths: Tensor, create_graph: bool
) -> tuple[Tensor, AnyPotentials]:
    """log Z and its gradient in every potential that requires one; the others get None."""
    log_z, _ = inside(potentials, lengths)
    leaves = [t for t in potentials if t is not None and t.requires_grad]
    gradients = iter(
        torch.autograd.grad(log_z.sum(), leaves, create_graph=create_graph, materialize_grads=True)
    )
    return log_z, map_tensors(potentials, lambda t: next(gradients) if t.requires_grad else None)


def expected_log_ratio(p: AnyPotentials, q: AnyPotentials | None, lengths: Tensor) -> list[Tensor]:
    """E_p[log p(T) - log q(T)] over trees T, or without q, E_p[log p(T)]; and log Z of p, and of q.

    The gradient of an expectation is a second derivative of log Z.
    """
    needs_gradient = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (*p, *(q or ()))
    )
    with torch.inference_mode(False), torch.enable_grad():
        dtype = p.span.dtype
        p = sanitize(in_float64(map_tensors(p, torch.clone)), lengths)
        p = with_head(p) if q is not None else p
        leaves = map_tensors(p, lambda t: t if t.requires_grad else t.requires_grad_())
        log_z, marginals = log_z_and_gradients(leaves, lengths, create_graph=needs_gradient)
        value = expected_score(leaves, marginals, 0.0) - log_z
        log_zs = [log_z]
        if q is not None:
            q = sanitize(in_float64(map_tensors(q, torch.clone)), lengths)
            log_zs.append(inside(q, lengths)[0])
            value = value - expected_score(q, marginals, torch.inf) + log_zs[1]
    return [(value if needs_gradient else value.detach()).to(dtype), *log_zs]


def expected_score(potentials: AnyPotentials, marginals: AnyPotentials, penalty: float) -> Tensor:
    """[batch] the sum over parts of probability times score, less `penalty` for each impossible part that is needed."""
    values = []
    for score, probability in zip(potentials, marginals, strict=True):
        if score is None or probability is None:
            continue
        possible = score > NO_TREE
        finite = probability * torch.where(possible, score, 0.0)
        # Added, not multiplied: 0 times inf would make the gradient NaN.
        penalties = torch.where(~possible & (probability > 0), -penalty, 0.0)
        values.append((finite + penalties).flatten(1).sum(1))
    return torch.stack(values).sum(0)


def viterbi(potentials: Potentials, lengths: Tensor) -> Trees:
    """The best tree of each sentence; of equal ones, that with the first head, split and modifier."""
    with torch.no_grad():
        clean = sanitize(potentials, lengths)
        score, chart = fill_chart(clean, lengths, torch.amax)
        return replace(walk(chart, clean, lengths, 1, first_best), score=score)


def fill_chart(potentials: Potentials, lengths: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    if isinstance(potentials, LexicalPotentials):
        return fill_lexical(potentials, lengths, reduce)
    return fill_plain(potentials.span, lengths, reduce)


def fill_lexical(p: LexicalPotentials, lengths: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    """GOAL [batch] and the chart [batch, n + 1, n + 1, n]."""
    n = p.root.shape[1]
    word = torch.arange(n, device=p.span.device)
    chart: list[Tensor] = []  # by width: [batch, starts, x], headed inside the span, hooked outside
    with_inherit: list[Tensor] = []  # the same with `inherit` added to headed: what a larger span is made of

    for width in range(1, n + 1):
        start = torch.arange(n - width + 1, device=p.span.device)
        end = start + width
        within = (start[:, None] <= word) & (word < end[:, None])  # [starts, x]

        # COMPLETE: headed(i, j, h) = span(i, j) + head(i, j, h) + sum over k of both halves; one holds h
        own = p.span[:, start, end, None].expand(-1, -1, n)  # [batch, starts, h]
        if p.head is not None:
            own = own + p.head[:, start, end]
        if width == 1:
            headed = own
        else:
            halves = [
                with_inherit[k - 1][:, start] + with_inherit[width - k - 1][:, start + k]
                for k in range(1, width)
            ]
            headed = own + reduce(torch.stack(halves), 0)
        headed = headed.masked_fill(~within, IMPOSSIBLE)

        # ATTACH: hooked(i, j, p) = sum over h in (i, j) of headed(i, j, h) + arc(p, h)
        hooked = reduce(headed[:, :, None, :] + p.arc[:, None], -1)  # [batch, starts, p]
        chart.append(torch.where(within, headed, hooked))
        with_inherit.append(torch.where(within, headed + p.inherit[:, start, end, None], hooked))

    # GOAL: sum over h of headed(0, n, h) + root(h); `inherit` is 0 there, and has its gradient if n is 1
    whole = torch.stack([row[:, 0] for row in with_inherit], 1)  # [batch, length - 1, h]
    goal = whole[torch.arange(len(whole), device=whole.device), lengths - 1] + p.root
    goal = goal.masked_fill(word >= lengths[:, None], IMPOSSIBLE)
    return reduce(goal, -1), chart_from_widths(chart)


def fill_plain(span: Tensor, lengths: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    """GOAL [batch] and the chart [batch, n + 1, n + 1, 1] of binary trees without heads."""
    n = span.shape[1] - 1
    chart: list[Tensor] = []  # by width: [batch, starts]
    for width in range(1, n + 1):
        start = torch.arange(n - width + 1, device=span.device)
        done = span[:, start, start + width]
        if width > 1:
            # COMPLETE: c(i, j) = span(i, j) + sum over k of c(i, k) + c(k, j)
            halves = [chart[k - 1][:, start] + chart[width - k - 1][:, start + k] for k in range(1, width)]
            done = done + reduce(torch.stack(halves), 0)
        chart.append(done)
    whole = torch.stack([row[:, 0] for row in chart], 1)  # [batch, length - 1]
    goal = whole.gather(1, lengths[:, None] - 1).squeeze(1)
    return goal, chart_from_widths([row[..., None] for row in chart])


def chart_from_widths(by_width: list[Tensor]) -> Tensor:
    """Rows by width [batch, starts, x] -> one chart [batch, n + 1, n + 1, x] by start and end."""
    batch, n, xs = by_width[0].shape
    chart = by_width[0].new_full((batch, n + 1, n + 1, xs), IMPOSSIBLE)
    with torch.no_grad():  # trees are read off the chart; only log Z has a gradient
        for width, row in enumerate(by_width, 1):
            start = torch.arange(n - width + 1, device=row.device)
            chart[:, start, start + width] = row
    return chart


def log_chart(chart: Tensor) -> Tensor:
    return chart


def chart_bytes(potentials: Potentials, gradient: bool) -> int:
    """Autograd keeps the temporaries of every width; without it only those of one width exist."""
    batch, n = potentials.span.shape[0], potentials.span.shape[1] - 1
    xs = n if isinstance(potentials, LexicalPotentials) else 1
    temporaries = n**3 * xs if gradient else n * n * xs * 4
    return batch * 8 * (temporaries + 3 * n * n * xs)
