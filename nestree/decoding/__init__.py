"""Scores -> entities, each with its labels, its head where trees have them, and its probability if requested.

    viterbi.py         the entities of the best tree, or all spans that score higher as entities
    mbr.py             minimum Bayes risk: the entities with the highest expected F1
    mbr_kernels.py     the same for most models on a CPU, compiled
    probabilities.py   the probability of an entity, from one inside-outside run
    uncertainty.py     how unsure the model is of a sentence or a span
    constraints.py     known and forbidden spans

Entities from trees never cross. Without trees (`decoding.method = "spans"`) they may.
"""

from collections.abc import Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nestree.config import Settings
from nestree.decoding.mbr import choose_heads, mbr_search
from nestree.decoding.probabilities import (
    UNIT_TEMPERATURES,
    Temperatures,
    any_nan,
    check_label_scores,
    entity_probabilities,
    span_marginals,
    tree_cells,
    uses_head_prior,
)
from nestree.decoding.uncertainty import SpanMargin
from nestree.decoding.viterbi import viterbi_search
from nestree.nn.scorers import Scores
from nestree.treecrf import Trees
from nestree.types import Entity, Tree, unchecked_entity

__all__ = ["UNIT_TEMPERATURES", "DecodedBatch", "Prediction", "Temperatures", "decode", "decode_batch", "predictions"]


class DecodedBatch(NamedTuple):
    """The result of decoding, as tensors on the device of the scores."""

    entities: Tensor  # [R, 5] sentence, start, end, label, head or -1
    scores: Tensor | None  # [R] their probabilities
    trees: Trees | None
    tree_probabilities: Tensor | None  # [B, 2n - 1] of each span of the trees


class Prediction(NamedTuple):
    """The entities and the tree of one sentence; or, if requested, how unsure the model is of it."""

    entities: tuple[Entity, ...]  # sorted by start, the longer first
    tree: Tree | None
    uncertainty: float = 0.0
    margins: Sequence[SpanMargin] = ()
    mean: np.ndarray | None = None  # [D] of the vectors of its words


def decode(scores: Scores, settings: Settings, labels: Sequence[str]) -> list[tuple[Entity, ...]]:
    """The entities of each sentence, sorted by start, the longer first."""
    decoded = decode_batch(scores, settings)
    return [prediction.entities for prediction in predictions(decoded, labels, len(scores.lengths))]


def decode_batch(
    scores: Scores,
    settings: Settings,
    temperatures: Temperatures = UNIT_TEMPERATURES,
    *,
    scored: bool = False,
    trees: bool = False,
    thresholds: Sequence[float] | None = None,
) -> DecodedBatch:
    """Entities; `scored`: with their probabilities; `trees`: with the trees that they are in.

    `thresholds`: the lowest probability of an entity with each label; None: `decoding.threshold` for all.
    """
    with torch.no_grad():
        values = [settings.decoding.threshold] if thresholds is None else thresholds
        lowest = torch.tensor(values, dtype=scores.mention.dtype).to(scores.mention.device, non_blocking=True)
        if settings.decoding.method == "mbr":
            rows, score, tree, tree_probabilities = mbr_search(scores, settings, temperatures, lowest, trees=trees)
            entity_scores = score if scored else None
        else:
            rows, tree = viterbi_search(scores, settings)
            if tree is not None and uses_head_prior(scores, settings):
                rows, tree = choose_heads(rows, scores, settings, temperatures)
            if not (scored or any(values)):
                return DecodedBatch(rows, None, tree if trees else None, None)
            marginals = span_marginals(scores, settings, temperatures)
            score = entity_probabilities(scores, settings, temperatures, marginals, rows)
            nan = any_nan(score)
            kept = score >= (lowest if thresholds is None else lowest[rows[:, 3]])
            if scores.known is not None and len(rows):  # of a known span, its labels or the most probable one
                assert scores.known_labels is not None
                _, k = rows[:, :3].unique(dim=0, return_inverse=True)
                best = torch.zeros_like(score).scatter_reduce(0, k, score, "amax")
                kept = kept | (scores.known[rows[:, :3].unbind(1)] & (score == best[k]))
                kept = kept | scores.known_labels[rows[:, :4].unbind(1)]
            found, entity_scores = rows[kept], score[kept]  # synchronizes
            check_label_scores(score[:, None], rows[:, :3], nan)
            rows = found
            tree_probabilities = None if tree is None else marginals.span[tree_cells(tree)]
        if not trees:
            return DecodedBatch(rows, entity_scores, None, None)
        return DecodedBatch(rows, entity_scores, tree, tree_probabilities)


def predictions(decoded: DecodedBatch, labels: Sequence[str], sentences: int) -> list[Prediction]:
    """The entities and trees of each sentence as Python objects. Synchronizes with the device."""
    rows = decoded.entities.cpu().numpy()  # [R, 5]
    order = np.lexsort((-rows[:, 2], rows[:, 1], rows[:, 0]))
    b, i, j, label, head = rows[order].T
    scores = None if decoded.scores is None else decoded.scores.cpu().numpy()[order].clip(0, 1)
    valid = (i >= 0) & (i < j) & ((head < 0) | ((i <= head) & (head < j)))  # [R]
    if scores is not None:
        valid &= (scores >= 0) & (scores <= 1)
    make = unchecked_entity if valid.all() and all(labels) else Entity  # Entity raises an error
    names = map(labels.__getitem__, label.tolist())
    heads = [None if word < 0 else word for word in head.tolist()]
    entities = map(make, i.tolist(), j.tolist(), names, heads, repeat(None) if scores is None else scores.tolist())
    grouped = split_by_sentence([*entities], np.bincount(b, minlength=sentences))
    return [*map(Prediction, grouped, repeat(None) if decoded.trees is None else to_trees(decoded))]


def to_trees(decoded: DecodedBatch) -> list[Tree]:
    trees = decoded.trees
    assert trees is not None
    words = trees.lengths.tolist()

    def unpad(padded: Tensor, sizes: list[int]) -> list[tuple[Any, ...]]:
        """The first parts of each sentence, from [B, most] or, as tuples, from [B, most, columns]."""
        counts = np.array(sizes)
        values = padded.cpu().numpy()[np.arange(padded.shape[1]) < counts[:, None]]  # without padding
        rows = values.tolist() if padded.ndim == 2 else [*zip(*values.T.tolist(), strict=True)]
        return split_by_sentence(rows, counts)

    span_counts = [2 * size - 1 for size in words]
    spans = unpad(trees.spans, span_counts)
    if trees.spans.shape[2] == 2:
        spans = [tuple((i, j, None) for i, j in sentence) for sentence in spans]
    arcs = repeat(()) if trees.arcs is None else unpad(trees.arcs, [size - 1 for size in words])
    roots = repeat(None) if trees.root is None else trees.root.tolist()
    probability = decoded.tree_probabilities
    probabilities = repeat(()) if probability is None else unpad(probability.clamp(0, 1), span_counts)
    return [*map(Tree, spans, arcs, roots, probabilities)]


def split_by_sentence(values: list[Any], sizes: np.ndarray) -> list[tuple[Any, ...]]:
    """
    >>> split_by_sentence(["a", "b", "c"], np.array([2, 0, 1]))
    [('a', 'b'), (), ('c',)]
    """
    return [tuple(values[start:end]) for start, end in pairwise([0, *np.cumsum(sizes).tolist()])]
