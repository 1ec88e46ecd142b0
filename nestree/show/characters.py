"""Characters that need care wherever text is drawn: those that steer, those that cannot be written, directions."""

import re
import unicodedata

# All control characters but the ends of lines and tabs, and halves of surrogate pairs.
UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
STRAY = "\N{REPLACEMENT CHARACTER}"


def visible(text: str) -> str:
    """As long as the text, without what could steer a terminal or cannot be written as UTF-8.

    >>> visible("a\\x00b")
    'a�b'
    """
    return UNSEEN.sub(STRAY, text)


def on_one_line(text: str) -> str:
    """For words and labels, which stand alone: without ends of lines, too, and without what turns what comes after."""
    return re.sub("[\t\n\r\u2028\u2029]", STRAY, unturned(visible(text)))


def unturned(text: str) -> str:
    """Without the characters that give directions to others, and might give them to what is not part of the text."""
    return re.sub("[\u202a-\u202e\u2066-\u2069]", STRAY, text)


def direction(text: str, otherwise: str = "ltr") -> str:
    """`ltr` or `rtl`, left to right or right to left: its first letter tells.

    >>> direction("... שלום, world"), direction("hello שלום"), direction("1.2", "rtl")
    ('rtl', 'ltr', 'rtl')
    """
    for character in text:
        kind = unicodedata.bidirectional(character)
        if kind in ("L", "R", "AL"):
            return "ltr" if kind == "L" else "rtl"
    return otherwise
