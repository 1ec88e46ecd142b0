"""The oracle: every tree of a short sentence, one by one, and what follows from having them all.

Written without the package. A tree is its parts; the score of a tree is the sum of the scores of its parts; a
distribution over trees is a list of numbers. Nothing here is clever, and nothing here scales.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

FORBIDDEN = -5e8  # scores below this mean: no tree may contain this part


class Parts(NamedTuple):
    """The parts of one lexicalised tree."""

    spans: frozenset[tuple[int, int, int]]  # (i, j, head)
    arcs: frozenset[tuple[int, int]]  # (head, modifier)
    root: int
    lends: frozenset[tuple[int, int]]  # the spans whose head is also the head of their parent


def subtrees(i: int, j: int) -> Iterator[Parts]:
    """Every lexicalised tree over the words i..j-1; its `root` is the head of (i, j)."""
    if j - i == 1:
        yield Parts(frozenset({(i, j, i)}), frozenset(), i, frozenset())
    for k in range(i + 1, j):
        for left in subtrees(i, k):
            for right in subtrees(k, j):
                for lender, span, other in ((left, (i, k), right), (right, (k, j), left)):
                    yield Parts(
                        left.spans | right.spans | {(i, j, lender.root)},
                        left.arcs | right.arcs | {(lender.root, other.root)},
                        lender.root,
                        left.lends | right.lends | {span},
                    )


@cache
def lexical_trees(n: int) -> tuple[Parts, ...]:
    return tuple(subtrees(0, n))


def bracketings(i: int, j: int) -> Iterator[frozenset[tuple[int, int]]]:
    """Every binary tree over the words i..j-1, as its spans."""
    if j - i == 1:
        yield frozenset({(i, j)})
    for k in range(i + 1, j):
        for left in bracketings(i, k):
            for right in bracketings(k, j):
                yield left | right | {(i, j)}


@cache
def plain_trees(n: int) -> tuple[frozenset[tuple[int, int]], ...]:
    return tuple(bracketings(0, n))


@cache
def mask_of(name: str, length: int, lexical: bool) -> Tensor:
    """[trees, parts, axes] where each tree reads the scores of this name."""

    def parts(tree) -> list[tuple[int, ...]]:
        if not lexical:
            return sorted(tree)
        if name == "span":
            return sorted((i, j) for i, j, _ in tree.spans)
        if name == "head":
            return sorted(tree.spans)
        return {"arc": sorted(tree.arcs), "root": [(tree.root,)], "inherit": sorted(tree.lends)}[name]

    rows = [parts(tree) for tree in (lexical_trees(length) if lexical else plain_trees(length))]
    axes = {"span": 2, "arc": 2, "root": 1, "inherit": 2, "head": 3}[name]
    return torch.tensor(rows, dtype=torch.long).reshape(len(rows), len(rows[0]), axes)


class Enumerated:
    """The distribution over all trees of one sentence, from the scores of its parts.

    `scores` maps the names span, arc, root, inherit and head (or span alone, for plain trees) to float64
    tensors without a batch axis. Everything that is returned can be differentiated by autograd.
    """

    def __init__(self, scores: dict[str, Tensor], length: int):
        self.scores, self.length, self.lexical = scores, length, "arc" in scores
        self.trees = lexical_trees(length) if self.lexical else plain_trees(length)
        # name -> [trees, parts, axes]
        self.cells = {name: mask_of(name, length, self.lexical) for name in scores}
        self.tree_scores = sum(self.read(name).sum(-1) for name in scores)  # [trees]
        self.possible = self.tree_scores > FORBIDDEN

    def read(self, name: str) -> Tensor:
        """[trees, parts] the scores of the parts of this name in each tree."""
        return self.scores[name][tuple(self.cells[name].unbind(-1))]

    def log_z(self) -> Tensor:
        return self.tree_scores[self.possible].logsumexp(0)

    def log_probabilities(self) -> Tensor:
        """[possible trees]"""
        return self.tree_scores[self.possible] - self.log_z()

    def probabilities(self) -> Tensor:
        """[trees]"""
        zeros = torch.zeros(len(self.trees), dtype=torch.float64)
        return zeros.masked_scatter(self.possible, self.log_probabilities().exp())

    def marginals(self) -> dict[str, Tensor]:
        """name -> the probability that a tree contains this part, in the shape of the scores."""
        found = {}
        for name, cells in self.cells.items():
            counted = torch.zeros_like(self.scores[name])
            each = self.probabilities()[:, None].expand(cells.shape[:2])
            found[name] = counted.index_put(tuple(cells.unbind(-1)), each, accumulate=True)
        return found

    def best_score(self) -> Tensor:
        return self.tree_scores.max()

    def entropy(self) -> Tensor:
        log_p = self.log_probabilities()
        return -(log_p.exp() * log_p).sum()

    def kl(self, other: "Enumerated") -> Tensor:
        """KL(self || other); inf where a tree is possible here and not there."""
        if bool((self.possible & ~other.possible).any()):
            return torch.tensor(torch.inf, dtype=torch.float64)
        log_p = self.log_probabilities()
        log_q = other.tree_scores[self.possible] - other.log_z()
        return (log_p.exp() * (log_p - log_q)).sum()


def enumerate_batch(potentials, lengths) -> list[Enumerated]:
    """One distribution for each sentence of a batch. `potentials` is a NamedTuple of tensors or None."""
    given = {name: t for name, t in potentials._asdict().items() if t is not None}
    scores = [{name: t[b].double() for name, t in given.items()} for b in range(len(lengths))]
    return [Enumerated(each, int(length)) for each, length in zip(scores, lengths, strict=True)]
