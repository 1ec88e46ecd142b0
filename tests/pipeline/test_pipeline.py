"""Pipeline: text in, documents out; streams, errors, hostile text, constraints, forks."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nestree
from nestree.errors import InputError
from nestree.nn.int8 import unavailable_reason
from nestree.pipeline import Batcher, Pipeline, PredictOptions, window_spans
from nestree.types import Document, Sentence, crossing_pairs

TEXT = "The mayor of Lisbon met the president. Police in Oslo arrested two members of the group!"


@pytest.fixture(scope="session")
def ner(model):
    return Pipeline(model)


def check(document, text):
    """Offsets select what they claim, heads lie within, children within their parents."""
    assert document.text == text
    spans = []
    for entity in document.entities:
        assert text[entity.start : entity.end] == entity.text
        assert entity.text.strip() == entity.text != ""
        assert text[entity.head.start : entity.head.end] == entity.head.text
        assert entity.start <= entity.head.start < entity.head.end <= entity.end
        assert 0 <= entity.score <= 1
        assert list(entity.scores) == sorted(entity.scores, reverse=True)
        if entity.parent:
            assert entity.parent.start <= entity.start < entity.end <= entity.parent.end
            assert entity in entity.parent.children
            assert entity.depth == entity.parent.depth + 1
        else:
            assert entity.depth == 0
        spans.append((entity.start, entity.end))
    assert spans == sorted(set(spans), key=lambda span: (span[0], -span[1]))
    assert not any(a < c < b < d for a, b in spans for c, d in spans)
    words = "".join(word for sentence in document.sentences for word in sentence.words)
    assert words == "".join(text.split())  # no character is dropped
    json.loads(document.to_json())


def test_a_string_gives_a_document_and_several_give_several(ner):
    one = ner(TEXT)
    assert isinstance(one, Document)
    check(one, TEXT)
    assert {"Lisbon", "Police in Oslo", "the group"} <= {e.text for e in one.entities}
    many = ner([TEXT, "", "Lisbon"])
    assert [d.text for d in many] == [TEXT, "", "Lisbon"]
    assert [(e.start, e.end, e.labels) for e in many[0].entities] == [
        (e.start, e.end, e.labels) for e in one.entities
    ]
    assert ner([]) == []
    assert ner(iter(["Lisbon"]))[0].text == "Lisbon"
    assert nestree.Pipeline is Pipeline


def test_words_in_sentences_out(ner):
    found = ner.words([["the", "mayor", "of", "Lisbon"], ("she", "left")])
    assert [sentence.words for sentence in found] == [("the", "mayor", "of", "Lisbon"), ("she", "left")]
    assert (3, 4) in {(e.start, e.end) for e in found[0].entities}
    assert all(0 < e.score < 1 and e.head is not None for e in found[0].entities)


def test_the_tree_of_a_document(ner):
    document = ner(TEXT)
    tree = document.tree
    assert len(tree.roots) == len(document.sentences) == 2
    inner = {(c.start, c.end) for c in tree.constituents}
    assert {(e.start, e.end) for e in document.entities} <= inner
    assert ner(TEXT, trees=False).tree.constituents == ()
    assert ner(TEXT, trees=False).entities == document.entities


HOSTILE = [
    "",
    " ",
    "\n\t \u00a0\u2003",
    "\x00a\x00 b\x00",
    "\ud800 lone \udfff surrogates",
    "שלום עולם، مرحبا بالعالم in Lisbon",
    "👩‍👩‍👧‍👦 the 🇵🇹 mayor 👍🏽",
    "e\u0301\u0327 n\u0303o\u0300",
    "<script>alert('Lisbon & Oslo')</script> &amp; <b>the mayor</b>",
    "a" * 20_000,
    ". " * 500,
    "the mayor of Lisbon " * 100,
    "東京都知事は大阪市長と会った。",
]


def test_any_text(ner):
    for text in HOSTILE:
        check(ner(text), text)

    @settings(max_examples=60, deadline=None)
    @given(st.text(st.characters(), max_size=80) | st.text("the mayor of Lisbon.\n '-", max_size=80))
    def check_text(text):
        check(ner(text), text)

    check_text()


def test_long_sentences_are_windowed_and_listed(model):
    text = "the mayor of Lisbon met the president and " * 30
    document = Pipeline(model, max_sentence_words=24)(text)
    check(document, text)
    assert [span.text for span in document.windowed_sentences] == [text.strip()]
    assert document.entities[-1].end > len(text) - 60
    assert Pipeline(model).split(text).windowed_sentences == ()


def test_streams_are_lazy_and_keep_their_order(ner):
    pulled = []

    def texts():
        for k in range(40):
            pulled.append(k)
            yield f"the mayor {'of Lisbon ' * (k % 7)}met no. {k}"

    stream = ner.pipe(texts(), batch_size=8)
    assert next(stream).text == "the mayor met no. 0"
    assert len(pulled) == 8
    assert [d.text.split()[-1] for d in stream] == [str(k) for k in range(1, 40)]
    pulled.clear()
    progress: list[int] = []
    batcher = Batcher(
        ner, ner.split, PredictOptions(), max_words=20, batch_words=5, on_progress=progress.append
    )
    (text, document), *rest = batcher.stream(texts())
    assert (document.text, len(rest)) == (text, 39)
    words = sum(len(sentence.words) for _, d in [(text, document), *rest] for sentence in d.sentences)
    assert (progress[-1], sorted(progress)) == (words, progress)
    pulled.clear()
    next(batcher.stream(texts()))
    assert len(pulled) == 3  # of 6, 8 and 10 words


def test_a_batcher_gives_each_failing_item_to_its_callback(ner):
    """As an HTTP server needs it: one answer for each item, whichever fails."""
    errors = []

    def on_error(item, error):
        errors.append((item, type(error)))
        return Document((), "failed") if item == 3 else None

    def to_document(item):
        if item in (1, 3):
            raise ValueError(item)
        return ner.split("Lisbon" * item)

    batcher = Batcher(ner, to_document, PredictOptions(), on_error)
    results = list(batcher.stream(range(6)))
    assert [(item, document.text) for item, document in results] == [
        (0, ""), (2, "Lisbon" * 2), (3, "failed"), (4, "Lisbon" * 4), (5, "Lisbon" * 5)
    ]  # fmt: skip
    assert errors == [(1, ValueError), (3, ValueError)]
    with pytest.raises(ValueError, match="1"):
        list(Batcher(ner, to_document, PredictOptions()).stream(range(3)))


def test_a_stream_takes_no_more_memory_the_longer_it_is(ner):
    words = ["the", "mayor", "of", "Lisbon", "met", "police", "in", "Oslo", "she", "left"]
    chance = random.Random(1)

    def texts(n):
        return (" ".join(chance.choices(words, k=4)) + f" {k}" for k in range(n))

    def peak(n):
        ner.model.collator.tokenizer.clear_cache()
        tracemalloc.start()
        for _ in ner.pipe(texts(n), batch_size=50, trees=False):
            pass
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return memory

    peak(100)
    assert peak(500) < 2 * peak(100) + 1_000_000  # the cache of subwords has its own bound


@pytest.mark.parametrize("bad", [None, 7, b"bytes"])
def test_a_text_that_fails_is_named_or_skipped(ner, bad):
    with pytest.raises(InputError, match=r"text 2 \(.*failed: a text must be a string"):
        list(ner.pipe(["a", "b", bad, "Lisbon"], batch_size=2))
    found = list(ner.pipe(["a", "b", bad, "Lisbon"], batch_size=2, on_error="skip"))
    assert [d.text for d in found] == ["a", "b", None, "Lisbon"]
    assert "text 2" in found[2].extra["error"]
    assert found[3].entities


def test_a_text_that_fails_inside_the_model_is_named(ner, monkeypatch):
    collate = type(ner.model).collate_words

    def failing(self, sentences):
        if any("Oslo" in s.words for s in sentences):
            raise RuntimeError("no Oslo")
        return collate(self, sentences)

    monkeypatch.setattr(type(ner.model), "collate_words", failing)
    with pytest.raises(InputError, match=r"text 1 \('in Oslo'\) failed: RuntimeError: no Oslo"):
        list(ner.pipe(["Lisbon", "in Oslo"]))
    found = list(ner.pipe(["Lisbon", "in Oslo", "she left"], on_error="skip"))
    assert [bool(d.entities) for d in found] == [True, False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"on_error": "no"}, "on_error is 'no'"),
        ({"threshold": 1.5}, "1.5"),
        ({"threshold": "high"}, "threshold is 'high'; it must be a number"),
        ({"threshold": False}, "threshold is False; it must be a number"),
        ({"threshold": float("nan")}, "threshold is nan; it must be a number"),
    ],
)
def test_wrong_options_are_errors(ner, options, message):
    with pytest.raises(InputError, match=message):
        list(ner.pipe(["a"], **options))


def test_a_threshold_trades_recall_for_precision(ner):
    every, some = ner(TEXT).entities, ner(TEXT, threshold=0.9).entities
    assert {e.start for e in some} <= {e.start for e in every}
    assert len(some) < len(every)
    assert all(e.score >= 0.9 for e in some)
    assert ner(TEXT, threshold=Fraction(9, 10)).entities == some


# Constraints


def test_what_is_known_is_found_with_its_label_and_head(ner):
    start = TEXT.index("two members of")
    found = ner(TEXT, known=[(start, start + 14, "GPE", TEXT.index("members"))])
    check(found, TEXT)
    entity = next(e for e in found.entities if e.start == start and e.end == start + 14)
    assert (entity.label, entity.head.text) == ("GPE", "members")
    assert entity.score == pytest.approx(1, abs=1e-4)


def test_what_is_forbidden_is_not_found(ner):
    before = ner(TEXT).entities[0]
    after = ner(TEXT, forbidden=[(before.start, before.end)])
    check(after, TEXT)
    assert (before.start, before.end) not in {(e.start, e.end) for e in after.entities}
    other = ner(TEXT, forbidden=[(before.start, before.end, before.label)])
    assert not any(
        (e.start, e.end) == (before.start, before.end) and before.label in e.labels for e in other.entities
    )


def test_known_spans_may_cut_words_and_join_sentences(ner):
    text = "He left Lisbon. Oslo-based police came."
    found = ner(text, known=[(8, 20, "ORG"), (21, 26)])
    check(found, text)
    assert {(8, 20), (21, 26)} <= {(e.start, e.end) for e in found.entities}
    assert text[8:20] == "Lisbon. Oslo"


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ([(0, 9), (4, 19)], r"known entity \(0, 9\) and entity \(4, 19\) cross, and no tree holds both"),
        ([(0, 37), (4, 19), (0, 9)], r"known entity \(0, 9\) and entity \(4, 19\) cross"),
        ([(0, 900)], "ends after the text, which has 88 characters"),
        ([(3, 4)], r"known \(3, 4\) has no characters but white space"),
        ([(5, 5)], "two places in the text, the second greater"),
        ([("a", 5)], "two places in the text"),
        ([(0, 3, "X")], r"known \(0, 3, 'X'\) has a label that this model does not know. Its labels are "),
        ([(0, 3, 7)], "label .* must be a string or None"),
        ([(0, 9, None, 30)], r"the head \(30, 31\) of known \(0, 9, None\) must lie in one word of it"),
        (
            [(0, 9, None, 0), (0, 9, None, 4)],
            r"entity \(0, 9\) is known with two heads, characters \(0, 1\) and characters \(4, 5\)",
        ),
        (
            [(0, 19, None, 4), (0, 9, None, 0)],
            r"entity \(0, 19\) has characters \(4, 5\) as its head, which lies in entity \(0, 9\) whose head is "
            r"characters \(0, 1\)",
        ),
        ([(0, 9, None, True)], "must be a place in the text"),
        ([(0, 9, None, -1)], "must be a place in the text"),
        ([(True, 9)], "two places in the text"),
        ([(0, 9, None, "h")], "must be a place in the text"),
        ([(0,)], r"must be \(start, end\), and may go on as \(start, end, label, head\)"),
    ],
)
def test_invalid_known_spans_are_errors(ner, known, message):
    with pytest.raises(InputError, match=message):
        ner(TEXT, known=known)


@pytest.mark.parametrize(("known", "forbidden"), [((4, 9), (4, 9)), ((4, 9, "ORG"), (3, 10, "ORG"))])
def test_known_and_forbidden_at_once(ner, known, forbidden):
    with pytest.raises(InputError, match=r"entity \(4, 9\) is both known and forbidden"):
        ner(TEXT, known=[known], forbidden=[forbidden])


@pytest.mark.parametrize("blank", [" ", "\u00a0", "\u3000", "\n", "\t "])
def test_white_space_around_a_known_span_does_not_count(ner, blank):
    """So spans that only cross in it do not cross, and those that differ only in it are one."""
    text = f"The mayor{blank}of Lisbon met Anna."
    mayor, lisbon = (0, 9), (9 + len(blank), 18 + len(blank))
    plain = ner(text, known=[mayor, lisbon])
    assert ner(text, known=[(0, 9 + len(blank)), (9, lisbon[1])]) == plain
    head = (*mayor, None, 4)
    assert ner(text, known=[head, (0, 9 + len(blank), None, (4, 9 + len(blank))), lisbon]) == ner(
        text, known=[head, lisbon]
    )


def test_a_head_by_its_place_and_by_its_span_is_one_head(ner):
    once = ner(TEXT, known=[(0, 9, None, 4)])
    assert TEXT[4:9] == "mayor"
    for head in (5, (4, 9), (3, 9), (5, 7)):
        assert ner(TEXT, known=[(0, 9, None, 4), (0, 9, None, head)]) == once


def test_numbers_of_numpy(ner):
    known, forbidden = [(0, 9, None, 4)], [(13, 19)]
    expected = ner(TEXT, known=known, forbidden=forbidden)
    for kind in (np.int64, np.int32, np.uint8):
        zero, four, nine = map(kind, (0, 4, 9))
        others = [tuple(map(kind, (13, 19)))]
        assert ner(TEXT, known=[(zero, nine, None, four)], forbidden=others) == expected
        assert ner(TEXT, known=[(zero, nine, None, (four, nine))], forbidden=others) == expected
    assert list(ner.pipe([TEXT], batch_size=np.int64(2))) == [ner(TEXT)]


@pytest.mark.parametrize(
    ("call", "bad_values", "message"),
    [
        (lambda ner, bad: ner(bad), [None, 7, b"Lisbon"], "a text must be a string, or several of them, and"),
        (
            lambda ner, bad: list(ner.pipe(bad)),
            ["Lisbon", b"Lisbon", None],
            r"a stream has many texts, .*Give a list",
        ),
        (
            lambda ner, bad: ner.words(bad),
            ["the mayor", 5, None, b"ab", Sentence(["a"])],
            r"sentences must be lists of words, and this is .*Give a list",
        ),
        (
            lambda ner, bad: ner.words([["Lisbon"], bad]),
            ["the mayor", 5, None, b"ab"],
            "must be a list of words, and this is",
        ),
    ],
)
def test_wrong_types_are_errors(ner, call, bad_values, message):
    for bad in bad_values:
        with pytest.raises(InputError, match=message):
            call(ner, bad)


def test_what_is_known_belongs_to_one_text(ner):
    with pytest.raises(InputError, match="give texts one by one"):
        ner([TEXT], known=[(0, 3)])


def test_what_is_known_in_a_long_sentence(model):
    text = "the mayor of Lisbon met the president and " * 30
    ner = Pipeline(model, max_sentence_words=24)
    at = text.index("met", 600)
    found = ner(text, known=[(at, at + 3, "LOC")])
    assert ("LOC", at) in {(e.label, e.start) for e in found.entities}
    assert crossing_pairs([x for s in found.sentences for x in s.entities]) == []
    with pytest.raises(
        InputError,
        match=r"known entity \(0, 400\) \('the mayor of .*\) has 77 words, and no window .* sentence of 241 words "
        r".* Set max_sentence_words to 241,",
    ):
        ner(text, known=[(0, 400)])


def test_whatever_a_window_holds_can_be_known(model):
    ner, text = Pipeline(model, max_sentence_words=8), " ".join(f"w{k}" for k in range(20))
    words = ner.split(text).sentences[0].offsets
    refused = []
    for i in range(20):
        for j in range(i + 1, min(20, i + 8) + 1):
            start, end = words[i][0], words[j - 1][1]
            try:
                found = ner(text, known=[(start, end)])
            except InputError:
                refused.append((i, j))
                continue
            assert [(e.start, e.end) for e in found.entities].count((start, end)) == 1
            assert crossing_pairs(found.sentences[0].entities) == []
    assert refused == [
        (i, j)
        for i in range(20)
        for j in range(i + 1, min(20, i + 8) + 1)
        if not any(start <= i and j <= end for start, end in window_spans(20, 8))
    ]


# Forks


PROGRAM = """
import multiprocessing, os, sys, torch
torch.set_num_threads(2)
from nestree import load

def entities(ner):
    return [(entity.text, entity.label) for entity in ner("The mayor of Lisbon met the president.").entities]

def load_and_predict(_=None):
    return entities(load(precision=sys.argv[1]))

ner = load(precision=sys.argv[1])
expected = entities(ner)
torch.nn.functional.linear(torch.ones(999, 256), torch.ones(256, 256))  # large enough for two threads
torch.ones(999, 999).exp()
child = os.fork()
if child == 0:
    os._exit(0 if load_and_predict() == expected == entities(ner) else 1)
assert os.waitpid(child, 0)[1] == 0
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(load_and_predict, range(2)) == [expected] * 2
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there are no forks here")
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_forked_process_loads_and_predicts_as_its_parent(precision):
    """Without waiting for threads that only the parent has."""
    if precision == "int8" and (reason := unavailable_reason()):
        pytest.skip(reason)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, precision],
        cwd=Path(__file__).resolve().parent.parent.parent,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            _, stderr = process.communicate(timeout=180)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with its children
    assert process.returncode == 0, stderr
