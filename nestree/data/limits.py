"""Limits on what one file may cost to read: a small file must not fill the memory of whoever reads it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from itertools import accumulate

from nestree.errors import DataError, InputError
from nestree.sentence import Entity, Span


@dataclass(frozen=True)
class Limits:
    longest_line: int = 64 * 2**20  # bytes of a line
    max_bytes: int = 4 * 2**30  # bytes that a compressed file expands to, or of a file that is read at once
    max_docbin_bytes: int = 512 * 2**20  # bytes that a DocBin of spaCy expands to
    max_xml_depth: int = 1000  # elements inside each other
    max_nesting: int = 100  # entities that share a word

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value < 1:
                raise InputError(f"{name} is {value!r:.40}, and must be a whole number from 1 on.")


LIMITS = tuple(field.name for field in fields(Limits))
current: ContextVar[Limits] = ContextVar("limits", default=Limits())  # noqa: B039 (it is frozen)


@contextmanager
def limits(**changed: int) -> Iterator[None]:
    """Within this, files are read with these limits.

    >>> with limits(max_nesting=7):
    ...     current.get().max_nesting
    7
    """
    token = current.set(replace(current.get(), **changed))
    try:
        yield
    finally:
        current.reset(token)


def remedy(name: str) -> str:
    """The sentence that tells how to raise a limit, on the command line and in Python."""
    return f"If that is meant, allow more with --{name.replace('_', '-')} (in Python, {name})."


def check_nesting(entities: Iterable[Entity | Span], place: str) -> None:
    """Raise if more entities than `max_nesting` share a word."""
    most = current.get().max_nesting
    spans = [entity.span if isinstance(entity, Entity) else entity for entity in entities]
    if len(spans) <= most:
        return
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    deepest = max(accumulate(step for _, step in edges))
    if deepest > most:
        raise DataError(
            f"{place}: {deepest:,} entities share a word, and at most {most:,} may. {remedy('max_nesting')}"
        )
