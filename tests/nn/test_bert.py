"""The BERT family: values and gradients are those of `transformers`, in float64 and bfloat16; loading without it."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from nestree.nn import bert
from nestree.nn.bert import Bert, Bf16WeightCache, build_bert, stays_float32
from nestree.nn.encoder import load_pretrained
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.types import Sentence
from tests import tiny

FAMILIES = ["bert", "electra", "mpnet", "roberta"]
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a processor without bfloat16


def both(folder):
    """Our encoder, and that of `transformers` with the same weights."""
    theirs = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    return load_pretrained(str(folder)).eval(), theirs


def inputs(length, padding=1):
    """Three windows of subwords, two of them padded, and where they are not."""
    torch.manual_seed(1)
    subwords = torch.randint(5, 40, (3, length))
    mask = torch.arange(length) < torch.tensor([length, max(1, length // 2), 2])[:, None]
    return subwords.masked_fill(~mask, padding), mask


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [3, 8, 61])
def test_states_and_gradients_are_those_of_transformers(tiny_encoders, family, length):
    ours, theirs = (model.double() for model in both(tiny_encoders(family)))
    assert isinstance(ours, Bert)
    subwords, mask = inputs(length, ours.config.pad_token_id if family == "roberta" else 1)
    states = ours(subwords, mask, 3)
    expected = theirs(input_ids=subwords, attention_mask=mask.long(), output_hidden_states=True).hidden_states
    assert len(states) == len(expected) == 3
    for state, other in zip(states, expected, strict=True):
        torch.testing.assert_close(state[mask], other[mask], rtol=1e-9, atol=1e-9)
    direction = torch.randn_like(states[-1]) * mask[..., None]
    (states[-1] * direction).sum().backward()
    (expected[-1] * direction).sum().backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters() if "pooler" not in name}
    assert [name for name, _ in ours.named_parameters()] == list(gradients)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-8, atol=1e-8, msg=name)


def test_embeddings_of_another_size_are_projected(tmp_path):
    sizes = {"vocab_size": 50, "embedding_size": 16, "hidden_size": 32, "num_attention_heads": 2}
    config = AutoConfig.for_model("electra", **sizes, num_hidden_layers=1)
    theirs = AutoModel.from_config(config).eval()
    ours = Bert(config, theirs.state_dict()).eval()
    assert {name: tuple(p.shape) for name, p in ours.named_parameters()} == bert.parameter_shapes(config)
    subwords, mask = inputs(9, config.pad_token_id)
    expected = theirs(subwords, attention_mask=mask.long()).last_hidden_state
    torch.testing.assert_close(ours(subwords, mask, 1)[0][mask], expected[mask])


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_drops_its_share_and_scales_the_rest(rate):
    x = torch.ones(3, 333, 101, dtype=torch.float64, requires_grad=True)  # no multiple of four elements
    torch.manual_seed(1)
    dropped = bert.dropout(x, rate)
    dropped.sum().backward()
    assert torch.equal(x.grad, dropped)
    values, counts = dropped.detach().unique(return_counts=True)
    assert values.tolist() == pytest.approx([0, 1 / (1 - rate)], rel=1e-4)
    assert counts[0] / x.numel() == pytest.approx(rate, abs=0.006)  # four standard deviations
    is_dropped = (dropped == 0).double().flatten()
    assert (is_dropped[1:] * is_dropped[:-1]).mean() == pytest.approx(rate**2, abs=0.006)
    assert dropped.detach().mean() == pytest.approx(1, abs=0.013)
    torch.manual_seed(1)
    assert torch.equal(bert.dropout(x, rate), dropped)
    torch.testing.assert_close(bert.dropout(x, 1e-9), x)
    assert not bert.dropout(x, 1.0).any()


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_dropout_changes_states_as_much_as_that_of_transformers(tiny_encoders, family):
    ours, theirs = both(tiny_encoders(family))
    subwords, mask = inputs(9, ours.config.pad_token_id)

    def run(model):
        if model is ours:
            return ours(subwords, mask, 1)[0][mask].detach()
        return theirs(input_ids=subwords, attention_mask=mask.long()).last_hidden_state[mask].detach()

    exact = run(ours)
    assert torch.equal(exact, run(ours))
    torch.manual_seed(0)
    changes = [torch.stack([run(model.train()) - exact for _ in range(100)]) for model in (ours, theirs)]
    size, expected = (change.norm(dim=(1, 2)).mean() for change in changes)
    assert abs(size / expected - 1) < 0.05
    shift, expected = (change.mean(0).norm() for change in changes)
    assert abs(shift / expected - 1) < 0.15
    for kind in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        ours.config.hidden_dropout_prob = ours.config.attention_probs_dropout_prob = 0.0
        assert torch.equal(run(ours), run(ours))
        setattr(ours.config, kind, 0.5)
        assert not torch.equal(run(ours), run(ours))


def test_distance_buckets_of_mpnet_in_inference_and_training(tiny_encoders):
    position = torch.arange(300)
    encoder = AutoModel.from_pretrained(tiny_encoders("mpnet")).encoder
    expected = encoder.relative_position_bucket(position[None, :] - position[:, None])
    assert torch.equal(bert.distance_buckets(300, torch.device("cpu")), expected)
    model = load_pretrained(str(tiny_encoders("mpnet")))
    subwords, mask = inputs(13)
    bert.distance_buckets.cache_clear()
    with torch.inference_mode():
        model(subwords, mask, 1)
    model.train()(subwords, mask, 1)[0].sum().backward()
    assert model.get_input_embeddings().weight.grad.isfinite().all()


# Mixed precision


def bf16():
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("family", FAMILIES)
def test_states_in_bf16_are_those_of_transformers_in_bf16(tiny_encoders, family):
    model = tiny.model(tiny_encoders(family)).eval()
    batch = model.collate(tiny.SENTENCES)
    mask = batch.attention_mask > 0
    with torch.no_grad(), bf16():
        states = model.encoder.hidden_states(batch.subwords, batch.attention_mask)
    twin = AutoModel.from_pretrained(tiny_encoders(family), dtype=torch.bfloat16).eval()
    with torch.no_grad():
        expected = twin(batch.subwords, batch.attention_mask, output_hidden_states=True).hidden_states
    for state, other in zip(states, expected[-len(states) :], strict=True):
        assert state.dtype == torch.float32
        assert (state - other.float())[mask].norm() < 0.015 * other[mask].float().norm()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_gradients_of_bf16_are_those_of_float32_but_for_rounding(tiny_encoders, family):
    model = tiny.model(tiny_encoders(family)).eval()
    batch = model.collate(tiny.SENTENCES)
    model.losses(batch).total.backward()
    expected = {name: p.grad for name, p in model.encoder.transformer.named_parameters()}
    model.zero_grad()
    with bf16():
        losses = model.losses(batch)
    losses.total.backward()
    for name, weight in model.encoder.transformer.named_parameters():
        assert (weight.grad is None) == (expected[name] is None)
        if weight.grad is not None and expected[name].norm() > 1e-3:
            assert weight.grad.dtype == weight.dtype == torch.float32
            assert (weight.grad - expected[name]).norm() < 0.2 * expected[name].norm(), name


def test_weights_are_cast_once_while_they_are_kept(tiny_encoders):
    network = load_pretrained(str(tiny_encoders("bert")))
    cache = Bf16WeightCache(stays_float32)
    with cache.hold(network):
        first = cache.weights(network)
        with cache.hold(network):  # as in an evaluation within another
            assert cache.weights(network) is first
        assert cache.weights(network) is first
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(3.0)
    weights = cache.weights(network)
    assert all(torch.equal(value.float(), torch.full_like(value, 3.0).float()) for value in weights.values())
    for name, value in weights.items():
        assert value.dtype == (torch.float32 if stays_float32(name) else torch.bfloat16)
    cache.freeze(network)
    assert cache.weights(network) is cache.weights(network)


# Loading without `transformers`


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request, tiny_encoders, tmp_path_factory):
    """The `encoder` folder of a model, and the Recognizer that wrote it."""
    model = tiny.model(tiny_encoders(request.param)).eval()
    folder = tmp_path_factory.mktemp("saved")
    model.save_encoder(folder)
    return folder, model


def test_what_is_loaded_without_transformers_is_the_same(saved, tmp_path):
    folder, model = saved
    tokenizer, network = build_bert(folder)
    own = model.encoder.transformer
    shapes, expected = ({name: p.shape for name, p in each.named_parameters()} for each in (network, own))
    assert shapes == expected
    network.load_state_dict(own.state_dict())
    subwords, mask = inputs(9, own.config.pad_token_id)
    assert torch.equal(network.eval()(subwords, mask, 1)[0], own(subwords, mask, 1)[0])

    words = [s.words for s in tiny.SENTENCES] + [("ÉTÉ", "日本", "a-b", "x" * 300, "\u200b", "Don't")]
    sentences = [Sentence(each) for each in words]
    ours, theirs = (SubwordTokenizer(each, 64)(sentences) for each in (tokenizer, model.tokenizer))
    assert all(map(np.array_equal, ours, theirs))

    tokenizer.save_pretrained(str(tmp_path))
    network.config.save_pretrained(str(tmp_path))
    contents = [{path.name: path.read_bytes() for path in each.iterdir()} for each in (folder, tmp_path)]
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "deberta-v2"},
        {"hidden_act": "relu"},
        {"is_decoder": True},
        {"position_embedding_type": "relative_key"},
        {"add_cross_attention": True},
        {"model_type": "mpnet", "relative_attention_num_buckets": 64},
        {"vocab_size": None},
        {"hidden_size": "32"},
        {"num_attention_heads": 5},
    ],
)
def test_what_only_transformers_can_load(tiny_encoders, tmp_path, change):
    folder = shutil.copytree(tiny_encoders("bert"), tmp_path / "encoder")
    (folder / "model.safetensors").unlink()
    assert build_bert(folder) is not None
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert build_bert(folder) is None
    path.write_text("{")
    assert build_bert(folder) is None
