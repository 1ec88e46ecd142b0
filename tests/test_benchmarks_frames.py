"""What it takes to pad batches to few shapes."""

import json

import pytest

from benchmarks import frames
from nestree.data import formats
from nestree.types import Document
from tests import tiny


def test_shapes_of_a_file(tmp_path, capsys):
    data, out = tmp_path / "eight" / "train.jsonl", tmp_path / "out.json"
    data.parent.mkdir()
    formats.write([Document((sentence,)) for sentence in tiny.SENTENCES], data)
    encoder = tiny.encoder(tmp_path / "encoder")
    frames.main(["--data", str(data), "--encoder", str(encoder), "--epochs", "3", "--out", str(out)])
    result = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert result["data"] == "eight/train.jsonl"
    (row,) = result["rows"]
    assert row["updates"] == 3  # eight sentences are one batch
    assert row["new"] == [1, 0, 0]
    assert (row["shapes"], row["once"]) == (1, 0)
    rows, words = len(tiny.SENTENCES), max(len(sentence.words) for sentence in tiny.SENTENCES)
    assert (rows, words) == (8, 10)  # become 10 rows, one of them not used, and 16 words
    assert row["charts"] == pytest.approx(10 * 17**2 * 16 / (8 * 11**2 * 10), rel=1e-4)
    assert 1 < row["pieces"] < 2
