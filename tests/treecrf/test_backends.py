"""Each backend equals the reference in float64; the checks and their tolerances stand in checks.py.

The Triton kernels run on a CUDA device and, in small cases, under Triton's interpreter (`make test-triton`).
"""

import os

import pytest
import torch

from nestree.treecrf import log_partition, use_backend
from tests.treecrf import checks
from tests.treecrf.cases import CASES, HALVES, SHAPES, TIES, Case, leaves, lexical, plain

# The interpreter computes with numpy, which warns of log2(0) and the like; on a GPU that is -inf, as wanted.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")

INTERPRETED = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="make test-triton runs it")
MARKS = {("triton", "cuda"): [pytest.mark.cuda], ("triton", "cpu"): [INTERPRETED]}
KERNELS = (("numba", "cpu"), ("triton", "cuda"), ("triton", "cpu"))
BACKENDS = (("reference", "cpu"), *KERNELS)
CHEAP = {name: case for name, case in CASES.items() if max(case.lengths) <= 33}


def on(backends, cases: dict[str, Case]):
    """Each case on each backend; under the interpreter, the small ones."""
    return pytest.mark.parametrize(
        ("backend", "device", "case"),
        [
            pytest.param(*backend, case, id=f"{'-'.join(backend)}-{name}", marks=MARKS.get(backend, []))
            for backend in backends
            for name, case in cases.items()
            if backend != ("triton", "cpu") or sum(case.lengths) < 20
        ],
    )


@on(KERNELS, CASES)
def test_log_partition_each_gradient_and_marginals(backend, device, case):
    checks.check_sums(backend, case, device)


@on(BACKENDS, {"short": Case((5, 1, 4)), "long": Case((1, 18))})
def test_several_sums_at_once(backend, device, case):
    checks.check_several(backend, case.lengths, device)


@on(KERNELS, CASES | TIES)
def test_best_trees_and_ties_are_those_of_the_reference_bit_for_bit(backend, device, case):
    checks.check_best_trees(backend, case, device)


@on(BACKENDS, CHEAP)
def test_entropy_and_divergence(backend, device, case):
    checks.check_entropy(backend, case, device)


@on(BACKENDS, HALVES)
def test_half_precision_is_summed_in_float32(backend, device, case):
    checks.check_sums(backend, case, device)
    checks.check_best_trees(backend, case, device)


@on(KERNELS, SHAPES)
@pytest.mark.parametrize("check", [checks.check_layout, checks.check_padding, checks.check_buffers])
def test_layout_padding_old_buffers_and_repetition_do_not_change_the_bits(backend, device, case, check):
    check(backend, case, device)


@on(BACKENDS, {"": Case(())})
def test_a_batch_of_no_sentences(backend, device, case):
    checks.check_empty_batch(backend, device)


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
