"""The directory of a run: the model, and in `training` the state of training and its log.

OUT/                            the model of the best epoch so far: see checkpoint.py
OUT/training/state.safetensors  weights and optimizer state as tensors, the progress as JSON
OUT/training/log.jsonl          one line for each epoch and event
OUT/training/scores.json        the evaluation of the best epoch
OUT/training/bad_batch.jsonl    the sentences of an update whose loss was not finite
OUT/training/lock               held by the process that trains here

The state is replaced atomically, so a process that is killed at any moment leaves the old one or the new one. It holds
no random state: the order of sentences and the dropout of an update follow from the seed and the number of the update.
"""

import json
import logging
import os
import shutil
import weakref
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nestree.checkpoint import drop_unused, read_tensors, write_tensors
from nestree.data.formats import write
from nestree.data.io import atomic_path, lock_file, lock_owner
from nestree.errors import DataError, TrainingError
from nestree.training.callbacks import EpochEnd, Step
from nestree.types import Document, Sentence

STATE_FORMAT = 1
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW keeps for each parameter

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """How far training is."""

    fingerprint: str  # of the data
    origin: dict[str, Any] = field(
        default_factory=dict
    )  # files and options of the command that started the run
    epoch: int = 1  # the current one, from 1
    update: int = 0  # updates done in this epoch
    updates: int = 0  # updates done in all epochs
    microbatches: int = 1  # into which each batch is split to fit into memory
    best_f1: float = -1.0
    best_epoch: int = 0
    losses: dict[str, float] = field(default_factory=dict)  # sums over this epoch
    mentions: int = 0  # gold mentions of this epoch so far
    epoch_seconds: float = 0.0  # spent on the updates of this epoch
    seconds: float = 0.0  # spent on training in all
    finished: str = ""  # the reason why training ended


class RunDir:
    """The files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.training = path / "training"
        self.state = self.training / "state.safetensors"
        self.log = self.training / "log.jsonl"
        self.bad_batch = self.training / "bad_batch.jsonl"
        self.scores = self.training / "scores.json"
        self.tensorboard = self.training / "tensorboard"
        self.lock = self.training / "lock"

    def check_new(self) -> None:
        """Raise unless the directory is new, or holds a run that was killed before its first state."""
        if self.path.exists() and not self.path.is_dir():
            raise TrainingError(
                f"{self.path} is a file, and the model becomes a directory. Give another name."
            )
        if self.state.is_file():
            raise TrainingError(
                f"{self.path} holds a run already. Go on with `nestree train --resume {self.path}`, with its settings, "
                "or give another name."
            )
        if self.path.is_dir() and any(self.path.iterdir()) and not self.training.is_dir():
            raise TrainingError(f"{self.path} is not empty. Give the name of a new directory.")

    def create(self) -> None:
        """Make the directory of a new run, and lock it."""
        self.check_new()
        try:
            self.training.mkdir(parents=True, exist_ok=True)
        except OSError as why:
            raise TrainingError(f"{self.path} cannot be written: {why.strerror or why}.") from None
        self.reopen(0, -1)

    def reopen(self, epoch: int, updates: int) -> None:
        """Lock the directory; remove temporary files of a killed process, and log lines newer than its last state."""
        self.claim()
        for path in (*self.path.glob(".*.*"), *self.training.glob(".*.*")):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
        lines = []
        if self.log.is_file():
            for text in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    lines.append(json.loads(text))
                except ValueError:
                    log.info("%s: an incomplete line is left out", self.log)
        kept = [
            json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"
            for line in lines
            if line.get("updates", 0) <= updates and not (line["event"] == "epoch" and line["epoch"] >= epoch)
        ]
        with atomic_path(self.log) as temporary:
            temporary.write_text("".join(kept), "utf-8")

    def claim(self) -> None:
        """Lock the directory until this process ends, however it ends."""
        try:
            weakref.finalize(self, os.close, lock_file(self.lock))
        except BlockingIOError:
            raise TrainingError(
                f"{self.path} is being trained by another process{lock_owner(self.lock)}. Wait until that ends, or "
                f"end it, and then go on with `nestree train --resume {self.path}`."
            ) from None

    def check_space(self, model_bytes: int, state_bytes: int) -> None:
        """Raise unless there is room for the model and for two states, the old and the new one."""
        needed = 2 * (model_bytes + state_bytes)
        probe = self.training / ".probe"
        try:
            probe.write_bytes(b"\0" * 4096)
            probe.unlink()
            free = shutil.disk_usage(self.training).free
        except OSError as why:
            raise TrainingError(f"{self.path} cannot be written: {why.strerror or why}.") from None
        if free < needed:
            raise TrainingError(
                f"training needs {needed / 1e9:.2f} GB in {self.path} for the model and the state of training, and "
                f"{free / 1e9:.2f} GB are free. Make room, or give a directory on another disk."
            )

    def log_event(self, event: str, **values: Any) -> None:
        """Append a line to the log."""
        try:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **values}, ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as why:
            raise TrainingError(f"{self.log} cannot be written: {why.strerror or why}.") from None

    def write_bad_batch(self, sentences: Iterable[Sentence]) -> None:
        try:
            write([Document((sentence,)) for sentence in sentences], self.bad_batch, "jsonl")
        except DataError as why:
            log.warning("the sentences of the failed update could not be written: %s", why)

    def load_progress(self) -> Progress:
        """How far the run is, without its tensors."""
        if not self.state.is_file():
            raise TrainingError(
                f"{self.path} has no {self.training.name}/{self.state.name}: there is nothing to resume. Name the "
                "directory of a run that was interrupted."
            )
        _, metadata = read_tensors(self.state, metadata_only=True)
        if metadata.get("format") != str(STATE_FORMAT):
            raise TrainingError(
                f"{self.state} is a training state of another version of nestree; it cannot be continued."
            )
        values = json.loads(metadata["progress"])
        return Progress(**{field.name: values[field.name] for field in fields(Progress)})

    def save_state(self, progress: Progress, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Everything that is needed to resume; of a finished run only its progress."""
        tensors: dict[str, Tensor] = {}
        if not progress.finished:
            tensors.update({f"model/{name}": value for name, value in model.state_dict().items()})
            for name, parameter in model.named_parameters():
                for moment, value in optimizer.state.get(parameter, {}).items():
                    tensors[f"optimizer/{moment}/{name}"] = value
        write_tensors(
            self.state,
            tensors,
            {"format": str(STATE_FORMAT), "progress": json.dumps(asdict(progress), allow_nan=False)},
        )

    @torch.no_grad()
    def restore_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Load the weights and the optimizer state."""
        tensors, _ = read_tensors(self.state)
        weights = {
            key.removeprefix("model/"): value for key, value in tensors.items() if key.startswith("model/")
        }
        try:
            model.load_state_dict(drop_unused(weights))
        except RuntimeError as why:
            raise TrainingError(
                f"{self.state} does not fit the model that config.toml describes: {why}"
            ) from None
        fused = {id(p): group["fused"] for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in model.named_parameters():
            for moment in MOMENTS:
                value = tensors.get(f"optimizer/{moment}/{name}")
                if value is not None:
                    on_host = moment == "step" and not fused[id(parameter)]
                    optimizer.state[parameter][moment] = (
                        value.cpu() if on_host else value.to(parameter.device)
                    )


class TrainingLog:
    """Writes epochs and notes to the log of a run."""

    def __init__(self, folder: RunDir) -> None:
        self.folder = folder

    def note(self, text: str, updates: int) -> None:
        self.folder.log_event("note", updates=updates, text=text)

    def step(self, step: Step) -> None: ...

    def epoch(self, end: EpochEnd) -> None:
        self.folder.log_event("epoch", **asdict(end))


class TensorBoard:
    """Writes losses and scores of each epoch for TensorBoard."""

    def __init__(self, folder: Path, epochs_done: int) -> None:
        """Points after `epochs_done`, which an interrupted run may have left, are replaced."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise TrainingError(
                "TensorBoard is not installed. Install it with `pip install tensorboard`."
            ) from None
        self.writer = SummaryWriter(str(folder), purge_step=epochs_done + 1)

    def note(self, text: str, updates: int) -> None:
        self.writer.add_text("note", text, updates)

    def step(self, step: Step) -> None: ...

    def epoch(self, end: EpochEnd) -> None:
        values = {
            "dev/precision": end.precision,
            "dev/recall": end.recall,
            "dev/f1": end.f1,
            "time/epoch": end.seconds,
            **{f"loss/{name}": value for name, value in end.losses.items()},
        }
        for name, value in values.items():
            self.writer.add_scalar(name, value, end.epoch)
        self.writer.flush()
