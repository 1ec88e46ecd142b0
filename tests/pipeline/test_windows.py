"""Windows cover every word, and their entities are merged without crossing."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from nestree.pipeline import merge_windows, window_spans
from nestree.types import Entity, crossing_pairs


@given(st.integers(1, 400), st.integers(4, 60))
def test_windows_cover_everything_and_overlap(words, longest):
    found = window_spans(words, longest)
    assert found[0][0] == 0
    assert found[-1][1] == words
    assert all(end - start == min(words, longest) for start, end in found)
    for (a, b), (c, d) in pairwise(found):
        assert a < c < b < d
        assert b - c >= longest // 4


def test_an_entity_belongs_to_the_window_in_whose_part_it_begins_or_that_alone_holds_it():
    spans = [(0, 8), (4, 12)]  # believed up to word 6
    first = [Entity(0, 2, "A", 1, 0.9), Entity(5, 8, "A", 5, 0.9), Entity(6, 7, "B", 6, 0.9)]
    second = [Entity(k, k + n, label, k, 0.9) for k, n, label in ((0, 1, "C"), (1, 3, "A"), (2, 1, "C"))]
    second.append(Entity(6, 8, "D"))
    expected = [*first[:2], Entity(6, 7, "C", 6, 0.9), Entity(10, 12, "D")]
    assert [*merge_windows([first, second], spans, False)] == expected
    first = [Entity(4, 8, "A", 4, 0.9)]
    second = [Entity(0, 4, "B", 0, 0.9), Entity(0, 5, "C", 4, 0.9), Entity(1, 2, "C", 1, 0.9)]
    expected = [Entity(4, 9, "C", 8, 0.9), Entity(4, 8, "A", 4, 0.9)]
    assert [*merge_windows([first, second], spans, False)] == expected


@given(st.integers(9, 60), st.integers(4, 16))
def test_a_span_that_windows_hold_belongs_to_exactly_one(words, longest):
    spans = window_spans(words, longest)
    held = {(i, j) for start, end in spans for i in range(start, end) for j in range(i + 1, end + 1)}

    def within(start, end):
        return [Entity(i - start, j - start, "X") for i, j in sorted(held) if start <= i and j <= end]

    found = [within(*window) for window in spans]
    assert sorted(entity.span for entity in merge_windows(found, spans, True)) == sorted(held)


def test_of_two_that_cross_the_known_or_the_likelier_one_stays():
    for before, after, kept in ((0.9, 0.3, "A"), (0.3, 0.9, "B")):
        found = [[Entity(4, 8, "A", 4, before)], [Entity(3, 6, "B", 3, after)]], [(0, 8), (4, 12)]
        assert [entity.label for entity in merge_windows(*found, False)] == [kept]
        assert [entity.label for entity in merge_windows(*found, True)] == ["A", "B"]
    spans = window_spans(18, 8)
    first, last = [Entity(5, 8, "A", None, 0.9)], [Entity(0, 7, "B", None, 0.1)]  # one window lies between
    found = [[], first, [], last]
    assert spans[1] == (4, 12)
    assert spans[3] == (10, 18)
    assert [e.label for e in merge_windows(found, spans, False)] == ["A"]
    assert [e.label for e in merge_windows(found, spans, False, {(10, 17)})] == ["B"]
    assert [e.label for e in merge_windows(found, spans, False, {(9, 12)})] == ["A"]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_windows_find_nothing_crosses_and_nothing_known_is_lost(data):
    spans = window_spans(60, 16)
    offsets = st.sampled_from(spans).flatmap(lambda window: st.tuples(*[st.integers(*window)] * 2))
    spans_held = offsets.map(sorted).map(tuple)
    known: list[Entity] = []
    for start, end in data.draw(st.lists(spans_held.filter(lambda span: span[0] < span[1]), max_size=6)):
        one = Entity(start, end, "K")
        if one not in known and not crossing_pairs([*known, one]):
            known.append(one)
    found = []
    for first, last in spans:
        one = st.tuples(st.integers(0, 15), st.integers(1, 9), st.floats(0, 1))
        ends = data.draw(st.lists(one, max_size=6))
        held = [e for e in known if first <= e.start and e.end <= last]
        entities = [Entity(e.start - first, e.end - first, "K") for e in held]
        for start, size, score in ends:
            one = Entity(start, min(16, start + size), "X", None, score)
            if one not in entities and not crossing_pairs([*entities, one]):
                entities.append(one)
        found.append(entities)
    whole = merge_windows(found, spans, False, {entity.span for entity in known})
    assert crossing_pairs(whole) == []
    assert len(set(whole)) == len(whole)
    assert {entity for entity in whole if entity.label == "K"} == set(known)
