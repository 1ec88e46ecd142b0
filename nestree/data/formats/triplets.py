"""Three lines a sentence, or two, and a blank one:

    Mount Rainier is in Washington
    NNP NNP VBZ IN NNP
    0,2 LOC|4,5 GPE

The words, their part-of-speech tags (which may be missing) and the entities; their line is there even if it is empty.
In most files the end is exclusive, in some (NNE, early ACE systems) it is inclusive. Nothing in a file says which.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from nestree.data.formats import common
from nestree.data.io import ConversionReport
from nestree.errors import DataError, EmptySpanError, SpanRangeError
from nestree.types import Document, Entity, Sentence

ENTITY = re.compile(r"\s*(\d{1,18})\s*,\s*(\d{1,18}) (.+)", re.DOTALL)
# Such as 0 2 PER or 0-1 PER, which are no tags.
ALMOST_ENTITY = re.compile(r"\s*\d+(\s*,\s*\d|(\s*-\s*|\s+)\d+\s+[^\d\s])")
ENDS = ("exclusive", "inclusive")


class Record(NamedTuple):
    words: list[str]
    tags: list[str] | None
    entities: str
    line: int  # of the entities


def read(
    path: Path, report: ConversionReport, *, ends: str = "exclusive", strip: str = ""
) -> Iterator[Document]:
    """The sentences of a file, each a document. Part-of-speech tags are kept in `extra`, as "pos".

    ends: "exclusive" or "inclusive". strip: what labels begin with and should not, such as "G#".
    """
    common.check_choice("ends", ends, ENDS)
    for record in parse_records(path, report):
        with common.skip_bad(report, f"{path}:{record.line}"):
            sentence = to_sentence(record, ends, strip)
            report.bare_sentences += 1
            yield Document((sentence,))


def to_sentence(record: Record, ends: str, strip: str = "") -> Sentence:
    entities = []
    for item in record.entities.split("|") if record.entities.strip() else ():
        match = ENTITY.fullmatch(item)
        assert match is not None  # else `parse_block` takes the line for something else
        start, end = int(match[1]), int(match[2]) + (ends == "inclusive")
        other = ENDS[ends == "exclusive"]
        advice = f" If ends are {other} in this file, read it with --read ends={other}."
        if end <= start:
            advice = advice if end == start else ""
            raise EmptySpanError(f"entity {item!r:.40} is empty with {ends} ends.{advice}")
        if end > len(record.words):
            advice = advice if ends == "inclusive" else ""
            words = len(record.words)
            raise SpanRangeError(
                f"entity {item!r:.40} ends after the sentence, which has {words} words.{advice}"
            )
        entities.append(Entity(start, end, match[3].removeprefix(strip) or match[3]))
    extra = {} if record.tags is None else {"pos": record.tags}
    return Sentence(tuple(record.words), tuple(entities), extra=extra)


def parse_records(path: Path, report: ConversionReport) -> Iterator[Record]:
    """The sentences of a file. A line of entities that is empty ends its sentence like the blank line after it."""
    for lines in common.line_blocks(path, report):
        with common.skip_bad(report):
            yield parse_block([line for _, line in lines], path, lines[0][0], report)


def parse_block(block: list[str], path: Path, first: int, report: ConversionReport) -> Record:
    has_entities = len(block) > 1 and all(ENTITY.fullmatch(item) for item in block[-1].split("|"))
    rest = block[: len(block) - has_entities]
    columns = [re.split(r"[ \t]+", line.strip(" \t")) for line in rest[:2]]
    words, tags = columns[0], columns[1] if len(rest) > 1 else None
    if len(rest) > 2:
        what = "is not a list of entities such as 0,3 PER|4,5 GPE" if len(block) == 3 else "is one too many"
        raise DataError(
            f"{path}:{first + len(rest) - 1}: this line {what}: {rest[-1]!r:.60}. A sentence has its words, "
            "their tags, its entities and a blank line."
        )
    place = f"{path}:{first + 1}"
    if tags is not None and ALMOST_ENTITY.match(rest[1]):
        raise DataError(f"{place}: {rest[1]!r:.60} is not a list of entities such as 0,3 PER|4,5 GPE.")
    if tags is not None and len(tags) != len(words):
        report.note("part-of-speech tags not kept: there is not one for each word", place)
        tags = None
    return Record(words, tags, block[-1] if has_entities else "", first + len(rest))


def write(
    documents: Iterable[Document], path: Path, report: ConversionReport, *, ends: str = "exclusive"
) -> None:
    """The words, the part-of-speech tags if `extra` has them as "pos", the entities, a blank line.

    ends: "exclusive" or "inclusive".
    """
    common.check_choice("ends", ends, ENDS)
    common.write_rows(
        (
            line
            for place, document in common.report_losses(documents, "triplets", report)
            for sentence in document.sentences
            for line in format_sentence(sentence, ends, report, place)
        ),
        path,
    )


def format_sentence(sentence: Sentence, ends: str, report: ConversionReport, place: str) -> Iterator[str]:
    def clean(text: str, pattern: str, kind: str) -> str:
        change = f"{kind} changed: triplets has no place for blanks, | and line ends in them"
        return common.replace_forbidden(text, pattern, change, report, place)

    yield " ".join(clean(word, r"[ \t\r\n]", "words") for word in sentence.words)
    tags = sentence.extra.get("pos")
    if isinstance(tags, list) and len(tags) == len(sentence.words):
        yield " ".join(clean(str(tag) or "_", r"[ \t\r\n]", "tags") for tag in tags)
    labels = [clean(entity.label, r"[|\r\n]", "labels") for entity in sentence.entities]
    yield "|".join(
        f"{entity.start},{entity.end - (ends == 'inclusive')} {label}"
        for entity, label in zip(sentence.entities, labels, strict=True)
    )
    yield ""
