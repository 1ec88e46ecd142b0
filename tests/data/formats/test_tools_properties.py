"""Any documents, written for a tool or a library and read back: the same words, the same entities."""

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nestree.data import formats
from nestree.data.io import ConversionReport
from nestree.types import Document, Entity, Sentence

NEW_NAMES = itertools.count()
LETTERS = st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"], exclude_characters="\ufffe\uffff")
WORDS = st.text(st.sampled_from("aZé\u0301\u200d🙂👩-.'|\\<&\"") | LETTERS, min_size=1, max_size=4).filter(
    lambda word: not any(character.isspace() for character in word)
)


@st.composite
def sentences(draw):
    words = draw(st.lists(WORDS, min_size=1, max_size=6))
    entities = []
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(words) - 1))
        end = draw(st.integers(start + 1, len(words)))
        entities.append(Entity(start, end, draw(st.text(LETTERS, min_size=1, max_size=3))))
    return Sentence(tuple(words), tuple(entities))


@st.composite
def some_documents(draw):
    """Documents of words alone, or with a text in which one or several blanks part them."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        document = Document(tuple(draw(st.lists(sentences(), min_size=1, max_size=3))), None, f"d{number}")
        found.append(
            document.with_text(draw(st.sampled_from(["\n", "\r\n", "\n \n"])))
            if draw(st.booleans())
            else document
        )
    return found


def told(document):
    """The words of a document and its entities, wherever its sentences end."""
    words, entities = [], []
    for sentence in document.sentences:
        entities += [(len(words) + e.start, len(words) + e.end, e.label) for e in sentence.entities]
        words += sentence.words
    return document.id, words, sorted(entities)


@pytest.mark.parametrize(
    ("format", "name", "examples"),
    [
        ("label-studio", "a.json", 40),
        ("doccano", "a.jsonl", 40),
        ("prodigy", "a.jsonl", 40),
        ("pubtator", "a.txt", 40),
        ("bioc", "a.xml", 40),
        ("bioc", "a.json", 40),
        ("spacy", "a.spacy", 20),
        ("datasets", "a.parquet", 20),
    ],
)
def test_what_is_written_is_read(tmp_path, format, name, examples):
    split = {"words": "whitespace"} if "words" in formats.options(format) and format != "prodigy" else {}

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(some_documents())
    def check(documents: list[Document]) -> None:
        path: Path = tmp_path / f"{next(NEW_NAMES)}-{name}"
        tally = ConversionReport()
        formats.write(documents, path, format)
        back = list(formats.read(path, format, tally, **split))
        assert [told(document) for document in back] == [told(document) for document in documents]
        for document, read in zip(documents, back, strict=True):
            if document.text is not None and format != "pubtator":
                assert read.text == document.text
        assert not [what for what in tally.counts if what.startswith(("dropped", "widened"))]

    check()
