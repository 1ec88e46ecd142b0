"""Gold and predicted sentences must be the same sentences; if they are not, where and why."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from nestree.data.statistics import nested
from nestree.errors import DataError
from nestree.evaluation.calibration import Calibration, calibrate
from nestree.evaluation.error_analysis import EntityError, Key, Side, classify_errors, side
from nestree.evaluation.heads import Heads, evaluate_heads
from nestree.types import Sentence, depths

SAME_SPLIT = "convert both from the same text with the same"


def check_alignment(gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> None:
    """Raise unless both have the same words, sentence by sentence.

    >>> check_alignment([Sentence(["a", "b-c"])], [Sentence(["a", "b", "-", "c"])])
    Traceback (most recent call last):
        ...
    nestree.errors.DataError: sentence 1, word 2: gold has 'b-c', predicted has 'b'. The text is the same, its words
    are not: predict on the words of the gold file, or convert both from the same text with the same --words.
    """
    for number, (g, p) in enumerate(zip(gold, predicted, strict=False), 1):
        if g.words != p.words:
            raise DataError(difference(number, gold, predicted))
    if len(gold) == len(predicted):
        return
    shorter, longer = sorted((gold, predicted), key=len)
    name, other = ("gold", "predicted") if shorter is gold else ("predicted", "gold")
    first = longer[len(shorter)]
    raise DataError(
        f"{name} ends after {counted(len(shorter))}, {other} has {len(longer)}; the first that is missing is "
        f"{named(len(shorter) + 1, first)}: {first}. "
        + (
            "Predict the whole gold file."
            if shorter is predicted
            else "Score against the file that was predicted."
        )
    )


def difference(number: int, gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> str:
    """What differs in this sentence, and what to do about it."""
    g, p = gold[number - 1], predicted[number - 1]
    k = next(
        (k for k, (a, b) in enumerate(zip(g.words, p.words, strict=False)) if a != b),
        min(len(g.words), len(p.words)),
    )
    there = [repr(s.words[k]) if k < len(s.words) else "no more words" for s in (g, p)]
    place = f"{named(number, g)}, word {k + 1}: gold has {there[0]}, predicted has {there[1]}."
    a, b = "".join(g.words), "".join(p.words)
    if a == b:
        return (
            f"{place} The text is the same, its words are not: predict on the words of the gold file, or "
            f"{SAME_SPLIT} --words."
        )
    if a.startswith(b) or b.startswith(a):
        return (
            f"{place} The text is the same, its sentences end in different places: predict on the sentences of the "
            f"gold file, or {SAME_SPLIT} --sentences."
        )
    elsewhere = next((n for n, s in enumerate(predicted, 1) if s.words == g.words), None)
    if elsewhere is not None:
        return f"{place} This gold sentence is {elsewhere} of the predicted ones: bring both into the same order."
    return f"{place} These are not the same texts: score a prediction for this gold file."


def named(number: int, sentence: Sentence) -> str:
    return f"sentence {number}" + (f" ({sentence.id})" if sentence.id else "")


def counted(sentences: int) -> str:
    return f"{sentences} sentence" + ("" if sentences == 1 else "s")


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
    times = resample([rows[row] for row in ordered], sentences, resamples, random)
    totals = times @ np.array(
        ordered, float
    )  # [resamples, fields of Row]; floats multiply faster, and are exact
    return Intervals(*(percentile_interval(values) for values in prf(*totals.T)))


def resample(times: list[int], sentences: int, resamples: int, random: "Generator") -> "ndarray":
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


def percentile_interval(values: "ndarray") -> Range:
    """The values between which the middle 95 % lie."""
    import numpy as np

    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


if TYPE_CHECKING:
    from numpy.random import Generator

LENGTHS = {**{str(n): n for n in range(1, 6)}, "6-10": 10}  # in words, and the longest of each; then
LONGER = "11+"
NOTHING = Score(0, 0, 0, 0)


@dataclass(frozen=True)
class Evaluation:
    """All there is to say about a prediction; entities are compared by start, end and label.

    Everything but `duplicates` counts an entity once, however often it stands in a file.
    """

    sentences: int
    incomplete: (
        int  # gold sentences that may lack entities: what is predicted beyond gold counts as wrong there
    )
    entities: Score
    duplicates: Score  # each copy of an entity counts, on either side
    spans: Score  # labels aside
    labels: Mapping[str, Score]  # the most frequent first, as in all mappings by label
    depths: Mapping[int, Score]  # recall by depth in gold, precision by depth in the prediction
    nesting: Mapping[str, Score]  # "nested": inside or around another entity, or on its span; or "alone"
    lengths: Mapping[str, Score]  # in words
    mistakes: tuple[EntityError, ...]  # in the order of the sentences
    confusion: Mapping[str, Mapping[str | None, int]]  # gold label -> label of the same span; None: missed
    heads: Heads | None  # None: none are known
    calibration: Calibration | None  # None: no predicted entity has a score
    resamples: int
    seed: int

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the labels that occur in gold or in the prediction."""
        return sum(score.f1 for score in self.labels.values()) / len(self.labels) if self.labels else 0.0

    def count(self, kind: str, label: str | None = None) -> int:
        """Errors of a kind; of a label: that of the gold entity or, if spurious, of the predicted one."""
        return self.error_counts[kind][label]

    @cached_property
    def error_counts(self) -> Mapping[str, Counter[str | None]]:
        """kind -> label -> errors; under None, all of them."""
        counts: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
        for mistake in self.mistakes:
            entity = mistake.gold or mistake.predicted
            assert entity is not None
            counts[mistake.kind].update((None, entity.label))
        return counts

    @property
    def distribution(self) -> dict[str, dict[str | None, float]]:
        """gold label -> predicted label of the same span -> share; None: missed. Shares of a gold label sum to 1."""
        return {
            label: {row: times / sum(rows.values()) for row, times in rows.items()}
            for label, rows in self.confusion.items()
        }


def evaluate(
    gold: Sequence[Sentence], predicted: Sequence[Sentence], *, resamples: int = RESAMPLES, seed: int = 0
) -> Evaluation:
    """Score predicted sentences against gold ones, which must have the same words in the same order.

    Intervals are drawn from `resamples` times as many sentences; with 0 there are none, and nothing is random.
    """
    check_alignment(gold, predicted)
    if not gold:
        raise DataError("there are no sentences to score. Name a gold file that has some.")
    golds, guesses = list(map(side, gold)), list(map(side, predicted))
    random = score_source(seed) if resamples else None

    def score(grouped: Callable[[Any], dict], gold: Sequence = golds, predicted: Sequence = guesses) -> dict:
        groups: Groups = Groups()
        for g, p in zip(gold, predicted, strict=True):
            groups.add(grouped(g), grouped(p))
        return groups.scores(len(gold), resamples, random)

    mistakes = tuple(
        EntityError(*error, number, gold[number - 1], predicted[number - 1])
        for number, (g, p) in enumerate(zip(golds, guesses, strict=True), 1)
        for error in classify_errors(g, p)
    )
    lengths = score(length_of)
    return Evaluation(
        sentences=len(gold),
        incomplete=sum(not sentence.complete for sentence in gold),
        entities=score(dict.fromkeys).get(None, NOTHING),
        duplicates=score(numbered, gold, predicted).get(None, NOTHING),
        spans=score(spans_of).get(None, NOTHING),
        labels=score(label_of),
        depths=dict(sorted(score(depth_of).items())),
        nesting=dict(sorted(score(nesting_of).items())),
        lengths={name: lengths[name] for name in (*LENGTHS, LONGER) if name in lengths},
        mistakes=mistakes,
        confusion=confusion(golds, guesses, mistakes),
        heads=evaluate_heads(gold, predicted, golds, guesses),
        calibration=calibrate(
            (entity.score, key in g) for g, p in zip(golds, guesses, strict=True) for key, entity in p.items()
        ),
        resamples=resamples,
        seed=seed,
    )


def score_source(seed: int) -> "Generator":
    from numpy.random import default_rng

    return default_rng(seed)


def numbered(sentence: Sentence) -> dict[Hashable, None]:
    """Every entity, its copies told apart by their number."""
    seen: Counter[Key] = Counter()
    copies: dict[Hashable, None] = {}
    for entity in sentence.entities:
        key = (entity.start, entity.end, entity.label)
        seen[key] += 1
        copies[*key, seen[key]] = None
    return copies


def spans_of(entities: Side) -> dict[Hashable, None]:
    return dict.fromkeys(key[:2] for key in entities)


def label_of(entities: Side) -> dict[Hashable, str]:
    return {key: key[2] for key in entities}


def depth_of(entities: Side) -> dict[Hashable, int]:
    return dict(zip(entities, depths(entities.values()), strict=True))


def nesting_of(entities: Side) -> dict[Hashable, str]:
    """Nested: contains another entity or is contained by one; the same span with another label is both."""
    kinds = ("nested" if found else "alone" for found in nested([*entities.values()]))
    return dict(zip(entities, kinds, strict=True))


def length_of(entities: Side) -> dict[Hashable, str]:
    return {
        key: next((name for name, longest in LENGTHS.items() if key[1] - key[0] <= longest), LONGER)
        for key in entities
    }


def confusion(
    gold: Sequence[Side], predicted: Sequence[Side], mistakes: Sequence[EntityError]
) -> dict[str, dict[str | None, int]]:
    """What became of the gold entities of each label: predicted so, with another label, or (None) not at all."""
    counts: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for g, p in zip(gold, predicted, strict=True):
        for key in g:
            if key in p:
                counts[key[2]][key[2]] += 1
    for mistake in mistakes:
        if mistake.gold:
            replaced = mistake.predicted.label if mistake.kind == "type" and mistake.predicted else None
            counts[mistake.gold.label][replaced] += 1
    largest = sorted(counts, key=lambda label: (-counts[label].total(), label))
    return {label: dict(counts[label]) for label in largest}
