"""Where training stands, on disk: one safetensors file that holds every tensor and, as JSON, all the rest.

It is replaced as a whole under its own name, so a process that is killed at any moment leaves the old state or the
new one. Nothing random is in it: the order of sentences and the dropout of an update follow from the seed and the
number of the update.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nestree.checkpoint import read_tensors, used, write_tensors
from nestree.errors import TrainingError
from nestree.training.optimizer import Average, load_optimizer_state, optimizer_state

FORMAT = 1


@dataclass
class Progress:
    """How far training is, and what is remembered on the way."""

    fingerprint: str  # of the data
    origin: dict[str, Any] = field(
        default_factory=dict
    )  # where the data came from: the command's own business
    epoch: int = 1  # the one under way, from 1
    update: int = 0  # updates done in it
    updates: int = 0  # updates done in all
    pieces: int = 1  # into which each batch is cut to fit into memory
    best_f1: float = -1.0
    best_epoch: int = 0
    losses: dict[str, float] = field(default_factory=dict)  # sums over this epoch
    mentions: int = 0  # gold mentions of this epoch so far
    epoch_seconds: float = 0.0  # spent on the updates of this epoch
    seconds: float = 0.0  # spent on training, in all
    finished: str = ""  # why it came to its end


def save_state(path: Path, progress: Progress, model: nn.Module, optimiser: Any, average: Average) -> None:
    """All that is needed to go on; of a finished run only where it stands."""
    tensors: dict[str, Tensor] = {}
    if not progress.finished:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        tensors.update({f"model/{name}": value for name, value in model.state_dict().items()})
        tensors.update(
            {f"optimiser/{name}": value for name, value in optimizer_state(optimiser, names).items()}
        )
        tensors.update({f"average/{name}": value for name, value in average.weights.items()})
    write_tensors(
        path, tensors, {"format": str(FORMAT), "progress": json.dumps(asdict(progress), allow_nan=False)}
    )


def load_progress(path: Path) -> Progress:
    """Where a run stands, without its tensors."""
    _, facts = read_tensors(path, only_facts=True)
    if facts.get("format") != str(FORMAT):
        raise TrainingError(
            f"{path} is a training state of another version of nestree; it cannot be continued."
        )
    known = json.loads(facts["progress"])
    return Progress(**{each.name: known[each.name] for each in fields(Progress)})


@torch.no_grad()
def restore_state(path: Path, model: nn.Module, optimiser: Any, average: Average) -> None:
    """Put model, optimiser and average back to where they were."""
    tensors, _ = read_tensors(path)
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimiser": {}, "average": {}}
    for key, value in tensors.items():
        part, _, name = key.partition("/")
        parts[part][name] = value
    try:
        model.load_state_dict(used(parts["model"]))
    except RuntimeError as why:
        raise TrainingError(f"{path} does not fit the model that config.toml describes: {why}") from None
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    load_optimizer_state(optimiser, names, parts["optimiser"])
    for name, value in used(parts["average"]).items():
        average.weights[name].copy_(value)
