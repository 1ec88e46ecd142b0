"""Do two variants differ, or is it chance? From what their runs, of several seeds, got right in each test sentence."""

from collections.abc import Sequence
from typing import Any

import numpy

SWAPS = 10_000
Row = dict[str, Any]


def chance(first: Sequence[Row], second: Sequence[Row], swaps: int = SWAPS) -> float | None:
    """How often F1 would differ by as much if each sentence had been read by the other variant as likely as not.

    F1 of all seeds together; a sentence is swapped with all of its seeds. None: the runs did not keep what it takes.
    """
    if not all("by_sentence" in row["test"] for row in (*first, *second)):
        return None
    one, other = together(first), together(second)  # [sentences, 3]
    random = numpy.random.default_rng(0)
    here = f1(one.sum(0)) - f1(other.sum(0))
    as_far = 0
    for _ in range(swaps):
        swapped = random.random(len(one))[:, None] < 0.5
        a, b = numpy.where(swapped, other, one).sum(0), numpy.where(swapped, one, other).sum(0)
        as_far += abs(f1(a) - f1(b)) >= abs(here) - 1e-12
    return float((as_far + 1) / (swaps + 1))


def together(rows: Sequence[Row]) -> "numpy.ndarray[Any, Any]":
    """[sentences, 3] right, predicted, gold, as means over seeds."""
    return numpy.mean([row["test"]["by_sentence"] for row in rows], 0)


def f1(counts: "numpy.ndarray[Any, Any]") -> float:
    right, predicted, gold = counts
    return float(2 * right / (predicted + gold)) if predicted + gold else 0.0
