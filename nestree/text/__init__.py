"""Text -> sentences and words with character offsets. Nothing is ever lost or altered.

Every character that is not white space belongs to exactly one word, and every word to exactly one sentence; a
word never contains white space. The rules are those of English, and accept any Unicode: combining marks stay with their
character, emoji are whole, and in scripts without blanks between words each character is a word.

>>> text = "Mr. Li doesn't re-open the U.S.-led plant. He left!"
>>> [[text[i:j] for i, j in sentence.words] for sentence in split(text)]
[['Mr.', 'Li', 'does', "n't", 're-open', 'the', 'U.S.-led', 'plant', '.'], ['He', 'left', '!']]

Text is read in chunks, which stand between white space, and by character classes: each character beyond ASCII is
replaced by one that behaves the same, so that rules need few characters and offsets stay the same. What a chunk tells
by itself is cached; what is left is to find where sentences end.

    words           character classes; the words of a chunk; whether a period belongs to a word or ends a sentence
    sentences       where sentences begin

Time is linear in the length of the text, whatever is in it: patterns are possessive (`++`, `*+`), and a chunk longer
than words.MAX_CHUNK is cut at its punctuation only, except for base64, which is one word.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from nestree.errors import InputError
from nestree.text.sentences import NO_CHUNK, chunks
from nestree.text.words import CHAR_CLASSES, WORD_STYLES
from nestree.types import Span

__all__ = ["SENTENCE_RULES", "WORD_STYLES", "SentenceSplit", "split", "split_at_boundaries"]

SENTENCE_RULES = ("rules", "lines")


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
