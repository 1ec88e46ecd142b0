"""The entities of the best tree; or, without a tree, every span that looks like one."""

from typing import NamedTuple

import torch
from torch import Tensor

from nestree.config import Settings
from nestree.nn.scorers import Scores
from nestree.treecrf import (
    IMPOSSIBLE,
    LexicalPotentials,
    PlainPotentials,
    Potentials,
    Trees,
    best_trees,
    head_marginals,
    span_cells,
)


class Spans(NamedTuple):
    """Spans that are entities, if they get a label."""

    b: Tensor  # [K] the sentence
    i: Tensor  # [K]
    j: Tensor  # [K]
    h: Tensor | None  # [K] the head; None: there are none


def viterbi_search(scores: Scores, settings: Settings) -> tuple[Tensor, Trees | None]:
    """[R, 5] sentence, start, end, label and head (or -1) of each entity, and the trees they stand in, if any."""
    if settings.decoding.method == "spans":
        return labelled(spans_alone(scores, settings), scores, settings), None
    trees = best(scores, settings)
    return labelled(spans_of_trees(trees, scores, settings), scores, settings), trees


def best(scores: Scores, settings: Settings) -> Trees:
    """The best tree of each sentence."""
    return best_trees(decoding_potentials(scores, settings), scores.lengths)


def heads_follow(scores: Scores, settings: Settings) -> bool:
    """Whether heads are chosen after the entities, with the help of the forms of words."""
    return scores.head_prior is not None and settings.decoding.head_prior_weight > 0


def decoding_potentials(scores: Scores, settings: Settings) -> Potentials:
    """A span scores what its best answer does, and pays if it is an entity that shares its head.

    Where heads are chosen after the entities, the cost of sharing belongs to that choice.
    """
    span = said(scores, settings).amax(-1)  # [B, n + 1, n + 1]
    if scores.arc is None or scores.root is None:
        return PlainPotentials(span)
    inherit = torch.zeros_like(span)
    cost = 0.0 if heads_follow(scores, settings) else settings.decoding.head_sharing_penalty
    if cost and settings.model.mention != "score":
        inherit = inherit.masked_fill(says_yes(scores, settings), -cost)
    return LexicalPotentials(span, scores.arc, scores.root, inherit, scores.head)


def said(scores: Scores, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1, C] what spans say, given what is known of them."""
    return possible(biased(scores, settings), scores)


def biased(scores: Scores, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1, C] what spans say, with the bias on "no", if nothing is known."""
    if settings.decoding.non_entity_bias == 0 or settings.model.mention == "score":
        return scores.mention
    bias = torch.zeros_like(scores.mention[0, 0, 0])
    bias[0] = settings.decoding.non_entity_bias
    return scores.mention + bias


def possible(said: Tensor, scores: Scores) -> Tensor:
    """[B, n + 1, n + 1, C] the same without what is known to be wrong."""
    return said if scores.never is None else said.masked_fill(scores.never, IMPOSSIBLE)


def says_yes(scores: Scores, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1] does anything beat "no"?"""
    every = said(scores, settings)
    return every[..., 1:].amax(-1) > every[..., 0]


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
    cells = span_cells(scores.lengths, scores.mention.shape[1] - 1)
    b, i, j = (cells & says_yes(scores, settings)).nonzero().unbind(1)
    if scores.arc is None or scores.root is None:
        return Spans(b, i, j, None)
    span = said(scores, settings).logsumexp(-1)
    free = LexicalPotentials(span, scores.arc, scores.root, torch.zeros_like(span), scores.head)
    heads = head_marginals(free, scores.lengths)[b, i, j]  # [K, n]
    word = torch.arange(heads.shape[1], device=heads.device)
    within = (i[:, None] <= word) & (word < j[:, None])  # even if no tree at all has the span
    return Spans(b, i, j, torch.where(within, heads, -1.0).argmax(-1))


def labelled(spans: Spans, scores: Scores, settings: Settings) -> Tensor:
    """[R, 5] sentence, start, end, label and head (or -1) of each entity."""
    b, i, j, h = spans
    if scores.labels is None:
        label = said(scores, settings)[b, i, j, 1:].argmax(-1)
        k = torch.arange(len(b), device=b.device)
    else:
        seen = h if settings.model.labeling == "head" else None
        scored = scores.labels.of(b, i, j, seen)  # [K, L]
        right = scored > 0
        first = torch.nn.functional.one_hot(scored.argmax(-1), scored.shape[-1]).bool()
        if settings.loss.label == "softmax":  # one label at most
            right = right & first
        if scores.must is not None:  # what is known to be an entity has a label
            right = right | (first & (scores.must[b, i, j] & ~right.any(-1))[:, None])
        k, label = right.nonzero().unbind(1)
    head = torch.full_like(b, -1) if h is None else h
    return torch.stack([b[k], i[k], j[k], label, head[k]], -1)
