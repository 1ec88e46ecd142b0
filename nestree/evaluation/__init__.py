"""Gold entities and predicted ones -> numbers. What each of them means is told in docs/evaluation.md.

>>> from nestree.sentence import Entity, Sentence
>>> words = "the University of California".split()
>>> gold = [Sentence(words, [Entity(0, 4, "ORG"), Entity(3, 4, "GPE")])]
>>> predicted = [Sentence(words, [Entity(0, 4, "ORG"), Entity(1, 4, "ORG")])]
>>> result = evaluate(gold, predicted)
>>> result.entities.precision, result.labels["GPE"].recall, result.count("missed")
(0.5, 0.0, 1)
"""

from nestree.evaluation.alignment import check_alignment
from nestree.evaluation.calibration import Bin, Calibration
from nestree.evaluation.comparison import Comparison, Difference, compare
from nestree.evaluation.errors import KINDS, Mistake
from nestree.evaluation.heads import Heads
from nestree.evaluation.scores import Intervals, Score
from nestree.evaluation.scoring import Evaluation, evaluate

__all__ = [
    "KINDS",
    "Bin",
    "Calibration",
    "Comparison",
    "Difference",
    "Evaluation",
    "Heads",
    "Intervals",
    "Mistake",
    "Score",
    "check_alignment",
    "compare",
    "evaluate",
]
