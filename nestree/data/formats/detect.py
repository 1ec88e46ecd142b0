"""Which format is this? Told from names and first lines, where only one fits."""

import itertools
import re
import sys
from pathlib import Path
from typing import Any

from nestree.data.io import STDIO, ConversionReport, json_records, open_file, short_regions
from nestree.errors import DataError

LOOKED_AT = 2**16  # bytes of a file
LINES = 200
MOST_FILES = 10_000

SUFFIXES = {
    ".jsonl": "jsonl",
    ".conllu": "gum",
    ".spacy": "spacy",
    ".parquet": "datasets",
    ".arrow": "datasets",
    ".ann": "brat",
    ".sgm": "ace",
    ".mrg": "nne",
    ".iob2": "columns",
    ".iob": "columns",
    ".bio": "columns",
    ".bioes": "columns",
    ".conll": "columns",
    ".data": "triplets",
    ".triplets": "triplets",
    ".pubtator": "pubtator",
}
TO_WRITE = {
    ".jsonl",
    ".spacy",
    ".parquet",
    ".iob2",
    ".bio",
    ".bioes",
    ".conll",
    ".data",
    ".triplets",
    ".pubtator",
}


def detect_format(path: Path, to_write: bool = False) -> str:
    """The name of the format of a file or folder, or an error that says to name it."""
    path = Path(path)
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
    if to_write:
        found = SUFFIXES.get(suffix) if suffix in TO_WRITE else None
    elif path == STDIO:
        found = None
    elif path.is_dir():
        found = detect_folder(path)
    elif suffix in (".jsonl", ".json", ".xml", ".txt", ""):
        found = detect_content(path) or ("jsonl" if suffix == ".jsonl" else None)
    else:
        found = SUFFIXES.get(suffix) or detect_content(path)
    if found is None:
        option = "--to" if to_write else "--from"
        if path.is_dir() and not to_write:
            raise DataError(
                f"{path} is a directory, and its format cannot be told. Name one of the files in it, or the format, "
                f"with {option} or as `format`."
            )
        raise DataError(f"{path}: its format cannot be told. Name it, with {option} or as `format`.")
    return found


BEGIN_OF_JSON = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"')


def detect_stdin() -> str:
    """For whoever reads texts: JSON lines if it begins like them, else text. Nothing is read away."""
    stream: Any = sys.stdin and sys.stdin.buffer
    start = b""
    if hasattr(stream, "peek"):
        start = stream.peek(64)
    elif stream is not None and stream.seekable():
        at = stream.tell()
        start = stream.read(64)
        stream.seek(at)
    return "jsonl" if BEGIN_OF_JSON.match(start) else "text"


def detect_folder(path: Path) -> str | None:
    kinds = {
        ".ann": "brat",
        ".apf.xml": "ace",
        ".conllu": "gum",
        ".arrow": "datasets",
        ".parquet": "datasets",
        "dataset_dict.json": "datasets",
        ".mrg": "nne",
    }
    files = [file for file in itertools.islice(path.rglob("*"), MOST_FILES) if file.is_file()]
    found = {kind for end, kind in kinds.items() if any(file.name.endswith(end) for file in files)}
    if not found and (pages := sorted(file for file in files if file.suffix == ".xml")):
        found = {detect_content(pages[0]) or ""} & {"genia"}  # the only folder of XML files that is read
    if any(file.name.endswith((".jsonl", ".jsonl.gz")) for file in files):
        return None  # to read the rest alone would leave these out
    return found.pop() if len(found) == 1 else None


def detect_content(path: Path) -> str | None:
    start = beginning(path)
    if not start.strip():
        raise DataError(f"{path} is empty. Check its name, or make it again.")
    text = start.decode("utf-8", errors="replace").removeprefix("\ufeff").lstrip()
    if text.startswith("<"):
        return detect_xml(text)
    if text.startswith(("{", "[")):
        return detect_json(path, text)
    if path.suffix == ".txt" and path.with_suffix(".ann").exists():
        return "brat"
    first = text.partition("\n")[0].split("|")
    if len(first) > 2 and first[1] in ("t", "a") and first[0].strip():
        return "pubtator"
    return detect_lines([line.rstrip() for line in text.splitlines()[:LINES] if line.strip()])


def beginning(path: Path) -> bytes:
    """The first bytes of a file; of one that is cut off, those that are there."""
    start = b""
    try:
        with open_file(path) as file:
            while len(start) < LOOKED_AT and (more := file.read1(LOOKED_AT)):  # type: ignore[attr-defined]
                start += more
    except DataError:
        if not start:
            raise
    return start


def detect_lines(lines: list[str]) -> str | None:
    """A tag at the end of every line, or entities such as `0,3 PER` on a line of their own."""
    rows = [line for line in lines if not line.startswith("#")]
    if rows and all(re.search(r"\s(O|[BIESLUM]-\S+)$", line) for line in rows):
        return "columns"
    entity = r"\d+,\d+ [^|]+"
    if any(re.fullmatch(rf"{entity}(\|{entity})*", line) for line in lines[1:]):
        return "triplets"
    return None


def detect_xml(text: str) -> str | None:
    if "<collection" in text:
        return "bioc"
    if "<source_file" in text:
        return "ace"
    if "<articleinfo" in text or "gpml" in text:
        return "genia"
    return None


def detect_json(path: Path, text: str) -> str | None:
    """By the first object; one that may be of several formats, because it has no entities, does not tell."""
    first = None
    for _, record in itertools.islice(json_records(path, ConversionReport(skip_bad=True)), LINES):
        found = detect_record(record, listed=text.startswith("["))
        if found and (found != "jsonl" or record.get("entities")):
            return found
        first = first or found
    return first or ("bioc" if '"passages"' in text else None)


def detect_record(record: dict[str, Any], listed: bool = False) -> str | None:
    """The format of one JSON object, by its keys; `listed`: it is one of a list, which jsonl is not."""
    keys = record.keys()
    if ("data" in keys and keys & {"annotations", "predictions", "completions"}) or short_regions(record):
        return "label-studio"
    if "ner" in keys or "ners" in keys or "entity_mentions" in keys:
        return "research-json"
    if "passages" in keys or ("documents" in keys and "source" in keys):
        return "bioc"
    if "spans" in keys and "text" in keys:
        return "prodigy"
    found = record.get("entities")
    first = found[0] if isinstance(found, list) and found else {}
    first = first if isinstance(first, dict) else {"start_offset": first}
    if "tokens" in keys and (listed or ("type" in first and "label" not in first)):
        return "research-json"
    if "tokens" in keys or "words" in keys:
        return "jsonl"
    if "label" in keys or "labels" in keys or "relations" in keys:
        return "doccano"
    if "entities" in keys and "text" in keys:
        return "doccano" if "start_offset" in first else "jsonl"
    return None
