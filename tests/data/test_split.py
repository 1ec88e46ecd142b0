"""Splits: every unit in one part, exact shares, the same for the same seed; files all or none."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestree.data.io import ConversionReport
from nestree.data.split import (
    assemble_parts,
    make_units,
    sizes,
    split_by_lists,
    split_in_order,
    split_shuffled,
    split_stratified,
    write_parts,
)
from nestree.errors import InputError
from nestree.types import Document, Entity, Sentence

SHARES = {"train": 80, "dev": 10, "test": 10}


def documents(count: int, seed: int = 0) -> list[Document]:
    rng, found = random.Random(seed), []
    for n in range(count):
        size = rng.randint(1, 9)
        entities = [[Entity(0, 1, rng.choice("AAAAAAAABBC"))] * (rng.random() < 0.8) for _ in range(size)]
        sentences = [Sentence([f"w{n}", "x"], each, id=f"{n}-{k}") for k, each in enumerate(entities)]
        found.append(Document(sentences, id=f"d{n}"))
    return found


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(1, 100), min_size=1, max_size=5), st.integers(500, 9999))
def test_sizes_add_up_and_are_within_one_of_the_exact_share(shares, total):
    found = sizes(shares, total)
    assert sum(found.values()) == total
    for name, size in found.items():
        assert abs(size - total * shares[name] / sum(shares.values())) < 1


@pytest.mark.parametrize("split", [split_in_order, split_shuffled, split_stratified])
@pytest.mark.parametrize("by", ["sentence", "document"])
def test_every_unit_goes_to_one_part(split, by):
    data = documents(60)
    data_units = make_units(data, by)
    names = split(data_units, SHARES)
    assert Counter(names) == sizes(SHARES, len(data_units))
    parts = assemble_parts(data_units, names)
    ids = Counter(s.id for part in parts.values() for d in part for s in d.sentences)
    assert ids == {sentence.id: 1 for document in data for sentence in document.sentences}
    for part in parts.values():  # in the order of the data
        numbers = [tuple(map(int, (s.id or "").split("-"))) for d in part for s in d.sentences]
        assert numbers == sorted(numbers)
        assert len({d.id for d in part}) == len(part)
    if by == "document":
        assert sum(len({d.id for d in part}) for part in parts.values()) == 60


def test_seeds():
    data_units = make_units(documents(50), "document")
    for split in (split_shuffled, split_stratified):
        assert split(data_units, SHARES, 1) == split(data_units, SHARES, 1) != split(data_units, SHARES, 2)


@pytest.mark.parametrize("by", ["sentence", "document"])
def test_stratified_parts_have_their_share_of_each_label(by):
    data_units = make_units(documents(400), by)
    totals: Counter[str] = Counter()
    found = {name: Counter[str]() for name in SHARES}
    for unit, name in zip(data_units, split_stratified(data_units, SHARES), strict=True):
        labels = [e.label for d in unit.documents for s in d.sentences for e in s.entities]
        totals.update(labels)
        found[name].update(labels)
    assert len(totals) == 3
    for label, total in totals.items():
        for name, share in SHARES.items():
            assert found[name][label] == pytest.approx(total * share / 100, abs=1.5)


def test_documents_with_the_same_id_stay_together():
    data = documents(20)
    data.append(Document([Sentence(["again"])], id="d0"))
    data_units = make_units(data, "document")
    assert len(data_units) == 20
    assert [len(unit.documents) for unit in data_units] == [2] + [1] * 19


def test_lists_and_impossible_splits():
    data_units = make_units(documents(4), "document")
    found = split_by_lists(data_units, {"dev": ["d1"], "test": ["d3"]}, "train")
    assert found == ["train", "dev", "train", "test"]
    with pytest.raises(InputError, match=r"'d1' is in the list of dev and in that of test. Take it out"):
        split_by_lists(data_units, {"dev": ["d1"], "test": ["d1"]}, "train")
    with pytest.raises(InputError, match=r"the list of dev: 'd11' is not in the data. Is 'd1' meant\?"):
        split_by_lists(data_units, {"dev": ["d11"]}, "train")
    with pytest.raises(InputError, match="3 units are in no list, 'd0' first"):
        split_by_lists(data_units, {"dev": ["d1"]})
    with pytest.raises(InputError, match="too large to be added"):
        sizes({"train": 1e308, "dev": 1e308}, 10)
    with pytest.raises(InputError, match="names no documents"):
        make_units([Document([Sentence(["a"])])], "document")
    with pytest.raises(InputError, match="greater than 0"):
        split_in_order(data_units, {"train": 1, "dev": float("nan")})


def test_what_a_split_by_sentence_loses_is_counted():
    report = ConversionReport()
    sentences = [Sentence(["a"], (), "a", [(0, 1)], 2), Sentence(["b"], (), "b", [(0, 1)], 4)]
    text = Document(sentences, "- a b", "d")
    data_units = make_units([text, Document(())], "sentence", report)
    assert report.counts == {
        "texts of documents taken apart into their sentences": 1,
        "documents without sentences left out": 1,
    }
    assert report.places["documents without sentences left out"] == ["document 2"]
    (joined,) = assemble_parts(data_units, ["x", "x"])["x"]
    assert (joined.id, joined.text, [s.words for s in joined.sentences]) == ("d", None, [("a",), ("b",)])


def test_texts_without_ids_are_documents():
    texts = [replace(document, id=None).with_text() for document in documents(9)]
    assert [unit.documents for unit in make_units(texts, "document")] == [(text,) for text in texts]


def test_parts_are_written_all_or_none(tmp_path: Path):
    def failing():
        yield documents(1)[0]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_parts({"train": documents(3), "dev": failing()}, tmp_path / "out", "jsonl", ConversionReport())
    assert list(tmp_path.iterdir()) == []
