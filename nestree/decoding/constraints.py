"""Constraints on decoding: known spans are entities, perhaps with a label and a head, and forbidden spans are not.

Users give them in characters; `align_constraints` finds their words. `apply_constraints` changes the scores so that
only what agrees with them is possible; best trees and probabilities are then exact given the constraints. A known label
is evidence for the head: P(tree | label) has the factor P(label | span, head). A forbidden label is removed, and is no
evidence for anything else; so are all other labels of a span that is known with labels.
"""

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from nestree.config import Settings
from nestree.decoding.probabilities import UNIT_TEMPERATURES, Temperatures, head_label_scores
from nestree.errors import InputError
from nestree.nn.scorers import Labels, Scores
from nestree.treecrf import IMPOSSIBLE
from nestree.types import Document, Span

CERTAIN = 1e4  # added to a label score: its sigmoid is 1, and sums stay exact


class SpanConstraint(NamedTuple):
    """A span of words that is an entity or, of forbidden ones, is none, or none with this label."""

    start: int
    end: int
    label: str | None = None  # None: of a known span, whichever is best; of a forbidden one, no entity at all
    head: int | None = None
    characters: Span | None = None  # the span and the head as the user gave them, for messages
    head_characters: Span | None = None

    def shift(self, offset: int) -> "SpanConstraint":
        head = None if self.head is None else self.head + offset
        return self._replace(start=self.start + offset, end=self.end + offset, head=head)


SentenceConstraints = tuple[Sequence[SpanConstraint], Sequence[SpanConstraint]]  # known, forbidden


class Constraints(NamedTuple):
    """The constraints of each sentence of a batch."""

    known: Sequence[Sequence[SpanConstraint]]
    forbidden: Sequence[Sequence[SpanConstraint]]

    def __bool__(self) -> bool:
        return any(self.known) or any(self.forbidden)


# From characters to words


class CharSpan(NamedTuple):
    """A known or forbidden span in characters; it neither begins nor ends with white space."""

    start: int
    end: int
    label: str | None
    head: Span | None


def parse_char_spans(
    values: Iterable[Sequence[Any]] | None, kind: Literal["known", "forbidden"], text: str, labels: Sequence[str]
) -> list[CharSpan]:
    """Known spans from (start, end), (start, end, label) or (start, end, label, head); forbidden ones have no head."""
    fields = ("start", "end", "label", "head")[: 4 if kind == "known" else 3]

    def trim(span: Span, name: str) -> Span:
        """The span without white space at either end."""
        start, end = span
        if end > len(text):
            raise InputError(f"{name} {span} ends after the text, which has {len(text)} characters.")
        content = text[start:end]
        if not content.strip():
            raise InputError(f"{name} {span} has no characters but white space: {content!r:.40}.")
        return start + len(content) - len(content.lstrip()), end - len(content) + len(content.rstrip())

    if values is None:
        return []
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{kind} is {values!r:.60}; it must be a list of spans, such as [(0, 4)].")
    spans = []
    for value in values:
        if isinstance(value, str) or not isinstance(value, Sequence) or not 2 <= len(value) <= len(fields):
            raise InputError(f"{kind} {value!r:.60} must be (start, end), optionally more: ({', '.join(fields)}).")
        label, head = [*value[2:], None, None][:2]
        span = as_span(value[:2])
        if span is None:
            raise InputError(f"{kind} {value!r:.60} must begin with two offsets, the second greater.")
        start, end = trim(span, kind)
        if not (label is None or isinstance(label, str)):
            raise InputError(f"the label of {kind} {value!r:.60} must be a string or None.")
        if label is not None and label not in labels:
            raise InputError(
                f"{kind} {(start, end, label)} has a label that this model does not know. Its labels are "
                f"{', '.join(labels)}."
            )
        if head is not None:
            position = as_int(head)
            head = as_span(head if position is None else (position, position + 1))
            if head is None:
                raise InputError(f"the head of known {value!r} must be an offset in the text, or (start, end).")
            head = trim(head, "the head of known")
        spans.append(CharSpan(start, end, label, head))
    return spans


def as_span(value: Any) -> Span | None:
    """(start, end) with 0 <= start < end as Python integers; None if it is anything else."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        return None
    start, end = map(as_int, value)
    return (start, end) if start is not None and end is not None and 0 <= start < end else None


def as_int(value: Any) -> int | None:
    """An integer of Python or NumPy as an int; None if it is anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def align_constraints(
    document: Document, known: Sequence[CharSpan], forbidden: Sequence[CharSpan]
) -> dict[int, SentenceConstraints]:
    """The constraints in words, by the index of the sentence.

    A forbidden span that is not a span of words is left out: it cannot be predicted anyway.
    """
    sentence_starts = [sentence.start for sentence in document.sentences]
    aligned: dict[int, tuple[list[SpanConstraint], list[SpanConstraint]]] = {}

    def words_at(start: int, end: int) -> tuple[int, int, int, bool]:
        """The sentence and the words that overlap these characters, and whether they are exactly these."""
        index = bisect_right(sentence_starts, start) - 1
        sentence = document.sentences[index]
        offsets = sentence.offsets or ()
        start, end = start - sentence.start, end - sentence.start
        i = bisect_right(offsets, start, key=lambda word: word[1])  # the first word that ends after `start`
        j = bisect_left(offsets, end, key=lambda word: word[0])  # the first that begins at `end` or later
        return index, i, j, (offsets[i][0], offsets[j - 1][1]) == (start, end)

    for start, end, label, head_span in known:
        index, i, j, _ = words_at(start, end)
        head = None
        if head_span is not None:
            head_index, head, head_end, _ = words_at(*head_span)
            if (head_index, head_end) != (index, head + 1) or not i <= head < j:
                raise InputError(f"the head {head_span} of known {(start, end, label)} must lie in one word of it.")
        aligned.setdefault(index, ([], []))[0].append(SpanConstraint(i, j, label, head, (start, end), head_span))
    for start, end, label, _ in forbidden:
        index, i, j, exact = words_at(start, end)
        if exact:
            aligned.setdefault(index, ([], []))[1].append(SpanConstraint(i, j, label, characters=(start, end)))
    return dict(aligned)


# Checks


def check_constraints(
    known: Sequence[SpanConstraint],
    forbidden: Sequence[SpanConstraint],
    labels: Sequence[str],
    trees: bool,
    single_labels: bool = False,
) -> None:
    """Raise unless one sentence can satisfy all constraints.

    In `trees`, entities never cross. With `single_labels`, a span has one label at most.
    """
    for a, b in product(known, known):
        if trees and a.start < b.start < a.end < b.end:
            raise InputError(
                f"known {describe(a)} and {describe(b)} cross, and no tree holds both. Leave one of them out."
            )
        if single_labels and a[:2] == b[:2] and None not in (a.label, b.label) and a.label != b.label:
            raise InputError(
                f"{describe(a)} is known with the labels {a.label} and {b.label}, and this model gives a span one "
                'label (model.mention = "labels" or loss.label = "softmax"). Leave out one of them.'
            )
        if a.head is None or b.head is None or a.head == b.head:
            continue
        if a[:2] == b[:2]:
            raise InputError(
                f"{describe(a)} is known with two heads, {describe_head(a)} and {describe_head(b)}. Leave one of "
                "them out."
            )
        if a.start <= b.start <= a.head < b.end <= a.end:
            raise InputError(
                f"{describe(a)} has {describe_head(a)} as its head, which lies in {describe(b)} whose head is "
                f"{describe_head(b)}: in a tree both would be the same. Leave one of the heads out."
            )
    for span in known:
        forbidden_labels = {other.label for other in forbidden if other[:2] == span[:2]}
        if None in forbidden_labels or (span.label is not None and span.label in forbidden_labels):
            raise InputError(f"{describe(span)} is both known and forbidden. Leave out one of the two.")
        if span.label is None and forbidden_labels >= set(labels):
            raise InputError(f"{describe(span)} is known, and every label of it is forbidden. Allow one of them.")


def describe(span: SpanConstraint) -> str:
    """A span as it was given: (4, 9) in characters, 1-2 in words."""
    return f"entity {span.characters or f'{span.start}-{span.end}'}"


def describe_head(span: SpanConstraint) -> str:
    return f"characters {span.head_characters}" if span.head_characters else f"word {span.head}"


# Scores


def apply_constraints(
    scores: Scores,
    constraints: Constraints,
    settings: Settings,
    labels: Sequence[str],
    temperatures: Temperatures = UNIT_TEMPERATURES,
) -> Scores:
    """Scores under which only what satisfies the constraints is possible."""
    label_index = {label: k for k, label in enumerate(labels)}
    mention, kind = scores.mention, settings.model.mention
    trees, single_labels = settings.model.structure != "none", kind == "labels" or settings.loss.label == "softmax"
    n, device = mention.shape[1] - 1, mention.device
    forbidden = torch.zeros_like(mention, dtype=torch.bool)  # [B, n + 1, n + 1, C]
    known = torch.zeros(mention.shape[:3], dtype=torch.bool, device=device)
    shift = torch.zeros(*mention.shape[:3], len(labels), device=device, dtype=mention.dtype)
    head_scores = torch.zeros(*mention.shape[:3], n, device=device, dtype=mention.dtype)
    for b, (known_spans, forbidden_spans) in enumerate(zip(*constraints, strict=True)):
        check_constraints(known_spans, forbidden_spans, labels, trees, single_labels)
        for i, j, label, *_ in forbidden_spans:
            shift[b, i, j, slice(None) if label is None else label_index[label]] = -CERTAIN
            if kind == "labels":
                forbidden[b, i, j, slice(1, None) if label is None else 1 + label_index[label]] = True
            elif kind == "yes-no" and label is None:
                forbidden[b, i, j, 1] = True
        for i, j, label, *_ in known_spans:
            if label is not None:
                shift[b, i, j] = -CERTAIN  # all but the known labels, which follow
        for i, j, label, head, *_ in known_spans:
            known[b, i, j] = True
            if trees:  # nothing crosses it
                forbidden[b, :i, i + 1 : j] = True
                forbidden[b, i + 1 : j, j + 1 :] = True
            if kind != "score":
                forbidden[b, i, j, 0] = True
            if label is not None:
                k = label_index[label]
                shift[b, i, j, k] = CERTAIN
                if settings.model.labeling == "head":
                    span = torch.tensor([[b, i, j]], device=device)
                    head_scores[b, i, j] += head_label_scores(scores, span, settings, temperatures)[0, :, k]
                if kind == "labels":
                    forbidden[b, i, j, [1 + other for other in range(len(labels)) if other != k]] = True
            if head is not None:
                head_scores[b, i, j, [word for word in range(n) if word != head]] = IMPOSSIBLE
    any_known = any(constraints.known)
    return replace(
        scores,
        labels=None if scores.labels is None else ShiftedLabels(scores.labels, shift),
        head=head_scores.clamp(min=IMPOSSIBLE) if any_known and scores.arc is not None else None,
        known=known if any_known else None,
        known_labels=shift > 0 if any_known else None,
        forbidden=forbidden,
    )


@dataclass(frozen=True)
class ShiftedLabels:
    """Label scores plus the shifts of known and forbidden labels."""

    inner: Labels
    shift: Tensor  # [B, n + 1, n + 1, L]

    def score_spans(self, b: Tensor, i: Tensor, j: Tensor, h: Tensor | None) -> Tensor:
        return self.inner.score_spans(b, i, j, h) + self.shift[b, i, j]

    def chart(self) -> Tensor:
        return self.inner.chart() + self.shift
