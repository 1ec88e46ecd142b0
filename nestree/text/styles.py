"""Which word style was a data set split with? Of those that leave its words whole, the one that splits most."""

from collections import Counter
from collections.abc import Iterable, Sequence

from nestree.text.words import WORD_STYLES

FINEST_FIRST = ("split-hyphens", "ud", "treebank")
# Of the words, by any style; where blanks alone were borders, it is a tenth of English texts and more.
MOST_BROKEN = 0.03
MORE_BROKEN = 0.005  # of the words, by a finer style than by the one that breaks fewest
ENOUGH = 50_000  # words are looked at


def style_of(sentences: Iterable[Sequence[str]]) -> str:
    """The style of sentences of words.

    >>> style_of([["a", "well", "-", "known", "man", "does", "n't"]])
    'ud'
    >>> style_of([["a", "well-known", "man", "does", "n't"]])
    'treebank'
    >>> style_of([["a", "well-known", "man,", "isn't", "he?"]])
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
