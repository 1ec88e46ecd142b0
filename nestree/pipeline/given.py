"""What a user knows of a text, in characters -> what is known of its sentences, in words."""

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from nestree.decoding.known import Forbidden, Known
from nestree.errors import InputError
from nestree.sentence import Document, Span


class KnownText(NamedTuple):
    """An entity that is known, in characters."""

    start: int
    end: int
    label: str | None
    head: Span | None


class ForbiddenText(NamedTuple):
    """What is no entity, in characters."""

    start: int
    end: int
    label: str | None


def as_known(given: Sequence[Any], text: str) -> KnownText:
    """(start, end), (start, end, label) or (start, end, label, head)."""
    span, label, head = fields(given, "known", 4, text)
    if head is not None:
        at = as_int(head)
        word = as_span(head if at is None else (at, at + 1))
        if word is None:
            raise InputError(f"the head of known {given!r} must be a place in the text, or (start, end).")
        head = trimmed(text, word, "the head of known")
    return KnownText(*span, label, head)


def as_forbidden(given: Sequence[Any], text: str) -> ForbiddenText:
    """(start, end) or (start, end, label)."""
    span, label, _ = fields(given, "forbidden", 3, text)
    return ForbiddenText(*span, label)


def fields(given: Sequence[Any], name: str, most: int, text: str) -> tuple[Span, str | None, Any]:
    """Span, label and head. White space at either end of a span does not count."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not 2 <= len(given) <= most:
        last = "(start, end, label, head)" if most == 4 else "(start, end, label)"
        raise InputError(f"{name} {given!r:.60} must be (start, end), and may go on as {last}.")
    label, head = [*given[2:], None, None][:2]
    span = as_span(given[:2])
    if span is None:
        raise InputError(f"{name} {given!r:.60} must begin with two places in the text, the second greater.")
    if not (label is None or isinstance(label, str)):
        raise InputError(f"the label of {name} {given!r:.60} must be a string or None.")
    return trimmed(text, span, name), label, head


def as_span(value: Any) -> Span | None:
    """Two places in a text, the second greater; None if it is anything else."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        return None
    start, end = map(as_int, value)
    return (start, end) if start is not None and end is not None and 0 <= start < end else None


def as_int(value: Any) -> int | None:
    """A whole number, of Python or NumPy; None if it is anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def trimmed(text: str, span: Span, name: str) -> Span:
    """The span without the white space at either end."""
    start, end = span
    if end > len(text):
        raise InputError(f"{name} {span} ends after the text, which has {len(text)} characters.")
    piece = text[start:end]
    if not piece.strip():
        raise InputError(f"{name} {span} has no characters but white space: {piece!r:.40}.")
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())


def with_borders(words: Sequence[Span], keep: Iterable[Span]) -> list[Span]:
    """The words, cut where one of the spans to keep begins or ends.

    >>> with_borders([(0, 3), (4, 11)], [(4, 9)])
    [(0, 3), (4, 9), (9, 11)]
    """
    borders = sorted({border for span in keep for border in span})
    cut: list[Span] = []
    for i, j in words:
        inner = borders[bisect_right(borders, i) : bisect_left(borders, j)]
        cut += pairwise([i, *inner, j])
    return cut


def in_words(
    document: Document, known: Sequence[KnownText], forbidden: Sequence[ForbiddenText]
) -> dict[int, tuple[list[Known], list[Forbidden]]]:
    """By the number of a sentence. A forbidden span that is no span of words cannot be found anyway."""
    starts = [sentence.start for sentence in document.sentences]
    told: dict[int, tuple[list[Known], list[Forbidden]]] = {}
    for each in known:
        number, i, j = place(document, starts, each.start, each.end, "known")
        head = None
        if each.head is not None:
            other, first, last = place(document, starts, *each.head, "the head of known")
            if (other, last) != (number, first + 1) or not i <= first < j:
                raise InputError(
                    f"the head {each.head} of known {tuple(each[:3])} must lie in one word of it."
                )
            head = first
        one = Known(i, j, each.label, head, (each.start, each.end), each.head)
        told.setdefault(number, ([], []))[0].append(one)
    for bad in forbidden:
        number, i, j = place(document, starts, bad.start, bad.end, "forbidden")
        if i < j:
            told.setdefault(number, ([], []))[1].append(Forbidden(i, j, bad.label, (bad.start, bad.end)))
    return told


def check_labels(
    known: Sequence[KnownText], forbidden: Sequence[ForbiddenText], labels: Sequence[str]
) -> None:
    """Those that a model does not know."""
    for name, some in (("known", known), ("forbidden", forbidden)):
        for start, end, label, *_ in some:
            if label is not None and label not in labels:
                raise InputError(
                    f"{name} {(start, end, label)} has a label that this model does not know. Its labels are "
                    f"{', '.join(labels)}."
                )


def place(document: Document, starts: Sequence[int], start: int, end: int, name: str) -> tuple[int, int, int]:
    """The sentence and the words at these characters, which neither begin nor end with white space."""
    number = bisect_right(starts, start) - 1
    sentence = document.sentences[number]
    offsets = sentence.offsets or ()
    start, end = start - sentence.start, end - sentence.start
    first = bisect_right(offsets, start, key=lambda word: word[1])  # the first word that ends after the start
    after = bisect_left(offsets, end, key=lambda word: word[0])  # the first that begins at the end or later
    if name == "forbidden" and (offsets[first][0], offsets[after - 1][1]) != (start, end):
        return number, first, first
    return number, first, after
