"""Detects the format of a file or folder from its name and its first lines, where only one format fits."""

import itertools
import re
import sys
from pathlib import Path
from typing import Any

from nestree.data.io import STDIO, ConversionReport, json_records, open_file
from nestree.errors import DataError

SAMPLE_BYTES = 2**16
SAMPLE_LINES = 200
MAX_FILES = 10_000

SUFFIXES = {".jsonl": "jsonl", ".conllu": "gum", ".spacy": "spacy", ".ann": "brat", ".sgm": "ace"}
SUFFIXES |= {".mrg": "nne", ".pubtator": "pubtator", ".csv": "csv"}
SUFFIXES |= dict.fromkeys((".parquet", ".arrow"), "datasets")
SUFFIXES |= dict.fromkeys((".iob2", ".iob", ".bio", ".bioes", ".conll"), "columns")
SUFFIXES |= dict.fromkeys((".data", ".triplets"), "triplets")
READ_ONLY_SUFFIXES = {".conllu", ".sgm", ".mrg"}
# What their formats are written to instead.
WRITTEN_TO = {
    ".ann": "a folder",
    ".arrow": "a folder or a file called .parquet",
    ".iob": "a file called .iob2",
}
# By the end of the name of a file in the folder.
FOLDER_FORMATS = {suffix: SUFFIXES[suffix] for suffix in (".ann", ".conllu", ".arrow", ".parquet", ".mrg")}
FOLDER_FORMATS |= {".apf.xml": "ace", "dataset_dict.json": "datasets"}
# Formats of single files: in a folder, they are read one after the other.
FILE_FORMATS = {
    "jsonl", "columns", "triplets", "label-studio", "doccano", "prodigy", "spacy", "pubtator", "bioc",
    "research-json", "csv",
}  # fmt: skip
FILE_SUFFIXES = {suffix for suffix, format in SUFFIXES.items() if format in FILE_FORMATS}
FILE_SUFFIXES |= {".json", ".xml", ".tsv"}  # whose content is looked at
PARTS = ("train", "dev", "test")


def suffix_of(path: Path) -> str:
    """The ending of a file name, without .gz."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def list_files(folder: Path) -> list[Path]:
    """The files in a folder and the folders in it, without hidden ones, sorted."""
    files = (file for file in itertools.islice(folder.rglob("*"), MAX_FILES) if file.is_file())
    return sorted(f for f in files if not any(part.startswith(".") for part in f.relative_to(folder).parts))


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
    if names and all(name.endswith((".txt", ".txt.gz")) for name in names):
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
    formats = {format for end, format in FOLDER_FORMATS.items() if any(f.name.endswith(end) for f in files)}
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
            while len(start) < SAMPLE_BYTES and (more := file.read1(SAMPLE_BYTES)):  # type: ignore[attr-defined]
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
    for _, record in itertools.islice(json_records(path, ConversionReport(skip_bad=True)), SAMPLE_LINES):
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
        and all(isinstance(label, str) for value in values for label in value["labels"] or ())
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
