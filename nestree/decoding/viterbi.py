"""Viterbi decoding: the entities of the best tree; or, without a tree, every span that scores higher as an entity."""

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


def viterbi_search(scores: Scores, settings: Settings) -> tuple[Tensor, Trees | None]:
    """[R, 5] sentence, start, end, label and head (or -1) of each entity, and the trees they are in, if any."""
    if settings.decoding.method == "spans":
        return label_spans(*independent_spans(scores, settings), scores, settings), None
    trees = best_trees(viterbi_potentials(scores, settings), scores.lengths)
    return label_spans(*tree_spans(trees, scores, settings), scores, settings), trees


def uses_head_prior(scores: Scores, settings: Settings) -> bool:
    """Whether heads are chosen after the entities, with the head prior."""
    return scores.head_prior is not None and settings.decoding.head_prior_weight > 0


def viterbi_potentials(scores: Scores, settings: Settings) -> Potentials:
    """A span scores the maximum of its mention scores, and pays a penalty if it is an entity that shares its head.

    Where heads are chosen after the entities, the penalty belongs to that choice.
    """
    span = mention_scores(scores, settings).amax(-1)  # [B, n + 1, n + 1]
    if scores.arc is None or scores.root is None:
        return PlainPotentials(span)
    inherit = torch.zeros_like(span)
    penalty = 0.0 if uses_head_prior(scores, settings) else settings.decoding.head_sharing_penalty
    if penalty and settings.model.mention != "score":
        inherit = inherit.masked_fill(is_entity(scores, settings), -penalty)
    return LexicalPotentials(span, scores.arc, scores.root, inherit, scores.head)


def mention_scores(scores: Scores, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1, C] with the non-entity bias and the constraints."""
    return mask_forbidden(biased_mention_scores(scores, settings), scores)


def biased_mention_scores(scores: Scores, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1, C] with the non-entity bias, without constraints."""
    if settings.decoding.non_entity_bias == 0 or settings.model.mention == "score":
        return scores.mention
    bias = torch.zeros_like(scores.mention[0, 0, 0])
    bias[0] = settings.decoding.non_entity_bias
    return scores.mention + bias


def mask_forbidden(mention: Tensor, scores: Scores) -> Tensor:
    return mention if scores.forbidden is None else mention.masked_fill(scores.forbidden, IMPOSSIBLE)


def is_entity(scores: Scores, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1] whether any mention class scores higher than the first, "no entity"."""
    mention = mention_scores(scores, settings)
    return mention[..., 1:].amax(-1) > mention[..., 0]


def tree_spans(trees: Trees, scores: Scores, settings: Settings) -> tuple[Tensor, Tensor | None]:
    """[K, 3] the spans of the trees that are entities if they get a label, and their heads [K]."""
    real = trees.spans[..., 0] >= 0  # [B, 2n - 1]
    row = torch.arange(len(real), device=real.device)[:, None].expand_as(real)
    if settings.model.mention != "score":  # else labels alone decide
        i, j = trees.spans[..., 0].clamp(min=0), trees.spans[..., 1].clamp(min=0)
        real = real & is_entity(scores, settings)[row, i, j]
    spans = trees.spans[real]  # [K, 2 or 3]
    heads = spans[:, 2] if spans.shape[1] == 3 else None
    return torch.cat([row[real][:, None], spans[:, :2]], 1), heads


def independent_spans(scores: Scores, settings: Settings) -> tuple[Tensor, Tensor | None]:
    """[K, 3] all spans that score higher as entities, and the most probable head over all trees [K]."""
    spans = (span_cells(scores.lengths, scores.mention.shape[1] - 1) & is_entity(scores, settings)).nonzero()
    if scores.arc is None or scores.root is None:
        return spans, None
    b, i, j = spans.unbind(1)
    span = mention_scores(scores, settings).logsumexp(-1)
    potentials = LexicalPotentials(span, scores.arc, scores.root, torch.zeros_like(span), scores.head)
    heads = head_marginals(potentials, scores.lengths)[b, i, j]  # [K, n]
    word = torch.arange(heads.shape[1], device=heads.device)
    within = (i[:, None] <= word) & (word < j[:, None])  # also for a span that is in no tree
    return spans, torch.where(within, heads, -1.0).argmax(-1)


def label_spans(spans: Tensor, heads: Tensor | None, scores: Scores, settings: Settings) -> Tensor:
    """[R, 5] sentence, start, end, label and head (or -1) of each entity."""
    b, i, j = spans.unbind(1)
    if scores.labels is None:
        label = mention_scores(scores, settings)[b, i, j, 1:].argmax(-1)
        k = torch.arange(len(b), device=b.device)
    else:
        label_scores = scores.labels.score_spans(
            b, i, j, heads if settings.model.labeling == "head" else None
        )  # [K, L]
        chosen = label_scores > 0
        best = torch.nn.functional.one_hot(label_scores.argmax(-1), label_scores.shape[-1]).bool()
        if settings.loss.label == "softmax":  # at most one label
            chosen = chosen & best
        if scores.known is not None:  # a known span has at least one label
            chosen = chosen | (best & (scores.known[b, i, j] & ~chosen.any(-1))[:, None])
        k, label = chosen.nonzero().unbind(1)
    head = torch.full_like(b, -1) if heads is None else heads
    return torch.cat([spans[k], label[:, None], head[k][:, None]], 1)
