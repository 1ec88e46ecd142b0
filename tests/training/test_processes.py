"""Two processes on a CPU take the steps of one: the same global batches, the same weights up to rounding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nestree.data import formats
from tests.training.runs import history, run, weights

ROOT = Path(__file__).parent.parent.parent
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "accelerate": ["accelerate.commands.launch", "--multi-gpu", "--num-processes", "2"],  # on a CPU, too
}


@pytest.fixture(scope="module")
def quiet(without_chance, request):
    """Settings with this adversary."""
    return without_chance(
        f"training.rho={request.param}",
        "training.gradient_accumulation=2",
        "training.batch_words=12",
        "training.epsilon=1",  # so that the size of gradients matters
        "training.lr=1",
        "training.encoder_lr=1",
    )


@pytest.fixture(scope="module")
def one(quiet, data, tmp_path_factory):
    """The run of one process."""
    folder = tmp_path_factory.mktemp("one") / "m"
    run(quiet, data, folder)
    return folder


@pytest.mark.parametrize(
    ("quiet", "launcher"), [(0, "torchrun"), (0, "accelerate"), (0.5, "torchrun")], indirect=["quiet"]
)  # fmt: skip
def test_two_processes_take_the_steps_of_one(launcher, one, quiet, documents, tmp_path):
    (tmp_path / "settings.toml").write_text(quiet.as_toml())
    formats.write(documents, tmp_path / "train.jsonl", "jsonl")
    formats.write(documents[:4], tmp_path / "dev.jsonl", "jsonl")
    # fmt: off
    command = [
        sys.executable, "-m", *LAUNCHERS[launcher], "-m", "nestree", "train", "--train", "train.jsonl",
        "--dev", "dev.jsonl", "--out", "two", "--config", "settings.toml", "--device", "cpu",
    ]
    # fmt: on
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("epoch 3/3") == 1  # one of them speaks
    assert "2 processes share each update." in done.stderr

    two = tmp_path / "two"
    with open(two / "training" / "log.jsonl") as log:
        assert json.loads(next(log))["processes"] == 2
    for ours, theirs in zip(history(one), history(two), strict=True):
        assert (ours["updates"], ours["f1"]) == (theirs["updates"], theirs["f1"])
        for name, value in ours["losses"].items():
            assert abs(value - theirs["losses"][name]) < 1e-3 * max(1, abs(value)), (ours, theirs)
    alone, shared = weights(one), weights(two)
    for name in alone:
        torch.testing.assert_close(alone[name], shared[name], rtol=1e-4, atol=1e-5, msg=name)
