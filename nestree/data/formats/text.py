"""Plain text, UTF-8: a file is a document, or each of its lines is. It has no entities; a model finds them.

Line ends stay as they are, and a byte order mark is no part of the text. A long file is not held as a whole: it is read
in parts of about a megabyte, cut after a blank line, where no sentence goes on; if there is none, after a line or a
word. Each part is a document of its own, called `name#1`, `name#2`, ..., and says where in the text it begins:
extra["start"], in characters.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from nestree.data.alignment import align_spans
from nestree.data.io import STDIO, ConversionReport, decode_text, lines_or_errors, open_file
from nestree.errors import DataError, InputError
from nestree.types import Document

LONGEST = 10_000_000  # bytes of a text that is one document; its words take some 70 times as much memory
PART = 1_000_000  # bytes of a part of a longer one, about
UNITS = ("files", "lines")
ENDINGS = (".txt", ".txt.gz")
PARAGRAPHS = re.compile(rb"\n[ \t\r]*\n")


def read(
    path: Path,
    tally: ConversionReport,
    *,
    words: str = "treebank",
    sentences: str = "rules",
    documents: str = "files",
    longest: int = LONGEST,
) -> Iterator[Document]:
    """The text of a file, or of all .txt files in a folder and the folders in it.

    words, sentences: how the text is split (see nestree.text). documents: "files" or "lines": what is a document each;
    blank lines are none. longest: a file of more bytes is read in parts.
    """
    if documents not in UNITS:
        raise InputError(f"documents are files or lines, not {documents!r}.")
    if longest < 4:
        raise InputError(
            f"longest is {longest}; a part must have room for a character, which may take 4 bytes."
        )
    for file, id in files(path):
        texts = lines(file, id, tally) if documents == "lines" else parts(file, id, tally, longest)
        for text, name, place, start in texts:
            extra = {"start": start} if start is not None else {}
            tally.texts += 1
            yield align_spans(
                text, (), id=name, words=words, sentences=sentences, tally=tally, place=place, extra=extra
            )


def files(path: Path) -> list[tuple[Path, str | None]]:
    """The files to read, and the ids of their documents."""
    if path == STDIO:
        return [(path, None)]
    if not path.exists():
        raise DataError(f"{path} does not exist. Check the name and the directory.")
    if not path.is_dir():
        return [(path, stem(path.name))]
    found = sorted(file for file in path.rglob("*") if file.name.endswith(ENDINGS) and file.is_file())
    if not found:
        raise DataError(f"{path} holds no .txt file. Name a folder of texts, or a file of any name.")
    return [(file, stem(file.relative_to(path).as_posix())) for file in found]


def stem(name: str) -> str:
    """The name of a file without its ending.

    >>> stem("news/a.b.txt.gz"), stem("README"), stem(".txt")
    ('news/a.b', 'README', '.txt')
    """
    for _ in range(2 if name.endswith(".gz") else 1):
        folder, slash, last = name.rpartition("/")
        name = folder + slash + (Path(last).stem if last else last)
    return name


Text = tuple[
    str, str | None, str, int | None
]  # a text, its id, its place in a file, its start if it is a part


def lines(path: Path, id: str | None, tally: ConversionReport) -> Iterator[Text]:
    for number, line in lines_or_errors(path):
        if isinstance(line, DataError):
            tally.bad(line)
        elif line.strip():
            yield line, f"{id}:{number}" if id else str(number), f"{path}:{number}", None


def parts(path: Path, id: str | None, tally: ConversionReport, longest: int) -> Iterator[Text]:
    try:
        with open_file(path) as file:
            line, start = 1, 0
            for number, (data, whole) in enumerate(cut(file, longest), 1):
                text = decode_text(data, path, line)
                if whole:
                    yield text, id, str(path), None
                    return
                yield text, f"{id or 'text'}#{number}", f"{path}:{line}", start
                line, start = line + data.count(b"\n"), start + len(text)
    except DataError as error:
        tally.bad(error)


def cut(file: BinaryIO, longest: int) -> Iterator[tuple[bytes, bool]]:
    """All bytes of a file, in parts if they are more than `longest`; True: this is all of them."""
    held = file.read(longest + 1)
    if len(held) <= longest:
        yield held, True
        return
    size = min(PART, longest)
    while held:
        if len(held) <= size:
            held += file.read(size)
        if len(held) <= size:
            yield held, False
            return
        end = border(held, size)
        yield held[:end], False
        held = held[end:]


def border(data: bytes, size: int) -> int:
    """Where to end a part of at most `size` bytes, which is less than there are.

    >>> border(b"One line.\\n \\nTwo\\nthree four", 20), border(b"Two\\nthree four", 9), border(b"Two three", 7)
    (12, 4, 4)
    >>> border("Öö".encode(), 3)
    2
    """
    gaps = [gap.end() for gap in PARAGRAPHS.finditer(data, 0, size)]
    if gaps:
        return gaps[-1]
    for mark in (b"\n", b" "):
        if found := data.rfind(mark, 0, size) + 1:
            return found
    end = size
    while end > 1 and data[end] & 0xC0 == 0x80:  # within a character
        end -= 1
    return end
