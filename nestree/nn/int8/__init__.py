"""CPU inference in 8 bits: copies of networks whose matrix products are of 8-bit integers. They cannot be trained."""

import copy
import platform
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import nn

Network = TypeVar("Network", bound=nn.Module)


def unavailable_reason() -> str | None:
    """Why this processor cannot run it; None: it can."""
    machine = platform.machine()
    if machine.lower() not in ("aarch64", "arm64"):
        return f"products in 8 bits are for ARM processors so far, and this is {machine or 'unknown'}"
    if not torch.cpu.get_capabilities().get("dot", False):
        return "this processor has no instruction for products in 8 bits (SDOT)"
    return None


def to_int8(network: Network, shared: Iterable[Any] = ()) -> Network:
    """A copy of a network that computes nearly the same, faster; later changes of the original do not reach it.

    `shared`: objects within the network that the copy uses, too, instead of copying them.
    """
    from nestree.nn.int8.modules import int8_module  # compiles kernels

    # deepcopy takes what the memo holds for an object in place of a copy
    memo: dict[int, Any] = {id(value): value for value in shared}
    for module in network.modules():
        replacement = int8_module(module)
        if replacement is not None:
            memo[id(module)] = replacement
    return copy.deepcopy(network, memo)
