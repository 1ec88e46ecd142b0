"""Entities, sentences and documents: what they refuse, how they count, and their JSON form."""

import dataclasses
import json
import pickle
import re
import sys
from importlib import resources

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestree.data.formats import read, write
from nestree.errors import DataError, EmptySpanError, InputError, SpanRangeError
from nestree.types import Document, Entity, Sentence, Tree, crossing_pairs, depths, unchecked_entity, with_entities
from tests.tiny import any_entity

WORDS = ["the", "University", "of", "California"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((2, 2, "A"), "entity 2-2 A is empty: its end must be greater than its start"),
        ((3, 2, "A"), "entity 3-2 A is empty"),
        ((-1, 2, "A"), "start -1 of entity -1-2 A must be the index of a word"),
        ((0, 1.5, "A"), "end 1.5 of entity 0-1.5 A must be"),
        ((0, True, "A"), "end True of entity"),
        (("0", 1, "A"), "start '0' of entity"),
        ((0, 1, ""), "has no label"),
        ((0, 1, None), "has no label"),
        ((0, 2, "A", 2), "head 2 of entity 0-2 A is not one of its words"),
        ((0, 2, "A", "x"), "head 'x' of entity"),
        ((0, 2, "A", None, 1.5), "score 1.5 of entity 0-2 A is not a probability"),
        ((0, 2, "A", None, float("nan")), "score nan of entity"),
        ((0, 2, "A", None, "high"), "score 'high' of entity"),
        ((0, 2, "A", None, None, (0, 5)), "head 5 of entity"),
        ((0, 2, "A", None, None, 3), "heads 3 of entity"),
    ],
)
def test_invalid_entities(values, expected):
    with pytest.raises(DataError, match=expected) as caught:
        Entity(*values)
    assert isinstance(caught.value, EmptySpanError) == ("is empty" in expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (([],), "needs at least one word"),
        (("words",), "words must be strings in a list"),
        (([1, 2],), "words must be strings in a list"),
        ((["a", ""],), "word 1 of this sentence is empty"),
        ((WORDS, [Entity(3, 5, "GPE")]), "entity 3-5 GPE ends after the sentence, which has 4 words: the"),
        ((WORDS, [(0, 1, "GPE")]), "entities must be Entity objects"),
        ((["a"], (), "a"), "a text and the offsets of its words, or neither"),
        ((["a"], (), "a", [(0, 1), (0, 1)]), "1 words have 2 offsets"),
        ((["a"], (), "ba", [(0, 1)]), "word 'a' is not at characters 0-1"),
        ((["a", "b"], (), "ab", [(0, 1), (0, 2)]), "word 'b' is not at characters 0-2"),
        ((["ab", "b"], (), "ab", [(0, 2), (1, 2)]), "word 'b' is not at characters 1-2"),
        ((["a"], (), "a", [("x", 1)]), "offsets must be pairs of numbers"),
        ((["a"], (), 5, [(0, 1)]), "must be a string, and is 5"),
    ],
)
def test_invalid_sentences(values, expected):
    with pytest.raises(DataError, match=expected) as caught:
        Sentence(*values)
    assert isinstance(caught.value, SpanRangeError) == ("ends after" in expected)


def test_invalid_documents():
    sentence = Sentence(("a",), (), "a", [(0, 1)], 1)
    with pytest.raises(DataError, match="not at character 1 of its document d"):
        Document((sentence,), "ab", "d")
    with pytest.raises(DataError, match="not at character 0"):
        Document((dataclasses.replace(sentence, start=0), dataclasses.replace(sentence, start=0)), "aa")
    for sentences in (["a text"], [sentence, "a text"], sentence, None, "a text"):
        with pytest.raises(DataError, match="a list of sentences, and this is "):
            Document(sentences)
    with pytest.raises(DataError, match="text of document d must be a string, and is 5"):
        Document([], 5, "d")
    with pytest.raises(DataError, match="id of a document must be a string, and is 5"):
        Document([sentence], id=5)
    with pytest.raises(DataError, match="id of a sentence must be a string, and is 5"):
        Sentence(["a"], id=5)


def test_numbers_of_numpy_and_equal_entities():
    entity = Entity(0, 1, "A", None, np.float32(0.5))
    assert type(entity.score) is float
    assert '"score": 0.5' in Document([Sentence(["a"], [entity])]).to_json()
    entity = Entity(np.int64(0), np.int32(2), "A", head=np.int64(1))
    assert [type(value) for value in (entity.start, entity.end, entity.head)] == [int, int, int]
    assert {entity, Entity(0, 2, "A", head=1, extra={"x": 1})} == {entity} != {Entity(0, 2, "A")}


def test_lists_become_tuples():
    sentence = Sentence(["a"], [], "a", [[0, 1]], forbidden=[])
    assert {sentence, Sentence(("a",), (), "a", ((0, 1),))} == {sentence}
    assert {Entity(0, 1, "A", heads=[]), Entity(0, 1, "A")} == {Entity(0, 1, "A")}


def test_arrays_become_tuples():
    sentence = Sentence(["a", "b"], [Entity(0, 2, "A", heads=np.array([0, 1]))], forbidden=np.array([[0, 1]]))
    assert sentence == Sentence(["a", "b"], [Entity(0, 2, "A", heads=(0, 1))], forbidden=[(0, 1)])
    assert Sentence(["a"], forbidden=np.zeros((0, 2), int)) == Sentence(["a"])


@pytest.mark.parametrize("name", ["start", "words", "entities", "unknown"])
def test_nothing_can_be_assigned(name):
    document = Document([Sentence(WORDS, [Entity(3, 4, "GPE")])])
    sentence = document.sentences[0]
    unchecked = unchecked_entity(0, 1, "A", None, None)
    for frozen in (sentence.entities[0], unchecked, sentence, document, *document):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(frozen, name, 1)
    with pytest.raises(DataError, match="ends after the sentence"):
        dataclasses.replace(sentence, words=("a",))


@given(st.lists(any_entity(), max_size=6))
def test_crossing_pairs_and_depths_match_their_definitions(found):
    def covered(entity):
        return set(range(entity.start, entity.end))

    pairs = sum(
        bool(covered(a) & covered(b)) and not covered(a) <= covered(b) and not covered(b) <= covered(a)
        for k, a in enumerate(found)
        for b in found[:k]
    )
    assert len(crossing_pairs(found)) == pairs
    spans = {entity.span for entity in found}
    assert depths(found) == [sum(set(range(*s)) > covered(e) for s in spans) for e in found]


@pytest.mark.parametrize("values", [(0, 4, "ORG", 1, 0.5), (3, 4, "GPE", None, None)])
def test_unchecked_entities_equal_checked_ones(values):
    unchecked, checked = unchecked_entity(*values), Entity(*values)
    assert (unchecked, repr(unchecked), hash(unchecked)) == (checked, repr(checked), hash(checked))
    assert pickle.loads(pickle.dumps(unchecked)) == checked
    assert unchecked.extra is not unchecked_entity(*values).extra


def test_with_entities_is_replace_without_checks():
    text, offsets = "the University of California", ((0, 3), (4, 14), (15, 17), (18, 28))
    context = (("at",), (".",))
    sentence = Sentence(WORDS, [Entity(0, 1, "X")], text, offsets, 7, "s1", False, {"a": 1}, None, context)
    entities, tree, extra = (Entity(3, 4, "GPE"),), Tree(((0, 4, 1),)), {"b": 2}
    result = with_entities(sentence, entities, tree, extra)
    expected = dataclasses.replace(sentence, entities=entities, complete=True, tree=tree, extra=extra)
    for field in dataclasses.fields(Sentence):
        assert getattr(result, field.name) == getattr(expected, field.name)


TEXT = "Hello.  The University of California met Iraqi leaders."
START = 8  # of the second sentence


def document(**options):
    text = TEXT[START:]
    offsets = [word.span() for word in re.finditer(r"\w+|\.", text)]
    values = (3, 4, "GPE", 3, 0.75), (0, 4, "place", 1, 0.25), (0, 4, "ORG", 1, 0.5), (5, 7, "PER")
    entities = [Entity(*each) for each in values]
    first = Sentence(["Hello", "."], (), "Hello.", ((0, 5), (5, 6)))
    second = Sentence([text[i:j] for i, j in offsets], entities, text, offsets, START, **options)
    return Document((first, second), TEXT, "d1")


def test_entities_of_a_document():
    found = document()
    sentence = found.sentences[1]
    assert [*map(sentence.phrase, sentence.entities[:2])] == ["California", "The University of California"]
    assert sentence.characters(sentence.entities[0]) == (26, 36)
    with pytest.raises(DataError, match="only the words"):
        Sentence(["a"]).characters(Entity(0, 1, "X"))
    assert found.words == ("Hello", ".", *sentence.words)
    university, california, leaders = found.entities
    assert [(e.text, e.labels, e.scores, e.depth) for e in found] == [
        ("The University of California", ("ORG", "place"), (0.5, 0.25), 0),
        ("California", ("GPE",), (0.75,), 1),
        ("Iraqi leaders", ("PER",), (None,), 0),
    ]
    assert (university.label, university.score, university.head.text) == ("ORG", 0.5, "University")
    for entity in found:
        assert TEXT[entity.start : entity.end] == entity.text
        if entity.head:
            assert TEXT[entity.head.start : entity.head.end] == entity.head.text
    assert california.parent is university
    assert university.children == (california,)
    assert university.parent is leaders.parent is None
    assert found.entities is found.entities
    assert len(found) == 3
    assert Document([Sentence(["a"])])  # true without entities, too


def test_repr_of_a_document_has_a_line_for_each_entity():
    assert repr(document()).splitlines() == [
        "<Document 'd1': sentences: 2, entities: 3>",
        "  8-36 ORG 0.500, place 0.250: 'The University of California'",
        "    26-36 GPE 0.750: 'California'",
        "  41-54 PER: 'Iraqi leaders'",
    ]
    long = Document([Sentence(["a" * 100], [Entity(0, 1, "X")])] * 25)
    assert len(repr(long).splitlines()) == 22
    assert repr(long).endswith("  and 5 more")


def test_text_of_a_document_of_words():
    others = {"id": "s", "complete": False, "extra": {"x": 1}, "context": (("before",), ("after",))}
    before = Sentence(["a", "b"], [Entity(1, 2, "X")], tree=Tree(((0, 2, 0), (0, 1, 0), (1, 2, 1))), **others)
    found = Document([Sentence(["c"]), before])
    assert [(e.start, e.end, e.text) for e in found] == [(4, 5, "b")]
    with_text = found.with_text()
    assert with_text.text == "c\na b"
    assert with_text.with_text() is with_text
    after = with_text.sentences[1]
    assert (after.text, after.offsets, after.start) == ("a b", ((0, 1), (2, 3)), 2)
    for field in dataclasses.fields(Sentence):
        if field.name not in ("text", "offsets", "start"):
            assert getattr(after, field.name) == getattr(before, field.name)


def test_tree_in_characters():
    spans = ((0, 8, 4), (0, 4, 1), (4, 8, 4))
    tree = document(tree=Tree(spans, ((4, 1),), 4, (1.0, 0.5, 0.25))).tree
    assert [(c.text, c.head.text, c.probability) for c in tree.constituents] == [
        (TEXT[START:], "met", 1.0),
        ("The University of California", "University", 0.5),
        ("met Iraqi leaders.", "met", 0.25),
    ]
    assert [(a.head.text, a.modifier.text) for a in tree.arcs] == [("met", "University")]
    assert [root.text for root in tree.roots] == ["met"]
    assert all(TEXT[c.start : c.end] == c.text for c in tree.constituents)
    assert document().tree.constituents == document().windowed_sentences == ()
    assert [span.text for span in document(extra={"windows": 3}).windowed_sentences] == [TEXT[START:]]


def test_a_document_as_a_table_and_in_html_and_in_a_terminal(capsys, monkeypatch):
    table = document().to_pandas()
    assert list(table.columns) == SCHEMA["$defs"]["entity"]["required"]
    assert table["text"].tolist() == [entity.text for entity in document()]
    assert table["labels"].tolist() == [["ORG", "place"], ["GPE"], ["PER"]]
    assert table["head"].dropna().tolist() == ["University", "California"]
    assert table["parent"].fillna(-1).tolist() == [-1, 0, -1]
    assert Document([Sentence(["a"])]).to_pandas().shape == (0, 9)
    assert document().to_html().startswith("<!DOCTYPE html>")
    assert "California" in document()._repr_html_()
    document().show()
    assert "[California|GPE" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"to_pandas needs pandas. Install it with: pip install pandas"):
        document().to_pandas()


SCHEMA = json.loads((resources.files("nestree.data") / "document.schema.json").read_text())


def check_document(record):
    """The schema, and what a schema cannot say."""
    jsonschema.validate(record, SCHEMA)
    entities = record["entities"]
    assert entities == sorted(entities, key=lambda e: (e["start"], -e["end"]))
    for k, entity in enumerate(entities):
        assert record["text"][entity["start"] : entity["end"]] == entity["text"]
        assert entity["labels"][0].items() >= {"label": entity["label"], "score": entity["score"]}.items()
        sizes = {
            e["end"] - e["start"]: other
            for other, e in enumerate(entities)
            if other != k and e["start"] <= entity["start"] and entity["end"] <= e["end"]
        }
        assert entity["depth"] == len(sizes)
        assert entity["parent"] == (sizes[min(sizes)] if sizes else None)


def test_json_of_a_document():
    found = json.loads(document().to_json())
    check_document(found)
    assert (found["doc_id"], found["text"]) == ("d1", TEXT)
    labels = [{"label": "ORG", "score": 0.5}, {"label": "place", "score": 0.25}]
    assert found["entities"][0]["labels"] == labels
    california = {"start": 26, "end": 36, "text": "California"}
    labels = {"label": "GPE", "labels": [{"label": "GPE", "score": 0.75}], "score": 0.75}
    assert found["entities"][1] == {**california, **labels, "head": california, "depth": 1, "parent": 0}
    scored = Document([Sentence(["Rome"], [Entity(0, 1, "GPE", 0, 0.8349872827529907)])])
    assert scored.entities[0].score == 0.8349872827529907
    assert scored.to_dict()["entities"][0]["score"] == 0.834987  # rounded


@pytest.mark.parametrize("text", ["\ud800", "é \U0001f600"])
def test_json_of_any_text_can_be_encoded(text):
    found = Document((Sentence(["a"], (), "a", ((0, 1),)),), "a " + text)
    assert json.loads(found.to_json().encode())["text"] == "a " + text


def test_jsonl_by_characters_has_the_form_of_to_dict_and_loses_no_annotation(tmp_path):
    entities = [
        Entity(0, 4, "ORG", head=1, score=0.123456789, extra={"id": "T1"}),
        Entity(0, 4, "LOC", heads=(1, 3), score=0.1),
        Entity(0, 4, "FAC", head=1, heads=(3, 1)),
        Entity(3, 4, "GPE", extra={"text": "own"}),
        Entity(3, 4, "GPE"),
    ]
    written = Document([Sentence(WORDS, entities)], id="d", extra={"url": "x"}).with_text()
    path = tmp_path / "a.jsonl"
    write([written], path, by="characters")
    record = json.loads(path.read_text())
    check_document(record)
    labels = [label["label"] for e in record["entities"] for label in e["labels"]]
    assert labels == ["ORG", "LOC", "FAC", "GPE", "GPE"]
    (back,) = read(path)
    assert (back, back.extra) == (written, written.extra)
    assert [e.extra for e in back.sentences[0].entities] == [e.extra for e in entities]
    again = Document.from_dict(written.to_dict())
    expected = [dataclasses.replace(e, score=e.score and round(e.score, 6)) for e in entities]
    assert (again.sentences[0].entities, again.extra) == (tuple(expected), written.extra)
