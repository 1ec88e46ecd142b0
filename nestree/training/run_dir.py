"""The directory of a run: the model itself and, in `training`, where it stands and its log.

OUT/                            the model of the best epoch so far: see checkpoint.py
OUT/training/state.safetensors  where training stands
OUT/training/log.jsonl          one line for each epoch and event
OUT/training/scores.json        how good the best epoch is: all numbers of an evaluation
OUT/training/bad_batch.jsonl    sentences of an update whose loss was no number
OUT/training/lock               held by the process that trains here
"""

import json
import logging
import os
import shutil
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nestree.data.formats import write
from nestree.data.io import atomic_path, lock_file, lock_owner
from nestree.errors import DataError, TrainingError
from nestree.training.callbacks import EpochEnd, Step
from nestree.types import Document, Sentence

log = logging.getLogger(__name__)


class RunDir:
    """Names of the files of a run, and writing to them."""

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
        """There must be nothing yet, or a run that was killed before it began."""
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

    def start(self) -> None:
        """A new run begins here."""
        self.check_new()
        try:
            self.training.mkdir(parents=True, exist_ok=True)
        except OSError as why:
            raise TrainingError(f"{self.path} cannot be written: {why.strerror or why}.") from None
        self.claim()
        self.sweep()
        self.forget(0, -1)

    def claim(self) -> None:
        """From here on, only this process trains here; when it ends, however it ends, another may."""
        try:
            weakref.finalize(self, os.close, lock_file(self.lock))
        except BlockingIOError:
            raise TrainingError(
                f"{self.path} is being trained by another process{lock_owner(self.lock)}. Wait until that ends, or "
                f"end it, and then go on with `nestree train --resume {self.path}`."
            ) from None

    def check_resumable(self) -> None:
        if not self.state.is_file():
            raise TrainingError(
                f"{self.path} has no {self.training.name}/{self.state.name}: there is nothing to resume. Name the "
                "directory of a run that was interrupted."
            )

    def go_on(self, epoch: int, updates: int) -> None:
        """Forget what a killed process was writing, and what it had noted after its last state."""
        self.claim()
        self.sweep()
        self.forget(epoch, updates)

    def sweep(self) -> None:
        """Remove what was being written, under other names, when a process was killed."""
        for left in (*self.path.glob(".*.*"), *self.training.glob(".*.*")):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)

    def check_space(self, model_bytes: int, state_bytes: int) -> None:
        """Can the model and two states, the old and the new, be written? Better asked now than after an epoch."""
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

    def note(self, event: str, **facts: Any) -> None:
        """One line more in the log."""
        try:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **facts}, ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as why:
            raise TrainingError(f"{self.log} cannot be written: {why.strerror or why}.") from None

    def forget(self, epoch: int, updates: int) -> None:
        """Take from the log the end of this epoch and all that was noted after so many updates: it will come again."""
        kept = [
            line
            for line in self.lines()
            if line.get("updates", 0) <= updates and not (line["event"] == "epoch" and line["epoch"] >= epoch)
        ]
        with atomic_path(self.log) as temporary:
            temporary.write_text(
                "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in kept),
                "utf-8",
            )

    def lines(self) -> list[dict[str, Any]]:
        """What the log says; a last line that was cut off is left out."""
        found = []
        if self.log.is_file():
            for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    found.append(json.loads(line))
                except ValueError:
                    log.info("%s: a line that is cut off is left out", self.log)
        return found

    def keep_batch(self, sentences: Iterable[Sentence]) -> None:
        """Write down the sentences of an update that went wrong."""
        try:
            write([Document((sentence,)) for sentence in sentences], self.bad_batch, "jsonl")
        except DataError as why:
            log.warning("the bad batch could not be kept: %s", why)


def total_bytes(tensors: Mapping[str, Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


class TrainingLog:
    """Notes epochs and what the user should know in the log of a run."""

    def __init__(self, folder: RunDir) -> None:
        self.folder = folder

    def note(self, text: str, updates: int) -> None:
        self.folder.note("note", updates=updates, text=text)

    def step(self, step: Step) -> None: ...

    def epoch(self, end: EpochEnd) -> None:
        self.folder.note("epoch", **asdict(end))


class TensorBoard:
    """Curves of losses and scores, by epoch."""

    def __init__(self, folder: Path, after: int) -> None:
        """Curves from epoch `after` on are drawn anew."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise TrainingError(
                "TensorBoard is asked for and not installed. Install it with `pip install tensorboard`."
            ) from None
        self.writer = SummaryWriter(str(folder), purge_step=after + 1)

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
