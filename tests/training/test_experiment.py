"""Experiments: which runs there are, that what is done is not done again, and the table."""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nestree.errors import InputError
from nestree.training import experiment
from nestree.training.dataset import part_files
from nestree.training.experiment import Group, RunSpec, group_results, is_locked, run_all, run_specs, table
from nestree.training.run_dir import RunDir
from tests.cli.run import nestree, refuse, succeed

RUN = """
import json, sys
from pathlib import Path
folder, f1, fails = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "True"
(folder / "training").mkdir(parents=True, exist_ok=True)
print("Error: the encoder is not there.")
if fails:
    sys.exit(2)
scores = {"entities": {"precision": 1.0, "recall": f1, "f1": f1}, "heads": {"accuracy": 0.25}}
(folder / "training" / "scores.json").write_text(json.dumps({"seconds_per_epoch": 2.5, "test": scores}))
"""


ORPHAN = """
import fcntl, os, time
from pathlib import Path
folder = Path({folder!r})
(folder / "training").mkdir(parents=True)
lock = open(folder.parent / (folder.name + ".txt"), "ab")
fcntl.flock(lock, fcntl.LOCK_EX)
while not (folder / "go").exists():
    time.sleep(0.01)
if {write}:
    (folder / "training" / "scores.json").write_text({scores!r})
{ending}
"""
HALF = {"precision": 0.5, "recall": 0.5, "f1": 0.5}
SCORES = {"seconds_per_epoch": 1.0, "dev": {"entities": HALF, "heads": None}}


@pytest.fixture
def data(tmp_path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train.jsonl.gz", "dev.jsonl.gz", "test.jsonl.gz", "README.md", "training.txt"):
        (folder / name).touch()
    return folder


@pytest.fixture
def runs(data, tmp_path) -> list[RunSpec]:
    recipes = ["default", "ablation/12-joint"]
    return run_specs(tmp_path / "out", recipes, {"toy": data}, [1, 2], ["training.epochs=3"])


@pytest.fixture
def stubs(monkeypatch) -> list[RunSpec]:
    """Instead of training, a process that writes down 0.5 plus a tenth of the seed. Which specs were started."""
    started: list[RunSpec] = []

    def start(spec: RunSpec, jobs: int) -> subprocess.Popen:
        spec.folder.parent.mkdir(parents=True, exist_ok=True)
        with open(spec.output, "ab") as file:
            experiment.lock(file)
            started.append(spec)
            fails = spec.recipe == "12-joint" and spec.seed == 2 and started.count(spec) == 1
            command = [sys.executable, "-c", RUN, str(spec.folder), str(0.5 + spec.seed / 10), str(fails)]
            return subprocess.Popen(command, stdout=file)

    monkeypatch.setattr(experiment, "start", start)
    monkeypatch.setattr(experiment, "POLL_SECONDS", 0.01)
    return started


def test_every_recipe_with_every_seed(runs, data, tmp_path):
    assert [(spec.recipe, spec.seed) for spec in runs] == [
        ("default", 1), ("12-joint", 1), ("default", 2), ("12-joint", 2)
    ]  # fmt: skip
    assert runs[1].folder == tmp_path / "out" / "toy" / "12-joint" / "seed-1"
    assert runs[1].command()[3:] == [
        "train", "--train", str(data / "train.jsonl.gz"), "--dev", str(data / "dev.jsonl.gz"),
        "--test", str(data / "test.jsonl.gz"), "--out", str(runs[1].folder), "--config", "ablation/12-joint",
        "--set", "training.epochs=3", "--set", "training.seed=1",
    ]  # fmt: skip
    state = RunDir(runs[0].folder).state
    state.parent.mkdir(parents=True)
    state.touch()
    assert runs[0].command()[3:] == ["train", "--resume", str(runs[0].folder)]


def test_what_is_done_is_not_done_again_and_what_failed_is(runs, stubs):
    said: list[str] = []
    failed = run_all(runs, 2, said.append)
    why = "Error: the encoder is not there."
    assert failed == {"toy 12-joint seed 2": f"{why} ({runs[3].output})"}
    assert f"failed    toy 12-joint seed 2: {why}" in said
    scores = "test P 100.00, test R 70.00, test F1 70.00"
    assert any(line.startswith(f"finished  toy default seed 2: {scores}") for line in said)
    # fmt: off
    assert table(group_results(runs)) == [
        ["data", "recipe", "seeds", "test P", "test R", "test F1", "test heads", "epoch s"],
        ["toy", "default", "2", "100.00 ± 0.00", "65.00 ± 7.07", "65.00 ± 7.07", "25.00 ± 0.00", "2.50 ± 0.00"],
        ["toy", "12-joint", "1", "100.00", "60.00", "60.00", "25.00", "2.50"],
    ]
    # fmt: on
    (runs[3].folder / "training").rmdir()
    assert run_all(runs, 1, said.append) == {}
    assert [spec.name for spec in stubs[4:]] == ["toy 12-joint seed 2"]
    assert run_all(runs, 1, said.append) == {}
    assert len(stubs) == 5


def test_a_run_that_was_ended_by_force_says_so(runs, monkeypatch):
    kill = [sys.executable, "-c", "import os; print('epoch 1/3', flush=True); os.kill(os.getpid(), 9)"]
    monkeypatch.setattr(RunSpec, "command", lambda spec: kill)
    monkeypatch.setattr(experiment, "POLL_SECONDS", 0.01)
    assert run_all(runs[:1], 1, print) == {runs[0].name: f"ended by SIGKILL ({runs[0].output})"}


def test_runs_of_an_experiment_that_was_killed_are_waited_for(runs, stubs):
    """They go on by themselves: one of them ends well, the other is killed, too, and is started again."""
    left = []
    for spec, ending in ((runs[0], "os._exit(0)"), (runs[1], "os.kill(os.getpid(), 9)")):
        given = {"folder": str(spec.folder), "scores": json.dumps(SCORES), "write": spec is runs[0]}
        code = ORPHAN.format(**given, ending=ending)
        left.append(subprocess.Popen([sys.executable, "-c", code]))
    while not all(spec.output.is_file() and is_locked(spec) for spec in runs[:2]):
        assert all(process.poll() is None for process in left)
        time.sleep(0.01)
    said: list[str] = []

    def log_line(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            for spec in runs[:2]:
                (spec.folder / "go").touch()

    assert list(run_all(runs[:2], 2, log_line)) == []
    for process in left:
        process.wait()
    assert said[:2] == [f"waiting   {spec.name}: another process is training it" for spec in runs[:2]]
    assert [spec.name for spec in stubs] == [runs[1].name]
    scores = "dev P 50.00, dev R 50.00, dev F1 50.00"
    assert any(line.startswith(f"finished  {runs[0].name}: {scores}") for line in said)


def test_results_of_other_settings_or_data_do_not_count(runs, data, tmp_path, stubs):
    runs[2].folder.mkdir(parents=True)
    (runs[2].folder / "config.toml").write_text(runs[2].settings.to_toml(), encoding="utf-8")
    again = run_specs(tmp_path / "out", ["default"], {"toy": data}, [2], ["training.epochs=3"])
    assert again[0] == runs[2]
    tuned = replace(runs[2].settings.decoding, method="viterbi", threshold=0.1)  # training chose this on dev
    text = replace(runs[2].settings, decoding=tuned).to_toml()
    (runs[2].folder / "config.toml").write_text(text, encoding="utf-8")
    assert run_specs(tmp_path / "out", ["default"], {"toy": data}, [2], ["training.epochs=3"])[0] == runs[2]
    with pytest.raises(InputError, match=r"seed-2 was trained with .*epochs = 3, and now it is 4\. Give"):
        run_specs(tmp_path / "out", ["default"], {"toy": data}, [2], ["training.epochs=4"])
    run_all(runs[:1], 1, lambda line: None)
    path = next(iter(part_files(data).values()))
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(InputError, match=r"the files of toy have changed since .*toy was trained\. Give"):
        run_specs(tmp_path / "out", ["default"], {"toy": data}, [2], ["training.epochs=3"])


@pytest.mark.parametrize("override", ["training.warmup_epochs=2", "training.rho=0.4", "rho=0.4"])
def test_what_training_adapts_to_small_data_may_differ(data, tmp_path, override):
    (run,) = run_specs(tmp_path / "out", ["default"], {"toy": data}, [1], [override])
    small = replace(run.settings.training, epochs=19, batch_words=150, rho=0.03)
    run.folder.mkdir(parents=True)
    (run.folder / "config.toml").write_text(replace(run.settings, training=small).to_toml(), encoding="utf-8")
    assert run_specs(tmp_path / "out", ["default"], {"toy": data}, [1], [override]) == [run]
    with pytest.raises(InputError, match="epochs = 19, and now it is 10"):
        run_specs(tmp_path / "out", ["default"], {"toy": data}, [1], [override, "batch_words=2000"])


def test_every_run_and_part_of_data_is_named_once(data, tmp_path):
    for recipes, seeds in ((["ablation/12-joint", "ablation/12-joint"], [1]), (["default"], [3, 3])):
        with pytest.raises(InputError, match="is named twice"):
            run_specs(tmp_path, recipes, {"toy": data}, seeds)
    names = [path.name for path in part_files(data).values()]
    assert names == ["train.jsonl.gz", "dev.jsonl.gz", "test.jsonl.gz"]
    (data / "dev.json").touch()
    with pytest.raises(InputError, match=r"several files for dev: dev.json, dev.jsonl.gz"):
        part_files(data)
    with pytest.raises(InputError, match="has no file called train"):
        part_files(tmp_path)


def test_the_command_shows_the_table(data, stubs, tmp_path):
    arguments = ["experiment", tmp_path / "out", "--data", f"toy={data}", "--seeds", "1,3"]
    done = succeed(*arguments, "--format", "json")
    (found,) = json.loads(done.stdout)
    assert (found["data"], found["recipe"], found["seeds"]) == ("toy", "default", [1, 3])
    mean, deviation = pytest.approx(70), pytest.approx(200**0.5)
    assert found["test F1"] == {"mean": mean, "deviation": deviation, "values": [60.0, 80.0]}
    assert found["epoch s"] == {"mean": 2.5, "deviation": 0.0, "values": [2.5, 2.5]}
    head, row = (re.split("  +", line) for line in nestree(*arguments).stdout.splitlines())
    shown = dict(zip(head, row, strict=True))
    assert (shown["recipe"], shown["seeds"], shown["test F1"]) == ("default", "2", "70.00 ± 14.14")
    arguments[3] = f"to|y={data}"
    assert r"| to\|y | default | 2 |" in nestree(*arguments, "--format", "markdown").stdout


def test_there_is_no_table_if_every_run_failed(data, stubs, tmp_path):
    arguments = ["--data", f"toy={data}", "--config", "ablation/12-joint", "--seeds", "2"]
    done = nestree("experiment", tmp_path / "out", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "1 of 1 runs failed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "toy"], "write --data NAME=DIR"),
        (["--data", "toy=."], "is a file, and runs need a directory"),
        (["--data", "toy=absent"], "absent is not a folder"),
        (["--data", "toy=.", "--data", "toy=."], "there is a data set called toy already"),
        (["--data", "toy=.", "--device", "gpu"], "there is no device 'gpu'"),
        (["--data", "toy=.", "--seeds", "1,x"], "--seeds 1,x: write numbers"),
        (["--data", "toy=.", "--seeds", ","], "--seeds ,: write numbers"),
        (["--data", "toy=.", "--seeds", ""], "there is an empty argument after --seeds"),
        (["--data", "toy=.", "--config", "nothing"], "nothing: neither a TOML file"),
        (["--data", "toy=.", "--set", "training.epoch=3"], "Did you mean training.epochs?"),
        (["--data", "toy=.", "--set", "training.seed=3"], "takes its seeds from --seeds"),
        (["--data", "toy=.", "--set", "seed=3"], "takes its seeds from --seeds"),
    ],
)
def test_what_is_wrong_is_known_before_the_first_run(tmp_path, monkeypatch, stubs, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").touch()
    out = "train.jsonl" if "is a file" in message else "out"
    assert message in refuse("experiment", out, *arguments)
    assert stubs == []


def test_data_without_test_or_dev_is_told(data, stubs, tmp_path):
    arguments = ["experiment", tmp_path / "out", "--data", f"toy={data}", "--seeds", "1"]
    assert "has no file" not in nestree(*arguments).stderr
    for part in ("dev", "test"):
        (data / f"{part}.jsonl.gz").unlink()
    arguments[1] = tmp_path / "other"
    said = nestree(*arguments).stderr
    assert f"toy: {data} has no file called dev. A share of train takes its place." in said
    assert f"toy: {data} has no file called test. Its numbers are those of dev" in said


def test_columns_keep_their_order_if_some_data_has_no_test_part():
    tested = Group("gum", "default", [1], {"dev F1": [80.0], "test P": [79.0], "epoch s": [2.0]})
    untested = Group("mine", "default", [1], {"dev P": [60.0], "dev F1": [61.0], "epoch s": [3.0]})
    assert table([tested, untested])[0][3:] == ["dev P", "dev F1", "test P", "epoch s"]


def test_a_column_that_some_seeds_lack_says_so():
    values = {"dev F1": [80.0, 81.0], "epoch s": [3.0, 3.0], "dev heads": [None, 90.0]}
    group = Group("gum", "default", [1, 2], values)
    assert group.as_json()["dev heads"] == {"mean": 90.0, "deviation": None, "values": [None, 90.0]}
    assert [row[3:] for row in table([group])] == [
        ["dev F1", "dev heads", "epoch s"],
        ["80.50 ± 0.71", "90.00 (1 of 2 seeds)", "3.00 ± 0.00"],
    ]
