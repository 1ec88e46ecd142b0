"""Devices by their names."""

import torch

from nestree.errors import InputError


def select_device(name: str = "auto") -> torch.device:
    """A device by its name; `auto` is the fastest that is available."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    usable = [device for device, is_available in available.items() if is_available]
    if name == "auto":
        return torch.device(usable[0])
    kind, colon, index = str(name).partition(":")
    if kind not in available or (colon and not (kind != "cpu" and index.isdecimal())):
        raise InputError(f"there is no device {name!r}. Choose one of auto, {', '.join(available)}, cuda:N.")
    count = torch.cuda.device_count() if kind == "cuda" and colon else 1
    if kind not in usable or int(index or 0) >= count:
        raise InputError(f"PyTorch finds no {name} device on this machine. Choose one of auto, {', '.join(usable)}.")
    return torch.device(name)
