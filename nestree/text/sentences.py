"""Where sentences begin: what each run tells by itself, what two neighbours tell together, and lines."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from nestree.text.abbreviations import (
    NOT,
    PLAINLY,
    RARELY,
    UNLESS_NUMBERED,
    closed_class,
    enumerates,
    period_after,
)
from nestree.text.words import CLOSERS, MAX_CHUNK, STOP, SYMBOL, WORD_STYLES, split_words
from nestree.types import Span

# How a run begins; LOWER: as no sentence does
LOWER, UPPER, NUMERAL, STARTER, OTHER = range(5)

OPENERS = "\"'“‘([{<`"
CHUNK = re.compile(rf"[^\s{STOP}]++(?:{STOP}++[{re.escape(CLOSERS)}]*+)?+|{STOP}++[{re.escape(CLOSERS)}]*+")
BLANK_TO_BLANK = re.compile(r"\S++")
LONGEST_REMEMBERED = 40  # characters
MOST_REMEMBERED = 2**15  # of a style
FOOTNOTES = re.compile(r"(?:\[\d{1,3}\])++\Z")
NUMERALS = re.compile(r"[A-Z]?\d[\dA-Za-z.-]*|[IVXLC]+")
STARTERS = closed_class(  # words that begin sentences more often than names do
    """a according additionally after all although an and another as at because before both but by despite during each
    every finally first for from furthermore he hence her here his how however i if in instead interestingly it
    its many meanwhile moreover most my nevertheless no not of on one or our she since so some such that the
    their then there therefore these they this those though through thus to under until we what when where which
    while who why with within without yet you your"""
)
ENDS_OF_NAMES = closed_class("Co Corp Inc Jr Ltd Plc Sr")  # Yahoo! Inc. is one name
LONGEST_STARTER = max(map(len, STARTERS)) + 1


class Chunk(NamedTuple):
    """What can be known of a run by itself."""

    length: int
    words: tuple[Span, ...]
    last_words: tuple[Span, ...]  # if it ends a sentence: then a period is less often part of a word
    beginning: int
    plain: bool  # there is none of what follows
    ending: int
    quotes: int  # marks that do not tell whether they open or close
    enumerates: bool
    closes: bool  # a bracket or mark that belongs to what was before


NO_CHUNK = Chunk(0, (), (), OTHER, True, NOT, 0, False, False)


def chunks(shape: str, words: str, sentences: str) -> Iterator[tuple[int, Chunk, bool]]:
    """Each run with its start, and whether a sentence begins with it."""
    by_rules = sentences == "rules"
    starts = line_starts(shape) if by_rules else {end.end(): False for end in LINE_END.finditer(shape)}
    lower_may_begin = by_rules and not re.search("[A-Z]", shape)
    known = CHUNK_CACHE[words]
    ending, quotes, begins = NOT, 0, True
    for match in (BLANK_TO_BLANK if words == "whitespace" else CHUNK).finditer(shape):
        start, run = match.start(), known[match[0]]
        if start in starts:
            begins, quotes = True, 0 if starts[start] else quotes
        elif ending:
            if run.closes or (quotes % 2 and match[0] == '"'):
                quotes += run.quotes
                yield start, run, False
                continue
            begins = sentence_ends(ending, run.beginning, lower_may_begin)
        yield start, run, begins
        if run.plain:
            ending = NOT
        else:
            quotes += run.quotes
            ending = run.ending if by_rules and not (begins and run.enumerates) else NOT
        begins = False


def sentence_ends(ending: int, beginning: int, lower_may_begin: bool) -> bool:
    """Whether a sentence ends between two runs."""
    if beginning == LOWER and not lower_may_begin:
        return False
    if ending == RARELY:
        return beginning == STARTER
    return ending == PLAINLY or (ending == UNLESS_NUMBERED and beginning != NUMERAL)


def looked_at(run: str, style: str) -> Chunk:
    words = split_words(run, style, last=False)
    may_differ = len(run) <= MAX_CHUNK and run.rstrip(CLOSERS).endswith(".")
    ending, quotes, item = ending_of(run), run.count('"'), enumerates(run)
    return Chunk(
        len(run),
        words,
        split_words(run, style, last=True) if may_differ else words,
        beginning_of(run),
        not (ending or quotes or item),
        ending,
        quotes,
        item,
        closes=not run.strip(CLOSERS) and run not in ('"', "“"),
    )


class ChunkCache(dict[str, Chunk]):
    """What was found of runs in one style: most come again and again."""

    def __init__(self, style: str) -> None:
        self.style = style

    def __missing__(self, run: str) -> Chunk:
        found = looked_at(run, self.style)
        if len(run) <= LONGEST_REMEMBERED:
            if len(self) >= MOST_REMEMBERED:
                self.clear()
            self[run] = found
        return found


CHUNK_CACHE = {style: ChunkCache(style) for style in WORD_STYLES}


def ending_of(run: str) -> int:
    core = (FOOTNOTES.sub("", run) if run[-1] == "]" else run).rstrip(CLOSERS)
    if not core.endswith("."):
        return PLAINLY if core.endswith(("!", "?", "…", STOP)) else NOT
    return PLAINLY if core.endswith(("..", "….")) else period_after(core[:-1]).ending


def beginning_of(run: str) -> int:
    bare = run.lstrip(OPENERS)
    first = bare[:1]
    if "a" <= first <= "z":
        return OTHER if run[0] in "([" else LOWER
    if not "A" <= first <= "Z":
        return NUMERAL if first.isdigit() else OTHER
    near = bare[:LONGEST_STARTER]
    word = re.split("[^A-Za-z]", near, maxsplit=1)[0]
    after = bare[len(word) : len(word) + 1]
    if word in ENDS_OF_NAMES and after in ("", ".", ","):
        return LOWER
    if word.lower() in STARTERS and after != ".":
        return STARTER
    return NUMERAL if NUMERALS.fullmatch(near.rstrip(".,;:)")) else UPPER


LINE_END = re.compile(r"[\n\r\v\f\x85\u2028\u2029]\s*+")
PARAGRAPH_END = re.compile(r"[\f\u2029]|(?>\r\n|[\n\r\v\x85\u2028])[^\n\r\v\f\x85\u2028\u2029]*+.", re.DOTALL)
NARROW = 40  # characters: shorter lines do not tell where others would be wrapped
ITEM = re.compile(rf"[-*+{SYMBOL}]\s|\(?\d{{1,3}}[.)]\s")


def line_starts(shape: str) -> dict[int, bool]:
    """Where sentences begin whatever was before; True: after a blank line, False: no wrapping explains the line."""
    starts: dict[int, bool] = {}
    lines: list[Span] = []
    at = 0
    for gap in LINE_END.finditer(shape):
        lines.append((at, gap.start()))
        at = gap.end()
        if PARAGRAPH_END.match(gap[0]):
            starts.update(dict.fromkeys(unwrap_lines(shape, lines), False))
            starts[at] = True
            lines = []
    starts.update(dict.fromkeys(unwrap_lines(shape, [*lines, (at, len(shape))]), False))
    return starts


def unwrap_lines(shape: str, lines: list[Span]) -> Iterator[int]:
    """Lines of a paragraph that begin for a reason: an item of a list, or a word that had room on the line before."""
    width = max(end - start for start, end in lines)
    for (before, end), (start, _) in pairwise(lines):
        goes_on = shape[before:end].rstrip().endswith((",", ";"))  # however it was wrapped
        room = width - (end - before) - 1 if width >= NARROW and not goes_on else 0
        word = CHUNK.match(shape, start) if room > 0 else None
        if ITEM.match(shape, start) or (word and len(word[0]) <= room and beginning_of(word[0]) != LOWER):
            yield start
