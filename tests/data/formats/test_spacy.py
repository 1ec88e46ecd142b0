"""spaCy's DocBin, made by spaCy itself and by us."""

import pickle
import zlib

import numpy
import pytest
import spacy
import srsly
from spacy.tokens import Doc, DocBin, Span, SpanGroup

from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence
from tests.tiny import write_bytes

from .reading import assert_refused, documents, phrases, write

VOCAB = spacy.blank("xx").vocab
WORDS = ["The", "Bank", "of", "Rome", "\n\n", "closed", "🙂", "."]
SPACES = [True, True, True, False, False, True, False, False]


def doc(**more):
    return Doc(VOCAB, words=WORDS, spaces=SPACES, **more)


def write_and_read(folder, *docs, **options):
    path = folder / "a.spacy"
    DocBin(store_user_data=True, docs=docs).to_disk(path)
    return documents(path, **options)


def test_all_groups_of_spans_are_read_and_blanks_are_no_words(tmp_path):
    spacy_doc = doc()
    spacy_doc.spans["sc"] = [Span(spacy_doc, 0, 4, "ORG", kb_id="Q1"), Span(spacy_doc, 3, 5, "GPE")]
    spacy_doc.spans["other"] = [Span(spacy_doc, 1, 6, "ODD"), Span(spacy_doc, 4, 5, "BLANK")]
    spacy_doc.ents = [Span(spacy_doc, 3, 4, "GPE")]
    (document,), report = write_and_read(tmp_path, spacy_doc)
    assert document.text == "The Bank of Rome\n\nclosed 🙂."
    assert [s.words for s in document.sentences] == [("The", "Bank", "of", "Rome", "closed", "🙂", ".")]
    expected = {"ORG": "The Bank of Rome", "GPE": "Rome", "ODD": "Bank of Rome\n\nclosed"}
    assert phrases(document.sentences[0]) == [(text, label) for label, text in expected.items()]
    assert document.sentences[0].entities[0].extra == {"kb_id": "Q1"}
    assert report.counts == {
        "several groups of spans read together": 1,
        "doc.ents not read: the document has spans": 1,
        "dropped: an entity of white space only": 1,
        "sentences joined around an entity": 1,
    }


def test_a_key_chooses_a_group_or_the_ents(tmp_path):
    spacy_doc = doc()
    spacy_doc.spans["sc"] = [Span(spacy_doc, 0, 4, "ORG")]
    spacy_doc.ents = [Span(spacy_doc, 3, 4, "GPE")]
    for key, expected in {"sc": ("The Bank of Rome", "ORG"), "ents": ("Rome", "GPE")}.items():
        (document,), _ = write_and_read(tmp_path, spacy_doc, key=key)
        assert [phrases(s) for s in document.sentences] == [[expected], []]
    with pytest.raises(DataError, match=r"a.spacy, document 1: there is no span group called 'x', only sc\."):
        write_and_read(tmp_path, spacy_doc, key="x")
    plain = doc()
    plain.ents = [Span(plain, 0, 4, "ORG")]
    (document,), report = write_and_read(tmp_path, plain)
    assert phrases(document.sentences[0]) == [("The Bank of Rome", "ORG")]
    assert report.counts == {}


def test_sentences_and_scores_are_those_of_spacy(tmp_path):
    spacy_doc = doc(sent_starts=[True, False, True, False, True, False, False, False])
    (document,), _ = write_and_read(tmp_path, spacy_doc)
    assert [len(s.words) for s in document.sentences] == [2, 2, 3]
    spacy_doc = doc()
    spans = [Span(spacy_doc, 0, 4, "ORG"), Span(spacy_doc, 3, 4, "GPE")]
    spacy_doc.spans["sc"] = SpanGroup(spacy_doc, name="sc", spans=spans, attrs={"scores": numpy.array([0.5, 0.25])})
    (document,), _ = write_and_read(tmp_path, spacy_doc)
    assert [e.score for e in document.sentences[0].entities] == [0.5, 0.25]


def test_heads_come_from_the_parse_punctuation_aside(tmp_path):
    spacy_doc = doc(heads=[1, 5, 1, 2, 5, 5, 5, 5], deps=["dep"] * 8)
    spacy_doc.spans["sc"] = [Span(spacy_doc, 0, 4, "ORG"), Span(spacy_doc, 6, 8, "TWO"), Span(spacy_doc, 0, 1, "ONE")]
    (document,), report = write_and_read(tmp_path, spacy_doc)
    entities = document.sentences[0].entities
    assert [(e.label, e.head, e.heads) for e in entities] == [("ORG", 1, ()), ("TWO", 5, ()), ("ONE", 0, ())]
    assert report.counts["heads taken from the dependency parse"] == 3
    (document,), report = write_and_read(tmp_path, spacy_doc, heads="none")
    assert [e.head for e in document.sentences[0].entities] == [None] * 3
    assert report.counts == {}
    spacy_doc = doc(heads=[5, 5, 5, 5, 5, 5, 5, 5], deps=["dep"] * 8)
    spacy_doc.spans["sc"] = [Span(spacy_doc, 0, 3, "ORG")]
    (document,), _ = write_and_read(tmp_path, spacy_doc)
    assert document.sentences[0].entities[0].heads == (0, 1, 2)


TEXT = "  Do  n't\r\ngo 🙂 \n"
ENTITIES = [Entity(0, 2, "X", head=1, score=0.5, heads=(0, 1))]
ENTITIES.append(Entity(0, 1, "Y", heads=(0,), extra={"id": "7", "kb_id": "Q"}))
SENTENCES = (
    Sentence(("Do", "n't"), ENTITIES, "Do  n't", ((0, 2), (4, 7)), 2, "s1"),
    Sentence(("go", "🙂"), (Entity(0, 2, "Z"),), "go 🙂", ((0, 2), (3, 4)), 11, None),
)


def test_what_is_written_comes_back_whole_without_a_pickle(tmp_path, monkeypatch):
    for module, name in ((pickle, "load"), (pickle, "loads"), (srsly, "pickle_loads")):
        monkeypatch.setattr(module, name, None)
    some = [
        Document(SENTENCES, TEXT, "d1"),
        Document((Sentence(("a", "b"), (Entity(0, 2, "A"),)), Sentence(("c",))), None, None),
        Document((), "", None),
        Document((), " \n", "blank"),
    ]
    report = write(some, tmp_path / "b.spacy")
    back, reading = documents(tmp_path / "b.spacy")
    assert back == some
    assert back[0].sentences[0].entities[1].extra == {"id": "7", "kb_id": "Q"}
    assert (report.counts, reading.counts) == ({}, {})
    (spacy_doc, *_) = DocBin().from_disk(tmp_path / "b.spacy").get_docs(VOCAB)
    assert spacy_doc.text == TEXT
    labelled = [(span.text, span.label_) for span in spacy_doc.spans["sc"]]
    assert labelled == [("Do  n't", "X"), ("Do", "Y"), ("go 🙂", "Z")]


@pytest.mark.parametrize("data", [b"nonsense", b"\x1f\x8b", b"", "x\u0153".encode() * 99])
def test_other_files_are_no_docbin(tmp_path, data):
    assert_refused(r"a.spacy", write_bytes(tmp_path / "a.spacy", data))


def test_what_spacy_cannot_unpack_is_one_sentence(tmp_path):
    path = write_bytes(tmp_path / "a.spacy", zlib.compress(srsly.msgpack_dumps({"attrs": [1]})))
    assert_refused(r"a.spacy: this is not a spaCy DocBin: KeyError.*0 documents", path)


@pytest.mark.parametrize("name", ["spacy", "prodigy"])
def test_characters_between_words_are_counted(tmp_path, name):
    sentence = Sentence(("in", "Rome"), (), "in / Rome", ((0, 2), (5, 9)))
    report = write([Document((sentence,), sentence.text)], tmp_path / "a", name)
    assert report.counts == {"characters that belong to no word written as words": 1}
    (document,), _ = documents(tmp_path / "a", name)
    assert (document.text, document.sentences[0].words) == ("in / Rome", ("in", "/", "Rome"))
