"""Entities and trees as whoever reads the text sees them: places are characters of it, end-exclusive.

Words, sentences and their offsets do not show. The labels of one span are one TextEntity.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nestree.sentence.entity import Entity, Sentence, around


class TextSpan(NamedTuple):
    """A stretch of the text."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class TextEntity:
    """A stretch of the text that is an entity: text[start:end]."""

    start: int
    end: int
    text: str
    labels: tuple[str, ...]  # the likeliest first
    scores: tuple[float | None, ...]  # of each label: the probability that this is such an entity
    head: TextSpan | None  # its head word
    depth: int  # how many entities enclose it
    parent: "TextEntity | None" = field(default=None, compare=False, repr=False)  # the smallest of those
    children: "tuple[TextEntity, ...]" = field(default=(), compare=False, repr=False)

    @property
    def label(self) -> str:
        return self.labels[0]

    @property
    def score(self) -> float | None:
        return self.scores[0]

    def to_dict(self) -> dict[str, Any]:
        """All but parent and children, as JSON has it: probabilities are rounded."""
        return {
            "start": self.start,
            "end": self.end,
            "text": self.text,
            "label": self.label,
            "labels": list(self.labels),
            "score": rounded(self.score),
            "scores": [rounded(score) for score in self.scores],
            "head": self.head._asdict() if self.head else None,
            "depth": self.depth,
        }


def rounded(probability: float | None) -> float | None:
    """As it is written for others: six decimals are more than any model knows.

    >>> rounded(0.8349872827529907)
    0.834987
    """
    return None if probability is None else round(probability, 6)


class Constituent(NamedTuple):
    """A span of the tree that a sentence was read with, entity or not."""

    start: int
    end: int
    text: str
    head: TextSpan | None
    probability: float | None  # of being in the tree


class Arc(NamedTuple):
    """One word governs another."""

    head: TextSpan
    modifier: TextSpan


class TextTree(NamedTuple):
    """The trees of all sentences of a document."""

    constituents: tuple[Constituent, ...]  # parents before children, left before right
    arcs: tuple[Arc, ...]
    roots: tuple[TextSpan, ...]  # the head of each sentence


def entities_of(sentences: Iterable[Sentence]) -> tuple[TextEntity, ...]:
    """The entities of sentences with a text, in the order of their starts, the longer first."""
    return tuple(entity for sentence in sentences for entity in entities_in(sentence))


def entities_in(sentence: Sentence) -> list[TextEntity]:
    spans: dict[tuple[int, int], list[Entity]] = {}
    for entity in sentence.entities:
        spans.setdefault(entity.span, []).append(entity)
    found: dict[tuple[int, int], TextEntity] = {}
    children: dict[tuple[int, int], list[TextEntity]] = {}
    for span, enclosing in around(spans).items():
        alike = sorted(spans[span], key=lambda entity: -(entity.score or 0.0))
        parent = min(enclosing, key=lambda s: s[1] - s[0], default=None)
        head = next((entity.head for entity in alike if entity.head is not None), None)
        start, end = sentence.characters(alike[0])
        scores: dict[str, float | None] = {}
        for entity in alike:
            scores.setdefault(entity.label, entity.score)
        found[span] = TextEntity(
            start,
            end,
            sentence.phrase(alike[0]),
            tuple(scores),
            tuple(scores.values()),
            None if head is None else word_at(sentence, head),
            len(enclosing),
            None if parent is None else found[parent],
        )
        if parent is not None:
            children.setdefault(parent, []).append(found[span])
    for span, inner in children.items():
        object.__setattr__(found[span], "children", tuple(inner))
    return list(found.values())


def tree_of(sentences: Iterable[Sentence]) -> TextTree:
    """The trees of those sentences that have one."""
    constituents, arcs, roots = [], [], []
    for sentence in sentences:
        if sentence.tree is None:
            continue
        tree = sentence.tree
        words = [word_at(sentence, h) for h in range(len(sentence.words))]
        for k, (i, j, h) in enumerate(tree.spans):
            start, end = words[i].start, words[j - 1].end
            constituents.append(
                Constituent(
                    start,
                    end,
                    text_at(sentence, start, end),
                    None if h is None else words[h],
                    tree.probabilities[k] if tree.probabilities else None,
                )
            )
        arcs += [Arc(words[h], words[m]) for h, m in tree.arcs]
        roots += [] if tree.root is None else [words[tree.root]]
    return TextTree(tuple(constituents), tuple(arcs), tuple(roots))


def word_at(sentence: Sentence, h: int) -> TextSpan:
    assert sentence.offsets is not None
    start, end = sentence.offsets[h]
    return TextSpan(sentence.start + start, sentence.start + end, sentence.words[h])


def text_at(sentence: Sentence, start: int, end: int) -> str:
    assert sentence.text is not None
    return sentence.text[start - sentence.start : end - sentence.start]


def as_values(entities: Iterable[TextEntity]) -> list[Mapping[str, Any]]:
    """For JSON: a parent is the number of an entity in the list."""
    numbers: dict[int, int] = {}
    values: list[Mapping[str, Any]] = []
    for number, entity in enumerate(entities):
        numbers[id(entity)] = number
        parent = None if entity.parent is None else numbers[id(entity.parent)]
        values.append({**entity.to_dict(), "parent": parent})
    return values
