"""The command as a user meets it: another process, its output piped or in a terminal."""

import math
import os
import re
import subprocess
import sys

import pytest

from nestree import __version__
from nestree.cli.demo import ENTITIES, WORDS, hand_scored
from nestree.show import short
from nestree.treecrf import LexicalPotentials, best_trees, head_marginals, log_partition, marginals


def nestree(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    return subprocess.run(
        [sys.executable, "-m", "nestree", *arguments],
        capture_output=True,
        check=False,
        env={**inherited, "PYTHONIOENCODING": "utf-8", **environment},
    )


@pytest.fixture(scope="module")
def demo() -> str:
    done = nestree("demo")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    return done.stdout.decode()


def test_the_demo_fits_in_80_columns_without_escape_codes(demo):
    assert "\x1b" not in demo
    assert max(map(len, demo.splitlines())) <= 80


def test_the_demo_shows_what_the_engine_computes(demo):
    n = len(WORDS)
    scores = hand_scored()
    tree, part, heads = best_trees(scores, [n])[0], marginals(scores, [n]), head_marginals(scores, [n])
    log_z = log_partition(scores, [n]).item()
    rows = [line.split() for line in demo.splitlines()]

    assert {(i, j) for i, j, _ in tree.spans} >= set(ENTITIES)  # the scores are such that it finds them all
    head = {(i, j): h for i, j, h in tree.spans}
    for i, j, h in tree.spans:
        if j - i == 1:
            continue
        probability = part.span[0, i, j].item()
        assert short(probability) in demo
        (k,) = [k for k in range(i + 1, j) if (i, k) in head and (k, j) in head]
        m = head[i, k] + head[k, j] - h
        numbers = [f"{x:.3f}" for x in (probability, heads[0, i, j, h], part.arc[0, h, m])]
        assert [numbers[0], WORDS[h], numbers[1], WORDS[m], numbers[2]] in [row[-5:] for row in rows]
        if (i, j) in ENTITIES:
            assert f" {WORDS[h]} ─" in demo  # in its bracket
    assert f"root {short(part.root[0, tree.root].item())}" in demo
    assert f"exp({tree.score:.3f} - {log_z:.3f}) = {math.exp(tree.score - log_z):.3f}" in demo


def test_the_demo_counts_the_trees(demo):
    zero = LexicalPotentials(*(0 * t.double() for t in hand_scored() if t is not None))
    assert f"best of {round(log_partition(zero, [len(WORDS)]).exp().item()):,} trees" in demo


def test_every_word_of_the_demo_stands_in_one_row(demo):
    assert WORDS in [line.split() for line in demo.splitlines()]


def test_the_demo_in_colour_says_the_same(demo):
    coloured = nestree("demo", FORCE_COLOR="1", COLUMNS="80", TERM="xterm-256color").stdout.decode()
    assert "\x1b[" in coloured
    assert without_escapes(coloured) == demo
    assert "\x1b[3" not in nestree("demo", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm").stdout.decode()


def without_escapes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_the_demo_in_ascii():
    done = nestree("demo", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.isascii()
    assert b"=.98" in done.stdout or b"= .98" in done.stdout


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
