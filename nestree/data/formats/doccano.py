"""doccano: one text a line with its spans, under one of three keys, as triples or as objects.

    {"text": "in Rome", "label": [[3, 7, "GPE"]]}
    {"text": "in Rome", "labels": [[3, 7, "GPE"]]}
    {"text": "in Rome", "entities": [{"id": 1, "label": "GPE", "start_offset": 3, "end_offset": 7}]}

A JSON list of the same objects is read, too. What the offsets of doccano count depends on the settings of the
project: UTF-16 units or, if it counts grapheme clusters as one character, these. The file does not say which. It
only matters after emoji and combining marks, and is an option.
"""

from collections.abc import Iterable, Iterator
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
        with common.skip_bad(report):
            text = common.require_text(record, place)
            if relations := common.json_objects(record, "relations", place):
                report.note("relations not read", place, len(relations))
            mentions = list(parse_mentions(record, place))
            if offsets == "characters" and mentions and has_surrogate_pairs(text):
                report.note(AMBIGUOUS_OFFSETS, place)
            convert = to_code_points(text, offsets)
            yield AnnotatedText(
                text,
                [
                    mention._replace(start=convert(mention.start), end=convert(mention.end))
                    for mention in mentions
                ],
                place,
                common.optional_str(record.get("doc_id", record.get("id"))),
                common.without_keys(record, (*KEYS, "text", "doc_id", "relations")),
            )


def parse_mentions(record: Record, place: str) -> Iterator[Mention]:
    keys = [key for key in KEYS if record.get(key)]
    if len(keys) > 1:
        raise DataError(f"{place}: `{keys[0]}` and `{keys[1]}` both hold spans. Leave out one of them.")
    values = common.require(record, keys[0], list, [], place) if keys else []
    for value in values:
        start = end = label = None
        if isinstance(value, dict):
            start, end, label = (value.get(key) for key in ("start_offset", "end_offset", "label"))
        elif isinstance(value, list) and len(value) == 3:
            start, end, label = value
        if type(start) is not int or type(end) is not int or not isinstance(label, str) or not label:
            raise DataError(
                f"{place}: a span is [start, end, label] or an object with start_offset, end_offset and label, "
                f"and this is {value!r:.60}. Labels are strings: texts that were classified have no spans."
            )
        extra = {"id": value["id"]} if isinstance(value, dict) and "id" in value else {}
        yield Mention(start, end, label, extra=extra)


def write(documents: Iterable[Document], path: Path, report: ConversionReport, *, key: str = "label") -> None:
    """One document a line. key: where its spans stand, "label", "labels" or "entities"."""
    common.check_choice("key", key, KEYS)

    def to_line(place: str, document: Document) -> str:
        document = document.with_text()
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
        record |= common.without_keys(document.extra, (*KEYS, *record))
        return common.dump_json(record, f"{path}, {place}")

    common.write_joined((to_line(*pair) for pair in common.report_losses(documents, "doccano", report)), path)
