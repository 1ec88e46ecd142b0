"""Statistics of a data set, as papers on nested entities report them, and their tables.

Entities are counted as annotated, with duplicates. An entity is *nested* if it contains another or lies in one; the
same span with another label counts as another, an exact duplicate does not. *Multi-type* counts spans.

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

from nestree.display import markdown_table, text_table
from nestree.types import Document, Entity, Sentence, Span, crossing_pairs, depths, enclosing_spans


@dataclass
class Statistics:
    """Counts over the sentences of a data set; `+` combines two data sets."""

    document_ids: set[str] = field(default_factory=set)
    sentences: int = 0
    nested_sentences: int = 0
    entities: int = 0
    nested_entities: int = 0
    single_word_entities: int = 0
    multi_type_spans: int = 0
    duplicate_entities: int = 0
    crossing_pairs: int = 0
    deepest: int = 0  # the largest number of entities around one
    words: int = 0
    longest_sentence: int = 0
    longest_entity: int = 0
    labels: Counter[str] = field(default_factory=Counter)

    @property
    def documents(self) -> int:
        return len(self.document_ids)

    def add(self, sentence: Sentence) -> None:
        self.sentences += 1
        self.words += len(sentence.words)
        self.longest_sentence = max(self.longest_sentence, len(sentence.words))
        entities = sentence.entities
        if not entities:
            return
        is_nested = in_nesting(entities)
        labels = labels_by_span(entities)
        self.labels.update(entity.label for entity in entities)
        lengths = [entity.end - entity.start for entity in entities]
        self.nested_sentences += any(is_nested)
        self.entities += len(entities)
        self.nested_entities += sum(is_nested)
        self.single_word_entities += lengths.count(1)
        self.multi_type_spans += sum(len(names) > 1 for names in labels.values())
        self.duplicate_entities += len(entities) - sum(map(len, labels.values()))
        self.crossing_pairs += len(crossing_pairs(entities))
        self.deepest = max(self.deepest, *depths(entities))
        self.longest_entity = max(self.longest_entity, *lengths)

    def __add__(self, other: "Statistics") -> "Statistics":
        combined = {
            key: value | getattr(other, key) if key == "document_ids" else value + getattr(other, key)
            for key, value in vars(self).items()
        }
        for key in ("deepest", "longest_sentence", "longest_entity"):
            combined[key] = max(getattr(self, key), getattr(other, key))
        return Statistics(**combined)


def labels_by_span(entities: Iterable[Entity]) -> dict[Span, set[str]]:
    labels: dict[Span, set[str]] = {}
    for entity in entities:
        labels.setdefault(entity.span, set()).add(entity.label)
    return labels


def in_nesting(entities: Sequence[Entity]) -> list[bool]:
    """Whether each entity contains another, or lies in one.

    >>> in_nesting([Entity(0, 4, "A"), Entity(3, 4, "B"), Entity(5, 6, "C"), Entity(5, 6, "C"), Entity(3, 6, "D")])
    [True, True, True, True, True]
    >>> in_nesting([Entity(0, 4, "A"), Entity(3, 6, "B"), Entity(7, 8, "C"), Entity(7, 8, "C")])
    [False, False, False, False]
    """
    labels = labels_by_span(entities)
    enclosing = enclosing_spans(labels)
    nested_spans = {span for span in labels if enclosing[span] or len(labels[span]) > 1}.union(*enclosing.values())
    return [entity.span in nested_spans for entity in entities]


def count(documents: Iterable[Document]) -> Statistics:
    statistics = Statistics()
    for document in documents:
        if document.id is not None:
            statistics.document_ids.add(document.id)
        for sentence in document.sentences:
            statistics.add(sentence)
    return statistics


ROWS = {
    "documents": "documents", "sentences": "sentences", "nested_sentences": "  nested",
    "entities": "entities", "nested_entities": "  nested", "single_word_entities": "  single-word",
    "multi_type_spans": "multi-type spans", "duplicate_entities": "duplicate entities",
    "crossing_pairs": "crossing pairs", "deepest": "deepest nesting",
    "words": "words", "longest_sentence": "longest sentence", "longest_entity": "longest entity",
}  # fmt: skip


MAX_COLUMNS = 12  # of parts; a table of more cannot be read


def rows(parts: Mapping[str, Statistics]) -> list[list[str]]:
    """The table: a column for each part, unless they are too many, and one for all; a row for each number."""
    columns = dict(parts) if len(parts) <= MAX_COLUMNS else {}
    if len(parts) > 1:
        first, *others = parts.values()
        columns["all"] = sum(others, first)
    table = [["", *columns]]
    for key, name in ROWS.items():
        numbers = [getattr(column, key) for column in columns.values()]
        if key != "documents" or any(numbers):
            table.append([name, *(f"{number:,}" for number in numbers)])
    totals = sum((column.labels for column in parts.values()), Counter[str]())
    table.append(["entities by label", *([""] * len(columns))])
    for label, _ in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
        shown = label if label == " ".join(label.split()) else repr(label)
        table.append([f"  {shown}", *(f"{column.labels[label]:,}" for column in columns.values())])
    return table


def as_text(parts: Mapping[str, Statistics]) -> str:
    """The table in aligned columns."""
    table = rows(parts)
    return text_table(table, [k == 0 for k in range(len(table[0]))])


def as_markdown(parts: Mapping[str, Statistics]) -> str:
    """The table in Markdown."""
    table = [[name.replace("  ", "&nbsp;&nbsp;", 1), *numbers] for name, *numbers in rows(parts)]
    return markdown_table(table, [k == 0 for k in range(len(table[0]))])


def as_json(parts: Mapping[str, Statistics]) -> dict[str, dict[str, Any]]:
    """The numbers by part, then by name."""
    return {
        name: {key: getattr(part, key) for key in ROWS} | {"labels": dict(sorted(part.labels.items()))}
        for name, part in parts.items()
    }
