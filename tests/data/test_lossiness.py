"""Counting what a format has no place for."""

import pytest

from nestree.data.io import ConversionReport
from nestree.data.lossiness import count_part, report_losses
from nestree.types import Document, Entity, Sentence, Tree


def placed(text, *sentences):
    """A document of this text whose sentences are made of these words, one after the other."""
    at, found = 0, []
    for words in sentences:
        offsets = []
        for word in words:
            start = text.index(word, at)
            at = start + len(word)
            offsets.append((start, at))
        begin = offsets[0][0]
        found.append(Sentence(words, (), text[begin:at], [(i - begin, j - begin) for i, j in offsets], begin))
    return Document(found, text)


def count_losses(document, format, *more_parts):
    tally = ConversionReport()
    assert list(report_losses([document], format, tally, *more_parts)) == [
        (document.id or "document 1", document)
    ]
    return {
        what.partition(f" not written: {format} has no place for them")[0]: n
        for what, n in tally.counts.items()
    }


def test_each_part_is_counted_where_it_is():
    entities = [Entity(0, 1, "X", head=0), Entity(0, 2, "X", heads=(0, 1)), Entity(1, 2, "Y")]
    other = Entity(0, 1, "X", score=0.5, extra={"k": 1})
    document = Document(
        [
            Sentence(["a", "b"], entities),
            Sentence(["c"], [other], id="s", complete=False, extra={"k": 1, "windows": 2}),
            Sentence(["d"], tree=Tree(((0, 1, 0),)), extra={"windows": 2}),
        ],
        id="d",
        extra={"k": 1},
    )
    expected = {
        "heads": 2,
        "scores": 1,
        "further keys of entities": 1,
        "further keys of sentences": 1,
        "further keys of documents": 1,
        "ids of sentences": 1,
        "ids of documents": 1,
        "marks of incomplete sentences": 1,
        "borders of documents": 1,
        "trees": 1,
    }
    assert count_losses(document, "columns") == expected
    assert count_losses(Document([]), "columns") == {"documents without sentences": 1}
    assert count_losses(document, "label-studio", "scores")["scores"] == 1
    assert "scores" not in count_losses(document, "label-studio")


def test_keys_that_a_format_holds_are_no_loss():
    document = Document([Sentence(["a"], [Entity(0, 1, "X", extra={"id": "7"})], extra={"pos": ["N"]})])
    assert count_losses(document, "pubtator") == {"further keys of sentences": 1}
    assert count_losses(document, "spacy") == {"further keys of sentences": 1}
    assert count_losses(document, "triplets") == {"further keys of entities": 1}


@pytest.mark.parametrize(
    ("document", "words", "sentences"),
    [
        (placed("It is .\nSo .", ["It", "is", "."], ["So", "."]), 0, 0),
        (placed("It is.\nSo .", ["It", "is", "."], ["So", "."]), 1, 0),
        (placed("It is . So .", ["It", "is", "."], ["So", "."]), 0, 2),
        (placed("It\nis .\nSo .", ["It", "is", "."], ["So", "."]), 0, 1),
        (placed("  It is .\n\n So .\n\n", ["It", "is", "."], ["So", "."]), 0, 0),
        (Document([Sentence(["It", "is"]), Sentence(["So"])]), 0, 0),
        (Document([Sentence(["It is", "."])]), 1, 0),
    ],
)
def test_borders_that_blanks_and_lines_would_not_keep(document, words, sentences):
    assert count_part(document, "borders of words") == words
    assert count_part(document, "borders of sentences") == sentences
