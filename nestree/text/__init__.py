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
    sentences       `split`: where sentences begin; `detect_word_style`

Time is linear in the length of the text, whatever is in it: patterns are possessive (`++`, `*+`), and a chunk longer
than words.MAX_CHUNK is cut at its punctuation only, except for base64, which is one word.
"""

from nestree.text.sentences import (
    SENTENCE_RULES,
    SentenceSplit,
    detect_word_style,
    split,
    split_at_boundaries,
)
from nestree.text.words import WORD_STYLES

__all__ = [
    "SENTENCE_RULES",
    "WORD_STYLES",
    "SentenceSplit",
    "detect_word_style",
    "split",
    "split_at_boundaries",
]
