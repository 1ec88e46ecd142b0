"""The benchmark of reading measures what it says, and knows all parts. Its numbers do not matter here."""

import json
import sys

import pytest
import torch

from benchmarks import pipeline, reading
from nestree import checkpoint
from nestree.data import formats
from nestree.model import Recognizer
from nestree.pipeline import predict
from nestree.types import Document
from tests import tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    settings = tiny.settings("default", f"encoder.path={tiny.encoder(folder / 'encoder')}")
    torch.manual_seed(0)
    checkpoint.save(Recognizer(settings, tiny.LABELS, folder / "encoder"), folder / "model")
    formats.write([Document((sentence,)) for sentence in tiny.SENTENCES], folder / "eight.jsonl")
    return folder


def test_what_is_not_there_is_a_sentence():
    with pytest.raises(SystemExit, match=r"/nowhere.jsonl does not exist"):
        pipeline.main(["--data", "/nowhere.jsonl", "--device", "cpu"])


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


@pytest.mark.parametrize("by", ["viterbi", "mbr"])
def test_parts_of_reading(place, by):
    model = checkpoint.load(place / "model")
    model.settings = model.settings.changed(
        [f"decoding.method={by}", f"decoding.threshold={0.4 if by == 'mbr' else 0}"]
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
    assert parts.keys() == expected | ({"tree sums"} if by == "mbr" else set())
    assert sum(part["share"] for part in parts.values()) == pytest.approx(1)
    assert predict(model, tiny.SENTENCES) == before  # nothing stays behind


def test_what_was_read_before_is_read_anew(place):
    model = checkpoint.load(place / "model")
    for sentences in (tiny.SENTENCES, tiny.SENTENCES[:2]):
        pipeline.read(model, sentences, 100)
        words = {word for sentence in sentences for word in sentence.words}
        assert model.collator.splitter.known.keys() == words


def test_text_in_and_a_peer_beside_it(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pipeline, "raw_texts", lambda shared: ["Lisbon voted. She left Oslo.", "the club"])
    monkeypatch.setattr(reading, "PEER", tmp_path / "peer.py")
    (tmp_path / "peer.py").write_text(PEER)
    monkeypatch.setattr(reading, "starting", lambda model: {"load_seconds": 1.0})
    options = ["--model", str(place / "model"), "--device", "cpu", "--rounds", "2", "--threads", "1"]
    assert pipeline.main([*options, "--peer", sys.executable, "some-model"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["texts"], result["words"]) == (2, 9)
    ours, peer = result["rows"].values()
    assert ours["words_per_second"] > 0
    assert peer["words_per_second"] == pytest.approx(9 / 4)  # seconds, it says
    assert peer["ratio_of_ours"] == pytest.approx(
        ours["words_per_second"] / peer["words_per_second"], rel=1e-4
    )
    assert list(result["rows"])[1] == "a peer, spans of up to 3 words"
    assert {"splitting", "pieces", "encoder", "scorers", "tree sums"} <= result["parts"].keys()


PEER = """
import json, sys
texts = json.load(open(sys.argv[3]))
assert sys.argv[1:3] == ["read", "some-model"] and len(texts) == 2
for line in sys.stdin:
    print(json.dumps({"seconds": {"wall": 4.0, "processor": 2.0}, "words": 9, "spans": 1}), flush=True)
print(json.dumps({"peer": "a peer", "sizes": [1, 3]}))
"""


def test_the_quietest_turns_count():
    turns = [
        {"wall": wall, "processor": 1.0, "others": others}
        for wall, others in zip(range(1, 7), range(6), strict=True)
    ]
    assert reading.summary(turns, 60)["words_per_second"] == 30  # three of them: 1, 2 and 3 seconds
    calm = [{**turn, "others": 0.0} for turn in turns]
    assert reading.summary(calm, 70)["words_per_second"] == 20
