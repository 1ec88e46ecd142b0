"""Potentials to try things on, and a judge of trees. NaN stands wherever no tree looks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nestree.treecrf import IMPOSSIBLE, LexicalPotentials, PlainPotentials, Tree, observe
from tests.treecrf.enumeration import Parts

Potentials = LexicalPotentials | PlainPotentials

EVERY_LENGTH = [1, 2, 3, 4, 5, 6]  # one batch with all that enumeration can do


def lexical(
    lengths: Sequence[int], n: int | None = None, *, std: float = 1.0, seed: int = 0, head: bool = True
) -> LexicalPotentials:
    """Normal scores in float64 for sentences of these lengths."""
    potentials = LexicalPotentials(*normal_scores(lengths, n, std, seed))
    return potentials if head else potentials._replace(head=None)


def plain(lengths: Sequence[int], n: int | None = None, *, std: float = 1.0, seed: int = 0) -> PlainPotentials:
    return PlainPotentials(normal_scores(lengths, n, std, seed)[0])


def normal_scores(lengths: Sequence[int], n: int | None, std: float, seed: int) -> list[Tensor]:
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
    scores = [std * torch.randn(c.shape, generator=generator, dtype=torch.float64) for c in in_a_tree]
    return [torch.where(cells, each, torch.nan) for cells, each in zip(in_a_tree, scores, strict=True)]


# Batches of special potentials, every length from 1 to 6


def signed_head_and_inherit(sign: int, seed: int) -> LexicalPotentials:
    p = lexical(EVERY_LENGTH, seed=seed)
    return p._replace(inherit=sign * p.inherit.abs(), head=sign * p.head.abs())


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
    "head and inherit above zero": lambda: signed_head_and_inherit(1, seed=1),
    "head and inherit below zero": lambda: signed_head_and_inherit(-1, seed=2),
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


# Random batches on which every backend is checked


@dataclass(frozen=True)
class Case:
    """A batch of random potentials."""

    lengths: tuple[int, ...]
    std: float = 1.0
    n: int | None = None  # padded to this many words; None: the longest
    kind: str = "lexical"
    head: bool = True
    inherit: bool = True  # False: zero everywhere
    observed: bool = False
    whole: bool = False  # scores are small whole numbers: many trees have the same
    dtype: torch.dtype = torch.float32
    mute: bool = True  # in each sentence of more than two words, one word never governs another

    def potentials(self, device: str = "cpu", seed: int = 0) -> Potentials:
        """In the type of the case; NaN in the padding."""
        make = lexical if self.kind == "lexical" else plain
        potentials = make(self.lengths, self.n, std=self.std, seed=sum(self.lengths) + seed)
        if self.kind == "lexical":
            potentials = potentials if self.head else potentials._replace(head=None)
            potentials = potentials if self.inherit else potentials._replace(inherit=potentials.inherit * 0)
            for b, length in enumerate(self.lengths):
                if self.mute and length > 2:
                    potentials.arc[b, length // 2] = -torch.inf
        if self.whole:
            potentials = type(potentials)(*(None if t is None else t.round() for t in potentials))
        potentials = to(potentials, device, self.dtype)
        if self.observed:
            spans = [nested(length) for length in self.lengths]
            potentials = to(observe(potentials, spans, self.lengths), self.dtype)
        return potentials


def nested(length: int) -> list[tuple[int, int]]:
    """Some spans of a sentence that do not cross."""
    third = length // 3
    spans = [(third, length), (third, length - third), (third + 1, length - third), (0, third)]
    return [(i, j) for i, j in spans if i < j]


RAGGED = (17, 1, 9, 2, 16, 3)

CASES = {
    "n=1": Case((1,)),
    "n=2": Case((2, 1)),
    "n=3": Case((3, 1, 3, 2)),
    "n=17, batch of one": Case((17,)),
    "n=32": Case((32, 31)),
    "n=63": Case((63, 40)),
    "n=130": Case((130,)),
    "many short": Case((5, 1, 7, 2, 6, 3, 4, 5) * 8),
    "padded far beyond": Case((4, 2), n=20),
    "no head": Case(RAGGED, head=False),
    "neither": Case(RAGGED, head=False, inherit=False),
    "forbidden spans": Case(RAGGED, observed=True),
    "std 0.01": Case(RAGGED, 0.01),
    "std 1": Case(RAGGED, 1.0),
    "std 15": Case(RAGGED, 15.0),
    "std 60": Case(RAGGED, 60.0),
    "n=63, std 60": Case((63, 50), 60.0),
    "n=130, std 60": Case((130,), 60.0, head=False),
    "every word may govern, n=63": Case((63, 40), mute=False),
    "every word may govern, std 0.01": Case(RAGGED, 0.01, mute=False),
    "every word may govern, forbidden spans": Case(RAGGED, observed=True, mute=False),
    "plain, n=1": Case((1,), kind="plain"),
    "plain, std 0.01": Case(RAGGED, 0.01, kind="plain"),
    "plain, std 1": Case(RAGGED, 1.0, kind="plain"),
    "plain, std 60": Case(RAGGED, 60.0, kind="plain"),
    "plain, forbidden spans": Case(RAGGED, kind="plain", observed=True),
    "plain, n=130": Case((130, 77), kind="plain"),
    "plain, n=130, std 60": Case((130, 129), 60.0, kind="plain"),
    # For Triton's interpreter, which takes seconds where a GPU takes microseconds.
    "small": Case((9, 4), mute=False),
    "small, std 15": Case((8, 5), 15.0, head=False, mute=False),
    "small, std 60": Case((9, 7), 60.0),
    "small, no head": Case((7, 5), head=False, inherit=False),
    "small, forbidden spans": Case((9, 6), observed=True, mute=False),
    "small, plain": Case((9, 6), kind="plain"),
    "small, plain, std 60": Case((8, 9), 60.0, kind="plain", observed=True),
}
SHAPES = {
    "ragged": Case(RAGGED),
    "n=33, std 60": Case((33, 20), 60.0),
    "n=1": Case((1,)),
    "plain": Case(RAGGED, kind="plain"),
    "small": Case((4, 1, 3)),
    "small, plain": Case((4, 1, 3), kind="plain"),
}  # for things that must not matter
HALVES = {
    f"{dtype}, {kind}".removeprefix("torch."): Case((6, 3), kind=kind, dtype=dtype)
    for dtype in (torch.float16, torch.bfloat16)
    for kind in ("lexical", "plain")
}
TIES = {
    f"{kind}, std {std:g}": Case((8, 2, 7, 1), std, kind=kind, whole=True)
    for kind in ("lexical", "plain")
    for std in (0.0, 0.7, 2.0)
}


# A judge of trees


def parts_of(tree: Tree, length: int) -> Parts | frozenset[tuple[int, int]]:
    """The parts of a tree, of a plain one its spans, after checking that it is one, listed in the promised order."""
    heads = {(i, j): head for i, j, *head in tree.spans}  # of a plain tree, []
    assert len(heads) == len(tree.spans) == 2 * length - 1, tree.spans
    order, arcs, lends = [], set(), set()

    def visit(i: int, j: int) -> list[int]:
        order.append((i, j))
        head = heads[i, j]
        if j - i == 1:
            assert head in ([], [i]), f"the head of word {i} is {head}"
            return head
        splits = [k for k in range(i + 1, j) if (i, k) in heads and (k, j) in heads]
        assert len(splits) == 1, f"({i}, {j}) splits at {splits}"
        (k,) = splits
        left, right = visit(i, k), visit(k, j)
        assert head in (left, right), f"({i}, {j}) has head {head}, its halves {left} and {right}"
        if head:
            arcs.add((*head, *(right if head == left else left)))
            lends.add((i, k) if head == left else (k, j))
        return head

    top = visit(0, length)
    assert [span[:2] for span in tree.spans] == order, "parents before children, left before right"
    assert tree.root == (top[0] if top else None)
    assert list(tree.arcs) == sorted(arcs, key=lambda arc: arc[1]), "arcs are sorted by modifier"
    spans = frozenset(tree.spans)
    return Parts(spans, frozenset(arcs), top[0], frozenset(lends)) if top else spans


def score_of(tree: Tree, potentials: Potentials, b: int, length: int) -> float:
    """The score of a tree of sentence b, part by part in float64, after checking that it is a tree."""
    if isinstance(potentials, PlainPotentials):
        return sum(float(potentials.span[b, i, j]) for i, j in parts_of(tree, length))
    parts = parts_of(tree, length)
    score = float(potentials.root[b, parts.root])
    score += sum(float(potentials.span[b, i, j]) for i, j, _ in parts.spans)
    score += sum(float(potentials.arc[b, h, m]) for h, m in parts.arcs)
    score += sum(float(potentials.inherit[b, i, j]) for i, j in parts.lends)
    if potentials.head is not None:
        score += sum(float(potentials.head[b, i, j, h]) for i, j, h in parts.spans)
    return score
