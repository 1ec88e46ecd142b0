"""The entities that are likeliest right: those that make the expected F1 as large as it can be.

F1 is 2 tp / (predicted + gold). The set of entities whose expected F1 is best, F, is the set that maximises the sum
of P(entity) - F / 2 over its members: an entity helps if it is likelier right than half the F1 that is reached.
That half is `decoding.threshold`; among sets that do not cross, the best is a plain tree whose spans score what
their labels gain. Heads are those of the best lexicalised tree that has these entities, given their labels and, with
`model.head_prior`, what the forms of words say.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from nestree.config import Settings
from nestree.decoding.probabilities import (
    SpanMarginals,
    Temperatures,
    cells_of,
    head_label_scores,
    label_probabilities,
    span_marginals,
)
from nestree.decoding.viterbi import said
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

if TYPE_CHECKING:
    from nestree.decoding import DecodedBatch


def mbr_search(
    scores: Scores, settings: Settings, temperatures: Temperatures, *, trees: bool
) -> "DecodedBatch":
    """Entities with their probabilities; `trees`: with trees that hold them."""
    from nestree.decoding import DecodedBatch

    chances = span_marginals(scores, settings, temperatures)
    threshold = settings.decoding.threshold
    spans = likely_spans(chances, scores, threshold)  # [K, 3]
    by_head = None  # [K, n, L]
    if settings.model.labeling == "head":
        by_head = head_label_scores(scores, spans, settings, temperatures)
    chance = label_probabilities(scores, settings, temperatures, chances, spans, by_head)  # [K, L]
    taken = choose(spans, chance, scores, settings, threshold)  # [K, L]
    k, label = taken.nonzero().unbind(1)
    rows, score = torch.cat([spans[k], label[:, None]], 1), chance[k, label]  # [R, 4], [R]
    if scores.arc is None:
        head = torch.full_like(label, -1)
        tree = best_trees(around(rows, scores, settings, None), scores.lengths) if trees else None
    else:
        evidence = None  # [R, n]
        if by_head is not None:
            evidence = torch.where(taken[:, None], by_head, 0.0).sum(-1)[k]
        tree = best_trees(around(rows, scores, settings, evidence), scores.lengths)
        head = heads_of(tree, rows)
    found = torch.cat([rows, head[:, None]], 1)
    return DecodedBatch(
        found, score, tree if trees else None, chances.of_trees(tree) if trees and tree else None
    )


def likely_spans(chances: SpanMarginals, scores: Scores, threshold: float) -> Tensor:
    """[K, 3] the spans that may reach the threshold: an entity is never likelier than its span."""
    yes = chances.yes  # beyond a sentence this is 0
    likely = (yes >= threshold) & (yes > 0)
    return (likely if scores.must is None else likely | scores.must).nonzero()


def choose(spans: Tensor, chance: Tensor, scores: Scores, settings: Settings, threshold: float) -> Tensor:
    """[K, L] which labels of which spans are entities, from their probabilities [K, L]."""
    taken = (chance >= threshold) & (chance > 0)  # what is forbidden is not taken, even at 0
    if settings.loss.label == "softmax" or scores.labels is None:  # one label at most
        taken = taken & (chance == chance.amax(-1, keepdim=True))
    gain = torch.where(taken, chance - threshold, 0.0).sum(-1)  # [K]
    if scores.must is not None:
        known = scores.must[spans.unbind(1)]
        best = torch.nn.functional.one_hot(chance.argmax(-1), chance.shape[1]).bool()
        taken = taken | (best & known[:, None] & ~taken.any(-1, keepdim=True))
        gain = gain + known * (1.0 + scores.mention.shape[1])  # more than all others together
    chosen = spans_of(best_plain_trees(gain, spans, scores), spans, gain)  # [K] bool
    return taken & chosen[:, None]


def with_heads(
    rows: Tensor, scores: Scores, settings: Settings, temperatures: Temperatures
) -> tuple[Tensor, Trees]:
    """These entities [R, 5] with heads chosen as for those found by marginals, and the trees that hold them."""
    rows, evidence = rows[:, :4], None
    if settings.model.labeling == "head":
        spans, k = rows[:, :3].unique(dim=0, return_inverse=True)
        by_head = head_label_scores(scores, spans, settings, temperatures)  # [K, n, L]
        taken = torch.zeros_like(by_head[:, 0], dtype=torch.bool)  # [K, L]
        taken[k, rows[:, 3]] = True
        evidence = torch.where(taken[:, None], by_head, 0.0).sum(-1)[k]  # [R, n]
    tree = best_trees(around(rows, scores, settings, evidence), scores.lengths)
    return torch.cat([rows, heads_of(tree, rows)[:, None]], 1), tree


def best_plain_trees(gain: Tensor, spans: Tensor, scores: Scores) -> Trees:
    """The plain trees whose spans gain most."""
    chart = torch.zeros_like(scores.mention[..., 0]).index_put_(spans.unbind(1), gain)
    return best_trees(PlainPotentials(chart), scores.lengths)


def spans_of(trees: Trees, spans: Tensor, gain: Tensor) -> Tensor:
    """[K] which of the spans are in these trees and gain anything."""
    n = int(trees.spans.shape[1] + 1) // 2
    within = torch.zeros(len(trees), n + 1, n + 1, dtype=torch.bool, device=spans.device)
    within.index_put_(cells_of(trees), within.new_ones(()))
    return within[spans.unbind(1)] & (gain > 0)


def around(rows: Tensor, scores: Scores, settings: Settings, evidence: Tensor | None) -> Potentials:
    """The potentials of trees that hold these entities [R, 4], which pay for sharing heads, and nobody else does.

    `evidence`: what all labels of each span say for each word as its head, [R, n].
    """
    b, i, j, _ = rows.unbind(1)
    span = said(scores, settings).amax(-1)  # [B, n + 1, n + 1]
    span = span.masked_fill(crossing_spans(rows[:, :3], len(span), span.shape[1] - 1), IMPOSSIBLE)
    if scores.arc is None or scores.root is None:
        return PlainPotentials(span)
    head, inherit = scores.head, torch.zeros_like(span)
    if settings.decoding.head_sharing_penalty:
        inherit.index_put_((b, i, j), span.new_full((), -settings.decoding.head_sharing_penalty))
    if scores.head_prior is not None and settings.decoding.head_prior_weight > 0:
        by_form = (
            settings.decoding.head_prior_weight * logsigmoid(scores.head_prior)[b]
        )  # [R, n] whatever the label
        evidence = by_form if evidence is None else by_form + evidence
    if evidence is not None and len(rows):
        chart = span.new_zeros(*span.shape, span.shape[1] - 1)
        chart[b, i, j] = evidence.clamp(min=IMPOSSIBLE).to(chart.dtype)  # once for each span
        head = chart if head is None else (head + chart).clamp(min=IMPOSSIBLE)
    return LexicalPotentials(span, scores.arc, scores.root, inherit, head)


def heads_of(trees: Trees, rows: Tensor) -> Tensor:
    """[R] the head that each entity has in its tree."""
    b, i, j, _ = rows.unbind(1)
    n = int(trees.spans.shape[1] + 1) // 2
    chart = torch.full((len(trees), n + 1, n + 1), -1, device=rows.device)
    chart[cells_of(trees)] = trees.spans[..., 2]
    return chart[b, i, j]
