"""brat stand-off: a folder of `.txt` files, each with an `.ann` file of lines such as

    T1	ORG 0 5;16 23	Duffy Company

Offsets count characters, ends are exclusive, fragments are separated by semicolons. The text at the end of a line is
compared with the text at these offsets. A difference is an error, because all other offsets would be wrong as well.
"""

import itertools
import re
from bisect import bisect_left
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from nestree.data.alignment import BLANK, AnnotatedText, Mention
from nestree.data.formats import common
from nestree.data.io import ConversionReport, atomic_path, open_file, read_lines, read_text
from nestree.errors import DataError, EmptySpanError
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
ANNOTATION = re.compile(r"[TREAMN#*]\d* ")  # without the tab that belongs to it
SPAN = re.compile(r"(\S+) (\d+ \d+(?:;\d+ \d+)*)")
MAX_NAME_BYTES = 180  # of a file, without its ending


def read(path: Path, report: ConversionReport) -> Iterator[AnnotatedText]:
    """The documents of a folder (and the folders in it), or of one `.txt` or `.ann` file.

    For text that is already one sentence a line and words between blanks, choose words="whitespace" and
    sentences="lines".
    """
    for text_path, ann_path, name in find_pairs(path, report):
        with common.skip_bad(report):
            text = read_text(text_path)
            mentions = list(parse_mentions(ann_path, report)) if ann_path else []
            text, mentions = correct_offsets(text, mentions, text_path, report)
            id = re.sub(r"%([0-7][0-9A-F])", lambda code: chr(int(code[1], 16)), name)
            yield AnnotatedText(text, mentions, str(ann_path or text_path), id, source=str(text_path))


def find_pairs(path: Path, report: ConversionReport) -> Iterator[tuple[Path, Path | None, str]]:
    """The text file, the annotation file and the name of each document."""
    if not path.is_dir():
        text_path, ann_path = path.with_suffix(".txt"), path.with_suffix(".ann")
        if not text_path.exists():
            raise DataError(f"{text_path} does not exist. brat data is a .txt file beside an .ann file.")
        yield text_path, ann_path if ann_path.exists() else None, path.stem
        return
    files = [file for file in path.rglob("*") if file.suffix in (".txt", ".ann")]
    if not any(file.suffix == ".ann" for file in files):
        raise DataError(f"{path} holds no .ann file. brat data is a folder of .txt files and .ann files.")
    for stem in sorted({file.with_suffix("") for file in files}):
        text_path, ann_path = (stem.parent / (stem.name + suffix) for suffix in (".txt", ".ann"))
        name = stem.relative_to(path).as_posix()
        if not text_path.exists():
            report.bad(DataError(f"{ann_path} has no text: put {text_path.name} beside it."))
        elif ann_path.exists():
            yield text_path, ann_path, name
        else:
            report.note("texts without an .ann file: no entities", str(text_path))
            yield text_path, None, name


def parse_mentions(path: Path, report: ConversionReport) -> Iterator[Mention]:
    """The lines `T...` of an `.ann` file; the others are counted. A line that is no annotation continues the last."""
    mention: Mention | None = None
    for number, line in read_lines(path):
        place = f"{path}:{number}"
        if not line.strip():
            continue
        if mention and mention.phrase is not None and "\t" not in line and not ANNOTATION.match(line):
            report.note("lines that continue the text of the annotation before", place)
            mention = mention._replace(phrase=f"{mention.phrase} {line}")
            continue
        if mention:
            yield mention
            mention = None
        if line[0] in NOT_READ:
            report.note(NOT_READ[line[0]], place)
            continue
        with common.skip_bad(report, place):
            mention = parse_mention(line, report)
    if mention:
        yield mention


def parse_mention(line: str, report: ConversionReport) -> Mention:
    fields = line.split("\t", 2)
    match = SPAN.fullmatch(fields[1].strip()) if line[0] == "T" and len(fields) > 1 else None
    if match is None:
        raise DataError(f"this is not a brat annotation: {line[:60]!r}. Expected: T1<tab>LABEL 0 5<tab>text.")
    try:
        numbers = [int(digits) for digits in re.split("[ ;]", match[2])]
    except ValueError:  # more digits than Python reads
        raise DataError(f"these are not offsets: {match[2][:40]}.") from None
    fragments = list(zip(numbers[::2], numbers[1::2], strict=True))
    for start, end in fragments:
        if end <= start:
            raise EmptySpanError(f"entity {start}-{end} {match[1]} ends before it begins.")
    phrase = fields[2] if len(fields) > 2 else None
    if phrase is None:
        report.note(common.NOT_COMPARED)
    start, end = min(numbers), max(numbers)
    return Mention(start, end, match[1], place=report.place, phrase=phrase, fragments=fragments)


def correct_offsets(
    text: str, mentions: list[Mention], path: Path, report: ConversionReport
) -> tuple[str, list[Mention]]:
    """The text and its mentions, where offsets may count line ends and a byte order mark in other ways than the text.

    The first way in which all mentions fit is taken.
    """
    with open_file(path) as file:
        has_mark = file.read(len(BOM_UTF8)) == BOM_UTF8
    with_lf = text.replace("\r\n", "\n")
    # Where line ends would be if they were CRLF.
    line_ends = [match.start() + k for k, match in enumerate(re.finditer("\n", with_lf))]
    ways: list[tuple[str, str, Callable[[int], int]]] = [("", text, lambda offset: offset)]
    if with_lf != text:
        note = "offsets count CRLF as one character: text read with LF"
        ways.append((note, with_lf, lambda offset: offset))
    elif line_ends:
        note = "offsets count line ends as CRLF, the text has LF: corrected"
        ways.append((note, text, lambda offset: offset - bisect_left(line_ends, offset)))
    for (note, candidate, convert), mark in itertools.product(ways, ("", "\ufeff")[: 1 + has_mark]):
        moved = []
        for mention in mentions:
            fragments = [
                (convert(max(0, start - len(mark))), convert(end - len(mark)))
                for start, end in ((mention.start, mention.end), *mention.fragments)
            ]
            phrase = mention.phrase and mention.phrase.removeprefix(mark)
            (start, end), *fragments = fragments
            moved.append(mention._replace(start=start, end=end, fragments=fragments, phrase=phrase))
        if all(mention.matches(candidate) for mention in moved):
            if note:
                report.note(note, str(path))
            if mark:
                report.note(
                    "offsets count the byte order mark: left out, and offsets moved by one", str(path)
                )
            return candidate, moved
    return text, mentions


def write(documents: Iterable[Document], path: Path, report: ConversionReport) -> None:
    """A folder with a `.txt` and an `.ann` file for each document, named after its id."""
    used_names: set[str] = set()
    with atomic_path(path) as folder:
        folder.mkdir()
        for number, (place, document) in enumerate(common.report_losses(documents, "brat", report), 1):
            document = document.with_text()
            name = choose_file_name(document.id or f"document-{number:06}", used_names, report)
            annotations = "".join(
                f"T{count}\t{annotation}\n"
                for count, annotation in enumerate(format_annotations(document, report, place), 1)
            )
            text = document.text or ""
            text = "\ufeff" + text if text.startswith("\ufeff") else text  # readers remove one
            for suffix, content in ((".txt", text), (".ann", annotations)):
                with open(folder / (name + suffix), "w", encoding="utf-8", newline="") as file:
                    file.write(content)


def format_annotations(document: Document, report: ConversionReport, place: str) -> Iterator[str]:
    """The entities of a document as lines without their numbers. brat cuts spans at line breaks into fragments."""
    text = document.text or ""
    for entity, start, end in common.entity_offsets(document):
        change = "labels changed: brat allows no blanks in them"
        label = common.replace_forbidden(entity.label, r"\s", change, report, place)
        lines = [line for line in re.finditer(r"[^\r\n]+", text[start:end]) if line[0].strip()]
        if not lines:
            report.note(BLANK, place)
            continue
        offsets = ";".join(f"{start + line.start()} {start + line.end()}" for line in lines)
        phrase = " ".join(line[0].replace("\t", " ") for line in lines)
        yield f"{label} {offsets}\t{phrase}"


def choose_file_name(id: str, used_names: set[str], report: ConversionReport) -> str:
    """The id, with what a file name cannot hold written as %XX; never one of `used_names`, to which it is added."""
    stem = re.sub(r'^\.|[/\\:*?"<>|%\x00-\x1f\x7f]', lambda character: f"%{ord(character[0]):02X}", id)
    if len(stem.encode()) > MAX_NAME_BYTES:
        report.note("ids cut: too long for the name of a file", id[:60])
        stem = stem.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    name = next(name for name in names if name.lower() not in used_names)
    if name != stem:
        report.note("ids changed: two documents have the same", id[:60])
    used_names.add(name.lower())
    return name
