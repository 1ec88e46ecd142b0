"""The statistics of a data set, as papers on nested entities report them, and the tables that show them.

Entities are counted as they are annotated, duplicates too. *Nested* is an entity that contains another or lies in
one; the same span with another label counts as another, an exact duplicate does not. *Multi-type* counts spans.

>>> from nestree.types import Document, Entity, Sentence
>>> words = ("the", "University", "of", "California")
>>> entities = Entity(0, 4, "ORG"), Entity(3, 4, "GPE"), Entity(3, 4, "LOC")
>>> counted = count([Document((Sentence(words, entities), Sentence(words[:1])))])
>>> counted.sentences, counted.nested_sentences, counted.entities, counted.nested_entities
(2, 1, 3, 3)
>>> counted.single_word_entities, counted.multi_type_spans
(2, 1)
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nestree.types import Document, Entity, Sentence, Span, crossing_pairs, depths


@dataclass
class Statistics:
    """Counts over sentences; `+` adds up those of two data sets."""

    documents: int = 0  # that have an id
    sentences: int = 0
    nested_sentences: int = 0
    entities: int = 0
    nested_entities: int = 0
    single_word_entities: int = 0
    multi_type_spans: int = 0
    duplicate_entities: int = 0
    crossing_pairs: int = 0
    deepest: int = 0  # the most entities that enclose one
    words: int = 0
    longest_sentence: int = 0
    longest_entity: int = 0
    labels: Counter[str] = field(default_factory=Counter)

    def add(self, sentence: Sentence) -> None:
        """Count one more sentence."""
        self.sentences += 1
        self.words += len(sentence.words)
        self.longest_sentence = max(self.longest_sentence, len(sentence.words))
        entities = sentence.entities
        if not entities:
            return
        inside = nested(entities)
        labels: dict[Span, set[str]] = {}
        for entity in entities:
            labels.setdefault(entity.span, set()).add(entity.label)
            self.labels[entity.label] += 1
        lengths = [entity.end - entity.start for entity in entities]
        self.nested_sentences += any(inside)
        self.entities += len(entities)
        self.nested_entities += sum(inside)
        self.single_word_entities += lengths.count(1)
        self.multi_type_spans += sum(len(found) > 1 for found in labels.values())
        self.duplicate_entities += len(entities) - sum(len(found) for found in labels.values())
        self.crossing_pairs += len(crossing_pairs(entities))
        self.deepest = max(self.deepest, *depths(entities))
        self.longest_entity = max(self.longest_entity, *lengths)

    def __add__(self, other: "Statistics") -> "Statistics":
        added = {key: value + getattr(other, key) for key, value in vars(self).items()}
        for key in ("deepest", "longest_sentence", "longest_entity"):
            added[key] = max(getattr(self, key), getattr(other, key))
        return Statistics(**added)


def nested(entities: Sequence[Entity]) -> list[bool]:
    """Of each entity: does it contain another, or lie in one?

    >>> nested([Entity(0, 4, "A"), Entity(3, 4, "B"), Entity(5, 6, "C"), Entity(5, 6, "C"), Entity(3, 6, "D")])
    [True, True, True, True, True]
    >>> nested([Entity(0, 4, "A"), Entity(3, 6, "B"), Entity(7, 8, "C"), Entity(7, 8, "C")])
    [False, False, False, False]
    """
    labels: dict[Span, set[str]] = {}
    for entity in entities:
        labels.setdefault(entity.span, set()).add(entity.label)
    spans = sorted(labels, key=lambda span: (span[0], -span[1]))  # whatever encloses a span stands before it
    found = {span for span in spans if len(labels[span]) > 1}
    last = 0  # the last end so far
    for span in spans:
        if span[1] <= last:
            found.add(span)
        last = max(last, span[1])
    first: int | None = None  # the first end of what follows
    for span in reversed(spans):
        if first is not None and first <= span[1]:
            found.add(span)
        first = span[1] if first is None else min(first, span[1])
    return [entity.span in found for entity in entities]


def count(documents: Iterable[Document]) -> Statistics:
    """The statistics of these documents."""
    counted, ids = Statistics(), set()
    for document in documents:
        ids.add(document.id)
        for sentence in document.sentences:
            counted.add(sentence)
    counted.documents = len(ids - {None})
    return counted


ROWS = {
    "documents": "documents",
    "sentences": "sentences",
    "nested_sentences": "  nested",
    "entities": "entities",
    "nested_entities": "  nested",
    "single_word_entities": "  single-word",
    "multi_type_spans": "multi-type spans",
    "duplicate_entities": "duplicate entities",
    "crossing_pairs": "crossing pairs",
    "deepest": "deepest nesting",
    "words": "words",
    "longest_sentence": "longest sentence",
    "longest_entity": "longest entity",
}


def rows(parts: Mapping[str, Statistics]) -> list[list[str]]:
    """A table: one column for each part and, if there are several, one for all; one row for each number."""
    columns = dict(parts)
    if len(parts) > 1:
        first, *others = parts.values()
        columns["all"] = sum(others, first)
    table = [["", *columns]]
    for key, name in ROWS.items():
        numbers = [getattr(column, key) for column in columns.values()]
        if key != "documents" or any(numbers):
            table.append([name, *(f"{number:,}" for number in numbers)])
    totals = sum((column.labels for column in parts.values()), Counter[str]())
    table.append(["entities by label"])
    for label, _ in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
        shown = label if label == " ".join(label.split()) else repr(label)
        table.append([f"  {shown}", *(f"{column.labels[label]:,}" for column in columns.values())])
    return table


def as_text(parts: Mapping[str, Statistics]) -> str:
    """The table in aligned columns."""
    table = rows(parts)
    width = [max(len(row[k]) for row in table if len(row) > k) for k in range(len(table[0]))]
    lines = []
    for row in table:
        numbers = (cell.rjust(width[k]) for k, cell in enumerate(row) if k)
        lines.append("  ".join([row[0].ljust(width[0]), *numbers]).rstrip())
    return "\n".join(lines)


def as_markdown(parts: Mapping[str, Statistics]) -> str:
    """The table in Markdown."""
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in rows(parts))
    ruler = ["---", *("---:" for _ in head[1:])]
    indented = [[cell.replace("  ", "&nbsp;&nbsp;", 1) for cell in row] for row in body]
    padded = [row + [""] * (len(head) - len(row)) for row in (head, ruler, *indented)]
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)


def as_json(parts: Mapping[str, Statistics]) -> dict[str, dict[str, Any]]:
    """The numbers for programs: by part, then by name."""
    return {name: {**vars(part), "labels": dict(sorted(part.labels.items()))} for name, part in parts.items()}
