"""predict_files through `nestree predict`: killed and resumed, bad files skipped, bounded memory, progress."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from nestree import checkpoint, predict_files
from nestree.cli import app
from nestree.model import Recognizer
from nestree.pipeline import Pipeline, count_words
from nestree.predict_files import LOCK_FILE, LOG_FILE
from tests import tiny
from tests.cli.run import nestree, refuse, succeed
from tests.cli.test_predict import TEXT, folder_of_texts, predicted, read_folder
from tests.tiny import write_text


def many_files(folder: Path, count: int = 24) -> Path:
    (folder / "many").mkdir()
    for number in range(count):
        words = [word for s in tiny.SENTENCES[number % 3 :] for word in s.words]
        (folder / "many" / f"{number:03}.txt").write_text(f"{' '.join(words[: 5 + number % 17])}.")
    return folder / "many"


def run_slowly(environment: dict[str, str], *arguments: object) -> None:
    """The command, in a process of its own, slow enough to be killed in the middle."""
    os.environ.update(environment)  # the fork server may have been started by another test, with other variables
    collate = Recognizer.collate_words

    def slow(self, sentences):
        time.sleep(0.05)
        return collate(self, sentences)

    Recognizer.collate_words = slow
    app([str(argument) for argument in arguments])


SMALL_BATCHES = ["--batch-words", "10"]


def command(model: Path, source: Path, out: object) -> list[object]:
    """Predicts in small batches."""
    return ["predict", source, "--out", out, "--model", model, "--device", "cpu", *SMALL_BATCHES]


def start_slowly(model: Path, source: Path, out: object) -> multiprocessing.Process:
    """A process that predicts slowly into this folder."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.runs"])
    process = context.Process(target=run_slowly, args=(dict(os.environ), *command(model, source, out)))
    process.start()
    return process


def predicting(model: Path, source: Path, out: Path, count: int) -> multiprocessing.Process:
    """The same, that has written so many files."""
    process = start_slowly(model, source, out)
    while process.is_alive() and not ((out / LOG_FILE).exists() and len(list(out.glob("0*.jsonl"))) >= count):
        time.sleep(0.01)
    return process


def entities_and_scores(folder: Path) -> tuple[dict[str, object], list[float]]:
    """What was written, by file, without scores; and all scores."""
    documents = {name: json.loads(text) for name, text in read_folder(folder).items()}
    entities = [entity for document in documents.values() for entity in document["entities"]]
    scores = [part.pop("score") for entity in entities for part in (entity, *entity["labels"])]
    return documents, scores


def test_killed_in_the_middle_and_resumed(tiny_model, tmp_path):
    """What an undisturbed run writes; what was written before is not written again."""
    source, out = many_files(tmp_path), tmp_path / "out"
    predicted(tiny_model, source, "--out", tmp_path / "undisturbed", *SMALL_BATCHES)
    process = predicting(tiny_model, source, out, 10)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    done = {path: path.stat().st_mtime_ns for path in out.glob("0*.jsonl")}
    assert 10 <= len(done) < 24
    with open(out / LOG_FILE, "a") as journal:
        journal.write('{"file": "023", "wri')  # as if it had died while writing
    (out / ".023.jsonl.abcdefgh").mkdir()
    assert "begun before. Continue them with --resume" in refuse(*command(tiny_model, source, out))
    said = succeed(*command(tiny_model, source, out), "--resume").stderr
    found, expected = entities_and_scores(out), entities_and_scores(tmp_path / "undisturbed")
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], abs=1e-5)  # a forked process rounds differently
    assert len(read_folder(out)) == 24
    entries = [json.loads(line) for line in (out / LOG_FILE).read_text().splitlines()]
    assert sorted(entry["file"] for entry in entries[1:]) == [f"{n:03}" for n in range(24)]
    before = int(said.split(" done before")[0].split("(")[-1])
    assert sum(path.stat().st_mtime_ns == when for path, when in done.items()) >= before >= len(done) - 1
    assert list(out.glob(".*.jsonl.*")) == []
    assert "(24 done before)" in succeed(*command(tiny_model, source, out), "--resume").stderr


def test_only_one_process_predicts_into_a_folder(tiny_model, tmp_path):
    source, out = many_files(tmp_path), tmp_path / "out"
    process = predicting(tiny_model, source, out, 5)
    for resume in ([], ["--resume"]):
        assert f"another process ({process.pid} on " in refuse(*command(tiny_model, source, out), *resume)
    process.join()
    assert process.exitcode == 0
    assert len(read_folder(out)) == 24


def test_a_folder_that_is_deleted_meanwhile(tiny_model, tmp_path):
    source, out = many_files(tmp_path), tmp_path / "out"
    process = predicting(tiny_model, source, out, 5)
    shutil.rmtree(out, ignore_errors=True)
    process.join()
    assert process.exitcode == 2


def test_files_that_are_deleted_meanwhile_are_missed(tiny_model, tmp_path):
    source, out = many_files(tmp_path), tmp_path / "out"
    process = predicting(tiny_model, source, out, 5)
    for path in out.glob("0*"):
        path.unlink()
    process.join()
    assert process.exitcode == 2
    succeed(*command(tiny_model, source, out), "--resume")
    assert len(read_folder(out)) == 24


@pytest.fixture
def collated(monkeypatch):
    """Callbacks on the sentences of each batch before the model sees them."""
    callbacks, collate = [], Recognizer.collate_words

    def hooked(self, sentences):
        for callback in callbacks:
            callback(sentences)
        return collate(self, sentences)

    monkeypatch.setattr(Recognizer, "collate_words", hooked)
    return callbacks


def test_ctrl_c_says_how_to_go_on(tiny_model, tmp_path, collated):
    source, out = many_files(tmp_path), tmp_path / "out"

    def interrupt(sentences):
        if len(list(out.glob("0*.jsonl"))) > 3:
            os.kill(os.getpid(), signal.SIGINT)

    collated.append(interrupt)
    done = nestree(*command(tiny_model, source, out))
    number = len(list(out.glob("0*.jsonl")))
    assert 0 < number < 24
    assert (done.exit_code, done.stderr.splitlines()) == (
        130,
        [f"Done: {number} of 24 files. Continue with the same command and --resume.", "Interrupted."],
    )
    assert {path.name for path in out.iterdir() if path.name.startswith(".")} == {LOG_FILE, LOCK_FILE}


def test_what_changed_is_done_again_and_what_differs_is_refused(tiny_model, tmp_path):
    source, out = many_files(tmp_path, 3), tmp_path / "out"
    predicted(tiny_model, source, "--out", out)
    (source / "001.txt").write_text("Oslo.")
    (out / "002.jsonl").unlink()
    said = predicted(tiny_model, source, "--out", out, "--resume").stderr
    assert "of 2 files (1 done before)" in said
    assert json.loads(read_folder(out)["001.jsonl"])["text"] == "Oslo."
    again = ["predict", source, "--out", out, "--resume", "--device", "cpu", "--model"]
    done = nestree(*again, tiny_model, "--threshold", "0.3")
    assert done.exit_code == 2
    assert "was begun without --threshold, and is continued with --threshold 0.3." in done.stderr
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    (other / checkpoint.MANIFEST).unlink()
    assert nestree(*again, other).exit_code == 0  # a copy is the same model
    (other / checkpoint.LABELS).write_text((other / checkpoint.LABELS).read_text().replace("LOC", "PLACE"))
    done = nestree(*again, other)
    assert (done.exit_code, "was begun with --model" in done.stderr) == (2, True)


def test_a_folder_in_which_nothing_was_done_is_no_beginning(tiny_model, tmp_path):
    source = folder_of_texts(tmp_path)
    (source / "0.txt").write_bytes(b"caf\xe9")
    usual = command(tiny_model, source, tmp_path / "out")
    assert "Done: 0 of 4 files." in nestree(*usual).stderr
    assert nestree(*usual, "--skip-bad").exit_code == 1
    assert list(read_folder(tmp_path / "out")) == ["a.jsonl", "b/a.jsonl", "c.jsonl"]


def test_the_signature_of_a_folder_changes_with_its_files_whatever_else_is_in_it(tmp_path):
    (tmp_path / "README").symlink_to(tmp_path / "nowhere")
    path = write_text(tmp_path / "a.ann", "")
    before = predict_files.signature(tmp_path)
    path.write_text("T1\tPER 0 3\tAnn\n")
    assert before[2] == 1
    assert predict_files.signature(tmp_path) != before


def test_what_is_bad_is_named_and_skipped_if_wished(tiny_model, tmp_path, collated):
    read = []
    source, out = folder_of_texts(tmp_path), tmp_path / "out"
    (source / "b" / "latin.txt").write_bytes(b"Lisbon.\ncaf\xe9")
    (source / "c.jsonl").write_text('{"tokens": ["Oslo"]}\n{"tokens": 1}\n{"tokens": ["Lisbon"]}\n')
    (source / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    (source / "loop.txt").symlink_to("loop.txt")
    usual = command(tiny_model, source, out)
    done = nestree(*usual)
    latin = f"{source / 'b' / 'latin.txt'}:2: byte 0xe9 is not UTF-8."
    assert done.exit_code == 2
    advice = "Continue with the same command and --resume, and with --skip-bad to leave out what cannot be read."
    assert f"Done: 1 of 6 files. {advice}" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"Error: {latin}")
    done = nestree(*usual, "--resume", "--skip-bad", "-q")
    assert done.exit_code == 1
    first, *named = done.stderr.splitlines()
    assert first == "4 skipped:"
    missing = [
        f"{source / name} does not exist. Check the name and the directory." for name in ("gone.txt", "loop.txt")
    ]
    places = [latin.split(": ")[0], f"{source / 'c.jsonl'}:2", *missing]
    assert [line.strip().split(": ")[0] for line in named] == places
    assert list(read_folder(out)) == ["a.jsonl", "b/a.jsonl", "c.jsonl"]
    assert read_folder(out)["c.jsonl"].count(b"\n") == 2
    collated.append(read.extend)
    again = nestree(*usual, "--resume", "--skip-bad", "-q")
    assert (again.exit_code, again.stderr, read) == (1, done.stderr, [])  # nothing is left to do
    (source / "b" / "latin.txt").write_text("Lisbon.\ncafé", encoding="utf-8")
    done = nestree(*usual, "--resume", "--skip-bad")
    assert [sentence.text for sentence in read] == ["Lisbon.\ncafé"]  # and what is done is not done again
    assert done.exit_code == 1  # there is still a line that was skipped
    assert list(read_folder(out)) == ["a.jsonl", "b/a.jsonl", "b/latin.jsonl", "c.jsonl"]
    assert "(5 done before)" in done.stderr


def test_a_sentence_that_a_model_fails_on_is_named(tiny_model, tmp_path, collated):
    cursed = '{"text": "She left. Cursed be Oslo.", "doc_id": "x"}\n'
    path = write_text(tmp_path / "a.jsonl", f'{{"text": "Lisbon."}}\n{cursed}{{"text": "Oslo."}}\n')

    def fail(sentences):
        if any("Cursed" in sentence.words for sentence in sentences):
            raise RuntimeError("the device is on fire")

    collated.append(fail)
    place = f"{path}, document 2 (x), sentence 2 (Cursed be Oslo .)"
    why = f"{place}: no entities could be found: RuntimeError: the device is on fire"
    out = tmp_path / "o.jsonl"
    assert refuse("predict", path, "--model", tiny_model, "--device", "cpu", "--out", out) == why
    assert not out.exists()
    done = nestree("predict", path, "--model", tiny_model, "--device", "cpu", "--skip-bad")
    assert (done.exit_code, why in done.stderr) == (1, True)
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ["Lisbon.", "Oslo."]


def test_files_that_cannot_be_planned(tiny_model, tmp_path):
    """An empty file whose format is detected by content, a name that is not UTF-8, and one that is too long."""
    source = tmp_path / "in"
    source.mkdir()
    (source / "empty.jsonl").write_text("")
    (source / os.fsdecode(b"caf\xe9.txt")).write_text(TEXT)
    usual = command(tiny_model, source, tmp_path / "out")
    assert "empty.jsonl is empty" in refuse(*usual)
    done = nestree(*usual, "--skip-bad")
    assert done.exit_code == 1, done.stderr
    assert "1 skipped:" in done.stderr
    (document,) = (json.loads(text) for text in read_folder(tmp_path / "out").values())
    assert document["doc_id"] == "caf\\xe9"
    (source / f"{'n' * 250}.txt").write_text(TEXT)
    assert "the name of its output would have 256 bytes, and at most 255" in refuse(*usual, "--skip-bad", "--resume")


def test_memory_is_bounded(tiny_model, tmp_path, monkeypatch):
    """Not many more words than five batches are in memory."""
    buffered: list[int] = []
    predict_documents = Pipeline.predict_documents

    def record(self, documents, *more):
        buffered.append(sum(map(count_words, documents)))
        return predict_documents(self, documents, *more)

    monkeypatch.setattr(Pipeline, "predict_documents", record)
    path = write_text(tmp_path / "a.txt", "Lisbon met the mayor.\n\n" * 60)
    done = predicted(tiny_model, path, "--batch-words", "20", "--read", "longest=200")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert "".join(line["text"] for line in lines) == path.read_text()
    ends = [sum(len(one["text"]) for one in lines[:k]) for k in range(len(lines))]
    assert [line["start"] for line in lines] == ends
    assert (sum(buffered), max(buffered) <= 5 * 20 + 40) == (300, True)
    done = predicted(tiny_model, path, "--batch-words", "20", "--read", "documents=lines")
    assert done.stdout.count("\n") == 60


def test_progress_reaches_the_end(tiny_model, tmp_path, monkeypatch):
    from nestree.cli import runtime

    updates = []
    monkeypatch.setattr(runtime.PredictionProgress, "__call__", lambda self, now: updates.append(now))
    predicted(tiny_model, many_files(tmp_path, 9), "--out", tmp_path / "out", "--batch-words", "10")
    shares = [now.share for now in updates]
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert updates[-1] == predict_files.Progress(files=9, words=updates[-1].words, share=1.0)
    updates.clear()
    predicted(tiny_model, "-", "--batch-words", "10", stdin=TEXT)
    assert {now.share for now in updates} == {None}
