"""Trees as tensors and as Python values, and backtracking through a chart from the top down.

The chart is the single one of docs/method.md: chart[b, i, j, x] is headed(i, j, x) where x lies in the span
(i, j) and hooked(i, j, x) where it lies outside. Plain trees have one x, 0, which is in every span.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from nestree.treecrf.potentials import LexicalPotentials, Potentials


class Tree(NamedTuple):
    """One tree, in Python values."""

    score: float
    spans: tuple[tuple[int, ...], ...]  # (i, j, head), or (i, j) in plain trees; parents before children
    arcs: tuple[tuple[int, int], ...]  # (head, modifier), by modifier; none for plain trees
    root: int | None  # the head of the sentence; None for plain trees


@dataclass(frozen=True, eq=False)  # equality of tensors has no truth value
class Trees:
    """One tree per sentence, as tensors; what lies beyond a sentence's length is -1. `trees[b]` is a Tree."""

    score: Tensor  # [batch]
    spans: Tensor  # [batch, 2n - 1, 3] (i, j, h), parents before children, left before right; plain: (i, j)
    arcs: Tensor | None  # [batch, n - 1, 2] (h, m), by m; None for plain trees
    root: Tensor | None  # [batch]; None for plain trees
    lengths: Tensor  # [batch]

    def __getitem__(self, b: int) -> Tree:
        if not isinstance(b, Integral):
            raise TypeError(f"trees[{b!r}]: the index of a sentence must be a whole number; to slice, use list(trees).")
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


def first_argmax(scores: Tensor) -> Tensor:
    """The first option with the highest score: how every backend breaks ties."""
    options = torch.arange(scores.shape[-1], device=scores.device)
    best = scores == scores.amax(-1, keepdim=True)
    return torch.where(best, options, scores.shape[-1]).amin(-1).clamp(max=scores.shape[-1] - 1)


def backtrack(chart: Tensor, potentials: Potentials, lengths: Tensor, copies: int, choose: Choose) -> Trees:
    """Backtrack `copies` times through the chart of each sentence, with `choose` at every step.

    The copies of a sentence are neighbours in the result. Potentials have 0 in all cells that belong to no tree.
    """
    lexical = potentials if isinstance(potentials, LexicalPotentials) else None
    n, device = chart.shape[1] - 1, chart.device
    b = torch.arange(len(chart), device=device).repeat_interleave(copies)  # [rows] the sentence of each row
    rows = torch.arange(len(b), device=device)
    length = lengths[b]
    post = torch.arange(n + 1, device=device)
    word = post[:n]

    spans = torch.full((len(b), 2 * n - 1, 3), -1, device=device)
    governor = torch.full((len(b), n), -1, device=device)  # of each word; the root and the padding keep -1
    stack = torch.zeros(len(b), n + 1, 3, dtype=torch.long, device=device)  # spans (i, j, h) to visit
    depth = torch.ones_like(length)
    top = torch.zeros_like(length)
    score = potentials.span.new_zeros(len(b))
    if lexical is not None:
        goal = chart[b, 0, length] + lexical.root[b]  # GOAL [rows, h]
        top = choose(torch.where(word < length[:, None], goal, -torch.inf))
        score = lexical.root[b, top]
    stack[:, 0] = torch.stack([torch.zeros_like(length), length, top], -1)

    for step in range(2 * n - 1):
        active = depth > 0
        depth = (depth - 1).clamp(min=0)
        i, j, h = stack[rows, depth].unbind(-1)
        spans[:, step] = torch.where(active[:, None], torch.stack([i, j, h], -1), -1)
        score = score + torch.where(active, potentials.span[b, i, j], 0.0)

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
            lends = lexical.inherit[b, torch.where(head_left, i, k), torch.where(head_left, k, j)]
            score = score + torch.where(splits, lexical.arc[b, h, m] + lends, 0.0)
            if lexical.head is not None:
                score = score + torch.where(active, lexical.head[b, i, j, h], 0.0)

        for start, end, head in ((k, j, right_head), (i, k, left_head)):  # the left half is visited first
            child = torch.stack([start, end, head], -1)
            stack[rows, depth] = torch.where(splits[:, None], child, stack[rows, depth])
            depth = depth + splits

    if lexical is None:
        return Trees(score, spans[..., :2], None, None, length)
    # Arcs by modifier: the words that have a governor, then the root and the padding.
    order = torch.where(governor >= 0, 0, 1).sort(dim=-1, stable=True).indices[:, : n - 1]
    heads = governor.gather(-1, order)
    return Trees(score, spans, torch.stack([heads, torch.where(heads >= 0, order, -1)], -1), top, length)
