"""Sentences of more words than a chart should have: read in windows that overlap, and merged.

Windows are of the size that most sentences have: what a model has not seen in training it reads worse, and a chart of
200 words takes a hundred times as long as one of 64. In an overlap, each window is believed up to its middle: an
entity belongs to the window in whose part it begins. Where entities of two windows cross, the likelier one stays. An
entity longer than a window cannot be found.
"""

from collections.abc import Sequence
from itertools import chain, pairwise

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


def merged(found: Sequence[Sequence[Entity]], spans: Sequence[Span], may_cross: bool) -> tuple[Entity, ...]:
    """The entities of the whole sentence from those of its windows, numbered from its first word."""
    middles = [0, *((b[0] + a[1] + 1) // 2 for a, b in pairwise(spans)), spans[-1][1]]
    kept: list[list[Entity]] = []  # of each window; those of two that are not neighbours never meet
    for k, (entities, (start, _)) in enumerate(zip(found, spans, strict=True)):
        own = [moved(entity, start) for entity in entities]
        own = [entity for entity in own if middles[k] <= entity.start < middles[k + 1]]
        if kept and not may_cross:
            kept[-1], own = joined(kept[-1], own)
        kept.append(own)
    return tuple(sorted(chain.from_iterable(kept), key=lambda entity: (entity.start, -entity.end)))


def joined(before: list[Entity], after: list[Entity]) -> tuple[list[Entity], list[Entity]]:
    """Both, without the less likely of any two that cross."""
    while pairs := crossing([*before, *after]):
        one, other = pairs[0]
        loser = one if (one.score or 0.0) < (other.score or 0.0) else other
        before = [entity for entity in before if entity != loser]
        after = [entity for entity in after if entity != loser]
    return before, after


def moved(entity: Entity, by: int) -> Entity:
    head = None if entity.head is None else entity.head + by
    return Entity(entity.start + by, entity.end + by, entity.label, head, entity.score)
