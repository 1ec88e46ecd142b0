"""Where entities open and close in a text, so that brackets or boxes around them always nest.

Entities that cross cannot both be one box. Where one ends inside another, the inner one is closed before it and opened
again after it, in two parts; both are marked as cut there.

>>> from nestree.sentence import Document, Entity, Sentence
>>> crossing = Document([Sentence(["a", "b", "c"], [Entity(0, 2, "X"), Entity(1, 3, "Y")])])
>>> [("[" if edge.opens else "]") + edge.entity.label + "…" * edge.cut for edge in edges(crossing.entities)]
['[X', '[Y', ']Y…', ']X', '[Y…', ']Y']
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nestree.sentence import TextEntity, TextSpan


class Edge(NamedTuple):
    """An entity, or a part of it, opens or closes."""

    at: int  # a character of the text
    opens: bool
    entity: TextEntity
    cut: bool  # not where the entity begins or ends: another one crosses it here


def edges(entities: Iterable[TextEntity]) -> list[Edge]:
    """In the order of the text, as brackets that match."""
    starting: defaultdict[int, list[TextEntity]] = defaultdict(list)
    ends = set()
    for entity in entities:
        starting[entity.start].append(entity)
        ends.add(entity.end)
    found: list[Edge] = []
    around: list[TextEntity] = []  # the open ones, the outermost first
    for at in sorted({*starting, *ends}):
        cut: list[TextEntity] = []
        lowest = next((k for k, entity in enumerate(around) if entity.end == at), len(around))
        while len(around) > lowest:
            entity = around.pop()
            found.append(Edge(at, False, entity, entity.end > at))
            cut += [entity] if entity.end > at else []
        opening = sorted([*reversed(cut), *starting.get(at, ())], key=lambda entity: -entity.end)
        found += [Edge(at, True, entity, entity.start < at) for entity in opening]
        around += opening
    return found


class Box(NamedTuple):
    """What a box has to know when it opens."""

    height: int  # how many boxes it holds, one inside the other
    cut: bool  # at its end: the entity goes on in another box


def boxes_of(found: Sequence[Edge]) -> list[Box]:
    """The boxes of these edges, in the order in which they open."""
    boxes: list[Box] = []
    opened: list[int] = []
    for edge in found:
        if edge.opens:
            opened.append(len(boxes))
            boxes.append(Box(0, False))
            continue
        inner = opened.pop()
        boxes[inner] = boxes[inner]._replace(cut=edge.cut)
        if opened:
            outer = opened[-1]
            boxes[outer] = Box(max(boxes[outer].height, boxes[inner].height + 1), False)
    return boxes


def heads(entities: Iterable[TextEntity]) -> dict[TextSpan, list[TextEntity]]:
    """The words that are heads, in the order of the text, and of which entities."""
    found: defaultdict[TextSpan, list[TextEntity]] = defaultdict(list)
    for entity in entities:
        if entity.head is not None:
            found[entity.head].append(entity)
    return dict(sorted(found.items()))


class Stretch(NamedTuple):
    """A stretch of the text between two edges, part of a head word or not; never empty."""

    start: int
    end: int
    head_of: Sequence[TextEntity]


def laid_out(entities: Sequence[TextEntity], start: int, end: int) -> list[Edge | Stretch]:
    """The text from start to end, cut at its edges and heads: everything that there is to draw, in order."""
    marks = iter([*heads(entities).items(), (TextSpan(end, end, ""), [])])
    mark, of = next(marks)
    found: list[Edge | Stretch] = []
    at = start

    def up_to(goal: int) -> None:
        nonlocal at, mark, of
        while at < goal:
            inside = mark.start <= at
            until = min(goal, mark.end if inside else mark.start)
            found.append(Stretch(at, until, of if inside else ()))
            at = until
            if at >= mark.end and at < end:
                mark, of = next(marks)

    for edge in edges(entities):
        up_to(edge.at)
        found.append(edge)
    up_to(end)
    return found
