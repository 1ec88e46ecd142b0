"""A process that has used threads is forked, as `multiprocessing` and spaCy do it: the child must not wait for ever."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nestree.nn.int8 import unavailable_reason

ROOT = Path(__file__).resolve().parent.parent.parent

PROGRAM = """
import multiprocessing, os, sys, torch
torch.set_num_threads(2)
from nestree import load
precision, kind = sys.argv[1:]

def found(ner):
    return [(entity.text, entity.label) for entity in ner("The mayor of Lisbon met the president.").entities]

def loaded(_=None):
    return found(load(precision=precision))

ner = load(precision=precision)
expected = found(ner)
torch.nn.functional.linear(torch.ones(999, 256), torch.ones(256, 256))  # surely on two threads
torch.ones(999, 999).exp()
if kind == "pool":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(loaded, range(2)) == [expected] * 2
else:
    child = os.fork()
    if child == 0:
        os._exit(0 if loaded() == expected == found(ner) else 1)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there are no forks here")
@pytest.mark.parametrize("kind", ["fork", "pool"])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_fork_loads_and_reads_as_its_parent(precision, kind):
    if precision == "int8" and (why := unavailable_reason()):
        pytest.skip(why)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, precision, kind],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            _, said = process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its children, too
    assert process.returncode == 0, said
