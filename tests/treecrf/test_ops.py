"""How the public functions behave in a program: backends, gradient modes, precisions, and kinds of input."""

import itertools

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

from nestree.errors import BackendError, PotentialsError, WrongTreeError
from nestree.treecrf import (
    LexicalPotentials,
    best_trees,
    crossing_spans,
    entropy,
    head_marginals,
    kl_divergence,
    log_partition,
    log_partitions,
    marginals,
    ops,
    sample_trees,
    use_backend,
)
from tests.treecrf.cases import leaves, lexical, plain, to
from tests.treecrf.conftest import LENGTHS, valid
from tests.treecrf.test_backends import same_bits


def single() -> LexicalPotentials:
    return to(valid(), torch.float32)


def tensors(answer) -> list[torch.Tensor]:
    """All tensors of an answer: a tensor, potentials, a tuple, Trees, or a list of Trees."""
    if isinstance(answer, torch.Tensor):
        return [answer]
    if hasattr(answer, "score"):
        return [t for t in (answer.score, answer.spans, answer.arcs, answer.root) if t is not None]
    return [t for part in answer if part is not None for t in tensors(part)]


def same(one, other) -> bool:
    return same_bits(tensors(one), tensors(other))


# Choosing a backend


def backend_name() -> str:
    return ops.backend_for(single()).__name__


@pytest.mark.parametrize("name", ["reference", "numba"])
def test_use_backend_forces_one_until_the_block_ends(name):
    assert backend_name() == ops.BACKENDS["numba"]
    with use_backend(name):
        assert backend_name() == ops.BACKENDS[name]
        with use_backend("reference"):
            assert backend_name() == ops.BACKENDS["reference"]
        with pytest.raises(ZeroDivisionError), use_backend("reference"):
            raise ZeroDivisionError
        assert backend_name() == ops.BACKENDS[name]
    assert backend_name() == ops.BACKENDS["numba"]


def test_an_unknown_backend_and_one_that_cannot_serve_name_those_that_can(monkeypatch, function):
    message = "there is no backend 'cuda'; choose one of triton, numba, reference"
    with pytest.raises(BackendError, match=message), use_backend("cuda"):
        pass
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    message = r"'triton' is not available .* Available: numba, reference"
    with use_backend("triton"), pytest.raises(BackendError, match=message):
        function(single(), LENGTHS)


def test_backends_that_cannot_serve_say_why(monkeypatch):
    monkeypatch.setattr(ops, "_plans", {})
    monkeypatch.setattr(ops, "installed", lambda package: package != "numba")
    assert backend_name() == ops.BACKENDS["reference"]
    message = r"numba is not installed. Available: reference"
    with use_backend("numba"), pytest.raises(BackendError, match=message):
        log_partition(single(), LENGTHS)
    monkeypatch.setattr(ops, "_plans", {})
    monkeypatch.setattr(ops, "installed", lambda package: True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    wide = single()._replace(root=torch.zeros(2, 4, dtype=torch.float64))
    with use_backend("triton"), pytest.raises(BackendError, match=r"float64.*Available: numba, reference"):
        log_partition(wide, LENGTHS)


# Modes of autograd


def test_modes_of_torch_change_nothing(backend, function):
    """Without gradients, in autocast and with another default type."""
    expected, given = function(single(), LENGTHS), leaves(single())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = function(given, LENGTHS)
            inner = function(to(single(), torch.float32, copy=True), torch.tensor(LENGTHS))
        assert not any(t.requires_grad for t in tensors(found))
        assert same(found, expected)
        assert same(inner, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(function(single(), LENGTHS), expected)
        log_partition(given, LENGTHS).sum().backward()
    assert given.arc.grad.dtype == torch.float32
    torch.testing.assert_close(given.arc.grad, marginals(single(), LENGTHS).arc)
    given = single()
    torch.set_default_dtype(torch.float64)
    try:
        assert same(function(given, LENGTHS), expected)
        assert crossing_spans(torch.tensor([[0, 0, 2]]), 1, 3).nonzero().tolist() == [[0, 1, 3]]
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_default_device_of_torch_changes_nothing(backend):
    for function in (log_partition, marginals, head_marginals, best_trees, entropy):
        given = single()
        expected = function(given, LENGTHS)
        with torch.device("meta"):
            assert same(function(given, LENGTHS), expected)


def test_only_values_that_have_gradients_ask_for_them(backend):
    given = leaves(single())
    assert log_partition(given, LENGTHS).requires_grad
    assert not log_partition(single(), LENGTHS).requires_grad
    for constant in (marginals, head_marginals, best_trees, lambda p, n: sample_trees(p, n, 3)):
        assert not any(t.requires_grad for t in tensors(constant(given, LENGTHS)))
    assert not entropy(single(), LENGTHS).requires_grad


@pytest.mark.parametrize("learned", LexicalPotentials._fields)
def test_gradients_reach_just_what_asks_for_them(backend, learned):
    everything = leaves(single())
    log_partition(everything, LENGTHS).sum().backward()
    for function in (log_partition, lambda p, n: log_partitions([p], n)[0].log_z):
        given = single()
        wanted = getattr(given, learned).requires_grad_()
        function(given, LENGTHS).sum().backward()
        torch.testing.assert_close(wanted.grad, getattr(everything, learned).grad)
        assert all(t.grad is None for name, t in given._asdict().items() if name != learned)


@pytest.mark.parametrize("kind", ["lexical", "plain"])
def test_differentiating_twice_works_on_the_reference_and_raises_elsewhere(kind):
    functions = [log_partition, lambda p, n: log_partitions([p], n)[0].log_z]
    for name, function in itertools.product(("reference", "numba"), functions):
        given = leaves(lexical(LENGTHS) if kind == "lexical" else plain(LENGTHS))
        with use_backend(name):
            log_z = function(given, LENGTHS)
        (gradient,) = torch.autograd.grad((log_z**2).sum(), given.span, create_graph=True)
        if name == "reference" and function is log_partition:
            (gradient**2).sum().backward()
            assert given.span.grad.abs().max() > 0
        else:
            with pytest.raises(BackendError, match=r"^log_partition .* use_backend\('reference'\)"):
                (gradient**2).sum().backward()


def test_several_sums_are_those_of_each_alone(backend):
    several = [leaves(lexical(LENGTHS)), leaves(plain(LENGTHS)), leaves(lexical(LENGTHS, seed=1, head=False))]
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64)
    found = log_partitions(several, LENGTHS, [True, False, False])
    assert found[2].marginals.head is None
    for one, (log_z, part) in zip(several, found, strict=True):
        (log_z * weight).sum().backward()
        right = marginals(one, LENGTHS)
        assert torch.equal(log_z, log_partition(one, LENGTHS))
        for tensor, its, probability in zip(one, part, right, strict=True):
            if tensor is not None:
                assert torch.equal(its, probability)
                assert not its.requires_grad
                torch.testing.assert_close(tensor.grad, its * weight.view(-1, *[1] * (its.ndim - 1)))
    with torch.no_grad():
        assert not any(one.log_z.requires_grad for one in log_partitions(several, LENGTHS))
    assert log_partitions([], LENGTHS) == []
    with pytest.raises(PotentialsError, match="heads has 1 values for 3 potentials"):
        log_partitions(several, LENGTHS, [True])
    with pytest.raises(WrongTreeError, match="PlainPotentials have no heads"):
        log_partitions(several, LENGTHS, [False, True, False])


# Precision


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_float64_stays_float64_and_half_precision_gives_float32_with_gradients_in_half(backend, dtype):
    given = leaves(to(lexical(LENGTHS), dtype))
    wide = torch.promote_types(dtype, torch.float32)
    log_z = log_partition(given, LENGTHS)
    found = [log_z, entropy(given, LENGTHS), best_trees(given, LENGTHS).score, *marginals(given, LENGTHS)]
    assert {t.dtype for t in found} == {wide}
    assert torch.equal(log_z, log_partition(to(given, wide), LENGTHS))
    log_z.sum().backward()
    assert {t.grad.dtype for t in given} == {dtype}


def test_mixed_precision_is_computed_in_the_widest(backend):
    given = valid()
    mixed = leaves(given._replace(arc=given.arc.half(), root=given.root.float()))
    log_z = log_partition(mixed, LENGTHS)
    assert log_z.dtype == kl_divergence(to(given, torch.float32), given, LENGTHS).dtype == torch.float64
    log_z.sum().backward()
    assert [t.grad.dtype for t in mixed[:3]] == [torch.float64, torch.float16, torch.float32]


def test_entropy_and_kl_divergence_keep_their_digits_in_float32(backend):
    p = to(lexical([40], std=10.0, seed=3), torch.float32)
    q = LexicalPotentials(*(None if t is None else t + 1e-3 for t in p))  # the same distribution
    exact = entropy(to(p, torch.float64), [40])
    assert entropy(p, [40]).double() == pytest.approx(exact, rel=1e-4)
    assert abs(float(kl_divergence(p, q, [40]))) < 1e-3


def test_torch_func_grad_works_on_the_reference_and_raises_elsewhere():
    potentials = single()

    def total(span: torch.Tensor) -> torch.Tensor:
        return log_partition(potentials._replace(span=span), LENGTHS).sum()

    with use_backend("reference"):
        gradient = torch.func.grad(total)(potentials.span)
    torch.testing.assert_close(gradient, marginals(potentials, LENGTHS).span)
    with use_backend("numba"), pytest.raises(BackendError, match=r"torch\.func\.grad needs the reference"):
        torch.func.grad(total)(potentials.span)


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # in PyTorch itself
def test_forward_mode_works_on_the_reference_and_raises_elsewhere():
    given = single()
    with forward_ad.dual_level():
        dual = given._replace(span=forward_ad.make_dual(given.span, torch.ones_like(given.span)))
        with use_backend("numba"), pytest.raises(BackendError, match="only the reference has forward-mode"):
            log_partition(dual, LENGTHS)
        with use_backend("reference"):
            tangent = forward_ad.unpack_dual(log_partition(dual, LENGTHS)).tangent
    assert tangent == pytest.approx(torch.tensor([2.0 * n - 1 for n in LENGTHS]), abs=1e-4)


@pytest.mark.cuda
def test_autocast_on_cuda_changes_nothing():
    given = leaves(to(single(), "cuda"))
    expected = log_partition(given, LENGTHS)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        root = torch.nn.functional.linear(torch.ones(2, 3, device="cuda"), torch.ones(4, 3, device="cuda"))
        assert root.dtype == torch.bfloat16
        found = log_partition(given, LENGTHS)
        halved = log_partition(given._replace(root=root), LENGTHS)
        found.sum().backward()
    assert torch.equal(found, expected)
    assert halved.dtype == torch.float32
    assert given.arc.grad.dtype == torch.float32


# Kinds of input


def test_lengths_may_be_a_list_an_array_or_a_tensor_of_any_whole_type_and_nothing_given_is_changed(backend, function):
    given = single()
    expected = function(given, LENGTHS)
    types = (torch.int64, torch.int32, torch.int16, torch.uint8)
    arrays = np.array(LENGTHS[::-1])[::-1], np.frombuffer(np.array(LENGTHS).tobytes(), int)  # reversed; read-only
    for lengths in (tuple(LENGTHS), *arrays, *(torch.tensor(LENGTHS, dtype=dtype) for dtype in types)):
        assert same(function(given, lengths), expected)
        assert list(lengths) == LENGTHS
    assert same(function(given, iter(LENGTHS)), expected)
    assert same(log_partitions([given] * 2, iter(LENGTHS)), log_partitions([given] * 2, LENGTHS))
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(given, single(), strict=True))


def test_trees_behave_like_a_sequence_and_keep_their_lengths(backend):
    lengths = torch.tensor(LENGTHS)
    trees = best_trees(single(), lengths)
    lengths.fill_(1)
    assert len(trees) == 2
    assert [tree.spans[0][:2] for tree in trees] == [(0, 3), (0, 4)]
    assert trees[-1] == trees[1]
    for beyond in (2, -3):
        with pytest.raises(IndexError, match=f"no tree {beyond} in a batch of 2"):
            trees[beyond]
    assert isinstance(trees[0].score, float)
    assert all(type(x) is int for span in trees[0].spans for x in span)


def test_samples_follow_torchs_own_generator_if_none_is_given(backend):
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append([list(trees) for trees in sample_trees(single(), LENGTHS, 20)])
    assert draws[0] == draws[1] != draws[2]
