"""Which implementation runs: `reference` anywhere, `numba` on a CPU, `triton` on a CUDA device."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

import torch

from nestree.errors import BackendError
from nestree.treecrf.potentials import Potentials

MODULES = {
    "triton": "nestree.treecrf.triton_kernels",
    "numba": "nestree.treecrf.numba_kernels",
    "reference": "nestree.treecrf.reference",
}  # in the order in which they are tried

LONGEST = 1280  # words; offsets within a sentence are 32-bit numbers in the triton kernels

_forced: ContextVar[str | None] = ContextVar("nestree backend", default=None)


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Within this context every tree function runs on the backend of this name, or raises."""
    if name not in MODULES:
        raise BackendError(f"there is no backend {name!r}; choose one of {', '.join(MODULES)}.")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


def backend_for(potentials: Potentials) -> ModuleType:
    """The backend module for these potentials: the forced one, or the first that supports them."""
    name = _forced.get()
    if name is None:
        name = next(name for name in MODULES if unavailable_reason(name, potentials) is None)
    elif why := unavailable_reason(name, potentials):
        able = [other for other in MODULES if unavailable_reason(other, potentials) is None]
        raise BackendError(f"backend {name!r} cannot serve here: {why}. Those that can: {', '.join(able)}.")
    return importlib.import_module(MODULES[name])


def unavailable_reason(name: str, potentials: Potentials) -> str | None:
    """Why this backend does not support these potentials; None if it does."""
    span = potentials.span
    if name == "numba":
        if span.device.type != "cpu":
            return f"the potentials are on {span.device}, and numba works on the CPU"
        return None if installed("numba") else "the package numba is not installed"
    if name == "triton":
        if span.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            return f"the potentials are on {span.device}, and triton works on CUDA devices"
        if not installed("triton"):
            return "the package triton is not installed; it comes with CUDA builds of torch"
        if any(t is not None and t.dtype == torch.float64 for t in potentials):
            return "the potentials are float64, and the triton kernels compute in float32"
        if span.dim() == 3 and span.shape[1] - 1 > LONGEST:
            return f"the potentials hold {span.shape[1] - 1} words, and the triton kernels at most {LONGEST}"
    return None


def installed(package: str) -> bool:
    return package in sys.modules or importlib.util.find_spec(package) is not None
