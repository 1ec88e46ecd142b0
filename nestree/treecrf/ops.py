"""The public functions: check what came in, choose a backend, wrap its kernels for autograd.

A backend is a module with these functions, of equal signatures:
    inside(potentials, lengths) -> log Z [batch], chart               the chart is the backend's own
    inside_outside(potentials, lengths, heads) -> log Z, marginals    `heads`: those of `head` too
    viterbi(potentials, lengths) -> Trees
    log_chart(chart) -> [batch, n + 1, n + 1, x]                      for drawing samples
    chart_bytes(potentials, gradient) -> int                          the memory that it will take
    CHECKS_LATER: bool              it checks values itself and reports through nestree.treecrf.later
    TOGETHER: int                   several sums over sentences of up to so many words are faster at once; if not 0:
    inside_outside_each(several, lengths, heads) -> a list of log Z, marginals
"""

import functools
from collections.abc import Sequence
from numbers import Integral
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nestree.errors import BackendError, PotentialsError, WrongTreeError
from nestree.treecrf import later, memory, reference
from nestree.treecrf.backends import backend_for
from nestree.treecrf.potentials import (
    NO_TREE,
    AnyPotentials,
    Lengths,
    LexicalPotentials,
    Potentials,
    check_lengths,
    check_shapes,
    check_values,
    cleaned,
    each,
    no_tree,
    whole_numbers,
)
from nestree.treecrf.trees import Trees, sampler, walk


def log_partition(potentials: Potentials, lengths: Lengths) -> Tensor:
    """log Z [batch]: the log of the sum over all trees of exp(score). Its gradient is the marginals."""
    potentials, lengths, backend = ready(potentials, lengths, gradient=None)
    if backend is reference or not wants_gradient(potentials):
        log_z, _ = backend.inside(potentials, lengths)
    else:
        log_z = _LogPartition.apply(backend, type(potentials), lengths, *potentials)
    return checked(log_z, backend)


def log_partition_and_heads(potentials: LexicalPotentials, lengths: Lengths) -> tuple[Tensor, Tensor]:
    """log_partition (differentiable) and head_marginals (a constant) from one inside-outside run."""
    need_heads(potentials)
    potentials, lengths, backend = ready(potentials, lengths, gradient=True)
    if backend is reference:
        log_z, heads = reference.log_partition_and_heads(potentials, lengths)
    else:
        log_z, heads = _LogPartitionAndHeads.apply(backend, lengths, *potentials)
    return checked(log_z, backend), heads


def marginals(potentials: AnyPotentials, lengths: Lengths) -> AnyPotentials:
    """The probability of every part, in the shape of its potential; a constant."""
    return inside_outside(potentials, lengths, head_given(potentials))[1]


def head_marginals(potentials: LexicalPotentials, lengths: Lengths) -> Tensor:
    """[batch, n + 1, n + 1, n] the probability that span (i, j) is in the tree with head h; a constant."""
    need_heads(potentials)
    heads = inside_outside(potentials, lengths, True)[1].head
    assert heads is not None
    return heads


def best_trees(potentials: Potentials, lengths: Lengths) -> Trees:
    """The tree with the highest score of each sentence. Ties break the same way in every backend."""
    potentials, lengths, backend = ready(potentials, lengths, gradient=False)
    with torch.no_grad():
        trees = backend.viterbi(potentials, lengths)
    checked(trees.score, backend)
    return trees


def sample_trees(
    potentials: Potentials, lengths: Lengths, k: int, generator: torch.Generator | None = None
) -> list[Trees]:
    """k exact, independent samples from the distribution over trees, each a Trees for the whole batch."""
    if not isinstance(k, Integral) or k < 0:
        raise PotentialsError(f"{k!r} samples were asked for; ask for a whole number, 0 or more.")
    potentials, lengths, backend = ready(potentials, lengths, gradient=False)
    with torch.no_grad():
        log_z, chart = backend.inside(potentials, lengths)
        checked(log_z, backend)
        clean = cleaned(potentials, lengths)
        trees = walk(backend.log_chart(chart), clean, lengths, k, sampler(generator))
    return [trees.rows(slice(copy, None, k)) for copy in range(k)]


def entropy(potentials: Potentials, lengths: Lengths) -> Tensor:
    """The entropy [batch] of the distribution over trees, in nats. Gradients: reference backend only."""
    return -expected_log_ratio(potentials, None, lengths)


def kl_divergence(p: AnyPotentials, q: AnyPotentials, lengths: Lengths) -> Tensor:
    """KL(p || q) [batch]; inf where p needs a tree that q forbids. Gradients: reference backend only."""
    check_shapes(p)
    check_shapes(q)
    if type(p) is not type(q) or p.span.shape != q.span.shape:
        raise PotentialsError(
            f"p is {type(p).__name__} {tuple(p.span.shape)} and q {type(q).__name__} {tuple(q.span.shape)}; "
            "a divergence needs two distributions over the same trees."
        )
    if p.span.device != q.span.device:
        raise PotentialsError(f"p is on {p.span.device} and q on {q.span.device}; move both to one device.")
    return expected_log_ratio(p, q, lengths)


def expected_log_ratio(p: AnyPotentials, q: AnyPotentials | None, lengths: Lengths) -> Tensor:
    """E_p[log p(T) - log q(T)] over trees T; without q, E_p[log p(T)]."""
    if q is not None:  # both in the better of their types, so that one backend serves both
        dtype = functools.reduce(torch.promote_types, [t.dtype for t in (*p, *q) if t is not None])
        p, q = (type(one)(**{**one._asdict(), "span": one.span.to(dtype)}) for one in (p, q))
        q, _, _ = ready(q, lengths, gradient=True)
    p, sizes, backend = ready(p, lengths, gradient=True)
    if backend is reference:
        value, *log_zs = reference.expected_log_ratio(p, q, sizes)
        for log_z in log_zs:
            checked(log_z, backend)
        return value
    with torch.no_grad():
        log_z, part = inside_outside(p, sizes, head_given(p, q))
        value = reference.expected_score(cleaned(p, sizes), part, 0.0) - log_z
        if q is not None:
            log_z_q = checked(backend.inside(q, sizes)[0], backend)
            value = value - reference.expected_score(cleaned(q, sizes), part, torch.inf) + log_z_q
    tensors = [t for t in (*p, *(q or ())) if t is not None]
    return _NoGradient.apply(value, "entropy and kl_divergence have gradients", *tensors)


def head_given(*distributions: Potentials | None) -> bool:
    return any(isinstance(p, LexicalPotentials) and p.head is not None for p in distributions)


def inside_outside(potentials: AnyPotentials, lengths: Lengths, heads: bool) -> tuple[Tensor, AnyPotentials]:
    """log Z and the marginals, without gradients, from one run."""
    potentials, lengths, backend = ready(potentials, lengths, gradient=True)
    with torch.no_grad():
        log_z, part = backend.inside_outside(potentials, lengths, heads)
    return checked(log_z, backend), part


def inside_outside_each(
    several: Sequence[Potentials], lengths: Lengths, heads: Sequence[bool]
) -> list[tuple[Tensor, Potentials]]:
    """The same for several potentials of the same sentences: at once, if the backend is faster so."""
    given = [ready(each, lengths, gradient=True) for each in several]
    backends = [backend for _, _, backend in given]
    with torch.no_grad():
        if given and at_once([potentials for potentials, _, _ in given], backends):
            found = backends[0].inside_outside_each([one[0] for one in given], given[0][1], heads)
        else:
            found = [
                backend.inside_outside(potentials, sizes, asked)
                for (potentials, sizes, backend), asked in zip(given, heads, strict=True)
            ]
    return [(checked(log_z, backend), part) for (log_z, part), backend in zip(found, backends, strict=True)]


def at_once(several: Sequence[Potentials], backends: Sequence[ModuleType]) -> bool:
    """Can these be summed together, is it faster, and is there memory for the charts of all?"""
    first, backend = several[0].span, backends[0]
    return (
        first.shape[1] - 1 <= backend.TOGETHER
        and all(isinstance(each, LexicalPotentials) for each in several)
        and all((each.span.shape, each.span.device) == (first.shape, first.device) for each in several)
        and all(other is backend for other in backends)
        and memory.fits(sum(backend.chart_bytes(each, True) for each in several), first.device)
    )


# What comes in and what goes out


def ready(
    potentials: AnyPotentials, lengths: Lengths, gradient: bool | None
) -> tuple[AnyPotentials, Tensor, ModuleType]:
    """Checked potentials in float32 or better, lengths [batch] beside them, and the backend for them.

    `gradient`: will there be an outside pass? None: if autograd may ask for one.
    """
    check_shapes(potentials)
    batch, n, device = potentials.span.shape[0], potentials.span.shape[1] - 1, potentials.span.device
    backend = backend_for(potentials)
    later.raise_pending(wait=False)
    if gradient is None:
        gradient = wants_gradient(potentials)
    memory.check(backend.chart_bytes(potentials, gradient), device, batch, n)
    sizes = whole_numbers(lengths, batch)
    if sizes.device.type == "cpu" or not backend.CHECKS_LATER:
        check_lengths(sizes, n)
    sizes = sizes.to(device, non_blocking=True)
    if not backend.CHECKS_LATER:
        check_values(potentials, sizes)
    dtype = torch.float32
    for tensor in potentials:
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    if any(tensor is not None and tensor.dtype != dtype for tensor in potentials):
        potentials = each(potentials, lambda tensor: tensor.to(dtype))
    return potentials, sizes, backend


def wants_gradient(potentials: Potentials) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in potentials)


def need_heads(potentials: Potentials) -> None:
    if not isinstance(potentials, LexicalPotentials):
        raise WrongTreeError(
            f"{type(potentials).__name__} have no heads; pass LexicalPotentials, or ask for marginals."
        )


def checked(log_z: Tensor, backend: ModuleType) -> Tensor:
    """The same values, unless they say that a sentence has no tree. Who checks later has done so."""
    if not backend.CHECKS_LATER and log_z.numel() and float(log_z.detach().amin()) < NO_TREE:
        raise PotentialsError(no_tree(int((log_z < NO_TREE).nonzero()[0, 0])))
    return log_z


# Autograd


class _LogPartition(torch.autograd.Function):
    """log Z; its gradient is there already when it is asked for."""

    @staticmethod
    def forward(
        ctx: Any, backend: ModuleType, kind: type, lengths: Tensor, *tensors: Tensor | None
    ) -> Tensor:
        heads = len(tensors) == 5 and tensors[4] is not None and ctx.needs_input_grad[7]
        log_z, part = backend.inside_outside(kind(*tensors), lengths, heads)
        ctx.save_for_backward(*part, *tensors)
        return log_z

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        saved = ctx.saved_tensors
        half = len(saved) // 2
        return None, None, None, *once_only(scaled(saved[:half], gradient), (gradient, *saved[half:]))


class _LogPartitionAndHeads(torch.autograd.Function):
    """log Z and head marginals; the gradient of log Z is there already when it is asked for."""

    @staticmethod
    def forward(ctx: Any, backend: ModuleType, lengths: Tensor, *tensors: Any) -> Any:
        log_z, part = backend.inside_outside(LexicalPotentials(*tensors), lengths, True)
        assert part.head is not None
        ctx.save_for_backward(*part[:4], None if tensors[4] is None else part.head, *tensors)
        heads = part.head if tensors[4] is None else part.head.clone()  # the caller's own, to change at will
        ctx.mark_non_differentiable(heads)
        return log_z, heads

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Any:
        parts, potentials = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
        return None, None, *once_only(scaled(parts, gradient), (gradient, *potentials))


class _NoGradient(torch.autograd.Function):
    """A value whose gradient this backend cannot give: asking for it raises."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, what: str, *_: Tensor | None) -> Tensor:
        ctx.what = what
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise BackendError(f"{ctx.what} on the reference backend only; ask within use_backend('reference').")


def scaled(parts: Any, gradient: Tensor) -> list[Tensor | None]:
    """The gradients of all parts, from those of log Z."""
    with torch.no_grad():
        return [
            None if part is None else part * gradient.view(-1, *(1,) * (part.dim() - 1)) for part in parts
        ]


def once_only(gradients: Any, origin: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """Gradients that raise, rather than be silently constant, if they are differentiated again."""
    if not torch.is_grad_enabled():
        return list(gradients)
    what = "the gradients of log_partition can be differentiated again"
    return [None if g is None else _NoGradient.apply(g, what, *origin) for g in gradients]
