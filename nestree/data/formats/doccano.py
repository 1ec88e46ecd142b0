"""doccano: one text a line with its spans, under one of three keys, as triples or as objects.

    {"text": "in Rome", "label": [[3, 7, "GPE"]]}
    {"text": "in Rome", "labels": [[3, 7, "GPE"]]}
    {"text": "in Rome", "entities": [{"id": 1, "label": "GPE", "start_offset": 3, "end_offset": 7}]}

A JSON list of the same objects is read, too. What the offsets of doccano count depends on the settings of the
project: UTF-16 units or, if it counts grapheme clusters as one character, these. The file does not say which. It
only matters after emoji and combining marks, and is an option.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from nestree.data.alignment import (
    AMBIGUOUS_OFFSETS,
    AnnotatedText,
    Mention,
    has_surrogate_pairs,
    to_code_points,
)
from nestree.data.formats import common
from nestree.data.formats.common import Record
from nestree.data.io import ConversionReport, json_records
from nestree.errors import DataError
from nestree.types import Document

KEYS = ("label", "labels", "entities")


def read(path: Path, report: ConversionReport, *, offsets: str = "characters") -> Iterator[AnnotatedText]:
    """The texts of a file, each a document.

    offsets: what they count, "characters", "utf-16" or "graphemes".
    """
    to_code_points("", offsets)  # raises if there is no such unit
    for place, record in json_records(path, report):
        with common.skip_bad(report, place):
            text = common.require_text(record)
            common.count_relations(record, report)
            convert = to_code_points(text, offsets)
            mentions = list(parse_mentions(record, convert))
            if offsets == "characters" and mentions and has_surrogate_pairs(text):
                report.note(AMBIGUOUS_OFFSETS)
            id = common.optional_str(record.get("doc_id", record.get("id")))
            extra = common.without_keys(record, (*KEYS, "text", "doc_id", "relations"))
            yield AnnotatedText(text, mentions, place, id, extra)


def parse_mentions(record: Record, convert: Callable[[int], int]) -> Iterator[Mention]:
    keys = [key for key in KEYS if record.get(key)]
    if len(keys) > 1:
        raise DataError(f"`{keys[0]}` and `{keys[1]}` both hold spans. Leave out one of them.")
    for value in common.require(record, keys[0], list, []) if keys else ():
        start = end = label = None
        if isinstance(value, dict):
            start, end, label = (value.get(key) for key in ("start_offset", "end_offset", "label"))
        elif isinstance(value, list) and len(value) == 3:
            start, end, label = value
        if type(start) is not int or type(end) is not int or not isinstance(label, str) or not label:
            raise DataError(
                "a span is [start, end, label] or an object with start_offset, end_offset and label, and this is "
                f"{value!r:.60}. Labels are strings: texts that were classified have no spans."
            )
        extra = {"id": value["id"]} if isinstance(value, dict) and "id" in value else {}
        yield Mention(convert(start), convert(end), label, extra=extra)


def write(documents: Iterable[Document], path: Path, report: ConversionReport, *, key: str = "label") -> None:
    """One document a line. key: where its spans stand, "label", "labels" or "entities"."""
    common.check_choice("key", key, KEYS)

    def to_record(document: Document, place: str) -> Record:
        spans = [(start, end, entity.label) for entity, start, end in common.entity_offsets(document)]
        record: Record = {"text": document.text, key: spans}
        if key == "entities":
            record[key] = [
                {"id": number, "label": label, "start_offset": start, "end_offset": end}
                for number, (start, end, label) in enumerate(spans, 1)
            ]
            record["relations"] = []
        if document.id is not None:
            record["doc_id"] = document.id
        return record | common.without_keys(document.extra, (*KEYS, *record))

    common.write_json(common.report_losses(documents, "doccano", report), path, to_record)
