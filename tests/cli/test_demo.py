"""`nestree demo`: piped, and in colour."""

import re

from nestree.cli.show import DEMO_TEXT
from nestree.pipeline import load
from nestree.show import format_probability
from tests.cli.run import nestree


def test_the_demo_shows_entities_and_a_tree_in_80_columns_and_writes_a_page(tmp_path):
    path = tmp_path / "demo.html"
    done = nestree("demo", "--out", path, COLUMNS="80")
    assert (done.exit_code, done.stderr) == (0, "")
    output, document = done.stdout, load(device="cpu")(DEMO_TEXT)
    assert len(document.entities) > 12
    assert {"person", "place", "organization"} <= {e.label for e in document.entities}
    assert "\x1b" not in output
    assert max(map(len, output.replace(str(tmp_path), "").splitlines())) <= 82
    brackets = " ".join(output.split("\n\n")[0].split())
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    for entity in document.entities:
        assert f"|{entity.label} {format_probability(entity.score)}]" in brackets
        assert entity.label in page
    assert re.sub(r"\|[a-z]+ \d?\.\d\d|[\[\]]", "", brackets) == " ".join(DEMO_TEXT.split())
    assert list(document.sentences[-1].words) in [line.split() for line in output.splitlines()]
    assert "root" in output
    coloured = nestree("demo", "--out", path, FORCE_COLOR="1", COLUMNS="80", TERM="xterm-256color").stdout
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == output
