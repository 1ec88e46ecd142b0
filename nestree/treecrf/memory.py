"""Whether a large chart fits into memory, checked before it is allocated; and whether an error means out of memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nestree.errors import ChartMemoryError

MIN_CHECKED_BYTES = 1 << 28  # smaller charts are allocated without a check


def check(needed: int, device: torch.device, batch: int, n: int) -> None:
    """Raise if `needed` bytes are more than the device has free."""
    if not fits(needed, device):
        free = free_bytes(device) or 0
        raise ChartMemoryError(
            f"charts for {batch} sentences of up to {n} words need {needed / 2**30:.1f} GiB and {device} has "
            f"{free / 2**30:.1f} GiB free; pass fewer sentences at once, or split the longest."
        )


def fits(needed: int, device: torch.device) -> bool:
    """Whether the device has this many bytes free, as far as is known."""
    free = None if needed < MIN_CHECKED_BYTES else free_bytes(device)
    return free is None or needed <= free


def free_bytes(device: torch.device) -> int | None:
    """The bytes that can still be allocated; None if unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    try:
        with open("/proc/meminfo") as lines:
            available = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    except OSError:  # not on Linux: all memory that there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    return int(available[0]) * 1024 if available else None


@contextmanager
def ignore_out_of_memory() -> Iterator[None]:
    """Suppress out-of-memory errors."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: PyTorch has an error type for that, but also reports it in messages of other errors.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."))
    True
    """
    phrases = ("allocate memory", "not enough memory", "out of memory")
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(p in str(error) for p in phrases):
        return True
    # While the error was handled, as at the end of a graph capture, another one may have been raised.
    return error.__context__ is not None and is_out_of_memory(error.__context__)
