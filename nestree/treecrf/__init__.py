"""Exact sums and maxima over the trees of a sentence; knows nothing of entities.

>>> import torch
>>> from nestree.treecrf import LexicalPotentials, log_partition
>>> n = 3
>>> zero = LexicalPotentials(torch.zeros(1, n + 1, n + 1), torch.zeros(1, n, n), torch.zeros(1, n),
...                          torch.zeros(1, n + 1, n + 1))
>>> round(log_partition(zero, [n]).exp().item())  # three words have eight lexicalised trees
8
"""

from nestree.treecrf.backends import use_backend
from nestree.treecrf.later import raise_pending
from nestree.treecrf.ops import (
    best_trees,
    entropy,
    head_marginals,
    kl_divergence,
    log_partition,
    log_partition_and_heads,
    marginals,
    sample_trees,
)
from nestree.treecrf.potentials import IMPOSSIBLE, LexicalPotentials, PlainPotentials, observe
from nestree.treecrf.trees import Tree, Trees

__all__ = [
    "IMPOSSIBLE",
    "LexicalPotentials",
    "PlainPotentials",
    "Tree",
    "Trees",
    "best_trees",
    "entropy",
    "head_marginals",
    "kl_divergence",
    "log_partition",
    "log_partition_and_heads",
    "marginals",
    "observe",
    "raise_pending",
    "sample_trees",
    "use_backend",
]
