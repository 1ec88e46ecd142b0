"""What training tells whoever looks on. The library is silent; the command shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Step:
    """After an update."""

    epoch: int
    epochs: int
    share: float  # of the epoch that is done
    losses: Mapping[str, float]  # parts, per gold mention of this epoch so far
    best_f1: float  # on dev
    sentences_per_second: float
    seconds_left: float  # if all epochs are run


@dataclass(frozen=True)
class EpochEnd:
    """After the evaluation on dev."""

    epoch: int
    epochs: int
    updates: int  # since training began
    losses: Mapping[str, float]  # parts, per gold mention
    precision: float
    recall: float
    f1: float
    best_f1: float
    best_epoch: int
    seconds: float  # of training in this epoch
    dev_seconds: float


class Callbacks(Protocol):
    """Somebody who looks on."""

    def note(self, text: str, updates: int) -> None:
        """Something the user should know, in a sentence, after so many updates."""

    def step(self, step: Step) -> None: ...

    def epoch(self, end: EpochEnd) -> None: ...
