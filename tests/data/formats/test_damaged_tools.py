"""Damaged files of annotation tools and libraries give data or a DataError, nothing else: 500 copies per format."""

from pathlib import Path

import datasets
import pytest

from nestree.data import formats
from nestree.data.tally import Tally
from nestree.errors import DataError
from nestree.sentence import Document, Entity, Sentence
from tests.data.formats.damage import damaged
from tests.data.formats.reading import FIXTURES

COPIES = 500
SOME = [
    Document(
        (Sentence(("In", "Rome"), (Entity(0, 2, "X", head=1, score=0.5), Entity(1, 2, "GPE"))),), None, "a"
    ),
    Document((Sentence(("Só", "🙂"), (Entity(0, 1, "Y"),)),)),
]


def outcomes(path: Path, format: str, data: bytes, copies: int, shown: Path | None = None) -> dict[str, int]:
    """How often damaged copies of a file could be read; every other time, what is bad is skipped."""
    found = {"data": 0, "error": 0}
    for number, copy in enumerate(damaged(data, copies)):
        path.write_bytes(copy)
        try:
            for document in formats.read(shown or path, format, Tally(skip_bad=bool(number % 2))):
                assert isinstance(document, Document)
            found["data"] += 1
        except DataError:
            found["error"] += 1
    return found


@pytest.mark.parametrize(
    ("format", "names"),
    [
        ("label-studio", ["label_studio.json", "label_studio_old.jsonl"]),
        ("doccano", ["doccano_entities.jsonl", "doccano_label.jsonl"]),
        ("prodigy", ["prodigy.jsonl"]),
        ("pubtator", ["pubtator.txt"]),
        ("bioc", ["bioc.xml", "bioc_lines.jsonl"]),
        ("peers", ["peers_index.json", "peers_mentions.jsonl", "peers_document.jsonl"]),
    ],
)
def test_damaged_text(tmp_path, format, names):
    for name in names:
        data = (FIXTURES / "tools" / name).read_bytes()
        found = outcomes(tmp_path / name, format, data, COPIES // len(names) + 1)
        assert min(found.values()) > 20  # both happen: the damage is neither harmless nor total


@pytest.mark.parametrize(("format", "name"), [("spacy", "a.spacy"), ("datasets", "a.parquet")])
def test_damaged_bytes(tmp_path, format, name):
    formats.write(SOME, tmp_path / name, format)
    found = outcomes(tmp_path / name, format, (tmp_path / name).read_bytes(), COPIES)
    assert min(found.values()) > 20


def test_damaged_folders(tmp_path):
    datasets.disable_progress_bars()
    formats.write(SOME, tmp_path / "d", "datasets")
    datasets.enable_progress_bars()
    for path in sorted((tmp_path / "d").iterdir()):
        data = path.read_bytes()
        found = outcomes(path, "datasets", data, COPIES // 3 + 1, shown=tmp_path / "d")
        assert min(found.values()) > 5
        path.write_bytes(data)
