"""The commands train, predict and evaluate --model, as users meet them."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from nestree import checkpoint
from nestree.checkpoint import WEIGHTS, read_tensors
from nestree.cli import app
from nestree.config import Settings
from nestree.data import formats
from nestree.evaluation import evaluate
from nestree.nn.int8 import unavailable_reason
from nestree.pipeline import override_decoding, predict
from nestree.types import Document
from tests import tiny


def nestree(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with data, settings and a trained model."""
    folder = tmp_path_factory.mktemp("place")
    encoder = tiny.encoder(folder / "encoder")
    (folder / "tiny.toml").write_text(
        tiny.settings(
            "default", f"encoder.path={encoder}", "training.epochs=25", "training.batch_words=40"
        ).to_toml()
    )
    formats.write([Document((sentence,)) for sentence in tiny.SENTENCES], folder / "data.jsonl", "jsonl")
    formats.write([Document(tuple(tiny.SENTENCES), id="d")], folder / "data.data", "triplets")
    done = nestree(*training(folder, folder / "model"), "--test", folder / "data.jsonl")
    assert done.exit_code == 0, done.stderr
    (folder / "said.txt").write_text(done.stderr)
    return folder


def training(folder: Path, out: Path) -> list[str | Path]:
    data = folder / "data.jsonl"
    settings = folder / "tiny.toml"
    return ["train", "--train", data, "--dev", data, "--out", out, "--config", settings, "--device", "cpu"]


def test_training_says_what_it_does(place):
    said = (place / "said.txt").read_text().splitlines()
    epochs = [line for line in said if line.startswith("epoch ")]
    assert len(epochs) == 25
    assert "joint " in epochs[0]
    assert " dev P " in epochs[0]
    assert any(line.startswith("best epoch ") for line in said)
    assert said[-1].startswith("test: P ")


def test_prediction_and_evaluation_agree_with_training(place, tmp_path):
    found = nestree(
        "predict", place / "data.jsonl", "--model", place / "model", "--out", tmp_path / "p.jsonl"
    )
    assert found.exit_code == 0
    assert "entities in 8 sentences" in found.stderr
    scores = nestree("evaluate", place / "data.jsonl", tmp_path / "p.jsonl", "-q").stdout
    assert scores == nestree("evaluate", "--model", place / "model", place / "data.jsonl", "-q").stdout
    assert (place / "said.txt").read_text().splitlines()[-1] == f"test: {scores}".strip()
    assert float(scores.split()[-1]) > 50


def test_predictions_go_to_standard_output_or_into_other_formats(place, tmp_path):
    lines = nestree("predict", place / "data.data", "--model", place / "model").stdout.splitlines()
    assert [json.loads(line)["tokens"] for line in lines] == [list(s.words) for s in tiny.SENTENCES]
    done = nestree(
        "predict", place / "data.jsonl", "--model", place / "model", "--out", tmp_path / "p", "--to", "brat"
    )
    assert done.exit_code == 0
    assert list((tmp_path / "p").glob("*.ann"))


def test_own_data_without_dev(place, tmp_path):
    out = tmp_path / "m"
    few = ["--set", "training.epochs=1", "--set", "training.seed=5"]
    done = nestree(
        "train", "--train", place / "data.jsonl", "--out", out, "--config", place / "tiny.toml", *few
    )
    assert done.exit_code == 0, done.stderr
    assert "no dev data: 1 sentences (15 % of the data, drawn by seed 5) are set aside." in done.stderr
    assert "seed = 5" in (out / "config.toml").read_text()


def test_ctrl_c_saves_and_says_how_to_go_on(place, tmp_path, monkeypatch):
    from nestree.cli import progress

    def interrupting(self, end):
        if end.epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "m"
    with monkeypatch.context() as patch:
        patch.setattr(progress.LogLines, "epoch", interrupting)
        done = nestree(*training(place, out))
    assert done.exit_code == 130
    assert f"Everything is saved. Go on with: nestree train --resume {out}" in done.stderr
    again = nestree("train", "--resume", out, "--device", "cpu")
    assert again.exit_code == 0, again.stderr
    assert "epoch 25/25" in again.stderr
    assert "epoch  1/25" not in again.stderr
    ours, theirs = (read_tensors(folder / WEIGHTS)[0] for folder in (out, place / "model"))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_going_on_from_a_model_takes_its_settings(place, tmp_path):
    out = tmp_path / "m"
    done = nestree("train", "--train", place / "data.jsonl", "--dev", place / "data.jsonl", "--init", place / "model",
                   "--out", out, "--set", "training.epochs=1", "--set", "training.lr=1e-5")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    settings = (out / "config.toml").read_text()
    assert "size = 32 " in settings


def test_show_config_prints_complete_settings(place, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "ablation/12-joint"\n[training]\nlr = 0.5\n')
    done = nestree("train", "--config", mine, "--set", "encoder.path=2024", "--show-config")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == Settings.read(mine).with_overrides(["encoder.path=2024"]).to_toml()
    assert nestree("train", "--show-config").stdout == Settings.read("default").to_toml()
    resumed = nestree("train", "--resume", place / "model", "--show-config").stdout
    assert resumed == (place / "model" / "config.toml").read_text()


def test_an_encoder_folder_whose_name_is_a_number(place, tmp_path, monkeypatch):
    shutil.copytree(place / "encoder", tmp_path / "2024")
    monkeypatch.chdir(tmp_path)
    few = ["--set", "training.epochs=1", "--set", "training.rho=0", "--device", "cpu"]
    tiny_size = ["--config", place / "tiny.toml"]
    data = ["--train", place / "data.jsonl", "--dev", place / "data.jsonl"]
    distilled = nestree(
        "distill",
        "--teacher",
        place / "model",
        "--encoder",
        "2024",
        *data,
        "--out",
        "student",
        *tiny_size,
        *few,
    )
    assert distilled.exit_code == 0, distilled.stderr
    assert 'path = "2024"' in (tmp_path / "student" / "config.toml").read_text()
    absolute = f"encoder.path={tmp_path / '2024'}"
    trained = nestree("train", *data, "--out", "m", *tiny_size, *few, "--set", absolute)
    assert trained.exit_code == 0, trained.stderr
    small = nestree("quantize", "m", "--out", "small")
    assert small.exit_code == 0, small.stderr
    assert 'path = "2024"' in (tmp_path / "small" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "name data with --train FILE and a new directory with --out DIR"),
        (["train", "--train", "data.jsonl", "--out", "m", "--set", "training.epoch=3"], "mean training.epochs?"),
        (["train", "--train", "data.jsonl", "--out", "m", "--config", "nothing"], "nothing: neither a TOML file"),
        (["train", "--train", "absent.jsonl", "--out", "m"], "absent.jsonl does not exist"),
        (["train", "--train", "data.jsonl", "--out", "model"], "model holds a run already. Go on with"),
        (["train", "--train", "data.jsonl", "--out", "m", "--device", "gpu"], "there is no device 'gpu'"),
        (["train", "--resume", "encoder"], "there is nothing to resume"),
        (["train", "--resume", "model", "--set", "training.epochs=3"], "so --set does not go with it"),
        (["train", "--resume", "model", "--train", "tiny.toml"], "tiny.toml"),
        (["train", "--train", "data.jsonl", "--init", "encoder", "--out", "m", "--config", "tiny.toml"], "no labels"),
        (["predict", "data.jsonl", "--model", "absent"], "absent does not exist"),
        (["predict", "data.jsonl", "--model", "encoder"], "it is no model of nestree"),
        (["predict", "absent.jsonl", "--model", "model"], "absent.jsonl does not exist"),
        (["evaluate", "data.jsonl"], "name a prediction or --model DIR, and not both"),
        (["evaluate", "data.jsonl", "data.jsonl", "--model", "model"], "name a prediction or --model DIR"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_said_in_a_sentence(place, monkeypatch, arguments, message):
    monkeypatch.chdir(place)
    if arguments[0] == "train" and "--config" not in arguments and "--resume" not in arguments:
        arguments = [*arguments, "--config", "tiny.toml"]
    done = nestree(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert not (place / "m").exists()


def test_analyses(place):
    done = nestree(
        "analyze",
        place / "data.jsonl",
        "--model",
        place / "model",
        "--head-sharing-penalties",
        "0,100",
        "--trees",
        "1",
    )
    assert done.exit_code == 0, done.stderr
    for title in ("Shared heads", "Most frequent head words", "Error distribution"):
        assert title in done.stdout
    drawing = done.stdout.splitlines()[-12:]
    assert any("root" in line for line in drawing)
    assert any("Lisbon" in line for line in drawing)


def test_analyses_for_programs(place):
    done = nestree("analyze", place / "data.jsonl", "--model", place / "model", "--format", "json",
                   "--head-sharing-penalties", "-100,0,100")  # fmt: skip
    found = json.loads(done.stdout)
    plain = nestree(
        "evaluate", place / "data.jsonl", "--model", place / "model", "--format", "json", "--bootstrap", "0"
    )
    assert found["entities"] == json.loads(plain.stdout)["entities"]
    few, usual, many = sorted(found["head_sharing"], key=lambda row: -row["penalty"])
    assert few["shared"] <= usual["shared"] <= many["shared"]
    assert few["shared"] < many["shared"]
    model = checkpoint.load(place / "model")
    with override_decoding(model, method="viterbi", threshold=0.0, head_sharing_penalty=0.0):
        trees = evaluate(tiny.SENTENCES, predict(model, tiny.SENTENCES), resamples=0)
    assert usual["f1"] == trees.entities.f1


@pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))
def test_what_can_be_read_in_8_bits_is(place, small_model, monkeypatch):
    """As `nestree predict` does it."""
    from nestree.nn.int8.modules import Int8Bert

    read, forward = [], Int8Bert.forward
    monkeypatch.setattr(Int8Bert, "forward", lambda *given: read.append(1) or forward(*given))
    assert nestree("analyze", place / "data.jsonl", "--model", small_model, "--device", "cpu").exit_code == 0
    assert len(read) > 6  # with every cost, too


def test_costs_that_are_no_numbers(place):
    done = nestree(
        "analyze", place / "data.jsonl", "--model", place / "model", "--head-sharing-penalties", "a"
    )
    assert (done.exit_code, done.stderr) == (
        2,
        "Error: --head-sharing-penalties a: write numbers with commas between them, such as 0,0.4,1.\n",
    )
