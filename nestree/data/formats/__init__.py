"""The formats by name: detecting, reading and writing any of them.

Each format has a function `read_NAME(path, report, *, options)`, which yields documents one by one, as `Document` or,
where characters are annotated, as `AnnotatedText`, and, where it can be written, `write_NAME(documents, path, report,
*, options)`. The modules of these functions, one for each family of formats, are imported when they are first used.
"""

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from nestree.data.alignment import WIDENED, AnnotatedText, align
from nestree.data.formats.common import skip_bad
from nestree.data.io import (
    LIMIT_NAMES,
    STDIO,
    ConversionReport,
    check_nesting,
    current_limits,
    json_records,
    list_files,
    open_file,
)
from nestree.errors import DataError, InputError, plural
from nestree.types import Document

# Other names of formats, for error messages.
FORMAT_HINTS = dict.fromkeys(("conll", "conll03", "iob", "iob2", "bio", "bioes"), "columns")
FORMAT_HINTS |= {"conllu": "gum", "tsv": "csv", "json": "jsonl"}
FORMAT_HINTS |= {"labelstudio": "label-studio", "docbin": "spacy", "txt": "text"}
FORMAT_HINTS |= dict.fromkeys(("huggingface", "parquet", "arrow"), "datasets")
COMMONLY_WIDENED = 0.01  # of the entities: other words would fit better


class AllSkippedError(DataError):
    """Every record of a file is invalid, and was skipped."""


SPLIT = {"words": "treebank", "sentences": "rules"}


class Format(NamedTuple):
    module: str
    writable: bool
    ending: str  # of the names of files; "": a folder is written
    description: str
    splitting: dict[str, str] = SPLIT  # the default word style and sentence rule, where the format leaves them open


FORMATS = {
    "jsonl": Format("jsonl", True, ".jsonl", "one sentence a line, words or text, .gz too: our own"),
    "brat": Format("standoff", True, "", "a folder of .txt and .ann files"),
    "columns": Format("columns", True, ".iob2", "one word a line, IOB2, BIO or BIOES, one column per layer", {}),
    "triplets": Format("triplets", True, ".data", "words / part-of-speech tags / start,end LABEL|...", {}),
    "genia": Format("biomedical", False, ".xml", "GENIA 3.02, GPML XML", {"words": "split-hyphens"}),
    "ace": Format("standoff", False, "", "ACE 2004 and 2005, .sgm and .apf.xml"),
    "nne": Format("triplets", False, "", "NNE stand-off and the trees of the Penn Treebank", {}),
    "gum": Format("columns", False, ".conllu", "CoNLL-U with Entity= in its last column", {}),
    "label-studio": Format("tasks", True, ".json", "Label Studio, annotations or predictions"),
    "doccano": Format("tasks", True, ".jsonl", "doccano's JSON lines"),
    "prodigy": Format("tasks", True, ".jsonl", "Prodigy's JSON lines"),
    "spacy": Format("spacy", True, ".spacy", "spaCy's DocBin", {"sentences": "rules"}),
    "pubtator": Format("biomedical", True, ".pubtator", "PubTator"),
    "bioc": Format("biomedical", True, ".xml", "BioC, XML or JSON"),
    "research-json": Format("research_json", False, ".json", "the files of published systems", {}),
    "datasets": Format("datasets", True, "", "a data set of Hugging Face: a folder, a parquet file or, to read, JSON"),
    "csv": Format("standoff", True, ".csv", "one entity a row, CSV or TSV; read with .txt files beside it"),
    "text": Format("text", False, ".txt", "plain text, without entities: a file, or a folder of .txt files"),
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
    path, report = Path(path), report or ConversionReport()
    name = detect_format(path) if format is None else format
    limits = replace(current_limits.get(), **{key: chosen.pop(key) for key in LIMIT_NAMES if key in chosen})
    check_options(name, "read", chosen)
    splitting = {key: chosen.pop(key, text_rules.get(key, default)) for key, default in FORMATS[name].splitting.items()}
    reader = get_function(name, "read")
    files = data_files(path) if path.is_dir() and name in FILE_FORMATS else [path]
    documents = chain.from_iterable(
        check_documents(reader(file, report, **chosen), file, name, report, splitting) for file in files
    )
    # The limits hold while the reader runs, and not in the code that consumes its documents.
    context = copy_context()
    context.run(current_limits.set, limits)
    return report.count(iter(lambda: context.run(next, documents, None), None))


def check_documents(
    documents: Iterator[Document | AnnotatedText],
    path: Path,
    format: str,
    report: ConversionReport,
    splitting: dict[str, str],
) -> Iterator[Document]:
    """The documents, aligned with words, without those that are invalid. Raises if nothing can be read."""
    if path == STDIO and format in ("brat", "ace", "nne", "csv"):
        raise DataError(f"{format} data cannot come from standard input: it is more than one file. Give its name.")
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
            f"{path}: nothing is left, {plural(len(report.skipped) - skipped, 'record')} skipped. The first: "
            f"{report.skipped[skipped]:.300}"
        )
    if not has_documents and format != "csv":  # documents without entities have no row in it
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
    path, report = Path(path), report or ConversionReport()
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
    splitting = FORMATS[name].splitting if verb == "read" else {}
    return own | {
        key: inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=str)
        for key, default in splitting.items()
    }


def check_name(name: str, verb: str) -> None:
    """Raise if there is no such format to `read` or to `write`."""
    names = [key for key, format in FORMATS.items() if verb == "read" or format.writable]
    if name not in FORMATS:
        near = FORMAT_HINTS.get(name) or next(iter(difflib.get_close_matches(name, names, 1, 0.7)), None)
        hint = f"Did you mean {near}? " if near in names else ""
        raise InputError(f"there is no format {name!r}. {hint}Choose one of {', '.join(names)}.")
    if name not in names:
        raise InputError(f"{name} can be read, not written. Choose one of {', '.join(names)}.")


def get_function(name: str, verb: str) -> Callable[..., Any]:
    """`read` or `write` of a format."""
    check_name(name, verb)
    module = importlib.import_module(f"nestree.data.formats.{FORMATS[name].module}")
    function: Callable[..., Any] = getattr(module, f"{verb}_{name.replace('-', '_')}")
    return function


def check_options(name: str, verb: str, chosen: dict[str, Any]) -> None:
    known = options(name, verb)
    for key, value in chosen.items():
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise InputError(f"{name} has no option {key!r} to {verb}: {has}.")
        if (choices := get_args(known[key].annotation)) and value not in choices:
            raise InputError(f"{key} is one of {', '.join(filter(None, choices))}, not {value!r}.")


# Detection: where only one format fits the name of a file or folder and its first lines

SAMPLE_BYTES = 2**16
SAMPLE_LINES = 200

SUFFIXES = {".jsonl": "jsonl", ".conllu": "gum", ".spacy": "spacy", ".ann": "brat", ".sgm": "ace"}
SUFFIXES |= {".mrg": "nne", ".pubtator": "pubtator", ".csv": "csv"}
SUFFIXES |= dict.fromkeys((".parquet", ".arrow"), "datasets")
SUFFIXES |= dict.fromkeys((".iob2", ".iob", ".bio", ".bioes", ".conll"), "columns")
SUFFIXES |= dict.fromkeys((".data", ".triplets"), "triplets")
READ_ONLY_SUFFIXES = {".conllu", ".sgm", ".mrg"}
# What their formats are written to instead.
WRITTEN_TO = {".ann": "a folder", ".arrow": "a folder or a file called .parquet", ".iob": "a file called .iob2"}
# By the end of the name of a file in the folder.
FOLDER_SUFFIXES = {suffix: SUFFIXES[suffix] for suffix in (".ann", ".conllu", ".arrow", ".parquet", ".mrg")}
FOLDER_SUFFIXES |= {".apf.xml": "ace", "dataset_dict.json": "datasets"}
FOLDER_FORMATS = {"brat", "ace", "nne", "genia", "gum", "datasets"}  # the files of a folder are read together
FILE_FORMATS = FORMATS.keys() - FOLDER_FORMATS - {"text"}
FILE_SUFFIXES = {suffix for suffix, format in SUFFIXES.items() if format in FILE_FORMATS}
FILE_SUFFIXES |= {".json", ".xml", ".tsv"}  # whose content is looked at
PARTS = ("train", "dev", "test")


def suffix_of(path: Path) -> str:
    """The ending of a file name, without .gz."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def data_files(path: Path) -> list[Path]:
    """The files of data in a folder, such as `split` writes: train, dev and test, or files of any names, .gz too.

    Parts of formats that are folders are folders. Anything else that can be read is its own only file.
    """
    if not path.is_dir():
        return [path]
    parts = [entry for part in PARTS for entry in path.iterdir() if entry.name.split(".")[0] == part]
    if not (path / "dataset_dict.json").exists() and "train" in (part.name.split(".")[0] for part in parts):
        return parts
    if detect_folder(path) not in FILE_FORMATS:
        return [path]
    return [file for file in list_files(path) if suffix_of(file) in FILE_SUFFIXES]


def select_test_part(path: Path) -> Path:
    """The test data, or else the dev data, of a folder with files called train, dev and test; any other path itself."""
    parts = {file.name.split(".")[0]: file for file in data_files(path)}
    return parts.get("test") or parts.get("dev") or path if "train" in parts else path


def detect_format(path: Path) -> str:
    """The name of the format of a file or folder, or an error that says to name it."""
    path, format = Path(path), None
    if path != STDIO:
        format = detect_folder(path) if path.is_dir() else detect_file(path)
    if format is not None:
        return format
    advice = "its format is unknown. Name it, with --from or as `format`."
    names = [file.name for file in list_files(path)] if path.is_dir() else [path.name]
    if names and all(name.lower().endswith((".txt", ".txt.gz")) for name in names):
        advice = (
            "plain text without annotations, in which `nestree predict` finds entities. If it is annotated, name its "
            "format with --from or as `format`."
        )
    elif path.is_dir():
        advice = (
            "a directory whose format is unknown. Name one of the files in it, or the format, with --from or as "
            "`format`."
        )
    raise DataError(f"{path}: {advice}")


def detect_output_format(path: Path) -> str:
    """The format of a file to be written, by its name."""
    suffix = suffix_of(path)
    format = "csv" if suffix == ".tsv" else SUFFIXES.get(suffix)
    if format is not None and suffix not in READ_ONLY_SUFFIXES | WRITTEN_TO.keys():
        return format
    advice = "its format is unknown. Name it, with --to or as `format`."
    if suffix in READ_ONLY_SUFFIXES:
        advice = f"{format} can be read, not written. Name another with --to."
    elif suffix in WRITTEN_TO:
        advice = (
            f"{format} is written to {WRITTEN_TO[suffix]}. Name one and the format, with --to {format} (in Python, "
            f"format={format!r})."
        )
    elif suffix == ".json":
        advice = (
            f"several formats end in .json. Name a file of JSON lines {path.with_suffix('.jsonl')}, or the format "
            "with --to or as `format`, such as label-studio."
        )
    raise DataError(f"{path}: {advice}")


def detect_file(path: Path) -> str | None:
    suffix = suffix_of(path)
    if suffix in (".jsonl", ".json", ".xml", ".txt", ""):
        return detect_content(path) or SUFFIXES.get(suffix)
    return SUFFIXES.get(suffix) or detect_content(path)


def detect_stdin() -> str:
    """The format of text input: "jsonl" if it begins like JSON lines, else "text". Nothing is consumed."""
    stream: Any = sys.stdin and sys.stdin.buffer
    start = b""
    if hasattr(stream, "peek"):
        start = stream.peek(64)
    elif stream is not None and stream.seekable():
        at = stream.tell()
        start = stream.read(64)
        stream.seek(at)
    return "jsonl" if re.match(rb'(\xef\xbb\xbf)?\s*\{\s*"', start) else "text"


def detect_folder(path: Path) -> str | None:
    """The format of a folder, if all files of data in it have one."""
    files = list_files(path)
    formats = {format for end, format in FOLDER_SUFFIXES.items() if any(f.name.endswith(end) for f in files)}
    if formats and any(suffix_of(file) == ".jsonl" for file in files):
        return None  # reading only the other files would leave these out
    if not formats:
        one_of_each = {suffix_of(f): f for f in reversed(files) if suffix_of(f) in FILE_SUFFIXES}
        formats = {detect_file(file) or "" for file in one_of_each.values()}
    return (formats.pop() or None) if len(formats) == 1 else None


def detect_content(path: Path) -> str | None:
    start = b""
    try:
        with open_file(path) as file:
            while len(start) < SAMPLE_BYTES and (more := file.read1(SAMPLE_BYTES)):
                start += more
    except DataError:  # of a file that is cut off, the beginning is enough
        if not start:
            raise
    if not start.strip():
        raise DataError(f"{path} is empty. Check its name, or make it again.")
    text = start.decode("utf-8", errors="replace").removeprefix("\ufeff").lstrip()
    if text.startswith("<"):
        marks = {"<collection": "bioc", "<source_file": "ace", "<articleinfo": "genia", "gpml": "genia"}
        return next((format for mark, format in marks.items() if mark in text), None)
    if text.startswith(("{", "[")):
        return detect_json(path, text)
    if path.suffix == ".txt" and path.with_suffix(".ann").exists():
        return "brat"
    header = {name.strip(' "').lower() for name in re.split(r"[\t,;]", text.partition("\n")[0])}
    if header & {"spans", "start"} and header & {"doc_id", "document_id"}:
        return "csv"
    fields = text.partition("\n")[0].split("|")
    if len(fields) > 2 and fields[1] in ("t", "a") and fields[0].strip():
        return "pubtator"
    lines = [line.rstrip() for line in text.splitlines()[:SAMPLE_LINES] if line.strip()]
    rows = [line for line in lines if not line.startswith("#")]
    if rows and all(re.search(r"\s(O|[BIESLUM]-\S+)$", line) for line in rows):
        return "columns"  # a tag at the end of every line
    entity = r"\d+,\d+ [^|]+"
    if any(re.fullmatch(rf"{entity}(\|{entity})*", line) for line in lines[1:]):
        return "triplets"  # entities such as `0,3 PER` on a line of their own
    return None


def detect_json(path: Path, text: str) -> str | None:
    """The format of the first object; one without entities, which may be of several formats, is not enough."""
    first = None
    for _, record in islice(json_records(path, ConversionReport(skip_bad=True)), SAMPLE_LINES):
        format = detect_record(record, in_list=text.startswith("["))
        if format and (format != "jsonl" or record.get("entities")):
            return format
        first = first or format
    return first or ("bioc" if '"passages"' in text else None)


def label_studio_regions(record: dict[str, Any]) -> list[str]:
    """The keys of a record in Label Studio's short export (JSON-MIN) that hold regions, named after the controls.

    >>> label_studio_regions({"text": "Rome", "ner": [{"start": 0, "end": 4, "labels": ["GPE"]}]})
    ['ner']
    """
    return [
        key
        for key, values in record.items()
        if isinstance(values, list)
        and values
        and all(isinstance(value, dict) and value.keys() >= {"start", "end", "labels"} for value in values)
        and all(
            isinstance(label, str) for value in values if isinstance(value["labels"], list) for label in value["labels"]
        )
    ]


def detect_record(record: dict[str, Any], in_list: bool) -> str | None:
    """The format of one JSON object, by its keys. Objects in a list are not jsonl."""
    keys = record.keys()
    is_task = "data" in keys and keys & {"annotations", "predictions", "completions"}
    if is_task or label_studio_regions(record):
        return "label-studio"
    if keys & {"ner", "ners", "entity_mentions"}:
        return "research-json"
    if "passages" in keys or {"documents", "source"} <= keys:
        return "bioc"
    if {"spans", "text"} <= keys:
        return "prodigy"
    if "ner_tags" in keys and "entities" not in keys:
        return "datasets"
    entities = record.get("entities")
    entity = entities[0] if isinstance(entities, list) and entities else {}
    entity = entity if isinstance(entity, dict) else {"start_offset": entity}
    is_foreign = entity.keys() & {"type", "entity_type", "span"} and "label" not in entity
    if "tokens" in keys and (in_list or is_foreign):
        return "research-json"
    if keys & {"tokens", "words"}:
        return "jsonl"
    if keys & {"label", "labels", "relations"}:
        return "doccano"
    if {"entities", "text"} <= keys:
        return "doccano" if "start_offset" in entity else "jsonl"
    return None
