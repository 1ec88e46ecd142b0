"""Entities as characters of the text: places, nesting, labels of one span, trees, JSON."""

import json

import pytest

from nestree.types import Document, Entity, Sentence, Tree

TEXT = "Hello.  The University of California met Iraqi leaders."
WORDS = ["The", "University", "of", "California", "met", "Iraqi", "leaders", "."]
AT = 8


def document(**more):
    inner = TEXT[AT:]
    offsets, at = [], 0
    for word in WORDS:
        at = inner.index(word, at)
        offsets.append((at, at + len(word)))
        at += len(word)
    entities = [
        Entity(3, 4, "GPE", head=3, score=0.75),
        Entity(0, 4, "place", head=1, score=0.25),
        Entity(0, 4, "ORG", head=1, score=0.5),
        Entity(5, 7, "PER"),
    ]
    first = Sentence(["Hello", "."], (), "Hello.", ((0, 5), (5, 6)))
    return Document((first, Sentence(WORDS, entities, inner, tuple(offsets), AT, **more)), TEXT, "d1")


def test_every_entity_selects_its_text():
    found = document().entities
    assert [(e.text, e.label, e.depth) for e in found] == [
        ("The University of California", "ORG", 0),
        ("California", "GPE", 1),
        ("Iraqi leaders", "PER", 0),
    ]
    for entity in found:
        assert TEXT[entity.start : entity.end] == entity.text
        if entity.head:
            assert TEXT[entity.head.start : entity.head.end] == entity.head.text


def test_labels_of_one_span_are_one_entity_the_likeliest_first():
    university = document().entities[0]
    assert (university.labels, university.scores) == (("ORG", "place"), (0.5, 0.25))
    assert (university.label, university.score, university.head.text) == ("ORG", 0.5, "University")


def test_parents_and_children_know_each_other():
    university, california, leaders = document().entities
    assert california.parent is university
    assert university.children == (california,)
    assert university.parent is leaders.parent is None
    assert leaders.children == ()
    assert document().entities is not document().entities
    one = document()
    assert one.entities is one.entities


def test_json_has_six_decimals_and_objects_have_all():
    sentence = Sentence(["Rome"], [Entity(0, 1, "GPE", 0, 0.8349872827529907)])
    (entity,) = Document([sentence]).entities
    assert (entity.score, entity.to_dict()["score"]) == (0.8349872827529907, 0.834987)
    assert json.loads(Document([sentence]).to_json())["entities"][0]["scores"] == [0.834987]


def test_as_json():
    read = json.loads(document().to_json())
    assert read["id"] == "d1"
    assert read["text"] == TEXT
    assert [e["parent"] for e in read["entities"]] == [None, 0, None]
    assert read["entities"][1] == {
        "start": 26,
        "end": 36,
        "text": "California",
        "label": "GPE",
        "labels": ["GPE"],
        "score": 0.75,
        "scores": [0.75],
        "head": {"start": 26, "end": 36, "text": "California"},
        "depth": 1,
        "parent": 0,
    }


@pytest.mark.parametrize("text", ["\ud800", "é \U0001f600"])
def test_json_of_any_text_can_be_written(text):
    one = Document((Sentence(["a"], (), "a", ((0, 1),)),), "a " + text)
    one.to_json().encode()
    assert json.loads(one.to_json())["text"] == "a " + text


def test_the_tree_in_characters():
    spans = ((0, 8, 4), (0, 4, 1), (4, 8, 4))
    tree = document(tree=Tree(spans, ((4, 1),), 4, (1.0, 0.5, 0.25))).tree
    assert [(c.text, c.head.text, c.probability) for c in tree.constituents] == [
        (TEXT[AT:], "met", 1.0),
        ("The University of California", "University", 0.5),
        ("met Iraqi leaders.", "met", 0.25),
    ]
    assert [(a.head.text, a.modifier.text) for a in tree.arcs] == [("met", "University")]
    assert [root.text for root in tree.roots] == ["met"]
    assert all(TEXT[c.start : c.end] == c.text for c in tree.constituents)
    assert document().tree.constituents == ()


def test_a_document_without_text_is_its_words_with_blanks():
    one = Document((Sentence(["Iraqi", "army"], [Entity(0, 1, "GPE", head=0)]), Sentence(["Hi"])))
    assert [(e.start, e.end, e.text) for e in one.entities] == [(0, 5, "Iraqi")]
    assert one.to_dict()["text"] == "Iraqi army\nHi"


def test_what_was_windowed_is_told():
    assert document().windowed == ()
    assert [span.text for span in document(extra={"windows": 3}).windowed] == [TEXT[AT:]]
