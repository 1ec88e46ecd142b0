"""Which format is this? Told from names and first lines, where only one fits."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

from nestree.data.files import STDIO, lines, opened
from nestree.data.records import records
from nestree.data.tally import Tally
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


def guess(path: Path, to_write: bool = False) -> str:
    """The name of the format of a file or folder, or an error that says to name it."""
    path = Path(path)
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
    if to_write:
        found = SUFFIXES.get(suffix) if suffix in TO_WRITE else None
    elif path == STDIO:
        found = None
    elif path.is_dir():
        found = guess_folder(path)
    elif suffix in (".jsonl", ".json", ".xml", ".txt", ""):
        found = guess_content(path) or ("jsonl" if suffix == ".jsonl" else None)
    else:
        found = SUFFIXES.get(suffix) or guess_content(path)
    if found is None:
        option = "--to" if to_write else "--from"
        raise DataError(f"{path}: its format cannot be told. Name it, with {option} or as `format`.")
    return found


def guess_folder(path: Path) -> str | None:
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
        found = {guess_content(pages[0]) or ""} & {"genia"}  # the only folder of XML files that is read
    return found.pop() if len(found) == 1 else None


def guess_content(path: Path) -> str | None:
    with opened(path) as file:
        start = file.read(LOOKED_AT)
    if not start.strip():
        raise DataError(f"{path} is empty. Check its name, or make it again.")
    text = start.decode("utf-8", errors="replace").removeprefix("\ufeff").lstrip()
    if text.startswith("<"):
        return guess_xml(text)
    if text.startswith(("{", "[")):
        return guess_json(path, text)
    if path.suffix == ".txt" and path.with_suffix(".ann").exists():
        return "brat"
    first = text.partition("\n")[0].split("|")
    if len(first) > 2 and first[1] in ("t", "a") and first[0].strip():
        return "pubtator"
    return guess_lines([line.rstrip() for line in text.splitlines()[:LINES] if line.strip()])


def guess_lines(lines: list[str]) -> str | None:
    """A tag at the end of every line, or entities such as `0,3 PER` on a line of their own."""
    rows = [line for line in lines if not line.startswith("#")]
    if rows and all(re.search(r"\s(O|[BIESLUM]-\S+)$", line) for line in rows):
        return "columns"
    entity = r"\d+,\d+ [^|]+"
    if any(re.fullmatch(rf"{entity}(\|{entity})*", line) for line in lines[1:]):
        return "triplets"
    return None


def guess_xml(text: str) -> str | None:
    if "<collection" in text:
        return "bioc"
    if "<source_file" in text:
        return "ace"
    if "<articleinfo" in text or "gpml" in text:
        return "genia"
    return None


def guess_json(path: Path, text: str) -> str | None:
    if text.startswith("["):
        _, first = next(records(path, Tally(skip_bad=True)), ("", {}))
        return guess_record(first)
    try:
        _, line = next(lines(path))
        record = json.loads(line)
    except (StopIteration, ValueError, RecursionError):
        return "bioc" if '"passages"' in text else None
    return guess_record(record) if isinstance(record, dict) else None


def guess_record(record: dict[str, Any]) -> str | None:
    """The format of one JSON object, by its keys."""
    keys = record.keys()
    if "data" in keys and keys & {"annotations", "predictions", "completions"}:
        return "label-studio"
    if "ner" in keys or "ners" in keys or "entity_mentions" in keys:
        return "peers"
    if "passages" in keys or ("documents" in keys and "source" in keys):
        return "bioc"
    if "spans" in keys and "text" in keys:
        return "prodigy"
    if "tokens" in keys or "words" in keys:
        return "jsonl"
    if "label" in keys or "labels" in keys or "relations" in keys:
        return "doccano"
    if "entities" in keys and "text" in keys:
        found = record["entities"]
        first = found[0] if isinstance(found, list) and found else {}
        return "jsonl" if isinstance(first, dict) and "start_offset" not in first else "doccano"
    return None
