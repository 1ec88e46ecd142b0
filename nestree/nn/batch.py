"""Sentences -> Batch: everything a network needs of some sentences, as tensors, made on the host.

Gold is laid out here, too, so that a GPU never waits for Python: the spans of entities, their labels, the
words that may head them.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from nestree.errors import ModelError
from nestree.nn.features import BYTES, bytes_of, rows_of
from nestree.nn.tokenizer import PackedSubwords, SubwordTokenizer
from nestree.types import Sentence, Span, crossing_pairs

KEPT = 30_000  # sentences whose gold entities are remembered


class TensorDataclass:
    """Dataclasses of tensors that go to a device together."""

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Self:
        return self.each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        return self.each(lambda tensor: tensor.pin_memory())

    def each(self, change: Any) -> Self:
        changed: dict[str, Any] = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changed[field.name] = change(value)
            elif isinstance(value, TensorDataclass):
                changed[field.name] = value.each(change)
            elif field.name == "readings":
                changed[field.name] = tuple(reading.each(change) for reading in value)
        return dataclasses.replace(self, **changed)  # type: ignore[type-var]


@dataclass(frozen=True)
class Gold(TensorDataclass):
    """The entities of a batch. Sentences whose entities cross fit no tree and are left out, if trees are asked."""

    spans: Tensor  # [G, 3] (b, i, j), each span once
    labels: Tensor  # [G, L] bool
    pairs: Tensor  # [M, 2] (g, h): word h lies in span g
    used: Tensor  # [B] bool: the sentence counts
    complete: Tensor  # [B] bool: what is not annotated is no entity
    mentions: int  # G
    partial: bool = False  # one or more sentences are not complete


@dataclass(frozen=True)
class Targets(TensorDataclass):
    """What a student learns from its teachers: the marginals of labelled trees, averaged over teachers.

    Label probabilities are those of the likeliest entities (i, j) with head h of each sentence (training/distill.py).
    """

    used: Tensor  # [B] 1: the sentence counts, 0: it is padding
    no: Tensor  # [B, n + 1, n + 1] P((i, j) is in the tree and no entity)
    yes: Tensor  # [B, n + 1, n + 1] P((i, j) is in the tree and an entity)
    arc: Tensor  # [B, n, n] P(word h governs word m)
    root: Tensor  # [B, n] P(word h heads the sentence)
    headed: Tensor  # [B, n] the expected number of entities that word h heads
    entities: Tensor  # [K, 4] (b, i, j, h)
    weights: Tensor  # [K] P((i, j) is an entity with head h)
    labels: Tensor  # [K, L] P((i, j) is an entity with head h and has the label)


@dataclass(frozen=True)
class Batch(TensorDataclass):
    """Sentences of n words at most. Positions: 0 is BOS, w + 1 is word w, length + 1 is EOS."""

    sentences: tuple[Sentence, ...]
    sizes: tuple[int, ...]  # words of each
    longest: int  # n
    lengths: Tensor  # [B]
    pieces: Tensor  # [W, P] windows of pieces
    attention: Tensor  # [W, P] 1: a piece, 0: padding
    windows: Tensor | None  # [B, K] the windows of each sentence; None: window b is all of sentence b
    cells: Tensor  # [cells] where `pooling` is not 0, as places in one row of it all
    weights: Tensor  # [cells] what is there
    shapes: Tensor | None  # [B, n + 2]
    characters: Tensor | None  # [B, n + 2, BYTES]
    vectors: Tensor | None  # [B, n + 2] rows of the table of static vectors
    gold: Gold | None
    readings: "tuple[Batch, ...]" = ()  # the same sentences as teachers read them
    taught: Tensor | None = None  # [B] bool: teachers have a say
    targets: Targets | None = None  # what they say

    def __len__(self) -> int:
        return len(self.sentences)

    @property
    def words(self) -> int:
        return sum(self.sizes)

    @cached_property
    @torch.inference_mode(False)  # whoever reads first, others may learn
    def pooling(self) -> Tensor:
        """[B, n + 2, K * P] position = weighted sum of pieces. Made where it is used: it is large, and mostly 0."""
        pieces = self.pieces.shape[1] * (1 if self.windows is None else self.windows.shape[1])
        shape = len(self.lengths), self.longest + 2, pieces
        return self.weights.new_zeros(math.prod(shape)).index_put_((self.cells,), self.weights).view(shape)


class Collator:
    """Makes batches. It remembers the pieces of words and the gold entities of sentences it has seen."""

    def __init__(
        self,
        splitter: SubwordTokenizer,
        labels: Sequence[str],
        *,
        trees: bool,
        shapes: bool = False,
        characters: bool = False,
        vectors: Mapping[str, int] | None = None,
    ):
        self.splitter = splitter
        self.labels = {label: number for number, label in enumerate(labels)}
        self.trees, self.shapes, self.characters = trees, shapes, characters
        self.vectors = None if vectors is None else dict(vectors)
        self.kept: dict[int, Entities] = {}  # by id: each holds its sentence, so that nothing else has it

    def words(self, sentences: Sequence[Sentence]) -> Batch:
        """A batch without gold: for decoding."""
        if not sentences:
            raise ModelError("a batch needs at least one sentence, and this one has none.")
        sizes = [len(sentence.words) for sentence in sentences]
        batch, n = len(sizes), max(sizes)
        layout = self.splitter(sentences)
        ids, attention = padded_windows(layout, self.splitter.pad)
        windows, cells = pooled(layout, n, ids.shape[1])
        lengths = np.array(sizes)
        place = np.arange(n + 2)
        real = (place > 0) & (place <= lengths[:, None])  # [B, n + 2] the places of words

        shapes = vectors = characters = None
        if self.shapes:
            shapes = np.zeros((batch, n + 2), dtype=np.int64)
            shapes[real] = layout.shapes
        if self.vectors is not None:
            vectors = np.zeros((batch, n + 2), dtype=np.int64)
            for b, sentence in enumerate(sentences):
                vectors[b, 1 : sizes[b] + 1] = rows_of(sentence.words, self.vectors)
        if self.characters:
            characters = np.zeros((batch, n + 2, BYTES), dtype=np.int64)
            for b, sentence in enumerate(sentences):
                for w, word in enumerate(sentence.words, 1):
                    found = bytes_of(word)
                    characters[b, w, : len(found)] = found
        return Batch(
            tuple(sentences),
            tuple(sizes),
            n,
            torch.from_numpy(lengths),
            torch.from_numpy(ids),
            torch.from_numpy(attention),
            None if windows is None else torch.from_numpy(windows),
            torch.from_numpy(cells),
            torch.from_numpy(layout.weight),
            None if shapes is None else torch.from_numpy(shapes),
            None if characters is None else torch.from_numpy(characters),
            None if vectors is None else torch.from_numpy(vectors),
            None,
        )

    def with_gold(self, sentences: Sequence[Sentence]) -> Batch:
        """A batch with its gold entities: for training."""
        batch = self.words(sentences)
        return dataclasses.replace(batch, gold=self.gold(sentences))

    def gold(self, sentences: Sequence[Sentence]) -> Gold:
        rows = [self.entities_of(sentence) for sentence in sentences]
        counts = [len(row.spans) for row in rows]
        spans = np.empty((sum(counts), 3), dtype=np.int64)
        spans[:, 0] = np.repeat(np.arange(len(rows)), counts)
        spans[:, 1:] = np.concatenate([row.spans for row in rows])
        widths = spans[:, 2] - spans[:, 1]
        pairs = np.empty((int(widths.sum()), 2), dtype=np.int64)
        pairs[:, 0] = np.repeat(np.arange(len(spans)), widths)
        pairs[:, 1] = np.arange(len(pairs)) - np.repeat(np.cumsum(widths) - widths - spans[:, 1], widths)
        return Gold(
            torch.from_numpy(spans),
            torch.from_numpy(np.concatenate([row.labels for row in rows])),
            torch.from_numpy(pairs),
            torch.from_numpy(np.array([row.used for row in rows])),
            torch.from_numpy(np.array([sentence.complete for sentence in sentences])),
            len(spans),
            not all(sentence.complete for sentence in sentences),
        )

    def entities_of(self, sentence: Sentence) -> "Entities":
        """What is learned from a sentence; remembered, as the next epoch asks again."""
        found = self.kept.get(id(sentence))
        if found is not None and found.sentence is sentence:
            return found
        spans: dict[Span, list[int]] = {}
        used = not (self.trees and crossing_pairs(sentence.entities))
        for entity in sentence.entities if used else ():
            number = self.labels.get(entity.label)
            if number is None:
                raise ModelError(
                    f"entity {entity} of this sentence has a label that the model does not know; "
                    f"it knows {', '.join(self.labels)}: {sentence}"
                )
            spans.setdefault(entity.span, []).append(number)
        labels = np.zeros((len(spans), len(self.labels)), dtype=bool)
        for g, numbers in enumerate(spans.values()):
            labels[g, numbers] = True
        if len(self.kept) >= KEPT:
            self.kept.clear()
        made = Entities(sentence, np.array([*spans], dtype=np.int64).reshape(-1, 2), labels, used)
        self.kept[id(sentence)] = made
        return made


class Entities(NamedTuple):
    """The entities of one sentence, as they are learned from."""

    sentence: Sentence
    spans: np.ndarray  # [G, 2] (i, j), each span once
    labels: np.ndarray  # [G, L] bool
    used: bool


def padded_windows(layout: PackedSubwords, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """All windows of all sentences, and their masks: [W, P] each."""
    real = np.arange(layout.sizes.max()) < layout.sizes[:, None]  # [W, P]
    ids = np.full(real.shape, pad, dtype=np.int64)
    ids[real] = layout.ids
    return ids, real.astype(np.int64)


def pooled(layout: PackedSubwords, n: int, longest: int) -> tuple[np.ndarray | None, np.ndarray]:
    """The windows of each sentence [B, K], None if each has one, and where pieces have weights in [B, n + 2, K * P]."""
    batch, most = len(layout.windows), int(layout.windows.max())
    row = np.repeat(np.arange(batch) * (n + 2), layout.cells) + layout.position
    cells = (row * most + layout.window) * longest + layout.place
    if most == 1:
        return None, cells
    first = np.cumsum(layout.windows) - layout.windows
    number = np.arange(most)
    return np.where(number < layout.windows[:, None], first[:, None] + number, 0), cells


CELLS = 2048  # what makes words of pieces is padded to a multiple of so many weights


def pad_to_bucket(batch: Batch, padding: int, most: int) -> Batch | None:
    """The same batch in one of few shapes. None: it has no such shape.

    `padding`: the piece that stands for none. `most`: pieces that the encoder reads at once.
    """
    gold, (rows, pieces) = batch.gold, batch.pieces.shape
    if gold is None or batch.windows is not None:  # without gold, or with sentences in several windows
        return None
    more, places = room_for(rows) - rows, min(rounded(pieces, 8, 8), most)
    longest = min(places - 2, rounded(batch.longest, 8, 8))  # a word has one piece or more
    words = longest - batch.longest
    if words < 0:
        return None
    attention = pad(batch.attention, (0, places - pieces, 0, more))
    attention[rows:, 0] = 1  # a window that is not there looks at one piece, not at none
    row, cell = divided(batch.cells, (batch.longest + 2) * pieces)
    position, place = divided(cell, pieces)
    cells = (row * (longest + 2) + position) * places + place
    weights = up(len(cells), CELLS) - len(cells)
    nowhere = rows * (longest + 2) * places  # a cell of a sentence that is not there
    return replace(
        batch,
        longest=longest,
        lengths=pad(batch.lengths, (0, more), value=1),
        pieces=pad(batch.pieces, (0, places - pieces, 0, more), value=padding),
        attention=attention,
        cells=pad(cells, (0, weights), value=nowhere),
        weights=pad(batch.weights, (0, weights)),
        shapes=wider(batch.shapes, more, words),
        characters=None if batch.characters is None else pad(batch.characters, (0, 0, 0, words, 0, more)),
        vectors=wider(batch.vectors, more, words),
        gold=pad_gold(gold, rows, more, longest + 1),
        taught=None if batch.taught is None else pad(batch.taught, (0, more)),
    )


def pad_gold(gold: Gold, rows: int, more: int, posts: int) -> Gold:
    """`rows` sentences, and `more` that are not used, of so many fenceposts each."""
    spans, pairs = more_than(len(gold.spans)), more_than(len(gold.pairs))
    nowhere = no_spans(spans - len(gold.spans), rows, more, posts)
    return replace(
        gold,
        spans=torch.cat([gold.spans, nowhere]),
        labels=pad(gold.labels, (0, 0, 0, len(nowhere)), value=True),  # something can be said of it
        pairs=torch.cat([gold.pairs, no_pairs(pairs - len(gold.pairs), len(gold.spans), spans, posts - 1)]),
        used=pad(gold.used, (0, more)),
        complete=pad(gold.complete, (0, more), value=True),
    )


def no_spans(count: int, rows: int, more: int, posts: int) -> Tensor:
    """[count, 3] places in sentences that are not used; few twice, as a GPU adds up what meets in one place in turn."""
    k = torch.arange(count)
    return torch.stack([rows + k % more, k // more % posts, (k // more // posts + k + 1) % posts], 1)


def no_pairs(count: int, first: int, spans: int, words: int) -> Tensor:
    """[count, 2] spans from the first that is not used on, and their heads."""
    k = torch.arange(count)
    return torch.stack([first + k % (spans - first), k % words], 1)


def room_for(sentences: int) -> int:
    """With one at least that is not used, for what is added."""
    return rounded(sentences + 1, 2, 4)


def rounded(number: int, least: int, steps: int) -> int:
    """The next multiple of `least`, or of one of so many `steps` between two powers of 2, whichever is further apart.

    Few large numbers are left, and little is added to small ones: batches of few sentences have long ones.

    >>> [rounded(number, 2, 4) for number in (2, 5, 17, 33, 65)], [rounded(number, 8, 8) for number in (5, 60, 130)]
    ([2, 6, 20, 40, 80], [8, 64, 144])
    """
    return up(number, max(least, (1 << number.bit_length() - 1) // steps))


def up(number: int, step: int) -> int:
    """
    >>> up(16, 8), up(17, 8)
    (16, 24)
    """
    return -(-number // step) * step


def more_than(number: int) -> int:
    """The next of 256, 1024, 4096 ...: room for one more at least.

    >>> more_than(0), more_than(255), more_than(256)
    (256, 256, 1024)
    """
    return max(256, 4 ** (number.bit_length() + 1 >> 1))


def divided(numbers: Tensor, by: int) -> tuple[Tensor, Tensor]:
    return numbers // by, numbers % by


def wider(table: Tensor | None, rows: int, columns: int) -> Tensor | None:
    return None if table is None else pad(table, (0, columns, 0, rows))


BATCH_WORDS = 4_000
MAX_SENTENCE_WORDS = 200  # longer sentences are cut into windows
LONG_SENTENCE_WORDS = 90  # beyond, the cubic cost of charts limits a batch


def batches_by_length(lengths: Sequence[int], max_words: int) -> list[list[int]]:
    """Indices of sentences in batches of at most `max_words` words, padding included, the longest sentences first.

    Sentences of more than LONG_SENTENCE_WORDS words make smaller batches: the memory of their charts is cubic.

    >>> batches_by_length([3, 9, 2, 8], 18)
    [[1, 3], [0, 2]]
    """
    batches: list[list[int]] = []
    for k in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        longest = lengths[batches[-1][0]] if batches else 0
        cost = (len(batches[-1]) + 1) * longest * max(1, longest / LONG_SENTENCE_WORDS) ** 2 if batches else 0
        if batches and cost <= max_words:
            batches[-1].append(k)
        else:
            batches.append([k])
    return batches
