"""`nestree predict --out URL`, with an S3 server on this machine."""

import os
import signal
import threading
import time
from contextlib import suppress

import pytest

pytest.importorskip("pyarrow")

from nestree.data.object_store import open_store
from nestree.predict_files import LOG_FOLDER
from tests.cli.run import refuse, succeed
from tests.cli.test_predict import folder_of_texts, predicted, read_folder
from tests.cli.test_predict_files import SMALL_BATCHES, command, entities_and_scores, many_files, start_slowly
from tests.tiny import write_text


def objects(url: str) -> dict[str, bytes]:
    """All files of a folder of predictions but its logs."""
    store = open_store(url)
    return {name: store.read(name) for name in sorted(store.names()) if not name.startswith(LOG_FOLDER)}


@pytest.mark.parametrize("to", ["jsonl", "brat"])
def test_the_bytes_are_those_of_a_folder(s3, tiny_model, tmp_path, to):
    source = folder_of_texts(tmp_path)
    for name in ("a b", "ü%41", "c#1", "c#2", "d?e=f"):  # nothing is decoded
        (source / f"{name}.txt").write_text("Lisbon and Oslo.")
    predicted(tiny_model, source, "--out", tmp_path / "out", "--to", to)
    predicted(tiny_model, source, "--out", f"{s3}/b y%41t#es/{to}/", "--to", to)
    assert objects(f"{s3}/b y%41t#es/{to}") == read_folder(tmp_path / "out")


def test_one_file(s3, tiny_model, tmp_path):
    text = write_text(tmp_path / "text.txt", "Oslo and Lisbon.")
    for name in ("one.jsonl", "one.csv", "one.jsonl.gz"):
        predicted(tiny_model, text, "--out", tmp_path / name)
        predicted(tiny_model, text, "--out", f"{s3}/{name}")
        assert open_store(s3).read(name) == (tmp_path / name).read_bytes()


def test_killed_in_the_middle_and_resumed(s3, tiny_model, tmp_path):
    source, url = many_files(tmp_path), f"{s3}/killed"
    predicted(tiny_model, source, "--out", tmp_path / "undisturbed", *SMALL_BATCHES)
    process, store = start_slowly(tiny_model, source, url), open_store(url)
    while process.is_alive() and sum(not name.startswith(LOG_FOLDER) for name in store.names()) < 10:
        time.sleep(0.1)  # the server has to answer others, too
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert 10 <= len(objects(url)) < 24
    arguments = command(tiny_model, source, url)
    assert "begun before. Continue them with --resume" in refuse(*arguments)
    said = succeed(*arguments, "--resume").stderr
    (tmp_path / "resumed").mkdir()
    for name, data in objects(url).items():
        (tmp_path / "resumed" / name).write_bytes(data)
    found, expected = (entities_and_scores(tmp_path / name) for name in ("resumed", "undisturbed"))
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], abs=1e-5)  # a forked process rounds differently
    assert "of 24 files" in said
    assert "(24 done before)" in succeed(*arguments, "--resume").stderr
    assert f"{url} was begun with --batch-words 10, and is continued with" in refuse(*arguments[:-1], "11", "--resume")


def test_resuming_predicts_what_is_new_changed_or_deleted(s3, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("nestree.predict_files.LOG_SECONDS", 0.0)  # a log for each file
    source, url = many_files(tmp_path, 4), f"{s3}/log"
    predicted(tiny_model, source, "--out", url)
    store = open_store(url)
    store.filesystem.delete_file(f"{store.path}/001.jsonl")
    (source / "002.txt").write_text("Lisbon.")
    (source / "new.txt").write_text("Oslo.")
    assert "of 3 files (2 done before)" in predicted(tiny_model, source, "--out", url, "--resume").stderr
    assert list(objects(url)) == ["000.jsonl", "001.jsonl", "002.jsonl", "003.jsonl", "new.jsonl"]
    assert b"Lisbon" in objects(url)["002.jsonl"]


def test_an_interrupted_upload_is_whole_or_nothing(s3, tmp_path):
    """An object is written by one call, which Python does not interrupt."""
    store, large = open_store(f"{s3}/interrupted"), tmp_path / "large"
    large.write_bytes(bytes(50_000_000))
    timer = threading.Timer(0.02, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with suppress(KeyboardInterrupt):
        store.upload(large, "large")
        timer.join()
    assert store.names() in (set(), {"large"})
    if store.names():
        assert len(store.read("large")) == 50_000_000


def test_what_cannot_be_written_is_said_in_a_sentence(s3, tiny_model, tmp_path, monkeypatch):
    source = many_files(tmp_path, 2)
    arguments = ["predict", source, "--model", tiny_model, "--out"]
    missing = "s3://no-such/x: there is no bucket no-such. Create it, or check the address."
    assert refuse(*arguments, "s3://no-such/x") == missing
    for url in ("foo://bucket/x", "s3://", "s3:/", "abfs://c/x"):
        assert " is no URL of an object store. Write s3://BUCKET/NAME, " in refuse(*arguments, url)
    assert "Write the path alone: /tmp/x" in refuse(*arguments, "file:///tmp/x")
    assert "SECRET" not in refuse(*arguments, "s3://ID:SECRET@bucket/x")
    open_store(f"{s3}/full").write("other.txt", b"x")
    assert "s3://bucket/full is not empty, and no predictions" in refuse(*arguments, f"{s3}/full")
    one = ["predict", source / "000.txt", "--to", "brat", "--model", tiny_model, "--out"]
    assert refuse(*one, f"{s3}/full") == "s3://bucket/full is not empty. Give a new name."
    (source / "caf\udce9.txt").write_text("Oslo.")
    assert "needs names in UTF-8" in refuse(*arguments, f"{s3}/names")
    (source / "caf\udce9.txt").unlink()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    open_store.cache_clear()
    assert "s3://bucket/other cannot be opened: " in refuse(*arguments, f"{s3}/other")
    open_store.cache_clear()


def test_other_commands_refuse_urls(s3):
    message = f"{s3}/x.jsonl is a URL, and this command reads and writes files. `nestree predict --out`"
    for arguments in (
        ["convert", "examples/dev.jsonl", f"{s3}/x.jsonl"],
        ["select", "examples/dev.jsonl", "--budget", "10", "-o", f"{s3}/x.jsonl"],
        ["train", "--train", "examples/train.jsonl", f"--out={s3}/x.jsonl"],
        ["evaluate", f"{s3}/x.jsonl", "examples/dev.jsonl"],
        ["predict", f"{s3}/x.jsonl"],
    ):
        assert message in refuse(*arguments)
