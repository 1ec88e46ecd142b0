"""Windows cover every word, and their entities are merged without crossing."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestree.pipeline.windows import cut, merged, windows
from nestree.sentence import Entity, Sentence, crossing


@given(st.integers(1, 400), st.integers(4, 60))
def test_windows_cover_everything_and_overlap(words, longest):
    found = windows(words, longest)
    assert found[0][0] == 0
    assert found[-1][1] == words
    assert all(end - start == min(words, longest) for start, end in found)
    for (a, b), (c, d) in pairwise(found):
        assert a < c < b < d
        assert b - c >= longest // 4


def test_parts_are_the_words_of_their_windows():
    sentence = Sentence(list("abcdefghij"), [Entity(0, 2, "X")], id="s1")
    parts = cut(sentence, [(0, 6), (4, 10)])
    assert [part.words for part in parts] == [tuple("abcdef"), tuple("efghij")]
    assert [part.id for part in parts] == ["s1", "s1"]


def test_an_entity_belongs_to_the_window_in_whose_part_it_begins():
    spans = [(0, 8), (4, 12)]  # believed up to word 6
    first = [Entity(0, 2, "A", 1, 0.9), Entity(5, 8, "A", 5, 0.9), Entity(6, 7, "B", 6, 0.9)]
    second = [
        Entity(0, 1, "C", 0, 0.9),
        Entity(1, 4, "A", 1, 0.9),
        Entity(2, 3, "C", 2, 0.9),
        Entity(6, 8, "D"),
    ]
    assert merged([first, second], spans, False) == (
        Entity(0, 2, "A", 1, 0.9),
        Entity(5, 8, "A", 5, 0.9),
        Entity(6, 7, "C", 6, 0.9),
        Entity(10, 12, "D"),
    )


@pytest.mark.parametrize(("before", "after", "kept"), [(0.9, 0.3, "A"), (0.3, 0.9, "B")])
def test_of_two_that_cross_the_likelier_one_stays(before, after, kept):
    found = merged([[Entity(4, 8, "A", 4, before)], [Entity(3, 6, "B", 3, after)]], [(0, 8), (4, 12)], False)
    assert [entity.label for entity in found] == [kept]
    both = merged([[Entity(4, 8, "A", 4, before)], [Entity(3, 6, "B", 3, after)]], [(0, 8), (4, 12)], True)
    assert [entity.label for entity in both] == ["A", "B"]


@given(st.data())
def test_whatever_windows_find_nothing_crosses(data):
    spans = windows(60, 16)
    found = []
    for _ in spans:
        ends = data.draw(
            st.lists(st.tuples(st.integers(0, 15), st.integers(1, 9), st.floats(0, 1)), max_size=6)
        )
        entities: list[Entity] = []
        for start, size, score in ends:
            one = Entity(start, min(16, start + size), "X", None, score)
            if one not in entities and not crossing([*entities, one]):
                entities.append(one)
        found.append(entities)
    assert crossing(merged(found, spans, False)) == []
