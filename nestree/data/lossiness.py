"""What a format has no place for, counted when it is written.

The parts of a document that some format loses; docs/data.md has the table of which format loses which.
"""

from collections.abc import Callable, Collection

from nestree.data.io import ConversionReport
from nestree.types import Document, Entity, Sentence


def in_entities(has: Callable[[Entity], object]) -> Callable[[Document], int]:
    return lambda document: sum(bool(has(e)) for s in document.sentences for e in s.entities)


def in_sentences(has: Callable[[Sentence], object]) -> Callable[[Document], int]:
    return lambda document: sum(bool(has(s)) for s in document.sentences)


def words_without_blanks(sentence: Sentence) -> bool:
    """Would blanks not part the words of this sentence as they are?"""
    if sentence.text is None:
        return any(character.isspace() for word in sentence.words for character in word)
    return tuple(sentence.text.split()) != sentence.words


def sentences_without_lines(document: Document) -> int:
    """How many sentences do not begin and end with a line?"""
    found, after = 0, "\n"
    for k, sentence in enumerate(document.sentences):
        before = after
        if document.text is not None:
            end = sentence.start + len(sentence.text or "")
            is_last = k + 1 == len(document.sentences)
            after = "\n" if is_last else document.text[end : document.sentences[k + 1].start]
        found += "\n" in (sentence.text or "") or "\n" not in before or "\n" not in after
    return found


OF_MODELS = {"windows"}  # how a model has read a sentence: not a part of any data

# How many of each a document has, and what to call them.
PARTS: dict[str, Callable[[Document], int]] = {
    "heads": in_entities(lambda entity: entity.head is not None or entity.heads),
    "scores": in_entities(lambda entity: entity.score is not None),
    "further keys of entities": in_entities(lambda entity: entity.extra),
    "further keys of sentences": in_sentences(lambda sentence: sentence.extra.keys() - OF_MODELS),
    "further keys of documents": lambda document: bool(document.extra),
    "ids of sentences": in_sentences(lambda sentence: sentence.id is not None),
    "ids of documents": lambda document: document.id is not None,
    "marks of incomplete sentences": in_sentences(lambda sentence: not sentence.complete),
    "trees": in_sentences(lambda sentence: sentence.tree is not None),
    "texts": in_sentences(lambda sentence: sentence.text is not None),
    "borders of words": in_sentences(words_without_blanks),
    "borders of sentences": sentences_without_lines,
    "borders of documents": lambda document: len(document.sentences) > 1,
    "documents without sentences": lambda document: not document.sentences,
}


OURS = ("trees",)  # which no format has a place for but JSON lines, our own


def report_losses(
    document: Document, format: str, parts: Collection[str], tally: ConversionReport, place: str
) -> None:
    """Count what of these parts the document has, and of OURS: `format` has no place for them.

    >>> tally = ConversionReport()
    >>> document = Document([Sentence(["Rome"], [Entity(0, 1, "GPE", head=0)])])
    >>> report_losses(document, "brat", ["heads", "scores"], tally, "a")
    >>> tally.counts
    Counter({'heads not written: brat has no place for them': 1})
    """
    for part in dict.fromkeys((*parts, *OURS)):
        if times := PARTS[part](document):
            tally.note(f"{part} not written: {format} has no place for them", place, times)
