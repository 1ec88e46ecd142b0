"""Tables and plots in the docs match the stored results, and the commands that the docs quote exist."""

import importlib
import re

import pytest

from benchmarks import inference, plots, tables
from tests.conftest import ROOT

NUMBER = re.compile(r"-?\d+(\.\d+)?(e-\d+)?")
SVG_ID = re.compile(r"\b[mp][0-9a-f]{10}\b")


def test_tables_match_the_results(capsys):
    """Means, deviations and p values too."""
    assert tables.main(["--check"]) == 0, capsys.readouterr().out


def test_plots_match_the_results(tmp_path):
    assert plots.main(["--out", str(tmp_path)]) == 0
    images = ROOT / "docs" / "images"
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in images.glob("*.svg")}
    for drawn in tmp_path.iterdir():
        assert f"(images/{drawn.name})" in page
        texts = [SVG_ID.sub("id", path.read_text(encoding="utf-8")) for path in (images / drawn.name, drawn)]
        message = f"{drawn.name}: run python -m benchmarks.plots"
        assert NUMBER.sub("#", texts[0]) == NUMBER.sub("#", texts[1]), message
        numbers = [[float(match.group()) for match in NUMBER.finditer(text)] for text in texts]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.01), message


def test_quoted_commands_exist():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.py")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for name in set(re.findall(r"python -m benchmarks\.(\w+)", text)):
        assert hasattr(importlib.import_module(f"benchmarks.{name}"), "main"), name
    for name in set(re.findall(r"benchmarks\.inference ([a-z-]+)", text)):
        with pytest.raises(SystemExit) as end:
            inference.main([name, "--help"])
        assert end.value.code == 0
