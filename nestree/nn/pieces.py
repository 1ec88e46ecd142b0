"""Words -> pieces of an encoder's vocabulary, in windows that it can read, and which pieces make which word.

A sentence is read in one window if it fits, and else in several that overlap by about half: each word is
taken from the window in which it is most central, so no word is ever dropped. In one window, what room is left may
be filled with words of its neighbours, which the encoder reads along; they make no word of the sentence.

The pieces of a word do not depend on its neighbours, so each word is split once and remembered: most words of a text
have been seen before, and looking one up takes a hundredth of the time.
"""

from collections.abc import Sequence
from itertools import chain, count, filterfalse
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from nestree.errors import ModelError
from nestree.nn.features import shape_of
from nestree.sentence import Context, Sentence

LONGEST_WORD = 1_000  # characters of a word that are looked at
KEPT = 30_000  # sentences whose pieces are remembered: some 60 MB
KNOWN = 100_000  # words, likewise: some 20 MB
CHARACTERS = 20_000_000  # of all that is remembered: some words are monstrous
AT_ONCE = 64  # words that a thread of the tokenizer splits at once
NOBODY: Context = ((), ())


class Pieces(NamedTuple):
    """One sentence as an encoder reads it. The cells say: this piece has this weight in that position."""

    windows: tuple[np.ndarray, ...]  # ids of each window, special pieces included
    position: np.ndarray  # [cells] 0: BOS, w + 1: word w, n + 1: EOS
    window: np.ndarray  # [cells]
    place: np.ndarray  # [cells] of the piece in its window
    weight: np.ndarray  # [cells] the weights of a position sum to 1
    shapes: np.ndarray  # [words] what each word looks like


class Words:
    """What is remembered of words, by their numbers: in arrays, so that many are looked up at once."""

    def __init__(self) -> None:
        self.posts = np.zeros(1, dtype=np.int64)  # the pieces of word k are those from post k to post k + 1
        self.ids = np.zeros(0, dtype=np.int64)
        self.shapes = np.zeros(0, dtype=np.int64)

    def put(self, number: int, pieces: Sequence[Sequence[int]], shapes: Sequence[int]) -> None:
        """Words from this number on; what was there is gone."""
        posts = np.cumsum([self.posts[number], *map(len, pieces)])
        self.posts = placed(self.posts, number, posts)
        self.ids = placed(self.ids, posts[0], [*chain.from_iterable(pieces)])
        self.shapes = placed(self.shapes, number, shapes)

    def pieces(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All pieces of these words, in a row, and how many each has."""
        starts = self.posts[numbers]
        sizes = self.posts[numbers + 1] - starts
        ends = np.cumsum(sizes)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + sizes, sizes)
        return self.ids[places], sizes


def placed(array: np.ndarray, start: int, values: Sequence[int] | np.ndarray) -> np.ndarray:
    """The array with these values from `start` on; a new one, with room for more, for the first or too many."""
    end = start + len(values)
    if end > len(array) or start == 0:
        array = np.concatenate([array[:start], np.zeros(2 * end - start, dtype=array.dtype)])
    array[start:end] = values
    return array


class Splitter:
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
        self.room = longest - len(self.first) - len(self.last)  # for the pieces of words, in a window
        if self.room < 1:
            raise ModelError(f"the encoder reads {longest} pieces at most, which leaves no room for words.")
        self.context = context
        self.known: dict[str, int] = {}  # the number of each word
        self.words = Words()
        self.kept: dict[tuple[str, ...], Pieces] = {}
        self.characters = 0  # of all sentences that were kept since all were forgotten

    def __call__(self, sentences: Sequence[Sentence]) -> list[Pieces]:
        new = list({s.words: None for s in sentences if s.words not in self.kept})
        self.characters += sum(map(len, chain.from_iterable(new)))
        if self.characters > CHARACTERS:
            self.known.clear()
        if self.characters > CHARACTERS or len(self.kept) + len(new) > KEPT:
            self.kept.clear()
            self.characters = 0
            new = list({s.words: None for s in sentences})
        if new:
            self.learn(new)
            self.kept.update(zip(new, self.laid_out(new), strict=True))
        found = [self.kept[sentence.words] for sentence in sentences]
        return self.in_context(sentences, found) if self.context else found

    def in_context(self, sentences: Sequence[Sentence], found: Sequence[Pieces]) -> list[Pieces]:
        """The same, with pieces of words around the sentences; those that need several windows stay alone."""
        pairs = zip(sentences, found, strict=True)
        given = [s.context or NOBODY if len(own.windows) == 1 else NOBODY for s, own in pairs]
        around = [(before[-self.context :], after[: self.context]) for before, after in given]
        words = list(chain.from_iterable(around))
        new = [word for word in dict.fromkeys(chain.from_iterable(words)) if word not in self.known]
        if new:
            self.characters += sum(map(len, new))
            self.learn(words)
        return [
            self.between(before, own, after) if before or after else own
            for (before, after), own in zip(around, found, strict=True)
        ]

    def between(self, before: Sequence[str], own: Pieces, after: Sequence[str]) -> Pieces:
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
        """All pieces of words that are known, in a row."""
        return self.words.pieces(self.numbers([words]))[0]

    def numbers(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """Of all words of these sentences, which are known."""
        return np.fromiter(map(self.known.__getitem__, chain.from_iterable(sentences)), np.int64)

    def learn(self, sentences: Sequence[Sequence[str]]) -> None:
        """Split the words of these sentences that are new. Of a monstrous word the first pieces must do."""
        given = dict.fromkeys(chain.from_iterable(sentences))
        new = [*filterfalse(self.known.__contains__, given)]
        if not new:
            return
        if len(self.known) + len(new) > KNOWN:
            self.known.clear()
            new = list(given)
        self.backend.no_truncation()
        self.backend.no_padding()
        most = max(1, self.room // 4)
        parts = [new[start : start + AT_ONCE] for start in range(0, len(new), AT_ONCE)]
        written = [[self.before + readable(word) for word in part] for part in parts]
        encodings = self.backend.encode_batch(written, is_pretokenized=True, add_special_tokens=False)
        found = [by_word(encoding, len(part)) for part, encoding in zip(parts, encodings, strict=True)]
        pieces = [ids[:most] or [self.unknown] for ids in chain.from_iterable(found)]
        self.words.put(len(self.known), pieces, [*map(shape_of, new)])
        self.known.update(zip(new, count(len(self.known)), strict=False))

    def laid_out(self, sentences: Sequence[Sequence[str]]) -> list[Pieces]:
        """All of these sentences, whose words are known: most have one window, and these are made together."""
        numbers = self.numbers(sentences)
        ids, sizes = self.words.pieces(numbers)  # of all words, and how many pieces each has
        shapes = self.words.shapes[numbers]
        words = np.fromiter(map(len, sentences), np.int64, len(sentences))  # of each sentence
        word_ends = np.cumsum(words)
        ends = np.cumsum(sizes)[word_ends - 1]  # of each sentence, among all pieces
        pieces = np.diff(ends, prepend=0)  # of each sentence
        cells = Cells(words, sizes, pieces, self.first, self.last)
        windows = cells.windows(ids)
        position, place, weight = cells.position, cells.place, cells.weight
        nothing = np.zeros(int(pieces.max()) + 2, dtype=np.int64)
        starts, window_starts = cells.starts, cells.window_starts
        borders = [starts, starts + pieces + 2, window_starts, window_starts + pieces + cells.special]
        made = [
            Pieces((windows[i:j],), position[a:b], nothing[: b - a], place[a:b], weight[a:b], shapes[v:w])
            for a, b, i, j, v, w in np.stack([*borders, word_ends - words, word_ends], 1).tolist()
        ]
        for s in np.flatnonzero(pieces > self.room).tolist():
            found = [self.pieces_of([word]).tolist() for word in sentences[s]]
            made[s] = self.arranged(found, made[s].shapes)
        return made

    def arranged(self, words: Sequence[Sequence[int]], shapes: np.ndarray) -> Pieces:
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
        return Pieces(tuple(ids), position, window, place, weight.astype(np.float32), shapes)


def readable(word: str) -> str:
    """The word as tokenizers bear it: not too long, and without halves of surrogate pairs."""
    word = word[:LONGEST_WORD]
    return word if word.isascii() else word.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Cells:
    """The cells of many sentences of one window each, one sentence after another, as arrays."""

    def __init__(
        self,
        words: np.ndarray,
        sizes: np.ndarray,
        pieces: np.ndarray,
        first: Sequence[int],
        last: Sequence[int],
    ):
        """How many words and `pieces` each sentence has, how many pieces each word; special pieces around them."""
        self.first, self.last, self.special = first, last, len(first) + len(last)
        sentence = np.arange(len(words))
        before = np.cumsum(pieces) - pieces  # pieces of all sentences before
        of_piece = np.repeat(sentence, pieces)  # [all pieces]
        within = np.arange(len(of_piece)) - before[of_piece]
        self.at = before[of_piece] + within + len(first) + self.special * of_piece  # of pieces, among windows
        self.window_starts = before + self.special * sentence
        self.starts = (
            before + 2 * sentence
        )  # of each sentence, among cells: those of BOS and EOS are two more

        count = len(of_piece) + 2 * len(words)
        self.position = np.zeros(count, dtype=np.int64)
        self.place = np.zeros(count, dtype=np.int64)
        self.weight = np.ones(count, dtype=np.float32)
        cell = np.arange(len(of_piece)) + 2 * of_piece + 1
        word_starts = np.cumsum(words) - words
        word = np.arange(len(sizes)) - np.repeat(word_starts, words)  # [all words] within their sentences
        self.position[cell] = np.repeat(word + 1, sizes)
        self.place[cell] = within + len(first)
        self.weight[cell] = np.repeat(1 / sizes, sizes)
        end = self.starts + pieces + 1
        self.position[end] = words + 1
        self.place[end] = pieces + self.special - 1

    def windows(self, ids: np.ndarray) -> np.ndarray:
        """The windows of all sentences, one after another, made of the pieces of all words."""
        found = np.empty(len(ids) + self.special * len(self.starts), dtype=np.int64)
        found[self.at] = ids
        for k, piece in enumerate(self.first):
            found[self.window_starts + k] = piece
        ends = np.append(self.window_starts[1:], len(found))
        for k, piece in enumerate(reversed(self.last), 1):
            found[ends - k] = piece
        return found


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
