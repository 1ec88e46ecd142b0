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

from nestree.data.alignment import AnnotatedText, Mention, Passage
from nestree.data.formats.common import (
    entity_offsets,
    replace_forbidden,
    report_losses,
    skip_bad,
    write_joined,
)
from nestree.data.io import ConversionReport, read_lines
from nestree.errors import DataError
from nestree.types import Document

TEXT = re.compile(r"([^|\t]+)\|([ta])\|(.*)", re.DOTALL)
NUMBER = re.compile(r"-?[0-9]{1,18}")


def read(path: Path, report: ConversionReport) -> Iterator[AnnotatedText]:
    """The articles of a file, each a document; a title begins one."""
    article: AnnotatedText | None = None
    mentions: list[Mention] = []
    for number, line in read_lines(path, report):
        with skip_bad(report, place := f"{path}:{number}"):
            match, columns = TEXT.fullmatch(line), line.split("\t")
            if match and match[2] == "t":
                if article:
                    yield article
                mentions = []
                article = AnnotatedText(match[3], mentions, place, match[1], passages=[Passage(0, match[3])])
            elif match and article and len(article.passages) == 1 and article.id == match[1]:
                abstract = Passage(len(article.text) + 1, match[3])
                article.passages = [*article.passages, abstract]
                article.text += "\n" + match[3] if match[3] else ""
            elif article and len(columns) > 3 and not NUMBER.fullmatch(columns[1]):
                report.note("relations not read")
            elif article and len(columns) > 4:
                mentions.append(parse_mention(columns, article.id, place))
            elif line.strip():
                raise DataError(
                    f"this is not a PubTator line: {line[:60]!r}. Expected: ID|t|title, ID|a|abstract or "
                    "ID<tab>start<tab>end<tab>text<tab>type<tab>identifier."
                )
    if article:
        yield article


def parse_mention(columns: list[str], article_id: str | None, place: str) -> Mention:
    id, start, end, phrase, label, *identifiers = columns
    if id != article_id:
        raise DataError(f"this annotation of {id} stands in the article {article_id}. Move it there.")
    if not NUMBER.fullmatch(end):
        raise DataError(f"the end must be a number, and is {end!r:.40}.")
    if not label:
        raise DataError("the annotation has no type. It stands in the fifth column.")
    extra = {key: value for key, value in zip(("id", "mentions"), identifiers, strict=False) if value}
    return Mention(int(start), int(end), label, extra=extra, place=place, phrase=phrase)


def write(documents: Iterable[Document], path: Path, report: ConversionReport) -> None:
    """The first line of a text is the title, all that follows the abstract."""

    def articles() -> Iterator[str]:
        for number, (place, document) in enumerate(report_losses(documents, "pubtator", report), 1):
            id = re.sub(r"[|\s]", "_", document.id or str(number))
            if document.id is None:
                report.note("ids generated: pubtator needs one", place)
            elif id != document.id:
                report.note("ids changed: pubtator cannot hold spaces and | in them", place)
            yield format_article(document.with_text(), id, report, place)

    write_joined(articles(), path, ("", "\n", "\n"))


def format_article(document: Document, id: str, report: ConversionReport, place: str) -> str:
    """The lines of a document. Each line break in its text becomes one blank, so that offsets stay the same."""
    original = document.text or ""
    title = re.split(r"[\r\n]", original, maxsplit=1)[0]
    change = "line ends written as blanks: pubtator cannot hold them"
    abstract = replace_forbidden(original[len(title) + 1 :], r"[\r\n]", change, report, place, by=" ")
    text = original[: len(title) + 1] + abstract
    lines = [f"{id}|t|{title}", f"{id}|a|{abstract}"]
    for entity, start, end in entity_offsets(document):
        change = "labels changed: pubtator has no place for tabs and line ends in them"
        label = replace_forbidden(entity.label, r"[\t\r\n]", change, report, place, by=" ")
        columns = [id, str(start), str(end), text[start:end], label, str(entity.extra.get("id", ""))]
        if entity.extra.get("mentions"):
            columns.append(str(entity.extra["mentions"]))
        lines.append("\t".join(re.sub(r"[\t\r\n]", " ", column) for column in columns))
    return "\n".join(lines) + "\n"
