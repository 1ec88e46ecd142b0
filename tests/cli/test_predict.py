"""`nestree predict` as users meet it: data of all kinds in and out, folders, odd texts, what cannot be done."""

import contextlib
import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from nestree import checkpoint
from nestree.data import formats
from nestree.data.formats import FORMATS
from nestree.predict_files import ENDINGS, LOCK_FILE, LOG_FILE
from tests import tiny
from tests.cli.run import COMMAND, refuse, succeed
from tests.test_types import check_document
from tests.tiny import write_bytes, write_text

TEXT = "The mayor of Lisbon met the president.\n\nPolice in Oslo arrested two members of the group. She left.\n"
Offsets = list[tuple[int, int, str]]


def predicted(model: Path, *arguments: object, stdin: str | bytes | None = None) -> Result:
    return succeed("predict", *arguments, "--model", model, "--device", "cpu", stdin=stdin)


def offsets(document: formats.Document) -> Offsets:
    return [(e.start, e.end, label) for e in document.entities for label in sorted(e.labels)]


def offsets_of_record(record: dict[str, Any]) -> Offsets:
    """The same of a line of JSON, in this order."""
    return sorted((e["start"], e["end"], e["label"]) for e in record["entities"])


@pytest.fixture
def text(tmp_path) -> Path:
    return write_text(tmp_path / "a.txt", TEXT)


@pytest.fixture(scope="module")
def expected(tiny_model) -> Offsets:
    from nestree.pipeline import load

    return offsets(load(tiny_model, "cpu")(TEXT))


def test_text_goes_in_and_characters_come_out(tiny_model, text, expected, tmp_path):
    (line,) = predicted(tiny_model, text).stdout.splitlines()
    found = json.loads(line)
    check_document(found)
    assert (found["doc_id"], found["text"]) == ("a", TEXT)
    assert offsets_of_record(found) == sorted(expected)
    assert len(expected) > 3
    for entity in found["entities"]:
        assert 0 < entity["score"] <= 1
        assert entity["start"] <= entity["head"]["start"] < entity["head"]["end"] <= entity["end"]
    predicted(tiny_model, text, "-o", tmp_path / "found")
    assert (tmp_path / "found").read_text() == predicted(tiny_model, text).stdout


@pytest.mark.parametrize("format", sorted(ENDINGS.keys() & FORMATS.keys()))
def test_every_format_that_is_written_holds_what_was_found(tiny_model, text, tmp_path, expected, format):
    out = tmp_path / f"out{'' if format == 'brat' else ENDINGS[format]}"
    predicted(tiny_model, text, "--to", format, "--out", out)
    documents = list(formats.read(out, format))
    sentences = [sentence for document in documents for sentence in document.sentences]
    found = [(s.phrase(e).replace(" .", "."), e.label) for s in sentences for e in s.entities]
    assert sorted(found) == sorted((TEXT[i:j], label) for i, j, label in expected)
    if format not in ("columns", "triplets", "pubtator"):
        assert [d.text for d in documents] == [TEXT]
        assert sorted(offsets(documents[0])) == sorted(expected)


def test_words_stay_words_and_texts_in_json_are_texts(tiny_model, tiny_data, tmp_path, expected):
    lines = predicted(tiny_model, tiny_data).stdout.splitlines()
    assert [json.loads(line)["tokens"] for line in lines] == [list(s.words) for s in tiny.SENTENCES]
    texts = write_text(tmp_path / "t.jsonl", json.dumps({"text": TEXT, "doc_id": "t", "url": "x"}))
    predicted(tiny_model, texts, "--out", tmp_path / "o.jsonl")
    (line,) = (tmp_path / "o.jsonl").read_text().splitlines()
    assert ("tokens" in line, json.loads(line)["url"]) == (False, "x")
    (document,) = formats.read(tmp_path / "o.jsonl")
    assert (document.text, document.extra, offsets(document)) == (TEXT, {"url": "x"}, expected)


def test_standard_input_is_text_or_json_lines_with_and_without_words(tiny_model, expected):
    found = json.loads(predicted(tiny_model, "-", stdin=TEXT).stdout)
    assert offsets_of_record(found) == sorted(expected)
    lines = predicted(tiny_model, "-", stdin=' {"tokens": ["Lisbon"]}\n').stdout.splitlines()
    assert [json.loads(line)["tokens"] for line in lines] == [["Lisbon"]]
    words = [{"tokens": ["Lisbon"], "doc_id": "a"}, {"tokens": ["Oslo"], "doc_id": "a"}]
    given = [{"text": TEXT}, *words, {"text": "Oslo."}]
    done = predicted(tiny_model, "-", stdin="".join(json.dumps(line) + "\n" for line in given))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("tokens") for line in found] == [None, ["Lisbon"], ["Oslo"], None]
    assert offsets_of_record(found[0]) == sorted(expected)
    assert "not written" not in done.stderr
    lines = predicted(tiny_model, "-", "--write", "by=words", stdin='{"text": "Oslo."}\n').stdout
    assert json.loads(lines)["tokens"] == ["Oslo", "."]


def test_label_studio_gets_predictions_with_scores_and_a_version(tiny_model, text, expected):
    (task,) = json.loads(predicted(tiny_model, text, "--to", "label-studio").stdout)
    (prediction,) = task["predictions"]
    assert "annotations" not in task
    assert prediction["model_version"] == tiny_model.name
    assert 0 < prediction["score"] <= 1
    assert len(prediction["result"]) == len(expected)
    assert all(0 < region["score"] <= 1 for region in prediction["result"])


def test_thresholds_trees_and_windows(tiny_model, text):
    def scores(*arguments: object) -> list[float]:
        lines = map(json.loads, predicted(tiny_model, text, *arguments).stdout.splitlines())
        return [entity["score"] for line in lines for entity in line["entities"]]

    usual = scores()
    assert all(score == round(score, 6) for score in usual)
    middle = sorted(usual)[len(usual) // 2]
    surer = scores("--threshold", middle)
    assert 0 < len(surer) < len(usual)
    assert min(surer) >= middle > min(usual)
    lines = [json.loads(line) for line in predicted(tiny_model, text, "--trees").stdout.splitlines()]
    assert [len(line["tree"]["spans"]) for line in lines] == [2 * len(line["tokens"]) - 1 for line in lines]
    assert all(chance == round(chance, 6) for line in lines for chance in line["tree"]["probabilities"])
    done = predicted(tiny_model, text, "--max-sentence-words", "4")
    assert "2  long sentences read in overlapping windows" in done.stderr
    assert "not written" not in done.stderr


def folder_of_texts(folder: Path) -> Path:
    (folder / "in" / "b").mkdir(parents=True)
    (folder / "in" / "a.txt").write_text(TEXT)
    (folder / "in" / "b" / "a.txt.gz").write_bytes(gzip.compress(b"Lisbon"))
    (folder / "in" / "c.jsonl").write_text('{"tokens": ["Oslo", "Lisbon"]}\n')
    (folder / "in" / "notes.md").write_text("Not this.")
    (folder / "in" / ".hidden.txt").write_text("Nor this.")
    return folder / "in"


def read_folder(folder: Path) -> dict[str, bytes]:
    """All files of a folder but the journal and its lock."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: found[name].read_bytes() for name in sorted(found) if name not in (LOG_FILE, LOCK_FILE)}


def test_a_folder_becomes_a_folder_of_files_of_the_same_names(tiny_model, tmp_path):
    source = folder_of_texts(tmp_path)
    done = predicted(tiny_model, source, "--out", tmp_path / "out")
    assert list(read_folder(tmp_path / "out")) == ["a.jsonl", "b/a.jsonl", "c.jsonl"]
    assert "sentences of 3 files" in done.stderr
    assert json.loads(read_folder(tmp_path / "out")["b/a.jsonl"])["text"] == "Lisbon"
    alone = json.loads(predicted(tiny_model, source / "a.txt").stdout)
    together = json.loads(read_folder(tmp_path / "out")["a.jsonl"])
    assert [{**e, "score": 0} for e in together["entities"]] == [{**e, "score": 0} for e in alone["entities"]]
    lines = predicted(tiny_model, source).stdout.splitlines()  # all of them, one after the other
    assert [json.loads(line).get("doc_id") for line in lines] == ["a", "b/a", None]
    files = source / "a.txt", source / "b" / "a.txt.gz"  # of the same name
    rows = predicted(tiny_model, *files, "--to", "csv").stdout.splitlines()
    assert {row.partition(",")[0] for row in rows[1:]} == {f"{source}/a", f"{source}/b/a"}


def test_what_is_left_out_of_a_folder_is_told(tiny_model, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a.txt", "b.md", "c.xyz", ".hidden"):
        (tmp_path / "in" / name).write_text("Lisbon")
    said = predicted(tiny_model, tmp_path / "in", "--out", tmp_path / "out").stderr
    assert f"because the name does not show the format: {tmp_path / 'in' / 'b.md'} and 1 other." in said
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name[0] != "."] == ["a.jsonl"]


def test_a_text_may_be_called_txt_in_capitals(tiny_model, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "LETTER.TXT").write_text("Lisbon")
    predicted(tiny_model, tmp_path / "in", "--out", tmp_path / "out")
    assert list(read_folder(tmp_path / "out")) == ["LETTER.jsonl"]
    assert json.loads(predicted(tiny_model, tmp_path / "in" / "LETTER.TXT").stdout)["doc_id"] == "LETTER"
    succeed("show", tmp_path / "in" / "LETTER.TXT", "--model", tiny_model)
    assert [document.id for document in formats.read(tmp_path / "in", "text")] == ["LETTER"]


def test_brat_files_stand_side_by_side(tiny_model, tmp_path, expected):
    source = folder_of_texts(tmp_path)
    predicted(tiny_model, source, "--out", tmp_path / "out", "--to", "brat")
    names = ["a.ann", "a.txt", "b/a.ann", "b/a.txt", "c/document-000001.ann", "c/document-000001.txt"]
    assert list(read_folder(tmp_path / "out")) == names
    found = {document.id: document for document in formats.read(tmp_path / "out", "brat")}
    assert (found["a"].text, sorted(offsets(found["a"]))) == (TEXT, sorted(expected))


def test_the_bundled_model_has_a_name(tiny_model, text, monkeypatch, tmp_path):
    monkeypatch.setattr(checkpoint, "BUNDLED", tiny_model)
    monkeypatch.chdir(tmp_path)
    named = predicted(tiny_model, text, "--to", "label-studio").stdout
    for bundled in ([], ["--model", "gum-minilm"]):
        done = succeed("predict", text, *bundled, "--device", "cpu", "--to", "label-studio")
        assert json.loads(done.stdout)[0]["predictions"][0]["model_version"] == "gum-minilm"
        assert done.stdout.count('"score"') == named.count('"score"')
    monkeypatch.setattr(checkpoint, "BUNDLED", tmp_path)
    assert "came without a model" in refuse("predict", text)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b" \n", " \n"),
        (b"\xef\xbb\xbfLisbon", "Lisbon"),
        (b"Lisbon\r\nOslo\r\n", "Lisbon\r\nOslo\r\n"),
        ("Zażółć Lisbon 😀\0".encode(), "Zażółć Lisbon 😀\0"),
    ],
)
def test_odd_texts(tiny_model, tmp_path, data, text):
    found = json.loads(predicted(tiny_model, write_bytes(tmp_path / "a.txt", data)).stdout)
    assert found["text"] == text
    assert all(text[e["start"] : e["end"]] == e["text"] for e in found["entities"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.txt"], "absent.txt does not exist"),
        (["Ann left."], "Ann left. does not exist. If it is a text and not a file, pipe it: echo 'Ann"),
        (["empty"], "empty holds no file"),
        (["odd"], "odd holds no text (.txt), and no other file whose name tells its format. Name another folder, or"),
        (["latin.txt"], "latin.txt:1: byte 0xe9 is not UTF-8. Convert the file to UTF-8, for example with iconv."),
        (["odd/a.md"], "odd/a.md: its format is unknown. Name it, with --from"),
        (["a.txt", "a.txt"], "a.txt is named twice"),
        (["a.txt", "latin.txt", "--out", "all.jsonl"], "--out all.jsonl is the name of a file"),
        (["a.txt", "a.jsonl", "--out", "out"], "a.txt and a.jsonl would both become out/a.jsonl"),
        (["a.txt", "b.jsonl", "--out", "."], "b.jsonl is one of the files that are read"),
        (["texts", "--out", "texts"], "texts is the input"),
        (["texts", "--out", "odd"], "odd is a directory that is not empty, and no predictions were begun in it"),
        (["a.txt", "--out", "out.jsonl", "--resume"], "--resume continues in a folder"),
        (["a.txt", "--out", "a.txt", "--to", "jsonl"], "a.txt is the input"),
        (["a.txt", "--out", "out.xyz"], "out.xyz: its format is unknown. Name it, with --to"),
        (["a.txt", "--out", "out.json"], "several formats end in .json. Name a file of JSON lines out.jsonl, or"),
        (["a.txt", "--to", "genia"], "genia can be read, not written"),
        (["texts", "--to", "genia", "--out", "out"], "genia can be read, not written"),
        (["s3://bucket/x", "--out", "out"], "s3://bucket/x is a URL, and this command reads and writes files"),
        (["a.txt", "--from", "texts"], "there is no format 'texts'. Did you mean text?"),
        (["a.txt", "-", "--out", "out"], "standard input has no name for its output"),
        (["a.txt", "--threshold", "1"], "threshold is 1.0; it must be a number, 0 or more and less than 1"),
        (["a.txt", "--write", "by=bytes"], "by is one of words, characters, not 'bytes'"),
        (["a.txt", "--read", "longest=1"], "longest is 1"),
        (["a.txt", "--out", "a.txt/b.jsonl", "--model", "odd"], "one of its folders is a file"),
        (["a.txt", "--model", "odd"], "it is not a nestree model"),
        (["a.txt", "--model", "no such"], "no such does not exist. Name a directory"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_a_sentence(tiny_model, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "odd", "texts"):
        Path(name).mkdir()
    Path("a.txt").write_text("Lisbon")
    Path("texts/a.txt").write_text("Lisbon")
    Path("odd/a.md").write_text("Lisbon")
    Path("latin.txt").write_bytes(b"caf\xe9")
    for name in ("a.jsonl", "b.jsonl"):
        Path(name).write_text('{"tokens": ["Lisbon"]}\n')
    before = sorted(tmp_path.rglob("*"))
    model = [] if "--model" in arguments else ["--model", tiny_model]
    assert message in refuse("predict", *arguments, *model, "--device", "cpu")
    assert sorted(path for path in tmp_path.rglob("*") if path.name != LOG_FILE) == before


def test_in_a_pipe_and_with_a_reader_that_has_seen_enough(tiny_model, tmp_path):
    """In another process: lines come as they are ready, and nothing is said of a reader that goes away."""
    command = [*COMMAND, "predict", "-", "--model", str(tiny_model), "-q", "--batch-words", "20"]
    lines = ['{"text": "Lisbon, Zażółć. The mayor left."}\n'.encode()] * 200
    environment, pipe = {**os.environ, "PYTHONIOENCODING": "ascii"}, subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        process.stdin.writelines(lines)
        process.stdin.flush()  # and it stays open: there may be more
        assert json.loads(process.stdout.readline())["text"] == "Lisbon, Zażółć. The mayor left."
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.writelines(lines * 20)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
