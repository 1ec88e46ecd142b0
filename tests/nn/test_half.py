"""The encoder in bfloat16: what a model in bfloat16 says, with weights and gradients in float32."""

import copy

import pytest
import torch

from nestree.model import Recognizer
from nestree.nn import direct, half
from nestree.nn.encoder import attention_mask
from tests import tiny

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),  # a processor without bfloat16
]


def made(folder, family):
    torch.manual_seed(0)
    return Recognizer(tiny.settings("default"), tiny.LABELS, tiny.encoder(folder, family)).eval()


def in_halves():
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_it_says_what_a_model_in_bfloat16_says(tmp_path, family):
    model = made(tmp_path, family)
    encoder, batch = model.encoder, model.collate(tiny.SENTENCES)
    twin = copy.deepcopy(encoder.transformer)
    for weight in twin.parameters():
        weight.data = weight.data.to(torch.bfloat16)
    with torch.no_grad(), in_halves():
        found = encoder.states(batch.pieces, batch.attention)
    mask = attention_mask(batch.attention, twin.config, torch.bfloat16)
    with torch.no_grad():
        expected = twin(input_ids=batch.pieces, attention_mask=mask, output_hidden_states=True).hidden_states
    for state, twins in zip(found, expected[-len(found) :], strict=True):
        assert state.dtype == torch.float32
        if direct.supports(twin.config):  # other operations, rounded elsewhere
            state, twins = state[batch.attention > 0], twins[batch.attention > 0]
            assert (state - twins.float()).norm() < 0.01 * twins.float().norm()
        else:
            assert torch.equal(state, twins.float())


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_gradients_are_those_of_float32_but_for_rounding(tmp_path, family):
    model = made(tmp_path, family)
    batch = model.collate(tiny.SENTENCES)
    model.losses(batch).total.backward()
    expected = {name: p.grad for name, p in model.encoder.transformer.named_parameters()}
    model.zero_grad()
    with in_halves():
        losses = model.losses(batch)
    losses.total.backward()
    for name, weight in model.encoder.transformer.named_parameters():
        assert (weight.grad is None) == (expected[name] is None)
        if weight.grad is not None and expected[name].norm() > 1e-3:
            assert weight.grad.dtype == weight.dtype == torch.float32
            assert (weight.grad - expected[name]).norm() < 0.2 * expected[name].norm(), name


def test_weights_that_are_kept_are_turned_once_and_forgotten(tmp_path):
    encoder = made(tmp_path, "bert").encoder
    keeper, network = encoder.keeper, encoder.transformer
    with keeper.keeping(network):
        first = keeper.weights(network)
        assert keeper.weights(network) is first
        with keeper.keeping(network):  # as in an evaluation within another
            assert keeper.weights(network) is first
        assert keeper.weights(network) is first
    with torch.no_grad():
        weight = next(network.parameters())
        weight.fill_(3.0)
    kept = next(iter(keeper.weights(network).values()))
    assert torch.equal(kept.float(), torch.full_like(weight, 3.0))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_what_no_product_takes_stays_as_it_is_where_each_operation_is_known(tmp_path, family):
    encoder = made(tmp_path, family).encoder
    weights = encoder.keeper.weights(encoder.transformer)
    types = {name: weight.dtype for name, weight in weights.items()}
    known = direct.supports(encoder.transformer.config)
    assert {types[name] for name in types if direct.whole(name)} == {torch.float32 if known else half.HALF}
    assert {types[name] for name in types if not direct.whole(name)} == {half.HALF}


def test_only_where_it_is_asked_for():
    here = torch.device("cpu")
    assert not half.uses_bf16(here)
    with in_halves():
        assert half.uses_bf16(here)
        with torch.autocast("cpu", enabled=False):
            assert not half.uses_bf16(here)
    with torch.autocast("cpu", torch.float16):
        assert not half.uses_bf16(here)
