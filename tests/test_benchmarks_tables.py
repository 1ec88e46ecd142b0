"""Tables of docs and README come from the stored results, and only from them."""

import doctest
import json

import pytest

from benchmarks import stored, tables
from benchmarks.significance import chance


def run(data, recipe, seed, f1, *changes, rows=None):
    test = {"f1": f1, "precision": f1 + 1, "recall": f1 - 1}
    return {
        "name": f"{data}-{seed}",
        "data": data,
        "recipe": recipe,
        "seed": seed,
        "changes": ["encoder.path=some", *changes],
        "best_epoch": 2,
        "epochs_planned": 3,
        "dev": {"f1": f1},
        "test": test if rows is None else {**test, "by_sentence": rows},
    }


def keep(folder, *rows, benchmark="training", name="a.json"):
    result = {
        "benchmark": benchmark,
        "device": "some GPU",
        "date": "2026-11-15T1",
        "commit": "abc",
        "rows": rows,
    }
    with open(folder / name, "a") as file:
        file.write(json.dumps(result) + "\n")


def test_runs_are_grouped_by_all_but_their_seeds(tmp_path):
    keep(tmp_path, run("litbank", "default", 1, 80.0), run("litbank", "default", 2, 82.0))
    keep(tmp_path, run("litbank", "default", 1, 50.0, "training.epochs=1"), {"name": "failed"})
    keep(tmp_path, run("litbank", "default", 3, 84.0), name="b.json")
    keep(tmp_path, run("litbank", "default", 9, 1.0), benchmark="other")
    groups = stored.grouped(stored.trainings(tmp_path))
    assert {key: [r["test"]["f1"] for r in some] for key, some in groups.items()} == {
        ("litbank", "default", ()): [80.0, 82.0, 84.0],
        ("litbank", "default", ("training.epochs=1",)): [50.0],
    }


def test_a_table_says_what_was_run_and_leaves_empty_what_was_not(tmp_path, monkeypatch):
    keep(tmp_path, run("litbank", "ablation/11-both", 1, 80.0), run("litbank", "ablation/11-both", 2, 82.0))
    monkeypatch.setattr(tables, "trainings", lambda: stored.trainings(tmp_path))
    lines = tables.ablation().splitlines()
    assert "| 11 | + both | 2 | 82.00 ± 1.41 | 80.00 ± 1.41 | 81.00 ± 1.41 | 07 |  |" in lines
    assert "| 12 | joint likelihood |  |  |  |  | 11 |  |" in lines
    assert lines[-1] == "From some GPU, 2026-11-15, abc, a.json."
    assert len([line for line in lines if line.startswith("| ")]) == 13


def test_regions_are_replaced_and_nothing_else(monkeypatch):
    monkeypatch.setattr(tables, "TABLES", {"one": lambda: "| new |"})
    page = "before\n<!-- table one -->\n| old |\n<!-- end -->\nafter <!-- end -->\n"
    made = tables.filled(page, "page.md")
    assert made == page.replace("old", "new")
    assert tables.filled(made, "page.md") == made
    with pytest.raises(SystemExit, match=r"page.md: there is no table two; there are one"):
        tables.filled("<!-- table two -->\n<!-- end -->", "page.md")


def test_a_stale_page_is_found_and_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("nothing here\n")
    page = tmp_path / "docs" / "page.md"
    page.write_text("<!-- table one -->\n<!-- end -->\n")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "TABLES", {"one": lambda: "| new |"})
    assert tables.main(["--check"]) == 1
    assert "page.md: tables differ" in capsys.readouterr().out
    assert "new" not in page.read_text()
    assert tables.main([]) == 0
    assert "| new |" in page.read_text()
    assert tables.main(["--check"]) == 0


def test_chance():
    good, bad = [[3, 3, 3]] * 60, [[1, 3, 3]] * 60
    assert chance([run("a", "b", 1, 0, rows=good)], [run("a", "b", 1, 0, rows=bad)], swaps=200) < 0.01
    mixed = [[3, 3, 3], [1, 3, 3]] * 30
    assert chance([run("a", "b", 1, 0, rows=mixed)], [run("a", "b", 1, 0, rows=mixed[::-1])], swaps=200) > 0.5
    assert chance([run("a", "b", 1, 0)], [run("a", "b", 1, 0, rows=good)]) is None


def test_examples():
    for module in (stored, tables):
        assert doctest.testmod(module).failed == 0
