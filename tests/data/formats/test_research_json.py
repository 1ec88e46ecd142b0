"""Files of published systems, and the traps in their ends and offsets."""

import json

import pytest

from nestree.data import formats
from nestree.data.io import ConversionReport
from nestree.errors import DataError, InputError
from tests.data.formats.reading import documents, spans


def read_one(folder, record, report=None, **options):
    path = folder / "a.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    return list(formats.read(path, "research-json", report or ConversionReport(), **options))


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


def test_further_items_of_entities_are_counted(tmp_path):
    report = ConversionReport()
    read_one(tmp_path, {"sentences": [["a", "b"]], "ners": [[[0, 1, "X", 0.9], [1, 1, "Y"]]]}, report)
    assert report.counts == {"further items of entities not read: start, end and label are": 1}


def test_keys_that_are_not_read_are_counted(tmp_path):
    report = ConversionReport()
    record = {"sentence": ["Rome"], "ner": [{"index": [0], "type": "GPE"}], "pos": ["NNP"], "entities": 5}
    read_one(tmp_path, record, report)
    assert report.counts == {"extra keys of records not read": 1}


@pytest.mark.parametrize("name", ["sentences", "document"])
def test_lists_of_sentences_have_inclusive_ends(name):
    (document,), _ = documents(f"tools/peers_{name}.jsonl")
    assert document.id == "a"
    assert [spans(s) for s in document.sentences] == [[(0, 4, "ORG"), (3, 4, "GPE")], [(0, 1, "ORG")]]


def test_other_conventions_can_be_chosen(tmp_path):
    record = {"sentences": [["a", "b"], ["c", "d"]], "ners": [[[0, 2, "X"]], [[2, 3, "Y"]]]}
    (document,) = read_one(tmp_path, record, ends="exclusive", offsets="document")
    assert [spans(s) for s in document.sentences] == [[(0, 2, "X")], [(0, 1, "Y")]]
    record = {"tokens": ["a", "b"], "entities": [{"type": "X", "start": 0, "end": 1}]}
    assert spans(read_one(tmp_path, record)[0].sentences[0]) == [(0, 1, "X")]
    assert spans(read_one(tmp_path, record, ends="inclusive")[0].sentences[0]) == [(0, 2, "X")]
    with pytest.raises(InputError, match="ends is one of inclusive, exclusive, not 'open'"):
        read_one(tmp_path, record, ends="open")
    with pytest.raises(InputError, match="offsets is one of sentence, document, not 'file'"):
        read_one(tmp_path, record, offsets="file")


W = ["in", "New", "York"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {
                "tokens": W,
                "entity_mentions": [{"start": 1, "end": 2, "entity_type": "A", "text": "New York"}],
            },
            "says 'New York', and its words are 'New'. If ends are inclusive in this file, read it with ends=inc",
        ),
        (
            {"tokens": W, "entity_mentions": [{"start": 1, "end": 1, "entity_type": "A"}]},
            "entity .*'A'} is empty. It would fit with ends=inclusive",
        ),
        (
            {"tokens": W, "entities": [{"start": 1, "end": 4, "type": "A"}]},
            "entity {.*'A'} is not within its sentence of 3 words. Check its numbers",
        ),
        (
            {"sentences": [W], "ners": [[[1, 3, "A"]]]},
            r"sentence 1: entity \[1, 3, 'A'\] .* It would fit with ends=exclusive and offsets=sentence",
        ),
        (
            {"sentences": [W, W], "ners": [[], [[4, 5, "A"]]]},
            r"sentence 2: entity \[4, 5, 'A'\] .* It would fit with ends=inclusive and offsets=document",
        ),
        (
            {"sentences": [W, W], "ner": [[], [[1, 2, "A"]]]},
            r"sentence 2: entity \[1, 2, 'A'\] .* It would fit with ends=inclusive and offsets=sentence",
        ),
        ({"sentences": [W], "ners": [[[50, 52, "A"]]]}, "sentence 1: .*Check its numbers"),
        ({"sentences": [W], "ners": []}, "there are 1 `sentences` and 0 `ners`"),
        ({"sentences": [W], "ners": 5}, "`sentences` and `ners` must be lists"),
        ({"sentences": [W], "ners": [5]}, "sentence 1: .*`ners` must be a list of lists .*, and is 5"),
        ({"sentences": [W], "ners": [[[1, 2]]]}, "sentence 1: .*must be numbers of words"),
        ({"tokens": W, "entities": [{"span": [1], "type": "A"}]}, "must be numbers of words"),
        ({"sentences": [W], "ners": [[["1", 2, "A"]]]}, "sentence 1: .*must be numbers of words"),
        ({"sentences": [W], "ners": [[[1, 2, 3]]]}, r"sentence 1: .*entity \[1, 2, 3\] has no label"),
        ({"sentences": ["ab"], "ners": [[]]}, "sentence 1: a sentence is a list of words, and this is 'ab'"),
        ({"sentence": W, "ner": [{"index": [], "type": "A"}]}, "`index` must list the words"),
        ({"sentence": W, "ner": [{"index": [3], "type": "A"}]}, "not within its sentence of 3 words"),
        ({"sentence": W, "ner": 7}, "`ner` must be a list of objects"),
        ({"tokens": W}, "these are not the keys of a system that is known: tokens. Known are sentence"),
        ({"tokens": ["a", ""], "entities": []}, "a sentence is a list of words"),
    ],
)
def test_impossible_cases_are_named_with_the_convention_that_would_fit(tmp_path, record, message):
    with pytest.raises(DataError, match=f"a.json:1(: .*|, ){message}"):
        read_one(tmp_path, record)


def test_a_mention_that_fits_neither_way_is_not_judged_by_its_text(tmp_path):
    record = {"tokens": W, "entity_mentions": [{"start": 1, "end": 3, "entity_type": "A", "text": "NYC"}]}
    assert spans(read_one(tmp_path, record)[0].sentences[0]) == [(1, 3, "A")]
