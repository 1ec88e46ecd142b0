"""Pipeline: text in, documents out; streams, errors, hostile text, constraints, forks."""

import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nestree
from nestree.errors import InputError, NestreeError
from nestree.nn.int8 import unavailable_reason
from nestree.pipeline import Batcher, Pipeline, PredictOptions, window_spans
from nestree.types import Document, Sentence, crossing_pairs
from tests import tiny
from tests.conftest import ROOT

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


def test_strings_give_documents_and_words_give_sentences(ner):
    one = ner(TEXT)
    assert isinstance(one, Document)
    check(one, TEXT)
    assert {"Lisbon", "Police in Oslo", "the group"} <= {e.text for e in one.entities}
    many = ner([TEXT, "", "Lisbon"])
    assert [d.text for d in many] == [TEXT, "", "Lisbon"]
    assert labelled(many[0]) == labelled(one)
    assert ner([]) == []
    assert ner(iter(["Lisbon"]))[0].text == "Lisbon"
    assert len(one.tree.roots) == len(one.sentences) == 2
    assert {(e.start, e.end) for e in one} <= {(c.start, c.end) for c in one.tree.constituents}
    assert ner(TEXT, trees=False).tree.constituents == ()
    assert ner(TEXT, trees=False).entities == one.entities
    found = ner.words([["the", "mayor", "of", "Lisbon"], ("she", "left")])
    assert [sentence.words for sentence in found] == [("the", "mayor", "of", "Lisbon"), ("she", "left")]
    assert (3, 4) in {(e.start, e.end) for e in found[0].entities}
    assert all(0 < e.score < 1 and e.head is not None for e in found[0].entities)


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

    @settings(max_examples=30, deadline=None)
    @given(st.text(st.characters(), max_size=80) | st.text("the mayor of Lisbon.\n '-", max_size=80))
    def check_text(text):
        check(ner(text), text)

    check_text()


def test_long_sentences_are_windowed_and_hold_what_is_known(model):
    text, ner = "the mayor of Lisbon met the president and " * 30, Pipeline(model, max_sentence_words=24)
    document = ner(text)
    check(document, text)
    assert [span.text for span in document.windowed_sentences] == [text.strip()]
    assert document.entities[-1].end > len(text) - 60
    assert Pipeline(model).split(text).windowed_sentences == ()
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
    limits = {"max_words": 20, "batch_words": 5}
    batcher = Batcher(ner, ner.split, PredictOptions(), **limits, on_progress=progress.append)
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
        for _ in ner.pipe(texts(n), batch_size=30, trees=False):
            pass
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return memory

    peak(60)
    assert peak(240) < 2 * peak(60) + 1_000_000  # the cache of subwords has its own bound


@pytest.mark.parametrize("bad", [None, b"bytes"])
def test_a_text_that_fails_is_named_or_skipped(ner, bad):
    with pytest.raises(InputError, match=r"text 2 \(.*failed: a text must be a string"):
        list(ner.pipe(["a", "b", bad, "Lisbon"], batch_size=2))
    found = list(ner.pipe(["a", "b", bad, "Lisbon"], batch_size=2, on_error="skip"))
    assert [d.text for d in found] == ["a", "b", None, "Lisbon"]
    assert "text 2" in found[2].extra["error"]
    assert found[3].entities


def test_what_stands_before_an_error_is_predicted(ner):
    def texts():
        yield from ["Lisbon", "Oslo"]
        raise ValueError("the reader failed")

    for stream, error in ((texts(), ValueError), (["Lisbon", "Oslo", None, "Lisbon"], InputError)):
        documents = ner.pipe(stream)
        assert [next(documents).text for _ in range(2)] == ["Lisbon", "Oslo"]
        with pytest.raises(error):
            next(documents)


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
        ({"batch_words": 0}, "batch_words is 0; it must be a whole number, 1 or more"),
        ({"on_error": "no"}, "on_error is 'no'"),
        ({"threshold": 1.5}, "1.5"),
        ({"threshold": "high"}, "threshold is 'high'; it must be a number"),
        ({"threshold": False}, "threshold is False; it must be a number"),
        ({"threshold": float("nan")}, "threshold is nan; it must be a number"),
        ({"threshold": {"PER": 2}}, r"threshold\['PER'\] is 2; it must be a number"),
        ({"threshold": 10**400}, "threshold is 1000.*; it must be a number"),
        ({"threshold": {"NO": 0.5}}, "the model has no label 'NO'. Its labels are GPE, LOC, ORG, PER"),
        ({"labels": 5}, "labels is 5; it must be a list of labels"),
        ({"labels": ["PER", "NO"]}, "the model has no label 'NO'. Its labels are GPE, LOC, ORG, PER"),
    ],
)
def test_wrong_options_are_errors(ner, options, message):
    with pytest.raises(InputError, match=message):
        list(ner.pipe(["a"], **options))


def test_thresholds_and_labels(ner):
    every, some = ner(TEXT).entities, ner(TEXT, threshold=0.9).entities
    assert {e.start for e in some} <= {e.start for e in every}
    assert len(some) < len(every)
    assert all(e.score >= 0.9 for e in some)
    assert ner(TEXT, threshold=Fraction(9, 10)).entities == some
    every = labelled(ner(TEXT))
    assert {label for *_, label in every} > {"PER"}
    for labels in (["PER"], ["PER", "GPE"], "PER", []):
        expected = [entity for entity in every if entity[2] in labels]
        assert labelled(ner(TEXT, labels=labels)) == labelled(ner([TEXT], labels=labels)[0]) == expected
    assert labelled(ner(TEXT, labels=(label for label in ["PER"]))) == labelled(ner(TEXT, labels=["PER"]))
    words = ner.words([TEXT.split()], labels=["GPE"])[0].entities
    assert {entity.label for entity in words} == {"GPE"}
    pairs = [(e, pair) for e in ner(TEXT) for pair in zip(e.labels, e.scores, strict=True)]
    scores = {(e.start, e.end, label): score for e, (label, score) in pairs}
    limit = sorted(p for (*_, label), p in scores.items() if label == "PER")[-1]
    found = labelled(ner(TEXT, threshold={"PER": limit}))
    assert found == [e for e in every if e[2] != "PER" or scores[e] >= limit] != every
    for threshold in ({}, {"PER": 0.01}):
        found = labelled(ner(TEXT, threshold=threshold))
        assert [e for e in found if e[2] != "PER"] == [e for e in every if e[2] != "PER"]
    start, end, label = next(entity for entity in every if entity[2] == "PER")
    known = ner(TEXT, known=[(start, end, label)], labels=["GPE"])
    assert (start, end, "PER") in labelled(known)  # what is known stays
    known = ner(TEXT, known=[(start, end)], threshold={"GPE": 0})
    assert [label for *span, label in labelled(known) if span == [start, end]] == ["PER", "GPE"]


def labelled(document):
    return [(e.start, e.end, label) for e in document for label in e.labels]


def test_streams_of_pairs(ner):
    texts = ["Lisbon", "", "the mayor of Oslo"]
    pairs = list(ner.pipe(zip(texts, "abc", strict=True), as_tuples=True, batch_size=2, batch_words=3))
    expected = zip(map(labelled, ner(texts)), "abc", strict=True)
    assert [(labelled(document), name) for document, name in pairs] == list(expected)
    skipped, kept = ner.pipe([(7, "bad"), ["Oslo", "good"]], as_tuples=True, on_error="skip")
    assert ("text 0 (7) failed" in skipped[0].extra["error"], skipped[1]) == (True, "bad")
    assert kept == (ner("Oslo"), "good")


def test_pickled_saved_and_moved(tiny_model, small_model, tmp_path, caplog):
    for folder in (tiny_model, small_model):
        with caplog.at_level("DEBUG", "nestree"):
            ner = Pipeline.from_pretrained(folder, device="cpu", max_sentence_words=50)
            document = ner(TEXT)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        data = pickle.dumps(ner)
        assert len(data) < 1.05 * size
        again = pickle.loads(data)
        assert (again(TEXT), again.max_sentence_words) == (document, 50)
        ner.save_pretrained(tmp_path / folder.parent.name)
        saved = nestree.load(tmp_path / folder.parent.name, "cpu")
        assert saved(TEXT) == ner.to("cpu")(TEXT) == document
        assert repr(saved) == repr(again) == repr(ner)
    assert f"loaded {tiny_model}: Pipeline(Recognizer(encoder, 0." in caplog.text
    assert "device='cpu', precision='float32')" in caplog.text
    assert "words in 1 batches on cpu" in caplog.text
    for device in ("cuda:99", torch.device("cuda:99"), torch.device("meta")):
        with pytest.raises(InputError, match=r"PyTorch finds no cuda:99 device|there is no device"):
            ner.to(device)
    with torch.no_grad():
        next(ner.model.parameters()).mul_(1.001)  # 8 bits cannot express this
    ner.save_pretrained(tmp_path / "changed")
    changed = nestree.load(tmp_path / "changed", "cpu").model.state_dict()
    assert all(torch.equal(value, changed[name]) for name, value in ner.model.state_dict().items())


def test_labels_have_the_descriptions_of_the_card(model):
    model.card = "# Card\n\n- **PER**: people\n- **x**: y\n"
    assert Pipeline(model).labels == {"GPE": "", "LOC": "", "ORG": "", "PER": "people"}
    model.card = ""


def test_read_write_and_evaluate(ner, tmp_path, caplog):
    document = ner(TEXT)
    caplog.clear()  # kernels may have been compiled
    nestree.write(document, tmp_path / "a.jsonl")
    assert not caplog.messages
    nestree.write([document], tmp_path / "b.conll", "columns")
    lost = "2 trees not written: columns cannot hold them (document 1)"
    assert f"{tmp_path / 'b.conll'}: {lost}" in caplog.messages
    (back,) = nestree.read(tmp_path / "a.jsonl")
    assert (labelled(back), back.text) == (labelled(document), TEXT)
    for predicted in (tmp_path / "a.jsonl", [back], back.sentences):
        assert nestree.evaluate([document], predicted, resamples=0).entities.f1 == 1
    for model in (ner, ner.model):
        assert nestree.evaluate(tmp_path / "a.jsonl", model=model, resamples=0).entities.f1 == 1
    assert nestree.evaluate([document], model=ner, threshold=0.9, resamples=0).entities.recall < 1
    with pytest.raises(InputError, match="needs either predicted entities or model="):
        nestree.evaluate([document])
    with pytest.raises(InputError, match=r"threshold=0\.9 selects the entities of a model"):
        nestree.evaluate([document], [back], threshold=0.9)


# Constraints


def test_known_and_forbidden_spans(ner):
    start = TEXT.index("two members of")
    found = ner(TEXT, known=[(start, start + 14, "GPE", TEXT.index("members"))])
    check(found, TEXT)
    entity = next(e for e in found.entities if e.start == start and e.end == start + 14)
    assert (entity.label, entity.head.text) == ("GPE", "members")
    assert entity.score == pytest.approx(1, abs=1e-4)
    before = ner(TEXT).entities[0]
    after = ner(TEXT, forbidden=[(before.start, before.end)])
    check(after, TEXT)
    assert (before.start, before.end) not in {(e.start, e.end) for e in after.entities}
    other = ner(TEXT, forbidden=[(before.start, before.end, before.label)])
    assert (before.start, before.end, before.label) not in labelled(other)
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
        ([(5, 5)], "two offsets, the second greater"),
        ([("a", 5)], "two offsets"),
        ([(0, 3, "X")], r"known \(0, 3, 'X'\) has a label that this model does not know. Its labels are "),
        ([(0, 3, 7)], "label .* must be a string or None"),
        ([(0, 9, None, 30)], r"the head \(30, 31\) of known \(0, 9, None\) must lie in one word of it"),
        ([(0, 9, None, 0), (0, 9, None, 4)], r"two heads, characters \(0, 1\) and characters \(4, 5\)"),
        ([(0, 19, None, 4), (0, 9, None, 0)], r"\(4, 5\) as its head, which lies in entity \(0, 9\) whose head"),
        ([(0, 9, None, True)], "must be an offset in the text"),
        ([(0, 9, None, -1)], "must be an offset in the text"),
        ([(True, 9)], "two offsets"),
        ([(0, 9, None, "h")], "must be an offset in the text"),
        ([(0,)], r"must be \(start, end\), optionally more: \(start, end, label, head\)"),
    ],
)  # fmt: skip
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
    same_head = (0, 9 + len(blank), None, (4, 9 + len(blank)))
    assert ner(text, known=[head, same_head, lisbon]) == ner(text, known=[head, lisbon])


def test_a_head_by_its_place_and_by_its_span_is_one_head_and_numbers_may_be_those_of_numpy(ner):
    once = ner(TEXT, known=[(0, 9, None, 4)], forbidden=[(13, 19)])
    assert TEXT[4:9] == "mayor"
    for head in (5, (4, 9), (3, 9), (5, 7)):
        assert ner(TEXT, known=[(0, 9, None, 4), (0, 9, None, head)], forbidden=[(13, 19)]) == once
    for kind in (np.int64, np.uint8):
        zero, four, nine, *forbidden = map(kind, (0, 4, 9, 13, 19))
        for head in (four, (four, nine)):
            assert ner(TEXT, known=[(zero, nine, None, head)], forbidden=[forbidden]) == once
    assert list(ner.pipe([TEXT], batch_size=np.int64(2))) == [ner(TEXT)]


@pytest.mark.parametrize(
    ("call", "bad_values", "message"),
    [
        (lambda ner, bad: ner(bad), [None, 7, b"Lisbon"], "a text must be a string, and this is of type"),
        (lambda ner, bad: list(ner.pipe(bad)), ["Oslo", b"Oslo", None], "pipe takes several texts, .*Give a list"),
        (lambda ner, bad: ner.words(bad), ["the", 5, None, b"ab", Sentence(["a"])], "must be lists of words"),
        (
            lambda ner, bad: ner.words([["Lisbon"], bad]),
            ["the", 5, None, b"ab"],
            "each sentence must be a list of words|words must be strings in a",
        ),
        (lambda ner, bad: list(ner.pipe([bad], as_tuples=True)), ["ab", "abc", 5], r"item 0 must be \(text, any"),
    ],
)  # fmt: skip
def test_wrong_types_are_errors(ner, call, bad_values, message):
    for bad in bad_values:
        with pytest.raises(InputError, match=message):
            call(ner, bad)


def test_whatever_a_window_holds_can_be_known(model):
    ner, text = Pipeline(model, max_sentence_words=6), " ".join(f"w{k}" for k in range(13))
    words = ner.split(text).sentences[0].offsets
    spans = [(i, j) for i in range(13) for j in range(i + 1, min(13, i + 6) + 1)]
    refused = []
    for i, j in spans:
        start, end = words[i][0], words[j - 1][1]
        try:
            found = ner(text, known=[(start, end)])
        except InputError:
            refused.append((i, j))
            continue
        assert [(e.start, e.end) for e in found.entities].count((start, end)) == 1
        assert crossing_pairs(found.sentences[0].entities) == []
    windows = window_spans(13, 6)
    assert refused == [(i, j) for i, j in spans if not any(a <= i and j <= b for a, b in windows)]


# Forks


PROGRAM = """
import multiprocessing, os, sys, torch
torch.set_num_threads(2)
from nestree import load

def entities(ner):
    return [(entity.text, entity.label) for entity in ner("The mayor of Lisbon met the president.").entities]

def load_and_predict(precision):
    return entities(load(precision=precision))

for precision in sys.argv[1:]:
    ner = load(precision=precision)
    expected = entities(ner)
    torch.nn.functional.linear(torch.ones(999, 256), torch.ones(256, 256))  # large enough for two threads
    torch.ones(999, 999).exp()
    child = os.fork()
    if child == 0:
        os._exit(0 if load_and_predict(precision) == expected == entities(ner) else 1)
    assert os.waitpid(child, 0)[1] == 0
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(load_and_predict, [precision] * 2) == [expected] * 2
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there are no forks here")
def test_a_forked_process_loads_and_predicts_as_its_parent():
    """Without waiting for threads that only the parent has."""
    precisions = ["float32"] if unavailable_reason() else ["float32", "int8"]
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *precisions],
        cwd=ROOT,
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


FORKS_UNDER_LOAD = """
import os, signal, sys, threading
from itertools import count
from nestree import load

ner = load(sys.argv[1])
ner("Ann lives in Lisbon.")
finish = threading.Event()

def read_new_words():
    numbers = count()
    while not finish.is_set():
        ner.words([[f"{next(numbers)}word" for _ in range(9)] for _ in range(99)])

thread = threading.Thread(target=read_new_words)
thread.start()
children = []
for _ in range(20):
    children.append(os.fork())
    if children[-1] == 0:
        signal.alarm(20)
        ner("Ann lives in Lisbon.")
        os._exit(0)
statuses = [os.waitpid(child, 0)[1] for child in children]
finish.set()
thread.join()
assert not any(statuses), statuses
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there are no forks here")
def test_a_process_may_be_forked_while_another_thread_predicts(tiny_model):
    command = [sys.executable, "-W", "ignore", "-c", FORKS_UNDER_LOAD, str(tiny_model)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert result.returncode == 0, result.stderr


def test_worker_processes_find_the_same(model, ner):
    words = [sentence.words for sentence in tiny.SENTENCES] * 3
    workers = Pipeline(model, workers=2)

    def scores(pipeline):
        found = pipeline.words(words)
        return {(k, e.span, e.label): e.score for k, s in enumerate(found) for e in s.entities}

    expected = pytest.approx(scores(ner), abs=1e-5)  # the number of threads decides how sums are rounded
    with workers:
        assert scores(workers) == expected
        process = next(iter(workers.worker_pool.pool._processes.values()))
        process.kill()
        process.join()
        with pytest.raises(NestreeError, match="use fewer workers"):
            workers.words(words)
        assert scores(workers) == expected  # with new processes
    assert workers.worker_pool.pool is None
    with pytest.raises(InputError, match="workers is -1"):
        Pipeline(model, workers=-1)


def test_threads_share_worker_processes_that_ignore_interrupts_and_closing_waits_for_them(model):
    words = [sentence.words for sentence in tiny.SENTENCES] * 100
    workers = Pipeline(model, workers=2)
    before = set(multiprocessing.active_children())
    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(workers.words, words) for _ in range(3)]
        assert calls[0].result(timeout=120)
        started = set(multiprocessing.active_children()) - before
        for process in started:
            os.kill(process.pid, signal.SIGINT)  # Ctrl-C reaches all processes of a terminal
        calls += [threads.submit(workers.words, words) for _ in range(3)]
        workers.close()
        found = [call.result(timeout=120) for call in calls]
    assert len(started) == 2
    assert all([s.entities for s in sentences] == [s.entities for s in found[0]] for sentences in found)
    workers.close()


def test_worker_processes_end_and_remove_their_folder_when_their_parent_is_killed(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    script = tmp_path / "script.py"
    script.write_text(
        "import nestree, time\n"
        "if __name__ == '__main__':\n"
        f"    ner = nestree.load({str(tmp_path / 'model')!r}, device='cpu', workers=2)\n"
        "    ner.words([['the', 'mayor'], ['Lisbon']] * 500)\n"
        "    print(ner.worker_pool.folder.name, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        process.kill()
        process.communicate(timeout=60)  # until its workers have closed standard output, too
    assert not folder.exists()


def test_a_parent_that_is_killed_while_it_starts_workers_leaves_no_folder(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "temporary").mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        "import nestree, os, signal\n"
        "if __name__ == '__main__':\n"
        f"    ner = nestree.load({str(tmp_path / 'model')!r}, device='cpu', workers=1)\n"
        "    nestree.checkpoint.save = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    ner.words([['Lisbon']])\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list((tmp_path / "temporary").glob("nestree-*")) == []


def test_workers_of_a_script_without_a_main_guard(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    script = tmp_path / "script.py"
    script.write_text(
        "import nestree\n"
        f"ner = nestree.load({str(tmp_path / 'model')!r}, device='cpu', workers=2)\n"
        "list(ner.pipe(['the mayor of Lisbon'] * 30, on_error='skip'))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    *before, last = done.stderr.splitlines()
    assert 'start them under `if __name__ == "__main__":`' in last
    assert len(before) < 200  # nothing is tried again


def test_none_is_no_constraint_and_wrong_words_are_named(ner):
    text = "Anna in Oslo"
    assert ner(text, known=None, forbidden=None) == ner(text)
    assert ner([text], known=None) == [ner(text)]
    for wrong in (5, "ab"):
        with pytest.raises(InputError, match=r"forbidden is .* it must be a list of spans"):
            ner(text, forbidden=wrong)
    for wrong, message in (([], "at least one word"), (["Anna", ""], "word 1 .* is empty")):
        with pytest.raises(InputError, match=rf"^sentences\[1\] is .*{message}.*leave it out"):
            ner.words([["Anna"], wrong])


AFTER_WARM_UP = """
import sys
import torch
from nestree import load
from nestree.treecrf import LexicalPotentials, head_marginals
from nestree.treecrf.numba_kernels.outside import sum_kernel

load(sys.argv[1], "cpu").warm_up()
before = len(sum_kernel.signatures)
shapes = (1, 5, 5), (1, 4, 4), (1, 4), (1, 5, 5)
for scale in (1.0, 300.0, 30_000.0):
    head_marginals(LexicalPotentials(*(scale * torch.randn(shape).clamp(-3, 3) for shape in shapes)), [4])
print(before, len(sum_kernel.signatures))
"""


def test_warm_up_loads_the_kernels_of_all_scores(tiny_model):
    done = subprocess.run([sys.executable, "-c", AFTER_WARM_UP, tiny_model], capture_output=True, text=True)
    assert done.stdout.split() == ["2", "2"], done.stderr
