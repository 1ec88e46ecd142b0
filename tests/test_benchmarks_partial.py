"""Entities are taken away alike, whether sentences say so or not; what is left says the truth."""

from benchmarks import partial
from nestree.data.formats import read, write
from nestree.types import Document
from tests import tiny


def test_what_is_taken_away_is_marked_or_not(tmp_path, capsys):
    documents = [Document((sentence,)) for sentence in (*tiny.SENTENCES * 20, tiny.TWO_LABELS)]
    for part in partial.PARTS:
        write(documents, tmp_path / f"{part}.jsonl", "jsonl")
    partial.main([str(tmp_path), "--out", str(tmp_path / "made"), "--share", "0.4"])
    assert "incomplete" in capsys.readouterr().out
    made = {
        name: [s for d in read(tmp_path / "made" / folder / "train.jsonl") for s in d.sentences]
        for name, folder in {"whole": "whole", "negatives": "negatives-40", "unknown": "unknown-40"}.items()
    }
    whole = [document.sentences[0] for document in documents]
    assert [s.entities for s in made["whole"]] == [s.entities for s in whole]
    assert all(s.complete for s in (*made["whole"], *made["negatives"]))
    assert [s.entities for s in made["negatives"]] == [s.entities for s in made["unknown"]]
    assert [s.complete for s in made["unknown"]] == [
        len(s.entities) == len(before.entities) for s, before in zip(made["unknown"], whole, strict=True)
    ]
    left = sum(len(s.entities) for s in made["unknown"]) / sum(len(s.entities) for s in whole)
    assert 0.5 < left < 0.7
    for part in ("dev", "test"):
        again = [s for d in read(tmp_path / "made" / "unknown-40" / f"{part}.jsonl") for s in d.sentences]
        assert [s.entities for s in again] == [s.entities for s in whole]
