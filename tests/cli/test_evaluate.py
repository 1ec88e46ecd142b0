"""`nestree evaluate` on files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from nestree import api
from nestree.data import formats
from nestree.types import Document, Entity, Sentence
from tests.cli.run import nestree, refuse, succeed
from tests.tiny import write_text

LINES = [
    ("Ann met Bob", [(0, 1, "PER"), (2, 3, "PER")], [(0, 1, "PER"), (2, 3, "ORG")], [(0, 1, "PER"), (2, 3, "PER")]),
    ("the army of Iraq", [(0, 4, "ORG"), (3, 4, "GPE")], [(0, 4, "ORG"), (0, 4, "ORG")], [(3, 4, "GPE")]),
]  # fmt: skip


def evaluate(*arguments: object) -> Result:
    return nestree("evaluate", *arguments)


@pytest.fixture
def files(tmp_path) -> list[Path]:
    """Gold, predicted, and another prediction."""
    paths = [tmp_path / f"{name}.jsonl" for name in ("gold", "predicted", "other")]
    for k, path in enumerate(paths):
        sentences = [Sentence(text.split(), [Entity(*e) for e in sides[k]]) for text, *sides in LINES]
        formats.write([Document((sentence,)) for sentence in sentences], path)
    return paths


def test_formats(files, tmp_path):
    # predicted, each once: Ann right, Bob as ORG wrong, the army right; gold has four
    page, scores = tmp_path / "page.html", "P 66.67  R 50.00  F1 57.14"
    done = evaluate(*files[:2], "-q", "--html", page)
    assert (done.exit_code, done.stdout) == (0, f"{scores}\n")
    assert "</html>" in page.read_text(encoding="utf-8")
    assert evaluate(*files[:2], "--html", tmp_path).exit_code == 2
    copies = evaluate(*files[:2], "-q", "--duplicates").stdout
    assert copies == "P 50.00  R 50.00  F1 50.00 (each copy counted)\n"
    done = evaluate(*files[:2], "--bootstrap", "50")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == scores
    assert "By label" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80 + len(str(files[0]))
    values = json.loads(evaluate(*files[:2], "--format", "json", "--bootstrap", "0").stdout)
    counts = (values["sentences"], values["entities"]["correct"], values["duplicates"]["predicted"])
    assert counts == (2, 2, 4)
    done = evaluate(*files[:2], "--format", "markdown", "--bootstrap", "0")
    assert done.stdout.startswith("# ")
    assert "| entities | 66.67 | 50.00 | 57.14 |" in done.stdout


def test_no_column_is_lost_in_a_pipe(tmp_path):
    label = f"a-label-of-{'many' * 20}-letters"
    document = {"tokens": ["a"], "entities": [{"start": 0, "end": 1, "label": label}]}
    path = write_text(tmp_path / "a.jsonl", json.dumps(document))
    table = evaluate(path, path, "--compare", path, "--bootstrap", "9").stdout.partition("Difference in F1 by label")[2]
    head, row = table.splitlines()[1:3]
    assert head.split()[-4:] == ["difference", "95", "%", "p"]
    assert row.split() == [label, "100.00", "100.00", "0.00", "0.00", "to", "0.00", "1.0000"]
    assert "not fit" not in table


def test_the_conversion_report_is_printed(tmp_path):
    task = {"text": "Ann left", "spans": [{"start": 0, "end": 2, "label": "PER"}]}
    lines = [json.dumps(task | {"answer": answer}) for answer in ("accept", "reject")]
    path = write_text(tmp_path / "a.jsonl", "\n".join(lines))
    for done in (evaluate(path, path), nestree("stats", path)):
        assert done.exit_code == 0
        assert "tasks that were rejected or ignored left out" in done.stderr
        assert "widened to word boundaries" in done.stderr
    assert evaluate(path, path, "-q").stderr == ""


def test_files_that_are_read_are_never_overwritten(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = [path.read_text() for path in files]
    for page in (*files, Path(files[1].name)):
        message = refuse("evaluate", *files[:2], "--compare", files[2], "--html", page)
        assert message == f"{page} is the input. Write to another file."
    assert [path.read_text() for path in files] == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gold.jsonl"], "name either a file of predictions or a model: --model MODEL."),
        (["gold.jsonl", "predicted.jsonl", "--model", "gum-minilm"], "name either a file of predictions or a model"),
        (["gold.jsonl", "predicted.jsonl", "--threshold", "0.5"], "--threshold selects the entities of a model"),
        (["gold.jsonl", "predicted.jsonl", "--compare", "missing.jsonl"], "missing.jsonl does not exist."),
        (["missing.jsonl", "predicted.jsonl", "--html", "gold.jsonl/page.html"], "page.html cannot be written: Not a"),
        (["gold.jsonl", "predicted.jsonl", "--compare", "other.jsonl", "--bootstrap", "0"], "--bootstrap must be 1 or"),
        (["gold.jsonl", "longer.jsonl"], "gold ends after 2 sentences"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored(files, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("longer.jsonl").write_text(files[0].read_text() * 2)
    assert message in refuse("evaluate", *arguments)


def test_of_a_folder_the_test_part_is_scored(files, tmp_path):
    gold, predicted, _ = files
    folder = tmp_path / "parts"
    folder.mkdir()
    for part, source in {"train": predicted, "dev": predicted, "test": gold}.items():
        shutil.copy(source, folder / f"{part}.jsonl")
    done = evaluate(folder, predicted)
    assert f"{folder} has several parts: {folder / 'test.jsonl'} is scored." in done.stderr
    assert done.stdout.splitlines()[-1] == evaluate(gold, predicted).stdout.splitlines()[-1]
    assert api.evaluate(folder, predicted).f1 == api.evaluate(gold, predicted).f1


def test_disjoint_labels_are_never_hidden(files, tmp_path):
    others = write_text(tmp_path / "others.jsonl", files[0].read_text().replace('"label": "', '"label": "my-'))
    for quiet in ([], ["-q"]):
        done = evaluate(files[0], others, *quiet)
        assert done.exit_code == 0
        assert "Warning: gold and prediction have no label in common, so all scores are 0" in done.stderr
        assert "; predicted are my-" in done.stderr
    assert "Warning" not in evaluate(*files[:2]).stderr


def test_annotators_who_join_other_sentences(tmp_path):
    """One annotates an entity across the end of a sentence, which joins two sentences when the text is read."""
    for name, second in {"a": "ORG 8 20\tYahoo! Japan", "b": "ORG 15 20\tJapan"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text("Ann saw Yahoo! Japan grew. It rained.")
        (tmp_path / name / "1.ann").write_text(f"T1\tPER 0 3\tAnn\nT2\t{second}\n")
    done = evaluate(tmp_path / "a", tmp_path / "b", "-q")
    assert done.stdout == "P 50.00  R 50.00  F1 50.00\n"
    assert "Warning: ends of sentences that only one side has, joined to the next sentence: 1" in done.stderr


def evaluate_model(model: Path, *arguments: object) -> dict[str, Any]:
    options = ["--format", "json", "--bootstrap", 0, "--device", "cpu"]
    return json.loads(succeed("evaluate", "--model", model, *arguments, *options).stdout)


def test_a_model_with_its_probabilities_as_in_predict(tiny_model, tiny_data, tmp_path, small_model):
    found = evaluate_model(tiny_model, tiny_data, "--html", tmp_path / "page.html")
    assert found["calibration"]["scored"] == found["entities"]["predicted"] > 8
    assert found["calibration"]["unscored"] == 0
    assert "Reliability diagram" in (tmp_path / "page.html").read_text()
    surer = evaluate_model(tiny_model, tiny_data, "--threshold", "0.9")
    assert surer["entities"]["predicted"] < found["entities"]["predicted"]
    assert all(bin["score"] >= 0.9 for bin in surer["calibration"]["bins"])
    found = tmp_path / "found.jsonl"
    succeed("predict", tiny_data, "--model", small_model, "--out", found, "--device", "cpu")
    plain = json.loads(evaluate(tiny_data, found, "--format", "json", "--bootstrap", "0").stdout)
    error = evaluate_model(small_model, tiny_data)["calibration"]["error"]
    assert error == pytest.approx(plain["calibration"]["error"], abs=2e-6)  # files have six digits


def test_text_is_split_by_the_rules_of_the_model(tiny_model, tmp_path):
    (tmp_path / "a.txt").write_text("the Lisbon-born mayor")
    gold = write_text(tmp_path / "a.ann", "T1\tGPE 4 10\tLisbon\n")
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    facts = json.loads((other / "labels.json").read_text())
    (other / "labels.json").write_text(json.dumps({**facts, "text": {"words": "ud", "sentences": "rules"}}))
    (other / "manifest.json").unlink()
    said = evaluate("--model", tiny_model, gold, "--device", "cpu").stderr
    assert "widened to word boundaries" in said  # Lisbon-born is a word
    assert "widened" not in evaluate("--model", other, gold, "--device", "cpu").stderr
    assert "widened" in evaluate("--model", other, gold, "--device", "cpu", "--words", "treebank").stderr


def test_a_comparison_with_a_model_names_both_sides(tiny_model, files):
    done = succeed("evaluate", *files[:2], "--compare", tiny_model, "--bootstrap", "10", "--device", "cpu")
    assert f"predicted.jsonl against {tiny_model.name}" in done.stdout
    options = ["--compare", files[2], "--bootstrap", "10", "--format", "json"]
    both = evaluate(files[0], "--model", tiny_model, *options)
    assert json.loads(both.stdout)["comparison"]["names"] == [tiny_model.name, "other.jsonl"]
