"""Precision, recall and F1 of counts, and how far chance moves them.

Counts are kept sentence by sentence, because sentences are what is drawn again for an interval. Most sentences
have the counts of some other sentence, so only distinct rows and how often they occur are kept: drawing from
them is a multinomial, whose cost does not grow with the data.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from numpy import ndarray
    from numpy.random import Generator

LEVEL = 0.95  # of every interval
RESAMPLES = 1000

Group = TypeVar("Group", bound=Hashable)
Range = tuple[float, float]


class Row(NamedTuple):
    """The counts of one sentence, or of many."""

    right: int = 0  # predicted entities that are gold
    predicted: int = 0
    found: int = (
        0  # gold entities that are predicted; as many as are right, but a group may divide them otherwise
    )
    gold: int = 0


class Intervals(NamedTuple):
    """Where 95 % of the resampled values lie."""

    precision: Range
    recall: Range
    f1: Range


@dataclass(frozen=True)
class Score:
    """Precision, recall and F1 of a group of entities; 0 where there is nothing to divide by.

    >>> score = Score(right=3, predicted=4, found=3, gold=6)
    >>> score.precision, score.recall, score.f1
    (0.75, 0.5, 0.6)
    """

    right: int
    predicted: int
    found: int
    gold: int
    intervals: Intervals | None = None  # None: none were asked for

    @property
    def precision(self) -> float:
        return self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.found / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both: 2 right / (predicted + gold) where right = found."""
        below = self.predicted * self.found + self.gold * self.right
        return 2 * self.right * self.found / below if below else 0.0

    @property
    def has_f1(self) -> bool:
        """Whether F1 tells anything: entities of a depth may all be found, and none be predicted at that depth."""
        return bool(self.predicted and self.gold) or (
            self.right == self.found == 0 < self.predicted + self.gold
        )


class Groups(Generic[Group]):
    """The counts of each group of entities: of each label, each depth, and so on.

    >>> labels: Groups[str] = Groups()
    >>> labels.add(gold={(0, 4, "ORG"): "ORG", (3, 4, "GPE"): "GPE"}, predicted={(0, 4, "ORG"): "ORG"})
    >>> labels.scores(sentences=1)["ORG"]
    Score(right=1, predicted=1, found=1, gold=1, intervals=None)
    """

    def __init__(self) -> None:
        self.rows: defaultdict[Group, Counter[Row]] = defaultdict(Counter)

    def add(self, gold: Mapping[Any, Group], predicted: Mapping[Any, Group]) -> None:
        """One sentence: the group of each of its entities, on either side."""
        counts: defaultdict[Group, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for entity, group in predicted.items():
            count = counts[group]
            count[0] += entity in gold
            count[1] += 1
        for entity, group in gold.items():
            count = counts[group]
            count[2] += entity in predicted
            count[3] += 1
        for group, count in counts.items():
            self.rows[group][Row(*count)] += 1

    def scores(
        self, sentences: int, resamples: int = 0, random: "Generator | None" = None
    ) -> dict[Group, Score]:
        """The score of each group, the largest first; with intervals if there is a source of chance."""
        found = {}
        for group, rows in self.rows.items():
            total = Row(*(sum(row[k] * times for row, times in rows.items()) for k in range(4)))
            intervals = bootstrap(rows, sentences, resamples, random) if random and resamples else None
            found[group] = Score(*total, intervals)
        return dict(sorted(found.items(), key=lambda item: (-item[1].gold, -item[1].predicted, str(item[0]))))


def bootstrap(rows: Mapping[Row, int], sentences: int, resamples: int, random: "Generator") -> Intervals:
    """Percentile intervals: as many sentences as there are, drawn again and again from them, with replacement."""
    import numpy as np

    ordered = sorted(rows)
    times = drawn([rows[row] for row in ordered], sentences, resamples, random)
    totals = times @ np.array(
        ordered, float
    )  # [resamples, fields of Row]; floats multiply faster, and are exact
    return Intervals(*(middle(values) for values in prf(*totals.T)))


def drawn(times: list[int], sentences: int, resamples: int, random: "Generator") -> "ndarray":
    """How often each distinct row is drawn; `sentences` less the sum of `times` have nothing to count."""
    import numpy as np

    shares = np.array([*times, sentences - sum(times)]) / sentences
    return random.multinomial(sentences, shares, size=resamples)[:, :-1]  # [resamples, rows]


def prf(right: "ndarray", predicted: "ndarray", found: "ndarray", gold: "ndarray") -> "list[ndarray]":
    """The three numbers of Score, for arrays of counts."""
    import numpy as np

    def ratio(above: "ndarray", below: "ndarray") -> "ndarray":
        return np.divide(above, below, out=np.zeros(len(above)), where=below > 0)

    return [
        ratio(right, predicted),
        ratio(found, gold),
        ratio(2 * right * found, predicted * found + gold * right),
    ]


def middle(values: "ndarray") -> Range:
    """The values between which the middle 95 % lie."""
    import numpy as np

    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
