"""Minimum Bayes risk decoding: the entities with the highest expected F1.

F1 is 2 tp / (predicted + gold). The set of entities with the highest expected F1, F, maximises the sum of
P(entity) - F / 2 over its members: an entity helps if its probability exceeds half of the F1 that is reached. That half
is `decoding.threshold`, or a threshold for each label. Among sets that do not cross, the best is a plain tree whose
spans score the gain of their labels. Heads are those of the best lexicalised tree with these entities, given their
labels and, with `model.head_prior`, the head prior.
"""

import torch
from torch import Tensor

from nestree.config import Settings
from nestree.decoding.probabilities import (
    SpanMarginals,
    Temperatures,
    any_nan,
    check_label_scores,
    head_label_scores,
    label_probabilities,
    log_sigmoid,
    mention_scores,
    span_marginals,
    tree_cells,
    uses_head_prior,
)
from nestree.nn.scorers import Scores
from nestree.treecrf import (
    IMPOSSIBLE,
    LexicalPotentials,
    PlainPotentials,
    Potentials,
    Trees,
    best_trees,
    crossing_spans,
)

MIN_GAIN = 1e-6  # of a label: at its threshold, an entity is still better than none


def mbr_search(
    scores: Scores, settings: Settings, temperatures: Temperatures, thresholds: Tensor, *, trees: bool
) -> tuple[Tensor, Tensor, Trees | None, Tensor | None]:
    """Entities [R, 5] with head or -1, their probabilities [R], their trees, and P(span) of the trees' spans.

    `thresholds`: the lowest probability of an entity with each label, [L], or with any, [1]. There are trees if `trees`
    says so, or if there are heads.
    """
    if scores.mention.device.type == "cpu":
        from nestree.decoding import mbr_kernels  # compiles kernels

        if mbr_kernels.supports(scores, settings):
            return mbr_kernels.mbr_search(scores, settings, temperatures, thresholds)
    return torch_search(scores, settings, temperatures, thresholds, trees=trees)


def torch_search(
    scores: Scores, settings: Settings, temperatures: Temperatures, thresholds: Tensor, *, trees: bool
) -> tuple[Tensor, Tensor, Trees | None, Tensor | None]:
    """The same in tensor operations, for any scores on any device."""
    marginals = span_marginals(scores, settings, temperatures)
    spans = candidate_spans(marginals, scores, thresholds.min())  # [K, 3]
    by_head = None  # [K, n, L]
    if settings.model.labeling == "head":
        by_head = head_label_scores(scores, spans, settings, temperatures)
    probability = label_probabilities(scores, settings, temperatures, marginals, spans, by_head)  # [K, L]
    nan = any_nan(probability)
    chosen = choose_labels(spans, probability, scores, settings, thresholds)  # [K, L]
    k, label = chosen.nonzero().unbind(1)  # synchronizes
    check_label_scores(probability, spans, nan)
    rows = torch.cat([spans[k], label[:, None]], 1)  # [R, 4]
    evidence = None if by_head is None else torch.where(chosen[:, None], by_head, 0.0).sum(-1)[k]  # [R, n]
    head, tree = torch.full_like(label, -1), None
    if trees or scores.arc is not None:
        tree = best_trees(entity_potentials(rows, scores, settings, evidence), scores.lengths)
        head = head if scores.arc is None else tree_heads(tree, rows)
    in_tree = None if tree is None else marginals.span[tree_cells(tree)]
    return torch.cat([rows, head[:, None]], 1), probability[k, label], tree, in_tree


def candidate_spans(marginals: SpanMarginals, scores: Scores, threshold: Tensor | float) -> Tensor:
    """[K, 3] the spans that may reach the threshold (an entity is at most as probable as its span) or are known."""
    probability = marginals.entity  # 0 beyond a sentence
    candidate = (probability >= threshold) & (probability > 0)
    return (candidate if scores.known is None else candidate | scores.known).nonzero()


def choose_labels(
    spans: Tensor, probability: Tensor, scores: Scores, settings: Settings, thresholds: Tensor | float
) -> Tensor:
    """[K, L] which labels of which spans are entities, given their probabilities [K, L].

    `thresholds`: one for each label, [L], or one for all.
    """
    passes = (probability >= thresholds) & (probability > 0)  # never a forbidden label, even at threshold 0
    gains = torch.where(passes, (probability - thresholds).clamp(min=MIN_GAIN), 0.0)  # [K, L]
    at_most_one = settings.loss.label == "softmax" or scores.labels is None
    if at_most_one:
        gains = torch.where(argmax_mask(gains), gains, 0.0)
    chosen, gain = gains > 0, gains.sum(-1)
    if scores.known is not None:
        assert scores.known_labels is not None
        known = scores.known[spans.unbind(1)][:, None]  # [K, 1]
        labels = known & argmax_mask(probability)
        if at_most_one:
            chosen = torch.where(known, labels, chosen)
        else:
            chosen = chosen | labels | scores.known_labels[spans.unbind(1)]
        gain = gain + known[:, 0] * (1.0 + scores.mention.shape[1])  # more than all other spans together
    chart = torch.zeros_like(scores.mention[..., 0]).index_put_(spans.unbind(1), gain)
    trees = best_trees(PlainPotentials(chart), scores.lengths)
    in_tree = torch.zeros_like(chart, dtype=torch.bool)
    in_tree.index_put_(tree_cells(trees), in_tree.new_ones(()))
    return chosen & in_tree[spans.unbind(1)][:, None]


def argmax_mask(values: Tensor) -> Tensor:
    """[K, L] True at the first largest value of each row."""
    return torch.nn.functional.one_hot(values.argmax(-1), values.shape[1]).bool()


def choose_heads(rows: Tensor, scores: Scores, settings: Settings, temperatures: Temperatures) -> tuple[Tensor, Trees]:
    """These entities [R, 5] with heads chosen as MBR decoding does, and the trees that hold them."""
    rows, evidence = rows[:, :4], None
    if settings.model.labeling == "head":
        spans, k = rows[:, :3].unique(dim=0, return_inverse=True)
        by_head = head_label_scores(scores, spans, settings, temperatures)  # [K, n, L]
        chosen = torch.zeros_like(by_head[:, 0], dtype=torch.bool)  # [K, L]
        chosen[k, rows[:, 3]] = True
        evidence = torch.where(chosen[:, None], by_head, 0.0).sum(-1)[k]  # [R, n]
    tree = best_trees(entity_potentials(rows, scores, settings, evidence), scores.lengths)
    return torch.cat([rows, tree_heads(tree, rows)[:, None]], 1), tree


def entity_potentials(rows: Tensor, scores: Scores, settings: Settings, evidence: Tensor | None) -> Potentials:
    """The potentials of trees that hold these entities [R, 4]; only entities pay for sharing heads.

    `evidence`: log P(all labels of the span | word is its head), [R, n].
    """
    b, i, j, _ = rows.unbind(1)
    span = mention_scores(scores, settings).amax(-1)  # [B, n + 1, n + 1]
    span = span.masked_fill(crossing_spans(rows[:, :3], len(span), span.shape[1] - 1), IMPOSSIBLE)
    potentials, decoding = scores.potentials(span), settings.decoding
    if not isinstance(potentials, LexicalPotentials):
        return potentials
    if decoding.head_sharing_penalty:
        potentials.inherit.index_put_((b, i, j), span.new_full((), -decoding.head_sharing_penalty))
    if scores.head_prior is not None and uses_head_prior(scores, settings):
        prior = decoding.head_prior_weight * log_sigmoid(scores.head_prior)[b]  # [R, n]
        evidence = prior if evidence is None else prior + evidence
    if evidence is None or not len(rows):
        return potentials
    head = span.new_zeros(*span.shape, span.shape[1] - 1)
    head[b, i, j] = evidence.clamp(min=IMPOSSIBLE).to(head.dtype)  # once per span, whatever its labels
    return potentials._replace(head=head if scores.head is None else (scores.head + head).clamp(min=IMPOSSIBLE))


def tree_heads(trees: Trees, rows: Tensor) -> Tensor:
    """[R] the head that each entity has in its tree."""
    n = int(trees.spans.shape[1] + 1) // 2
    chart = torch.full((len(trees), n + 1, n + 1), -1, device=rows.device)
    chart[tree_cells(trees)] = trees.spans[..., 2]
    return chart[rows[:, :3].unbind(1)]
