"""Prodigy: one task a line, with its spans in characters and, if it was annotated, its tokens.

    {"text": "in Rome", "tokens": [{"text": "in", "start": 0, "end": 2, "id": 0, "ws": true}, ...],
     "spans": [{"start": 3, "end": 7, "token_start": 1, "token_end": 1, "label": "GPE"}], "answer": "accept"}

The words are the tokens if there are any, blanks aside. `token_end` is inclusive; only characters are read. A task
that was rejected or ignored is left out; one that was only asked yes or no is incomplete.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from nestree.data.alignment import CharacterSpan, align_spans, align_to_words, note_strays, tokens
from nestree.data.formats.jsonl import dumped
from nestree.data.io import ConversionReport, atomic_writer, json_objects, json_records, probability
from nestree.data.lossiness import report_losses
from nestree.errors import DataError
from nestree.types import Document, Span

OWN_KEYS = {"text", "tokens", "spans", "answer", "relations", "_is_binary"}
SPAN_KEYS = {"start", "end", "label", "token_start", "token_end", "score", "text"}
NOT_WRITTEN = (
    "heads",
    "further keys of sentences",
    "ids of sentences",
    "marks of incomplete sentences",
    "borders of sentences",
)


def read(
    path: Path, tally: ConversionReport, *, words: str = "treebank", sentences: str = "rules"
) -> Iterator[Document]:
    """The tasks of a file, each a document.

    words: how the text of a task without tokens is split. sentences: how any text is (see nestree.text).
    """
    for place, task in json_records(path, tally):
        if task.get("answer", "accept") != "accept":
            tally.note("tasks that were rejected or ignored left out", place)
            continue
        try:
            if relations := json_objects(task, "relations", place):
                tally.note("relations not read", place, len(relations))
            found = document(task, words, sentences, tally, place)
        except DataError as error:
            tally.bad(error)
            continue
        yield found


def document(
    task: dict[str, Any], words: str, sentences: str, tally: ConversionReport, place: str
) -> Document:
    text = task.get("text")
    if not isinstance(text, str):
        raise DataError(
            f"{place}: a task needs a `text`, and this one has {', '.join(task)[:60] or 'nothing'}."
        )
    spans = list(read_spans(task, tally, place))
    extra = {key: value for key, value in task.items() if key not in OWN_KEYS}
    id, meta = None, task.get("meta")
    if isinstance(meta, dict) and "doc_id" in meta:
        id = str(meta["doc_id"])
        del extra["meta"]
        extra.update({"meta": {k: v for k, v in meta.items() if k != "doc_id"}} if len(meta) > 1 else {})
    rest: dict[str, Any] = {"sentences": sentences, "id": id, "tally": tally, "place": place, "extra": extra}
    if task.get("tokens") is not None:
        found = align_to_words(text, read_tokens(task["tokens"], text, place), spans, **rest)
    else:
        found = align_spans(text, spans, words=words, **rest)
    if not task.get("_is_binary"):
        return found
    tally.note("questions of yes or no: read as incomplete", place)
    return replace(found, sentences=tuple(replace(s, complete=False) for s in found.sentences))


def read_tokens(given: Any, text: str, place: str) -> list[Span]:
    """The places of the tokens that are no blanks."""
    if not isinstance(given, list):
        raise DataError(f"{place}: `tokens` must be a list, and is {given!r:.40}.")
    found, last = [], 0
    for token in given:
        start, end = (token.get("start"), token.get("end")) if isinstance(token, dict) else (None, None)
        if type(start) is not int or type(end) is not int or not last <= start < end <= len(text):
            raise DataError(f"{place}: this token is not after the last one and in the text: {token!r:.80}.")
        if token.get("text", text[start:end]) != text[start:end]:
            raise DataError(f"{place}: token {token['text']!r:.40} is not at {start}-{end} of the text.")
        last = end
        if not text[start:end].isspace():
            found.append((start, end))
    return found


def read_spans(task: dict[str, Any], tally: ConversionReport, place: str) -> Iterator[CharacterSpan]:
    for span in json_objects(task, "spans", place):
        if type(span.get("start")) is not int or type(span.get("end")) is not int:
            raise DataError(f"{place}: a span needs `start` and `end` in characters: {span!r:.80}.")
        label = span.get("label")
        if label is None:
            tally.note("dropped: an entity without a label", place)
            continue
        if not isinstance(label, str) or not label:
            raise DataError(f"{place}: the label of a span must be a name, and is {label!r:.40}.")
        score = probability(span.get("score"), tally, place)
        extra = {key: value for key, value in span.items() if key not in SPAN_KEYS}
        yield CharacterSpan(span["start"], span["end"], label, None, score, extra)


def write(documents: Iterable[Document], path: Path, tally: ConversionReport) -> None:
    """One document a line, with its words as tokens."""
    with atomic_writer(path) as file:
        for number, document in enumerate(documents, 1):
            place = document.id or f"document {number}"
            report_losses(document, "prodigy", NOT_WRITTEN, tally, place)
            file.write(dumped(to_task(document.with_text(), tally, place), f"{path}, {place}") + "\n")


def to_task(document: Document, tally: ConversionReport, place: str) -> dict[str, Any]:
    text = document.text or ""
    words = [
        (sentence.start + i, sentence.start + j)
        for sentence in document.sentences
        for i, j in sentence.offsets or ()
    ]
    pieces = tokens(text, words)
    note_strays(pieces, text, tally, place)
    number = {token.word: k for k, token in enumerate(pieces) if token.word is not None}
    spans, before = [], 0
    for sentence in document.sentences:
        for entity in sentence.entities:
            start, end = sentence.characters(entity)
            span = {
                "start": start,
                "end": end,
                "token_start": number[before + entity.start],
                "token_end": number[before + entity.end - 1],
                "label": entity.label,
            }
            span.update({} if entity.score is None else {"score": entity.score})
            span.update((key, value) for key, value in entity.extra.items() if key not in SPAN_KEYS)
            spans.append(span)
        before += len(sentence.words)
    task: dict[str, Any] = {
        "text": text,
        "tokens": [
            {"text": text[t.start : t.end], "start": t.start, "end": t.end, "id": k, "ws": t.blank}
            for k, t in enumerate(pieces)
        ],
        "spans": spans,
    }
    task.update((key, value) for key, value in document.extra.items() if key not in OWN_KEYS)
    if document.id is not None:
        meta = document.extra.get("meta")
        task["meta"] = {**(meta if isinstance(meta, dict) else {}), "doc_id": document.id}
    return task
