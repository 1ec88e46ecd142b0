"""The public functions: check inputs and memory, choose a backend, wrap its kernels for autograd.

A backend is a module with these functions, of equal signatures:
    inside(potentials, lengths) -> log Z [batch], chart         each backend has its own kind of chart
    inside_outside(potentials, lengths, heads, arcs=True) -> log Z, marginals
        `heads`: compute the marginals of `head`; `arcs=False`: those of arcs may be omitted
    inside_outside_each(several, lengths, heads) -> list        several potentials in one launch; triton only
    viterbi(potentials, lengths) -> Trees
    log_chart(chart) -> [batch, n + 1, n + 1, x]                for sampling
    chart_bytes(potentials, gradient) -> int                    memory that the chart needs
    ASYNC_CHECKS: bool                                          invalid values and lengths are reported later, by
                                                                `potentials.error_record`
All but the reference check values themselves.
"""

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from nestree.errors import BackendError, ChartMemoryError, PotentialsError, WrongTreeError
from nestree.treecrf import reference
from nestree.treecrf.potentials import (
    NO_TREE,
    AnyPotentials,
    Lengths,
    LexicalPotentials,
    PlainPotentials,
    Potentials,
    as_lengths,
    check_lengths,
    check_shapes,
    check_values,
    map_tensors,
    no_tree_message,
    raise_pending,
    sanitize,
)
from nestree.treecrf.trees import Trees, backtrack

try:  # PyTorch has no public function for this
    from torch._C._functorch import is_functorch_wrapped_tensor
except ImportError:

    def is_functorch_wrapped_tensor(tensor: Tensor) -> bool:
        return False


BACKENDS = {
    "triton": "nestree.treecrf.triton_kernels",
    "numba": "nestree.treecrf.numba_kernels",
    "reference": "nestree.treecrf.reference",
}  # in the order of preference
MIN_CHECKED_BYTES = 1 << 29  # smaller charts are allocated without a check
MAX_TRITON_WORDS = 511  # spans_kernel has a program for four spans, and a CUDA grid 65,535 programs in this direction

_forced_backend: ContextVar[str | None] = ContextVar("nestree backend", default=None)


class LogPartition(NamedTuple):
    """The log of the sum over all trees of exp(score), and the probability of every part."""

    log_z: Tensor  # [batch], differentiable
    marginals: Potentials  # constants


def log_partition(potentials: Potentials, lengths: Lengths) -> Tensor:
    """log Z [batch]: the log of the sum over all trees of exp(score). Its gradient is the marginals."""
    potentials, lengths, backend = prepare(potentials, lengths, gradient=None)
    if backend is reference or not needs_gradient(potentials):
        log_z, _ = backend.inside(potentials, lengths)
        return check_log_z(log_z, backend)
    heads = has_head(potentials) and potentials.head.requires_grad  # type: ignore[union-attr]
    with torch.no_grad():
        log_z, probabilities = backend.inside_outside(potentials, lengths, heads)
    return differentiable(check_log_z(log_z, backend), probabilities, potentials)


def log_partitions(
    several: Iterable[Potentials], lengths: Lengths, heads: Iterable[bool] | None = None
) -> list[LogPartition]:
    """log_partition and marginals of several potentials of the same sentences, from one inside-outside run.

    One sum leaves most of a GPU idle, so all of them take little longer. `heads`: for which potentials the marginals
    of `head` are computed; potentials that have `head` always get them.

    >>> from nestree.treecrf import PlainPotentials
    >>> two = [PlainPotentials(torch.zeros(1, 4, 4)), PlainPotentials(torch.ones(1, 4, 4))]
    >>> [round(result.log_z.item(), 3) for result in log_partitions(two, [3])]  # three words have two binary trees
    [0.693, 5.693]
    """
    if isinstance(several, Tensor | LexicalPotentials | PlainPotentials) or not isinstance(several, Iterable):
        raise PotentialsError(f"several is one {type(several).__name__}; pass a list of potentials.")
    several = list(several)
    if heads is not None and (isinstance(heads, Tensor) or not isinstance(heads, Iterable)):
        raise PotentialsError(f"heads is {heads!r:.60}; pass a list with True or False for each potentials.")
    heads = [False] * len(several) if heads is None else list(heads)
    if len(heads) != len(several):
        raise PotentialsError(f"heads has {len(heads)} values for {len(several)} potentials; pass one for each.")
    if isinstance(lengths, Iterator):  # it is read once for each potentials
        lengths = list(lengths)
    for potentials, with_heads in zip(several, heads, strict=True):
        if with_heads:
            require_lexical(potentials)
    prepared = [prepare(potentials, lengths, gradient=True) for potentials in several]
    ready = [potentials for potentials, _, _ in prepared]
    flags = [flag or has_head(potentials) for potentials, flag in zip(ready, heads, strict=True)]
    backends = {backend for _, _, backend in prepared}
    with torch.no_grad():
        if len(backends) == 1 and hasattr(prepared[0][2], "inside_outside_each"):
            results = prepared[0][2].inside_outside_each(ready, prepared[0][1], flags)
        else:
            results = [
                backend.inside_outside(potentials, sizes, flag)
                for (potentials, sizes, backend), flag in zip(prepared, flags, strict=True)
            ]
    return [
        LogPartition(differentiable(check_log_z(log_z, backend), probabilities, potentials), probabilities)
        for (log_z, probabilities), (potentials, _, backend) in zip(results, prepared, strict=True)
    ]


def marginals(potentials: AnyPotentials, lengths: Lengths) -> AnyPotentials:
    """The probability of every part, in the shape of its potential; a constant."""
    return log_partitions([potentials], lengths)[0].marginals  # type: ignore[return-value]


def head_marginals(potentials: LexicalPotentials, lengths: Lengths) -> Tensor:
    """[batch, n + 1, n + 1, n] the probability that span (i, j) is in the tree with head h; a constant."""
    require_lexical(potentials)
    potentials, lengths, backend = prepare(potentials, lengths, gradient=True)
    with torch.no_grad():
        log_z, found = backend.inside_outside(potentials, lengths, heads=True, arcs=False)
    check_log_z(log_z, backend)
    return found.head  # type: ignore[no-any-return]


def best_trees(potentials: Potentials, lengths: Lengths) -> Trees:
    """The tree with the highest score of each sentence. Ties break the same way in every backend."""
    potentials, lengths, backend = prepare(potentials, lengths, gradient=False)
    with torch.no_grad():
        trees: Trees = backend.viterbi(potentials, lengths.clone())  # the trees keep the lengths
    check_log_z(trees.score, backend)
    return trees


def sample_trees(
    potentials: Potentials, lengths: Lengths, k: int, generator: torch.Generator | None = None
) -> list[Trees]:
    """k exact, independent samples from the distribution over trees, each a Trees for the whole batch."""
    if not isinstance(k, Integral) or isinstance(k, bool) or k < 0:
        raise PotentialsError(f"k is {k!r:.60}; it must be a whole number, 0 or more.")
    if not isinstance(generator, torch.Generator | None):
        raise PotentialsError(f"generator is {generator!r:.60}; pass a torch.Generator, such as torch.manual_seed(5).")

    def sample(scores: Tensor) -> Tensor:  # unnormalized log-probabilities [rows, options]
        return torch.multinomial(scores.softmax(-1), 1, generator=generator).squeeze(-1)

    potentials, lengths, backend = prepare(potentials, lengths, gradient=False)
    device = potentials.span.device
    if generator is not None and generator.device.type != device.type:
        raise PotentialsError(
            f"generator is on {generator.device} and the potentials on {device}; pass torch.Generator({device.type!r})."
        )
    with torch.no_grad():
        log_z, chart = backend.inside(potentials, lengths)
        check_log_z(log_z, backend)
        clean = sanitize(potentials, lengths)
        trees = backtrack(backend.log_chart(chart), clean, lengths.clone(), k, sample)
    return [trees.rows(slice(copy, None, k)) for copy in range(k)]


def entropy(potentials: Potentials, lengths: Lengths) -> Tensor:
    """The entropy [batch] of the distribution over trees, in nats. Gradients: reference backend only."""
    return at_least_zero(-expected_log_ratio(potentials, None, lengths))


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
    # Both in the wider of their types, so that one backend serves both.
    dtype = functools.reduce(torch.promote_types, [t.dtype for t in (*p, *q) if t is not None])
    p, q = (type(r)(**{**r._asdict(), "span": r.span.to(dtype)}) for r in (p, q))
    return at_least_zero(expected_log_ratio(p, q, lengths))


def at_least_zero(value: Tensor) -> Tensor:
    """The value without rounding errors below 0; its gradient is that of the value everywhere."""
    return value - value.detach().clamp(max=0.0)


def expected_log_ratio(p: AnyPotentials, q: AnyPotentials | None, lengths: Lengths) -> Tensor:
    """E_p[log p(T) - log q(T)] over trees T; without q, E_p[log p(T)].

    It is the difference of large numbers, so that a CPU computes it in float64. Its gradient is a second derivative of
    log Z, which only the reference can compute.
    """
    if q is not None:
        q, lengths, _ = prepare(q, lengths, gradient=True)  # an iterator can be read only once
    p, sizes, backend = prepare(p, lengths, gradient=True)
    tensors = [t for t in (*p, *(q or ())) if t is not None]
    dtype, create_graph = p.span.dtype, backend is reference and needs_gradient(tensors)
    more = {"create_graph": True} if create_graph else {}
    if not backend.ASYNC_CHECKS:
        p, q = reference.in_float64(p), None if q is None else reference.in_float64(q)
    with torch.set_grad_enabled(create_graph):
        log_z, probabilities = backend.inside_outside(p, sizes, has_head(p, q), **more)
        value = reference.expected_score(sanitize(p, sizes), probabilities, 0.0) - check_log_z(log_z, backend)
        if q is not None:
            log_z_q = check_log_z(backend.inside(q, sizes)[0], backend)
            value = value - reference.expected_score(sanitize(q, sizes), probabilities, torch.inf) + log_z_q
    if backend is reference:
        return value.to(dtype)
    what = "entropy and kl_divergence have gradients"
    constant: Tensor = _NoGradient.apply(value.to(dtype), what, *tensors)  # type: ignore[no-untyped-call]
    return constant


# Backends


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Within this context every tree function runs on the backend of this name, or raises."""
    if not isinstance(name, str) or name not in BACKENDS:
        raise BackendError(f"there is no backend {name!r}; choose one of {', '.join(BACKENDS)}.")
    token = _forced_backend.set(name)
    try:
        yield
    finally:
        _forced_backend.reset(token)


def backend_for(potentials: Potentials) -> ModuleType:
    """The backend module for these potentials: the forced one, or the first that supports them."""
    forced = _forced_backend.get()
    supported = (name for name in BACKENDS if unavailable_reason(name, potentials) is None)
    name = forced or next(supported)
    if forced and (reason := unavailable_reason(forced, potentials)):
        raise BackendError(f"backend {forced!r} is not available here: {reason}. Available: {', '.join(supported)}.")
    return importlib.import_module(BACKENDS[name])


class Plan(NamedTuple):
    """What follows from the types, shapes and devices of potentials."""

    backend: ModuleType
    chart_bytes: tuple[int, int]  # without and with an outside pass
    dtype: torch.dtype | None  # to convert them to


_plans: dict[tuple[Any, ...], Plan] = {}
MAX_PLANS = 1024


def plan_for(potentials: Potentials) -> Plan:
    """The plan for these potentials, whose shapes are checked unless others of the same shapes were."""
    try:
        shapes = [t if t is None else (t.shape, t.dtype, t.device, t.layout) for t in potentials]
    except (AttributeError, RuntimeError, TypeError):  # not tensors, or nested ones: the check says so
        check_shapes(potentials)
        return make_plan(potentials)
    key = type(potentials), _forced_backend.get(), *shapes
    plan = _plans.get(key)
    if plan is None:
        check_shapes(potentials)
        plan = make_plan(potentials)
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        _plans[key] = plan
    return plan


def make_plan(potentials: Potentials) -> Plan:
    backend = backend_for(potentials)
    dtypes = {t.dtype for t in potentials if t is not None}
    wider = functools.reduce(torch.promote_types, dtypes, torch.float32)
    sizes = backend.chart_bytes(potentials, False), backend.chart_bytes(potentials, True)
    return Plan(backend, sizes, None if dtypes == {wider} else wider)


def unavailable_reason(name: str, potentials: Potentials) -> str | None:
    """Why this backend does not support these potentials; None if it does."""
    span, n = potentials.span, potentials.span.shape[1] - 1
    if name == "numba":
        if span.device.type != "cpu":
            return f"the potentials are on {span.device}, and numba works on the CPU"
        return None if installed("numba") else "the package numba is not installed"
    if name == "triton":
        if span.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            return f"the potentials are on {span.device}, and triton works on CUDA devices"
        if not installed("triton"):
            return "the package triton is not installed; it comes with CUDA builds of torch"
        if any(t is not None and t.dtype == torch.float64 for t in potentials):
            return "the potentials are float64, and the triton kernels compute in float32"
        if n > MAX_TRITON_WORDS:
            return f"the potentials hold {n} words, and the triton kernels at most {MAX_TRITON_WORDS}"
    return None


def installed(package: str) -> bool:
    return package in sys.modules or importlib.util.find_spec(package) is not None


# Inputs and outputs


def prepare(
    potentials: AnyPotentials, lengths: Lengths, gradient: bool | None
) -> tuple[AnyPotentials, Tensor, ModuleType]:
    """Checked potentials in float32 or wider, lengths [batch] on their device, and the backend for them.

    `gradient`: whether an outside pass will run. None: if a potential requires a gradient.
    """
    backend, chart_bytes, dtype = plan_for(potentials)
    if backend is not reference and has_tangents(potentials):
        raise BackendError('only the reference has forward-mode derivatives; use `use_backend("reference")`.')
    if backend is not reference and any(t is not None and is_functorch_wrapped_tensor(t) for t in potentials):
        raise BackendError(
            'torch.func.grad needs the reference; use `use_backend("reference")`, or torch.autograd.grad. '
            "torch.func.vmap works on no backend; these functions have a batch dimension of their own."
        )
    batch, n, device = potentials.span.shape[0], potentials.span.shape[1] - 1, potentials.span.device
    raise_pending(wait=False)
    if gradient is None:
        gradient = needs_gradient(potentials)
    needed = chart_bytes[gradient]
    if not fits_in_memory(needed, device):
        raise ChartMemoryError(
            f"charts for {batch} sentences of up to {n} words need {needed / 2**30:.1f} GiB and {device} has "
            f"{(free_bytes(device) or 0) / 2**30:.1f} GiB free; pass fewer sentences at once, or split the longest."
        )
    sizes = as_lengths(lengths, batch)
    if sizes.device.type == "cpu" or not backend.ASYNC_CHECKS:
        check_lengths(sizes, n)
    if sizes.device != device:
        sizes = sizes.to(device, non_blocking=True)
    if backend is reference:
        check_values(potentials, sizes)
    if dtype is not None:
        potentials = map_tensors(potentials, lambda tensor: tensor.to(dtype))
    return potentials, sizes, backend


def has_tangents(potentials: Potentials) -> bool:
    """Whether a potential carries a tangent of forward-mode autograd."""
    if forward_ad._current_level < 0:
        return False
    return any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in potentials)


def require_lexical(potentials: Potentials) -> None:
    if not isinstance(potentials, LexicalPotentials):
        raise WrongTreeError(
            f"{type(potentials).__name__} have no heads; pass LexicalPotentials, or ask for marginals."
        )


def has_head(*distributions: Potentials | None) -> bool:
    return any(isinstance(p, LexicalPotentials) and p.head is not None for p in distributions)


def needs_gradient(potentials: Iterable[Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in potentials)


def check_log_z(log_z: Tensor, backend: ModuleType) -> Tensor:
    """The same values; raises if a sentence has no tree. Backends with ASYNC_CHECKS report that themselves."""
    for b, value in enumerate(() if backend.ASYNC_CHECKS else log_z.tolist()):
        if value < NO_TREE:
            raise PotentialsError(no_tree_message(b))
    return log_z


# Memory


def fits_in_memory(needed: int, device: torch.device) -> bool:
    """Whether the device has this many bytes free, as far as is known."""
    free = None if needed < MIN_CHECKED_BYTES else free_bytes(device)
    return free is None or needed <= free


def free_bytes(device: torch.device) -> int | None:
    """The bytes that can still be allocated; None if unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    try:
        with open("/proc/meminfo") as lines:
            available = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    except OSError:  # not Linux: all physical memory
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    return int(available[0]) * 1024 if available else None


@contextmanager
def ignore_out_of_memory() -> Iterator[None]:
    """Suppress out-of-memory errors."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: PyTorch has an error type for that, but also reports it in messages of other errors.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."))
    True
    """
    phrases = ("allocate memory", "not enough memory", "out of memory")
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(p in str(error) for p in phrases):
        return True
    # While the error was handled, as at the end of a graph capture, another one may have been raised.
    return error.__context__ is not None and is_out_of_memory(error.__context__)


# Autograd


def differentiable(log_z: Tensor, marginals: Potentials, potentials: Potentials) -> Tensor:
    """The same log Z; its gradient in the potentials is the marginals."""
    pairs = [
        (tensor, probability)
        for tensor, probability in zip(potentials, marginals, strict=True)
        if tensor is not None and probability is not None and tensor.requires_grad
    ]
    if not (pairs and torch.is_grad_enabled()):
        return log_z
    tensors, probabilities = zip(*pairs, strict=True)
    result: Tensor = _LogPartition.apply((log_z,), probabilities, *tensors)  # type: ignore[no-untyped-call]
    return result


class _LogPartition(torch.autograd.Function):
    """log Z of these tensors with a known gradient: the marginals."""

    @staticmethod
    def forward(ctx: Any, log_z: tuple[Tensor], marginals: Sequence[Tensor], *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*marginals, *tensors)
        return log_z[0]  # passed in a tuple, it is not an input to autograd, which would require a copy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        saved = ctx.saved_tensors
        marginals, tensors = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        with torch.no_grad():
            if len(gradient) and gradient.stride(0) == 0:  # expanded from one number, as by sum() and mean()
                gradients = list(torch._foreach_mul(marginals, gradient[0]))
            else:
                gradients = [part * gradient.view(-1, *(1,) * (part.dim() - 1)) for part in marginals]
        if torch.is_grad_enabled():  # a second derivative must raise, not be silently zero
            what = "log_partition has gradients that can be differentiated again"
            raising = _NoGradient.apply
            gradients = [raising(g, what, gradient, *tensors) for g in gradients]  # type: ignore[no-untyped-call]
        return None, None, *gradients


class _NoGradient(torch.autograd.Function):
    """A value whose backward raises."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, what: str, *_: Tensor | None) -> Tensor:
        ctx.what = what
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise BackendError(f"{ctx.what} on the reference backend only; call it within use_backend('reference').")
