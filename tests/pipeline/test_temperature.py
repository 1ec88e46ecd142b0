"""Planted temperatures are found again; the loss is what it says; the decoder chosen on dev is the best one."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from nestree import temperature
from nestree.decoding.probabilities import (
    UNIT_TEMPERATURES,
    Temperatures,
    apply_temperatures,
    label_log_probabilities,
    label_probabilities,
    span_marginals,
)
from nestree.evaluation import evaluate
from nestree.pipeline import PredictOptions, predict
from nestree.temperature import (
    best_decoder,
    collect_events,
    decoder_f1,
    event_probabilities,
    fit_temperatures,
    head_span_probabilities,
    nll,
)
from nestree.treecrf import sample_trees
from nestree.types import Entity, Sentence
from tests import tiny

ONE_STAGE, JOINT = "ablation/01-unstructured-one-stage", "ablation/12-joint"


def sample_entities(model, sentences, temperatures):
    """These sentences with entities sampled from the model's distribution at these temperatures."""
    generator = torch.Generator().manual_seed(5)
    with torch.inference_mode():
        scores = model(model.collate_words(sentences))
        said = sum(apply_temperatures(scores.mention, temperatures))
        given = scores.potentials(said.logsumexp(-1), temperatures.tree)
        trees = sample_trees(given, scores.lengths, 1, generator)[0]
        made = []
        for b, (sentence, tree) in enumerate(zip(sentences, trees, strict=True)):
            entities = []
            for i, j, h in tree.spans:
                yes = torch.rand(1, generator=generator) < said[b, i, j].softmax(-1)[1]
                logits = scores.labels.score_spans(*(torch.tensor(k) for k in (b, i, j, h)))
                chance = label_log_probabilities(logits, model.settings, temperatures).exp()
                drawn = torch.rand(len(chance), generator=generator) < chance
                if model.settings.loss.label == "softmax":  # one of them, or none
                    none = (1 - chance.sum()).clamp(min=0)
                    one = torch.multinomial(torch.cat([chance, none[None]]), 1, generator=generator)
                    drawn = torch.arange(len(chance)) == one
                entities += [Entity(i, j, model.labels[l]) for l in drawn.nonzero().flatten() if yes]
            made.append(Sentence(sentence.words, entities))
    return made


@pytest.fixture
def uncertain(model):
    """The same model, less certain of labels: its own probabilities are close to 0 or 1 at any temperature."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for weights in made.scorer.labels.triples.out.parameters():
            weights /= 15
    return made


@pytest.mark.parametrize(
    ("kind", "planted"),
    [("ranking", Temperatures(2.0, 0.6, 1.5, 0.5)), ("softmax", Temperatures(0.7, 2.0, 0.7, -0.4))],
)
def test_planted_temperatures_are_found(uncertain, planted, kind):
    """Or others that say the same."""
    uncertain.settings = uncertain.settings.with_overrides([f"loss.label={kind}"])
    data = sample_entities(uncertain, [Sentence(s.words) for s in tiny.SENTENCES[:5] * 120], planted)
    found, truth = fit_temperatures(uncertain, data), probabilities_at(uncertain, planted)
    assert (probabilities_at(uncertain, found) - truth).abs().mean() < 0.04
    assert (probabilities_at(uncertain, UNIT_TEMPERATURES) - truth).abs().mean() > 0.06
    if kind == "ranking":  # one label of several leaves more of them open
        assert found.tree == pytest.approx(planted.tree, rel=0.4)
        assert found.label == pytest.approx(planted.label, rel=0.4)


def probabilities_at(model, temperatures):
    """The probabilities of all events."""
    with torch.inference_mode():
        batch = collect_events(model, tiny.SENTENCES[:5])
        spans = head_span_probabilities(batch, model.settings, temperatures.tree)
        return event_probabilities(batch, spans, model.settings, temperatures)[batch.events]


def test_few_sentences_change_little_and_none_change_nothing(model):
    assert fit_temperatures(model, []) == UNIT_TEMPERATURES
    incomplete = [Sentence(s.words, s.entities, complete=False) for s in tiny.SENTENCES]
    assert fit_temperatures(model, incomplete) == UNIT_TEMPERATURES
    assert best_decoder(model, incomplete) == model.settings.decoding  # in a tie, the model's own
    found = fit_temperatures(model, tiny.SENTENCES[:1])
    assert 0.5 < found.mention < 2
    assert 0.5 < found.label < 2


def test_of_too_many_sentences_some_are_taken_from_all_over(monkeypatch):
    monkeypatch.setattr(temperature, "MAX_SENTENCES", 3)
    for number, chosen in ((0, []), (3, [0, 1, 2]), (8, [0, 3, 6]), (9, [0, 3, 6]), (10, [0, 4, 8])):
        batches = temperature.sample_batches([Sentence([str(k)]) for k in range(number)])
        assert [int(sentence.words[0]) for batch in batches for sentence in batch] == chosen


@pytest.mark.parametrize("recipe", [ONE_STAGE, "ablation/04-lexical-one-stage", "ablation/05-tree-two-stage", JOINT])
def test_the_loss_is_that_of_probabilities_as_they_are_defined(recipe, model, monkeypatch):
    """For labels of one stage or two, of spans alone, plain trees and lexicalised ones."""
    other = tiny.model(model.settings.encoder.path, recipe, seed=4).eval()
    monkeypatch.setattr(temperature, "MIN_PROBABILITY", 0.05)
    temperatures, settings = Temperatures(0.7, 1.6, 1.3, 0.2), other.settings
    with torch.inference_mode():
        batch = collect_events(other, tiny.SENTENCES)
        spans = head_span_probabilities(batch, settings, temperatures.tree)
        found = float(nll(batch, spans, settings, temperatures))
        scores = other(other.collate_words(tiny.SENTENCES))
        every = (torch.ones_like(scores.mention[..., 0]).triu(1) > 0).nonzero()
        before, after = (
            label_probabilities(scores, settings, at, span_marginals(scores, settings, at), every)
            for at in (UNIT_TEMPERATURES, temperatures)
        )
    expected, number = 0.0, 0
    for (b, i, j), was, now in zip(every.tolist(), before.tolist(), after.tolist(), strict=True):
        gold = {e.label for e in tiny.SENTENCES[b].entities if (e.start, e.end) == (i, j)}
        for label, first, chance in zip(tiny.LABELS, was, now, strict=True):
            if j <= len(tiny.SENTENCES[b].words) and first >= 0.05:
                expected -= math.log(chance if label in gold else 1 - chance)
                number += 1
    assert found == pytest.approx(expected, rel=1e-4)
    assert number > 20


@pytest.mark.parametrize(
    "recipe", ["default", ONE_STAGE, "ablation/03-tree-one-stage", "ablation/05-tree-two-stage", JOINT]
)
def test_the_f1_of_each_decoder_is_that_of_predicting_with_it(recipe, model):
    """All of them come from one pass."""
    other = tiny.train(tiny.model(model.settings.encoder.path, recipe, seed=4), tiny.SENTENCES, 15)
    other.temperatures = Temperatures(0.7, 1.6, 1.3, 0.2)
    gold = [*tiny.SENTENCES, tiny.TWO_LABELS, Sentence(["Oslo"], [Entity(0, 1, "unseen")])]
    scores = decoder_f1(other, gold)
    assert next(iter(scores)) == other.settings.decoding
    assert {"mbr", "spans" if recipe == ONE_STAGE else "viterbi"} == {decoder.method for decoder in scores}
    assert len(set(scores.values())) > 2
    for decoder, f1 in scores.items():
        options = PredictOptions(settings=replace(other.settings, decoding=decoder))
        found = predict(other, gold, options=options)
        assert f1 == pytest.approx(evaluate(gold, found, resamples=0).entities.f1), decoder
    assert scores[best_decoder(other, gold)] == max(scores.values())
