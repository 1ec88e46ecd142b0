"""Each backend equals the reference in float64.

Potentials are rounded to the type that the backend is given before the reference sees them in float64, so that both sum
the same numbers. The Triton kernels run on a CUDA device and, in small cases, under Triton's interpreter
(`make test-triton`).
"""

import math
import os
from functools import lru_cache
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from nestree.errors import PotentialsError
from nestree.treecrf import (
    IMPOSSIBLE,
    LexicalPotentials,
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
from tests.treecrf.cases import CASES, HALVES, SHAPES, TIES, Case, Potentials, leaves, lexical, plain, score_of, to

# The interpreter computes with numpy, which warns of log2(0) and the like; on a GPU that is -inf, as wanted.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")

INTERPRETED = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="make test-triton runs it")
MARKS = {("triton", "cuda"): [pytest.mark.cuda], ("triton", "cpu"): [INTERPRETED]}
KERNELS = (("numba", "cpu"), ("triton", "cuda"), ("triton", "cpu"))
BACKENDS = (("reference", "cpu"), *KERNELS)
# Some have many programs, some have one; and one sentence alone has all of them.
LONG_AND_SHORT = {
    f"{lengths}, observed: {observed}": Case(lengths, head=observed, observed=observed, mute=False)
    for lengths in ((1, 97, 5, 60, 1, 33), (1, 1, 1, 70), (90,))
    for observed in (False, True)
}
# With many programs for each sentence, with one, with two on each processor; and, of long ones, one by one.
SEVERAL = {f"{len(each)}x{each[0]}": Case(each) for each in (
    (40,) * 5, (20, 33) * 20, (60, 9) * 12, (80, 9, 1), (130, 60)
)}  # fmt: skip
CHEAP = {name: case for name, case in CASES.items() if max(case.lengths) <= 33}


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


def on(backends, cases: dict[str, Case], cuda_cases: dict[str, Case] | None = None):
    """Each case on each backend; under the interpreter, the small ones; on a CUDA device, more of them."""
    return pytest.mark.parametrize(
        ("backend", "device", "case"),
        [
            pytest.param(*backend, case, id=f"{'-'.join(backend)}-{name}", marks=MARKS.get(backend, []))
            for backend in backends
            for name, case in (cases | (cuda_cases or {}) if "cuda" in backend else cases).items()
            if backend != ("triton", "cpu") or sum(case.lengths) < 20
        ],
    )


@lru_cache(maxsize=64)
def expected(case: Case, device: str) -> tuple[Tensor, dict[str, Tensor]]:
    """log Z and all marginals in float64, from the reference; those of `head` for every lexical case."""
    given = to(case.potentials(device), torch.float64)
    if case.kind == "lexical" and given.head is None:
        given = given._replace(head=given.span.new_zeros(*given.span.shape, given.root.shape[1]))
    given = leaves(given)
    with use_backend("reference"):
        log_z = log_partition(given, case.lengths)
        log_z.sum().backward()
    return log_z.detach(), {name: t.grad for name, t in given._asdict().items()}


# Sums


def sum_errors(backend: str, case: Case, device: str) -> dict[str, float]:
    """The largest error of log Z (relative where it exceeds 1) and of the gradient in each potential."""
    right_z, right = expected(case, device)
    given = leaves(case.potentials(device))
    with use_backend(backend):
        log_z = log_partition(given, case.lengths)
    assert log_z.dtype == torch.float32
    found = {"value": largest(log_z, right_z, right_z)}
    weight = torch.linspace(-1.5, 2.0, len(case.lengths), device=device)
    (log_z * weight).sum().backward()
    for name, tensor in given._asdict().items():
        if tensor is not None:
            assert tensor.grad.dtype == tensor.dtype
            scaled = right[name] * weight.view(-1, *(1,) * (tensor.dim() - 1))
            found[name] = largest(tensor.grad, scaled)
    return found


def largest(found: Tensor, right: Tensor, size: Tensor | float = 1.0) -> float:
    """The largest error, relative to `size` where that exceeds 1."""
    assert found.shape == right.shape
    error = (found.detach().double() - right).abs() / torch.as_tensor(size).abs().clamp(min=1)
    return float(error.max()) if error.numel() else 0.0


@on(KERNELS, CASES, LONG_AND_SHORT)
def test_log_partition_each_gradient_and_marginals(backend, device, case):
    allowed, (_, right) = tolerance(backend, case), expected(case, device)
    errors = sum_errors(backend, case, device)
    assert errors.pop("value") <= allowed.value
    for name, error in errors.items():
        assert error <= allowed.gradient, name
    given = case.potentials(device)
    with use_backend(backend):
        for name, tensor in marginals(given, case.lengths)._asdict().items():
            assert (tensor is None) == (getattr(given, name) is None)
            if tensor is not None:
                assert largest(tensor, right[name]) <= allowed.gradient, name
        if case.kind == "lexical":
            found = head_marginals(given, case.lengths)
            assert largest(found, right["head"]) <= allowed.gradient


@on(BACKENDS, {"short": Case((5, 1, 4)), "long": Case((1, 18))}, SEVERAL)
def test_several_sums_at_once(backend, device, case):
    """Several sums over the same sentences: each as if alone, with heads where they are asked for, and the sentence
    that has trouble is named."""
    lengths = case.lengths
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
            ((right_z, right),) = log_partitions([to(given, torch.float64)], lengths, [part.head is not None])
        assert largest(log_z, right_z, right_z) <= allowed.value
        assert (part.head is not None) == (heads or given.head is not None)
        for name, tensor in right._asdict().items():
            if tensor is not None:
                assert largest(getattr(part, name), tensor) <= allowed.gradient, name
    several[2].span[-1] = torch.nan
    message = rf"sentence {len(lengths) - 1} .* in span"
    with use_backend(backend), pytest.raises(PotentialsError, match=message):  # noqa: PT012
        log_partitions(several, lengths, asked)
        raise_pending()


@on(BACKENDS, CHEAP)
def test_entropy_and_divergence(backend, device, case):
    """Relative to log Z where that exceeds 1."""
    p, q = case.potentials(device), case.potentials(device, seed=1)
    size, allowed = expected(case, device)[0], tolerance(backend, case).entropy
    with use_backend("reference"):
        right = entropy(to(p, torch.float64), case.lengths)
        right_kl = kl_divergence(to(p, torch.float64), to(q, torch.float64), case.lengths)
    with use_backend(backend):
        assert largest(entropy(p, case.lengths), right, size) <= allowed
        assert largest(kl_divergence(p, q, case.lengths), right_kl, size) <= allowed


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


@on(KERNELS, CASES | TIES, LONG_AND_SHORT)
def test_best_trees_and_ties_are_those_of_the_reference_bit_for_bit(backend, device, case):
    """The score and the tree of the reference in float32, and a tree that has this score."""
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


@on(BACKENDS, HALVES)
def test_half_precision_is_summed_in_float32(backend, device, case):
    given = case.potentials(device)
    with use_backend(backend):
        assert given.span.dtype.itemsize == 2
        assert log_partition(given, case.lengths).dtype == torch.float32
    test_log_partition_each_gradient_and_marginals(backend, device, case)
    test_best_trees_and_ties_are_those_of_the_reference_bit_for_bit(backend, device, case)


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


@on(KERNELS, SHAPES)
def test_the_layout_of_inputs_does_not_change_the_bits(backend, device, case):
    """Inputs may lie in memory in another order, or share memory."""
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
        assert same_bits(everything(backend, other, case.lengths), right)
        first = type(given)(*(None if t is None else t[:1].expand_as(t) for t in other))
        with use_backend(backend):
            repeated = log_partition(first, [case.lengths[0]] * len(case.lengths))
            found = [t for t in marginals(other, case.lengths) if t is not None]
            assert same_bits(found, right[1 : -2 if len(given) == 1 else -5])
        assert torch.equal(repeated, right[0][:1].expand_as(repeated))


@on(KERNELS, SHAPES)
def test_padding_old_buffers_and_repetition_do_not_change_the_bits(backend, device, case):
    given = case.potentials(device)
    right = everything(backend, given, case.lengths)
    for filling in (0.0, 7.0, torch.inf, -torch.inf, IMPOSSIBLE):
        other = type(given)(*(None if t is None else t.nan_to_num(filling, neginf=-torch.inf) for t in given))
        assert same_bits(everything(backend, other, case.lengths), right), filling
    for name, gradient in zip(given._fields, right[1:], strict=False):
        unread = getattr(given, name)
        if unread is not None:
            assert (gradient[unread.isnan()] == 0).all(), name
    assert same_bits(everything(backend, given, case.lengths), right)
    torch.use_deterministic_algorithms(True)  # makes torch fill new memory with NaN, or large whole numbers
    try:
        assert torch.empty(3, device=device).isnan().all()
        assert same_bits(everything(backend, given, case.lengths), right)
    finally:
        torch.use_deterministic_algorithms(False)


@on(BACKENDS, {"": Case(())})
def test_a_batch_of_no_sentences(backend, device, case):
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


@pytest.mark.parametrize("std", [0.01, 1.0, 15.0, 60.0])
def test_numba_in_float64_is_as_good_as_the_reference(std):
    for make, lengths in ((lexical, [33, 20, 1]), (plain, [63, 40, 2])):
        found = []
        for backend in ("reference", "numba"):
            given = leaves(make(lengths, std=std, seed=3))
            with use_backend(backend):
                log_z = log_partition(given, lengths)
            log_z.sum().backward()
            found.append((log_z.detach(), *(t.grad for t in given)))
        for right, other in zip(*found, strict=True):
            torch.testing.assert_close(other, right, rtol=1e-13, atol=1e-10)


# Rows whose possible heads are all improbable


def improbable(case: str) -> tuple[LexicalPotentials, list[int]]:
    n = {"two": 2, "four": 4, "impossible": 3}[case]
    shapes = (n + 1, n + 1), (n, n), (n,), (n + 1, n + 1), (n + 1, n + 1, n)
    span, arc, root, inherit, head = (torch.zeros(1, *shape) for shape in shapes)
    if case == "two":  # the only possible head weighs less than any float32
        arc[0, 0, 1], head[0, 0, 2, 1] = IMPOSSIBLE, -89.0
    elif case == "four":  # likewise, in a span that is nearly certain
        arc[0, 1, 0], inherit[0, 2, 3], arc[0, 3, :3] = IMPOSSIBLE, -20.0, -5.0
        arc[0, 2, :2] = -28.0
        head[0, 0, 3, 0], head[0, 0, 3, 2] = IMPOSSIBLE, -42.0
        span[0, 1, 4] = span[0, 2, 4] = -98.0
    else:  # the rest of the tree of an impossible head weighs more than any float32
        root[0, 1:] = -60 * math.log(2)
        arc[0, 1, 0] = arc[0, 0, 1] = -48 * math.log(2)
        span[0, 1, 3] = -146 * math.log(2)
        head[0, 0, 2, 0], head[0, 0, 3, 0] = IMPOSSIBLE, 50 * math.log(2)
    return LexicalPotentials(span, arc, root, inherit, head), [n]


@pytest.mark.parametrize("case", ["two", "four", "impossible"])
@pytest.mark.parametrize(("backend", "device"), [pytest.param(*names, marks=MARKS.get(names, [])) for names in KERNELS])
def test_heads_that_a_float_cannot_weigh(backend, device, case):
    given, lengths = improbable(case)
    with use_backend("reference"):
        right = log_partitions([to(given, torch.float64)], lengths)[0]
    with use_backend(backend):
        found = log_partitions([to(given, device)], lengths)[0]
    assert largest(found.log_z.cpu(), right.log_z, right.log_z) < 1e-5
    for tensor, expected in zip(found.marginals, right.marginals, strict=True):
        assert largest(tensor.cpu(), expected) < 1e-4
