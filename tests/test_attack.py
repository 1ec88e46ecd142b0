"""Every case of the short attack holds. The full form is `python -m benchmarks.attack`."""

import json
import subprocess
import sys

import pytest

from benchmarks import attack
from benchmarks.timing import ROOT


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Of a process of its own: cases are forks, which must not inherit the threads of other tests."""
    path = tmp_path_factory.mktemp("attack") / "result.json"
    arguments = [sys.executable, "-m", "benchmarks.attack", "--cases", "2", "--json", str(path)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(path.read_text())


@pytest.mark.parametrize("section", attack.SECTIONS)
def test_every_case_holds(result, section):
    assert result["sections"][section]["cases"] == 2
    assert result["broken"][section] == {}
