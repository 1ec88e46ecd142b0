"""The data files of published systems for nested entities: JSON, a list or one record a line, known by their keys.

    {"sentence": ["in", "Rome"], "ner": [{"index": [1], "type": "GPE"}]}                          all words
    {"tokens": ["in", "Rome"], "entity_mentions": [{"start": 1, "end": 2, "entity_type": "GPE"}]}     exclusive
    {"tokens": ["in", "Rome"], "entities": [{"start": 1, "end": 2, "type": "GPE"}]}                   exclusive
    {"tokens": ["in", "Rome"], "entities": [{"span": [1, 2], "entity_type": "GPE"}]}                  exclusive
    {"sentences": [["in", "Rome"]], "ners": [[[1, 1, "GPE"]]]}                       inclusive, of the sentence
    {"sentences": [["in", "Rome"]], "ner": [[[1, 1, "GPE"]]]}                        inclusive, of the document

The last column is the convention of the system with these keys: what ends and offsets mean. It is the default, and an
option, because other files with the same keys differ. If a file contradicts it (an end after the sentence, an empty
entity, a text that is not that of the words), the error names the convention that fits. A file may fit several: look at
a few entities.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from nestree.data.alignment import FRAGMENTS_JOINED, AnnotatedText
from nestree.data.formats import common
from nestree.data.formats.common import Item, Record, group_sentences
from nestree.data.io import ConversionReport, json_records
from nestree.errors import DataError, EmptySpanError, SpanRangeError
from nestree.types import Document, Entity, Sentence

ENDS = ("inclusive", "exclusive")
SYSTEMS = {  # the keys of words and of entities -> which ends and offsets the systems use
    ("sentence", "ner"): ("exclusive", "sentence"),
    ("tokens", "entity_mentions"): ("exclusive", "sentence"),
    ("tokens", "entities"): ("exclusive", "sentence"),
    ("sentences", "ners"): ("inclusive", "sentence"),
    ("sentences", "ner"): ("inclusive", "document"),
}
NOT_READ = dict.fromkeys(("relations", "relation_mentions"), "relations")
NOT_READ |= dict.fromkeys(("events", "event_mentions"), "events") | {"clusters": "clusters of coreference"}
KNOWN_KEYS = {key for keys in SYSTEMS for key in keys}
KNOWN_KEYS |= {"doc_id", "doc_key", "sent_id", "wnd_id", "orig_id"}
ENTITY_KEYS = {"index", "start", "end", "span", "entity_type", "type", "label", "text"}


def read_research_json(
    path: Path,
    report: ConversionReport,
    *,
    ends: Literal["inclusive", "exclusive", ""] = "",
    offsets: Literal["sentence", "document", ""] = "",
) -> Iterator[Document | AnnotatedText]:
    """The documents of a file; records with the same `doc_id` that follow each other are one.

    ends: "inclusive" or "exclusive"; offsets: words of the "sentence" or of the "document". If they are not given,
    as the system with these keys has it.
    """

    def parse_records() -> Iterator[Item]:
        for place, record in json_records(path, report):
            with common.skip_bad(report, place):
                keys = next((keys for keys in SYSTEMS if keys[0] in record and keys[1] in record), None)
                if keys is None:
                    raise DataError(
                        f"these are not the keys of a system that is known: {', '.join(record)[:80] or 'none'}. "
                        f"Known are {', '.join(' + '.join(keys) for keys in SYSTEMS)}."
                    )
                usual_ends, usual_offsets = SYSTEMS[keys]
                convention = ends or usual_ends, offsets or usual_offsets
                sentences = list(parse_sentences(record, keys, convention, report, place))
                for key, what in NOT_READ.items():
                    if isinstance(record.get(key), list) and any(record[key]):
                        report.note(f"{what} not read")
                if extra_keys := record.keys() - KNOWN_KEYS - NOT_READ.keys():
                    report.note("extra keys of records not read", times=len(extra_keys))
                of_document = {"doc_id": first_value(record, "doc_id", "doc_key")}
                for number, sentence in enumerate(sentences):
                    continues = {"continues": number > 0} if "sentences" in record else {}
                    yield sentence, of_document | continues

    return group_sentences(parse_records(), report)


def first_value(record: Record, *keys: str) -> Any:
    return next((record[key] for key in keys if record.get(key) is not None), None)


def parse_sentences(
    record: Record, keys: tuple[str, str], convention: tuple[str, str], report: ConversionReport, place: str
) -> Iterator[Sentence]:
    """The sentence of a record, or its sentences, if they have words. `convention`: its ends and offsets."""
    all_words, all_entities = record[keys[0]], record[keys[1]]
    several = keys[0] == "sentences"
    if not several:
        all_words, all_entities = [all_words], [all_entities]
    if not isinstance(all_words, list) or not isinstance(all_entities, list):
        raise DataError(f"`{keys[0]}` and `{keys[1]}` must be lists.")
    if len(all_words) != len(all_entities):
        raise DataError(
            f"there are {len(all_words)} `{keys[0]}` and {len(all_entities)} `{keys[1]}`. There must be one for each."
        )
    before = 0  # words of the sentences before this one
    for number, (words, items) in enumerate(zip(all_words, all_entities, strict=True), 1):
        where = f"{place}, sentence {number}" if several else place
        with common.locate_errors(where):
            if not common.is_list_of(words, str) or not all(words):
                raise DataError(f"a sentence is a list of words, and this is {words!r:.60}.")
            if not common.is_list_of(items, list if several else dict):
                kind = "lists [start, end, label]" if several else "objects"
                raise DataError(f"`{keys[1]}` must be a list of {kind}, and is {items!r:.60}.")
            entities = [parse_entity(item, words, before, convention, report, where) for item in items]
        if words:
            id = None if several else common.optional_str(first_value(record, "sent_id", "wnd_id", "orig_id"))
            yield Sentence(tuple(words), tuple(entities), id=id)
        else:
            report.note("sentences without words left out", where)
        before += len(words)


def parse_entity(
    item: Any, words: list[str], before: int, convention: tuple[str, str], report: ConversionReport, place: str
) -> Entity:
    """The entity of [start, end, label] or an object; `before` counts the words of the document before its sentence."""
    start = end = label = phrase = index = None
    if isinstance(item, dict):
        label, phrase = first_value(item, "entity_type", "type", "label"), item.get("text")
        index, span = item.get("index"), item.get("span", [item.get("start"), item.get("end")])
        if "index" in item:
            if not isinstance(index, list) or not index or not all(type(k) is int for k in index):
                raise DataError(f"`index` must list the words of an entity: {item!r:.80}.")
            span = [min(index), max(index) + 1]
            convention = "exclusive", convention[1]  # all words are listed
            if len({*index}) < span[1] - span[0]:
                report.note(FRAGMENTS_JOINED, place)
        start, end = span if isinstance(span, list) and len(span) == 2 else (None, None)
        if item.keys() - ENTITY_KEYS:
            report.note("extra keys of entities not read", place)
    elif len(item) >= 3:
        start, end, label = item[:3]
        if len(item) > 3:
            report.note("further items of entities not read: start, end and label are", place)
    if type(start) is not int or type(end) is not int:
        raise DataError(f"start and end of an entity must be numbers of words: {item!r:.80}.")
    if not isinstance(label, str) or not label:
        raise DataError(f"entity {item!r:.60} has no label.")
    spans = {
        (ends, offsets): (start - shift, end + (ends == "inclusive") - shift)
        for ends in ENDS
        for offsets, shift in (("sentence", 0), ("document", before))
    }
    first, stop = spans[convention]
    if not 0 <= first < stop <= len(words):
        what = "is empty" if first == stop else f"is not within its sentence of {len(words)} words"
        fitting = [key for key, (i, j) in spans.items() if 0 <= i < j <= len(words)]
        advice = "Check its index." if index else "Check its numbers."
        if fitting and not index:
            advice = f"It would fit with ends={fitting[0][0]} and offsets={fitting[0][1]}."
        error = EmptySpanError if first == stop else SpanRangeError
        raise error(f"entity {item!r:.60} {what}. {advice}")
    other = ENDS[convention[0] == "inclusive"]
    stops = stop, spans[other, convention[1]][1]
    here, there = ("".join("".join(words[first:last]).split()) for last in stops)
    if isinstance(phrase, str) and here != "".join(phrase.split()) == there:
        raise DataError(
            f"entity {start}-{end} {label} says {phrase!r:.40}, and its words are {' '.join(words[first:stop])!r:.40}. "
            f"If ends are {other} in this file, read it with ends={other}."
        )
    return Entity(first, stop, label)
