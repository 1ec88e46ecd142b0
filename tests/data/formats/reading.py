"""Reading and writing files with what is counted on the way, and comparing what was read."""

import json
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from nestree.data import formats
from nestree.data.io import ConversionReport
from nestree.errors import DataError
from nestree.types import Document, Sentence
from tests.tiny import write_text

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
COUNTED = FIXTURES / "commands" / "counted.jsonl"  # whose statistics were counted by hand


def docs_section(title: str) -> str:
    """A section of docs/data.md."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    return page.partition(f"## {title}")[2].partition("\n## ")[0]


def documents(
    path: Path | str, format: str | None = None, skip_bad: bool = False, **options: object
) -> tuple[list[Document], ConversionReport]:
    """Everything in a file, and what was counted on the way; a name is that of a fixture."""
    found, report = [], ConversionReport(skip_bad=skip_bad)
    with suppress(formats.AllSkippedError):  # raised only where bad records are skipped
        found.extend(formats.read(FIXTURES / path, format, report, **options))
    return found, report


def converted_documents(shared: Path, name: str) -> list[Document]:
    """All parts of one of the converted real sets."""
    return [document for part in ("train", "dev", "test") for document in converted(shared, name, part)[0]]


@cache
def converted(shared: Path, name: str, part: str) -> tuple[list[Document], ConversionReport]:
    """A part of one of the converted real sets; read once for all tests."""
    return documents(shared / "data" / name / f"{part}.jsonl.gz")


def converted_sentences(shared: Path, name: str, part: str) -> list[Sentence]:
    return [sentence for document in converted(shared, name, part)[0] for sentence in document.sentences]


def sentences(path: Path | str, format: str | None = None, **options: object) -> list[Sentence]:
    return [sentence for document in documents(path, format, **options)[0] for sentence in document.sentences]


def phrases(sentence: Sentence) -> list[tuple[str, str]]:
    """The entities of a sentence, as people see them."""
    return [(sentence.phrase(entity), entity.label) for entity in sentence.entities]


def spans(sentence: Sentence) -> list[tuple[int, int, str]]:
    return [(entity.start, entity.end, entity.label) for entity in sentence.entities]


def squeezed(sentence: Sentence) -> tuple[str, set[tuple[int, int, str]]]:
    """The sentence without white space, and its entities in these characters: equal however words are split."""
    at = [0]
    for word in sentence.words:
        at.append(at[-1] + len(word))
    return "".join(sentence.words), {(at[e.start], at[e.end], e.label) for e in sentence.entities}


def assert_refused(pattern: str, path: Path | str, format: str | None = None, **options: object) -> None:
    """Reading raises a DataError whose message matches."""
    with pytest.raises(DataError, match=pattern):
        documents(path, format, **options)


def read_one(folder: Path, format: str, record: object, **options: object) -> tuple[Document, ConversionReport]:
    """The document of a file with one JSON record, and what was counted on the way."""
    (document,), report = documents(write_text(folder / "a.jsonl", json.dumps(record)), format, **options)
    return document, report


def write(given: list[Document], path: Path, format: str | None = None, **options: object) -> ConversionReport:
    """What is counted when these documents are written."""
    report = ConversionReport()
    formats.write(given, path, format, report, **options)
    return report
