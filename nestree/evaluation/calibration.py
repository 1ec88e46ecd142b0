"""Whether entities with a score of 0.8 are correct in 80 % of cases."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

BINS = 10  # of equal width, from 0 to 1


class Bin(NamedTuple):
    """The predicted entities whose scores lie in [low, high); 1 belongs to the last."""

    low: float
    high: float
    entities: int
    score: float  # their mean
    precision: float  # the share of them that is correct


@dataclass(frozen=True)
class Calibration:
    """How far scores are from precision."""

    scored: int
    unscored: int  # predicted entities without a score: left out
    error: float  # expected calibration error: |precision - score| of the bins, weighted by their entities
    brier: float  # the mean square of score - (1 if correct else 0)
    bins: tuple[Bin, ...]  # those with entities


def calibrate(scored: Sequence[tuple[float | None, bool]]) -> Calibration | None:
    """The calibration, given the score of each predicted entity and whether it is correct; None if none has a score.

    >>> calibrate([(0.9, True), (0.9, False), (None, True)]).error
    0.4
    """
    known = [(score, correct) for score, correct in scored if score is not None]
    if not known:
        return None
    cells: dict[int, list[tuple[float, bool]]] = {k: [] for k in range(BINS)}
    for score, correct in known:
        cells[min(int(score * BINS), BINS - 1)].append((score, correct))
    bins = tuple(
        Bin(k / BINS, (k + 1) / BINS, len(cell), *map(fmean, zip(*cell, strict=True)))
        for k, cell in cells.items()
        if cell
    )
    return Calibration(
        len(known),
        len(scored) - len(known),
        sum(bin.entities * abs(bin.precision - bin.score) for bin in bins) / len(known),
        fmean((score - correct) ** 2 for score, correct in known),
        bins,
    )
