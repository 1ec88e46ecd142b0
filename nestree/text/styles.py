"""Which word style was a data set split with? Of those that leave its words whole, the one that splits most."""

from collections.abc import Iterable, Sequence

from nestree.text.words import WORD_STYLES

FINEST_FIRST = ("split-hyphens", "ud", "treebank", "whitespace")
LEFT_WHOLE = 0.995  # of the words, at least
ENOUGH = 50_000  # words are looked at


def style_of(sentences: Iterable[Sequence[str]]) -> str:
    """The style of sentences of words.

    >>> style_of([["a", "well", "-", "known", "man", "does", "n't"]])
    'ud'
    >>> style_of([["a", "well-known", "man", "does", "n't"]])
    'treebank'
    """
    assert set(FINEST_FIRST) == set(WORD_STYLES)
    from nestree.text import split

    words: list[str] = []
    for sentence in sentences:
        words += sentence
        if len(words) >= ENOUGH:
            break
    apart = "-" in words  # else hyphens may just be rare: no sign of the two styles that separate them
    for style in FINEST_FIRST if apart else FINEST_FIRST[2:]:
        whole = sum(
            len(split(word, style, "lines")[0].words) == 1 for word in words if word.split() == [word]
        )
        if whole >= LEFT_WHOLE * len(words):
            return style
    return "whitespace"
