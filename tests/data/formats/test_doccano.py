"""doccano: the three keys, triples and objects, and what its offsets may count."""

import json

import pytest

from nestree.data import formats
from nestree.errors import InputError
from nestree.types import Document, Entity, Sentence

from .reading import documents, phrases, read_one


@pytest.mark.parametrize("key", ["label", "labels", "entities"])
def test_all_three_keys_say_the_same(key):
    found, report = documents(f"tools/doccano_{key}.jsonl", "doccano")
    assert [document.id for document in found] == ["1", "2"]
    assert sorted(phrases(found[0].sentences[0])) == [
        ("Ada Blum of the Bank", "ODD"),
        ("Palermo", "GPE"),
        ("The mayor of Palermo", "PER"),
        ("the Bank of Sicily", "ORG"),
    ]
    assert [phrases(s) for s in found[1].sentences if s.entities] == [[("The Zürich Zoo", "ORG")]]
    assert "\r\n" in (found[1].text or "")
    assert report.counts == ({"relations not read": 1} if key == "entities" else {})


FAMILY = "👨‍👩‍👧 é\u0301\u0323, Rome"  # five characters of which three are two units, an e with three marks


@pytest.mark.parametrize(("offsets", "start"), [("characters", 11), ("utf-16", 14), ("graphemes", 5)])
def test_offsets_count_what_is_chosen(tmp_path, offsets, start):
    record = {"text": FAMILY, "label": [[start, start + 4, "GPE"]]}
    document, report = read_one(tmp_path, "doccano", record, offsets=offsets)
    assert [phrase for s in document.sentences for phrase in phrases(s)] == [("Rome", "GPE")]
    assert len(report.counts) == (offsets == "characters")


def test_unsure_offsets_are_counted_where_they_matter(tmp_path):
    for text, counts in {"é Rome": [], "🙂 Rome": [1]}.items():
        _, report = read_one(tmp_path, "doccano", {"text": text, "label": [[2, 6, "GPE"]]})
        assert list(report.counts.values()) == counts
    with pytest.raises(InputError, match="offsets cannot count 'bytes'"):
        read_one(tmp_path, "doccano", {"text": "Rome"}, offsets="bytes")


@pytest.mark.parametrize("key", ["label", "labels", "entities"])
def test_what_is_written_comes_back(tmp_path, key):
    entities = Entity(0, 2, "X", head=1, score=0.5), Entity(1, 2, "GPE")
    sentences = Sentence(("in", "Rome"), entities), Sentence(("So",))
    formats.write([Document(sentences, None, "d", {"more": [1]})], tmp_path / "a", "doccano", key=key)
    record = json.loads((tmp_path / "a").read_text())
    assert record["text"] == "in Rome\nSo"
    assert len(record[key]) == 2
    (back,) = formats.read(tmp_path / "a", "doccano", words="whitespace", sentences="lines")
    assert [s.words for s in back.sentences] == [("in", "Rome"), ("So",)]
    assert {e.span for e in back.sentences[0].entities} == {(0, 2), (1, 2)}
    assert (back.id, back.extra) == ("d", {"more": [1]})
