"""Scores -> entities, each with its labels, its head where trees have them, and its probability if asked for.

    best.py            the entities of the best tree, or of all spans that look like one
    marginals.py       the entities that are likeliest right, whatever tree they stand in
    probabilities.py   how likely is an entity? From one run of inside and outside
    known.py           what is known before: these are entities, those are not

From trees, entities never cross. Without them (`decoding.by = "spans"`) they may.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nestree.config import Settings
from nestree.decoding import best, marginals
from nestree.decoding.probabilities import NO_CHANGE, Temperatures, chances_of, probabilities
from nestree.nn.scorers import Scores
from nestree.sentence import Entity, Tree
from nestree.treecrf import Trees

__all__ = ["NO_CHANGE", "Found", "Reading", "Temperatures", "decode", "readings", "search"]


class Found(NamedTuple):
    """What decoding finds, as tensors on the device of the scores."""

    entities: Tensor  # [R, 5] sentence, start, end, label, head or -1
    scores: Tensor | None  # [R] their probabilities
    trees: Trees | None
    chances: Tensor | None  # [B, 2n - 1] the probability of each span of the trees


class Reading(NamedTuple):
    """What is found in one sentence."""

    entities: tuple[Entity, ...]  # in the order of their starts, the longer first
    tree: Tree | None


def decode(scores: Scores, settings: Settings, labels: Sequence[str]) -> list[tuple[Entity, ...]]:
    """The entities of each sentence, in the order of their starts, the longer first."""
    return [reading.entities for reading in readings(search(scores, settings), labels, len(scores.lengths))]


def search(
    scores: Scores,
    settings: Settings,
    temperatures: Temperatures = NO_CHANGE,
    *,
    scored: bool = False,
    trees: bool = False,
) -> Found:
    """Find entities; `scored`: with their probabilities; `trees`: with the trees that they stand in."""
    with torch.no_grad():
        if settings.decoding.by == "marginals":
            found = marginals.search(scores, settings, temperatures, trees=trees)
            return found if scored else found._replace(scores=None)
        threshold = settings.decoding.threshold
        if not (scored or threshold):
            rows, tree = best.search(scores, settings)
            return Found(rows, None, tree if trees else None, None)
        rows, tree = best.search(scores, settings)
        chances = chances_of(scores, settings, temperatures)
        score = probabilities(scores, settings, temperatures, chances, rows)
        kept = likely(rows, score, threshold, scores.must)
        rows, score = rows[kept], score[kept]
        if not trees or tree is None:
            return Found(rows, score, None, None)
        return Found(rows, score, tree, chances.of_trees(tree))


def likely(rows: Tensor, score: Tensor, threshold: float, must: Tensor | None) -> Tensor:
    """[R] which entities are likely enough; of a span that is known to be one, the likeliest in any case."""
    enough = score >= threshold
    if must is None or not len(rows):
        return enough
    _, span = rows[:, :3].unique(dim=0, return_inverse=True)  # it may have several labels
    best = torch.zeros_like(score).scatter_reduce(0, span, score, "amax")
    return enough | (must[rows[:, :3].unbind(1)] & (score == best[span]))


def readings(found: Found, labels: Sequence[str], sentences: int) -> list[Reading]:
    """The same in Python values: waits for the device."""
    entities: list[list[Entity]] = [[] for _ in range(sentences)]
    scores = None if found.scores is None else found.scores.clamp(0, 1).tolist()
    for k, (b, i, j, label, head) in enumerate(found.entities.tolist()):
        score = None if scores is None else scores[k]
        entities[b].append(Entity(i, j, labels[label], head if head >= 0 else None, score))
    trees = trees_of(found) if found.trees is not None else [None] * sentences
    return [
        Reading(tuple(sorted(each, key=lambda entity: (entity.start, -entity.end))), tree)
        for each, tree in zip(entities, trees, strict=True)
    ]


def trees_of(found: Found) -> list[Tree | None]:
    assert found.trees is not None
    chances = None if found.chances is None else found.chances.clamp(0, 1).tolist()
    made: list[Tree | None] = []
    for b, tree in enumerate(found.trees):
        spans = tuple((span[0], span[1], span[2] if len(span) == 3 else None) for span in tree.spans)
        known = () if chances is None else tuple(chances[b][: len(spans)])
        made.append(Tree(spans, tree.arcs, tree.root, known))
    return made
