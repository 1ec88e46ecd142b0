"""Gold and predicted entities -> numbers, which docs/evaluation.md explains.

>>> from nestree.types import Entity, Sentence
>>> words = "the University of California".split()
>>> gold = [Sentence(words, [Entity(0, 4, "ORG"), Entity(3, 4, "GPE")])]
>>> predicted = [Sentence(words, [Entity(0, 4, "ORG"), Entity(1, 4, "ORG")])]
>>> result = evaluate(gold, predicted)
>>> result.entities.precision, result.labels["GPE"].recall, result.count("missed")
(0.5, 0.0, 1)

Errors: every entity is correct, or part of exactly one error. A gold entity that was not predicted and a predicted one
that is not gold are paired as one error where one explains the other; each is used once. In this order:
    type        the same span with another label
    boundary    the same label on another span that shares a word; those with the largest overlap first
The others are `missed` in gold and `spurious` in the prediction. So
    gold      = correct + type + boundary + missed
    predicted = correct + type + boundary + spurious

Heads are judged on spans: a span has one head, whatever its labels. Spans of one word are left out, because there is
nothing to choose.

Two predictions are compared by a
paired bootstrap    the size of the difference: the same sentences are resampled for both predictions, and the middle
                    95 % of the differences are the interval
permutation test    its significance: under the null hypothesis, the two predictions of each sentence could be
                    exchanged. p is the share of random exchanges with at least the observed difference, of either
                    sign. It assumes no distribution of F1, and not that the sentences are a sample, as a p from the
                    bootstrap would.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from numbers import Integral
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from nestree.data.statistics import in_nesting
from nestree.errors import DataError, InputError, plural
from nestree.types import AttributeHints, Entity, Sentence, Span, depths

if TYPE_CHECKING:
    from numpy import ndarray
    from numpy.random import Generator

log = logging.getLogger(__name__)
KINDS = ("type", "boundary", "missed", "spurious")  # of errors
LEVEL = 0.95  # of every interval
RESAMPLES = 1000
LENGTHS = ("", "1", "2", "3", "4", "5", *["6-10"] * 5, "11+")  # groups, by number of words
THRESHOLDS = (*(k / 20 for k in range(20)), 0.99)

Range = tuple[float, float]
Key = tuple[int, int, str]  # start, end, label: what is compared
EntitiesByKey = Mapping[Key, Entity]  # the entities of one sentence, without duplicates

# Gold and predicted sentences


def match_sentences(*sides: Sequence[Sentence]) -> list[Sequence[Sentence]]:
    """The sides with the same sentences, if they have the same words: those that end in different places are joined.

    An entity across the end of a sentence joins sentences when text is read: annotators of one text may differ in that.

    >>> gold, predicted = match_sentences([Sentence(["a"]), Sentence(["b", "c"])], [Sentence(["a", "b", "c"])])
    >>> gold[0].words, len(gold), len(predicted)
    (('a', 'b', 'c'), 1, 1)
    """
    ends = [list(accumulate(len(sentence.words) for sentence in side)) for side in sides]
    words = ([word for sentence in side for word in sentence.words] for side in sides)
    if all(each == ends[0] for each in ends) or len(set(map(tuple, words))) > 1:
        return [*sides]
    common = set(ends[0]).intersection(*ends)
    other = len(set(ends[0]).union(*ends)) - len(common)
    log.warning("ends of sentences that only one side has, joined to the next sentence: %s", f"{other:,}")
    matched: list[Sequence[Sentence]] = []
    for side, side_ends in zip(sides, ends, strict=True):
        groups: list[list[Sentence]] = [[]]
        for sentence, end in zip(side, side_ends, strict=True):
            groups[-1].append(sentence)
            if end in common:
                groups.append([])
        matched.append([group[0] if len(group) == 1 else concatenate(group) for group in groups[:-1]])
    return matched


def concatenate(sentences: Sequence[Sentence]) -> Sentence:
    """One sentence of these words and entities, without text."""
    words: list[str] = []
    entities: list[Entity] = []
    for sentence in sentences:
        k = len(words)
        words += sentence.words
        for e in sentence.entities:
            head = None if e.head is None else e.head + k
            heads = tuple(word + k for word in e.heads)
            entities.append(replace(e, start=e.start + k, end=e.end + k, head=head, heads=heads))
    return Sentence(words, entities, id=sentences[0].id, complete=all(sentence.complete for sentence in sentences))


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
    names, remedy = ("predicted", "gold"), "Predict the whole gold file."
    if shorter is gold:
        names, remedy = ("gold", "predicted"), "Score against the file that was predicted."
    n, first = len(shorter), longer[len(shorter)]
    raise DataError(
        f"{names[0]} ends after {plural(n, 'sentence')}, {names[1]} has {len(longer)}; the first that is "
        f"missing is {sentence_name(n + 1, first)}, {str(first)!r}. {remedy}"
    )


def describe_difference(number: int, gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> str:
    """What differs in the sentence with this number, and what to do about it."""
    g, p = gold[number - 1].words, predicted[number - 1].words
    k = next((k for k, (a, b) in enumerate(zip(g, p, strict=False)) if a != b), min(len(g), len(p)))
    ours, theirs = (repr(words[k]) if k < len(words) else "no more words" for words in (g, p))
    gold_text, text = ("".join("".join(words).split()) for words in (g, p))
    convert = "or convert both from the same text with the same"
    elsewhere = next((n for n, sentence in enumerate(predicted, 1) if sentence.words == g), None)
    if gold_text == text:
        what = f"The text is the same, its words are not: predict on the words of the gold file, {convert} --words."
    elif gold_text.startswith(text) or text.startswith(gold_text):
        what = (
            "The sentences end in different places, and not all words are the same: predict on the gold file, "
            f"{convert} --words."
        )
    elif elsewhere:
        what = f"This gold sentence is {elsewhere} of the predicted ones: bring both into the same order."
    else:
        what = "These are not the same texts: score a prediction for this gold file."
    name = sentence_name(number, gold[number - 1])
    return f"{name}, word {k + 1}: gold has {ours}, predicted has {theirs}. {what}"


def sentence_name(number: int, sentence: Sentence) -> str:
    return f"sentence {number}" + (f" ({sentence.id})" if sentence.id else "")


# Errors


class EntityError(NamedTuple):
    """One error, and the sentence that it is in."""

    kind: str  # one of KINDS, or "head"
    gold: Entity | None  # None: spurious
    predicted: Entity | None  # None: missed
    number: int  # of the sentence, from 1
    sentence: Sentence  # as in gold
    prediction: Sentence

    @property
    def label(self) -> str:
        """The gold label; of a spurious entity, the predicted one."""
        entity = self.gold or self.predicted
        assert entity is not None
        return entity.label


def entities_by_key(sentence: Sentence) -> EntitiesByKey:
    """The entities of a sentence without duplicates; of copies, the first that has a head."""
    entities: dict[Key, Entity] = {}
    for entity in sentence.entities:
        key = (entity.start, entity.end, entity.label)
        if key not in entities or (entities[key].head is None and entity.head is not None):
            entities[key] = entity
    return entities


def classify_errors(
    gold: EntitiesByKey, predicted: EntitiesByKey
) -> Iterator[tuple[str, Entity | None, Entity | None]]:
    """Kind, gold entity and predicted entity of each error of a sentence."""
    missed = {key: entity for key, entity in gold.items() if key not in predicted}
    spurious = {key: entity for key, entity in predicted.items() if key not in gold}
    candidates = []  # kind, negative overlap, two keys that break ties, gold key, predicted key
    for g in missed:
        for p in spurious:
            intersection = min(g[1], p[1]) - max(g[0], p[0])
            if g[:2] == p[:2]:
                candidates.append(("type", 0.0, g, p, g, p))
            elif g[2] == p[2] and intersection > 0:
                union = max(g[1], p[1]) - min(g[0], p[0])
                candidates.append(("boundary", -intersection / union, min(g, p), max(g, p), g, p))
    for kind in ("type", "boundary"):
        for *_, g, p in sorted(candidate for candidate in candidates if candidate[0] == kind):
            if g in missed and p in spurious:
                yield kind, missed.pop(g), spurious.pop(p)
    yield from (("missed", entity, None) for entity in missed.values())
    yield from (("spurious", None, entity) for entity in spurious.values())


# Heads

Words = Mapping[str, Sequence[tuple[str, int]]]  # label -> its head words and how often each occurs


@dataclass(frozen=True)
class HeadScores:
    """Counts of heads; 0 where gold or the prediction has none."""

    correct: int = 0  # spans whose predicted head is the gold head
    judged: int = 0  # predicted spans of several words that are gold spans, with a gold head
    left_out: int = 0  # such spans without one
    candidates: int = 0  # of those left out, the ones where gold names several words (`heads`)
    correct_candidates: int = 0  # of those, the ones whose predicted head is one of these words
    headless: int = 0  # judged spans that were predicted without a head: counted as wrong
    shared: int = 0  # predicted entities whose head also heads an entity on another span of the sentence
    headed: int = 0  # predicted entities with a head
    gold_shared: int = 0
    gold_headed: int = 0
    words: Words = field(default_factory=dict)  # most frequent first
    gold_words: Words = field(default_factory=dict)
    errors: tuple[EntityError, ...] = ()

    @property
    def accuracy(self) -> float | None:
        """None if no span was judged."""
        return self.correct / self.judged if self.judged else None

    @property
    def accuracy_any_head(self) -> float | None:
        """Accuracy that counts any head that gold names (`heads`) as correct, as papers score ACE."""
        judged = self.judged + self.candidates
        return (self.correct + self.correct_candidates) / judged if judged else None


def have_heads(sentences: Iterable[Sentence]) -> bool:
    """Whether a head is known of any entity of several words."""
    return any(e.end > e.start + 1 and (e.head is not None or e.heads) for s in sentences for e in s.entities)


def evaluate_heads(
    gold: Sequence[Sentence], predicted: Sequence[Sentence], pairs: Sequence[tuple[EntitiesByKey, EntitiesByKey]]
) -> HeadScores | None:
    """The head scores, given also the entities of both sides; None if neither side has heads."""
    in_gold, in_predicted = have_heads(gold), have_heads(predicted)
    counts: Counter[str] = Counter()
    errors: list[EntityError] = []
    words: dict[str, Any] = {}
    if in_gold and in_predicted:
        for number, pair in enumerate(pairs, 1):
            for wrong in compare_heads(*pair, counts):
                errors.append(EntityError("head", *wrong, number, gold[number - 1], predicted[number - 1]))
    for k, (side, sentences, known) in enumerate((("gold_", gold, in_gold), ("", predicted, in_predicted))):
        if known:
            found = count_heads(sentences, [pair[k] for pair in pairs])
            counts[f"{side}headed"], counts[f"{side}shared"], words[f"{side}words"] = found
    return HeadScores(**{**counts, **words}, errors=tuple(errors)) if words else None


def compare_heads(gold: EntitiesByKey, predicted: EntitiesByKey, counts: Counter[str]) -> list[tuple[Entity, Entity]]:
    """Count the spans of a sentence by their heads; return gold and predicted entity of those with a wrong head."""
    spans: defaultdict[Span, tuple[list[Entity], list[Entity]]] = defaultdict(lambda: ([], []))
    for side, entities in enumerate((gold, predicted)):
        for entity in entities.values():
            if entity.end > entity.start + 1:
                spans[entity.span][side].append(entity)
    wrong = []
    for on_gold, on_predicted in spans.values():
        if not on_gold or not on_predicted:
            continue
        gold_heads, heads = ({e.head for e in side if e.head is not None} for side in (on_gold, on_predicted))
        if not gold_heads:
            candidates = {word for e in on_gold for word in e.heads}
            counts["left_out"] += 1
            counts["candidates"] += bool(candidates)
            counts["correct_candidates"] += bool(heads) and heads <= candidates
            continue
        counts["judged"] += 1
        counts["headless"] += not heads
        if heads and heads <= gold_heads:  # all must be correct: entities on one span may have different ones
            counts["correct"] += 1
        else:
            wrong.append((on_gold[0], on_predicted[0]))
    return wrong


def count_heads(sentences: Sequence[Sentence], entities: Sequence[EntitiesByKey]) -> tuple[int, int, Words]:
    """How many entities have a head, and share it with another span; the head words of each label, by frequency.

    A single word is its own head.
    """
    shared = 0
    words: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence, by_key in zip(sentences, entities, strict=True):
        spans: defaultdict[int, list[Span]] = defaultdict(list)
        for entity in by_key.values():
            head = entity.start if entity.end == entity.start + 1 else entity.head
            if head is not None:
                spans[head].append(entity.span)
                words[entity.label][sentence.words[head]] += 1
        shared += sum(len(with_head) for with_head in spans.values() if len(set(with_head)) > 1)
    by_frequency = {
        label: tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        for label, counts in sorted(words.items())
    }
    return sum(counts.total() for counts in words.values()), shared, by_frequency


# Scores


class Intervals(NamedTuple):
    """Bootstrap intervals at LEVEL."""

    precision: Range
    recall: Range
    f1: Range


@dataclass(frozen=True)
class Score:
    """Precision, recall and F1 of a group of entities; 0 where there is nothing to divide by.

    >>> score = Score(correct=3, predicted=4, gold=6)
    >>> score.precision, score.recall, score.f1
    (0.75, 0.5, 0.6)
    """

    correct: int = 0  # predicted entities that are gold
    predicted: int = 0
    gold: int = 0
    intervals: Intervals | None = None

    @property
    def precision(self) -> float:
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.correct / (self.predicted + self.gold) if self.predicted + self.gold else 0.0


Groups = Mapping[Any, Any]  # of one sentence: entity -> its group
Row = tuple[int, ...]  # of one sentence: correct and predicted entities of each prediction, gold entities


def count_rows(gold: Sequence[Groups], *predictions: Sequence[Groups]) -> dict[Any, Counter[Row]]:
    """For each group, how many sentences have the same counts of entities. A correct entity has its gold group.

    >>> dict(count_rows([{(0, 4, "ORG"): "ORG", (3, 4, "GPE"): "GPE"}], [{(0, 4, "ORG"): "ORG"}]))
    {'ORG': Counter({(1, 1, 1): 1}), 'GPE': Counter({(0, 0, 1): 1})}
    """
    rows: defaultdict[Any, Counter[Row]] = defaultdict(Counter)
    zeros = [0] * (2 * len(predictions) + 1)
    for g, *sides in zip(gold, *predictions, strict=True):
        counts: defaultdict[Any, list[int]] = defaultdict(zeros.copy)
        for k, side in enumerate(sides):
            for entity, group in side.items():
                count = counts[g.get(entity, group)]
                count[2 * k] += entity in g
                count[2 * k + 1] += 1
        for group in g.values():
            counts[group][-1] += 1
        for group, count in counts.items():
            rows[group][tuple(count)] += 1
    return rows


def score_groups(
    gold_groups: Sequence[Groups], predicted_groups: Sequence[Groups], resamples: int = 0, seed: int = 0
) -> dict[Any, Score]:
    """The score of each group of entities, the largest first.

    Each group is resampled from the same seed, so groups with the same counts in each sentence have the same intervals.

    >>> score_groups([{(0, 4, "ORG"): "ORG", (3, 4, "GPE"): "GPE"}], [{(0, 4, "ORG"): "ORG"}])["ORG"]
    Score(correct=1, predicted=1, gold=1, intervals=None)
    """
    scores = {}
    for group, sentences in count_rows(gold_groups, predicted_groups).items():
        correct, predicted, gold = (sum(c[k] * times for c, times in sentences.items()) for k in range(3))
        intervals = bootstrap(sentences, len(gold_groups), resamples, seed) if resamples else None
        scores[group] = Score(correct, predicted, gold, intervals)
    return dict(sorted(scores.items(), key=lambda item: (-item[1].gold, -item[1].predicted, str(item[0]))))


def bootstrap(rows: Mapping[Row, int], sentences: int, resamples: int, seed: int) -> Intervals:
    """Percentile intervals of resamples of as many sentences, drawn with replacement.

    A resample in which a metric is undefined, such as F1 without any entity, is left out of its interval.
    """
    import numpy as np

    counts = np.array(sorted(rows), float)  # [rows, 3]; floats are faster here, and exact
    times = [rows[row] for row in sorted(rows)]
    totals = resample(times, sentences, resamples, np.random.default_rng(seed)) @ counts
    return Intervals(*map(percentile_interval, precision_recall_f1(*totals.T)))


def resample(times: Sequence[int], sentences: int, resamples: int, rng: "Generator") -> "ndarray":
    """How often each row is drawn in each resample. Row k occurs `times[k]` times; other sentences have no entities."""
    import numpy as np

    shares = np.array([*times, sentences - sum(times)]) / sentences
    return rng.multinomial(sentences, shares, size=resamples)[:, :-1]  # [resamples, rows]


def precision_recall_f1(correct: "ndarray", predicted: "ndarray", gold: "ndarray") -> "list[ndarray]":
    """The three numbers of Score, for arrays of counts; NaN where there is nothing to divide by."""
    import numpy as np

    ratios = (correct, predicted), (correct, gold), (2 * correct, predicted + gold)
    return [np.divide(a, b, out=np.full(len(a), np.nan), where=b > 0) for a, b in ratios]


def percentile_interval(values: "ndarray") -> Range:
    """The interval of the values that are defined (not NaN); (0, 0) if none is."""
    import numpy as np

    values = values[~np.isnan(values)]
    if not len(values):
        return 0.0, 0.0
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


# Calibration: whether entities with a score of 0.8 are correct in 80 % of cases

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


# Evaluation


@dataclass(frozen=True, repr=False)
class Evaluation(AttributeHints):
    """The scores of a prediction; entities are compared by start, end and label.

    Everything but `duplicates` counts an entity once, however often it occurs in a file.
    """

    sentences: int
    incomplete: int  # gold sentences that may lack entities; predictions beyond gold count as wrong there
    entities: Score
    duplicates: Score  # each copy of an entity counts, in gold and in the prediction
    spans: Score  # without labels
    labels: Mapping[str, Score]  # the most frequent first, as in all mappings by label
    depths: Mapping[int, Score]  # in gold; of predicted entities that are not gold, in the prediction
    nesting: Mapping[str, Score]  # "nested": inside or around another entity, or on its span; or "flat"
    lengths: Mapping[str, Score]  # in words
    errors: tuple[EntityError, ...]  # in the order of the sentences
    confusion: Mapping[str, Mapping[str | None, int]]  # gold label -> label of the same span; None: missed
    heads: HeadScores | None  # None: neither side has heads
    calibration: Calibration | None  # None: no predicted entity has a score
    thresholds: Mapping[float, Score]  # if only entities with at least this score are kept; {}: no scores
    resamples: int
    seed: int

    def __repr__(self) -> str:
        """A table: precision, recall and F1 in percent, of all entities and of each label."""
        width = max(3, *(len(label) for label in self.labels), 0)
        lines = [f"{'':{width}} precision  recall      F1     gold  predicted"]
        for name, score in {"all": self.entities, **self.labels}.items():
            shown = (score.predicted, score.precision), (score.gold, score.recall), (1, score.f1)
            values = " ".join(
                f"{100 * value:{size}.2f}" if count else f"{'-':>{size}}"
                for size, (count, value) in zip((9, 7, 7), shown, strict=True)
            )
            lines.append(f"{name:{width}} {values} {score.gold:8,} {score.predicted:10,}")
        return "\n".join(lines)

    @property
    def f1(self) -> float:
        """Of entities, as are `precision` and `recall`."""
        return self.entities.f1

    @property
    def precision(self) -> float:
        return self.entities.precision

    @property
    def recall(self) -> float:
        return self.entities.recall

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the labels in gold or in the prediction, as in scikit-learn; 0 for one that is not in gold."""
        return sum(score.f1 for score in self.labels.values()) / len(self.labels) if self.labels else 0.0

    def count(self, kind: str, label: str | None = None) -> int:
        """The number of errors of a kind; with a label, of gold entities with it or, if spurious, of predicted ones."""
        return self.error_counts[kind][label]

    @cached_property
    def error_counts(self) -> Mapping[str, Counter[str | None]]:
        """kind -> label -> number of errors; the label None stands for all."""
        counts: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
        for error in self.errors:
            counts[error.kind].update((None, error.label))
        return counts

    @property
    def distribution(self) -> dict[str, dict[str | None, float]]:
        """gold label -> predicted label of the same span -> share; None: missed. Shares of a gold label sum to 1."""
        return {
            label: {row: times / sum(rows.values()) for row, times in rows.items()}
            for label, rows in self.confusion.items()
        }


def warn_disjoint_labels(evaluation: Evaluation) -> None:
    """Log a warning if gold and predicted entities have no label in common."""
    gold = {label for label, score in evaluation.labels.items() if score.gold}
    predicted = {label for label, score in evaluation.labels.items() if score.predicted}
    if gold and predicted and not gold & predicted:
        log.warning(
            "gold and prediction have no label in common, so all scores are 0: gold has %s; predicted are %s. Give "
            "both the same labels.",
            ", ".join(sorted(gold)),
            ", ".join(sorted(predicted)),
        )


def evaluate(
    gold: Sequence[Sentence], predicted: Sequence[Sentence], *, resamples: int = RESAMPLES, seed: int = 0
) -> Evaluation:
    """Score predicted sentences against gold ones, which must have the same words in the same order.

    Sentences that end in different places are joined. Intervals come from `resamples` bootstrap samples; with 0 there
    are none, and numpy is not imported.
    """
    for name, value in (("resamples", resamples), ("seed", seed)):
        if not isinstance(value, Integral) or value < 0:
            raise InputError(f"{name} is {value!r}; it must be a whole number, 0 or more.")
    gold, predicted = match_sentences(gold, predicted)
    check_alignment(gold, predicted)
    if not gold:
        raise DataError("there are no sentences to score. Name a gold file that has some.")
    gold_entities, predicted_entities = (list(map(entities_by_key, side)) for side in (gold, predicted))
    pairs = list(zip(gold_entities, predicted_entities, strict=True))

    def score(group: Callable[[Any], Groups], sides: Any = (gold_entities, predicted_entities)) -> dict[Any, Score]:
        return score_groups(list(map(group, sides[0])), list(map(group, sides[1])), resamples, seed)

    errors = tuple(
        EntityError(*error, number, gold[number - 1], predicted[number - 1])
        for number, pair in enumerate(pairs, 1)
        for error in classify_errors(*pair)
    )
    lengths = score(lambda entities: {key: LENGTHS[min(key[1] - key[0], 11)] for key in entities})
    kinds = ("flat", "nested")  # the same span with another label is nested, too
    nesting = score(lambda e: dict(zip(e, (kinds[k] for k in in_nesting([*e.values()])), strict=True)))
    scored = [(entity.score, key in g) for g, p in pairs for key, entity in p.items()]
    return Evaluation(
        sentences=len(gold),
        incomplete=sum(not sentence.complete for sentence in gold),
        entities=score(dict.fromkeys).get(None, Score()),
        duplicates=score(number_copies, (gold, predicted)).get(None, Score()),
        spans=score(lambda entities: dict.fromkeys(key[:2] for key in entities)).get(None, Score()),
        labels=score(lambda entities: {key: key[2] for key in entities}),
        depths=dict(sorted(score(lambda e: dict(zip(e, depths(e.values()), strict=True))).items())),
        nesting=dict(sorted(nesting.items())),
        lengths={name: lengths[name] for name in dict.fromkeys(LENGTHS) if name in lengths},
        errors=errors,
        confusion=count_confusion(pairs, errors),
        heads=evaluate_heads(gold, predicted, pairs),
        calibration=calibrate(scored),
        thresholds=score_thresholds(scored, sum(map(len, gold_entities))),
        resamples=resamples,
        seed=seed,
    )


def number_copies(sentence: Sentence) -> dict[Hashable, None]:
    """Every entity, with a number that distinguishes its copies."""
    times = Counter((entity.start, entity.end, entity.label) for entity in sentence.entities)
    return {(*key, number): None for key in times for number in range(times[key])}


def count_confusion(
    pairs: Sequence[tuple[EntitiesByKey, EntitiesByKey]], errors: Sequence[EntityError]
) -> dict[str, dict[str | None, int]]:
    """How often the gold entities of each label were predicted with which label, or (None) not at all."""
    counts: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for g, p in pairs:
        for key in g.keys() & p.keys():
            counts[key[2]][key[2]] += 1
    for error in errors:
        if error.gold:
            label = error.predicted.label if error.kind == "type" and error.predicted else None
            counts[error.gold.label][label] += 1
    order = sorted(counts, key=lambda label: (-counts[label].total(), label))
    return {label: dict(counts[label]) for label in order}


def score_thresholds(scored: Sequence[tuple[float | None, bool]], gold: int) -> dict[float, Score]:
    """The score with each threshold, given the score of each predicted entity and whether it is correct.

    Thresholds below the lowest score of all change nothing and are left out, except the highest of them. An entity
    without a score is always kept.

    >>> curve = score_thresholds([(0.97, True), (0.92, False), (0.96, True)], gold=4)
    >>> {threshold: (score.correct, score.predicted) for threshold, score in curve.items()}
    {0.9: (2, 3), 0.95: (2, 2), 0.99: (0, 0)}
    """
    known = [score for score, _ in scored if score is not None]
    first = max((t for t in THRESHOLDS if t <= min(known)), default=0.0) if known else 1.0
    curve = {}
    for threshold in THRESHOLDS:
        if threshold >= first:
            kept = [correct for score, correct in scored if score is None or score >= threshold]
            curve[threshold] = Score(sum(kept), len(kept), gold)
    return curve


# Comparison of two predictions

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
    gold, first, second = match_sentences(gold, first, second)
    for name, predicted in zip(names, (first, second), strict=True):
        try:
            check_alignment(gold, predicted)
        except DataError as error:
            raise error.at(name) from None
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
        for (value,), samples, null in zip(map(np.nan_to_num, subtract(total[None])), resampled, swapped, strict=True)
    ]
