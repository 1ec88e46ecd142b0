"""Trouble with characters: text decoded wrongly, characters that were lost, that cannot be seen, or that mix forms.

>>> list(trouble("the cafÃ© at the lake"))
[('mojibake', 'cafÃ© (should be café)')]
>>> list(trouble("caf\\ufffd"))
[('replacement', "'caf\\\\ufffd' has U+FFFD")]
>>> is_composed("café"), is_composed("cafe\\u0301"), is_composed("cafe")
(True, False, None)
"""

import re
import unicodedata
from collections.abc import Iterator

WORD = re.compile(r"[^ \t\r\n]+")
# Controls but for tab, line ends and NEL; soft hyphen, zero-width space, word joiner, byte order mark.
UNSEEN = re.compile("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff]")
# What bytes 0x80 to 0xBF are read as: the same numbers in Latin-1, other characters in Windows-1252.
BYTES = {bytes([k]).decode("cp1252", errors="ignore"): k for k in range(0x80, 0xC0)} | {
    chr(k): k for k in range(0x80, 0xC0)
}
FOLLOWING = "".join(BYTES)
# UTF-8 in two or three bytes, read as one of these.
MOJIBAKE = re.compile(f"[ÂÃ][{FOLLOWING}]|â[{FOLLOWING}]{{2}}")
CLOSING = "’”…–—›»"


def trouble(text: str) -> Iterator[tuple[str, str]]:
    """What is wrong with the characters of a text: the kind, and the word that shows it."""
    if text.isascii() and text.isprintable():
        return
    for match in WORD.finditer(text):
        word = match[0]
        if "\ufffd" in word:
            yield "replacement", f"{shown(word)} has U+FFFD"
        if unseen := UNSEEN.search(word):
            yield "control", f"{shown(word)} has U+{ord(unseen[0]):04X}"
        if (mended := MOJIBAKE.sub(decoded_again, word)) != word:
            yield "mojibake", f"{word} (should be {mended})"


def shown(word: str) -> str:
    return ascii(word) if len(word) <= 40 else ascii(word[:37]) + "..."


def decoded_again(match: re.Match[str]) -> str:
    """What was UTF-8 and read as something else, as it was; a word in capitals before a quotation mark stays."""
    found, before = match[0], match.string[: match.start()]
    if before[-1:].isupper() and found[-1] in CLOSING and match.end() == len(match.string):
        return found
    data = bytes(BYTES.get(character, ord(character)) for character in found)
    return data.decode("utf-8", errors="replace")


def is_composed(word: str) -> bool | None:
    """Is it in Unicode's normal form C? None: it is the same in every form."""
    if word.isascii():
        return None
    if unicodedata.normalize("NFC", word) != word:
        return False
    return True if unicodedata.normalize("NFD", word) != word else None
