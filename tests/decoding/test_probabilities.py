"""Probabilities equal what follows from writing down all trees; so do those given what is known."""

import math
from functools import partial

import pytest
import torch

from nestree.config import recipe_names
from nestree.decoding import Temperatures, decode_batch, predictions
from nestree.decoding.constraints import Constraints, SpanConstraint, apply_constraints
from nestree.decoding.probabilities import label_probabilities, span_marginals
from nestree.types import Entity
from tests import test_losses
from tests.losses_by_hand import LABELS, tree_score, trees_of
from tests.tiny import sentence

SENTENCES = [sentence(" ".join("abcde"[:n])) for n in (1, 2, 3, 4, 5)]
VARIANTS = {
    **{name: (name, []) for name in recipe_names()[:8]},
    "default": ("ablation/12-joint", []),
    "bias": ("ablation/12-joint", ["decoding.non_entity_bias=0.8"]),
    "softmax": ("ablation/12-joint", ["loss.label=softmax"]),
}
TEMPERATURES = [Temperatures(), Temperatures(1.7, 0.6, 1.4, 0.5)]


settings_of = partial(test_losses.settings_of, variants=VARIANTS)
random_scores = partial(test_losses.random_scores, learned=False)


def label_probability(scores, settings, temperatures, b, i, j, h, label):
    each = scores.labels.score_spans(b, i, j, h if settings.model.labeling == "head" else None)
    each = each / temperatures.label - temperatures.label_logit_offset
    if settings.loss.label == "softmax":
        return float(torch.cat([torch.zeros(1), each.detach()]).softmax(0)[1 + label])
    return float(each[label].sigmoid())


def by_hand(scores, b, n, settings, temperatures, known=(), forbidden=()):
    """(i, j, label) -> probability, from all trees and all that their spans may say, given what is known."""
    said = scores.mention[b].detach().clone()
    if settings.model.mention != "score":
        said[..., 0] += settings.decoding.non_entity_bias
    must = {(k.start, k.end): k for k in known}
    never = {(f.start, f.end) for f in forbidden if f.label is None}
    total, sums = 0.0, {}
    for spans, arcs, root, _ in trees_of(n, settings.model.structure):
        if not all(any(span[:2] == k for span in spans) for k in must):
            continue
        weight = math.exp(tree_score(scores, b, arcs, root) / temperatures.tree)
        says = {}
        for i, j, h in spans:
            share = math.exp(float(said[i, j].logsumexp(0)) / temperatures.tree)  # of the tree
            each = (share * (said[i, j] / temperatures.mention).softmax(0)).tolist()
            if settings.model.mention != "score":
                if (i, j) in must:
                    each[0] = 0.0
                if (i, j) in never:
                    each[1:] = [0.0] * (len(each) - 1)
            one = must.get((i, j))
            if one and one.head is not None and h is not None and h != one.head:
                each = [0.0] * len(each)
            if one and one.label is not None:
                k = LABELS.index(one.label)
                if settings.model.mention == "labels":
                    each = [weight if at == 1 + k else 0.0 for at, weight in enumerate(each)]
                elif settings.model.labeling == "head":
                    chance = label_probability(scores, settings, temperatures, b, i, j, h, k)
                    each = [weight * chance for weight in each]
            says[i, j] = each
            weight *= sum(each)
        total += weight
        for i, j, h in spans if weight else ():
            each = says[i, j]
            for l in range(len(LABELS)):
                if settings.model.mention == "labels":
                    chance = each[1 + l] / sum(each)
                else:
                    yes = 1.0 if settings.model.mention == "score" else each[1] / sum(each)
                    given = must[i, j].label if (i, j) in must else None
                    if given == LABELS[l]:
                        chance = yes
                    elif given:  # it has no other label
                        chance = 0.0
                    else:
                        chance = yes * label_probability(scores, settings, temperatures, b, i, j, h, l)
                    if (i, j) in never:
                        chance = 0.0
                sums[i, j, l] = sums.get((i, j, l), 0.0) + weight * chance
    return {key: value / total for key, value in sums.items()}


def everything(scores, settings, temperatures):
    """(b, i, j, label) -> probability, as the library computes it."""
    chances = span_marginals(scores, settings, temperatures)
    sizes = enumerate(scores.lengths.tolist())
    spans = torch.tensor([(b, i, j) for b, n in sizes for i in range(n) for j in range(i + 1, n + 1)])
    table = label_probabilities(scores, settings, temperatures, chances, spans)
    pairs = zip(spans.tolist(), table.tolist(), strict=True)
    return {(*span, l): p for span, row in pairs for l, p in enumerate(row)}


@pytest.mark.parametrize("variant", VARIANTS)
def test_probabilities_equal_enumeration(variant):
    settings = settings_of(variant)
    scores = random_scores(SENTENCES, settings, seed=len(variant), std=1.5)
    for temperatures, examples in zip(TEMPERATURES, (SENTENCES[:4], SENTENCES), strict=True):
        computed = everything(scores, settings, temperatures)
        for b, example in enumerate(examples):
            expected = by_hand(scores, b, len(example.words), settings, temperatures)
            for (i, j, l), probability in expected.items():
                assert computed[b, i, j, l] == pytest.approx(probability, abs=1e-6)
    decoded = predictions(decode_batch(scores, settings, TEMPERATURES[1], scored=True), LABELS, 5)
    for b, prediction in enumerate(decoded):
        for entity in prediction.entities:
            key = (b, entity.start, entity.end, LABELS.index(entity.label))
            assert entity.score == pytest.approx(computed[key], abs=1e-6)
    assert sum(len(prediction.entities) for prediction in decoded) > 1


def test_a_threshold_leaves_out_what_is_less_likely():
    settings = settings_of("default")
    scores = random_scores(SENTENCES, settings, seed=7, std=1.5)

    def entities(settings):
        decoded = predictions(decode_batch(scores, settings, scored=True), LABELS, len(SENTENCES))
        return [entity for prediction in decoded for entity in prediction.entities]

    before = entities(settings)
    middle = sorted(e.score for e in before)[len(before) // 2]
    after = entities(settings.with_overrides([f"decoding.threshold={middle - 1e-9}"]))
    assert after == [e for e in before if e.score >= middle]
    assert 0 < len(after) < len(before)


CONSTRAINTS = [
    ([], []),
    ([], []),
    ([SpanConstraint(1, 3)], []),
    ([SpanConstraint(0, 2, "B"), SpanConstraint(3, 5, None, 4)], [SpanConstraint(2, 5)]),
    ([SpanConstraint(1, 4, "C", 2), SpanConstraint(1, 2, "A")], [SpanConstraint(0, 5), SpanConstraint(2, 3)]),
    ([], [SpanConstraint(0, 1), SpanConstraint(1, 4)]),
]
CONSTRAINED = [SENTENCES[0], SENTENCES[3], *[SENTENCES[4]] * 4]


@pytest.mark.parametrize("variant", VARIANTS)
def test_probabilities_given_constraints_equal_enumeration(variant):
    settings = settings_of(variant)
    scores = random_scores(CONSTRAINED, settings, seed=len(variant), std=1.5)
    constraints = Constraints(*zip(*CONSTRAINTS, strict=True))
    constrained = apply_constraints(scores, constraints, settings, LABELS, TEMPERATURES[1])
    computed = everything(constrained, settings, TEMPERATURES[1])
    for b, example in enumerate(CONSTRAINED):
        expected = by_hand(scores, b, len(example.words), settings, TEMPERATURES[1], *CONSTRAINTS[b])
        for (i, j, l), probability in expected.items():
            assert computed[b, i, j, l] == pytest.approx(probability, abs=1e-5)


@pytest.mark.parametrize("threshold", [0.3, 0.999])
@pytest.mark.parametrize("variant", VARIANTS)
def test_known_spans_are_predicted_and_forbidden_ones_are_not(variant, threshold):
    model = settings_of(variant).model
    usable = {"viterbi": model.structure != "none", "mbr": True, "spans": model.mention != "score"}
    for method in [method for method in usable if usable[method]]:
        changes = [f"decoding.method={method}", f"decoding.threshold={threshold}"]
        settings = settings_of(variant).with_overrides(changes)
        scores = random_scores(CONSTRAINED, settings, seed=2, std=1.5)
        constraints = Constraints(*zip(*CONSTRAINTS, strict=True))
        constrained = apply_constraints(scores, constraints, settings, LABELS)
        decoded = predictions(decode_batch(constrained, settings, scored=True), LABELS, len(CONSTRAINED))
        for (known, forbidden), prediction in zip(CONSTRAINTS, decoded, strict=True):
            by_span: dict[tuple[int, int], list[Entity]] = {}
            for entity in prediction.entities:
                by_span.setdefault(entity.span, []).append(entity)
            for span in known:
                same = by_span[span.start, span.end]
                if span.label:
                    certain = [e.score for e in same if e.label == span.label]
                    assert certain == pytest.approx([1.0], abs=1e-5)
                if span.head is not None and model.structure == "lexical":
                    assert {e.head for e in same} == {span.head}
            assert not by_span.keys() & {(span.start, span.end) for span in forbidden}
            known_spans = {(span.start, span.end) for span in known}
            for span, entities in by_span.items():
                enough = min(e.score for e in entities) >= threshold
                assert enough or (span in known_spans and len(entities) == 1)
