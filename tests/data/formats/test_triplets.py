"""Triplets: with and without tags, empty lines, both kinds of ends; and real files."""

import pytest

from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence
from tests.tiny import write_text

from .reading import converted_sentences, documents, phrases, sentences, spans, write


def read(tmp_path, text, **options):
    return sentences(write_text(tmp_path / "a.data", text), **options)


def test_the_fixture_counted_by_hand():
    first, second, third = sentences("triplets.data", strip="G#")
    mountain, state = ("Mount Rainier", "LOC"), ("Washington", "GPE")
    assert phrases(first) == [mountain, state, ("Mount Rainier is in Washington", "LOC")]
    assert first.extra == {"pos": ["NNP", "NNP", "VBZ", "IN", "NNP"]}
    assert (second.words, second.entities, second.extra) == (("It", "rains"), (), {"pos": ["PRP", "VBZ"]})
    assert (phrases(third), third.extra) == ([("Mia", "PER"), ("Li", "PER")], {})
    assert {entity.label for entity in sentences("triplets.data")[0].entities} == {"G#LOC", "G#GPE"}


@pytest.mark.parametrize(
    "text",
    [
        "a b\nX Y\n0,1 P\n\nc d\nX Y\n\n\ne\nX\n0,1 P\n\n",  # an empty line for no entities, as it should be
        "a b\nX Y\n0,1 P\n\nc d\nX Y\n\ne\nX\n0,1 P",  # no line for no entities
        "a b\n0,1 P\n\nc d\n\n\ne\n0,1 P\n",  # without tags
        "a b\n0,1 P\n\nc d\n\ne\n0,1 P\n\n\n",
        "\n\na b\r\n0,1 P\r\n\r\nc d\r\n\r\n\r\ne\r\n0,1 P\r\n",
    ],
)
def test_the_line_of_the_entities_may_be_empty(tmp_path, text):
    found = read(tmp_path, text)
    assert [s.words for s in found] == [("a", "b"), ("c", "d"), ("e",)]
    assert [spans(s) for s in found] == [[(0, 1, "P")], [], [(0, 1, "P")]]


def test_ends_are_exclusive_or_inclusive(tmp_path):
    text = "a b c\n0,1 P|2,2 Q\n"
    with pytest.raises(DataError, match=r"a.data:2: entity '2,2 Q' is empty .* --read ends=inclusive"):
        read(tmp_path, text)
    assert spans(read(tmp_path, text, ends="inclusive")[0]) == [(0, 2, "P"), (2, 3, "Q")]
    with pytest.raises(DataError, match=r"ends after the sentence, .* 3 words. .* --read ends=exclusive"):
        read(tmp_path, "a b c\n0,3 P\n", ends="inclusive")


@pytest.mark.parametrize("wrong", ["0 2 PER", "0-2 PER", "0 - 2 PER", "0,2", "0,2 PER|2 3 GPE", "0\t2\tPER"])
@pytest.mark.parametrize("words", ["a b", "a b c"])
def test_a_malformed_line_of_entities_is_no_line_of_tags(tmp_path, wrong, words):
    with pytest.raises(DataError, match=r"a.data:2: .* is not a list of entities such as 0,3 PER\|4,5 GPE"):
        read(tmp_path, f"{words}\n{wrong}\n")
    (sentence,) = read(tmp_path, "2 - 3 men\nCD : CD NNS\n\n\n")
    assert sentence.extra == {"pos": ["CD", ":", "CD", "NNS"]}


def test_tags_that_are_too_few_are_left_out_and_counted(tmp_path):
    ((document,), report) = documents(write_text(tmp_path / "a.data", "a b c\nX Y\n0,1 P\n"))
    assert (spans(document.sentences[0]), document.sentences[0].extra) == ([(0, 1, "P")], {})
    assert report.counts == {"part-of-speech tags not kept: there is not one for each word": 1}


def test_what_is_written(tmp_path):
    first = Sentence(["a b", "c"], [Entity(0, 2, "P|Q", score=0.5)], extra={"pos": ["X", "Y"]})
    report = write([Document([first, Sentence(["d"])])], tmp_path / "a.data", ends="inclusive")
    assert (tmp_path / "a.data").read_text() == "a_b c\nX Y\n0,1 P_Q\n\nd\n\n\n"
    for what in ("words", "labels"):
        changed = f"{what} changed: triplets has no place for spaces, | and line ends in them"
        assert report.counts[changed] == 1


@pytest.mark.parametrize(
    ("part", "first", "entities", "different"),
    [("dev", 186, 5014, [22, 171, 1468, 1469]), ("test", 0, 5600, [331, 1383, 1384])],
)
def test_real_files_agree_with_the_converted_set(shared, part, first, entities, different):
    """All sentences but seven are equal; in these, some entities of the converted set are one word off."""
    raw = sentences(shared / "data" / "raw" / "genia_triplets" / f"{part}.data", strip="G#")
    converted = converted_sentences(shared, "genia_paper", part)
    assert (len(raw), sum(len(s.entities) for s in raw)) == (1855, entities)
    assert [s.words for s in raw[first:]] == [s.words for s in converted]
    pairs = [(set(spans(a)), set(spans(b))) for a, b in zip(raw[first:], converted, strict=True)]
    assert [k for k, (mine, theirs) in enumerate(pairs) if mine != theirs] == different
