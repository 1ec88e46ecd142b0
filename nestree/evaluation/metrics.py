"""Precision, recall and F1 by label, depth and length, with bootstrap intervals."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from nestree.data.statistics import nested
from nestree.errors import DataError
from nestree.evaluation.calibration import Calibration, calibrate
from nestree.evaluation.error_analysis import EntitiesByKey, EntityError, classify_errors, entities_by_key
from nestree.evaluation.heads import HeadScores, evaluate_heads
from nestree.types import Sentence, depths

if TYPE_CHECKING:
    from numpy import ndarray
    from numpy.random import Generator

LEVEL = 0.95  # of every interval
RESAMPLES = 1000
LENGTHS = {**{str(n): n for n in range(1, 6)}, "6-10": 10}  # name -> largest number of words
LONGER = "11+"

Range = tuple[float, float]

# Alignment


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
            raise DataError(describe_difference(number, gold, predicted))
    if len(gold) == len(predicted):
        return
    shorter, longer = sorted((gold, predicted), key=len)
    name, other = ("gold", "predicted") if shorter is gold else ("predicted", "gold")
    remedy = (
        "Score against the file that was predicted." if shorter is gold else "Predict the whole gold file."
    )
    n, first = len(shorter), longer[len(shorter)]
    raise DataError(
        f"{name} ends after {n} sentence{'' if n == 1 else 's'}, {other} has {len(longer)}; the first that is missing "
        f"is {sentence_name(n + 1, first)}: {first}. {remedy}"
    )


def describe_difference(number: int, gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> str:
    """What differs in the sentence with this number, and what to do about it."""
    g, p = gold[number - 1].words, predicted[number - 1].words
    k = next((k for k, (a, b) in enumerate(zip(g, p, strict=False)) if a != b), min(len(g), len(p)))
    ours, theirs = (repr(words[k]) if k < len(words) else "no more words" for words in (g, p))
    place = (
        f"{sentence_name(number, gold[number - 1])}, word {k + 1}: gold has {ours}, predicted has {theirs}."
    )
    gold_text, text = "".join(g), "".join(p)
    convert = "or convert both from the same text with the same"
    if gold_text == text:
        return (
            f"{place} The text is the same, its words are not: predict on the words of the gold file, "
            f"{convert} --words."
        )
    if gold_text.startswith(text) or text.startswith(gold_text):
        return (
            f"{place} The text is the same, its sentences end in different places: predict on the sentences of the "
            f"gold file, {convert} --sentences."
        )
    elsewhere = next((n for n, sentence in enumerate(predicted, 1) if sentence.words == g), None)
    if elsewhere is not None:
        return f"{place} This gold sentence is {elsewhere} of the predicted ones: bring both into the same order."
    return f"{place} These are not the same texts: score a prediction for this gold file."


def sentence_name(number: int, sentence: Sentence) -> str:
    return f"sentence {number}" + (f" ({sentence.id})" if sentence.id else "")


# Scores


class Counts(NamedTuple):
    """The counts of a sentence or of many. `right` and `found` differ only within a group such as a depth."""

    right: int = 0  # predicted entities that are gold
    predicted: int = 0
    found: int = 0  # gold entities that are predicted
    gold: int = 0


class Intervals(NamedTuple):
    """Bootstrap intervals at LEVEL."""

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
    intervals: Intervals | None = None

    @property
    def precision(self) -> float:
        return self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.found / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both: 2 right / (predicted + gold) where right = found."""
        denominator = self.predicted * self.found + self.gold * self.right
        return 2 * self.right * self.found / denominator if denominator else 0.0

    @property
    def has_f1(self) -> bool:
        """Whether F1 is defined: at a depth, entities may be found although none is predicted at that depth."""
        return bool(self.predicted and self.gold) or (
            self.right == self.found == 0 < self.predicted + self.gold
        )


def score_groups(
    gold: Sequence[Mapping[Any, Any]],
    predicted: Sequence[Mapping[Any, Any]],
    resamples: int = 0,
    rng: "Generator | None" = None,
) -> dict[Any, Score]:
    """The score of each group of entities, the largest first; gold and predicted map entities to groups by sentence.

    >>> score_groups([{(0, 4, "ORG"): "ORG", (3, 4, "GPE"): "GPE"}], [{(0, 4, "ORG"): "ORG"}])["ORG"]
    Score(right=1, predicted=1, found=1, gold=1, intervals=None)
    """
    rows: defaultdict[Any, Counter[Counts]] = defaultdict(Counter)  # how many sentences have which counts
    for g, p in zip(gold, predicted, strict=True):
        counts: defaultdict[Any, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for entity, group in p.items():
            counts[group][0] += entity in g
            counts[group][1] += 1
        for entity, group in g.items():
            counts[group][2] += entity in p
            counts[group][3] += 1
        for group, count in counts.items():
            rows[group][Counts(*count)] += 1
    scores = {}
    for group, sentences in rows.items():
        totals = Counts(*(sum(counts[k] * times for counts, times in sentences.items()) for k in range(4)))
        intervals = bootstrap(sentences, len(gold), resamples, rng) if rng else None
        scores[group] = Score(*totals, intervals)
    return dict(sorted(scores.items(), key=lambda item: (-item[1].gold, -item[1].predicted, str(item[0]))))


def bootstrap(rows: Mapping[Counts, int], sentences: int, resamples: int, rng: "Generator") -> Intervals:
    """Percentile intervals of resamples of as many sentences, drawn with replacement."""
    import numpy as np

    ordered = sorted(rows)
    times = resample([rows[row] for row in ordered], sentences, resamples, rng)
    totals = times @ np.array(
        ordered, float
    )  # [resamples, fields of Counts]; floats are faster here, and exact
    return Intervals(*(percentile_interval(values) for values in precision_recall_f1(*totals.T)))


def resample(times: list[int], sentences: int, resamples: int, rng: "Generator") -> "ndarray":
    """How often each distinct row is drawn; rows occur `times`, and the other sentences have nothing to count."""
    import numpy as np

    shares = np.array([*times, sentences - sum(times)]) / sentences
    return rng.multinomial(sentences, shares, size=resamples)[:, :-1]  # [resamples, rows]


def precision_recall_f1(
    right: "ndarray", predicted: "ndarray", found: "ndarray", gold: "ndarray"
) -> "list[ndarray]":
    """The three numbers of Score, for arrays of counts."""
    import numpy as np

    def ratio(numerator: "ndarray", denominator: "ndarray") -> "ndarray":
        return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=denominator > 0)

    return [
        ratio(right, predicted),
        ratio(found, gold),
        ratio(2 * right * found, predicted * found + gold * right),
    ]


def percentile_interval(values: "ndarray") -> Range:
    import numpy as np

    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


# Evaluation


@dataclass(frozen=True)
class Evaluation:
    """The scores of a prediction; entities are compared by start, end and label.

    Everything but `duplicates` counts an entity once, however often it occurs in a file.
    """

    sentences: int
    incomplete: int  # gold sentences that may lack entities; predictions beyond gold count as wrong there
    entities: Score
    duplicates: Score  # each copy of an entity counts, in gold and in the prediction
    spans: Score  # without labels
    labels: Mapping[str, Score]  # the most frequent first, as in all mappings by label
    depths: Mapping[int, Score]  # recall by depth in gold, precision by depth in the prediction
    nesting: Mapping[str, Score]  # "nested": inside or around another entity, or on its span; or "alone"
    lengths: Mapping[str, Score]  # in words
    errors: tuple[EntityError, ...]  # in the order of the sentences
    confusion: Mapping[str, Mapping[str | None, int]]  # gold label -> label of the same span; None: missed
    heads: HeadScores | None  # None: neither side has heads
    calibration: Calibration | None  # None: no predicted entity has a score
    resamples: int
    seed: int

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the labels that occur in gold or in the prediction."""
        return sum(score.f1 for score in self.labels.values()) / len(self.labels) if self.labels else 0.0

    def count(self, kind: str, label: str | None = None) -> int:
        """The number of errors of a kind; with a label, of gold entities with it or, if spurious, of predicted ones."""
        return self.error_counts[kind][label]

    @cached_property
    def error_counts(self) -> Mapping[str, Counter[str | None]]:
        """kind -> label -> number of errors; the label None stands for all."""
        counts: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
        for error in self.errors:
            entity = error.gold or error.predicted
            assert entity is not None
            counts[error.kind].update((None, entity.label))
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

    Intervals come from `resamples` bootstrap samples; with 0 there are none, and numpy is not imported.
    """
    check_alignment(gold, predicted)
    if not gold:
        raise DataError("there are no sentences to score. Name a gold file that has some.")
    gold_entities, predicted_entities = (
        list(map(entities_by_key, gold)),
        list(map(entities_by_key, predicted)),
    )
    rng = None
    if resamples:
        from numpy.random import default_rng

        rng = default_rng(seed)

    def score(grouping: Callable[[Any], Mapping[Any, Any]]) -> dict[Any, Score]:
        gold_groups, predicted_groups = map(grouping, gold_entities), map(grouping, predicted_entities)
        return score_groups(list(gold_groups), list(predicted_groups), resamples, rng)

    errors = tuple(
        EntityError(*error, number, gold[number - 1], predicted[number - 1])
        for number, (g, p) in enumerate(zip(gold_entities, predicted_entities, strict=True), 1)
        for error in classify_errors(g, p)
    )
    empty = Score(0, 0, 0, 0)
    lengths = score(group_by_length)
    gold_copies, predicted_copies = list(map(number_copies, gold)), list(map(number_copies, predicted))
    return Evaluation(
        sentences=len(gold),
        incomplete=sum(not sentence.complete for sentence in gold),
        entities=score(dict.fromkeys).get(None, empty),
        duplicates=score_groups(gold_copies, predicted_copies, resamples, rng).get(None, empty),
        spans=score(lambda entities: dict.fromkeys(key[:2] for key in entities)).get(None, empty),
        labels=score(lambda entities: {key: key[2] for key in entities}),
        depths=dict(sorted(score(group_by_depth).items())),
        nesting=dict(sorted(score(group_by_nesting).items())),
        lengths={name: lengths[name] for name in (*LENGTHS, LONGER) if name in lengths},
        errors=errors,
        confusion=count_confusion(gold_entities, predicted_entities, errors),
        heads=evaluate_heads(gold, predicted, gold_entities, predicted_entities),
        calibration=calibrate(
            (entity.score, key in g)
            for g, p in zip(gold_entities, predicted_entities, strict=True)
            for key, entity in p.items()
        ),
        resamples=resamples,
        seed=seed,
    )


def number_copies(sentence: Sentence) -> dict[Hashable, None]:
    """Every entity, with a number that distinguishes its copies."""
    seen: Counter[Hashable] = Counter()
    copies: dict[Hashable, None] = {}
    for entity in sentence.entities:
        key = (entity.start, entity.end, entity.label)
        seen[key] += 1
        copies[*key, seen[key]] = None
    return copies


def group_by_depth(entities: EntitiesByKey) -> dict[Hashable, int]:
    return dict(zip(entities, depths(entities.values()), strict=True))


def group_by_nesting(entities: EntitiesByKey) -> dict[Hashable, str]:
    """Nested: contains another entity or is contained by one; the same span with another label is both."""
    kinds = ("nested" if is_nested else "alone" for is_nested in nested([*entities.values()]))
    return dict(zip(entities, kinds, strict=True))


def group_by_length(entities: EntitiesByKey) -> dict[Hashable, str]:
    return {
        key: next((name for name, longest in LENGTHS.items() if key[1] - key[0] <= longest), LONGER)
        for key in entities
    }


def count_confusion(
    gold: Sequence[EntitiesByKey], predicted: Sequence[EntitiesByKey], errors: Sequence[EntityError]
) -> dict[str, dict[str | None, int]]:
    """How often the gold entities of each label were predicted with which label, or (None) not at all."""
    counts: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for g, p in zip(gold, predicted, strict=True):
        for key in g:
            if key in p:
                counts[key[2]][key[2]] += 1
    for error in errors:
        if error.gold:
            label = error.predicted.label if error.kind == "type" and error.predicted else None
            counts[error.gold.label][label] += 1
    order = sorted(counts, key=lambda label: (-counts[label].total(), label))
    return {label: dict(counts[label]) for label in order}
