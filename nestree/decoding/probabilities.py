"""The probability of an entity, from one inside-outside run over all trees.

    P(entity (i, j) with label l) = P((i, j) in the tree) P(yes | (i, j)) sum_h P(h | (i, j)) P(l | (i, j), h)

P(yes) is the softmax of the mention scores. P(l) is the softmax of the label scores and a 0 for "no label" or, where a
span may have several labels, a sigmoid of each. Temperatures divide both, and the scores of whole trees; label scores
lose an offset. `nestree train` fits these numbers on dev. Where labels do not depend on heads, the sum over h is
P(l | (i, j)); without trees, P((i, j) in the tree) is 1; in one stage, the softmax over labels replaces P(yes) P(l).
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from nestree.config import Settings
from nestree.errors import PotentialsError
from nestree.nn.scorers import Scores
from nestree.treecrf import IMPOSSIBLE, LexicalPotentials, Trees, head_marginals, span_cells
from nestree.treecrf import marginals as tree_marginals


class Temperatures(NamedTuple):
    """What calibrates scores before they become probabilities."""

    mention: float = 1.0
    label: float = 1.0
    tree: float = 1.0  # divides the score of a tree: its spans, arcs and root
    label_logit_offset: float = 0.0  # subtracted from a label score after its temperature


UNIT_TEMPERATURES = Temperatures()


class SpanMarginals(NamedTuple):
    """The probabilities of all spans of a batch."""

    span: Tensor  # [B, n + 1, n + 1] P((i, j) in the tree)
    mention: Tensor  # [B, n + 1, n + 1, C] P(mention class | (i, j)); the first is "no entity"
    head: Tensor | None  # [B, n + 1, n + 1, n] P((i, j) in the tree with head h); None: labels need no heads

    @property
    def entity(self) -> Tensor:
        """[B, n + 1, n + 1] P((i, j) is an entity); where mention scores only rank trees, P((i, j) in the tree)."""
        return self.span if self.mention.shape[-1] == 1 else self.span * self.mention[..., 1:].sum(-1)


def tree_cells(trees: Trees) -> tuple[Tensor, Tensor, Tensor]:
    """Chart indices of all spans of these trees, [B, 1] and twice [B, 2n - 1]; (-1, -1) beyond a sentence."""
    row = torch.arange(len(trees), device=trees.spans.device)[:, None]
    return row, trees.spans[..., 0], trees.spans[..., 1]


def biased_mention_scores(scores: Scores, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1, C] with the non-entity bias, without constraints."""
    if settings.decoding.non_entity_bias == 0 or settings.model.mention == "score":
        return scores.mention
    bias = torch.zeros_like(scores.mention[0, 0, 0])
    bias[0] = settings.decoding.non_entity_bias
    return scores.mention + bias


def mention_scores(scores: Scores, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1, C] with the non-entity bias and the constraints."""
    mention = biased_mention_scores(scores, settings)
    return mention if scores.forbidden is None else mention.masked_fill(scores.forbidden, IMPOSSIBLE)


def uses_head_prior(scores: Scores, settings: Settings) -> bool:
    """Whether heads are chosen after the entities, with the head prior."""
    return scores.head_prior is not None and settings.decoding.head_prior_weight > 0


def span_marginals(scores: Scores, settings: Settings, temperatures: Temperatures) -> SpanMarginals:
    """The probabilities of spans; those of heads too, if labels depend on them."""
    span, log_mention = apply_temperatures(biased_mention_scores(scores, settings), temperatures)
    if scores.forbidden is not None:
        joint = (span + log_mention).masked_fill(scores.forbidden, IMPOSSIBLE)  # [B, n + 1, n + 1, C]
        span, log_mention = joint.logsumexp(-1, keepdim=True), joint.log_softmax(-1)
    mention = log_mention.exp()
    if settings.model.structure == "none":
        cells = span_cells(scores.lengths, mention.shape[1] - 1)
        return SpanMarginals(cells.to(mention.dtype), mention, None)
    trees = scores.potentials(span[..., 0], temperatures.tree)
    if settings.model.labeling == "head" and isinstance(trees, LexicalPotentials):
        head = head_marginals(trees, scores.lengths)
        return SpanMarginals(head.sum(-1).clamp(max=1.0), mention, head)
    return SpanMarginals(tree_marginals(trees, scores.lengths).span, mention, None)


def apply_temperatures(mention: Tensor, temperatures: Temperatures) -> tuple[Tensor, Tensor]:
    """The log-potential of a span, summed over its mention classes [..., 1], and log P(class | span) [..., C]."""
    if mention.shape[-1] == 2:  # the same, in half the time on a CPU
        no, margin = mention[..., 0], mention[..., 1] - mention[..., 0]
        span = no + softplus(margin)
        margin = margin / temperatures.mention
        yes = log_sigmoid(margin)
        return span[..., None] / temperatures.tree, torch.stack([yes - margin, yes], -1)
    span = mention.logsumexp(-1, keepdim=True) / temperatures.tree
    return span, (mention / temperatures.mention).log_softmax(-1)


def log_sigmoid(x: Tensor) -> Tensor:
    """As PyTorch's `logsigmoid`, which wakes all CPU threads for a small tensor, too."""
    return -softplus(-x)


def entity_probabilities(
    scores: Scores, settings: Settings, temperatures: Temperatures, marginals: SpanMarginals, rows: Tensor
) -> Tensor:
    """[R] of entities [R, 5]: sentence, start, end, label, head."""
    if not len(rows):
        return marginals.span.new_zeros(0)
    spans, k = rows[:, :3].unique(dim=0, return_inverse=True)  # a span may have several labels
    return label_probabilities(scores, settings, temperatures, marginals, spans)[k, rows[:, 3]]


def label_probabilities(
    scores: Scores,
    settings: Settings,
    temperatures: Temperatures,
    marginals: SpanMarginals,
    spans: Tensor,
    by_head: Tensor | None = None,
) -> Tensor:
    """[K, L] the probability that each span [K, 3] is an entity with each label; unchecked: `check_label_scores`.

    `by_head`: their `head_label_scores`, if they are computed already.
    """
    b, i, j = spans.unbind(1)
    if scores.labels is None:
        return marginals.span[b, i, j, None] * marginals.mention[b, i, j, 1:]
    if settings.model.labeling == "span":
        label = scores.labels.score_spans(b, i, j, None)
        return marginals.entity[b, i, j, None] * label_log_probabilities(label, settings, temperatures).exp()
    assert marginals.head is not None
    if by_head is None:
        by_head = head_label_scores(scores, spans, settings, temperatures)
    is_entity = marginals.mention[b, i, j, 1:].sum(-1)  # [K]
    return is_entity[:, None] * torch.einsum("kn,knl->kl", marginals.head[b, i, j], by_head.exp())


def any_nan(values: Tensor) -> Tensor:
    """Whether a value is NaN, as a tensor on the host. Does not synchronize: read it after something else has."""
    return values.isnan().any().to("cpu", non_blocking=True)


def check_label_scores(values: Tensor, spans: Tensor, nan: Tensor | None = None) -> None:
    """Raise if one of these scores or probabilities [K, L] of spans [K, 3] is NaN.

    `nan`: their `any_nan`, taken before the last synchronization; without it, this function synchronizes.
    """
    if values.isnan().any() if nan is None else nan:
        b, i, j = spans[values.isnan().any(1)][0].tolist()
        raise PotentialsError(
            f"sentence {b} of the batch has NaN in the label scores of span ({i}, {j}). "
            "Look for a division by zero or an overflow in what computed them."
        )


def label_log_probabilities(scores: Tensor, settings: Settings, temperatures: Temperatures) -> Tensor:
    """[..., L] log P(label) from label scores."""
    scores = scores / temperatures.label - temperatures.label_logit_offset
    if settings.loss.label != "softmax":
        return log_sigmoid(scores)
    none = torch.zeros_like(scores[..., :1])
    return torch.cat([none, scores], -1).log_softmax(-1)[..., 1:]


def head_label_scores(scores: Scores, spans: Tensor, settings: Settings, temperatures: Temperatures) -> Tensor:
    """[K, n, L] log P(label | span, head) for every word; 0 outside of the span, where no tree reads it."""
    assert scores.labels is not None
    b, i, j = (column[:, None] for column in spans.unbind(1))
    word = torch.arange(scores.mention.shape[1] - 1, device=spans.device).expand(len(spans), -1)  # [K, n]
    within = (i <= word) & (word < j)  # [K, n]
    if spans.device.type != "cpu":  # nonzero would synchronize
        label = label_log_probabilities(scores.labels.score_spans(b, i, j, word), settings, temperatures)
        return label.masked_fill(~within[..., None], 0.0)
    k, h = within.nonzero().unbind(1)  # [pairs]
    pairs = scores.labels.score_spans(b[k, 0], i[k, 0], j[k, 0], h)  # [pairs, L]
    pairs = label_log_probabilities(pairs, settings, temperatures)
    return pairs.new_zeros(*word.shape, pairs.shape[-1]).index_put_((k, h), pairs)
