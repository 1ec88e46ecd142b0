"""Calibration of the scores of predicted entities, and scores by threshold."""

import pytest

from nestree.evaluation import evaluate
from nestree.types import Entity, Sentence


def evaluate_scores(*scored):
    """One-word entities with a score (or None), right or not, and one more gold entity."""
    words = ["w"] * (len(scored) + 1)
    gold = [Entity(k, k + 1, "A") for k, (_, right) in enumerate(scored) if right]
    predicted = [Entity(k, k + 1, "A", score=score) for k, (score, _) in enumerate(scored)]
    gold.append(Entity(len(scored), len(words), "A"))
    return evaluate([Sentence(words, gold)], [Sentence(words, predicted)], resamples=0)


def test_bins_and_errors_of_calibration():
    found = evaluate_scores(
        (0.95, True), (0.85, True), (0.85, False), (1.0, True), (0.0, False), (None, True)
    )
    calibration = found.calibration
    assert [(b.low, b.entities, b.precision) for b in calibration.bins] == [
        (0.0, 1, 0),
        (0.8, 2, 0.5),
        (0.9, 2, 1),
    ]
    assert (calibration.scored, calibration.unscored) == (5, 1)
    assert calibration.error == pytest.approx((1 * 0 + 2 * 0.35 + 2 * 0.025) / 5)
    assert calibration.brier == pytest.approx((0.05**2 + 0.15**2 + 0.85**2) / 5)
    bins = evaluate_scores((0.27, True), (0.2, False), (0.3, True), (1.0, True)).calibration.bins
    assert [(bin.low, bin.entities) for bin in bins] == [(0.2, 2), (0.3, 1), (0.9, 1)]
    unscored = evaluate_scores((None, True))
    assert (unscored.calibration, unscored.thresholds) == (None, {})


def test_span_and_label_must_be_right():
    words = list("abc")
    predicted = [Sentence(words, [Entity(0, 2, "A", score=0.9), Entity(0, 2, "B", score=0.4)])]
    bins = evaluate([Sentence(words, [Entity(0, 2, "A")])], predicted).calibration.bins
    assert [(b.score, b.precision) for b in bins] == [(0.4, 0), (0.9, 1)]


def test_each_threshold_scores_what_it_keeps():
    scored = [(0.42, False), (0.55, True), (0.7, True), (0.7, False), (0.97, True), (None, True)]
    found = evaluate_scores(*scored)
    assert min(found.thresholds) == 0.4  # the highest that keeps all
    assert found.thresholds[0.4].f1 == found.entities.f1
    for threshold, score in found.thresholds.items():
        kept = [right for value, right in scored if value is None or value >= threshold]
        assert (score.correct, score.predicted, score.gold) == (sum(kept), len(kept), 5)
    assert found.thresholds[0.99].precision == 1  # the entity without a score is always kept
