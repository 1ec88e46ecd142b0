"""Exact sums and maxima over the trees of a sentence; knows nothing of entities.

>>> import torch
>>> from nestree.treecrf import LexicalPotentials, log_partition
>>> n = 3
>>> zero = LexicalPotentials(torch.zeros(1, n + 1, n + 1), torch.zeros(1, n, n), torch.zeros(1, n),
...                          torch.zeros(1, n + 1, n + 1))
>>> round(log_partition(zero, [n]).exp().item())  # three words have eight lexicalised trees
8
"""

from nestree.treecrf.ops import (
    LogPartition,
    best_trees,
    entropy,
    head_marginals,
    ignore_out_of_memory,
    is_out_of_memory,
    kl_divergence,
    log_partition,
    log_partitions,
    marginals,
    sample_trees,
    use_backend,
)
from nestree.treecrf.potentials import (
    IMPOSSIBLE,
    LexicalPotentials,
    PlainPotentials,
    Potentials,
    crossing_spans,
    observe,
    raise_pending,
    span_cells,
)
from nestree.treecrf.trees import Tree, Trees

__all__ = [
    "IMPOSSIBLE",
    "LexicalPotentials",
    "LogPartition",
    "PlainPotentials",
    "Potentials",
    "Tree",
    "Trees",
    "best_trees",
    "crossing_spans",
    "entropy",
    "head_marginals",
    "ignore_out_of_memory",
    "is_out_of_memory",
    "kl_divergence",
    "log_partition",
    "log_partitions",
    "marginals",
    "observe",
    "raise_pending",
    "sample_trees",
    "span_cells",
    "use_backend",
]
