"""BioC, XML or JSON: documents of passages, with annotations.

    <collection><source/><date/><key/><document><id>1</id><passage><offset>0</offset><text>in Rome</text>
    <annotation id="1"><infon key="type">GPE</infon><location offset="3" length="4"/><text>Rome</text></annotation>
    </passage></document></collection>

Offsets count characters of the document. The label is the infon `type`; the others are kept. An annotation with
several locations is one entity, from the first to the last. Its text is compared with the text at its offsets.
Both forms become the same objects, those of the JSON, before they are read, and after they are made.
"""

import io
import itertools
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from nestree.data.alignment import AnnotatedText, Mention, Passage, join_passages
from nestree.data.formats import common
from nestree.data.formats.common import Record
from nestree.data.io import STDIO, ConversionReport, GzipReader, json_records, open_file
from nestree.data.xml import parse_events
from nestree.errors import DataError
from nestree.types import Document

KINDS = ("xml", "json", "jsonl")
FRAMES = {  # what a file begins with, has between documents, and ends with
    "xml": (
        "<?xml version='1.0' encoding='utf-8'?>\n<collection><source></source><date></date><key></key>\n",
        "\n",
        "\n</collection>\n",
    ),
    "json": ('{"source": "", "date": "", "key": "", "infons": {}, "documents": [\n', ",\n", "\n]}\n"),
    "jsonl": ("", "\n", "\n"),
}
HOLDERS = {"document", "passage", "sentence", "annotation", "relation"}  # elements that hold others
NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
LINE_ENDS = {"\r": "&#13;"}  # parsers make LF of CRLF
COLLECTION_NOT_READ = "source, date, key and infons of a collection not read"


def read(path: Path, report: ConversionReport, *, label: str = "type") -> Iterator[AnnotatedText]:
    """The documents of a collection, or of a file with one JSON document a line.

    Where a passage is given as sentences, these are kept. label: the infon that holds the labels.
    """
    load = load_json if first_character(path) in b"{[" else load_xml
    with common.skip_bad(report):  # after what cannot be parsed, the rest of the file is lost
        for place, document in load(path, report):
            with common.skip_bad(report, place):
                yield to_annotated(document, label, report, place)


def first_character(path: Path) -> bytes:
    """The first character of a file that is not blank; standard input stays where it is."""
    with open_file(path) as file:
        if path == STDIO and isinstance(file, io.BufferedReader) and isinstance(file.raw, GzipReader):
            raise DataError("BioC from standard input must not be packed. Unpack it, such as with gunzip -c.")
        start = file.peek(1024) if isinstance(file, io.BufferedReader) else b"<"
    return start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]


def load_xml(path: Path, report: ConversionReport) -> Iterator[tuple[str, Record]]:
    """Each `<document>`, with its place."""
    holders: list[Record] = []  # that are open
    text, key, depth, first_line, is_noted = "", "", 0, 0, False
    for kind, name, attributes, line in parse_events(path):
        if kind == "text":
            text += name
        elif kind == "start":
            depth += 1
            text, key = "", attributes.get("key", "")
            if depth == 1 and name != "collection":
                raise DataError(f"{path}:{line}: <{name}> is not BioC, which begins with <collection>.")
            if (name == "document" and depth == 2) or (name in HOLDERS and holders):
                first_line = first_line if holders else line
                holder: Record = {"infons": {}, **attributes}
                if holders:
                    holders[-1].setdefault(f"{name}s", []).append(holder)
                holders.append(holder)
            elif name == "location" and holders:
                holders[-1].setdefault("locations", []).append(attributes)
        else:
            depth -= 1
            if not holders and depth == 1 and text.strip() and not is_noted:
                is_noted = True
                report.note(COLLECTION_NOT_READ, f"{path}:{line}")
            elif name == "infon" and holders:
                holders[-1]["infons"][key] = text
            elif name in ("id", "offset", "text") and holders:
                holders[-1][name] = text
            elif name in HOLDERS and holders:
                holder = holders.pop()
                if not holders:
                    yield f"{path}:{first_line}", {"passages": [], **holder}
            text = ""


def load_json(path: Path, report: ConversionReport) -> Iterator[tuple[str, Record]]:
    """Each document of a collection, or of a line, with its place."""
    for place, record in json_records(path, report):
        if "documents" in record and any(record.get(key) for key in ("source", "date", "key", "infons")):
            report.note(COLLECTION_NOT_READ, place)
        key = next((key for key in ("documents", "PubTator3") if key in record), None)
        if key is None:
            yield place, record
            continue
        with common.skip_bad(report, place):
            for number, document in enumerate(common.json_objects(record, key), 1):
                yield f"{place}, document {number}", document


def to_annotated(document: Record, label: str, report: ConversionReport, place: str) -> AnnotatedText:
    if not isinstance(document.get("passages"), list):
        raise DataError("a BioC document needs a list of `passages`.")
    passages: list[Passage] = []  # sentences do not cross their boundaries
    boundaries, holders = [], [document]
    for passage in common.json_objects(document, "passages"):
        sentences = common.json_objects(passage, "sentences")
        holders += [passage, *sentences]
        parts = [to_passage(sentence, True) for sentence in sentences if sentence.get("text")]
        parts = parts or [to_passage(passage, False)]
        end, infons = parts[-1].start + len(parts[-1].text), common.require(passage, "infons", dict, {})
        boundaries.append({"start": parts[0].start, "end": end, "infons": infons})
        passages += parts
    text_start = passages[0].start if passages else 0
    passages = [passage._replace(start=passage.start - text_start) for passage in passages]
    mentions = []
    for holder in holders:
        if relations := holder.get("relations"):
            report.note("relations not read", times=len(relations))
        for annotation in common.json_objects(holder, "annotations"):
            id = common.optional_str(annotation.get("id") or None)
            with common.skip_bad(report, f"{place}, annotation {id}" if id else place):
                mentions.append(to_mention(annotation, id, text_start, label, report))
    extra = dict(common.require(document, "infons", dict, {}))
    if text_start or len(boundaries) > 1 or any(boundary["infons"] for boundary in boundaries):
        extra["passages"] = boundaries
    id = common.optional_str(document.get("id") or None)
    return AnnotatedText(join_passages(passages), mentions, place, id, extra, passages=passages)


def to_passage(holder: Record, is_sentence: bool) -> Passage:
    return Passage(to_number(holder.get("offset")), common.require(holder, "text", str, ""), is_sentence)


def to_number(value: Any) -> int:
    """An offset or a length; XML has them as strings."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,15}", value.strip()):
        value = int(value)
    if type(value) is not int or value < 0:
        raise DataError(f"offsets and lengths must be numbers, 0 or more, and this is {value!r:.40}.")
    return value


def to_mention(
    annotation: Record, id: str | None, text_start: int, label_infon: str, report: ConversionReport
) -> Mention:
    """The entity of an annotation; `text_start` is the offset at which the text begins."""
    infons = common.require(annotation, "infons", dict, {})
    phrase = common.optional_str(annotation.get("text"))
    label, infons = infons.get(label_infon), common.without_keys(infons, [label_infon])
    if not isinstance(label, str) or not label:
        raise DataError(
            f"its infon {label_infon!r} is {label!r:.40}, and should be its label. If another infon is meant, choose "
            f"the option `label`; there are {', '.join(map(str, infons))[:60] or 'no others'}."
        )
    fragments = []
    for location in common.json_objects(annotation, "locations"):
        start = to_number(location.get("offset")) - text_start
        fragments.append((start, start + to_number(location.get("length"))))
    if not fragments:
        raise DataError("the annotation has no location. Give its offset and its length.")
    if phrase is None:
        report.note(common.NOT_COMPARED)
    score = infons.pop("score", None)
    if isinstance(score, str):
        with suppress(ValueError):  # `parse_probability` counts what is no number
            score = float(score)
    score = common.parse_probability(score, report)
    extra = {**({"id": id} if id else {}), **infons}
    fragments.sort()
    start, end = fragments[0][0], max(end for _, end in fragments)
    return Mention(start, end, label, None, score, extra, report.place, phrase, fragments)


def write(
    documents: Iterable[Document],
    path: Path,
    report: ConversionReport,
    *,
    kind: str = "",
    label: str = "type",
) -> None:
    """A collection. kind: "xml", "json" or "jsonl" (one document a line); if it is not given, as the file is called.

    label: the infon that holds the labels.
    """
    kind = kind or next((k for k in reversed(KINDS) if f".{k}" in path.suffixes), "xml")
    common.check_choice("kind", kind, KINDS)

    def to_text(place: str, document: Document) -> str:
        try:
            record = from_document(document.with_text(), label)
            text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as why:
            raise DataError(f"{path}, {place}: `extra` holds what JSON cannot: {why}.") from None
        text = to_xml("document", record) if kind == "xml" else text
        if kind == "xml" and (character := NOT_IN_XML.search(text)):
            raise DataError(
                f"{path}, {place}: XML cannot hold {character[0]!r}. Write BioC as JSON instead, kind=json."
            )
        return text

    losses = common.report_losses(documents, "bioc", report)
    common.write_joined((to_text(*pair) for pair in losses), path, FRAMES[kind])


def to_xml(name: str, record: Record) -> str:
    """The element of a holder."""
    parts = []
    for key, value in record["infons"].items():
        parts.append(f"<infon key={quoteattr(key)}>{escape(value, LINE_ENDS)}</infon>")
    for location in record.get("locations", ()):
        parts.append(f'<location offset="{location["offset"]}" length="{location["length"]}"/>')
    for key in ("offset", "text"):
        if key in record:
            parts.append(f"<{key}>{escape(str(record[key]), LINE_ENDS)}</{key}>")
    parts += [to_xml("passage", passage) for passage in record.get("passages", ())]
    parts += [to_xml("annotation", annotation) for annotation in record.get("annotations", ())]
    if name == "document":
        parts.insert(0, f"<id>{escape(record['id'])}</id>")
    attribute = f" id={quoteattr(record['id'])}" if name == "annotation" else ""
    return f"<{name}{attribute}>{''.join(parts)}</{name}>"


def from_document(document: Document, label_infon: str) -> Record:
    """The document as an object; its passages are those it was read with, or one."""
    text = document.text or ""
    passages = stored_passages(document.extra.get("passages"), len(text))
    starts = [passage["offset"] for passage in passages]
    for passage in passages:
        start = passage["offset"] - starts[0]
        passage["text"] = text[start : start + passage.pop("length")]
    new_ids = itertools.count(1)
    for entity, start, end in common.entity_offsets(document):
        infons = {key: to_infon(value) for key, value in entity.extra.items() if key != "id"}
        if entity.score is not None:
            infons["score"] = to_infon(entity.score)
        annotation = {
            "id": to_infon(entity.extra.get("id", next(new_ids))),
            "infons": infons | {label_infon: entity.label},
            "text": text[start:end],
            "locations": [{"offset": start + starts[0], "length": end - start}],
        }
        passages[bisect_right(starts, start + starts[0]) - 1]["annotations"].append(annotation)
    infons = {key: to_infon(value) for key, value in document.extra.items() if key != "passages"}
    lists: Record = {"annotations": [], "relations": []}
    return {"id": document.id or "", "infons": infons, "passages": passages, **lists}


def stored_passages(value: Any, length: int) -> list[Record]:
    """Passages without text, from those in `extra` if they fit a text of this length; else one passage."""
    triples: list[tuple[int, int, Record]] = [(0, length, {})]
    with suppress(AttributeError, KeyError, TypeError):
        stored = [(p["start"], p["end"], {k: to_infon(v) for k, v in p["infons"].items()}) for p in value]
        boundaries = [offset for start, end, _ in stored for offset in (start, end)]
        is_sorted = boundaries == sorted(boundaries)
        if is_sorted and boundaries and boundaries[0] >= 0 and boundaries[-1] - boundaries[0] == length:
            triples = stored
    return [
        {"offset": start, "length": end - start, "infons": infons}
        | {"sentences": [], "annotations": [], "relations": []}
        for start, end, infons in triples
    ]


def to_infon(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
