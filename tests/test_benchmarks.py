"""Tables and plots in the docs match the stored results; the benchmarks of training and serving run on tiny cases."""

import doctest
import importlib
import json
import re
from pathlib import Path

import pytest

from benchmarks import inference, plots, selection, serving, tables, training
from nestree import checkpoint
from nestree.data import formats
from nestree.types import Document
from tests import tiny

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"-?\d+(\.\d+)?(e-\d+)?")
SVG_ID = re.compile(r"\b[mp][0-9a-f]{10}\b")


def test_tables_match_the_results(capsys):
    """Means, deviations and p values too."""
    assert tables.main(["--check"]) == 0, capsys.readouterr().out


def test_plots_match_the_results(tmp_path):
    assert plots.main(["--out", str(tmp_path)]) == 0
    images = ROOT / "docs" / "images"
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in images.glob("*.svg")
    )
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


@pytest.mark.parametrize("name", ["plots", "selection", "tables", "timing", "treecrf"])
def test_docstrings(name):
    assert doctest.testmod(importlib.import_module(f"benchmarks.{name}")).failed == 0


def write_parts(folder, sentences):
    for part in ("train", "dev", "test"):
        formats.write([Document((sentence,)) for sentence in sentences], folder / f"{part}.jsonl.gz")


def test_training_and_distillation(tiny_model, tmp_path, capsys):
    """One run is distilled, analyzed and timed; one fails; one has no time left."""
    out, data = tmp_path / "out.json", tmp_path / "data" / "eight"
    write_parts(data, tiny.SENTENCES)
    encoder = f"encoder.path={tiny.encoder(tmp_path / 'encoder')}"
    recipe = tmp_path / "recipe.toml"
    small = "training.batch_words=15", "training.epochs=1"
    recipe.write_text(tiny.settings("default", encoder, *small).to_toml())
    options = f"--data {data.parent} --out {out} --jobs 2 --device cpu --commit abc --budget 600 --steps 2 --analyze"
    options += f" --keep-models --teachers {tiny_model} --unlabelled {data / 'test.jsonl.gz'} --"
    runs = [f"eight:{recipe}:3:distill.words=20,distill.raw=1", f"eight:{recipe}:1:training.epochs=0"]
    assert training.main([*options.split(), *runs]) == 1
    result = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    row, failed = result["rows"]
    assert (result["commit"], failed["status"], row["status"]) == ("abc", "failed", "finished")
    assert "training.epochs" in failed["why"]
    assert row["distill"] == {"words": 20.0, "raw": 1.0}
    assert row["train_sentences"] > len(tiny.SENTENCES)
    assert row["test"]["f1"] == row["dev"]["f1"]  # of the same sentences
    counts = [sum(column) for column in zip(*row["test"]["by_sentence"], strict=True)]
    right, predicted, _, gold = map(sum, zip(*row["test"]["analysis"]["depths"].values(), strict=True))
    assert counts == [right, predicted, gold]
    assert row["step"]["steps"] == 2
    assert str(tmp_path) not in json.dumps({**row, "recipe": ""})
    assert checkpoint.load(tmp_path / "out" / row["name"]).labels
    late = ["--data", str(data.parent), "--out", str(out), "--device", "cpu", "--budget", "0"]
    training.main([*late, f"eight:{recipe}"])
    assert json.loads(out.read_text())["rows"][0]["status"] == "not begun: the budget was spent"


def test_serving(tiny_model, tmp_path):
    """Real processes: a server, and a load generator that compares its answers with those of the library."""
    short = f"--model {tiny_model} --clients 8 --minutes 0.04 --words 20 --sentences 3 --offline-seconds 0.2"
    assert serving.main([*short.split(), "--out", str(tmp_path / "row.jsonl")]) == 0
    row = json.loads((tmp_path / "row.jsonl").read_text())
    assert row["answers"] >= 8
    assert row["statuses"] == {"200": row["answers"]}
    assert (row["wrong_answers"], row["client_errors"], row["exit_code"]) == (0, 0, 0)
    assert row["ms_p50"] <= row["ms_p99"]
    words = row["answers"] * row["words_per_request"]
    assert row["words_per_second"] == pytest.approx(words / row["seconds"], 0.01)
    assert not serving.same_entities([], {(0, 1, "X"): 0.5})


def test_selection_is_simulated_and_resumed(tmp_path, monkeypatch):
    """Whole sentences and single spans; a second run goes on after the rounds of the first."""
    monkeypatch.setattr("nestree.training.dataset.MIN_UPDATES", 4)
    monkeypatch.setattr("nestree.training.dataset.GOOD_UPDATES", 4)
    write_parts(tmp_path / "data" / "tiny", (*tiny.SENTENCES, *tiny.SHORT))
    small = ["model.rank=32", "model.mlp_size=32", "model.label_mlp_size=16", "encoder.mix_layers=2"]
    changes = [f"--set={change}" for change in (*small, "training.epochs=1", "training.rho=0")]
    arguments = [
        "run", "--data", str(tmp_path / "data"), "--encoder", str(tiny.encoder(tmp_path / "encoder")),
        "--device", "cpu", "--out", str(tmp_path / "a.json"), *changes,
    ]  # fmt: skip
    seen = []

    def run_here(simulations, jobs, deadline, result, out):
        for simulation in simulations:
            for row in selection.simulate(simulation):
                result["rows"].append(row)
                seen.append((row["strategy"], row["budget"]))
        selection.store(result, out)
        return {}

    monkeypatch.setattr(selection, "run_all", run_here)
    strategies = ["tiny:f1-loss+k-center", "tiny:partial", "tiny:full"]
    assert selection.main([*arguments, "--budgets", "12,24", *strategies]) == 0
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    first, second = (row for row in rows if row["strategy"] == "f1-loss+k-center")
    assert first["words"] <= 12 < second["words"] == first["words_next"] <= 24
    assert first["decisions"] < second["decisions"] == first["decisions_next"]
    assert len(first["picked"]["whole"]) == len(set(first["picked"]["whole"])) > 0
    asked, answered = (row for row in rows if row["strategy"] == "partial")
    answers = asked["picked"]["answers"]
    new = sum(len({tuple(e[:2]) for e in known}) + len(forbidden) for _, known, forbidden in answers)
    assert answered["decisions"] == asked["decisions"] + new
    (tmp_path / "a.json").write_text(json.dumps({"rows": [row for row in rows if row["budget"] == 12]}))
    seen.clear()
    again = [*arguments, "--resume", str(tmp_path / "a.json"), "--budgets", "12,24", *strategies[:2]]
    assert selection.main(again) == 0
    assert seen == [("f1-loss+k-center", 24), ("partial", 24)]
    resumed = json.loads((tmp_path / "a.json").read_text())["rows"]
    for before, after in zip((second, answered), resumed[2:], strict=True):
        assert (after["words"], after["decisions"]) == (before["words"], before["decisions"])
    assert selection.main(["report", str(tmp_path / "a.json")]) == 0
