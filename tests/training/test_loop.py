"""Whole runs of a second: what is learned, kept and reported."""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nestree import checkpoint
from nestree.data import formats
from nestree.errors import ConfigError, InputError, PotentialsError, TrainingError
from nestree.evaluation import evaluate
from nestree.model import Recognizer
from nestree.pipeline import Pipeline, predict
from nestree.temperature import decoder_f1
from nestree.training import Callbacks, EpochEnd, Step, adapt_to_small_data, loop, make_corpus, summary, train
from nestree.training.run_dir import RunDir
from nestree.types import Document, Entity, Sentence
from tests.cli.run import nestree
from tests.conftest import ROOT
from tests.tiny import DOCUMENTS, SENTENCES
from tests.training.runs import assert_same, history, run, weights


class Recorder(Callbacks):
    def __init__(self, interrupt_epoch: int = 0) -> None:
        self.notes: list[str] = []
        self.steps: list[Step] = []
        self.ends: list[EpochEnd] = []
        self.interrupt_epoch = interrupt_epoch

    def note(self, text: str, updates: int) -> None:
        self.notes.append(text)

    def step(self, step: Step) -> None:
        self.steps.append(step)
        if step.epoch == self.interrupt_epoch:
            self.interrupt_epoch = 0
            os.kill(os.getpid(), signal.SIGINT)

    def epoch(self, end: EpochEnd) -> None:
        self.ends.append(end)

    def says(self, text: str) -> bool:
        return any(text in note for note in self.notes)


@pytest.fixture(scope="module")
def done(settings, data, tmp_path_factory):
    """A finished run: its folder, its result, and what it reported."""
    folder, recorder = tmp_path_factory.mktemp("run") / "model", Recorder()
    return folder, run(settings(), data, folder, callbacks=recorder), recorder


def test_a_run_reports_its_progress_and_leaves_a_model_that_predicts(done, data):
    folder, result, _ = done
    model = checkpoint.load(folder)
    assert model.labels == data.labels
    scores = evaluate(data.dev, predict(model, data.dev), resamples=0).entities
    assert scores.f1 == result.evaluation.entities.f1
    assert f" | {100 * scores.f1:.2f} |" in (folder / "README.md").read_text()
    folder, result, recorder = done
    assert [end.epoch for end in recorder.ends] == [1, 2, 3] == [line["epoch"] for line in history(folder)]
    assert recorder.steps[0].losses.keys() == {"loss", "joint", "head_prior", "head_regularization", "kl"}
    assert [step.epoch for step in recorder.steps] == sorted(step.epoch for step in recorder.steps)
    assert recorder.steps[-1].share == 1
    assert recorder.steps[0].seconds_left is None  # it may have compiled kernels
    assert recorder.steps[1].seconds_left > recorder.steps[-1].seconds_left >= 0
    assert all(step.sentences_per_second > 0 for step in recorder.steps)
    for losses in (end.losses for end in recorder.ends):
        parts = losses["joint"] + losses["head_prior"] + losses["head_regularization"]
        assert losses["loss"] == pytest.approx(parts, rel=1e-4)
    assert recorder.ends[-1].losses["loss"] < recorder.ends[0].losses["loss"]
    assert (result.epochs, result.why) == (3, "all epochs are done")
    assert len([note for note in recorder.notes if "left for 1 more epoch" in note]) == 1


def test_the_duration_is_not_estimated_from_the_first_step_which_may_compile_kernels(
    settings, data, tmp_path, monkeypatch
):
    class StepsBeforeNotes(Recorder):
        def note(self, text: str, updates: int) -> None:
            super().note(f"{len(self.steps)} steps: {text}", updates)

    monkeypatch.setattr(loop, "ESTIMATE_AFTER", 0.0)
    recorder = StepsBeforeNotes()
    run(settings(), data, tmp_path / "m", callbacks=recorder)
    assert [note[:8] for note in recorder.notes if "left for 3 more epochs" in note] == ["2 steps:"]


def test_the_note_about_small_data_tells_the_number_of_updates(settings, tmp_path):
    corpus, recorder = make_corpus(DOCUMENTS * 12, DOCUMENTS[:1], seed=1), Recorder()
    few, corpus = adapt_to_small_data(settings("training.batch_words=2000"), corpus, epochs=2)
    run(few, corpus, tmp_path / "m", callbacks=recorder)
    assert recorder.says(f" words): {recorder.ends[-1].updates} updates, in 2 epochs")


def test_steps_have_the_losses_of_their_share_also_between_saves(done, settings, data, tmp_path):
    recorder = Recorder()
    run(settings(), data, tmp_path / "m", callbacks=recorder, save_every=3600)
    assert [step.share for step in recorder.steps][:4] == [0.25, 0.5, 0.75, 1.0]
    assert [(s.share, s.losses) for s in recorder.steps] == [(s.share, s.losses) for s in done[2].steps]


def test_the_same_seed_gives_the_same_weights_and_another_does_not(done, settings, data, tmp_path):
    run(settings(), data, tmp_path / "again")
    assert_same(tmp_path / "again", done[0])
    run(settings("training.seed=2", "training.epochs=1"), data, tmp_path / "other")
    assert history(tmp_path / "other")[0]["losses"] != history(done[0])[0]["losses"]


# nestree.train


def test_train_returns_a_model_with_its_scores_and_logs_its_progress(settings, tiny_encoder, tmp_path, caplog):
    caplog.set_level("INFO", "nestree.training.run_dir")
    (tmp_path / "data").mkdir()
    for part, some in {"train": DOCUMENTS, "dev": DOCUMENTS[:4], "test": DOCUMENTS[4:]}.items():
        formats.write(some, tmp_path / "data" / f"{part}.jsonl.gz", "jsonl")
    (tmp_path / "small.toml").write_text(settings().to_toml())
    options = {"encoder": tiny_encoder, "config": tmp_path / "small.toml", "device": "cpu"}
    model = train(tmp_path / "data", out=tmp_path / "m", epochs=2, model__dropout=0.1, **options)
    assert (model.settings.training.epochs, model.settings.model.dropout) == (2, 0.1)
    assert any(message.startswith("epoch 1/2  loss ") for message in caplog.messages)
    predicted = predict(model, SENTENCES[4:])
    expected = evaluate(SENTENCES[4:], predicted, resamples=0)
    assert model.scores["test"].entities == expected.entities
    stored = json.loads((tmp_path / "m" / "training" / "scores.json").read_text())
    assert stored["test"]["entities"]["f1"] == pytest.approx(expected.entities.f1)
    assert stored["dev"]["entities"]["f1"] == pytest.approx(model.scores["dev"].entities.f1)
    assert Pipeline(model)("Lisbon").text == "Lisbon"
    with pytest.raises(InputError, match="resumed with its own settings"):
        train(tmp_path / "data", out=tmp_path / "m", resume=True, epochs=3)
    again = train(tmp_path / "data", out=tmp_path / "m", resume=True, device="cpu")
    assert again.scores.keys() == {"dev", "test"}
    done = nestree("train", "--resume", tmp_path / "m", "--device", "cpu")
    assert (done.exit_code, "best epoch" in done.stderr) == (0, True), done.output


def test_train_on_documents_adapts_to_small_data_and_is_resumed(tiny_encoder, tmp_path):
    recorder, out = Recorder(interrupt_epoch=2), tmp_path / "m"
    small = {"mix_layers": 2, "mlp_size": 16, "label_mlp_size": 16, "rank": 16, "rho": 0}
    given = {"dev": DOCUMENTS[:4], "out": out, "device": "cpu"}
    with pytest.raises(KeyboardInterrupt, match="resume=True"):
        train(DOCUMENTS, encoder=tiny_encoder, training__epochs=5, callbacks=recorder, **given, **small)
    assert recorder.says("in 5 epochs with batches of 150 words instead of 5")
    recorder = Recorder()
    model = train(DOCUMENTS, resume=True, callbacks=recorder, **given)
    assert recorder.says("resuming with update 4, in epoch 4 of 5; best dev F1 so far: ")
    assert (model.settings.training.epochs, model.settings.training.batch_words) == (5, 150)
    recorder = Recorder()
    train(DOCUMENTS, resume=True, callbacks=recorder, **given)
    assert recorder.says("this run is finished (all epochs are done)")
    resumed = nestree("train", "--resume", out).stderr
    assert "on documents in memory. Continue it with nestree.train(" in resumed


def test_train_explains_wrong_arguments(tmp_path):
    with pytest.raises(ConfigError, match=r"training.epochs is 'many'; it must be a whole number"):
        train(DOCUMENTS, out=tmp_path / "m", epochs="many")
    with pytest.raises(InputError, match="there is no training data"):
        train(dev=DOCUMENTS, out=tmp_path / "m")
    with pytest.raises(InputError, match=r"callbacks is \[\]; it must be an instance"):
        train(DOCUMENTS, out=tmp_path / "m", callbacks=[])


# Notes for the user


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        (["decoding.method=spans", "decoding.threshold=0"], "model.head_prior will be trained but not used"),
        (["decoding.head_prior_weight=0"], "model.head_prior will be trained but not used"),
        (["loss.label=softmax"], "1 training entity has the words of another one with another label"),
        (["encoder.context=4"], "encoder.context is 4, but no sentence has any"),
        (["loss.gold_heads=true"], "loss.gold_heads is true, but no training entity has a head"),
        (["loss.label=ranking"], None),
    ],
)
def test_settings_that_do_not_fit_are_noted(settings, data, tmp_path, changes, note):
    first, second = data.train[:2]
    start, end = first.entities[0].span
    both = (*first.entities, Entity(start, end, next(x for x in data.labels if x != first.entities[0].label)))
    same = (*second.entities, second.entities[0])  # once more is not another label
    changed = (replace(first, entities=both), replace(second, entities=same), *data.train[2:])
    recorder = Recorder()
    corpus = replace(data, train=changed)
    run(settings("training.epochs=1", *changes), corpus, tmp_path / "m", callbacks=recorder)
    known = ("head_prior will be", "entity has the words", "encoder.context is", "loss.gold_heads is")
    found = [text for text in recorder.notes if any(part in text for part in known)]
    assert [note in text for text in found] == ([True] if note else [])


def test_heads_that_contradict_each_other_are_noted(settings, data, tmp_path):
    words = ["the", "mayor", "of", "Lisbon"]
    inner = [Entity(2, 4, data.labels[0], head=2), Entity(3, 4, data.labels[0], head=3)]
    bad = Sentence(words, [Entity(0, 4, data.labels[0], head=3), *inner])
    recorder = Recorder()
    corpus = replace(data, train=(*data.train, bad))
    run(settings("training.epochs=1", "loss.gold_heads=true"), corpus, tmp_path / "m", callbacks=recorder)
    assert recorder.says("2 of 3 annotated heads stay latent, because entities on the same words, inside or around")
    assert recorder.says(f"The first: 'the mayor of Lisbon': 0-4 {data.labels[0]} with head 3.")


def test_crossing_gold_trains_and_counts_in_the_evaluation(settings, tmp_path):
    crossed = Sentence(["a", "b", "c", "d"], [Entity(0, 3, "GPE"), Entity(1, 4, "ORG")])
    both = make_corpus([*DOCUMENTS, Document((crossed,))], [Document((crossed,))], seed=1)
    recorder = Recorder()
    result = run(settings("training.epochs=1"), both, tmp_path / "m", callbacks=recorder)
    assert "1 training sentence has entities that cross" in recorder.notes[0]
    assert result.evaluation.entities.gold == 2
    assert math.isfinite(recorder.ends[0].losses["joint"])


def test_data_in_which_all_entities_cross_is_refused(settings, tmp_path):
    crossing = Document([Sentence(["a", "b", "c", "d"], [Entity(0, 3, "PER"), Entity(2, 4, "GPE")])])
    with pytest.raises(TrainingError, match=r"nothing to learn\. Correct them, or set training\.crossing to drop"):
        run(settings(), make_corpus([crossing], DOCUMENTS[:4], seed=1), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_the_summary_shows_scores_and_typical_errors(done, data):
    test = evaluate(data.dev, data.dev, resamples=0)
    lines = summary(replace(done[1], evaluations={**done[1].evaluations, "test": test})).splitlines()
    assert lines[0].startswith("3 epochs in ")
    assert lines[1].startswith(f"best epoch {done[1].best_epoch}: dev P ")
    assert lines[2] == "test: P 100.00  R 100.00  F1 100.00"
    shown = [line for line in lines if " such as: " in line]
    assert 0 < len(shown) <= 5
    assert lines[-1].endswith(f"--model {done[0]}")
    useless = evaluate(data.dev, [replace(sentence, entities=()) for sentence in data.dev], resamples=0)
    assert "smaller batches (--batch-words 150)" in summary(replace(done[1], evaluations={"dev": useless}))


# The best epoch


@pytest.mark.parametrize("tune", [True, False])
def test_the_decoder_is_chosen_on_dev_and_saved(settings, data, tmp_path, tune):
    """A threshold that keeps nothing cannot be the best."""
    recorder, own = Recorder(), ["decoding.threshold=0.999", f"decoding.tune={str(tune).lower()}"]
    result = run(settings(*own, "training.epochs=10"), data, tmp_path / "m", callbacks=recorder)
    model = checkpoint.load(tmp_path / "m")
    decoding = model.settings.decoding
    assert (decoding.threshold == 0.999) == (not tune)
    assert recorder.says(f'decoding.method = "{decoding.method}"') == tune
    scores = decoder_f1(model, data.dev)
    assert (scores[decoding] == max(scores.values()) > 0) == tune
    assert result.evaluation.entities.f1 == pytest.approx(scores[decoding])


@pytest.mark.parametrize(
    ("scores", "epochs", "best"),
    [([0.2, 0.5, 0.5, 0.4, 0.9], 4, 2), ([0.0, 0.0, 0.0, 0.3, 0.2, 0.1, 0.9], 6, 4)],
    ids=["the best is kept", "patience begins when something was found"],
)
def test_training_stops_when_no_epoch_is_better(settings, data, tmp_path, monkeypatch, scores, epochs, best):
    left, kept = iter(scores), {}

    def scripted(run, gold, settings):
        if run.progress.epoch == best:
            kept.update({name: value.clone() for name, value in run.model.state_dict().items()})
        f1 = next(left)
        return SimpleNamespace(entities=SimpleNamespace(f1=f1, precision=f1, recall=f1))

    monkeypatch.setattr("nestree.training.loop.evaluate_distributed", scripted)
    monkeypatch.setattr("nestree.training.loop.tune_decoding", lambda run: run.settings)
    patient = settings("training.epochs=9", "training.early_stopping_patience=2")
    result = run(patient, data, tmp_path / "m")
    assert (result.epochs, result.best_epoch) == (epochs, best)
    assert result.why == "dev F1 did not rise for 2 epochs"
    stored = weights(tmp_path / "m")
    assert all(torch.equal(stored[name], kept[name]) for name in kept)


# What goes wrong


def test_batches_are_split_only_in_the_epoch_without_memory(settings, data, tmp_path, monkeypatch):
    """Memory that others held for a while does not slow down the whole run."""
    losses, sizes, recorder = Recognizer.losses, [], Recorder()

    def full(self, batch):
        sizes.append(len(batch))
        if len(batch) > 4 and len(sizes) < 4:
            raise torch.OutOfMemoryError("full")
        return losses(self, batch)

    monkeypatch.setattr(Recognizer, "losses", full)
    run(settings("training.batch_words=60"), data, tmp_path / "m", callbacks=recorder)
    assert recorder.says("in this epoch each batch is split into 2 microbatches")
    assert sizes[0] == sizes[-1] == 8


def test_weights_that_break_in_the_last_update_of_an_epoch(settings, data, tmp_path):
    """Nothing is wrong before the evaluation on dev."""
    large = settings("training.lr=1e30", "training.encoder_lr=1e30", "training.batch_words=100000")
    with pytest.raises(TrainingError, match=r"update 1 of epoch 1 gave numbers .* lower training.lr"):
        run(large, data, tmp_path / "m")
    assert (tmp_path / "m" / "training" / "bad_batch.jsonl").read_text().count("\n") == len(data.train)


@pytest.mark.parametrize("broken", ["loss", "potentials"])
def test_a_loss_that_is_not_finite(done, settings, data, tmp_path, monkeypatch, broken):
    """Training stops, writes the sentences, and can be resumed."""
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
    with pytest.raises(TrainingError, match=r"update 5 of epoch \d gave .* not finite: .*bad_batch"):
        run(settings(), data, tmp_path / "m")
    lines = (tmp_path / "m" / "training" / "bad_batch.jsonl").read_text().splitlines()
    assert {sentence.words for sentence in calls[4]} <= {tuple(json.loads(line)["tokens"]) for line in lines}
    monkeypatch.undo()
    run(settings(), data, tmp_path / "m", resume=True)
    assert_same(tmp_path / "m", done[0])


def test_what_cannot_be_written_is_found_before_the_first_epoch(settings, data, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    for folder, message in {
        "file/m": "file/m cannot be written: Not a directory",
        "file": "file is a file, and a directory is needed",
        "other": "other is not empty. Give the name of a new directory",
    }.items():
        with pytest.raises(TrainingError, match=message):
            run(settings(), data, tmp_path / folder)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10**5}))
    with pytest.raises(TrainingError, match=r"needs [0-9.]+ MB in .* and 0.1 MB are free. Make room"):
        run(settings(), data, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_finished_run_is_neither_overwritten_nor_repeated(done, settings, data):
    before = weights(done[0])
    with pytest.raises(TrainingError, match=r"holds a run already. Continue it with `nestree train --resume"):
        run(settings("encoder.path=nowhere"), data, done[0])  # raised before an encoder is loaded
    with pytest.raises(TrainingError, match=r"was trained on other data than this"):
        run(settings(), make_corpus(DOCUMENTS[:6], DOCUMENTS[:4], seed=1), done[0], resume=True)
    result = run(settings(), data, done[0], resume=True)
    assert result.evaluation.entities.f1 == done[1].evaluation.entities.f1
    assert all(torch.equal(value, before[name]) for name, value in weights(done[0]).items())


def test_an_epoch_of_several_passes_reads_all_sentences_so_often(settings, data, tmp_path):
    run(settings("training.epochs=2"), replace(data, passes=3), tmp_path / "m")
    run(settings("training.epochs=6"), data, tmp_path / "n")
    thrice, once = (RunDir(tmp_path / name).load_progress() for name in "mn")
    assert (thrice.passes, thrice.updates) == (3, once.updates)
    assert [epoch["updates"] for epoch in history(tmp_path / "m")] == [once.updates // 2, once.updates]


# From another model


def test_init_from_a_model_with_fewer_labels(done, settings, data, tmp_path):
    more = [Document((Sentence(["Kim", "sang"], [Entity(0, 1, "ARTIST")]),))]
    wider = make_corpus([*DOCUMENTS, *more], [*DOCUMENTS, *more], seed=1)
    frozen = ["training.epochs=1", "training.lr=0", "training.encoder_lr=0", "training.weight_decay=0"]
    run(settings(*frozen), wider, tmp_path / "m", init=done[0])
    model, before = checkpoint.load(tmp_path / "m"), checkpoint.load(done[0])
    assert model.labels == (*before.labels, "ARTIST")
    log = (tmp_path / "m" / "training" / "log.jsonl").read_text()
    assert "labels that are new to it: ARTIST." in log
    old, new = before.state_dict(), model.state_dict()
    assert any(old[name].shape != new[name].shape for name in old)
    for name in old:
        assert torch.equal(new[name][tuple(slice(size) for size in old[name].shape)], old[name]), name
    with pytest.raises(TrainingError, match=r"it has other settings. Leave out --config"):
        run(settings("model.mlp_size=16"), data, tmp_path / "n", init=done[0])
    assert not (tmp_path / "n").exists()


# TensorBoard


def test_tensorboard_shows_each_epoch_once(settings, data, tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "m"
    assert run(settings(), data, folder, tensorboard=True, callbacks=Recorder(3)).evaluation is None
    run(settings(), data, folder, tensorboard=True, resume=True)
    curves = EventAccumulator(str(RunDir(folder).tensorboard)).Reload()
    for name in ("f1", "precision", "recall"):
        drawn = {event.step: event.value for event in curves.Scalars(f"dev/{name}")}
        assert drawn == pytest.approx({line["epoch"]: line[name] for line in history(folder)})
    assert [event.step for event in curves.Scalars("loss/joint")] == [1, 2, 3]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(TrainingError, match=r"pip install tensorboard"):
        run(settings(), data, tmp_path / "n", tensorboard=True)


# Several processes: the same global batches, the same weights up to rounding

# Accelerate starts torchrun, on a CPU, too.
LAUNCH = ["accelerate.commands.launch", "--multi-gpu", "--num-processes", "2"]


def launch(command, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done


def test_two_processes_take_the_steps_of_one(without_chance, data, tmp_path):
    # Epsilon and learning rates of 1, so that the size of gradients matters.
    rates = ["training.epsilon=1", "training.lr=1", "training.encoder_lr=1", "training.rho=0.5"]
    settings = without_chance(*rates, "training.gradient_accumulation=2", "training.batch_words=12")
    one, two = tmp_path / "one", tmp_path / "two"
    run(settings, data, one)
    (tmp_path / "settings.toml").write_text(settings.to_toml())
    formats.write(DOCUMENTS, tmp_path / "train.jsonl", "jsonl")
    formats.write(DOCUMENTS[:4], tmp_path / "dev.jsonl", "jsonl")
    options = "--train train.jsonl --dev dev.jsonl --out two --config settings.toml --device cpu"
    command = [sys.executable, "-m", *LAUNCH, "-m", "nestree", "train", *options.split()]
    done = launch(command, tmp_path)
    assert done.stderr.count("2 processes share each update.") == 1  # one of them reports
    assert json.loads((two / "training" / "log.jsonl").read_text().splitlines()[0])["processes"] == 2
    for ours, theirs in zip(history(one), history(two), strict=True):
        assert (ours["updates"], ours["f1"]) == (theirs["updates"], theirs["f1"])
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-3, abs=1e-3)
    alone, shared = weights(one), weights(two)
    for name in alone:
        torch.testing.assert_close(alone[name], shared[name], rtol=1e-4, atol=1e-5, msg=name)


def test_two_processes_share_the_test_data(settings, tmp_path):
    (tmp_path / "settings.toml").write_text(settings("training.epochs=1").to_toml())
    formats.write(DOCUMENTS, tmp_path / "train.jsonl", "jsonl")
    formats.write(DOCUMENTS[:3], tmp_path / "test.jsonl", "jsonl")
    script = """
import os, nestree
data = {"train": "train.jsonl", "dev": "train.jsonl", "test": "test.jsonl"}
model = nestree.train(**data, out="two", config="settings.toml", device="cpu")
with open(os.environ["RANK"], "w") as file:
    file.write(repr(model.scores["test"].entities))
"""
    (tmp_path / "script.py").write_text(script)
    launch([sys.executable, "-m", *LAUNCH, "script.py"], tmp_path)
    gold = [sentence for document in DOCUMENTS[:3] for sentence in document.sentences]
    expected = evaluate(gold, predict(checkpoint.load(tmp_path / "two"), gold), resamples=0).entities
    assert [(tmp_path / rank).read_text() for rank in ("0", "1")] == [repr(expected)] * 2
    stored = json.loads((tmp_path / "two/training/scores.json").read_text())["test"]["entities"]
    assert (stored["gold"], stored["correct"]) == (expected.gold, expected.correct)
