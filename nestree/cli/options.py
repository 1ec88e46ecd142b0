"""Options that several commands share, and the options of formats: NAME=VALUE, checked against what a format has."""

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from nestree.errors import InputError


class Shape(StrEnum):
    text = "text"
    json = "json"


class TableShape(StrEnum):
    text = "text"
    markdown = "markdown"
    json = "json"


def format_names(incomplete: str) -> list[str]:
    from nestree.data.formats import FORMATS

    return [name for name in FORMATS if name.startswith(incomplete)]


def writable_names(incomplete: str) -> list[str]:
    from nestree.data.formats import FORMATS

    return [name for name in format_names(incomplete) if FORMATS[name].writable]


def word_styles(incomplete: str) -> list[str]:
    from nestree.text import WORD_STYLES

    return [name for name in WORD_STYLES if name.startswith(incomplete)]


def sentence_rules(incomplete: str) -> list[str]:
    from nestree.text import SENTENCE_RULES

    return [name for name in SENTENCE_RULES if name.startswith(incomplete)]


From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FORMAT",
        autocompletion=format_names,
        help="What format the data is in; guessed where that can be told. `nestree formats` lists them.",
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="FORMAT",
        autocompletion=writable_names,
        help="What format to write; guessed from the name where that can be told.",
    ),
]
Read = Annotated[
    list[str] | None,
    typer.Option(
        "--read",
        metavar="NAME=VALUE",
        help="An option of the format that is read, such as ends=inclusive; may be repeated.",
    ),
]
Write = Annotated[
    list[str] | None,
    typer.Option(
        "--write", metavar="NAME=VALUE", help="An option of the format that is written; may be repeated."
    ),
]
Words = Annotated[
    str | None,
    typer.Option(
        "--words",
        metavar="STYLE",
        autocompletion=word_styles,
        help="How text is split into words: treebank, ud, split-hyphens, whitespace.",
    ),
]
Sentences = Annotated[
    str | None,
    typer.Option(
        "--sentences",
        metavar="RULE",
        autocompletion=sentence_rules,
        help="How text is split into sentences: rules, lines.",
    ),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Go on after what cannot be read, and list it.")]
# What a file may cost to read: of every command that reads data, see `with_limits`.
LIMITS = {
    "longest_line": ("BYTES", "Read lines up to this length. [default: 64 MB]"),
    "max_bytes": ("BYTES", "Read compressed files that expand to so much. [default: 4 GB]"),
    "max_docbin_bytes": ("BYTES", "Read DocBins of spaCy that expand to so much. [default: 512 MB]"),
    "max_xml_depth": ("N", "Read XML with so many elements inside each other. [default: 1000]"),
    "max_nesting": ("N", "Read sentences where so many entities share a word. [default: 100]"),
}
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same result.")]
Source = Annotated[Path, typer.Argument(metavar="IN", help="A file or folder; - is standard input.")]
Files = Annotated[list[Path], typer.Argument(metavar="FILES", help="Files or folders; - is standard input.")]


def with_limits(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of LIMITS, which hold while it runs; any other if it reads no data."""
    signature = inspect.signature(command)
    if "source_format" not in signature.parameters:
        return command

    @functools.wraps(command)
    def limited(**given: Any) -> None:
        from nestree.data.limits import limits

        chosen = {name: value for name in LIMITS if (value := given.pop(name)) is not None}
        with limits(**chosen):
            command(**given)

    added = {
        name: Annotated[
            int | None, typer.Option(f"--{name.replace('_', '-')}", metavar=metavar, min=1, help=told)
        ]
        for name, (metavar, told) in LIMITS.items()
    }
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in added.items()
    ]
    limited.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *parameters])  # type: ignore[attr-defined]
    limited.__annotations__ = {**command.__annotations__, **added}
    return limited


def option_values(given: Iterable[str], format: str, verb: Literal["read", "write"]) -> dict[str, Any]:
    """The values of NAME=VALUE arguments, as the reader or writer of the format wants them.

    >>> option_values(["word=2"], "columns", "read")
    {'word': 2}
    """
    from nestree.data.formats import function, options

    known = options(format, verb)
    kinds = get_type_hints(function(format, verb))
    values = {}
    for each in given:
        name, equals, value = each.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise InputError(f"--{verb} {each} has no value: write --{verb} {each}=VALUE.")
        if name not in known:
            raise InputError(f"--{verb} {each}: {format} has no such option. {nearest(name, known)}")
        try:
            values[name] = typed(value, kinds[name])
        except ValueError as why:
            raise InputError(f"--{verb} {each}: {why}.") from None
    return values


def nearest(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    import difflib

    if not known:
        return "It has none."
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"Is {close[0]} meant?" if close else f"It has: {', '.join(known)}."


def typed(value: str, kind: Any) -> Any:
    """A string as a value of this type; a ValueError says what was expected."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        others = [each for each in inner if each is not type(None)]
        return None if value == "" and len(others) < len(inner) else typed(value, others[0])
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"choose one of {', '.join(map(str, inner))}")
        return value
    if origin is not None:  # a list, tuple or other collection
        return (list if origin is list else tuple)(typed(part, inner[0]) for part in value.split(",") if part)
    if kind is bool:
        if value.lower() not in ("true", "false", "yes", "no", "1", "0"):
            raise ValueError("the value must be true or false")
        return value.lower() in ("true", "yes", "1")
    if kind is int:
        try:
            return int(value)
        except ValueError:
            raise ValueError("the value must be a whole number") from None
    return Path(value) if kind is Path else value


def reading_options(
    format: str, read: Sequence[str] | None, words: str | None, sentences: str | None
) -> dict[str, Any]:
    """All that was said about how to read this format."""
    from nestree.data.formats import options
    from nestree.text import SENTENCE_RULES, WORD_STYLES

    values = option_values(read or (), format, "read")
    known = options(format, "read")
    for name, value, choices in (("words", words, WORD_STYLES), ("sentences", sentences, SENTENCE_RULES)):
        if value is None:
            continue
        if value not in choices:
            raise InputError(f"--{name} {value}: choose one of {', '.join(choices)}.")
        if name not in known:
            raise InputError(f"--{name} {value}: {format} data has its own {name}. Leave this out.")
        values[name] = value
    return values
