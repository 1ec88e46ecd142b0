"""Reading fixtures and comparing what was read; shared by the tests of the formats."""

import json
from functools import cache
from pathlib import Path

from nestree.data import formats
from nestree.data.io import ConversionReport
from nestree.types import Document, Sentence

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def documents(
    path: Path | str, format: str | None = None, **options: object
) -> tuple[list[Document], ConversionReport]:
    """Everything in a file, and what was counted on the way; a name is that of a fixture."""
    report = ConversionReport()
    path = path if isinstance(path, Path) else FIXTURES / path
    return list(formats.read(path, format, report, **options)), report


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
    """The sentence without blanks, and its entities in these characters: equal however words are split."""
    at = [0]
    for word in sentence.words:
        at.append(at[-1] + len(word))
    return "".join(sentence.words), {(at[e.start], at[e.end], e.label) for e in sentence.entities}


def read_one(
    folder: Path, format: str, record: object, report: ConversionReport | None = None, **options: object
) -> Document:
    """The document of a file with one JSON record."""
    path = folder / "a.jsonl"
    path.write_text(json.dumps(record), encoding="utf-8")
    (document,) = formats.read(path, format, report, **options)
    return document
