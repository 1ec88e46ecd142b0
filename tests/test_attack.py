"""The attack holds in its short form, and it counts what breaks. The full form is `python -m benchmarks.attack`."""

import json
import os
import subprocess
import sys
import time

import pytest

from benchmarks import attack
from benchmarks.timing import ROOT
from nestree.types import Document, Entity, Sentence

TEXT = "Ann met Bob"


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


def fail(case):
    raise ValueError("no reason")


def kill(case):
    os.kill(os.getpid(), 9)


def sleep(case):
    time.sleep(60)


def fill_memory(case):
    bytearray(2 * attack.MEMORY)


@pytest.mark.parametrize(
    ("check", "why"),
    [
        (lambda case: attack.require(case.folder.is_dir(), "no folder"), ""),
        (lambda case: attack.require(False, "a reason"), "a reason"),
        (fail, "ValueError at test_attack.py:"),
        (kill, "the process died of signal 9"),
        (sleep, "not done after 1 s"),
        (fill_memory, "MemoryError at"),
        (lambda case: attack.command("check", case.folder / "missing"), ""),
    ],
)
def test_a_case_holds_or_breaks_with_a_reason(tmp_path, monkeypatch, check, why):
    monkeypatch.setattr(attack, "SECONDS", 1 if check is sleep else 60)
    found = attack.run_case(check, "seed", tmp_path)
    assert found.startswith(why)
    assert bool(found) == bool(why)
    assert list(tmp_path.iterdir()) == []


def test_broken_cases_are_counted(tmp_path, monkeypatch, capsys):
    cases = {"good": lambda case: None, "bad": lambda case: attack.require(False, "a reason")}
    monkeypatch.setattr(attack, "SECTIONS", {"texts": (lambda rounds: iter(cases.items()), 0)})
    monkeypatch.setattr(attack, "warm_up", lambda engine: None)
    assert attack.main(["--json", str(tmp_path / "o.json")]) == 1
    assert capsys.readouterr().out.splitlines()[1].split() == ["texts", "2", "1", "1", "0"]
    assert json.loads((tmp_path / "o.json").read_text())["broken"] == {"texts": {"bad": "a reason"}}
    assert attack.main(["--only", "texts/good"]) == 0
    assert attack.main(["--only", "nothing"]) == 2


def document(words: list[str], text: str, *entities: Entity) -> Document:
    places = []
    for word in words:
        start = text.index(word, places[-1][1] if places else 0)
        places.append((start, start + len(word)))
    return Document((Sentence(words, entities, text, tuple(places)),), text)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (document(["Ann", "Bob"], TEXT), TEXT),  # a word is lost
        (document(["Ann", "met", "Bob"], TEXT), TEXT + "!"),
        (
            document(["Ann", "met", "Bob"], TEXT, Entity(0, 2, "A", None, 0.5), Entity(1, 3, "B", None, 0.5)),
            TEXT,
        ),
        (document(["Ann", "met", "Bob"], TEXT, Entity(0, 1, "A")), TEXT),  # no score
    ],
)
def test_what_is_wrong_with_a_document_is_found(bad, text):
    nested = Entity(0, 2, "A", None, 0.5), Entity(0, 1, "B", None, 1.0)
    attack.check_document(document(["Ann", "met", "Bob"], TEXT, *nested), TEXT)
    with pytest.raises(attack.BrokenError):
        attack.check_document(bad, text)
