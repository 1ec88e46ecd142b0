"""Heads: their accuracy, how often entities share one, and the most frequent head words.

Accuracy is measured on spans: a span has one head, whatever its labels. Spans of one word are left out, because
there is nothing to choose.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nestree.evaluation.error_analysis import EntitiesByKey, EntityError
from nestree.types import Entity, Sentence, Span

Words = Mapping[str, Sequence[tuple[str, int]]]  # label -> its head words and how often each occurs


@dataclass(frozen=True)
class HeadScores:
    """Counts of heads; 0 where gold or the prediction has none."""

    right: int = 0  # spans whose predicted head is the gold head
    judged: int = 0  # predicted spans of several words that are gold spans, with a gold head
    left_out: int = 0  # such spans without one
    candidates: int = 0  # of those left out, the ones where gold names several words (`heads`)
    among: int = 0  # of those, the ones whose predicted head is one of these words
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
        return self.right / self.judged if self.judged else None

    @property
    def accuracy_within(self) -> float | None:
        """Accuracy that counts any candidate of gold (`heads`) as right, as papers score ACE."""
        judged = self.judged + self.candidates
        return (self.right + self.among) / judged if judged else None


def head_of(entity: Entity) -> int | None:
    """The head of an entity, if known; a single word is its own."""
    return entity.start if entity.end == entity.start + 1 else entity.head


def have_heads(sentences: Iterable[Sentence]) -> bool:
    """Whether a head is known of any entity of several words."""
    return any(
        e.end > e.start + 1 and (e.head is not None or e.heads)
        for sentence in sentences
        for e in sentence.entities
    )


def evaluate_heads(
    gold: Sequence[Sentence],
    predicted: Sequence[Sentence],
    gold_entities: Sequence[EntitiesByKey],
    predicted_entities: Sequence[EntitiesByKey],
) -> HeadScores | None:
    """None if neither side has heads."""
    in_gold, in_predicted = have_heads(gold), have_heads(predicted)
    if not in_gold and not in_predicted:
        return None
    counts: Counter[str] = Counter()
    errors: list[EntityError] = []
    if in_gold and in_predicted:
        for number, (g, p) in enumerate(zip(gold_entities, predicted_entities, strict=True), 1):
            for pair in compare_heads(g, p, counts):
                errors.append(EntityError("head", *pair, number, gold[number - 1], predicted[number - 1]))
    if in_predicted:
        counts["headed"], counts["shared"] = count_heads(predicted_entities)
    if in_gold:
        counts["gold_headed"], counts["gold_shared"] = count_heads(gold_entities)
    return HeadScores(
        **counts,
        words=head_words(predicted, predicted_entities) if in_predicted else {},
        gold_words=head_words(gold, gold_entities) if in_gold else {},
        errors=tuple(errors),
    )


def compare_heads(
    gold: EntitiesByKey, predicted: EntitiesByKey, counts: Counter[str]
) -> list[tuple[Entity, Entity]]:
    """Count the spans of a sentence by their heads; return gold and predicted entity of those with a wrong head."""
    wrong = []
    gold_spans, predicted_spans = group_by_span(gold), group_by_span(predicted)
    for span, entities in predicted_spans.items():
        if span[1] == span[0] + 1 or span not in gold_spans:
            continue
        heads = {e.head for e in entities if e.head is not None}
        gold_heads = {e.head for e in gold_spans[span] if e.head is not None}
        candidates = {word for e in gold_spans[span] for word in e.heads}
        if not gold_heads:
            counts["left_out"] += 1
            counts["candidates"] += bool(candidates)
            counts["among"] += bool(heads) and heads <= candidates
            continue
        counts["judged"] += 1
        counts["headless"] += not heads
        if heads and heads <= gold_heads:  # entities on one span may have different heads: all must be right
            counts["right"] += 1
        else:
            wrong.append((gold_spans[span][0], entities[0]))
    return wrong


def group_by_span(entities: EntitiesByKey) -> dict[Span, list[Entity]]:
    spans: dict[Span, list[Entity]] = {}
    for entity in entities.values():
        spans.setdefault(entity.span, []).append(entity)
    return spans


def count_heads(sentences: Iterable[EntitiesByKey]) -> tuple[int, int]:
    """The number of entities with a head, and of those whose head also heads an entity on another span."""
    headed = shared = 0
    for entities in sentences:
        spans: defaultdict[int, list[Span]] = defaultdict(list)
        for entity in entities.values():
            if (word := head_of(entity)) is not None:
                spans[word].append(entity.span)
        headed += sum(map(len, spans.values()))
        shared += sum(len(of_word) for of_word in spans.values() if len(set(of_word)) > 1)
    return headed, shared


def head_words(sentences: Sequence[Sentence], entities: Sequence[EntitiesByKey]) -> Words:
    """The head words of each label as they are written; the most frequent first, then alphabetically."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence, by_key in zip(sentences, entities, strict=True):
        for entity in by_key.values():
            if (word := head_of(entity)) is not None:
                counts[entity.label][sentence.words[word]] += 1
    return {
        label: tuple(sorted(words.items(), key=lambda item: (-item[1], item[0])))
        for label, words in sorted(counts.items())
    }
