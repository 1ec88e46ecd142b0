"""CPU inference in 8 bits: copies of networks whose matrix products are of 8-bit integers. They cannot be trained."""

import copy
import os
import platform
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from llvmlite.binding import get_host_cpu_features
from torch import nn

from nestree.errors import InputError

Network = TypeVar("Network", bound=nn.Module)
KERNEL_VARIABLE = "NESTREE_INT8_KERNEL"  # the environment variable that forces a kernel


class Kernel(NamedTuple):
    """The instruction that multiplies, and the size of the tile that is summed in registers."""

    name: str
    features: frozenset[str]  # of the processor, as LLVM calls them
    input_type: type  # of inputs; np.uint8: shifted by 128
    group: int  # inputs that one instruction multiplies for each of its sums
    lanes: int  # sums in a register
    tile_registers: int  # of a row
    tile_rows: int


KERNELS = (  # the fastest first
    Kernel("avx512-vnni", frozenset({"avx512vnni", "avx512bw"}), np.uint8, 4, 16, 2, 8),
    Kernel("avx-vnni", frozenset({"avxvnni"}), np.uint8, 4, 8, 2, 4),
    Kernel("avx512", frozenset({"avx512bw"}), np.int16, 2, 16, 2, 8),
    Kernel("avx2", frozenset({"avx2", "fma"}), np.int16, 2, 8, 2, 4),
    Kernel("sdot", frozenset({"dotprod"}), np.int8, 4, 4, 4, 4),
)


@cache
def processor_features() -> frozenset[str]:
    if platform.machine().lower() in ("aarch64", "arm64"):  # LLVM does not report SDOT
        return frozenset({"dotprod"} if torch.cpu.get_capabilities().get("dot") else ())
    return frozenset(name for name, present in get_host_cpu_features().items() if present)


def available_kernels() -> list[Kernel]:
    """The kernels that this processor can run, the fastest first."""
    return [kernel for kernel in KERNELS if kernel.features <= processor_features()]


def selected_kernel() -> Kernel:
    """The fastest kernel of this processor, or the one that NESTREE_INT8_KERNEL names."""
    kernels = {kernel.name: kernel for kernel in available_kernels()}
    forced = os.environ.get(KERNEL_VARIABLE)
    if forced and forced not in kernels:
        names = ", ".join(kernels) or "none"
        raise InputError(f"{KERNEL_VARIABLE} is {forced!r}, which this processor cannot run; it can run {names}.")
    return kernels[forced] if forced else next(iter(kernels.values()))


def unavailable_reason() -> str | None:
    """Why this processor has no int8 kernel; None: it has one."""
    if available_kernels():
        return None
    names = ", ".join(kernel.name for kernel in KERNELS)
    return f"this processor ({platform.machine() or 'unknown'}) has none of the instructions {names}"


def to_int8(network: Network, shared: Iterable[Any] = ()) -> Network:
    """A copy of a network that computes nearly the same, faster, in evaluation mode; it has the weights of this moment.

    `shared`: objects within the network that the copy uses, too, instead of copying them.
    """
    from nestree.nn.int8.modules import int8_module  # compiles kernels

    # deepcopy takes what the memo holds for an object in place of a copy
    memo: dict[int, Any] = {id(value): value for value in shared}

    def replace(module: nn.Module) -> None:
        replacement = int8_module(module)
        if replacement is not None:
            memo[id(module)] = replacement
        else:
            for child in module.children():
                replace(child)

    replace(network)
    return copy.deepcopy(network, memo).eval()
