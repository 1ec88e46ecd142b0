"""Comparison of two predictions.

paired bootstrap    the size of the difference: the same sentences are resampled for both predictions, and the middle
                    95 % of the differences are the interval
permutation test    its significance: under the null hypothesis, the two predictions of each sentence could be
                    exchanged. p is the share of random exchanges with at least the observed difference, of either
                    sign. It assumes no distribution of F1, and not that the sentences are a sample, as a p from the
                    bootstrap would.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nestree.errors import DataError, InputError
from nestree.evaluation.error_analysis import entities_by_key
from nestree.evaluation.metrics import (
    RESAMPLES,
    Evaluation,
    Range,
    Row,
    check_alignment,
    count_rows,
    evaluate,
    percentile_interval,
    precision_recall_f1,
    resample,
)
from nestree.types import Sentence

if TYPE_CHECKING:
    from numpy import ndarray
    from numpy.random import Generator

METRICS = ("precision", "recall", "f1")
SWAPS = 10_000  # so that p has four digits
ROUNDING = 1e-12  # differences closer than this are equal


class Difference(NamedTuple):
    """First minus second, of one metric."""

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
    labels: Mapping[str, Difference]  # of f1; their p are not corrected for multiple tests
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
    swaps: int = SWAPS,
    seed: int = 0,
) -> Comparison:
    """Compare two predictions; differences are first minus second."""
    from numpy.random import default_rng

    if resamples < 1 or swaps < 1:
        raise InputError(
            f"a comparison needs random samples: {resamples} resamples and {swaps} swaps must be 1 or more"
        )
    for name, predicted in zip(names, (first, second), strict=True):
        try:
            check_alignment(gold, predicted)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
    sides = [[*map(entities_by_key, side)] for side in (gold, first, second)]
    rows = count_rows(*([dict.fromkeys(e) for e in side] for side in sides)).get(None, Counter())
    if empty := len(gold) - rows.total():  # sentences without any entities
        rows[0, 0, 0, 0, 0] += empty
    labels = count_rows(*([{key: key[2] for key in e} for e in side] for side in sides))
    frequency = {label: sum(row[-1] * times for row, times in labels[label].items()) for label in labels}
    rng = default_rng(seed)
    # Predicted entities minus twice the correct ones: the errors, less the gold entities, which both have in common.
    errors = [(p - 2 * r, q - 2 * s, times) for (r, p, s, q, _), times in rows.items()]
    return Comparison(
        first=evaluate(gold, first, resamples=resamples, seed=seed),
        second=evaluate(gold, second, resamples=resamples, seed=seed),
        names=names,
        overall=dict(zip(METRICS, differences(rows, len(gold), resamples, swaps, rng), strict=True)),
        labels={
            label: differences(labels[label], len(gold), resamples, swaps, rng)[-1]
            for label in sorted(labels, key=lambda label: (-frequency[label], label))
        },
        better=sum(times for ours, theirs, times in errors if ours < theirs),
        worse=sum(times for ours, theirs, times in errors if ours > theirs),
        resamples=resamples,
        swaps=swaps,
        seed=seed,
    )


def differences(
    rows: Mapping[Row, int], sentences: int, resamples: int, swaps: int, rng: "Generator"
) -> list[Difference]:
    """The differences in precision, recall and F1."""
    import numpy as np

    def subtract(counts: "ndarray") -> "list[ndarray]":
        """First minus second, for each metric; NaN where both are undefined. The columns are those of Row."""
        correct, predicted, other_correct, other_predicted, gold = counts.T
        first = precision_recall_f1(correct, predicted, gold)
        second = precision_recall_f1(other_correct, other_predicted, gold)
        return [
            np.where(np.isnan(a) & np.isnan(b), np.nan, np.nan_to_num(a) - np.nan_to_num(b))
            for a, b in zip(first, second, strict=True)
        ]

    distinct = np.array(sorted(rows), float)  # [rows, 5]; floats are faster here, and exact
    times = np.array([rows[row] for row in sorted(rows)])
    total = times @ distinct
    resampled = subtract(resample(times.tolist(), sentences, resamples, rng) @ distinct)

    # How swapping the answers to a sentence changes the totals; sentences with the same change are drawn together.
    changes, inverse = np.unique(distinct[:, [2, 3, 0, 1, 4]] - distinct, axis=0, return_inverse=True)
    counts = np.bincount(inverse.ravel(), weights=times).astype(int)
    swapped = subtract(total + rng.binomial(counts, 0.5, size=(swaps, len(counts))) @ changes)
    return [
        Difference(
            float(value),
            percentile_interval(samples),
            (1 + int(np.sum(np.abs(np.nan_to_num(null)) >= abs(value) - ROUNDING))) / (1 + swaps),
        )
        for (value,), samples, null in zip(
            map(np.nan_to_num, subtract(total[None])), resampled, swapped, strict=True
        )
    ]
