"""Formats of biomedical text: BioC, PubTator, GENIA.

BioC, XML or JSON: documents of passages, with annotations.

    <collection><source/><date/><key/><document><id>1</id><passage><offset>0</offset><text>in Rome</text>
    <annotation id="1"><infon key="type">GPE</infon><location offset="3" length="4"/><text>Rome</text></annotation>
    </passage></document></collection>

Offsets count characters of the document. The label is the infon `type`; the others are kept. An annotation with
several locations is one entity, from the first to the last. Its text is compared with the text at its offsets.
XML is converted to and from the objects of the JSON form.

PubTator: title, abstract and the annotations of both, a blank line after each document.

    12345|t|Rome fever
    12345|a|It was common.
    12345	0	4	Rome	Place	D012396

Offsets count characters of title and abstract, with one character between them; ends are exclusive. The text of
an annotation is compared with the text at its offsets. Lines of relations are counted.

GENIA 3.02, GPML: XML of articles in which `<cons sem="G#protein_molecule">` marks entities, one in the other.

    <sentence><cons lex="IL-2_gene" sem="G#DNA_domain_or_region"><cons lex="IL-2" sem="G#protein_molecule">IL-2</cons>
    gene</cons> expression</sentence>

A coordination, `<cons sem="(AND G#cell_type G#cell_type)">T and B cells</cons>`, is one span for several entities;
the `cons` in it have no type of their own.
"""

import itertools
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape, quoteattr

from nestree.data.alignment import AnnotatedText, Mention, Passage, join_passages
from nestree.data.formats import common
from nestree.data.formats.common import Record
from nestree.data.io import STDIO, ConversionReport, GzipReader, json_records, open_file, parse_events, read_lines
from nestree.errors import DataError, InputError
from nestree.types import Document

# BioC

FRAMES = {  # what a file begins with, has between documents, and ends with
    "xml": (
        "<?xml version='1.0' encoding='utf-8'?>\n<collection><source></source><date></date><key></key>\n",
        "\n",
        "\n</collection>\n",
    ),
    "json": ('{"source": "", "date": "", "key": "", "infons": {}, "documents": [\n', ",\n", "\n]}\n"),
    "jsonl": ("", "\n", "\n"),
}
HOLDERS = {"document", "passage", "sentence", "annotation", "relation"}  # elements that contain others
NOT_IN_XML = re.compile("[\x00-\x08\x0e-\x1b\ufffe\uffff]")
SPACES_NOT_IN_XML = "[\x0b\x0c\x1c-\x1f]"
LINE_ENDS = {"\r": "&#13;"}  # parsers make LF of CRLF
COLLECTION_NOT_READ = "source, date, key and infons of a collection not read"


def read_bioc(path: Path, report: ConversionReport, *, label: str = "type") -> Iterator[AnnotatedText]:
    """The documents of a collection, or of a file with one JSON document a line.

    Where a passage is given as sentences, these are kept. label: the infon that holds the labels.
    """
    load = load_bioc_json if first_character(path) in b"{[" else load_bioc_xml
    with common.skip_bad(report):  # the rest of a file after a syntax error is lost
        for place, document in load(path, report):
            with common.skip_bad(report, place):
                yield bioc_to_annotated(document, label, report, place)


def first_character(path: Path) -> bytes:
    """The first character of a file that is not white space; of standard input, nothing is consumed."""
    with open_file(path) as file:
        if path == STDIO and isinstance(file.raw, GzipReader):
            raise DataError("BioC from standard input must not be compressed. Decompress it, such as with gunzip -c.")
        return file.peek(1024).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]


def load_bioc_xml(path: Path, report: ConversionReport) -> Iterator[tuple[str, Record]]:
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


def load_bioc_json(path: Path, report: ConversionReport) -> Iterator[tuple[str, Record]]:
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


def bioc_to_annotated(document: Record, label: str, report: ConversionReport, place: str) -> AnnotatedText:
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
        common.count_relations(holder, report)
        for annotation in common.json_objects(holder, "annotations"):
            id = common.optional_str(annotation.get("id") or None)
            with common.skip_bad(report, f"{place}, annotation {id}" if id else place):
                mentions.append(bioc_to_mention(annotation, id, text_start, label, report))
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


def bioc_to_mention(
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
    if not phrase:
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


def write_bioc(
    documents: Iterable[Document],
    path: Path,
    report: ConversionReport,
    *,
    kind: Literal["", "xml", "json", "jsonl"] = "",
    label: str = "type",
) -> None:
    """A collection. kind: "xml", "json" or "jsonl" (one document a line); if it is not given, as the file is called.

    label: the infon that holds the labels.
    """
    form: str = kind or next((k for k in reversed(FRAMES) if f".{k}" in path.suffixes), "xml")

    def to_text(document: Document) -> str:
        place = f"{path}, {report.place}"
        try:
            record = document_to_bioc(document.with_text(), label)
        except (TypeError, ValueError) as why:
            raise DataError(f"{place}: `extra` holds what JSON cannot: {why}.") from None
        if form != "xml":
            return common.dump_json(record, place)
        change = "page breaks and the like written as line ends: XML cannot hold them, JSON (--write kind=json) can"
        text = bioc_to_xml("document", record)
        text = common.replace_characters(text, SPACES_NOT_IN_XML, change, report, by="\n")
        if character := NOT_IN_XML.search(text):
            raise DataError(
                f"{place}: XML cannot hold {character[0]!r}. Write BioC as JSON instead, with --write kind=json (in "
                "Python, kind='json')."
            )
        return text

    documents = common.report_dropped(documents, "bioc", report)
    common.write_joined(map(to_text, documents), path, FRAMES[form])


def bioc_to_xml(name: str, record: Record) -> str:
    """The element of a holder."""
    parts = []
    for key, value in record["infons"].items():
        parts.append(f"<infon key={quoteattr(key)}>{escape(value, LINE_ENDS)}</infon>")
    for location in record.get("locations", ()):
        parts.append(f'<location offset="{location["offset"]}" length="{location["length"]}"/>')
    for key in ("offset", "text"):
        if key in record:
            parts.append(f"<{key}>{escape(str(record[key]), LINE_ENDS)}</{key}>")
    parts += [bioc_to_xml("passage", passage) for passage in record.get("passages", ())]
    parts += [bioc_to_xml("annotation", annotation) for annotation in record.get("annotations", ())]
    if name == "document":
        parts.insert(0, f"<id>{escape(record['id'])}</id>")
    attribute = f" id={quoteattr(record['id'])}" if name == "annotation" else ""
    return f"<{name}{attribute}>{''.join(parts)}</{name}>"


def document_to_bioc(document: Document, label_infon: str) -> Record:
    """The document as an object; its passages are those it was read with, or one."""
    text = document.text or ""
    passages = passage_records(document.extra.get("passages"), len(text))
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


def passage_records(value: Any, length: int) -> list[Record]:
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


# PubTator

TITLE_OR_ABSTRACT = re.compile(r"([^|\t]+)\|([ta])\|(.*)", re.DOTALL)
NUMBER = re.compile(r"-?[0-9]{1,18}")


def read_pubtator(path: Path, report: ConversionReport) -> Iterator[AnnotatedText]:
    """The articles of a file, each a document; a title begins one."""
    article: AnnotatedText | None = None
    mentions: list[Mention] = []
    for number, line in read_lines(path, report):
        with common.skip_bad(report, place := f"{path}:{number}"):
            match, columns = TITLE_OR_ABSTRACT.fullmatch(line), line.split("\t")
            if match and match[2] == "t":
                if article:
                    yield article
                mentions = []
                article = AnnotatedText(match[3], mentions, place, match[1], passages=[Passage(0, match[3])])
            elif match and article and len(article.passages) == 1 and article.id == match[1]:
                abstract = Passage(len(article.text) + 1, match[3])
                article.passages = [*article.passages, abstract]
                article.text += "\n" + match[3] if match[3] else ""
            elif article and len(columns) > 3 and not NUMBER.fullmatch(columns[1]):
                report.note("relations not read")
            elif article and len(columns) > 4:
                mentions.append(parse_pubtator_line(columns, article.id, place))
            elif line.strip():
                raise DataError(
                    f"this is not a PubTator line: {line[:60]!r}. Expected: ID|t|title, ID|a|abstract or "
                    "ID<tab>start<tab>end<tab>text<tab>type<tab>identifier."
                )
    if article:
        yield article


def parse_pubtator_line(columns: list[str], article_id: str | None, place: str) -> Mention:
    id, start, end, phrase, label, *identifiers = columns
    if id != article_id:
        raise DataError(f"this annotation of {id} stands in the article {article_id}. Move it there.")
    if not NUMBER.fullmatch(end):
        raise DataError(f"the end must be a number, and is {end!r:.40}.")
    if not label:
        raise DataError("the annotation has no type. It stands in the fifth column.")
    extra = {key: value for key, value in zip(("id", "mentions"), identifiers, strict=False) if value}
    return Mention(int(start), int(end), label, extra=extra, place=place, phrase=phrase)


def write_pubtator(documents: Iterable[Document], path: Path, report: ConversionReport) -> None:
    """The first line of a text is the title, all that follows the abstract."""

    def articles() -> Iterator[str]:
        for number, document in enumerate(common.report_dropped(documents, "pubtator", report), 1):
            id = re.sub(r"[|\s\ufeff]", "_", document.id or str(number))
            if document.id is None:
                report.note("ids generated: pubtator needs one")
            elif id != document.id:
                report.note("ids changed: pubtator cannot hold spaces and | in them")
            yield format_pubtator_article(document.with_text(), id, report)

    common.write_joined(articles(), path, ("", "\n", "\n"))


def format_pubtator_article(document: Document, id: str, report: ConversionReport) -> str:
    """The lines of a document. Each further line break becomes a space, so that offsets stay the same."""
    original = document.text or ""
    title, *rest = re.split(r"[\r\n]", original, maxsplit=1)
    abstract = re.sub(r"[\r\n]", " ", "".join(rest))
    text = f"{title}\n{abstract}" if abstract else title
    if text != original:
        report.note("line ends written as spaces: pubtator cannot hold them")
    lines = [f"{id}|t|{title}", f"{id}|a|{abstract}"]
    for entity, start, end in common.entity_offsets(document):
        change = "labels changed: pubtator has no place for tabs and line ends in them"
        label = common.replace_characters(entity.label, r"[\t\r\n]", change, report, by=" ")
        columns = [id, str(start), str(end), text[start:end], label, str(entity.extra.get("id", ""))]
        if entity.extra.get("mentions"):
            columns.append(str(entity.extra["mentions"]))
        lines.append("\t".join(re.sub(r"[\t\r\n]", " ", column) for column in columns))
    return "\n".join(lines) + "\n"


# GENIA

FIVE_TYPES = ("DNA", "RNA", "protein", "cell_line", "cell_type")
TO_SPACES = str.maketrans("\t\r\n", "   ")


def read_genia(
    path: Path,
    report: ConversionReport,
    *,
    types: Literal["five", "all"] = "five",
    coordinations: bool = True,
    part: common.Part = "all",
) -> Iterator[AnnotatedText]:
    """The articles of an XML file, or of a folder of them in the order of their names.

    types: "five" (DNA, RNA, protein, cell_line, cell_type, by prefix; entities of other types are left out) or
    "all" (each type as it is, without G#). coordinations: keep them as one span, or leave them out.
    part: "train", "dev" or "test" of the usual split of all sentences in their order, 81 / 9 / 10 hundredths;
    "all" for everything.
    """
    chosen = sentence_range(path, part) if part != "all" else None
    count = 0
    for article in parse_genia_articles(path, report):
        mentions: list[Mention] = []
        passages: list[Passage] = []
        start = 0
        for sentence, constituents in article.extra.pop("sentences"):
            if chosen is None or count in chosen:
                for mention in choose_genia_mentions(constituents, types, coordinations, report):
                    mentions.append(mention._replace(start=start + mention.start, end=start + mention.end))
                passages.append(Passage(start, sentence, True))
                start += len(sentence) + 1
            count += 1
        if passages:
            article.text = "\n".join(passage.text for passage in passages)
            article.mentions, article.passages = mentions, passages
            yield article


def sentence_range(path: Path, part: str) -> range:
    """The numbers of the sentences of a part."""
    if path == STDIO:
        raise InputError("a part of GENIA is found by reading it twice, and standard input is read once. Name a file.")
    count = sum(len(article.extra["sentences"]) for article in parse_genia_articles(path, ConversionReport()))
    train, dev = count * 81 // 100, count * 90 // 100
    return {"train": range(train), "dev": range(train, dev), "test": range(dev, count)}[part]


def parse_genia_articles(path: Path, report: ConversionReport) -> Iterator[AnnotatedText]:
    """The articles of a file, or of all files of a folder: extra["sentences"] has texts with all their `cons`."""
    for file in common.find_files(path, "*.xml", "GENIA is one XML file, or a folder of them."):
        with common.skip_bad(report):
            yield from parse_genia_file(file, report)


def parse_genia_file(path: Path, report: ConversionReport) -> Iterator[AnnotatedText]:
    id, text, first_line, sentence_depth = "", "", 0, 0
    open_elements: list[str] = []
    open_constituents: list[tuple[int, str, str]] = []  # start, sem, place
    sentences: list[tuple[str, list[Mention]]] = []
    constituents: list[Mention] = []
    for kind, name, attributes, line in parse_events(path):
        if kind == "text":
            if sentence_depth:
                text += name.translate(TO_SPACES)
            elif open_elements[-1:] == ["bibliomisc"]:
                id += name
            elif name.strip() and open_elements[-1:] != ["articleinfo"]:
                report.note("text outside of sentences not read", f"{path}:{line}")
        elif kind == "start":
            if not open_elements and name not in ("set", "article"):
                raise DataError(f"{path}:{line}: GENIA begins with <set>, and this with <{name}>.")
            open_elements.append(name)
            if name == "article":
                id, first_line, sentences = "", line, []
            elif name == "sentence":
                sentence_depth += 1
                text, constituents, open_constituents = "", [], []
            elif name == "cons":
                open_constituents.append((len(text), attributes.get("sem", ""), f"{path}:{line}"))
        else:
            open_elements.pop()
            sentence_depth -= name == "sentence"
            if name == "cons" and open_constituents:
                start, sem, place = open_constituents.pop()
                constituents.append(Mention(start, len(text), sem, place=place))
            elif name == "sentence" and text.strip():
                sentences.append((text, sorted(constituents, key=lambda cons: (cons.start, -cons.end))))
            elif name == "article":
                place, extra = f"{path}:{first_line}", {"sentences": sentences}
                yield AnnotatedText("", (), place, id.strip() or None, extra)


def choose_genia_mentions(
    constituents: list[Mention], types: str, coordinations: bool, report: ConversionReport
) -> Iterator[Mention]:
    """The entities of a sentence; the label of each constituent is its `sem`."""
    seen = set()
    for constituent in constituents:
        sem, place = constituent.label, constituent.place or ""
        if sem.startswith("(") and not coordinations:
            report.note("coordinations left out", place)
            continue
        sems = re.sub(r"\(\S*|\)", " ", sem).split()  # without (AND, (OR and ), which may nest
        if not sems:
            report.note("cons without a type (parts of coordinations) left out", place)
        for label in dict.fromkeys(choose_genia_label(sem, types) for sem in sems):
            mention = constituent._replace(label=label or "")
            if label is None:
                report.note("entities of other types left out", place)
            elif mention[:3] in seen:
                report.note("the same span twice with one label: one left out", place)
            else:
                seen.add(mention[:3])
                yield mention


def choose_genia_label(sem: str, types: str) -> str | None:
    """The label of a type such as G#DNA_domain; None if it is none of the five."""
    name = sem.removeprefix("G#")
    if types == "all":
        return name
    return next((label for label in FIVE_TYPES if f"{name}_".startswith(f"{label}_")), None)
