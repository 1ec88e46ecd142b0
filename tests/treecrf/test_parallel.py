"""Threads and processes: the same bits with one and two threads, several callers, data-parallel training."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.conftest import ROOT
from tests.treecrf.checks import everything, same_bits
from tests.treecrf.data_parallel import WAYS, Scorer, gradients
from tests.treecrf.sweep import SHAPES, Case

CASES = {
    **SHAPES,
    "many short": Case((5, 1, 7, 2, 6, 3, 4, 5) * 8),
    "one long": Case((60,)),
    "two long, std 60": Case((60, 45), 60.0),
}


@pytest.fixture
def threads():
    """Restores the number of torch's threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("backend", ["reference", "numba"])
@pytest.mark.parametrize("name", CASES)
def test_one_thread_and_two_give_the_same_bits(threads, backend, name):
    given = CASES[name].potentials()
    torch.set_num_threads(1)
    alone = everything(backend, given, CASES[name].lengths)
    torch.set_num_threads(2)
    assert same_bits(everything(backend, given, CASES[name].lengths), alone)


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_several_threads_may_call_at_once(backend):
    cases = [CASES["ragged"], CASES["many short"], CASES["plain"], CASES["n=33, std 60"]] * 3
    given = [case.potentials() for case in cases]
    expected = [
        everything(backend, p, case.lengths) for p, case in zip(given[:4], cases[:4], strict=True)
    ] * 3
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: everything(backend, given[k], cases[k].lengths), range(len(cases))))
    for one, other in zip(found, expected, strict=True):
        assert same_bits(one, other)


def test_data_parallel_training_averages_the_gradients_of_two_processes(tmp_path):
    out = [str(tmp_path / f"gradients.{rank}") for rank in range(2)]
    command = [sys.executable, "-m", "tests.treecrf.data_parallel"]
    workers = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meeting"), out[rank]], cwd=ROOT)
        for rank in range(2)
    ]
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
    found = [torch.load(path) for path in out]
    for way in WAYS:
        alone = [gradients(Scorer(way), rank) for rank in range(2)]
        assert not torch.allclose(alone[0][0], alone[1][0])
        for here, there, one, other in zip(found[0][way], found[1][way], *alone, strict=True):
            assert torch.equal(here, there)
            torch.testing.assert_close(here, (one + other) / 2)
