"""Sentences and words of plain text, each with its exact place in it. Nothing is ever lost or altered.

Every character that is not white space belongs to exactly one word, every word to exactly one sentence, and a
word never contains white space.

>>> text = "Mr. Li doesn't stay. He left!"
>>> [[text[i:j] for i, j in sentence.words] for sentence in split(text)]
[['Mr.', 'Li', 'does', "n't", 'stay', '.'], ['He', 'left', '!']]
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nestree.errors import InputError

WORD_STYLES = ("treebank", "ud", "split-hyphens", "whitespace")
SENTENCE_RULES = ("rules", "lines")

Span = tuple[int, int]

ABBREVIATIONS = frozenset(
    [
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "st",
        "jr",
        "sr",
        "vs",
        "etc",
        "inc",
        "ltd",
        "co",
        "corp",
        "no",
        "fig",
        "e.g",
        "i.e",
        "cf",
        "al",
    ]
)

CHUNK = re.compile(r"\S+")
LINE = re.compile(r"[^\n]+")
PARAGRAPH_BREAK = re.compile(r"\n[^\S\n]*\n")
END = re.compile(r"[.!?…。！？][.!?…。！？\"')\]}”’»]*(?=\s)")
PIECE = re.compile(
    r"(?P<abbreviation>(?:[^\W\d_]\.){2,})"
    r"|(?P<clitic>n['’]t\b|['’](?:s|re|ve|ll|d|m)\b)"
    r"|(?P<word>\w+?(?=n['’]t\b)|\w(?:\w|(?<=\d)[.,](?=\d)|-(?=\w))*)"
    r"|(?P<dots>\.{2,}|-{2,})"
    r"|(?P<other>[^\w\s])",
    re.IGNORECASE,
)


class SentenceSplit(NamedTuple):
    """A sentence of a text and its words: all numbers are characters of the whole text."""

    start: int
    end: int
    words: list[Span]


def split(
    text: str, words: str = "treebank", sentences: str = "rules", keep: Iterable[Span] = ()
) -> list[SentenceSplit]:
    """The sentences of a text; no border between two of them falls inside one of the spans to `keep`."""
    if words not in WORD_STYLES:
        raise InputError(f"no word style is called {words!r}. There are: {', '.join(WORD_STYLES)}.")
    if sentences not in SENTENCE_RULES:
        raise InputError(f"no sentence rule is called {sentences!r}. There are: {', '.join(SENTENCE_RULES)}.")
    borders = sentence_borders(text) if sentences == "rules" else [m.end() for m in LINE.finditer(text)]
    kept = joined(keep)
    starts = [start for start, _ in kept]
    found: list[SentenceSplit] = []
    first = 0
    for border in [*borders, len(text)]:
        k = bisect_right(starts, border - 1) - 1
        if border < len(text) and k >= 0 and border < kept[k][1]:
            continue
        spans = list(words_within(text, first, border, words))
        if spans:
            found.append(SentenceSplit(spans[0][0], spans[-1][1], spans))
        first = border
    return found


def joined(spans: Iterable[Span]) -> list[Span]:
    """Spans that overlap, made one."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def sentence_borders(text: str) -> list[int]:
    found = {m.end() for m in PARAGRAPH_BREAK.finditer(text)}
    for match in END.finditer(text):
        before = text[max(0, match.start() - 12) : match.start()].split()
        last = before[-1].lower() if before else ""
        if match[0] == "." and (last in ABBREVIATIONS or len(last) == 1):
            continue
        following = text[match.end() : match.end() + 20].lstrip()
        if not following[:1].islower():
            found.add(match.end())
    return sorted(found)


def words_within(text: str, start: int, end: int, style: str) -> Iterator[Span]:
    for chunk in CHUNK.finditer(text, start, end):
        if style == "whitespace":
            yield chunk.span()
            continue
        i, j = chunk.span()
        if chunk[0][-1:] == "." and chunk[0][:-1].lower() in ABBREVIATIONS:
            yield i, j
            continue
        for match in PIECE.finditer(text, i, j):
            k = match.start()
            if style != "treebank" and match.lastgroup == "word" and "-" in match[0]:
                for part in re.finditer("-|[^-]+", match[0]):
                    yield k + part.start(), k + part.end()
            else:
                yield match.span()
