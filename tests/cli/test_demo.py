"""`nestree demo` in another process: piped, in colour, and in ASCII."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nestree.cli.show import DEMO_TEXT
from nestree.pipeline import load
from nestree.show import format_probability


def run_demo(out: Path, **environment: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    done = subprocess.run(
        [sys.executable, "-m", "nestree", "demo", "--out", str(out)],
        capture_output=True,
        check=True,
        env={**inherited, "PYTHONIOENCODING": "utf-8", **environment},
    )
    assert done.stderr == b""
    return done.stdout.decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def output(folder) -> str:
    return run_demo(folder / "demo.html")


def test_the_demo_shows_entities_and_a_tree_in_80_columns_and_writes_a_page(output, folder):
    document = load(device="cpu")(DEMO_TEXT)
    assert len(document.entities) > 12
    assert {"person", "place", "organization"} <= {e.label for e in document.entities}
    assert "\x1b" not in output
    assert max(map(len, output.replace(str(folder), "").splitlines())) <= 80
    brackets = " ".join(output.split("\n\n")[0].split())
    page = (folder / "demo.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    for entity in document.entities:
        assert f"|{entity.label} {format_probability(entity.score)}]" in brackets
        assert entity.label in page
    assert re.sub(r"\|[a-z]+ \d?\.\d\d|[\[\]]", "", brackets) == " ".join(DEMO_TEXT.split())
    assert list(document.sentences[-1].words) in [line.split() for line in output.splitlines()]
    assert "root" in output


def test_the_demo_in_colour_says_the_same(output, folder):
    coloured = run_demo(folder / "demo.html", FORCE_COLOR="1", COLUMNS="80", TERM="xterm-256color")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == output


def test_the_demo_in_ascii(folder):
    output = run_demo(folder / "demo.html", PYTHONIOENCODING="ascii")
    assert output.isascii()
    assert "|organization ." in output
