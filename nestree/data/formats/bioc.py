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
from contextlib import suppress
from pathlib import Path
from typing import Any

from nestree.data.alignment import LabeledSpan, Passage, align_to_passages, whole_text
from nestree.data.formats.common import (
    NOT_COMPARED,
    check_choice,
    check_phrase,
    entity_offsets,
    join_fragments,
    optional_str,
    skip_bad,
)
from nestree.data.io import (
    STDIO,
    ConversionReport,
    GzipReader,
    atomic_writer,
    json_records,
    open_file,
    optional_import,
    parse_probability,
)
from nestree.data.lossiness import report_losses
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
COLLECTION_NOT_READ = "source, date, key and infons of a collection not read"


def import_bioc(module: str = "bioc") -> Any:
    return optional_import(module, "BioC", "formats")


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
    import_bioc()
    load = load_json if first_character(path) in b"{[" else load_xml
    with skip_bad(tally):  # after what cannot be parsed, the rest of the file is lost
        for place, document in load(path, tally):
            with skip_bad(tally):
                yield to_document(document, words, sentences, label, tally, place)


def first_character(path: Path) -> bytes:
    """The first character of a file that is not blank; standard input stays where it is."""
    with open_file(path) as file:
        if path == STDIO and isinstance(file, io.BufferedReader) and isinstance(file.raw, GzipReader):
            raise DataError("BioC from standard input must not be packed. Unpack it, such as with gunzip -c.")
        start = file.peek(1024) if isinstance(file, io.BufferedReader) else b"<"
    return start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]


def load_xml(path: Path, tally: ConversionReport) -> Iterator[tuple[str, Any]]:
    """Each `<document>` as an object of the library, with its place."""
    etree, biocxml = import_bioc("lxml.etree"), import_bioc("bioc.biocxml")
    builder, depth, first_line, noted = None, 0, 0, False
    for kind, name, attributes, line in parse_events(path):
        if kind == "start":
            depth += 1
            if depth == 1 and name != "collection":
                raise DataError(f"{path}:{line}: <{name}> is no BioC. It begins with <collection>.")
            if depth == 2 and name == "document":
                builder, first_line = etree.TreeBuilder(), line
            if builder is not None:
                builder.start(name, attributes)
        elif kind == "text":
            if builder is not None:
                builder.data(name)
            elif depth == 2 and name.strip() and not noted:
                noted = True
                tally.note(COLLECTION_NOT_READ, f"{path}:{line}")
        else:
            depth -= 1
            if builder is not None:
                builder.end(name)
            if builder is not None and depth == 1:
                text = etree.tostring(builder.close(), encoding="unicode")
                builder, place = None, f"{path}:{first_line}"
                try:
                    yield place, biocxml.loads(f"<collection>{text}</collection>").documents[0]
                except (KeyError, TypeError, ValueError, AttributeError, etree.XMLSyntaxError) as why:
                    tally.bad(DataError(f"{place}: this document is not as BioC has it: {why!r:.80}."))


def load_json(path: Path, tally: ConversionReport) -> Iterator[tuple[str, Any]]:
    """Each document of a collection, or of a line, as an object of the library, with its place."""
    biocjson = import_bioc("bioc.biocjson")
    for place, record in json_records(path, tally):
        documents = record.get("documents", record.get("PubTator3", [record]))
        if not isinstance(documents, list) or not all(isinstance(document, dict) for document in documents):
            tally.bad(DataError(f"{place}: `documents` must be a list of objects, and is {documents!r:.40}."))
            continue
        if "documents" in record and any(record.get(key) for key in ("source", "date", "key", "infons")):
            tally.note(COLLECTION_NOT_READ, place)
        for number, document in enumerate(documents, 1):
            where = place if document is record else f"{place}, document {number}"
            with skip_bad(tally):
                if not isinstance(document.get("passages"), list):
                    raise DataError(f"{where}: a BioC document needs a list of `passages`.")
                try:
                    loaded = biocjson.fromJSON(fill_in_lists(document), "BioCDocument")
                except (KeyError, TypeError, ValueError, AttributeError) as why:
                    raise DataError(f"{where}: this document is not as BioC has it: {why!r:.80}.") from None
                yield where, loaded


def fill_in_lists(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the lists that the library requires and files leave out where they are empty."""
    empty: dict[str, Any] = {"infons": {}, "annotations": [], "relations": []}
    passages = []
    for passage in document["passages"]:
        sentences = [{**empty, "text": "", **sentence} for sentence in passage.get("sentences") or []]
        passages.append({**empty, **passage, "sentences": sentences})
    holders = [document, *passages, *(sentence for passage in passages for sentence in passage["sentences"])]
    for annotation in itertools.chain(*(holder.get("annotations") or [] for holder in holders)):
        for key, value in (("id", ""), ("infons", {}), ("text", None)):
            annotation.setdefault(key, value)
    return {"id": "", **empty, **document, "passages": passages}


def to_document(
    document: Any, words: str, sentences: str, label: str, tally: ConversionReport, place: str
) -> Document:
    passages: list[Passage] = []  # sentences do not cross their borders
    borders = []
    for bioc_passage in document.passages:
        parts = [
            Passage(check_number(s.offset, place), s.text, True) for s in bioc_passage.sentences if s.text
        ]
        parts = parts or [Passage(check_number(bioc_passage.offset, place), bioc_passage.text or "")]
        end = parts[-1].start + len(parts[-1].text)
        borders.append({"start": parts[0].start, "end": end, "infons": dict(bioc_passage.infons)})
        passages += parts
    first = passages[0].start if passages else 0
    passages = [passage._replace(start=passage.start - first) for passage in passages]
    text = whole_text(passages, place)
    holders = [document, *document.passages, *(s for p in document.passages for s in p.sentences)]
    if relations := sum(len(holder.relations) for holder in holders):
        tally.note("relations not read", place, relations)
    spans = []
    for annotation in itertools.chain(*(holder.annotations for holder in holders)):
        with skip_bad(tally):
            spans.append(to_span(annotation, text, first, label, tally, place))
    extra = dict(document.infons)
    if first or len(borders) > 1 or any(border["infons"] for border in borders):
        extra["passages"] = borders
    return align_to_passages(
        text,
        passages,
        spans,
        words=words,
        sentences=sentences,
        id=optional_str(document.id or None),
        tally=tally,
        place=place,
        extra=extra,
    )


def check_number(value: Any, place: str) -> int:
    if type(value) is not int or value < 0:
        raise DataError(f"{place}: offsets and lengths are numbers from 0 on, and this is {value!r:.40}.")
    return value


def to_span(
    annotation: Any, text: str, first: int, label_infon: str, tally: ConversionReport, place: str
) -> LabeledSpan:
    """The entity of an annotation; `first` is the offset at which the text begins."""
    place = f"{place}, annotation {annotation.id}" if annotation.id else place
    infons = dict(annotation.infons)
    label = infons.pop(label_infon, None)
    if not isinstance(label, str) or not label:
        raise DataError(
            f"{place}: its infon {label_infon!r} is {label!r:.40}, and should be its label. If another infon is meant, "
            f"choose the option `label`; there are {', '.join(map(str, infons))[:60] or 'no others'}."
        )
    fragments = []
    for location in annotation.locations:
        start = check_number(location.offset, place) - first
        fragments.append((start, start + check_number(location.length, place)))
    if not fragments:
        raise DataError(f"{place}: the annotation has no location. Give its offset and its length.")
    if annotation.text is None:
        tally.note(NOT_COMPARED, place)
    else:
        check_phrase(str(annotation.text), sorted(fragments), text, place)
    start, end = join_fragments(fragments, text, tally, place)
    score = infons.pop("score", None)
    if isinstance(score, str):
        with suppress(ValueError):  # `probability` counts what is no number
            score = float(score)
    extra = {**({"id": annotation.id} if annotation.id else {}), **infons}
    return LabeledSpan(start, end, label, None, parse_probability(score, tally, place), extra, place)


def write(
    documents: Iterable[Document], path: Path, tally: ConversionReport, *, kind: str = "", label: str = "type"
) -> None:
    """A collection. kind: "xml", "json" or "jsonl" (one document a line); if it is not given, as the file is called.

    label: the infon that holds the labels.
    """
    etree, encoder = import_bioc("lxml.etree"), import_bioc("bioc.biocxml.encoder")
    biocjson = import_bioc("bioc.biocjson")
    kind = kind or next((k for k in reversed(KINDS) if f".{k}" in path.suffixes), "xml")
    check_choice("kind", kind, KINDS)
    before, between, after = FRAMES[kind]
    with atomic_writer(path) as file:
        file.write(before)
        for number, (place, document) in enumerate(report_losses(documents, "bioc", tally)):
            try:
                bioc_document = from_document(document.with_text(), label)
                if kind == "xml":
                    text = etree.tostring(encoder.encode_document(bioc_document), encoding="unicode")
                else:
                    text = json.dumps(biocjson.toJSON(bioc_document), ensure_ascii=False, allow_nan=False)
            except (TypeError, ValueError) as why:  # such as characters that XML cannot hold
                raise DataError(f"{path}, {place}: {why}. Write BioC as JSON instead.") from None
            file.write((between if number else "") + text)
        file.write(after)


def from_document(document: Document, label_infon: str) -> Any:
    """The document as an object of the library; its passages are those it was read with, or one."""
    bioc, text = import_bioc(), document.text or ""
    bioc_document = bioc.BioCDocument()
    bioc_document.id = document.id or ""
    bioc_document.infons = {
        key: to_infon(value) for key, value in document.extra.items() if key != "passages"
    }
    passages = stored_passages(document.extra.get("passages"), len(text))
    starts = [start for start, _, _ in passages]
    for start, end, infons in passages:
        passage = bioc.BioCPassage()
        passage.offset, passage.text = start, text[start - starts[0] : end - starts[0]]
        passage.infons = infons
        bioc_document.add_passage(passage)
    new_ids = itertools.count(1)
    for entity, start, end in entity_offsets(document):
        annotation = bioc.BioCAnnotation()
        annotation.id = to_infon(entity.extra.get("id", next(new_ids)))
        annotation.infons = {key: to_infon(value) for key, value in entity.extra.items() if key != "id"}
        if entity.score is not None:
            annotation.infons["score"] = to_infon(entity.score)
        annotation.infons[label_infon] = entity.label
        annotation.text = text[start:end]
        annotation.add_location(bioc.BioCLocation(start + starts[0], end - start))
        bioc_document.passages[bisect_right(starts, start + starts[0]) - 1].add_annotation(annotation)
    return bioc_document


def stored_passages(value: Any, length: int) -> list[tuple[int, int, dict[str, str]]]:
    """Start, end and infons of the passages in `extra`, if they fit a text of this length; else one passage."""
    try:
        passages = [
            (passage["start"], passage["end"], {k: to_infon(v) for k, v in passage["infons"].items()})
            for passage in value
        ]
        borders = [offset for start, end, _ in passages for offset in (start, end)]
        if borders and borders == sorted(borders) and borders[-1] - borders[0] == length and borders[0] >= 0:
            return passages
    except (AttributeError, KeyError, TypeError):
        pass
    return [(0, length, {})]


def to_infon(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
