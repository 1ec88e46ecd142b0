"""The attack holds in its short form, and it counts what breaks. The full form is `python -m benchmarks.attack`."""

import json
import os
import subprocess
import sys
import time

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


def fail(rng, folder):
    raise ValueError("no reason")


@pytest.mark.parametrize(
    ("check", "why"),
    [
        (lambda rng, folder: attack.require(folder.is_dir(), "no folder"), ""),
        (lambda rng, folder: attack.require(False, "a reason"), "a reason"),
        (fail, "ValueError at test_attack.py:"),
        (lambda rng, folder: os.kill(os.getpid(), 9), "the process died of signal 9"),
        (lambda rng, folder: time.sleep(60), "not done after 5 s"),
        (lambda rng, folder: bytearray(2 * attack.MEMORY), "MemoryError at"),
        (lambda rng, folder: attack.command("check", folder / "missing"), ""),
    ],
)
def test_a_case_holds_or_breaks_with_a_reason(tmp_path, monkeypatch, check, why):
    monkeypatch.setattr(attack, "SECONDS", 5)
    found = attack.run_case(check, "seed", tmp_path)
    assert found.startswith(why)
    assert bool(found) == bool(why)
    assert list(tmp_path.iterdir()) == []


def test_broken_cases_are_counted(tmp_path, monkeypatch, capsys):
    cases = {"good": lambda *_: None, "bad": lambda *_: attack.require(False, "a reason")}
    monkeypatch.setattr(attack, "SECTIONS", {"texts": lambda: iter(cases.items())})
    assert attack.main(["--json", str(tmp_path / "o.json")]) == 1
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["texts", "2", "1", "1"]
    assert json.loads((tmp_path / "o.json").read_text())["broken"] == {"texts": {"bad": "a reason"}}
    assert attack.main(["--only", "texts/good"]) == 0
    assert attack.main(["--only", "nothing"]) == 2
