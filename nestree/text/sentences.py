"""Text -> sentences: where they begin, from each chunk by itself, from two neighbours together, and from lines."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from nestree.errors import InputError
from nestree.text.words import (
    CHAR_CLASSES,
    CLOSERS,
    MAX_CHUNK,
    NOT,
    PLAINLY,
    RARELY,
    STOP,
    SYMBOL,
    UNLESS_NUMBERED,
    WORD_STYLES,
    closed_class,
    is_item_number,
    period_after,
    split_words,
)
from nestree.types import Span

SENTENCE_RULES = ("rules", "lines")

# How a chunk begins; LOWER: as no sentence does
LOWER, UPPER, NUMERAL, STARTER, OTHER = range(5)

OPENERS = "\"'“‘([{<`"
CHUNK = re.compile(rf"[^\s{STOP}]++(?:{STOP}++[{re.escape(CLOSERS)}]*+)?+|{STOP}++[{re.escape(CLOSERS)}]*+")
BLANK_TO_BLANK = re.compile(r"\S++")
MAX_CACHED_LENGTH = 40  # characters
MAX_CACHED = 2**15  # chunks of a style
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
    """What a chunk tells by itself."""

    length: int
    words: tuple[Span, ...]
    last_words: tuple[Span, ...]  # at the end of a sentence, where a period is less often part of a word
    beginning: int
    plain: bool  # all that follows is false or zero
    ending: int
    quotes: int  # quotation marks that may open or close
    is_item_number: bool
    closes: bool  # only brackets and quotation marks that belong to the chunk before


NO_CHUNK = Chunk(0, (), (), OTHER, True, NOT, 0, False, False)


class SentenceSplit(NamedTuple):
    """A sentence and its words, in characters of the whole text."""

    start: int
    end: int
    words: list[Span]


def split(
    text: str, words: str = "treebank", sentences: str = "rules", keep: Iterable[Span] = ()
) -> list[SentenceSplit]:
    """The sentences of a text; no sentence ends inside one of the spans to `keep`.

    Word styles:
        treebank        do n't, Ann 's, can not; abbreviations keep their period, hyphens join
        ud              the same, but hyphens separate, except after prefixes: well - known, non-profit
        split-hyphens   letters and digits together, every other character by itself: IL - 2, 1 , 5
        whitespace      what stands between white space
    Sentences:
        rules           end at . ! ? and the like, at blank lines, and at line ends that wrapping does not explain
        lines           one per line
    """
    if words not in WORD_STYLES:
        raise InputError(f"no word style is called {words!r}. There are: {', '.join(WORD_STYLES)}.")
    if sentences not in SENTENCE_RULES:
        raise InputError(f"no sentence rule is called {sentences!r}. There are: {', '.join(SENTENCE_RULES)}.")
    classes = text if text.isascii() else text.translate(CHAR_CLASSES)
    kept = sorted(keep, reverse=True)
    kept_end = 0  # the furthest end of the spans to keep that begin before the current chunk
    result: list[SentenceSplit] = []
    spans: list[Span] = []  # of the words of the current sentence
    previous, offset = NO_CHUNK, 0
    for start, chunk, begins in chunks(classes, words, sentences):
        if begins:
            while kept and kept[-1][0] < offset + previous.length:
                kept_end = max(kept_end, kept.pop()[1])
            begins = kept_end <= start
        if begins:
            spans += [(offset + i, offset + j) for i, j in previous.last_words]
            if spans:
                result.append(SentenceSplit(spans[0][0], spans[-1][1], spans))
            spans = []
        elif len(previous.words) == 1:
            spans.append((offset, offset + previous.length))
        else:
            spans += [(offset + i, offset + j) for i, j in previous.words]
        previous, offset = chunk, start
    spans += [(offset + i, offset + j) for i, j in previous.last_words]
    if spans:
        result.append(SentenceSplit(spans[0][0], spans[-1][1], spans))
    return result


def split_at_boundaries(words: Sequence[Span], keep: Iterable[Span]) -> list[Span]:
    """The words, split where one of the spans to keep begins or ends.

    >>> split_at_boundaries([(0, 3), (4, 11)], [(4, 9)])
    [(0, 3), (4, 9), (9, 11)]
    """
    boundaries = sorted({boundary for span in keep for boundary in span})
    result: list[Span] = []
    for i, j in words:
        inner = boundaries[bisect_right(boundaries, i) : bisect_left(boundaries, j)]
        result += pairwise([i, *inner, j])
    return result


def chunks(classes: str, words: str, sentences: str) -> Iterator[tuple[int, Chunk, bool]]:
    """Yield the start of each chunk, the chunk, and whether a sentence begins with it."""
    by_rules = sentences == "rules"
    starts = line_starts(classes) if by_rules else {end.end(): False for end in LINE_END.finditer(classes)}
    lower_may_begin = by_rules and not re.search("[A-Z]", classes)
    cache = CHUNK_CACHE[words]
    ending, quotes, begins = NOT, 0, True
    for match in (BLANK_TO_BLANK if words == "whitespace" else CHUNK).finditer(classes):
        start, chunk = match.start(), cache[match[0]]
        if start in starts:
            begins, quotes = True, 0 if starts[start] else quotes
        elif ending:
            if chunk.closes or (quotes % 2 and match[0] == '"'):
                quotes += chunk.quotes
                yield start, chunk, False
                continue
            begins = sentence_ends(ending, chunk.beginning, lower_may_begin)
        yield start, chunk, begins
        if chunk.plain:
            ending = NOT
        else:
            quotes += chunk.quotes
            ending = chunk.ending if by_rules and not (begins and chunk.is_item_number) else NOT
        begins = False


def sentence_ends(ending: int, beginning: int, lower_may_begin: bool) -> bool:
    """Whether a sentence ends between two chunks."""
    if beginning == LOWER and not lower_may_begin:
        return False
    if ending == RARELY:
        return beginning == STARTER
    return ending == PLAINLY or (ending == UNLESS_NUMBERED and beginning != NUMERAL)


class ChunkCache(dict[str, Chunk]):
    """Chunks of one word style; most of them recur."""

    def __init__(self, style: str) -> None:
        self.style = style

    def __missing__(self, text: str) -> Chunk:
        chunk = analyze_chunk(text, self.style)
        if len(text) <= MAX_CACHED_LENGTH:
            if len(self) >= MAX_CACHED:
                self.clear()
            self[text] = chunk
        return chunk


CHUNK_CACHE = {style: ChunkCache(style) for style in WORD_STYLES}


def analyze_chunk(text: str, style: str) -> Chunk:
    words = last_words = split_words(text, style, last=False)
    if len(text) <= MAX_CHUNK and text.rstrip(CLOSERS).endswith("."):
        last_words = split_words(text, style, last=True)
    ending, quotes, item_number = classify_ending(text), text.count('"'), is_item_number(text)
    plain = not (ending or quotes or item_number)
    closes = not text.strip(CLOSERS) and text not in ('"', "“")
    beginning = classify_beginning(text)
    return Chunk(len(text), words, last_words, beginning, plain, ending, quotes, item_number, closes)


def classify_ending(text: str) -> int:
    core = (FOOTNOTES.sub("", text) if text[-1] == "]" else text).rstrip(CLOSERS)
    if not core.endswith("."):
        return PLAINLY if core.endswith(("!", "?", "…", STOP)) else NOT
    return PLAINLY if core.endswith(("..", "….")) else period_after(core[:-1]).ending


def classify_beginning(text: str) -> int:
    bare = text.lstrip(OPENERS)
    first = bare[:1]
    if "a" <= first <= "z":
        return OTHER if text[0] in "([" else LOWER
    if not "A" <= first <= "Z":
        return NUMERAL if first.isdigit() else OTHER
    prefix = bare[:LONGEST_STARTER]
    word = re.split("[^A-Za-z]", prefix, maxsplit=1)[0]
    following = bare[len(word) : len(word) + 1]
    if word in ENDS_OF_NAMES and following in ("", ".", ","):
        return LOWER
    if word.lower() in STARTERS and following != ".":
        return STARTER
    return NUMERAL if NUMERALS.fullmatch(prefix.rstrip(".,;:)")) else UPPER


LINE_END = re.compile(r"[\n\r\v\f\x85\u2028\u2029]\s*+")
PARAGRAPH_END = re.compile(r"[\f\u2029]|(?>\r\n|[\n\r\v\x85\u2028])[^\n\r\v\f\x85\u2028\u2029]*+.", re.DOTALL)
MIN_WRAP_WIDTH = 40  # characters: shorter lines do not tell where others would be wrapped
ITEM = re.compile(rf"[-*+{SYMBOL}]\s|\(?\d{{1,3}}[.)]\s")


def line_starts(char_classes: str) -> dict[int, bool]:
    """Where sentences begin because of lines: True after a blank line, False if wrapping does not explain the line."""
    starts: dict[int, bool] = {}
    lines: list[Span] = []
    start = 0
    for line_end in LINE_END.finditer(char_classes):
        lines.append((start, line_end.start()))
        start = line_end.end()
        if PARAGRAPH_END.match(line_end[0]):
            starts.update(dict.fromkeys(unwrap_lines(char_classes, lines), False))
            starts[start] = True
            lines = []
    starts.update(dict.fromkeys(unwrap_lines(char_classes, [*lines, (start, len(char_classes))]), False))
    return starts


def unwrap_lines(char_classes: str, lines: list[Span]) -> Iterator[int]:
    """Yield the starts of lines that wrapping does not explain: list items, words that fit on the line before."""
    width = max(end - start for start, end in lines)
    for (before, end), (start, _) in pairwise(lines):
        continues = char_classes[before:end].rstrip().endswith((",", ";"))  # however it was wrapped
        room = width - (end - before) - 1 if width >= MIN_WRAP_WIDTH and not continues else 0
        word = CHUNK.match(char_classes, start) if room > 0 else None
        if ITEM.match(char_classes, start) or (
            word and len(word[0]) <= room and classify_beginning(word[0]) != LOWER
        ):
            yield start


FINEST_FIRST = ("split-hyphens", "ud", "treebank")
MAX_SPLIT = 0.03  # of the words, by the best style; English split at blanks alone has a tenth and more
MAX_EXTRA_SPLIT = 0.005  # of the words, by a finer style than the best
SAMPLE_WORDS = 50_000


def detect_word_style(sentences: Iterable[Sequence[str]]) -> str:
    """The finest style that splits (almost) none of these words any further.

    >>> detect_word_style([["a", "well", "-", "known", "man", "does", "n't"]])
    'ud'
    >>> detect_word_style([["a", "well-known", "man", "does", "n't"]])
    'treebank'
    >>> detect_word_style([["a", "well-known", "man,", "isn't", "he?"]])
    'whitespace'
    """
    words: list[str] = []
    for sentence in sentences:
        words += sentence
        if len(words) >= SAMPLE_WORDS:
            break
    # Without a single hyphen, hyphens may just be rare, which is no sign of the styles that separate them.
    styles = FINEST_FIRST if "-" in words else FINEST_FIRST[2:]
    counts = Counter(word for word in words if word.split() == [word])
    split_words = {
        style: sum(count for word, count in counts.items() if len(split(word, style, "lines")[0].words) != 1)
        for style in styles
    }
    fewest = min(split_words.values())  # words that no style leaves whole say nothing
    if fewest > MAX_SPLIT * len(words):
        return "whitespace"
    return next(style for style in styles if split_words[style] - fewest <= MAX_EXTRA_SPLIT * len(words))
