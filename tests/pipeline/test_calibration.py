"""Temperatures that were planted are found again; nothing known, nothing changed."""

import pytest
import torch

from nestree.decoding.probabilities import NO_CHANGE, Temperatures, log_labels, potentials
from nestree.pipeline.calibration import fitted
from nestree.sentence import Entity, Sentence
from nestree.treecrf import sample_trees
from tests import tiny


def dreamt(model, sentences, temperatures):
    """These sentences with entities drawn from what the model believes at these temperatures."""
    generator = torch.Generator().manual_seed(5)
    with torch.inference_mode():
        scores = model(model.collate_words(sentences))
        said = scores.mention / temperatures.mention
        trees = sample_trees(potentials(scores, said.logsumexp(-1)), scores.lengths, 1, generator)[0]
        made = []
        for b, (sentence, tree) in enumerate(zip(sentences, trees, strict=True)):
            entities = []
            for i, j, h in tree.spans:
                yes = torch.rand(1, generator=generator) < said[b, i, j].softmax(-1)[1]
                b_, i_, j_, h_ = (torch.tensor(k) for k in (b, i, j, h))
                chance = log_labels(scores.labels.of(b_, i_, j_, h_), model.settings, temperatures).exp()
                drawn = torch.rand(len(chance), generator=generator) < chance
                entities += [Entity(i, j, model.labels[l]) for l in drawn.nonzero().flatten() if yes]
            made.append(Sentence(sentence.words, entities))
    return made


@pytest.mark.parametrize("planted", [Temperatures(1.0, 1.0), Temperatures(2.0, 0.6)])
def test_planted_temperatures_are_found(model, planted):
    data = dreamt(model, [Sentence(s.words) for s in tiny.SENTENCES[:5] * 60], planted)
    found = fitted(model, data)
    assert found.mention == pytest.approx(planted.mention, rel=0.25)
    assert found.label == pytest.approx(planted.label, rel=0.25)


def test_nothing_known_nothing_changed(model):
    assert fitted(model, []) == NO_CHANGE
    incomplete = [Sentence(s.words, s.entities, complete=False) for s in tiny.SENTENCES]
    assert fitted(model, incomplete) == NO_CHANGE


def test_few_sentences_change_little(model):
    found = fitted(model, tiny.SENTENCES[:1])
    assert 0.5 < found.mention < 2
    assert 0.5 < found.label < 2
