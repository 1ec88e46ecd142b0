"""What is known before: these spans are entities, perhaps with a label and a head, and those are not.

Scores are changed so that only what agrees with it is possible; everything after that, best trees and probabilities
alike, is exact given what is known. A known label is evidence for the head: P(tree | label) has the factor
P(label | span, head). A forbidden label is taken away, and says nothing about anything else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from nestree.config import Settings
from nestree.decoding.probabilities import NO_TEMPERATURES, Temperatures, head_label_scores
from nestree.errors import InputError
from nestree.nn.scorers import Labels, Scores
from nestree.treecrf import IMPOSSIBLE
from nestree.types import Span

SURE = 1e4  # added to a label score: its sigmoid is 1, and its sums stay exact


class Known(NamedTuple):
    """A span of words that is an entity."""

    start: int
    end: int
    label: str | None = None  # None: whichever is best
    head: int | None = None
    characters: Span | None = None  # in place of its words in messages, if it was given in characters
    head_characters: Span | None = None


class Forbidden(NamedTuple):
    """A span of words that is no entity, or not one with this label."""

    start: int
    end: int
    label: str | None = None  # None: none at all
    characters: Span | None = None


class Constraints(NamedTuple):
    """What is known of each sentence of a batch."""

    known: Sequence[Sequence[Known]]
    forbidden: Sequence[Sequence[Forbidden]]

    def __bool__(self) -> bool:
        return any(self.known) or any(self.forbidden)


def check_constraints(
    known: Sequence[Known], forbidden: Sequence[Forbidden], labels: Sequence[str], trees: bool
) -> None:
    """Raise unless all of it can be true of one sentence at once; in `trees`, nothing crosses."""
    every: list[Known | Forbidden] = [*known, *forbidden]
    for one in every:
        if one.label is not None and one.label not in labels:
            raise InputError(
                f"{shown(one)} has the label {one.label!r}, which this model does not know. Its labels are "
                f"{', '.join(labels)}."
            )
    for each in known:
        if each.head is not None and not each.start <= each.head < each.end:
            raise InputError(f"{shown(each)} cannot have {shown_head(each)} as its head: it is not in it.")
    for a in known:
        for b in known:
            if trees and a.start < b.start < a.end < b.end:
                raise InputError(
                    f"known {shown(a)} and {shown(b)} cross, and no tree holds both. Leave one of them out."
                )
            if a[:2] == b[:2] and None not in (a.head, b.head) and a.head != b.head:
                raise InputError(
                    f"{shown(a)} is known with two heads, {shown_head(a)} and {shown_head(b)}. Leave one of them out."
                )
    check_heads(known)
    for bad in forbidden:
        for each in known:
            if (each.start, each.end) == (bad.start, bad.end) and bad.label in (None, each.label):
                raise InputError(f"{shown(each)} is both known and forbidden. Leave out one of the two.")
    banned: dict[Span, set[str | None]] = {}
    for bad in forbidden:
        banned.setdefault((bad.start, bad.end), set()).add(bad.label)
    for each in known:
        if each.label is None and banned.get((each.start, each.end), set()) >= set(labels):
            raise InputError(
                f"{shown(each)} is known, and every label of it is forbidden. Allow one of them."
            )


def check_heads(known: Sequence[Known]) -> None:
    """A head of an outer span that lies in an inner one is the head of the inner one too."""
    for outer in known:
        for inner in known:
            if (
                outer.head is not None
                and inner.head is not None
                and outer.start <= inner.start <= outer.head < inner.end <= outer.end
                and outer.head != inner.head
            ):
                raise InputError(
                    f"{shown(outer)} has {shown_head(outer)} as its head, which lies in {shown(inner)} whose head is "
                    f"{shown_head(inner)}: in a tree both would be the same. Leave one of the heads out."
                )


def check_single(known: Sequence[Known]) -> None:
    """A model of one stage gives each span one label."""
    for a in known:
        for b in known:
            if a[:2] == b[:2] and a.label is not None and b.label is not None and a.label < b.label:
                raise InputError(
                    f"{shown(a)} is known with the labels {a.label} and {b.label}, and this model gives a span one "
                    'label (model.mention = "labels"). Leave out one of them.'
                )


def shown(each: Known | Forbidden) -> str:
    """A span as it was given: (4, 9) in characters, 1-2 in words."""
    return f"entity {each.characters or f'{each.start}-{each.end}'}"


def shown_head(each: Known) -> str:
    return f"characters {each.head_characters}" if each.head_characters else f"word {each.head}"


def apply_constraints(
    scores: Scores,
    knowledge: Constraints,
    settings: Settings,
    labels: Sequence[str],
    temperatures: Temperatures = NO_TEMPERATURES,
) -> Scores:
    """Scores under which only what agrees with what is known is possible."""
    for known, forbidden in zip(knowledge.known, knowledge.forbidden, strict=True):
        check_constraints(known, forbidden, labels, settings.model.structure != "none")
    number = {label: k for k, label in enumerate(labels)}
    mention = scores.mention
    n, device = mention.shape[1] - 1, mention.device
    never = torch.zeros_like(mention, dtype=torch.bool)  # [B, n + 1, n + 1, C]
    must = torch.zeros(mention.shape[:3], dtype=torch.bool, device=device)
    shift = torch.zeros(*mention.shape[:3], len(labels), device=device, dtype=mention.dtype)
    head = torch.zeros(*mention.shape[:3], n, device=device, dtype=mention.dtype)
    trees = settings.model.structure != "none"
    for b, each in enumerate(knowledge.forbidden):
        for i, j, label, _ in each:
            shift[b, i, j, slice(None) if label is None else number[label]] = -SURE
            if settings.model.mention == "labels":
                never[b, i, j, slice(1, None) if label is None else 1 + number[label]] = True
            elif settings.model.mention == "yes-no" and label is None:
                never[b, i, j, 1] = True
    for b, entities in enumerate(knowledge.known):
        if settings.model.mention == "labels":
            check_single(entities)
        for i, j, label, word, *_ in entities:
            must[b, i, j] = True
            if trees:
                never[b, :i, i + 1 : j] = True
                never[b, i + 1 : j, j + 1 :] = True
            if label is not None:
                shift[b, i, j, number[label]] = SURE
                if settings.model.labeling == "head":
                    span = torch.tensor([[b, i, j]], device=device)
                    every = head_label_scores(scores, span, settings, temperatures)[0]  # [n, L]
                    head[b, i, j] += every[:, number[label]]
            if word is not None:
                others = [other for other in range(n) if other != word]
                head[b, i, j, others] = IMPOSSIBLE
            if settings.model.mention != "score":
                never[b, i, j, 0] = True
            if settings.model.mention == "labels" and label is not None:
                never[b, i, j, [1 + k for k in range(len(labels)) if k != number[label]]] = True
    return replace(
        scores,
        labels=None if scores.labels is None else ShiftedLabels(scores.labels, shift),
        head=head.clamp(min=IMPOSSIBLE) if any(knowledge.known) and scores.arc is not None else None,
        must=must if any(knowledge.known) else None,
        never=never,
    )


@dataclass(frozen=True)
class ShiftedLabels:
    """Label scores with what is known of them."""

    inner: Labels
    shift: Tensor  # [B, n + 1, n + 1, L]

    def of(self, b: Tensor, i: Tensor, j: Tensor, h: Tensor | None) -> Tensor:
        return self.inner.of(b, i, j, h) + self.shift[b, i, j]

    def chart(self) -> Tensor:
        return self.inner.chart() + self.shift
