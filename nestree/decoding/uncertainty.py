"""How unsure a model is of a sentence, or of a span: exact numbers from its distribution over labelled trees.

The model draws a tree, then whether each span of it is an entity, then the labels of each entity, given its head.
Everything is calibrated by the temperatures. With P(e) for the probability of a labelled entity e:

    f1-loss          the expected number of errors of the decoded entities, false positives plus false negatives: the
                     sum of 1 - P(e) over decoded entities and of P(e) over all others. Over many sentences, divided by
                     the number of decoded entities plus the expected number of true ones, it is 1 - F1.
    entity-entropy   the sum of the entropies of P(e), each entity present or absent
    mnlp             -log of the probability of the best analysis, a tree with its entities and their labels; per word
                     it is the criterion called maximum normalized log-probability (MNLP) for sequences
    tree-entropy     the entropy of the distribution over trees, without entities and labels

All are sums over a sentence. Entities of spans that are less probable than MIN_PROBABILITY are left out of the sums.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nestree.config import Settings
from nestree.decoding.mbr import choose_labels
from nestree.decoding.probabilities import (
    SpanMarginals,
    Temperatures,
    apply_temperatures,
    biased_mention_scores,
    check_label_scores,
    entity_probabilities,
    head_label_scores,
    label_log_probabilities,
    label_probabilities,
    span_marginals,
)
from nestree.decoding.viterbi import viterbi_search
from nestree.errors import InputError
from nestree.nn.scorers import Scores
from nestree.treecrf import LexicalPotentials, best_trees, entropy, log_partition, span_cells

CRITERIA = ("f1-loss", "entity-entropy", "mnlp", "tree-entropy", "random")
MIN_PROBABILITY = 1e-3  # of a span as an entity
# Spans and heads whose labels are scored at once; each pair has a vector of model.rank numbers.
MAX_PAIRS = 1 << 20


def uncertainty(scores: Scores, settings: Settings, temperatures: Temperatures, by: str) -> Tensor:
    """[B] the uncertainty of each sentence by one of the criteria but "random"."""
    if by == "mnlp":
        return -best_log_probability(scores, settings, temperatures)
    if by == "tree-entropy":
        if settings.model.structure == "none":
            raise InputError("tree-entropy needs a model with trees, and this one has none. Choose another.")
        span, _ = apply_temperatures(biased_mention_scores(scores, settings), temperatures)
        return entropy(scores.potentials(span[..., 0], temperatures.tree), scores.lengths)
    marginals, spans, probability = probable_entities(scores, settings, temperatures)
    if by == "entity-entropy":
        p = probability.double().clamp(1e-15, 1 - 1e-15)
        parts = -(p * p.log() + (1 - p) * (-p).log1p()).sum(-1)
    else:
        parts = probability.double().sum(-1)  # every true entity is missed ...
    total = parts.new_zeros(len(scores.lengths)).index_add(0, spans[:, 0], parts)
    if by == "f1-loss":  # ... but those that are decoded, which may be wrong
        if settings.decoding.method == "mbr":
            chosen = choose_labels(spans, probability, scores, settings, settings.decoding.threshold)
            rows, p = spans[chosen.nonzero()[:, 0]], probability[chosen]
        else:
            rows, _ = viterbi_search(scores, settings)
            p = entity_probabilities(scores, settings, temperatures, marginals, rows)
            rows, p = rows[p >= settings.decoding.threshold], p[p >= settings.decoding.threshold]
        total = total.index_add(0, rows[:, 0], 1 - 2 * p.double())
    return total.clamp(min=0)


def probable_entities(
    scores: Scores, settings: Settings, temperatures: Temperatures
) -> tuple[SpanMarginals, Tensor, Tensor]:
    """The probabilities of all spans, the spans that are counted [K, 3], and those of their labels [K, L]."""
    marginals = span_marginals(scores, settings, temperatures)
    lowest = min(MIN_PROBABILITY, settings.decoding.threshold or MIN_PROBABILITY)
    spans = (marginals.entity >= lowest).nonzero()
    parts = chunks(spans, scores)
    probability = torch.cat([label_probabilities(scores, settings, temperatures, marginals, part) for part in parts])
    check_label_scores(probability, spans)
    return marginals, spans, probability


def chunks(spans: Tensor, scores: Scores) -> tuple[Tensor, ...]:
    """The spans [K, 3] in parts whose label scores for every head fit into memory."""
    parts: tuple[Tensor, ...] = spans.split(max(1, MAX_PAIRS // scores.mention.shape[1]))
    return parts


def best_log_probability(scores: Scores, settings: Settings, temperatures: Temperatures) -> Tensor:
    """[B] log P(tree, entities, labels) of the best analysis."""
    model = settings.model
    mention = biased_mention_scores(scores, settings)
    span, log_mention = apply_temperatures(mention, temperatures)  # [B, n + 1, n + 1, 1 and C]
    cells = span_cells(scores.lengths, mention.shape[1] - 1)
    # The best that a span can say: that it is no entity or, with labels, that it is one. Labels have log-probabilities
    # below 0, so that they matter only where "yes" is more probable than "no".
    best = log_mention.amax(-1) if model.mention == "labels" else log_mention[..., 0]
    head = None
    if scores.labels is not None:
        candidate = cells if model.mention == "score" else cells & (log_mention[..., -1] > log_mention[..., 0])
        spans = candidate.nonzero()  # [K, 3]
        b, i, j = spans.unbind(1)
        gain = 0.0 if model.mention == "score" else (log_mention[b, i, j, 1] - log_mention[b, i, j, 0])
        if model.labeling == "head":
            by_head = [
                best_labels(head_label_scores(scores, part, settings, temperatures), settings)
                for part in chunks(spans, scores)
            ]
            gains = (gain[:, None] + torch.cat(by_head)).clamp(min=0)  # type: ignore[index]  # [K, n]
            head = best.new_zeros(*best.shape, best.shape[1] - 1).index_put((b, i, j), gains)
        else:
            label = scores.labels.score_spans(b, i, j, None)
            label = best_labels(label_log_probabilities(label, settings, temperatures), settings)
            gains = label if model.mention == "score" else (gain + label).clamp(min=0)
            best = best.index_put((b, i, j), gains, accumulate=True)
    if model.structure == "none":
        return best.masked_fill(~cells, 0.0).sum((1, 2))
    potentials = scores.potentials(span[..., 0] + best, temperatures.tree)
    if head is not None:
        assert isinstance(potentials, LexicalPotentials)
        potentials = potentials._replace(head=head)
    log_z = log_partition(scores.potentials(span[..., 0], temperatures.tree), scores.lengths)
    return best_trees(potentials, scores.lengths).score - log_z


def best_labels(log_probability: Tensor, settings: Settings) -> Tensor:
    """[...] the log-probability of the best labels of a span, given that of each label [..., L]."""
    p = log_probability.exp()
    if settings.loss.label == "softmax":  # one label, or none
        none = (-p.sum(-1).clamp(max=1 - 1e-6)).log1p()
        return torch.maximum(log_probability.amax(-1), none)
    return torch.maximum(log_probability, (-p.clamp(max=1 - 1e-6)).log1p()).sum(-1)


class SpanMargin(NamedTuple):
    """A span of words with its margin, as in margin sampling: small where the model is unsure."""

    margin: float  # the probability of the most probable outcome, less that of the second
    start: int
    end: int
    label: str  # the most probable one
    probability: float  # of the span with this label


def smallest_margins(
    scores: Scores, settings: Settings, temperatures: Temperatures, labels: tuple[str, ...], most: int
) -> list[list[SpanMargin]]:
    """The up to `most` spans of each sentence with the smallest margins, these first.

    The outcomes of a span are: no entity, or an entity with one of the labels.
    """
    marginals, spans, probability = probable_entities(scores, settings, temperatures)
    outcomes = torch.cat([1 - marginals.entity[spans.unbind(1)][:, None], probability], 1)
    top = outcomes.topk(2, -1).values
    best, label = probability.max(-1)
    table = torch.cat([(top[:, 0] - top[:, 1])[:, None], best[:, None]], 1).tolist()
    margins: list[list[SpanMargin]] = [[] for _ in range(len(scores.lengths))]
    for (b, i, j), k, (margin, p) in zip(spans.tolist(), label.tolist(), table, strict=True):
        margins[b].append(SpanMargin(margin, i, j, labels[k], p))
    return [sorted(spans)[:most] for spans in margins]
