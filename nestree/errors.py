"""The exceptions of nestree, and what messages share. Each message gives the value, the place and the remedy.

NestreeError
├── InputError (ValueError)         an argument is invalid
│   ├── PotentialsError             shapes, types, lengths, NaN, or no tree is possible
│   ├── ObservationError            observed spans that cross or lie outside their sentence
│   ├── DataError                   an invalid file, sentence or entity
│   │   ├── SpanRangeError          a span that reaches outside its text or sentence
│   │   └── EmptySpanError          a span that holds nothing
│   ├── ConfigError                 settings that do not exist, are missing, or do not go together
│   └── ModelError                  an encoder, labels or a model directory that cannot be used
├── WrongTreeError (TypeError)      asking plain trees for heads
├── TrainingError (RuntimeError)    training cannot start or continue
├── BackendError (RuntimeError)     the chosen backend cannot do this; the message names those that can
└── ChartMemoryError (MemoryError)  a chart would not fit into memory; the message says how much it needs
"""

import re
from typing import Self


def shorten_numbers(message: str) -> str:
    """The message with numbers of more than 80 digits shortened.

    >>> shorten_numbers("start " + "7" * 4000 + " is too large")
    'start 7777777777... (4,000 digits) is too large'
    """
    return re.sub(r"\d{81,}", lambda number: f"{number[0][:10]}... ({len(number[0]):,} digits)", message)


def format_duration(seconds: float) -> str:
    """A time for people to read.

    >>> format_duration(59.6), format_duration(125), format_duration(7300)
    ('60 s', '2 min 5 s', '2 h 1 min')
    """
    if round(seconds) < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def plural(n: int, noun: str) -> str:
    """The number with its noun.

    >>> plural(1, "error"), plural(2000, "entity")
    ('1 error', '2,000 entities')
    """
    if n != 1:
        noun = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{n:,} {noun}"


def escape_newlines(text: str) -> str:
    """The text with escape sequences in place of line breaks, which names, labels and texts may contain."""
    return text.replace("\n", "\\n")


def first_line(error: BaseException) -> str:
    """The first line of an error of another library, which may be pages long, without a full stop.

    >>> first_line(ValueError("no such file.\\nSee the manual.")), first_line(KeyError())
    ('no such file', 'KeyError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(" .:")


class NestreeError(Exception):
    """The base class of all errors that nestree raises on purpose."""

    def __str__(self) -> str:
        return shorten_numbers(super().__str__())


class InputError(NestreeError, ValueError):
    """An argument is invalid."""


class PotentialsError(InputError):
    """Invalid potentials or lengths: shapes, types, NaN, or no tree is possible."""


class ObservationError(InputError):
    """Observed spans that no tree can contain."""


class DataError(InputError):
    """An invalid file, sentence or entity."""

    def at(self, place: str) -> Self:
        """The same error; its message begins with the place.

        >>> EmptySpanError("entity 1-1 GPE is empty").at("a.jsonl:3")
        EmptySpanError('a.jsonl:3: entity 1-1 GPE is empty')
        """
        return type(self)(f"{place}: {self}")


class SpanRangeError(DataError):
    """A span that reaches outside its text or sentence."""


class EmptySpanError(DataError):
    """A span that holds nothing."""


class ConfigError(InputError):
    """Settings that do not exist, are missing, or do not go together."""


class ModelError(InputError):
    """An encoder, labels or a model directory that cannot be used."""


class WrongTreeError(NestreeError, TypeError):
    """A function that this kind of tree does not support."""


class TrainingError(NestreeError, RuntimeError):
    """Training cannot start or continue."""


class BackendError(NestreeError, RuntimeError):
    """The chosen backend cannot be used."""


class ChartMemoryError(NestreeError, MemoryError):
    """A chart would not fit into memory."""
