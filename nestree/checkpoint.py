"""A model directory: settings, labels, the encoder's tokenizer and configuration, weights, and a card for people.

    config.toml          the settings it was made with
    labels.json          the labels in their order, and the version of this layout
    encoder/             the tokenizer and the encoder's configuration, as `transformers` writes them
    weights.safetensors  every weight, the encoder's too; it comes last, so a directory without it is not whole
    README.md            the model card

No pickle is written or read. Whatever is wrong with a directory becomes a ModelError in a sentence.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nestree import __version__
from nestree.config import Settings
from nestree.data.files import placed
from nestree.errors import DataError, ModelError
from nestree.model import Recognizer

FORMAT = 1
CONFIG, LABELS, ENCODER, WEIGHTS, CARD = (
    "config.toml",
    "labels.json",
    "encoder",
    "weights.safetensors",
    "README.md",
)


def save(model: Recognizer, folder: Path, card: str = "") -> None:
    """A new directory with the whole model, or nothing."""
    with placed(folder) as temporary:
        temporary.mkdir()
        save_all_but_weights(model, temporary, card)
        save_weights(model.state_dict(), temporary)


def save_all_but_weights(model: Recognizer, folder: Path, card: str = "") -> None:
    """What does not change while a model learns."""
    write_text(folder / CONFIG, model.settings.as_toml())
    labels = {"format": FORMAT, "nestree": __version__, "labels": list(model.labels)}
    write_text(folder / LABELS, json.dumps(labels, ensure_ascii=False, indent=2) + "\n")
    model.save_encoder(folder / ENCODER)
    write_text(folder / CARD, card or model_card(model, {}))


def save_weights(weights: Mapping[str, Tensor], folder: Path) -> None:
    """The weights, in place of those that were there."""
    write_tensors(folder / WEIGHTS, weights, {"format": str(FORMAT), "nestree": __version__})


def load(folder: Path | str, device: str | torch.device = "cpu") -> Recognizer:
    """The model of a directory, ready to predict."""
    folder = Path(folder)
    labels = read_labels(folder)
    settings = settings_of(folder)
    if not (folder / WEIGHTS).is_file():
        raise ModelError(missing_weights(folder))
    weights, _ = read_tensors(folder / WEIGHTS)
    model = untrained(folder, settings, labels)
    fit(model, weights, folder / WEIGHTS)
    return model.to(device).eval()


def untrained(folder: Path, settings: Settings, labels: Sequence[str]) -> Recognizer:
    """A model of the form that this directory describes; its weights are random."""
    if not (folder / ENCODER).is_dir():
        raise ModelError(f"{folder} has no {ENCODER}: it is not whole. Fetch or train it again.")
    return Recognizer(settings, labels, folder / ENCODER, pretrained=False)


def settings_of(folder: Path) -> Settings:
    if not (folder / CONFIG).is_file():
        raise ModelError(f"{folder} has no {CONFIG}: it is not whole. Fetch or train it again.")
    return Settings.saved(folder / CONFIG)


def read_labels(folder: Path) -> list[str]:
    if not folder.is_dir():
        what = "is a file, and a model is a directory" if folder.exists() else "does not exist"
        raise ModelError(f"{folder} {what}. Name a directory that `nestree train` made.")
    path = folder / LABELS
    if not path.is_file():
        raise ModelError(
            f"{folder} has no {LABELS}: it is no model of nestree. Name one that `nestree train` made."
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        version, labels = found["format"], found["labels"]
    except (ValueError, KeyError, TypeError):
        raise ModelError(
            f"{path} is not what nestree writes: it is damaged, or of another program."
        ) from None
    if not isinstance(version, int) or version > FORMAT:
        raise ModelError(
            f"{folder} was made by nestree {found.get('nestree', '?')} in layout {version}; this one knows layouts "
            f"up to {FORMAT}. Update nestree."
        )
    if not (isinstance(labels, list) and labels and all(isinstance(label, str) for label in labels)):
        raise ModelError(f"{path} must list labels, and says {labels!r:.60}. Fetch the model again.")
    return labels


def missing_weights(folder: Path) -> str:
    if (folder / "training").is_dir():
        return (
            f"{folder} has no {WEIGHTS} yet: its training stopped before the first evaluation. Go on with "
            f"`nestree train --resume {folder}`."
        )
    return f"{folder} has no {WEIGHTS}: it is not whole. Fetch or train it again."


def fit(model: Recognizer, weights: Mapping[str, Tensor], path: Path) -> None:
    """Give the model these weights; all of them, and no others."""
    own = model.state_dict()
    for name in own:
        if name not in weights:
            raise ModelError(
                f"{path} lacks {name}: it belongs to another config.toml. Fetch the model again."
            )
        if own[name].shape != weights[name].shape:
            raise ModelError(
                f"{path}: {name} has the shape {list(weights[name].shape)}, and config.toml asks for "
                f"{list(own[name].shape)}: they belong to different models."
            )
    extra = next((name for name in weights if name not in own), None)
    if extra:
        raise ModelError(
            f"{path} has {extra}, which config.toml has no place for: they belong to different models."
        )
    model.load_state_dict(dict(weights))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
    """A safetensors file that takes its name when all of it is on the disk."""
    seen: set[int] = set()
    held = {}
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        held[name] = value.clone() if value.data_ptr() in seen else value  # no two share their memory
        seen.add(value.data_ptr())
    try:
        with placed(path) as temporary:
            temporary.touch()
            allowed = temporary.stat().st_mode  # save_file would let nobody else read it
            save_file(held, temporary, metadata=dict(facts))
            temporary.chmod(allowed)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
    except (SafetensorError, DataError) as why:
        room = " The disk is full." if "No space" in str(why) or "os error 28" in str(why) else ""
        raise ModelError(
            f"{path} could not be written: {why}{room} What was there before is untouched."
        ) from None


def read_tensors(path: Path, *, only_facts: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file by name, and what else it says."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = dict(file.metadata() or {})
            return {} if only_facts else {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist.") from None
    except (SafetensorError, OSError) as why:
        raise ModelError(
            f"{path} cannot be read: {why}. It may be cut off; fetch or make it again."
        ) from None


def write_text(path: Path, text: str) -> None:
    with placed(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def model_card(model: Recognizer, facts: Mapping[str, Any]) -> str:
    """What somebody who finds this directory should know, in Markdown."""
    lines = [
        "# A nestree model",
        "",
        "Finds nested named entities: spans of words that may contain each other, each with a label and a head word.",
        "",
        f"- labels: {', '.join(model.labels)}",
        f"- encoder: {Path(model.settings.encoder.path).name}",
        *(f"- {name}: {value}" for name, value in facts.items()),
        f"- made with nestree {__version__}; every setting stands in `config.toml`",
        "",
        "```bash",
        "nestree predict DATA --model THIS_DIRECTORY",
        "nestree evaluate --model THIS_DIRECTORY GOLD",
        "```",
        "",
    ]
    return "\n".join(lines)
