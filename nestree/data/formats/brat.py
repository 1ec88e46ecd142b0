"""brat stand-off: a folder of `.txt` files, each with an `.ann` file of lines such as

    T1	ORG 0 5;16 23	Duffy Company

Offsets count characters, ends are exclusive, fragments are parted by semicolons. The text at the end of a line is
compared with the text at these offsets: a difference is an error, because everything else would be wrong as well.
"""

import itertools
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from nestree.data.alignment import CharacterSpan, align_spans
from nestree.data.io import ConversionReport, atomic_path, lines, open_file, read_text
from nestree.data.lossiness import report_losses
from nestree.errors import DataError, EmptySpanError, SpanRangeError
from nestree.types import Document

NOT_READ = {
    "R": "relations not read",
    "E": "events not read",
    "A": "attributes not read",
    "M": "attributes not read",
    "N": "normalisations not read",
    "#": "notes not read",
    "*": "equivalences not read",
}
SPAN = re.compile(r"(\S+) (\d+ \d+(?:;\d+ \d+)*)")
NOT_WRITTEN = (
    "heads",
    "scores",
    "further keys of entities",
    "further keys of sentences",
    "further keys of documents",
    "ids of sentences",
    "marks of incomplete sentences",
    "borders of words",
    "borders of sentences",
)
LONGEST_NAME = 180  # bytes of the name of a file, without its ending


class Mention(NamedTuple):
    label: str
    fragments: list[tuple[int, int]]
    phrase: str | None  # as the annotation repeats it
    place: str


def read(
    path: Path, tally: ConversionReport, *, words: str = "treebank", sentences: str = "rules"
) -> Iterator[Document]:
    """The documents of a folder (and the folders in it), or of one `.txt` or `.ann` file.

    words, sentences: how the text is split (see nestree.text). For text that is already one sentence a line and
    words between blanks, choose "whitespace" and "lines".
    """
    for text_path, ann_path, id in pairs(path, tally):
        try:
            yield document(text_path, ann_path, id, words, sentences, tally)
        except DataError as error:
            tally.bad(error)


def pairs(path: Path, tally: ConversionReport) -> Iterator[tuple[Path, Path | None, str]]:
    """The text, the annotation and the id of each document."""
    if not path.is_dir():
        text_path, ann_path = path.with_suffix(".txt"), path.with_suffix(".ann")
        if not text_path.exists():
            raise DataError(f"{text_path} does not exist. brat data is a .txt file beside an .ann file.")
        yield text_path, ann_path if ann_path.exists() else None, name_to_id(path.stem)
        return
    found = [file for file in path.rglob("*") if file.suffix in (".txt", ".ann")]
    if not any(file.suffix == ".ann" for file in found):
        raise DataError(f"{path} holds no .ann file. brat data is a folder of .txt files and .ann files.")
    for stem in sorted({file.with_suffix("") for file in found}):
        text_path, ann_path = (stem.parent / (stem.name + end) for end in (".txt", ".ann"))
        if not text_path.exists():
            tally.bad(DataError(f"{ann_path} has no text: put {text_path.name} beside it."))
            continue
        id = name_to_id(str(stem.relative_to(path).as_posix()))
        if ann_path.exists():
            yield text_path, ann_path, id
        else:
            tally.note("texts without an .ann file: no entities", str(text_path))
            yield text_path, None, id


def document(
    text_path: Path, ann_path: Path | None, id: str, words: str, sentences: str, tally: ConversionReport
) -> Document:
    text = read_text(text_path)
    mentions = list(read_mentions(ann_path, tally)) if ann_path else []
    text, mentions = put_right(text, mentions, text_path, tally)
    spans = []
    for mention in mentions:
        try:
            spans.append(span(mention, text, text_path, tally))
        except DataError as error:
            tally.bad(error)
    return align_spans(
        text, spans, id=id, words=words, sentences=sentences, tally=tally, place=str(ann_path or text_path)
    )


def put_right(
    text: str, mentions: list[Mention], path: Path, tally: ConversionReport
) -> tuple[str, list[Mention]]:
    """The text and its mentions, whatever offsets count: CRLF as one character, a byte order mark as another."""
    moved = [before_mark(mention) for mention in mentions] if has_mark(path) else mentions
    for with_lf, counts_mark in itertools.product((False, True), repeat=2):
        other = text.replace("\r\n", "\n") if with_lf else text
        found = moved if counts_mark else mentions
        if all(fits(mention, other) for mention in found):
            if with_lf:
                tally.note("offsets count CRLF as one character: text read with LF", str(path))
            if counts_mark:
                tally.note("offsets count the byte order mark: left out, and offsets moved by one", str(path))
            return other, found
    return text, mentions


def has_mark(path: Path) -> bool:
    with open_file(path) as file:
        return file.read(3) == BOM_UTF8


def before_mark(mention: Mention) -> Mention:
    """The same in a text that lost its first character."""
    fragments = [(max(0, start - 1), end - 1) for start, end in mention.fragments]
    return mention._replace(
        fragments=fragments, phrase=mention.phrase and mention.phrase.removeprefix("\ufeff")
    )


def read_mentions(path: Path, tally: ConversionReport) -> Iterator[Mention]:
    """The lines `T...` of an `.ann` file; the others are counted."""
    for number, line in lines(path):
        place = f"{path}:{number}"
        if not line.strip():
            continue
        if line[0] in NOT_READ:
            tally.note(NOT_READ[line[0]], place)
            continue
        fields = line.split("\t", 2)
        match = SPAN.fullmatch(fields[1].strip()) if line[0] == "T" and len(fields) > 1 else None
        if match is None:
            tally.bad(
                DataError(
                    f"{place}: this is no brat annotation: {line[:60]!r}. Expected: T1<tab>LABEL 0 5<tab>text."
                )
            )
            continue
        pieces = [piece.split(" ") for piece in match[2].split(";")]
        try:
            fragments = [(int(start), int(end)) for start, end in pieces]
        except ValueError:  # more digits than Python reads
            tally.bad(DataError(f"{place}: these are no offsets: {match[2][:40]}."))
            continue
        yield Mention(match[1], fragments, fields[2] if len(fields) > 2 else None, place)


def fits(mention: Mention, text: str) -> bool:
    """Is the phrase that the annotation repeats the one at its offsets? Every blank is as good as another."""
    found = " ".join(text[start:end] for start, end in mention.fragments)
    inside = max(end for _, end in mention.fragments) <= len(text)
    return mention.phrase is None or (inside and found.split() == mention.phrase.split())


def span(mention: Mention, text: str, text_path: Path, tally: ConversionReport) -> CharacterSpan:
    label, fragments, phrase, place = mention
    for start, end in fragments:
        if end <= start:
            raise EmptySpanError(f"{place}: entity {start}-{end} {label} ends before it begins.")
        if end > len(text):
            raise SpanRangeError(
                f"{place}: entity {start}-{end} {label} ends after the text, {text_path} has {len(text)} characters."
            )
    if not fits(mention, text):
        found = " ".join(text[start:end] for start, end in fragments)
        raise DataError(
            f"{place}: the annotation says {phrase!r:.60}, but at its offsets {text_path} says {found!r:.60}. "
            "Offsets must count characters (not bytes), and the text must be the one that was annotated."
        )
    if phrase is None:
        tally.note("annotations without their text: not compared", place)
    fragments = sorted(fragments)
    gaps = [text[a:b] for (_, a), (b, _) in itertools.pairwise(fragments)]
    if any(gap.strip() for gap in gaps):
        tally.note("fragments joined: the entity holds what is between them, too", place)
    end = max(end for _, end in fragments)
    return CharacterSpan(fragments[0][0], end, label, place=place)


def write(documents: Iterable[Document], path: Path, tally: ConversionReport) -> None:
    """A folder with a `.txt` and an `.ann` file for each document, named after its id."""
    taken: set[str] = set()
    with atomic_path(path) as folder:
        folder.mkdir()
        for number, document in enumerate(documents, 1):
            place = document.id or f"document {number}"
            report_losses(document, "brat", NOT_WRITTEN, tally, place)
            document = document.with_text()
            name = file_name(document.id or f"document-{number:06}", taken, tally)
            for suffix, text in (
                (".txt", document.text or ""),
                (".ann", annotations(document, tally, place)),
            ):
                with open(folder / (name + suffix), "w", encoding="utf-8", newline="") as file:
                    file.write(text)


def annotations(document: Document, tally: ConversionReport, place: str) -> str:
    """The `.ann` file of a document."""
    found: list[str] = []
    for sentence in document.sentences:
        for entity in sentence.entities:
            start, end = sentence.characters(entity)
            label = re.sub(r"\s", "_", entity.label)
            if label != entity.label:
                tally.note("labels changed: brat allows no blanks in them", place)
            pieces = fragments(document.text or "", start, end)
            if not pieces:
                tally.note("dropped: an entity of blanks only", place)
                continue
            offsets = ";".join(f"{i} {j}" for i, j in pieces)
            phrase = " ".join((document.text or "")[i:j].replace("\t", " ") for i, j in pieces)
            found.append(f"T{len(found) + 1}\t{label} {offsets}\t{phrase}\n")
    return "".join(found)


def fragments(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """The span cut at line breaks, as brat does it."""
    pieces = []
    for piece in re.finditer(r"[^\r\n]+", text[start:end]):
        if piece[0].strip():
            pieces.append((start + piece.start(), start + piece.end()))
    return pieces


def file_name(id: str, taken: set[str], tally: ConversionReport) -> str:
    """The id, with what a file name cannot hold written as %XX; never one of `taken`."""
    name = re.sub(r'^\.|[/\\:*?"<>|%\x00-\x1f\x7f]', lambda found: f"%{ord(found[0]):02X}", id)
    if len(name.encode()) > LONGEST_NAME:
        tally.note("ids cut: too long for the name of a file", id[:60])
        name = name.encode()[:LONGEST_NAME].decode(errors="ignore")
    free, number = name, 1
    while free.lower() in taken:
        number += 1
        free = f"{name}-{number}"
    if number > 1:
        tally.note("ids changed: two documents have the same", id[:60])
    taken.add(free.lower())
    return free


def name_to_id(name: str) -> str:
    """The id that `file_name` made this name of."""
    return re.sub(r"%([0-7][0-9A-F])", lambda found: chr(int(found[1], 16)), name)
