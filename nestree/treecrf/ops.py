"""The public functions: check what came in, choose a backend, wrap its kernels for autograd.

A backend is a module with these functions, of equal signatures:
    inside(potentials, lengths) -> log Z [batch], chart               the chart is the backend's own
    inside_outside(potentials, lengths, heads) -> log Z, marginals    `heads`: those of `head` too
    viterbi(potentials, lengths) -> Trees
    log_chart(chart) -> [batch, n + 1, n + 1, x]                      for drawing samples
    chart_bytes(potentials, gradient) -> int                          the memory that it will take
    inside_outside_each(several, lengths, heads) -> a list of those   several potentials of the same sentences
    ASYNC_CHECKS: bool     it checks values itself and reports through nestree.treecrf.async_errors
"""

import functools
from collections.abc import Iterable, Sequence
from numbers import Integral
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nestree.errors import BackendError, PotentialsError, WrongTreeError
from nestree.treecrf import async_errors, memory, reference
from nestree.treecrf.backends import backend_for
from nestree.treecrf.potentials import (
    NO_TREE,
    AnyPotentials,
    Lengths,
    LexicalPotentials,
    Potentials,
    as_lengths,
    check_lengths,
    check_shapes,
    check_values,
    map_tensors,
    no_tree_message,
    sanitize,
)
from nestree.treecrf.trees import Trees, sampler, walk


class LogPartition(NamedTuple):
    """A sum over all trees of exp(score), and the probability of every part."""

    log_z: Tensor  # [batch], differentiable
    marginals: Potentials  # constants


def log_partition(potentials: Potentials, lengths: Lengths) -> Tensor:
    """log Z [batch]: the log of the sum over all trees of exp(score). Its gradient is the marginals."""
    potentials, lengths, backend = prepare(potentials, lengths, gradient=None)
    if backend is reference or not wants_gradient(potentials):
        log_z, _ = backend.inside(potentials, lengths)
        return check_log_z(log_z, backend)
    heads = isinstance(potentials, LexicalPotentials) and wants_gradient((potentials.head,))
    with torch.no_grad():
        log_z, part = backend.inside_outside(potentials, lengths, heads)
    return differentiable(check_log_z(log_z, backend), part, potentials)


def log_partitions(
    several: Sequence[Potentials], lengths: Lengths, heads: Sequence[bool] | None = None
) -> list[LogPartition]:
    """log_partition and marginals of several potentials of the same sentences, from one inside-outside run of all.

    A GPU is hardly busy with one sum: all of them take little longer. `heads` says which of the sums should give the
    marginals of `head`, too; those whose potentials have `head` always do.

    >>> from nestree.treecrf import PlainPotentials
    >>> two = [PlainPotentials(torch.zeros(1, 4, 4)), PlainPotentials(torch.ones(1, 4, 4))]
    >>> [round(one.log_z.item(), 3) for one in log_partitions(two, [3])]  # three words have two binary trees
    [0.693, 5.693]
    """
    asked = [False] * len(several) if heads is None else list(heads)
    if len(asked) != len(several):
        raise PotentialsError(
            f"heads has {len(asked)} values for {len(several)} potentials; pass one for each."
        )
    for one, wanted in zip(several, asked, strict=True):
        if wanted:
            require_lexical(one)
    given = [prepare(one, lengths, gradient=True) for one in several]
    potentials, backends = [one for one, _, _ in given], [backend for _, _, backend in given]
    asked = [wanted or has_head(one) for one, wanted in zip(potentials, asked, strict=True)]
    with torch.no_grad():
        if len(set(backends)) == 1:
            found = backends[0].inside_outside_each(potentials, given[0][1], asked)
        else:  # of different types, for different backends
            found = [
                backend.inside_outside(one, sizes, wanted)
                for (one, sizes, backend), wanted in zip(given, asked, strict=True)
            ]
    return [
        LogPartition(differentiable(check_log_z(log_z, backend), part, one), part)
        for (log_z, part), one, backend in zip(found, potentials, backends, strict=True)
    ]


def log_partition_and_heads(potentials: LexicalPotentials, lengths: Lengths) -> tuple[Tensor, Tensor]:
    """log_partition (differentiable) and head_marginals (a constant) from one inside-outside run."""
    ((log_z, part),) = log_partitions([potentials], lengths, [True])
    assert isinstance(part, LexicalPotentials)
    assert part.head is not None
    return log_z, part.head if potentials.head is None else part.head.clone()  # autograd keeps the other one


def marginals(potentials: AnyPotentials, lengths: Lengths) -> AnyPotentials:
    """The probability of every part, in the shape of its potential; a constant."""
    return inside_outside(potentials, lengths, has_head(potentials))[1]


def head_marginals(potentials: LexicalPotentials, lengths: Lengths) -> Tensor:
    """[batch, n + 1, n + 1, n] the probability that span (i, j) is in the tree with head h; a constant."""
    require_lexical(potentials)
    heads = inside_outside(potentials, lengths, True)[1].head
    assert heads is not None
    return heads


def best_trees(potentials: Potentials, lengths: Lengths) -> Trees:
    """The tree with the highest score of each sentence. Ties break the same way in every backend."""
    potentials, lengths, backend = prepare(potentials, lengths, gradient=False)
    with torch.no_grad():
        trees = backend.viterbi(potentials, lengths)
    check_log_z(trees.score, backend)
    return trees


def sample_trees(
    potentials: Potentials, lengths: Lengths, k: int, generator: torch.Generator | None = None
) -> list[Trees]:
    """k exact, independent samples from the distribution over trees, each a Trees for the whole batch."""
    if not isinstance(k, Integral) or k < 0:
        raise PotentialsError(f"{k!r} samples were asked for; ask for a whole number, 0 or more.")
    potentials, lengths, backend = prepare(potentials, lengths, gradient=False)
    with torch.no_grad():
        log_z, chart = backend.inside(potentials, lengths)
        check_log_z(log_z, backend)
        clean = sanitize(potentials, lengths)
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
        q, _, _ = prepare(q, lengths, gradient=True)
    p, sizes, backend = prepare(p, lengths, gradient=True)
    if backend is reference:
        value, *log_zs = reference.expected_log_ratio(p, q, sizes)
        for log_z in log_zs:
            check_log_z(log_z, backend)
        return value
    with torch.no_grad():
        log_z, part = inside_outside(p, sizes, has_head(p, q))
        value = reference.expected_score(sanitize(p, sizes), part, 0.0) - log_z
        if q is not None:
            log_z_q = check_log_z(backend.inside(q, sizes)[0], backend)
            value = value - reference.expected_score(sanitize(q, sizes), part, torch.inf) + log_z_q
    tensors = [t for t in (*p, *(q or ())) if t is not None]
    return _NoGradient.apply(value, "entropy and kl_divergence have gradients", *tensors)


def has_head(*distributions: Potentials | None) -> bool:
    return any(isinstance(p, LexicalPotentials) and p.head is not None for p in distributions)


def inside_outside(potentials: AnyPotentials, lengths: Lengths, heads: bool) -> tuple[Tensor, AnyPotentials]:
    """log Z and the marginals, without gradients, from one run."""
    potentials, lengths, backend = prepare(potentials, lengths, gradient=True)
    with torch.no_grad():
        log_z, part = backend.inside_outside(potentials, lengths, heads)
    return check_log_z(log_z, backend), part


# Inputs and outputs


def prepare(
    potentials: AnyPotentials, lengths: Lengths, gradient: bool | None
) -> tuple[AnyPotentials, Tensor, ModuleType]:
    """Checked potentials in float32 or better, lengths [batch] beside them, and the backend for them.

    `gradient`: will there be an outside pass? None: if autograd may ask for one.
    """
    check_shapes(potentials)
    batch, n, device = potentials.span.shape[0], potentials.span.shape[1] - 1, potentials.span.device
    backend = backend_for(potentials)
    async_errors.raise_pending(wait=False)
    if gradient is None:
        gradient = wants_gradient(potentials)
    memory.check(backend.chart_bytes(potentials, gradient), device, batch, n)
    sizes = as_lengths(lengths, batch)
    if sizes.device.type == "cpu" or not backend.ASYNC_CHECKS:
        check_lengths(sizes, n)
    sizes = sizes.to(device, non_blocking=True)
    if not backend.ASYNC_CHECKS:
        check_values(potentials, sizes)
    dtype = torch.float32
    for tensor in potentials:
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    if any(tensor is not None and tensor.dtype != dtype for tensor in potentials):
        potentials = map_tensors(potentials, lambda tensor: tensor.to(dtype))
    return potentials, sizes, backend


def wants_gradient(potentials: Iterable[Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in potentials)


def require_lexical(potentials: Potentials) -> None:
    if not isinstance(potentials, LexicalPotentials):
        raise WrongTreeError(
            f"{type(potentials).__name__} have no heads; pass LexicalPotentials, or ask for marginals."
        )


def check_log_z(log_z: Tensor, backend: ModuleType) -> Tensor:
    """The same values; raises if a sentence has no tree. Backends with ASYNC_CHECKS report that themselves."""
    if not backend.ASYNC_CHECKS and log_z.numel() and float(log_z.detach().amin()) < NO_TREE:
        raise PotentialsError(no_tree_message(int((log_z < NO_TREE).nonzero()[0, 0])))
    return log_z


# Autograd


def differentiable(log_z: Tensor, marginals: Potentials, potentials: Potentials) -> Tensor:
    """The same log Z; its gradient in the potentials is the marginals."""
    if not wants_gradient(potentials):
        return log_z
    pairs = [
        (tensor, part)
        for tensor, part in zip(potentials, marginals, strict=True)
        if tensor is not None and part is not None and tensor.requires_grad
    ]
    tensors, parts = zip(*pairs, strict=True)
    return _LogPartition.apply(log_z, parts, *tensors)


class _LogPartition(torch.autograd.Function):
    """log Z of these tensors, whose gradient is known: the marginals."""

    @staticmethod
    def forward(ctx: Any, log_z: Tensor, parts: Sequence[Tensor], *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*parts, *tensors)
        return log_z.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        saved = ctx.saved_tensors
        half = len(saved) // 2
        with torch.no_grad():
            gradients = [part * gradient.view(-1, *(1,) * (part.dim() - 1)) for part in saved[:half]]
        return None, None, *forbid_second_derivative(gradients, (gradient, *saved[half:]))


class _NoGradient(torch.autograd.Function):
    """A value without a gradient: its backward raises."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, what: str, *_: Tensor | None) -> Tensor:
        ctx.what = what
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise BackendError(f"{ctx.what} on the reference backend only; ask within use_backend('reference').")


def forbid_second_derivative(gradients: list[Tensor], origin: tuple[Tensor, ...]) -> list[Tensor]:
    """Gradients that raise, rather than be silently constant, if they are differentiated again."""
    if not torch.is_grad_enabled():
        return gradients
    what = "log_partition has gradients that can be differentiated again"
    return [_NoGradient.apply(g, what, *origin) for g in gradients]
