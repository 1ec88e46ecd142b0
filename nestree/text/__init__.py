"""Sentences and words of plain text, each with its exact place in it. Nothing is ever lost or altered.

Every character that is not white space belongs to exactly one word, and every word to exactly one sentence; a
word never contains white space. The rules are those of English, and bear any Unicode: marks stay with what they
mark, emoji are whole, and where a script puts no blanks between words each character is a word.

>>> text = "Mr. Li doesn't re-open the U.S.-led plant. He left!"
>>> [[text[i:j] for i, j in sentence.words] for sentence in split(text)]
[['Mr.', 'Li', 'does', "n't", 're-open', 'the', 'U.S.-led', 'plant', '.'], ['He', 'left', '!']]

Text is read in runs, which are what stands between white space, and through stand-ins: each character beyond
ASCII is replaced by one that behaves alike, so that rules are written for few characters and places stay the
same. All that a run alone can tell is remembered; what is left to find is where sentences end.

    stand_ins   one character for all that behave alike
    periods     abbreviations: is a period part of a word, may it end a sentence
    words       the words of a run
    sentences   where sentences begin

Time grows with the length of the text, whatever is in it: patterns never give back what they have taken (`++`,
`*+`), and a run longer than words.LONGEST_RUN is cut at its punctuation, by no other rule, but for what looks like
a file written as text (base64), which is one word.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nestree.errors import InputError
from nestree.text.sentences import NO_CHUNK, chunks
from nestree.text.words import CHAR_CLASSES, WORD_STYLES
from nestree.types import Span

__all__ = ["SENTENCE_RULES", "WORD_STYLES", "SentenceSplit", "split"]

SENTENCE_RULES = ("rules", "lines")


class SentenceSplit(NamedTuple):
    """A sentence of a text and its words: all numbers are characters of the whole text."""

    start: int
    end: int
    words: list[Span]


def split(
    text: str, words: str = "treebank", sentences: str = "rules", keep: Iterable[Span] = ()
) -> list[SentenceSplit]:
    """The sentences of a text; no border between two of them falls inside one of the spans to `keep`.

    Word styles:
        treebank        do n't, Ann 's, can not; abbreviations keep their period, hyphens join
        ud              the same, and hyphens separate, but for prefixes: well - known, non-profit
        split-hyphens   letters and digits together, every other character by itself: IL - 2, 1 , 5
        whitespace      what stands between white space
    Sentences:
        rules           end at . ! ? and the like, at blank lines, and at line ends that no wrapping explains
        lines           one a line
    """
    if words not in WORD_STYLES:
        raise InputError(f"no word style is called {words!r}. There are: {', '.join(WORD_STYLES)}.")
    if sentences not in SENTENCE_RULES:
        raise InputError(f"no sentence rule is called {sentences!r}. There are: {', '.join(SENTENCE_RULES)}.")
    shape = text if text.isascii() else text.translate(CHAR_CLASSES)
    kept = Kept(keep)
    found: list[SentenceSplit] = []
    places: list[Span] = []
    last, at = NO_CHUNK, 0
    for start, run, begins in chunks(shape, words, sentences):
        if begins and not kept.hold(at + last.length, start):
            places += [(at + i, at + j) for i, j in last.last_words]
            if places:
                found.append(SentenceSplit(places[0][0], places[-1][1], places))
            places = []
        elif len(last.words) == 1:
            places.append((at, at + last.length))
        else:
            places += [(at + i, at + j) for i, j in last.words]
        last, at = run, start
    places += [(at + i, at + j) for i, j in last.last_words]
    if places:
        found.append(SentenceSplit(places[0][0], places[-1][1], places))
    return found


class Kept:
    """Spans to keep whole, asked in the order of the text whether one of them holds both sides of a gap."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.ahead = sorted(spans, reverse=True)
        self.end = 0  # of those that begin before the gap, the furthest

    def hold(self, gap_start: int, gap_end: int) -> bool:
        while self.ahead and self.ahead[-1][0] < gap_start:
            self.end = max(self.end, self.ahead.pop()[1])
        return self.end > gap_end


FINEST_FIRST = ("split-hyphens", "ud", "treebank")
# Of the words, by any style; where blanks alone were borders, it is a tenth of English texts and more.
MOST_BROKEN = 0.03
MORE_BROKEN = 0.005  # of the words, by a finer style than by the one that breaks fewest
ENOUGH = 50_000  # words are looked at


def detect_word_style(sentences: Iterable[Sequence[str]]) -> str:
    """The style of sentences of words.

    >>> detect_word_style([["a", "well", "-", "known", "man", "does", "n't"]])
    'ud'
    >>> detect_word_style([["a", "well-known", "man", "does", "n't"]])
    'treebank'
    >>> detect_word_style([["a", "well-known", "man,", "isn't", "he?"]])
    'whitespace'
    """
    assert {*FINEST_FIRST, "whitespace"} == set(WORD_STYLES)
    from nestree.text import split

    words: list[str] = []
    for sentence in sentences:
        words += sentence
        if len(words) >= ENOUGH:
            break
    apart = "-" in words  # else hyphens may just be rare: no sign of the two styles that separate them
    styles = FINEST_FIRST if apart else FINEST_FIRST[2:]
    counts = Counter(word for word in words if word.split() == [word])
    broken = {
        style: sum(count for word, count in counts.items() if len(split(word, style, "lines")[0].words) != 1)
        for style in styles
    }
    least = min(broken.values())  # a few words that no style knows say nothing
    if least > MOST_BROKEN * len(words):
        return "whitespace"
    return next(style for style in styles if broken[style] - least <= MORE_BROKEN * len(words))
