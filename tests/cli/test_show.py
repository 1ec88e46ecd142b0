"""`nestree show` on files, and `nestree demo`."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from nestree.cli.show import DEMO_TEXT
from nestree.data import formats
from nestree.pipeline import load
from nestree.show import format_probability
from nestree.types import Document, Entity, Sentence
from tests.cli.run import nestree, refuse, succeed
from tests.show.cases import PARSED
from tests.tiny import write_text

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def parsed(tmp_path):
    path = tmp_path / "parsed.jsonl"
    formats.write([PARSED], path)
    return path


def run(*arguments, stdin=None, **environment):
    return succeed("show", *arguments, stdin=stdin, **{"COLUMNS": "80", **environment})


def test_files_of_all_formats_as_brackets(parsed):
    done = run(EXAMPLES / "dev.jsonl", "--only", "c-1")
    assert done.stdout == "c\n[The minister of finance of [Peru|GPE]|PER] resigned on Monday .\n"
    assert done.stderr == "2 entities in 1 sentence: PER 1, GPE 1\n"
    done = run(EXAMPLES / "brat", "--first", 1)
    assert done.stdout.startswith("news\n[The University of [California|GPE]|ORG] opened")
    assert "Ruiz" not in done.stdout
    assert "sentences joined around an entity" in run(EXAMPLES / "brat").stderr
    assert run("-", stdin=parsed.read_text()).stdout == run(parsed).stdout
    assert run(EXAMPLES / "brat" / "news.txt").stdout == run(EXAMPLES / "brat").stdout


def test_output_suits_the_terminal(parsed, monkeypatch):
    for width in (40, 60, 100):
        for more in ([], ["--tree"]):
            lines = run(parsed, *more, COLUMNS=str(width)).stdout.splitlines()
            assert lines
            assert all(len(line) <= width for line in lines)
            drawn = "".join(lines)
            assert ("root" in drawn) == ("╰" in drawn) == bool(more)
    assert "The _president_ of" in run(parsed).stdout
    done = run(parsed, FORCE_COLOR="1", TERM="xterm-256color")
    assert "_president_" not in done.stdout
    assert "\x1b[1;4mpresident\x1b[0m" in done.stdout
    monkeypatch.setattr(Console, "encoding", property(lambda self: "ascii"))
    done = run(parsed, "--tree")
    assert done.stdout.isascii()
    assert "PER .90" in done.stdout


def test_a_page(parsed, tmp_path):
    out = tmp_path / "page.html"
    done = run(parsed, "--out", out)
    assert (done.stdout, done.stderr) == ("", f"written: {out}\n")
    source = out.read_text(encoding="utf-8")
    assert "<svg" in source
    assert "parsed.jsonl</title>" in source
    assert run(parsed, "--out", "-", "-q").stdout == source
    before = parsed.read_text()
    assert refuse("show", parsed, "--out", parsed) == f"{parsed} is the input. Write to another file."
    assert parsed.read_text() == before


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("missing.jsonl", [], "missing.jsonl does not exist."),
        ("dev.jsonl", ["--only", "c-9"], "no document and no sentence has the id c-9. Is c-4 meant?"),
        ("dev.jsonl", ["--first", "0"], "--first"),
        ("dev.jsonl", ["--from", "nothing"], "there is no format 'nothing'"),
        ("dev.jsonl", ["--out", EXAMPLES], "is a directory"),
        ("dev.jsonl", ["--tree"], "dev.jsonl has a tree. Name a --model that makes trees, or leave this out."),
    ],
)
def test_errors(source, arguments, message):
    assert message in refuse("show", EXAMPLES / source, *arguments)


def test_skip_bad_lines(tmp_path):
    path = write_text(tmp_path / "a.jsonl", '{"tokens": ["a"], "entities": []}\n{"tokens": [], "entities": []}\n')
    assert "needs at least one word" in refuse("show", path)
    assert "needs at least one word" in run(path, "--skip-bad").stderr


def test_a_model_predicts_texts(tiny_model, tmp_path):
    text = "The mayor of Lisbon met the president."
    first, second = (write_text(tmp_path / f"{name}.txt", text) for name in "ab")
    done = run(first, "--model", tiny_model)
    assert done.stdout.startswith("a\n")
    assert "_Lisbon_|" in done.stdout
    both = run(first, second, "--model", tiny_model)
    assert both.stdout == done.stdout + "\n" + done.stdout.replace("a\n", "b\n", 1)
    mixed = refuse("show", first, EXAMPLES / "dev.jsonl")
    assert mixed == "some of the files are plain text, others are annotated. Show them with two commands."
    (tmp_path / "texts" / "of").mkdir(parents=True)
    write_text(tmp_path / "texts" / "of" / "a.txt", text)
    assert run(tmp_path / "texts", "--model", tiny_model).stdout.endswith(done.stdout.removeprefix("a\n"))
    piped = run("-", "--model", tiny_model, stdin=text)
    assert piped.stdout == done.stdout.removeprefix("a\n")
    assert "root" in run("-", "--model", tiny_model, "--tree", stdin=text).stdout
    page = run("-", "--model", tiny_model, "--out", "-", stdin=text)
    assert "<svg" in page.stdout
    assert ">Lisbon</u>" in page.stdout


def test_a_model_replaces_annotations(tiny_model, tmp_path):
    entity = {"start": 0, "end": 1, "label": "WRONG"}
    record = {"tokens": ["The", "mayor", "of", "Lisbon"], "entities": [entity]}
    path = write_text(tmp_path / "a.jsonl", json.dumps(record))
    assert "WRONG" in run(path).stdout
    done = run(path, "--model", tiny_model)
    assert "WRONG" not in done.stdout
    assert "Lisbon_|" in done.stdout


def test_the_demo_shows_entities_and_a_tree_in_80_columns_and_writes_a_page(tmp_path):
    path = tmp_path / "demo.html"
    done = succeed("demo", "--out", path, COLUMNS="80")
    output, document = done.stdout, load(device="cpu")(DEMO_TEXT)
    assert len(document.entities) > 12
    assert {"person", "place", "organization"} <= {e.label for e in document.entities}
    assert "\x1b" not in output
    assert max(map(len, output.replace(str(tmp_path), "").splitlines())) <= 82
    brackets = " ".join(output.split("\n\n")[0].split())
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    for entity in document.entities:
        assert f"|{entity.label} {format_probability(entity.score)}]" in brackets
        assert entity.label in page
    assert re.sub(r"\|[a-z]+ \d?\.\d\d|[\[\]]", "", brackets) == " ".join(DEMO_TEXT.split())
    assert list(document.sentences[-1].words) in [line.split() for line in output.splitlines()]
    assert "root" in output
    coloured = nestree("demo", "--out", path, FORCE_COLOR="1", COLUMNS="80", TERM="xterm-256color").stdout
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == output


def test_some_documents_and_sentences_by_id_or_the_first_ones(tmp_path):
    path = tmp_path / "a.jsonl"
    named = [Sentence(["Ann"], [Entity(0, 1, "PER")], id="n-1"), Sentence(["Bob"], id="n-2")]
    news = Document(named, id="news").with_text(" ")
    formats.write([news, Document([Sentence(["c"], id="o-1"), Sentence(["d"])], id="other")], path)
    for ids, shown in {
        ("news",): "news\n[Ann|PER] Bob\n",
        ("o-1", "n-2"): "news\nBob\n\nother\nc\n",
        ("other", "o-1"): "other\nc\nd\n",
    }.items():
        assert run(path, *(word for id in ids for word in ("--only", id))).stdout == shown
    unknown = refuse("show", path, "--only", "news", "--only", "xyz")
    assert "The ids are n-1, n-2, news, o-1, other." in unknown
    everything = run(path, "--first", 9).stdout
    assert everything == run(path).stdout == "news\n[Ann|PER] Bob\n\nother\nc\nd\n"
    assert run(path, "--first", 3).stdout == "news\n[Ann|PER] Bob\n\nother\nc\n"
    path.write_text(path.read_text() + "wrong\n")  # not read if it is not needed
    assert run(path, "--first", 1).stdout == "news\n[Ann|PER]\n"
    assert run(path, "--first", 2).stdout == "news\n[Ann|PER] Bob\n"
    path.write_text('{"tokens": ["a"], "entities": []}\n')
    assert "None has an id" in refuse("show", path, "--only", "n-1")
