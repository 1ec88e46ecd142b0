"""Words -> subwords of an encoder's vocabulary, packed into windows that it can read.

A sentence has one window if it fits, and else several that overlap by about half: each word is taken from the window in
which it is most central. A single window that is not full may hold words of neighbouring sentences as context, which
the encoder reads, but for which it returns no vectors.

The subwords of a word do not depend on its neighbours, so each word is split once and cached: looking it up takes a
hundredth of the time. Sentences are packed together, by array operations over all of them.
"""

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from nestree.errors import ModelError
from nestree.nn.features import word_shape
from nestree.types import Context, Sentence

MAX_WORD_CHARACTERS = 1_000  # the rest of a longer word is ignored
CACHED_WORDS = 100_000  # some 20 MB
CACHED_CHARACTERS = 20_000_000  # of all cached words together
CHUNK_WORDS = 64  # that a thread of the tokenizer splits at once


class PackedSubwords(NamedTuple):
    """Sentences one after another. A cell is one subword in one position: 0 is BOS, w + 1 word w, n + 1 EOS."""

    windows: np.ndarray  # [B] number of windows of each sentence
    sizes: np.ndarray  # [W] number of subwords of each window, special ones included
    ids: np.ndarray  # [all subwords of all windows]
    shapes: np.ndarray  # [all words]
    cells: np.ndarray  # [B] number of cells of each sentence
    position: np.ndarray  # [all cells]
    window: np.ndarray  # [all cells] within the sentence
    place: np.ndarray  # [all cells] of the subword in its window
    weight: np.ndarray  # [all cells] the weights of a position sum to 1


class WordNumbers(dict[str, int]):
    """Numbers words from 0 on: a new word gets the next number when it is looked up."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


class WordTable:
    """Subwords and shapes of words by their numbers, in arrays, so that many are looked up at once."""

    def __init__(self) -> None:
        self.count = 0
        self.posts = np.zeros(1, dtype=np.int64)  # the subwords of word k are ids[posts[k]:posts[k + 1]]
        self.ids = np.zeros(0, dtype=np.int64)
        self.shapes = np.zeros(0, dtype=np.int64)

    def add(self, subwords: Sequence[Sequence[int]], shapes: Sequence[int]) -> None:
        posts = np.cumsum([self.posts[self.count], *map(len, subwords)])
        self.posts = write_at(self.posts, self.count, posts)
        self.ids = write_at(self.ids, posts[0], [*chain.from_iterable(subwords)])
        self.shapes = write_at(self.shapes, self.count, shapes)
        self.count += len(subwords)


def write_at(array: np.ndarray, start: int, values: Sequence[int] | np.ndarray) -> np.ndarray:
    """The array with these values from `start` on; a larger copy if they do not fit."""
    end = start + len(values)
    if end > len(array):
        array = np.concatenate([array[:start], np.zeros(2 * end - start, dtype=array.dtype)])
    array[start:end] = values
    return array


class SubwordTokenizer:
    """Splits the words of sentences into subwords, packed into windows; words are cached."""

    def __init__(self, tokenizer: Any, longest: int, context: int = 0):
        """`longest`: subwords of a window. `context`: how many words before and after a sentence are read with it."""
        if not getattr(tokenizer, "is_fast", False):
            raise ModelError(
                f"the tokenizer {type(tokenizer).__name__} of this encoder is slow and does not say which subword "
                "belongs to which word; choose an encoder with a fast tokenizer (a file tokenizer.json)."
            )
        self.backend: Tokenizer = tokenizer.backend_tokenizer
        self.pad: int = next(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if i is not None)
        unknown = (tokenizer.unk_token_id, tokenizer.mask_token_id, self.pad)
        self.unknown: int = next(i for i in unknown if i is not None)
        # byte-level vocabularies know a word by the space before it
        self.prefix = " " if "ByteLevel" in str(self.backend.pre_tokenizer) else ""
        self.first, self.last = special_subwords(self.backend)
        self.longest = longest
        self.capacity = longest - len(self.first) - len(self.last)  # subwords of words in a window
        if self.capacity < 1:
            raise ModelError(f"the encoder reads {longest} subwords at most, which leaves no room for words.")
        self.context = context
        self.clear_cache()

    def clear_cache(self) -> None:
        self.word_numbers, self.table = WordNumbers(), WordTable()
        self.characters = 0  # of all cached words

    def check_fits(self, rows: int, encoder: str) -> None:
        """Raise unless this can be the tokenizer of an encoder whose embeddings have so many rows.

        Some encoders have more rows than subwords, but not twice as many.
        """
        size = self.backend.get_vocab_size()
        special = max(self.pad, self.unknown, *self.first, *self.last, 0)
        if size > rows or 2 * size < rows or special >= rows:
            raise ModelError(
                f"encoder {encoder!r}: the tokenizer has {size} subwords and special ones up to {special}, and there "
                f"are {rows} embeddings: they belong to different encoders, or a file is missing. Fetch it again."
            )

    def subwords(self, sentences: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The subwords of all words of these sentences, one after another; how many each word has; its shape."""
        numbers = self.numbers(sentences)
        starts, ends = self.table.posts[numbers], self.table.posts[numbers + 1]
        return self.table.ids[ranges(starts, ends - starts)], ends - starts, self.table.shapes[numbers]

    def numbers(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """The numbers of all words of these sentences in the cache; new words are split."""
        if len(self.word_numbers) != self.table.count:  # an error or another thread interfered
            self.clear_cache()
        words = chain.from_iterable(sentences)
        numbers = np.fromiter(map(self.word_numbers.__getitem__, words), np.int64, sum(map(len, sentences)))
        before = self.table.count
        if len(self.word_numbers) == before:
            return numbers
        new = [*islice(reversed(self.word_numbers), len(self.word_numbers) - before)][::-1]
        self.characters += sum(map(len, new))
        if before and (len(self.word_numbers) > CACHED_WORDS or self.characters > CACHED_CHARACTERS):
            self.clear_cache()
            return self.numbers(sentences)
        self.table.add(self.split(new), [*map(word_shape, new)])
        return numbers

    def split(self, words: Sequence[str]) -> list[list[int]]:
        """The subwords of each word: at most a quarter of a window, at least one, which may be the unknown one."""
        self.backend.no_truncation()
        self.backend.no_padding()
        most = max(1, self.capacity // 4)
        chunks = [words[start : start + CHUNK_WORDS] for start in range(0, len(words), CHUNK_WORDS)]
        inputs = [[self.prefix + clean_word(word) for word in chunk] for chunk in chunks]
        encodings = self.backend.encode_batch(inputs, is_pretokenized=True, add_special_tokens=False)
        subwords: list[list[int]] = []
        for chunk, encoding in zip(chunks, encodings, strict=True):
            ids: list[list[int]] = [[] for _ in chunk]
            for subword, word in zip(encoding.ids, encoding.word_ids, strict=True):
                if word is not None:
                    ids[word].append(subword)
            subwords += [own[:most] or [self.unknown] for own in ids]
        return subwords

    def __call__(self, sentences: Sequence[Sentence]) -> PackedSubwords:
        ids, sizes, shapes = self.subwords([sentence.words for sentence in sentences])
        words = np.array([len(sentence.words) for sentence in sentences], dtype=np.int64)
        posts = np.concatenate([[0], np.cumsum(sizes)])  # word k has the subwords posts[k]:posts[k + 1]
        windows, spans, window_of = cut_windows(posts, words, self.capacity)
        last_window = np.cumsum(windows) - 1
        first_window = last_window + 1 - windows

        # A window is five ranges of a pool of subwords: special ones, context, words, context, special ones.
        pool = [np.array([*self.first, *self.last], dtype=np.int64), ids]
        starts, range_sizes = np.zeros((2, len(spans), 5), dtype=np.int64)
        range_sizes[:, 0], range_sizes[:, 4] = len(self.first), len(self.last)
        starts[:, 4], starts[:, 2] = len(self.first), self.longest - self.capacity + posts[spans[:, 0]]
        range_sizes[:, 2] = posts[spans[:, 1]] - posts[spans[:, 0]]
        if self.context:
            single = np.flatnonzero(windows == 1)
            contexts = [sentences[s].context or ((), ()) for s in single.tolist()]
            pool.append(self.add_context(contexts, first_window[single], starts, range_sizes, sum(map(len, pool))))
        window_sizes, own_place = range_sizes.sum(1), range_sizes[:, :2].sum(1)

        # The positions of a sentence are its words between BOS and EOS.
        bos = np.cumsum(words) - words + 2 * np.arange(len(words))
        eos = bos + words + 1
        is_word = np.ones(len(sizes) + 2 * len(words), dtype=bool)
        is_word[bos] = is_word[eos] = False
        count = np.ones(len(is_word), dtype=np.int64)  # subwords of each position
        count[is_word] = sizes
        place, window = np.zeros((2, len(is_word)), dtype=np.int64)  # of its first subword
        place[is_word] = own_place[window_of] + posts[:-1] - posts[spans[window_of, 0]]
        place[bos] = 0 if self.first else own_place[first_window]
        place[eos] = (window_sizes - 1 - (0 if self.last else range_sizes[:, 3]))[last_window]
        window[is_word] = window_of - np.repeat(first_window, words)
        window[eos] = windows - 1
        return PackedSubwords(
            windows,
            window_sizes,
            np.concatenate(pool)[ranges(starts.reshape(-1), range_sizes.reshape(-1))],
            shapes,
            np.add.reduceat(count, bos),
            np.repeat(np.arange(len(count)) - np.repeat(bos, words + 2), count),
            np.repeat(window, count),
            ranges(place, count),
            np.repeat((1 / count).astype(np.float32), count),
        )

    def add_context(
        self, contexts: Sequence[Context], rows: np.ndarray, starts: np.ndarray, sizes: np.ndarray, offset: int
    ) -> np.ndarray:
        """Set the ranges [W, 5] of the context of these rows; the subwords of it, in a pool from `offset` on.

        Each side gets half of the space that the sentence leaves, or what the other side leaves.
        """
        groups = [before[-self.context :] for before, _ in contexts]
        groups += [after[: self.context] for _, after in contexts]
        ids, word_sizes, _ = self.subwords(groups)
        posts = np.concatenate([[0], np.cumsum(word_sizes)])[np.cumsum([0, *map(len, groups)])]  # of groups
        left, right = np.diff(posts).reshape(2, -1)
        free = self.capacity - sizes[rows, 2]
        sizes[rows, 1] = np.minimum(left, np.maximum(free // 2, free - right))
        sizes[rows, 3] = np.minimum(right, free - sizes[rows, 1])
        starts[rows, 1] = offset + posts[1 : len(rows) + 1] - sizes[rows, 1]
        starts[rows, 3] = offset + posts[len(rows) : -1]
        return ids


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The numbers from each start on, one range after another.

    >>> ranges(np.array([5, 0]), np.array([3, 2])).tolist()
    [5, 6, 7, 0, 1]
    """
    ends = sizes.cumsum()
    numbers: np.ndarray = np.arange(ends[-1] if len(ends) else 0) + (starts - ends + sizes).repeat(sizes)
    return numbers


def clean_word(word: str) -> str:
    """The word as tokenizers accept it: not too long, and without lone surrogates."""
    word = word[:MAX_WORD_CHARACTERS]
    return word if word.isascii() else word.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def special_subwords(backend: Tokenizer) -> tuple[list[int], list[int]]:
    """The special subwords before and after those of a sentence."""
    backend.no_truncation()
    backend.no_padding()
    encoding = backend.encode(["a"], is_pretokenized=True, add_special_tokens=True)
    special = [bool(s) for s in encoding.special_tokens_mask]
    if all(special):  # even "a" is unknown
        middle = len(backend.encode(["a"], is_pretokenized=True, add_special_tokens=False).ids)
        before = (len(special) - middle) // 2
    else:
        middle, before = special.count(False), special.index(False)
    return encoding.ids[:before], encoding.ids[before + middle :]


def cut_windows(posts: np.ndarray, words: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many windows each sentence has [B], the words of each [W, 2], and the window of each word.

    Word k has the subwords posts[k]:posts[k + 1]. A window has at most `capacity` subwords and begins in the middle of
    the one before. A word belongs to the window in which it has the most subwords on its shorter side.

    >>> cut_windows(np.arange(13), np.array([12]), 8)[1].tolist()
    [[0, 8], [4, 12]]
    """
    ends = np.cumsum(words)
    if (posts[ends] - posts[ends - words] <= capacity).all():
        return np.ones(len(words), np.int64), np.array([ends - words, ends]).T, np.arange(len(words)).repeat(words)
    spans: list[tuple[int, int]] = []
    counts, window_of = [], np.zeros(len(posts) - 1, dtype=np.int64)
    for start, last in zip((ends - words).tolist(), ends.tolist(), strict=True):
        before, end, best = len(spans), start, np.full(last - start, -1)
        while end < last:
            if end > start:  # not the first window
                middle = int(np.searchsorted(posts, posts[start] + capacity // 2, "right")) - 1
                start = max(start + 1, min(middle, end - 1))
            end = min(last, int(np.searchsorted(posts, posts[start] + capacity, "right")) - 1)
            own = np.arange(start, end)
            margin = np.minimum(posts[own] - posts[start], posts[end] - posts[own + 1])
            better = own[margin > best[own - last]]
            window_of[better], best[better - last] = len(spans), margin[better - start]
            spans.append((start, end))
        counts.append(len(spans) - before)
    return np.array(counts), np.array(spans), window_of
