"""Each backend equals the reference in float64; the checks and their tolerances stand in checks.py."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from nestree.treecrf import log_partition, use_backend
from tests.treecrf import checks
from tests.treecrf.cases import leaves, lexical, plain
from tests.treecrf.sweep import CASES, HALVES, SHAPES, TIES

BACKENDS = [
    pytest.param(("reference", "cpu"), id="reference"),
    pytest.param(("numba", "cpu"), id="numba"),
    pytest.param(("triton", "cuda"), id="triton", marks=pytest.mark.cuda),
]
KERNELS = BACKENDS[1:]
CHEAP = [name for name, case in CASES.items() if max(case.lengths) <= 33 or case.kind == "plain"]


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("name", CASES)
def test_log_partition_and_each_gradient(backend, name):
    checks.check_sums(backend[0], CASES[name], backend[1])


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("name", [*CHEAP, "n=63", "n=130"])
def test_marginals_and_head_marginals(backend, name):
    checks.check_marginals(backend[0], CASES[name], backend[1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lengths", [(5, 1, 4), (3, 18)])
def test_several_sums_at_once(backend, lengths):
    checks.check_several(backend[0], lengths, backend[1])


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("name", [*CASES, *TIES])
def test_best_trees_and_ties_are_those_of_the_reference_bit_for_bit(backend, name):
    checks.check_best_trees(backend[0], (CASES | TIES)[name], backend[1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name for name in CHEAP if max(CASES[name].lengths) <= 63])
def test_entropy_and_divergence(backend, name):
    checks.check_entropy(backend[0], CASES[name], backend[1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", HALVES)
def test_half_precision_is_summed_in_float32(backend, name):
    checks.check_sums(backend[0], HALVES[name], backend[1])
    checks.check_marginals(backend[0], HALVES[name], backend[1])
    checks.check_best_trees(backend[0], HALVES[name], backend[1])


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    "check", [checks.check_layout, checks.check_padding, checks.check_buffers, checks.check_repeatable]
)
def test_layout_padding_old_buffers_and_repetition_do_not_change_the_bits(backend, name, check):
    check(backend[0], SHAPES[name], backend[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_of_no_sentences(backend):
    checks.check_empty_batch(*backend)


SPOILED = """
import numpy as np
import torch
from tests.treecrf.checks import everything
from tests.treecrf.sweep import SHAPES

assert np.empty(1000).max() < -1e300, "memory is not spoiled"
torch.save([everything("numba", case.potentials(), case.lengths) for case in SHAPES.values()], {path!r})
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can fill new memory")
def test_what_stood_in_memory_that_compiled_code_asks_for_does_not_matter(tmp_path):
    """Buffers that compiled code takes by itself: malloc fills them with -5e303, as float32 -1.7e38."""
    path = str(tmp_path / "found.pt")
    subprocess.run(
        [sys.executable, "-c", SPOILED.format(path=path)],
        check=True,
        env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.perturb=1"},
    )
    for case, found in zip(SHAPES.values(), torch.load(path), strict=True):
        assert checks.same_bits(found, checks.everything("numba", case.potentials(), case.lengths))


@pytest.mark.parametrize("std", [0.01, 1.0, 15.0, 60.0])
def test_numba_in_float64_is_as_good_as_the_reference(std):
    for make, lengths in ((lexical, [33, 20, 1]), (plain, [63, 40, 2])):
        found = []
        for backend in ("reference", "numba"):
            given = leaves(make(lengths, std=std, seed=3))
            with use_backend(backend):
                log_z = log_partition(given, lengths)
            log_z.sum().backward()
            found.append((log_z.detach(), *(t.grad for t in given)))
        for right, other in zip(*found, strict=True):
            torch.testing.assert_close(other, right, rtol=1e-13, atol=1e-10)
