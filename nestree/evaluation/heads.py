"""The head words of entities.

Heads are judged on spans: a span has one head, whatever its labels. Spans of one word are left out, because there is
nothing to choose.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nestree.evaluation.error_analysis import EntitiesByKey, EntityError
from nestree.types import Entity, Sentence, Span

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
    gold: Sequence[Sentence],
    predicted: Sequence[Sentence],
    pairs: Sequence[tuple[EntitiesByKey, EntitiesByKey]],
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


def compare_heads(
    gold: EntitiesByKey, predicted: EntitiesByKey, counts: Counter[str]
) -> list[tuple[Entity, Entity]]:
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
