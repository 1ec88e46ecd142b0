"""Two processes on a CPU take the steps of one: the same global batches, the same weights up to rounding."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from nestree.data import formats
from tests.training.runs import history, run, weights

ROOT = Path(__file__).parent.parent.parent


def test_two_processes_take_the_steps_of_one(without_chance, data, documents, tmp_path):
    quiet = without_chance(
        "training.average=0.5",
        "training.accumulate=2",
        "training.batch_words=12",
        "training.epsilon=1",  # so that the size of gradients matters
        "training.rate=1",
        "training.encoder_rate=1",
    )
    run(quiet, data, tmp_path / "one")
    (tmp_path / "settings.toml").write_text(quiet.as_toml())
    formats.write(documents, tmp_path / "train.jsonl", "jsonl")
    formats.write(documents[:4], tmp_path / "dev.jsonl", "jsonl")
    # fmt: off
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "nestree",
        "train", "--train", "train.jsonl", "--dev", "dev.jsonl", "--out", "two", "--config", "settings.toml",
        "--device", "cpu",
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

    for ours, theirs in zip(history(tmp_path / "one"), history(tmp_path / "two"), strict=True):
        assert (ours["updates"], ours["f1"]) == (theirs["updates"], theirs["f1"])
        for name, value in ours["losses"].items():
            assert abs(value - theirs["losses"][name]) < 1e-3 * max(1, abs(value)), (ours, theirs)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5, msg=name)
