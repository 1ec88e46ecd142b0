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
from typing import Any

from nestree.data.alignment import (
    AMBIGUOUS_OFFSETS,
    LabeledSpan,
    align_spans,
    has_surrogate_pairs,
    to_code_points,
)
from nestree.data.formats.common import (
    check_choice,
    dump_json,
    entity_offsets,
    optional_str,
    require_text,
    skip_bad,
)
from nestree.data.io import ConversionReport, atomic_writer, json_objects, json_records
from nestree.data.lossiness import report_losses
from nestree.errors import DataError
from nestree.types import Document

KEYS = ("label", "labels", "entities")


def read(
    path: Path,
    tally: ConversionReport,
    *,
    words: str = "treebank",
    sentences: str = "rules",
    offsets: str = "characters",
) -> Iterator[Document]:
    """The texts of a file, each a document.

    words, sentences: how the text is split (see nestree.text). offsets: what they count, "characters", "utf-16"
    or "graphemes".
    """
    to_code_points("", offsets)  # raises if there is no such unit
    for place, record in json_records(path, tally):
        with skip_bad(tally):
            text = require_text(record, place)
            if relations := json_objects(record, "relations", place):
                tally.note("relations not read", place, len(relations))
            spans = list(parse_spans(record, place))
            if offsets == "characters" and spans and has_surrogate_pairs(text):
                tally.note(AMBIGUOUS_OFFSETS, place)
            convert = to_code_points(text, offsets)
            yield align_spans(
                text,
                [span._replace(start=convert(span.start), end=convert(span.end)) for span in spans],
                id=optional_str(record.get("doc_id", record.get("id"))),
                words=words,
                sentences=sentences,
                tally=tally,
                place=place,
                extra={k: v for k, v in record.items() if k not in (*KEYS, "text", "doc_id", "relations")},
            )


def parse_spans(record: dict[str, Any], place: str) -> Iterator[LabeledSpan]:
    keys = [key for key in KEYS if record.get(key)]
    if len(keys) > 1:
        raise DataError(f"{place}: `{keys[0]}` and `{keys[1]}` both hold spans. Leave out one of them.")
    values = record[keys[0]] if keys else []
    if not isinstance(values, list):
        raise DataError(f"{place}: `{keys[0]}` must be a list of spans, and is {values!r:.40}.")
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
        yield LabeledSpan(start, end, label, extra=extra)


def write(documents: Iterable[Document], path: Path, tally: ConversionReport, *, key: str = "label") -> None:
    """One document a line. key: where its spans stand, "label", "labels" or "entities"."""
    check_choice("key", key, KEYS)
    with atomic_writer(path) as file:
        for place, document in report_losses(documents, "doccano", tally):
            document = document.with_text()
            spans = [(start, end, entity.label) for entity, start, end in entity_offsets(document)]
            record: dict[str, Any] = {"text": document.text, key: spans}
            if key == "entities":
                record[key] = [
                    {"id": number, "label": label, "start_offset": start, "end_offset": end}
                    for number, (start, end, label) in enumerate(spans, 1)
                ]
                record["relations"] = []
            if document.id is not None:
                record["doc_id"] = document.id
            record.update((k, v) for k, v in document.extra.items() if k not in (*KEYS, *record))
            file.write(dump_json(record, f"{path}, {place}") + "\n")
