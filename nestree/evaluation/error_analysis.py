"""Kinds of errors: every entity is right, or part of exactly one error.

A gold entity that was not predicted and a predicted one that is not gold are paired as one error where one explains
the other; each is used once. In this order:
    type        the same span with another label
    boundary    the same label on another span that shares a word; those with the largest overlap first
The others are `missed` in gold and `spurious` in the prediction. So
    gold      = right + type + boundary + missed
    predicted = right + type + boundary + spurious
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nestree.types import Entity, Sentence, Span

KINDS = ("type", "boundary", "missed", "spurious")

Key = tuple[int, int, str]  # start, end, label: what is compared
EntitiesByKey = Mapping[Key, Entity]  # the entities of one sentence, without duplicates


class EntityError(NamedTuple):
    """One error, and the sentence that it is in."""

    kind: str  # one of KINDS, or "head"
    gold: Entity | None  # None: spurious
    predicted: Entity | None  # None: missed
    number: int  # of the sentence, from 1
    sentence: Sentence  # as in gold
    prediction: Sentence


def entities_by_key(sentence: Sentence) -> EntitiesByKey:
    """The entities of a sentence without duplicates; of copies, the first that has a head."""
    entities: dict[Key, Entity] = {}
    for entity in sentence.entities:
        key = (entity.start, entity.end, entity.label)
        if key not in entities or (entities[key].head is None and entity.head is not None):
            entities[key] = entity
    return entities


def classify_errors(
    gold: EntitiesByKey, predicted: EntitiesByKey
) -> Iterator[tuple[str, Entity | None, Entity | None]]:
    """Kind, gold entity and predicted entity of each error of a sentence."""
    missed = {key: entity for key, entity in gold.items() if key not in predicted}
    spurious = {key: entity for key, entity in predicted.items() if key not in gold}
    for kind, find_pairs in (("type", pair_by_span), ("boundary", pair_by_label)):
        for g, p in list(find_pairs(missed, spurious)):
            yield kind, missed.pop(g), spurious.pop(p)
    yield from (("missed", entity, None) for entity in missed.values())
    yield from (("spurious", None, entity) for entity in spurious.values())


def pair_by_span(gold: EntitiesByKey, predicted: EntitiesByKey) -> Iterator[tuple[Key, Key]]:
    """Pairs on the same span, in the order of their labels."""
    candidates: defaultdict[Span, list[Key]] = defaultdict(list)
    for key in sorted(predicted, reverse=True):
        candidates[key[:2]].append(key)
    for key in sorted(gold):
        if candidates[key[:2]]:
            yield key, candidates[key[:2]].pop()


def pair_by_label(gold: EntitiesByKey, predicted: EntitiesByKey) -> Iterator[tuple[Key, Key]]:
    """Overlapping pairs with the same label, those with the largest intersection over union first."""
    candidates = []
    for g in gold:
        for p in predicted:
            intersection = min(g[1], p[1]) - max(g[0], p[0])
            if g[2] == p[2] and intersection > 0:
                union = max(g[1], p[1]) - min(g[0], p[0])
                candidates.append((-intersection / union, min(g, p), max(g, p), g, p))
    used_gold, used_predicted = set(), set()
    for *_, g, p in sorted(candidates):
        if g not in used_gold and p not in used_predicted:
            used_gold.add(g)
            used_predicted.add(p)
            yield g, p
