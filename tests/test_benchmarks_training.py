"""The benchmark of training reports what it should, in time, and loses nothing. Its numbers do not matter here."""

import doctest
import json
import time

import pytest

from benchmarks import details, parts, runs, steps, training
from nestree import checkpoint
from nestree.data import formats
from nestree.evaluation import evaluate
from nestree.pipeline import PredictOptions, predict
from nestree.training import corpus
from nestree.types import Document
from tests import tiny

PARTS = [
    "collate",
    "moving",
    "encoder",
    "scorers",
    "tree sums",
    "losses",
    "backward",
    "clipping",
    "optimiser",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of data sets, and a tiny encoder."""
    folder = tmp_path_factory.mktemp("benchmark")
    (folder / "data" / "eight").mkdir(parents=True)
    documents = [Document((sentence,)) for sentence in tiny.SENTENCES]
    for part in ("train", "dev", "test"):
        formats.write(documents, folder / "data" / "eight" / f"{part}.jsonl.gz")
    tiny.encoder(folder / "encoder")
    return folder


def changes(place, *more):
    made = tiny.settings("default", f"encoder.path={place / 'encoder'}", "training.batch_words=15", *more)
    path = place / f"{len(list(place.glob('*.toml')))}.toml"
    path.write_text(made.as_toml())
    return str(path)


def job(place, tmp_path, **other):
    values = {
        "name": "one",
        "data": str(place / "data" / "eight"),
        "recipe": changes(place, "training.epochs=2"),
        "seed": 3,
        "changes": (),
        "folder": str(tmp_path / "one"),
        "device": "cpu",
        "threads": 1,
        "deadline": None,
        "steps": 0,
        "only_steps": False,
        "keep_model": False,
        "analyse": False,
    }
    return runs.Job(**{**values, **other})


class Mouth:
    def __init__(self):
        self.said = []

    def send(self, what):
        self.said.append(what)


def test_what_is_behind_a_score(tiny_model):
    model = checkpoint.load(tiny_model)
    found = predict(model, tiny.SENTENCES, asked=PredictOptions(scored=True))
    evaluation = evaluate(tiny.SENTENCES, found, resamples=0)
    score, told = evaluation.entities, details.details(evaluation)
    for groups in ("depths", "lengths", "nesting", "labels"):
        columns = list(zip(*told[groups].values(), strict=True))
        assert (sum(columns[0]), sum(columns[1]), sum(columns[3])) == (
            score.right,
            score.predicted,
            score.gold,
        )
    rows = details.by_sentence(tiny.SENTENCES, found)
    assert [sum(column) for column in zip(*rows, strict=True)] == [score.right, score.predicted, score.gold]
    assert sum(told["errors"].values()) == len(evaluation.mistakes)
    assert told["calibration"]["error"] == 100 * evaluation.calibration.error
    others = details.other_decoders(model, tiny.SENTENCES)
    assert others["marginals 0.2"]["recall"] >= others["marginals 0.9"]["recall"]
    assert {"tree -2.0", "tree 0.0", "tree 1.0"} <= set(others)
    assert model.settings.decoding.method == "mbr"  # as before


def test_two_processes_fill_one_file(place, tmp_path, capsys):
    recipe = changes(place, "training.epochs=1")
    bad = f"eight:{recipe}:1:training.epochs=0"
    out = tmp_path / "out.json"
    options = f"--data {place / 'data'} --out {out} --jobs 2 --device cpu --commit abc"
    code = training.main([*options.split(), f"eight:{recipe}:1", bad])
    assert code == 1
    result = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    assert (result["commit"], result["side_by_side"]) == ("abc", 2)
    good, failed = result["rows"]
    assert (good["status"], good["epochs_done"], good["best_epoch"]) == ("finished", 1, 1)
    assert failed["status"] == "failed"
    assert "training.epochs" in failed["why"]
    assert [epoch["epoch"] for epoch in good["epochs"]] == [1]
    kept = list(formats.read(tmp_path / "out" / f"{good['name']}.predictions.jsonl.gz"))
    assert [s.words for d in kept for s in d.sentences] == [s.words for s in tiny.SENTENCES]
    assert not (tmp_path / "out" / good["name"]).exists()


def test_a_row_says_how_good_and_how_fast(place, tmp_path):
    mouth = Mouth()
    row = runs.trained(job(place, tmp_path, steps=2), mouth)
    assert row["epochs_done"] == row["epochs_planned"] == 2
    for part in ("dev", "test"):
        assert {"precision", "recall", "f1", "sentences_per_second"} <= row[part].keys()
    assert row["test"]["f1"] == row["dev"]["f1"]  # they are the same sentences
    assert {"train_seconds_per_epoch", "dev_seconds_per_epoch", "train_sentences_per_second"} <= row.keys()
    assert str(place) not in json.dumps(row)
    assert [kind for kind, _ in mouth.said if kind != "step"] == ["epoch", "epoch", "row"]
    step = row["step"]
    assert step["steps"] == 2
    assert 0 < step["longest"] <= 10
    assert set(PARTS) <= step["parts"].keys()
    assert sum(part["share"] for part in step["parts"].values()) == pytest.approx(1)
    assert 0 < step["tree_share"] < 1


def test_the_budget_stops_a_run_and_the_best_so_far_is_scored(place, tmp_path, monkeypatch):
    recipe = changes(place, "training.epochs=1000")
    given = job(place, tmp_path, recipe=recipe, deadline=time.time() + 3600)

    class Impatient(runs.Reporter):
        def epoch(self, end):
            super().epoch(end)
            if end.epoch == 2:
                self.deadline = time.time()

    monkeypatch.setattr(runs, "Reporter", Impatient)
    row = runs.trained(given, Mouth())
    assert row["status"] == "stopped at the budget"
    assert 2 <= row["epochs_done"] <= 3  # the epoch under way may be short
    assert row["epochs_planned"] == 1000
    assert {"dev", "test"} <= row.keys()


def test_a_budget_that_is_spent_before_an_epoch(place, tmp_path):
    recipe = changes(place, "training.batch_words=1")
    row = runs.trained(job(place, tmp_path, recipe=recipe, deadline=time.time()), Mouth())
    assert row["status"] == "stopped before the first epoch was done"
    assert row["epochs_done"] == 0


def test_what_runs_at_the_end_of_the_budget_is_cut_off(place, tmp_path):
    """A process that says nothing, such as one that still compiles."""
    given = job(place, tmp_path, deadline=time.time() + 0.5)
    row = {"name": "one", "status": "waiting"}
    side = training.Side([given, given], [row, {**row}], 1, lambda: None)
    side.run_all()
    assert row["status"] == "cut off at the end of the budget"


def test_a_sample_has_the_sentences_of_some_updates():
    settings = tiny.settings("default", "training.batch_words=15")
    data = corpus([Document((s,)) for s in tiny.SENTENCES], [Document((s,)) for s in tiny.SENTENCES], seed=1)
    found = steps.sample(settings, data, 2)
    assert 0 < len(found.train) < len(data.train)
    assert set(found.train) < set(data.train)


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_the_profiler_sees_steps_a_few_at_a_time(place, tmp_path, monkeypatch):
    """Without a GPU there are no kernels, but all steps are taken."""
    settings = tiny.settings("default", f"encoder.path={place / 'encoder'}", "training.batch_words=15")
    documents = [Document((s,)) for s in tiny.SENTENCES]
    run = steps.ready(settings, corpus(documents, documents, seed=1), "cpu", tmp_path)
    count = len(steps.updates_of(run, 1))
    monkeypatch.setattr(steps, "PROFILED", count)
    monkeypatch.setattr(steps, "AT_ONCE", 2)
    assert steps.profiled(run, 1.0)["busy_ms"] == 0
    assert run.progress.updates == count > 2
    assert len(steps.updates_of(run, 1)) == count


def test_other_threads_do_not_disturb_the_timeline():
    from concurrent.futures import ThreadPoolExecutor

    line = parts.Timeline("cpu")
    with line.running(), line.part("mine"), ThreadPoolExecutor(1) as pool:
        pool.submit(line.around("theirs", time.sleep), 0.01).result()
    assert list(line.spent()) == ["rest", "mine"]
    assert line.elsewhere["theirs"] >= 0.01


@pytest.mark.parametrize("module", [parts, training])
def test_examples(module):
    assert doctest.testmod(module).failed == 0
