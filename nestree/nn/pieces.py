"""Words -> pieces of an encoder's vocabulary, in windows that it can read, and which pieces make which word.

A sentence is read in one window if it fits, and else in several that overlap by about half: each word is
taken from the window in which it is most central, so no word is ever dropped.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from nestree.errors import ModelError
from nestree.sentence import Sentence

LONGEST_WORD = 1_000  # characters of a word that are looked at
KEPT = 30_000  # sentences whose pieces are remembered: some 60 MB


class Pieces(NamedTuple):
    """One sentence as an encoder reads it. The cells say: this piece has this weight in that position."""

    windows: tuple[np.ndarray, ...]  # ids of each window, special pieces included
    position: np.ndarray  # [cells] 0: BOS, w + 1: word w, n + 1: EOS
    window: np.ndarray  # [cells]
    place: np.ndarray  # [cells] of the piece in its window
    weight: np.ndarray  # [cells] the weights of a position sum to 1


class Splitter:
    """Splits words into pieces. What it has split once, it remembers."""

    def __init__(self, tokenizer: Any, longest: int):
        if not getattr(tokenizer, "is_fast", False):
            raise ModelError(
                f"the tokenizer {type(tokenizer).__name__} of this encoder is slow and does not say which piece "
                "belongs to which word; choose an encoder with a fast tokenizer (a file tokenizer.json)."
            )
        self.backend: Tokenizer = tokenizer.backend_tokenizer
        self.pad = first_of(tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        self.unknown = first_of(tokenizer.unk_token_id, tokenizer.mask_token_id, self.pad)
        # Byte-level vocabularies know a word by the blank before it.
        self.before = " " if "ByteLevel" in str(self.backend.pre_tokenizer) else ""
        self.first, self.last = special_pieces(self.backend)
        self.room = longest - len(self.first) - len(self.last)  # for the pieces of words, in a window
        if self.room < 1:
            raise ModelError(f"the encoder reads {longest} pieces at most, which leaves no room for words.")
        self.kept: dict[tuple[str, ...], Pieces] = {}

    def __call__(self, sentences: Sequence[Sentence]) -> list[Pieces]:
        new = list({s.words: None for s in sentences if s.words not in self.kept})
        if len(self.kept) + len(new) > KEPT:
            self.kept.clear()
            new = list({s.words: None for s in sentences})
        if new:
            self.backend.no_truncation()
            self.backend.no_padding()
            given = [[self.before + readable(word) for word in words] for words in new]
            encodings = self.backend.encode_batch(given, is_pretokenized=True, add_special_tokens=False)
            for words, encoding in zip(new, encodings, strict=True):
                easy = self.in_one_window(encoding.ids, encoding.word_ids, len(words))
                self.kept[words] = easy or self.arranged(by_word(encoding, len(words)))
        return [self.kept[sentence.words] for sentence in sentences]

    def in_one_window(self, ids: list[int], word_ids: list[int | None], words: int) -> Pieces | None:
        """What `arranged` gives, faster, for a sentence that is no trouble; None: it is."""
        if len(ids) > self.room or None in word_ids:
            return None
        word = np.array(word_ids, dtype=np.int64)
        sizes = np.bincount(word, minlength=words)
        if sizes.min() == 0 or sizes.max() > max(1, self.room // 4):
            return None
        window = np.array([*self.first, *ids, *self.last])
        places = np.arange(len(ids)) + len(self.first)
        return Pieces(
            (window,),
            np.concatenate([[0], word + 1, [words + 1]]),
            np.zeros(len(ids) + 2, dtype=np.int64),
            np.concatenate([[0], places, [len(window) - 1]]),
            np.concatenate([[1.0], 1 / sizes[word], [1.0]]).astype(np.float32),
        )

    def arranged(self, words: list[list[int]]) -> Pieces:
        """The pieces of each word, laid out in windows. Of a monstrous word the first pieces must do."""
        most = max(1, self.room // 4)
        words = [ids[:most] or [self.unknown] for ids in words]
        sizes = [len(ids) for ids in words]
        spans = windows(sizes, self.room)
        chosen = most_central(sizes, spans)
        starts = np.concatenate([[0], np.cumsum(sizes)])  # of each word among all pieces

        ids = [
            np.array([*self.first, *(piece for word in words[a:b] for piece in word), *self.last])
            for a, b in spans
        ]
        cells = [(0, 0, 0, 1.0)]
        for w, (size, k) in enumerate(zip(sizes, chosen, strict=True)):
            at = len(self.first) + int(starts[w] - starts[spans[k][0]])
            cells += [(w + 1, k, at + piece, 1 / size) for piece in range(size)]
        cells.append((len(words) + 1, len(spans) - 1, len(ids[-1]) - 1, 1.0))
        position, window, place, weight = (np.array(column) for column in zip(*cells, strict=True))
        return Pieces(tuple(ids), position, window, place, weight.astype(np.float32))


def readable(word: str) -> str:
    """The word as tokenizers bear it: not too long, and without halves of surrogate pairs."""
    word = word[:LONGEST_WORD]
    return word if word.isascii() else word.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def first_of(*ids: int | None) -> int:
    return next(number for number in ids if number is not None)


def special_pieces(backend: Tokenizer) -> tuple[list[int], list[int]]:
    """What the encoder wants before and after the pieces of a sentence."""
    backend.no_truncation()
    backend.no_padding()
    encoding = backend.encode(["a"], is_pretokenized=True, add_special_tokens=True)
    special = [bool(s) for s in encoding.special_tokens_mask]
    if all(special):  # even "a" is unknown
        bare = backend.encode(["a"], is_pretokenized=True, add_special_tokens=False)
        middle = len(bare.ids)
        before = (len(special) - middle) // 2
    else:
        middle, before = special.count(False), special.index(False)
    return encoding.ids[:before], encoding.ids[before + middle :]


def by_word(encoding: Any, words: int) -> list[list[int]]:
    """The pieces of each word; a word of nothing but blanks or control characters may have none."""
    found: list[list[int]] = [[] for _ in range(words)]
    for piece, word in zip(encoding.ids, encoding.word_ids, strict=True):
        if word is not None:
            found[word].append(piece)
    return found


def windows(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Stretches of words of at most `room` pieces, each beginning in the middle of the one before.

    >>> windows([1] * 5, 8)
    [(0, 5)]
    >>> windows([1] * 12, 8)
    [(0, 8), (4, 12)]
    """
    found = []
    start = 0
    while True:
        end, used = start, 0
        while end < len(sizes) and used + sizes[end] <= room:
            used += sizes[end]
            end += 1
        found.append((start, end))
        if end == len(sizes):
            return found
        left = 0
        first = start
        while start < end - 1 and (start == first or left + sizes[start] <= room // 2):
            left += sizes[start]
            start += 1
        start = max(start, first + 1)


def most_central(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each word the window in which it has the most pieces on its shorter side."""
    if len(spans) == 1:
        return [0] * len(sizes)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    best = [(-1, 0)] * len(sizes)
    for k, (a, b) in enumerate(spans):
        for w in range(a, b):
            context = min(int(starts[w] - starts[a]), int(starts[b] - starts[w + 1]))
            if context > best[w][0]:
                best[w] = (context, k)
    return [k for _, k in best]
