"""Scores -> entities, each with its labels and, where trees have them, its head.

From the best tree, entities never cross. Without one (`decoding.tree = false`) every span that looks like an
entity is one, and they may cross.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nestree.config import Settings
from nestree.nn.scorers import Scores
from nestree.sentence import Entity
from nestree.treecrf import LexicalPotentials, PlainPotentials, Trees, best_trees, head_marginals
from nestree.treecrf.potentials import Potentials, cell_masks


class Spans(NamedTuple):
    """Spans that are entities, if they get a label."""

    b: Tensor  # [K] the sentence
    i: Tensor  # [K]
    j: Tensor  # [K]
    h: Tensor | None  # [K] the head; None: there are none


def decode(scores: Scores, settings: Settings, labels: Sequence[str]) -> list[tuple[Entity, ...]]:
    """The entities of each sentence, in the order of their starts, the longer first."""
    with torch.no_grad():
        if settings.decoding.tree:
            spans = spans_of_trees(best(scores, settings), scores, settings)
        else:
            spans = spans_alone(scores, settings)
        rows = labelled(spans, scores, settings)  # [R, 5] b, i, j, label, head or -1
    found: list[list[Entity]] = [[] for _ in range(len(scores.lengths))]
    for b, i, j, label, head in rows.tolist():
        found[b].append(Entity(i, j, labels[label], head if head >= 0 else None))
    return [tuple(sorted(each, key=lambda entity: (entity.start, -entity.end))) for each in found]


def best(scores: Scores, settings: Settings) -> Trees:
    """The best tree of each sentence."""
    return best_trees(decoding_potentials(scores, settings), scores.lengths)


def decoding_potentials(scores: Scores, settings: Settings) -> Potentials:
    """A span scores what its best answer does, and pays if it shares its head and is an entity."""
    span = biased(scores, settings).amax(-1)  # [B, n + 1, n + 1]
    if scores.arc is None or scores.root is None:
        return PlainPotentials(span)
    inherit = torch.zeros_like(span)
    if settings.decoding.sharing and settings.model.mention != "score":
        inherit = inherit.masked_fill(says_yes(scores, settings), -settings.decoding.sharing)
    return LexicalPotentials(span, scores.arc, scores.root, inherit)


def biased(scores: Scores, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1, C] what spans say, with the bias on "no"."""
    if settings.decoding.bias == 0 or settings.model.mention == "score":
        return scores.mention
    bias = torch.zeros_like(scores.mention[0, 0, 0])
    bias[0] = settings.decoding.bias
    return scores.mention + bias


def says_yes(scores: Scores, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1] does anything beat "no"?"""
    said = biased(scores, settings)
    return said[..., 1:].amax(-1) > said[..., 0]


def spans_of_trees(trees: Trees, scores: Scores, settings: Settings) -> Spans:
    """The spans of trees that say yes; all of them, if that is left to stage two."""
    real = trees.spans[..., 0] >= 0  # [B, 2n - 1]
    row = torch.arange(len(real), device=real.device)[:, None].expand_as(real)
    if settings.model.mention != "score":
        i, j = trees.spans[..., 0].clamp(min=0), trees.spans[..., 1].clamp(min=0)
        real = real & says_yes(scores, settings)[row, i, j]
    kept = trees.spans[real]  # [K, 2 or 3]
    return Spans(row[real], kept[:, 0], kept[:, 1], kept[:, 2] if kept.shape[1] == 3 else None)


def spans_alone(scores: Scores, settings: Settings) -> Spans:
    """Every span that says yes; its head is the likeliest over all trees."""
    cells = cell_masks(scores.lengths, scores.mention.shape[1] - 1).span
    b, i, j = (cells & says_yes(scores, settings)).nonzero().unbind(1)
    if scores.arc is None or scores.root is None:
        return Spans(b, i, j, None)
    span = biased(scores, settings).logsumexp(-1)
    free = LexicalPotentials(span, scores.arc, scores.root, torch.zeros_like(span))
    heads = head_marginals(free, scores.lengths)[b, i, j]  # [K, n]
    word = torch.arange(heads.shape[1], device=heads.device)
    within = (i[:, None] <= word) & (word < j[:, None])  # even if no tree at all has the span
    return Spans(b, i, j, torch.where(within, heads, -1.0).argmax(-1))


def labelled(spans: Spans, scores: Scores, settings: Settings) -> Tensor:
    """[R, 5] sentence, start, end, label and head (or -1) of each entity."""
    b, i, j, h = spans
    if scores.labels is None:
        label = biased(scores, settings)[b, i, j, 1:].argmax(-1)
        k = torch.arange(len(b), device=b.device)
    else:
        seen = h if settings.model.labelling == "head" else None
        scored = scores.labels.of(b, i, j, seen)  # [K, L]
        if settings.loss.label == "softmax":  # one label at most
            scored = torch.full_like(scored, -1.0).scatter(1, scored.argmax(1, True), scored.amax(1, True))
        k, label = (scored > 0).nonzero().unbind(1)
    head = torch.full_like(b, -1) if h is None else h
    return torch.stack([b[k], i[k], j[k], label, head[k]], -1)
