"""Every command that the README and the documentation show prints what they say it prints."""

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.tiny import write_text

PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "tutorial.md"),
]  # tests/cli/test_tutorial.py runs the tutorial


def sessions(page: Path) -> list[tuple[str, str]]:
    """Command and output of everything after a `$` in the `console` blocks of a page."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return [pair for block in blocks for pair in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M)]


SESSIONS = [(page.name, command, output.rstrip() + "\n") for page in PAGES for command, output in sessions(page)]


@pytest.mark.parametrize(("page", "command", "expected"), SESSIONS, ids=[f"{s[0]}: {s[1]}" for s in SESSIONS])
def test_a_command_prints_what_is_shown(tmp_path, page, command, expected):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    script = write_text(tmp_path / "nestree", f'#!/bin/sh\nexec "{sys.executable}" -m nestree "$@"\n')
    script.chmod(0o755)
    there = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONIOENCODING": "utf-8", "COLUMNS": "80"}
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=os.environ | there, **how)
    printed = "\n".join(line.rstrip() for line in done.stdout.splitlines()).rstrip() + "\n"
    same = doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS)
    assert same, f"$ {command}\n{printed}"
