"""Heads: are they those of the gold entities, does one word head several entities, which words are heads.

They are judged on spans: a span has one head, whatever its labels. A span of one word is left out of the
accuracy, because there is nothing to choose.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nestree.evaluation.error_analysis import EntityError, Side
from nestree.types import Entity, Sentence, Span

Words = Mapping[str, Sequence[tuple[str, int]]]  # label -> its head words and how often each occurs


@dataclass(frozen=True)
class Heads:
    """What is known about heads; counts are 0 where a side has none."""

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
    mistakes: tuple[EntityError, ...] = ()

    @property
    def accuracy(self) -> float | None:
        """None: there is nothing to judge."""
        return self.right / self.judged if self.judged else None

    @property
    def accuracy_within(self) -> float | None:
        """The same with gold heads of several words (`heads`): right is one of them. So papers score ACE."""
        judged = self.judged + self.candidates
        return (self.right + self.among) / judged if judged else None


def head(entity: Entity) -> int | None:
    """The head, if it is known: a single word is its own."""
    return entity.start if entity.end == entity.start + 1 else entity.head


def have_heads(sentences: Iterable[Sentence]) -> bool:
    """Whether a head is known anywhere but on single words."""
    return any(
        e.end > e.start + 1 and (e.head is not None or e.heads)
        for sentence in sentences
        for e in sentence.entities
    )


def evaluate_heads(
    gold: Sequence[Sentence],
    predicted: Sequence[Sentence],
    gold_sides: Sequence[Side],
    predicted_sides: Sequence[Side],
) -> Heads | None:
    """None: neither side has heads."""
    in_gold, in_predicted = have_heads(gold), have_heads(predicted)
    if not in_gold and not in_predicted:
        return None
    counts: Counter[str] = Counter()
    mistakes: list[EntityError] = []
    if in_gold and in_predicted:
        for number, (g, p) in enumerate(zip(gold_sides, predicted_sides, strict=True), 1):
            for wrong in judge(g, p, counts):
                mistakes.append(EntityError("head", *wrong, number, gold[number - 1], predicted[number - 1]))
    if in_predicted:
        counts["headed"] = sum(head(e) is not None for side in predicted_sides for e in side.values())
        counts["shared"] = sum(map(shared, predicted_sides))
    if in_gold:
        counts["gold_headed"] = sum(head(e) is not None for side in gold_sides for e in side.values())
        counts["gold_shared"] = sum(map(shared, gold_sides))
    return Heads(
        **counts,
        words=head_words(predicted, predicted_sides) if in_predicted else {},
        gold_words=head_words(gold, gold_sides) if in_gold else {},
        mistakes=tuple(mistakes),
    )


def judge(gold: Side, predicted: Side, counts: Counter[str]) -> list[tuple[Entity, Entity]]:
    """Count the spans of a sentence whose heads are right; return gold and predicted entity of those that are not."""
    wrong = []
    there = by_span(gold)
    for span, entities in by_span(predicted).items():
        if span[1] == span[0] + 1 or span not in there:
            continue
        guess = {e.head for e in entities if e.head is not None}
        known = {e.head for e in there[span] if e.head is not None}
        several = {word for e in there[span] for word in e.heads}
        if not known:
            counts["left_out"] += 1
            counts["candidates"] += bool(several)
            counts["among"] += bool(guess) and guess <= several
            continue
        counts["judged"] += 1
        counts["headless"] += not guess
        if guess and guess <= known:  # labels of one span may differ in their heads: then all must be right
            counts["right"] += 1
        else:
            wrong.append((there[span][0], entities[0]))
    return wrong


def by_span(side: Side) -> dict[Span, list[Entity]]:
    spans: dict[Span, list[Entity]] = {}
    for entity in side.values():
        spans.setdefault(entity.span, []).append(entity)
    return spans


def shared(side: Side) -> int:
    """How many entities have a head that also heads an entity on another span."""
    spans: defaultdict[int, set[Span]] = defaultdict(set)
    for entity in side.values():
        if (word := head(entity)) is not None:
            spans[word].add(entity.span)
    return sum((word := head(entity)) is not None and len(spans[word]) > 1 for entity in side.values())


def head_words(sentences: Sequence[Sentence], sides: Sequence[Side]) -> Words:
    """The head words of each label as they are written; the most frequent first, then by the alphabet."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence, side in zip(sentences, sides, strict=True):
        for entity in side.values():
            if (word := head(entity)) is not None:
                found[entity.label][sentence.words[word]] += 1
    return {
        label: tuple(sorted(words.items(), key=lambda item: (-item[1], item[0])))
        for label, words in sorted(found.items())
    }
