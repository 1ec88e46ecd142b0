"""Scores and gold entities -> named losses, each a sum over the batch.

Every sum over trees is one run of inside and outside: it gives log Z, its gradient, and the probabilities of the parts,
among them those of heads. All sums of a batch are computed in one launch (`log_partitions`). Nothing here synchronizes
with a GPU.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from nestree.config import Settings
from nestree.nn.batch import Gold, Targets
from nestree.nn.scorers import Scores
from nestree.treecrf import (
    IMPOSSIBLE,
    LexicalPotentials,
    LogPartition,
    PlainPotentials,
    Potentials,
    crossing_spans,
    entropy,
    log_partitions,
    span_cells,
    use_backend,
)

# The weight of the loss of forms, for each word: small, so that most of the gradient, which is clipped, is for the
# rest. AdamW does not mind.
HEAD_PRIOR_WEIGHT = 0.02


@dataclass(frozen=True)
class Losses:
    """Divide by the number of mentions of the whole update before going down the gradient: never by zero."""

    parts: dict[str, Tensor]  # name -> sum over the batch
    metrics: dict[str, Tensor]  # name -> sum over the batch, a constant: not part of what is minimised
    mentions: int  # gold spans that counted

    @property
    def total(self) -> Tensor:
        return torch.stack(list(self.parts.values())).sum()


def compute(scores: Scores, gold: Gold, settings: Settings, targets: Targets | None = None) -> Losses:
    """All losses that the settings ask for (docs/model.md explains them), in float32 or better.

    `targets`: what teachers say, to be learned beside gold; for lexicalised trees, with labels that look at heads.
    """
    with torch.autocast(scores.mention.device.type, enabled=False):  # labels are scored here
        if settings.model.structure == "none":
            return without_trees(scores, gold, settings)
        return with_trees(scores, gold, settings, targets)


def with_trees(scores: Scores, gold: Gold, settings: Settings, targets: Targets | None = None) -> Losses:
    """Sums over trees, and losses weighed by them."""
    model, loss = settings.model, settings.loss
    counts = gold.used.to(scores.mention.dtype)  # [B]
    losses: dict[str, Tensor] = {}
    metrics: dict[str, Tensor] = {}

    free = potentials(scores, scores.mention.logsumexp(-1))
    crossed = crossing_spans(gold.spans, len(scores.lengths), scores.mention.shape[1] - 1)
    crossed &= gold.used[:, None, None]  # spans of padding may cross each other
    fixed = potentials(scores, gold_span_scores(scores, gold, settings).masked_fill(crossed, IMPOSSIBLE))
    need_heads = model.labeling == "head"
    wrong = pair_losses(scores, gold, settings) if need_heads else None  # [M]
    if loss.joint:
        assert isinstance(fixed, LexicalPotentials)
        assert wrong is not None
        fixed = fixed._replace(head=scatter_pairs(-wrong, scores, gold))
    several, heads = (
        [free, fixed],
        [need_heads and loss.hard_negatives > 0, need_heads or scores.head_prior is not None],
    )
    if loss.head_sharing_penalty:
        several.append(
            with_head_sharing_penalty(
                free if loss.regularization_space == "all" else fixed, gold, loss.head_sharing_penalty
            )
        )
        heads.append(False)
    all_trees, gold_trees, *dear_trees = log_partitions(several, scores.lengths, heads)
    if scores.head_prior is not None:
        losses["head_prior"] = head_prior_loss(
            scores.head_prior, scores, gold, head_probabilities(gold_trees, gold)
        )

    if targets is not None:
        losses["distillation"] = cross_entropy(scores, all_trees.log_z, targets, settings)
        if scores.head_prior is not None:
            losses["head_prior"] = losses["head_prior"] + head_word_losses(
                scores.head_prior, targets.headed, scores.lengths, targets.used
            )

    losses["joint" if loss.joint else "tree"] = ((all_trees.log_z - gold_trees.log_z) * counts).sum()
    if wrong is not None and not loss.joint:
        wrong = wrong * counts[gold.spans[gold.pairs[:, 0], 0]]
        losses["label"] = (head_probabilities(gold_trees, gold) * wrong).sum()
    elif model.labeling == "span" and model.mention == "score":
        losses["label"] = (chart_losses(scores, gold, settings) * gold_trees.marginals.span).sum()
    elif model.labeling == "span":
        losses["label"] = (span_losses(scores, gold, settings) * counts[gold.spans[:, 0]]).sum()
    if loss.hard_negatives:
        losses["hard_negatives"] = hard_negative_loss(scores, gold, settings, all_trees)
    if dear_trees:
        trees = all_trees if loss.regularization_space == "all" else gold_trees
        losses["head_regularization"], metrics["kl"] = head_regularization(
            trees, dear_trees[0], gold, loss.head_sharing_penalty
        )
    if loss.entropy_weight:
        losses["entropy"] = -loss.entropy_weight * tree_entropy(fixed, scores.lengths, gold)
    return Losses(losses, metrics, gold.mentions)


def without_trees(scores: Scores, gold: Gold, settings: Settings) -> Losses:
    """Each span decides for itself."""
    cells = span_cells(scores.lengths, scores.mention.shape[1] - 1)  # [B, n + 1, n + 1]
    cells = cells & gold.used[:, None, None]
    each = scores.mention.logsumexp(-1) - gold_span_scores(scores, gold, settings)
    losses = {"mention": each.masked_fill(~cells, 0.0).sum()}
    if settings.model.labeling == "span":
        losses["label"] = (span_losses(scores, gold, settings) * gold.used[gold.spans[:, 0]]).sum()
    if settings.loss.hard_negatives:
        losses["hard_negatives"] = hard_negative_loss(scores, gold, settings, None)
    return Losses(losses, {}, gold.mentions)


# Trees


def potentials(scores: Scores, span: Tensor) -> Potentials:
    """The potentials of trees whose spans score this much."""
    if scores.arc is None or scores.root is None:
        return PlainPotentials(span)
    return LexicalPotentials(span, scores.arc, scores.root, torch.zeros_like(span))


def gold_span_scores(scores: Scores, gold: Gold, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1] the scores of spans if all that is annotated is true.

    An entity says yes, or one of its labels; any other span says no. If the annotation is not complete, it may
    say anything, unless it is drawn to say no.
    """
    mention = settings.model.mention
    if mention == "score":
        return scores.mention[..., 0]
    b, i, j = gold.spans.unbind(1)
    said = scores.mention[b, i, j, 1:]  # [G, C - 1]
    if mention == "labels":
        said = said.masked_fill(~gold.labels, IMPOSSIBLE)
    no = scores.mention[..., 0]
    elsewhere = torch.where(
        gold.complete[:, None, None] | sampled_negatives(scores, gold, settings),
        no,
        scores.mention.logsumexp(-1),
    )
    return elsewhere.index_put((b, i, j), said.logsumexp(-1))


def sampled_negatives(scores: Scores, gold: Gold, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1] the spans that are guessed to be no entities: few, so that few of them are wrong.

    A sentence of n words has n (n + 1) / 2 spans, of which `guesses` times n are drawn, each time others.
    """
    spans = scores.mention[..., 0]
    if not (gold.partial and settings.loss.negative_sampling_rate):
        return torch.zeros_like(spans, dtype=torch.bool)
    chance = 2 * settings.loss.negative_sampling_rate / (scores.lengths + 1)
    return torch.rand_like(spans) < chance[:, None, None]


def head_of(given: Potentials) -> Tensor | None:
    return given.head if isinstance(given, LexicalPotentials) else None


def head_probabilities(trees: LogPartition, gold: Gold) -> Tensor:
    """[M] the probability that word h heads span g, for all pairs."""
    heads = head_of(trees.marginals)
    assert heads is not None
    b, i, j = gold.spans[gold.pairs[:, 0]].unbind(1)
    return heads[b, i, j, gold.pairs[:, 1]]


def scatter_pairs(values: Tensor, scores: Scores, gold: Gold) -> Tensor:
    """[B, n + 1, n + 1, n] the values [M] at gold spans and the words that may head them; else 0."""
    posts = scores.mention.shape[1]
    b, i, j = gold.spans[gold.pairs[:, 0]].unbind(1)
    nothing = values.new_zeros(len(scores.lengths), posts, posts, posts - 1)
    return nothing.index_put((b, i, j, gold.pairs[:, 1]), values)


def with_head_sharing_penalty(given: Potentials, gold: Gold, cost: float) -> LexicalPotentials:
    """The same trees, which lose `cost` for each gold entity that lends its head."""
    assert isinstance(given, LexicalPotentials)
    b, i, j = gold.spans.unbind(1)
    costs = given.span.new_full((len(b),), -cost)
    return given._replace(inherit=torch.zeros_like(given.span).index_put((b, i, j), costs))


def head_regularization(
    trees: LogPartition, dear: LogPartition, gold: Gold, cost: float
) -> tuple[Tensor, Tensor]:
    """What teaches heads to govern one entity each, and the divergence KL(p_c || p) itself.

    p_c are the trees of `dear`. It is held constant: the gradient is that of the divergence to a fixed p_c, and the
    value is log Z - log Z_c.
    """
    assert isinstance(dear.marginals, LexicalPotentials)
    b, i, j = gold.spans.unbind(1)
    counts = gold.used.to(dear.log_z.dtype)
    difference = ((trees.log_z - dear.log_z) * counts).sum()
    lending = dear.marginals.inherit[b, i, j].sum()
    return difference, (difference - cost * lending).detach()


def tree_entropy(given: Potentials, lengths: Tensor, gold: Gold) -> Tensor:
    """The entropy of trees per word of the batch, for each of its mentions, as all losses are divided by these."""
    with use_backend("reference"):  # the only one that can differentiate it
        each = entropy(given, lengths)
    return (each * gold.used).sum() * gold.mentions / lengths.sum()


# Labels


def label_losses(scores: Tensor, true: Tensor, kind: str) -> Tensor:
    """[..., L] scores and which labels are right -> [...]."""
    if kind == "sigmoid":
        return binary_cross_entropy_with_logits(scores, true.to(scores.dtype), reduction="none").sum(-1)
    zero = torch.zeros_like(scores[..., :1])
    if kind == "softmax":  # one of the labels, or none, whose score is 0
        said = torch.cat([~true.any(-1, keepdim=True), true], -1)
        all_of_them = torch.cat([zero, scores], -1)
        return all_of_them.logsumexp(-1) - all_of_them.masked_fill(~said, IMPOSSIBLE).logsumexp(-1)
    high = torch.cat([zero, scores.masked_fill(true, IMPOSSIBLE)], -1).logsumexp(-1)
    low = torch.cat([zero, (-scores).masked_fill(~true, IMPOSSIBLE)], -1).logsumexp(-1)
    return high + low


def pair_losses(scores: Scores, gold: Gold, settings: Settings) -> Tensor:
    """[M] the label loss of each gold span with each of its words as head."""
    assert scores.labels is not None
    g, h = gold.pairs.unbind(1)
    b, i, j = gold.spans[g].unbind(1)
    return label_losses(scores.labels.of(b, i, j, h), gold.labels[g], settings.loss.label)


def head_prior_loss(forms: Tensor, scores: Scores, gold: Gold, heads: Tensor) -> Tensor:
    """How badly forms [B, n] tell which words are heads, given the probabilities of all pairs [M].

    Nothing but the classifier of forms learns from it.
    """
    g, h = gold.pairs.unbind(1)
    b = gold.spans[:, 0]
    headed = torch.zeros_like(forms).index_put((b[g], h), heads, accumulate=True)
    known = gold.complete & gold.used  # elsewhere, words may head what nobody has annotated
    return head_word_losses(forms, headed, scores.lengths, known)


def head_word_losses(forms: Tensor, headed: Tensor, lengths: Tensor, used: Tensor) -> Tensor:
    """The same given how many entities each word is expected to head [B, n], in the sentences that count."""
    each = binary_cross_entropy_with_logits(forms, headed.clamp(max=1.0), reduction="none")  # [B, n]
    words = torch.arange(forms.shape[1], device=forms.device) < lengths[:, None]
    return HEAD_PRIOR_WEIGHT * (each * words * used[:, None]).sum()


def span_losses(scores: Scores, gold: Gold, settings: Settings) -> Tensor:
    """[G] the label loss of each gold span."""
    assert scores.labels is not None
    b, i, j = gold.spans.unbind(1)
    return label_losses(scores.labels.of(b, i, j, None), gold.labels, settings.loss.label)


def chart_losses(scores: Scores, gold: Gold, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1] the label loss of every span: one that is not gold should have no label."""
    assert scores.labels is not None
    b, i, j = gold.spans.unbind(1)
    chart = scores.labels.chart()
    right = torch.zeros_like(chart, dtype=torch.bool).index_put((b, i, j), gold.labels)
    known = gold.complete[:, None, None] | sampled_negatives(scores, gold, settings)
    known = (known | right.any(-1)) & gold.used[:, None, None]
    return label_losses(chart, right, settings.loss.label) * known


def hard_negative_loss(scores: Scores, gold: Gold, settings: Settings, trees: LogPartition | None) -> Tensor:
    """Spans that are no entities and look most like one should have no label.

    In each sentence as many of them as gold spans lack to `negatives`, weighed by how likely they are.
    """
    assert scores.labels is not None
    batch, posts = scores.mention.shape[:2]
    cells = span_cells(scores.lengths, posts - 1)
    b, i, j = gold.spans.unbind(1)
    yes = (scores.mention[..., 1] - scores.mention[..., 0]).sigmoid().detach()
    likely = yes if trees is None else trees.marginals.span * yes
    allowed = cells & (gold.used & gold.complete)[:, None, None]
    allowed = allowed.index_put((b, i, j), torch.zeros_like(b, dtype=torch.bool))
    number = min(settings.loss.hard_negatives, posts * posts)
    weight, found = likely.masked_fill(~allowed, -1.0).flatten(1).topk(number)  # [B, number]
    golds = torch.zeros(batch, dtype=torch.long, device=b.device).scatter_add(0, b, torch.ones_like(b))
    lacking = torch.arange(number, device=b.device) < settings.loss.hard_negatives - golds[:, None]
    weight = weight.clamp(min=0) * lacking
    row = torch.arange(batch, device=b.device)[:, None].expand_as(found)
    start, end = found // posts, found % posts
    heads = None if trees is None else head_of(trees.marginals)
    if heads is None:
        scored = scores.labels.of(row, start, end, None)  # [B, number, L]
    else:
        word = torch.arange(posts - 1, device=b.device).expand(*found.shape, -1)  # [B, number, n]
        share = heads[row, start, end] * yes[row, start, end, None]
        weight = share * (weight > 0)[..., None]  # P(span) P(yes | span) P(h | span)
        scored = scores.labels.of(row[..., None], start[..., None], end[..., None], word)
    none = torch.zeros_like(scored, dtype=torch.bool)
    return (label_losses(scored, none, settings.loss.label) * weight).sum()


# Distillation


def cross_entropy(scores: Scores, log_z: Tensor, targets: Targets, settings: Settings) -> Tensor:
    """-E log p(labelled tree), under the teachers' distribution over all labelled trees; p is the student's.

    A labelled tree says yes or no of each of its spans, and gives labels to each span that is an entity, given its
    head: log p is its score - log Z + the log-probabilities of its labels. All of these are sums over parts, so their
    expectations need nothing but the teachers' marginals. Labels are independent given span and head, a sigmoid each;
    with `loss.label = "softmax"` a span has one of them, or none.
    """
    assert scores.arc is not None
    assert scores.root is not None
    assert scores.labels is not None
    no, yes = scores.mention.unbind(-1)
    expected = (no * targets.no).sum() + (yes * targets.yes).sum()
    expected = expected + (scores.arc * targets.arc).sum() + (scores.root * targets.root).sum()
    labels = scores.labels.of(*targets.entities.unbind(1))  # [K, L]
    if settings.loss.label == "softmax":
        zero = torch.zeros_like(labels[:, :1])
        normaliser = torch.cat([zero, labels], -1).logsumexp(-1)  # [K]
    else:
        normaliser = softplus(labels).sum(-1)
    label_loss = (normaliser * targets.weights).sum() - (labels * targets.labels).sum()
    return (log_z * targets.used).sum() - expected + label_loss
