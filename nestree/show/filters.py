"""Which documents and sentences are shown."""

import difflib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from nestree.errors import InputError
from nestree.types import Document


def select_documents(documents: Iterable[Document], ids: Collection[str]) -> list[Document]:
    """The documents with these ids; of other documents, the sentences with these ids.

    >>> from nestree.types import Sentence
    >>> document = Document([Sentence(["a"], id="x"), Sentence(["b"], id="y")])
    >>> [str(sentence) for selected in select_documents([document], ["y"]) for sentence in selected.sentences]
    ['b']
    """
    selected: list[Document] = []
    known: set[str] = set()
    for document in documents:
        known.update(s.id for s in document.sentences if s.id is not None)
        known.update([] if document.id is None else [document.id])
        if document.id in ids:
            selected.append(document)
        elif sentences := [sentence for sentence in document.sentences if sentence.id in ids]:
            selected.append(Document(tuple(sentences), None, document.id, document.extra))
    for id in ids:
        if id not in known:
            close = difflib.get_close_matches(id, sorted(known), n=1)
            more = ", ..." if len(known) > 5 else ""
            hint = f"Is {close[0]} meant?" if close else f"The ids are {', '.join(sorted(known)[:5])}{more}."
            raise InputError(
                f"no document and no sentence has the id {id}. {hint if known else 'None has an id.'}"
            )
    return selected


def first_sentences(documents: Iterable[Document], count: int) -> Iterator[Document]:
    """The documents up to the given number of sentences; nothing is read beyond that."""
    for document in documents:
        if len(document.sentences) < count:
            count -= len(document.sentences)
            yield document
            continue
        if len(document.sentences) > count:
            kept = document.sentences[:count]
            text = document.text
            if text is not None:
                text = text[: kept[-1].start + len(kept[-1].text or "")]
            document = replace(document, sentences=kept, text=text)
        yield document
        return
