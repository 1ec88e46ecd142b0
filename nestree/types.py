"""The types at both ends of everything: entities in sentences of words, sentences in documents of characters."""

import json
import operator
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from numbers import Real
from typing import Any, NamedTuple

from nestree.errors import DataError

__all__ = [
    "Arc",
    "CharSpan",
    "CharTree",
    "Constituent",
    "Context",
    "Document",
    "Entity",
    "Sentence",
    "Span",
    "TextEntity",
    "Tree",
    "check_entity",
    "crossing_pairs",
    "depths",
    "rounded",
    "shift_sentence",
    "with_context",
    "with_entities",
]


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


def check_entity(start: int, end: int, label: str, head: int | None, score: float | None) -> Entity:
    """An entity of Python's own values, which would pass all checks."""
    made: Any = EntityDraft()
    made.start, made.end, made.label, made.head, made.score = start, end, label, head, score
    made.heads, made.extra = (), {}
    made.__class__ = Entity
    return made


def with_entities(
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


def crossing_pairs(entities: Sequence[Entity]) -> list[tuple[Entity, Entity]]:
    """All pairs that overlap without one containing the other, in the order of their starts.

    >>> crossing_pairs([Entity(0, 3, "A"), Entity(2, 5, "B"), Entity(3, 4, "C")])
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


def enclosing_spans(spans: Iterable[Span]) -> dict[Span, list[Span]]:
    """The other spans that enclose each span, in the order of their starts, the longer first.

    >>> enclosing_spans([(3, 4), (0, 4), (4, 6)])
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
        object.__setattr__(entity, name, check_int(name, getattr(entity, name), entity))
    if entity.end <= entity.start:
        raise DataError(f"entity {entity} is empty: its end must be greater than its start")
    if not isinstance(entity.label, str) or not entity.label:
        raise DataError(f"entity {entity} has no label: it must be a string that is not empty")


def check_head_and_score(entity: Entity) -> None:
    if isinstance(entity.heads, str) or not isinstance(entity.heads, Iterable):
        raise DataError(f"heads {entity.heads!r:.40} of entity {entity} must be numbers of words")
    object.__setattr__(entity, "heads", tuple(check_int("head", head, entity) for head in entity.heads))
    if entity.head is not None:
        object.__setattr__(entity, "head", check_int("head", entity.head, entity))
    for head in (*entity.heads, *([] if entity.head is None else [entity.head])):
        if not entity.start <= head < entity.end:
            raise DataError(f"head {head} of entity {entity} is not one of its words")
    score = entity.score
    if score is not None and not (
        isinstance(score, Real) and not isinstance(score, bool) and 0 <= score <= 1
    ):
        raise DataError(f"score {score!r:.40} of entity {entity} is not a probability: a number from 0 to 1")


def check_int(name: str, value: Any, entity: Entity) -> int:
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


class CharSpan(NamedTuple):
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
    head: CharSpan | None  # its head word
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
    head: CharSpan | None
    probability: float | None  # of being in the tree


class Arc(NamedTuple):
    """One word governs another."""

    head: CharSpan
    modifier: CharSpan


class CharTree(NamedTuple):
    """The trees of all sentences of a document."""

    constituents: tuple[Constituent, ...]  # parents before children, left before right
    arcs: tuple[Arc, ...]
    roots: tuple[CharSpan, ...]  # the head of each sentence


def char_entities(sentences: Iterable[Sentence]) -> tuple[TextEntity, ...]:
    """The entities of sentences with a text, in the order of their starts, the longer first."""
    return tuple(entity for sentence in sentences for entity in entities_in(sentence))


def entities_in(sentence: Sentence) -> list[TextEntity]:
    spans: dict[tuple[int, int], list[Entity]] = {}
    for entity in sentence.entities:
        spans.setdefault(entity.span, []).append(entity)
    found: dict[tuple[int, int], TextEntity] = {}
    children: dict[tuple[int, int], list[TextEntity]] = {}
    for span, enclosing in enclosing_spans(spans).items():
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


def char_tree(sentences: Iterable[Sentence]) -> CharTree:
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
    return CharTree(tuple(constituents), tuple(arcs), tuple(roots))


def word_at(sentence: Sentence, h: int) -> CharSpan:
    assert sentence.offsets is not None
    start, end = sentence.offsets[h]
    return CharSpan(sentence.start + start, sentence.start + end, sentence.words[h])


def text_at(sentence: Sentence, start: int, end: int) -> str:
    assert sentence.text is not None
    return sentence.text[start - sentence.start : end - sentence.start]


def to_json_value(entities: Iterable[TextEntity]) -> list[Mapping[str, Any]]:
    """For JSON: a parent is the number of an entity in the list."""
    numbers: dict[int, int] = {}
    values: list[Mapping[str, Any]] = []
    for number, entity in enumerate(entities):
        numbers[id(entity)] = number
        parent = None if entity.parent is None else numbers[id(entity.parent)]
        values.append({**entity.to_dict(), "parent": parent})
    return values


@dataclass(frozen=True, slots=True)
class Document:
    """Sentences in their order and, if it is known, the text they stand in."""

    sentences: tuple[Sentence, ...]
    text: str | None = None
    id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)  # what else its file says of it
    found: tuple[TextEntity, ...] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sentences", tuple(self.sentences))
        if self.sentences and not isinstance(self.sentences[0], Sentence):
            raise DataError(
                f"a document is made of sentences, and this is {self.sentences[0]!r:.40}. Give a list of Sentence; "
                "texts are for `nestree.load()`."
            )
        if self.text is None:
            return
        last = 0
        for sentence in self.sentences:
            end = sentence.start + len(sentence.text or "")
            if (
                sentence.text is None
                or not last <= sentence.start
                or self.text[sentence.start : end] != sentence.text
            ):
                raise DataError(
                    f"a sentence is not at character {sentence.start} of its document {self.id}: {sentence}"
                )
            last = end

    @property
    def entities(self) -> tuple[TextEntity, ...]:
        """All entities by their characters, in the order of their starts, the longer first."""
        if self.found is None:
            object.__setattr__(self, "found", char_entities(self.with_text().sentences))
        assert self.found is not None
        return self.found

    @property
    def tree(self) -> CharTree:
        """The constituents and arcs of the trees that a model found the entities in; empty if none did."""
        return char_tree(self.with_text().sentences)

    @property
    def windowed(self) -> tuple[CharSpan, ...]:
        """Sentences too long to be read at once, which were read through windows that overlap."""
        return tuple(
            CharSpan(sentence.start, sentence.start + len(sentence.text or ""), sentence.text or "")
            for sentence in self.with_text().sentences
            if "windows" in sentence.extra
        )

    def to_dict(self) -> dict[str, Any]:
        """The text and its entities, as JSON has them."""
        named = {} if self.id is None else {"id": self.id}
        return {**named, "text": self.with_text().text, "entities": to_json_value(self.entities)}

    def to_json(self) -> str:
        """On one line. What is no text, half of a surrogate pair, is escaped."""
        written = json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)
        return written if is_detokenized(written) else json.dumps(self.to_dict(), allow_nan=False)

    def _repr_html_(self) -> str:
        """In a notebook: nested boxes."""
        import nestree  # by its public name, when a notebook asks: drawing is above all this

        return str(nestree.show.boxes(self))

    def with_text(self, between: str = "\n") -> "Document":
        """The same document; if it has no text, with one in which `between` joins the texts of its sentences."""
        if self.text is not None:
            return self
        placed, at = [], 0
        for sentence in self.sentences:
            sentence = sentence.with_text()
            placed.append(shift_sentence(sentence, at))
            at += len(sentence.text or "") + len(between)
        return Document(tuple(placed), between.join(s.text or "" for s in placed), self.id, self.extra)


def with_context(documents: Iterable[Document], words: int) -> list[Document]:
    """The same documents; each sentence knows up to so many words before and after it.

    >>> document = Document((Sentence(["She", "left"]), Sentence(["Why", "?"]), Sentence(["Nobody", "knows"])))
    >>> with_context([document], 3)[0].sentences[1].context
    (('She', 'left'), ('Nobody', 'knows'))
    """
    return [with_neighbors(document, words) if words else document for document in documents]


def with_neighbors(document: Document, words: int) -> Document:
    everything = tuple(chain.from_iterable(sentence.words for sentence in document.sentences))
    placed, start = [], 0
    for sentence in document.sentences:
        end = start + len(sentence.words)
        around = everything[max(0, start - words) : start], everything[end : end + words]
        placed.append(replace(sentence, context=around))
        start = end
    return replace(document, sentences=tuple(placed))


def shift_sentence(sentence: Sentence, start: int) -> Sentence:
    """The sentence at another place of a document."""
    return replace(sentence, start=start)


def is_detokenized(text: str) -> bool:
    """Can it be written in UTF-8? Half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
