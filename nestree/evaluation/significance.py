"""`compare`: is one prediction better than another, or was it luck?

Two questions, two methods, both on the counts of each sentence:
    how large is the difference   paired bootstrap: sentences are drawn again, the same for both predictions, and
                                  the middle 95 % of the differences are the interval
    could it be chance            approximate randomisation: if both were equally good, either could have made
                                  either answer to a sentence. So answers are swapped at random, sentence by
                                  sentence, and p is the share of swaps that give at least the difference that was
                                  seen, of either sign. Nothing is assumed about how F1 is distributed, and the
                                  sentences need not stand for others; a bootstrap needs both to give a p.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nestree.errors import DataError, InputError
from nestree.evaluation.error_analysis import Side, side
from nestree.evaluation.metrics import (
    RESAMPLES,
    Evaluation,
    Range,
    check_alignment,
    evaluate,
    percentile_interval,
    prf,
    resample,
    score_source,
)
from nestree.types import Sentence

if TYPE_CHECKING:
    from numpy import ndarray
    from numpy.random import Generator

MEASURES = ("precision", "recall", "f1")
PERMUTATIONS = 10_000  # so that p can be told to four digits
ROUNDING = 1e-12  # differences closer than this are the same


class Pair(NamedTuple):
    """The counts of one sentence for both predictions."""

    first_right: int
    first_predicted: int
    second_right: int
    second_predicted: int
    gold: int

    @property
    def first_errors(self) -> int:
        return self.first_predicted + self.gold - 2 * self.first_right

    @property
    def second_errors(self) -> int:
        return self.second_predicted + self.gold - 2 * self.second_right


class Difference(NamedTuple):
    """First minus second, of one measure."""

    value: float
    interval: Range
    p: float


@dataclass(frozen=True)
class Comparison:
    """Two predictions for the same gold sentences."""

    first: Evaluation
    second: Evaluation
    names: tuple[str, str]
    overall: Mapping[str, Difference]  # precision, recall, f1
    labels: Mapping[str, Difference]  # of f1; the p of many labels are not corrected for their number
    better: int  # sentences in which the first has fewer errors than the second
    worse: int
    resamples: int
    swaps: int
    seed: int


def compare(
    gold: Sequence[Sentence],
    first: Sequence[Sentence],
    second: Sequence[Sentence],
    *,
    names: tuple[str, str] = ("first", "second"),
    resamples: int = RESAMPLES,
    swaps: int = PERMUTATIONS,
    seed: int = 0,
) -> Comparison:
    """Compare two predictions; differences are first minus second."""
    if resamples < 1 or swaps < 1:
        raise InputError(
            f"a comparison needs chance: {resamples} resamples and {swaps} swaps must be 1 or more"
        )
    for name, predicted in zip(names, (first, second), strict=True):
        try:
            check_alignment(gold, predicted)
        except DataError as why:
            raise DataError(f"{name}: {why}") from None
    evaluations = [evaluate(gold, guess, resamples=resamples, seed=seed) for guess in (first, second)]
    overall, labels = pairs(gold, first, second)
    random = score_source(seed)
    return Comparison(
        evaluations[0],
        evaluations[1],
        names,
        dict(zip(MEASURES, differences(overall, len(gold), resamples, swaps, random), strict=True)),
        {label: differences(rows, len(gold), resamples, swaps, random)[-1] for label, rows in labels.items()},
        sum(times for pair, times in overall.items() if pair.first_errors < pair.second_errors),
        sum(times for pair, times in overall.items() if pair.first_errors > pair.second_errors),
        resamples,
        swaps,
        seed,
    )


def pairs(*corpora: Sequence[Sentence]) -> tuple[Counter[Pair], dict[str, Counter[Pair]]]:
    """How many sentences have which counts: of all entities, and of each label, the most frequent in gold first."""
    overall: Counter[Pair] = Counter()
    labels: defaultdict[str, Counter[Pair]] = defaultdict(Counter)
    frequency: Counter[str] = Counter()
    for sentences in zip(*corpora, strict=True):
        sides = [side(sentence) for sentence in sentences]
        overall[counted(*sides)] += 1
        for label in {key[2] for entities in sides for key in entities}:
            pair = counted(*(of_label(entities, label) for entities in sides))
            labels[label][pair] += 1
            frequency[label] += pair.gold
    return overall, {label: labels[label] for label in sorted(labels, key=lambda x: (-frequency[x], x))}


def of_label(entities: Side, label: str) -> Side:
    return {key: entity for key, entity in entities.items() if key[2] == label}


def counted(gold: Side, first: Side, second: Side) -> Pair:
    return Pair(
        len(gold.keys() & first.keys()), len(first), len(gold.keys() & second.keys()), len(second), len(gold)
    )


def differences(
    rows: Mapping[Pair, int], sentences: int, resamples: int, swaps: int, random: "Generator"
) -> list[Difference]:
    """Of precision, recall and F1."""
    import numpy as np

    distinct = np.array(sorted(rows), float)  # [rows, fields of Pair]; floats multiply faster, and are exact
    times = np.array([rows[row] for row in sorted(rows)])
    total = times @ distinct
    (seen,) = np.array(minus(total[None])).T
    again = minus(resample(times.tolist(), sentences, resamples, random) @ distinct)

    # What swapping both answers to a sentence does to the totals; only sentences that differ in this are told apart.
    changes, which = np.unique(distinct[:, [2, 3, 0, 1, 4]] - distinct, axis=0, return_inverse=True)
    often = np.bincount(which.ravel(), weights=times).astype(int)
    chance = minus(total + random.binomial(often, 0.5, size=(swaps, len(often))) @ changes)
    return [
        Difference(
            float(value),
            percentile_interval(resampled),
            (1 + int(np.sum(np.abs(by_chance) >= abs(value) - ROUNDING))) / (1 + swaps),
        )
        for value, resampled, by_chance in zip(seen, again, chance, strict=True)
    ]


def minus(counts: "ndarray") -> "list[ndarray]":
    """First minus second, for each measure; a column of `counts` for each field of Pair."""
    right, predicted, other_right, other_predicted, gold = counts.T
    first = prf(right, predicted, right, gold)
    second = prf(other_right, other_predicted, other_right, gold)
    return [a - b for a, b in zip(first, second, strict=True)]
