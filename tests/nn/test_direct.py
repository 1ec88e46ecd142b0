"""BERT and MPNet as functions of their weights: the same states and gradients as `transformers` gives."""

import pytest
import torch

from nestree.model import Recognizer
from nestree.nn import direct
from nestree.nn.encoder import attention_mask, load_pretrained
from tests import tiny

# DeBERTa in transformers uses what PyTorch will give up
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),  # a processor without bfloat16
]


def made(folder, family, longest=64):
    torch.manual_seed(0)
    return load_pretrained(str(tiny.encoder(folder, family, longest))).eval()


def given(places, padding):
    """Three windows of pieces, two of them with padding, as one of `family` has it."""
    torch.manual_seed(1)
    pieces = torch.randint(5, 40, (3, places))
    real = torch.ones(3, places, dtype=torch.bool)
    real[1, places // 2 :] = False
    real[2, 2:] = False
    return pieces.masked_fill(~real, padding), real


@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize("places", [3, 8, 61])
def test_states_and_gradients_are_those_of_transformers(tmp_path, family, places):
    model = made(tmp_path, family).double()
    assert direct.supports(model.config)
    pieces, real = given(places, padding=1)
    mask = attention_mask(real.long(), model.config, torch.float64)
    expected = model(input_ids=pieces, attention_mask=mask, output_hidden_states=True).hidden_states
    weights = dict(model.named_parameters())
    found = direct.states(model.config, weights, pieces, real, learns=False)
    assert len(found) == len(expected) == 3
    for state, other in zip(found, expected, strict=True):
        torch.testing.assert_close(state[real], other[real], rtol=1e-9, atol=1e-9)
    direction = torch.randn_like(found[-1]) * real[..., None]
    gradients = [
        torch.autograd.grad((said[-1] * direction).sum(), list(weights.values()), allow_unused=True)
        for said in (expected, found)
    ]
    for name, one, other in zip(weights, *gradients, strict=True):
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-8, msg=name)


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_dropout_moves_states_as_far_as_that_of_transformers(tmp_path, family):
    model = made(tmp_path, family)
    pieces, real = given(9, padding=1)
    mask = attention_mask(real.long(), model.config)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def ours(learns):
        return direct.states(model.config, weights, pieces, real, learns)[-1][real]

    def theirs():
        return model(input_ids=pieces, attention_mask=mask).last_hidden_state[real].detach()

    quiet = ours(learns=False)
    assert torch.equal(quiet, ours(learns=False))
    model.train()
    torch.manual_seed(0)
    moved = [
        torch.stack([said() - quiet for _ in range(300)]) for said in (lambda: ours(learns=True), theirs)
    ]
    far, expected = (each.norm(dim=(1, 2)).mean() for each in moved)
    assert abs(far / expected - 1) < 0.03
    shift, expected = (each.mean(0).norm() for each in moved)
    assert abs(shift / expected - 1) < 0.1


def test_distances_of_mpnet(tmp_path):
    encoder = made(tmp_path, "mpnet").encoder
    place = torch.arange(300)
    expected = encoder.relative_position_bucket(place[None, :] - place[:, None])
    assert torch.equal(direct.buckets(300, torch.device("cpu")), expected)


@pytest.mark.parametrize("family", ["roberta", "electra", "deberta-v2", "modernbert"])
def test_others_are_left_to_transformers(tmp_path, family):
    assert not direct.supports(made(tmp_path, family).config)


@pytest.mark.parametrize(
    ("family", "name", "value"),
    [
        ("bert", "hidden_act", "relu"),
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("bert", "add_cross_attention", True),
        ("mpnet", "relative_attention_num_buckets", 64),
    ],
)
def test_those_with_other_parts_are_left_to_transformers(tmp_path, family, name, value):
    config = made(tmp_path, family).config
    assert direct.supports(config)
    setattr(config, name, value)
    assert not direct.supports(config)


@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize("kind", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_either_dropout_is_there_while_a_model_learns(tmp_path, family, kind):
    torch.manual_seed(0)
    model = Recognizer(tiny.settings("default"), tiny.LABELS, tiny.encoder(tmp_path, family))
    config = model.encoder.transformer.config
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    setattr(config, kind, 0.5)
    batch = model.collate(tiny.SENTENCES)
    with torch.autocast("cpu", torch.bfloat16):
        quiet = [model.eval().encoder.states(batch.pieces, batch.attention)[-1] for _ in range(2)]
        noisy = [model.train().encoder.states(batch.pieces, batch.attention)[-1] for _ in range(2)]
    assert torch.equal(*quiet)
    assert not torch.equal(*noisy)


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_products_are_in_the_type_of_the_weights_and_sums_of_layers_in_float32(tmp_path, family, monkeypatch):
    model = made(tmp_path, family)
    weights = {name: weight.detach().bfloat16() for name, weight in model.named_parameters()}
    seen, real = [], direct.functional.linear

    def linear(*given):
        made = real(*given)
        seen.append((made.dtype, torch.is_autocast_enabled("cpu")))
        return made

    monkeypatch.setattr(direct.functional, "linear", linear)
    with torch.autocast("cpu", torch.bfloat16):  # which would cast around every operation once more
        found = direct.states(model.config, weights, *given(9, padding=1), learns=True)
    assert {state.dtype for state in found} == {torch.float32}
    assert set(seen) == {(torch.bfloat16, False)}


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_who_reads_first_leaves_nothing_that_others_cannot_learn_with(tmp_path, family):
    model = made(tmp_path, family)
    weights = dict(model.named_parameters())
    pieces, real = given(13, padding=1)
    direct.buckets.cache_clear()
    with torch.inference_mode():
        direct.states(model.config, weights, pieces, real, learns=False)
    direct.states(model.config, weights, pieces, real, learns=True)[-1].sum().backward()
    assert model.get_input_embeddings().weight.grad.isfinite().all()
