"""Sentences -> Batch: everything a network needs of some sentences, as tensors, made on the host.

Gold is laid out here, too, so that a GPU never waits for Python: the spans of entities, their labels, the
words that may head them, and the spans that cross one of them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nestree.errors import ModelError
from nestree.nn.features import BYTES, bytes_of, rows_of, shape_of
from nestree.nn.pieces import Pieces, Splitter
from nestree.sentence import Sentence, crossing


class Movable:
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
            elif isinstance(value, Movable):
                changed[field.name] = value.each(change)
        return dataclasses.replace(self, **changed)  # type: ignore[type-var]


@dataclass(frozen=True)
class Gold(Movable):
    """The entities of a batch. Sentences whose entities cross fit no tree and are left out, if trees are asked."""

    spans: Tensor  # [G, 3] (b, i, j), each span once
    labels: Tensor  # [G, L] bool
    pairs: Tensor  # [M, 2] (g, h): word h lies in span g
    crossed: Tensor  # [B, n + 1, n + 1] bool: crosses a span of its sentence
    used: Tensor  # [B] bool: the sentence counts
    complete: Tensor  # [B] bool: what is not annotated is no entity
    mentions: int  # G


@dataclass(frozen=True)
class Batch(Movable):
    """Sentences of n words at most. Positions: 0 is BOS, w + 1 is word w, length + 1 is EOS."""

    sentences: tuple[Sentence, ...]
    sizes: tuple[int, ...]  # words of each
    lengths: Tensor  # [B]
    pieces: Tensor  # [W, P] windows of pieces
    attention: Tensor  # [W, P] 1: a piece, 0: padding
    windows: Tensor | None  # [B, K] the windows of each sentence; None: window b is all of sentence b
    pooling: Tensor  # [B, n + 2, K * P] position = weighted sum of pieces
    shapes: Tensor | None  # [B, n + 2]
    characters: Tensor | None  # [B, n + 2, BYTES]
    vectors: Tensor | None  # [B, n + 2] rows of the table of static vectors
    gold: Gold | None

    def __len__(self) -> int:
        return len(self.sentences)

    @property
    def words(self) -> int:
        return sum(self.sizes)


class Collator:
    """Makes batches. It remembers the pieces of sentences it has seen."""

    def __init__(
        self,
        splitter: Splitter,
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

    def words(self, sentences: Sequence[Sentence]) -> Batch:
        """A batch without gold: for decoding."""
        if not sentences:
            raise ModelError("a batch needs at least one sentence, and this one has none.")
        sizes = [len(sentence.words) for sentence in sentences]
        batch, n = len(sizes), max(sizes)
        pieces = self.splitter(sentences)
        ids, attention = padded_windows(pieces, self.splitter.pad)
        windows, pooling = pooled(pieces, n, ids.shape[1])

        shapes = np.zeros((batch, n + 2), dtype=np.int64) if self.shapes else None
        characters = np.zeros((batch, n + 2, BYTES), dtype=np.int64) if self.characters else None
        vectors = None if self.vectors is None else np.zeros((batch, n + 2), dtype=np.int64)
        for b, sentence in enumerate(sentences):
            if shapes is not None:
                shapes[b, 1 : sizes[b] + 1] = [shape_of(word) for word in sentence.words]
            if vectors is not None and self.vectors is not None:
                vectors[b, 1 : sizes[b] + 1] = rows_of(sentence.words, self.vectors)
            if characters is not None:
                for w, word in enumerate(sentence.words, 1):
                    found = bytes_of(word)
                    characters[b, w, : len(found)] = found
        return Batch(
            tuple(sentences),
            tuple(sizes),
            torch.tensor(sizes),
            torch.from_numpy(ids),
            torch.from_numpy(attention),
            None if windows is None else torch.from_numpy(windows),
            torch.from_numpy(pooling),
            None if shapes is None else torch.from_numpy(shapes),
            None if characters is None else torch.from_numpy(characters),
            None if vectors is None else torch.from_numpy(vectors),
            None,
        )

    def with_gold(self, sentences: Sequence[Sentence]) -> Batch:
        """A batch with its gold entities: for training."""
        batch = self.words(sentences)
        return dataclasses.replace(batch, gold=self.gold(sentences, max(batch.sizes)))

    def gold(self, sentences: Sequence[Sentence], n: int) -> Gold:
        crossed = np.zeros((len(sentences), n + 1, n + 1), dtype=bool)
        used = np.ones(len(sentences), dtype=bool)
        spans: dict[tuple[int, int, int], list[int]] = {}
        for b, sentence in enumerate(sentences):
            used[b] = not (self.trees and crossing(sentence.entities))
            if not used[b]:
                continue
            for entity in sentence.entities:
                number = self.labels.get(entity.label)
                if number is None:
                    raise ModelError(
                        f"entity {entity} of this sentence has a label that the model does not know; "
                        f"it knows {', '.join(self.labels)}: {sentence}"
                    )
                spans.setdefault((b, *entity.span), []).append(number)
        labels = np.zeros((len(spans), len(self.labels)), dtype=bool)
        pairs = []
        for g, ((b, i, j), numbers) in enumerate(spans.items()):
            labels[g, numbers] = True
            pairs += [(g, h) for h in range(i, j)]
            crossed[b, :i, i + 1 : j] = True
            crossed[b, i + 1 : j, j + 1 :] = True
        return Gold(
            torch.tensor(list(spans), dtype=torch.long).view(-1, 3),
            torch.from_numpy(labels),
            torch.tensor(pairs, dtype=torch.long).view(-1, 2),
            torch.from_numpy(crossed),
            torch.from_numpy(used),
            torch.tensor([sentence.complete for sentence in sentences]),
            len(spans),
        )


def padded_windows(pieces: Sequence[Pieces], pad: int) -> tuple[np.ndarray, np.ndarray]:
    """All windows of all sentences, and their masks: [W, P] each."""
    listed = [window for sentence in pieces for window in sentence.windows]
    longest = max(map(len, listed))
    ids = np.full((len(listed), longest), pad, dtype=np.int64)
    attention = np.zeros((len(listed), longest), dtype=np.int64)
    for row, window in enumerate(listed):
        ids[row, : len(window)] = window
        attention[row, : len(window)] = 1
    return ids, attention


def pooled(pieces: Sequence[Pieces], n: int, longest: int) -> tuple[np.ndarray | None, np.ndarray]:
    """The windows of each sentence [B, K], None if each has one, and the weights of pieces [B, n + 2, K * P]."""
    most = max(len(sentence.windows) for sentence in pieces)
    windows = np.zeros((len(pieces), most), dtype=np.int64)
    pooling = np.zeros((len(pieces), n + 2, most * longest), dtype=np.float32)
    row = 0
    for b, sentence in enumerate(pieces):
        pooling[b, sentence.position, sentence.window * longest + sentence.place] = sentence.weight
        count = len(sentence.windows)
        windows[b, :count] = range(row, row + count)
        row += count
    return (None if most == 1 else windows), pooling
