"""BioC, XML or JSON, through the library `bioc`: documents of passages, with annotations.

    <collection><source/><date/><key/><document><id>1</id><passage><offset>0</offset><text>in Rome</text>
    <annotation id="1"><infon key="type">GPE</infon><location offset="3" length="4"/><text>Rome</text></annotation>
    </passage></document></collection>

Offsets count characters of the document. The label is the infon `type`; the others are kept. An annotation with
several locations is one entity, from the first to the last. Its text is compared with the text at its offsets.
XML is checked before the library sees it: no entity declarations, nothing fetched.
"""

import io
import itertools
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nestree.data.alignment import CharacterSpan, Passage, align_to_passages, whole_text
from nestree.data.io import (
    STDIO,
    ConversionReport,
    Unpacked,
    atomic_writer,
    json_records,
    open_file,
    optional_import,
    probability,
)
from nestree.data.lossiness import report_losses
from nestree.data.xml import events
from nestree.errors import DataError, InputError
from nestree.types import Document

KINDS = ("xml", "json", "jsonl")
NOT_WRITTEN = (
    "heads",
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
    label: str = "type",
) -> Iterator[Document]:
    """The documents of a collection, or of a file with one JSON document a line.

    words, sentences: how the text is split (see nestree.text); where a passage is given as sentences, these are
    kept. label: the infon that holds the labels.
    """
    optional_import("bioc", "BioC", "formats")
    found = from_json(path, tally) if first_character(path) in b"{[" else from_xml(path, tally)
    for place, document in until_bad(found, tally):
        try:
            made = to_document(document, words, sentences, label, tally, place)
        except DataError as error:
            tally.bad(error)
            continue
        yield made


def until_bad(found: Iterator[tuple[str, Any]], tally: ConversionReport) -> Iterator[tuple[str, Any]]:
    """The documents before what cannot be read; where those behind it begin, nobody knows."""
    try:
        yield from found
    except DataError as error:
        tally.bad(error)


def first_character(path: Path) -> bytes:
    """Looked at, and left where it is."""
    with open_file(path) as file:
        packed = isinstance(file, io.BufferedReader) and isinstance(file.raw, Unpacked)
        if path == STDIO and packed:
            raise DataError("BioC from standard input must not be packed. Unpack it, such as with gunzip -c.")
        start = file.peek(1024) if isinstance(file, io.BufferedReader) else b"<"
    return start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]


OF_COLLECTION = "source, date, key and infons of a collection not read"


def from_xml(path: Path, tally: ConversionReport) -> Iterator[tuple[str, Any]]:
    """Each `<document>`, as the library reads it."""
    etree, biocxml = (
        optional_import("lxml.etree", "BioC", "formats"),
        optional_import("bioc.biocxml", "BioC", "formats"),
    )
    builder, depth, line, told = None, 0, 0, False
    for event in events(path):
        if event.kind == "start":
            depth += 1
            if depth == 1 and event.name != "collection":
                raise DataError(
                    f"{path}:{event.line}: <{event.name}> is no BioC. It begins with <collection>."
                )
            if depth == 2 and event.name == "document":
                builder, line = etree.TreeBuilder(), event.line
            if builder is not None:
                builder.start(event.name, event.attributes)
        elif builder is not None and event.kind == "text":
            builder.data(event.name)
        elif event.kind == "text" and depth == 2 and event.name.strip() and not told:
            told = True
            tally.note(OF_COLLECTION, f"{path}:{event.line}")
        elif event.kind == "end":
            depth -= 1
            if builder is None:
                continue
            builder.end(event.name)
            if depth == 1:
                text = etree.tostring(builder.close(), encoding="unicode")
                builder, place = None, f"{path}:{line}"
                try:
                    yield place, biocxml.loads(f"<collection>{text}</collection>").documents[0]
                except (KeyError, TypeError, ValueError, AttributeError, etree.XMLSyntaxError) as why:
                    tally.bad(DataError(f"{place}: this document is not as BioC has it: {why!r:.80}."))


def from_json(path: Path, tally: ConversionReport) -> Iterator[tuple[str, Any]]:
    """Each document of a collection, or of a line."""
    biocjson = optional_import("bioc.biocjson", "BioC", "formats")
    for place, record in json_records(path, tally):
        listed = record.get("documents", record.get("PubTator3", [record]))
        if not isinstance(listed, list) or not all(isinstance(document, dict) for document in listed):
            tally.bad(DataError(f"{place}: `documents` must be a list of objects, and is {listed!r:.40}."))
            continue
        if "documents" in record and any(record.get(key) for key in ("source", "date", "key", "infons")):
            tally.note(OF_COLLECTION, place)
        for number, document in enumerate(listed, 1):
            where = place if listed[0] is record else f"{place}, document {number}"
            try:
                yield where, biocjson.fromJSON(filled(document, where), "BioCDocument")
            except (KeyError, TypeError, ValueError, AttributeError) as why:
                if not isinstance(why, DataError):
                    why = DataError(f"{where}: this document is not as BioC has it: {why!r:.80}.")
                tally.bad(why)


def filled(document: dict[str, Any], place: str) -> dict[str, Any]:
    """The same document with the lists that the library wants and files leave out where they are empty."""
    if not isinstance(document.get("passages"), list):
        raise DataError(f"{place}: a BioC document needs a list of `passages`.")
    none: dict[str, Any] = {"infons": {}, "annotations": [], "relations": []}
    passages = []
    for passage in document["passages"]:
        sentences = [{**none, "text": "", **sentence} for sentence in passage.get("sentences") or []]
        passages.append({**none, **passage, "sentences": sentences})
    annotated = [annotation for part in (document, *passages) for annotation in part.get("annotations") or []]
    annotated += [a for passage in passages for s in passage["sentences"] for a in s["annotations"]]
    for annotation in annotated:
        for key, value in (("id", ""), ("infons", {}), ("text", None)):
            annotation.setdefault(key, value)
    return {"id": "", **none, **document, "passages": passages}


def to_document(
    document: Any, words: str, sentences: str, label: str, tally: ConversionReport, place: str
) -> Document:
    units: list[Passage] = []  # what no sentence reaches out of
    parts = []
    for passage in document.passages:
        spoken = [Passage(number(s.offset, place), s.text, True) for s in passage.sentences if s.text]
        unit = spoken or [Passage(number(passage.offset, place), passage.text or "")]
        parts.append((unit[0].start, unit[-1].start + len(unit[-1].text), passage.infons))
        units += unit
    first = units[0].start if units else 0
    units = [unit._replace(start=unit.start - first) for unit in units]
    text = whole_text(units, place)
    holders = [document, *document.passages, *(s for p in document.passages for s in p.sentences)]
    if relations := sum(len(holder.relations) for holder in holders):
        tally.note("relations not read", place, relations)
    spans = []
    for annotation in itertools.chain(*(holder.annotations for holder in holders)):
        try:
            spans.append(span(annotation, text, first, label, tally, place))
        except DataError as error:
            tally.bad(error)
    extra = dict(document.infons)
    if first or len(parts) > 1 or any(infons for _, _, infons in parts):
        extra["passages"] = [{"start": i, "end": j, "infons": dict(infons)} for i, j, infons in parts]
    return align_to_passages(
        text,
        units,
        spans,
        words=words,
        sentences=sentences,
        id=None if document.id in (None, "") else str(document.id),
        tally=tally,
        place=place,
        extra=extra,
    )


def number(value: Any, place: str) -> int:
    if type(value) is not int or value < 0:
        raise DataError(f"{place}: offsets and lengths are numbers from 0 on, and this is {value!r:.40}.")
    return value


def span(
    annotation: Any, text: str, first: int, label: str, tally: ConversionReport, place: str
) -> CharacterSpan:
    """The entity of an annotation; `first` is the offset at which the text begins."""
    place = f"{place}, annotation {annotation.id}" if annotation.id else place
    infons = dict(annotation.infons)
    name = infons.pop(label, None)
    if not isinstance(name, str) or not name:
        raise DataError(
            f"{place}: its infon {label!r} is {name!r:.40}, and should be its label. If another infon is meant, choose "
            f"the option `label`; there are {', '.join(map(str, infons))[:60] or 'no others'}."
        )
    pieces = sorted(
        (number(location.offset, place) - first, number(location.length, place))
        for location in annotation.locations
    )
    if not pieces:
        raise DataError(f"{place}: the annotation has no location. Give its offset and its length.")
    pieces = [(start, start + length) for start, length in pieces]
    start, end = pieces[0][0], max(end for _, end in pieces)
    there = " ".join(text[max(0, i) : max(0, j)] for i, j in pieces)
    if annotation.text is None:
        tally.note("annotations without their text: not compared", place)
    elif start >= 0 and end <= len(text) and there.split() != str(annotation.text).split():
        raise DataError(
            f"{place}: the annotation says {annotation.text!r:.60}, but at its offsets the text says {there!r:.60}. "
            "Offsets must count characters (not bytes) of the document."
        )
    if any(text[max(0, i) : max(0, j)].strip() for (_, i), (j, _) in itertools.pairwise(pieces)):
        tally.note("fragments joined: the entity holds what is between them, too", place)
    score = infons.pop("score", None)
    if isinstance(score, str):
        score = as_number(score)
    extra = {**({"id": annotation.id} if annotation.id else {}), **infons}
    return CharacterSpan(start, end, name, None, probability(score, tally, place), extra, place)


def as_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def write(
    documents: Iterable[Document], path: Path, tally: ConversionReport, *, kind: str = "", label: str = "type"
) -> None:
    """A collection. kind: "xml", "json" or "jsonl" (one document a line); if it is not given, as the file is called.

    label: the infon that holds the labels.
    """
    etree, encoder = (
        optional_import("lxml.etree", "BioC", "formats"),
        optional_import("bioc.biocxml.encoder", "BioC", "formats"),
    )
    biocjson = optional_import("bioc.biocjson", "BioC", "formats")
    kind = kind or next((k for k in reversed(KINDS) if f".{k}" in path.suffixes), "xml")
    if kind not in KINDS:
        raise InputError(f"kind is one of {', '.join(KINDS)}, not {kind!r}.")
    before, between, after = FRAMES[kind]
    with atomic_writer(path) as file:
        file.write(before)
        for count, document in enumerate(documents, 1):
            place = document.id or f"document {count}"
            report_losses(document, "bioc", NOT_WRITTEN, tally, place)
            try:
                found = from_document(document.with_text(), label)
                text = (
                    etree.tostring(encoder.encode_document(found), encoding="unicode")
                    if kind == "xml"
                    else json.dumps(biocjson.toJSON(found), ensure_ascii=False, allow_nan=False)
                )
            except (TypeError, ValueError) as why:  # such as characters that XML cannot hold
                raise DataError(f"{path}, {place}: {why}. Write BioC as JSON instead.") from None
            file.write((between if count > 1 else "") + text)
        file.write(after)


FRAMES = {
    "xml": (
        "<?xml version='1.0' encoding='utf-8'?>\n<collection><source></source><date></date><key></key>\n",
        "\n",
        "\n</collection>\n",
    ),
    "json": ('{"source": "", "date": "", "key": "", "infons": {}, "documents": [\n', ",\n", "\n]}\n"),
    "jsonl": ("", "\n", "\n"),
}


def from_document(document: Document, label: str) -> Any:
    """The document in the classes of the library; its passages are those it was read with, or one."""
    bioc, text = optional_import("bioc", "BioC", "formats"), document.text or ""
    made = bioc.BioCDocument()
    made.id = document.id or ""
    made.infons = {key: as_text(value) for key, value in document.extra.items() if key != "passages"}
    parts = passages_of(document.extra.get("passages"), len(text))
    first = parts[0][0]
    for start, end, infons in parts:
        passage = bioc.BioCPassage()
        passage.offset, passage.text, passage.infons = start, text[start - first : end - first], infons
        made.add_passage(passage)
    starts = [part[0] for part in parts]
    count = itertools.count(1)
    for sentence in document.sentences:
        for entity in sentence.entities:
            start, end = sentence.characters(entity)
            annotation = bioc.BioCAnnotation()
            annotation.id = as_text(entity.extra.get("id", next(count)))
            score = {} if entity.score is None else {"score": as_text(entity.score)}
            more = {key: as_text(value) for key, value in entity.extra.items() if key != "id"}
            annotation.infons = {**more, **score, label: entity.label}
            annotation.text = text[start:end]
            annotation.add_location(bioc.BioCLocation(start + first, end - start))
            made.passages[bisect_right(starts, start + first) - 1].add_annotation(annotation)
    return made


def passages_of(kept: Any, length: int) -> list[tuple[int, int, dict[str, str]]]:
    """Start, end and infons of the passages, if what was kept of them fits a text of this length; else one."""
    try:
        parts = [
            (part["start"], part["end"], {k: as_text(v) for k, v in part["infons"].items()}) for part in kept
        ]
        borders = [at for start, end, _ in parts for at in (start, end)]
        if borders and borders == sorted(borders) and borders[-1] - borders[0] == length and borders[0] >= 0:
            return parts
    except (AttributeError, KeyError, TypeError):
        pass
    return [(0, length, {})]


def as_text(value: Any) -> str:
    """As an infon holds it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
