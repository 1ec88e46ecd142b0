"""A backend against the float64 reference, case by case.

Potentials are rounded to the type that the backend is given before the reference sees them in float64, so
that both sum the same numbers.
"""

from functools import lru_cache
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from nestree.errors import PotentialsError
from nestree.treecrf import (
    IMPOSSIBLE,
    PlainPotentials,
    best_trees,
    entropy,
    head_marginals,
    kl_divergence,
    log_partition,
    log_partitions,
    marginals,
    raise_pending,
    use_backend,
)
from nestree.treecrf.ops import inside_outside
from tests.treecrf.cases import Case, Potentials, leaves, lexical, plain, score_of, to


class Tolerance(NamedTuple):
    value: float  # of log Z, relative to it where it exceeds 1
    gradient: float  # of any marginal, absolute
    entropy: float  # of entropy and divergence, relative to log Z where that exceeds 1


# By backend and standard deviation of the scores. Beside each the largest errors that were measured.
TOLERANCE = {
    ("numba", 0.01): Tolerance(2e-7, 4e-6, 5e-7),  # 5.6e-8  9.5e-7  1.1e-7
    ("numba", 1.0): Tolerance(6e-7, 2e-5, 6e-6),  # 1.4e-7  5.7e-6  1.4e-6
    ("numba", 15.0): Tolerance(2e-7, 1e-6, 2e-6),  # 3.8e-8  2.4e-7  4.8e-7
    ("numba", 60.0): Tolerance(2e-7, 3e-7, 8e-6),  # 4.1e-8  6.6e-8  1.9e-6
    ("triton", 0.01): Tolerance(5e-7, 8e-5, 6e-7),  # 1.4e-7  1.8e-5  1.6e-7
    ("triton", 1.0): Tolerance(2e-6, 2e-4, 1e-5),  # 3.9e-7  3.3e-5  2.4e-6
    ("triton", 15.0): Tolerance(3e-6, 4e-4, 2e-4),  # 7.5e-7  7.2e-5  4.8e-5
    ("triton", 60.0): Tolerance(1.2e-5, 4e-3, 4e-3),  # 3.0e-6  9.9e-4  8.1e-4
}


# What is expected


class Expected(NamedTuple):
    log_z: Tensor  # [batch]
    marginals: dict[str, Tensor]  # by name; `head` for every lexical case


@lru_cache(maxsize=64)
def expected(case: Case, device: str) -> Expected:
    """log Z and all marginals in float64, from the reference."""
    given = to(case.potentials(device), torch.float64)
    if case.kind == "lexical" and given.head is None:
        given = given._replace(head=given.span.new_zeros(*given.span.shape, given.root.shape[1]))
    given = leaves(given)
    with use_backend("reference"):
        log_z = log_partition(given, case.lengths)
        log_z.sum().backward()
    return Expected(log_z.detach(), {name: t.grad for name, t in given._asdict().items()})


# Sums


def sum_errors(backend: str, case: Case, device: str) -> dict[str, float]:
    """The largest error of log Z (relative where it exceeds 1) and of the gradient in each potential."""
    right = expected(case, device)
    given = leaves(case.potentials(device))
    with use_backend(backend):
        log_z = log_partition(given, case.lengths)
    assert log_z.dtype == torch.float32
    found = {"value": relative(log_z, right.log_z, right.log_z)}
    weight = torch.linspace(-1.5, 2.0, len(case.lengths), device=device)
    (log_z * weight).sum().backward()
    for name, tensor in given._asdict().items():
        if tensor is not None:
            assert tensor.grad.dtype == tensor.dtype
            scaled = right.marginals[name] * weight.view(-1, *(1,) * (tensor.dim() - 1))
            found[name] = largest(tensor.grad, scaled)
    return found


def relative(found: Tensor, right: Tensor, size: Tensor) -> float:
    return float(((found.detach().double() - right).abs() / size.abs().clamp(min=1)).max())


def largest(found: Tensor, right: Tensor) -> float:
    assert found.shape == right.shape
    error = (found.double() - right).abs()
    return float(error.max()) if error.numel() else 0.0


def check_sums(backend: str, case: Case, device: str) -> None:
    """log Z and its gradient in each potential, marginals and head marginals."""
    allowed, right = tolerance(backend, case), expected(case, device)
    errors = sum_errors(backend, case, device)
    assert errors.pop("value") <= allowed.value
    for name, error in errors.items():
        assert error <= allowed.gradient, name
    given = case.potentials(device)
    with use_backend(backend):
        for name, tensor in marginals(given, case.lengths)._asdict().items():
            assert (tensor is None) == (getattr(given, name) is None)
            if tensor is not None:
                assert largest(tensor, right.marginals[name]) <= allowed.gradient, name
        if case.kind == "lexical":
            found = head_marginals(given, case.lengths)
            assert largest(found, right.marginals["head"]) <= allowed.gradient


def check_several(backend: str, lengths: tuple[int, ...], device: str) -> None:
    """Several sums over the same sentences: each as if alone, with heads where they are asked for, and the sentence
    that has trouble is named."""
    # Each has `head`, or not; and is asked for heads, or not.
    kinds = ((False, False), (True, True), (False, True), (True, False), (False, False))
    cases = [Case(lengths, head=head, mute=False) for head, _ in kinds]
    several = [case.potentials(device, seed=seed) for seed, case in enumerate(cases)]
    asked = [heads for _, heads in kinds]
    with use_backend(backend):
        found = log_partitions(several, lengths, asked)
    assert len(found) == len(several)
    allowed = tolerance(backend, cases[0])
    for given, heads, (log_z, part) in zip(several, asked, found, strict=True):
        with use_backend("reference"):
            right_z, right = inside_outside(to(given, torch.float64), lengths, part.head is not None)
        assert relative(log_z, right_z, right_z) <= allowed.value
        assert (part.head is not None) == (heads or given.head is not None)
        for name, tensor in right._asdict().items():
            if tensor is not None:
                assert largest(getattr(part, name), tensor) <= allowed.gradient, name
    several[2].span[-1] = torch.nan
    message = rf"sentence {len(lengths) - 1} .* in span"
    with use_backend(backend), pytest.raises(PotentialsError, match=message):  # noqa: PT012
        log_partitions(several, lengths, asked)
        raise_pending()


def check_entropy(backend: str, case: Case, device: str) -> None:
    """The entropy and a divergence, relative to log Z where that exceeds 1."""
    p, q = case.potentials(device), case.potentials(device, seed=1)
    size, allowed = expected(case, device).log_z, tolerance(backend, case).entropy
    with use_backend("reference"):
        right = entropy(to(p, torch.float64), case.lengths)
        right_kl = kl_divergence(to(p, torch.float64), to(q, torch.float64), case.lengths)
    with use_backend(backend):
        assert relative(entropy(p, case.lengths), right, size) <= allowed
        assert relative(kl_divergence(p, q, case.lengths), right_kl, size) <= allowed


def tolerance(backend: str, case: Case) -> Tolerance:
    # The reference sums in float64 and rounds to float32.
    allowed = Tolerance(2e-7, 1e-6, 5e-7) if backend == "reference" else TOLERANCE[backend, case.std]
    if case.dtype in (torch.float16, torch.bfloat16):  # gradients come in the type of the potentials
        return allowed._replace(gradient=allowed.gradient + 2 * torch.finfo(case.dtype).eps)
    return allowed


# Best trees


@lru_cache(maxsize=64)
def reference_trees(case: Case, device: str):
    with use_backend("reference"):
        return best_trees(case.potentials(device), case.lengths)


def check_best_trees(backend: str, case: Case, device: str) -> None:
    """Bit for bit the score and the tree of the reference in float32, and a tree that has this score."""
    given = case.potentials(device)
    with use_backend(backend):
        trees = best_trees(given, case.lengths)
    right = reference_trees(case, device)
    assert torch.equal(trees.score, right.score)
    assert torch.equal(trees.spans.long(), right.spans)
    if case.kind == "lexical":
        assert torch.equal(trees.arcs.long(), right.arcs)
        assert torch.equal(trees.root.long(), right.root)
    else:
        assert trees.arcs is None
        assert trees.root is None
    on_host = to(given, "cpu", torch.float64)
    for b, length in enumerate(case.lengths):
        score = score_of(trees[b], on_host, b, length)
        assert score > IMPOSSIBLE / 2
        assert abs(score - trees[b].score) <= 1e-6 * max(1.0, abs(score), case.std * length)


# Things that must not matter


def everything(backend: str, given: Potentials, lengths) -> list[Tensor]:
    """All that comes out, to be compared bit by bit."""
    learned = leaves(given)
    with use_backend(backend):
        log_z = log_partition(learned, lengths)
        log_z.sum().backward()
        trees = best_trees(given, lengths)
        out = [log_z.detach(), *(t.grad for t in learned if t is not None), trees.score, trees.spans]
        if not isinstance(given, PlainPotentials):
            out += [head_marginals(given, lengths), trees.arcs, trees.root]
    return out


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def check_layout(backend: str, case: Case, device: str) -> None:
    """Inputs that lie in memory in another order, or share memory, give the same bits."""
    given = case.potentials(device)
    right = everything(backend, given, case.lengths)

    def transposed(t: Tensor) -> Tensor:
        return t.transpose(0, -1).contiguous().transpose(0, -1)

    def part_of_larger(t: Tensor) -> Tensor:
        larger = torch.full([2 * size + 1 for size in t.shape], torch.nan, dtype=t.dtype, device=device)
        view = larger[tuple(slice(1, 2 * size, 2) for size in t.shape)]
        return view.copy_(t)

    for change in (transposed, part_of_larger):
        other = type(given)(*(None if t is None else change(t) for t in given))
        assert len(case.lengths) == 1 or not any(t.is_contiguous() for t in other if t is not None)
        with use_backend(backend):
            log_z = log_partition(other, case.lengths)
            assert torch.equal(log_z, right[0])
            trees = best_trees(other, case.lengths)
            found = marginals(other, case.lengths)
            first = type(given)(*(None if t is None else t[:1].expand_as(t) for t in other))
            repeated = log_partition(first, [case.lengths[0]] * len(case.lengths))
        for tensor, gradient in zip((t for t in found if t is not None), right[1:], strict=False):
            assert torch.equal(tensor, gradient)
        assert torch.equal(trees.score, right[1 + sum(t is not None for t in given)])
        assert torch.equal(repeated, log_z[:1].expand_as(repeated))


def check_padding(backend: str, case: Case, device: str) -> None:
    """Whatever stands where no tree looks: the same bits."""
    given = case.potentials(device)
    right = everything(backend, given, case.lengths)
    for filling in (0.0, 7.0, torch.inf, -torch.inf, IMPOSSIBLE):
        other = type(given)(*(None if t is None else t.nan_to_num(filling, neginf=-torch.inf) for t in given))
        assert same_bits(everything(backend, other, case.lengths), right), filling
    for name, gradient in zip(given._fields, right[1:], strict=False):
        unread = getattr(given, name)
        if unread is not None:
            assert (gradient[unread.isnan()] == 0).all(), name


def check_buffers(backend: str, case: Case, device: str) -> None:
    """Another run, and one with memory that is full of NaN before: the same bits."""
    given = case.potentials(device)
    right = everything(backend, given, case.lengths)
    assert same_bits(everything(backend, given, case.lengths), right)
    torch.use_deterministic_algorithms(True)  # makes torch fill new memory with NaN, or large whole numbers
    try:
        assert torch.empty(3, device=device).isnan().all()
        assert same_bits(everything(backend, given, case.lengths), right)
    finally:
        torch.use_deterministic_algorithms(False)


def check_empty_batch(backend: str, device: str) -> None:
    """No sentences: no numbers, of the right shapes."""
    for given in (to(lexical([], 5), device, torch.float32), to(plain([], 5), device, torch.float32)):
        learned = leaves(given)
        with use_backend(backend):
            log_z = log_partition(learned, [])
            log_z.sum().backward()
            trees, part, uncertain = best_trees(given, []), marginals(given, []), entropy(given, [])
        assert log_z.shape == trees.score.shape == uncertain.shape == (0,)
        assert len(trees) == 0
        assert list(trees) == []
        assert trees.spans.shape[:2] == (0, 9)
        for name, tensor in learned._asdict().items():
            assert tensor.grad.shape == getattr(part, name).shape == tensor.shape
