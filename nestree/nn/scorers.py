"""Vectors -> Scores: of spans, of arcs and roots, and of labels, which are computed for selected spans.

Scores have float32 at least, whatever the precision of the encoder.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor, nn

from nestree.config import ModelSettings
from nestree.errors import ModelError
from nestree.nn.encoder import LockedDropout, Vectors
from nestree.treecrf import LexicalPotentials, PlainPotentials, Potentials, span_cells

SOFTENING = 0.1  # added to standard deviations: else the scores of one word would be ±1, without gradient
LEAKY_SLOPE = 0.1
ROTARY_BASE = 10_000.0  # the last plane rotates so many times more slowly than the first


class Labels(Protocol):
    """Scores of all labels, computed for selected spans."""

    def score_spans(self, b: Tensor, i: Tensor, j: Tensor, h: Tensor | None) -> Tensor:
        """[..., L] for spans (b, i, j), with head h if labels depend on heads."""

    def chart(self) -> Tensor:
        """[B, n + 1, n + 1, L] for all spans; only if labels do not depend on heads."""


@dataclass(frozen=True)
class Scores:
    """The scores of a batch of sentences of at most n words; those of padding are undefined."""

    lengths: Tensor  # [B]
    mention: Tensor  # [B, n + 1, n + 1, C] one score; no and yes; or none and each label
    arc: Tensor | None  # [B, n, n] head, modifier
    root: Tensor | None  # [B, n]
    labels: Labels | None  # None: one-stage
    head: Tensor | None = None  # [B, n + 1, n + 1, n] log-scores of heads, from constraints
    known: Tensor | None = None  # [B, n + 1, n + 1] spans that are entities
    known_labels: Tensor | None = None  # [B, n + 1, n + 1, L] their labels, where these are known
    forbidden: Tensor | None = None  # [B, n + 1, n + 1, C] excluded channels of spans
    head_prior: Tensor | None = None  # [B, n] log-odds that a word heads an entity, out of context

    def potentials(self, span: Tensor, temperature: float = 1.0) -> Potentials:
        """The potentials of trees with these span scores [B, n + 1, n + 1]; arcs and roots are divided."""
        if self.arc is None or self.root is None:
            return PlainPotentials(span)
        arc, root = (part if temperature == 1 else part / temperature for part in (self.arc, self.root))
        return LexicalPotentials(span, arc, root, torch.zeros_like(span), self.head)


class RotaryEmbedding(nn.Module):
    """Rotates vectors by their positions, so that products of two depend on their distance.

    Dimension d and the one half a vector further are a point in a plane, rotated by position · base^(-2d / size).
    """

    def forward(self, x: Tensor) -> Tensor:  # [B, positions, size]
        positions, size = x.shape[1:]
        exporting = torch.compiler.is_compiling()  # a graph of ONNX computes them for any number of positions
        rows = positions if exporting else 1 << (positions - 1).bit_length()
        cos, sin = (rotary_cos_sin.__wrapped__ if exporting else rotary_cos_sin)(rows, size, x.dtype, x.device)
        return torch.addcmul(x * cos[:positions], x.roll(size // 2, -1), sin[:positions])


@cache  # for good, as CUDA graphs read it
@torch.inference_mode(False)  # so that training can use it, too
def rotary_cos_sin(positions: int, size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """[positions, size] cosines, and sines with the sign that they have for each coordinate."""
    speed = ROTARY_BASE ** -(torch.arange(size // 2, dtype=torch.float64) / (size // 2))  # [size / 2]
    angle = torch.arange(positions)[:, None] * speed  # [positions, size / 2]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], -1).to(device, dtype), torch.cat([-sin, sin], -1).to(device, dtype)


class MLP(nn.Sequential):
    """One layer; with `rotary`, its outputs are rotated by their positions."""

    def __init__(self, input_size: int, size: int, dropout: float, rotary: bool = False):
        layers = [nn.Linear(input_size, size), nn.LeakyReLU(LEAKY_SLOPE), LockedDropout(dropout)]
        super().__init__(*layers, *([RotaryEmbedding()] if rotary else []))


class Biaffine(nn.Module):
    """Scores of pairs: a product of two vectors, a 1 appended to both, with a matrix for each channel."""

    def __init__(self, size: int, channels: int):
        super().__init__()
        # Not zeros: the gradients of normalized scores would be unbounded.
        self.weight = nn.Parameter(torch.empty(channels, size + 1, size + 1).normal_().div_(size))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """[B, P, size], [B, Q, size] -> all pairs [B, P, Q, channels]; terms of an appended 1 are added as biases."""
        batch, rows, size = left.shape
        matrix = self.weight.transpose(0, 1).flatten(1)  # [size + 1, C * (size + 1)]
        weight, bias = matrix[:size], matrix[size:]
        half = torch.addmm(bias, left.flatten(0, 1), weight)  # [B * P, C * (size + 1)]
        half, row_bias = half.view(batch, -1, size + 1).split([size, 1], -1)
        pairs = torch.baddbmm(row_bias, half, right.mT)  # [B, P * C, Q]
        return pairs.view(batch, rows, -1, right.shape[1]).mT

    def score_pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """[..., size], [..., size] -> elementwise pairs [..., channels]."""
        half = torch.einsum("...x,cxy->...cy", append_one(left), self.weight)
        return torch.einsum("...cy,...y->...c", half, append_one(right))


class LowRankTriaffine(nn.Module):
    """Scores of triples: three vectors, each projected to `rank` factors that are multiplied."""

    def __init__(self, size: int, rank: int, channels: int):
        super().__init__()
        sides = [nn.Linear(size, rank) for _ in range(3)]
        self.sides, self.out = nn.ModuleList(sides), nn.Linear(rank, channels)
        for side in sides:
            nn.init.normal_(side.weight, std=size**-0.5)
            nn.init.ones_(side.bias)  # so that there are terms of one, two and three vectors
        nn.init.normal_(self.out.weight, std=1 / rank)
        nn.init.zeros_(self.out.bias)

    def prepare(self, left: Tensor, right: Tensor, head: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The part that does not depend on which triples are scored."""
        return self.sides[0](left), self.sides[1](right), self.sides[2](head)

    def forward(self, left: Tensor, right: Tensor, head: Tensor) -> Tensor:
        """Prepared vectors of triples [..., rank] -> [..., channels]."""
        products = left * right * head
        if products.device.type != "cpu" or torch.compiler.is_compiling() or type(self.out) is not nn.Linear:
            return self.out(products)  # type: ignore[no-any-return]
        # With a transposed weight, and few channels, oneDNN takes up to 30 times as long.
        weight, triples = self.out.weight.T.contiguous(), products.shape[:-1]
        scores = torch.addmm(self.out.bias, products.reshape(triples.numel(), len(weight)), weight)
        return scores.view(*triples, scores.shape[-1])


class FullTriaffine(nn.Module):
    """Scores of triples by a full tensor for each channel; a 1 is appended to each vector."""

    MAX_NUMBERS = 1 << 26  # of a temporary tensor

    def __init__(self, size: int, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size + 1, size + 1, channels, size + 1).normal_().div_(size**1.5))

    def prepare(self, left: Tensor, right: Tensor, head: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return append_one(left), append_one(right), append_one(head)

    def forward(self, left: Tensor, right: Tensor, head: Tensor) -> Tensor:
        """Vectors of triples [..., size + 1] -> [..., channels]."""
        size, channels = left.shape[-1], self.weight.shape[2]
        triples = [t.reshape(-1, size) for t in torch.broadcast_tensors(left, right, head)]
        rows = max(1, self.MAX_NUMBERS // size**2)
        scores = []
        for start in range(0, max(1, len(triples[0])), rows):
            lefts, rights, heads = (t[start : start + rows] for t in triples)
            pairs = (lefts[:, :, None] * rights[:, None, :]).flatten(1)  # [rows, size²]
            half = (pairs @ self.weight.view(size * size, -1)).view(-1, channels, size)
            scores.append(torch.einsum("rcz,rz->rc", half, heads))
        shape = torch.broadcast_shapes(left.shape, right.shape, head.shape)[:-1]
        return torch.cat(scores).view(*shape, channels)


class LabelScorer(nn.Module):
    """Labels from the two ends of a span and, with `labeling = "head"`, from its head."""

    def __init__(self, input_size: int, settings: ModelSettings, labels: int):
        super().__init__()
        size, dropout, by_head = settings.label_mlp_size, settings.dropout, settings.labeling == "head"
        rotary = settings.rotary and not by_head
        self.left, self.right = (MLP(input_size, size, dropout, rotary) for _ in range(2))
        if by_head:
            self.head = MLP(input_size, size, dropout)
            self.triples: LowRankTriaffine | FullTriaffine = (
                LowRankTriaffine(size, settings.rank, labels) if settings.rank else FullTriaffine(size, labels)
            )
        else:
            self.pairs = Biaffine(size, labels)
        self.by_head = by_head

    def forward(self, vectors: Vectors) -> Labels:
        if self.by_head and vectors.words.device.type == "cpu" and torch.is_inference_mode_enabled():
            return LazyHeadLabels(vectors.label_posts, vectors.label_words, self)
        left, right = self.left(vectors.label_posts), self.right(vectors.label_posts)
        if not self.by_head:
            return SpanLabels((left, right), self.score, self.pairs)
        head = self.head(vectors.label_words[:, 1:])
        return SpanLabels(self.triples.prepare(left, right, head), self.score)

    def score(self, *parts: Tensor) -> Tensor:
        """Vectors of the parts of spans, prepared for triples, [..., size] each -> [..., L]."""
        scores: Tensor = (self.triples if self.by_head else self.pairs.score_pairs)(*parts)
        return scores


@dataclass(frozen=True)
class SpanLabels:
    """Labels from the vectors of the parts of spans: their ends and, if labels depend on them, their heads."""

    parts: Sequence[Tensor]  # left ends, right ends [B, n + 1, size], heads [B, n, size]
    score: Callable[..., Tensor]  # vectors of each part [..., size] -> [..., L]
    score_all: Callable[..., Tensor] | None = None  # all left and right ends -> [B, n + 1, n + 1, L]

    def score_spans(self, b: Tensor, i: Tensor, j: Tensor, h: Tensor | None) -> Tensor:
        places = zip(self.parts, (i, j) if h is None else (i, j, h), strict=False)
        return self.score(*(select_rows(part, b, k) for part, k in places))

    def chart(self) -> Tensor:
        if self.score_all is None:
            raise ModelError("labels that depend on heads have no chart of spans alone.")
        return self.score_all(*self.parts)


def select_rows(vectors: Tensor, b: Tensor, k: Tensor) -> Tensor:
    """vectors[b, k]; on a CPU with the same gradient in each run, as an index's is summed by threads in any order."""
    if vectors.device.type != "cpu":
        return vectors[b, k]
    return torch.nn.functional.embedding(b * vectors.shape[1] + k, vectors.flatten(0, 1))


CACHED_TRIPLES = 8192  # whose vectors stay in the cache of a CPU
MIN_LAZY_ROWS = 64  # choosing among fewer takes longer than computing all


@dataclass(frozen=True)
class LazyHeadLabels:
    """The same for CPU inference: only words and fenceposts of selected spans go through the network."""

    posts: Tensor  # [B, n + 1, D]
    words: Tensor  # [B, n + 1, D] from position 1 on
    scorer: LabelScorer

    def score_spans(self, b: Tensor, i: Tensor, j: Tensor, h: Tensor | None) -> Tensor:
        assert h is not None, "these labels depend on heads"
        parts, places = [], []
        scorer = self.scorer
        for vectors, mlp, position in (
            (self.posts, scorer.left, i),
            (self.posts, scorer.right, j),
            (self.words, scorer.head, h + 1),
        ):
            rows, vectors = b * vectors.shape[1] + position, vectors.flatten(0, 1)
            if len(vectors) > MIN_LAZY_ROWS:
                used = torch.zeros(len(vectors), dtype=torch.bool)
                used[rows] = True
                rows, vectors = (used.cumsum(0) - 1)[rows], vectors[used]
            parts.append(mlp(vectors[None])[0])
            places.append(rows)
        prepared = scorer.triples.prepare(*parts)
        places = torch.broadcast_tensors(*places)
        blocks = zip(*(place.flatten().split(CACHED_TRIPLES) for place in places), strict=True)
        scores = [scorer.score(*map(Tensor.__getitem__, prepared, block)) for block in blocks]
        return torch.cat(scores).view(*places[0].shape, scores[0].shape[-1])

    def chart(self) -> Tensor:
        raise ModelError("labels that depend on heads have no chart of spans alone.")


class HeadPrior(nn.Module):
    """Whether a word heads an entity, from its embedding without context: *mayor* often does, a comma never should."""

    def __init__(self, input_size: int):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(input_size), nn.Linear(input_size, 1)

    def forward(self, embeddings: Tensor) -> Tensor:
        """[B, n, D] -> [B, n] log-odds."""
        with torch.autocast(embeddings.device.type, enabled=False):
            scores: Tensor = self.out(self.norm(embeddings))
            return scores[..., 0]


class Scorer(nn.Module):
    """Word and fencepost vectors -> Scores."""

    def __init__(self, input_size: int, settings: ModelSettings, labels: int):
        super().__init__()
        self.settings = settings
        channels = {"score": 1, "yes-no": 2, "labels": 1 + labels}[settings.mention]
        size, dropout, rotary = settings.mlp_size, settings.dropout, settings.rotary
        self.left, self.right = (MLP(input_size, size, dropout, rotary) for _ in range(2))
        self.spans = Biaffine(size, channels)
        if settings.structure == "lexical":
            self.head, self.modifier = (MLP(input_size, size, dropout, rotary) for _ in range(2))
            self.arcs = Biaffine(size, 1)
        self.labels = None if settings.labeling == "none" else LabelScorer(input_size, settings, labels)

    def forward(self, vectors: Vectors, lengths: Tensor) -> Scores:
        with torch.autocast(vectors.posts.device.type, enabled=False):
            dtype = torch.promote_types(vectors.posts.dtype, torch.float32)
            vectors = Vectors(*(part.to(dtype) for part in vectors))
            mention = self.spans(self.left(vectors.posts), self.right(vectors.posts))  # [B, n + 1, n + 1, C]
            arc = root = None
            if self.settings.structure == "lexical":
                heads, modifiers = self.head(vectors.words), self.modifier(vectors.words)[:, 1:]
                arcs = self.arcs(heads, modifiers)[..., 0]  # [B, n + 1, n] BOS governs the root
                if self.settings.normalize:
                    cells = arc_cells(lengths, modifiers.shape[1])
                    arcs = normalize_scores(arcs, cells)
                root, arc = arcs[:, 0], arcs[:, 1:]
            if self.settings.normalize:
                cells = span_cells(lengths, mention.shape[1] - 1)
                mention = normalize_scores(mention, cells[..., None])
            return Scores(lengths, mention, arc, root, None if self.labels is None else self.labels(vectors))


def append_one(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)


def arc_cells(lengths: Tensor, n: int) -> Tensor:
    """[B, n + 1, n] where BOS, or word h in row h + 1, may govern word m."""
    post = torch.arange(n + 1, device=lengths.device)
    inside = post <= lengths[:, None, None]  # [B, 1, n + 1]
    return inside.mT & inside[..., 1:] & (post[:, None] != post[1:])


def normalize_scores(scores: Tensor, cells: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over the cells of each sentence; all else, and a single cell, becomes 0."""
    axes = tuple(range(1, scores.dim()))
    count = cells.expand_as(scores).sum(axes, keepdim=True).clamp(min=1)
    padding = ~cells
    mean = scores.masked_fill(padding, 0.0).sum(axes, keepdim=True) / count
    centered = (scores - mean).masked_fill(padding, 0.0)
    variance = centered.square().sum(axes, keepdim=True) / count
    deviation = variance.clamp(min=1e-12).sqrt()  # the gradient of the root of 0 would be infinite
    return centered / (deviation + SOFTENING)
