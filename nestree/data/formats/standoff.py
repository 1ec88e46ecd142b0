"""Texts and, in files beside them, annotations by characters: brat, tables of entities, ACE.

brat stand-off: a folder of `.txt` files, each with an `.ann` file of lines such as

    T1	ORG 0 5;16 23	Duffy Company

Offsets count characters, ends are exclusive, fragments are separated by semicolons. The text at the end of a line is
compared with the text at these offsets. A difference is an error, because other offsets are then likely wrong, too.

A table of entities, CSV or TSV, one entity a row. The texts of the documents are .txt files beside it.

    doc_id,entity,start,end,text,label,score,head,head_spans,depth,parent
    a,0,0,19,leaders of the army,person,0.9,leaders,0-7,0,
    a,1,11,19,the army,organization,0.78,army,15-19,1,0

`entity` numbers the entities of a document from 0, `parent` is the number of the smallest entity around it, and
`head_spans` such as 4-8,17-21 are all words that may be the head. A span that is annotated several times has a row for
each. The columns of BioNNE are read, too: `document_id`, `text`, `entity_type`, and `spans` such as 10-14,20-25.
Offsets count characters, ends are exclusive.

ACE 2004 and 2005: per document a text, NAME.sgm, and its annotation, NAME.apf.xml.

    <entity ID="E1" TYPE="PER" SUBTYPE="Individual">
      <entity_mention ID="E1-2" TYPE="NOM">
        <extent><charseq START="30" END="44">the chairman of</charseq></extent>
        <head><charseq START="34" END="41">chairman</charseq></head>

Offsets count characters of the text after every tag is taken out. Line ends count, `&amp;` counts as the five
characters it is written with, and END is the last character itself: **inclusive**. The phrase in each charseq is
compared with the text at its offsets. In the document that is read, `&amp;` is `&`, and offsets have moved with it.
"""

import csv
import html
import itertools
import re
from bisect import bisect_left, bisect_right
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from nestree.data.alignment import BLANK, AnnotatedText, Mention, Passage
from nestree.data.formats import common
from nestree.data.formats.jsonl import ENTITY_KEYS, to_text_record
from nestree.data.io import (
    ConversionReport,
    atomic_path,
    atomic_writer,
    list_files,
    open_file,
    parse_events,
    read_lines,
    read_text,
)
from nestree.errors import DataError, EmptySpanError, SpanRangeError
from nestree.types import Document, Span

# brat

BRAT_NOT_READ = {"R": "relations", "E": "events", "A": "attributes", "M": "attributes", "N": "normalisations"}
BRAT_NOT_READ |= {"#": "notes", "*": "equivalences"}
ANNOTATION = re.compile(r"[TREAMN#*]\d* ")  # without the tab that belongs to it
BRAT_SPAN = re.compile(r"(\S+) (\d+ \d+(?:;\d+ \d+)*)")
MAX_NAME_BYTES = 180  # of a file, without its ending


def read_brat(path: Path, report: ConversionReport) -> Iterator[AnnotatedText]:
    """The documents of a folder (and the folders in it), or of one `.txt` or `.ann` file.

    For text that has one sentence a line and spaces between words, choose words="whitespace" and
    sentences="lines".
    """
    for text_path, ann_path, name in find_brat_files(path, report):
        with common.skip_bad(report):
            text = read_text(text_path)
            mentions = list(parse_brat_annotations(ann_path, report)) if ann_path else []
            text, mentions = correct_brat_offsets(text, mentions, text_path, report)
            id = re.sub(r"%([0-7][0-9A-F])", lambda code: chr(int(code[1], 16)), name)
            yield AnnotatedText(text, mentions, str(ann_path or text_path), id, source=str(text_path))


def find_brat_files(path: Path, report: ConversionReport) -> Iterator[tuple[Path, Path | None, str]]:
    """The text file, the annotation file and the name of each document."""
    if not path.is_dir():
        text_path, ann_path = path.with_suffix(".txt"), path.with_suffix(".ann")
        if not text_path.exists():
            raise DataError(f"{text_path} does not exist. brat data is a .txt file beside an .ann file.")
        yield text_path, ann_path if ann_path.exists() else None, path.stem
        return
    files = [file for file in list_files(path) if file.suffix in (".txt", ".ann")]
    if not any(file.suffix == ".ann" for file in files):
        raise DataError(f"{path} holds no .ann file. brat data is a folder of .txt files and .ann files.")
    for stem in sorted({file.with_suffix("") for file in files}):
        text_path, ann_path = (stem.parent / (stem.name + suffix) for suffix in (".txt", ".ann"))
        name = stem.relative_to(path).as_posix()
        if not text_path.exists():
            report.bad(DataError(f"{ann_path} has no text: put {text_path.name} beside it."))
        elif ann_path.exists():
            yield text_path, ann_path, name
        else:
            report.note("texts without an .ann file: no entities", str(text_path))
            yield text_path, None, name


def parse_brat_annotations(path: Path, report: ConversionReport) -> Iterator[Mention]:
    """The lines `T...` of an `.ann` file; the others are counted. A line that is no annotation continues the last."""
    mention: Mention | None = None
    for number, line in read_lines(path):
        place = f"{path}:{number}"
        if not line.strip():
            continue
        if mention and mention.phrase is not None and "\t" not in line and not ANNOTATION.match(line):
            report.note("lines that continue the text of the annotation before", place)
            mention = mention._replace(phrase=f"{mention.phrase} {line}")
            continue
        if mention:
            yield mention
            mention = None
        if line[0] in BRAT_NOT_READ:
            report.note(f"{BRAT_NOT_READ[line[0]]} not read", place)
            continue
        with common.skip_bad(report, place):
            mention = parse_brat_annotation(line, report)
    if mention:
        yield mention


def parse_brat_annotation(line: str, report: ConversionReport) -> Mention:
    fields = line.split("\t", 2)
    match = BRAT_SPAN.fullmatch(fields[1].strip()) if line[0] == "T" and len(fields) > 1 else None
    if match is None:
        raise DataError(f"this is not a brat annotation: {line[:60]!r}. Expected: T1<tab>LABEL 0 5<tab>text.")
    try:
        numbers = [int(digits) for digits in re.split("[ ;]", match[2])]
    except ValueError:  # more digits than Python reads
        raise DataError(f"these are not offsets: {match[2][:40]}.") from None
    fragments = list(zip(numbers[::2], numbers[1::2], strict=True))
    for start, end in fragments:
        if end <= start:
            raise EmptySpanError(f"entity {start}-{end} {match[1]} ends before it begins.")
    phrase = fields[2] if len(fields) > 2 else None
    if not phrase:
        report.note(common.NOT_COMPARED)
    start, end = min(numbers), max(numbers)
    return Mention(start, end, match[1], place=report.place, phrase=phrase, fragments=fragments)


def correct_brat_offsets(
    text: str, mentions: list[Mention], path: Path, report: ConversionReport
) -> tuple[str, list[Mention]]:
    """The text and its mentions with corrected offsets, if these count line ends or a byte order mark differently.

    The first way of counting that fits all mentions is used.
    """
    with open_file(path) as file:
        has_mark = file.read(len(BOM_UTF8)) == BOM_UTF8
    with_lf = text.replace("\r\n", "\n")
    # Where line ends would be if they were CRLF.
    line_ends = [match.start() + k for k, match in enumerate(re.finditer("\n", with_lf))]
    ways: list[tuple[str, str, Callable[[int], int]]] = [("", text, lambda offset: offset)]
    if with_lf != text:
        note = "offsets count CRLF as one character: text read with LF"
        ways.append((note, with_lf, lambda offset: offset))
    elif line_ends:
        note = "offsets count line ends as CRLF, the text has LF: corrected"
        ways.append((note, text, lambda offset: offset - bisect_left(line_ends, offset)))
    for (note, candidate, convert), mark in itertools.product(ways, ("", "\ufeff")[: 1 + has_mark]):
        moved = []
        for mention in mentions:
            (start, end), *fragments = (
                (convert(max(0, i - len(mark))), convert(j - len(mark)))
                for i, j in ((mention.start, mention.end), *mention.fragments)
            )
            phrase = mention.phrase and mention.phrase.removeprefix(mark)
            moved.append(mention._replace(start=start, end=end, fragments=fragments, phrase=phrase))
        if all(mention.matches(candidate) for mention in moved):
            if note:
                report.note(note, str(path))
            if mark:
                note = "offsets count the byte order mark: left out, and offsets moved by one"
                report.note(note, str(path))
            return candidate, moved
    return text, mentions


def write_brat(documents: Iterable[Document], path: Path, report: ConversionReport) -> None:
    """A folder with a `.txt` and an `.ann` file for each document, named after its id."""
    used_names: set[str] = set()
    with atomic_path(path) as folder:
        folder.mkdir()
        for number, document in enumerate(common.report_dropped(documents, "brat", report), 1):
            document = document.with_text()
            name = choose_file_name(document.id or f"document-{number:06}", used_names, report)
            annotations = "".join(
                f"T{count}\t{annotation}\n"
                for count, annotation in enumerate(format_brat_annotations(document, report), 1)
            )
            text = document.text or ""
            text = "\ufeff" + text if text.startswith("\ufeff") else text  # readers remove one
            for suffix, content in ((".txt", text), (".ann", annotations)):
                with open(folder / (name + suffix), "w", encoding="utf-8", newline="") as file:
                    file.write(content)


def format_brat_annotations(document: Document, report: ConversionReport) -> Iterator[str]:
    """The entities of a document as lines without their numbers. brat cuts spans at line breaks into fragments."""
    text = document.text or ""
    for entity, start, end in common.entity_offsets(document):
        warning = "labels changed: brat allows no white space in them"
        label = common.replace_characters(entity.label, r"\s", warning, report)
        fragments = [part for part in re.finditer(r"[^\r\n]+", text[start:end]) if part[0].strip()]
        if not fragments:
            report.note(BLANK)
            continue
        offsets = ";".join(f"{start + part.start()} {start + part.end()}" for part in fragments)
        phrase = " ".join(part[0].replace("\t", " ") for part in fragments)
        yield f"{label} {offsets}\t{phrase}"


def choose_file_name(id: str, used_names: set[str], report: ConversionReport) -> str:
    """The id, with what a file name cannot hold written as %XX; never one of `used_names`, to which it is added."""
    stem = re.sub(r'^\.|[/\\:*?"<>|%\x00-\x1f\x7f]', lambda character: f"%{ord(character[0]):02X}", id)
    if len(stem.encode()) > MAX_NAME_BYTES:
        report.note("ids cut: too long for the name of a file", id[:60])
        stem = stem.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    name = next(name for name in names if name.lower() not in used_names)
    if name != stem:
        report.note("ids changed: two documents have the same", id[:60])
    used_names.add(name.lower())
    return name


# Tables

CSV_COLUMNS = (
    "doc_id", "entity", "start", "end", "text", "label", "score", "head", "head_spans", "depth", "parent",
)  # fmt: skip
DERIVED = {*CSV_COLUMNS, "spans"}
# In lower case -> ours; the names of further columns stay as they are.
CSV_NAMES = {name: name for name in DERIVED} | {"document_id": "doc_id", "entity_type": "label", "type": "label"}


def read_csv(path: Path, report: ConversionReport, *, texts: str = "") -> Iterator[AnnotatedText]:
    """The documents of a table, in the order in which their ids appear.

    texts: the folder of the texts, ID.txt each, in it or in folders in it; if it is not given, that of the table.
    """
    folder = Path(texts) if texts else path.parent
    rows: dict[str, list[tuple[str, dict[str, str]]]] = {}  # of each document
    for place, row in parse_csv_rows(path, report):
        rows.setdefault(row.get("doc_id") or "", []).append((place, row))
    found = {file.stem: [file] for file in folder.glob("*.txt") if file.is_file()}
    if not rows.keys() <= found.keys():  # by all ends of their paths, x/y/a.txt by x/y/a, y/a and a
        found = {}
        for file in [file for file in list_files(folder) if file.suffix == ".txt"]:
            parts = file.relative_to(folder).with_suffix("").parts
            for k in range(len(parts)):
                found.setdefault("/".join(parts[k:]), []).append(file)
    for id, of_document in rows.items():
        with common.skip_bad(report):
            files = found.get(id, [])
            if (exact := folder / f"{id}.txt") in files:
                files = [exact]
            if not files:
                raise DataError(
                    f"{path}: there is no text of document {id!r:.60}: {folder / id}.txt does not exist. Name the "
                    "folder that has it with the option `texts`."
                )
            if len(files) > 1:
                raise DataError(
                    f"{path}: document {id!r:.60} has several texts: {files[0]} and {files[1]}. Name the folder of one "
                    "with the option `texts`, or write its path as the id."
                )
            text, mentions = read_text(files[0]), []
            for place, row in of_document:
                with common.skip_bad(report, place):
                    mentions.append(parse_csv_row(row, text, report))
            yield AnnotatedText(text, mentions, str(path), id, source=str(files[0]))


def parse_csv_rows(path: Path, report: ConversionReport) -> Iterator[tuple[str, dict[str, str]]]:
    """Each row with its place; a quoted cell may run over several lines."""
    lines = (line + "\n" for _, line in read_lines(path))
    header = next(lines, "")
    table = csv.reader(itertools.chain([header], lines), delimiter=max("\t,;", key=header.count), strict=True)
    try:
        names = [CSV_NAMES.get(name.strip().lower(), name.strip()) for name in next(table)]
        if "doc_id" not in names or "label" not in names or not {"spans", "start"} & {*names}:
            raise DataError(
                f"{path}:1: a table of entities needs the columns doc_id, label, and start and end or spans, and has "
                f"{', '.join(names)[:80] or 'none'}."
            )
        while (place := f"{path}:{table.line_num + 1}") and (cells := next(table, None)) is not None:
            if any(cells[len(names) :]):
                sizes = f"this row has {len(cells)} cells, and the header {len(names)}"
                report.bad(DataError(f"{place}: {sizes}. Put cells that hold the separator in quotes."))
            elif any(cells):
                yield place, dict(zip(names, cells, strict=False))
    except csv.Error as why:
        raise DataError(f"{path}:{table.line_num}: this is not a row of a table: {why}.") from None


def parse_csv_spans(cell: str) -> list[Span]:
    if not re.fullmatch(r"\d{1,15}-\d{1,15}([,;]\s*\d{1,15}-\d{1,15})*", cell, re.ASCII):
        raise DataError(f"{cell!r:.40} are not offsets such as 10-14 or 10-14,20-25.")
    return [(int(i), int(j)) for i, j in re.findall(r"(\d+)-(\d+)", cell)]


def parse_csv_row(row: dict[str, str], text: str, report: ConversionReport) -> Mention:
    fragments = parse_csv_spans(row.get("spans") or f"{row.get('start', '')}-{row.get('end', '')}")
    start, end = min(i for i, _ in fragments), max(j for _, j in fragments)
    score = None
    if row.get("score"):
        try:
            score = common.parse_probability(float(row["score"]), report)
        except ValueError:
            raise DataError(f"score {row['score']!r:.40} is not a number.") from None
    extra = {key: value for key, value in row.items() if key not in DERIVED and value}
    label, phrase = row.get("label") or "", row.get("text")
    heads = parse_csv_heads(row, text, start, end, report)
    head = heads[0] if len(heads) == 1 else None
    if len(heads) > 1 and row.get("head"):  # one of them
        head = next((span for span in heads if text[slice(*span)] == row["head"]), None)
    several = heads if len(heads) > 1 else ()
    return Mention(start, end, label, head, score, extra, report.place, phrase, fragments, several)


def parse_csv_heads(row: dict[str, str], text: str, start: int, end: int, report: ConversionReport) -> list[Span]:
    """The words that may be the head of this entity: where only their text is given, where that is in the entity."""
    if row.get("head_spans"):
        return parse_csv_spans(row["head_spans"])
    head = re.escape(row.get("head") or "")
    matches = re.compile(rf"(?<!\w){head}(?!\w)").finditer(text, start, end) if head else ()
    heads = [match.span() for match in matches]
    if head and len(heads) != 1:
        report.note("heads not kept: their text is not in the entity once")
        return []
    return heads


def write_csv(documents: Iterable[Document], path: Path, report: ConversionReport) -> None:
    """One row for each annotation of a span; .tsv: with tabs. Texts are not written."""
    with atomic_writer(path) as file:
        delimiter = "\t" if ".tsv" in path.suffixes else ","
        table, quoting = (
            csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=quoting)
            for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
        )
        table.writerow(CSV_COLUMNS)
        documents = (document.with_text() for document in documents)  # to which offsets refer
        ids: set[str] = set()
        for document in common.report_dropped(documents, "csv", report):
            if not document.entities:
                report.note("documents without entities not written: csv has no row for them")
                report.unwritten_documents += 1
                report.unwritten_sentences += len(document.sentences)
            elif report.place in ids:
                report.note("documents joined: csv cannot tell apart those of one id")
            ids.add(report.place)
            for number, entity in enumerate(to_text_record(document)["entities"]):
                for label in entity["labels"]:
                    values = entity | {key: label[key] for key in ENTITY_KEYS & label.keys()}
                    values |= {"doc_id": report.place, "entity": number}
                    heads = values.get("heads") or [values["head"]] * bool(values["head"])
                    values["head_spans"] = ",".join(f"{head['start']}-{head['end']}" for head in heads)
                    values["head"] = values["head"] and values["head"]["text"]
                    row = [values[column] for column in CSV_COLUMNS]
                    # Python before 3.13 does not see that a carriage return needs quotes.
                    (quoting if "\r" in "".join(map(str, row)) else table).writerow(row)


# ACE

TAG = re.compile(r"<(/?)([A-Za-z][\w.-]*)[^>]*>|<[!?][^>]*>")
REFERENCE = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-f]{1,6});", re.IGNORECASE)
# Folders of the annotation passes of ACE 2005, the final one first.
PASSES = ("timex2norm", "adj", "fp1", "fp2")
ACE_NOT_READ = {"relation": "relations", "event": "events", "value": "values", "timex2": "time expressions"}
APF = ".apf.xml"
ApfMentions = tuple[str | None, list[tuple[Mention, str]]]


def read_ace(path: Path, report: ConversionReport, *, ids: str = "", subtypes: bool = False) -> Iterator[AnnotatedText]:
    """The documents of a folder (and the folders in it), or of one `.apf.xml` file, with the mentions of entities.

    ids: a file with the ids of the documents to read, one a line: a split. subtypes: labels such as
    "ORG:Commercial" instead of "ORG".
    """
    missing = read_ace_ids(Path(ids)) if ids else {}
    for annotation in find_apf_files(path, report):
        name = annotation.name.removesuffix(APF)
        if ids and name not in missing:
            continue
        missing.pop(name, None)
        with common.skip_bad(report):
            yield read_ace_document(annotation, subtypes, report)
    for name, place in missing.items():
        report.bad(DataError(f"{place}: {path} holds no document {name}."))


def read_ace_ids(path: Path) -> dict[str, str]:
    """The ids in a list, each with its place; folders before an id and a suffix after it are removed."""
    ids = {}
    for number, line in read_lines(path):
        if name := re.split(r"[/\\]", line.strip())[-1]:
            ids[re.sub(r"(\.apf)?(\.xml|\.sgm)$", "", name)] = f"{path}:{number}"
    if not ids:
        raise DataError(f"{path} is empty, and should list the ids of documents, one a line.")
    return ids


def find_apf_files(path: Path, report: ConversionReport) -> list[Path]:
    """The annotation of each document; where there are several, the one of the final pass."""
    if not path.is_dir():
        if not path.name.endswith((APF, ".sgm")):
            raise DataError(f"{path} is neither a folder of ACE documents nor an {APF} or .sgm file.")
        return [path.with_name(re.sub(r"(\.apf\.xml|\.sgm)$", "", path.name) + APF)]
    by_name: dict[str, list[Path]] = {}
    for file in common.find_files(path, f"*{APF}", f"ACE is a folder of .sgm files and {APF} files."):
        by_name.setdefault(file.name, []).append(file)
    annotations = []
    for _, files in sorted(by_name.items()):
        if len(files) > 1:
            files.sort(key=lambda file: PASSES.index(file.parent.name) if file.parent.name in PASSES else -1)
            if files[0].parent.name not in PASSES:
                raise DataError(f"{files[0]} and {files[1]} are the same document. Read one of the folders.")
            report.note("earlier passes of a document's annotation not read", str(files[1]), len(files) - 1)
        annotations.append(files[0])
    return annotations


def read_ace_document(annotation: Path, subtypes: bool, report: ConversionReport) -> AnnotatedText:
    """A document whose passages end at tags, so that no sentence crosses one, unless an entity does."""
    source = annotation.with_name(annotation.name.removesuffix(APF) + ".sgm")
    for file, other in ((annotation, source), (source, annotation)):
        if not file.exists():
            raise DataError(f"{file} does not exist, and {other} needs it.")
    id, raw_mentions = parse_apf(annotation, subtypes, report)
    raw_text, tag_offsets, raw_body = remove_tags(read_text(source))
    text, convert = unescape(raw_text)
    mentions = []
    for mention, head_phrase in raw_mentions:
        with common.skip_bad(report):
            if mention.end > len(raw_text):
                raise SpanRangeError(
                    f"{mention.place}: extent {mention.start}-{mention.end - 1} of a mention ends after the text: "
                    f"{source} has {len(raw_text)} characters without its tags."
                )
            head = mention.head and (convert(mention.head[0]), convert(mention.head[1]))
            if head and text[slice(*head)].split() != head_phrase.split():
                raise DataError(
                    f"{mention.place}: the head of this mention should be {head_phrase!r:.60}, but in {source} without "
                    f"its tags it is {text[slice(*head)]!r:.60}."
                )
            start, end = convert(mention.start), convert(mention.end)
            mentions.append(mention._replace(start=start, end=end, head=head))
    boundaries = sorted({0, len(text), *(convert(offset) for offset in tag_offsets)})
    passages = [Passage(i, text[i:j]) for i, j in itertools.pairwise(boundaries) if text[i:j].strip()]
    body = [(convert(i), convert(j)) for i, j in raw_body]
    id, name = id or annotation.name.removesuffix(APF), f"{source} without its tags"
    return AnnotatedText(text, mentions, str(annotation), id, source=name, passages=passages, body=body)


def remove_tags(source: str) -> tuple[str, list[int], list[Span]]:
    """The text without tags, the offsets at which they were, and the spans of the text inside `<TEXT>`.

    >>> remove_tags("<DOC><TEXT>AT&amp;T</TEXT></DOC>")
    ('AT&amp;T', [0, 0, 8, 8], [(0, 8)])
    """
    parts, length, last_end = [], 0, 0
    tag_offsets, body, body_start = [], [], 0
    for tag in TAG.finditer(source):
        parts.append(source[last_end : tag.start()])
        length += len(parts[-1])
        last_end = tag.end()
        tag_offsets.append(length)
        if tag[2] and tag[2].upper() == "TEXT":
            if tag[1]:
                body.append((body_start, length))
            else:
                body_start = length
    text = "".join([*parts, source[last_end:]])
    return text, tag_offsets, body or [(0, len(text))]


def unescape(text: str) -> tuple[str, Callable[[int], int]]:
    """The text with `&amp;` and the like replaced by their characters, and a function that moves offsets with it.

    >>> text, convert = unescape("AT&amp;T")
    >>> text, convert(2), convert(7)
    ('AT&T', 2, 3)
    """
    parts, last_end, ends, shifts = [], 0, [0], [0]
    for reference in REFERENCE.finditer(text):
        character = html.unescape(reference[0])
        parts += [text[last_end : reference.start()], character]
        last_end = reference.end()
        ends.append(last_end)
        shifts.append(shifts[-1] + len(reference[0]) - len(character))
    return "".join([*parts, text[last_end:]]), lambda offset: offset - shifts[bisect_right(ends, offset) - 1]


def parse_apf(path: Path, subtypes: bool, report: ConversionReport) -> ApfMentions:
    """The id of the document and the mentions of its entities, in characters of the text before `unescape`.

    With each mention comes the phrase of its head.
    """
    id, mentions = None, []
    entity: dict[str, str] = {}
    mention: dict[str, str] | None = None
    charseqs: dict[str, tuple[Span, str]] = {}
    mention_place = role = phrase = ""
    span = (0, 0)
    for kind, name, attributes, line in parse_events(path):
        place = f"{path}:{line}"
        if kind == "text":
            phrase += name
        elif kind == "start":
            phrase = ""
            if name == "document":
                id = attributes.get("DOCID")
            elif name in ACE_NOT_READ:
                report.note(f"{ACE_NOT_READ[name]} not read", place)
            elif name == "entity":
                entity = attributes
            elif name == "entity_mention":
                mention, mention_place, charseqs = attributes, place, {}
            elif name in ("extent", "head"):
                role = name
            elif name == "charseq" and mention is not None:
                span = parse_offset(attributes, "START", place), parse_offset(attributes, "END", place) + 1
                if span[1] <= span[0]:
                    raise EmptySpanError(f"{place}: {role} {span[0]}-{span[1] - 1} of a mention ends before it begins.")
        elif name == "charseq" and mention is not None:
            charseqs[role] = span, html.unescape(phrase)
        elif name == "entity_mention" and mention is not None:
            if not (label := entity.get("TYPE")):
                raise DataError(f"{mention_place}: this mention is of an entity without TYPE.")
            if "extent" not in charseqs:
                raise DataError(f"{mention_place}: this mention has no extent.")
            if subtypes and entity.get("SUBTYPE"):
                label += ":" + entity["SUBTYPE"]
            values = {"mention": mention.get("TYPE"), "id": mention.get("ID"), "entity": entity.get("ID")}
            extra = {key: value for key, value in values.items() if value}
            (start, end), phrase = charseqs["extent"]
            head, head_phrase = charseqs.get("head", (None, ""))
            found = Mention(start, end, label, head, None, extra, mention_place, phrase)
            mentions.append((found, head_phrase))
            mention = None
        elif name == "entity":
            entity = {}
    return id, mentions


def parse_offset(attributes: dict[str, str], name: str, place: str) -> int:
    value = attributes.get(name, "")
    if not re.fullmatch(r"[0-9]{1,15}", value):
        raise DataError(f"{place}: {name} of this charseq is {value!r:.40}, and should be a number.")
    return int(value)
