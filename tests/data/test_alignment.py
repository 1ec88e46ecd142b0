"""Character spans become entities of words; each change to them is counted."""

import itertools
from typing import get_args

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from nestree.data import alignment
from nestree.data.alignment import AnnotatedText, Mention, Passage, Unit, join_passages, to_code_points, tokens
from nestree.data.io import ConversionReport
from nestree.errors import DataError, EmptySpanError, SpanRangeError
from nestree.text import SENTENCE_RULES, WORD_STYLES, split
from nestree.types import Document

WIDENED = "widened to word boundaries"
JOINED = "sentences joined around an entity"
TRIMMED = "spaces at the ends of an entity removed"
BLANK = "dropped: an entity of white space only"


def align(
    text: str, *mentions: tuple, skip_bad: bool = False, words: str = "treebank", sentences: str = "rules", **more
) -> tuple[Document, ConversionReport]:
    report = ConversionReport(skip_bad=skip_bad)
    annotated = AnnotatedText(text, [Mention(*mention) for mention in mentions], "a.txt", **more)
    return alignment.align(annotated, report, words, sentences), report


def phrases(document: Document) -> list[tuple[int, str, str]]:
    """The sentence, text and label of each entity."""
    pairs = [(k, sentence, e) for k, sentence in enumerate(document.sentences) for e in sentence.entities]
    return [(k, sentence.phrase(entity), entity.label) for k, sentence, entity in pairs]


def at(place: str) -> tuple:
    """The last fields of a CharacterSpan."""
    return None, None, {}, place


def test_spans_on_word_borders():
    text = "Ann left Duffy Inc. in May.\r\n\r\nThen she flew to New York, U.S."
    spans = [(0, 3, "PER"), (9, 19, "ORG"), (9, 14, "PER"), (48, 56, "GPE"), (48, 62, "GPE"), (0, 3, "PER")]
    document, report = align(text, *spans, id="d", extra={"url": "x"})
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
    assert all((*s.characters(e), e.label) in spans for s in document.sentences for e in s.entities)
    assert not report.counts
    assert not report.skipped


def test_scores_extra_and_styles():
    document, _ = align("Ann left.", (0, 3, "PER", None, 0.5, {"id": "T1"}))
    (entity,) = document.sentences[0].entities
    assert (entity.score, entity.extra) == (0.5, {"id": "T1"})
    document, _ = align("A well-known man\nleft. He", words="ud", sentences="lines")
    assert [s.words for s in document.sentences] == [("A", "well", "-", "known", "man"), ("left", ".", "He")]
    for text in ("", "  \n\t "):
        document, report = align(text)
        assert (document.sentences, document.text, report.counts) == ((), text, {})
    spans = (3, 7, "A"), (24, 28, "B"), (24, 33, "C"), (4, 6, "D")
    _, report = align("an IL-2-dependent cell, Hong-Kong", *spans)
    assert report.counts == {WIDENED: 3}
    assert report.fitting_styles == {"ud": 2, "split-hyphens": 2}


@pytest.mark.parametrize(
    ("text", "spans", "expected", "counts", "places"),
    [
        ("東京。京都。", [(0, 3, "A"), (3, 5, "B")], [(0, "東京。", "A"), (1, "京都", "B")], {}, []),
        (
            "Hong-Kong and Oslo",
            [(5, 9, "A"), (14, 17, "A"), (2, 16, "X"), (0, 9, "A")],
            [(0, "Hong-Kong", "A"), (0, "Oslo", "A"), (0, "Hong-Kong and Oslo", "X"), (0, "Hong-Kong", "A")],
            {WIDENED: 3},
            ["a.txt"],
        ),
        (
            "Ann \r\n left.",
            [(0, 7, "PER", *at("a.ann:1")), (3, 11, "X", *at("a.ann:2"))],
            [(0, "Ann", "PER"), (0, "left", "X")],
            {TRIMMED: 2},
            ["a.ann:1", "a.ann:2"],
        ),
        (
            "Ann  left. \n",
            [(i, j, "A") for i, j in ((3, 5), (3, 3), (1, 1), (10, 12), (12, 12))],
            [],
            {BLANK: 5},
            ["a.txt"],
        ),
        (
            "I saw Stop. Go. Then I left. Now I am here. Bye.",
            [(6, 27, "WORK", *at("a.ann:7")), (6, 14, "WORK"), (44, 47, "X")],
            [(0, "Stop. Go. Then I left", "WORK"), (0, "Stop. Go", "WORK"), (2, "Bye", "X")],
            {JOINED: 2},
            ["a.ann:7"],
        ),
        (  # each boundary is counted once, at the first span around it
            "One. Two. Three. Four. Five.",
            [(5, 15, "B", *at("2")), (0, 8, "A", *at("1")), (17, 27, "C", *at("3"))],
            [(0, "Two. Three", "B"), (0, "One. Two", "A"), (1, "Four. Five", "C")],
            {JOINED: 3},
            ["1", "2", "3"],
        ),
    ],
)
def test_changes_to_spans_are_counted_with_their_places(text, spans, expected, counts, places):
    document, report = align(text, *spans)
    assert phrases(document) == expected
    assert report.counts == counts
    assert list(report.places.values()) == ([places] if places else [])


def test_heads():
    spans = [(0, 31, "ORG", (18, 22)), (0, 31, "ORG", (8, 22))]  # of two words: the head is left open
    spans += [(4, 22, "ORG", (13, 17)), (0, 31, "ORG", (0, 31)), (26, 31, "GPE")]  # first a part of a word
    document, report = align("the big Hong-Kong bank of China", *spans)
    heads = [(entity.head, entity.heads) for entity in document.sentences[0].entities]
    assert heads == [(3, ()), (None, (2, 3)), (2, ()), (None, (0, 1, 2, 3, 4, 5)), (None, ())]
    assert not report.counts
    document, _ = align("One. Ann Li left.", (5, 11, "PER", (9, 11)))
    assert document.sentences[1].entities[0].head == 1
    document, report = align("Ann  Li left", (0, 7, "PER", (3, 5)), (0, 7, "PER", (2, 2)))
    assert [(e.head, e.heads) for e in document.sentences[0].entities] == [(None, ()), (None, ())]
    assert report.counts == {"dropped: a head of white space only": 2}


INVALID = {
    "ends after the text: the text has 9 characters": (5, 10, "X"),
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
    "the annotation says 'Ant', but at its offsets the text says 'Ann'": (0, 3, "X", *at(None), "Ant"),
}
ERRORS = {
    "ends after the text: the text has 9 characters": SpanRangeError,
    "begins before the text": SpanRangeError,
    "ends before it begins": EmptySpanError,
}


@pytest.mark.parametrize("message", INVALID)
def test_invalid_spans_raise_or_are_skipped(message):
    span = Mention(*INVALID[message])
    with pytest.raises(DataError, match=rf"^a\.txt: .*{message}") as caught:
        align("Ann left.", span)
    assert type(caught.value) is ERRORS.get(message, DataError)
    with pytest.raises(DataError, match=r"^a\.ann:4: "):
        align("Ann left.", span._replace(place="a.ann:4"))
    document, report = align("Ann left.", (0, 3, "PER"), span, (4, 8, "X"), skip_bad=True)
    assert phrases(document) == [(0, "Ann", "PER"), (0, "left", "X")]
    assert len(report.skipped) == 1
    assert message in report.skipped[0]


SPANS = st.lists(st.tuples(st.integers(-2, 32), st.integers(-2, 32), st.sampled_from("AB")), max_size=6)
PIECES = ["Ann", "U.S.", "do", "n't", "-", ".", " ", "\n", "\r\n", "é", "字", "?"]
TEXTS = st.lists(st.sampled_from(PIECES)).map("".join)


@settings(max_examples=200)
@given(TEXTS, SPANS, st.sampled_from(WORD_STYLES), st.sampled_from(SENTENCE_RULES))
def test_every_span_becomes_an_entity_or_is_counted(text, spans, style, rule):
    document, report = align(text, *spans, words=style, sentences=rule, skip_bad=True)
    in_range = [(i, j, label) for i, j, label in spans if 0 <= i <= j <= len(text)]
    solid = [(i, j, label) for i, j, label in in_range if text[i:j].strip()]
    assert len(report.skipped) == len(spans) - len(in_range)
    assert report.counts[BLANK] == len(in_range) - len(solid)
    entities = [(*s.characters(e), e.label) for s in document.sentences for e in s.entities]
    assert len(entities) == len(solid)
    exact = 0
    for i, j, label in solid:
        first = i + len(text[i:j]) - len(text[i:j].lstrip())
        last = j - len(text[i:j]) + len(text[i:j].rstrip())
        around = [(a, b) for a, b, other in entities if a <= first and last <= b and other == label]
        assert around
        exact += (first, last) in around
    assert exact >= len(entities) - report.counts[WIDENED]
    boundaries = len(split(text, style, rule)) - len(document.sentences)
    assert report.counts[JOINED] == boundaries


@st.composite
def annotated_texts(draw):
    text = draw(st.text(st.sampled_from("abcA. \n🙂-"), max_size=40))
    spans = []
    for _ in range(draw(st.integers(0, 4))):
        offsets = sorted(draw(st.lists(st.integers(0, len(text)), min_size=4, max_size=4)))
        head = draw(st.sampled_from([None, (offsets[1], offsets[2])]))
        spans.append(Mention(offsets[0], offsets[3], draw(st.sampled_from("XYZ")), head, 0.5))
    return text, spans


@settings(max_examples=150)
@given(annotated_texts(), st.sampled_from(["rules", "lines"]))
def test_words_that_are_given_and_words_that_are_split_agree(annotated, sentences):
    text, spans = annotated
    parts = split(text, "whitespace", sentences)
    words = [word for part in parts for word in part.words]
    starts = itertools.accumulate((len(part.words) for part in parts), initial=0)
    report, expected_report = ConversionReport(), ConversionReport()
    document = alignment.align(AnnotatedText(text, spans, "here", words=words, starts=starts), report)
    expected = alignment.align(AnnotatedText(text, spans, "here"), expected_report, "whitespace", sentences)
    given, split_here = ([(s.words, s.start, set(s.entities)) for s in d.sentences] for d in (document, expected))
    assert given == split_here
    assert report.counts == expected_report.counts


@settings(max_examples=100)
@given(st.text(st.sampled_from("ab \n\t🙂"), max_size=30))
def test_tokens_spell_the_text_and_contain_the_words(text):
    words = [word for part in split(text, "whitespace") for word in part.words]
    result = tokens(text, words, ConversionReport())
    assert "".join(text[t.start : t.end] + " " * t.space for t in result) == text
    assert [(t.start, t.end) for t in result if t.word is not None] == words


def align_passages(passages: list[Passage], *spans: tuple) -> tuple[Document, ConversionReport]:
    return align(join_passages(passages), *spans, passages=passages)


def test_passages_are_joined_only_by_an_entity():
    document, report = align_passages(
        [Passage(0, "a title"), Passage(8, "one sentence. Still", True), Passage(30, "He left. She came.")],
        (2, 11, "X", (8, 11)),
        (27, 29, "BLANK"),
        (39, 48, "Y"),
    )
    assert document.text == "a title\none sentence. Still\n\n\nHe left. She came."
    sentences = ["a title\none sentence.", "Still", "He left.", "She came."]
    assert [sentence.text for sentence in document.sentences] == sentences
    assert phrases(document) == [(0, "title\none", "X"), (3, "She came.", "Y")]
    assert document.sentences[0].entities[0].head == 2
    assert report.counts == {JOINED: 1, BLANK: 1}
    document, report = align_passages([Passage(0, "in Rome"), Passage(7, "she left")], (3, 7, "X"))
    assert [sentence.text for sentence in document.sentences] == ["in Rome", "she left"]
    assert not report.counts  # at the end of a passage, an entity joins nothing
    passages = [Passage(k * 7, text) for k, text in enumerate(["one.", "", "two", "3 4 5"])]
    document, _ = align_passages(passages)
    assert [(s.start, s.text) for s in document.sentences] == [(0, "one."), (14, "two"), (21, "3 4 5")]


@pytest.mark.parametrize(
    ("starts", "message"), [((0, 2), "begins inside the one before"), ((0, 10**9), "begins far behind")]
)
def test_passages_at_impossible_places(starts, message):
    with pytest.raises(DataError, match=f"the passage at offset {starts[1]} {message}"):
        join_passages([Passage(start, "abc") for start in starts])


@settings(max_examples=100)
@given(st.text(st.sampled_from("aé\u0301🙂👨\u200d👩🇮🇹\r\n "), max_size=20))
def test_offsets_in_other_units_against_an_encoder_and_a_reader_of_graphemes(text):
    units, graphemes = to_code_points(text, "utf-16"), to_code_points(text, "graphemes")
    for at in range(len(text) + 1):
        assert units(len(text[:at].encode("utf-16-le")) // 2) == at
    starts = [found.start() for found in regex.finditer(r"\X", text)] + [len(text)]
    assert [graphemes(k) for k in range(len(starts))] == starts


def test_offsets_outside_of_a_text_stay_outside():
    for unit in get_args(Unit):
        count = to_code_points("a🙂", unit)
        assert count(-1) < 0
        assert count(9) > 2
        assert to_code_points("", unit)(1) == 1
