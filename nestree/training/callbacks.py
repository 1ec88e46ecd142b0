"""What training reports on the way. The library never prints; the command line shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Step:
    """After an update."""

    epoch: int
    epochs: int
    share: float  # of the epoch that is done
    losses: Mapping[str, float]  # per gold mention, mean over this epoch so far
    best_f1: float  # on dev
    sentences_per_second: float
    seconds_left: float  # if no epoch is left out


@dataclass(frozen=True)
class EpochEnd:
    """After the evaluation on dev."""

    epoch: int
    epochs: int
    updates: int  # in all epochs so far
    losses: Mapping[str, float]  # per gold mention
    precision: float
    recall: float
    f1: float
    best_f1: float
    best_epoch: int
    seconds: float  # of training in this epoch
    dev_seconds: float


class Callbacks(Protocol):
    """What `train` calls."""

    def note(self, text: str, updates: int) -> None:
        """A sentence for the user, after so many updates."""

    def step(self, step: Step) -> None: ...

    def epoch(self, end: EpochEnd) -> None: ...
