"""Calibration of the scores of predicted entities."""

import pytest

from nestree.evaluation import evaluate
from nestree.evaluation.calibration import calibrate
from nestree.types import Entity, Sentence


def test_bins():
    calibration = calibrate([(0.27, True), (0.2, False), (0.3, True), (1.0, True)])
    assert [(bin.low, bin.entities) for bin in calibration.bins] == [(0.2, 2), (0.3, 1), (0.9, 1)]


def test_errors_of_calibration():
    calibration = calibrate(
        [(0.95, True), (0.85, True), (0.85, False), (1.0, True), (0.0, False), (None, True)]
    )
    assert [(b.low, b.entities, b.precision) for b in calibration.bins] == [
        (0.0, 1, 0),
        (0.8, 2, 0.5),
        (0.9, 2, 1),
    ]
    assert (calibration.scored, calibration.unscored) == (5, 1)
    assert calibration.error == pytest.approx((1 * 0 + 2 * 0.35 + 2 * 0.025) / 5)
    assert calibration.brier == pytest.approx((0.05**2 + 0.15**2 + 0.85**2) / 5)
    assert calibrate([(None, True)]) is None


def test_span_and_label_must_be_right():
    words = list("abc")
    gold = [Sentence(words, [Entity(0, 2, "A")])]
    predicted = [Sentence(words, [Entity(0, 2, "A", score=0.9), Entity(0, 2, "B", score=0.4)])]
    bins = evaluate(gold, predicted).calibration.bins
    assert [(b.score, b.precision) for b in bins] == [(0.4, 0), (0.9, 1)]
