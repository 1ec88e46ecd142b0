"""Entities in sentences of words, and the trees that models find them in.

Words are counted from 0, spans are half-open: Entity(2, 5, "ORG") covers words 2, 3 and 4. Nothing here can be
changed once made; `dataclasses.replace` makes a changed copy, and checks it again. Entities may cross: that is
data. Only a tree cannot hold them.

>>> words = "the University of California".split()
>>> sentence = Sentence(words, [Entity(0, 4, "ORG", head=1), Entity(3, 4, "GPE")])
>>> sentence.phrase(sentence.entities[1])
'California'
>>> Sentence(words, [Entity(3, 9, "GPE")])
Traceback (most recent call last):
    ...
nestree.errors.DataError: entity 3-9 GPE ends after the sentence, which has 4 words: the University of California
"""

import operator
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from numbers import Real
from typing import Any, NamedTuple

from nestree.errors import DataError

Span = tuple[int, int]
Context = tuple[tuple[str, ...], tuple[str, ...]]  # words of the document before a sentence, and after it


@dataclass(frozen=True, slots=True)
class Entity:
    """A span of words with a label."""

    start: int
    end: int
    label: str
    head: int | None = None  # a word of the span; None: not known
    score: float | None = None  # a probability; None: annotated
    heads: tuple[int, ...] = ()  # where the annotation leaves open which word is the head: all that qualify
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)  # what else its file says of it

    def __post_init__(self) -> None:
        start, end, label = self.start, self.end, self.label
        if not (
            type(start) is int and type(end) is int and 0 <= start < end and type(label) is str and label
        ):
            check_span(self)
        head, score = self.head, self.score
        if not (
            (head is None or (type(head) is int and start <= head < end))
            and (score is None or (type(score) is float and 0 <= score <= 1))
            and self.heads == ()
        ):
            check_head_and_score(self)

    @property
    def span(self) -> Span:
        return self.start, self.end

    def __str__(self) -> str:
        return f"{self.start}-{self.end} {self.label}"


class Tree(NamedTuple):
    """A lexicalised tree over the words of a sentence, as a model found it."""

    spans: tuple[tuple[int, int, int | None], ...]  # (i, j, head), parents before children; None: no heads
    arcs: tuple[tuple[int, int], ...] = ()  # (head, modifier)
    root: int | None = None  # the head of the sentence
    probabilities: tuple[float, ...] = ()  # of each span: over all trees; (): not known


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and the entities among them; if its text is known, where each word stands in it."""

    words: tuple[str, ...]
    entities: tuple[Entity, ...] = ()
    text: str | None = None  # as it was written, or None: only words are known
    offsets: tuple[Span, ...] | None = None  # of each word, in characters of `text`
    start: int = 0  # where `text` begins in the text of the document
    id: str | None = None
    complete: bool = True  # False: there may be entities that are not annotated
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)  # what else its file says of it
    tree: Tree | None = field(default=None, compare=False)  # in which a model found the entities
    context: Context | None = field(default=None, compare=False, repr=False)  # what an encoder may read along

    def __post_init__(self) -> None:
        if isinstance(self.words, str) or not {*map(type, self.words)} <= {str}:
            check_words(self.words)
        object.__setattr__(self, "words", tuple(self.words))
        object.__setattr__(self, "entities", tuple(self.entities))
        if not self.words:
            raise DataError("a sentence needs at least one word, and this one has none")
        if "" in self.words:
            raise DataError(f"word {self.words.index('')} of this sentence is empty: {self}")
        for entity in self.entities:
            if type(entity) is not Entity:
                raise DataError(f"entities must be Entity objects, and one is {entity!r:.60}")
            if entity.end > len(self.words):
                raise DataError(
                    f"entity {entity} ends after the sentence, which has {len(self.words)} words: {self}"
                )
        if (self.text is None) != (self.offsets is None):
            raise DataError(f"a sentence has a text and the offsets of its words, or neither: {self}")
        if self.offsets is not None:
            object.__setattr__(self, "offsets", as_pairs(self.offsets))
            check_offsets(self.words, self.text, self.offsets, self)

    def phrase(self, entity: Entity) -> str:
        """The entity as it is written; where only words are known, joined by blanks."""
        if self.text is None or self.offsets is None:
            return " ".join(self.words[entity.start : entity.end])
        return self.text[self.offsets[entity.start][0] : self.offsets[entity.end - 1][1]]

    def characters(self, entity: Entity) -> Span:
        """Where the entity stands in the text of its document."""
        if self.offsets is None:
            raise DataError(f"only the words of this sentence are known, not their places in a text: {self}")
        return self.start + self.offsets[entity.start][0], self.start + self.offsets[entity.end - 1][1]

    def with_text(self) -> "Sentence":
        """The same sentence; if only its words are known, with a text in which blanks join them."""
        if self.text is not None:
            return self
        offsets, at = [], 0
        for word in self.words:
            offsets.append((at, at + len(word)))
            at += len(word) + 1
        return replace(self, text=" ".join(self.words), offsets=tuple(offsets), start=0)

    def __str__(self) -> str:
        text = " ".join(self.words[:30])
        return text if len(text) <= 80 and len(self.words) <= 30 else text[:77] + "..."


# Readers make them by the hundred thousand. Where all is known to be right, a draft is filled in, which nothing
# prevents, and then declared to be what it is: a fifth of the time of being frozen from the start, and checked.


class EntityDraft:
    __slots__ = Entity.__slots__


class SentenceDraft:
    __slots__ = Sentence.__slots__


def sound_entity(start: int, end: int, label: str, head: int | None, score: float | None) -> Entity:
    """An entity of Python's own values, which would pass all checks."""
    made: Any = EntityDraft()
    made.start, made.end, made.label, made.head, made.score = start, end, label, head, score
    made.heads, made.extra = (), {}
    made.__class__ = Entity
    return made


def with_found(
    sentence: Sentence, entities: tuple[Entity, ...], tree: Tree | None, extra: Mapping[str, Any]
) -> Sentence:
    """The sentence, now complete, with what a model found in it, which lies within it."""
    if type(sentence) is not Sentence:
        return replace(sentence, entities=entities, complete=True, tree=tree, extra=extra)
    made: Any = SentenceDraft()
    made.words, made.text, made.offsets = sentence.words, sentence.text, sentence.offsets
    made.start, made.id, made.context = sentence.start, sentence.id, sentence.context
    made.entities, made.tree, made.extra, made.complete = entities, tree, extra, True
    made.__class__ = Sentence
    return made


def crossing(entities: Sequence[Entity]) -> list[tuple[Entity, Entity]]:
    """All pairs that overlap without one containing the other, in the order of their starts.

    >>> crossing([Entity(0, 3, "A"), Entity(2, 5, "B"), Entity(3, 4, "C")])
    [(Entity(start=0, end=3, label='A', ...), Entity(start=2, end=5, label='B', ...))]
    """
    ordered = sorted(entities, key=lambda e: (e.start, -e.end))
    found: list[Span] = []
    ends: list[
        Span
    ] = []  # (end, number) of the entities so far; those of the same start end later or together
    for k, b in enumerate(ordered):
        first, last = bisect_left(ends, (b.start + 1, 0)), bisect_left(ends, (b.end, 0))
        found += [(number, k) for _, number in ends[first:last]]
        insort(ends, (b.end, k))
    return [(ordered[one], ordered[other]) for one, other in sorted(found)]


def around(spans: Iterable[Span]) -> dict[Span, list[Span]]:
    """The other spans that enclose each span, in the order of their starts, the longer first.

    >>> around([(3, 4), (0, 4), (4, 6)])
    {(0, 4): [], (3, 4): [(0, 4)], (4, 6): []}
    """
    found: dict[Span, list[Span]] = {}
    open_here: list[Span] = []
    for start, end in sorted(set(spans), key=lambda span: (span[0], -span[1])):
        open_here = [span for span in open_here if span[1] > start]
        found[start, end] = [span for span in open_here if span[1] >= end]
        open_here.append((start, end))
    return found


def depths(entities: Iterable[Entity]) -> list[int]:
    """How many other spans enclose each entity; the same span with another label does not.

    >>> depths([Entity(0, 4, "A"), Entity(0, 4, "B"), Entity(3, 4, "C")])
    [0, 0, 1]
    """
    entities = list(entities)
    depth: dict[Span, int] = {}
    ends: list[int] = []  # of the spans so far
    for start, end in sorted({entity.span for entity in entities}, key=lambda span: (span[0], -span[1])):
        depth[start, end] = len(ends) - bisect_left(ends, end)
        insort(ends, end)
    return [depth[entity.span] for entity in entities]


def check_span(entity: Entity) -> None:
    """Called when something is wrong, or is a whole number of another library."""
    for name in ("start", "end"):
        object.__setattr__(entity, name, whole(name, getattr(entity, name), entity))
    if entity.end <= entity.start:
        raise DataError(f"entity {entity} is empty: its end must be greater than its start")
    if not isinstance(entity.label, str) or not entity.label:
        raise DataError(f"entity {entity} has no label: it must be a string that is not empty")


def check_head_and_score(entity: Entity) -> None:
    if isinstance(entity.heads, str) or not isinstance(entity.heads, Iterable):
        raise DataError(f"heads {entity.heads!r:.40} of entity {entity} must be numbers of words")
    object.__setattr__(entity, "heads", tuple(whole("head", head, entity) for head in entity.heads))
    if entity.head is not None:
        object.__setattr__(entity, "head", whole("head", entity.head, entity))
    for head in (*entity.heads, *([] if entity.head is None else [entity.head])):
        if not entity.start <= head < entity.end:
            raise DataError(f"head {head} of entity {entity} is not one of its words")
    score = entity.score
    if score is not None and not (
        isinstance(score, Real) and not isinstance(score, bool) and 0 <= score <= 1
    ):
        raise DataError(f"score {score!r:.40} of entity {entity} is not a probability: a number from 0 to 1")


def whole(name: str, value: Any, entity: Entity) -> int:
    """The number of a word, as Python's own."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise DataError(
            f"{name} {value!r:.40} of entity {entity} must be the number of a word: a whole number from 0 on"
        )
    return number


def check_words(words: Any) -> None:
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise DataError(f"words must be strings, and are {words!r:.60}")


def as_pairs(offsets: Any) -> tuple[Span, ...]:
    """Offsets as a tuple of pairs of Python's own numbers; at once, if that is what they are."""
    try:
        pairs = type(offsets) is tuple and {*map(type, offsets)} <= {tuple} and {*map(len, offsets)} <= {2}
        if pairs and {*map(type, chain.from_iterable(offsets))} <= {int}:
            return offsets
        return tuple((int(i), int(j)) for i, j in offsets)
    except (TypeError, ValueError):
        raise DataError(f"offsets must be pairs of numbers, and are {offsets!r:.60}") from None


def check_offsets(words: Sequence[str], text: Any, offsets: Sequence[Span], sentence: Sentence) -> None:
    if not isinstance(text, str):
        raise DataError(f"the text of a sentence must be a string, and is {text!r:.60}")
    if len(offsets) != len(words):
        raise DataError(f"{len(words)} words have {len(offsets)} offsets in this sentence: {sentence}")
    places = [*chain.from_iterable(offsets)]
    in_order = places == sorted(places) and places[0] >= 0 and places[-1] <= len(text)
    if in_order and [text[i:j] for i, j in offsets] == [*words]:
        return  # as nearly always; else we look which word it is
    last = 0
    for word, (i, j) in zip(words, offsets, strict=True):
        if not last <= i < j <= len(text) or text[i:j] != word:
            raise DataError(f"word {word!r} is not at characters {i}-{j} of its sentence: {sentence}")
        last = j
