"""Recorded operations: what goes in and out. There are no records without a GPU: these are played by hand."""

import copy
from types import SimpleNamespace

import pytest
import torch

from nestree.model import Recognizer
from nestree.nn.records import MOST, Recorder, shape_for
from tests import tiny

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a processor without bfloat16


class Played:
    """A record whose replays compute everything anew, from the same places into the same places."""

    def __init__(self, recorder, pieces, real):
        self.recorder, self.pieces, self.real = recorder, pieces.clone(), real.clone()
        self.states = [state.detach() for state in self.computed()[1]]
        self.slopes = [torch.zeros_like(state) for state in self.states]
        self.gradients = None  # from the first replay on always the same tensors
        self.forward = SimpleNamespace(replay=self.play)
        self.backward = SimpleNamespace(replay=self.play_back)

    def computed(self):
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            weights = [place.detach().requires_grad_() for place in self.recorder.places]
            return weights, self.recorder.computed(self.pieces, self.real, weights)

    def play(self):
        for place, state in zip(self.states, self.computed()[1], strict=True):
            place.copy_(state.detach())

    def play_back(self):
        weights, states = self.computed()
        with torch.enable_grad():
            found = torch.autograd.grad(states, weights, self.slopes, allow_unused=True)
        if self.gradients is None:
            self.gradients = tuple(found)
        for place, slope in zip(self.gradients, found, strict=True):
            if place is not None:
                place.copy_(slope)


def model_of(folder, family):
    torch.manual_seed(0)
    model = Recognizer(tiny.settings("default"), tiny.LABELS, tiny.encoder(folder, family)).train()
    config = model.encoder.transformer.config
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return model


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_padding_and_places_change_nothing(tmp_path, monkeypatch, family):
    monkeypatch.setattr(Recorder, "recorded", lambda *given: Played(*given))
    plain = model_of(tmp_path, family)
    recorded = copy.deepcopy(plain)
    recorded.encoder.recorder = Recorder(recorded.encoder.transformer, len(recorded.encoder.mix.weights))
    for some in (tiny.SENTENCES, tiny.SENTENCES[:3], tiny.SENTENCES):
        (value, slopes), (other, others) = (
            tiny.slopes(model, some, torch.autocast("cpu", torch.bfloat16)) for model in (plain, recorded)
        )
        torch.testing.assert_close(other, value, rtol=2e-3, atol=2e-3)
        assert slopes.keys() == others.keys()
        for name, slope in slopes.items():
            assert (slope - others[name]).norm() <= 0.05 * slope.norm() + 1e-3, name
        with torch.no_grad():  # as an optimiser does
            for one, two in zip(plain.parameters(), recorded.parameters(), strict=True):
                if one.grad is not None:
                    one -= 0.05 * one.grad
                    two.copy_(one)
    shapes = {shape_for(plain.collate(some).pieces) for some in (tiny.SENTENCES, tiny.SENTENCES[:3])}
    assert set(recorded.encoder.recorder.records) == shapes


def test_a_replay_leaves_the_gradients_of_the_last_one_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(Recorder, "recorded", lambda *given: Played(*given))
    model = model_of(tmp_path, "mpnet")
    model.encoder.recorder = Recorder(model.encoder.transformer, len(model.encoder.mix.weights))
    tiny.slopes(model, tiny.SENTENCES, torch.autocast("cpu", torch.bfloat16))
    held = [weight.grad for weight in model.parameters() if weight.grad is not None]  # as an adversary does
    before = [slope.clone() for slope in held]
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        model.encoder.transformer.get_input_embeddings().weight.add_(0.3)
    tiny.slopes(model, tiny.SENTENCES, torch.autocast("cpu", torch.bfloat16))
    assert all(torch.equal(one, two) for one, two in zip(held, before, strict=True))


def test_only_training_replays_and_only_so_many_shapes(tmp_path, monkeypatch):
    monkeypatch.setattr(Recorder, "recorded", lambda *given: Played(*given))
    model = model_of(tmp_path, "bert")
    recorder = model.encoder.recorder = Recorder(model.encoder.transformer, 2)
    batch = model.collate(tiny.SENTENCES)
    with torch.autocast("cpu", torch.bfloat16):
        model.eval()(batch)
        with torch.no_grad():
            model.train()(batch)
        assert not recorder.records
        recorder.records = dict.fromkeys((0, number) for number in range(MOST))
        model(batch)
        assert len(recorder.records) == MOST


def test_without_a_gpu_nothing_is_recorded(tmp_path):
    model = model_of(tmp_path, "bert")
    model.encoder.record()
    assert model.encoder.recorder is None
