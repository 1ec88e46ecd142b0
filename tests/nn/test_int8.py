"""CPU inference in 8 bits: kernels equal their reference in plain PyTorch, and models find nearly the same entities."""

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

from nestree.config import Settings
from nestree.errors import InputError, ModelError
from nestree.nn.bert import Bert
from nestree.nn.encoder import Vectors, load_pretrained
from nestree.nn.int8 import KERNEL_VARIABLE, KERNELS, available_kernels, selected_kernel, to_int8, unavailable_reason
from nestree.nn.int8.kernels import linear, linear_reference, quantize_weights
from nestree.nn.scorers import Biaffine, Scorer, append_one
from nestree.pipeline import Pipeline, load
from nestree.treecrf.potentials import cell_masks, span_cells
from tests import tiny

needed = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))
WORDS = [sentence.words for sentence in tiny.SENTENCES]


def test_a_kernel_that_this_processor_cannot_run(monkeypatch):
    monkeypatch.setenv(KERNEL_VARIABLE, "mmx")
    with pytest.raises(InputError, match="NESTREE_INT8_KERNEL is 'mmx'"):
        selected_kernel()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_other_kernels_when_forced(kernel, tmp_path):
    """A process runs the tests of this file with another kernel, whose instruction is emulated if it is missing."""
    if kernel in available_kernels()[:1]:
        pytest.skip("the other tests run this kernel")
    emulated = kernel not in available_kernels()
    if emulated and "NESTREE_EMULATE_INT8" not in os.environ:
        pytest.skip("make test-int8 runs it")
    arguments = [__file__, "-q", "-k", "not forced and not a_model", "-p", "no:cacheprovider"]
    environment = {**os.environ, KERNEL_VARIABLE: kernel.name}
    if emulated:
        arguments += ["-p", "tests.nn.emulated_int8"]
        environment["NUMBA_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "pytest", *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:]


@needed
@pytest.mark.parametrize("rows", [1, 5, 67])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 32), (32, 96), (416, 256)])
def test_products_equal_the_reference(rows, inputs, outputs):
    random = torch.Generator().manual_seed(rows * inputs)
    x = torch.randn(rows, inputs, generator=random) * 10 ** torch.randn(rows, 1, generator=random)
    weight = torch.randn(outputs, inputs, generator=random)
    bias = torch.randn(outputs, generator=random)
    x[0], weight[0] = 0, 0  # nothing to scale by
    found = linear(x, quantize_weights(weight.numpy(), bias.numpy()))
    torch.testing.assert_close(found, linear_reference(x, weight, bias), rtol=1e-5, atol=1e-5)


@needed
def test_row_operations():
    import numba

    from nestree.nn.int8 import kernels

    @numba.njit
    def run(x, y, other, weight, bias, scores, width, columns, cos, sin):
        kernels.gelu(x, 0, 32)
        kernels.add_and_normalize(y, 0, other, 0, 32, weight, bias, np.float32(1e-5))
        kernels.softmax_four_rows(scores, 2, 20, width)
        kernels.transpose(scores, 2, 20, 4, width, columns, 1, 7)
        return kernels.leaky_relu(other, 0, 32, np.float32(0.1)), kernels.rotate(weight, 0, 16, cos, sin, 32)

    random = np.random.default_rng(1)
    x = np.concatenate([random.normal(size=24), [-9, -4.5, -1e-6, 0, 1e-6, 4.5, 9, 300]]).astype(np.float32)
    y, other, weight, bias = random.normal(size=(4, 32)).astype(np.float32)
    scores = np.full((5, 20), np.nan, np.float32)  # four rows from the third number on, and what is around
    rows = scores.reshape(-1)[2:82].reshape(4, 20)
    rows[:, :11] = 3 * random.normal(size=(4, 11))
    rows[0, :3], rows[1, :2] = (-200, 90, 89), -np.inf
    gelu = nn.functional.gelu(torch.from_numpy(x.copy()))
    sums = torch.from_numpy(y + other)
    normal = nn.functional.layer_norm(sums, [32], torch.from_numpy(weight), torch.from_numpy(bias), 1e-5)
    softmax = torch.from_numpy(rows[:, :11].copy()).softmax(-1).numpy()
    columns = np.full((20, 7), np.nan, np.float32)
    cos, sin = random.normal(size=(2, 64)).astype(np.float32)
    leaky = nn.functional.leaky_relu(torch.from_numpy(other.copy()), 0.1)
    rotated = weight * cos[32:] + np.roll(weight, 16) * sin[32:]
    maxima = run(x, y, other, weight, bias, scores.reshape(-1), 11, columns.reshape(-1), cos, sin)
    torch.testing.assert_close(torch.from_numpy(x), gelu, rtol=1e-4, atol=4e-4)
    torch.testing.assert_close(torch.from_numpy(y), normal, rtol=1e-5, atol=1e-5)
    assert rows[:, :11] == pytest.approx(softmax, rel=1e-6, abs=1e-30)
    torch.testing.assert_close(torch.from_numpy(other), leaky)
    assert weight == pytest.approx(rotated, rel=1e-5, abs=1e-6)
    assert maxima == (np.abs(other).max(), np.abs(weight).max())
    assert np.array_equal(columns.reshape(-1)[1:78].reshape(11, 7)[:, :4], rows[:, :11].T)


class ReferenceBert(Bert):
    """Its linear layers are those of `linear_reference`."""

    def linear(self, weights, name, x):
        if not name.startswith("encoder.layer."):
            return super().linear(weights, name, x)
        return linear_reference(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def compare(bert, sizes):
    """Relative errors of each subword, for windows of these sizes: kernels against the reference, and that of 8 bits.

    States of the last two layers are compared.
    """
    random = torch.Generator().manual_seed(sum(sizes))
    mask = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]  # [W, P]
    subwords = torch.randint(5, 40, mask.shape, generator=random)
    subwords[~mask] = bert.config.pad_token_id
    reference = ReferenceBert(bert.config, bert.state_dict()).eval()
    with torch.inference_mode():
        models = to_int8(bert), reference, bert
        found, expected, exact = (torch.stack(model(subwords, mask, 2)) for model in models)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(torch.stack(to_int8(bert)(subwords, mask, 2)), found)
    error = (found - expected)[:, mask].norm(dim=-1) / expected[:, mask].norm(dim=-1)
    rounding = (expected - exact)[:, mask].norm(dim=-1) / exact[:, mask].norm(dim=-1)
    assert found.isfinite().all()
    return error, rounding


@needed
@pytest.mark.parametrize(("family", "sizes"), [("bert", [1]), ("electra", [7, 3, 3]), ("roberta", [100, 5, 64, 1, 90])])
def test_layers_equal_the_reference(family, sizes, tmp_path):
    from nestree.nn.int8.modules import Int8Bert

    bert = load_pretrained(str(tiny.encoder(tmp_path, family, longest=128))).eval()
    assert isinstance(to_int8(bert), Int8Bert)
    error, rounding = compare(bert, sizes)
    assert error.norm() < rounding.norm() / 3  # queries are divided before they are rounded
    assert rounding.mean() < 0.02


@needed
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_embeddings_equal_those_of_the_float_model(family, tmp_path):
    bert = load_pretrained(str(tiny.encoder(tmp_path, family, longest=128))).eval()
    eight, subwords = to_int8(bert), torch.arange(5, 25).view(1, -1)
    mask = torch.ones_like(subwords, dtype=torch.bool)
    found = eight(subwords, mask, bert.config.num_hidden_layers + 1)[0]
    with torch.no_grad():
        expected = bert(subwords, mask, bert.config.num_hidden_layers + 1)[0]
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=2e-6)
    vocabulary = bert.config.vocab_size
    for wrong in (torch.full_like(subwords, vocabulary), torch.full_like(subwords, -1)):
        with pytest.raises(ModelError, match=f"beyond the {vocabulary} and"):
            eight(wrong, mask, 1)
    long = torch.full((1, 300), 5)
    with pytest.raises(ModelError, match="its tokenizer belongs to another one"):
        eight(long, torch.ones_like(long, dtype=torch.bool), 1)


def bert_with_heads(size):
    """A BERT of one layer whose attention is not uniform, its heads of this size."""
    layers = {"num_hidden_layers": 1, "num_attention_heads": 96 // size, "intermediate_size": 64}
    config = BertConfig(vocab_size=50, hidden_size=96, max_position_embeddings=128, **layers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(size)
        model = BertModel(config, add_pooling_layer=False)
        for name, weight in model.named_parameters():
            if name.endswith("dense.weight") or ".self." in name:
                nn.init.normal_(weight, std=0.1)
    return Bert(config, model.state_dict()).eval()


@needed
@pytest.mark.parametrize("size", [16, 32, 48])
def test_heads_of_every_size_that_the_kernel_supports(size):
    error, rounding = compare(bert_with_heads(size), [100, 5, 64, 1, 90])
    assert error[1].max() < rounding[1].max()  # of each row: a wrong head could spoil a few alone


@needed
@pytest.mark.parametrize("size", [12, "mpnet"])
def test_otherwise_only_linear_layers_are_in_8_bits(size, tmp_path):
    from nestree.nn.int8.modules import Int8LinearBert

    bert = bert_with_heads(size) if size == 12 else load_pretrained(str(tiny.encoder(tmp_path, size))).eval()
    assert isinstance(to_int8(bert), Int8LinearBert)
    error, rounding = compare(bert, [30, 7])
    assert error.max() < rounding.max() / 3


@needed
@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert"])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a processor without bfloat16
def test_a_model_finds_the_same(family, tmp_path):
    model = tiny.learned(tiny.encoder(tmp_path, family), updates=12)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    float32, int8 = Pipeline(model, precision="float32"), Pipeline(model, precision="int8")
    expected, found = (
        {(k, e.span, e.label): e.score for k, s in enumerate(ner.words(WORDS)) for e in s.entities}
        for ner in (float32, int8)
    )
    assert expected
    certain = [{key for key, score in each.items() if score > 0.5} for each in (expected, found)]
    assert certain[0] <= found.keys()
    assert certain[1] <= expected.keys()
    assert all(abs(expected[key] - found[key]) < 0.1 for key in expected.keys() & found.keys())
    assert expected != found  # it is not the same network
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    batch = model.collate_words(tiny.SENTENCES)
    with torch.inference_mode():
        torch.testing.assert_close(int8.inference_model(batch).head_prior, model(batch).head_prior)
    with torch.autocast("cpu", torch.bfloat16):
        assert any(sentence.entities for sentence in int8.words(WORDS))
    found = int8.words(WORDS)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.5).add_(0.02)
    assert int8.words(WORDS) == found  # with the weights of the moment when the pipeline was made
    assert Pipeline(model, precision="int8").words(WORDS) != found


@needed
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
def test_a_copy_finds_the_same(tiny_model, copied):
    ner = load(tiny_model, "cpu", precision="int8")
    assert copied(ner).words(WORDS) == ner.words(WORDS)


@needed
def test_the_copy_itself_is_not_stored_or_copied_again(tiny_model, tmp_path):
    model = load(tiny_model, "cpu", precision="int8").int8_model
    with pytest.raises(ModelError, match=r"cannot be stored\. Save the model that it"):
        model.save_pretrained(tmp_path / "model")  # this wrote what `load` refuses
    assert not (tmp_path / "model").exists()
    with pytest.raises(InputError, match="a copy in 8 bits already"):
        Pipeline(model, precision="int8")


@needed
def test_linear_layers_that_do_not_fit_stay_as_they_are():
    network = nn.Sequential(nn.Linear(32, 10), nn.ReLU(), nn.Sequential(nn.Linear(32, 32, bias=False)))
    int8 = to_int8(network)
    assert type(int8[0]) is nn.Linear
    assert torch.equal(int8[0].weight, network[0].weight)
    assert type(network[2][0]) is nn.Linear
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(int8[2](x), linear_reference(x, network[2][0].weight, None))


class ReferenceLinear(nn.Linear):
    def forward(self, x):
        return linear_reference(x, self.weight, self.bias)


class ReferenceBiaffine(Biaffine):
    """Its first product is that of `linear_reference`."""

    def forward(self, left, right):
        channels, size, _ = self.weight.shape
        stacked = self.weight.transpose(1, 2).reshape(channels * size, size)
        half = linear_reference(left, stacked[:, :-1], stacked[:, -1]).view(*left.shape[:2], channels, size)
        return torch.einsum("bpcd,bqd->bpqc", half, append_one(right))


@needed
@pytest.mark.parametrize("mention", ["score", "yes-no", "labels"])
@pytest.mark.parametrize("rotary", [True, False])
def test_scores_equal_the_reference(mention, rotary):
    """Of sentences of one word and more than a block of rows, with padding that is not a number."""
    from nestree.nn.int8.modules import Int8Scorer

    settings = Settings.read("paper").model
    labeling = "none" if mention == "labels" else "head"
    sizes = {"mlp_size": 32, "label_mlp_size": 32, "rank": 32}
    settings = replace(settings, mention=mention, labeling=labeling, structure="lexical", **sizes)
    settings = replace(settings, rotary=rotary, normalize=rotary)
    torch.manual_seed(4)
    scorer = Scorer(48, settings, 4).eval()
    lengths = torch.tensor([70, 1, 5, 2, 66, 30])
    posts, words = torch.randn(2, len(lengths), 71, 48)
    for part in (posts, words):
        part[torch.arange(71) > lengths[:, None]] = torch.nan
    vectors = Vectors(words, posts, words, posts)
    int8, reference = to_int8(scorer), copy.deepcopy(scorer)
    assert isinstance(int8, Int8Scorer)
    for module in reference.modules():
        if type(module) in (nn.Linear, Biaffine):
            module.__class__ = ReferenceLinear if type(module) is nn.Linear else ReferenceBiaffine
    with torch.no_grad():
        expected = reference(vectors, lengths)
    with torch.inference_mode():
        found = int8(vectors, lengths)
        b, i, j = span_cells(lengths, 70).nonzero().unbind(1)
        torch.testing.assert_close(found.mention[b, i, j], expected.mention[b, i, j], rtol=1e-3, atol=1e-3)
        cells = cell_masks(lengths, 70)
        torch.testing.assert_close(found.arc[cells.arc], expected.arc[cells.arc], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(found.root[cells.root], expected.root[cells.root], rtol=1e-3, atol=1e-3)
        if labeling == "head":
            spans = b[::7], i[::7], j[::7], i[::7]
            labels = found.labels.score_spans(*spans), expected.labels.score_spans(*spans)
            torch.testing.assert_close(*labels, rtol=1e-2, atol=1e-2)


def head_labels(labels, **sizes):
    """The labels of an int8 scorer with these sizes, for two sentences of eight words."""
    sizes = {"mlp_size": 32, "label_mlp_size": 32, "rank": 32, **sizes}
    settings = replace(Settings.read("default").model, **sizes)
    torch.manual_seed(5)
    int8 = to_int8(Scorer(48, settings, labels).eval())
    posts, words = torch.randn(2, 2, 9, 48)
    with torch.inference_mode():
        return int8(Vectors(words, posts, words, posts), torch.tensor([8, 8])).labels


@needed
@pytest.mark.parametrize("sizes", [{}, {"label_mlp_size": 40}, {"mlp_size": 40}], ids=str)
def test_labels_that_fill_whole_registers(sizes):
    labels = head_labels(32, **sizes)
    with torch.inference_mode():
        scores = labels.score_spans(*torch.tensor([[0, 1], [0, 2], [3, 8], [1, 7]]))
        assert scores.shape == (2, 32)
        assert scores.isfinite().all()
        assert labels.score_spans(*torch.zeros(4, 0, dtype=torch.long)).shape == (0, 32)
        assert torch.equal(labels.score_spans(*torch.tensor([1, 2, 8, 7])), scores[1])  # of one span


@needed
@pytest.mark.parametrize("span", [(2, 0, 1, 0), (1, 0, 9, 0), (0, -1, 2, 0), (1, 0, 8, 8)], ids=str)
def test_spans_beyond_the_batch(span):
    labels = head_labels(4)
    with torch.inference_mode(), pytest.raises(IndexError, match="beyond the 8 words"):
        labels.score_spans(*torch.tensor(span)[:, None])
