"""Progress of long commands: a bar on a terminal, and one line for each epoch of training."""

from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from nestree.cli.runtime import print_line, progress_bar

if TYPE_CHECKING:
    from nestree.predict_files import Progress
    from nestree.training import EpochEnd, Step
    from nestree.training.pretrain import PretrainStep


class LogLines:
    """Training callbacks: one line for each epoch and each note."""

    def __enter__(self) -> "LogLines":
        return self

    def __exit__(self, *_: object) -> None: ...

    def note(self, text: str, updates: int) -> None:
        print_line(text)

    def step(self, step: "Step") -> None: ...

    def epoch(self, end: "EpochEnd") -> None:
        from nestree.training.train import duration

        mark = "  best so far" if end.best_epoch == end.epoch else ""
        print_line(
            f"epoch {end.epoch:>{len(str(end.epochs))}}/{end.epochs}  {format_losses(end.losses)}  dev P "
            f"{100 * end.precision:.2f} R {100 * end.recall:.2f} F1 {100 * end.f1:.2f}  {duration(end.seconds)}{mark}"
        )


class TrainingProgress(LogLines):
    """The same above a bar for the current epoch."""

    def __init__(self) -> None:
        self.bar: Any = progress_bar(total=100, bar_format="{desc} {percentage:3.0f} %|{bar}|{postfix}")

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def note(self, text: str, updates: int) -> None:
        self.bar.clear()
        super().note(text, updates)

    def step(self, step: "Step") -> None:
        from nestree.training.train import duration

        self.bar.set_description_str(f"epoch {step.epoch}/{step.epochs}", refresh=False)
        f1 = f"  F1 {100 * step.best_f1:.2f}" if step.best_f1 else ""
        self.bar.set_postfix_str(
            f"{format_losses(step.losses)}{f1}  {step.sentences_per_second:,.0f} sentences/s  "
            f"{duration(step.seconds_left)} left",
            refresh=False,
        )
        self.bar.n = round(100 * step.share)
        self.bar.update(0)

    def epoch(self, end: "EpochEnd") -> None:
        self.bar.clear()
        super().epoch(end)


class PretrainProgress:
    """One line for each pass over the text; on a terminal, a bar for all passes."""

    def __init__(self) -> None:
        self.passes = 0
        self.bar: Any = progress_bar(
            total=100, delay=1, disable=None, bar_format="{desc} {percentage:3.0f} %|{bar}|"
        )

    def __enter__(self) -> "PretrainProgress":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def __call__(self, batch: "PretrainStep") -> None:
        from nestree.training.train import duration

        time_left = f"{duration(batch.seconds_left)} left"
        if batch.passes > self.passes:
            self.passes = batch.passes
            self.bar.clear()
            print_line(f"pass {batch.passes}: loss {batch.loss:.3f}, {time_left}")
        self.bar.set_description_str(time_left, refresh=False)
        self.bar.n = round(100 * batch.share)
        self.bar.update(0)


class PredictionProgress:
    """Files, words per second and the time left of a prediction, shown after one second."""

    def __init__(self, files: int) -> None:
        self.files, self.started = files, monotonic()
        self.bar: Any = progress_bar(total=100, delay=1, bar_format="{desc}")

    def __enter__(self) -> "Callable[[Progress], None]":
        return self.update

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def update(self, progress: "Progress") -> None:
        files = f"{progress.files:,}/{self.files:,} files  " if self.files > 1 else ""
        self.bar.set_description_str(
            files + format_speed(progress, monotonic() - self.started), refresh=False
        )
        if progress.share is not None:
            self.bar.bar_format = "{desc} {percentage:3.0f} %|{bar}|"
            self.bar.n = round(100 * progress.share)
        self.bar.update(0)


def format_speed(progress: "Progress", seconds: float) -> str:
    """Words per second, and the time left if it is known.

    >>> from nestree.predict_files import Progress
    >>> format_speed(Progress(files=3, words=9000, share=0.25), seconds=4.0)
    '2,250 words/s  12 s left'
    >>> format_speed(Progress(files=0, words=9000, share=None), seconds=4.0)
    '2,250 words/s'
    """
    from nestree.training.train import duration

    speed = f"{progress.words / max(seconds, 1e-9):,.0f} words/s"
    return f"{speed}  {duration(seconds / progress.share - seconds)} left" if progress.share else speed


def format_losses(losses: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.3f}" for name, value in losses.items())
