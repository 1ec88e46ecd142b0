"""Sentences -> Batch: all tensors that the network and the losses need, made on the CPU; padding to bucket shapes.

Gold entities become tensors here, too, so that a GPU never waits for Python.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from nestree.errors import ModelError
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.types import Sentence, Span, crossing_pairs

BATCH_WORDS = 4_000
MAX_SENTENCE_WORDS = 200  # longer sentences are cut into windows
LONG_SENTENCE_WORDS = 90  # beyond, the cubic cost of charts limits a batch
CACHED_SENTENCES = 30_000  # whose gold entities are cached
POOLING_BUCKET = 2048  # the weights that pool subwords are padded to a multiple of so many


class TensorDataclass:
    """A dataclass whose tensors move to a device together."""

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Self:
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        return self.map_tensors(lambda tensor: tensor.pin_memory())

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A copy with `change` applied to each tensor, in a fixed order."""
        changed: dict[str, Any] = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changed[field.name] = change(value)
            elif isinstance(value, TensorDataclass):
                changed[field.name] = value.map_tensors(change)
            elif isinstance(value, tuple) and all(isinstance(item, TensorDataclass) for item in value):
                changed[field.name] = tuple(item.map_tensors(change) for item in value)
        return dataclasses.replace(self, **changed)  # type: ignore[type-var]


@dataclass(frozen=True)
class Gold(TensorDataclass):
    """The gold entities of a batch. For tree models, sentences with crossing entities have none, and are not `used`."""

    spans: Tensor  # [G, 3] (b, i, j), each span once
    labels: Tensor  # [G, L] bool
    heads: Tensor  # [G] the annotated head word; -1: not annotated
    pairs: Tensor  # [M, 2] (g, h): word h lies in span g
    used: Tensor  # [B] bool: the sentence is trained on
    complete: Tensor  # [B] bool: spans that are not annotated are no entities
    mentions: int  # G
    partial: bool = False  # some sentence is not complete
    forbidden: Tensor | None = None  # [F, 3] (b, i, j) of spans that are no entities; None: there are none


@dataclass(frozen=True)
class SoftTargets(TensorDataclass):
    """The marginals of labelled trees, averaged over teachers.

    Label probabilities are those of the likeliest entities (i, j) with head h of each sentence (training/distill.py).
    """

    used: Tensor  # [B] 1: the sentence is trained on, 0: it is padding
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
    """Sentences of at most n words. Positions: 0 is BOS, w + 1 is word w, length + 1 is EOS."""

    sentences: tuple[Sentence, ...]
    sizes: tuple[int, ...]  # words of each
    longest: int  # n
    lengths: Tensor  # [B]
    subwords: Tensor  # [W, P] windows of subwords
    attention_mask: Tensor  # [W, P] 1: a subword, 0: padding
    windows: Tensor | None  # [B, K] the windows of each sentence; None: window b is all of sentence b
    pooling_index: Tensor  # [cells] flat indices of the non-zero entries of `pooling`
    pooling_weights: Tensor  # [cells] the values of these entries
    shapes: Tensor | None  # [B, n + 2]
    vectors: Tensor | None  # [B, n + 2] rows of the table of static vectors
    gold: Gold | None
    teacher_batches: "tuple[Batch, ...]" = ()  # the same sentences, tokenized for each teacher
    has_soft_targets: Tensor | None = None  # [B] bool: the teachers' distribution counts
    soft_targets: SoftTargets | None = None

    def __len__(self) -> int:
        return len(self.sentences)

    @property
    def words(self) -> int:
        return sum(self.sizes)

    @cached_property
    @torch.inference_mode(False)  # so that training can use it, too
    def pooling(self) -> Tensor:
        """[B, n + 2, K * P] weights of subwords in positions; made on the device, as it is large and sparse."""
        subwords = self.subwords.shape[1] * (1 if self.windows is None else self.windows.shape[1])
        shape = len(self.lengths), self.longest + 2, subwords
        return (
            self.pooling_weights.new_zeros(math.prod(shape))
            .index_put_((self.pooling_index,), self.pooling_weights)
            .view(shape)
        )


class SentenceGold(NamedTuple):
    """The gold entities of one sentence, as arrays."""

    sentence: Sentence
    spans: np.ndarray  # [G, 2] (i, j), each span once
    labels: np.ndarray  # [G, L] bool
    heads: np.ndarray  # [G] -1: not annotated
    used: bool


class Collator:
    """Makes batches. It caches the subwords of words and the gold entities of sentences."""

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        labels: Sequence[str],
        *,
        trees: bool,
        shapes: bool = False,
        vectors: Mapping[str, int] | None = None,
    ):
        """`trees`: leave out the gold of sentences with crossing entities. `vectors`: rows of words, from 1 on."""
        self.tokenizer = tokenizer
        self.labels = {label: number for number, label in enumerate(labels)}
        self.trees, self.shapes = trees, shapes
        self.vectors = None if vectors is None else dict(vectors)
        self.gold_cache: dict[int, SentenceGold] = {}  # by id of the sentence, which the entry keeps alive

    def words(self, sentences: Sequence[Sentence]) -> Batch:
        """A batch without gold: for decoding."""
        if not sentences:
            raise ModelError("a batch needs at least one sentence, and this one has none.")
        sizes = [len(sentence.words) for sentence in sentences]
        batch, n = len(sizes), max(sizes)
        packed = self.tokenizer(sentences)

        mask = np.arange(packed.sizes.max()) < packed.sizes[:, None]  # [W, P]
        subwords = np.full(mask.shape, self.tokenizer.pad, dtype=np.int64)
        subwords[mask] = packed.ids
        windows, most_windows = None, int(packed.windows.max())
        if most_windows > 1:
            first = np.cumsum(packed.windows) - packed.windows
            number = np.arange(most_windows)
            windows = np.where(number < packed.windows[:, None], first[:, None] + number, 0)  # [B, K]
        row = np.repeat(np.arange(batch) * (n + 2), packed.cells) + packed.position
        cells = (row * most_windows + packed.window) * mask.shape[1] + packed.place

        def pad_words(values: np.ndarray | list[int]) -> Tensor:
            """[B, n + 2] one value for each word, 0 elsewhere."""
            position = np.arange(n + 2)
            table = np.zeros((batch, n + 2), dtype=np.int64)
            table[(position > 0) & (position <= np.array(sizes)[:, None])] = values
            return torch.from_numpy(table)

        vectors, rows = None, self.vectors
        if rows is not None:  # words are looked up as written, then in lower case
            known = [rows.get(w, rows.get(w.lower(), 0)) for s in sentences for w in s.words]
            vectors = pad_words(known)
        return Batch(
            sentences=tuple(sentences),
            sizes=tuple(sizes),
            longest=n,
            lengths=torch.from_numpy(np.array(sizes)),
            subwords=torch.from_numpy(subwords),
            attention_mask=torch.from_numpy(mask.astype(np.int64)),
            windows=None if windows is None else torch.from_numpy(windows),
            pooling_index=torch.from_numpy(cells),
            pooling_weights=torch.from_numpy(packed.weight),
            shapes=pad_words(packed.shapes) if self.shapes else None,
            vectors=vectors,
            gold=None,
        )

    def collate(self, sentences: Sequence[Sentence]) -> Batch:
        """A batch with its gold entities: for training."""
        return replace(self.words(sentences), gold=self.gold(sentences))

    def gold(self, sentences: Sequence[Sentence]) -> Gold:
        rows = [self.sentence_gold(sentence) for sentence in sentences]
        counts = [len(row.spans) for row in rows]
        spans = np.empty((sum(counts), 3), dtype=np.int64)
        spans[:, 0] = np.repeat(np.arange(len(rows)), counts)
        spans[:, 1:] = np.concatenate([row.spans for row in rows])
        widths = spans[:, 2] - spans[:, 1]
        pairs = np.empty((int(widths.sum()), 2), dtype=np.int64)
        pairs[:, 0] = np.repeat(np.arange(len(spans)), widths)
        pairs[:, 1] = np.arange(len(pairs)) - np.repeat(np.cumsum(widths) - widths - spans[:, 1], widths)
        complete = [sentence.complete for sentence in sentences]
        forbidden = [
            (b, i, j)
            for b, (sentence, row) in enumerate(zip(sentences, rows, strict=True))
            for i, j in (sentence.forbidden if row.used and not sentence.complete else ())
        ]
        return Gold(
            torch.from_numpy(spans),
            torch.from_numpy(np.concatenate([row.labels for row in rows])),
            torch.from_numpy(np.concatenate([row.heads for row in rows])),
            torch.from_numpy(pairs),
            torch.tensor([row.used for row in rows]),
            torch.tensor(complete),
            len(spans),
            not all(complete),
            torch.tensor(forbidden) if forbidden else None,
        )

    def sentence_gold(self, sentence: Sentence) -> SentenceGold:
        """The gold entities of a sentence, cached for the next epoch."""
        cached = self.gold_cache.get(id(sentence))
        if cached is not None and cached.sentence is sentence:
            return cached
        spans: dict[Span, list[int]] = {}
        heads: dict[Span, set[int]] = {}
        used = not (self.trees and crossing_pairs(sentence.entities))
        for entity in sentence.entities if used else ():
            number = self.labels.get(entity.label)
            if number is None:
                raise ModelError(
                    f"entity {entity} of this sentence has a label that the model does not know; "
                    f"it knows {', '.join(self.labels)}: {sentence}"
                )
            spans.setdefault(entity.span, []).append(number)
            heads.setdefault(entity.span, set()).update([] if entity.head is None else [entity.head])
        labels = np.zeros((len(spans), len(self.labels)), dtype=bool)
        for g, numbers in enumerate(spans.values()):
            labels[g, numbers] = True
        gold = SentenceGold(
            sentence,
            np.array([*spans], dtype=np.int64).reshape(-1, 2),
            labels,
            np.array(consistent_heads(heads), dtype=np.int64),
            used,
        )
        if len(self.gold_cache) >= CACHED_SENTENCES:
            self.gold_cache.clear()
        self.gold_cache[id(sentence)] = gold
        return gold


def consistent_heads(candidates: Mapping[Span, set[int]]) -> list[int]:
    """The annotated head of each span; -1 where there is none, or where no lexicalised tree has it.

    If the head of a span lies in a span inside it, it is the head of that one, too. Where two annotations contradict
    each other, neither is used.

    >>> consistent_heads({(0, 5): {1}, (0, 2): {1}, (3, 5): set()})
    [1, 1, -1]
    >>> consistent_heads({(0, 5): {4}, (3, 5): {3}})
    [-1, -1]
    """
    heads = {span: next(iter(heads)) if len(heads) == 1 else -1 for span, heads in candidates.items()}
    contradicted = {
        span
        for (i, j), outer in heads.items()
        for (k, m), inner in heads.items()
        if i <= k <= outer < m <= j and inner not in (-1, outer)
        for span in ((i, j), (k, m))
    }
    return [-1 if span in contradicted else head for span, head in heads.items()]


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


# Buckets: batches of few shapes, so that CUDA graphs can be reused


def pad_to_bucket(batch: Batch, padding: int, most: int) -> Batch | None:
    """The same batch padded to one of few shapes; None: it has no gold, or a sentence has several windows.

    `padding`: the id of the padding subword. `most`: how many subwords the encoder reads at once. The batch gets at
    least one sentence more, which is not used: all padding of gold goes there.
    """
    gold, (rows, length) = batch.gold, batch.subwords.shape
    if gold is None or batch.windows is not None:
        return None
    new_rows, new_length = bucket_size(rows + 1, 2, 4) - rows, min(bucket_size(length, 8, 8), most)
    longest = min(new_length - 2, bucket_size(batch.longest, 8, 8))  # a word has one subword or more
    new_words, new_subwords = longest - batch.longest, new_length - length
    if new_words < 0:
        return None
    attention = pad(batch.attention_mask, (0, new_subwords, 0, new_rows))
    attention[rows:, 0] = 1  # attention over no subword at all would be NaN
    position, subword = batch.pooling_index // length, batch.pooling_index % length
    row, position = position // (batch.longest + 2), position % (batch.longest + 2)
    cells = (row * (longest + 2) + position) * new_length + subword
    new_cells = -len(cells) % POOLING_BUCKET
    unused_cell = rows * (longest + 2) * new_length
    return replace(
        batch,
        longest=longest,
        lengths=pad(batch.lengths, (0, new_rows), value=1),
        subwords=pad(batch.subwords, (0, new_subwords, 0, new_rows), value=padding),
        attention_mask=attention,
        pooling_index=pad(cells, (0, new_cells), value=unused_cell),
        pooling_weights=pad(batch.pooling_weights, (0, new_cells)),
        shapes=None if batch.shapes is None else pad(batch.shapes, (0, new_words, 0, new_rows)),
        vectors=None if batch.vectors is None else pad(batch.vectors, (0, new_words, 0, new_rows)),
        gold=pad_gold(gold, rows, new_rows, longest + 1),
        has_soft_targets=None if batch.has_soft_targets is None else pad(batch.has_soft_targets, (0, new_rows)),
    )


def pad_gold(gold: Gold, rows: int, new_rows: int, posts: int) -> Gold:
    """Gold of `rows` sentences, padded with spans and pairs of `new_rows` unused sentences of `posts` fenceposts.

    These are spread over many cells: a GPU adds gradients that meet in one cell one after another.
    """

    def pad_spans(spans: Tensor) -> Tensor:  # [K, 3]
        k = torch.arange(next_capacity(len(spans)) - len(spans))
        start, end = k // new_rows % posts, (k // new_rows // posts + k + 1) % posts
        return torch.cat([spans, torch.stack([rows + k % new_rows, start, end], 1)])

    spans = pad_spans(gold.spans)
    new_spans = len(spans) - len(gold.spans)
    m = torch.arange(next_capacity(len(gold.pairs)) - len(gold.pairs))
    unused_pairs = torch.stack([len(gold.spans) + m % new_spans, m % (posts - 1)], 1)  # [new pairs, 2]
    return replace(
        gold,
        spans=spans,
        labels=pad(gold.labels, (0, 0, 0, new_spans), value=True),  # a span without labels would have no loss
        heads=pad(gold.heads, (0, new_spans), value=-1),
        pairs=torch.cat([gold.pairs, unused_pairs]),
        used=pad(gold.used, (0, new_rows)),
        complete=pad(gold.complete, (0, new_rows), value=True),
        forbidden=None if gold.forbidden is None else pad_spans(gold.forbidden),
    )


def bucket_size(number: int, least: int, steps: int) -> int:
    """The next multiple of `least`, or of one of so many `steps` between two powers of 2, whichever is larger.

    Large numbers fall into few buckets, and small ones grow little: batches of few sentences have long ones.

    >>> [bucket_size(n, 2, 4) for n in (2, 5, 17, 33, 65)], [bucket_size(n, 8, 8) for n in (5, 60, 130)]
    ([2, 6, 20, 40, 80], [8, 64, 144])
    """
    step = max(least, (1 << number.bit_length() - 1) // steps)
    return -(-number // step) * step


def next_capacity(count: int) -> int:
    """The next of 256, 1024, 4096 ... that has room for one more.

    >>> next_capacity(0), next_capacity(255), next_capacity(256)
    (256, 256, 1024)
    """
    return max(256, 1 << 2 * (count.bit_length() + 1 >> 1))
