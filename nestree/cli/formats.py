"""What there is to say about the formats: from their table, and from the readers and writers themselves."""

import inspect
from typing import Any

from nestree.data.formats import FORMATS, function, options


def table(*names: str) -> dict[str, dict[str, Any]]:
    """What each format is, and its options with their defaults; `write` is None where it is only read."""
    return {
        name: {
            "read": defaults(name, "read"),
            "write": defaults(name, "write") if FORMATS[name].writable else None,
            "folder": FORMATS[name].folder,
            "what": FORMATS[name].what,
        }
        for name in names or FORMATS
    }


def defaults(name: str, verb: str) -> dict[str, Any]:
    return {
        key: value if isinstance(value := option.default, str | int | float | bool | None) else str(value)
        for key, option in options(name, verb).items()
    }


def described(name: str) -> str:
    """All about one format."""
    parts = [f"{name}: {inspect.getdoc(inspect.getmodule(function(name, 'read')))}"]
    for verb in ("read", "write") if FORMATS[name].writable else ("read",):
        given = ", ".join(f"{key}={value}" for key, value in defaults(name, verb).items())
        parts.append(f"--{verb} {given or 'has no options'}\n\n{inspect.getdoc(function(name, verb))}")
    return "\n\n".join(parts)
