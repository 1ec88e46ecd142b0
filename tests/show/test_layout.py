"""Brackets match, the parts of an entity make up the entity, and segments make up the text."""

import itertools
from collections import defaultdict

import pytest
from hypothesis import given, settings

from nestree.show.layout import Edge, find_edges, lay_out
from nestree.types import Document, Entity, Sentence

from .cases import documents


def entities_of(*entities):
    return Document([Sentence(list("abcdef"), [Entity(*e) for e in entities])]).entities


@pytest.mark.parametrize(
    ("entities", "brackets"),
    [
        ([(0, 6, "A"), (0, 2, "B"), (0, 1, "C"), (2, 6, "D"), (5, 6, "E")], "[A[B[C]C]B[D[E]E]D]A"),
        ([(0, 3, "A"), (1, 5, "B"), (2, 6, "C")], "[A[B[C]C…]B…]A[C…[B…]B]C"),
        ([(0, 2, "A"), (1, 6, "B"), (2, 4, "C")], "[A[B]B…]A[B…[C]C]B"),
    ],
    ids=["nested", "crossing", "longer outside"],
)
def test_edges(entities, brackets):
    edges = find_edges(entities_of(*entities))
    drawn = "".join(("[" if edge.opens else "]") + edge.entity.label + "…" * edge.cut for edge in edges)
    assert drawn == brackets


def test_deep_nesting():
    n = 600
    sentence = Sentence(["w"] * n, [Entity(0, k, "A") for k in range(1, n + 1)])
    heights = [edge.height for edge in find_edges(Document([sentence]).entities) if edge.opens]
    assert heights == [*range(n - 1, -1, -1)]


@settings(deadline=None, max_examples=25)
@given(documents())
def test_edges_match_and_segments_are_the_text(document):
    document = document.with_text()
    opened, covered = [], defaultdict(list)
    position, heads = 0, set()
    for part in lay_out(document.entities, 0, len(document.text)):
        if not isinstance(part, Edge):
            assert part.start == position < part.end
            position = part.end
            if part.head_of:
                heads.add((part.start, part.end))
                assert all(entity.head[:2] == (part.start, part.end) for entity in part.head_of)
            continue
        assert part.position == position
        if part.opens:
            opened.append(part)
            assert part.cut == (part.position != part.entity.start)
        else:
            start = opened.pop()
            assert start.entity is part.entity
            assert start.position < part.position
            assert part.cut == start.cut_at_end == (part.position != part.entity.end)
            covered[id(part.entity)].append((start.position, part.position))
    assert opened == []
    assert position == len(document.text)
    assert heads == {entity.head[:2] for entity in document.entities if entity.head}
    for entity in document.entities:
        parts = sorted(covered[id(entity)])
        assert (parts[0][0], parts[-1][1]) == (entity.start, entity.end)
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
        crossed = [o for o in document.entities if o.start < entity.start < o.end < entity.end]
        assert len(parts) <= 1 + len(crossed)
