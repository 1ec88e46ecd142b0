"""What a prediction gets wrong.

Every entity is correct, or part of exactly one error. A gold entity that was not predicted and a predicted one that is
not gold are paired as one error where one explains the other; each is used once. In this order:
    type        the same span with another label
    boundary    the same label on another span that shares a word; those with the largest overlap first
The others are `missed` in gold and `spurious` in the prediction. So
    gold      = correct + type + boundary + missed
    predicted = correct + type + boundary + spurious

Heads are judged on spans: a span has one head, whatever its labels. Spans of one word are left out, because there is
nothing to choose.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nestree.types import Entity, Sentence, Span

KINDS = ("type", "boundary", "missed", "spurious")

Key = tuple[int, int, str]  # start, end, label: what is compared
EntitiesByKey = Mapping[Key, Entity]  # the entities of one sentence, without duplicates


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
