"""Runs `nestree` in this process, or in another one where a real process matters."""

import os
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner, Result

from nestree.cli import app

COMMAND = [sys.executable, "-m", "nestree"]
ENVIRONMENT = {**os.environ, "PYTHONIOENCODING": "utf-8"}


def nestree(*arguments: object, stdin: str | bytes | None = None, **environment: str) -> Result:
    """Any end but an exit code is an error of the test."""
    words = [str(argument) for argument in arguments]
    done = CliRunner().invoke(app, words, stdin, env=environment, prog_name="nestree")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def succeed(*arguments: object, stdin: str | bytes | None = None, **environment: str) -> Result:
    done = nestree(*arguments, stdin=stdin, **environment)
    assert done.exit_code == 0, done.output
    return done


def refuse(*arguments: object, stdin: str | bytes | None = None) -> str:
    """The sentence with which a command refuses something; it prints nothing else."""
    done = nestree(*arguments, stdin=stdin)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    *notes, sentence = done.stderr.splitlines()
    assert sentence.startswith("Error: ")
    assert not any(note.startswith("Error: ") for note in notes)
    return sentence.removeprefix("Error: ")


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The same in another process."""
    environment = ENVIRONMENT | options.pop("env", {})
    words = [*COMMAND, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, encoding="utf-8", env=environment, **options)
