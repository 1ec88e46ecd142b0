"""How kernels are compiled: at the first call, without the GIL, and cached on disk."""

import logging
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import CellType, FunctionType

import numba

# Kernels own no memory: without numba's reference counts calls cost little, and threads do not meet at the counters.
OPTIONS = {"nogil": True, "_nrt": False}

logger = logging.getLogger(__name__)


def kernel(function: Callable) -> Callable:
    """Compiled code that Python calls; kept on disk where there is a place to write."""
    try:
        return numba.njit(with_source_hash(function), cache=True, **OPTIONS)
    except RuntimeError as why:  # so numba says that neither the package nor the home can be written
        logger.info("compiled code is not kept between runs: %s", why)
        return numba.njit(function, **OPTIONS)


def with_source_hash(function: Callable) -> Callable:
    """The same function with a closure over a hash of the sources of its folder and of this one.

    For numba, code on disk is out of date when the file of the function has changed, or its closure. This one has
    the files in it from which the function calls others.
    """
    folders = sorted({Path(__file__).parent, Path(function.__code__.co_filename).parent})
    code = function.__code__.replace(co_freevars=("SOURCES",))
    known = CellType("".join(map(source_hash, folders)))
    return FunctionType(code, function.__globals__, function.__name__, closure=(known,))


@cache
def source_hash(folder: Path) -> str:
    """A hash of the Python files of a folder."""
    return sha256(b"".join(file.read_bytes() for file in sorted(folder.glob("*.py")))).hexdigest()


def called(function: Callable) -> Callable:
    """Compiled code that kernels call."""
    return numba.njit(function, **OPTIONS)


def inlined(function: Callable) -> Callable:
    """Compiled code that becomes part of the kernels that call it."""
    return numba.njit(function, forceinline=True, **OPTIONS)
