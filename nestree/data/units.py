"""Offsets that count something else than characters, as some annotation tools do.

JavaScript counts UTF-16 units, of which 😀 has two; some interfaces count graphemes, what a reader sees as one
character: a letter with its marks, a flag, a family.

>>> text = "😀 Rome"
>>> [in_characters(text, "utf-16")(offset) for offset in (3, 7)]
[2, 6]
"""

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

from nestree.errors import InputError

UNITS = ("characters", "utf-16", "graphemes")
UNSURE = "offsets in a text with emoji taken as characters: some tools count UTF-16 units"  # to be counted


def in_characters(text: str, unit: str) -> Callable[[int], int]:
    """A function from offsets that count this unit to offsets that count characters.

    What lies before or after the text stays so.
    """
    if unit not in UNITS:
        raise InputError(f"offsets cannot count {unit!r}. Choose one of {', '.join(UNITS)}.")
    if unit == "utf-16" and has_pairs(text):
        before = list(accumulate((1 + (c > "\uffff") for c in text), initial=0))
        return lambda offset: bisect_right(before, offset) - 1 + max(0, offset - before[-1])
    if unit == "graphemes" and not (text.isascii() and "\r\n" not in text):
        import regex

        starts = [found.start() for found in regex.finditer(r"\X", text)] + [len(text)]
        return lambda offset: (
            starts[offset] if 0 <= offset < len(starts) else offset + len(text) * (offset > 0)
        )
    return lambda offset: offset


def has_pairs(text: str) -> bool:
    """Are there characters that are two units of UTF-16?"""
    return not text.isascii() and max(text) > "\uffff"
