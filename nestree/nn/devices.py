"""Devices by their names."""

import torch

from nestree.errors import InputError


def select_device(name: str = "auto") -> torch.device:
    """A device by its name; `auto` is the best there is."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    able = [each for each, found in there.items() if found]
    if name == "auto":
        return torch.device(able[0])
    if name not in there:
        raise InputError(f"there is no device {name!r}. Choose one of auto, {', '.join(there)}.")
    if not there[name]:
        raise InputError(
            f"PyTorch finds no {name} device on this machine. Choose one of auto, {', '.join(able)}."
        )
    return torch.device(name)
