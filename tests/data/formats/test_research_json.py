"""Files of published systems, and the traps in their ends and offsets."""

import pytest

from .reading import documents, read_one, spans


def test_lists_of_words_become_spans_and_gaps_are_counted():
    (pain, none), report = documents("tools/peers_index.json")
    assert spans(pain.sentences[0]) == [(1, 5, "ADR"), (3, 5, "ADR"), (6, 7, "GPE")]
    assert (none.sentences[0].words, pain.id) == (("none",), None)
    assert report.counts == {
        "fragments joined: the entity holds what is between them, too": 1,
        "sentences without words left out": 1,
    }


def test_mentions_have_exclusive_ends_and_documents_are_gathered():
    (a, b), report = documents("tools/peers_mentions.jsonl")
    assert [s.id for s in a.sentences] == ["a-1", "a-2"]
    assert [spans(s) for s in a.sentences] == [[(0, 4, "ORG"), (3, 4, "GPE")], [(0, 1, "ORG")]]
    assert (a.id, b.id) == ("a", "b")
    assert report.counts == {"relations not read": 1, "extra keys of entities not read": 3}


def test_what_is_not_read_is_counted(tmp_path):
    record = {"sentences": [["a", "b"]], "ners": [[[0, 1, "X", 0.9], [1, 1, "Y"]]]}
    _, report = read_one(tmp_path, "research-json", record)
    assert report.counts == {"further items of entities not read: start, end and label are": 1}
    record = {"sentence": ["Rome"], "ner": [{"index": [0], "type": "GPE"}], "pos": ["NNP"], "entities": 5}
    _, report = read_one(tmp_path, "research-json", record)
    assert report.counts == {"extra keys of records not read": 1}


@pytest.mark.parametrize("name", ["sentences", "document"])
def test_lists_of_sentences_have_inclusive_ends(name):
    (document,), _ = documents(f"tools/peers_{name}.jsonl")
    assert document.id == "a"
    assert [spans(s) for s in document.sentences] == [[(0, 4, "ORG"), (3, 4, "GPE")], [(0, 1, "ORG")]]


def test_other_conventions_can_be_chosen(tmp_path):
    def read_spans(record, **options):
        return [spans(s) for s in read_one(tmp_path, "research-json", record, **options)[0].sentences]

    record = {"sentences": [["a", "b"], ["c", "d"]], "ners": [[[0, 2, "X"]], [[2, 3, "Y"]]]}
    assert read_spans(record, ends="exclusive", offsets="document") == [[(0, 2, "X")], [(0, 1, "Y")]]
    record = {"tokens": ["a", "b"], "entities": [{"type": "X", "start": 0, "end": 1}]}
    assert read_spans(record) == [[(0, 1, "X")]]
    assert read_spans(record, ends="inclusive") == [[(0, 2, "X")]]
    mention = {"start": 1, "end": 3, "entity_type": "A", "text": "NYC"}  # which fits neither way
    assert read_spans({"tokens": ["in", "New", "York"], "entity_mentions": [mention]}) == [[(1, 3, "A")]]
