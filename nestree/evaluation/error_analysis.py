"""What went wrong with each entity: every one is right, or is exactly one kind of error.

A gold entity that was not predicted and a predicted one that is not gold are taken together as one error where
they explain each other; each is used once. In this order:
    type        the same span with another label
    boundary    the same label on another span that shares a word; those that share most of their words first
What then remains is `missed` in gold and `spurious` in the prediction. So
    gold      = right + type + boundary + missed
    predicted = right + type + boundary + spurious
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nestree.types import Entity, Sentence, Span

KINDS = ("type", "boundary", "missed", "spurious")

Key = tuple[int, int, str]  # what is compared: start, end, label
Side = Mapping[Key, Entity]  # the entities of one sentence, each once


class EntityError(NamedTuple):
    """One error, and the sentence that it is in."""

    kind: str  # one of KINDS, or "head"
    gold: Entity | None  # None: spurious
    predicted: Entity | None  # None: missed
    number: int  # of the sentence, from 1
    sentence: Sentence  # as in gold
    prediction: Sentence


def side(sentence: Sentence) -> Side:
    """The entities of a sentence, each once; of duplicates the first that has a head."""
    entities: dict[Key, Entity] = {}
    for entity in sentence.entities:
        key = (entity.start, entity.end, entity.label)
        if key not in entities or (entities[key].head is None and entity.head is not None):
            entities[key] = entity
    return entities


def classify_errors(gold: Side, predicted: Side) -> Iterator[tuple[str, Entity | None, Entity | None]]:
    """Kind, gold entity and predicted entity of each error of a sentence."""
    left = {key: entity for key, entity in gold.items() if key not in predicted}
    extra = {key: entity for key, entity in predicted.items() if key not in gold}
    for kind, paired in (("type", same_span), ("boundary", same_label)):
        for g, p in list(paired(left, extra)):
            yield kind, left.pop(g), extra.pop(p)
    yield from (("missed", entity, None) for entity in left.values())
    yield from (("spurious", None, entity) for entity in extra.values())


def same_span(gold: Side, predicted: Side) -> Iterator[tuple[Key, Key]]:
    """Pairs on the same span, in the order of their labels."""
    there: defaultdict[Span, list[Key]] = defaultdict(list)
    for key in sorted(predicted, reverse=True):
        there[key[:2]].append(key)
    for key in sorted(gold):
        if there[key[:2]]:
            yield key, there[key[:2]].pop()


def same_label(gold: Side, predicted: Side) -> Iterator[tuple[Key, Key]]:
    """Pairs with the same label that overlap, those that share most of their words first."""
    candidates = []
    for g in gold:
        for p in predicted:
            shared = min(g[1], p[1]) - max(g[0], p[0])
            if g[2] == p[2] and shared > 0:
                together = max(g[1], p[1]) - min(g[0], p[0])
                candidates.append((-shared / together, min(g, p), max(g, p), g, p))
    used: set[tuple[str, Key]] = set()
    for _, _, _, g, p in sorted(candidates):
        if ("gold", g) not in used and ("predicted", p) not in used:
            used |= {("gold", g), ("predicted", p)}
            yield g, p
