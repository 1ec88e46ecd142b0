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

from nestree.data.formats.common import skip_bad
from nestree.data.formats.detect import detect_format
from nestree.data.io import LIMIT_NAMES, STDIO, ConversionReport, check_nesting, current_limits
from nestree.errors import DataError, InputError
from nestree.types import Document

__all__ = ["FORMATS", "Format", "detect_format", "options", "read", "write"]


class Format(NamedTuple):
    writable: bool
    folder: bool  # a folder is written; where False, a file
    description: str


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
    """The documents of a file or folder, one by one; a format that is not named is detected.

    What is changed or left out on the way is counted in `tally`. `chosen` are options of the format (see `options`)
    and limits on what a file may cost to read (see nestree.data.io): longest_line, max_bytes, max_docbin_bytes,
    max_xml_depth, max_nesting.
    """
    path, tally = Path(path), tally if tally is not None else ConversionReport()
    name = detect_format(path) if format is None else format
    limits = replace(current_limits.get(), **{key: chosen.pop(key) for key in LIMIT_NAMES if key in chosen})
    reader = get_function(name, "read")
    check_options(name, "read", chosen)
    documents = reader(path, tally, **chosen)
    if name != "text":  # the only format in which an empty file is valid
        documents = check_documents(documents, path, name, tally)
    return tally.count(read_with_limits(documents, limits))


def read_with_limits(documents: Iterator[Document], limits: Any) -> Iterator[Document]:
    """The documents; the limits hold while the reader runs, and not in the code that consumes its documents."""
    context = copy_context()
    context.run(current_limits.set, limits)
    while (document := context.run(next, documents, None)) is not None:
        yield document


def check_documents(
    documents: Iterator[Document], path: Path, format: str, tally: ConversionReport
) -> Iterator[Document]:
    """The documents, without those whose entities nest too deeply. Raises if there is nothing to read."""
    if path == STDIO and format in ("brat", "ace", "nne"):
        raise DataError(
            f"{format} data cannot come from standard input: it is more than one file. Give its name."
        )
    empty = DataError(f"{path} holds no {format} data: it is empty. Check the name and the format.")
    if format != "brat":  # there, a name may lack its ending, and a file without annotations is empty
        if path != STDIO and not path.exists():
            raise DataError(f"{path} does not exist. Check the name and the directory.")
        if path.is_file() and not path.stat().st_size:
            raise empty
    skipped, has_sentences = len(tally.skipped), False
    for number, document in enumerate(documents, 1):
        with skip_bad(tally):
            for sentence in document.sentences:
                check_nesting(sentence.entities, f"{path}, {document.id or f'document {number}'}")
            has_sentences = has_sentences or bool(document.sentences)
            yield document
    if not has_sentences and skipped == len(tally.skipped):
        raise empty


def write(
    documents: Iterable[Document],
    path: Path | str,
    format: str | None = None,
    tally: ConversionReport | None = None,
    **chosen: Any,
) -> None:
    """Write documents; a format that is not named is detected from the name of the file.

    What the format cannot hold is counted in `tally`. The file is there when all of it is written, or not at all.
    """
    path, tally = Path(path), tally if tally is not None else ConversionReport()
    name = detect_format(path, to_write=True) if format is None else format
    writer = get_function(name, "write")
    check_options(name, "write", chosen)
    with encoding_errors(path):
        writer(documents, path, tally, **chosen)


@contextmanager
def encoding_errors(path: Path) -> Iterator[None]:
    """Raise a DataError for text that UTF-8 cannot encode: half of a surrogate pair."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise DataError(f"{path} cannot be written: {error}. Correct this text in its source.") from None


def options(name: str, verb: str = "read") -> dict[str, inspect.Parameter]:
    """The options of a format, by name; each has a default and a simple type.

    >>> {name: option.default for name, option in options("jsonl").items()}
    {'words': 'treebank', 'sentences': 'rules'}
    """
    parameters = inspect.signature(get_function(name, verb)).parameters
    return {key: value for key, value in parameters.items() if value.kind is value.KEYWORD_ONLY}


def get_function(name: str, verb: str) -> Callable[..., Any]:
    """`read` or `write` of a format."""
    if name not in FORMATS:
        raise InputError(f"there is no format {name!r}. Choose one of {', '.join(FORMATS)}.")
    if verb == "write" and not FORMATS[name].writable:
        writable = ", ".join(key for key, value in FORMATS.items() if value.writable)
        raise InputError(f"{name} can be read, not written. Choose one of {writable}.")
    module = importlib.import_module(f"nestree.data.formats.{name.replace('-', '_')}")
    return getattr(module, verb)


def check_options(name: str, verb: str, chosen: dict[str, Any]) -> None:
    known = options(name, verb)
    for key in chosen:
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise InputError(f"{name} has no option {key!r} to {verb}: {has}.")
