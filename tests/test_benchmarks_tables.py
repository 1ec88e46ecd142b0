"""Tables of docs and README come from the stored results, and only from them."""

import doctest
import json

import pytest

from benchmarks import details, insights, markdown, stored, tables
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
        "epochs_done": 3,
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


def test_runs_made_once_more_stand_beside_the_first_and_are_no_seeds(tmp_path, monkeypatch):
    joint = "ablation/12-joint"
    keep(tmp_path, run("litbank", joint, 1, 80.0), run("litbank", joint, 2, 82.0))
    keep(tmp_path, run("litbank", joint, 2, 81.5), name="reruns-h200.json")
    assert [row["test"]["f1"] for row in stored.trainings(tmp_path)] == [80.0, 82.0]
    others = [run("litbank", "ablation/11-both", seed, 80.0) for seed in (1, 2)]  # a row without deviation,
    others += [run("litbank", "ablation/08-without-parsing", seed, 9.0 * seed) for seed in (1, 2)]
    others += [run("genia", joint, seed, 9.0 * seed) for seed in (1, 2)]  # and two that do not count
    keep(tmp_path, *others, name="others.json")
    small = "encoder.path=all-MiniLM-L6-v2"
    keep(tmp_path, run("genia", "default", 1, 70.0, small, "training.lr=1"), name="boxes.json")
    keep(
        tmp_path, run("genia", "default", 1, 71.0, small), name="reruns-z.json"
    )  # another default, same settings
    monkeypatch.setattr(tables, "trainings", lambda small=False: stored.trainings(tmp_path, small))
    monkeypatch.setattr(tables, "reruns", lambda: stored.reruns(tmp_path))
    assert tables.rerun().splitlines()[2:4] == [
        "| LitBank | joint likelihood | 2 | 82.00 | 81.50 | 81.00 ± 1.41 | 2 | 0.4 | 0.5 |  |  |",
        "| GENIA | MiniLM-L6 | 1 | 70.00 | 71.00 | 70.00 | 1 |  | 0.2 |  |  |",
    ]


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


DETAILS = {
    "depths": {"0": [8, 10, 8, 12], "1+": [1, 2, 1, 4]},
    "lengths": {"1": [9, 12, 9, 16]},
    "labels": {"PER": [9, 12, 9, 16]},
    "errors": {"type": 3, "boundary": 1},
    "head_words": {"PER": [["mayor", 3], ["Ann", 1]]},
    "head_errors": {
        "other": {"count": 1, "examples": [["big news", "news", "big"]]},
        "another word of a name": {"count": 3, "examples": [["New York", "New", "York"]]},
    },
    "calibration": {"error": 3.25, "brier": 0.1234, "bins": []},
}


def with_details(data, recipe, seed, f1, *changes):
    one = run(data, recipe, seed, f1, *changes)
    heads = {"accuracy": f1 + 10, "shared": 2.0, "gold_shared": 1.5}
    one["dev"] |= {"details": {"calibration": {"error": 1.0, "brier": 0.1}}}
    decoders = {"marginals 0.2": {"f1": 1.0}, "tree -2.0": {"f1": f1 - 1, "heads": heads}}
    one["test"] |= {"heads": heads, "details": DETAILS, "decoders": decoders}
    for part, more in (("dev", 11), ("test", 12)):
        one[part].setdefault("decoders", {})["forms 1.5"] = {"heads": {"accuracy": f1 + more}}
    return one


def test_tables_of_what_models_do(tmp_path, monkeypatch):
    for module in (insights, tables):
        monkeypatch.setattr(module, "trainings", lambda: stored.trainings(tmp_path))
    monkeypatch.setattr(insights, "analysed", lambda: stored.analysed(tmp_path))
    keep(tmp_path, with_details("gum_open", "box", 1, 70.0), benchmark="analysis")
    keep(tmp_path, with_details("gum_open", "default", 1, 78.0), with_details("gum_open", "default", 2, 80.0))
    joint = "ablation/12-joint"
    keep(
        tmp_path,
        run("litbank", joint, 1, 82.0),
        run("litbank", joint, 1, 81.0, "loss.head_sharing_penalty=0.1"),
    )
    keep(tmp_path, run("litbank", "ablation/07-lexical-yes-no", 1, 80.0))
    keep(tmp_path, run("negatives", joint, 1, 70.0), run("unknown-75", joint, 1, 60.0))
    keep(tmp_path, run("genia_paper", "paper", 1, 77.0))

    def lines(name):
        return tables.TABLES[name]().splitlines()

    assert lines("heads")[2:4] == [
        "| bundled model | 1 | 70.00 | 80.0 | 2.0 |",
        "| default | 2 | 79.00 ± 1.41 | 89.0 ± 1.4 | 2.0 ± 0.0 |",
    ]
    assert lines("heads")[-1].endswith("Gold entities that share a head: 1.5 %.")
    assert lines("head-errors")[2:4] == [
        "| another word of a name | 75 | 75 ± 0 | New York: *New*, not *York* |",
        "| other | 25 | 25 ± 0 | big news: *news*, not *big* |",
    ]
    assert lines("head-words")[:3] == [
        "| label, default | its most frequent heads |",
        "|---|---|",
        "| PER | mayor 3, Ann 1 |",
    ]
    assert lines("decoding-cost")[2] == "| bundled model | -2.0 | 1 | 69.00 | 80.0 | 2.0 |"
    assert lines("head-forms")[2] == "| 1.5 | 0.0 | 2 | 90.0 ± 1.4 | 91.0 ± 1.4 |  |"
    assert lines("training-cost")[2:5] == [
        "| joint likelihood | 0.1 | 1 | 3 of 3 | 81.00 | 81.00 |  |",
        "| joint likelihood | 0.4 | 1 | 3 of 3 | 82.00 | 82.00 |  |",
        "| two losses, labels without heads | 0 | 1 | 3 of 3 | 80.00 | 80.00 |  |",
    ]
    assert lines("errors")[2] == "| GUM-open, bundled model | 1 | 75.0 | 25.0 |"
    assert lines("nesting")[2] == "| GUM-open, bundled model | 1 | 72.7 (12) | 33.3 (4) |"
    assert lines("calibration")[3] == "| GUM-open, default | 2 | 1.0 ± 0.0 | 3.2 ± 0.0 | 0.123 ± 0.000 |"
    assert lines("paper-genia")[2] == "| paper | 1 | 78.00 | 76.00 | 77.00 |"
    assert [line.split("|")[1:4] for line in lines("partial")[2:5]] == [
        [" none ", "  ", " 1 "],
        [" 50 % ", " no entity ", " 1 "],
        [" 75 % ", " unknown ", " 1 "],
    ]
    assert "| 12 | joint likelihood |  |  |  |  | 11 |  |" in lines("ablation-elsewhere")


def test_examples():
    for module in (details, insights, markdown, stored, tables):
        assert doctest.testmod(module).failed == 0


def test_models_for_the_box_stand_beside_others_and_not_among_them(tmp_path, monkeypatch):
    monkeypatch.setattr(insights, "trainings", lambda small=False: stored.trainings(tmp_path, small))
    monkeypatch.setattr(insights, "analysed", lambda: stored.analysed(tmp_path))
    small = run("genia", "default", 1, 76.0)
    small["changes"] = ["encoder.path=all-MiniLM-L6-v2", "training.epochs=6"]
    keep(tmp_path, small, with_details("gum_open", "default", 1, 78.0))
    assert [row["data"] for row in stored.trainings(tmp_path)] == ["gum_open"]
    lines = insights.boxes().splitlines()
    assert lines[3:5] == [
        "| GUM-open, default, mpnet | 1 | 78.00 | 78.00 | 88.0 | 3.2 |",
        "| GENIA, MiniLM-L6 | 1 | 76.00 | 76.00 |  |  |",
    ]


def test_rates_by_length_name_rows_of_the_ablation(monkeypatch):
    row = {
        "words": "1-10",
        "model": "litbank-12-joint-1",
        "structure": "lexical",
        "learning_per_second": 1234.5,
        "reading_per_second": 2345.6,
    }
    source = {"device": "GPU", "date": "2026-01-01", "commit": "0123456789", "file": "lengths.json"}
    monkeypatch.setattr(tables, "results", lambda name: [{**source, "rows": [row]}])
    assert tables.by_length().splitlines()[2] == "| 1-10 | joint likelihood | lexical | 1,234 | 2,346 |"


def test_runs_of_one_row_are_never_replaced_by_others(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "trainings", lambda: stored.trainings(tmp_path))
    joint = "ablation/12-joint"
    keep(tmp_path, run("genia", joint, 1, 80.0), run("genia", joint, 2, 82.0, "training.epochs=4"))
    assert "| 12 | joint likelihood | 2 |" in tables.ablation_elsewhere()
