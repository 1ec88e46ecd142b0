"""Every criterion equals what follows from writing down all analyses: trees, entities and their labels."""

import math
from itertools import chain, combinations, product

import pytest
import torch

from nestree.decoding import Temperatures, decode_batch
from nestree.decoding.probabilities import label_log_probabilities
from nestree.decoding.uncertainty import span_doubts, uncertainty
from nestree.errors import InputError
from tests.decoding.test_probabilities import (
    SENTENCES,
    VARIANTS,
    by_hand,
    random_scores,
    settings_of,
    trees_of,
)
from tests.test_losses import LABELS

TEMPERATURES = Temperatures(1.3, 0.8, 1.6, 0.4)


def label_sets(scores, settings, b, i, j, h):
    """(labels, log-probability) of everything that may be said about the labels of an entity."""
    h = h if settings.model.labeling == "head" else None
    log_p = label_log_probabilities(scores.labels.score_spans(b, i, j, h), settings, TEMPERATURES)
    p = log_p.exp().tolist()
    if settings.loss.label == "softmax":
        return [((), math.log(1 - sum(p))), *(((l,), math.log(p[l])) for l in range(len(p)))]
    subsets = chain.from_iterable(combinations(range(len(p)), size) for size in range(len(p) + 1))
    return [
        (subset, sum(math.log(p[l] if l in subset else 1 - p[l]) for l in range(len(p))))
        for subset in subsets
    ]


def span_outcomes(scores, settings, b, i, j, h):
    """(labels or None for no entity, log-potential) of everything that a span of a tree may be."""
    mention = scores.mention[b, i, j].clone()
    if settings.model.mention != "score":
        mention[0] += settings.decoding.non_entity_bias
    potential = float(mention.logsumexp(0)) / TEMPERATURES.tree
    said = (mention / TEMPERATURES.mention).log_softmax(0).tolist()
    if settings.model.mention == "labels":
        return [(None if c == 0 else (c - 1,), potential + value) for c, value in enumerate(said)]
    labels = label_sets(scores, settings, b, i, j, h)
    if settings.model.mention == "score":
        return [(subset, potential + value) for subset, value in labels]
    return [(None, potential + said[0]), *((subset, potential + said[1] + value) for subset, value in labels)]


def analyses(scores, settings, b, n):
    """(entities, log-potential) of every analysis of a sentence, one by one."""
    for spans, arcs, root in trees_of(n, settings.model.structure):
        score = 0.0
        if root is not None:
            score = (
                float(scores.root[b, root] + sum(scores.arc[b, h, m] for h, m in arcs)) / TEMPERATURES.tree
            )
        outcomes = [[(span, *each) for each in span_outcomes(scores, settings, b, *span)] for span in spans]
        for chosen in product(*outcomes):
            entities = {(i, j, l) for (i, j, _), labels, _ in chosen for l in labels or ()}
            yield entities, score + sum(value for _, _, value in chosen)


@pytest.mark.parametrize("variant", VARIANTS)
def test_criteria_equal_enumeration_of_all_analyses(variant):
    settings = settings_of(variant)
    scores = random_scores(SENTENCES[:2], settings, seed=len(variant), std=1.5)
    rows = decode_batch(scores, settings, TEMPERATURES).entities.tolist()
    found = {
        by: uncertainty(scores, settings, TEMPERATURES, by).tolist()
        for by in ("f1-loss", "entity-entropy", "mnlp")
    }
    for b, n in enumerate((1, 2)):
        everything = list(analyses(scores, settings, b, n))
        log_z = math.log(sum(math.exp(value) for _, value in everything))
        decoded = {(i, j, l) for at, i, j, l, _ in rows if at == b}
        errors, probability = 0.0, {}
        for entities, value in everything:
            p = math.exp(value - log_z)
            errors += p * len(decoded ^ entities)
            for entity in entities:
                probability[entity] = probability.get(entity, 0.0) + p
        entropy = -sum(p * math.log(p) + (1 - p) * math.log(1 - p) for p in probability.values())
        assert found["f1-loss"][b] == pytest.approx(errors, abs=1e-5)
        assert found["entity-entropy"][b] == pytest.approx(entropy, abs=1e-5)
        assert found["mnlp"][b] == pytest.approx(log_z - max(value for _, value in everything), abs=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_longer_sentences_equal_enumeration_of_all_trees(variant):
    settings = settings_of(variant)
    scores = random_scores(SENTENCES[:4], settings, seed=5, std=1.5)
    rows = decode_batch(scores, settings, TEMPERATURES).entities.tolist()
    found = {
        by: uncertainty(scores, settings, TEMPERATURES, by) for by in ("f1-loss", "entity-entropy", "mnlp")
    }
    for b, n in enumerate((1, 2, 3, 4)):
        probability = by_hand(scores, b, n, settings, TEMPERATURES)
        decoded = {(i, j, l) for at, i, j, l, _ in rows if at == b}
        errors = sum(1 - p if entity in decoded else p for entity, p in probability.items())
        entropy = -sum(p * math.log(p) + (1 - p) * math.log(1 - p) for p in probability.values() if 0 < p < 1)
        # Spans below MIN_PROBABILITY are left out.
        assert float(found["f1-loss"][b]) == pytest.approx(errors, abs=1e-3)
        assert float(found["entity-entropy"][b]) == pytest.approx(entropy, abs=1e-2)
        best, total = -math.inf, 0.0
        for spans, arcs, root in trees_of(n, settings.model.structure):
            score = 0.0
            if root is not None:
                score = scores.root[b, root] + sum(scores.arc[b, h, m] for h, m in arcs)
                score = float(score) / TEMPERATURES.tree
            outcomes = [[value for _, value in span_outcomes(scores, settings, b, *span)] for span in spans]
            best = max(best, score + sum(map(max, outcomes)))
            total += math.exp(score + sum(math.log(sum(map(math.exp, values))) for values in outcomes))
        assert float(found["mnlp"][b]) == pytest.approx(math.log(total) - best, abs=1e-5)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "unstructured" not in name])
def test_tree_entropy_equals_enumeration(variant):
    settings = settings_of(variant)
    scores = random_scores(SENTENCES[:4], settings, seed=3, std=1.5)
    found = uncertainty(scores, settings, TEMPERATURES, "tree-entropy").tolist()
    for b, n in enumerate((1, 2, 3, 4)):
        values = []
        for spans, arcs, root in trees_of(n, settings.model.structure):
            score = sum(sum_of_outcomes(scores, settings, b, *span) for span in spans)
            if root is not None:
                score += (
                    float(scores.root[b, root] + sum(scores.arc[b, h, m] for h, m in arcs))
                    / TEMPERATURES.tree
                )
            values.append(score)
        log_p = torch.tensor(values, dtype=torch.float64).log_softmax(0)
        assert found[b] == pytest.approx(float(-(log_p.exp() * log_p).sum()), abs=1e-5)


def sum_of_outcomes(scores, settings, b, i, j, h):
    return math.log(sum(math.exp(value) for _, value in span_outcomes(scores, settings, b, i, j, h)))


def test_tree_entropy_needs_trees():
    settings = settings_of("ablation/01-unstructured-one-stage")
    scores = random_scores(SENTENCES[:2], settings)
    with pytest.raises(InputError, match="needs a model with trees"):
        uncertainty(scores, settings, TEMPERATURES, "tree-entropy")


@pytest.mark.parametrize("variant", ["default", "softmax", "ablation/01-unstructured-one-stage"])
def test_doubts_are_the_spans_with_the_smallest_margins(variant):
    settings = settings_of(variant)
    scores = random_scores(SENTENCES[:4], settings, seed=4, std=1.5)
    found = span_doubts(scores, settings, TEMPERATURES, tuple(LABELS), 3)
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
