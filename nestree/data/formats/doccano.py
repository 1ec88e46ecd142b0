"""doccano: one text a line with its spans, under one of three keys, as triples or as objects.

    {"text": "in Rome", "label": [[3, 7, "GPE"]]}
    {"text": "in Rome", "labels": [[3, 7, "GPE"]]}
    {"text": "in Rome", "entities": [{"id": 1, "label": "GPE", "start_offset": 3, "end_offset": 7}]}

A JSON list of the same objects is read, too. What the offsets of doccano count depends on the settings of the
project: UTF-16 units or, if it counts grapheme clusters as one character, these. Nothing in the file tells which;
it only matters behind emoji and combining marks, and there it is an option.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nestree.data.alignment import UNSURE, CharacterSpan, align_spans, has_surrogate_pairs, to_code_points
from nestree.data.formats.jsonl import dumped
from nestree.data.io import ConversionReport, atomic_writer, json_objects, json_records
from nestree.data.lossiness import report_losses
from nestree.errors import DataError, InputError
from nestree.types import Document

KEYS = ("label", "labels", "entities")
NOT_WRITTEN = (
    "heads",
    "scores",
    "further keys of entities",
    "further keys of sentences",
    "ids of sentences",
    "marks of incomplete sentences",
    "borders of words",
    "borders of sentences",
)


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
    to_code_points("", offsets)
    for place, record in json_records(path, tally):
        try:
            text = record.get("text")
            if not isinstance(text, str):
                raise DataError(
                    f"{place}: a line needs a `text`, and has {', '.join(record)[:60] or 'nothing'}."
                )
            if relations := json_objects(record, "relations", place):
                tally.note("relations not read", place, len(relations))
            spans = list(read_spans(record, place))
            if offsets == "characters" and spans and has_surrogate_pairs(text):
                tally.note(UNSURE, place)
            count = to_code_points(text, offsets)
            id = record.get("doc_id", record.get("id"))
            document = align_spans(
                text,
                [span._replace(start=count(span.start), end=count(span.end)) for span in spans],
                id=None if id is None else str(id),
                words=words,
                sentences=sentences,
                tally=tally,
                place=place,
                extra={k: v for k, v in record.items() if k not in (*KEYS, "text", "doc_id", "relations")},
            )
        except DataError as error:
            tally.bad(error)
            continue
        yield document


def read_spans(record: dict[str, Any], place: str) -> Iterator[CharacterSpan]:
    """The spans under whichever of the keys has some."""
    present = [key for key in KEYS if record.get(key)]
    if len(present) > 1:
        raise DataError(f"{place}: `{present[0]}` and `{present[1]}` both hold spans. Leave out one of them.")
    if not present:
        return
    found = record[present[0]]
    if not isinstance(found, list):
        raise DataError(f"{place}: `{present[0]}` must be a list of spans, and is {found!r:.40}.")
    for value in found:
        if isinstance(value, dict):
            start, end, label = (value.get(key) for key in ("start_offset", "end_offset", "label"))
        elif isinstance(value, list) and len(value) == 3:
            start, end, label = value
        else:
            start = end = label = None
        if type(start) is not int or type(end) is not int or not isinstance(label, str) or not label:
            raise DataError(
                f"{place}: a span is [start, end, label] or an object with start_offset, end_offset and label, "
                f"and this is {value!r:.60}. Labels are names: texts that were classified have no spans."
            )
        extra = {"id": value["id"]} if isinstance(value, dict) and "id" in value else {}
        yield CharacterSpan(start, end, label, extra=extra)


def write(documents: Iterable[Document], path: Path, tally: ConversionReport, *, key: str = "label") -> None:
    """One document a line. key: where its spans stand, "label", "labels" or "entities"."""
    if key not in KEYS:
        raise InputError(f"doccano has no key {key!r}. Choose one of {', '.join(KEYS)}.")
    with atomic_writer(path) as file:
        for number, document in enumerate(documents, 1):
            place = document.id or f"document {number}"
            report_losses(document, "doccano", NOT_WRITTEN, tally, place)
            document = document.with_text()
            spans: list[Any] = [
                [*sentence.characters(entity), entity.label]
                for sentence in document.sentences
                for entity in sentence.entities
            ]
            record: dict[str, Any] = {"text": document.text, key: spans}
            if key == "entities":
                record[key] = [
                    {"id": n, "label": label, "start_offset": start, "end_offset": end}
                    for n, (start, end, label) in enumerate(spans, 1)
                ]
                record["relations"] = []
            if document.id is not None:
                record["doc_id"] = document.id
            record.update((k, v) for k, v in document.extra.items() if k not in (*KEYS, *record))
            file.write(dumped(record, f"{path}, {place}") + "\n")
