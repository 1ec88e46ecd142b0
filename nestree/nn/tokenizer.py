"""Words -> pieces of an encoder's vocabulary, in windows that it can read, and which pieces make which word.

A sentence is read in one window if it fits, and else in several that overlap by about half: each word is
taken from the window in which it is most central, so no word is ever dropped. In one window, what room is left may
be filled with words of its neighbours, which the encoder reads along; they make no word of the sentence.

The pieces of a word do not depend on its neighbours, so each word is split once and remembered: most words of a text
have been seen before, and looking one up takes a hundredth of the time. Sentences of one window are laid out together,
in arrays that hold them all: nothing is done for one of them alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from nestree.errors import ModelError
from nestree.nn.features import shape_of
from nestree.types import Context, Sentence

LONGEST_WORD = 1_000  # characters of a word that are looked at
KNOWN = 100_000  # words whose pieces are remembered: some 20 MB
CHARACTERS = 20_000_000  # of them: some words are monstrous
KEPT = 1_000  # sentences of several windows that are remembered: some 20 MB
AT_ONCE = 64  # words that a thread of the tokenizer splits at once
NOBODY: Context = ((), ())


class WordSubwords(NamedTuple):
    """One sentence as an encoder reads it. The cells say: this piece has this weight in that position."""

    windows: tuple[np.ndarray, ...]  # ids of each window, special pieces included
    position: np.ndarray  # [cells] 0: BOS, w + 1: word w, n + 1: EOS
    window: np.ndarray  # [cells]
    place: np.ndarray  # [cells] of the piece in its window
    weight: np.ndarray  # [cells] the weights of a position sum to 1
    shapes: np.ndarray  # [words] what each word looks like


@dataclass(frozen=True)
class PackedSubwords:
    """Sentences as an encoder reads them, one after another in the same arrays; looked through, they are `Pieces`."""

    windows: np.ndarray  # [B] how many each sentence has
    sizes: np.ndarray  # [W] pieces of each window
    ids: np.ndarray  # [all pieces of all windows]
    words: np.ndarray  # [B] how many each sentence has
    shapes: np.ndarray  # [all words]
    cells: np.ndarray  # [B] how many each sentence has
    position: np.ndarray  # [all cells]
    window: np.ndarray  # [all cells]
    place: np.ndarray  # [all cells]
    weight: np.ndarray  # [all cells]

    def __iter__(self) -> Iterator[WordSubwords]:
        ids = iter(shared_out(self.ids, self.sizes))
        windows = [tuple(islice(ids, count)) for count in self.windows.tolist()]
        columns = self.position, self.window, self.place, self.weight
        of_cells = (shared_out(column, self.cells) for column in columns)
        return map(WordSubwords, windows, *of_cells, shared_out(self.shapes, self.words))


def joined(sentences: Sequence[WordSubwords]) -> PackedSubwords:
    """Sentences that were laid out one by one."""
    windows, position, window, place, weight, shapes = zip(*sentences, strict=True)
    ids = [*chain.from_iterable(windows)]
    columns = map(np.concatenate, (position, window, place, weight))
    return PackedSubwords(
        counts(windows), counts(ids), np.concatenate(ids),
        counts(shapes), np.concatenate(shapes), counts(position), *columns,
    )  # fmt: skip


def counts(groups: Sequence[Any]) -> np.ndarray:
    return np.fromiter(map(len, groups), np.int64, len(groups))


def shared_out(values: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """So many of them to each."""
    return np.split(values, np.cumsum(sizes)[:-1])


class Numbers(dict[str, int]):
    """The numbers of words; a new one gets the next."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


class Words:
    """What is remembered of words, by their numbers: in arrays, so that many are looked up at once."""

    def __init__(self) -> None:
        self.count = 0
        self.posts = np.zeros(1, dtype=np.int64)  # the pieces of word k are those from post k to post k + 1
        self.ids = np.zeros(0, dtype=np.int64)
        self.shapes = np.zeros(0, dtype=np.int64)

    def add(self, pieces: Sequence[Sequence[int]], shapes: Sequence[int]) -> None:
        posts = np.cumsum([self.posts[self.count], *map(len, pieces)])
        self.posts = placed(self.posts, self.count, posts)
        self.ids = placed(self.ids, posts[0], [*chain.from_iterable(pieces)])
        self.shapes = placed(self.shapes, self.count, shapes)
        self.count += len(pieces)

    def pieces(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All pieces of these words, in a row, and how many each has."""
        starts = self.posts[numbers]
        sizes = self.posts[numbers + 1] - starts
        ends = np.cumsum(sizes)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + sizes, sizes)
        return self.ids[places], sizes


def placed(array: np.ndarray, start: int, values: Sequence[int] | np.ndarray) -> np.ndarray:
    """The array with these values from `start` on; a new one, with room for more, for too many."""
    end = start + len(values)
    if end > len(array):
        array = np.concatenate([array[:start], np.zeros(2 * end - start, dtype=array.dtype)])
    array[start:end] = values
    return array


class SubwordTokenizer:
    """Splits words into pieces. What it has split once, it remembers."""

    def __init__(self, tokenizer: Any, longest: int, context: int = 0):
        """`longest`: pieces of a window. `context`: words on either side of a sentence that stand in it, too."""
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
        self.longest = longest
        self.room = longest - len(self.first) - len(self.last)  # for the pieces of words, in a window
        if self.room < 1:
            raise ModelError(f"the encoder reads {longest} pieces at most, which leaves no room for words.")
        self.context = context
        self.known = Numbers()
        self.words = Words()
        self.characters = 0  # of all words that are known
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
        """All of these sentences: most have one window, and these are made together."""
        given = [sentence.words for sentence in sentences]
        words = counts(given)
        numbers = self.numbers(given)
        ids, sizes = self.words.pieces(numbers)
        layout = in_one_window(words, sizes, ids, self.words.shapes[numbers], self.first, self.last)
        too_long = np.flatnonzero(layout.sizes > self.room + len(self.first) + len(self.last)).tolist()
        if not (too_long or self.context):
            return layout
        found = list(layout)
        for s in too_long:
            found[s] = self.in_several(given[s], found[s].shapes)
        return joined(self.in_context(sentences, found) if self.context else found)

    def in_context(self, sentences: Sequence[Sentence], found: Sequence[WordSubwords]) -> list[WordSubwords]:
        """The same, with pieces of words around the sentences; those that need several windows stay alone."""
        pairs = zip(sentences, found, strict=True)
        given = [s.context or NOBODY if len(own.windows) == 1 else NOBODY for s, own in pairs]
        around = [(before[-self.context :], after[: self.context]) for before, after in given]
        self.numbers([*chain.from_iterable(around)])  # so that new words are split together
        return [
            self.between(before, own, after) if before or after else own
            for (before, after), own in zip(around, found, strict=True)
        ]

    def between(self, before: Sequence[str], own: WordSubwords, after: Sequence[str]) -> WordSubwords:
        """The pieces of a sentence, which has one window, and in the room that is left those of words around it."""
        first, last = len(self.first), len(self.last)
        window, left, right = own.windows[0], self.pieces_of(before), self.pieces_of(after)
        end = len(window) - last
        most_left, most_right = shared(len(left), len(right), self.room - (end - first))
        left, right = left[len(left) - most_left :], right[:most_right]
        window = np.concatenate([window[:first], left, window[first:end], right, window[end:]])
        place = own.place + len(left)
        if first:
            place[0] = 0
        if last:
            place[-1] += len(right)
        return own._replace(windows=(window,), place=place)

    def pieces_of(self, words: Sequence[str]) -> np.ndarray:
        """All pieces of these words, in a row."""
        return self.words.pieces(self.numbers([words]))[0]

    def numbers(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """Of all words of these sentences. Those that are new are split."""
        if len(self.known) != self.words.count:  # somebody has cleared them, or came between
            self.forget()
        words = chain.from_iterable(sentences)
        numbers = np.fromiter(map(self.known.__getitem__, words), np.int64, sum(map(len, sentences)))
        before = self.words.count
        if len(self.known) == before:
            return numbers
        new = [*islice(reversed(self.known), len(self.known) - before)][::-1]
        self.characters += sum(map(len, new))
        if before and (len(self.known) > KNOWN or self.characters > CHARACTERS):
            self.forget()
            return self.numbers(sentences)
        self.words.add(self.split(new), [*map(shape_of, new)])
        return numbers

    def forget(self) -> None:
        self.known.clear()
        self.kept.clear()
        self.words, self.characters = Words(), 0

    def split(self, words: Sequence[str]) -> list[list[int]]:
        """The pieces of each word; of a monstrous word the first must do."""
        self.backend.no_truncation()
        self.backend.no_padding()
        most = max(1, self.room // 4)
        parts = [words[start : start + AT_ONCE] for start in range(0, len(words), AT_ONCE)]
        written = [[self.before + readable(word) for word in part] for part in parts]
        encodings = self.backend.encode_batch(written, is_pretokenized=True, add_special_tokens=False)
        found = [by_word(encoding, len(part)) for part, encoding in zip(parts, encodings, strict=True)]
        return [ids[:most] or [self.unknown] for ids in chain.from_iterable(found)]

    def in_several(self, words: tuple[str, ...], shapes: np.ndarray) -> WordSubwords:
        """A sentence that needs several windows; remembered, as this takes long."""
        if words not in self.kept:
            if len(self.kept) >= KEPT:
                self.kept.clear()
            self.kept[words] = self.arranged([self.pieces_of([word]).tolist() for word in words], shapes)
        return self.kept[words]

    def arranged(self, words: Sequence[Sequence[int]], shapes: np.ndarray) -> WordSubwords:
        """The pieces of each word, laid out in windows."""
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
        return WordSubwords(tuple(ids), position, window, place, weight.astype(np.float32), shapes)


def readable(word: str) -> str:
    """The word as tokenizers bear it: not too long, and without halves of surrogate pairs."""
    word = word[:LONGEST_WORD]
    return word if word.isascii() else word.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def in_one_window(
    words: np.ndarray,
    sizes: np.ndarray,
    ids: np.ndarray,
    shapes: np.ndarray,
    first: Sequence[int],
    last: Sequence[int],
) -> PackedSubwords:
    """Sentences of one window each: so many words in each, so many pieces in each word; special pieces around them."""
    special = len(first) + len(last)
    word_ends = np.cumsum(words)  # of each sentence, among all words
    ends = np.cumsum(sizes)[word_ends - 1]  # and among all pieces
    pieces = np.diff(ends, prepend=0)  # of each sentence
    before = ends - pieces
    sentence = np.arange(len(words))
    of_piece = np.repeat(sentence, pieces)  # [all pieces]
    piece = np.arange(len(ids))

    windows = np.empty(len(ids) + special * len(words), dtype=np.int64)
    windows[piece + special * of_piece + len(first)] = ids
    start, end = before + special * sentence, ends + special * (sentence + 1)
    for k, each in enumerate(first):
        windows[start + k] = each
    for k, each in enumerate(reversed(last), 1):
        windows[end - k] = each

    count = len(ids) + 2 * len(words)  # the cells of BOS and EOS are two more for each sentence
    position, place = np.zeros((2, count), dtype=np.int64)
    weight = np.ones(count, dtype=np.float32)
    cell = piece + 2 * of_piece + 1
    word = np.arange(len(sizes)) - np.repeat(word_ends - words, words)  # [all words] in their sentences
    position[cell] = np.repeat(word + 1, sizes)
    place[cell] = piece - np.repeat(before, pieces) + len(first)
    weight[cell] = np.repeat(1 / sizes, sizes)
    last_cell = ends + 2 * sentence + 1
    position[last_cell] = words + 1
    place[last_cell] = pieces + special - 1
    return PackedSubwords(
        np.ones_like(words), pieces + special, windows,
        words, shapes, pieces + 2, position, np.zeros(count, dtype=np.int64), place, weight,
    )  # fmt: skip


def shared(left: int, right: int, room: int) -> tuple[int, int]:
    """How many pieces on either side of a sentence find room: half of it each, or what the other side leaves.

    >>> shared(4, 2, 5), shared(2, 2, 3), shared(9, 9, 0)
    ((3, 2), (1, 2), (0, 0))
    """
    most = min(left, max(room // 2, room - right))
    return most, min(right, room - most)


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
