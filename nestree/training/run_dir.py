"""What a run of training keeps in its directory.

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
import shlex
import shutil
import weakref
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nestree.checkpoint import read_tensors, write_tensors
from nestree.data.formats import write
from nestree.data.io import atomic_path, lock_file, lock_owner, write_error
from nestree.errors import DataError, TrainingError, format_duration
from nestree.training.callbacks import Callbacks, EpochEnd
from nestree.types import Document, Sentence

STATE_FORMAT = "1"
log = logging.getLogger(__name__)


@dataclass
class Progress:
    """How far training is."""

    fingerprint: str  # of the data
    origin: dict[str, Any] = field(default_factory=dict)  # files and options of the command
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
    passes: int = 1  # over the training data in an epoch

    @property
    def losses_per_mention(self) -> dict[str, float]:
        return {name: value / max(1, self.mentions) for name, value in self.losses.items()}


class RunDir(Callbacks):
    """The files of a run; as callbacks it writes notes and epochs to its log and to the logger, at level INFO."""

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
            raise TrainingError(f"{self.path} is a file, and a directory is needed. Give another name.")
        if self.state.is_file():
            raise TrainingError(
                f"{self.path} holds a run already. Continue it with `nestree train --resume "
                f"{shlex.quote(str(self.path))}`, or give another name."
            )
        if self.path.is_dir() and any(self.path.iterdir()) and not self.training.is_dir():
            raise TrainingError(f"{self.path} is not empty. Give the name of a new directory.")

    def create(self, model_bytes: int) -> None:
        """Make and lock the directory; raise unless there is room for the model and for two states of training."""
        needed = 2 * (model_bytes + 3 * model_bytes)  # a state holds the weights and two moments
        parent = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        try:
            free = shutil.disk_usage(parent).free
            if free < needed:
                raise TrainingError(
                    f"training needs {needed / 1e6:,.1f} MB in {self.path} for the model and the state of training, "
                    f"and {free / 1e6:,.1f} MB are free. Make room, or give a directory on another disk."
                )
            self.training.mkdir(parents=True, exist_ok=True)
            self.reopen(0, -1)
        except OSError as why:
            raise TrainingError(str(write_error(self.path, why))) from None

    def reopen(self, epoch: int, updates: int) -> None:
        """Lock the directory; remove temporary files of a killed process, and log lines newer than its last state."""
        try:
            weakref.finalize(self, os.close, lock_file(self.lock))  # until this process ends, however it ends
        except BlockingIOError:
            raise TrainingError(
                f"{self.path} is being trained by another process{lock_owner(self.lock)}. Wait until that ends, or "
                f"end it, and then continue with `nestree train --resume {shlex.quote(str(self.path))}`."
            ) from None
        for path in (*self.path.glob(".*.*"), *self.training.glob(".*.*")):
            shutil.rmtree(path, ignore_errors=True)
        kept = []
        for text in self.log.read_text("utf-8", "replace").splitlines() if self.log.is_file() else ():
            try:
                line = json.loads(text)
            except ValueError:
                log.info("%s: an incomplete line is left out", self.log)
                continue
            is_newer = line.get("updates", 0) > updates or line.get("epoch", -1) >= epoch
            kept += [] if is_newer else [text + "\n"]
        with atomic_path(self.log) as temporary:
            temporary.write_text("".join(kept), "utf-8")

    def log_event(self, event: str, **values: Any) -> None:
        """Append a line to the log."""
        try:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **values}, ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as why:
            raise TrainingError(f"{self.log} cannot be written: {why.strerror or why}.") from None

    def note(self, text: str, updates: int) -> None:
        log.info("%s", text)
        self.log_event("note", updates=updates, text=text)

    def epoch(self, end: EpochEnd) -> None:
        log.info(
            "epoch %d/%d  loss %.3f  dev P %.2f R %.2f F1 %.2f  %s%s",
            *(end.epoch, end.epochs, end.losses["loss"]),
            *(100 * end.precision, 100 * end.recall, 100 * end.f1),
            *(format_duration(end.seconds), "  best so far" * (end.best_epoch == end.epoch)),
        )
        self.log_event("epoch", **asdict(end))

    def write_bad_batch(self, sentences: Iterable[Sentence]) -> None:
        try:
            write([Document((sentence,)) for sentence in sentences], self.bad_batch, "jsonl")
        except DataError as why:
            log.warning("the sentences of the failed update could not be written: %s", why)

    def load_progress(self) -> Progress:
        """How far the run is, without its tensors."""
        if not self.state.is_file():
            began = self.training.is_dir()  # and stopped before its first state
            remedy = "Start the run again" if began else "Name the directory of a run that was interrupted"
            raise TrainingError(
                f"{self.path} has no {self.training.name}/{self.state.name}: there is nothing to resume. {remedy}."
            )
        _, metadata = read_tensors(self.state, metadata_only=True)
        if metadata.get("format") != STATE_FORMAT:
            raise TrainingError(f"{self.state} is of another version of nestree; it cannot be continued.")
        return Progress(**json.loads(metadata["progress"]))

    def save_state(self, progress: Progress, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Everything that is needed to resume; of a finished run only its progress."""
        tensors: dict[str, Tensor] = {}
        if not progress.finished:
            tensors.update({f"model/{name}": value for name, value in model.state_dict().items()})
            for name, parameter in model.named_parameters():
                for moment, value in optimizer.state.get(parameter, {}).items():
                    tensors[f"optimizer/{moment}/{name}"] = value
        metadata = {"format": STATE_FORMAT, "progress": json.dumps(asdict(progress), allow_nan=False)}
        write_tensors(self.state, tensors, metadata)

    @torch.no_grad()
    def restore_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Load the weights and the optimizer state."""
        tensors, _ = read_tensors(self.state)
        weights = {key.removeprefix("model/"): tensors[key] for key in tensors if key.startswith("model/")}
        try:
            model.load_state_dict(weights)
        except RuntimeError as why:
            raise TrainingError(f"{self.state} does not fit the model of config.toml: {why}") from None
        fused = optimizer.param_groups[0]["fused"]
        for name, parameter in model.named_parameters():
            for moment in ("step", "exp_avg", "exp_avg_sq"):
                if (value := tensors.get(f"optimizer/{moment}/{name}")) is not None:
                    device = "cpu" if moment == "step" and not fused else parameter.device
                    optimizer.state[parameter][moment] = value.to(device)
