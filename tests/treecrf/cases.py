"""Potentials to try things on, and a judge of trees. NaN stands wherever no tree looks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nestree.treecrf import IMPOSSIBLE, LexicalPotentials, PlainPotentials, Tree
from tests.treecrf.enumeration import Parts

Potentials = LexicalPotentials | PlainPotentials

EVERY_LENGTH = [1, 2, 3, 4, 5, 6]  # one batch with all that enumeration can do


def lexical(
    lengths: Sequence[int],
    n: int | None = None,
    *,
    std: float = 1.0,
    seed: int = 0,
    head: bool = True,
    padding: float = torch.nan,
) -> LexicalPotentials:
    """Normal scores in float64 for sentences of these lengths."""
    made = LexicalPotentials(*normal_scores(lengths, n, std, seed, padding))
    return made if head else made._replace(head=None)


def plain(
    lengths: Sequence[int],
    n: int | None = None,
    *,
    std: float = 1.0,
    seed: int = 0,
    padding: float = torch.nan,
) -> PlainPotentials:
    return PlainPotentials(normal_scores(lengths, n, std, seed, padding)[0])


def normal_scores(
    lengths: Sequence[int], n: int | None, std: float, seed: int, padding: float
) -> list[Tensor]:
    n = max(lengths, default=1) if n is None else n
    size = torch.as_tensor(lengths, dtype=torch.long).view(-1, 1, 1, 1)
    i, j, h = torch.meshgrid(torch.arange(n + 1), torch.arange(n + 1), torch.arange(n), indexing="ij")
    words = torch.arange(n) < size[:, :, 0, 0]  # [batch, word]
    spans = ((i < j) & (j <= size))[..., 0]  # [batch, i, j]
    in_a_tree = [
        spans,
        words[:, :, None] & words[:, None, :] & ~torch.eye(n, dtype=torch.bool),
        words,
        spans & ~((i == 0) & (j == size))[..., 0],
        (i <= h) & (h < j) & (j <= size),
    ]
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.where(cells, std * torch.randn(cells.shape, generator=generator, dtype=torch.float64), padding)
        for cells in in_a_tree
    ]


def zeros(lengths: Sequence[int], n: int | None = None) -> LexicalPotentials:
    return lexical(lengths, n, std=0.0)


# Batches of special potentials, every length from 1 to 6


def positive_head_and_inherit() -> LexicalPotentials:
    p = lexical(EVERY_LENGTH, seed=1)
    return p._replace(inherit=p.inherit.abs(), head=p.head.abs())


def negative_head_and_inherit() -> LexicalPotentials:
    p = lexical(EVERY_LENGTH, seed=2)
    return p._replace(inherit=-p.inherit.abs(), head=-p.head.abs())


def pinned_heads() -> LexicalPotentials:
    """Where the tree holds (0, 3), its head is word 1; where it holds (2, 5), its head is word 4."""
    p = lexical(EVERY_LENGTH, seed=3)
    for (i, j), pinned in {(0, 3): 1, (2, 5): 4}.items():
        for h in range(i, j):
            if h != pinned:
                p.head[:, i, j, h] = IMPOSSIBLE
    return p


def heads_that_nobody_inherits() -> LexicalPotentials:
    """Words 0 and 1 cannot lend their heads as single words, nor can (1, 4)."""
    p = lexical(EVERY_LENGTH, seed=4)
    p.inherit[2:, 0, 1] = IMPOSSIBLE
    p.inherit[2:, 1, 2] = IMPOSSIBLE
    p.inherit[4:, 1, 4] = IMPOSSIBLE
    return p


def minus_infinity() -> LexicalPotentials:
    """-inf in every potential, so that some trees are left."""
    p = lexical(EVERY_LENGTH, seed=5)
    p.span[2:, 0, 2] = -torch.inf
    p.arc[2:, 0, 2] = -torch.inf
    p.arc[3:, 3, 1] = -torch.inf
    p.root[1:, 0] = -torch.inf
    p.inherit[3:, 1, 3] = -torch.inf
    p.head[3:, 0, 3, 2] = -torch.inf
    return p


def very_unlikely_but_possible() -> LexicalPotentials:
    p = lexical(EVERY_LENGTH, seed=6)
    p.arc[3:, 0] -= 1e4
    p.root[3:, 1] -= 9e4
    return p


SMALL = {
    "all five potentials": lambda: lexical(EVERY_LENGTH),
    "no head potential": lambda: lexical(EVERY_LENGTH, head=False),
    "head and inherit above zero": positive_head_and_inherit,
    "head and inherit below zero": negative_head_and_inherit,
    "pinned heads": pinned_heads,
    "inherit impossible": heads_that_nobody_inherits,
    "minus infinity": minus_infinity,
    "very unlikely parts": very_unlikely_but_possible,
    "std 15": lambda: lexical(EVERY_LENGTH, std=15.0, seed=7),
    "wider than its sentences": lambda: lexical(EVERY_LENGTH, 8, seed=8),
    "plain": lambda: plain(EVERY_LENGTH),
    "plain, std 15": lambda: plain(EVERY_LENGTH, std=15.0, seed=9),
}  # name -> potentials in float64 for sentences of EVERY_LENGTH


def to(potentials: Potentials, *args: object, **kwargs: object) -> Potentials:
    """Every tensor moved or converted as by Tensor.to."""
    return type(potentials)(*(None if t is None else t.to(*args, **kwargs) for t in potentials))


def leaves(potentials: Potentials) -> Potentials:
    """Copies of the same potentials that ask for gradients."""
    return type(potentials)(*(None if t is None else t.detach().clone().requires_grad_() for t in potentials))


def rows(potentials: Potentials, b: int, n: int | None = None) -> Potentials:
    """Sentence b of a batch as a batch of one, cut to n words."""
    n = potentials.span.shape[1] - 1 if n is None else n
    sizes = {"span": (n + 1, n + 1), "arc": (n, n), "root": (n,), "inherit": (n + 1, n + 1)}
    sizes["head"] = (n + 1, n + 1, n)
    cut = {}
    for name, tensor in potentials._asdict().items():
        if tensor is not None:
            cut[name] = tensor[(slice(b, b + 1), *(slice(0, size) for size in sizes[name]))]
    return type(potentials)(**cut)


# A judge of trees


def parts_of(tree: Tree, length: int) -> Parts:
    """The parts of a lexicalised tree, after checking that it is one, listed in the promised order."""
    heads = {(i, j): h for i, j, h in tree.spans}
    assert len(heads) == len(tree.spans) == 2 * length - 1, tree.spans
    order, arcs, lends = [], set(), set()

    def visit(i: int, j: int) -> int:
        order.append((i, j))
        head = heads[i, j]
        if j - i == 1:
            assert head == i, f"the head of word {i} is {head}"
            return head
        splits = [k for k in range(i + 1, j) if (i, k) in heads and (k, j) in heads]
        assert len(splits) == 1, f"({i}, {j}) splits at {splits}"
        (k,) = splits
        left, right = visit(i, k), visit(k, j)
        assert head in (left, right), f"({i}, {j}) has head {head}, its halves {left} and {right}"
        arcs.add((head, right if head == left else left))
        lends.add((i, k) if head == left else (k, j))
        return head

    top = visit(0, length)
    assert [span[:2] for span in tree.spans] == order, "parents before children, left before right"
    assert tree.root == top
    assert set(tree.arcs) == arcs
    assert list(tree.arcs) == sorted(arcs, key=lambda arc: arc[1]), "arcs are sorted by modifier"
    return Parts(frozenset(tree.spans), frozenset(arcs), top, frozenset(lends))


def plain_parts_of(tree: Tree, length: int) -> frozenset[tuple[int, int]]:
    """The spans of a plain tree, after checking that it is one, listed in the promised order."""
    spans = set(tree.spans)
    assert len(spans) == len(tree.spans) == 2 * length - 1, tree.spans
    order = []

    def visit(i: int, j: int) -> None:
        order.append((i, j))
        if j - i > 1:
            splits = [k for k in range(i + 1, j) if (i, k) in spans and (k, j) in spans]
            assert len(splits) == 1, f"({i}, {j}) splits at {splits}"
            visit(i, splits[0])
            visit(splits[0], j)

    visit(0, length)
    assert list(tree.spans) == order, "parents before children, left before right"
    assert tree.arcs == ()
    assert tree.root is None
    return frozenset(spans)


def score_of(tree: Tree, potentials: Potentials, b: int, length: int) -> float:
    """The score of a tree of sentence b, part by part in float64, after checking that it is a tree."""
    if isinstance(potentials, PlainPotentials):
        return sum(float(potentials.span[b, i, j]) for i, j in plain_parts_of(tree, length))
    parts = parts_of(tree, length)
    score = float(potentials.root[b, parts.root])
    score += sum(float(potentials.span[b, i, j]) for i, j, _ in parts.spans)
    score += sum(float(potentials.arc[b, h, m]) for h, m in parts.arcs)
    score += sum(float(potentials.inherit[b, i, j]) for i, j in parts.lends)
    if potentials.head is not None:
        score += sum(float(potentials.head[b, i, j, h]) for i, j, h in parts.spans)
    return score
