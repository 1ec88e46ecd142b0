"""Runs to compare, here and in processes that can be killed."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import torch
from transformers.models.bert import modeling_bert  # noqa: F401  otherwise each process imports it anew

from nestree.checkpoint import WEIGHTS, read_tensors
from nestree.config import Settings
from nestree.training import Corpus, TrainResult, fit


def run(settings: Settings, data: Corpus, folder: Path, **options: Any) -> TrainResult:
    return fit(settings, data, folder, **{"device": "cpu", "save_every": 0.0, **options})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / WEIGHTS)[0]


def history(folder: Path) -> list[dict[str, Any]]:
    """The epochs in the log of a run, without times."""
    lines = [json.loads(line) for line in (folder / "training" / "log.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["event"] == "epoch"]
    return [{name: value for name, value in line.items() if "seconds" not in name} for line in epochs]


def assert_same(folder: Path, other: Path) -> None:
    """The same losses and scores in every epoch, and the same weights, to the bit."""
    assert history(folder) == history(other)
    a, b = weights(folder), weights(other)
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def another_process(settings: Settings, data: Corpus, folder: Path, **options: Any) -> Any:
    """The same run in a process of its own, which is already under way."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.runs"])
    process = context.Process(target=run, args=(settings, data, folder), kwargs=options)
    process.start()
    return process
