"""Sentences of more words than a chart should have: read in windows that overlap, and merged.

Windows are of the size that most sentences have: what a model has not seen in training it reads worse, and a chart of
200 words takes a hundred times as long as one of 64. In an overlap, each window is believed up to its middle: an
entity belongs to the window in whose part it begins, or to the next one if only that holds it to its end. Where
entities of two windows cross, one that is known before stays, else the likelier one. An entity that no window holds
from its start to its end cannot be found.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise

from nestree.sentence import Entity, Sentence, Span, crossing

WINDOW = 64  # words


def windows(words: int, longest: int) -> list[Span]:
    """All words if there are `longest` at most; else stretches of that size or WINDOW, that overlap by half.

    >>> windows(18, 8)
    [(0, 8), (4, 12), (8, 16), (10, 18)]
    >>> windows(8, 8)
    [(0, 8)]
    """
    if words <= longest:
        return [(0, words)]
    size = min(longest, WINDOW)
    step = size - size // 2
    starts = [min(start, words - size) for start in range(0, words - size + step, step)]
    return [(start, start + size) for start in starts]


def cut(sentence: Sentence, spans: Sequence[Span]) -> list[Sentence]:
    """The words of each window."""
    return [Sentence(sentence.words[i:j], id=sentence.id) for i, j in spans]


def merged(
    found: Sequence[Sequence[Entity]], spans: Sequence[Span], may_cross: bool, known: Collection[Span] = ()
) -> tuple[Entity, ...]:
    """The entities of the whole sentence from those of its windows, numbered from its first word."""
    middles = [0, *((b[0] + a[1] + 1) // 2 for a, b in pairwise(spans)), spans[-1][1]]
    before = 0  # where the window before ends
    kept: list[Entity] = []
    for k, (entities, (start, end)) in enumerate(zip(found, spans, strict=True)):
        own = [moved(entity, start) for entity in entities]
        kept += [e for e in own if e.start < middles[k + 1] and (middles[k] <= e.start or before < e.end)]
        before = end
    if not may_cross:
        kept = without_crossing(kept, known)
    return tuple(sorted(kept, key=lambda entity: (entity.start, -entity.end)))


def without_crossing(entities: Sequence[Entity], known: Collection[Span]) -> list[Entity]:
    """Those that stay if what is known, then what is likeliest, drives out all that cross it."""
    rivals: dict[Entity, list[Entity]] = {}
    for one, other in crossing(entities):
        rivals.setdefault(one, []).append(other)
        rivals.setdefault(other, []).append(one)
    lost: set[Entity] = set()
    for entity in sorted(rivals, key=lambda entity: (entity.span not in known, -(entity.score or 0.0))):
        if entity not in lost:
            lost.update(rivals[entity])
    return [entity for entity in entities if entity not in lost]


def moved(entity: Entity, by: int) -> Entity:
    head = None if entity.head is None else entity.head + by
    return Entity(entity.start + by, entity.end + by, entity.label, head, entity.score)
