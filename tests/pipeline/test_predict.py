"""predict: order, batches, memory, threads, windows, constraints."""

import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch

import nestree.pipeline
from nestree.decoding.constraints import SpanConstraint
from nestree.errors import ChartMemoryError, InputError
from nestree.model import Recognizer
from nestree.nn.batch import batches_by_length
from nestree.nn.int8 import unavailable_reason
from nestree.pipeline import Pipeline, PredictOptions, cut_windows, map_threaded, predict
from nestree.temperature import fit_temperatures
from nestree.types import Sentence, crossing_pairs
from tests import tiny


def test_order_is_kept_whatever_the_batches(model):
    alone = [predict(model, [sentence])[0] for sentence in tiny.SENTENCES]
    for words in (1, 9, 30, 10_000):
        assert predict(model, tiny.SENTENCES, words) == alone
    assert [sentence.words for sentence in alone] == [sentence.words for sentence in tiny.SENTENCES]
    assert predict(model, []) == []
    without_gold = [Sentence(sentence.words) for sentence in tiny.SENTENCES]
    assert predict(model, without_gold) == alone


def test_batches_have_similar_lengths_and_long_sentences_make_smaller_ones():
    lengths = [3, 50, 4, 49, 200, 5, 3, 48]
    batches = batches_by_length(lengths, 160)
    assert sorted(k for batch in batches for k in batch) == list(range(8))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[k] for k in batch) <= 160
    sizes = {n: len(batches_by_length([n] * 100, 4_000)[0]) for n in (40, 90, 180)}
    assert sizes == {40: 100, 90: 44, 180: 5}
    assert batches_by_length([1_000, 1_000], 4_000) == [[0], [1]]


def test_words_of_many_subwords_make_smaller_batches(model, record_calls):
    odd = [Sentence(("zqxj" * 20,) * 5) for _ in range(16)]
    sizes = record_calls(Recognizer, "forward", lambda _, batch: batch.subwords.numel())
    predicted = predict(model, odd, 80)
    assert [sentence.words for sentence in predicted] == [sentence.words for sentence in odd]
    assert len(sizes) > 1
    assert max(sizes) <= 8 * 80


@pytest.mark.parametrize("step", ["forward", "decode_scores"])
def test_a_batch_that_does_not_fit_is_split_in_half(model, monkeypatch, step):
    expected, method, sizes = predict(model, tiny.SENTENCES), getattr(Recognizer, step), []

    def limited(self, batch, *more, **options):
        sizes.append(len(batch.lengths))
        if len(batch.lengths) > 3:
            torch.empty(1 << 60, dtype=torch.int8)  # PyTorch's own out-of-memory error
        return method(self, batch, *more, **options)

    monkeypatch.setattr(Recognizer, step, limited)
    progress = []
    assert predict(model, tiny.SENTENCES, on_progress=progress.append) == expected
    assert sum(progress) == 8
    assert sizes[0] == 8


def test_a_sentence_that_does_not_fit_is_named_and_other_errors_pass(model, monkeypatch):
    training = copy.deepcopy(model).train()
    for error, expected, message in (
        (torch.OutOfMemoryError("full"), ChartMemoryError, "a sentence of 10 words: fans of the club"),
        (RuntimeError("shapes differ"), RuntimeError, "shapes differ"),
    ):

        def failing(self, batch, error=error):
            raise error

        monkeypatch.setattr(Recognizer, "forward", failing)
        with pytest.raises(expected, match=message):
            predict(training, tiny.SENTENCES)
        assert all(module.training for module in training.modules())


def test_on_a_gpu_a_batch_is_launched_before_the_previous_one_is_collected(model, monkeypatch, record_calls):
    order = []
    for step in ("forward", "decode_scores"):
        record_calls(Recognizer, step, lambda *_, step=step: order.append(step))
    run_on_streams = nestree.pipeline.run_on_streams
    monkeypatch.setattr(nestree.pipeline, "map_threaded", lambda _, jobs, *more: run_on_streams(jobs))
    predict(model, tiny.SENTENCES[:3], batch_words=1)
    assert order == ["forward", "forward", "decode_scores", "forward", "decode_scores", "decode_scores"]


@pytest.mark.parametrize("function", [predict, fit_temperatures])
def test_nothing_runs_in_training_mode_and_every_module_returns_to_its_mode(model, record_calls, function):
    """Also a module that is frozen while the others are trained."""
    training = copy.deepcopy(model).train()
    training.encoder.transformer.eval()
    before = {name: module.training for name, module in training.named_modules()}
    modes = record_calls(Recognizer, "forward", lambda self, _: {module.training for module in self.modules()})
    function(training, tiny.SENTENCES)
    assert set.union(*modes) == {False}
    assert {name: module.training for name, module in training.named_modules()} == before


def test_scores_are_probabilities_and_trees_hold_the_entities(model):
    for sentence in predict(model, tiny.SENTENCES, options=PredictOptions(scored=True, trees=True)):
        assert len(sentence.tree.spans) == len(sentence.tree.probabilities) == 2 * len(sentence.words) - 1
        spans = {span[:2] for span in sentence.tree.spans}
        for entity in sentence.entities:
            assert 0 < entity.score < 1
            assert entity.span in spans
        assert all(0 <= probability <= 1 for probability in sentence.tree.probabilities)
        assert sentence.tree.probabilities[0] == pytest.approx(1, abs=1e-5)


# Windows


def test_a_long_sentence_is_cut_into_windows_and_nothing_crosses(model):
    words = [word for sentence in tiny.SENTENCES * 4 for word in sentence.words]
    progress: list[int] = []
    options = PredictOptions(scored=True, max_sentence_words=16)
    long, short = predict(model, [Sentence(words), tiny.SENTENCES[0]], 20, progress.append, options)
    assert sum(progress) == 2
    assert long.extra["windows"] > 3
    assert long.words == tuple(words)
    assert crossing_pairs(long.entities) == []
    assert max(entity.end for entity in long.entities) > len(words) - 8
    assert short.extra == {}
    (alone,) = predict(model, [tiny.SENTENCES[0]], options=PredictOptions(scored=True))
    assert [(e.span, e.label) for e in short.entities] == [(e.span, e.label) for e in alone.entities]


def test_constraints_are_counted_in_words_of_each_window(model):
    sentences = [Sentence(list("ab")), Sentence(["w"] * 12)]
    constraints = {
        1: (
            [SpanConstraint(5, 7, "PER", 6), SpanConstraint(9, 12)],
            [SpanConstraint(6, 8, "ORG"), SpanConstraint(0, 2)],
        )
    }
    assert [window.constraints for window in cut_windows(sentences, constraints, 8)] == [
        ((), ()),
        ([SpanConstraint(5, 7, "PER", 6)], [SpanConstraint(6, 8, "ORG"), SpanConstraint(0, 2)]),
        ([SpanConstraint(1, 3, "PER", 2), SpanConstraint(5, 8)], [SpanConstraint(2, 4, "ORG")]),
    ]
    crossing = {0: ([SpanConstraint(1, 5), SpanConstraint(4, 9)], [])}  # in no window together
    options = PredictOptions(max_sentence_words=8)
    with pytest.raises(InputError, match="known entity 1-5 and entity 4-9 cross"):
        predict(model, [Sentence(["w"] * 12)], options=options, constraints=crossing)


# Threads


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)


def test_two_items_at_a_time_in_order_and_none_after_an_error(two_threads):
    barrier, started = threading.Barrier(2), []  # nobody passes alone

    def work(number):
        barrier.wait(timeout=30)
        return number, torch.get_num_threads()

    def fail(number):
        started.append(number)
        time.sleep(0.01)
        raise ValueError("zero")

    assert list(map_threaded(work, range(6))) == [(number, 1) for number in range(6)]
    with pytest.raises(ValueError, match="zero"):
        list(map_threaded(fail, range(50)))
    assert len(started) < 50
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert list(map_threaded(lambda _: threading.get_ident(), [1, 2])) == [threading.get_ident()] * 2


@pytest.mark.parametrize("precision", ["float32"] if unavailable_reason() else ["float32", "int8"])
def test_threads_do_not_change_the_result(two_threads, model, precision):
    reader, sentences = Pipeline(model, precision=precision).inference_model, tiny.SENTENCES * 5
    predicted = predict(reader, sentences, batch_words=20)
    with ThreadPoolExecutor(1) as pool:  # new threads keep their number
        assert pool.submit(torch.get_num_threads).result() == 2
    torch.set_num_threads(1)
    assert predicted == predict(reader, sentences, batch_words=20)


def test_one_thread_at_a_time_collates(two_threads, model, monkeypatch):
    barrier, met = threading.Barrier(2), []
    collate = model.collate_words

    def waiting(sentences):
        with suppress(threading.BrokenBarrierError):
            barrier.wait(timeout=0.5)  # until another thread comes; broken once none has come
            met.append(sentences)
        return collate(sentences)

    monkeypatch.setattr(model, "collate_words", waiting)
    predict(model, tiny.SENTENCES, batch_words=20)
    assert barrier.broken
    assert not met
