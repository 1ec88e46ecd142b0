"""Words -> subwords of an encoder's vocabulary, packed into windows that it can read.

A sentence has one window if it fits, and else several that overlap by about half: each word is taken from the window in
which it is most central. What room is left in a single window may be filled with words of neighbouring sentences as
context, which the encoder reads, too, but which have no vectors.

The subwords of a word do not depend on its neighbours, so each word is split once and cached: looking it up takes a
hundredth of the time. Sentences of one window are packed together, by array operations over all of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from nestree.errors import ModelError
from nestree.nn.features import word_shape
from nestree.types import Sentence

MAX_WORD_CHARACTERS = 1_000  # the rest of a longer word is ignored
CACHED_WORDS = 100_000  # some 20 MB
CACHED_CHARACTERS = 20_000_000  # of all cached words together
CACHED_SENTENCES = 1_000  # of several windows: some 20 MB
CHUNK_WORDS = 64  # that a thread of the tokenizer splits at once


class WordSubwords(NamedTuple):
    """The windows of one sentence, and the weight of each subword in each position."""

    windows: tuple[np.ndarray, ...]  # subwords of each window, special ones included
    position: np.ndarray  # [cells] 0: BOS, w + 1: word w, n + 1: EOS
    window: np.ndarray  # [cells]
    place: np.ndarray  # [cells] of the subword in its window
    weight: np.ndarray  # [cells] the weights of a position sum to 1
    shapes: np.ndarray  # [words]


@dataclass(frozen=True)
class PackedSubwords:
    """Sentences one after another in the same arrays; iterating gives their `WordSubwords`."""

    windows: np.ndarray  # [B] number of windows of each sentence
    sizes: np.ndarray  # [W] number of subwords of each window
    ids: np.ndarray  # [all subwords of all windows]
    words: np.ndarray  # [B] number of words of each sentence
    shapes: np.ndarray  # [all words]
    cells: np.ndarray  # [B] number of cells of each sentence
    position: np.ndarray  # [all cells]
    window: np.ndarray  # [all cells]
    place: np.ndarray  # [all cells]
    weight: np.ndarray  # [all cells]

    def __iter__(self) -> Iterator[WordSubwords]:
        ids = iter(split_array(self.ids, self.sizes))
        windows = [tuple(islice(ids, count)) for count in self.windows.tolist()]
        columns = [split_array(c, self.cells) for c in (self.position, self.window, self.place, self.weight)]
        return map(WordSubwords, windows, *columns, split_array(self.shapes, self.words))

    @classmethod
    def join(cls, sentences: Sequence[WordSubwords]) -> "PackedSubwords":
        windows, position, window, place, weight, shapes = zip(*sentences, strict=True)
        ids = [*chain.from_iterable(windows)]
        columns = map(np.concatenate, (position, window, place, weight))
        return cls(
            lengths(windows), lengths(ids), np.concatenate(ids),
            lengths(shapes), np.concatenate(shapes), lengths(position), *columns,
        )  # fmt: skip


def lengths(groups: Sequence[Any]) -> np.ndarray:
    return np.fromiter(map(len, groups), np.int64, len(groups))


def split_array(values: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Consecutive parts of these sizes."""
    return np.split(values, np.cumsum(sizes)[:-1])


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

    def pieces(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All subwords of these words, one after another, and how many each word has."""
        starts = self.posts[numbers]
        sizes = self.posts[numbers + 1] - starts
        ends = np.cumsum(sizes)
        index = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + sizes, sizes)
        return self.ids[index], sizes


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
                f"the tokenizer {type(tokenizer).__name__} of this encoder is slow and does not say which piece "
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
        self.room = longest - len(self.first) - len(self.last)  # for the subwords of words, in a window
        if self.room < 1:
            raise ModelError(f"the encoder reads {longest} pieces at most, which leaves no room for words.")
        self.context = context
        self.known = WordNumbers()
        self.words = WordTable()
        self.characters = 0  # of all cached words
        self.kept: dict[tuple[str, ...], WordSubwords] = {}  # sentences of several windows

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

    def __call__(self, sentences: Sequence[Sentence]) -> PackedSubwords:
        numbers = self.numbers([sentence.words for sentence in sentences])
        ids, sizes = self.words.pieces(numbers)
        words = lengths([sentence.words for sentence in sentences])
        packed = pack_single_windows(words, sizes, ids, self.words.shapes[numbers], self.first, self.last)
        too_long = np.flatnonzero(packed.sizes > self.longest).tolist()
        if not (too_long or self.context):
            return packed
        unpacked = list(packed)
        for s in too_long:
            unpacked[s] = self.several_windows(sentences[s].words, unpacked[s].shapes)
        if self.context:
            unpacked = self.add_context(sentences, unpacked)
        return PackedSubwords.join(unpacked)

    def add_context(
        self, sentences: Sequence[Sentence], unpacked: Sequence[WordSubwords]
    ) -> list[WordSubwords]:
        """The same, with subwords of the words around each sentence in the room that is left in its only window."""
        contexts = []
        for sentence, own in zip(sentences, unpacked, strict=True):
            before, after = (sentence.context if len(own.windows) == 1 else None) or ((), ())
            contexts.append((before[-self.context :], after[: self.context]))
        self.numbers([*chain.from_iterable(contexts)])  # so that new words are split together
        first, last = len(self.first), len(self.last)
        result = []
        for (before, after), own in zip(contexts, unpacked, strict=True):
            if before or after:
                (window,) = own.windows
                left, right = self.pieces_of(before), self.pieces_of(after)
                end = len(window) - last
                left_size, right_size = share_room(len(left), len(right), self.room - (end - first))
                left, right = left[len(left) - left_size :], right[:right_size]
                window = np.concatenate([window[:first], left, window[first:end], right, window[end:]])
                place = own.place + len(left)
                if first:
                    place[0] = 0
                if last:
                    place[-1] += len(right)
                own = own._replace(windows=(window,), place=place)
            result.append(own)
        return result

    def pieces_of(self, words: Sequence[str]) -> np.ndarray:
        """All subwords of these words, one after another."""
        return self.words.pieces(self.numbers([words]))[0]

    def numbers(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """The numbers of all words of these sentences in the cache; new words are split."""
        if len(self.known) != self.words.count:  # it was cleared, or an error or another thread interfered
            self.clear_cache()
        words = chain.from_iterable(sentences)
        numbers = np.fromiter(map(self.known.__getitem__, words), np.int64, sum(map(len, sentences)))
        before = self.words.count
        if len(self.known) == before:
            return numbers
        new = [*islice(reversed(self.known), len(self.known) - before)][::-1]
        self.characters += sum(map(len, new))
        if before and (len(self.known) > CACHED_WORDS or self.characters > CACHED_CHARACTERS):
            self.clear_cache()
            return self.numbers(sentences)
        self.words.add(self.split(new), [*map(word_shape, new)])
        return numbers

    def clear_cache(self) -> None:
        self.known.clear()
        self.kept.clear()
        self.words, self.characters = WordTable(), 0

    def split(self, words: Sequence[str]) -> list[list[int]]:
        """The subwords of each word: at most a quarter of a window, at least one, which may be the unknown one."""
        self.backend.no_truncation()
        self.backend.no_padding()
        most = max(1, self.room // 4)
        chunks = [words[start : start + CHUNK_WORDS] for start in range(0, len(words), CHUNK_WORDS)]
        inputs = [[self.prefix + clean_word(word) for word in chunk] for chunk in chunks]
        encodings = self.backend.encode_batch(inputs, is_pretokenized=True, add_special_tokens=False)
        subwords = []
        for chunk, encoding in zip(chunks, encodings, strict=True):
            for ids in group_by_word(encoding, len(chunk)):
                subwords.append(ids[:most] or [self.unknown])
        return subwords

    def several_windows(self, words: tuple[str, ...], shapes: np.ndarray) -> WordSubwords:
        """A sentence that needs several windows, cached."""
        if words not in self.kept:
            if len(self.kept) >= CACHED_SENTENCES:
                self.kept.clear()
            self.kept[words] = self.arrange([self.pieces_of([word]).tolist() for word in words], shapes)
        return self.kept[words]

    def arrange(self, words: Sequence[Sequence[int]], shapes: np.ndarray) -> WordSubwords:
        """The subwords of each word, in as many windows as they need."""
        sizes = [len(ids) for ids in words]
        spans = windows(sizes, self.room)
        chosen = most_central(sizes, spans)
        starts = np.concatenate([[0], np.cumsum(sizes)])  # of each word among all subwords

        ids = [np.array([*self.first, *chain.from_iterable(words[a:b]), *self.last]) for a, b in spans]
        cells = [(0, 0, 0, 1.0)]
        for w, (size, k) in enumerate(zip(sizes, chosen, strict=True)):
            at = len(self.first) + int(starts[w] - starts[spans[k][0]])
            cells += [(w + 1, k, at + subword, 1 / size) for subword in range(size)]
        cells.append((len(words) + 1, len(spans) - 1, len(ids[-1]) - 1, 1.0))
        position, window, place, weight = (np.array(column) for column in zip(*cells, strict=True))
        return WordSubwords(tuple(ids), position, window, place, weight.astype(np.float32), shapes)


def clean_word(word: str) -> str:
    """The word as tokenizers accept it: not too long, and without lone surrogates."""
    word = word[:MAX_WORD_CHARACTERS]
    return word if word.isascii() else word.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def pack_single_windows(
    words: np.ndarray,
    sizes: np.ndarray,
    ids: np.ndarray,
    shapes: np.ndarray,
    first: Sequence[int],
    last: Sequence[int],
) -> PackedSubwords:
    """Sentences of one window each, given words per sentence, subwords per word, all subwords, and special ones."""
    special = len(first) + len(last)
    word_ends = np.cumsum(words)  # of each sentence, among all words
    ends = np.cumsum(sizes)[word_ends - 1]  # and among all subwords
    counts = np.diff(ends, prepend=0)  # subwords of each sentence
    starts = ends - counts
    sentence = np.arange(len(words))
    sentence_of = np.repeat(sentence, counts)  # [all subwords]
    subword = np.arange(len(ids))

    windows = np.empty(len(ids) + special * len(words), dtype=np.int64)
    windows[subword + special * sentence_of + len(first)] = ids
    window_starts, window_ends = starts + special * sentence, ends + special * (sentence + 1)
    for k, special_id in enumerate(first):
        windows[window_starts + k] = special_id
    for k, special_id in enumerate(reversed(last), 1):
        windows[window_ends - k] = special_id

    cells = len(ids) + 2 * len(words)  # BOS and EOS of each sentence have a cell each
    position, place = np.zeros((2, cells), dtype=np.int64)
    weight = np.ones(cells, dtype=np.float32)
    cell = subword + 2 * sentence_of + 1
    word = np.arange(len(sizes)) - np.repeat(word_ends - words, words)  # [all words] in their sentences
    position[cell] = np.repeat(word + 1, sizes)
    place[cell] = subword - np.repeat(starts, counts) + len(first)
    weight[cell] = np.repeat(1 / sizes, sizes)
    last_cell = ends + 2 * sentence + 1
    position[last_cell] = words + 1
    place[last_cell] = counts + special - 1
    return PackedSubwords(
        np.ones_like(words), counts + special, windows,
        words, shapes, counts + 2, position, np.zeros(cells, dtype=np.int64), place, weight,
    )  # fmt: skip


def share_room(left: int, right: int, room: int) -> tuple[int, int]:
    """How many subwords on either side of a sentence fit: half of the room each, or what the other side leaves.

    >>> share_room(4, 2, 5), share_room(2, 2, 3), share_room(9, 9, 0)
    ((3, 2), (1, 2), (0, 0))
    """
    left = min(left, max(room // 2, room - right))
    return left, min(right, room - left)


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


def group_by_word(encoding: Any, words: int) -> list[list[int]]:
    """The subwords of each word; a word of nothing but blanks or control characters may have none."""
    groups: list[list[int]] = [[] for _ in range(words)]
    for subword, word in zip(encoding.ids, encoding.word_ids, strict=True):
        if word is not None:
            groups[word].append(subword)
    return groups


def windows(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Spans of words of at most `room` subwords, each beginning in the middle of the one before.

    >>> windows([1] * 5, 8)
    [(0, 5)]
    >>> windows([1] * 12, 8)
    [(0, 8), (4, 12)]
    """
    spans = []
    start = 0
    while True:
        end, used = start, 0
        while end < len(sizes) and used + sizes[end] <= room:
            used += sizes[end]
            end += 1
        spans.append((start, end))
        if end == len(sizes):
            return spans
        skipped = 0
        first = start
        while start < end - 1 and (start == first or skipped + sizes[start] <= room // 2):
            skipped += sizes[start]
            start += 1
        start = max(start, first + 1)


def most_central(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each word the window in which it has the most subwords on its shorter side."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    best = [(-1, 0)] * len(sizes)
    for k, (a, b) in enumerate(spans):
        for w in range(a, b):
            context = min(int(starts[w] - starts[a]), int(starts[b] - starts[w + 1]))
            if context > best[w][0]:
                best[w] = (context, k)
    return [k for _, k in best]
