"""`nestree show` as users meet it."""

from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from nestree.checkpoint import save
from nestree.cli import app
from nestree.data import formats
from nestree.types import Document

from .. import tiny
from ..show.cases import PARSED, PRESIDENT

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def parsed(tmp_path):
    path = tmp_path / "parsed.jsonl"
    formats.write([PARSED], path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    save(tiny.learned(tiny.encoder(folder)), folder / "model")
    return folder / "model"


def run(*arguments, given=None, **environment):
    return CliRunner().invoke(
        app, ["show", *map(str, arguments)], given, env={"COLUMNS": "80", **environment}
    )


def test_brackets_on_standard_output_and_counts_on_standard_error():
    done = run(EXAMPLES / "dev.jsonl", "--only", "c-1")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "c\n[The minister of finance of [Peru|GPE]|PER] resigned on Monday .\n"
    assert done.stderr == "2 entities in 1 sentence: PER 1, GPE 1\n"


def test_every_format_can_be_shown_and_what_was_done_to_it_is_told():
    done = run(EXAMPLES / "brat", "--first", 1)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("news\n[The University of [California|GPE]|ORG] opened")
    assert "Ruiz" not in done.stdout
    assert "sentences joined around an entity" in run(EXAMPLES / "brat").stderr


def test_the_width_of_the_terminal_is_kept(parsed):
    for width in (40, 60, 100):
        for more in ([], ["--tree"]):
            lines = run(parsed, *more, COLUMNS=str(width)).stdout.splitlines()
            assert lines
            assert all(len(line) <= width for line in lines)


def test_heads_are_marked_where_there_is_no_underlining(parsed):
    assert "The _president_ of" in run(parsed).stdout
    done = run(parsed, FORCE_COLOR="1", TERM="xterm-256color")
    assert "_president_" not in done.stdout
    assert "\x1b[1;4mpresident\x1b[0m" in done.stdout


def test_trees(parsed):
    done = run(parsed, "--tree")
    assert done.exit_code == 0, done.stderr
    assert "root" in done.stdout
    assert "╰" in done.stdout
    done = run(EXAMPLES / "dev.jsonl", "--tree")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no sentence of" in done.stderr
    assert "has a tree" in done.stderr


def test_a_page(parsed, tmp_path):
    out = tmp_path / "page.html"
    done = run(parsed, "--out", out)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"written: {out}\n")
    source = out.read_text(encoding="utf-8")
    assert "<svg" in source
    assert "parsed.jsonl</title>" in source
    assert run(parsed, "--out", "-", "-q").stdout == source


def test_what_is_read_is_never_replaced_by_a_page(parsed):
    before = parsed.read_text()
    done = run(parsed, "--out", parsed)
    assert (done.exit_code, done.stderr) == (
        2,
        f"Error: {parsed} is what is read. Write to somewhere else.\n",
    )
    assert parsed.read_text() == before


def test_a_terminal_that_knows_ascii_alone(parsed, monkeypatch):
    monkeypatch.setattr(Console, "encoding", property(lambda self: "ascii"))
    done = run(parsed, "--tree")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.isascii()
    assert "PER .90" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.jsonl"], "Error: missing.jsonl does not exist."),
        (
            [EXAMPLES / "dev.jsonl", "--only", "c-9"],
            "Error: no document and no sentence has the id c-9. Is c-4 meant?",
        ),
        ([EXAMPLES / "dev.jsonl", "--first", "0"], "--first"),
        ([EXAMPLES / "dev.jsonl", "--from", "nothing"], "there is no format 'nothing'"),
        ([EXAMPLES / "dev.jsonl", "--out", EXAMPLES], "is a directory"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(arguments, said):
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert isinstance(done.exception, SystemExit)


def test_a_bad_line_can_be_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    formats.write([Document(PRESIDENT.sentences, id="d")], path)
    path.write_text(path.read_text() + '{"tokens": [], "entities": []}\n')
    assert "needs at least one word" in run(path).stderr
    done = run(path, "--skip-bad")
    assert done.exit_code == 0
    assert "needs at least one word" in done.stderr


def test_a_model_reads_texts_and_shows_what_it_finds(model, tmp_path):
    text = "The mayor of Lisbon met the president."
    (tmp_path / "a.txt").write_text(text)
    done = run(tmp_path / "a.txt", "--model", model)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("a\n")
    assert "_Lisbon_|" in done.stdout
    piped = run("-", "--model", model, given=text)
    assert piped.stdout == done.stdout.removeprefix("a\n")
    assert "root" in run("-", "--model", model, "--tree", given=text).stdout
    page = run("-", "--model", model, "--out", "-", given=text)
    assert "<svg" in page.stdout
    assert ">Lisbon</u>" in page.stdout


def test_a_model_sees_annotated_data_in_its_own_way(model, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"tokens": ["The", "mayor", "of", "Lisbon"], "entities": [{"start": 0, "end": 1, "label": "WRONG"}]}'
    )
    assert "WRONG" in run(path).stdout
    done = run(path, "--model", model)
    assert done.exit_code == 0, done.stderr
    assert "WRONG" not in done.stdout
    assert "Lisbon_|" in done.stdout


def test_json_lines_are_recognised_on_standard_input(parsed):
    assert run("-", given=parsed.read_text()).stdout == run(parsed).stdout


def test_texts_with_annotations_beside_them_are_shown_with_those():
    assert run(EXAMPLES / "brat" / "news.txt").stdout == run(EXAMPLES / "brat").stdout
