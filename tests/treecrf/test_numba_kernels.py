"""What only the CPU kernels have: three precisions, threads inside a sentence, compiled code on disk."""

import subprocess
import sys

import pytest
import torch

from nestree.treecrf import log_partition, marginals, numba_kernels, use_backend
from tests.conftest import ROOT
from tests.treecrf.cases import to
from tests.treecrf.checks import Case, everything, same_bits

TOO_FAR_APART = Case((9, 6, 1), 1000.0)


def redone(given, lengths) -> int:
    """How many sentences a sum over their trees redoes in logs."""
    before = numba_kernels.redone_in_logs
    with use_backend("numba"):
        log_partition(given, lengths)
    return numba_kernels.redone_in_logs - before


def test_only_scores_that_are_too_far_apart_are_summed_in_logs():
    for std in (0.01, 1.0, 15.0):
        case = Case((17, 9, 1), std)
        assert redone(case.potentials(), case.lengths) == 0
    assert redone(TOO_FAR_APART.potentials(), TOO_FAR_APART.lengths) > 0


def test_sums_in_logs_equal_the_reference():
    given, lengths = TOO_FAR_APART.potentials(), TOO_FAR_APART.lengths
    with use_backend("numba"):
        found, part = log_partition(given, lengths), marginals(given, lengths)
    with use_backend("reference"):
        exact = to(given, torch.float64)
        expected, right = log_partition(exact, lengths), marginals(exact, lengths)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-3)
    for name in given._fields:
        assert (getattr(part, name) - getattr(right, name)).abs().max() < 1e-5, name


def test_one_sentence_in_logs_leaves_the_others_as_they_are():
    calm, wild = Case((9, 9)).potentials(), Case((9, 9), 1000.0).potentials()
    mixed = type(calm)(*(torch.stack([one[0], other[1]]) for one, other in zip(calm, wild, strict=True)))
    assert redone(mixed, (9, 9)) == 1
    with use_backend("numba"):
        assert log_partition(mixed, (9, 9))[0] == log_partition(calm, (9, 9))[0]


@pytest.mark.parametrize("std", [1.0, 60.0])
def test_threads_inside_a_long_sentence_give_the_same_bits(std):
    length = numba_kernels.LONG + 13
    case = Case((length,), std, head=False)
    given = case.potentials()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = everything("numba", given, case.lengths)
        for threads in (2, 3):
            torch.set_num_threads(threads)
            assert same_bits(everything("numba", given, case.lengths), alone)
    finally:
        torch.set_num_threads(before)


UNWRITABLE = """
import logging, tempfile
def refuse(*_, **__):
    raise PermissionError("read-only")
tempfile.TemporaryFile = refuse  # how numba finds out whether it may write to a folder
logging.basicConfig(level=logging.INFO)
import torch
from nestree.treecrf import PlainPotentials, log_partition, use_backend
with use_backend("numba"):
    print(round(log_partition(PlainPotentials(torch.zeros(1, 5, 5)), [4]).exp().item()))
"""


def test_where_nothing_can_be_written_compiled_code_is_not_kept():
    answer = subprocess.run([sys.executable, "-c", UNWRITABLE], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == "5"
    assert "compiled code is not kept between runs" in answer.stderr
