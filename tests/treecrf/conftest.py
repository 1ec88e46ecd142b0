"""Backends, and each public function of the engine, as fixtures."""

import pytest
import torch

from nestree.treecrf import (
    LexicalPotentials,
    best_trees,
    entropy,
    head_marginals,
    kl_divergence,
    log_partition,
    marginals,
    sample_trees,
    use_backend,
)
from tests.treecrf.cases import lexical

LENGTHS = [3, 4]


def valid() -> LexicalPotentials:
    """Potentials in float64 for sentences of LENGTHS."""
    return lexical(LENGTHS, seed=21)


FUNCTIONS = {
    "log_partition": log_partition,
    "marginals": marginals,
    "head_marginals": head_marginals,
    "best_trees": best_trees,
    "sample_trees": lambda p, lengths: sample_trees(p, lengths, 3, torch.Generator().manual_seed(0)),
    "entropy": entropy,
    "kl_divergence, p": lambda p, lengths: kl_divergence(p, valid(), lengths),
    "kl_divergence, q": lambda q, lengths: kl_divergence(valid(), q, lengths),
}


@pytest.fixture(params=["reference", "numba"])
def backend(request):
    with use_backend(request.param):
        yield request.param


@pytest.fixture(params=FUNCTIONS)
def function(request):
    return FUNCTIONS[request.param]
