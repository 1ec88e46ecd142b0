"""The benchmark of reading measures what it says, and knows all parts. Its numbers do not matter here."""

import json

import pytest
import torch

from benchmarks import pipeline
from nestree import checkpoint
from nestree.data import formats
from nestree.model import Recognizer
from nestree.pipeline import predict
from nestree.sentence import Document
from tests import tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    settings = tiny.settings("default", f"encoder.path={tiny.encoder(folder / 'encoder')}")
    torch.manual_seed(0)
    checkpoint.save(Recognizer(settings, tiny.LABELS, folder / "encoder"), folder / "model")
    formats.write([Document((sentence,)) for sentence in tiny.SENTENCES], folder / "eight.jsonl")
    return folder


def test_a_row_for_each_lane_and_size(place, tmp_path, capsys):
    options = (
        f"--model {place / 'model'} --data {place / 'eight.jsonl'} --out {tmp_path / 'o.json'} --device cpu"
    )
    assert pipeline.main([*options.split(), "--batch-words", "20,100", "--rounds", "1", "--text"]) == 0
    result = json.loads((tmp_path / "o.json").read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    assert (result["sentences"], result["words"]) == (8, sum(len(s.words) for s in tiny.SENTENCES))
    lanes = [(row["lane"], row["batch_words"]) for row in result["rows"]]
    assert lanes == [
        ("words in", 20),
        ("encoder alone", 20),
        ("words in", 100),
        ("encoder alone", 100),
        ("text in", pipeline.BATCH_WORDS),
    ]
    assert all(row["sentences_per_second"] > 0 for row in result["rows"])
    assert str(place) not in json.dumps(result)


@pytest.mark.parametrize("by", ["tree", "marginals"])
def test_parts_of_reading(place, by):
    model = checkpoint.load(place / "model")
    model.settings = model.settings.changed(
        [f"decoding.by={by}", f"decoding.threshold={0.4 if by == 'marginals' else 0}"]
    )
    before = predict(model, tiny.SENTENCES)
    parts = pipeline.parts_of(model, tiny.SENTENCES, 30)["parts"]
    expected = {
        "pieces",
        "collate",
        "moving",
        "encoder",
        "scorers",
        "labels",
        "best trees",
        "entities",
        "rest",
    }
    assert parts.keys() == expected | ({"tree sums"} if by == "marginals" else set())
    assert sum(part["share"] for part in parts.values()) == pytest.approx(1)
    assert predict(model, tiny.SENTENCES) == before  # nothing stays behind


def test_what_was_read_before_is_read_anew(place):
    model = checkpoint.load(place / "model")
    pipeline.read(model, tiny.SENTENCES, 100)
    kept = dict(model.collator.splitter.kept)
    assert len(kept) == 8
    pipeline.read(model, tiny.SENTENCES[:2], 100)
    assert len(model.collator.splitter.kept) == 2
    assert all(kept[words] is not found for words, found in model.collator.splitter.kept.items())
