"""Which documents and sentences are shown: those with certain ids, or the first ones."""

import difflib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from nestree.errors import InputError
from nestree.sentence import Document


def only(documents: Iterable[Document], ids: Collection[str]) -> list[Document]:
    """The documents with these ids; of others, the sentences with these ids.

    >>> from nestree.sentence import Sentence
    >>> document = Document([Sentence(["a"], id="x"), Sentence(["b"], id="y")])
    >>> [str(sentence) for found in only([document], ["y"]) for sentence in found.sentences]
    ['b']
    """
    found, seen, known = [], set(), set()
    for document in documents:
        names = {sentence.id for sentence in document.sentences if sentence.id is not None}
        known |= names if document.id is None else {*names, document.id}
        seen |= {id for id in ids if id == document.id or id in names}
        if document.id in ids:
            found.append(document)
        elif sentences := [sentence for sentence in document.sentences if sentence.id in ids]:
            found.append(Document(tuple(sentences), None, document.id, document.extra))
    for id in ids:
        if id not in seen:
            close = difflib.get_close_matches(id, sorted(known), n=1)
            has = f"Is {close[0]} meant?" if close else "It has " + (some(known) or "no ids at all") + "."
            raise InputError(f"no document and no sentence has the id {id}. {has}")
    return found


def some(names: Collection[str]) -> str:
    first = sorted(names)[:5]
    return ", ".join(first) + (f" and {len(names) - 5:,} others" if len(names) > 5 else "")


def first(documents: Iterable[Document], sentences: int) -> Iterator[Document]:
    """The first so many sentences, in their documents; what comes after them is not read."""
    left = sentences
    for document in documents:
        if len(document.sentences) >= left:
            yield beginning(document, left)
            return
        left -= len(document.sentences)
        yield document


def beginning(document: Document, sentences: int) -> Document:
    """The document up to the end of its n-th sentence."""
    if sentences >= len(document.sentences):
        return document
    kept = document.sentences[:sentences]
    text = document.text
    if text is not None:
        text = text[: kept[-1].start + len(kept[-1].text or "")]
    return replace(document, sentences=kept, text=text)
