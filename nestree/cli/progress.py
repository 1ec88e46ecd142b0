"""Progress of long commands: a bar on a terminal; elsewhere a line at most every 30 seconds."""

import math
import sys
from time import monotonic
from typing import TYPE_CHECKING, Any

from nestree.cli.runtime import print_line, progress_bar

if TYPE_CHECKING:
    from nestree.predict_files import Progress
    from nestree.training import EpochEnd, Step
    from nestree.training.pretrain import PretrainStep

LINE_SECONDS = 30.0  # between two lines
MAX_EPOCH_LINES = 30  # of a run


class ProgressDisplay:
    """A bar that exists on a terminal only, and a clock that says when a line is due elsewhere."""

    bar_format = "{desc} {percentage:3.0f} %|{bar}|{postfix}"

    def __init__(self, delay: float = 1.0) -> None:
        self.bar: Any = progress_bar(total=100, delay=delay, disable=None, bar_format=self.bar_format)
        self.last_line = monotonic()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def print_line(self, text: str) -> None:
        self.bar.clear()
        print_line(text)
        self.last_line = monotonic()

    def show(self, share: float, description: str, postfix: str = "") -> None:
        """Update the bar, or print a line if one is due."""
        if sys.stderr.isatty():
            self.bar.set_description_str(description, refresh=False)
            self.bar.set_postfix_str(postfix, refresh=False)
            self.bar.n = round(100 * share)
            self.bar.update(0)
        elif monotonic() - self.last_line >= LINE_SECONDS:
            self.print_line(f"{100 * share:3.0f} %  {description}  {postfix}".rstrip())


class TrainingProgress(ProgressDisplay):
    """Callbacks of training: a line for each note, and for each epoch or, of many, for each of about thirty."""

    def __init__(self) -> None:
        super().__init__(delay=0)
        self.seconds_left = 0.0

    def note(self, text: str, updates: int) -> None:
        self.print_line(text)

    def step(self, step: "Step") -> None:
        self.seconds_left = step.seconds_left
        f1 = f"  F1 {100 * step.best_f1:.2f}" if step.best_f1 else ""
        rate = f"{step.sentences_per_second:,.0f} sentences/s"
        losses = "  ".join(f"{name} {value:.3f}" for name, value in step.losses.items())
        postfix = f"{losses}{f1}  {rate}  {duration(step.seconds_left)} left"
        self.show(step.share, f"epoch {step.epoch}/{step.epochs}", postfix)

    def epoch(self, end: "EpochEnd") -> None:
        if end.epoch != 1 and end.epoch % math.ceil(end.epochs / MAX_EPOCH_LINES):
            return
        losses = "  ".join(f"{name} {value:.3f}" for name, value in end.losses.items())
        left = f"  at most {duration(self.seconds_left)} left" if end.epoch < end.epochs else ""
        self.print_line(
            f"epoch {end.epoch:>{len(str(end.epochs))}}/{end.epochs}  {losses}  dev P "
            f"{100 * end.precision:.2f} R {100 * end.recall:.2f} F1 {100 * end.f1:.2f}  {duration(end.seconds)}{left}"
            f"{'  best so far' * (end.best_epoch == end.epoch)}"
        )


class PretrainProgress(ProgressDisplay):
    """Callback of pretraining: one line for each pass over the text."""

    passes = 0

    def __call__(self, batch: "PretrainStep") -> None:
        time_left = f"{duration(batch.seconds_left)} left"
        if batch.passes > self.passes:
            self.passes = batch.passes
            self.print_line(f"pass {batch.passes}: loss {batch.loss:.3f}, {time_left}")
        self.show(batch.share, f"loss {batch.loss:.3f}  {time_left}")


class PredictionProgress(ProgressDisplay):
    """Callback of prediction: files, words per second and the time left, both since the first words were done.

    Loading models and compiling kernels, on a cluster by each worker, says nothing about the rate.
    """

    bar_format = "{desc}"
    first: "tuple[float, Progress] | None" = None  # when the first words were done

    def __init__(self, files: int) -> None:
        super().__init__()
        self.files = files

    def __call__(self, progress: "Progress") -> None:
        files = f"{progress.files:,}/{self.files:,} files  " if self.files > 1 else ""
        if progress.share is not None:
            self.bar.bar_format = ProgressDisplay.bar_format
        if self.first is None and progress.words:
            self.first = monotonic(), progress
        started, before = self.first or (monotonic(), progress)
        seconds, words = monotonic() - started, progress.words - before.words
        share = (progress.share or 0) - (before.share or 0)
        speed = f"{words / seconds:,.0f} words/s" if words else f"{progress.words:,} words"
        left = f"  {duration(seconds / share * (1 - (progress.share or 0)))} left" if share > 0 else ""
        self.show(progress.share or 0, f"{files}{speed}{left}")


def duration(seconds: float) -> str:
    from nestree.training.train import duration

    return duration(seconds)
