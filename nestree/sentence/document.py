"""Documents: sentences in their order, and the text they stand in."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from nestree.errors import DataError
from nestree.sentence.characters import TextEntity, TextSpan, TextTree, as_values, entities_of, tree_of
from nestree.sentence.entity import Sentence


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
            object.__setattr__(self, "found", entities_of(self.with_text().sentences))
        assert self.found is not None
        return self.found

    @property
    def tree(self) -> TextTree:
        """The constituents and arcs of the trees that a model found the entities in; empty if none did."""
        return tree_of(self.with_text().sentences)

    @property
    def windowed(self) -> tuple[TextSpan, ...]:
        """Sentences too long to be read at once, which were read through windows that overlap."""
        return tuple(
            TextSpan(sentence.start, sentence.start + len(sentence.text or ""), sentence.text or "")
            for sentence in self.with_text().sentences
            if "windows" in sentence.extra
        )

    def to_dict(self) -> dict[str, Any]:
        """The text and its entities, as JSON has them."""
        named = {} if self.id is None else {"id": self.id}
        return {**named, "text": self.with_text().text, "entities": as_values(self.entities)}

    def to_json(self) -> str:
        """On one line. What is no text, half of a surrogate pair, is escaped."""
        written = json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)
        return written if is_text(written) else json.dumps(self.to_dict(), allow_nan=False)

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
            placed.append(moved(sentence, at))
            at += len(sentence.text or "") + len(between)
        return Document(tuple(placed), between.join(s.text or "" for s in placed), self.id, self.extra)


def in_context(documents: Iterable[Document], words: int) -> list[Document]:
    """The same documents; each sentence knows up to so many words before and after it.

    >>> document = Document((Sentence(["She", "left"]), Sentence(["Why", "?"]), Sentence(["Nobody", "knows"])))
    >>> in_context([document], 3)[0].sentences[1].context
    (('She', 'left'), ('Nobody', 'knows'))
    """
    return [with_neighbours(document, words) if words else document for document in documents]


def with_neighbours(document: Document, words: int) -> Document:
    everything = tuple(chain.from_iterable(sentence.words for sentence in document.sentences))
    placed, start = [], 0
    for sentence in document.sentences:
        end = start + len(sentence.words)
        around = everything[max(0, start - words) : start], everything[end : end + words]
        placed.append(replace(sentence, context=around))
        start = end
    return replace(document, sentences=tuple(placed))


def moved(sentence: Sentence, start: int) -> Sentence:
    """The sentence at another place of a document."""
    return replace(sentence, start=start)


def is_text(text: str) -> bool:
    """Can it be written in UTF-8? Half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
