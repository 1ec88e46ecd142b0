"""The commands train, predict and evaluate --model, as users meet them."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from nestree import checkpoint
from nestree.checkpoint import WEIGHTS, read_tensors
from nestree.cli import runtime
from nestree.config import Settings
from nestree.evaluation import evaluate
from nestree.nn.int8 import unavailable_reason
from nestree.pipeline import override_decoding, predict
from nestree.training import EpochEnd, Step, origin_of
from tests import tiny
from tests.cli.run import nestree, refuse, succeed
from tests.tiny import write_text


@pytest.fixture(scope="module")
def place(tiny_data, tmp_path_factory) -> Path:
    """A folder with data, settings and a trained model."""
    folder = tmp_path_factory.mktemp("place")
    encoder = tiny.encoder(folder / "encoder")
    changes = [f"encoder.path={encoder}", "training.epochs=25", "training.batch_words=40"]
    (folder / "tiny.toml").write_text(tiny.settings("default", *changes).to_toml())
    shutil.copy(tiny_data, folder / "data.jsonl")
    said = succeed(*training(folder, folder / "model"), "--test", folder / "data.jsonl").stderr
    (folder / "said.txt").write_text(said)
    return folder


def training(folder: Path, out: Path) -> list[str | Path]:
    data, settings = folder / "data.jsonl", folder / "tiny.toml"
    return ["train", "--train", data, "--dev", data, "--out", out, "--config", settings, "--device", "cpu"]


def test_progress_without_a_terminal(capsys, monkeypatch):
    """Of steps a line every 30 seconds; of many epochs about thirty lines, with the time left."""
    now = [0.0]
    monkeypatch.setattr(runtime, "monotonic", lambda: now[0])
    with runtime.TrainingProgress() as callbacks:
        for second in range(100):
            now[0] = float(second)
            callbacks.step(Step(2, 5, second / 100, {"joint": 1.5}, 0.5, 20.0, 300.0))
        steps = capsys.readouterr().err.splitlines()
        for epoch in range(1, 91):
            callbacks.epoch(EpochEnd(epoch, 90, epoch, {"joint": 1.5}, 0.5, 0.5, 0.5, 0.5, 1, 2.0, 1.0))
    assert steps[0] == " 30 %  epoch 2/5  joint 1.500  F1 50.00  20 sentences/s  5 min 0 s left"
    assert len(steps) == 3
    epochs = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in epochs[:3]] == ["1/90", "3/90", "6/90"]
    assert "at most 5 min 0 s left" in epochs[0]
    assert len(epochs) == 31


def test_training_says_what_it_does_and_prediction_agrees(place, tmp_path):
    said = (place / "said.txt").read_text().splitlines()
    epochs = [line for line in said if line.startswith("epoch ")]
    assert len(epochs) == 25
    assert all(part in epochs[1] for part in ("joint ", " dev P ", "at most "))
    assert "at most" not in epochs[0]  # one update, which may have compiled kernels
    ends = [line.split()[0] for line in said if line.startswith(("best epoch", "test", "Try it"))]
    assert ends == ["best", "test:", "Try"]
    out, model = tmp_path / "p.jsonl", place / "model"
    found = succeed("predict", place / "data.jsonl", "--model", model, "--out", out)
    assert "entities in 8 sentences" in found.stderr
    scores = nestree("evaluate", place / "data.jsonl", out, "-q").stdout
    assert scores == nestree("evaluate", "--model", model, place / "data.jsonl", "-q").stdout
    (test,) = (line for line in said if line.startswith("test"))
    assert scores.strip() in test
    assert float(scores.split()[-1]) > 50


def test_dev_data_without_the_labels_of_the_training_data(place, tmp_path):
    dev = write_text(tmp_path / "dev.jsonl", (place / "data.jsonl").read_text().replace('"label": "', '"label": "X'))
    arguments = training(place, tmp_path / "model")
    arguments[arguments.index("--dev") + 1] = dev
    said = succeed(*arguments, "--set", "training.epochs=1").stderr
    assert "Dev has no entity with a label of the training data, so its F1 is 0." in said


def test_options_for_the_settings_that_users_change(place, tmp_path):
    values = {"epochs": 1, "batch_words": 30, "lr": 0.001, "encoder_lr": 0.0002, "seed": 7}
    options = [word for key, value in values.items() for word in (f"--{key.replace('_', '-')}", value)]
    shown = nestree("train", "--encoder", "2024", *options, "--show-config").stdout
    settings = Settings.read(write_text(tmp_path / "shown.toml", shown))
    assert {key: getattr(settings.training, key) for key in values} == values
    assert settings.encoder.path == "2024"


@pytest.mark.parametrize("section", ["training.", ""])
def test_set_fixes_what_small_data_would_change(place, tmp_path, section):
    changes = [f"{section}epochs=2", f"{section}batch_words=300", *tiny.SMALL, "training.rho=0"]
    options = [word for change in changes for word in ("--set", change)]
    data = ["--train", place / "data.jsonl", "--dev", place / "data.jsonl", "--encoder", place / "encoder"]
    said = succeed("train", *data, "--out", tmp_path / "m", "--device", "cpu", *options).stderr
    assert "small training set" not in said
    training = Settings.load(tmp_path / "m" / "config.toml").training
    assert (training.epochs, training.batch_words) == (2, 300)


def test_a_folder_of_parts(place, tmp_path):
    for part in ("train", "dev", "test"):
        shutil.copy(place / "data.jsonl", tmp_path / f"{part}.jsonl")
    out = tmp_path / "m"
    succeed("train", tmp_path, "-o", out, "--config", place / "tiny.toml", "--epochs", 1)
    assert {"dev", "test"} <= json.loads((out / "training" / "scores.json").read_text()).keys()


def test_own_data_without_dev(place, tmp_path):
    out = tmp_path / "m"
    few = ["--epochs", 1, "--set", "training.seed=5", "--config", place / "tiny.toml"]
    done = succeed("train", "--train", place / "data.jsonl", "--out", out, *few)
    assert "no dev data: 1 sentence (15 % of the data, drawn by seed 5) is set aside." in done.stderr
    assert "seed = 5" in (out / "config.toml").read_text()


def test_ctrl_c_saves_and_says_how_to_go_on(place, tmp_path, monkeypatch):
    def interrupting(self, end):
        if end.epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "m"
    with monkeypatch.context() as patch:
        patch.setattr(runtime.TrainingProgress, "epoch", interrupting)
        done = nestree(*training(place, out))
    assert done.exit_code == 130
    assert f"Everything is saved. Continue with: nestree train --resume {out}" in done.stderr
    again = succeed("train", "--resume", out, "--device", "cpu")
    assert origin_of(out)["save_every"] == 120.0
    assert again.stderr.startswith("resuming with update 4, in epoch 4 of 25; best dev F1 so far: ")
    assert "epoch 25/25" in again.stderr
    assert "epoch  1/25" not in again.stderr
    ours, theirs = (read_tensors(folder / WEIGHTS)[0] for folder in (out, place / "model"))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_show_config_prints_complete_settings(place, tmp_path):
    mine = write_text(tmp_path / "mine.toml", 'base = "ablation/12-joint"\n[training]\nlr = 0.5\n')
    done = succeed("train", "--config", mine, "--set", "encoder.path=2024", "--show-config")
    assert done.stdout == Settings.read(mine).with_overrides(["encoder.path=2024"]).to_toml()
    assert nestree("train", "--show-config").stdout == Settings.read("default").to_toml()
    started = nestree("train", "--init", place / "model", "--show-config").stdout
    resumed = nestree("train", "--resume", place / "model", "--show-config").stdout
    assert started == resumed == (place / "model" / "config.toml").read_text()


def test_an_encoder_folder_whose_name_is_a_number(place, tmp_path, monkeypatch):
    shutil.copytree(place / "encoder", tmp_path / "2024")
    monkeypatch.chdir(tmp_path)
    tiny_size = ["--config", place / "tiny.toml", "--epochs", 1, "--set", "training.rho=0", "--device", "cpu"]
    data = ["--train", place / "data.jsonl", "--dev", place / "data.jsonl", *tiny_size]
    succeed("distill", "--teacher", place / "model", "--encoder", "2024", *data, "--out", "student")
    assert 'path = "2024"' in (tmp_path / "student" / "config.toml").read_text()
    again = refuse("distill", "--teacher", "absent", "--encoder", "2024", *data, "--out", "student")
    assert "student holds a run already. Continue it with `nestree train --resume student`" in again
    resumed = succeed("train", "--resume", "student", "--device", "cpu")
    assert "this run is finished (all epochs are done)" in resumed.stderr
    assert "Distilled from model." in (tmp_path / "student" / "README.md").read_text()
    succeed("train", *data, "--out", "m", "--set", f"encoder.path={tmp_path / '2024'}")
    succeed("quantize", "m", "--out", "small")
    assert 'path = "2024"' in (tmp_path / "small" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "name training data, a file or a folder, and a new folder for the model with --out DIR."),
        (["train", "--train", "data.jsonl", "--data", ".", "--out", "m"], "--data and --train both name training data"),
        (["train", "data.jsonl", "--data", ".", "--out", "m"], "data.jsonl and --data both name training data"),
        (["distill", "--train", "data.jsonl", "--out", "m"], "name one or more teachers with --teacher MODEL."),
        (["distill", "--teacher", "model", "--hard", "--train", "data.jsonl", "--out", "m"], "Name them: --unlabelled"),
        (["distill", "--teacher", "model", "--unlabelled", "-", "--train", "data.jsonl", "--out", "m"], "Name files."),
        (["train", "--train", "data.jsonl", "--out", "m", "--set", "training.epoch=3"], "mean training.epochs?"),
        (["train", "--train", "data.jsonl", "--out", "m", "--config", "nothing"], "nothing: neither a TOML file"),
        (["train", "--train", "absent.jsonl", "--out", "m"], "absent.jsonl does not exist"),
        (["pretrain", "absent", "--encoder", "e", "--out", "m"], "absent does not exist. Check the name and the"),
        (["train", "--train", "data.jsonl", "--out", "model"], "model holds a run already. Continue it with"),
        (["train", "--train", "data.jsonl", "--out", "m", "--device", "gpu"], "there is no device 'gpu'"),
        (["train", "--resume", "encoder"], "has no training/state.safetensors: there is nothing to resume"),
        (["train", "--resume", "model", "--set", "training.epochs=3"], "settings of the run. Leave out --set."),
        (["train", "--resume", "model", "--lr", "3"], "Leave out --lr."),
        (["train", "--resume", "model", "--train", "tiny.toml"], "tiny.toml"),
        (["train", "--train", "data.jsonl", "--init", "encoder", "--out", "m", "--config", "tiny.toml"], "no labels"),
        (["train", "--train", "data.jsonl", "--init", "model", "--out", "m", "--encoder", "x"], "Leave --encoder out"),
        (["train", "--train", "data.jsonl", "--init", "model", "--out", "m", "--set", "path=x"], "Leave --encoder out"),
        (["train", "--train", "data.jsonl", "--init", "model", "--out", "m", "--config", "paper"], "word vectors"),
        (["train", "--train", "data.jsonl", "--init", "model", "--out", "m", "--set", "rank=64"], "Leave out --config"),
        (["predict", "", "--model", "model"], "there is an empty argument. Is a variable"),
        (["train", "-", "--out", "m"], "standard input cannot be. Name files"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_said_in_a_sentence(place, monkeypatch, arguments, message):
    monkeypatch.chdir(place)
    if arguments[0] == "train" and "--config" not in arguments and "--resume" not in arguments:
        arguments = [*arguments, "--config", "tiny.toml"]
    assert message in refuse(*arguments)
    assert not (place / "m").exists()


def test_analyses_for_people_and_programs(place):
    few = ["--head-sharing-penalties", "0,100", "--trees", "1"]
    done = succeed("analyze", place / "data.jsonl", "--model", place / "model", *few)
    for title in ("Shared heads", "Most frequent head words", "Error distribution"):
        assert title in done.stdout
    drawing = done.stdout.splitlines()[-12:]
    assert any("root" in line for line in drawing)
    assert any("Lisbon" in line for line in drawing)
    bad = refuse("analyze", place / "data.jsonl", "--head-sharing-penalties", "a")
    assert bad == "--head-sharing-penalties a: write numbers with commas between them, such as 0,0.4,1."
    common = [place / "data.jsonl", "--model", place / "model", "--format", "json"]
    found = json.loads(nestree("analyze", *common, "--head-sharing-penalties", "-100,0,100").stdout)
    plain = json.loads(nestree("evaluate", *common, "--bootstrap", "0").stdout)
    assert found["entities"] == plain["entities"]
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
    from nestree.nn.int8.modules import Int8Encoder

    read, forward = [], Int8Encoder.forward
    monkeypatch.setattr(Int8Encoder, "forward", lambda *given: read.append(1) or forward(*given))
    assert nestree("analyze", place / "data.jsonl", "--model", small_model, "--device", "cpu").exit_code == 0
    assert len(read) > 6  # with every cost, too
