"""Whole runs of a second: what is learned, what is kept, and what is said."""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nestree import checkpoint
from nestree.config import Settings
from nestree.data import formats
from nestree.decoding import NO_TEMPERATURES
from nestree.errors import InputError, PotentialsError, TrainingError
from nestree.evaluation import evaluate
from nestree.model import Recognizer
from nestree.pipeline import predict
from nestree.temperature import best_decoder, decoder_f1
from nestree.training import EpochEnd, Step, make_corpus
from nestree.training.run_dir import RunDir
from nestree.training.step import GradientStep
from nestree.training.train import summary
from nestree.types import Document, Entity, Sentence
from tests.training.runs import assert_same, history, run, weights


class Heard:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[Step] = []
        self.ends: list[EpochEnd] = []

    def note(self, text: str, updates: int) -> None:
        self.notes.append(text)

    def step(self, step: Step) -> None:
        self.steps.append(step)

    def epoch(self, end: EpochEnd) -> None:
        self.ends.append(end)


@pytest.fixture(scope="module")
def done(settings, data, tmp_path_factory):
    """A finished run: its folder, its result, and what was heard of it."""
    folder, heard = tmp_path_factory.mktemp("run") / "model", Heard()
    return folder, run(settings(), data, folder, callbacks=heard), heard


def test_a_run_leaves_a_model_that_predicts(done, data):
    folder, result, _ = done
    model = checkpoint.load(folder)
    assert model.labels == data.labels
    scores = evaluate(data.dev, predict(model, data.dev), resamples=0).entities
    assert scores.f1 == result.evaluation.entities.f1
    model.temperatures = NO_TEMPERATURES  # both as they were until training ended
    model.settings = replace(model.settings, decoding=Settings.read("default").decoding)
    model.settings = replace(model.settings, decoding=best_decoder(model, data.dev))
    f1 = evaluate(data.dev, predict(model, data.dev), resamples=0).entities.f1
    assert f1 == max(line["f1"] for line in history(folder))
    assert f" | {100 * scores.f1:.2f} |" in (folder / "README.md").read_text()


def test_fewer_microbatches_are_tried_in_the_next_epoch(settings, data, tmp_path, monkeypatch):
    """Memory that others held for a while does not slow down the whole run."""
    losses, split, failures, pieces = Recognizer.losses, GradientStep.split, [], []

    def failing_twice(self, batch):
        if len(failures) < 2:
            failures.append(len(batch))
            raise MemoryError
        return losses(self, batch)

    def watched(self, batches):
        pieces.append((self.progress.epoch, self.progress.microbatches))
        return split(self, batches)

    monkeypatch.setattr(Recognizer, "losses", failing_twice)
    monkeypatch.setattr(GradientStep, "split", watched)
    heard = Heard()
    run(settings("training.epochs=3", "training.batch_words=60"), data, tmp_path / "m", callbacks=heard)
    assert [note for note in heard.notes if "in this epoch each batch is split into 4 microbatches" in note]
    assert list(dict.fromkeys(pieces)) == [(1, 1), (1, 2), (1, 4), (2, 2), (3, 1)]


@pytest.mark.parametrize("change", ["decoding.method=spans", "decoding.head_prior_weight=0"])
def test_an_unused_head_prior_is_noted(settings, data, tmp_path, change):
    heard = Heard()
    changes = ["decoding.threshold=0", change, "training.epochs=1"]
    run(settings(*changes), data, tmp_path / "m", callbacks=heard)
    assert [note for note in heard.notes if "model.head_prior will be trained but not used" in note]


@pytest.mark.parametrize("tune", [True, False])
def test_the_decoder_is_chosen_on_dev_and_saved(settings, data, tmp_path, tune):
    """A threshold that keeps nothing cannot be the best."""
    heard, own = Heard(), ["decoding.threshold=0.999", f"decoding.tune={str(tune).lower()}"]
    result = run(settings(*own, "training.epochs=20"), data, tmp_path / "m", callbacks=heard)
    model = checkpoint.load(tmp_path / "m")
    decoding = model.settings.decoding
    assert (decoding.threshold == 0.999) == (not tune)
    assert any(f'decoding.method = "{decoding.method}"' in note for note in heard.notes) == tune
    scores = decoder_f1(model, data.dev)
    assert (scores[decoding] == max(scores.values()) > 0) == tune
    assert result.evaluation.entities.f1 == pytest.approx(scores[decoding])


@pytest.mark.parametrize("kind", ["softmax", "ranking"])
def test_softmax_with_several_labels_is_noted(settings, data, tmp_path, kind):
    first = data.train[0]
    start, end = first.entities[0].span
    both = (*first.entities, Entity(start, end, next(x for x in data.labels if x != first.entities[0].label)))
    again = data.train[1]
    same = (*again.entities, again.entities[0])  # once more is not another label
    twice = replace(
        data,
        train=(replace(first, entities=both), replace(again, entities=same), *data.train[2:]),
    )
    heard = Heard()
    run(settings("training.epochs=1", f"loss.label={kind}"), twice, tmp_path / "run", callbacks=heard)
    assert ["1 training entity has the words of another" in note for note in heard.notes].count(True) == (
        kind == "softmax"
    )


def test_callbacks(done):
    folder, result, heard = done
    assert [end.epoch for end in heard.ends] == [1, 2, 3] == [line["epoch"] for line in history(folder)]
    assert heard.steps[0].losses.keys() == {"joint", "head_prior", "head_regularization", "kl"}
    assert [step.epoch for step in heard.steps] == sorted(step.epoch for step in heard.steps)
    assert heard.steps[-1].share == 1
    assert heard.steps[-1].seconds_left == 0
    assert all(step.sentences_per_second > 0 for step in heard.steps)
    assert heard.ends[-1].losses["joint"] < heard.ends[0].losses["joint"]
    assert (result.epochs, result.why) == (3, "all epochs are done")


def test_the_same_seed_gives_the_same_weights_and_another_does_not(done, settings, data, tmp_path):
    run(settings(), data, tmp_path / "again")
    assert_same(tmp_path / "again", done[0])
    run(settings("training.seed=2"), data, tmp_path / "other")
    assert history(tmp_path / "other") != history(done[0])


def test_memory_for_half_a_batch_gives_the_same_weights_without_dropout(
    without_chance, data, tmp_path, monkeypatch
):
    quiet = without_chance("training.epochs=1", "training.batch_words=30")
    run(quiet, data, tmp_path / "whole")
    losses = Recognizer.losses

    def full(self, batch):
        if len(batch) > 2:
            raise torch.OutOfMemoryError("full")
        return losses(self, batch)

    monkeypatch.setattr(Recognizer, "losses", full)
    heard = Heard()
    run(quiet, data, tmp_path / "halved", callbacks=heard)
    assert any("out of memory" in note for note in heard.notes)
    whole, halved = weights(tmp_path / "whole"), weights(tmp_path / "halved")
    for name in whole:
        torch.testing.assert_close(whole[name], halved[name], rtol=1e-3, atol=2e-4, msg=name)


def test_the_best_epoch_is_kept_and_training_stops_when_none_is_better(settings, data, tmp_path, monkeypatch):
    scores = iter([0.2, 0.5, 0.5, 0.4, 0.9, 0.9])
    best = {}

    def evaluated(run, settings):
        score = evaluate(data.dev, data.dev, resamples=0)
        f1 = next(scores)
        if f1 == 0.5 and not best:
            best.update({name: value.clone() for name, value in run.model.state_dict().items()})
        return Scored(score, f1)

    monkeypatch.setattr("nestree.training.loop.evaluate_on_dev", evaluated)
    result = run(
        settings("training.epochs=9", "training.early_stopping_patience=2"),
        data,
        tmp_path / "m",
    )
    assert (result.epochs, result.best_epoch) == (4, 2)
    assert result.why == "dev F1 did not rise for 2 epochs"
    kept = weights(tmp_path / "m")
    assert all(torch.equal(kept[name], best[name]) for name in best)


def test_patience_begins_when_something_was_found(settings, data, tmp_path, monkeypatch):
    scores = iter([0.0, 0.0, 0.0, 0.0, 0.3, 0.2, 0.1, 0.9])

    def evaluated(run, settings):
        return Scored(evaluate(data.dev, data.dev, resamples=0), next(scores))

    monkeypatch.setattr("nestree.training.loop.evaluate_on_dev", evaluated)
    result = run(settings("training.epochs=9", "training.early_stopping_patience=2"), data, tmp_path / "m")
    assert (result.epochs, result.best_epoch) == (7, 5)


class Scored:
    """An evaluation with another F1."""

    def __init__(self, evaluation, f1: float) -> None:
        self.entities = type("Score", (), {"f1": f1, "precision": f1, "recall": f1})
        self.errors = evaluation.errors


@pytest.mark.parametrize("broken", ["loss", "potentials"])
def test_a_loss_that_is_no_number_stops_with_its_sentences(settings, data, tmp_path, monkeypatch, broken):
    losses, calls = Recognizer.losses, []

    def bad(self, batch):
        calls.append(batch.sentences)
        found = losses(self, batch)
        if len(calls) == 5 and broken == "potentials":
            raise PotentialsError("span is NaN in sentence 0")
        if len(calls) == 5:
            found.parts["joint"] = found.parts["joint"] * math.nan
        return found

    monkeypatch.setattr(Recognizer, "losses", bad)
    with pytest.raises(
        TrainingError, match=r"update 5 of epoch \d gave numbers that are not finite: .*bad_batch"
    ):
        run(settings(), data, tmp_path / "m")
    lines = (tmp_path / "m" / "training" / "bad_batch.jsonl").read_text().splitlines()
    kept = {tuple(json.loads(line)["tokens"]) for line in lines}
    assert {sentence.words for sentence in calls[4]} <= kept
    monkeypatch.undo()
    run(settings(), data, tmp_path / "m", resume=True)  # the state on the disk is sound
    run(settings(), data, tmp_path / "n")
    assert_same(tmp_path / "m", tmp_path / "n")


def test_crossing_gold_trains_and_counts_in_the_evaluation(settings, tmp_path, documents):
    crossed = Sentence(["a", "b", "c", "d"], [Entity(0, 3, "GPE"), Entity(1, 4, "ORG")])
    both = make_corpus([*documents, Document((crossed,))], [Document((crossed,))], seed=1)
    heard = Heard()
    result = run(settings("training.epochs=1"), both, tmp_path / "m", callbacks=heard)
    assert "1 training sentence has entities that cross" in heard.notes[0]
    assert result.evaluation.entities.gold == 2
    assert math.isfinite(heard.ends[0].losses["joint"])


def test_going_on_from_a_model(done, settings, tmp_path, documents):
    more = [Document((Sentence(["Kim", "sang"], [Entity(0, 1, "ARTIST")]),))]
    wider = make_corpus([*documents, *more], [*documents, *more], seed=1)
    frozen = settings(
        "training.epochs=1", "training.lr=0", "training.encoder_lr=0", "training.weight_decay=0"
    )
    run(frozen, wider, tmp_path / "m", init=done[0])
    model, before = checkpoint.load(tmp_path / "m"), checkpoint.load(done[0])
    assert model.labels == (*before.labels, "ARTIST")
    old, new = before.state_dict(), model.state_dict()
    larger = [name for name in old if old[name].shape != new[name].shape]
    assert larger
    for name in old:
        part = new[name][tuple(slice(size) for size in old[name].shape)]
        assert torch.equal(part, old[name]), name


def test_a_model_of_other_sizes_cannot_be_gone_on_from(done, settings, data, tmp_path):
    with pytest.raises(TrainingError, match=r"made with other settings. Leave --config out"):
        run(settings("model.mlp_size=16"), data, tmp_path / "m", init=done[0])
    assert not (tmp_path / "m").exists()


def test_forms_may_join_a_model_that_has_none(settings, done, data, tmp_path):
    run(settings("model.head_prior=true", "training.epochs=1"), data, tmp_path / "m", init=done[0])
    assert "head_prior.out.weight" in checkpoint.read_weights(tmp_path / "m")


def test_what_cannot_be_written_is_found_before_the_first_epoch(settings, data, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match=r"file/m cannot be written: Not a directory"):
        run(settings(), data, tmp_path / "file" / "m")
    with pytest.raises(TrainingError, match=r"file is a file, and the model becomes a directory"):
        run(settings(), data, tmp_path / "file")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(TrainingError, match=r"other is not empty. Give the name of a new directory"):
        run(settings(), data, tmp_path / "other")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10**5}))
    with pytest.raises(TrainingError, match=r"needs 0.00 GB in .* and 0.00 GB are free. Make room"):
        run(settings(), data, tmp_path / "m")
    assert history_is_empty(tmp_path / "m")


def history_is_empty(folder: Path) -> bool:
    return history(folder) == [] and not RunDir(folder).state.exists()


def test_a_finished_run_is_neither_overwritten_nor_repeated(done, settings, data):
    before = weights(done[0])
    with pytest.raises(TrainingError, match=r"holds a run already. Go on with `nestree train --resume"):
        run(settings("encoder.path=nowhere"), data, done[0])  # said before an encoder is sought
    result = run(settings(), data, done[0], resume=True)
    assert result.evaluation.entities.f1 == done[1].evaluation.entities.f1
    assert all(torch.equal(value, before[name]) for name, value in weights(done[0]).items())


def test_other_data_is_not_gone_on_with(done, settings, documents):
    with pytest.raises(TrainingError, match=r"was trained on other data than this"):
        run(settings(), make_corpus(documents[:6], documents[:4], seed=1), done[0], resume=True)


def test_an_unknown_device(settings, data, tmp_path):
    with pytest.raises(InputError, match=r"there is no device 'gpu'. Choose one of auto, cuda, mps, cpu"):
        run(settings(), data, tmp_path / "m", device="gpu")


def test_the_summary_names_typical_mistakes(done, data):
    text = summary(done[1])
    assert text.startswith("3 epochs in ")
    assert f"best epoch {done[1].best_epoch}: dev P " in text
    shown = [line for line in text.splitlines() if " such as: " in line]
    assert 0 < len(shown) <= 5
    assert len(shown) == min(5, len({line.split(", such as")[0] for line in shown}))
    useless = evaluate(data.dev, [replace(sentence, entities=()) for sentence in data.dev], resamples=0)
    assert "smaller batches (--set training.batch_words=" in summary(replace(done[1], evaluation=useless))
    perfect = summary(replace(done[1], evaluation=evaluate(data.dev, data.dev, resamples=0)))
    assert perfect.endswith(f"--model {done[0]}")


def test_tensorboard_on_request(settings, data, tmp_path):
    """What TensorBoard reads are the epochs of the log, each once, though the run was interrupted."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Interrupting(Heard):
        def step(self, step):
            if step.epoch == 3 and not self.steps:
                os.kill(os.getpid(), signal.SIGINT)
                self.steps.append(step)

    folder = tmp_path / "m"
    stopped = run(settings(), data, folder, tensorboard=True, callbacks=Interrupting())
    assert stopped.evaluation is None
    run(settings(), data, folder, tensorboard=True, resume=True)
    curves = EventAccumulator(str(RunDir(folder).tensorboard)).Reload()
    for name, key in (("dev/f1", "f1"), ("dev/precision", "precision"), ("dev/recall", "recall")):
        drawn = {event.step: event.value for event in curves.Scalars(name)}
        assert drawn == pytest.approx({line["epoch"]: line[key] for line in history(folder)})
    assert [event.step for event in curves.Scalars("loss/joint")] == [1, 2, 3]


def test_tensorboard_that_is_not_installed(settings, data, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(TrainingError, match=r"pip install tensorboard"):
        run(settings(), data, tmp_path / "m", tensorboard=True)


# Several processes: the same global batches, the same weights up to rounding

ROOT = Path(__file__).parent.parent.parent
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "accelerate": ["accelerate.commands.launch", "--multi-gpu", "--num-processes", "2"],  # on a CPU, too
}


@pytest.fixture(scope="module")
def multi_settings(without_chance, request):
    """Settings with this rho."""
    return without_chance(
        f"training.rho={request.param}",
        "training.gradient_accumulation=2",
        "training.batch_words=12",
        "training.epsilon=1",  # so that the size of gradients matters
        "training.lr=1",
        "training.encoder_lr=1",
    )


@pytest.fixture(scope="module")
def single_process(multi_settings, data, tmp_path_factory):
    """The run of one process."""
    folder = tmp_path_factory.mktemp("one") / "m"
    run(multi_settings, data, folder)
    return folder


@pytest.mark.parametrize(
    ("multi_settings", "launcher"), [(0, "torchrun"), (0, "accelerate"), (0.5, "torchrun")], indirect=["multi_settings"]
)  # fmt: skip
def test_two_processes_take_the_steps_of_one(launcher, single_process, multi_settings, documents, tmp_path):
    (tmp_path / "settings.toml").write_text(multi_settings.to_toml())
    formats.write(documents, tmp_path / "train.jsonl", "jsonl")
    formats.write(documents[:4], tmp_path / "dev.jsonl", "jsonl")
    # fmt: off
    command = [
        sys.executable, "-m", *LAUNCHERS[launcher], "-m", "nestree", "train", "--train", "train.jsonl",
        "--dev", "dev.jsonl", "--out", "two", "--config", "settings.toml", "--device", "cpu",
    ]
    # fmt: on
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("epoch 3/3") == 1  # one of them speaks
    assert "2 processes share each update." in done.stderr

    two = tmp_path / "two"
    with open(two / "training" / "log.jsonl") as log:
        assert json.loads(next(log))["processes"] == 2
    for ours, theirs in zip(history(single_process), history(two), strict=True):
        assert (ours["updates"], ours["f1"]) == (theirs["updates"], theirs["f1"])
        for name, value in ours["losses"].items():
            assert abs(value - theirs["losses"][name]) < 1e-3 * max(1, abs(value)), (ours, theirs)
    alone, shared = weights(single_process), weights(two)
    for name in alone:
        torch.testing.assert_close(alone[name], shared[name], rtol=1e-4, atol=1e-5, msg=name)
