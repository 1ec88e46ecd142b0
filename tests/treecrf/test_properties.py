"""Truths that hold for every sentence, tried on random shapes, lengths, masks and scores."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from nestree.treecrf import (
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
from tests.treecrf.cases import Potentials, leaves, lexical, plain, rows, score_of, to
from tests.treecrf.test_backends import everything

BACKENDS = ["reference", "numba"]
many = settings(max_examples=60, deadline=None, derandomize=True, database=None)
few = settings(many, max_examples=25)


@dataclass
class Batch:
    potentials: Potentials
    lengths: list[int]
    observed: list[list[tuple[int, int]]]


@some.composite
def nested_spans(draw, i: int, j: int) -> list[tuple[int, int]]:
    """Some spans of a random binary tree over i..j: none of them cross."""
    found = [(i, j)] if draw(some.booleans()) else []
    if j - i > 1 and draw(some.integers(0, 3)) > 0:
        k = draw(some.integers(i + 1, j - 1))
        found += draw(nested_spans(i, k)) + draw(nested_spans(k, j))
    return found


@some.composite
def batches(draw, dtype: torch.dtype = torch.float64, kinds=("lexical", "plain")) -> Batch:
    lengths = draw(some.lists(some.integers(1, 9), min_size=1, max_size=5))
    n = max(lengths) + draw(some.integers(0, 3))
    std, seed = draw(some.sampled_from([0.0, 0.01, 1.0, 15.0])), draw(some.integers(0, 2**31))
    if draw(some.sampled_from(kinds)) == "lexical":
        potentials = lexical(lengths, n, std=std, seed=seed, head=draw(some.booleans()))
        if draw(some.booleans()):
            # Forbid some arcs that point to the left: trees whose heads are all leftmost remain.
            generator = torch.Generator().manual_seed(seed)
            left = torch.ones(n, n, dtype=torch.bool).tril(-1)
            forbidden = left & (torch.rand(len(lengths), n, n, generator=generator) < 0.5)
            potentials = potentials._replace(arc=potentials.arc.masked_fill(forbidden, -torch.inf))
    else:
        potentials = plain(lengths, n, std=std, seed=seed)
    observed = [draw(nested_spans(0, length)) for length in lengths] if draw(some.booleans()) else []
    if observed:
        potentials = observe(potentials, observed, lengths)
    return Batch(to(potentials, dtype), lengths, observed)


def near(found, expected, size=1.0) -> bool:
    tensors = torch.as_tensor(found), torch.as_tensor(expected)
    return bool(torch.allclose(*tensors, rtol=1e-9, atol=1e-9 * size))


@pytest.mark.parametrize("backend", BACKENDS)
@many
@given(batch=batches())
def test_marginals_are_the_gradient_and_add_up_to_the_numbers_of_parts(backend, batch):
    learned = leaves(batch.potentials)
    with use_backend(backend):
        log_partition(learned, batch.lengths).sum().backward()
        part = marginals(batch.potentials, batch.lengths)
    for tensor, score, probability in zip(learned, batch.potentials, part, strict=True):
        assert (tensor is None) == (probability is None)
        if tensor is not None:
            assert near(tensor.grad, probability)
            assert (probability[score.isnan() | (score < -1e8)] == 0).all()
    for b, spans in enumerate(batch.observed):
        for i, j in spans:
            assert near(part.span[b, i, j], torch.tensor(1.0, dtype=torch.float64))
    n = torch.tensor(batch.lengths, dtype=torch.float64)
    assert all(t.min() >= 0 and t.max() < 1 + 1e-9 for t in part if t is not None)
    assert near(part.span.sum((1, 2)), 2 * n - 1)
    if len(part) == 1:
        return
    assert near(part.arc.sum((1, 2)), n - 1)
    assert near(part.root.sum(1), torch.ones_like(n))
    assert near(part.inherit.sum((1, 2)), n - 1)
    with use_backend(backend):
        heads = head_marginals(batch.potentials, batch.lengths)
    assert near(heads.sum(-1), part.span)
    # Every word is governed by another one or is the root, and whoever is the root heads the whole sentence.
    words = torch.arange(part.root.shape[1]) < n[:, None]
    assert near(part.arc.sum(1) + part.root, words.double())
    for b, length in enumerate(batch.lengths):
        assert near(heads[b, 0, length], part.root[b])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("score", [1e3, 1e4, -1e4, 1e5, -1e5])
@pytest.mark.parametrize("kind", ["lexical", "plain"])
def test_large_scores_that_are_equal_change_no_probability(backend, score, kind):
    equal = lexical([4]) if kind == "lexical" else plain([4])
    equal = type(equal)(*(torch.full_like(t, score, dtype=torch.float32) for t in equal))
    zero = type(equal)(*(torch.zeros_like(t) for t in equal))
    with use_backend(backend):
        found, right = marginals(equal, [4]), marginals(zero, [4])
        parts = 7 if kind == "plain" else 21
        assert log_partition(equal, [4]).item() == pytest.approx(score * parts, rel=0.01)
    for large, small in zip(found, right, strict=True):
        assert large.max() <= 1
        assert (large - small).abs().max() < 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
@many
@given(batch=batches())
def test_best_trees_and_samples_are_trees_with_their_scores(backend, batch):
    with use_backend(backend):
        best = best_trees(batch.potentials, batch.lengths)
        drawn = sample_trees(batch.potentials, batch.lengths, 3, torch.Generator().manual_seed(0))
        log_z = log_partition(batch.potentials, batch.lengths)
        uncertain = entropy(batch.potentials, batch.lengths)
    rounding = 1e-9 * log_z.abs().clamp(min=1)
    assert (best.score <= log_z + rounding).all()
    assert (log_z <= best.score + uncertain + rounding).all()  # the mean score is at most the best
    for trees in (best, *drawn):
        assert (trees.score <= best.score + rounding).all()
        for b, length in enumerate(batch.lengths):
            assert near(score_of(trees[b], batch.potentials, b, length), trees[b].score, 100)
            if batch.observed:
                assert set(batch.observed[b]) <= {span[:2] for span in trees[b].spans}


@pytest.mark.parametrize("backend", BACKENDS)
@few
@given(batch=batches())
def test_a_batch_equals_its_sentences_one_by_one(backend, batch):
    together = everything(backend, batch.potentials, batch.lengths)
    for b, length in enumerate(batch.lengths):
        for n in (None, length):  # with its padding, and without
            alone = everything(backend, rows(batch.potentials, b, n), [length])
            for one, other in zip(alone, together, strict=True):
                cut = other[b : b + 1][tuple(slice(0, size) for size in one.shape)]
                assert near(one.double(), cut.double())
                assert backend != "numba" or torch.equal(one, cut)  # to the bit


@many
@given(batch=batches())
def test_numba_equals_the_reference(batch):
    reference, numba = (everything(name, batch.potentials, batch.lengths) for name in BACKENDS)
    for one, other in zip(reference, numba, strict=True):
        assert near(one.double(), other.double())


@pytest.mark.parametrize("backend", BACKENDS)
@few
@given(batch=batches(), shift=some.floats(-3, 3), part=some.sampled_from(["span", "inherit"]))
def test_a_constant_on_every_span_or_inherit_shifts_log_z_and_changes_no_probability(backend, batch, shift, part):
    part = part if part in batch.potentials._fields else "span"
    moved = batch.potentials._replace(**{part: getattr(batch.potentials, part) + shift})
    n = torch.tensor(batch.lengths, dtype=torch.float64)
    number = 2 * n - 1 if part == "span" else n - 1
    with use_backend(backend):
        before, after = (log_partition(p, batch.lengths) for p in (batch.potentials, moved))
        assert near(after, before + shift * number, 100)
        for p, q in ((batch.potentials, moved), (moved, batch.potentials)):
            assert near(kl_divergence(p, q, batch.lengths), torch.zeros_like(before), 1000)


@pytest.mark.parametrize("backend", BACKENDS)
@few
@given(batch=batches(kinds=("lexical",)))
def test_a_mirrored_sentence_has_the_mirrored_marginals(backend, batch):
    """Words in the opposite order, heads and spans mirrored with them: the same sum over trees."""
    for b, length in enumerate(batch.lengths):
        p = rows(batch.potentials, b, length)

        def mirrored(q):
            return type(q)(
                q.span.flip(1, 2).transpose(1, 2),
                q.arc.flip(1, 2),
                q.root.flip(1),
                q.inherit.flip(1, 2).transpose(1, 2),
                None if q.head is None else q.head.flip(1, 2, 3).transpose(1, 2),
            )

        with use_backend(backend):
            assert near(log_partition(mirrored(p), [length]), log_partition(p, [length]), 100)
            there, back = marginals(p, [length]), mirrored(marginals(mirrored(p), [length]))
        for one, other in zip(there, back, strict=True):
            assert one is None or near(one, other)
