"""The benchmark of hostile text checks what it says. Its numbers do not matter here."""

import json

import pytest

from benchmarks import hostile
from nestree import checkpoint
from nestree.pipeline import Pipeline, windows
from nestree.sentence import Document, Entity, Sentence

TEXT = "Ann met Bob"


def test_a_row_for_each_case(tiny_model, tmp_path, capsys):
    sizes = "--texts 30 --megabytes 0.002 --words 300"
    hostile.main([*sizes.split(), "--model", str(tiny_model), "--out", str(tmp_path / "o.json")])
    result = json.loads((tmp_path / "o.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    rows = {row["case"]: row for row in result["rows"]}
    assert {name.split(":")[0] for name in rows} == {
        "characters",
        "without a blank",
        "one sentence",
        "stream",
    }
    assert (rows["stream"]["texts"], rows["one sentence"]["words"], rows["one sentence"]["windowed"]) == (
        30,
        300,
        1,
    )
    assert "text 2 (None) failed" in rows["stream"]["error"]
    assert str(tiny_model.parent) not in json.dumps(result)


def test_long_sentences_are_joined_and_read_through_windows(tiny_model, tmp_path):
    lines = [{"tokens": ["Ann", "met", "Bob"], "entities": [{"start": 2, "end": 3, "label": "PER"}]}] * 90
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = hostile.joined(tmp_path / "some.jsonl", words=120, count=2)
    assert [len(sentence.words) for sentence in made] == [120, 120]
    assert [sentence.phrase(sentence.entities[-1]) for sentence in made] == ["Bob", "Bob"]
    seen = []
    ner = Pipeline(checkpoint.load(tiny_model), longest=100)
    ner.words = lambda given: (seen.append(windows.windows(120, 100)[0]), given)[1]
    row = hostile.through_windows(ner, made, 16)
    assert (seen, row["f1"], row["words"]) == ([(0, 16)], 1.0, 240)
    assert windows.WINDOW == 64


def document(words: list[str], text: str, *entities: Entity) -> Document:
    places = []
    for word in words:
        start = text.index(word, places[-1][1] if places else 0)
        places.append((start, start + len(word)))
    return Document((Sentence(words, entities, text, tuple(places)),), text)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (document(["Ann", "Bob"], TEXT), TEXT),  # a word is lost
        (document(["Ann", "met", "Bob"], TEXT), TEXT + "!"),
        (document(["Ann", "met", "Bob"], TEXT, Entity(0, 2, "A"), Entity(1, 3, "B")), TEXT),  # they cross
    ],
)
def test_what_is_wrong_is_found(bad, text):
    hostile.check(document(["Ann", "met", "Bob"], TEXT, Entity(0, 2, "A"), Entity(0, 1, "B")), TEXT)
    with pytest.raises(AssertionError):
        hostile.check(bad, text)


def test_a_text_in_the_wrong_place_is_found(tiny_model, monkeypatch):
    ner = Pipeline(checkpoint.load(tiny_model))
    monkeypatch.setattr(ner, "pipe", lambda texts, **how: (Document((), text) for text in [*texts][::-1]))
    monkeypatch.setattr(hostile, "error_of", lambda ner: "")
    with pytest.raises(AssertionError):
        hostile.streamed(ner, 3, 60)
