"""Every public function equals the enumeration of all trees, in float64."""

import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats

from nestree.errors import BackendError
from nestree.treecrf import (
    IMPOSSIBLE,
    LexicalPotentials,
    PlainPotentials,
    best_trees,
    entropy,
    head_marginals,
    kl_divergence,
    log_partition,
    marginals,
    observe,
    sample_trees,
    use_backend,
)
from tests.treecrf.cases import EVERY_LENGTH, SMALL, leaves, lexical, parts_of, plain, score_of
from tests.treecrf.enumeration import Enumerated, enumerate_batch

SEVERAL = [[], [], [(0, 2)], [(1, 3), (1, 4)], [(0, 3), (1, 3), (3, 5)], [(2, 6), (3, 5)]]  # for EVERY_LENGTH


@cache
def potentials_of(name: str) -> LexicalPotentials | PlainPotentials:
    return SMALL[name]()


@cache
def oracles(name: str) -> list[Enumerated]:
    return enumerate_batch(potentials_of(name), EVERY_LENGTH)


def assert_equal(found, expected, what="") -> None:
    found = torch.as_tensor(found, dtype=None if torch.is_tensor(found) else torch.float64)
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, msg=lambda text: f"{what}: {text}")


def stacked(values) -> torch.Tensor:
    return torch.stack(list(values))


# Sums


WEIGHT = torch.tensor([0.5, -1.0, 2.0, 1.0, -0.25, 3.0], dtype=torch.float64)  # what flows in, by sentence


@pytest.mark.parametrize("name", SMALL)
def test_log_partition_its_gradient_and_all_marginals(backend, name):
    """The log of the sum over all trees; each gradient is the marginals times the incoming gradient."""
    given = leaves(potentials_of(name))
    log_z, found = log_partition(given, EVERY_LENGTH), marginals(potentials_of(name), EVERY_LENGTH)
    assert_equal(log_z.detach(), stacked(o.log_z() for o in oracles(name)))
    (log_z * WEIGHT).sum().backward()
    assert type(found) is type(given)
    for part, tensor in given._asdict().items():
        if tensor is None:
            assert getattr(found, part) is None
            continue
        expected = stacked(o.marginals()[part] for o in oracles(name))
        assert_equal(getattr(found, part), expected, part)
        assert_equal(tensor.grad, expected * WEIGHT.view(-1, *(1,) * (expected.dim() - 1)), part)
    if "plain" not in name:
        with_head = potentials_of(name)
        if with_head.head is None:
            zeros = torch.zeros(*with_head.span.shape, with_head.root.shape[1], dtype=torch.float64)
            with_head = with_head._replace(head=zeros)
        expected = stacked(o.marginals()["head"] for o in enumerate_batch(with_head, EVERY_LENGTH))
        assert_equal(head_marginals(potentials_of(name), EVERY_LENGTH), expected)


@pytest.mark.parametrize("function", [log_partition, entropy])
def test_gradcheck_of_second_derivatives_on_the_reference(function):
    inputs = [torch.nan_to_num(t).requires_grad_() for t in lexical([3], seed=12)]
    with use_backend("reference"):
        assert torch.autograd.gradgradcheck(lambda *t: function(LexicalPotentials(*t), [3]), inputs)


# Best trees


@pytest.mark.parametrize("name", SMALL)
def test_best_trees_have_the_highest_score_of_all(backend, name):
    given = potentials_of(name)
    trees = best_trees(given, EVERY_LENGTH)
    assert_equal(trees.score, stacked(o.best_score() for o in oracles(name)))
    for b, length in enumerate(EVERY_LENGTH):
        assert_equal(trees[b].score, trees.score[b])
        assert_equal(score_of(trees[b], given, b, length), float(trees.score[b]), f"sentence {b}")
        assert (trees.spans[b, : 2 * length - 1] >= 0).all()
        assert (trees.spans[b, 2 * length - 1 :] == -1).all()
        if trees.arcs is not None:
            assert (trees.arcs[b, : length - 1] >= 0).all()
            assert (trees.arcs[b, length - 1 :] == -1).all()


# Samples


@pytest.mark.parametrize("name", ["no head potential", "minus infinity", "inherit impossible", "std 15", "plain"])
def test_samples_come_as_often_as_their_probability_says(backend, name):
    k = 1500
    drawn = sample_trees(potentials_of(name), EVERY_LENGTH, k, torch.Generator().manual_seed(5))
    assert len(drawn) == k
    for b in range(5):  # of six words there are too many trees to count
        times = Counter(parts_of(trees[b], EVERY_LENGTH[b]) for trees in drawn)
        oracle = oracles(name)[b]
        expected = k * oracle.probabilities().numpy()
        observed = np.array([times.pop(tree, 0) for tree in oracle.trees])
        assert not times, "a sample that is none of the trees"
        assert observed[expected == 0].sum() == 0
        rare = expected < 5  # chi-square wants at least 5 expected in each bin: the rare trees share one
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        filled = expected > 0
        if filled.sum() > 1:
            assert stats.chisquare(observed[filled], expected[filled]).pvalue > 1e-3, f"sentence {b}"


def test_samples_have_the_scores_of_their_trees_are_independent_and_follow_the_generator(backend):
    given = potentials_of("all five potentials")
    once, again = (sample_trees(given, EVERY_LENGTH, 20, torch.Generator().manual_seed(7)) for _ in range(2))
    for trees in once:
        for b, length in enumerate(EVERY_LENGTH):
            assert_equal(score_of(trees[b], given, b, length), float(trees.score[b]))
    assert len({trees[5] for trees in once}) > 10
    assert [list(trees) for trees in once] == [list(trees) for trees in again]
    assert sample_trees(given, EVERY_LENGTH, 0) == []


# Entropy and divergence


def assert_value_and_gradients(backend, value, expected, *distributions) -> None:
    """The same value; the same gradients from the reference, an error that names it from other backends."""
    assert_equal(value.detach(), expected.detach())
    if backend != "reference":
        with pytest.raises(BackendError, match=r"use_backend\('reference'\)"):
            value.sum().backward()
        return
    tensors = [t for given in distributions for t in given if t is not None]
    found, right = (torch.autograd.grad(v.sum(), tensors, materialize_grads=True) for v in (value, expected))
    for one, other in zip(found, right, strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("name", SMALL)
def test_entropy_is_that_of_the_list_of_trees(backend, name):
    given = leaves(potentials_of(name))
    expected = stacked(o.entropy() for o in enumerate_batch(given, EVERY_LENGTH))
    assert_value_and_gradients(backend, entropy(given, EVERY_LENGTH), expected, given)


PAIRS = [
    ("all five potentials", "head and inherit below zero"),
    ("no head potential", "all five potentials"),
    ("all five potentials", "no head potential"),
    ("pinned heads", "all five potentials"),
    ("minus infinity", "head and inherit above zero"),
    ("minus infinity", "minus infinity"),
    ("all five potentials", "all five potentials"),
    ("plain", "plain, std 15"),
]


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_kl_divergence_in_both_directions(backend, p, q):
    back = stacked(a.kl(b) for a, b in zip(oracles(q), oracles(p), strict=True))
    assert_equal(kl_divergence(potentials_of(q), potentials_of(p), EVERY_LENGTH), back)
    p, q = leaves(potentials_of(p)), leaves(potentials_of(q))
    pairs = zip(enumerate_batch(p, EVERY_LENGTH), enumerate_batch(q, EVERY_LENGTH), strict=True)
    there = stacked(a.kl(b) for a, b in pairs)
    assert_value_and_gradients(backend, kl_divergence(p, q, EVERY_LENGTH), there, p, q)


@pytest.mark.parametrize(
    ("part", "forbidden"),
    [("span", IMPOSSIBLE), ("arc", -torch.inf), ("root", IMPOSSIBLE), ("inherit", -torch.inf), ("head", IMPOSSIBLE)],
)
def test_kl_is_infinite_exactly_where_q_forbids_what_p_needs(backend, part, forbidden):
    p, q = lexical([3, 3], seed=13), lexical([3, 3], seed=14)
    cell = {"span": (0, 2), "arc": (0, 2), "root": (1,), "inherit": (1, 3), "head": (0, 2, 1)}[part]
    getattr(q, part)[(0, *cell)] = forbidden
    there, back = kl_divergence(p, q, [3, 3]), kl_divergence(q, p, [3, 3])
    (p0, p1), (q0, q1) = enumerate_batch(p, [3, 3]), enumerate_batch(q, [3, 3])
    assert there[0] == math.inf
    assert_equal(there[1], p1.kl(q1))
    assert_equal(back, stacked([q0.kl(p0), q1.kl(p1)]))


def test_entropy_and_kl_are_never_below_zero(backend):
    p = lexical([20] * 16, seed=16, std=100.0)
    assert entropy(p, [20] * 16).min() >= 0
    assert kl_divergence(p, p, [20] * 16).min() >= 0


# Observed spans


@pytest.mark.parametrize("name", ["all five potentials", "no head potential", "pinned heads", "plain"])
def test_observe_leaves_exactly_the_trees_that_contain_the_spans(backend, name):
    given = observe(potentials_of(name), SEVERAL, EVERY_LENGTH)
    log_z, part = log_partition(given, EVERY_LENGTH), marginals(given, EVERY_LENGTH)
    for b, (oracle, spans) in enumerate(zip(oracles(name), SEVERAL, strict=True)):
        held = [{span[:2] for span in (tree.spans if oracle.lexical else tree)} for tree in oracle.trees]
        kept = torch.tensor([set(spans) <= tree for tree in held])
        assert 0 < kept.sum() < len(kept) or not spans
        assert_equal(log_z[b], oracle.tree_scores[kept & oracle.possible].logsumexp(0), f"sentence {b}")
        for i, j in spans:
            assert_equal(part.span[b, i, j], torch.tensor(1.0, dtype=torch.float64))
        tree = best_trees(given, EVERY_LENGTH)[b]
        assert set(spans) <= {span[:2] for span in tree.spans}
        assert_equal(tree.score, float(oracle.tree_scores[kept].max()))


# Free truths about special potentials


@pytest.mark.parametrize("n", [1, 2, 3, 8, 12, 25])
def test_zero_potentials_count_the_trees(backend, n):
    zero = lexical([n, 1], n, std=0.0)
    plain_count = math.log(math.comb(2 * n - 2, n - 1) // n)  # a Catalan number
    assert_equal(log_partition(zero, [n, 1]), [plain_count + (n - 1) * math.log(2), 0.0])
    assert_equal(log_partition(PlainPotentials(zero.span), [n, 1]), [plain_count, 0.0])
    assert_equal(entropy(zero, [n, 1]), [plain_count + (n - 1) * math.log(2), 0.0])


@pytest.mark.parametrize("n", [1, 2, 6, 15])
def test_without_arcs_and_roots_the_heads_are_free(backend, n):
    span = plain([n], seed=15).span
    lexicalised = log_partition(lexical([n], std=0.0, head=False)._replace(span=span), [n])
    assert_equal(lexicalised, log_partition(PlainPotentials(span), [n]) + (n - 1) * math.log(2))
