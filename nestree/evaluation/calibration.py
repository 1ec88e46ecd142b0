"""Calibration of the probabilities of predicted entities: expected calibration error, Brier score, reliability bins."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

BINS = 10  # of equal width, from 0 to 1


class Bin(NamedTuple):
    """The predicted entities whose scores lie in [low, high); 1 belongs to the last."""

    low: float
    high: float
    entities: int
    score: float  # their mean
    precision: float  # the share of them that is right


@dataclass(frozen=True)
class Calibration:
    """How far scores are from the share of right entities."""

    scored: int
    unscored: int  # predicted entities without a score: left out
    error: float  # expected calibration error: |precision - score| of the bins, weighted by their entities
    brier: float  # the mean square of score - (1 if right else 0)
    bins: tuple[Bin, ...]  # those with entities


def calibrate(scored: Iterable[tuple[float | None, bool]]) -> Calibration | None:
    """The calibration, given the score of each predicted entity and whether it is right; None if none has a score.

    >>> calibrate([(0.9, True), (0.9, False), (None, True)]).error
    0.4
    """
    pairs = list(scored)
    known = [(score, right) for score, right in pairs if score is not None]
    if not known:
        return None
    cells: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for score, right in known:
        cells[min(int(score * BINS), BINS - 1)].append((score, right))
    bins = tuple(
        Bin(
            k / BINS,
            (k + 1) / BINS,
            len(cell),
            sum(score for score, _ in cell) / len(cell),
            sum(right for _, right in cell) / len(cell),
        )
        for k, cell in enumerate(cells)
        if cell
    )
    return Calibration(
        len(known),
        len(pairs) - len(known),
        sum(bin.entities * abs(bin.precision - bin.score) for bin in bins) / len(known),
        sum((score - right) ** 2 for score, right in known) / len(known),
        bins,
    )
