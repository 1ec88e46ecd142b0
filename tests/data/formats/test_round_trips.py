"""What is written is read again, up to what the format cannot hold: the table in docs/data.md, cell by cell."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nestree.data import formats
from nestree.data.formats import FORMATS, options
from nestree.data.io import ConversionReport
from nestree.types import Document, Entity, Sentence

from .parts import PARTS
from .reading import docs_section, write

WRITABLE = [name for name in FORMATS if FORMATS[name].writable]
AS_GIVEN = {"words": "whitespace", "sentences": "lines"}  # how the texts here are split
# How a loss is called where that is not simply the name of the part.
CALLED = {"several heads": "heads not written", "texts": "(texts not written|line ends written as spaces)"}


def table() -> dict[str, set[str]]:
    """For each format, the parts that docs/data.md says it loses."""
    section = docs_section("What a format cannot hold")
    lines = [line.strip("|").split("|") for line in section.splitlines() if line[:1] == "|"]
    rows = [[cell.strip() for cell in line] for line in lines]
    names, _, *parts = rows
    return {
        name: {row[0] for row in parts if {"x": False, "-": True}[row[column]]}
        for column, name in enumerate(names)
        if name
    } | {"": {row[0] for row in parts}}


LOST = table()
ALL_PARTS = LOST.pop("")


def there_and_back(
    documents: list[Document], name: str, folder: Path, suffix: str = ""
) -> tuple[list[Document], ConversionReport]:
    """What is read after writing, and what was counted when writing."""
    path = folder / f"written.{suffix or name}"
    report = write(documents, path, name)
    if name == "csv":  # whose texts stand beside it; here, with a line end more
        for number, document in enumerate(documents, 1):
            text = f"\ufeff{document.with_text().text}\n"
            (folder / f"{document.id or f'document {number}'}.txt").write_bytes(text.encode())
    chosen = {key: value for key, value in AS_GIVEN.items() if key in options(name)}
    try:
        return list(formats.read(path, name, **chosen)), report
    finally:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def reduced(documents: list[Document], lost: set[str]) -> list[Document]:
    """The documents without the parts that are lost, and in a fixed order of entities."""
    found = [
        replace(
            document,
            sentences=[less(sentence, lost) for sentence in document.sentences],
            text=None if "texts" in lost else document.with_text().text,
            id=None if "ids of documents" in lost else document.id,
        )
        for document in documents
    ]
    if "document boundaries" in lost:
        return [Document([sentence]) for document in found for sentence in document.sentences]
    return found


def less(sentence: Sentence, lost: set[str]) -> Sentence:
    if "texts" in lost:
        sentence = replace(sentence, text=None, offsets=None, start=0)
    entities = [
        replace(
            entity,
            head=None if "heads" in lost else entity.head,
            heads=() if "several heads" in lost else entity.heads,
            score=None if "scores" in lost else entity.score,
        )
        for entity in sentence.entities
    ]
    return replace(
        sentence,
        entities=sorted(entities, key=str),
        id=None if "ids of sentences" in lost else sentence.id,
        complete=True if "marks of incomplete sentences" in lost else sentence.complete,
    )


def extras(documents: list[Document], lost: set[str]) -> list[object]:
    """The extra keys that should be there."""
    return [PARTS[part].value(documents) for part in PARTS if part.startswith("extra keys") and part not in lost]


def test_the_table_has_all_formats_and_parts():
    assert list(LOST) == WRITABLE
    assert set(PARTS) == ALL_PARTS
    assert LOST["jsonl"] == set()


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", WRITABLE)
def test_the_table_is_true(tmp_path, name, part):
    documents, value = PARTS[part]
    back, report = there_and_back(documents, name, tmp_path)
    assert (value(back) != value(documents)) == (part in LOST[name])
    counted = any(re.match(CALLED.get(part, f"{part} not written"), what) for what in report.counts)
    assert counted == (part in LOST[name])


@pytest.mark.parametrize("name", WRITABLE)
def test_an_empty_id_is_no_id(tmp_path, name):
    document = PARTS["nested entities"].given[0]
    (empty, counts), (none, expected) = (
        there_and_back([replace(document, id=id)] * 2, name, tmp_path) for id in ("", None)
    )
    assert [d.id for d in empty] == [d.id for d in none]
    assert counts.counts == expected.counts


def everything() -> list[Document]:
    """Two documents with all parts, their words between spaces and their sentences on lines."""
    entities = Entity(0, 3, "PER", head=0, score=0.5, extra={"k": "v"}), Entity(2, 3, "GPE", extra={"k": "w"})
    entities += Entity(0, 3, "TITLE", heads=(0, 2)), Entity(2, 5, "X"), *[Entity(4, 5, "PER")] * 2
    words = ["Duke", "of", "York", "saw", "Ann", "."]
    first = Sentence(words, entities, id="s1", complete=False, extra={"k": "v"})
    second = Sentence(["😀", "«été»", "שלום", "<&>", '"\\'], [Entity(2, 5, "été-x")], id="s2")
    documents = Document([first, second], id="d1", extra={"k": "v"}), Document([second, first], id="d2")
    return [document.with_text() for document in documents]


@pytest.mark.parametrize("one", WRITABLE)
@pytest.mark.parametrize("other", WRITABLE)
def test_from_any_format_to_any_other(tmp_path, one, other):
    lost = LOST[one] | LOST[other]
    documents = everything()
    between, _ = there_and_back(documents, one, tmp_path)
    back, _ = there_and_back(between, other, tmp_path)
    assert reduced(back, lost) == reduced(documents, lost)
    assert extras(back, lost) == extras(documents, lost)


LETTERS = st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"], exclude_characters="\ufffe\uffff")
CHARACTERS = st.sampled_from("aZ0.,:;|/\\#-_'\"<>&{}[]()=*%+é\u0301ß😀👩אم\u200d\u200b") | LETTERS
words = st.text(CHARACTERS, min_size=1, max_size=4).filter(lambda word: word.split() == [word])
labels = st.sampled_from(["PER", "B-X", "a|b", "été", "O", "x y", "#1", '"', "<&>", "0,1 X"])
labels |= st.text(LETTERS, min_size=1, max_size=3)


@st.composite
def any_sentence(draw: st.DrawFn) -> Sentence:
    found = draw(st.lists(words, min_size=1, max_size=6))
    entities = []
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(found) - 1))
        end = draw(st.integers(start + 1, len(found)))
        entities.append(Entity(start, end, draw(labels)))
    return Sentence(found, entities)


@st.composite
def any_documents(draw: st.DrawFn) -> list[Document]:
    """Documents of words alone, or with a text in which one or several line breaks separate the sentences."""
    documents = []
    for number in range(draw(st.integers(1, 3))):
        document = Document(draw(st.lists(any_sentence(), min_size=1, max_size=3)), id=f"d{number}")
        separator = draw(st.sampled_from(["", "\n", "\r\n", "\n \n"]))
        documents.append(document.with_text(separator) if separator else document)
    return documents


@pytest.mark.parametrize(
    ("name", "suffix", "examples"),
    [(name, name, 15 if name in ("spacy", "datasets") else 40) for name in WRITABLE]
    + [("bioc", "json", 40), ("bioc", "jsonl", 20), ("datasets", "parquet", 15)],
)
def test_whatever_the_words_and_labels_are(tmp_path, name, suffix, examples):
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    @given(any_documents())
    def check(documents: list[Document]) -> None:
        if name == "csv":  # which has no row for others
            documents = [document for document in documents if document.entities]
            assume(documents)
        back, report = there_and_back(documents, name, tmp_path, suffix)
        if any(what.startswith(("labels changed", "words changed")) for what in report.counts):
            documents, back = without_labels(documents), without_labels(back)
        if name == "pubtator":  # it holds one line break
            assert [flatten(document) for document in back] == [flatten(document) for document in documents]
            return
        lost = LOST[name] | ({"texts"} if any(document.text is None for document in documents) else set())
        assert reduced(back, lost) == reduced(documents, lost)

    check()


def flatten(document: Document) -> tuple[str | None, list[str], list[tuple[int, int, str]]]:
    """The words of a document and its entities, wherever its sentences end."""
    words: list[str] = []
    entities = []
    for sentence in document.sentences:
        entities += [(len(words) + e.start, len(words) + e.end, e.label) for e in sentence.entities]
        words += sentence.words
    return document.id, words, sorted(entities)


def without_labels(documents: list[Document]) -> list[Document]:
    def unlabelled(sentence: Sentence) -> Sentence:
        return replace(sentence, entities=[replace(e, label="X") for e in sentence.entities])

    return [replace(document, sentences=map(unlabelled, document.sentences)) for document in documents]
