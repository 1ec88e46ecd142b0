"""How weights move: rates, their course over time, and the average of weights."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from nestree.errors import TrainingError
from nestree.nn.encoder import load_pretrained
from nestree.training.optimizer import Average, lr_schedule, make_optimizer, set_lr
from tests import tiny


@pytest.fixture
def training(settings):
    return replace(
        settings().training,
        epochs=10,
        warmup_epochs=2.0,
        encoder_lr=0.1,
        lr=1.0,
        weight_decay=0.5,
        average=0.9,
    )


@pytest.mark.parametrize(
    ("epochs", "share"), [(0, 0), (0.5, 0.25), (2, 1), (6, 0.5), (9, 0.125), (10, 0), (11, 0)]
)
def test_rates_rise_and_fall_in_straight_lines(training, epochs, share):
    assert lr_schedule(epochs, training) == pytest.approx(share)


def test_without_warm_up_they_start_at_the_peak(training):
    assert lr_schedule(0, replace(training, warmup_epochs=0.0)) == 1


def test_the_encoder_has_a_rate_of_its_own_and_biases_do_not_decay(training):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    made = make_optimizer(model, model[0], training)
    set_lr(made, 0.5)
    found = {
        id(p): (group["lr"], group["weight_decay"]) for group in made.param_groups for p in group["params"]
    }
    assert [found[id(p)] for p in model.parameters()] == [(0.05, 0.5), (0.05, 0), (0.5, 0.5), (0.5, 0)]


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # DeBERTa in transformers
@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta-v2", "modernbert"])
def test_lower_layers_learn_at_lower_rates(training, family, tmp_path):
    network = load_pretrained(str(tiny.encoder(tmp_path, family)))
    made = make_optimizer(network, network, replace(training, layer_decay=0.5))
    found = {id(p): group["lr"] for group in made.param_groups for p in group["params"]}
    rates = {name: found[id(p)] for name, p in network.named_parameters()}
    for name, rate in rates.items():
        layer = next((k for k in (0, 1) if f"layer.{k}." in name or f"layers.{k}." in name), None)
        expected = 0.025 if "embed" in name else {0: 0.05, 1: 0.1, None: 0.1}[layer]
        assert rate == pytest.approx(expected), name
    assert {0.025, 0.05, 0.1} <= {round(rate, 6) for rate in rates.values()}
    alike = make_optimizer(network, network, training)
    assert {group["lr"] for group in alike.param_groups} == {0.1}


def test_layers_that_cannot_be_told_apart_are_refused_other_rates(training):
    network = nn.ModuleDict({"embeddings": nn.Embedding(3, 2), "shared": nn.Linear(2, 2)})
    with pytest.raises(TrainingError, match=r"layer_decay is 0.5, and this encoder has no layers"):
        make_optimizer(network, network, replace(training, layer_decay=0.5))
    assert {group["lr"] for group in make_optimizer(network, network, training).param_groups} == {0.1}


def test_the_average_by_hand():
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(4.0)
        average = Average(model, 0.9)
        model.weight.fill_(8.0)
        average.update(model, 1)  # the first updates hardly remember: 1 / 11
        assert average.weights["weight"].item() == pytest.approx(4 / 11 + 80 / 11)
        before = average.weights["weight"].item()
        average.update(model, 10_000)
        assert average.weights["weight"].item() == pytest.approx(0.9 * before + 0.1 * 8)
        after = average.weights["weight"].item()
        average.swap(model)
        assert (model.weight.item(), average.weights["weight"].item()) == (pytest.approx(after), 8.0)
        average.swap(model)
        assert (model.weight.item(), average.weights["weight"].item()) == (8.0, pytest.approx(after))


def test_no_average_costs_nothing():
    model = nn.Linear(1, 1)
    average = Average(model, 0.0)
    average.update(model, 1)
    average.swap(model)
    assert average.weights == {}
