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

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nestree.data.io import ConversionReport, json_objects, json_records
from nestree.errors import DataError, EmptySpanError, InputError, SpanRangeError
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
READ = {
    "sentence", "sentences", "tokens", "ner", "ners", "entity_mentions", "entities",
    "doc_id", "doc_key", "sent_id", "wnd_id", "orig_id",
}  # fmt: skip
READ_OF_ENTITIES = {"index", "start", "end", "entity_type", "type", "label", "text"}


class Convention(NamedTuple):
    """What the numbers of an entity mean."""

    ends: str
    offsets: str = "sentence"


def read(path: Path, tally: ConversionReport, *, ends: str = "", offsets: str = "") -> Iterator[Document]:
    """The documents of a file; records with the same `doc_id` that follow each other are one.

    ends: "inclusive" or "exclusive"; offsets: words of the "sentence" or of the "document". If they are not given,
    as the system with these keys has it.
    """
    for name, value, choices in (("ends", ends, ENDS), ("offsets", offsets, OFFSETS)):
        if value and value not in choices:
            raise InputError(f"{name} is one of {', '.join(choices)}, not {value!r}.")
    group: list[Sentence] = []
    group_id: str | None = None
    for place, record in json_records(path, tally):
        try:
            found, id = sentences(record, ends, offsets, tally, place)
        except DataError as error:
            tally.bad(error)
            continue
        note_unread(record, tally, place)
        if group and (id is None or id != group_id or "sentences" in record):
            yield Document(tuple(group), None, group_id)
            group = []
        group_id = id
        group += found
        if "sentences" in record and group:
            yield Document(tuple(group), None, group_id)
            group = []
    if group:
        yield Document(tuple(group), None, group_id)


def note_unread(record: dict[str, Any], tally: ConversionReport, place: str) -> None:
    for key, what in NOT_READ.items():
        if isinstance(record.get(key), list) and any(record[key]):
            tally.note(what, place)
    if others := record.keys() - READ - NOT_READ.keys():
        tally.note("further keys of records not read", place, len(others))
    listed = [
        record[key] for key in ("ner", "entity_mentions", "entities") if isinstance(record.get(key), list)
    ]
    mentions = [each for mentions in listed for each in mentions if isinstance(each, dict)]
    if more := sum(bool(each.keys() - READ_OF_ENTITIES) for each in mentions):
        tally.note("further keys of entities not read", place, more)


def sentences(
    record: dict[str, Any], ends: str, offsets: str, tally: ConversionReport, place: str
) -> tuple[list[Sentence], str | None]:
    """The sentences of a record, and the id of its document."""
    id = next((record[key] for key in ("doc_id", "doc_key") if record.get(key) is not None), None)
    id = None if id is None else str(id)
    if "sentences" in record and ("ners" in record or "ner" in record):
        key = "ners" if "ners" in record else "ner"
        usual = Convention("inclusive", "sentence" if key == "ners" else "document")
        convention = Convention(ends or usual.ends, offsets or usual.offsets)
        return of_document(record["sentences"], record[key], key, convention, tally, place), id
    if "sentence" in record and "ner" in record:
        return [s for s in [of_indices(record, tally, place)] if s], id
    for key in ("entity_mentions", "entities"):
        if "tokens" in record and key in record:
            return [s for s in [of_mentions(record, key, ends or "exclusive", tally, place)] if s], id
    raise DataError(
        f"{place}: these are not the keys of a system that is known: {', '.join(record)[:80] or 'none'}. Known are "
        "sentence + ner, tokens + entity_mentions, tokens + entities, sentences + ners, sentences + ner."
    )


def words_of(value: Any, tally: ConversionReport, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        raise DataError(f"{place}: a sentence is a list of words, and this is {value!r:.60}.")
    if not value:
        tally.note("sentences without words left out", place)
    return tuple(value)


def sentence(
    words: tuple[str, ...], entities: list[Entity], record: dict[str, Any], place: str
) -> Sentence | None:
    id = next((record[key] for key in ("sent_id", "wnd_id", "orig_id") if record.get(key) is not None), None)
    try:
        return Sentence(words, tuple(entities), id=None if id is None else str(id)) if words else None
    except DataError as error:
        raise error.at(place) from None


def of_indices(record: dict[str, Any], tally: ConversionReport, place: str) -> Sentence | None:
    """A sentence whose entities list all their words."""
    words = words_of(record["sentence"], tally, place)
    entities = []
    for mention in json_objects(record, "ner", place):
        index, label = mention.get("index"), mention.get("type")
        if not isinstance(index, list) or not index or not all(type(k) is int for k in index):
            raise DataError(f"{place}: `index` must list the words of an entity: {mention!r:.80}.")
        if sorted(set(index)) != list(range(min(index), max(index) + 1)):
            tally.note("fragments joined: the entity holds what is between them, too", place)
        entities.append(
            entity(min(index), max(index) + 1, label, len(words), place, mention, "Check its index.")
        )
    return sentence(words, entities, record, place)


def of_mentions(
    record: dict[str, Any], key: str, ends: str, tally: ConversionReport, place: str
) -> Sentence | None:
    """A sentence whose entities have a start, an end and, in some files, their text."""
    words = words_of(record["tokens"], tally, place)
    entities = []
    for mention in json_objects(record, key, place):
        label = next((mention[k] for k in ("entity_type", "type", "label") if k in mention), None)
        start, end = whole_numbers(mention.get("start"), mention.get("end"), mention, place)
        stop = end + (ends == "inclusive")
        other = end + (ends != "inclusive")
        phrase = mention.get("text")
        if isinstance(phrase, str) and squeezed(words[start:stop]) != squeezed([phrase]) == squeezed(
            words[start:other]
        ):
            raise DataError(
                f"{place}: entity {start}-{end} {label} says {phrase!r:.40}, and its words are "
                f"{' '.join(words[start:stop])!r:.40}. {remedy_ends(ends)}"
            )
        entities.append(entity(start, stop, label, len(words), place, mention, remedy_ends(ends)))
    return sentence(words, entities, record, place)


def of_document(
    given: Any, entities: Any, key: str, convention: Convention, tally: ConversionReport, place: str
) -> list[Sentence]:
    """The sentences of a document, with lists [start, end, label] for each."""
    if not isinstance(given, list) or not isinstance(entities, list):
        raise DataError(f"{place}: `sentences` and `{key}` must be lists.")
    if len(given) != len(entities):
        raise DataError(
            f"{place}: there are {len(given)} `sentences` and {len(entities)} `{key}`. There must be one for each."
        )
    length = sum(len(words) for words in given if isinstance(words, list))
    found, before = [], 0
    for number, (value, listed) in enumerate(zip(given, entities, strict=True), 1):
        where = f"{place}, sentence {number}"
        words = words_of(value, tally, where)
        if not isinstance(listed, list):
            raise DataError(f"{where}: its `{key}` must be a list, and is {listed!r:.40}.")
        shift = before if convention.offsets == "document" else 0
        inside = []
        for item in listed:
            if not isinstance(item, list) or len(item) < 3:
                raise DataError(f"{where}: an entity is [start, end, label], and this is {item!r:.60}.")
            if len(item) > 3:
                tally.note("further items of entities not read: start, end and label are", where)
            start, end = whole_numbers(item[0], item[1], item, where)
            stop = end + (convention.ends == "inclusive")
            remedy = remedy_offsets(start, end, before, len(words), length, convention)
            inside.append(entity(start - shift, stop - shift, item[2], len(words), where, item, remedy))
        made = sentence(words, inside, {}, where)
        found += [made] if made else []
        before += len(words)
    return found


def whole_numbers(start: Any, end: Any, item: Any, place: str) -> tuple[int, int]:
    if type(start) is not int or type(end) is not int:
        raise DataError(f"{place}: start and end of an entity must be numbers of words: {item!r:.80}.")
    return start, end


def entity(start: int, stop: int, label: Any, length: int, place: str, written: Any, remedy: str) -> Entity:
    """The entity from word `start` to before `stop`, if it lies in a sentence of this length."""
    if not isinstance(label, str) or not label:
        raise DataError(f"{place}: entity {written!r:.60} has no label.")
    if not 0 <= start < stop <= length:
        error = EmptySpanError if start == stop else SpanRangeError
        what = "is empty" if start == stop else f"is not within its sentence of {length} words"
        raise error(f"{place}: entity {written!r:.60} {what}. {remedy}")
    return Entity(start, stop, label)


def remedy_ends(ends: str) -> str:
    other = ENDS[ends == "inclusive"]
    return f"If ends are {other} in this file, read it with ends={other}."


def remedy_offsets(start: int, end: int, before: int, words: int, length: int, convention: Convention) -> str:
    """Which other convention would have this entity in its sentence?"""
    for ends in ENDS:
        for offsets in OFFSETS:
            first = before if offsets == "document" else 0
            stop = end + (ends == "inclusive")
            if first <= start < stop <= first + words <= length:
                return f"It would fit with ends={ends} and offsets={offsets}."
    return "Check its numbers."


def squeezed(words: Any) -> str:
    return "".join("".join(words).split())
