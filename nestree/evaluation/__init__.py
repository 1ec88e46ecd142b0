"""Gold and predicted entities -> numbers, which docs/evaluation.md explains.

>>> from nestree.types import Entity, Sentence
>>> words = "the University of California".split()
>>> gold = [Sentence(words, [Entity(0, 4, "ORG"), Entity(3, 4, "GPE")])]
>>> predicted = [Sentence(words, [Entity(0, 4, "ORG"), Entity(1, 4, "ORG")])]
>>> result = evaluate(gold, predicted)
>>> result.entities.precision, result.labels["GPE"].recall, result.count("missed")
(0.5, 0.0, 1)
"""

from nestree.evaluation.error_analysis import KINDS, EntityError, HeadScores
from nestree.evaluation.metrics import (
    Bin,
    Calibration,
    Evaluation,
    Intervals,
    Score,
    check_alignment,
    evaluate,
)
from nestree.evaluation.significance import Comparison, Difference, compare

__all__ = [
    "KINDS", "Bin", "Calibration", "Comparison", "Difference", "EntityError", "Evaluation", "HeadScores",
    "Intervals", "Score", "check_alignment", "compare", "evaluate",
]  # fmt: skip
