"""What training reports: after each update, after each epoch, and in between; a progress bar, and TensorBoard."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tqdm.auto import tqdm  # type: ignore[import-untyped]

from nestree.errors import TrainingError, format_duration


@dataclass(frozen=True)
class Step:
    """After an update."""

    epoch: int
    epochs: int
    share: float  # of the epoch that is done
    losses: Mapping[str, float]  # per gold mention, mean over this epoch so far; "loss" is what is minimized
    best_f1: float  # on dev
    sentences_per_second: float
    seconds_left: float | None  # if training does not stop early; None: unknown, as the first step compiles kernels


@dataclass(frozen=True)
class EpochEnd:
    """After the evaluation on dev."""

    epoch: int
    epochs: int
    updates: int  # in all epochs so far
    losses: Mapping[str, float]  # per gold mention; "loss" is what is minimized
    precision: float
    recall: float
    f1: float
    best_f1: float
    best_epoch: int
    seconds: float  # of training in this epoch
    dev_seconds: float


class Callbacks:
    """What training calls; a subclass overrides what it needs."""

    def note(self, text: str, updates: int) -> None:
        """A sentence for the user, after so many updates."""

    def step(self, step: Step) -> None:
        """After each update."""

    def epoch(self, end: EpochEnd) -> None:
        """After each evaluation on dev."""


class ProgressBar(Callbacks):
    """A progress bar on a terminal or in a notebook."""

    def __enter__(self) -> "ProgressBar":
        disable = False if "ipykernel" in sys.modules else None  # None: unless standard error is a terminal
        self.bar = tqdm(total=100, leave=False, disable=disable, bar_format="{desc} {percentage:3.0f} %|{bar}|")
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def step(self, step: Step) -> None:
        loss, f1 = step.losses["loss"], 100 * step.best_f1
        left = "" if step.seconds_left is None else f"  {format_duration(step.seconds_left)} left"
        self.bar.set_description_str(
            f"epoch {step.epoch}/{step.epochs}  loss {loss:.3f}  best dev F1 {f1:.2f}{left}", refresh=False
        )
        self.bar.n = round(100 * step.share)
        self.bar.update(0)


class TensorBoard(Callbacks):
    """Writes losses and scores of each epoch for TensorBoard."""

    def __init__(self, folder: Path, epochs_done: int) -> None:
        """Points after `epochs_done`, which an interrupted run may have left, are replaced."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise TrainingError("TensorBoard is not installed. Install it with `pip install tensorboard`.") from None
        self.writer = SummaryWriter(str(folder), purge_step=epochs_done + 1)

    def note(self, text: str, updates: int) -> None:
        self.writer.add_text("note", text, updates)

    def epoch(self, end: EpochEnd) -> None:
        values = {f"dev/{name}": getattr(end, name) for name in ("precision", "recall", "f1")}
        losses = {f"loss/{name}": value for name, value in end.losses.items()}
        for name, value in {**values, **losses, "time/epoch": end.seconds}.items():
            self.writer.add_scalar(name, value, end.epoch)
        self.writer.flush()
