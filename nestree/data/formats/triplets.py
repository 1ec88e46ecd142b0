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

from nestree.data.io import ConversionReport, atomic_writer, kept_mark, lines_or_errors
from nestree.data.lossiness import report_losses
from nestree.errors import DataError, EmptySpanError, InputError, SpanRangeError
from nestree.types import Document, Entity, Sentence

ENTITY = re.compile(r"\s*(\d{1,18})\s*,\s*(\d{1,18}) (.+)", re.DOTALL)
ENDS = ("exclusive", "inclusive")
NOT_WRITTEN = (
    "heads",
    "scores",
    "further keys of entities",
    "further keys of documents",
    "ids of sentences",
    "ids of documents",
    "marks of incomplete sentences",
    "texts",
    "borders of documents",
    "documents without sentences",
)


class Record(NamedTuple):
    words: list[str]
    tags: list[str] | None
    entities: str
    line: int  # of the entities


def read(
    path: Path, tally: ConversionReport, *, ends: str = "exclusive", strip: str = ""
) -> Iterator[Document]:
    """The sentences of a file, each a document. Part-of-speech tags are kept in `extra`, as "pos".

    ends: "exclusive" or "inclusive". strip: what labels begin with and should not, such as "G#".
    """
    if ends not in ENDS:
        raise InputError(f"ends are exclusive or inclusive, not {ends!r}.")
    for record in records(path, tally):
        try:
            yield Document((sentence(record, path, ends, strip),))
        except DataError as error:
            tally.bad(error)


def sentence(record: Record, path: Path, ends: str, strip: str) -> Sentence:
    place = f"{path}:{record.line}"
    found = []
    for item in record.entities.split("|") if record.entities.strip() else ():
        match = ENTITY.fullmatch(item)
        if match is None:
            raise DataError(f"{place}: {item!r:.40} is no entity such as 0,3 PER.")
        start, end = int(match[1]), int(match[2]) + (ends == "inclusive")
        if end <= start:
            also = (
                " If ends are inclusive in this file, read it with --read ends=inclusive."
                if end == start
                else ""
            )
            raise EmptySpanError(f"{place}: entity {item!r:.40} is empty with {ends} ends.{also}")
        if end > len(record.words):
            also = (
                " If ends are exclusive in this file, read it with --read ends=exclusive."
                if ends == "inclusive"
                else ""
            )
            raise SpanRangeError(
                f"{place}: entity {item!r:.40} ends after the sentence, which has {len(record.words)} words.{also}"
            )
        found.append(Entity(start, end, match[3].removeprefix(strip) or match[3]))
    extra = {} if record.tags is None else {"pos": record.tags}
    return Sentence(tuple(record.words), tuple(found), extra=extra)


def records(path: Path, tally: ConversionReport) -> Iterator[Record]:
    """The sentences of a file, still as text. After one of the wrong form, reading goes on at the next blank line."""
    block: list[str] = []
    first, extra_blank, skipping = 0, False, False
    for number, line in lines_or_errors(path):
        if isinstance(line, DataError):
            if extra_blank:
                yield from record(path, first, block, tally)
            tally.bad(line)
            block, extra_blank, skipping = [], False, True
        elif skipping:
            skipping = bool(line.strip())
        elif line.strip():
            if not block:
                first = number
            elif extra_blank:  # no line for the entities of the last sentence: the blank one parts them
                yield from record(path, first, block, tally)
                block, first = [], number
            block.append(line)
            extra_blank = False
        elif block and not extra_blank and not is_entities(block[-1]) and len(block) < 3:
            extra_blank = True
        elif block:
            yield from record(path, first, block, tally)
            block, extra_blank = [], False
    if block:
        yield from record(path, first, block, tally)


def record(path: Path, first: int, block: list[str], tally: ConversionReport) -> Iterator[Record]:
    """The sentence that these lines make, or none if they are of the wrong form."""
    entities = block[-1] if len(block) > 1 and is_entities(block[-1]) else ""
    rest = block[: len(block) - bool(entities)]
    words, tags = split(rest[0]), split(rest[1]) if len(rest) > 1 else None
    if len(rest) > 2:
        what = "is no list of entities such as 0,3 PER|4,5 GPE" if len(block) == 3 else "is one too many"
        tally.bad(
            DataError(
                f"{path}:{first + len(rest) - 1}: this line {what}: {rest[-1]!r:.60}. A sentence has its words, "
                "their tags, its entities and a blank line."
            )
        )
    elif tags is not None and len(tags) != len(words) and re.match(r"\s*\d+\s*,\s*\d", rest[1]):
        tally.bad(
            DataError(f"{path}:{first + 1}: {rest[1]!r:.60} is no list of entities such as 0,3 PER|4,5 GPE.")
        )
    else:
        if tags is not None and len(tags) != len(words):
            tally.note("part-of-speech tags not kept: there is not one for each word", f"{path}:{first + 1}")
            tags = None
        yield Record(words, tags, entities, first + len(rest))


def split(line: str) -> list[str]:
    return [word for word in re.split(r"[ \t]+", line) if word]


def is_entities(line: str) -> bool:
    return all(ENTITY.fullmatch(item) for item in line.split("|"))


def write(
    documents: Iterable[Document], path: Path, tally: ConversionReport, *, ends: str = "exclusive"
) -> None:
    """The words, the part-of-speech tags if `extra` has them as "pos", the entities, a blank line.

    ends: "exclusive" or "inclusive".
    """
    if ends not in ENDS:
        raise InputError(f"ends are exclusive or inclusive, not {ends!r}.")
    first = True
    with atomic_writer(path) as file:
        for number, document in enumerate(documents, 1):
            place = document.id or f"document {number}"
            report_losses(document, "triplets", NOT_WRITTEN, tally, place)
            for sentence in document.sentences:
                for line in lines_of(sentence, ends, tally, place):
                    file.write(kept_mark(line) * first + line + "\n")
                    first = False
                file.write("\n")


def lines_of(sentence: Sentence, ends: str, tally: ConversionReport, place: str) -> Iterator[str]:
    yield " ".join(plain(word, r"[ \t\r\n]", "words", tally, place) for word in sentence.words)
    tags = sentence.extra.get("pos")
    if isinstance(tags, list) and len(tags) == len(sentence.words):
        yield " ".join(plain(str(tag) or "_", r"[ \t\r\n]", "tags", tally, place) for tag in tags)
    if sentence.extra.keys() - {"pos"}:
        tally.note("further keys of sentences not written: triplets has no place for them", place)
    items = []
    for entity in sentence.entities:
        label = plain(entity.label, r"[|\r\n]", "labels", tally, place)
        items.append(f"{entity.start},{entity.end - (ends == 'inclusive')} {label}")
    yield "|".join(items)


def plain(text: str, forbidden: str, what: str, tally: ConversionReport, place: str) -> str:
    changed = re.sub(forbidden, "_", text)
    if changed != text:
        tally.note(f"{what} changed: triplets has no place for blanks, | and line ends in them", place)
    return changed
