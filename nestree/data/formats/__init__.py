"""The formats by name, and reading and writing any of them.

Each format is a module with `read(path, tally, *, options)`, which yields documents one by one, and, where it can be
written, `write(documents, path, tally, *, options)`. The module of a format is imported when it is first used.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from nestree.data.formats.detect import detect_format
from nestree.data.io import LIMITS, STDIO, ConversionReport, check_nesting, current
from nestree.errors import DataError, InputError
from nestree.types import Document

__all__ = ["FORMATS", "Format", "detect_format", "options", "read", "write"]


class Format(NamedTuple):
    writable: bool
    folder: bool  # a folder is written; where False, a file
    what: str


FORMATS = {
    "jsonl": Format(True, False, "one sentence a line, words or text, .gz too: our own"),
    "brat": Format(True, True, "a folder of .txt and .ann files"),
    "columns": Format(True, False, "one word a line, IOB2, BIO or BIOES, one column per layer"),
    "triplets": Format(True, False, "words / part-of-speech tags / start,end LABEL|..."),
    "genia": Format(False, False, "GENIA 3.02, GPML XML"),
    "ace": Format(False, True, "ACE 2004 and 2005, .sgm and .apf.xml"),
    "nne": Format(False, True, "NNE stand-off and the trees of the Penn Treebank"),
    "gum": Format(False, False, "CoNLL-U with Entity= in its last column"),
    "label-studio": Format(True, False, "Label Studio, annotations or predictions"),
    "doccano": Format(True, False, "doccano's JSON lines"),
    "prodigy": Format(True, False, "Prodigy's JSON lines"),
    "spacy": Format(True, False, "spaCy's DocBin"),
    "pubtator": Format(True, False, "PubTator"),
    "bioc": Format(True, False, "BioC, XML or JSON"),
    "research-json": Format(False, False, "the files of published systems"),
    "datasets": Format(True, True, "a data set of Hugging Face: a folder or a parquet file"),
    "text": Format(False, False, "plain text, without entities: a file, or a folder of .txt files"),
}


def read(
    path: Path | str, format: str | None = None, tally: ConversionReport | None = None, **chosen: Any
) -> Iterator[Document]:
    """The documents of a file or folder, one by one; a format that is not named is guessed.

    What happens to the data on its way is counted in `tally`. `chosen` are options of the format (see `options`) and
    limits on what a file may cost to read (see nestree.data.io): longest_line, max_bytes, max_docbin_bytes,
    max_xml_depth, max_nesting.
    """
    path, tally = Path(path), tally if tally is not None else ConversionReport()
    name = detect_format(path) if format is None else format
    changed = {key: chosen.pop(key) for key in LIMITS if key in chosen}
    replace(current.get(), **changed)  # checked at once, not when the first document is asked for
    reader = function(name, "read")
    check_options(name, "read", chosen)

    def documents() -> Iterator[Document]:
        before = tally.sentences, len(tally.skipped)
        if path == STDIO and name in ("brat", "ace", "nne"):
            raise DataError(
                f"{name} data cannot come from standard input: it is more than one file. Give its name."
            )
        if name == "text":  # nothing is a text, too
            yield from tally.counted(within(changed, reader(path, tally, **chosen)))
            return
        if name != "brat":  # there, a name may lack its ending, and a file without annotations is empty
            check_file(path, name)
        found = sound(reader(path, tally, **chosen), path, tally)
        yield from tally.counted(within(changed, found))
        if before == (tally.sentences, len(tally.skipped)):
            raise empty(path, name)

    return documents()


def within(changed: dict[str, int], documents: Iterator[Document]) -> Iterator[Document]:
    """The documents, read with these limits, which hold in the reader and not in the program that asks it."""
    context = copy_context()
    context.run(lambda: current.set(replace(current.get(), **changed)))
    while (document := context.run(next, documents, None)) is not None:
        yield document


def sound(documents: Iterator[Document], path: Path, tally: ConversionReport) -> Iterator[Document]:
    """The documents in which entities do not nest deeper than is allowed."""
    for number, document in enumerate(documents, 1):
        try:
            for sentence in document.sentences:
                check_nesting(sentence.entities, f"{path}, {document.id or f'document {number}'}")
        except DataError as error:
            tally.bad(error)
            continue
        yield document


def check_file(path: Path, format: str) -> None:
    """What is not there, or has nothing in it, is no record that could be skipped."""
    if path != STDIO and not path.exists():
        raise DataError(f"{path} does not exist. Check the name and the directory.")
    if path.is_file() and not path.stat().st_size:
        raise empty(path, format)


def empty(path: Path, format: str) -> DataError:
    return DataError(f"{path} holds no {format} data: it is empty. Check the name and the format.")


def write(
    documents: Iterable[Document],
    path: Path | str,
    format: str | None = None,
    tally: ConversionReport | None = None,
    **chosen: Any,
) -> None:
    """Write documents; a format that is not named is guessed from the name of the file.

    What the format cannot hold is counted in `tally`. The file is there when all of it is written, or not at all.
    """
    path, tally = Path(path), tally if tally is not None else ConversionReport()
    name = detect_format(path, to_write=True) if format is None else format
    writer = function(name, "write")
    check_options(name, "write", chosen)
    with encoding(path):
        writer(documents, path, tally, **chosen)


@contextmanager
def encoding(path: Path) -> Iterator[None]:
    """What UTF-8 cannot hold, half of a surrogate pair, is told as an error of the data."""
    try:
        yield
    except UnicodeEncodeError as why:
        raise DataError(f"{path} cannot be written: {why}. Mend this text where it comes from.") from None


def options(name: str, verb: str = "read") -> dict[str, inspect.Parameter]:
    """The options of a format, by name; each has a default and a simple type.

    >>> {name: option.default for name, option in options("jsonl").items()}
    {'words': 'treebank', 'sentences': 'rules'}
    """
    parameters = inspect.signature(function(name, verb)).parameters
    return {key: value for key, value in parameters.items() if value.kind is value.KEYWORD_ONLY}


def function(name: str, verb: str) -> Callable[..., Any]:
    """`read` or `write` of a format."""
    if name not in FORMATS:
        raise InputError(f"there is no format {name!r}. Choose one of {', '.join(FORMATS)}.")
    if verb == "write" and not FORMATS[name].writable:
        able = ", ".join(key for key, value in FORMATS.items() if value.writable)
        raise InputError(f"{name} can be read, not written. Choose one of {able}.")
    module = importlib.import_module(f"nestree.data.formats.{name.replace('-', '_')}")
    found: Callable[..., Any] = getattr(module, verb)
    return found


def check_options(name: str, verb: str, chosen: dict[str, Any]) -> None:
    known = options(name, verb)
    for key in chosen:
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise InputError(f"{name} has no option {key!r} to {verb}: {has}.")
