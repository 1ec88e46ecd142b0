"""Entities, sentences and documents: what they refuse, and what can be asked of them."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestree.errors import DataError
from nestree.types import (
    Document,
    Entity,
    Sentence,
    Tree,
    check_entity,
    crossing_pairs,
    depths,
    with_entities,
)

WORDS = ["the", "University", "of", "California"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((2, 2, "A"), "entity 2-2 A is empty: its end must be greater than its start"),
        ((3, 2, "A"), "entity 3-2 A is empty"),
        ((-1, 2, "A"), "start -1 of entity -1-2 A must be the number of a word"),
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
def test_an_entity_that_cannot_be_is_refused(values, expected):
    with pytest.raises(DataError, match=expected):
        Entity(*values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (([],), "needs at least one word"),
        (("words",), "words must be strings"),
        (([1, 2],), "words must be strings"),
        ((["a", ""],), "word 1 of this sentence is empty"),
        (
            (WORDS, [Entity(3, 5, "GPE")]),
            "entity 3-5 GPE ends after the sentence, which has 4 words: the University",
        ),
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
def test_a_sentence_that_cannot_be_is_refused(values, expected):
    with pytest.raises(DataError, match=expected):
        Sentence(*values)


def test_numbers_of_other_libraries_become_pythons():
    entity = Entity(np.int64(0), np.int32(2), "A", head=np.int64(1))
    assert [type(value) for value in (entity.start, entity.end, entity.head)] == [int, int, int]
    assert entity == Entity(0, 2, "A", head=1)


def test_nothing_can_be_changed_and_a_changed_copy_is_checked():
    sentence = Sentence(WORDS, [Entity(3, 4, "GPE")])
    with pytest.raises(dataclasses.FrozenInstanceError):
        sentence.words = ("a",)
    with pytest.raises(DataError, match="ends after the sentence"):
        dataclasses.replace(sentence, words=("a",))


def test_equal_whatever_its_file_said_besides():
    assert Entity(0, 1, "A", extra={"x": 1}) == Entity(0, 1, "A")
    assert len({Entity(0, 1, "A"), Entity(0, 1, "A", extra={"x": 1}), Entity(0, 1, "A", head=0)}) == 2


def test_phrases_and_characters_in_a_document():
    text = "Hi.\n\nDon't  go."
    second = Sentence(
        ("Do", "n't", "go", "."), (Entity(0, 2, "X"),), text[5:], [(0, 2), (2, 5), (7, 9), (9, 10)], 5
    )
    document = Document((Sentence(("Hi", "."), (), "Hi.", [(0, 2), (2, 3)]), second), text)
    entity = second.entities[0]
    assert second.phrase(entity) == "Don't"
    i, j = second.characters(entity)
    assert document.text[i:j] == "Don't"


def test_a_document_checks_where_its_sentences_are():
    one = Sentence(("a",), (), "a", [(0, 1)], 1)
    with pytest.raises(DataError, match="not at character 1 of its document d"):
        Document((one,), "ab", "d")
    with pytest.raises(DataError, match="not at character 0"):
        Document((dataclasses.replace(one, start=0), dataclasses.replace(one, start=0)), "aa")


def test_a_text_for_words_alone():
    document = Document([Sentence(["a", "b"], [Entity(1, 2, "X")]), Sentence(["c"])], id="d").with_text()
    assert document.text == "a b\nc"
    assert document.sentences[0].characters(document.sentences[0].entities[0]) == (2, 3)
    assert document.sentences[1].start == 4
    assert document.with_text() is document
    with pytest.raises(DataError, match="only the words"):
        Sentence(["a"], [Entity(0, 1, "X")]).characters(Entity(0, 1, "X"))


def test_a_text_changes_nothing_else():
    before = Sentence(
        ["a", "b"],
        [Entity(1, 2, "X")],
        id="s",
        complete=False,
        extra={"x": 1},
        tree=Tree(((0, 2, 0), (0, 1, 0), (1, 2, 1))),
        context=(("before",), ("after",)),
    )
    placed = Document([Sentence(["c"]), before]).with_text().sentences[1]
    assert (placed.text, placed.offsets, placed.start) == ("a b", ((0, 1), (2, 3)), 2)
    for field in dataclasses.fields(Sentence):
        if field.name not in ("text", "offsets", "start"):
            value = getattr(before, field.name)
            assert getattr(before.with_text(), field.name) == getattr(placed, field.name) == value


entities = st.tuples(st.integers(0, 5), st.integers(1, 4), st.sampled_from("AB")).map(
    lambda values: Entity(values[0], values[0] + values[1], values[2])
)


@given(st.lists(entities, max_size=6))
def test_crossing_and_depth_as_their_definitions_say(found):
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
def test_sound_entities_are_entities(values):
    made, checked = check_entity(*values), Entity(*values)
    assert type(made) is Entity
    assert (made, repr(made), hash(made)) == (checked, repr(checked), hash(checked))
    assert pickle.loads(pickle.dumps(made)) == checked
    assert made.extra is not check_entity(*values).extra
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.start = 1


class Numbered(Sentence):
    """Somebody's own sentences."""


@pytest.mark.parametrize("kind", [Sentence, Numbered])
def test_a_sentence_with_what_was_found_is_the_same_otherwise(kind):
    text, offsets = "the University of California", ((0, 3), (4, 14), (15, 17), (18, 28))
    around = (("at",), (".",))
    sentence = kind(WORDS, [Entity(0, 1, "X")], text, offsets, 7, "s1", False, {"a": 1}, None, around)
    entities, tree, extra = (Entity(3, 4, "GPE"),), Tree(((0, 4, 1),)), {"b": 2}
    made = with_entities(sentence, entities, tree, extra)
    expected = dataclasses.replace(sentence, entities=entities, complete=True, tree=tree, extra=extra)
    assert type(made) is kind
    for field in dataclasses.fields(Sentence):
        assert getattr(made, field.name) == getattr(expected, field.name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.words = ()
