"""The commands of the tutorial, one after the other, in a folder of their own.

They run as they stand there, with two differences: the encoder of that name is a tiny one, and training gets the
settings that fit it.
"""

import doctest
import shlex
import shutil
from pathlib import Path

from tests import tiny
from tests.cli.run import nestree
from tests.test_examples import ROOT, sessions

TUTORIAL = sessions(ROOT / "docs" / "tutorial.md")
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
SMALL = [*tiny.SMALL, "training.batch_words=30", "training.epochs=6"]


def test_the_tutorial_runs_from_its_beginning_to_its_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    tiny.encoder(tmp_path / ENCODER)
    checker = doctest.OutputChecker()
    for command, expected in TUTORIAL:
        program, *arguments = shlex.split(command)
        assert program == "nestree"
        if arguments[0] == "train":
            arguments += ["--device", "cpu", *(word for setting in SMALL for word in ("--set", setting))]
        done = nestree(*arguments, COLUMNS="80")
        assert done.exit_code == (1 if arguments[0] == "check" else 0), (command, done.output)
        printed = "".join(f"{line.rstrip()}\n" for line in done.output.splitlines())
        assert checker.check_output(expected, printed, doctest.ELLIPSIS), f"$ {command}\n{printed}"
    assert "Reliability diagram" in Path("report.html").read_text(encoding="utf-8")
    assert Path("found/brat/news.jsonl").is_file()
    shown = {shlex.split(command)[1] for command, _ in TUTORIAL}
    assert {"convert", "check", "split", "train", "evaluate", "predict", "show"} <= shown
