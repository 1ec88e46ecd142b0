"""Learning rates, weight decay and the schedule."""

from dataclasses import replace

import pytest
from torch import nn

from nestree.training.step import lr_schedule, make_optimizer, set_lr


@pytest.fixture
def training(settings):
    return replace(
        settings().training, epochs=10, warmup_epochs=2.0, encoder_lr=0.1, lr=1.0, weight_decay=0.5
    )


@pytest.mark.parametrize(
    ("epochs", "factor"), [(0, 0), (0.5, 0.25), (2, 1), (6, 0.5), (9, 0.125), (10, 0), (11, 0)]
)
def test_linear_warmup_and_decay(training, epochs, factor):
    assert lr_schedule(epochs, training) == pytest.approx(factor)
    assert lr_schedule(0, replace(training, warmup_epochs=0.0)) == 1


def test_encoder_lr_and_no_weight_decay_of_biases(training):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = make_optimizer(model, model[0], training)
    set_lr(optimizer, 0.5)
    rates = {
        id(p): (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for p in group["params"]
    }
    assert [rates[id(p)] for p in model.parameters()] == [(0.05, 0.5), (0.05, 0), (0.5, 0.5), (0.5, 0)]
