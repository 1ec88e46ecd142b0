"""Compilation of kernels: at the first call, without the GIL, and cached on disk."""

import logging
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import CellType, FunctionType

import numba
from numba.core import event

# Kernels allocate nothing. Without numba's reference counts calls are cheap and threads do not contend for counters.
OPTIONS = {"nogil": True, "_nrt": False}

logger = logging.getLogger(__name__)


class CompilationLog(event.Listener):
    """Logs the first compilation of a kernel that is not in the cache."""

    def on_start(self, event_: event.Event) -> None:
        if event_.data["dispatcher"].py_func.__module__.startswith("nestree."):
            logger.info("compiling kernels: up to a minute, once on this machine")
            event.unregister("numba:compile", self)

    def on_end(self, event_: event.Event) -> None:
        pass


event.register("numba:compile", CompilationLog())


def kernel(function: Callable, variant: str = "") -> Callable:
    """A compiled function that Python calls; cached on disk, for each variant, if there is a writable place."""
    try:
        return numba.njit(with_source_hash(function, variant), cache=True, **OPTIONS)
    except RuntimeError as why:  # numba can write neither to the package nor to the home directory
        logger.info("compiled code is not kept between runs: %s", why)
        return numba.njit(function, **OPTIONS)


def with_source_hash(function: Callable, variant: str) -> Callable:
    """The same function with a closure over its variant and a hash of the sources of its folder and of this one.

    Numba recompiles when the function's own file or its closure has changed. The hash makes it notice changes in the
    files of the functions that it calls.
    """
    folders = sorted({Path(__file__).parent, Path(function.__code__.co_filename).parent})
    code = function.__code__.replace(co_freevars=("SOURCES",))
    hashes = CellType("".join([variant, *map(source_hash, folders)]))
    return FunctionType(code, function.__globals__, function.__name__, closure=(hashes,))


@cache
def source_hash(folder: Path) -> str:
    """A hash of the Python files of a folder."""
    return sha256(b"".join(file.read_bytes() for file in sorted(folder.glob("*.py")))).hexdigest()


def compiled(function: Callable) -> Callable:
    """A compiled function that kernels call."""
    return numba.njit(function, **OPTIONS)


def compiled_inline(function: Callable) -> Callable:
    """A compiled function that is inlined into its callers."""
    return numba.njit(function, forceinline=True, **OPTIONS)
