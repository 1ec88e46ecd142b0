"""Viterbi decoding: the entities of the best tree; or, without a tree, every span that scores higher as an entity."""

import torch
from torch import Tensor

from nestree.config import Settings
from nestree.decoding.mbr import argmax_mask
from nestree.decoding.probabilities import any_nan, check_label_scores, mention_scores, uses_head_prior
from nestree.nn.scorers import Scores
from nestree.treecrf import LexicalPotentials, Trees, best_trees, head_marginals, span_cells


def viterbi_search(scores: Scores, settings: Settings) -> tuple[Tensor, Trees | None]:
    """[R, 5] sentence, start, end, label and head (or -1) of each entity, and the trees they are in, if any."""
    mention = mention_scores(scores, settings)
    is_entity = mention[..., 1:].amax(-1) > mention[..., 0] if mention.shape[-1] > 1 else None
    if settings.decoding.method == "spans":
        assert is_entity is not None, "the settings exclude it"
        spans, heads = independent_spans(scores, mention, is_entity)
        return label_spans(spans, heads, scores, mention, settings), None
    # A span scores the maximum of its mention scores, and pays a penalty if it is an entity that shares its head.
    # Where heads are chosen after the entities, the penalty belongs to that choice.
    potentials = scores.potentials(mention.amax(-1))
    penalty = 0.0 if uses_head_prior(scores, settings) else settings.decoding.head_sharing_penalty
    if penalty and is_entity is not None and isinstance(potentials, LexicalPotentials):
        potentials = potentials._replace(inherit=potentials.inherit.masked_fill(is_entity, -penalty))
    trees = best_trees(potentials, scores.lengths)
    real = trees.spans[..., 0] >= 0  # [B, 2n - 1]
    row = torch.arange(len(real), device=real.device)[:, None].expand_as(real)
    if is_entity is not None:  # else labels alone decide
        i, j = trees.spans[..., 0].clamp(min=0), trees.spans[..., 1].clamp(min=0)
        real = real & is_entity[row, i, j]
    parts = trees.spans[real]  # [K, 2 or 3]
    spans = torch.cat([row[real][:, None], parts[:, :2]], 1)  # [K, 3]
    heads = parts[:, 2] if parts.shape[1] == 3 else None
    return label_spans(spans, heads, scores, mention, settings), trees


def independent_spans(scores: Scores, mention: Tensor, is_entity: Tensor) -> tuple[Tensor, Tensor | None]:
    """[K, 3] all spans that score higher as entities, and the most probable head over all trees [K]."""
    spans = (span_cells(scores.lengths, mention.shape[1] - 1) & is_entity).nonzero()
    potentials = scores.potentials(mention.logsumexp(-1))
    if not isinstance(potentials, LexicalPotentials):
        return spans, None
    b, i, j = spans.unbind(1)
    heads = head_marginals(potentials, scores.lengths)[b, i, j]  # [K, n]
    word = torch.arange(heads.shape[1], device=heads.device)
    within = (i[:, None] <= word) & (word < j[:, None])  # also for a span that is in no tree
    return spans, torch.where(within, heads, -1.0).argmax(-1)


def label_spans(spans: Tensor, heads: Tensor | None, scores: Scores, mention: Tensor, settings: Settings) -> Tensor:
    """[R, 5] sentence, start, end, label and head (or -1) of each entity."""
    b, i, j = spans.unbind(1)
    if scores.labels is None:
        label = mention[b, i, j, 1:].argmax(-1)
        k = torch.arange(len(b), device=b.device)
    else:
        label_heads = heads if settings.model.labeling == "head" else None
        label_scores = scores.labels.score_spans(b, i, j, label_heads)  # [K, L]
        nan = any_nan(label_scores)
        chosen = label_scores > 0
        best = argmax_mask(label_scores)
        if settings.loss.label == "softmax":  # at most one label
            chosen = chosen & best
        if scores.known is not None:  # a known span has at least one label
            chosen = chosen | (best & (scores.known[b, i, j] & ~chosen.any(-1))[:, None])
        k, label = chosen.nonzero().unbind(1)  # synchronizes
        check_label_scores(label_scores, spans, nan)
    head = torch.full_like(b, -1) if heads is None else heads
    return torch.cat([spans[k], label[:, None], head[k][:, None]], 1)
