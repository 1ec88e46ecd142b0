"""What a prediction gets wrong.

Every entity is correct, or part of exactly one error. A gold entity that was not predicted and a predicted one that is
not gold are paired as one error where one explains the other; each is used once. In this order:
    type        the same span with another label
    boundary    the same label on another span that shares a word; those with the largest overlap first
The others are `missed` in gold and `spurious` in the prediction. So
    gold      = correct + type + boundary + missed
    predicted = correct + type + boundary + spurious
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nestree.types import Entity, Sentence

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

    @property
    def label(self) -> str:
        """The gold label; of a spurious entity, the predicted one."""
        entity = self.gold or self.predicted
        assert entity is not None
        return entity.label


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
    candidates = []  # kind, negative overlap, two keys that break ties, gold key, predicted key
    for g in missed:
        for p in spurious:
            intersection = min(g[1], p[1]) - max(g[0], p[0])
            if g[:2] == p[:2]:
                candidates.append(("type", 0.0, g, p, g, p))
            elif g[2] == p[2] and intersection > 0:
                union = max(g[1], p[1]) - min(g[0], p[0])
                candidates.append(("boundary", -intersection / union, min(g, p), max(g, p), g, p))
    for kind in ("type", "boundary"):
        for *_, g, p in sorted(candidate for candidate in candidates if candidate[0] == kind):
            if g in missed and p in spurious:
                yield kind, missed.pop(g), spurious.pop(p)
    yield from (("missed", entity, None) for entity in missed.values())
    yield from (("spurious", None, entity) for entity in spurious.values())
