"""Sentences are grouped by their words, and every model is asked about every group."""

import json

import pytest

from benchmarks import lengths
from nestree.data import formats
from nestree.types import Document, Sentence
from tests import tiny


def test_groups_hold_each_sentence_once():
    sentences = [Sentence(("a",) * n) for n in (1, 10, 11, 40, 41, 200, 201)]
    found = lengths.grouped(sentences)
    assert {group: [len(s.words) for s in some] for group, some in found.items()} == {
        "1-10": [1, 10],
        "11-20": [11],
        "21-40": [40],
        "41-80": [41],
        "81-200": [200],
    }


def test_a_row_for_each_model_and_group(tiny_model, tmp_path):
    data, out = tmp_path / "some.jsonl", tmp_path / "a.json"
    formats.write([Document((sentence,)) for sentence in tiny.SENTENCES], data, "jsonl")
    usual = ["--data", str(data), "--out", str(out), "--device", "cpu", "--rounds", "1"]
    assert lengths.main([str(tiny_model), *usual]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert {row["model"] for row in rows} == {tiny_model.name}
    assert sum(row["sentences"] for row in rows) == len(tiny.SENTENCES)
    assert all(row["learning_per_second"] > 0 and row["reading_per_second"] > 0 for row in rows)
    with pytest.raises(SystemExit, match="/nowhere"):
        lengths.main(["/nowhere", *usual])
    with pytest.raises(SystemExit, match="two models have one name"):
        lengths.main([str(tiny_model), str(tiny_model), *usual])
    formats.write([Document((tiny.sentence("a b", "0-1 NEW"),))], data, "jsonl")
    with pytest.raises(SystemExit, match="has a label that the model does not know"):
        lengths.main([str(tiny_model), *usual])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--rounds", "0"], "--rounds 0: it must be 1 or more"),
        (["--batch-words", "0"], "--batch-words 0: it must be 1 or more"),
        (["--out", "/nowhere/a.json"], "there is no folder /nowhere"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_loaded(tmp_path, capsys, change, said):
    with pytest.raises(SystemExit):
        lengths.main(["model", "--data", "data", "--out", str(tmp_path / "a.json"), *change])
    assert said in capsys.readouterr().err
