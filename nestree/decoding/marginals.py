"""The entities that are likeliest right: those that make the expected F1 as large as it can be.

F1 is 2 tp / (predicted + gold). The set of entities whose expected F1 is best, F, is the set that maximises the sum
of P(entity) - F / 2 over its members: an entity helps if it is likelier right than half the F1 that is reached.
That half is `decoding.threshold`; among sets that do not cross, the best is a plain tree whose spans score what
their labels gain. Heads are those of the best lexicalised tree that has these entities, given their labels and, with
`model.forms`, what the forms of words say.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from nestree.config import Settings
from nestree.decoding.best import decoding_potentials
from nestree.decoding.probabilities import (
    Temperatures,
    chances_of,
    head_label_scores,
    label_probabilities,
)
from nestree.nn.scorers import Scores
from nestree.treecrf import IMPOSSIBLE, LexicalPotentials, PlainPotentials, Trees, best_trees
from nestree.treecrf.potentials import Potentials, cell_masks

if TYPE_CHECKING:
    from nestree.decoding import Found


def search(scores: Scores, settings: Settings, temperatures: Temperatures, *, trees: bool) -> "Found":
    """Entities with their probabilities; `trees`: with trees that hold them."""
    from nestree.decoding import Found

    chances = chances_of(scores, settings, temperatures)
    threshold = settings.decoding.threshold
    cells = cell_masks(scores.lengths, scores.mention.shape[1] - 1).span
    likely = cells & (chances.yes >= threshold)  # an entity is never likelier than its span
    if scores.must is not None:
        likely = likely | scores.must
    spans = likely.nonzero()  # [K, 3]
    chance = label_probabilities(scores, settings, temperatures, chances, spans)  # [K, L]
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
    k, label = (taken & chosen[:, None]).nonzero().unbind(1)
    rows, score = torch.cat([spans[k], label[:, None]], 1), chance[k, label]  # [R, 4], [R]
    if scores.arc is None:
        head = torch.full_like(label, -1)
        tree = best_trees(around(rows, scores, settings, None), scores.lengths) if trees else None
    else:
        tree = best_trees(around(rows, scores, settings, temperatures), scores.lengths)
        head = heads_of(tree, rows)
    found = torch.cat([rows, head[:, None]], 1)
    return Found(found, score, tree if trees else None, chances.of_trees(tree) if trees and tree else None)


def best_plain_trees(gain: Tensor, spans: Tensor, scores: Scores) -> Trees:
    """The plain trees whose spans gain most."""
    chart = torch.zeros_like(scores.mention[..., 0]).index_put_(spans.unbind(1), gain)
    return best_trees(PlainPotentials(chart), scores.lengths)


def spans_of(trees: Trees, spans: Tensor, gain: Tensor) -> Tensor:
    """[K] which of the spans are in these trees and gain anything."""
    n = int(trees.spans.shape[1] + 1) // 2
    within = torch.zeros(len(trees), n + 1, n + 1, dtype=torch.bool, device=spans.device)
    i, j = trees.spans[..., 0].clamp(min=0), trees.spans[..., 1].clamp(min=0)  # cell (0, 0) is nothing
    row = torch.arange(len(i), device=i.device)[:, None].expand_as(i)
    within[row, i, j] = True
    return within[spans.unbind(1)] & (gain > 0)


def around(rows: Tensor, scores: Scores, settings: Settings, temperatures: Temperatures | None) -> Potentials:
    """The potentials of trees that hold these entities [R, 4], which pay for sharing heads, and nobody else does.

    Heads look at labels, given `temperatures`.
    """
    base = decoding_potentials(scores, settings)
    b, i, j, label = rows.unbind(1)
    n = base.span.shape[1] - 1
    span = base.span.masked_fill(crossing(b, i, j, base.span.shape), IMPOSSIBLE)
    if not isinstance(base, LexicalPotentials):
        return PlainPotentials(span)
    head, cost = base.head, torch.full_like(label, -settings.decoding.sharing, dtype=span.dtype)
    inherit = torch.zeros_like(span).index_put((b, i, j), cost)
    by_label = settings.model.labelling == "head" and temperatures is not None
    by_form = scores.forms is not None and settings.decoding.forms > 0
    if (by_label or by_form) and len(rows):
        chart = span.new_zeros(len(span), n + 1, n + 1, n)
        if by_form:
            assert scores.forms is not None
            said = settings.decoding.forms * logsigmoid(scores.forms)[b]  # [R, n]
            chart[b, i, j] = said.to(chart.dtype)  # once for each span, whatever its labels
        if by_label:
            assert temperatures is not None
            evidence = head_label_scores(scores, rows[:, :3], settings, temperatures)  # [R, n, L]
            evidence = evidence[torch.arange(len(rows), device=rows.device), :, label]
            chart.index_put_((b, i, j), evidence.to(chart.dtype), accumulate=True)
        chart.clamp_(min=IMPOSSIBLE)
        head = chart if head is None else (head + chart).clamp(min=IMPOSSIBLE)
    return base._replace(span=span, inherit=inherit, head=head)


def crossing(b: Tensor, i: Tensor, j: Tensor, shape: torch.Size) -> Tensor:
    """[batch, n + 1, n + 1] which spans cross one of these.

    Those that cross i:j are two rectangles of cells: they begin before i and end within it, or begin within it and
    end after j. Ones and minus ones at the corners of all rectangles, summed up along rows and columns, count how
    many lie over each cell.
    """
    batch, posts, _ = shape
    first, last = torch.zeros_like(i), torch.full_like(i, posts)
    top, bottom = torch.cat([first, i + 1]), torch.cat([i, j])
    left, right = torch.cat([i + 1, j + 1]), torch.cat([j, last])
    corners = torch.cat([b] * 8), torch.cat([top, top, bottom, bottom]), torch.cat([left, right, left, right])
    sign = torch.tensor([1, -1, -1, 1], dtype=torch.int32, device=i.device).repeat_interleave(len(top))
    count = sign.new_zeros(batch, posts + 1, posts + 1).index_put_(corners, sign, accumulate=True)
    return count.cumsum(1).cumsum(2)[:, :posts, :posts] > 0


def heads_of(trees: Trees, rows: Tensor) -> Tensor:
    """[R] the head that each entity has in its tree."""
    n = int(trees.spans.shape[1] + 1) // 2
    chart = torch.full((len(trees), n + 1, n + 1), -1, device=rows.device)
    i, j = trees.spans[..., 0].clamp(min=0), trees.spans[..., 1].clamp(min=0)
    row = torch.arange(len(i), device=i.device)[:, None].expand_as(i)
    chart[row, i, j] = trees.spans[..., 2]
    return chart[rows[:, 0], rows[:, 1], rows[:, 2]]
