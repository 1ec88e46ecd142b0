"""What a user knows of a text, in characters -> what is known of its sentences, in words."""

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


def as_known(given: Sequence[Any]) -> KnownText:
    """(start, end), (start, end, label) or (start, end, label, head)."""
    start, end, label, head = fields(given, "known", 4)
    if isinstance(head, int) and not isinstance(head, bool):
        head = (head, head + 1)
    if head is not None and not is_span(head):
        raise InputError(f"the head of known {given!r} must be a place in the text, or (start, end).")
    return KnownText(start, end, label, head if head is None else tuple(head))


def as_forbidden(given: Sequence[Any]) -> ForbiddenText:
    """(start, end) or (start, end, label)."""
    return ForbiddenText(*fields(given, "forbidden", 3))


def fields(given: Sequence[Any], name: str, most: int) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not 2 <= len(given) <= most:
        last = "(start, end, label, head)" if most == 4 else "(start, end, label)"
        raise InputError(f"{name} {given!r:.60} must be (start, end), and may go on as {last}.")
    found = [*given, *[None] * (most - len(given))]
    if not is_span(found[:2]):
        raise InputError(f"{name} {given!r:.60} must begin with two places in the text, the second greater.")
    if not (found[2] is None or isinstance(found[2], str)):
        raise InputError(f"the label of {name} {given!r:.60} must be a string or None.")
    return found


def is_span(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == 2
        and all(isinstance(place, int) and not isinstance(place, bool) for place in value)
        and 0 <= value[0] < value[1]
    )


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
    check_together(known, forbidden)
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
        told.setdefault(number, ([], []))[0].append(Known(i, j, each.label, head))
    for bad in forbidden:
        number, i, j = place(document, starts, bad.start, bad.end, "forbidden")
        if i < j:
            told.setdefault(number, ([], []))[1].append(Forbidden(i, j, bad.label))
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


def check_together(known: Sequence[KnownText], forbidden: Sequence[ForbiddenText]) -> None:
    """Said here, where places are still those that the user gave."""
    around: list[KnownText] = []  # those that are open, the innermost last
    for each in sorted(known, key=lambda each: (each.start, -each.end)):
        while around and around[-1].end <= each.start:
            around.pop()
        if around and around[-1].end < each.end:
            (start, end, *_), others = around[-1], (each.start, each.end)
            raise InputError(
                f"known {(start, end)} and {others} cross, and no tree holds both. Leave one of them out."
            )
        around.append(each)
    heads: dict[Span, Span] = {}
    for each in known:
        span = (each.start, each.end)
        if each.head is not None and heads.setdefault(span, each.head) != each.head:
            raise InputError(
                f"known {span} has two heads, {heads[span]} and {each.head}. Leave one of them out."
            )
    without_label = {(bad.start, bad.end) for bad in forbidden if bad.label is None}
    for each in known:
        if (each.start, each.end) in without_label:
            raise InputError(
                f"({each.start}, {each.end}) is both known and forbidden. Leave out one of the two."
            )


def place(document: Document, starts: Sequence[int], start: int, end: int, name: str) -> tuple[int, int, int]:
    """The sentence and the words at these characters; white space at either end does not count."""
    text = document.text or ""
    if end > len(text):
        raise InputError(f"{name} ({start}, {end}) ends after the text, which has {len(text)} characters.")
    piece = text[start:end]
    if not piece.strip():
        raise InputError(f"{name} ({start}, {end}) has no characters but white space: {piece!r:.40}.")
    start, end = start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())
    number = bisect_right(starts, start) - 1
    sentence = document.sentences[number]
    offsets = sentence.offsets or ()
    start, end = start - sentence.start, end - sentence.start
    first = bisect_right(offsets, start, key=lambda word: word[1])  # the first word that ends after the start
    after = bisect_left(offsets, end, key=lambda word: word[0])  # the first that begins at the end or later
    if name == "forbidden" and (offsets[first][0], offsets[after - 1][1]) != (start, end):
        return number, first, first
    return number, first, after
