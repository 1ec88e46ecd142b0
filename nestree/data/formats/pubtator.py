"""PubTator: title, abstract and the annotations of both, a blank line after each document.

    12345|t|Rome fever
    12345|a|It was common.
    12345	0	4	Rome	Place	D012396

Offsets count characters of title and abstract, with one character between them; ends are exclusive. The text of
an annotation is compared with the text at its offsets. Lines of relations are counted.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from nestree.data.alignment import CharacterSpan, Passage, align_to_passages, whole_text
from nestree.data.io import ConversionReport, atomic_writer, lines_or_errors
from nestree.data.lossiness import report_losses
from nestree.errors import DataError
from nestree.types import Document, Entity

TEXT = re.compile(r"([^|\t]+)\|([ta])\|(.*)", re.DOTALL)
NUMBER = re.compile(r"-?[0-9]{1,18}")
KEPT = {"id", "mentions"}  # further keys of entities that have a column
NOT_WRITTEN = (
    "heads",
    "scores",
    "further keys of sentences",
    "further keys of documents",
    "ids of sentences",
    "marks of incomplete sentences",
    "borders of words",
    "borders of sentences",
)


class Article(NamedTuple):
    id: str
    place: str
    title: str
    abstract: str | None
    annotations: list[tuple[str, list[str]]]  # place, columns


def read(
    path: Path, tally: ConversionReport, *, words: str = "treebank", sentences: str = "rules"
) -> Iterator[Document]:
    """The articles of a file, each a document. words, sentences: how the text is split (see nestree.text)."""
    for article in articles(path, tally):
        passages = [Passage(0, article.title)]
        if article.abstract:
            passages.append(Passage(len(article.title) + 1, article.abstract))
        text = whole_text(passages, article.place)
        spans = []
        for place, columns in article.annotations:
            try:
                spans.append(span(columns, article.id, text, place))
            except DataError as error:
                tally.bad(error)
        yield align_to_passages(
            text,
            passages,
            spans,
            words=words,
            sentences=sentences,
            id=article.id,
            tally=tally,
            place=article.place,
        )


def articles(path: Path, tally: ConversionReport) -> Iterator[Article]:
    """The lines of each article, together; a title begins one."""
    article: Article | None = None
    for number, line in lines_or_errors(path):
        if isinstance(line, DataError):
            tally.bad(line)
            continue
        place = f"{path}:{number}"
        found = TEXT.fullmatch(line)
        columns = line.split("\t")
        if found and found[2] == "t":
            if article:
                yield article
            article = Article(found[1], place, found[3], None, [])
        elif found and article and article.abstract is None and article.id == found[1]:
            article = article._replace(abstract=found[3])
        elif not line.strip():
            continue
        elif article and len(columns) > 3 and not NUMBER.fullmatch(columns[1]):
            tally.note("relations not read", place)
        elif article and len(columns) > 4:
            article.annotations.append((place, columns))
        else:
            tally.bad(
                DataError(
                    f"{place}: this is no line of PubTator: {line[:60]!r}. Expected: ID|t|title, ID|a|abstract or "
                    "ID<tab>start<tab>end<tab>text<tab>type<tab>identifier."
                )
            )
    if article:
        yield article


def span(columns: list[str], id: str, text: str, place: str) -> CharacterSpan:
    """The entity that a line annotates."""
    its_id, first, last, phrase, label, *rest = columns
    if its_id != id:
        raise DataError(f"{place}: this annotation of {its_id} stands in the article {id}. Move it there.")
    if not NUMBER.fullmatch(last):
        raise DataError(f"{place}: the end must be a number, and is {last!r:.40}.")
    if not label:
        raise DataError(f"{place}: the annotation has no type. It stands in the fifth column.")
    start, end = int(first), int(last)
    there = text[max(0, start) : max(0, end)]
    if start >= 0 and end <= len(text) and there.split() != phrase.split():
        raise DataError(
            f"{place}: the annotation says {phrase!r:.60}, but at its offsets the text says {there!r:.60}. "
            "Offsets must count characters (not bytes) of title and abstract."
        )
    extra = {key: value for key, value in zip(("id", "mentions"), rest, strict=False) if value}
    return CharacterSpan(start, end, label, extra=extra, place=place)


def write(documents: Iterable[Document], path: Path, tally: ConversionReport) -> None:
    """The first line of a text is the title, all that follows the abstract."""
    with atomic_writer(path) as file:
        for number, document in enumerate(documents, 1):
            place = document.id or f"document {number}"
            report_losses(document, "pubtator", NOT_WRITTEN, tally, place)
            more = sum(bool(entity.extra.keys() - KEPT) for s in document.sentences for entity in s.entities)
            if more:
                what = "further keys of entities not written: pubtator has no place for them"
                tally.note(what, place, more)
            id = re.sub(r"[|\s]", "_", document.id or str(number))
            if document.id is None:
                tally.note("ids made up: pubtator needs one", place)
            elif id != document.id:
                tally.note("ids changed: pubtator has no place for blanks and | in them", place)
            file.write(article(document.with_text(), id, tally, place) + "\n")


def article(document: Document, id: str, tally: ConversionReport, place: str) -> str:
    """The lines of a document. What would break them is a blank; so every offset stays what it was."""
    text = re.sub(r"[\r\n]", " ", document.text or "")
    found = re.search(r"[\r\n]", document.text or "")
    title = found.start() if found else len(text)
    if re.search(r"[\r\n]", (document.text or "")[title + 1 :]):
        tally.note("line ends written as blanks: pubtator has no place for them", place)
    written = [f"{id}|t|{text[:title]}", f"{id}|a|{text[title + 1 :]}"]
    for sentence in document.sentences:
        for entity in sentence.entities:
            start, end = sentence.characters(entity)
            label = re.sub(r"[\t\r\n]", " ", entity.label)
            if label != entity.label:
                tally.note("labels changed: pubtator has no place for tabs and line ends in them", place)
            columns = [
                id,
                str(start),
                str(end),
                text[start:end].replace("\t", " "),
                label,
                *identifiers(entity),
            ]
            written.append("\t".join(columns))
    return "\n".join(written) + "\n"


def identifiers(entity: Entity) -> list[str]:
    """The identifier and, if there are, the single mentions of a composite one."""
    found = [re.sub(r"[\t\r\n]", " ", str(entity.extra.get(key, ""))) for key in ("id", "mentions")]
    return found if found[1] else found[:1]
