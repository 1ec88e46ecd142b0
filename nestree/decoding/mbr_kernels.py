"""`mbr.mbr_search` on a CPU in a few compiled kernels, which replace many small tensor operations.

For lexicalised trees with mention scores of no and yes, labels that depend on heads, and no constraints. Arrays have
the names and the shapes of the tensors in `mbr.py` and `probabilities.py`.
"""

import math

import numpy as np
import torch
from torch import Tensor

from nestree.config import Settings
from nestree.decoding.mbr import MIN_GAIN
from nestree.decoding.probabilities import Temperatures, check_label_scores, uses_head_prior
from nestree.nn.scorers import Scores
from nestree.treecrf import IMPOSSIBLE, LexicalPotentials, PlainPotentials, Trees, best_trees, head_marginals
from nestree.treecrf.numba_kernels.simd import compiled, compiled_inline, kernel


def mbr_search(
    scores: Scores, settings: Settings, temperatures: Temperatures, thresholds: Tensor
) -> tuple[Tensor, Tensor, Trees, Tensor]:
    """Entities [R, 5], their probabilities [R], their trees, and P(span) of the trees' spans [B, 2n - 1]."""
    assert scores.labels is not None
    assert scores.arc is not None
    assert scores.root is not None
    decoding, lengths, mention = settings.decoding, scores.lengths, as_array(scores.mention)
    charts = np.zeros((6, *mention.shape[:3]), mention.dtype)
    span, entity_probability, max_score, inherit, in_tree, gain = charts
    bias = mention.dtype.type(decoding.non_entity_bias)
    mention_kernel(mention, bias, temperatures.mention, temperatures.tree, span, entity_probability, max_score)
    head = head_marginals(scores.potentials(torch.from_numpy(span), temperatures.tree), lengths).numpy()
    spans = np.empty((span.size, 3), np.int64)
    count, pairs = candidate_kernel(head, entity_probability, as_array(thresholds).min(), in_tree, spans)
    spans, triples = spans[:count], np.empty((4, pairs), np.int64)
    span_words_kernel(spans, triples)
    label_scores = scores.labels.score_spans(*map(torch.from_numpy, triples))  # [pairs, L]
    by_head = as_array(label_scores.to(scores.mention.dtype)).copy()  # under autocast, they may be bfloat16
    probability = np.zeros((count, by_head.shape[1]), mention.dtype)
    one_label = settings.loss.label == "softmax"
    label_probability_kernel(
        spans, by_head, temperatures.label, temperatures.label_logit_offset, one_label, head, entity_probability,
        as_array(thresholds.expand(by_head.shape[1])), probability, gain,
    )  # fmt: skip
    check_label_scores(torch.from_numpy(probability), torch.from_numpy(spans))
    chosen = best_trees(PlainPotentials(torch.from_numpy(gain)), lengths).spans.numpy()

    prior = np.zeros(head.shape[::3], mention.dtype)  # [B, n]
    if scores.head_prior is not None and uses_head_prior(scores, settings):
        prior = -decoding.head_prior_weight * np.logaddexp(0, -as_array(scores.head_prior.to(scores.mention.dtype)))
    evidence, rows = head, np.empty((probability.size, 5), np.int64)
    evidence.fill(0)  # the array is reused
    score = np.empty(len(rows), mention.dtype)
    penalty = float(decoding.head_sharing_penalty)
    found = entity_kernel(
        chosen, spans, by_head, probability, gain, prior, penalty, rows, score, max_score, inherit, evidence
    )  # fmt: skip
    trees = best_trees(
        LexicalPotentials(
            torch.from_numpy(max_score), scores.arc, scores.root, torch.from_numpy(inherit), torch.from_numpy(evidence)
        ),
        lengths,
    )  # fmt: skip
    rows = rows[:found]
    tree_spans = trees.spans.numpy()
    probabilities = np.zeros(tree_spans.shape[:2], mention.dtype)
    tree_kernel(tree_spans, in_tree, probabilities, rows)
    return torch.from_numpy(rows), torch.from_numpy(score[:found]), trees, torch.from_numpy(probabilities)


def supports(scores: Scores, settings: Settings) -> bool:
    """Whether `mbr_search` computes it."""
    mention = scores.mention
    return (
        settings.model.labeling == "head"
        and mention.shape[-1] == 2
        and mention.device.type == "cpu"
        and mention.dtype in (torch.float32, torch.float64)
        and scores.arc is not None
        and scores.head is scores.known is scores.forbidden is None
    )


def as_array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


@compiled_inline
def softplus(x):
    """log(1 + exp(x))"""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@kernel
def mention_kernel(
    mention, no_bias, mention_temperature, tree_temperature, span_potential, entity_probability, max_score
):
    """The log-potential of each span, P(yes | span), and the higher one of its mention scores."""
    batch, posts, _ = span_potential.shape
    for b in range(batch):
        for i in range(posts):
            for j in range(i + 1, posts):
                no, yes = mention[b, i, j, 0] + no_bias, np.float64(mention[b, i, j, 1])
                span_potential[b, i, j] = (no + softplus(yes - no)) / tree_temperature
                entity_probability[b, i, j] = math.exp(-softplus((no - yes) / mention_temperature))
                max_score[b, i, j] = max(no, yes)


@kernel
def candidate_kernel(head, entity_probability, threshold, in_tree, spans):
    """P((i, j) in the tree), and the spans that may reach the threshold: their number and that of their words."""
    batch, posts, _ = entity_probability.shape
    count = pairs = 0
    for b in range(batch):
        for i in range(posts):
            for j in range(i + 1, posts):
                total = 0.0
                for h in range(i, j):
                    total += head[b, i, j, h]
                in_tree[b, i, j] = min(total, 1.0)
                probability = in_tree[b, i, j] * entity_probability[b, i, j]
                if probability >= threshold and probability > 0:
                    spans[count, 0], spans[count, 1], spans[count, 2] = b, i, j
                    count += 1
                    pairs += j - i
    return count, pairs


@kernel
def span_words_kernel(spans, triples):
    """triples [4, pairs]: (b, i, j, h) for each word h of each span."""
    at = 0
    for k in range(len(spans)):
        b, i, j = spans[k, 0], spans[k, 1], spans[k, 2]
        for h in range(i, j):
            triples[0, at], triples[1, at], triples[2, at], triples[3, at] = b, i, j, h
            at += 1


@kernel
def label_probability_kernel(
    spans, by_head, temperature, offset, one_label, head, entity_probability, thresholds, probability, gain
):
    """by_head: from scores to log P(label | span, head). probability [K, L]: 0 where it is too low. gain: of a span."""
    at, labels = 0, probability.shape[1]
    for k in range(len(spans)):
        b, i, j = spans[k, 0], spans[k, 1], spans[k, 2]
        for h in range(i, j):
            largest = total = 0.0  # largest: at least the 0 of no label
            for label in range(labels):
                score = by_head[at, label] / temperature - offset
                by_head[at, label] = score if one_label else -softplus(-score)
                largest = max(largest, by_head[at, label])
            for label in range(labels):
                total += math.exp(by_head[at, label] - largest)
            normalizer = largest + math.log(total + math.exp(-largest)) if one_label else 0.0
            for label in range(labels):
                by_head[at, label] -= normalizer
                probability[k, label] += head[b, i, j, h] * entity_probability[b, i, j] * math.exp(by_head[at, label])
            at += 1
        best = 0  # the label that gains most
        for label in range(1, labels):
            if probability[k, label] - thresholds[label] > probability[k, best] - thresholds[best]:
                best = label
        for label in range(labels):
            p = probability[k, label]
            if p < thresholds[label] or p == 0 or (one_label and label != best):
                probability[k, label] = 0
            else:
                gain[b, i, j] += max(p - thresholds[label], MIN_GAIN)


@compiled
def find_span(spans, b, i, j):
    """Where (i, j) is in the tree of sentence b; -1: it is not."""
    for k in range(spans.shape[1]):
        if spans[b, k, 0] == i and spans[b, k, 1] == j:
            return k
    return -1


@kernel
def entity_kernel(chosen, spans, by_head, probability, gain, prior, penalty, rows, score, max_score, inherit, evidence):
    """Write the entities, and the potentials of trees that hold them: `max_score`, `inherit` and `evidence`.

    Returns the number of entities.
    """
    found = at = 0
    posts = max_score.shape[1]
    for k in range(len(spans)):
        b, i, j = spans[k, 0], spans[k, 1], spans[k, 2]
        first, at = at, at + j - i
        if gain[b, i, j] <= 0 or find_span(chosen, b, i, j) < 0:
            continue
        inherit[b, i, j] = -penalty
        for h in range(i, j):
            evidence[b, i, j, h] = prior[b, h]
        for label in range(probability.shape[1]):
            if probability[k, label] > 0:
                rows[found, 0], rows[found, 1], rows[found, 2], rows[found, 3] = b, i, j, label
                score[found] = probability[k, label]
                found += 1
                for h in range(i, j):
                    evidence[b, i, j, h] += by_head[first + h - i, label]
        for h in range(i, j):
            evidence[b, i, j, h] = max(evidence[b, i, j, h], IMPOSSIBLE)
        for post in range(i + 1, j):  # spans that cross (i, j)
            for start in range(i):
                max_score[b, start, post] = IMPOSSIBLE
            for end in range(j + 1, posts):
                max_score[b, post, end] = IMPOSSIBLE
    return found


@kernel
def tree_kernel(tree_spans, in_tree, probabilities, rows):
    """The probability of each span of the trees, and the head that each entity has there."""
    for b in range(len(tree_spans)):
        for k in range(tree_spans.shape[1]):
            if tree_spans[b, k, 0] >= 0:
                probabilities[b, k] = in_tree[b, tree_spans[b, k, 0], tree_spans[b, k, 1]]
    for r in range(len(rows)):
        k = find_span(tree_spans, rows[r, 0], rows[r, 1], rows[r, 2])
        rows[r, 4] = tree_spans[rows[r, 0], k, 2]
