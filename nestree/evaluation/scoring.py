"""`evaluate`: every number that tells how good predicted entities are."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nestree.data.statistics import nested
from nestree.errors import DataError
from nestree.evaluation.alignment import check_alignment
from nestree.evaluation.calibration import Calibration, calibrate
from nestree.evaluation.errors import Key, Mistake, Side, errors, side
from nestree.evaluation.heads import Heads, judge_heads
from nestree.evaluation.scores import RESAMPLES, Groups, Score
from nestree.sentence import Sentence, depths

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
    mistakes: tuple[Mistake, ...]  # in the order of the sentences
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
    random = source_of_chance(seed) if resamples else None

    def score(grouped: Callable[[Any], dict], gold: Sequence = golds, predicted: Sequence = guesses) -> dict:
        groups: Groups = Groups()
        for g, p in zip(gold, predicted, strict=True):
            groups.add(grouped(g), grouped(p))
        return groups.scores(len(gold), resamples, random)

    mistakes = tuple(
        Mistake(*error, number, gold[number - 1], predicted[number - 1])
        for number, (g, p) in enumerate(zip(golds, guesses, strict=True), 1)
        for error in errors(g, p)
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
        heads=judge_heads(gold, predicted, golds, guesses),
        calibration=calibrate(
            (entity.score, key in g) for g, p in zip(golds, guesses, strict=True) for key, entity in p.items()
        ),
        resamples=resamples,
        seed=seed,
    )


def source_of_chance(seed: int) -> "Generator":
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
    gold: Sequence[Side], predicted: Sequence[Side], mistakes: Sequence[Mistake]
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
