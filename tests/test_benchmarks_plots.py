"""Pictures of docs/results.md come from the stored results, the same bytes each time."""

import doctest
import json
import re
from pathlib import Path

import pytest

from benchmarks import plots, stored
from tests.test_benchmarks_tables import keep, run

IMAGES = Path(__file__).parent.parent / "docs" / "images"
NUMBER = re.compile(r"-?\d+(\.\d+)?(e-\d+)?")
MADE_ID = re.compile(r"\b[mp][0-9a-f]{10}\b")


def score(f1, shared, accuracy=None):
    return {"f1": f1, "heads": {"shared": shared, "accuracy": accuracy}}


def analysed(data, seed, f1, *changes, cost=0.4):
    """A run with all that --analyse keeps."""
    made = run(data, "default", seed, f1, *changes)
    made["settings"] = f"[loss]\nhead_sharing_penalty = {cost}\n"
    made["epochs"] = [{"epoch": epoch, "f1": (f1 + epoch) / 100} for epoch in range(1, 3 + seed)]
    made["test"] |= score(f1, 5.0 + seed, 91.0 if data == "gum_open" else None)
    made["test"]["details"] = {
        "depths": {"0": [80, 100, 80, 90], "1": [40 + seed, 50, 40 + seed, 60], "2": [9, 10, 9, 19]},
        "lengths": {"1": [50, 60, 50, 60], "6-10": [30, 40, 30, 40], "11+": [20 - seed, 30, 20 - seed, 30]},
        "calibration": {"error": 3.04, "bins": [[0.8, 0.9, 50, 0.85, 0.8], [0.9, 1.0, 200, 0.95, 0.96]]},
    }
    made["test"]["decoders"] = {
        "marginals 0.5": score(f1, 5.0),
        **{f"tree {c}": score(f1 - c, 5 - c) for c in (-2.0, 0.0, 1.0)},
    }
    return made


def timed(device, peer, **more):
    return [
        {"trees": "lexical", "operation": operation, "batch": 4, "n": n, **more}
        | {
            name: {device: {"median": ms * n}}
            for name, ms in (("ours", 0.1), ("reference", 3.0), (peer, 2.0))
        }
        for operation in plots.SHOWN
        for n in (10, 20)
    ]


@pytest.fixture
def kept(tmp_path):
    """A folder of small results that has the data of every picture."""
    keep(tmp_path, *(analysed(data, seed, 80.0) for data in plots.NAMES for seed in (1, 2)))
    keep(tmp_path, analysed("litbank", 1, 79.0, "loss.head_sharing_penalty=0.2", cost=0.2), name="b.json")
    keep(tmp_path, analysed("litbank", 1, 78.0, "loss.head_sharing_penalty=1", cost=1.0), name="c.json")
    keep(tmp_path, *timed("wall", "SuPar"), benchmark="treecrf", name="cpu.json")
    keep(tmp_path, *timed("device", "other", published_ms=9.0), benchmark="treecrf", name="cuda.json")
    groups = [{"group": "all", "calibration error": 0.114, "bins": [[0.4, 0.5, 30, 0.45, 0.3]]}]
    box = {"model": "box", "judge": "test", "unfitted": {"groups": groups}, "fitted": {"groups": groups}}
    (tmp_path / "box.json").write_text(json.dumps({"benchmark": "decoders", **box}))
    return tmp_path


def drawn(folder, out):
    assert plots.main(["--results", str(folder), "--out", str(out)]) == 0
    return {path.stem: path.read_text(encoding="utf-8") for path in out.iterdir()}


def test_every_picture_is_drawn_twice_the_same(kept, tmp_path):
    first, second = drawn(kept, tmp_path / "one"), drawn(kept, tmp_path / "deep" / "two")
    assert sorted(first) == sorted(plots.PICTURES)
    assert first == second
    assert all("<dc:date>" not in text for text in first.values())


def test_pictures_say_what_they_show(kept, tmp_path):
    text = drawn(kept, tmp_path / "out")
    assert all(f">{name}, 2 seeds<" in text["learning"] for name in plots.NAMES.values())
    assert ">6-10<" in text["nesting"]
    assert ">GENIA, 2 seeds: error 3.0<" in text["calibration"]
    assert ">as trained: error 11.4<" in text["calibration-box"]
    assert ">right heads, %<" not in text["sharing-decoding"]  # nobody was asked for them
    assert ">LitBank, default, 1 to 2 seeds<" in text["sharing-training"]
    assert "GENIA" not in text["sharing-training"]
    assert all(f">{name}<" in text["engine"] for name in ("nestree", "SuPar", "published with the paper"))


def test_what_is_not_stored_is_left_out_in_a_sentence(tmp_path, capsys):
    plain = run("litbank", "default", 1, 80.0) | {
        "epochs": [{"epoch": 1, "f1": 0.8}],
        "settings": "loss.head_sharing_penalty = 0",
    }
    (tmp_path / "some").mkdir()
    keep(tmp_path / "some", plain)
    assert list(drawn(tmp_path / "some", tmp_path / "out")) == ["learning"]
    assert capsys.readouterr().out.splitlines() == [
        "nesting.svg: left out: no run of the default recipe is stored with test.details.",
        "calibration.svg: left out: no run of the default recipe is stored with test.details.calibration.",
        "calibration-box.svg: left out: no result of benchmarks.decoders --judge is stored for the bundled model.",
        "learning.svg: written.",
        "sharing-decoding.svg: left out: no run of the default recipe is stored with test.decoders.",
        "sharing-training.svg: left out: no three runs are stored that differ in loss.head_sharing_penalty alone.",
        "engine.svg: left out: no result of benchmarks.treecrf is stored with a peer.",
    ]


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"there are no results \(\*\.json\)"):
        plots.main(["--results", str(tmp_path), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_rare_groups_are_left_out(kept):
    (run, *_) = stored.trainings(kept)
    assert sorted(plots.by_group([run], "depths")) == ["0", "1"]  # 19 gold entities at depth 2
    assert plots.by_group([run, run], "lengths")["6-10"] == [75.0, 75.0]


def test_a_learning_curve_ends_where_a_seed_ends(kept):
    axes = plots.learning(kept).axes[0]
    assert list(axes.lines[0].get_xdata()) == [1, 2, 3]  # the second seed has four epochs


def test_pictures_are_up_to_date(tmp_path):
    made = drawn(stored.RESULTS, tmp_path / "out")
    assert sorted(made) == sorted(path.stem for path in IMAGES.iterdir())
    for name, text in made.items():
        there = (IMAGES / f"{name}.svg").read_text(encoding="utf-8")
        pages = [MADE_ID.sub("id", page) for page in (there, text)]
        words = [NUMBER.sub("#", page) for page in pages]
        assert words[0] == words[1], f"{name}: run python -m benchmarks.plots"
        numbers = [[float(n.group()) for n in NUMBER.finditer(page)] for page in pages]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.01), f"{name}: run python -m benchmarks.plots"


def test_every_picture_is_shown():
    page = (IMAGES.parent / "results.md").read_text(encoding="utf-8")
    assert [path.name for path in IMAGES.iterdir() if f"(images/{path.name})" not in page] == []


def test_examples():
    assert doctest.testmod(plots).failed == 0
