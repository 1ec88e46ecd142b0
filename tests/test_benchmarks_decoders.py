"""The benchmark of decoders and probabilities, on eight sentences."""

import json
import random

import pytest

from benchmarks import decoders
from nestree.data.formats import write
from nestree.evaluation.calibration import calibrate
from nestree.types import Document
from tests import tiny


def test_it_measures_with_and_without_temperatures(tiny_model, tmp_path, capsys):
    data, out = tmp_path / "data.jsonl", tmp_path / "out.json"
    write([Document(tiny.SENTENCES)], data)
    decoders.main(
        [str(data), "--judge", str(data), "--model", str(tiny_model), "--device", "cpu", "--out", str(out)]
    )
    found = json.loads(out.read_text())
    assert found["sentences"] == {"fitted on": 8, "judged on": 8}
    for at in ("unfitted", "fitted"):
        assert [(way["by"], way["threshold"]) for way in found[at]["ways"]] == decoders.WAYS
        groups = {row["group"]: row["number"] for row in found[at]["groups"]}
        assert groups["all"] == groups["of one word"] + groups["of 2 to 5 words"] + groups["of more"] > 8
        assert groups["all"] == groups["in no other"] + groups["in one other"] + groups["in several"]
        assert groups["is it an entity?"] >= groups["if so, its best label"] > 8
    assert found["unfitted"]["temperatures"] != found["fitted"]["temperatures"]
    tree = [found[at]["ways"][0] for at in ("unfitted", "fitted")]
    assert tree[0]["f1"] == tree[1]["f1"]  # the best tree stays the best
    assert tree[0]["brier"] > tree[1]["brier"]
    assert "ECE" in capsys.readouterr().out


def test_what_honest_scores_have_by_chance():
    chance = random.Random(1)
    scores = [chance.random() for _ in range(400)]
    errors = [calibrate((score, chance.random() < score) for score in scores).error for _ in range(200)]
    assert decoders.by_chance(scores) == pytest.approx(sum(errors) / len(errors), rel=0.1)
