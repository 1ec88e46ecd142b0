"""The data files of published systems for nested entities: JSON, a list or one record a line, known by their keys.

    {"sentence": ["in", "Rome"], "ner": [{"index": [1], "type": "GPE"}]}                          all words
    {"tokens": ["in", "Rome"], "entity_mentions": [{"start": 1, "end": 2, "entity_type": "GPE"}]}     exclusive
    {"tokens": ["in", "Rome"], "entities": [{"start": 1, "end": 2, "type": "GPE"}]}                   exclusive
    {"sentences": [["in", "Rome"]], "ners": [[[1, 1, "GPE"]]]}                       inclusive, of the sentence
    {"sentences": [["in", "Rome"]], "ner": [[[1, 1, "GPE"]]]}                        inclusive, of the document

The last column is what the systems with these keys use, and what is assumed; files of others differ, so it is an
option. Where a file shows that it was the wrong one (an end after the sentence, an empty entity, words that are not
those a mention repeats), the error names the right one. A file may also fit both: look at a few entities.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nestree.data.formats.common import (
    FRAGMENTS_JOINED,
    check_choice,
    locate_errors,
    optional_str,
    skip_bad,
)
from nestree.data.io import ConversionReport, json_objects, json_records
from nestree.errors import DataError, EmptySpanError, SpanRangeError
from nestree.types import Document, Entity, Sentence

ENDS = ("inclusive", "exclusive")
OFFSETS = ("sentence", "document")
NOT_READ = {
    "relations": "relations not read",
    "relation_mentions": "relations not read",
    "events": "events not read",
    "event_mentions": "events not read",
    "clusters": "clusters of coreference not read",
}
RECORD_KEYS = {
    "sentence", "sentences", "tokens", "ner", "ners", "entity_mentions", "entities",
    "doc_id", "doc_key", "sent_id", "wnd_id", "orig_id",
}  # fmt: skip
ENTITY_KEYS = {"index", "start", "end", "entity_type", "type", "label", "text"}


def read(path: Path, tally: ConversionReport, *, ends: str = "", offsets: str = "") -> Iterator[Document]:
    """The documents of a file; records with the same `doc_id` that follow each other are one.

    ends: "inclusive" or "exclusive"; offsets: words of the "sentence" or of the "document". If they are not given,
    as the system with these keys has it.
    """
    check_choice("ends", ends, (*ENDS, ""))
    check_choice("offsets", offsets, (*OFFSETS, ""))
    group: list[Sentence] = []
    group_id: str | None = None
    for place, record in json_records(path, tally):
        with skip_bad(tally):
            sentences = list(parse_record(record, ends, offsets, tally, place))
            note_unread_keys(record, tally, place)
            id = optional_str(first_value(record, "doc_id", "doc_key"))
            if group and (id is None or id != group_id or "sentences" in record):
                yield Document(tuple(group), None, group_id)
                group = []
            group_id = id
            group += sentences
            if "sentences" in record and group:
                yield Document(tuple(group), None, group_id)
                group = []
    if group:
        yield Document(tuple(group), None, group_id)


def first_value(record: dict[str, Any], *keys: str) -> Any:
    return next((record[key] for key in keys if record.get(key) is not None), None)


def note_unread_keys(record: dict[str, Any], tally: ConversionReport, place: str) -> None:
    for key, note in NOT_READ.items():
        if isinstance(record.get(key), list) and any(record[key]):
            tally.note(note, place)
    if further_keys := record.keys() - RECORD_KEYS - NOT_READ.keys():
        tally.note("further keys of records not read", place, len(further_keys))
    lists = [
        value for key in ("ner", "entity_mentions", "entities") if isinstance(value := record.get(key), list)
    ]
    mentions = [mention for mentions in lists for mention in mentions if isinstance(mention, dict)]
    if count := sum(bool(mention.keys() - ENTITY_KEYS) for mention in mentions):
        tally.note("further keys of entities not read", place, count)


def parse_record(
    record: dict[str, Any], ends: str, offsets: str, tally: ConversionReport, place: str
) -> Iterator[Sentence]:
    """The sentences of a record."""
    if "sentences" in record and "ners" in record:
        return parse_document(record, "ners", ends or "inclusive", offsets or "sentence", tally, place)
    if "sentences" in record and "ner" in record:
        return parse_document(record, "ner", ends or "inclusive", offsets or "document", tally, place)
    for words_key, key in (("sentence", "ner"), ("tokens", "entity_mentions"), ("tokens", "entities")):
        if words_key in record and key in record:
            return parse_sentence(record, words_key, key, ends or "exclusive", tally, place)
    raise DataError(
        f"{place}: these are not the keys of a system that is known: {', '.join(record)[:80] or 'none'}. Known are "
        "sentence + ner, tokens + entity_mentions, tokens + entities, sentences + ners, sentences + ner."
    )


def parse_words(value: Any, tally: ConversionReport, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        raise DataError(f"{place}: a sentence is a list of words, and this is {value!r:.60}.")
    if not value:
        tally.note("sentences without words left out", place)
    return tuple(value)


def parse_sentence(
    record: dict[str, Any], words_key: str, key: str, ends: str, tally: ConversionReport, place: str
) -> Iterator[Sentence]:
    """The sentence of a record, if it has words. Its entities list all their words, or have a start and an end."""
    words = parse_words(record[words_key], tally, place)
    entities = []
    for mention in json_objects(record, key, place):
        if words_key == "sentence":
            index = mention.get("index")
            if not isinstance(index, list) or not index or not all(type(k) is int for k in index):
                raise DataError(f"{place}: `index` must list the words of an entity: {mention!r:.80}.")
            start, stop, label, advice = min(index), max(index) + 1, mention.get("type"), "Check its index."
            if len(set(index)) < stop - start:
                tally.note(FRAGMENTS_JOINED, place)
        else:
            label = next((mention[k] for k in ("entity_type", "type", "label") if k in mention), None)
            start, end = check_numbers(mention.get("start"), mention.get("end"), mention, place)
            stop, other_stop = end + (ends == "inclusive"), end + (ends != "inclusive")
            other_ends = ENDS[ends == "inclusive"]
            advice = f"If ends are {other_ends} in this file, read it with ends={other_ends}."
            phrase, words_here = mention.get("text"), words[start:stop]
            if isinstance(phrase, str) and (
                remove_blanks(words_here) != remove_blanks(phrase) == remove_blanks(words[start:other_stop])
            ):
                raise DataError(
                    f"{place}: entity {start}-{end} {label} says {phrase!r:.40}, and its words are "
                    f"{' '.join(words_here)!r:.40}. {advice}"
                )
        entities.append(make_entity(start, stop, label, len(words), place, mention, advice))
    with locate_errors(place):
        if words:
            id = optional_str(first_value(record, "sent_id", "wnd_id", "orig_id"))
            yield Sentence(words, tuple(entities), id=id)


def remove_blanks(words: Iterable[str]) -> str:
    return "".join("".join(words).split())


def parse_document(
    record: dict[str, Any], key: str, ends: str, offsets: str, tally: ConversionReport, place: str
) -> Iterator[Sentence]:
    """The sentences of a document, which has a list of [start, end, label] for each."""
    sentences, entity_lists = record["sentences"], record[key]
    if not isinstance(sentences, list) or not isinstance(entity_lists, list):
        raise DataError(f"{place}: `sentences` and `{key}` must be lists.")
    if len(sentences) != len(entity_lists):
        raise DataError(
            f"{place}: there are {len(sentences)} `sentences` and {len(entity_lists)} `{key}`. There must be one for "
            "each."
        )
    before = 0  # words of the sentences before this one
    for number, (value, items) in enumerate(zip(sentences, entity_lists, strict=True), 1):
        where = f"{place}, sentence {number}"
        words = parse_words(value, tally, where)
        if not isinstance(items, list):
            raise DataError(f"{where}: its `{key}` must be a list, and is {items!r:.40}.")
        entities = []
        for item in items:
            if not isinstance(item, list) or len(item) < 3:
                raise DataError(f"{where}: an entity is [start, end, label], and this is {item!r:.60}.")
            if len(item) > 3:
                tally.note("further items of entities not read: start, end and label are", where)
            start, end = check_numbers(item[0], item[1], item, where)
            shift = before if offsets == "document" else 0
            stop = end + (ends == "inclusive")
            advice = advise_convention(start, end, before, len(words))
            entities.append(
                make_entity(start - shift, stop - shift, item[2], len(words), where, item, advice)
            )
        with locate_errors(where):
            if words:
                yield Sentence(words, tuple(entities))
        before += len(words)


def check_numbers(start: Any, end: Any, item: Any, place: str) -> tuple[int, int]:
    if type(start) is not int or type(end) is not int:
        raise DataError(f"{place}: start and end of an entity must be numbers of words: {item!r:.80}.")
    return start, end


def make_entity(start: int, stop: int, label: Any, length: int, place: str, item: Any, advice: str) -> Entity:
    """The entity from word `start` to before `stop`, if it lies in a sentence of this length."""
    if not isinstance(label, str) or not label:
        raise DataError(f"{place}: entity {item!r:.60} has no label.")
    if not 0 <= start < stop <= length:
        what = "is empty" if start == stop else f"is not within its sentence of {length} words"
        error = EmptySpanError if start == stop else SpanRangeError
        raise error(f"{place}: entity {item!r:.60} {what}. {advice}")
    return Entity(start, stop, label)


def advise_convention(start: int, end: int, before: int, length: int) -> str:
    """The options with which this entity would lie in its sentence, which has `before` words before it."""
    for ends in ENDS:
        for offsets in OFFSETS:
            first = before if offsets == "document" else 0
            if first <= start < end + (ends == "inclusive") <= first + length:
                return f"It would fit with ends={ends} and offsets={offsets}."
    return "Check its numbers."
