"""Columns of tags: schemes, layers, joined cells; with documents, comments and mistakes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestree.data.formats.columns import decode_tags, encode_tags
from nestree.data.io import ConversionReport
from nestree.errors import InputError
from nestree.types import Document, Entity, Sentence
from tests.tiny import any_entity, write_bytes, write_text

from .reading import assert_refused, converted_sentences, documents, phrases, sentences, spans, write


def test_layers_and_joined_tags_counted_by_hand():
    first, second = sentences("layers.iob2")
    assert spans(first) == [(0, 4, "ORG"), (3, 4, "GPE")]
    assert second.words == ("#", "1", "Mia", "Li")  # a word that begins with # is no comment
    assert spans(second) == [(2, 3, "PER"), (3, 4, "PER")]
    (first, second), _ = documents("joined.bioes")
    assert [spans(s) for s in first.sentences] == [[(0, 4, "ORG"), (3, 4, "GPE")], [(0, 1, "PER")]]
    assert len(second.sentences) == 1


def test_columns_can_be_chosen():
    assert_refused(r"germeval.tsv:2: 'Aachen' is not a tag such as B-PER.*which columns", "germeval.tsv", "columns")
    (first, second), report = documents("germeval.tsv", "columns", word=2)
    assert phrases(first.sentences[0]) == [("Aachen", "LOC"), ("Aachen", "LOCpart")]
    assert second.sentences[0].words == ("Hier",)
    assert report.counts == {"comments not read": 2}
    assert sentences("germeval.tsv", "columns", word=2, tags="4")[0].entities == (Entity(0, 1, "LOCpart"),)
    for wrong in ({"word": 0}, {"tags": "0"}, {"tags": "x"}):
        with pytest.raises(InputError, match="columns are counted from 1"):
            documents("layers.iob2", **wrong)


def test_tags_taken_as_words_are_an_error(tmp_path):
    path = write_text(tmp_path / "a.iob2", "in\tO\tO\nRome\tB-LOC\tO\n\nO\tB-PER\tO\n")
    message = "a.iob2: 3 of 3 words look like tags such as O and B-PER, so column 2 .* such as --read word=1."
    assert_refused(message, path, word=2)
    assert documents(path)[1].counts == {}
    path.write_text("O\tin\tO\nB-LOC\tRome\tO\n")
    assert_refused(r"so column 1 does .* --read word=2.", path, tags="3")
    path.write_text("O\tO\n\nB-52\tB-X\n")  # no other column could hold the words
    assert documents(path)[1].counts == {"words look like tags such as O and B-PER": 2}


def test_of_several_lines_that_are_not_utf8_the_first_is_named(tmp_path):
    path = write_bytes(tmp_path / "a.iob2", "für\tO\ndie\tO\nTür\tO\n".encode("latin-1"))
    assert_refused("a.iob2:1: byte 0xfc is not UTF-8", path)


@pytest.mark.parametrize(
    ("tags", "expected", "strays"),
    [
        ("B-A I-A O B-A", [(0, 2, "A"), (3, 4, "A")], []),
        ("B-A B-A I-A", [(0, 1, "A"), (1, 3, "A")], []),
        ("I-A I-A O I-B", [(0, 2, "A"), (3, 4, "B")], [0, 3]),  # IOB1
        ("B-A I-B I-B", [(0, 1, "A"), (1, 3, "B")], [1]),
        ("B-A I-A E-A S-A", [(0, 3, "A"), (3, 4, "A")], []),
        ("B-A M-A L-A U-A", [(0, 3, "A"), (3, 4, "A")], []),
        ("B-A E-A I-A", [(0, 2, "A"), (2, 3, "A")], [2]),
        ("O E-A O", [(1, 2, "A")], [1]),
        ("B-A|B-B I-A|I-B I-B", [(0, 2, "A"), (0, 3, "B")], []),
        ("B-A I-A|B-A I-A|E-A E-A", [(1, 3, "A"), (0, 4, "A")], []),
        ("B-A|B-A I-A|I-A I-A", [(0, 2, "A"), (0, 3, "A")], []),
        ("B-a|b O|B-b-c", [(0, 1, "a|b"), (1, 2, "b-c")], []),
    ],
)
def test_what_tags_mean(tags, expected, strays):
    found, wrong = decode_tags(tags.split())
    assert sorted(found) == sorted(expected)
    assert wrong == strays


@settings(max_examples=150)
@given(st.lists(any_entity(), max_size=5), st.sampled_from(["iob2", "bioes"]), st.booleans())
def test_what_is_written_is_read_or_counted(entities, scheme, joined):
    sentence, report = Sentence(["w"] * 9, entities), ConversionReport()
    layers = encode_tags(sentence, scheme, joined, report)
    back = [decode_tags(layer) for layer in layers]
    assert not any(strays for _, strays in back)
    equal = sorted(span for found, _ in back for span in found) == sorted(spans(sentence))
    assert equal == (report.counts == {})
    assert joined or equal


def test_a_file_has_the_same_columns_in_every_line(tmp_path):
    entities = [Entity(0, 2, "A"), Entity(0, 1, "B"), Entity(0, 1, "B")]
    first = Document([Sentence(["a"]), Sentence(["b\tc", "d"], entities)], id="x")
    given = [first, Document([Sentence(["e"])])]
    report = write(given, tmp_path / "a.iob2")
    rows = ["a\tO\tO\tO", "", "b_c\tB-A\tB-B\tB-B", "d\tI-A\tO\tO", "", "e\tO\tO\tO", ""]
    assert (tmp_path / "a.iob2").read_text().splitlines() == rows
    assert report.counts == {
        "ids of documents not written: columns cannot hold them": 1,
        "document boundaries not written: columns cannot hold them": 1,
        "words changed: columns has no place for tabs and line ends in them": 1,
    }
    write(given, tmp_path / "b.bioes", scheme="bioes", joined=True)
    assert (tmp_path / "b.bioes").read_text().splitlines()[2:4] == ["b_c\tB-A|S-B|S-B", "d\tE-A"]


def test_real_files_agree_with_the_converted_set(shared):
    """The converted set was cut anew: its dev begins one sentence earlier. All 1669 sentences are equal."""
    germeval = sentences(shared / "data" / "raw" / "germeval" / "dev.iob2")
    assert (len(germeval), sum(len(s.entities) for s in germeval)) == (1013, 1322)
    assert sum(len(s.words) for s in germeval) == 18988
    raw = sentences(shared / "data" / "raw" / "genia_iob2" / "genia.dev.iob2")
    dev, test = (converted_sentences(shared, "genia", part) for part in ("dev", "test"))
    assert (len(raw), sum(len(s.entities) for s in raw)) == (1669, 4337)
    for mine, theirs in zip(raw, [*dev[1:], test[0]], strict=True):
        assert mine.words == theirs.words
        assert sorted(spans(mine)) == sorted(spans(theirs))


@pytest.mark.parametrize("name", ["columns", "triplets", "brat"])
def test_a_first_word_with_a_byte_order_mark_comes_back(tmp_path, name):
    marked = Document([Sentence(["\ufeffRome", "fell"], [Entity(0, 1, "GPE")])])
    write([marked], tmp_path / "a", name)
    assert sentences(tmp_path / "a", name)[0].words == ("\ufeffRome", "fell")


def test_a_sentence_that_looks_like_a_border_of_documents_is_counted(tmp_path):
    report = write([Document([Sentence(["-DOCSTART-"])])], tmp_path / "a", "columns")
    assert report.counts["a sentence of the word -DOCSTART- alone: read as the boundary of a document"] == 1
