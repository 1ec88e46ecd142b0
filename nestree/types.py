"""Entities, sentences, trees and documents: what readers return, models predict and writers take.

`Entity` and `Sentence` count words. `TextEntity`, which `Document.entities` holds, and `Document.tree` count characters
of the text (Unicode code points). `Document.to_dict` is the JSON form that nestree/data/document.schema.json describes.
"""

import json
import operator
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field, replace
from functools import cached_property
from importlib import import_module
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, TypeVar

from nestree.errors import DataError, EmptySpanError, InputError, SpanRangeError, plural

Span = tuple[int, int]
Item = TypeVar("Item")
# What the attributes of other libraries are called here; for the messages of AttributeErrors.
ATTRIBUTE_HINTS = {
    "Document": {
        "ents": "entities", "spans": "entities", "sents": "sentences", "tokens": "words", "trees": "tree",
        "labels": "entity.label of its entities", "to_df": "to_pandas()", "to_dataframe": "to_pandas()",
        "to_conll": 'nestree.write(document, path, format="columns")', "html": "to_html()", "print": "show()",
        "display": "show()", "visualize": "show()", "filter": "ner(text, labels=..., threshold=...)",
        "render": "show() or to_html()", "doc_id": "id",
        "save": "nestree.write(document, path)", "to_csv": 'nestree.write(document, "entities.csv")',
        "to_brat": 'nestree.write(document, folder, format="brat")',
    },
    "TextEntity": {
        "start_char": "start", "end_char": "end", "label_": "label", "type": "label", "probability": "score",
        "confidence": "score", "prob": "score", "root": "head", "head_text": "head.text", "level": "depth",
        "to_json": "to_dict()", "ancestors": "parent", "sent": "document.sentences", "sentence": "document.sentences",
        "tokens": "text", "words": "text",
    },
    "Entity": {
        "text": "sentence.phrase(entity)", "start_char": "sentence.characters(entity)",
        "end_char": "sentence.characters(entity)", "label_": "label", "type": "label", "labels": "label",
    },
    "Sentence": {"tokens": "words", "ents": "entities", "to_dict": "Document([sentence]).to_dict()"},
    "Evaluation": {
        "F1": "f1", "P": "precision", "R": "recall", "summary": "print(evaluation)", "by_label": "labels",
        "report": "print(evaluation)", "show": "print(evaluation)",
        "to_dict": "nestree.report.to_json(evaluation)", "to_json": "nestree.report.to_json(evaluation)",
        "to_html": "nestree.report.to_html(evaluation)",
    },
    "Pipeline": {
        "config": "model.settings", "settings": "model.settings", "threshold": "model.settings.decoding.threshold",
        "cuda": 'to("cuda")', "cpu": 'to("cpu")', "tokenizer": "model.tokenizer",
        "save": "save_pretrained(folder)", "evaluate": "nestree.evaluate(data, model=ner)",
        "push_to_hub": "save_pretrained(folder), then huggingface_hub", "train": "nestree.train(data)",
    },
}  # fmt: skip
Context = tuple[tuple[str, ...], tuple[str, ...]]  # words of the document before a sentence, and after it


def missing_attribute(instance: Any, name: str) -> AttributeError:
    """The error for an attribute that does not exist; suggests ours if the name is that of another library."""
    kind = type(instance).__name__
    ours = ATTRIBUTE_HINTS.get(kind, {}).get(name)
    hint = f"; use {ours}" if ours else ""
    return AttributeError(f"{kind} has no {name}{hint}", name=name, obj=instance)


class AttributeHints:
    """A base class that suggests its own attribute for the name that another library uses."""

    __slots__ = ()
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_attribute(self, name)


@dataclass(frozen=True, slots=True)
class Entity(AttributeHints):
    """A span of words of a sentence, with a label. The same in characters of a text is a TextEntity."""

    start: int
    end: int
    label: str
    head: int | None = None  # the head word, inside the span; None: unknown
    score: float | None = None  # a probability; None: annotated by hand
    heads: tuple[int, ...] = ()  # all words that may be the head, if the annotation leaves it open
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)  # extra keys of its file

    def __post_init__(self) -> None:
        heads, score = self.heads, self.score
        if isinstance(heads, str) or not isinstance(heads, Iterable):
            raise DataError(f"heads {heads!r:.40} of entity {self} must be indices of words")
        if type(heads) is not tuple or heads:
            object.__setattr__(self, "heads", tuple(self._index("head", head) for head in heads))
        for name in ("start", "end", "head"):
            value = getattr(self, name)
            if (type(value) is not int or value < 0) and not (value is None and name == "head"):
                object.__setattr__(self, name, self._index(name, value))
        if self.end <= self.start:
            raise EmptySpanError(f"entity {self} is empty: its end must be greater than its start")
        if not isinstance(self.label, str) or not self.label:
            raise DataError(f"entity {self} has no label: it must be a string that is not empty")
        for head in self.heads if self.head is None else (self.head, *self.heads):
            if not self.start <= head < self.end:
                raise DataError(f"head {head} of entity {self} is not one of its words")
        if score is not None:
            is_number = type(score) is float or (isinstance(score, Real) and not isinstance(score, bool))
            if not is_number or not 0 <= score <= 1:
                what = "is not a probability: a number from 0 to 1"
                raise DataError(f"score {score!r:.40} of entity {self} {what}")
            if type(score) is not float:  # of NumPy or PyTorch, which JSON cannot hold
                object.__setattr__(self, "score", float(score))

    def _index(self, name: str, value: Any) -> int:
        """The number of a word as Python's integer; other libraries have integers of their own."""
        try:
            index = -1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            index = -1
        if index < 0:
            raise DataError(
                f"{name} {value!r:.40} of entity {self} must be the index of a word: a whole number, 0 or more"
            )
        return index

    @property
    def span(self) -> Span:
        return self.start, self.end

    def __str__(self) -> str:
        return f"{self.start}-{self.end} {self.label}"


class Tree(NamedTuple):
    """The lexicalised tree over the words of a sentence that a model predicted."""

    spans: tuple[tuple[int, int, int | None], ...]  # (i, j, head), parents before children; None: no heads
    arcs: tuple[tuple[int, int], ...] = ()  # (head, modifier)
    root: int | None = None  # the head of the sentence
    probabilities: tuple[float, ...] = ()  # the marginal of each span; (): unknown


@dataclass(frozen=True, slots=True)
class Sentence(AttributeHints):
    """Words and the entities among them; if the text is known, also where each word stands in it."""

    words: tuple[str, ...]
    entities: tuple[Entity, ...] = ()
    text: str | None = None  # None: only the words are known
    offsets: tuple[Span, ...] | None = None  # of each word, in characters of `text`
    start: int = 0  # where `text` begins in the text of the document
    id: str | None = None
    complete: bool = True  # False: there may be entities that are not annotated
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)  # extra keys of its file
    tree: Tree | None = field(default=None, compare=False)  # predicted with the entities
    context: Context | None = field(default=None, compare=False, repr=False)  # for the encoder
    forbidden: tuple[Span, ...] = ()  # known not to be entities, in an incomplete sentence

    if TYPE_CHECKING:  # lists become tuples

        def __init__(
            self, words: Iterable[str], entities: Iterable[Entity] = (), text: str | None = None,
            offsets: Iterable[Sequence[int]] | None = None, start: int = 0, id: str | None = None,
            complete: bool = True, extra: Mapping[str, Any] = {}, tree: Tree | None = None,
            context: Context | None = None, forbidden: Iterable[Sequence[int]] = (),
        ) -> None: ...  # fmt: skip

    def __post_init__(self) -> None:
        is_list = isinstance(self.words, Iterable) and not isinstance(self.words, str)
        words = tuple(self.words) if is_list else ()
        if not is_list or not all(isinstance(word, str) for word in words):
            raise DataError(f"words must be strings in a list, and are {self.words!r:.60}")
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "entities", tuple(self.entities))
        check_id(self)
        if not self.words:
            raise DataError("a sentence needs at least one word, and this one has none")
        if "" in self.words:
            raise DataError(f"word {self.words.index('')} of this sentence is empty: {self}")
        for entity in self.entities:
            if type(entity) is not Entity:
                raise DataError(f"entities must be Entity objects, and one is {entity!r:.60}")
            if entity.end > len(self.words):
                raise SpanRangeError(
                    f"entity {entity} ends after the sentence, which has {plural(len(self.words), 'word')}: {self}"
                )
        if type(self.forbidden) is not tuple or self.forbidden:
            self._normalize_forbidden()
        if (self.text is None) != (self.offsets is None):
            raise DataError(f"a sentence has a text and the offsets of its words, or neither: {self}")
        if self.offsets is not None:
            self._check_offsets(self.offsets)

    def _normalize_forbidden(self) -> None:
        """Raise unless these are spans of words, none of which is an entity; store them as tuples, sorted."""
        entities = {entity.span: entity for entity in self.entities}
        spans = set()
        for span in self.forbidden:
            try:
                start, end = (operator.index(place) for place in span)
            except (TypeError, ValueError):
                raise DataError(f"a forbidden span is [start, end], and this is {span!r:.40}") from None
            if not 0 <= start < end <= len(self.words):
                raise SpanRangeError(
                    f"forbidden span {start}-{end} is no span of this sentence, which has "
                    f"{plural(len(self.words), 'word')}: {self}"
                )
            if (start, end) in entities:
                raise DataError(
                    f"entity {entities[start, end]} is also forbidden, so that answers contradict each other: {self}"
                )
            spans.add((start, end))
        object.__setattr__(self, "forbidden", tuple(sorted(spans)))

    def _check_offsets(self, offsets: Any) -> None:
        """Raise unless each word stands at its offsets; store the offsets as tuples of Python's integers."""
        words, text = self.words, self.text
        if not isinstance(text, str):
            raise DataError(f"the text of a sentence must be a string, and is {text!r:.60}")
        try:
            offsets = tuple([(int(i), int(j)) for i, j in offsets])
        except (TypeError, ValueError):
            raise DataError(f"offsets must be pairs of numbers, and are {offsets!r:.60}") from None
        object.__setattr__(self, "offsets", offsets)
        if len(offsets) != len(words):
            raise DataError(f"{len(words)} words have {len(offsets)} offsets in this sentence: {self}")
        last = 0
        for word, (i, j) in zip(words, offsets, strict=True):
            if not last <= i < j <= len(text) or text[i:j] != word:
                raise DataError(f"word {word!r} is not at characters {i}-{j} of its sentence: {self}")
            last = j

    def phrase(self, entity: Entity) -> str:
        """The text of the entity; if only words are known, they are joined by spaces."""
        if self.text is None:
            return " ".join(self.words[entity.start : entity.end])
        return char_span(self, *entity.span).text

    def characters(self, entity: Entity) -> Span:
        """The span of the entity in characters of its document."""
        if self.offsets is None:
            raise DataError(f"only the words of this sentence are known, not their places in a text: {self}")
        return char_span(self, *entity.span)[:2]

    def with_text(self) -> "Sentence":
        """The sentence itself if its text is known; otherwise a copy whose text joins the words by spaces."""
        if self.text is not None:
            return self
        offsets, start = [], 0
        for word in self.words:
            offsets.append((start, start + len(word)))
            start += len(word) + 1
        return replace(self, text=" ".join(self.words), offsets=tuple(offsets), start=0)

    def __str__(self) -> str:
        text = " ".join(self.words[:30])
        return text if len(text) <= 80 and len(self.words) <= 30 else text[:77] + "..."


def check_id(item: "Sentence | Document") -> None:
    """Raise unless the id, which writers put into names of files and lines of text, is a string."""
    if not isinstance(item.id, str | None):
        kind = type(item).__name__.lower()
        raise DataError(f"the id of a {kind} must be a string, and is {item.id!r:.40}. Give str(id).")


SLOTS: dict[type[Any], list[Any]] = {
    cls: [getattr(cls, name).__set__ for name in cls.__slots__] for cls in (Entity, Sentence)
}


def build(cls: type[Item], *values: Any) -> Item:
    """An object with these values of all fields, without the checks: four times as fast as calling the class."""
    instance = object.__new__(cls)
    for set_field, value in zip(SLOTS[cls], values, strict=True):
        set_field(instance, value)
    return instance


def unchecked_entity(start: int, end: int, label: str, head: int | None, score: float | None) -> Entity:
    """An entity of values that are known to be valid, and of Python's own types."""
    return build(Entity, start, end, label, head, score, (), {})


def with_entities(s: Sentence, entities: tuple[Entity, ...], tree: Tree | None, extra: Mapping[str, Any]) -> Sentence:
    """A copy of the sentence, marked complete, with predicted entities that are known to lie within it."""
    values = (s.words, entities, s.text, s.offsets, s.start, s.id, True, extra, tree, s.context, ())
    return build(Sentence, *values)


def crossing_pairs(entities: Sequence[Entity]) -> list[tuple[Entity, Entity]]:
    """All pairs that overlap without one containing the other, in the order of their starts.

    >>> crossing_pairs([Entity(0, 3, "A"), Entity(2, 5, "B"), Entity(3, 4, "C")])
    [(Entity(start=0, end=3, label='A', ...), Entity(start=2, end=5, label='B', ...))]
    """
    ordered = sorted(entities, key=lambda e: (e.start, -e.end))
    pairs: list[Span] = []
    ends: list[Span] = []  # sorted (end, index) of the entities so far
    for k, entity in enumerate(ordered):
        first, last = bisect_left(ends, (entity.start + 1, 0)), bisect_left(ends, (entity.end, 0))
        pairs += [(index, k) for _, index in ends[first:last]]
        insort(ends, (entity.end, k))
    return [(ordered[a], ordered[b]) for a, b in sorted(pairs)]


def enclosing_spans(spans: Iterable[Span]) -> dict[Span, list[Span]]:
    """The other spans that enclose each span, in the order of their starts, the longer first.

    >>> enclosing_spans([(3, 4), (0, 4), (4, 6)])
    {(0, 4): [], (3, 4): [(0, 4)], (4, 6): []}
    """
    enclosing: dict[Span, list[Span]] = {}
    open_spans: list[Span] = []
    for start, end in sorted(set(spans), key=lambda span: (span[0], -span[1])):
        open_spans = [span for span in open_spans if span[1] > start]
        enclosing[start, end] = [span for span in open_spans if span[1] >= end]
        open_spans.append((start, end))
    return enclosing


def depths(entities: Iterable[Entity]) -> list[int]:
    """How many other spans enclose each entity; the same span with another label does not count.

    >>> depths([Entity(0, 4, "A"), Entity(0, 4, "B"), Entity(3, 4, "C")])
    [0, 0, 1]
    """
    entities = list(entities)
    depth: dict[Span, int] = {}
    ends: list[int] = []  # sorted, of the spans so far
    for start, end in sorted({entity.span for entity in entities}, key=lambda span: (span[0], -span[1])):
        depth[start, end] = len(ends) - bisect_left(ends, end)
        insort(ends, end)
    return [depth[entity.span] for entity in entities]


class CharSpan(NamedTuple):
    """A span of characters, with its text."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class TextEntity(AttributeHints):
    """An entity by characters of a document: text[start:end]. All labels of a span are one TextEntity."""

    start: int
    end: int
    text: str
    labels: tuple[str, ...]  # the most probable first
    scores: tuple[float | None, ...]  # the probability of each label
    head: CharSpan | None  # the head word
    depth: int  # how many entities enclose it
    # Set by `text_entities`. They are not fields, because `dataclasses.asdict` would follow the cycle forever.
    parent: ClassVar["TextEntity | None"] = None  # the smallest entity that encloses it
    children: ClassVar["tuple[TextEntity, ...]"] = ()

    @property
    def span(self) -> Span:
        return self.start, self.end

    @property
    def label(self) -> str:
        return self.labels[0]

    @property
    def score(self) -> float | None:
        return self.scores[0]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without `parent`, which is an index into the entities of a document; scores are rounded."""
        scores = [round_probability(score) for score in self.scores]
        pairs = zip(self.labels, scores, strict=True)
        return {
            "start": self.start,
            "end": self.end,
            "text": self.text,
            "label": self.label,
            "labels": [{"label": label, "score": score} for label, score in pairs],
            "score": scores[0],
            "head": self.head and self.head._asdict(),
            "depth": self.depth,
        }


def raise_frozen(instance: Any, name: str, *value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot change {name!r} of {type(instance).__name__}; use dataclasses.replace")


for _frozen in (Entity, Sentence, TextEntity):
    # The methods that `dataclass` generates for a frozen class with slots raise a TypeError of super() for names that
    # are not fields.
    _frozen.__setattr__ = _frozen.__delattr__ = raise_frozen  # type: ignore[method-assign]


def round_probability(probability: float | None) -> float | None:
    """The probability with the six decimals that files get.

    >>> round_probability(0.8349872827529907)
    0.834987
    """
    return None if probability is None else round(probability, 6)


class Constituent(NamedTuple):
    """A span of a predicted tree, entity or not, in characters."""

    start: int
    end: int
    text: str
    head: CharSpan | None
    probability: float | None  # the marginal of the span


class Arc(NamedTuple):
    head: CharSpan
    modifier: CharSpan


class TextTree(NamedTuple):
    """The trees of all sentences of a document, in characters."""

    constituents: tuple[Constituent, ...]  # parents before children, left before right
    arcs: tuple[Arc, ...]
    roots: tuple[CharSpan, ...]  # the head of each sentence

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, which nestree/data/document.schema.json describes; probabilities are rounded."""
        return {
            "constituents": [
                {"start": c.start, "end": c.end, "head": c.head and c.head._asdict(), "probability": p}
                for c in self.constituents
                for p in [round_probability(c.probability)]
            ],
            "arcs": [{"head": a.head._asdict(), "modifier": a.modifier._asdict()} for a in self.arcs],
            "roots": [root._asdict() for root in self.roots],
        }


def char_span(sentence: Sentence, i: int, j: int) -> CharSpan:
    """Words i to j of a sentence that has a text."""
    assert sentence.text is not None
    assert sentence.offsets is not None
    start, end = sentence.offsets[i][0], sentence.offsets[j - 1][1]
    return CharSpan(sentence.start + start, sentence.start + end, sentence.text[start:end])


def text_entities(sentence: Sentence) -> list[TextEntity]:
    """The entities of a sentence that has a text, ordered by start, the longer first."""
    by_span: dict[Span, list[Entity]] = {}
    for entity in sentence.entities:
        by_span.setdefault(entity.span, []).append(entity)
    result: dict[Span, TextEntity] = {}
    for span, enclosing in enclosing_spans(by_span).items():
        entities = sorted(by_span[span], key=lambda entity: -(entity.score or 0.0))
        scores: dict[str, float | None] = {}
        for entity in entities:
            scores.setdefault(entity.label, entity.score)
        head = next((entity.head for entity in entities if entity.head is not None), None)
        parent = result[min(enclosing, key=lambda s: s[1] - s[0])] if enclosing else None
        result[span] = TextEntity(
            *char_span(sentence, *span),
            labels=tuple(scores),
            scores=tuple(scores.values()),
            head=None if head is None else char_span(sentence, head, head + 1),
            depth=len(enclosing),
        )
        if parent is not None:
            object.__setattr__(result[span], "parent", parent)
            object.__setattr__(parent, "children", (*parent.children, result[span]))
    return list(result.values())


@dataclass(frozen=True, repr=False)
class Document(AttributeHints):
    """Sentences in their order and, if it is known, the text that they stand in. Iterates over its entities."""

    sentences: tuple[Sentence, ...]
    text: str | None = None
    id: str | None = None  # an empty one becomes None
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)  # extra keys of its file

    if TYPE_CHECKING:  # a list becomes a tuple

        def __init__(
            self, sentences: Iterable[Sentence], text: str | None = None, id: str | None = None,
            extra: Mapping[str, Any] = {},
        ) -> None: ...  # fmt: skip

    def __post_init__(self) -> None:
        is_list = isinstance(self.sentences, Iterable) and not isinstance(self.sentences, str)
        object.__setattr__(self, "sentences", tuple(self.sentences) if is_list else (self.sentences,))
        if self.id == "":
            object.__setattr__(self, "id", None)
        for sentence in self.sentences:
            if not (is_list and isinstance(sentence, Sentence)):
                raise DataError(
                    f"a document is made of a list of sentences, and this is {sentence!r:.40}. Give a list of "
                    "Sentence; texts are for `nestree.load()`."
                )
        check_id(self)
        if self.text is None:
            return
        if not isinstance(self.text, str):
            raise DataError(f"the text of document {self.id} must be a string, and is {self.text!r:.40}")
        last = 0
        for sentence in self.sentences:
            end = sentence.start + len(sentence.text or "")
            if sentence.start < last or self.text[sentence.start : end] != sentence.text:
                raise DataError(
                    f"a sentence is not at character {sentence.start} of its document {self.id}: {sentence}"
                )
            last = end

    @property
    def words(self) -> tuple[str, ...]:
        """The words of all sentences."""
        return tuple(chain.from_iterable(sentence.words for sentence in self.sentences))

    @cached_property
    def entities(self) -> tuple[TextEntity, ...]:
        """All entities by characters, ordered by start, the longer first."""
        return tuple(chain.from_iterable(map(text_entities, self.with_text().sentences)))

    def __iter__(self) -> Iterator[TextEntity]:
        return iter(self.entities)

    def __len__(self) -> int:
        return len(self.entities)

    def __getitem__(self, index: int) -> TextEntity:
        if isinstance(index, str):
            raise TypeError(f"a Document has attributes, not keys: document.{index}; or document.to_dict()[{index!r}]")
        return self.entities[index]

    def __bool__(self) -> bool:
        return True  # also without entities

    def __repr__(self) -> str:
        """One line for the document and one for each of the first entities, indented by depth."""
        name = "Document" if self.id is None else f"Document {self.id!r}"
        lines = [f"<{name}: sentences: {len(self.sentences)}, entities: {len(self)}>"]
        for entity in self.entities[:20]:
            labels = ", ".join(
                label if score is None else f"{label} {score:.3f}"
                for label, score in zip(entity.labels, entity.scores, strict=True)
            )
            text = entity.text if len(entity.text) <= 60 else entity.text[:57] + "..."
            lines.append(f"{'  ' * (entity.depth + 1)}{entity.start}-{entity.end} {labels}: {text!r}")
        return "\n".join([*lines, f"  and {len(self) - 20} more"] if len(self) > 20 else lines)

    @property
    def tree(self) -> TextTree:
        """The constituents and arcs of the predicted trees; empty if there are none."""
        constituents, arcs, roots = [], [], []
        for sentence in self.with_text().sentences:
            if (tree := sentence.tree) is None:
                continue
            words = [char_span(sentence, h, h + 1) for h in range(len(sentence.words))]
            probabilities = tree.probabilities or [None] * len(tree.spans)
            for (i, j, h), probability in zip(tree.spans, probabilities, strict=True):
                head = None if h is None else words[h]
                constituents.append(Constituent(*char_span(sentence, i, j), head, probability))
            arcs += [Arc(words[h], words[m]) for h, m in tree.arcs]
            roots += [] if tree.root is None else [words[tree.root]]
        return TextTree(tuple(constituents), tuple(arcs), tuple(roots))

    @property
    def windowed_sentences(self) -> tuple[CharSpan, ...]:
        """The sentences that were too long for one pass, and were predicted in overlapping windows."""
        windowed = [sentence for sentence in self.with_text().sentences if "windows" in sentence.extra]
        return tuple(CharSpan(s.start, s.start + len(s.text or ""), s.text or "") for s in windowed)

    def to_dict(self) -> dict[str, Any]:
        """The text and its entities, as nestree/data/document.schema.json describes them; scores are rounded."""
        from nestree.data.formats.jsonl import to_text_record

        return to_text_record(self, rounded=True)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], words: str = "treebank", sentences: str = "rules") -> "Document":
        """The document of `to_dict`: the same text and entities.

        Sentences and words, which `to_dict` leaves out, are split again by these rules (see `nestree.text.split`).
        """
        from nestree.data.formats.jsonl import from_text_record

        if not isinstance(value, Mapping):
            raise InputError(f"from_dict takes what to_dict returns, and this is {value!r:.60}.")
        return from_text_record(dict(value), words, sentences)

    @classmethod
    def from_json(cls, text: str, words: str = "treebank", sentences: str = "rules") -> "Document":
        """The document of `to_json`; see `from_dict`. `nestree.read` reads files."""
        try:
            value = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"from_json takes the JSON of one document, not {text!r:.60}: {error}") from None
        return cls.from_dict(value, words, sentences)

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as JSON, on one line without `indent`.

        All but ASCII is escaped if the text has half of a surrogate pair, which UTF-8 cannot encode.
        """
        if not (indent is None or isinstance(indent, int)):
            raise InputError(
                f"indent is {indent!r:.60}; it must be a number. `nestree.write(document, path)` writes files."
            )
        line = json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=indent)
        try:
            line.encode()
        except UnicodeEncodeError:
            return json.dumps(self.to_dict(), allow_nan=False, indent=indent)
        return line

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each entity; its columns are the keys of `to_dict`, `head` is a text."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise InputError("to_pandas needs pandas. Install it with: pip install pandas") from None
        entities = self.to_dict()["entities"]
        columns = {name: [entity[name] for entity in entities] for name in ENTITY_KEYS}
        columns["labels"] = [[label["label"] for label in labels] for labels in columns["labels"]]
        columns["head"] = [head and head["text"] for head in columns["head"]]
        columns["parent"] = pandas.array(columns["parent"], dtype="Int64")  # an index, which may be missing
        return pandas.DataFrame(columns)

    def to_spacy(self, vocab: Any = None, spans_key: str = "nestree") -> Any:
        """A Doc of spaCy with the entities in `doc.spans[spans_key]`, as the component "nestree" makes it.

        `doc.ents`, which cannot overlap, has the outermost entities. `vocab`: that of your pipeline, `nlp.vocab`;
        None: a new one.
        """
        from nestree.data.formats.spacy import to_doc
        from nestree.data.io import ConversionReport, optional_import

        spacy = optional_import("spacy", "to_spacy", "spacy")
        vocab = spacy.blank("xx").vocab if vocab is None else vocab
        try:
            doc = to_doc(self, vocab, spans_key, ConversionReport())
        except UnicodeEncodeError as error:
            raise DataError(f"spaCy cannot hold this text: {error}. Correct it in its source.") from None
        doc.spans[spans_key].attrs["nestree"] = True  # span._.nestree_score and nestree_head read this group
        doc.ents = spacy.util.filter_spans(doc.spans[spans_key])
        return doc

    def show(self, *, tree: bool = False) -> None:
        """Print the text with its entities in brackets, in color on a terminal; with `tree`, the trees of sentences."""
        from rich.console import Console

        from nestree.show import draw_document, draw_sentence

        console = Console()
        if tree:
            for sentence in self.sentences:
                console.print(draw_sentence(sentence, console.width), no_wrap=True, crop=False)
        else:
            console.print(draw_document(self, console.width))

    def to_html(self, path: str | Path | None = None, title: str = "Nested entities") -> str:
        """A complete HTML page with nested boxes and, where they were kept, trees; also written to `path`."""
        from nestree.data.io import atomic_writer
        from nestree.show import draw_page

        page = draw_page([self], title)
        if path is not None:
            with atomic_writer(Path(path)) as file:
                file.write(page)
        return page

    def _repr_html_(self) -> str:
        """Nested boxes, for notebooks."""
        from nestree.show import draw_boxes

        return draw_boxes(self)

    def with_text(self, between: str = "\n") -> "Document":
        """The document itself if its text is known; otherwise a copy whose text joins the sentences by `between`."""
        if self.text is not None:
            return self
        sentences = [(between if k else "", sentence.with_text()) for k, sentence in enumerate(self.sentences)]
        return join_sentences(sentences, self.id, self.extra)


ENTITY_KEYS = ("start", "end", "text", "label", "labels", "score", "head", "depth", "parent")


def join_sentences(
    sentences: Sequence[tuple[str | None, Sentence]], id: str | None, extra: Mapping[str, Any], after: str = ""
) -> Document:
    """The document of sentences, each with the characters before it; its text is known if all of these are."""
    if any(before is None or sentence.text is None for before, sentence in sentences):
        return Document(tuple(sentence for _, sentence in sentences), None, id, extra)
    text, moved = "", []
    for before, sentence in sentences:
        text += before or ""
        moved.append(replace(sentence, start=len(text)))
        text += sentence.text or ""
    return Document(tuple(moved), text + after, id, extra)


def with_context(documents: Iterable[Document], words: int) -> list[Document]:
    """The documents; each sentence has up to this many words before and after it as `context`.

    >>> document = Document((Sentence(["She", "left"]), Sentence(["Why", "?"]), Sentence(["Nobody", "knows"])))
    >>> with_context([document], 3)[0].sentences[1].context
    (('She', 'left'), ('Nobody', 'knows'))
    """
    if not words:
        return list(documents)
    results = []
    for document in documents:
        all_words = document.words
        sentences, start = [], 0
        for sentence in document.sentences:
            end = start + len(sentence.words)
            context = all_words[max(0, start - words) : start], all_words[end : end + words]
            sentences.append(replace(sentence, context=context))
            start = end
        results.append(replace(document, sentences=tuple(sentences)))
    return results
