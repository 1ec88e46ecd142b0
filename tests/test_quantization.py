"""Weights in 8 bits: how far they move, how small they are, what damage is found, what the model still does."""

import json
import shutil

import pytest
import torch

from nestree import checkpoint, quantization
from nestree.errors import ModelError
from nestree.evaluation import evaluate
from nestree.pipeline import predict
from tests import tiny
from tests.cli.run import nestree, refuse, succeed
from tests.tiny import write_text


@pytest.mark.parametrize("shape", [(64, 64), (257, 257), (1, 4097), (3, 40, 50), (8192, 1)])
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e30])
def test_no_weight_moves_by_more_than_half_a_scale(shape, size):
    value = size * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    small = quantization.quantize_state({"w": value})
    assert small["w"].dtype == torch.int8
    restored = quantization.dequantize_state(small)["w"]
    assert restored.dtype == torch.float32
    moved = (restored - value).abs().flatten()
    groups = torch.arange(value.numel()) // quantization.GROUP
    half = small["scales/w"].float()[groups] / 2
    assert (moved <= half * (1 + 1e-6)).all()
    largest = torch.zeros(len(small["scales/w"])).scatter_reduce(0, groups, value.abs().flatten(), "amax")
    assert torch.allclose(small["scales/w"].float(), largest / 127, rtol=2**-8, atol=0)


def test_products_are_exact_and_outliers_stay_in_their_group():
    value = torch.randn(100, 100, generator=torch.Generator().manual_seed(2))
    once = quantization.quantize_state({"w": value})
    restored = quantization.dequantize_state(once)["w"]
    scales = once["scales/w"].double().repeat_interleave(quantization.GROUP)[:10_000]
    assert torch.equal(restored.double().flatten(), once["w"].double().flatten() * scales)
    twice = quantization.quantize_state({"w": restored})
    assert all(torch.equal(once[name], twice[name]) for name in once)
    value = torch.zeros(64, 64)
    value[3, 5], value[4] = 1000.0, 0.001
    restored = quantization.dequantize_state(quantization.quantize_state({"w": value}))["w"]
    assert restored[0].abs().max() == 0
    assert abs(restored[3, 5] - 1000) < 4
    assert (restored[4] - 0.001).abs().max() < 5e-6  # an outlier of another group does not count


def test_what_is_small_keeps_its_bits_and_what_is_not_finite_is_refused():
    whole = torch.arange(5000).view(50, 100)
    weights = {"bias": torch.randn(10_000), "little": torch.randn(8, 8), "whole": whole}
    small = quantization.quantize_state(weights)
    assert small.keys() == weights.keys()
    assert all(torch.equal(small[name], value) for name, value in weights.items())
    with pytest.raises(ModelError, match="w holds numbers that are not finite"):
        quantization.quantize_state({"w": torch.full((64, 64), float("nan"))})


def test_a_small_model_has_nearly_the_same_weights_and_predictions(tiny_model, small_model):
    full, less = checkpoint.load(tiny_model).state_dict(), checkpoint.load(small_model).state_dict()
    assert full.keys() == less.keys()
    stored, _ = checkpoint.read_tensors(small_model / "weights.safetensors")
    for name in full:
        error, is_int8 = (full[name] - less[name]).abs().max(), stored[name].dtype == torch.int8
        assert error <= full[name].abs().max() / 127 * 0.51 if is_int8 else error == 0, name
    before, after = (sum(t.nbytes for t in tensors.values()) for tensors in (full, stored))
    assert after < 0.45 * before  # most tensors of a tiny encoder are too small to bother
    found, again = (predict(checkpoint.load(folder), tiny.SENTENCES) for folder in (tiny_model, small_model))
    assert sum(len(sentence.entities) for sentence in found) > 5
    assert evaluate(found, again, resamples=0).entities.f1 > 0.85


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_all_but_the_training_is_copied(tiny_model, small_model, tmp_path):
    run = shutil.copytree(tiny_model, tmp_path / "run")
    (run / "training").mkdir()
    (run / "training" / "log.jsonl").write_text("{}\n")
    (run / ".hidden").write_text("mine")
    checkpoint.quantize(run, tmp_path / "small")
    assert names(tmp_path / "small") == names(small_model) == names(tiny_model)
    with pytest.raises(ModelError, match="is quantized already: its weights have 8 bits each"):
        checkpoint.quantize(small_model, tmp_path / "smaller")
    assert "8 bits" in (small_model / "README.md").read_text()
    settings = checkpoint.read_settings(small_model)
    assert settings.encoder.path == "encoder"  # by its name: where it was is nobody's business
    assert settings.model == checkpoint.read_settings(tiny_model).model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w, n: w.pop(f"scales/{n}"), "{n} has no scales"),
        (lambda w, n: w.update({"scales/more": w[f"scales/{n}"].clone()}), "scales/more are there, and what"),
        (lambda w, n: w.update({f"scales/{n}": w[f"scales/{n}"][1:]}), "needs "),
        (lambda w, n: w.update({f"scales/{n}": w[f"scales/{n}"].float()}), "needs "),
        (lambda w, n: w.update({n: w[n].float()}), "needs "),
        (lambda w, n: w[f"scales/{n}"].fill_(float("inf")), "{n} has scales that are not finite"),
        (lambda w, n: w[f"scales/{n}"][:1].fill_(3e38), "{n} has scales that are not finite"),  # times 127
    ],
)
def test_damage_is_said_in_a_sentence(small_model, tmp_path, change, message):
    folder = shutil.copytree(small_model, tmp_path / "model")
    weights, _ = checkpoint.read_tensors(folder / "weights.safetensors")
    name = next(name for name, value in weights.items() if value.dtype == torch.int8)
    change(weights, name)
    checkpoint.save_weights(weights, folder)
    with pytest.raises(ModelError, match=r"is damaged: .*Fetch the model again") as found:
        checkpoint.load(folder)
    assert message.format(n=name) in str(found.value)


def test_training_goes_on_from_a_small_model(small_model, tiny_data, tmp_path):
    done = nestree("train", "--init", small_model, "--train", tiny_data, "--dev", tiny_data, "--out", tmp_path / "m",
                   "--set", "training.epochs=1", "--set", "training.lr=1e-9", "--set", "training.encoder_lr=1e-9",
                   "--device", "cpu")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    before, after = checkpoint.load(small_model).state_dict(), checkpoint.load(tmp_path / "m").state_dict()
    assert all(torch.allclose(before[name], after[name], atol=1e-5) for name in before)
    checkpoint.quantize(tmp_path / "m", tmp_path / "small")  # its weights are float32 again


def test_the_command_says_what_8_bits_cost(tiny_model, tiny_data, tmp_path):
    done = succeed("quantize", tiny_model, "--out", tmp_path / "m", "--gold", tiny_data, "--device", "cpu")
    cost, sizes = done.stderr.splitlines()
    models = tiny_model, tmp_path / "m"
    evaluated = [nestree("evaluate", "--model", model, tiny_data, "-q") for model in models]
    scores = [float(each.stdout.split()[-1]) for each in evaluated]
    assert cost.startswith(f"F1 {scores[0]:.2f} before, {scores[1]:.2f} in 8 bits; both agree on ")
    assert f"data.jsonl: {cost}" in (tmp_path / "m" / "README.md").read_text()
    assert sizes.endswith(f" MB: {tmp_path / 'm'}")
    assert json.loads((tmp_path / "m" / "labels.json").read_text())["labels"] == tiny.LABELS


def test_disjoint_labels_are_never_hidden(tiny_model, tiny_data, tmp_path):
    others = write_text(tmp_path / "others.jsonl", tiny_data.read_text().replace('"label": "', '"label": "my-'))
    for number, (command, option) in enumerate((("quantize", "--gold"), ("export", "--data"), ("analyze", None))):
        out = ["--onnx" if command == "export" else "--out", tmp_path / str(number)]
        data = [tiny_model, option, others, *out] if option else [others, "--model", tiny_model]
        done = succeed(command, *data, "-q")
        assert done.stderr.count("Warning: gold and prediction have no label in common, so all scores are 0: ") == 1
        assert "gold has my-" in done.stderr


def test_what_goes_wrong_leaves_nothing_behind(tiny_model, tmp_path):
    out = ("--out", tmp_path / "m")
    absent = refuse("quantize", tiny_model, *out, "--gold", tmp_path / "absent.jsonl")
    assert "absent.jsonl does not exist" in absent
    assert "is in the folder of the model" in refuse("quantize", tiny_model, "--out", tiny_model / "small")
    why = refuse("quantize", tmp_path / "absent", *out)
    assert "absent does not exist. Name a directory that `nestree train` made" in why
    assert list(tmp_path.iterdir()) == []
