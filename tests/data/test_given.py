"""Documents of given words and passages: the same entities as where the text is split, and the same counts."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestree.data.alignment import (
    CharacterSpan,
    Passage,
    align_spans,
    align_to_passages,
    align_to_words,
    tokens,
    whole_text,
)
from nestree.data.io import ConversionReport
from nestree.errors import DataError
from nestree.text import split
from tests.data.formats.reading import phrases


@st.composite
def annotated_texts(draw):
    text = draw(st.text(st.sampled_from("abcA. \n🙂-"), max_size=40))
    spans = []
    for _ in range(draw(st.integers(0, 4))):
        at = sorted(draw(st.lists(st.integers(0, len(text)), min_size=4, max_size=4)))
        head = draw(st.sampled_from([None, (at[1], at[2])]))
        spans.append(CharacterSpan(at[0], at[3], draw(st.sampled_from("XYZ")), head, 0.5))
    return text, spans


@settings(max_examples=200, deadline=None)
@given(annotated_texts(), st.sampled_from(["rules", "lines"]))
def test_given_words_give_what_the_splitter_gives(case, sentences):
    text, spans = case
    mine, theirs = ConversionReport(), ConversionReport()
    words = [word for part in split(text, "whitespace", sentences) for word in part.words]
    starts = [bool(k) for part in split(text, "whitespace", sentences) for k in range(len(part.words))]
    found = align_to_words(
        text,
        words,
        spans,
        starts=[k for k, inside in enumerate(starts) if not inside],
        tally=mine,
        place="here",
    )
    expected = align_spans(text, spans, words="whitespace", sentences=sentences, tally=theirs, place="here")
    assert [(s.words, s.start, set(s.entities)) for s in found.sentences] == [
        (s.words, s.start, set(s.entities)) for s in expected.sentences
    ]
    assert mine.counts == theirs.counts


def test_heads_in_a_later_sentence():
    spans = [CharacterSpan(4, 13, "X", (8, 13)), CharacterSpan(4, 13, "Y", (8, 9))]
    words = [(0, 2), (4, 7), (8, 9), (10, 13)]
    found = align_to_words(
        "Hi. the A cat", words, spans, starts=[0, 1], tally=ConversionReport(), place="here"
    )
    assert [(e.head, e.heads) for e in found.sentences[1].entities] == [(None, (1, 2)), (1, ())]


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("ab \n\t🙂"), max_size=30))
def test_tokens_spell_the_text_and_hold_the_words(text):
    words = [word for part in split(text, "whitespace") for word in part.words]
    found = tokens(text, words)
    assert "".join(text[t.start : t.end] + " " * t.blank for t in found) == text
    assert [(t.start, t.end) for t in found if t.word is not None] == words


def test_passages_are_never_in_one_sentence_unless_an_entity_is():
    passages = [
        Passage(0, "a title"),
        Passage(8, "one sentence. Still", True),
        Passage(30, "He left. She came."),
    ]
    text = whole_text(passages, "here")
    assert text == "a title\none sentence. Still\n\n\nHe left. She came."
    tally = ConversionReport()
    spans = [CharacterSpan(2, 11, "X", (8, 11)), CharacterSpan(27, 29, "BLANK"), CharacterSpan(39, 48, "Y")]
    document = align_to_passages(
        text, passages, spans, words="treebank", sentences="rules", tally=tally, place="here"
    )
    assert [s.text for s in document.sentences] == [
        "a title\none sentence.",
        "Still",
        "He left.",
        "She came.",
    ]
    assert [phrase for s in document.sentences for phrase in phrases(s)] == [
        ("title\none", "X"),
        ("She came.", "Y"),
    ]
    assert document.sentences[0].entities[0].head == 2
    assert tally.counts == {"sentences joined around an entity": 1, "dropped: an entity of blanks only": 1}


def test_an_entity_at_the_end_of_a_passage_joins_it_to_none():
    passages, tally = [Passage(0, "in Rome"), Passage(7, "she left")], ConversionReport()
    text = whole_text(passages, "here")
    document = align_to_passages(
        text, passages, [CharacterSpan(3, 7, "X")], words="ud", sentences="rules", tally=tally, place="here"
    )
    assert [sentence.text for sentence in document.sentences] == ["in Rome", "she left"]
    assert not tally.counts


@pytest.mark.parametrize(
    ("starts", "message"), [((0, 2), "begins inside the one before"), ((0, 10**9), "begins far behind")]
)
def test_passages_at_impossible_places(starts, message):
    with pytest.raises(DataError, match=f"here: the passage at offset {starts[1]} {message}"):
        whole_text([Passage(start, "abc") for start in starts], "here")


def test_every_passage_keeps_its_place():
    passages = [Passage(k * 7, text) for k, text in enumerate(["one.", "", "two", "3 4 5"])]
    text = whole_text(passages, "here")
    document = align_to_passages(
        text, passages, [], words="ud", sentences="rules", tally=ConversionReport(), place="here", id="d"
    )
    assert [text[s.start :][: len(s.text or "")] for s in document.sentences] == ["one.", "two", "3 4 5"]
    assert all(a.start < b.start for a, b in itertools.pairwise(document.sentences))
