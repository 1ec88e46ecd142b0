"""Experiments: which runs there are, that what is done is not done again, and the table."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nestree.cli import app
from nestree.errors import InputError
from nestree.training import experiment
from nestree.training.experiment import Cell, cells, parts_of, run_all, table
from nestree.training.folder import Folder

RUN = """
import json, sys
from pathlib import Path
folder, f1, fails = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "True"
(folder / "training").mkdir(parents=True)
print("Error: the encoder is not there.")
if fails:
    sys.exit(2)
scores = {"entities": {"f1": f1}, "heads": None}
(folder / "training" / "scores.json").write_text(json.dumps({"seconds_per_epoch": 2.5, "test": scores}))
"""


@pytest.fixture
def data(tmp_path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train.jsonl.gz", "dev.jsonl.gz", "test.jsonl.gz", "README.md", "training.txt"):
        (folder / name).touch()
    return folder


@pytest.fixture
def runs(data, tmp_path) -> list[Cell]:
    return cells(
        tmp_path / "out", ["default", "ablation/12-joint"], {"toy": data}, [1, 2], ["training.epochs=3"]
    )


@pytest.fixture
def stubs(monkeypatch) -> list[Cell]:
    """Instead of training, a process that writes down 0.5 plus a tenth of the seed. Which cells were started."""
    started: list[Cell] = []

    def start(cell: Cell) -> subprocess.Popen:
        started.append(cell)
        cell.folder.parent.mkdir(parents=True, exist_ok=True)
        fails = cell.recipe == "12-joint" and cell.seed == 2 and started.count(cell) == 1
        command = [sys.executable, "-c", RUN, str(cell.folder), str(0.5 + cell.seed / 10), str(fails)]
        with open(experiment.output(cell), "ab") as file:
            return subprocess.Popen(command, stdout=file)

    monkeypatch.setattr(experiment, "start", start)
    monkeypatch.setattr(experiment, "PAUSE", 0.01)
    return started


def test_every_recipe_with_every_seed(runs, data, tmp_path):
    assert [(cell.recipe, cell.seed) for cell in runs] == [
        ("default", 1), ("12-joint", 1), ("default", 2), ("12-joint", 2)
    ]  # fmt: skip
    assert runs[1].folder == tmp_path / "out" / "toy" / "12-joint" / "seed-1"
    assert runs[1].next_command()[3:] == [
        "train", "--train", str(data / "train.jsonl.gz"), "--dev", str(data / "dev.jsonl.gz"),
        "--test", str(data / "test.jsonl.gz"), "--out", str(runs[1].folder), "--config", "ablation/12-joint",
        "--set", "training.epochs=3", "--set", "training.seed=1",
    ]  # fmt: skip


def test_an_interrupted_run_goes_on(runs):
    state = Folder(runs[0].folder).state
    state.parent.mkdir(parents=True)
    state.touch()
    assert runs[0].next_command()[3:] == ["train", "--resume", str(runs[0].folder)]


def test_what_is_done_is_not_done_again_and_what_failed_is(runs, stubs):
    said: list[str] = []
    failed = run_all(runs, 2, said.append)
    assert [cell.name for cell in failed] == ["toy 12-joint seed 2"]
    assert "failed    toy 12-joint seed 2: Error: the encoder is not there." in said
    assert "finished  toy default seed 2: test F1 70.00, epoch s 2.50" in said
    assert table(runs) == [
        ["data", "recipe", "seeds", "test F1", "epoch s"],
        ["toy", "default", "2", "65.00 ± 7.07", "2.50 ± 0.00"],
        ["toy", "12-joint", "1", "60.00", "2.50"],
    ]
    (runs[3].folder / "training").rmdir()
    assert run_all(runs, 1, said.append) == []
    assert [cell.name for cell in stubs[4:]] == ["toy 12-joint seed 2"]
    assert run_all(runs, 1, said.append) == []
    assert len(stubs) == 5


def test_the_command_shows_the_table(data, stubs, tmp_path):
    arguments = ["experiment", str(tmp_path / "out"), "--data", f"toy={data}", "--seeds", "1,3"]
    done = CliRunner().invoke(app, [*arguments, "--format", "json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == [
        {
            "data": "toy",
            "recipe": "default",
            "seeds": "2",
            "test F1": "70.00 ± 14.14",
            "epoch s": "2.50 ± 0.00",
        }
    ]
    text = CliRunner().invoke(app, arguments).stdout
    assert text.splitlines()[1].split() == ["toy", "default", "2", "70.00", "±", "14.14", "2.50", "±", "0.00"]
    assert "| toy | default | 2 |" in CliRunner().invoke(app, [*arguments, "--format", "markdown"]).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "toy"], "write --data NAME=DIR"),
        (["--data", "toy=absent"], "absent is no folder"),
        (["--data", "toy=.", "--seeds", "1,x"], "--seeds 1,x: write numbers"),
        (["--data", "toy=.", "--config", "nothing"], "nothing: neither a TOML file"),
        (["--data", "toy=.", "--set", "training.epoch=3"], "Did you mean training.epochs?"),
    ],
)
def test_what_is_wrong_is_known_before_the_first_run(tmp_path, monkeypatch, stubs, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["experiment", "out", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr
    assert stubs == []


def test_parts_of_a_data_set(data, tmp_path):
    assert [path.name for path in parts_of(data).values()] == [
        "train.jsonl.gz",
        "dev.jsonl.gz",
        "test.jsonl.gz",
    ]
    (data / "dev.json").touch()
    with pytest.raises(InputError, match=r"several files for dev: dev.json, dev.jsonl.gz"):
        parts_of(data)
    with pytest.raises(InputError, match="has no file called train"):
        parts_of(tmp_path)
