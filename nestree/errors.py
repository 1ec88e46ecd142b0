"""Everything nestree raises on purpose. Each message gives the value, the place and the remedy.

NestreeError
├── InputError (ValueError)         what was passed in does not fit
│   ├── PotentialsError             shapes, types, lengths, NaN, or no tree is possible
│   ├── ObservationError            observed spans that cross or lie outside their sentence
│   ├── DataError                   a file, a sentence or an entity that is not what it should be
│   ├── ConfigError                 settings that do not exist, are missing, or do not go together
│   └── ModelError                  an encoder, labels or a model directory that cannot be used
├── WrongTreeError (TypeError)      asking plain trees for heads
├── TrainingError (RuntimeError)    training cannot begin, or cannot go on
├── BackendError (RuntimeError)     the chosen backend cannot do this; the message names those that can
└── ChartMemoryError (MemoryError)  a chart would not fit; the message says how much it needs
"""

import re


def shorten_numbers(message: str) -> str:
    """The message; numbers of more than 80 digits are cut to their first.

    >>> shorten_numbers("start " + "7" * 4000 + " is too large")
    'start 7777777777... (4,000 digits) is too large'
    """
    return re.sub(r"\d{81,}", lambda number: f"{number[0][:10]}... ({len(number[0]):,} digits)", message)


class NestreeError(Exception):
    """The base of every error that nestree raises on purpose."""

    def __str__(self) -> str:
        return shorten_numbers(super().__str__())


class InputError(NestreeError, ValueError):
    """What was passed in does not fit."""


class PotentialsError(InputError):
    """Potentials or lengths that no sum over trees can be taken of."""


class ObservationError(InputError):
    """Observed spans that no tree can hold."""


class DataError(InputError):
    """A file, a sentence or an entity that is not what it should be."""


class ConfigError(InputError):
    """Settings that do not exist, are missing, or do not go together."""


class ModelError(InputError):
    """An encoder, labels or a model directory that cannot be used."""


class WrongTreeError(NestreeError, TypeError):
    """A question that this kind of tree has no answer to."""


class TrainingError(NestreeError, RuntimeError):
    """Training that cannot begin, or cannot go on."""


class BackendError(NestreeError, RuntimeError):
    """The chosen backend cannot serve."""


class ChartMemoryError(NestreeError, MemoryError):
    """A chart that would not fit into memory."""
