"""Libraries that only some formats need: imported when they are used, with a remedy where they are missing."""

import importlib
from typing import Any

from nestree.errors import DataError


def library(module: str, what: str, extra: str) -> Any:
    """A module of a library that belongs to one of the extras of nestree.

    >>> library("no_such_module", "BioC", "formats")
    Traceback (most recent call last):
        ...
    nestree.errors.DataError: BioC needs the library no_such_module: pip install 'nestree[formats]'.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise DataError(f"{what} needs the library {missing.name}: pip install 'nestree[{extra}]'.") from None
