"""Scores -> entities, each with its labels, its head where trees have them, and its probability if asked for.

    best.py            the entities of the best tree, or of all spans that look like one
    marginals.py       the entities that are likeliest right, whatever tree they stand in
    probabilities.py   how likely is an entity? From one run of inside and outside
    known.py           what is known before: these are entities, those are not

From trees, entities never cross. Without them (`decoding.method = "spans"`) they may.
"""

from collections.abc import Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nestree.config import Settings
from nestree.decoding import mbr, viterbi
from nestree.decoding.probabilities import NO_TEMPERATURES, Temperatures, probabilities, span_marginals
from nestree.nn.scorers import Scores
from nestree.treecrf import Trees
from nestree.types import Entity, Tree, check_entity

__all__ = [
    "NO_TEMPERATURES",
    "DecodedBatch",
    "Prediction",
    "Temperatures",
    "decode",
    "decode_batch",
    "predictions",
]


class DecodedBatch(NamedTuple):
    """What decoding finds, as tensors on the device of the scores."""

    entities: Tensor  # [R, 5] sentence, start, end, label, head or -1
    scores: Tensor | None  # [R] their probabilities
    trees: Trees | None
    chances: Tensor | None  # [B, 2n - 1] the probability of each span of the trees


class Prediction(NamedTuple):
    """What is found in one sentence."""

    entities: tuple[Entity, ...]  # in the order of their starts, the longer first
    tree: Tree | None


def decode(scores: Scores, settings: Settings, labels: Sequence[str]) -> list[tuple[Entity, ...]]:
    """The entities of each sentence, in the order of their starts, the longer first."""
    return [
        reading.entities
        for reading in predictions(decode_batch(scores, settings), labels, len(scores.lengths))
    ]


def decode_batch(
    scores: Scores,
    settings: Settings,
    temperatures: Temperatures = NO_TEMPERATURES,
    *,
    scored: bool = False,
    trees: bool = False,
) -> DecodedBatch:
    """Find entities; `scored`: with their probabilities; `trees`: with the trees that they stand in."""
    with torch.no_grad():
        if settings.decoding.method == "mbr":
            found = mbr.mbr_search(scores, settings, temperatures, trees=trees)
            return found if scored else found._replace(scores=None)
        threshold = settings.decoding.threshold
        rows, tree = viterbi.viterbi_search(scores, settings)
        if tree is not None and viterbi.heads_follow(scores, settings):
            rows, tree = mbr.with_heads(rows, scores, settings, temperatures)
        if not (scored or threshold):
            return DecodedBatch(rows, None, tree if trees else None, None)
        chances = span_marginals(scores, settings, temperatures)
        score = probabilities(scores, settings, temperatures, chances, rows)
        kept = likely(rows, score, threshold, scores.must)
        rows, score = rows[kept], score[kept]
        if not trees or tree is None:
            return DecodedBatch(rows, score, None, None)
        return DecodedBatch(rows, score, tree, chances.of_trees(tree))


def likely(rows: Tensor, score: Tensor, threshold: float, must: Tensor | None) -> Tensor:
    """[R] which entities are likely enough; of a span that is known to be one, the likeliest in any case."""
    enough = score >= threshold
    if must is None or not len(rows):
        return enough
    _, span = rows[:, :3].unique(dim=0, return_inverse=True)  # it may have several labels
    viterbi = torch.zeros_like(score).scatter_reduce(0, span, score, "amax")
    return enough | (must[rows[:, :3].unbind(1)] & (score == viterbi[span]))


def predictions(found: DecodedBatch, labels: Sequence[str], sentences: int) -> list[Prediction]:
    """The same in Python values: waits for the device."""
    rows = found.entities.cpu().numpy()  # [R, 5]
    order = np.lexsort((-rows[:, 2], rows[:, 1], rows[:, 0]))
    b, i, j, label, head = rows[order].T
    scores = None if found.scores is None else found.scores.clamp(0, 1).cpu().numpy()[order]
    sound = (i >= 0) & (i < j) & ((head < 0) | ((i <= head) & (head < j)))  # [R]
    if scores is not None:
        sound &= (scores >= 0) & (scores <= 1)
    made = map(
        check_entity if sound.all() and all(labels) else Entity,  # which says what is wrong
        i.tolist(),
        j.tolist(),
        map(labels.__getitem__, label.tolist()),
        [None if word < 0 else word for word in head.tolist()],
        repeat(None) if scores is None else scores.tolist(),
    )
    entities = shared_out([*made], np.bincount(b, minlength=sentences))
    trees = trees_of(found) if found.trees is not None else [None] * sentences
    return [*map(Prediction, entities, trees)]


def trees_of(found: DecodedBatch) -> list[Tree]:
    trees = found.trees
    assert trees is not None
    words = trees.lengths.cpu().numpy()
    nothing = repeat(())
    spans = parts_of(trees.spans, 2 * words - 1)
    if trees.spans.shape[2] == 2:
        spans = [tuple((i, j, None) for i, j in each) for each in spans]
    arcs = nothing if trees.arcs is None else parts_of(trees.arcs, words - 1)
    roots = repeat(None) if trees.root is None else trees.root.tolist()
    chances = nothing if found.chances is None else parts_of(found.chances.clamp(0, 1), 2 * words - 1)
    return [*map(Tree, spans, arcs, roots, chances)]


def parts_of(parts: Tensor, sizes: np.ndarray) -> list[tuple[Any, ...]]:
    """Of each sentence so many of its parts [B, most], or of tuples [B, most, columns]."""
    table = parts.cpu().numpy()
    real = table[np.arange(table.shape[1]) < sizes[:, None]]  # [all] or [all, columns]
    return shared_out(real.tolist() if real.ndim == 1 else [*zip(*real.T.tolist(), strict=True)], sizes)


def shared_out(values: list[Any], sizes: np.ndarray) -> list[tuple[Any, ...]]:
    """So many of them to each sentence.

    >>> shared_out(["a", "b", "c"], np.array([2, 0, 1]))
    [('a', 'b'), (), ('c',)]
    """
    return [tuple(values[start:end]) for start, end in pairwise([0, *np.cumsum(sizes).tolist()])]
