"""Every criterion equals what follows from writing down all trees and what each of their spans may be."""

import math
from itertools import product

import pytest
import torch

from nestree.decoding import Temperatures, decode_batch
from nestree.decoding.probabilities import label_log_probabilities
from nestree.decoding.uncertainty import smallest_margins, uncertainty
from nestree.errors import InputError
from tests.decoding.test_probabilities import SENTENCES, VARIANTS, by_hand, random_scores, settings_of
from tests.losses_by_hand import LABELS, tree_score, trees_of

TEMPERATURES = Temperatures(1.3, 0.8, 1.6, 0.4)


def span_outcomes(scores, settings, b, i, j, h):
    """The log-potentials of everything that a span of a tree may be: no entity, or one with any of the labels."""
    mention = scores.mention[b, i, j].clone()
    if settings.model.mention != "score":
        mention[0] += settings.decoding.non_entity_bias
    potential = float(mention.logsumexp(0)) / TEMPERATURES.tree
    classes = [potential + p for p in (mention / TEMPERATURES.mention).log_softmax(0).tolist()]
    if settings.model.mention == "labels":
        return classes
    h = h if settings.model.labeling == "head" else None
    p = label_log_probabilities(scores.labels.score_spans(b, i, j, h), settings, TEMPERATURES).exp().tolist()
    if settings.loss.label == "softmax":
        label_sets = [1 - sum(p), *p]
    else:
        label_sets = [math.prod(each) for each in product(*((one, 1 - one) for one in p))]
    return classes[:-1] + [classes[-1] + math.log(each) for each in label_sets]


@pytest.mark.parametrize("variant", VARIANTS)
def test_criteria_equal_enumeration(variant):
    settings = settings_of(variant)
    structure = settings.model.structure
    criteria = ["f1-loss", "entity-entropy", "mnlp"] + ["tree-entropy"] * (structure != "none")
    scores = random_scores(SENTENCES[:4], settings, seed=len(variant), std=1.5)
    rows = decode_batch(scores, settings, TEMPERATURES).entities.tolist()
    found = {by: uncertainty(scores, settings, TEMPERATURES, by).tolist() for by in criteria}
    for b, n in enumerate((1, 2, 3, 4)):
        probability = by_hand(scores, b, n, settings, TEMPERATURES)
        decoded = {(i, j, l) for at, i, j, l, _ in rows if at == b}
        errors = sum(1 - p if entity in decoded else p for entity, p in probability.items())
        entropy = -sum(p * math.log(p) + (1 - p) * math.log(1 - p) for p in probability.values() if 0 < p < 1)
        few = n < 3  # in longer sentences, spans below MIN_PROBABILITY are left out
        assert found["f1-loss"][b] == pytest.approx(errors, abs=1e-5 if few else 1e-3)
        assert found["entity-entropy"][b] == pytest.approx(entropy, abs=1e-5 if few else 1e-2)
        best, totals = -math.inf, []
        for spans, arcs, root, _ in trees_of(n, structure):
            score = float(tree_score(scores, b, arcs, root)) / TEMPERATURES.tree
            outcomes = [span_outcomes(scores, settings, b, *span) for span in spans]
            best = max(best, score + sum(map(max, outcomes)))
            totals.append(score + sum(math.log(sum(map(math.exp, values))) for values in outcomes))
        totals = torch.tensor(totals, dtype=torch.float64)
        assert found["mnlp"][b] == pytest.approx(float(totals.logsumexp(0)) - best, abs=1e-5)
        if structure != "none":
            log_p = totals.log_softmax(0)
            assert found["tree-entropy"][b] == pytest.approx(float(-(log_p.exp() * log_p).sum()), abs=1e-5)


def test_tree_entropy_needs_trees():
    settings = settings_of("ablation/01-unstructured-one-stage")
    scores = random_scores(SENTENCES[:2], settings)
    with pytest.raises(InputError, match="needs a model with trees"):
        uncertainty(scores, settings, TEMPERATURES, "tree-entropy")


@pytest.mark.parametrize("variant", ["default", "softmax", "ablation/01-unstructured-one-stage"])
def test_span_margins_are_the_spans_with_the_smallest_margins(variant):
    settings = settings_of(variant)
    scores = random_scores(SENTENCES[:4], settings, seed=4, std=1.5)
    found = smallest_margins(scores, settings, TEMPERATURES, tuple(LABELS), 3)
    one_label = settings.model.mention == "labels"
    for b, n in enumerate((1, 2, 3, 4)):
        probability = by_hand(scores, b, n, settings, TEMPERATURES)
        expected = []
        for i in range(n):
            for j in range(i + 1, n + 1):
                p = [probability[i, j, l] for l in range(len(LABELS))]
                for doubt in found[b]:
                    if (doubt.start, doubt.end) == (i, j):
                        assert doubt.label == LABELS[p.index(max(p))]
                        assert doubt.probability == pytest.approx(max(p), abs=1e-5)
                if one_label:  # otherwise an entity may have several labels, or none
                    first, second = sorted([1 - sum(p), *p])[:-3:-1]
                    expected.append(first - second)
        if one_label:
            assert [doubt.margin for doubt in found[b]] == pytest.approx(sorted(expected)[:3], abs=1e-5)
        assert [doubt.margin for doubt in found[b]] == sorted(doubt.margin for doubt in found[b])
        assert len(found[b]) == min(3, n * (n + 1) // 2)
