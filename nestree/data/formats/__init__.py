"""The formats by name, and reading and writing any of them.

Each format is a module with `read(path, report, *, options)`, which yields documents one by one, as `Document` or,
where characters are annotated, as `AnnotatedText`, and, where it can be written, `write(documents, path, report, *,
options)`.
The module of a format is imported when it is first used.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from nestree.data.alignment import WIDENED, AnnotatedText, align
from nestree.data.formats.common import skip_bad
from nestree.data.formats.detect import FILE_FORMATS, data_files, detect_format, detect_output_format
from nestree.data.io import LIMIT_NAMES, STDIO, ConversionReport, check_nesting, current_limits
from nestree.errors import DataError, InputError
from nestree.types import Document

__all__ = [
    "FORMATS", "AllSkippedError", "Format", "data_files", "detect_format", "detect_output_format", "options",
    "read", "write",
]  # fmt: skip

OTHER_NAMES = dict.fromkeys(("conll", "conll03", "iob", "iob2", "bio", "bioes"), "columns")  # elsewhere
OTHER_NAMES |= {"conllu": "gum", "tsv": "csv", "json": "jsonl"}
OTHER_NAMES |= {"labelstudio": "label-studio", "huggingface": "datasets"}
COMMONLY_WIDENED = 0.01  # of the entities: other words would fit better


class AllSkippedError(DataError):
    """Every record of a file is invalid, and was skipped."""


class Format(NamedTuple):
    writable: bool
    ending: str  # of the names of files; "": a folder is written
    description: str
    splitting: dict[str, str]  # the default word style and sentence rule, where the format leaves them open


NOT_SPLIT: dict[str, str] = {}
SPLIT = {"words": "treebank", "sentences": "rules"}
FORMATS = {
    "jsonl": Format(True, ".jsonl", "one sentence a line, words or text, .gz too: our own", SPLIT),
    "brat": Format(True, "", "a folder of .txt and .ann files", SPLIT),
    "columns": Format(True, ".iob2", "one word a line, IOB2, BIO or BIOES, one column per layer", NOT_SPLIT),
    "triplets": Format(True, ".data", "words / part-of-speech tags / start,end LABEL|...", NOT_SPLIT),
    "genia": Format(False, ".xml", "GENIA 3.02, GPML XML", {"words": "split-hyphens"}),
    "ace": Format(False, "", "ACE 2004 and 2005, .sgm and .apf.xml", SPLIT),
    "nne": Format(False, "", "NNE stand-off and the trees of the Penn Treebank", NOT_SPLIT),
    "gum": Format(False, ".conllu", "CoNLL-U with Entity= in its last column", NOT_SPLIT),
    "label-studio": Format(True, ".json", "Label Studio, annotations or predictions", SPLIT),
    "doccano": Format(True, ".jsonl", "doccano's JSON lines", SPLIT),
    "prodigy": Format(True, ".jsonl", "Prodigy's JSON lines", SPLIT),
    "spacy": Format(True, ".spacy", "spaCy's DocBin", {"sentences": "rules"}),
    "pubtator": Format(True, ".pubtator", "PubTator", SPLIT),
    "bioc": Format(True, ".xml", "BioC, XML or JSON", SPLIT),
    "research-json": Format(False, ".json", "the files of published systems", NOT_SPLIT),
    "datasets": Format(True, "", "a data set of Hugging Face: a folder or a parquet file", SPLIT),
    "csv": Format(True, ".csv", "one entity a row, CSV or TSV; read with .txt files beside it", SPLIT),
    "text": Format(False, ".txt", "plain text, without entities: a file, or a folder of .txt files", SPLIT),
}


def read(
    path: Path | str,
    format: str | None = None,
    report: ConversionReport | None = None,
    text_rules: Mapping[str, str] = MappingProxyType({}),
    **chosen: Any,
) -> Iterator[Document]:
    """The documents of a file or folder, one by one; a format that is not named is detected.

    What is changed or left out on the way is counted in `report`. `text_rules`: the word style and the sentence rule
    where the format leaves them open, such as those of a model. `chosen` are options of the format (see `options`) and
    limits on what a file may cost to read (see nestree.data.io): longest_line, max_bytes, max_docbin_bytes,
    max_xml_depth, max_nesting.
    """
    path, report = Path(path), report if report is not None else ConversionReport()
    name = detect_format(path) if format is None else format
    limits = replace(current_limits.get(), **{key: chosen.pop(key) for key in LIMIT_NAMES if key in chosen})
    check_options(name, "read", chosen)
    splitting = {
        key: chosen.pop(key, text_rules.get(key, default)) for key, default in FORMATS[name].splitting.items()
    }
    reader = get_function(name, "read")
    files = data_files(path) if path.is_dir() and name in FILE_FORMATS else [path]
    documents = chain.from_iterable(
        check_documents(reader(file, report, **chosen), file, name, report, splitting) for file in files
    )
    return report.count(read_with_limits(documents, limits))


def read_with_limits(documents: Iterator[Document], limits: Any) -> Iterator[Document]:
    """The documents; the limits hold while the reader runs, and not in the code that consumes its documents."""
    context = copy_context()
    context.run(current_limits.set, limits)
    while (document := context.run(next, documents, None)) is not None:
        yield document


def check_documents(
    documents: Iterator[Document | AnnotatedText],
    path: Path,
    format: str,
    report: ConversionReport,
    splitting: dict[str, str],
) -> Iterator[Document]:
    """The documents, aligned with words, without those that are invalid. Raises if nothing can be read."""
    if path == STDIO and format in ("brat", "ace", "nne", "csv"):
        raise DataError(
            f"{format} data cannot come from standard input: it is more than one file. Give its name."
        )
    empty = DataError(f"{path} holds no {format} data: it is empty. Check the name and the format.")
    if format != "brat" and path != STDIO and not path.exists():  # a name of brat may lack its ending
        raise DataError(f"{path} does not exist. Check the name and the directory.")
    if format not in ("brat", "text") and path.is_file() and not path.stat().st_size:
        raise empty
    skipped, widened, has_documents = len(report.skipped), report.counts[WIDENED], format == "text"
    for number, item in enumerate(documents, 1):
        with skip_bad(report):
            document = align(item, report, **splitting) if isinstance(item, AnnotatedText) else item
            for sentence in document.sentences:
                check_nesting(sentence.entities, f"{path}, {document.id or f'document {number}'}")
            # A document may have an empty text; a line of JSON is a document in any case.
            has_documents |= bool(document.sentences) or document.text is not None or format == "jsonl"
            yield document
    if not has_documents and skipped < len(report.skipped):
        raise AllSkippedError(
            f"{path}: nothing is left, {len(report.skipped) - skipped} records were skipped. The first: "
            f"{report.skipped[skipped]:.300}"
        )
    if not has_documents:
        raise empty
    widened = report.counts[WIDENED] - widened
    for style, fitting in report.fitting_styles.most_common(1):
        if widened > COMMONLY_WIDENED * report.entities and 2 * fitting > widened:
            note = f"of the widened entities fit other words: choose --words {style}"
            report.note(note, str(path), fitting)
    report.fitting_styles.clear()


def write(
    documents: Iterable[Document],
    path: Path | str,
    format: str | None = None,
    report: ConversionReport | None = None,
    **chosen: Any,
) -> None:
    """Write documents; a format that is not named is detected from the name of the file.

    What the format cannot hold is counted in `report`. The file is there when all of it is written, or not at all.
    """
    path, report = Path(path), report if report is not None else ConversionReport()
    name = detect_output_format(path) if format is None else format
    check_options(name, "write", chosen)
    with encoding_errors(path):
        get_function(name, "write")(documents, path, report, **chosen)


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
    own = {key: value for key, value in parameters.items() if value.kind is value.KEYWORD_ONLY}
    splitting = FORMATS[name].splitting if verb == "read" else NOT_SPLIT
    return own | {
        key: inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=str)
        for key, default in splitting.items()
    }


def get_function(name: str, verb: str) -> Callable[..., Any]:
    """`read` or `write` of a format."""
    if name not in FORMATS:
        near = OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, FORMATS, 1, 0.7)), None)
        hint = f"Did you mean {near}? " if near else ""
        raise InputError(f"there is no format {name!r}. {hint}Choose one of {', '.join(FORMATS)}.")
    if verb == "write" and not FORMATS[name].writable:
        writable = ", ".join(key for key, value in FORMATS.items() if value.writable)
        raise InputError(f"{name} can be read, not written. Choose one of {writable}.")
    module = importlib.import_module(f"nestree.data.formats.{name.replace('-', '_')}")
    function: Callable[..., Any] = getattr(module, verb)
    return function


def check_options(name: str, verb: str, chosen: dict[str, Any]) -> None:
    known = options(name, verb)
    for key in chosen:
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise InputError(f"{name} has no option {key!r} to {verb}: {has}.")
