"""Reading in 8 bits on a CPU: the same networks, with products of whole numbers. Nothing learns here.

networks.py      quick networks of others
transformer.py   BERT and its kin
layers.py        one of their layers, as one kernel
products.py      products in 8 bits
rows.py          what is done to one row of numbers
plain.py         the same products in plain PyTorch, to be read and to compare with
"""

import copy
import platform
from typing import TypeVar

import torch
from torch import nn

Network = TypeVar("Network", bound=nn.Module)


def unavailable_reason() -> str | None:
    """Why this processor cannot do it; None: it can."""
    if platform.machine().lower() not in ("aarch64", "arm64"):
        return (
            f"products in 8 bits are for ARM processors so far, and this is {platform.machine() or 'unknown'}"
        )
    if not torch.cpu.get_capabilities().get("dot", False):
        return "this processor has no instruction for products in 8 bits (SDOT)"
    return None


def to_int8(network: Network) -> Network:
    """A network that says nearly the same as this one, faster: a copy, which stays as it is when the other learns."""
    from nestree.nn.int8.modules import replaced  # it compiles kernels

    return replaced(copy.deepcopy(network))
