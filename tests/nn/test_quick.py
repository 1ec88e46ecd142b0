"""Reading in 8 bits: the kernels equal plain PyTorch, networks say nearly the same as those they are made of."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

from nestree.nn.encoder import ScalarMix, attention_mask, load_pretrained
from nestree.nn.int8 import to_int8, unavailable_reason
from nestree.nn.int8.gemm_reference import ReferenceInt8Linear, product
from nestree.nn.scorers import Biaffine
from nestree.pipeline import Pipeline, load
from tests import tiny

needed = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))


def test_the_obstacle_is_a_sentence_or_none(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert "x86_64" in unavailable_reason()


@needed
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 67])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 16), (32, 48), (416, 256)])
def test_products_equal_plain_ones(rows, inputs, outputs):
    from nestree.nn.int8.gemm import linear, weights_of

    random = torch.Generator().manual_seed(rows * inputs)
    x = torch.randn(rows, inputs, generator=random) * 10 ** torch.randn(rows, 1, generator=random)
    weight = torch.randn(outputs, inputs, generator=random)
    bias = torch.randn(outputs, generator=random)
    x[0], weight[0] = 0, 0  # nothing to scale by
    found = torch.from_numpy(linear(x.numpy(), weights_of(weight.numpy(), bias.numpy())))
    torch.testing.assert_close(found, product(x, weight, bias), rtol=1e-5, atol=1e-5)


@needed
def test_rows():
    from nestree.nn.int8 import row_ops as rows
    from nestree.treecrf.numba_kernels.jit import called

    @called
    def change(x, y, other, weight, bias, scores, width):
        rows.gelu(x, 0, 32)
        rows.add_and_normalise(y, 0, other, 0, 32, weight, bias, np.float32(1e-5))
        return rows.exponentials(scores, 0, width, rows.highest(scores, 0, width))

    random = np.random.default_rng(1)
    x = np.concatenate([random.normal(size=24), [-9, -4.5, -1e-6, 0, 1e-6, 4.5, 9, 300]]).astype(np.float32)
    y, other, weight, bias = random.normal(size=(4, 32)).astype(np.float32)
    scores = np.array([-200, -3, 0.5, 2, -1, np.nan, np.nan, np.nan], np.float32)  # five, and what is beyond
    gelu = nn.functional.gelu(torch.from_numpy(x.copy()))
    sums = torch.from_numpy(y + other)
    normal = nn.functional.layer_norm(sums, [32], torch.from_numpy(weight), torch.from_numpy(bias), 1e-5)
    exponentials = np.exp(scores[:5] - 2)
    total = change(x, y, other, weight, bias, scores, 5)
    torch.testing.assert_close(torch.from_numpy(x), gelu, rtol=1e-4, atol=4e-4)
    torch.testing.assert_close(torch.from_numpy(y), normal, rtol=1e-5, atol=1e-5)
    assert scores[:5] == pytest.approx(exponentials, rel=1e-6, abs=1e-30)
    assert total == pytest.approx(exponentials.sum(), rel=1e-6)


@pytest.fixture(scope="module", params=["bert", "electra", "roberta"])
def transformer(request, tmp_path_factory):
    return load_pretrained(
        str(tiny.encoder(tmp_path_factory.mktemp(request.param), request.param, longest=128))
    ).eval()


def in_plain(network: nn.Module) -> nn.Module:
    """The same with products of plain.py."""
    made = copy.deepcopy(network)
    for part in list(made.modules()):
        for name, child in part.named_children():
            if isinstance(child, nn.Linear):
                setattr(part, name, ReferenceInt8Linear(child))
    return made


@needed
@pytest.mark.parametrize("sizes", [[1], [7, 3, 3], [100, 5, 64, 1, 90]])
def test_a_transformer_equals_one_of_plain_products(transformer, sizes):
    expected, found, exact, real = said(transformer, sizes)
    assert not found[~real].any()
    off = (found - expected)[real].norm() / expected[real].norm()
    rounding = (expected - exact)[real].norm() / exact[real].norm()
    assert off < rounding / 3  # queries are divided before they are rounded: that is all
    assert rounding < 0.02


def said(transformer, sizes):
    """What an encoder says of windows of these sizes: in plain 8 bits, by our kernels, in float32; what is real."""
    from nestree.nn.int8.bert import Int8Bert, supports

    assert supports(transformer)
    random = torch.Generator().manual_seed(sum(sizes))
    real = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]  # [W, P]
    pieces = torch.randint(5, 40, real.shape, generator=random)
    pieces[~real] = transformer.config.pad_token_id
    mask, mix = attention_mask(real.long(), transformer.config), ScalarMix(2)
    mix.weights.data = torch.tensor([0.3, -0.3])
    with torch.inference_mode():
        expected = mix(in_plain(transformer)(pieces, mask, output_hidden_states=True).hidden_states[-2:])
        (found,) = Int8Bert(transformer, mix)(pieces, mask).hidden_states
        exact = mix(transformer(pieces, mask, output_hidden_states=True).hidden_states[-2:])
    return expected, found, exact, real


@needed
def test_masks_of_every_kind_are_read_alike(transformer):
    from nestree.nn.int8.bert import Int8Bert

    real = torch.arange(9) < torch.tensor([9, 4, 1])[:, None]
    pieces = torch.randint(5, 40, real.shape, generator=torch.Generator().manual_seed(1))
    fast = Int8Bert(transformer, ScalarMix(2))
    with torch.inference_mode():
        first, *others = (fast(pieces, mask).hidden_states[0] for mask in tiny.masks(real))
    assert all(torch.equal(first, other) for other in others)
    assert not first[~real].any()


def with_heads_of(size: int) -> nn.Module:
    """A BERT of one layer that looks around, its heads of this size."""
    config = BertConfig(
        vocab_size=50,
        hidden_size=96,
        num_hidden_layers=1,
        num_attention_heads=96 // size,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(size)
        made = BertModel(config, add_pooling_layer=False).eval()
        for name, weight in made.named_parameters():
            if name.endswith("dense.weight") or ".self." in name:
                nn.init.normal_(weight, std=0.1)
    return made


@needed
@pytest.mark.parametrize("size", [8, 16, 32])
@pytest.mark.parametrize("sizes", [[9], [7, 3, 3], [100, 5, 64, 1, 90]])
def test_heads_of_any_size_that_is_served(size, sizes):
    expected, found, exact, real = said(with_heads_of(size), sizes)
    off = (found - expected)[real].norm(dim=-1) / expected[real].norm(dim=-1)
    rounding = (expected - exact)[real].norm(dim=-1) / exact[real].norm(dim=-1)
    assert off.max() < rounding.max()  # of each row: a head could spoil a few alone


@needed
@pytest.mark.parametrize("size", [4, 12])
def test_with_other_heads_only_linear_maps_are_in_8_bits(size):
    from nestree.nn.int8.bert import supports

    transformer = with_heads_of(size)
    assert not supports(transformer)
    pieces = torch.randint(5, 40, (2, 30), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        found, expected = (
            made(pieces).last_hidden_state for made in (to_int8(transformer), in_plain(transformer))
        )
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@needed
@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert"])
def test_a_recogniser_finds_the_same(family, tmp_path):
    folder = tiny.encoder(tmp_path, family)
    model = tiny.learned(folder, updates=12)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    exact, fast = Pipeline(model, precision="float32"), Pipeline(model, precision="int8")
    sentences = [sentence.words for sentence in tiny.SENTENCES]
    found, close = exact.words(sentences), fast.words(sentences)
    assert any(sentence.entities for sentence in found)
    scores = [
        {(k, e.span, e.label): e.score for k, s in enumerate(some) for e in s.entities}
        for some in (found, close)
    ]
    sure = [{key for key, score in each.items() if score > 0.5} for each in scores]
    assert sure[0] <= scores[1].keys()
    assert sure[1] <= scores[0].keys()
    assert all(abs(scores[0][key] - scores[1][key]) < 0.1 for key in scores[0].keys() & scores[1].keys())
    assert scores[0] != scores[1]  # it is not the same network
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@needed
def test_desks_grow_and_each_thread_has_its_own():
    from nestree.nn.int8.bert import WorkspacePool, layer_of

    transformer, desks = with_heads_of(32), WorkspacePool()
    layer = layer_of(transformer.encoder.layer[0], transformer.config)
    few = desks.for_this_thread(layer, 40, 10)
    assert desks.for_this_thread(layer, 30, 10) is few
    long = desks.for_this_thread(layer, 20, 15)
    assert (long.rows, long.longest) == (40, 15)
    many = desks.for_this_thread(layer, 50, 5)
    assert (many.rows, many.longest) == (50, 15)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(desks.for_this_thread, layer, 50, 15).result()
    assert not np.shares_memory(other.states[0], many.states[0])
    assert desks.for_this_thread(layer, 50, 15) is many


@pytest.fixture(scope="module", params=["bert", "mpnet"])
def learned(request, tmp_path_factory):
    return tiny.learned(tiny.encoder(tmp_path_factory.mktemp("learned"), request.param), updates=12)


WORDS = [sentence.words for sentence in tiny.SENTENCES]


@needed
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a processor without bfloat16
def test_under_autocast_states_are_the_same(learned):
    encoder, batch = to_int8(learned.encoder), learned.collate_words(tiny.SENTENCES)
    with torch.inference_mode():
        expected = encoder.states(batch.pieces, batch.attention)
        with torch.autocast("cpu", torch.bfloat16):
            found = encoder.states(batch.pieces, batch.attention)
    assert all(map(torch.equal, found, expected))
    with torch.autocast("cpu", torch.bfloat16):
        assert any(sentence.entities for sentence in Pipeline(learned, precision="int8").words(WORDS[:1]))


@needed
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
def test_a_copy_reads_the_same(tiny_model, copied):
    ner = load(tiny_model, "cpu", precision="int8")
    found = ner.words(WORDS)
    assert copied(ner).words(WORDS) == found


@needed
def test_forms_are_those_of_the_model(learned):
    batch = learned.collate_words(tiny.SENTENCES)
    with torch.inference_mode():
        expected, found = (
            learned(batch).head_prior,
            Pipeline(learned, precision="int8").reader(batch).head_prior,
        )
    assert expected is not None
    torch.testing.assert_close(found, expected)


@needed
def test_a_pipeline_keeps_the_weights_it_was_made_with(learned):
    model = copy.deepcopy(learned)
    ner = Pipeline(model, precision="int8")
    before = ner.words(WORDS)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.5).add_(0.02)
    assert ner.words(WORDS) == before
    assert Pipeline(model, precision="int8").words(WORDS) != before


@needed
def test_what_does_not_fit_stays_as_it_is():
    network = nn.Sequential(nn.Linear(32, 10), nn.ReLU(), nn.Sequential(nn.Linear(32, 16, bias=False)))
    made = to_int8(network)
    assert type(made[0]) is nn.Linear
    assert torch.equal(made[0].weight, network[0].weight)
    assert type(made[2][0]).__name__ == "Int8Linear"
    assert type(network[2][0]) is nn.Linear
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(made[2](x), product(x, network[2][0].weight, None))


@needed
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_pairs_nearly_equal_exact_ones(channels):
    torch.manual_seed(channels)
    pairs = Biaffine(32, channels)
    left, right = torch.randn(2, 3, 7, 32)
    with torch.no_grad():
        found, exact = to_int8(nn.Sequential(pairs))[0](left, right), pairs(left, right)
    assert found.shape == exact.shape == (3, 7, 7, channels)
    assert 0 < (found - exact).norm() / exact.norm() < 0.015
