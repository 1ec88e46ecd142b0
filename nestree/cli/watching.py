"""How training looks on a terminal: a bar with numbers and a line for each epoch; elsewhere only the lines."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nestree.cli.running import say

if TYPE_CHECKING:
    from nestree.training import EpochEnd, Step


class Lines:
    """A line for each epoch and each note."""

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None: ...

    def note(self, text: str, updates: int) -> None:
        say(text)

    def step(self, step: "Step") -> None: ...

    def epoch(self, end: "EpochEnd") -> None:
        say(line(end))


class Bar(Lines):
    """The same above a bar for the epoch under way."""

    def __init__(self) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped]

        self.bar: Any = tqdm(total=100, leave=False, bar_format="{desc} {percentage:3.0f} %|{bar}|{postfix}")

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def note(self, text: str, updates: int) -> None:
        self.bar.clear()
        say(text)

    def step(self, step: "Step") -> None:
        from nestree.training.summary import duration

        self.bar.set_description_str(f"epoch {step.epoch}/{step.epochs}", refresh=False)
        f1 = f"  F1 {100 * step.best_f1:.2f}" if step.best_f1 else ""
        self.bar.set_postfix_str(
            f"{losses(step.losses)}{f1}  {step.sentences_per_second:,.0f} sentences/s  "
            f"{duration(step.seconds_left)} left",
            refresh=False,
        )
        self.bar.n = round(100 * step.share)
        self.bar.update(0)

    def epoch(self, end: "EpochEnd") -> None:
        self.bar.clear()
        say(line(end))


def line(end: "EpochEnd") -> str:
    from nestree.training.summary import duration

    mark = "  best so far" if end.best_epoch == end.epoch else ""
    return (
        f"epoch {end.epoch:>{len(str(end.epochs))}}/{end.epochs}  {losses(end.losses)}  dev P "
        f"{100 * end.precision:.2f} R {100 * end.recall:.2f} F1 {100 * end.f1:.2f}  {duration(end.seconds)}{mark}"
    )


def losses(parts: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.3f}" for name, value in parts.items())
