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

from nestree.data.alignment import LabeledSpan, Passage, align_to_passages, whole_text
from nestree.data.formats.common import check_phrase, entity_offsets, replace_forbidden, skip_bad
from nestree.data.io import ConversionReport, atomic_writer, read_lines_or_errors
from nestree.data.lossiness import report_losses
from nestree.errors import DataError
from nestree.types import Document

TEXT = re.compile(r"([^|\t]+)\|([ta])\|(.*)", re.DOTALL)
NUMBER = re.compile(r"-?[0-9]{1,18}")


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
    for id, place, title, abstract, annotations in parse_articles(path, tally):
        passages = [Passage(0, title)]
        if abstract:
            passages.append(Passage(len(title) + 1, abstract))
        text = whole_text(passages, place)
        spans = []
        for line_place, columns in annotations:
            with skip_bad(tally):
                spans.append(parse_span(columns, id, text, line_place))
        yield align_to_passages(
            text, passages, spans, words=words, sentences=sentences, id=id, tally=tally, place=place
        )


def parse_articles(path: Path, tally: ConversionReport) -> Iterator[Article]:
    """The lines of each article; a title begins one."""
    article: Article | None = None
    for number, line in read_lines_or_errors(path):
        if isinstance(line, DataError):
            tally.bad(line)
            continue
        place = f"{path}:{number}"
        match = TEXT.fullmatch(line)
        columns = line.split("\t")
        if match and match[2] == "t":
            if article:
                yield article
            article = Article(match[1], place, match[3], None, [])
        elif match and article and article.abstract is None and article.id == match[1]:
            article = article._replace(abstract=match[3])
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


def parse_span(columns: list[str], article_id: str, text: str, place: str) -> LabeledSpan:
    id, start, end, phrase, label, *identifiers = columns
    if id != article_id:
        raise DataError(
            f"{place}: this annotation of {id} stands in the article {article_id}. Move it there."
        )
    if not NUMBER.fullmatch(end):
        raise DataError(f"{place}: the end must be a number, and is {end!r:.40}.")
    if not label:
        raise DataError(f"{place}: the annotation has no type. It stands in the fifth column.")
    check_phrase(phrase, [(int(start), int(end))], text, place)
    extra = {key: value for key, value in zip(("id", "mentions"), identifiers, strict=False) if value}
    return LabeledSpan(int(start), int(end), label, extra=extra, place=place)


def write(documents: Iterable[Document], path: Path, tally: ConversionReport) -> None:
    """The first line of a text is the title, all that follows the abstract."""
    with atomic_writer(path) as file:
        for number, (place, document) in enumerate(report_losses(documents, "pubtator", tally), 1):
            id = re.sub(r"[|\s]", "_", document.id or str(number))
            if document.id is None:
                tally.note("ids made up: pubtator needs one", place)
            elif id != document.id:
                tally.note("ids changed: pubtator has no place for blanks and | in them", place)
            file.write(format_article(document.with_text(), id, tally, place) + "\n")


def format_article(document: Document, id: str, tally: ConversionReport, place: str) -> str:
    """The lines of a document. Each line break in its text becomes one blank, so that offsets stay the same."""
    original = document.text or ""
    title, line_break, abstract = re.fullmatch(r"([^\r\n]*)([\r\n]?)(.*)", original, re.DOTALL).groups()  # type: ignore[union-attr]
    change = "line ends written as blanks: pubtator has no place for them"
    abstract = replace_forbidden(abstract, r"[\r\n]", change, tally, place, by=" ")
    text = title + line_break + abstract
    lines = [f"{id}|t|{title}", f"{id}|a|{abstract}"]
    for entity, start, end in entity_offsets(document):
        change = "labels changed: pubtator has no place for tabs and line ends in them"
        label = replace_forbidden(entity.label, r"[\t\r\n]", change, tally, place, by=" ")
        columns = [id, str(start), str(end), text[start:end], label, str(entity.extra.get("id", ""))]
        if entity.extra.get("mentions"):
            columns.append(str(entity.extra["mentions"]))
        lines.append("\t".join(re.sub(r"[\t\r\n]", " ", column) for column in columns))
    return "\n".join(lines) + "\n"
