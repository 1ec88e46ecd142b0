"""Probabilities equal what follows from writing down all trees; so do those given what is known."""

import math
from dataclasses import replace

import pytest
import torch

from nestree.config import Settings, recipes
from nestree.decoding import Temperatures, decode_batch, predictions
from nestree.decoding.constraints import Constraints, Forbidden, Known, apply_constraints
from nestree.decoding.probabilities import label_probabilities, span_marginals
from tests.test_losses import LABELS, Table
from tests.test_losses import random_scores as scores_with_gradients
from tests.tiny import sentence
from tests.treecrf.enumeration import lexical_trees, plain_trees

SENTENCES = [sentence(" ".join("abcde"[:n])) for n in (1, 2, 3, 4, 5)]
VARIANTS = {
    **{name: (name, []) for name in recipes()[:8]},
    "default": ("ablation/12-joint", []),
    "bias": ("ablation/12-joint", ["decoding.non_entity_bias=0.8"]),
    "softmax": ("ablation/12-joint", ["loss.label=softmax"]),
}
TEMPERATURES = [Temperatures(), Temperatures(1.7, 0.6, 1.4, 0.5)]


def random_scores(*given, **more):
    """Scores that want no gradients."""
    made = scores_with_gradients(*given, **more)
    table = Table(made.labels.spans.detach(), made.labels.heads.detach()) if made.labels else None
    rest = {name: getattr(made, name) for name in ("mention", "arc", "root")}
    return replace(made, labels=table, **{k: None if v is None else v.detach() for k, v in rest.items()})


def settings_of(variant: str) -> Settings:
    recipe, changes = VARIANTS[variant]
    return Settings.read(recipe).changed(changes)


def trees_of(n, structure):
    """(spans with heads, arcs, root) of all trees; without structure there is one, of all spans."""
    if structure == "lexical":
        return [(tree.spans, tree.arcs, tree.root) for tree in lexical_trees(n)]
    if structure == "plain":
        return [([(i, j, None) for i, j in tree], (), None) for tree in plain_trees(n)]
    return [([(i, j, None) for i in range(n) for j in range(i + 1, n + 1)], (), None)]


def label_chance(scores, settings, temperatures, b, i, j, h, label):
    each = scores.labels.of(b, i, j, h if settings.model.labeling == "head" else None)
    each = each / temperatures.label - temperatures.doubt
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
    for spans, arcs, root in trees_of(n, settings.model.structure):
        if not all(any(span[:2] == k for span in spans) for k in must):
            continue
        weight = 1.0
        if root is not None:
            weight = float(scores.root[b, root] + sum(scores.arc[b, h, m] for h, m in arcs))
            weight = math.exp(weight / temperatures.tree)
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
                    chance = label_chance(scores, settings, temperatures, b, i, j, h, k)
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
                    elif given and settings.loss.label == "softmax":  # one label, and it is another
                        chance = 0.0
                    else:
                        chance = yes * label_chance(scores, settings, temperatures, b, i, j, h, l)
                    if (i, j) in never:
                        chance = 0.0
                sums[i, j, l] = sums.get((i, j, l), 0.0) + weight * chance
    return {key: value / total for key, value in sums.items()}


def everything(scores, settings, temperatures):
    """(b, i, j, label) -> probability, as the library computes it."""
    chances = span_marginals(scores, settings, temperatures)
    spans = torch.tensor(
        [
            (b, i, j)
            for b, n in enumerate(scores.lengths.tolist())
            for i in range(n)
            for j in range(i + 1, n + 1)
        ]
    )
    table = label_probabilities(scores, settings, temperatures, chances, spans)
    return {
        (*span, l): float(table[k, l]) for k, span in enumerate(spans.tolist()) for l in range(len(LABELS))
    }


@pytest.mark.parametrize("temperatures", TEMPERATURES, ids=["1", "fitted"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_probabilities_equal_enumeration(variant, temperatures):
    settings = settings_of(variant)
    scores = random_scores(SENTENCES, settings, seed=len(variant), std=1.5)
    found = everything(scores, settings, temperatures)
    for b, one in enumerate(SENTENCES):
        expected = by_hand(scores, b, len(one.words), settings, temperatures)
        for (i, j, l), chance in expected.items():
            assert found[b, i, j, l] == pytest.approx(chance, abs=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_decoding_says_of_entities_are_these_probabilities(variant):
    settings = settings_of(variant)
    scores = random_scores(SENTENCES, settings, seed=7, std=1.5)
    chances = everything(scores, settings, TEMPERATURES[1])
    number = 0
    for b, reading in enumerate(
        predictions(decode_batch(scores, settings, TEMPERATURES[1], scored=True), LABELS, len(SENTENCES))
    ):
        for entity in reading.entities:
            number += 1
            at = (b, entity.start, entity.end, LABELS.index(entity.label))
            assert entity.score == pytest.approx(chances[at], abs=1e-6)
    assert number > 3


def test_a_threshold_leaves_out_what_is_less_likely():
    settings = settings_of("default")
    scores = random_scores(SENTENCES, settings, seed=7, std=1.5)
    before = [
        e
        for r in predictions(decode_batch(scores, settings, scored=True), LABELS, len(SENTENCES))
        for e in r.entities
    ]
    middle = sorted(e.score for e in before)[len(before) // 2]
    found = decode_batch(scores, settings.changed([f"decoding.threshold={middle - 1e-9}"]), scored=True)
    after = [e for r in predictions(found, LABELS, len(SENTENCES)) for e in r.entities]
    assert after == [e for e in before if e.score >= middle]
    assert 0 < len(after) < len(before)


GIVEN = [
    ([Known(1, 3)], []),
    ([Known(0, 2, "B"), Known(3, 5, None, 4)], [Forbidden(2, 5)]),
    ([Known(1, 4, "C", 2), Known(1, 2, "A")], [Forbidden(0, 5), Forbidden(2, 3)]),
    ([], [Forbidden(0, 1), Forbidden(1, 4)]),
]


@pytest.mark.parametrize("given", GIVEN, ids=range(4))
@pytest.mark.parametrize("variant", VARIANTS)
def test_given_what_is_known_probabilities_equal_enumeration(variant, given):
    settings = settings_of(variant)
    known, forbidden = given
    scores = random_scores(SENTENCES, settings, seed=len(variant), std=1.5)
    knowledge = Constraints([[]] * 4 + [known], [[]] * 4 + [forbidden])
    limited = apply_constraints(scores, knowledge, settings, LABELS, TEMPERATURES[1])
    found = everything(limited, settings, TEMPERATURES[1])
    expected = by_hand(scores, 4, 5, settings, TEMPERATURES[1], known, forbidden)
    for (i, j, l), chance in expected.items():
        assert found[4, i, j, l] == pytest.approx(chance, abs=1e-5)
    free = everything(scores, settings, TEMPERATURES[1])
    for at, chance in free.items():
        if at[0] != 4:  # others know nothing of it
            assert found[at] == pytest.approx(chance, abs=1e-6)


def ways(variant):
    """How a model can decode."""
    model = settings_of(variant).model
    possible = {"viterbi": model.structure != "none", "mbr": True, "spans": model.mention != "score"}
    return [(variant, by) for by in possible if possible[by]]


@pytest.mark.parametrize("given", GIVEN, ids=range(4))
@pytest.mark.parametrize("threshold", [0.3, 0.999])
@pytest.mark.parametrize(("variant", "by"), [way for variant in VARIANTS for way in ways(variant)])
def test_what_is_known_is_found_and_what_is_forbidden_is_not(variant, by, threshold, given):
    settings = settings_of(variant)
    settings = settings.changed([f"decoding.method={by}", f"decoding.threshold={threshold}"])
    known, forbidden = given
    scores = random_scores(SENTENCES, settings, seed=2, std=1.5)
    knowledge = Constraints([[]] * 4 + [known], [[]] * 4 + [forbidden])
    limited = apply_constraints(scores, knowledge, settings, LABELS)
    entities = predictions(decode_batch(limited, settings, scored=True), LABELS, 5)[4].entities
    for one in known:
        same = [e for e in entities if e.span == (one.start, one.end)]
        assert same, f"{one} is missing"
        if one.label:
            assert one.label in [e.label for e in same]
            assert [e.score for e in same if e.label == one.label] == pytest.approx([1.0], abs=1e-5)
        if one.head is not None and settings.model.structure == "lexical":
            assert {e.head for e in same} == {one.head}
    assert not {e.span for e in entities} & {(f.start, f.end) for f in forbidden}
    sure = {(one.start, one.end) for one in known}
    for span in {e.span for e in entities}:
        scores_of_it = [e.score for e in entities if e.span == span]
        assert min(scores_of_it) >= threshold or (span in sure and len(scores_of_it) == 1)
