"""A table of entities, CSV or TSV, one entity a row. The texts of the documents are .txt files beside it.

    doc_id,entity,start,end,text,label,score,head,head_spans,depth,parent
    a,0,0,19,leaders of the army,person,0.9,leaders,0-7,0,
    a,1,11,19,the army,organization,0.78,army,15-19,1,0

Written are these columns: `entity` numbers the entities of a document from 0, `parent` is the number of the smallest
entity around it, and `head_spans` such as 4-8,17-21 are all words that may be the head. A span that is annotated
several times has a row for each. Read are also the columns of BioNNE: `document_id`, `text`, `entity_type`, and `spans`
such as 10-14,20-25. Offsets count characters, ends are exclusive.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from nestree.data.alignment import AnnotatedText, Mention
from nestree.data.formats.common import parse_probability, report_losses, skip_bad
from nestree.data.formats.jsonl import ENTITY_KEYS, to_text_record
from nestree.data.io import ConversionReport, atomic_writer, read_lines, read_text
from nestree.errors import DataError
from nestree.types import Document, Span

COLUMNS = (
    "doc_id", "entity", "start", "end", "text", "label", "score", "head", "head_spans", "depth", "parent",
)  # fmt: skip
DERIVED = {*COLUMNS, "spans"}
# In lower case -> ours; the names of further columns stay as they are.
NAMES = {name: name for name in DERIVED} | {"document_id": "doc_id", "entity_type": "label", "type": "label"}


def read(path: Path, report: ConversionReport, *, texts: str = "") -> Iterator[AnnotatedText]:
    """The documents of a table, in the order in which their ids appear.

    texts: the folder of the texts, ID.txt each, in it or in folders in it; if it is not given, that of the table.
    """
    folder = Path(texts) if texts else path.parent
    found: dict[str, list[Path]] = {}  # by all ends of their paths, x/y/a.txt by x/y/a, y/a and a
    for file in sorted(folder.rglob("*.txt")):
        parts = file.relative_to(folder).with_suffix("").parts
        for k in range(len(parts)):
            found.setdefault("/".join(parts[k:]), []).append(file)
    rows: dict[str, list[tuple[str, dict[str, str]]]] = {}  # of each document
    for place, row in parse_rows(path):
        rows.setdefault(row.get("doc_id") or "", []).append((place, row))
    for id, of_document in rows.items():
        with skip_bad(report):
            files = found.get(id, [])
            if (exact := folder / f"{id}.txt") in files:
                files = [exact]
            if not files:
                raise DataError(
                    f"{path}: there is no text of document {id!r:.60}: {folder / id}.txt does not exist. Name the "
                    "folder of the texts with the option `texts`."
                )
            if len(files) > 1:
                raise DataError(
                    f"{path}: document {id!r:.60} has several texts: {files[0]} and {files[1]}. Name the folder of one "
                    "with the option `texts`, or write its path as the id."
                )
            text, mentions = read_text(files[0]), []
            for place, row in of_document:
                with skip_bad(report, place):
                    mentions.append(parse_mention(row, text, report))
            yield AnnotatedText(text, mentions, str(path), id, source=str(files[0]))


def parse_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each row with its place; a quoted cell may run over several lines."""
    lines = (line + "\n" for _, line in read_lines(path))
    header = next(lines, "")
    table = csv.reader(chain([header], lines), delimiter=max("\t,;", key=header.count), strict=True)
    try:
        names = [NAMES.get(name.strip().lower(), name.strip()) for name in next(table)]
        if "doc_id" not in names or "label" not in names or not {"spans", "start"} & {*names}:
            raise DataError(
                f"{path}:1: a table of entities needs the columns doc_id, label, and start and end or spans, and has "
                f"{', '.join(names)[:80] or 'none'}."
            )
        while (place := f"{path}:{table.line_num + 1}") and (cells := next(table, None)) is not None:
            if any(cells):
                yield place, dict(zip(names, cells, strict=False))
    except csv.Error as why:
        raise DataError(f"{path}:{table.line_num}: this is not a row of a table: {why}.") from None


def parse_spans(cell: str) -> list[Span]:
    if not re.fullmatch(r"\d{1,15}-\d{1,15}([,;]\s*\d{1,15}-\d{1,15})*", cell, re.ASCII):
        raise DataError(f"{cell!r:.40} are not offsets such as 10-14 or 10-14,20-25.")
    return [(int(i), int(j)) for i, j in re.findall(r"(\d+)-(\d+)", cell)]


def parse_mention(row: dict[str, str], text: str, report: ConversionReport) -> Mention:
    fragments = parse_spans(row.get("spans") or f"{row.get('start', '')}-{row.get('end', '')}")
    start, end = min(i for i, _ in fragments), max(j for _, j in fragments)
    score = None
    if row.get("score"):
        try:
            score = parse_probability(float(row["score"]), report)
        except ValueError:
            raise DataError(f"score {row['score']!r:.40} is not a number.") from None
    extra = {key: value for key, value in row.items() if key not in DERIVED and value}
    label, phrase = row.get("label") or "", row.get("text")
    heads = parse_heads(row, text, start, end, report)
    head = heads[0] if len(heads) == 1 else None
    if len(heads) > 1 and row.get("head"):  # one of them
        head = next((span for span in heads if text[slice(*span)] == row["head"]), None)
    several = heads if len(heads) > 1 else ()
    return Mention(start, end, label, head, score, extra, report.place, phrase, fragments, several)


def parse_heads(row: dict[str, str], text: str, start: int, end: int, report: ConversionReport) -> list[Span]:
    """The words that may be the head of this entity: where only their text is given, where that is in the entity."""
    if row.get("head_spans"):
        return parse_spans(row["head_spans"])
    head = re.escape(row.get("head") or "")
    matches = re.compile(rf"(?<!\w){head}(?!\w)").finditer(text, start, end) if head else ()
    heads = [match.span() for match in matches]
    if head and len(heads) != 1:
        report.note("heads not kept: their text is not in the entity once")
        return []
    return heads


def write(documents: Iterable[Document], path: Path, report: ConversionReport) -> None:
    """One row for each annotation of a span; .tsv: with tabs. Texts are not written."""
    with atomic_writer(path) as file:
        delimiter = "\t" if ".tsv" in path.suffixes else ","
        table, quoting = (
            csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=quoting)
            for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
        )
        table.writerow(COLUMNS)
        documents = (document.with_text() for document in documents)  # to which offsets refer
        for place, document in report_losses(documents, "csv", report):
            if not document.entities:
                report.note("documents without entities not written: csv has no row for them", place)
                report.unwritten_documents += 1
                report.unwritten_sentences += len(document.sentences)
            for number, entity in enumerate(to_text_record(document)["entities"]):
                for label in entity["labels"]:
                    values = entity | {key: label[key] for key in ENTITY_KEYS & label.keys()}
                    values |= {"doc_id": document.id or place, "entity": number}
                    heads = values.get("heads") or [values["head"]] * bool(values["head"])
                    values["head_spans"] = ",".join(f"{head['start']}-{head['end']}" for head in heads)
                    values["head"] = values["head"] and values["head"]["text"]
                    row = [values[column] for column in COLUMNS]
                    # Python before 3.13 does not see that a carriage return needs quotes.
                    (quoting if "\r" in "".join(map(str, row)) else table).writerow(row)
