"""What the formats share: skipping bad records, checking fields, documents of sentences, JSON output, and losses."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

from nestree.data.alignment import AnnotatedText
from nestree.data.io import ConversionReport, atomic_writer, list_files, read_lines_or_errors
from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence, Span, char_span, join_sentences

Record = dict[str, Any]
Ends = Literal["exclusive", "inclusive"]
Part = Literal["all", "train", "dev", "test"]
T = TypeVar("T", str, bool, list[Any], dict[str, Any])
Item = tuple[Sentence, Record] | AnnotatedText  # a sentence, with what is known of its document; or a text
NOT_COMPARED = "annotations without their text: not compared"
STRAY_TAGS = "tags that continue no entity: taken as the beginning of one"
TEXT_NOT_KEPT = "texts not kept: the words do not follow each other in them"

# Reading


@contextmanager
def skip_bad(report: ConversionReport, place: str = "") -> Iterator[None]:
    """A context for reading one record: a DataError in it goes to `report.bad`, which raises it or skips the record.

    Within it, `place` is the place of changes, and its errors begin with it.
    """
    outer, report.place = report.place, place or report.place
    try:
        with locate_errors(place):
            yield
    except DataError as error:
        report.bad(error)
    finally:
        report.place = outer


@contextmanager
def locate_errors(place: str) -> Iterator[None]:
    """A context in which the messages of DataErrors begin with the place."""
    try:
        yield
    except DataError as error:
        raise (error if str(error).startswith(place) else error.at(place)) from None


def find_files(path: Path, pattern: str, layout: str) -> list[Path]:
    """The file itself, or the files in a folder and its subfolders, sorted. `layout` is the advice if there is none."""
    if not path.is_dir():
        return [path]
    files = [file for file in list_files(path) if file.match(pattern)]
    if not files:
        raise DataError(f"{path} holds no {pattern.removeprefix('*')} file. {layout}")
    return files


def line_blocks(path: Path, report: ConversionReport) -> Iterator[list[tuple[int, str]]]:
    """The numbered lines between blank lines. A block with a line that cannot be decoded is skipped."""
    block: list[tuple[int, str]] = []
    error: DataError | None = None
    for number, line in chain(read_lines_or_errors(path), [(0, "")]):
        if isinstance(line, DataError):
            error = error or line
        elif line.strip():
            block.append((number, line))
        else:
            if error:
                report.bad(error)
            elif block:
                yield block
            block, error = [], None


def optional_str(value: Any) -> str | None:
    return None if value is None else str(value)


def without_keys(record: Mapping[str, Any], keys: Collection[str]) -> Record:
    return {key: value for key, value in record.items() if key not in keys}


def is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def require_text(record: Record) -> str:
    """The text of a JSON record."""
    if not isinstance(record.get("text"), str):
        raise DataError(f"a record needs a `text`, and has {', '.join(record)[:60] or 'nothing'}.")
    return str(record["text"])


def require(record: Record, key: str, kind: type[T], default: T) -> T:
    """The value under this key, which must have this type; the default if there is none."""
    value = record.get(key)
    if value is not None and not isinstance(value, kind):
        name = {str: "a string", bool: "true or false", list: "a list", dict: "an object"}[kind]
        raise DataError(f"`{key}` must be {name}, and is {value!r:.60}.")
    return default if value is None else value


def json_objects(record: Record, key: str) -> list[Record]:
    """The list of objects under this key; empty if the key is missing."""
    values: list[Record] = record.get(key) or []
    if not is_list_of(values, dict):
        raise DataError(f"`{key}` must be a list of objects, and is {values!r:.60}.")
    return values


def count_relations(record: Record, report: ConversionReport) -> None:
    if relations := json_objects(record, "relations"):
        report.note("relations not read", times=len(relations))


def parse_probability(score: Any, report: ConversionReport) -> float | None:
    """The score as a float; None, and counted, if it is no probability."""
    if score is None:
        return None
    if isinstance(score, int | float) and not isinstance(score, bool) and 0 <= score <= 1:
        return float(score)
    report.note("scores not read: not a probability")
    return None


def locate_words(words: Iterable[Any], text: str) -> tuple[Span, ...]:
    """The offsets of words that follow each other in a text with only white space between them."""
    offsets, at = [], 0
    for word in words:
        start = text.find(word, at) if isinstance(word, str) else -1
        if start < 0 or text[at:start].strip():
            raise DataError(
                f"word {word!r:.40} does not come next in `text`: {text[at : at + 40]!r}. Give the `offsets` of "
                "the words, or leave out `text`."
            )
        at = start + len(word)
        offsets.append((start, at))
    return tuple(offsets)


def group_sentences(items: Iterable[Item], report: ConversionReport) -> Iterator[Document | AnnotatedText]:
    """The documents that consecutive sentences make; texts among them are passed on."""
    group: list[tuple[Sentence, Record]] = []
    for item in items:
        if group and (isinstance(item, AnnotatedText) or not continues(item[1], group[-1][1])):
            yield to_document(group)
            group = []
        if isinstance(item, AnnotatedText):
            report.texts += 1  # not earlier: predict_files compares it from document to document
            yield item
        else:
            group.append(item)
    if group:
        yield to_document(group)


def continues(record: Record, last: Record) -> bool:
    """Whether this line belongs to the document of the last one."""
    if record.get("continues") is not None:
        return bool(record["continues"])
    return record.get("doc_id") not in (None, "") and record["doc_id"] == last.get("doc_id")


def to_document(group: list[tuple[Sentence, Record]]) -> Document:
    """The document of these sentences; its text is known if each line says what comes before it."""
    first, last = group[0][1], group[-1][1]
    extra, after = first.get("document"), last.get("after")
    sentences = [
        (before if isinstance(before := record.get("before"), str) else None, sentence) for sentence, record in group
    ]
    id, extra = optional_str(first.get("doc_id")), extra if isinstance(extra, dict) else {}
    return join_sentences(sentences, id, extra, after if isinstance(after, str) else "")


# Writing


def entity_offsets(document: Document) -> Iterator[tuple[Entity, int, int]]:
    """Each entity with its start and end in the text of the document."""
    for sentence in document.sentences:
        for entity in sentence.entities:
            yield entity, *sentence.characters(entity)


def word_offsets(document: Document) -> list[Span]:
    """The start and end of each word in the text of the document."""
    return [(s.start + i, s.start + j) for s in document.sentences for i, j in s.offsets or ()]


def replace_characters(text: str, pattern: str, change: str, report: ConversionReport, by: str = "_") -> str:
    """The text with `by` in place of characters that a format cannot hold; counted as `change`, if there are any."""
    replaced = re.sub(pattern, by, text)
    if replaced != text:
        report.note(change)
    return replaced


def dump_json(record: Mapping[str, Any], place: str) -> str:
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as why:
        raise DataError(f"{place}: `extra` holds what JSON cannot: {why}.") from None


def write_json(
    documents: Iterable[Document],
    path: Path,
    report: ConversionReport,
    to_record: Callable[[Document], Record],
    frame: Sequence[str] = ("", "\n", "\n"),
) -> None:
    """Write a JSON object for each document of `report_dropped`, which gets a text."""
    records = (dump_json(to_record(document.with_text()), f"{path}, {report.place}") for document in documents)
    write_joined(records, path, frame)


def write_joined(records: Iterable[str], path: Path, frame: Sequence[str]) -> None:
    """Write records; `frame` is what stands before the first, between two of them, and after the last."""
    before, between, after = frame
    with atomic_writer(path) as file:
        file.write(before)
        for number, record in enumerate(records):
            file.write((between if number else "") + record)
        file.write(after)


def write_rows(rows: Iterable[str], path: Path) -> None:
    """Write lines of words. If the first begins with a byte order mark, another one is put before it for readers."""
    with atomic_writer(path) as file:
        for number, row in enumerate(rows):
            file.write("\ufeff" if number == 0 and row.startswith("\ufeff") else "")
            file.write(row + "\n")


# What each format cannot hold, and so drops; docs/data.md has the same as a table.
# The keys of `extra` that a format keeps.
KEPT_KEYS = {
    ("pubtator", "extra keys of entities"): {"id", "mentions"},
    ("spacy", "extra keys of entities"): {"kb_id", "id"},
    ("triplets", "extra keys of sentences"): {"pos"},
}
NOTE_KEYS = {"windows"}  # of sentences: how a model read them, which is no loss


def report_dropped(
    documents: Iterable[Document], format: str, report: ConversionReport, *more_parts: str
) -> Iterator[Document]:
    """The documents; what `format` drops of them is counted in `report`, whose place is the current document.

    more_parts: further parts that the options of this call drop.

    >>> report = ConversionReport()
    >>> for document in report_dropped([Document([Sentence(["Rome"], id="s1")], id="d1")], "brat", report):
    ...     print(report.place, dict(report.counts))
    d1 {'ids of sentences not written: brat cannot hold them': 1}
    """
    for number, document in enumerate(documents, 1):
        report.place = document.id or f"document {number}"
        for part, (dropped_by, count_dropped) in DROPPED_PARTS.items():
            is_dropped = format in dropped_by or part in (*more_parts, "trees")
            if is_dropped and (count := count_dropped(document, KEPT_KEYS.get((format, part), set()))):
                report.note(f"{part} not written: {format} cannot hold them", times=count)
                report.unwritten_documents += part == "documents without sentences"
        yield document
        report.place = ""


def forbidden_offsets(document: Document) -> list[Span]:
    """The forbidden spans of a document with a text, in characters."""
    return [char_span(sentence, *span)[:2] for sentence in document.sentences for span in sentence.forbidden]


Count = Callable[[Document, set[str]], int]


def count_entities(is_dropped: Callable[[Entity, set[str]], Any]) -> Count:
    return lambda document, kept: sum(bool(is_dropped(e, kept)) for s in document.sentences for e in s.entities)


def count_sentences(is_dropped: Callable[[Sentence, set[str]], Any]) -> Count:
    return lambda document, kept: sum(bool(is_dropped(sentence, kept)) for sentence in document.sentences)


WITHOUT_TEXT = {"columns", "triplets"}  # and without documents
WITHOUT_WORDS = {"bioc", "brat", "csv", "doccano", "jsonl by characters", "label-studio", "pubtator"}
WITHOUT_MARKS = {*WITHOUT_TEXT, *WITHOUT_WORDS, "prodigy", "spacy"} - {"jsonl by characters"}
WITHOUT_EXTRA = {*WITHOUT_MARKS, "datasets"}
WITHOUT_BOUNDARIES = {*WITHOUT_WORDS, "prodigy"}
# The parts of documents: which formats lose them, and how to count them. Only jsonl holds trees.
DROPPED_PARTS: dict[str, tuple[Collection[str], Count]] = {
    "heads": (WITHOUT_MARKS - {"csv", "spacy"}, count_entities(lambda e, _: e.head is not None or e.heads)),
    "scores": (WITHOUT_TEXT | {"brat", "doccano", "pubtator"}, count_entities(lambda e, _: e.score is not None)),
    "extra keys of entities": (
        WITHOUT_EXTRA - {"bioc", "prodigy"},
        count_entities(lambda e, kept: e.extra.keys() - kept),
    ),
    "extra keys of sentences": (
        WITHOUT_EXTRA | {"jsonl by characters"},
        count_sentences(lambda s, kept: s.extra.keys() - kept - NOTE_KEYS),
    ),
    "extra keys of documents": (
        {*WITHOUT_TEXT, "brat", "csv", "datasets", "pubtator", "spacy"},
        lambda document, _: bool(document.extra),
    ),
    "ids of sentences": (WITHOUT_TEXT | WITHOUT_BOUNDARIES, count_sentences(lambda s, _: s.id is not None)),
    "ids of documents": (WITHOUT_TEXT, lambda document, _: document.id is not None),
    "marks of incomplete sentences": (WITHOUT_MARKS, count_sentences(lambda s, _: not s.complete)),
    "forbidden spans": (WITHOUT_EXTRA - {"label-studio"}, count_sentences(lambda s, _: s.forbidden)),
    "trees": ((), count_sentences(lambda s, _: s.tree is not None)),
    "texts": ({*WITHOUT_TEXT, "csv"}, count_sentences(lambda s, _: s.text is not None)),
    "word boundaries": (
        WITHOUT_WORDS,
        count_sentences(lambda s, _: s.words != tuple((" ".join(s.words) if s.text is None else s.text).split())),
    ),
    "sentence boundaries": (WITHOUT_BOUNDARIES, lambda document, _: count_sentences_within_lines(document)),
    "document boundaries": (WITHOUT_TEXT, lambda document, _: len(document.sentences) > 1),
    "documents without sentences": (WITHOUT_TEXT | {"datasets"}, lambda document, _: not document.sentences),
}


def count_sentences_within_lines(document: Document) -> int:
    """The number of sentences that splitting the text into lines would not give."""
    count, after = 0, "\n"
    for k, sentence in enumerate(document.sentences):
        before = after
        if document.text is not None:
            end = sentence.start + len(sentence.text or "")
            is_last = k + 1 == len(document.sentences)
            after = "\n" if is_last else document.text[end : document.sentences[k + 1].start]
        count += "\n" in (sentence.text or "") or "\n" not in before or "\n" not in after
    return count
