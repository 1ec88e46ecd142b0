"""Vectors -> Scores: of spans, of arcs and roots, and of labels for the spans that are asked for.

Scores are made in float32 at least, whatever the precision of the encoder.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Protocol

import torch
from torch import Tensor, nn

from nestree.config import ModelSettings
from nestree.errors import ModelError
from nestree.nn.encoder import LockedDropout, Vectors
from nestree.treecrf import span_cells

SOFT = 0.1  # beside a standard deviation: else the scores of one word would be ±scale, and have no gradient


class Labels(Protocol):
    """The scores of all labels for the spans that are asked for."""

    def of(self, b: Tensor, i: Tensor, j: Tensor, h: Tensor | None) -> Tensor:
        """[..., L] for spans (b, i, j), with head h where labels look at heads."""

    def chart(self) -> Tensor:
        """[B, n + 1, n + 1, L] for all spans; only where labels do not look at heads."""


@dataclass(frozen=True)
class Scores:
    """What the network says about a batch of sentences of n words at most. Only cells of words mean anything."""

    lengths: Tensor  # [B]
    mention: Tensor  # [B, n + 1, n + 1, C] score alone; no, yes; or none and each label
    arc: Tensor | None  # [B, n, n] head, modifier
    root: Tensor | None  # [B, n]
    labels: Labels | None  # of spans that are asked for; None: one-stage
    head: Tensor | None = None  # [B, n + 1, n + 1, n] log-scores of heads, where something is known of them
    must: Tensor | None = None  # [B, n + 1, n + 1] spans that are known to be entities
    never: Tensor | None = None  # [B, n + 1, n + 1, C] what spans are known not to say
    head_prior: Tensor | None = None  # [B, n] log-odds that a word heads an entity, by its form alone


class RotaryEmbedding(nn.Module):
    """Turns vectors by their positions, so that products of two know how far apart they are.

    Dimension d and the one half a vector further are a point in a plane, turned by position · SLOWEST^(-2d / size).
    """

    def forward(self, x: Tensor) -> Tensor:  # [B, positions, size]
        positions, size = x.shape[1:]
        cos, sin = turns(positions, size, x.dtype, x.device)
        return torch.addcmul(x * cos, x.roll(size // 2, -1), sin)


SLOWEST = 10_000.0  # the last plane turns so many times more slowly than the first


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # whoever reads first, others may learn
def turns(positions: int, size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """[positions, size] what a point is multiplied by, and what its other coordinate is, before both are added."""
    cos, sin = table(1 << (positions - 1).bit_length(), size, dtype, device)
    return cos[:positions], sin[:positions]


@cache  # for good, as recorded passes read it
def table(positions: int, size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """What `turns` shows the beginning of, so that few are made."""
    speed = SLOWEST ** -(torch.arange(size // 2, dtype=torch.float64) / (size // 2))  # [size / 2]
    angle = torch.arange(positions)[:, None] * speed  # [positions, size / 2]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], -1).to(device, dtype), torch.cat([-sin, sin], -1).to(device, dtype)


class MLP(nn.Sequential):
    """One layer: what a scorer takes from a vector; with `rotary`, its position, too."""

    def __init__(self, given: int, size: int, dropout: float, rotary: bool = False):
        layers = [nn.Linear(given, size), nn.LeakyReLU(0.1), LockedDropout(dropout)]
        super().__init__(*layers, *([RotaryEmbedding()] if rotary else []))


class Biaffine(nn.Module):
    """The scores of pairs: a product of two vectors with a matrix for each channel. A 1 is appended to both."""

    def __init__(self, size: int, channels: int):
        super().__init__()
        # Small and random: from zero, normalised scores would have gradients without bound.
        self.weight = nn.Parameter(torch.empty(channels, size + 1, size + 1).normal_().div_(size))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """[B, P, size], [B, Q, size] -> all pairs [B, P, Q, channels]. What meets a 1 is added to the rest."""
        batch, places, size = left.shape
        matrix = self.weight.transpose(0, 1).flatten(1)  # [size + 1, C * (size + 1)]
        weight, bias = matrix.split([size, 1])
        half = torch.addmm(bias, left.flatten(0, 1), weight)  # [B * P, C * (size + 1)]
        half, alone = half.view(batch, -1, size + 1).split([size, 1], -1)
        pairs = torch.baddbmm(alone, half, right.mT)  # [B, P * C, Q]
        return pairs.view(batch, places, -1, right.shape[1]).mT

    def each(self, left: Tensor, right: Tensor) -> Tensor:
        """[..., size], [..., size] -> pairs one by one [..., channels]."""
        half = torch.einsum("...x,cxy->...cy", with_one(left), self.weight)
        return torch.einsum("...cy,...y->...c", half, with_one(right))


class LowRankTriaffine(nn.Module):
    """The scores of triples: three vectors, each brought to `rank` factors that are multiplied."""

    def __init__(self, size: int, rank: int, channels: int):
        super().__init__()
        sides = [nn.Linear(size, rank) for _ in range(3)]
        self.sides, self.out = nn.ModuleList(sides), nn.Linear(rank, channels)
        for side in sides:
            nn.init.normal_(side.weight, std=size**-0.5)
            nn.init.ones_(side.bias)  # so that each vector counts alone, in pairs, and with both others
        nn.init.normal_(self.out.weight, std=1 / rank)
        nn.init.zeros_(self.out.bias)

    def prepared(self, left: Tensor, right: Tensor, head: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What can be done before the triples are known."""
        return self.sides[0](left), self.sides[1](right), self.sides[2](head)

    def forward(self, left: Tensor, right: Tensor, head: Tensor) -> Tensor:
        """Prepared vectors of triples [..., rank] -> [..., channels]."""
        scores: Tensor = self.out(left * right * head)
        return scores


class FullTriaffine(nn.Module):
    """The scores of triples by a full tensor for each channel. A 1 is appended to each vector."""

    AT_ONCE = 1 << 26  # numbers

    def __init__(self, size: int, channels: int):
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(size + 1, size + 1, channels, size + 1).normal_().div_(size**1.5)
        )

    def prepared(self, left: Tensor, right: Tensor, head: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return with_one(left), with_one(right), with_one(head)

    def forward(self, left: Tensor, right: Tensor, head: Tensor) -> Tensor:
        """Vectors of triples [..., size + 1] -> [..., channels]."""
        size = left.shape[-1]
        triples = [t.reshape(-1, size) for t in torch.broadcast_tensors(left, right, head)]
        rows = max(1, self.AT_ONCE // size**2)
        scores = [
            self.some(*(t[start : start + rows] for t in triples))
            for start in range(0, max(1, len(triples[0])), rows)
        ]
        shape = torch.broadcast_shapes(left.shape, right.shape, head.shape)[:-1]
        return torch.cat(scores).view(*shape, self.weight.shape[2])

    def some(self, left: Tensor, right: Tensor, head: Tensor) -> Tensor:
        size, channels = left.shape[-1], self.weight.shape[2]
        pairs = (left[:, :, None] * right[:, None, :]).flatten(1)  # [rows, size²]
        half = (pairs @ self.weight.view(size * size, -1)).view(-1, channels, size)
        return torch.einsum("rcz,rz->rc", half, head)


class SpanLabels(nn.Module):
    """Labels from the two ends of a span."""

    def __init__(self, given: int, settings: ModelSettings, labels: int):
        super().__init__()
        size, dropout = settings.label_mlp_size, settings.dropout
        self.left, self.right = (MLP(given, size, dropout, settings.rotary) for _ in range(2))
        self.pairs = Biaffine(size, labels)

    def forward(self, vectors: Vectors) -> Labels:
        return LabelsOfSpans(self.left(vectors.label_posts), self.right(vectors.label_posts), self.pairs)


@dataclass(frozen=True)
class LabelsOfSpans:
    left: Tensor  # [B, n + 1, label_size]
    right: Tensor  # [B, n + 1, label_size]
    pairs: Biaffine

    def of(self, b: Tensor, i: Tensor, j: Tensor, h: Tensor | None) -> Tensor:
        return self.pairs.each(self.left[b, i], self.right[b, j])

    def chart(self) -> Tensor:
        scores: Tensor = self.pairs(self.left, self.right)
        return scores


class HeadLabels(nn.Module):
    """Labels from the two ends of a span and its head."""

    def __init__(self, given: int, settings: ModelSettings, labels: int):
        super().__init__()
        size = settings.label_mlp_size
        self.left, self.right, self.head = (MLP(given, size, settings.dropout) for _ in range(3))
        self.triples: LowRankTriaffine | FullTriaffine = (
            LowRankTriaffine(size, settings.rank, labels) if settings.rank else FullTriaffine(size, labels)
        )

    def forward(self, vectors: Vectors) -> Labels:
        left, right = self.left(vectors.label_posts), self.right(vectors.label_posts)
        head = self.head(vectors.label_words[:, 1:])
        return LabelsOfHeads(*self.triples.prepared(left, right, head), self.triples)


@dataclass(frozen=True)
class LabelsOfHeads:
    left: Tensor  # [B, n + 1, rank or label_size + 1]
    right: Tensor  # [B, n + 1, the same]
    head: Tensor  # [B, n, the same]
    triples: LowRankTriaffine | FullTriaffine

    def of(self, b: Tensor, i: Tensor, j: Tensor, h: Tensor | None) -> Tensor:
        assert h is not None, "these labels look at heads"
        scores: Tensor = self.triples(self.left[b, i], self.right[b, j], self.head[b, h])
        return scores

    def chart(self) -> Tensor:
        raise ModelError("labels that look at heads have no chart of spans alone.")


class HeadPrior(nn.Module):
    """Whether a word heads an entity, from its form alone: *mayor* often does, and a comma never should."""

    def __init__(self, given: int):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(given), nn.Linear(given, 1)

    def forward(self, forms: Tensor) -> Tensor:
        """[B, n, D] -> [B, n] log-odds."""
        with torch.autocast(forms.device.type, enabled=False):
            scores: Tensor = self.out(self.norm(forms))
            return scores[..., 0]


class Scorer(nn.Module):
    """All scores that the settings ask for."""

    def __init__(self, given: int, settings: ModelSettings, labels: int):
        super().__init__()
        self.settings = settings
        channels = {"score": 1, "yes-no": 2, "labels": 1 + labels}[settings.mention]
        size, dropout, rotary = settings.mlp_size, settings.dropout, settings.rotary
        self.left, self.right = (MLP(given, size, dropout, rotary) for _ in range(2))
        self.spans = Biaffine(size, channels)
        if settings.structure == "lexical":
            self.head, self.modifier = (MLP(given, size, dropout, rotary) for _ in range(2))
            self.arcs = Biaffine(size, 1)
        self.labels: SpanLabels | HeadLabels | None = None
        if settings.labeling != "none":
            kind = HeadLabels if settings.labeling == "head" else SpanLabels
            self.labels = kind(given, settings, labels)

    def forward(self, vectors: Vectors, lengths: Tensor) -> Scores:
        with torch.autocast(vectors.posts.device.type, enabled=False):
            dtype = torch.promote_types(vectors.posts.dtype, torch.float32)
            vectors = vectors.to(dtype)
            mention = self.spans(self.left(vectors.posts), self.right(vectors.posts))  # [B, n + 1, n + 1, C]
            arc = root = None
            if self.settings.structure == "lexical":
                heads, modifiers = self.head(vectors.words), self.modifier(vectors.words)[:, 1:]
                governed = self.arcs(heads, modifiers)[..., 0]  # [B, n + 1, n] BOS governs the root
                if self.settings.normalize:
                    cells = governed_cells(lengths, modifiers.shape[1])
                    governed = normalize_scores(governed, cells, 1.0)
                root, arc = governed[:, 0], governed[:, 1:]
            if self.settings.normalize:
                cells = span_cells(lengths, mention.shape[1] - 1)
                mention = normalize_scores(mention, cells[..., None], 1.0)
            return Scores(lengths, mention, arc, root, None if self.labels is None else self.labels(vectors))


def with_one(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)


def governed_cells(lengths: Tensor, n: int) -> Tensor:
    """[B, n + 1, n] where BOS, or word h in row h + 1, may govern word m."""
    post = torch.arange(n + 1, device=lengths.device)
    there = post <= lengths[:, None, None]  # [B, 1, n + 1]
    return there.mT & there[..., 1:] & (post[:, None] != post[1:])


def normalize_scores(scores: Tensor, cells: Tensor, scale: float) -> Tensor:
    """Mean 0 and deviation `scale` over the cells of each sentence; other cells become 0; a single cell, too."""
    axes = tuple(range(1, scores.dim()))
    count = cells.expand_as(scores).sum(axes, keepdim=True).clamp(min=1)
    beyond = ~cells
    mean = scores.masked_fill(beyond, 0.0).sum(axes, keepdim=True) / count
    centred = (scores - mean).masked_fill(beyond, 0.0)
    variance = centred.square().sum(axes, keepdim=True) / count
    deviation = variance.clamp(min=1e-12).sqrt()  # the root of 0 would have an infinite gradient
    return centred / ((deviation + SOFT) / scale)
