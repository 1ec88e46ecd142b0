"""What a model does is asked and kept in the form that tables read; what is wrong is said before that."""

import pytest

from benchmarks import analysis, stored
from nestree.data import formats
from nestree.types import Document, Entity, Sentence
from tests import tiny


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "some"
    folder.mkdir()
    for part in ("train", "dev", "test"):
        formats.write(
            [Document((sentence,)) for sentence in tiny.SENTENCES], folder / f"{part}.jsonl", "jsonl"
        )
    return folder


def test_everything_is_kept(tiny_model, data, tmp_path):
    out = tmp_path / "results" / "a.json"
    out.parent.mkdir()
    assert analysis.main(["--data", str(data), "--out", str(out), "--model", str(tiny_model)]) == 0
    (row,) = stored.analysed(out.parent)
    assert (row["data"], row["recipe"]) == ("some", tiny_model.name)
    assert row["test"]["details"] == row["dev"]["details"]  # the same sentences
    assert {"depths", "lengths", "errors", "head_words", "head_errors"} <= row["test"]["details"].keys()
    assert [sum(column) for column in zip(*row["test"]["by_sentence"], strict=True)][2] == sum(
        len(sentence.entities) for sentence in tiny.SENTENCES
    )
    assert {"tree 0.4", "marginals 0.5"} <= row["test"]["decoders"].keys()


def test_last_words_of_gold_spans_that_have_a_head():
    words = ["the", "mayor", "of", "Lisbon", "met", "two", "members"]
    known = [Entity(0, 4, "PER", head=1), Entity(2, 4, "GPE", head=3), Entity(5, 7, "PER", head=6)]
    sentences = [Sentence(words, [*known, Entity(3, 4, "GPE", head=3), Entity(4, 7, "X")])]
    found = analysis.last_words(sentences)
    assert (found["judged"], found["accuracy"]) == (
        3,
        pytest.approx(200 / 3),
    )  # not single words, nor unknown ones
    assert analysis.last_words(tiny.SENTENCES) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--data", "/nowhere"], "/nowhere is no folder"),
        (["--model", "/nowhere"], "/nowhere does not exist"),
        (["--device", "foo"], "there is no device 'foo'"),
        (["--out", "/nowhere/a.json"], "there is no folder /nowhere. Make it"),
    ],
)
def test_what_is_wrong_is_a_sentence(tiny_model, data, tmp_path, changed, said):
    usual = ["--data", str(data), "--out", str(tmp_path / "a.json"), "--model", str(tiny_model)]
    with pytest.raises(SystemExit, match=said):
        analysis.main([*usual, *changed])
    assert not (tmp_path / "a.json").exists()
