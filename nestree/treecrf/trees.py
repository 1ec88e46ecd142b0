"""Trees as tensors and as Python values, and backtracking through a chart from the top down.

The chart is the single one of docs/method.md: chart[b, i, j, x] is headed(i, j, x) where x lies in the span
(i, j) and hooked(i, j, x) where it lies outside. Plain trees have one x, 0, which is in every span.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from nestree.treecrf.potentials import IMPOSSIBLE, LexicalPotentials, Potentials


class Tree(NamedTuple):
    """One tree, in Python values."""

    score: float
    spans: tuple[tuple[int, ...], ...]  # (i, j, head), or (i, j) in plain trees; parents before children
    arcs: tuple[tuple[int, int], ...]  # (head, modifier), by modifier; none for plain trees
    root: int | None  # the head of the sentence; None for plain trees


@dataclass(frozen=True)
class Trees:
    """One tree per sentence, as tensors; what lies beyond a sentence's length is -1. `trees[b]` is a Tree."""

    score: Tensor  # [batch]
    spans: Tensor  # [batch, 2n - 1, 3] (i, j, h), parents before children, left before right; plain: (i, j)
    arcs: Tensor | None  # [batch, n - 1, 2] (h, m), by m; None for plain trees
    root: Tensor | None  # [batch]; None for plain trees
    lengths: Tensor  # [batch]

    def __getitem__(self, b: int) -> Tree:
        if not -len(self) <= b < len(self):
            raise IndexError(f"there is no tree {b} in a batch of {len(self)}.")
        n = int(self.lengths[b])
        return Tree(
            float(self.score[b]),
            tuple(tuple(span) for span in self.spans[b, : 2 * n - 1].tolist()),
            () if self.arcs is None else tuple((h, m) for h, m in self.arcs[b, : n - 1].tolist()),
            None if self.root is None else int(self.root[b]),
        )

    def __len__(self) -> int:
        return len(self.score)

    def rows(self, rows: slice) -> "Trees":
        """The trees of these sentences."""
        fields = (self.score, self.spans, self.arcs, self.root, self.lengths)
        return Trees(*(None if field is None else field[rows] for field in fields))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Tree]:
        return (self[b] for b in range(len(self)))


Choose = Callable[[Tensor], Tensor]  # scores [rows, options] -> the chosen option of each row


def first_best(scores: Tensor) -> Tensor:
    """The first option with the highest score: how every backend breaks ties."""
    options = torch.arange(scores.shape[-1], device=scores.device)
    best = scores == scores.amax(-1, keepdim=True)
    return torch.where(best, options, scores.shape[-1]).amin(-1).clamp(max=scores.shape[-1] - 1)


def sampler(generator: torch.Generator | None) -> Choose:
    """Choose an option at random; scores are unnormalized log-probabilities."""

    def sample(scores: Tensor) -> Tensor:
        return torch.multinomial(scores.softmax(-1), 1, generator=generator).squeeze(-1)

    return sample


def walk(chart: Tensor, potentials: Potentials, lengths: Tensor, copies: int, choose: Choose) -> Trees:
    """Backtrack `copies` times through the chart of each sentence, with `choose` at every step.

    The copies of a sentence are neighbours in the result.
    """
    lexical = potentials if isinstance(potentials, LexicalPotentials) else None
    batch, n, device = chart.shape[0], chart.shape[1] - 1, chart.device
    b = torch.arange(batch, device=device).repeat_interleave(copies)  # [rows] the sentence of each row
    rows = torch.arange(len(b), device=device)
    length = lengths[b]
    post = torch.arange(n + 1, device=device)
    word = post[:n]

    spans = torch.full((len(b), 2 * n - 1, 3), -1, device=device)
    governor = torch.full((len(b), n), -1, device=device)  # of each word; the root and the padding keep -1
    stack = torch.zeros(len(b), n + 1, 3, dtype=torch.long, device=device)  # spans (i, j, h) to visit
    depth = torch.ones_like(length)
    head = torch.zeros_like(length)
    if lexical is not None:
        goal = chart[b, 0, length] + lexical.root[b]  # GOAL [rows, h]
        head = choose(torch.where(word < length[:, None], goal, -torch.inf))
    stack[:, 0] = torch.stack([torch.zeros_like(length), length, head], -1)

    for step in range(2 * n - 1):
        active = depth > 0
        depth = (depth - 1).clamp(min=0)
        i, j, h = stack[rows, depth].unbind(-1)
        spans[:, step] = torch.where(active[:, None], torch.stack([i, j, h], -1), -1)

        # COMPLETE, backwards: choose the split k in i < k < j by chart(i, k, h) + chart(k, j, h)
        left, right = chart[b, i, :, h], chart[b, :, j, h]  # [rows, k]
        if lexical is not None:
            left = left + torch.where(h[:, None] < post, lexical.inherit[b, i], 0.0)
            right = right + torch.where(h[:, None] >= post, lexical.inherit[b, :, j], 0.0)
        between = (i[:, None] < post) & (post < j[:, None])
        splits = active & (j - i > 1)
        k = choose(torch.where(between, left + right, torch.where(splits[:, None], -torch.inf, 0.0)))

        left_head = right_head = h
        if lexical is not None:
            # ATTACH, backwards: choose the head m of the other half by headed(.., m) + arc(h, m)
            head_left = h < k
            start, end = torch.where(head_left, k, i), torch.where(head_left, j, k)
            attach = chart[b, start, end] + lexical.arc[b, h]  # [rows, m]
            within = (start[:, None] <= word) & (word < end[:, None]) & splits[:, None]
            m = choose(torch.where(within, attach, torch.where(splits[:, None], -torch.inf, 0.0)))
            governor[rows, m] = torch.where(splits, h, governor[rows, m])
            left_head, right_head = torch.where(head_left, h, m), torch.where(head_left, m, h)

        for start, end, top in ((k, j, right_head), (i, k, left_head)):  # the left half is visited first
            stack[rows, depth] = torch.where(
                splits[:, None], torch.stack([start, end, top], -1), stack[rows, depth]
            )
            depth = depth + splits

    zeros = torch.zeros(len(b), device=device)
    if lexical is None:
        trees = Trees(zeros, spans[..., :2], None, None, length)
    else:
        trees = Trees(zeros, spans, arcs_by_modifier(governor), head, length)
    return replace(trees, score=score_trees(potentials, trees, b))


def arcs_by_modifier(governor: Tensor) -> Tensor:
    """The governor of each word [rows, n], -1 for root and padding -> arcs [rows, n - 1, 2], by modifier."""
    order = torch.where(governor >= 0, 0, 1).sort(dim=-1, stable=True).indices[:, : governor.shape[1] - 1]
    heads = governor.gather(-1, order)
    return torch.stack([heads, torch.where(heads >= 0, order, -1)], -1)


def score_trees(potentials: Potentials, trees: Trees, b: Tensor) -> Tensor:
    """[rows] the score of each tree under the potentials of sentence b[row]."""

    def total(cells: Tensor, real: Tensor) -> Tensor:
        return torch.where(real, cells.clamp(min=IMPOSSIBLE), 0.0).sum(-1)

    row = b[:, None]
    real = trees.spans[..., 0] >= 0  # [rows, 2n - 1]
    i, j = trees.spans[..., 0], trees.spans[..., 1]
    score = total(potentials.span[row, i, j], real)
    if not isinstance(potentials, LexicalPotentials):
        return score
    assert trees.arcs is not None
    assert trees.root is not None
    h = trees.spans[..., 2]
    arcs = trees.arcs
    score = score + total(potentials.arc[row, arcs[..., 0], arcs[..., 1]], arcs[..., 0] >= 0)
    score = score + potentials.root[b, trees.root].clamp(min=IMPOSSIBLE)
    score = score + total(potentials.inherit[row, i, j], real & lends_head(trees.spans))
    if potentials.head is not None:
        score = score + total(potentials.head[row, i, j, h], real)
    return score


def lends_head(spans: Tensor) -> Tensor:
    """[rows, 2n - 1] whether the span shares its head with its parent: a wider span of the tree has the same head."""
    width = spans[..., 1] - spans[..., 0]
    same = spans[:, :, None, 2] == spans[:, None, :, 2]  # [rows, 2n - 1, 2n - 1]
    wider = width[:, None, :] > width[:, :, None]
    return (same & wider).any(-1)
