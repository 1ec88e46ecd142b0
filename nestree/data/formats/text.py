"""Plain text, UTF-8: a file is a document, or each of its lines is. It has no entities; a model finds them.

Line ends stay as they are, and a byte order mark is no part of the text. A long file is not held as a whole: it is read
in parts of about a megabyte, cut after a blank line, where no sentence goes on; if there is none, after a line or a
word. Each part is a document of its own, called `name#1`, `name#2`, ..., and says where in the text it begins:
extra["start"], in characters.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from nestree.data.alignment import AnnotatedText
from nestree.data.formats.common import skip_bad
from nestree.data.io import (
    STDIO,
    ConversionReport,
    decode_text,
    list_files,
    on_progress,
    open_file,
    read_lines,
    report_progress,
)
from nestree.errors import DataError, InputError

LONGEST = 10_000_000  # bytes of a file that is one document; its words take some 70 times as much memory
PART_BYTES = 1_000_000  # of a part of a longer file, about
TEXT_SUFFIXES = (".txt", ".txt.gz")
PARAGRAPH_BREAK = re.compile(rb"\n[ \t\r]*\n")


def read_text(
    path: Path, report: ConversionReport, *, documents: Literal["files", "lines"] = "files", longest: int = LONGEST
) -> Iterator[AnnotatedText]:
    """The text of a file, or of all .txt files in a folder and the folders in it.

    documents: "files" or "lines": what is a document each; blank lines are none. longest: a file of more bytes is
    read in parts.
    """
    if longest < 4:
        raise InputError(f"longest is {longest}; a part must have room for a character, which may take 4 bytes.")
    for file, id in find_texts(path):
        by_lines = documents == "lines"
        for text in split_lines(file, id, report) if by_lines else read_whole(file, id, longest, report):
            report.texts += 1
            yield text


def read_whole(path: Path, id: str | None, longest: int, report: ConversionReport) -> Iterator[AnnotatedText]:
    """The text of a file, or its parts."""
    with skip_bad(report), open_file(path) as stream:
        line, start = 1, 0
        for number, (data, is_whole) in enumerate(split_bytes(stream, longest), 1):
            text = decode_text(data, path, line)
            if is_whole:
                yield AnnotatedText(text, (), str(path), id)
            else:
                yield AnnotatedText(text, (), f"{path}:{line}", f"{id or 'text'}#{number}", {"start": start})
            line, start = line + data.count(b"\n"), start + len(text)


def split_lines(path: Path, id: str | None, report: ConversionReport) -> Iterator[AnnotatedText]:
    for number, line in read_lines(path, report):
        if line.strip():
            yield AnnotatedText(line, (), f"{path}:{number}", f"{id}:{number}" if id else str(number))


def find_texts(path: Path) -> list[tuple[Path, str | None]]:
    """The files to read, and the ids of their documents."""
    if path == STDIO:
        return [(path, None)]
    if not path.is_dir():
        return [(path, document_id(path.name))]
    files = [file for file in list_files(path) if is_text_name(file)]
    if not files:
        raise DataError(f"{path} holds no .txt file. Name a folder of texts, or a file of any name.")
    return [(file, document_id(file.relative_to(path).as_posix())) for file in files]


def is_text_name(path: Path) -> bool:
    """Whether a file is a text by its name; LETTER.TXT is one, too."""
    return path.name.lower().endswith(TEXT_SUFFIXES)


def document_id(name: str) -> str:
    """The name of a file without its ending; bytes that are not UTF-8 are escaped.

    >>> document_id(os.fsdecode(b"news/caf\\xe9.txt"))
    'news/caf\\\\xe9'
    """
    return os.fsencode(strip_suffix(name)).decode("utf-8", "backslashreplace")


def strip_suffix(name: str) -> str:
    """The name of a file without its ending.

    >>> strip_suffix("news/a.b.txt.gz"), strip_suffix("A.TXT.GZ"), strip_suffix("README"), strip_suffix(".txt")
    ('news/a.b', 'A', 'README', '.txt')
    """
    return re.sub(r"(?<=[^/])\.[^./]+(\.gz)?\Z", "", name, flags=re.IGNORECASE)


def split_bytes(file: BinaryIO, longest: int) -> Iterator[tuple[bytes, bool]]:
    """The bytes of a file, in parts if there are more than `longest`; True: this is the whole file.

    Bytes that are read ahead are reported as progress when their part is yielded.
    """
    report, ahead = on_progress.get() or (lambda count: None), 0  # ahead: before decompression

    def count_ahead(count: int) -> None:
        nonlocal ahead
        ahead += count

    with report_progress(count_ahead):
        buffer = file.read(longest + 1)
    if len(buffer) <= longest:
        report(ahead)
        yield buffer, True
        return
    size = min(PART_BYTES, longest)
    while buffer:
        if len(buffer) <= size:
            with report_progress(count_ahead):
                buffer += file.read(size)
        end = find_part_end(buffer, size) if len(buffer) > size else len(buffer)
        done = ahead * end // len(buffer)
        ahead -= done
        report(done)
        yield buffer[:end], False
        buffer = buffer[end:]


def find_part_end(data: bytes, size: int) -> int:
    """Where to end a part of at most `size` bytes: after a paragraph, or else a line, a word or a character.

    >>> find_part_end(b"One line.\\n \\nTwo\\nthree", 16), find_part_end(b"Two\\nthree", 9)
    (12, 4)
    >>> find_part_end(b"Two three", 7), find_part_end("Öö".encode(), 3)
    (4, 2)
    """
    breaks = [match.end() for match in PARAGRAPH_BREAK.finditer(data, 0, size)]
    if breaks:
        return breaks[-1]
    for separator in (b"\n", b" "):
        if end := data.rfind(separator, 0, size) + 1:
            return end
    end = size
    while end > 1 and data[end] & 0xC0 == 0x80:  # within a character
        end -= 1
    return end
