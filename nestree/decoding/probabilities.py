"""How likely is an entity? Everything from one run of inside and outside over all trees.

    P(entity (i, j) with label l) = P((i, j) in the tree) P(yes | (i, j)) sum_h P(h | (i, j)) P(l | (i, j), h)

P(yes) is the softmax of the mention scores and P(l) that of the label scores and of none, whose score is 0, or, where a
span may have several labels, a sigmoid of each. Both, and the scores of whole trees,
are divided by temperatures first, and label scores lose a doubt, as fits dev data: `nestree train` finds these numbers.
Where labels do not look at heads, the sum over h is P(l | (i, j)) alone; without trees, every span is there; in one
stage, the softmax over labels takes the place of P(yes) P(l).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nestree.config import Settings
from nestree.decoding.viterbi import biased, possible
from nestree.nn.scorers import Scores
from nestree.treecrf import (
    IMPOSSIBLE,
    LexicalPotentials,
    PlainPotentials,
    Potentials,
    Trees,
    log_partitions,
    span_cells,
)


class Temperatures(NamedTuple):
    """What scores are divided by before they become probabilities; and what labels lose after that."""

    mention: float = 1.0  # what a span says: no, yes
    label: float = 1.0
    tree: float = 1.0  # a tree: all of its spans, its arcs and its root
    doubt: float = 0.0  # of a label: score / temperature - doubt


NO_TEMPERATURES = Temperatures()


class SpanMarginals(NamedTuple):
    """The probabilities of all spans of a batch."""

    span: Tensor  # [B, n + 1, n + 1] P((i, j) in the tree)
    mention: Tensor  # [B, n + 1, n + 1, C] P(what it says | (i, j)); the first is no
    head: Tensor | None  # [B, n + 1, n + 1, n] P((i, j) in the tree with head h); None: not needed

    def of_trees(self, trees: Trees) -> Tensor:
        """[B, 2n - 1] of the spans of these trees; beyond the length of a sentence they mean nothing."""
        return self.span[cells_of(trees)]

    @property
    def yes(self) -> Tensor:
        """[B, n + 1, n + 1] P((i, j) is an entity); where stage one only ranks trees, P((i, j) in the tree)."""
        return self.span if self.mention.shape[-1] == 1 else self.span * (1 - self.mention[..., 0])


def cells_of(trees: Trees) -> tuple[Tensor, Tensor, Tensor]:
    """The cells of all spans of these trees, [B, 1], [B, 2n - 1] twice; beyond a sentence (-1, -1), which is none."""
    row = torch.arange(len(trees), device=trees.spans.device)[:, None]
    return row, trees.spans[..., 0], trees.spans[..., 1]


def span_marginals(scores: Scores, settings: Settings, temperatures: Temperatures) -> SpanMarginals:
    """The probabilities of spans; those of heads too, if labels look at them."""
    share, log_mention = apply_temperatures(biased(scores, settings), temperatures)
    if scores.never is not None:
        said = possible(share + log_mention, scores)  # [B, n + 1, n + 1, C]
        share, log_mention = said.logsumexp(-1, keepdim=True), said.log_softmax(-1)
    mention = log_mention.exp()
    if settings.model.structure == "none":
        cells = span_cells(scores.lengths, mention.shape[1] - 1)
        return SpanMarginals(cells.to(mention.dtype), mention, None)
    heads = settings.model.labeling == "head"
    trees = potentials(scores, share[..., 0], temperatures)
    ((_, marginals),) = log_partitions([trees], scores.lengths, [heads])
    return SpanMarginals(
        marginals.span, mention, marginals.head if isinstance(marginals, LexicalPotentials) else None
    )


def apply_temperatures(said: Tensor, temperatures: Temperatures) -> tuple[Tensor, Tensor]:
    """What a span adds to its tree, whatever it says [..., 1], and log P(it says so | span) [..., C]."""
    share = said.logsumexp(-1, keepdim=True) / temperatures.tree
    return share, (said / temperatures.mention).log_softmax(-1)


def potentials(scores: Scores, span: Tensor, temperatures: Temperatures) -> Potentials:
    """The potentials of trees whose spans score this much, and whose heads are as far as is known."""
    if scores.arc is None or scores.root is None:
        return PlainPotentials(span)
    arc, root = scores.arc / temperatures.tree, scores.root / temperatures.tree
    return LexicalPotentials(span, arc, root, torch.zeros_like(span), scores.head)


def probabilities(
    scores: Scores, settings: Settings, temperatures: Temperatures, chances: SpanMarginals, rows: Tensor
) -> Tensor:
    """[R] of entities [R, 5]: sentence, start, end, label, head."""
    if not len(rows):
        return chances.span.new_zeros(0)
    spans, where = rows[:, :3].unique(dim=0, return_inverse=True)  # a span may have several labels
    every = label_probabilities(scores, settings, temperatures, chances, spans)  # [K, L]
    return every[where, rows[:, 3]]


def label_probabilities(
    scores: Scores,
    settings: Settings,
    temperatures: Temperatures,
    chances: SpanMarginals,
    spans: Tensor,
    by_head: Tensor | None = None,
) -> Tensor:
    """[K, L] the probability that each span [K, 3] is an entity with each label.

    `by_head`: their `head_label_scores`, if they are at hand.
    """
    b, i, j = spans.unbind(1)
    if scores.labels is None:
        return chances.span[b, i, j, None] * chances.mention[b, i, j, 1:]
    if settings.model.labeling == "span":
        label = log_labels(scores.labels.of(b, i, j, None), settings, temperatures).exp()
        return chances.yes[b, i, j, None] * label
    assert chances.head is not None
    if by_head is None:
        by_head = head_label_scores(scores, spans, settings, temperatures)
    label = by_head.exp()  # [K, n, L]
    share = chances.head[b, i, j]  # [K, n] sums to P((i, j) in the tree)
    yes = 1 - chances.mention[b, i, j, 0]
    return yes[:, None] * torch.einsum("kn,knl->kl", share, label)


def log_labels(scores: Tensor, settings: Settings, temperatures: Temperatures) -> Tensor:
    """[..., L] log P(label) from label scores."""
    scores = scores / temperatures.label - temperatures.doubt
    if settings.loss.label != "softmax":
        return torch.nn.functional.logsigmoid(scores)
    none = torch.zeros_like(scores[..., :1])
    return torch.cat([none, scores], -1).log_softmax(-1)[..., 1:]


def head_label_scores(
    scores: Scores, spans: Tensor, settings: Settings, temperatures: Temperatures
) -> Tensor:
    """[K, n, L] log P(label | span, head) for every word; IMPOSSIBLE where it is not in the span."""
    assert scores.labels is not None
    b, i, j = (part[:, None] for part in spans.unbind(1))
    word = torch.arange(scores.mention.shape[1] - 1, device=spans.device).expand(len(spans), -1)  # [K, n]
    within = (i <= word) & (word < j)  # [K, n]
    if spans.device.type != "cpu":  # to count them would mean to wait for it
        label = log_labels(scores.labels.of(b, i, j, word), settings, temperatures)
        return label.masked_fill(~within[..., None], IMPOSSIBLE)
    k, h = within.nonzero().unbind(1)  # [pairs]
    pairs = log_labels(scores.labels.of(b[k, 0], i[k, 0], j[k, 0], h), settings, temperatures)
    return pairs.new_full((*word.shape, pairs.shape[-1]), IMPOSSIBLE).index_put_((k, h), pairs)
