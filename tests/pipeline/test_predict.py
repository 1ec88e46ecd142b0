"""Sentences in, sentences with entities out: order, batches, memory, windows."""

import copy

import pytest
import torch

import nestree.pipeline as reading
from nestree.decoding.constraints import Forbidden, Known
from nestree.errors import ChartMemoryError, InputError
from nestree.model import Recognizer
from nestree.pipeline import PredictOptions, batches_by_length, knowledge_of, predict
from nestree.temperature import fit_temperatures
from nestree.types import Sentence, crossing_pairs
from tests import tiny


def test_order_is_kept_whatever_the_batches(model):
    alone = [predict(model, [sentence])[0] for sentence in tiny.SENTENCES]
    for words in (1, 9, 30, 10_000):
        assert predict(model, tiny.SENTENCES, words) == alone
    assert [sentence.words for sentence in alone] == [sentence.words for sentence in tiny.SENTENCES]
    assert predict(model, []) == []


def test_batches_are_of_like_length_and_within_the_budget():
    lengths = [3, 50, 4, 49, 200, 5, 3, 48]
    found = batches_by_length(lengths, 160)
    assert sorted(k for batch in found for k in batch) == list(range(8))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[k] for k in batch) <= 160


def test_the_charts_of_long_sentences_bound_a_batch():
    sizes = {n: len(batches_by_length([n] * 100, 4_000)[0]) for n in (40, 90, 180)}
    assert sizes == {40: 100, 90: 44, 180: 5}
    assert batches_by_length([1_000, 1_000], 4_000) == [[0], [1]]


def test_words_of_many_pieces_make_smaller_batches(model, monkeypatch):
    odd = [Sentence(("zqxj" * 20,) * 5) for _ in range(16)]
    sizes, forward = [], Recognizer.forward
    monkeypatch.setattr(
        Recognizer,
        "forward",
        lambda self, batch: (sizes.append(batch.pieces.numel()), forward(self, batch))[1],
    )
    found = predict(model, odd, 80)
    assert [sentence.words for sentence in found] == [sentence.words for sentence in odd]
    assert len(sizes) > 1
    assert max(sizes) <= 8 * 80


@pytest.mark.parametrize("step", ["forward", "found"])
def test_a_batch_that_does_not_fit_is_halved(model, monkeypatch, step):
    whole, right, sizes = predict(model, tiny.SENTENCES), getattr(Recognizer, step), []

    def full(self, given, *more, **asked):
        sizes.append(len(given.lengths))
        if len(given.lengths) > 3:
            torch.empty(1 << 60, dtype=torch.int8)  # says, in its own words, that it does not fit
        return right(self, given, *more, **asked)

    monkeypatch.setattr(Recognizer, step, full)
    heard = []
    assert predict(model, tiny.SENTENCES, tell=heard.append) == whole
    assert sum(heard) == 8
    assert sizes[0] == 8


def test_a_batch_is_begun_before_the_one_before_is_read(model, monkeypatch):
    order = []
    for step in ("forward", "found"):
        right = getattr(Recognizer, step)

        def noted(self, given, *more, step=step, right=right, **asked):
            order.append(step)
            return right(self, given, *more, **asked)

        monkeypatch.setattr(Recognizer, step, noted)
    # as for a GPU; a CPU is done with one before it begins the next
    monkeypatch.setattr(reading, "map_threaded", lambda _, turns: reading.run_on_streams(turns))
    predict(model, tiny.SENTENCES[:3], batch_words=1)
    assert order == ["forward", "forward", "found", "forward", "found", "found"]


def test_a_sentence_that_does_not_fit_is_named(model, monkeypatch):
    def full(self, batch):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(Recognizer, "forward", full)
    with pytest.raises(
        ChartMemoryError, match="not enough memory for a sentence of 10 words: fans of the club"
    ):
        predict(model, tiny.SENTENCES)


def test_other_errors_are_not_about_memory(model, monkeypatch):
    def broken(self, batch):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(Recognizer, "forward", broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        predict(model, tiny.SENTENCES)


def test_gold_entities_do_not_matter(model):
    bare = [sentence.__class__(sentence.words) for sentence in tiny.SENTENCES]
    assert predict(model, bare) == predict(model, tiny.SENTENCES)


@pytest.mark.parametrize("read", [predict, fit_temperatures])
def test_nothing_is_read_in_training_mode_and_every_part_is_then_as_before(model, monkeypatch, read):
    """Also one that is frozen while the others learn."""
    learning, modes, forward = copy.deepcopy(model).train(), set(), Recognizer.forward
    learning.encoder.transformer.eval()
    before = {name: part.training for name, part in learning.named_modules()}

    def noted(self, batch):
        modes.update(part.training for part in self.modules())
        return forward(self, batch)

    monkeypatch.setattr(Recognizer, "forward", noted)
    read(learning, tiny.SENTENCES)
    assert modes == {False}
    assert {name: part.training for name, part in learning.named_modules()} == before


def test_mode_is_as_before_after_a_failure(model, monkeypatch):
    learning = copy.deepcopy(model).train()
    monkeypatch.setattr(Recognizer, "forward", lambda self, batch: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        predict(learning, tiny.SENTENCES)
    assert all(part.training for part in learning.modules())


def test_scores_are_probabilities_and_trees_hold_the_entities(model):
    for sentence in predict(model, tiny.SENTENCES, asked=PredictOptions(scored=True, trees=True)):
        assert len(sentence.tree.spans) == len(sentence.tree.probabilities) == 2 * len(sentence.words) - 1
        spans = {span[:2] for span in sentence.tree.spans}
        for entity in sentence.entities:
            assert 0 < entity.score < 1
            assert entity.span in spans
        assert all(0 <= chance <= 1 for chance in sentence.tree.probabilities)
        assert sentence.tree.probabilities[0] == pytest.approx(1, abs=1e-5)


def test_a_long_sentence_is_read_through_windows_and_nothing_crosses(model):
    words = [word for sentence in tiny.SENTENCES * 4 for word in sentence.words]
    found = predict(
        model, [Sentence(words), tiny.SENTENCES[0]], asked=PredictOptions(scored=True, longest=16)
    )
    assert found[0].extra["windows"] > 3
    assert found[0].words == tuple(words)
    assert found[0].entities
    assert crossing_pairs(found[0].entities) == []
    assert max(entity.end for entity in found[0].entities) > len(words) - 8
    assert found[1].extra == {}
    alone = predict(model, [tiny.SENTENCES[0]], asked=PredictOptions(scored=True))[0]
    assert [(e.span, e.label) for e in found[1].entities] == [(e.span, e.label) for e in alone.entities]


def test_every_sentence_is_told_once_even_if_it_has_windows(model):
    heard = []
    words = tiny.SENTENCES[0].words * 10
    predict(model, [Sentence(words), *tiny.SENTENCES], 20, heard.append, PredictOptions(longest=10))
    assert sum(heard) == 9


def test_what_is_known_is_told_in_words_of_each_window():
    sentences = [Sentence(list("ab")), Sentence(["w"] * 12)]
    known = {1: ([Known(5, 7, "PER", 6), Known(9, 12)], [Forbidden(6, 8, "ORG"), Forbidden(0, 2)])}
    told = knowledge_of(known, sentences, [(0, (0, 2)), (1, (0, 8)), (1, (4, 12))])
    assert told == [
        ([], []),
        ([Known(5, 7, "PER", 6)], [Forbidden(6, 8, "ORG"), Forbidden(0, 2)]),
        ([Known(1, 3, "PER", 2), Known(5, 8)], [Forbidden(2, 4, "ORG")]),
    ]


def test_what_is_known_in_two_windows_must_not_cross(model):
    known = {0: ([Known(1, 5), Known(4, 9)], [])}
    with pytest.raises(InputError, match="known entity 1-5 and entity 4-9 cross"):
        predict(model, [Sentence(["w"] * 12)], asked=PredictOptions(longest=8), known=known)
