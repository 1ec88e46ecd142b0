"""Scores and gold entities -> named losses, each a sum over the batch.

Every sum over trees is one run of inside and outside: it gives log Z, its gradient, and the marginals of the parts,
among them those of heads. All sums of a batch are computed in one launch (`log_partitions`). Nothing here synchronizes
with a GPU.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from nestree.config import Settings
from nestree.nn.batch import Gold, SoftTargets
from nestree.nn.scorers import Scores
from nestree.treecrf import (
    IMPOSSIBLE,
    LexicalPotentials,
    LogPartition,
    crossing_spans,
    entropy,
    log_partitions,
    span_cells,
    use_backend,
)

# Per word. Small, so that most of the gradient, whose norm is clipped, is that of the other losses; AdamW is invariant
# to the scale.
HEAD_PRIOR_WEIGHT = 0.02


@dataclass(frozen=True)
class Losses:
    """Sums over a batch by name. Divide by the mentions of the whole update, or by 1 if there are none.

    joint                 -log P(gold entities and their labels), summed over the trees that agree with them
    tree                  -log P(gold entities): the same without labels, whose loss is `label`
    label                 the loss of the labels of gold entities, expected over their heads
    mention               -log P(each span is an entity or not), in models without trees
    hard_negatives        the label loss of likely spans that are no entities
    head_prior            cross-entropy of the prior that a word heads an entity
    head_regularization   log Z - log Z_c: favours trees whose entities do not share heads
    entropy               minus the weighted entropy of the trees
    distillation          cross-entropy of teachers' and student's distributions over labelled trees
    kl                    a metric: the divergence that head_regularization decreases
    """

    parts: dict[str, Tensor]  # name -> sum over the batch
    metrics: dict[str, Tensor]  # name -> sum over the batch; reported, not minimized
    mentions: int  # gold spans that count

    @cached_property
    def total(self) -> Tensor:
        return torch.stack(list(self.parts.values())).sum()

    def detached(self) -> dict[str, Tensor]:
        """The total as "loss", all losses and all metrics, without gradients."""
        return {name: value.detach() for name, value in {"loss": self.total, **self.parts, **self.metrics}.items()}


def compute_losses(scores: Scores, gold: Gold, settings: Settings, soft_targets: SoftTargets | None = None) -> Losses:
    """All losses that the settings ask for (docs/model.md explains them), in float32 or better.

    `soft_targets`: the marginals of teachers, for lexicalised trees with head-aware labels.
    """
    with torch.autocast(scores.mention.device.type, enabled=False):  # label scores are computed here
        if settings.model.structure == "none":
            return span_losses(scores, gold, settings)
        return tree_losses(scores, gold, settings, soft_targets)


def tree_losses(scores: Scores, gold: Gold, settings: Settings, soft_targets: SoftTargets | None) -> Losses:
    """The losses of models with trees."""
    model, loss = settings.model, settings.loss
    used = gold.used.to(scores.mention.dtype)  # [B]
    losses: dict[str, Tensor] = {}
    metrics: dict[str, Tensor] = {}

    all_potentials = scores.potentials(scores.mention.logsumexp(-1))
    crossed = crossing_spans(gold.spans, len(scores.lengths), scores.mention.shape[1] - 1)
    crossed &= gold.used[:, None, None]  # spans of padding may cross each other
    gold_potentials = scores.potentials(gold_span_scores(scores, gold, settings).masked_fill(crossed, IMPOSSIBLE))
    head_aware = model.labeling == "head"
    pair_losses = gold_label_losses(scores, gold, settings, *gold.pairs.unbind(1)) if head_aware else None  # [M]
    if loss.joint or loss.gold_heads:
        assert isinstance(gold_potentials, LexicalPotentials)
        head_scores = gold_potentials.span.new_zeros(len(gold.pairs))  # [M]
        if loss.joint:
            assert pair_losses is not None
            head_scores = -pair_losses
        if loss.gold_heads:
            span, word = gold.pairs.unbind(1)
            wrong_head = (gold.heads[span] >= 0) & (gold.heads[span] != word)
            head_scores = head_scores.masked_fill(wrong_head, IMPOSSIBLE)
        zeros = head_scores.new_zeros(*gold_potentials.span.shape, gold_potentials.span.shape[1] - 1)
        gold_potentials = gold_potentials._replace(head=zeros.index_put(pair_cells(gold), head_scores))
    potentials = [all_potentials, gold_potentials]
    needs_head_marginals = [head_aware and loss.hard_negatives > 0, head_aware or scores.head_prior is not None]
    regularized = all_potentials if loss.regularization_space == "all" else gold_potentials
    if loss.head_sharing_penalty:
        # The same trees, which lose the penalty for each gold entity that lends its head to its parent.
        assert isinstance(regularized, LexicalPotentials)
        penalties = regularized.span.new_full((len(gold.spans),), -loss.head_sharing_penalty)
        inherit = torch.zeros_like(regularized.span).index_put(gold.spans.unbind(1), penalties)
        potentials.append(regularized._replace(inherit=inherit))
        needs_head_marginals.append(False)
    all_trees, gold_trees, *penalized = log_partitions(potentials, scores.lengths, needs_head_marginals)
    # [M] the probability that word h heads gold span g
    head_probabilities = head_marginals(gold_trees)[pair_cells(gold)] if needs_head_marginals[1] else None

    if scores.head_prior is not None:
        assert head_probabilities is not None
        b, _, _, h = pair_cells(gold)
        expected = torch.zeros_like(scores.head_prior).index_put((b, h), head_probabilities, accumulate=True)
        known = gold.complete & gold.used  # elsewhere, words may head entities that are not annotated
        losses["head_prior"] = head_prior_loss(scores.head_prior, expected, scores.lengths, known)
    if soft_targets is not None:
        losses["distillation"] = cross_entropy(scores, all_trees.log_z, soft_targets, settings)
        if scores.head_prior is not None:
            losses["head_prior"] = losses["head_prior"] + head_prior_loss(
                scores.head_prior, soft_targets.headed, scores.lengths, soft_targets.used
            )
    losses["joint" if loss.joint else "tree"] = ((all_trees.log_z - gold_trees.log_z) * used).sum()
    if pair_losses is not None and not loss.joint:
        assert head_probabilities is not None
        losses["label"] = (head_probabilities * (pair_losses * used[pair_cells(gold)[0]])).sum()
    elif model.labeling == "span" and model.mention == "score":
        losses["label"] = (chart_label_losses(scores, gold, settings) * gold_trees.marginals.span).sum()
    elif model.labeling == "span":
        losses["label"] = (gold_label_losses(scores, gold, settings) * used[gold.spans[:, 0]]).sum()
    if loss.hard_negatives:
        losses["hard_negatives"] = hard_negative_loss(scores, gold, settings, all_trees)
    if penalized:
        # log Z - log Z_c; its gradient is that of KL(p_c || p) to a constant p_c, the penalized distribution.
        log_z = (all_trees if regularized is all_potentials else gold_trees).log_z
        losses["head_regularization"] = difference = ((log_z - penalized[0].log_z) * used).sum()
        assert isinstance(penalized[0].marginals, LexicalPotentials)
        lending = penalized[0].marginals.inherit[gold.spans.unbind(1)].sum()
        metrics["kl"] = (difference - loss.head_sharing_penalty * lending).detach()
    if loss.entropy_weight:
        with use_backend("reference"):  # the only backend that can differentiate the entropy
            entropies = entropy(gold_potentials, scores.lengths)  # [B]
        # Per word, times the mentions, by which all losses are divided.
        weighted = (entropies * gold.used).sum() * gold.mentions / scores.lengths.sum()
        losses["entropy"] = -loss.entropy_weight * weighted
    return Losses(losses, metrics, gold.mentions)


def span_losses(scores: Scores, gold: Gold, settings: Settings) -> Losses:
    """The losses of models without trees: spans are independent."""
    cells = span_cells(scores.lengths, scores.mention.shape[1] - 1)  # [B, n + 1, n + 1]
    cells = cells & gold.used[:, None, None]
    mention = scores.mention.logsumexp(-1) - gold_span_scores(scores, gold, settings)
    losses = {"mention": mention.masked_fill(~cells, 0.0).sum()}
    if settings.model.labeling == "span":
        losses["label"] = (gold_label_losses(scores, gold, settings) * gold.used[gold.spans[:, 0]]).sum()
    if settings.loss.hard_negatives:
        losses["hard_negatives"] = hard_negative_loss(scores, gold, settings, None)
    return Losses(losses, {}, gold.mentions)


# Trees


def gold_span_scores(scores: Scores, gold: Gold, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1] the scores of spans that agree with the annotation.

    A gold span scores yes, or its labels; any other span scores no. If the annotation is incomplete, other spans may
    score anything, except for forbidden spans and sampled negatives, which score no.
    """
    mention = settings.model.mention
    if mention == "score":
        return scores.mention[..., 0]
    b, i, j = gold.spans.unbind(1)
    yes = scores.mention[b, i, j, 1:]  # [G, C - 1]
    if mention == "labels":
        yes = yes.masked_fill(~gold.labels, IMPOSSIBLE)
    no = scores.mention[..., 0]
    others = torch.where(negatives(scores, gold, settings), no, scores.mention.logsumexp(-1))
    return others.index_put((b, i, j), yes.logsumexp(-1))


def negatives(scores: Scores, gold: Gold, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1] the spans that are no entities unless they are gold.

    All of complete sentences. In incomplete ones, those that are forbidden, and `negative_sampling_rate` times n spans
    are sampled, of n (n + 1) / 2: few, so that few of them are entities.
    """
    complete = gold.complete[:, None, None].expand_as(scores.mention[..., 0])
    if gold.forbidden is not None:
        complete = complete.index_put(gold.forbidden.unbind(1), torch.ones_like(complete[0, 0, 0]))
    if not (gold.partial and settings.loss.negative_sampling_rate):
        return complete
    rate = 2 * settings.loss.negative_sampling_rate / (scores.lengths + 1)
    return complete | (torch.rand_like(scores.mention[..., 0]) < rate[:, None, None])


def pair_cells(gold: Gold) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(b, i, j, h) of each pair of a gold span and one of its words, [M] each."""
    b, i, j = gold.spans[gold.pairs[:, 0]].unbind(1)
    return b, i, j, gold.pairs[:, 1]


def head_marginals(trees: LogPartition) -> Tensor:
    """[B, n + 1, n + 1, n] P(span (i, j) is in the tree with head h), which `log_partitions` has computed."""
    assert isinstance(trees.marginals, LexicalPotentials)
    assert trees.marginals.head is not None
    return trees.marginals.head


def head_prior_loss(logits: Tensor, expected: Tensor, lengths: Tensor, used: Tensor) -> Tensor:
    """The cross-entropy of the head prior [B, n], given the number of entities that each word is expected to head.

    Its gradient reaches only the head prior.
    """
    losses = binary_cross_entropy_with_logits(logits, expected.clamp(max=1.0), reduction="none")  # [B, n]
    words = torch.arange(logits.shape[1], device=logits.device) < lengths[:, None]
    return HEAD_PRIOR_WEIGHT * (losses * words * used[:, None]).sum()


# Labels


def label_losses(scores: Tensor, gold: Tensor, kind: str) -> Tensor:
    """[...] the losses of label scores [..., L], given which labels are right [..., L]."""
    if kind == "sigmoid":
        return binary_cross_entropy_with_logits(scores, gold.to(scores.dtype), reduction="none").sum(-1)
    zero = torch.zeros_like(scores[..., :1])
    if kind == "softmax":  # one of the labels, or none, whose score is 0
        right = torch.cat([~gold.any(-1, keepdim=True), gold], -1)
        choices = torch.cat([zero, scores], -1)
        return choices.logsumexp(-1) - choices.masked_fill(~right, IMPOSSIBLE).logsumexp(-1)
    high = torch.cat([zero, scores.masked_fill(gold, IMPOSSIBLE)], -1).logsumexp(-1)
    low = torch.cat([zero, (-scores).masked_fill(~gold, IMPOSSIBLE)], -1).logsumexp(-1)
    return high + low


def gold_label_losses(
    scores: Scores, gold: Gold, settings: Settings, g: Tensor | None = None, h: Tensor | None = None
) -> Tensor:
    """[G] the label loss of each gold span or, for pairs of gold spans g and heads h, that of each pair [M]."""
    assert scores.labels is not None
    spans, labels = (gold.spans, gold.labels) if g is None else (gold.spans[g], gold.labels[g])
    b, i, j = spans.unbind(1)
    return label_losses(scores.labels.score_spans(b, i, j, h), labels, settings.loss.label)


def chart_label_losses(scores: Scores, gold: Gold, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1] the label loss of every span; those that are not gold have no label."""
    assert scores.labels is not None
    chart = scores.labels.chart()
    gold_labels = torch.zeros_like(chart, dtype=torch.bool).index_put(gold.spans.unbind(1), gold.labels)
    in_loss = (negatives(scores, gold, settings) | gold_labels.any(-1)) & gold.used[:, None, None]
    return label_losses(chart, gold_labels, settings.loss.label) * in_loss


def hard_negative_loss(scores: Scores, gold: Gold, settings: Settings, trees: LogPartition | None) -> Tensor:
    """The label loss of the likeliest spans that are no entities, weighted by their probabilities.

    Each sentence has `hard_negatives` spans in the label loss: its gold spans, then these.
    """
    assert scores.labels is not None
    batch, posts = scores.mention.shape[:2]
    cells = span_cells(scores.lengths, posts - 1)
    b, i, j = gold.spans.unbind(1)
    yes = (scores.mention[..., 1] - scores.mention[..., 0]).sigmoid().detach()
    probabilities = yes if trees is None else trees.marginals.span * yes
    allowed = cells & (gold.used & gold.complete)[:, None, None]
    allowed = allowed.index_put((b, i, j), torch.zeros_like(b, dtype=torch.bool))
    number = min(settings.loss.hard_negatives, posts * posts)
    weights, top = probabilities.masked_fill(~allowed, -1.0).flatten(1).topk(number)  # [B, number]
    gold_counts = torch.zeros(batch, dtype=torch.long, device=b.device).scatter_add(0, b, torch.ones_like(b))
    missing = settings.loss.hard_negatives - gold_counts
    weights = weights.clamp(min=0) * (torch.arange(number, device=b.device) < missing[:, None])
    row = torch.arange(batch, device=b.device)[:, None].expand_as(top)
    start, end = top // posts, top % posts
    if settings.model.labeling != "head":
        labels = scores.labels.score_spans(row, start, end, None)  # [B, number, L]
    else:
        word = torch.arange(posts - 1, device=b.device).expand(*top.shape, -1)  # [B, number, n]
        assert trees is not None
        joint = head_marginals(trees)[row, start, end] * yes[row, start, end, None]
        weights = joint * (weights > 0)[..., None]  # P(span) P(yes | span) P(h | span)
        labels = scores.labels.score_spans(row[..., None], start[..., None], end[..., None], word)
    no_labels = torch.zeros_like(labels, dtype=torch.bool)
    return (label_losses(labels, no_labels, settings.loss.label) * weights).sum()


# Distillation


def cross_entropy(scores: Scores, log_z: Tensor, soft_targets: SoftTargets, settings: Settings) -> Tensor:
    """-E log p(labelled tree), where p is the student's distribution and the expectation is the teachers'.

    In a labelled tree each span is an entity or not, and each entity has labels, given its head: log p is the score of
    the tree - log Z + the log-probabilities of the labels. All of these are sums over parts, so their expectations need
    only the teachers' marginals. Labels are independent given span and head, a sigmoid each; with
    `loss.label = "softmax"` a span has one of them, or none.
    """
    assert scores.arc is not None
    assert scores.root is not None
    assert scores.labels is not None
    no, yes = scores.mention.unbind(-1)
    expected = (no * soft_targets.no).sum() + (yes * soft_targets.yes).sum()
    expected = expected + (scores.arc * soft_targets.arc).sum() + (scores.root * soft_targets.root).sum()
    labels = scores.labels.score_spans(*soft_targets.entities.unbind(1))  # [K, L]
    choices = labels.logsumexp(-1, keepdim=True) if settings.loss.label == "softmax" else labels
    normalizer = softplus(choices).sum(-1)  # [K]
    label_loss = (normalizer * soft_targets.weights).sum() - (labels * soft_targets.labels).sum()
    return (log_z * soft_targets.used).sum() - expected + label_loss
