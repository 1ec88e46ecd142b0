"""Brackets match, and the parts of an entity are the entity."""

import itertools
from collections import defaultdict

from hypothesis import given, settings

from nestree.show.layout import Edge, Segment, boxes_of, edges, lay_out_boxes
from nestree.types import Document, Entity, Sentence

from .cases import documents


def of(*entities):
    return Document([Sentence(list("abcdef"), [Entity(*e) for e in entities])]).entities


def brackets(entities):
    return "".join(
        ("[" if edge.opens else "]") + edge.entity.label + "…" * edge.cut for edge in edges(entities)
    )


def test_nested_entities_are_never_cut():
    assert (
        brackets(of((0, 6, "A"), (0, 2, "B"), (0, 1, "C"), (2, 6, "D"), (5, 6, "E")))
        == "[A[B[C]C]B[D[E]E]D]A"
    )


def test_an_entity_that_reaches_out_of_another_is_cut_where_that_ends():
    assert brackets(of((0, 3, "A"), (1, 5, "B"), (2, 6, "C"))) == "[A[B[C]C…]B…]A[C…[B…]B]C"


def test_the_longer_of_two_that_open_together_is_outside():
    found = of((0, 2, "A"), (1, 6, "B"), (2, 4, "C"))
    assert brackets(found) == "[A[B]B…]A[B…[C]C]B"
    assert [box.height for box in boxes_of(edges(found))] == [1, 0, 1, 0]
    assert [box.cut for box in boxes_of(edges(found))] == [False, True, False, False]


def test_hundreds_of_levels():
    n = 600
    sentence = Sentence(["w"] * n, [Entity(0, k, "A") for k in range(1, n + 1)])
    found = boxes_of(edges(Document([sentence]).entities))
    assert [box.height for box in found] == [*range(n - 1, -1, -1)]


@settings(deadline=None, max_examples=40)
@given(documents())
def test_edges_match_and_parts_make_up_their_entities(document):
    document = document.with_text()
    opened, covered = [], defaultdict(list)
    for edge in edges(document.entities):
        if edge.opens:
            opened.append(edge)
            assert edge.cut == (edge.at != edge.entity.start)
        else:
            start = opened.pop()
            assert start.entity is edge.entity
            assert start.at < edge.at
            assert edge.cut == (edge.at != edge.entity.end)
            covered[id(edge.entity)].append((start.at, edge.at))
    assert opened == []
    for entity in document.entities:
        parts = sorted(covered[id(entity)])
        assert parts[0][0] == entity.start
        assert parts[-1][1] == entity.end
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
        crossed = [o for o in document.entities if o.start < entity.start < o.end < entity.end]
        assert len(parts) <= 1 + len(crossed)


@settings(deadline=None, max_examples=40)
@given(documents())
def test_stretches_are_the_text_and_mark_the_heads(document):
    document = document.with_text()
    at, marked = 0, set()
    for part in lay_out_boxes(document.entities, 0, len(document.text)):
        if isinstance(part, Edge):
            assert part.at == at
            continue
        assert isinstance(part, Segment)
        assert part.start == at < part.end
        at = part.end
        if part.head_of:
            marked.add((part.start, part.end))
            assert all(entity.head[:2] == (part.start, part.end) for entity in part.head_of)
    assert at == len(document.text)
    assert marked == {entity.head[:2] for entity in document.entities if entity.head}
