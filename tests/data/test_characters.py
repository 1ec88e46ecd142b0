"""Spans of characters become entities of words; each thing done to them is counted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestree.data.alignment import CharacterSpan, align_spans
from nestree.data.io import ConversionReport
from nestree.errors import DataError
from nestree.text import SENTENCE_RULES, WORD_STYLES, split
from nestree.types import Document


def read(text: str, *spans: tuple, skip_bad: bool = False, **options) -> tuple[Document, ConversionReport]:
    tally = ConversionReport(skip_bad=skip_bad)
    spans = tuple(CharacterSpan(*span) for span in spans)
    return align_spans(text, spans, tally=tally, place="a.txt", **options), tally


def phrases(document: Document) -> list[tuple[int, str, str]]:
    """Each entity: its sentence, what it covers, its label."""
    return [
        (k, sentence.phrase(entity), entity.label)
        for k, sentence in enumerate(document.sentences)
        for entity in sentence.entities
    ]


def test_spans_on_word_borders_stay_as_they_are():
    text = "Ann left Duffy Inc. in May.\r\n\r\nThen she flew to New York, U.S."
    spans = [(0, 3, "PER"), (9, 19, "ORG"), (9, 14, "PER"), (48, 56, "GPE"), (48, 62, "GPE"), (0, 3, "PER")]
    document, tally = read(text, *spans, id="d", extra={"url": "x"})
    assert (document.text, document.id, document.extra) == (text, "d", {"url": "x"})
    assert phrases(document) == [
        (0, "Ann", "PER"),
        (0, "Duffy Inc.", "ORG"),
        (0, "Duffy", "PER"),
        (0, "Ann", "PER"),
        (1, "New York", "GPE"),
        (1, "New York, U.S.", "GPE"),
    ]
    assert [sentence.start for sentence in document.sentences] == [0, 31]
    for sentence in document.sentences:
        for entity in sentence.entities:
            assert (*sentence.characters(entity), entity.label) in spans
    assert not tally.counts
    assert not tally.skipped


def test_spans_where_no_blank_parts_two_sentences():
    document, tally = read("東京。京都。", (0, 3, "A"), (3, 5, "B"))
    assert phrases(document) == [(0, "東京。", "A"), (1, "京都", "B")]
    assert not tally.counts


def test_what_a_span_says_arrives():
    document, _ = read("Ann left.", (0, 3, "PER", None, 0.5, {"id": "T1"}))
    (entity,) = document.sentences[0].entities
    assert (entity.score, entity.extra) == (0.5, {"id": "T1"})


def test_styles_and_rules_are_passed_on():
    document, _ = read("A well-known man\nleft. He", words="ud", sentences="lines")
    assert [sentence.words for sentence in document.sentences] == [
        ("A", "well", "-", "known", "man"),
        ("left", ".", "He"),
    ]


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_a_text_without_words_is_a_document_without_sentences(text):
    document, tally = read(text)
    assert (document.sentences, document.text) == ((), text)
    assert not tally.counts


def test_spans_that_cut_words_are_widened():
    document, tally = read(
        "Hong-Kong and Norwegians", (5, 9, "GPE"), (14, 20, "GPE"), (2, 16, "X"), (0, 9, "GPE")
    )
    assert phrases(document) == [
        (0, "Hong-Kong", "GPE"),
        (0, "Norwegians", "GPE"),
        (0, "Hong-Kong and Norwegians", "X"),
        (0, "Hong-Kong", "GPE"),
    ]
    assert tally.counts == {"widened to word borders": 3}
    assert tally.places == {"widened to word borders": ["a.txt"]}


def test_blanks_at_borders_are_left_out():
    text = "Ann \r\n left."
    document, tally = read(
        text, (0, 7, "PER", None, None, {}, "a.ann:1"), (3, 11, "X", None, None, {}, "a.ann:2")
    )
    assert phrases(document) == [(0, "Ann", "PER"), (0, "left", "X")]
    assert tally.counts == {"blanks at the borders of an entity left out": 2}
    assert tally.places == {"blanks at the borders of an entity left out": ["a.ann:1", "a.ann:2"]}


def test_spans_of_blanks_are_dropped():
    document, tally = read(
        "Ann  left. \n", (3, 5, "A"), (3, 3, "A"), (1, 1, "A"), (10, 12, "A"), (12, 12, "A")
    )
    assert phrases(document) == []
    assert tally.counts == {"dropped: an entity of blanks only": 5}
    assert tally.places["dropped: an entity of blanks only"] == ["a.txt"]


def test_sentences_are_joined_around_a_span():
    text = "I saw Stop. Go. Then I left. Now I am here. Bye."
    assert len(split(text)) == 5
    document, tally = read(text, (6, 27, "WORK", None, None, {}, "a.ann:7"), (6, 14, "WORK"), (44, 47, "X"))
    assert [(sentence.start, len(sentence.words)) for sentence in document.sentences] == [
        (0, 10),
        (29, 5),
        (44, 2),
    ]
    assert phrases(document) == [
        (0, "Stop. Go. Then I left", "WORK"),
        (0, "Stop. Go", "WORK"),
        (2, "Bye", "X"),
    ]
    assert tally.counts == {"sentences joined around an entity": 2}
    assert tally.places == {"sentences joined around an entity": ["a.ann:7"]}


def test_each_border_is_counted_once_and_named_by_the_first_span_across_it():
    text = "One. Two. Three. Four. Five."
    spans = [
        (5, 15, "B", None, None, {}, "2"),
        (0, 8, "A", None, None, {}, "1"),
        (17, 27, "C", None, None, {}, "3"),
    ]
    document, tally = read(text, *spans)
    assert [sentence.text for sentence in document.sentences] == ["One. Two. Three.", "Four. Five."]
    assert tally.counts == {"sentences joined around an entity": 3}
    assert tally.places == {"sentences joined around an entity": ["1", "2", "3"]}


def test_lines_are_joined_too():
    document, tally = read("New\r\nYork\r\nis big", (0, 9, "GPE"), sentences="lines")
    assert [sentence.text for sentence in document.sentences] == ["New\r\nYork", "is big"]
    assert tally.counts == {"sentences joined around an entity": 1}


def test_heads():
    text = "the big Hong-Kong bank of China"
    document, tally = read(
        text,
        (0, 31, "ORG", (18, 22)),
        (0, 31, "ORG", (8, 22)),  # two words: which is the head is left open
        (4, 22, "ORG", (13, 17)),  # a part of a word
        (0, 31, "ORG", (0, 31)),
        (26, 31, "GPE"),
    )
    found = [(entity.head, entity.heads) for entity in document.sentences[0].entities]
    assert found == [(3, ()), (None, (2, 3)), (2, ()), (None, (0, 1, 2, 3, 4, 5)), (None, ())]
    assert not tally.counts


def test_heads_of_blanks_are_dropped():
    document, tally = read("Ann  Li left", (0, 7, "PER", (3, 5)), (0, 7, "PER", (2, 2)))
    assert [(e.head, e.heads) for e in document.sentences[0].entities] == [(None, ()), (None, ())]
    assert tally.counts == {"dropped: a head of blanks only": 2}


def test_heads_in_a_later_sentence_of_a_text():
    document, _ = read("One. Ann Li left.", (5, 11, "PER", (9, 11)))
    assert document.sentences[1].entities[0].head == 1


WRONG = {
    "ends after the text, which has 9 characters": (5, 10, "X"),
    "begins before the text": (-1, 3, "X"),
    "ends before it begins": (5, 4, "X"),
    "an offset that is not a whole number": ("0", 3, "X"),
    "entity None-3 X has an offset that is not": (None, 3, "X"),
    "entity 0-3.0 X has": (0, 3.0, "X"),
    "entity 0-True X has": (0, True, "X"),
    "entity 0-3 has no label": (0, 3, ""),
    "entity 0-3 None has no label": (0, 3, None),
    "score 2 of entity": (0, 3, "X", None, 2),
    "head at 0-4, and not inside": (0, 3, "X", (0, 4)),
    "head at 3-8, and not inside": (4, 8, "X", (3, 8)),
    "head at 2-1, and not inside": (0, 3, "X", (2, 1)),
    "entity 0-3 X has an offset": (0, 3, "X", (0, "1")),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_spans_are_errors_with_their_place(message):
    span = CharacterSpan(*WRONG[message])
    with pytest.raises(DataError, match=message) as caught:
        read("Ann left.", span)
    assert str(caught.value).startswith("a.txt: ")
    with pytest.raises(DataError, match=r"^a\.ann:4: "):
        read("Ann left.", span._replace(place="a.ann:4"))


@pytest.mark.parametrize("message", WRONG)
def test_wrong_spans_can_be_skipped(message):
    document, tally = read("Ann left.", (0, 3, "PER"), WRONG[message], (4, 8, "X"), skip_bad=True)
    assert phrases(document) == [(0, "Ann", "PER"), (0, "left", "X")]
    assert len(tally.skipped) == 1
    assert message in tally.skipped[0]


SPANS = st.lists(st.tuples(st.integers(-2, 32), st.integers(-2, 32), st.sampled_from("AB")), max_size=6)
TEXTS = st.lists(
    st.sampled_from(["Ann", "U.S.", "do", "n't", "-", ".", " ", "\n", "\r\n", "é", "字", "?"])
).map("".join)


@settings(max_examples=300, deadline=None)
@given(TEXTS, SPANS, st.sampled_from(WORD_STYLES), st.sampled_from(SENTENCE_RULES))
def test_every_span_arrives_or_is_counted(text, spans, style, rule):
    document, tally = read(text, *spans, words=style, sentences=rule, skip_bad=True)
    wrong = [(i, j) for i, j, _ in spans if not 0 <= i <= j <= len(text)]
    blank = [(i, j) for i, j, _ in spans if 0 <= i <= j <= len(text) and not text[i:j].strip()]
    assert len(tally.skipped) == len(wrong)
    assert tally.counts["dropped: an entity of blanks only"] == len(blank)
    arrived = [
        (*sentence.characters(entity), entity.label)
        for sentence in document.sentences
        for entity in sentence.entities
    ]
    assert len(arrived) == len(spans) - len(wrong) - len(blank)
    exact = 0
    for i, j, label in spans:
        if 0 <= i <= j <= len(text) and text[i:j].strip():
            first = i + len(text[i:j]) - len(text[i:j].lstrip())
            last = j - len(text[i:j]) + len(text[i:j].rstrip())
            around = [(a, b) for a, b, other in arrived if a <= first and last <= b and other == label]
            assert around
            exact += (first, last) in around
    assert exact >= len(arrived) - tally.counts["widened to word borders"]
    borders = len(split(text, style, rule)) - len(document.sentences)
    assert tally.counts["sentences joined around an entity"] == borders
