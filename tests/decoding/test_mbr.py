"""Decoding by marginals finds the best set of entities that do not cross; its heads are those of the best tree."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from nestree.config import Settings
from nestree.decoding import UNIT_TEMPERATURES, DecodedBatch, decode_batch, mbr_kernels, predictions
from nestree.decoding.constraints import Constraints, SpanConstraint, apply_constraints
from nestree.decoding.mbr import torch_search
from nestree.errors import DataError, PotentialsError
from nestree.types import Entity, crossing_pairs
from tests.decoding.test_probabilities import SENTENCES, VARIANTS, everything, random_scores, settings_of
from tests.decoding.test_uncertainty import TEMPERATURES
from tests.losses_by_hand import LABELS, tree_score
from tests.treecrf.enumeration import lexical_trees


def marginal_settings(variant, threshold):
    return settings_of(variant).with_overrides(["decoding.method=mbr", f"decoding.threshold={threshold}"])


def best_gain(chances, b, n, thresholds, several):
    """Through all sets of spans that do not cross."""
    value = {}
    for i in range(n):
        for j in range(i + 1, n + 1):
            gains = [chances[b, i, j, l] - threshold for l, threshold in enumerate(thresholds)]
            gains = [gain for gain in gains if gain > 0]
            if gains:
                value[i, j] = sum(gains) if several else max(gains)
    best = 0.0
    for size in range(len(value) + 1):
        for chosen in itertools.combinations(value, size):
            if not crossing_pairs([Entity(i, j, "x") for i, j in chosen]):
                best = max(best, sum(value[span] for span in chosen))
    return best


@pytest.mark.parametrize("threshold", [0.15, 0.4, [0.4, 0.05, 0.3], [0.1, math.inf, 0.2], [math.inf] * 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_set_of_entities_gains_more(variant, threshold):
    by_label = threshold if isinstance(threshold, list) else None
    settings = marginal_settings(variant, 0.9 if by_label else threshold)
    thresholds = by_label or [threshold] * len(LABELS)
    scores = random_scores(SENTENCES[:4], settings, seed=5, std=1.5)
    chances = everything(scores, settings, TEMPERATURES)
    several = scores.labels is not None and settings.loss.label != "softmax"
    decoded = decode_batch(scores, settings, TEMPERATURES, scored=True, thresholds=by_label)
    found = predictions(decoded, LABELS, 4)
    for b, reading in enumerate(found):
        for entity in reading.entities:
            at = (b, entity.start, entity.end, LABELS.index(entity.label))
            assert entity.score == pytest.approx(chances[at], abs=1e-6)
        assert crossing_pairs(reading.entities) == []
        expected = best_gain(chances, b, b + 1, thresholds, several)
        gain = sum(entity.score - thresholds[LABELS.index(entity.label)] for entity in reading.entities)
        assert gain == pytest.approx(expected, abs=1e-5)
    assert any(reading.entities for reading in found) == (min(thresholds) < 1)


@pytest.mark.parametrize(("recipe", "weight", "penalty"), [("ablation/12-joint", 0, 0), ("default", 2, 1.5)])
def test_heads_are_those_of_the_best_tree_with_these_entities_given_their_labels(recipe, weight, penalty):
    """Entities, and nobody else, pay for sharing a head; the head prior counts once for a span, whatever its labels."""
    changes = ["method=mbr", "threshold=0.2"]
    changes += [f"head_prior_weight={weight}", f"head_sharing_penalty={penalty}"]
    settings = Settings.read(recipe).with_overrides([f"decoding.{change}" for change in changes])
    scores = random_scores(SENTENCES, settings, seed=5, std=1.5)
    found = predictions(decode_batch(scores, settings, TEMPERATURES, trees=True), LABELS, 5)
    number = 0
    for b, reading in enumerate(found):
        labels = {}
        for entity in reading.entities:
            labels.setdefault(entity.span, []).append(LABELS.index(entity.label))

        def value(tree, b=b, labels=labels):
            spans = {span[:2]: span[2] for span in tree.spans}
            if not all(span in spans for span in labels):
                return -1e9
            score = tree_score(scores, b, tree.arcs, tree.root)
            score = score + sum(scores.mention[b, i, j].max() for i, j in spans)
            score = score - penalty * len(tree.lends & labels.keys())
            for (i, j), given in labels.items():
                each = scores.labels.score_spans(b, i, j, spans[i, j]) / TEMPERATURES.label
                shifted = each - TEMPERATURES.label_logit_offset
                score = score + sum(shifted[l].sigmoid().log() for l in given)
                if weight:
                    score = score + weight * scores.head_prior[b, spans[i, j]].sigmoid().log()
            return float(score)

        best = max(lexical_trees(b + 1), key=value)
        heads = {(i, j): h for i, j, h in best.spans}
        assert set(reading.tree.spans) == set(best.spans)
        for entity in reading.entities:
            assert entity.head == heads[entity.span]
            number += 1
    assert number > 4


@pytest.mark.parametrize("std", [1.5, 900.0])
@pytest.mark.parametrize("thresholds", [[0.0], [0.3], [0.4, 0.02, 0.2], [0.0, math.inf, 0.1]])
@pytest.mark.parametrize("label", ["softmax", "ranking"])
def test_kernels_find_what_the_tensor_operations_find(label, thresholds, std):
    changes = [f"loss.label={label}", "decoding.method=mbr"]
    others = ["head_prior_weight=1.5", "head_sharing_penalty=0.7", "non_entity_bias=0.2"]
    changes += [f"decoding.{other}" for other in others]
    settings = Settings.read("default").with_overrides(changes)
    scores = random_scores(SENTENCES, settings, seed=7, std=std)
    assert mbr_kernels.supports(scores, settings)
    thresholds = torch.tensor(thresholds)
    rows, score, trees, in_tree = mbr_kernels.mbr_search(scores, settings, TEMPERATURES, thresholds)
    with torch.no_grad():
        expected = torch_search(scores, settings, TEMPERATURES, thresholds, trees=True)
    assert len(rows) > 4
    assert torch.equal(rows, expected[0])
    assert torch.equal(trees.spans, expected[2].spans)
    torch.testing.assert_close(score, expected[1])
    torch.testing.assert_close(in_tree[trees.spans[..., 0] >= 0], expected[3][trees.spans[..., 0] >= 0])


@pytest.mark.parametrize("change", ["method=mbr", "threshold=0"])  # 0: with the recipe's own method
@pytest.mark.parametrize("variant", VARIANTS)
def test_known_spans_keep_their_labels_whatever_the_thresholds(variant, change):
    settings = settings_of(variant).with_overrides([f"decoding.{change}"])
    scores = random_scores(SENTENCES[4:], settings, seed=5, std=1.5)
    known = Constraints([[SpanConstraint(0, 2, "B"), SpanConstraint(3, 5)]], [[]])
    constrained = apply_constraints(scores, known, settings, LABELS)
    for thresholds in ([math.inf] * 3, [math.inf, 0.9, math.inf]):
        (found,) = predictions(decode_batch(constrained, settings, thresholds=thresholds, scored=True), LABELS, 1)
        labels = {span: [e.label for e in found.entities if e.span == span] for span in ((0, 2), (3, 5))}
        assert labels[0, 2] == ["B"]
        chances = everything(constrained, settings, UNIT_TEMPERATURES)
        assert max(LABELS, key=lambda label: chances[0, 3, 5, LABELS.index(label)]) in labels[3, 5]
        assert {e.label for e in found.entities if e.span not in labels} <= ({"B"} if thresholds[1] < 1 else set())


@pytest.mark.parametrize("method", ["mbr", "viterbi"])
@pytest.mark.parametrize("variant", ["default", "softmax", "ablation/07-lexical-yes-no"])
def test_label_scores_that_are_nan_are_named(variant, method):
    settings = settings_of(variant).with_overrides([f"decoding.method={method}"])
    scores = random_scores(SENTENCES, settings, seed=7, std=1.5)
    scores.labels.spans.fill_(torch.nan)
    scores.labels.heads.fill_(torch.nan)
    with pytest.raises(PotentialsError, match=r"sentence \d .* NaN in the label scores of span \(\d, \d\)\. Look for"):
        decode_batch(scores, settings, scored=True)


@pytest.mark.parametrize("label", ["softmax", "ranking"])
def test_one_nan_is_found_in_tensor_operations(label):
    """The same code runs on a GPU, where it must not synchronize for this check."""
    settings = settings_of("default").with_overrides([f"loss.label={label}", "decoding.method=mbr"])
    scores = random_scores(SENTENCES, settings, seed=7, std=1.5)
    rows = torch_search(scores, settings, TEMPERATURES, torch.tensor([0.3]), trees=False)[0]
    b, i, j, k, h = rows[-1].tolist()
    score_spans = scores.labels.score_spans

    class WithNan:
        def score_spans(self, *where):
            at = torch.stack(torch.broadcast_tensors(*where), -1)
            found = score_spans(*where).clone()
            found[(at == torch.tensor([b, i, j, h])).all(-1), k] = torch.nan
            return found

    with pytest.raises(
        PotentialsError, match=rf"sentence {b} .* NaN in the label scores of span \({i}, {j}\)\. Look for"
    ):
        torch_search(replace(scores, labels=WithNan()), settings, TEMPERATURES, torch.tensor([0.3]), trees=False)


def test_readings_are_in_order_and_checked():
    rows = [[2, 1, 2, 1, 1], [2, 0, 1, 0, -1], [0, 0, 2, 0, 1], [2, 0, 3, 1, 2], [2, 0, 3, 0, 2]]
    rows = torch.tensor(rows)
    scores = torch.tensor([0.5, 0.25, 1.5, 0.75, 0.125])  # one rounded up too far
    found = predictions(DecodedBatch(rows, scores, None, None), LABELS, 4)
    a, b = LABELS[:2]
    assert [reading.entities for reading in found] == [
        (Entity(0, 2, a, 1, 1.0),),
        (),
        (Entity(0, 3, b, 2, 0.75), Entity(0, 3, a, 2, 0.125), Entity(0, 1, a, None, 0.25), Entity(1, 2, b, 1, 0.5)),
        (),
    ]  # fmt: skip
    with pytest.raises(DataError, match="score nan of entity"):
        predictions(DecodedBatch(rows, scores * torch.nan, None, None), LABELS, 4)
    with pytest.raises(DataError, match="head 5 of entity"):
        predictions(DecodedBatch(rows.index_fill(1, torch.tensor(4), 5), None, None, None), LABELS, 4)
