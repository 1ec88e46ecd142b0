"""The command as a user meets it: another process, its output piped or in a terminal."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nestree import __version__
from nestree.cli.show import TEXT
from nestree.pipeline import load
from nestree.show import short
from nestree.types import Document


def nestree(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    return subprocess.run(
        [sys.executable, "-m", "nestree", *arguments],
        capture_output=True,
        check=False,
        env={**inherited, "PYTHONIOENCODING": "utf-8", **environment},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(folder) -> str:
    done = nestree("demo", "--out", str(folder / "demo.html"))
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    return done.stdout.decode()


@pytest.fixture(scope="module")
def document() -> Document:
    return load(device="cpu")(TEXT)


def test_the_demo_fits_in_80_columns_without_escape_codes(demo, folder):
    assert "\x1b" not in demo
    own = demo.replace(str(folder), "")
    assert max(map(len, own.splitlines())) <= 80


def test_the_demo_shows_what_the_model_in_the_box_finds(demo, document):
    brackets = " ".join(demo.split("\n\n")[0].split())
    assert len(document.entities) > 12
    assert {"person", "place", "organization"} <= {e.label for e in document.entities}
    for entity in document.entities:
        assert f"|{entity.label} {short(entity.score)}]" in brackets
    words = re.sub(r"\|[a-z]+ \d?\.\d\d|[\[\]]", "", brackets)
    assert words == " ".join(TEXT.split())


def test_the_demo_draws_the_tree_of_the_last_sentence(demo, document):
    assert list(document.sentences[-1].words) in [line.split() for line in demo.splitlines()]
    assert "root" in demo


def test_the_demo_writes_a_page(demo, document, folder):
    page = (folder / "demo.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    for entity in document.entities:
        assert entity.label in page


def test_the_demo_in_colour_says_the_same(demo, folder):
    out = ("--out", str(folder / "demo.html"))
    coloured = nestree("demo", *out, FORCE_COLOR="1", COLUMNS="80", TERM="xterm-256color").stdout.decode()
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == demo


def test_the_demo_in_ascii(folder):
    done = nestree("demo", "--out", str(folder / "demo.html"), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.isascii()
    assert b"|organization ." in done.stdout


def test_help_names_the_commands():
    done = nestree("--help")
    assert done.returncode == 0
    assert b"demo" in done.stdout


def test_version():
    done = nestree("--version")
    assert (done.returncode, done.stdout.decode().strip()) == (0, f"nestree {__version__}")


def test_an_unknown_command_is_an_error_in_a_sentence():
    done = nestree("parse")
    assert done.returncode == 2
    assert b"parse" in done.stderr
    assert b"Traceback" not in done.stderr


def test_help_imports_nothing_heavy():
    code = """if True:
        import sys
        from nestree.cli import app
        app(["--help"], standalone_mode=False)
        sys.exit(bool({"torch", "numba", "transformers", "rich"} & set(sys.modules)))
    """
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0
    )
