"""Prodigy: one task a line, with its spans in characters and, if it was annotated, its tokens.

    {"text": "in Rome", "tokens": [{"text": "in", "start": 0, "end": 2, "id": 0, "ws": true}, ...],
     "spans": [{"start": 3, "end": 7, "token_start": 1, "token_end": 1, "label": "GPE"}], "answer": "accept"}

The words are the tokens that are not blank, if there are tokens. `token_end` is inclusive; only the offsets in
characters are read. A task that was rejected or ignored is left out; the answer to a yes-or-no question is incomplete.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nestree.data.alignment import LabeledSpan, align_spans, align_to_words, note_stray_tokens, tokens
from nestree.data.formats.common import (
    dump_json,
    mark_incomplete,
    require_offsets,
    require_text,
    skip_bad,
    word_offsets,
)
from nestree.data.io import ConversionReport, atomic_writer, json_objects, json_records, parse_probability
from nestree.data.lossiness import report_losses
from nestree.errors import DataError
from nestree.types import Document, Span

TASK_KEYS = {"text", "tokens", "spans", "answer", "relations", "_is_binary"}
SPAN_KEYS = {"start", "end", "label", "token_start", "token_end", "score", "text"}


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
        with skip_bad(tally):
            if relations := json_objects(task, "relations", place):
                tally.note("relations not read", place, len(relations))
            yield parse_task(task, words, sentences, tally, place)


def parse_task(
    task: dict[str, Any], words: str, sentences: str, tally: ConversionReport, place: str
) -> Document:
    text = require_text(task, place)
    spans = list(parse_spans(task, tally, place))
    extra = {key: value for key, value in task.items() if key not in TASK_KEYS}
    id, meta = None, task.get("meta")
    if isinstance(meta, dict) and "doc_id" in meta:
        id = str(meta["doc_id"])
        del extra["meta"]
        if len(meta) > 1:
            extra["meta"] = {key: value for key, value in meta.items() if key != "doc_id"}
    common: dict[str, Any] = {
        "sentences": sentences, "id": id, "tally": tally, "place": place, "extra": extra,
    }  # fmt: skip
    if task.get("tokens") is not None:
        document = align_to_words(text, parse_tokens(task["tokens"], text, place), spans, **common)
    else:
        document = align_spans(text, spans, words=words, **common)
    if task.get("_is_binary"):
        tally.note("questions of yes or no: read as incomplete", place)
        document = mark_incomplete(document)
    return document


def parse_tokens(value: Any, text: str, place: str) -> list[Span]:
    """The offsets of the tokens that are not blank."""
    if not isinstance(value, list):
        raise DataError(f"{place}: `tokens` must be a list, and is {value!r:.40}.")
    words, last_end = [], 0
    for token in value:
        start, end = (token.get("start"), token.get("end")) if isinstance(token, dict) else (None, None)
        if type(start) is not int or type(end) is not int or not last_end <= start < end <= len(text):
            raise DataError(f"{place}: this token is not after the last one and in the text: {token!r:.80}.")
        if token.get("text", text[start:end]) != text[start:end]:
            raise DataError(f"{place}: token {token['text']!r:.40} is not at {start}-{end} of the text.")
        last_end = end
        if not text[start:end].isspace():
            words.append((start, end))
    return words


def parse_spans(task: dict[str, Any], tally: ConversionReport, place: str) -> Iterator[LabeledSpan]:
    for span in json_objects(task, "spans", place):
        start, end = require_offsets(span, place)
        label = span.get("label")
        if label is None:
            tally.note("dropped: an entity without a label", place)
            continue
        if not isinstance(label, str) or not label:
            raise DataError(f"{place}: the label of a span must be a name, and is {label!r:.40}.")
        score = parse_probability(span.get("score"), tally, place)
        extra = {key: value for key, value in span.items() if key not in SPAN_KEYS}
        yield LabeledSpan(start, end, label, None, score, extra)


def write(documents: Iterable[Document], path: Path, tally: ConversionReport) -> None:
    """One document a line, with its words as tokens."""
    with atomic_writer(path) as file:
        for place, document in report_losses(documents, "prodigy", tally):
            task = to_task(document.with_text(), tally, place)
            file.write(dump_json(task, f"{path}, {place}") + "\n")


def to_task(document: Document, tally: ConversionReport, place: str) -> dict[str, Any]:
    text = document.text or ""
    pieces = tokens(text, word_offsets(document))
    note_stray_tokens(pieces, text, tally, place)
    token_ids = [k for k, token in enumerate(pieces) if token.word is not None]  # of each word
    spans: list[dict[str, Any]] = []
    first_word = 0
    for sentence in document.sentences:
        for entity in sentence.entities:
            start, end = sentence.characters(entity)
            span = {
                "start": start,
                "end": end,
                "token_start": token_ids[first_word + entity.start],
                "token_end": token_ids[first_word + entity.end - 1],
                "label": entity.label,
            }
            if entity.score is not None:
                span["score"] = entity.score
            span.update((key, value) for key, value in entity.extra.items() if key not in SPAN_KEYS)
            spans.append(span)
        first_word += len(sentence.words)
    task: dict[str, Any] = {
        "text": text,
        "tokens": [
            {"text": text[t.start : t.end], "start": t.start, "end": t.end, "id": k, "ws": t.blank}
            for k, t in enumerate(pieces)
        ],
        "spans": spans,
    }
    task.update((key, value) for key, value in document.extra.items() if key not in TASK_KEYS)
    if document.id is not None:
        meta = document.extra.get("meta")
        task["meta"] = {**(meta if isinstance(meta, dict) else {}), "doc_id": document.id}
    return task
