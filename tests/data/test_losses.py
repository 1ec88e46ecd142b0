"""Counting what a format has no place for."""

import pytest

from nestree.data.io import ConversionReport
from nestree.data.lossiness import PARTS, report_losses
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


def test_each_part_is_counted_where_it_is():
    document = Document(
        [
            Sentence(
                ["a", "b"], [Entity(0, 1, "X", head=0), Entity(0, 2, "X", heads=(0, 1)), Entity(1, 2, "Y")]
            ),
            Sentence(
                ["c"], [Entity(0, 1, "X", score=0.5, extra={"k": 1})], id="s", complete=False, extra={"k": 1}
            ),
            Sentence(["d"], tree=Tree(((0, 1, 0),))),
        ],
        id="d",
        extra={"k": 1},
    )
    tally = ConversionReport()
    report_losses(document, "brat", PARTS, tally, "here")
    expected = {
        "heads": 2,
        "scores": 1,
        "further keys of entities": 1,
        "further keys of sentences": 1,
        "further keys of documents": 1,
        "ids of sentences": 1,
        "ids of documents": 1,
        "marks of incomplete sentences": 1,
        "trees": 1,
        "borders of documents": 1,
    }
    assert tally.counts == {
        f"{part} not written: brat has no place for them": n for part, n in expected.items()
    }
    tally = ConversionReport()
    report_losses(Document([]), "brat", PARTS, tally, "here")
    assert tally.counts == {"documents without sentences not written: brat has no place for them": 1}


def test_trees_are_counted_whatever_else_a_format_loses():
    tally = ConversionReport()
    report_losses(Document([Sentence(["d"], tree=Tree(((0, 1, 0),)))]), "brat", [], tally, "here")
    assert tally.counts == {"trees not written: brat has no place for them": 1}


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
    assert PARTS["borders of words"](document) == words
    assert PARTS["borders of sentences"](document) == sentences
