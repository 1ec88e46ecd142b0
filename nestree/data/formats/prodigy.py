"""Prodigy: one task a line, with its spans in characters and, if it was annotated, its tokens.

    {"text": "in Rome", "tokens": [{"text": "in", "start": 0, "end": 2, "id": 0, "ws": true}, ...],
     "spans": [{"start": 3, "end": 7, "token_start": 1, "token_end": 1, "label": "GPE"}], "answer": "accept"}

The words are the tokens that are not blank, if there are tokens. `token_end` is inclusive; only the offsets in
characters are read. A task that was rejected or ignored is left out; the answer to a yes-or-no question is incomplete.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from nestree.data.alignment import AnnotatedText, Mention, tokens
from nestree.data.formats import common
from nestree.data.formats.common import Record
from nestree.data.io import ConversionReport, json_records
from nestree.errors import DataError
from nestree.types import Document, Span

TASK_KEYS = {"text", "tokens", "spans", "answer", "relations", "_is_binary"}
SPAN_KEYS = {"start", "end", "label", "token_start", "token_end", "score", "text"}


def read(path: Path, report: ConversionReport) -> Iterator[AnnotatedText]:
    """The tasks of a file, each a document."""
    for place, task in json_records(path, report):
        if task.get("answer", "accept") != "accept":
            report.note("tasks that were rejected or ignored left out", place)
            continue
        with common.skip_bad(report, place):
            common.count_relations(task, report)
            text = common.require_text(task)
            extra, meta, id = common.without_keys(task, TASK_KEYS), task.get("meta"), None
            if isinstance(meta, dict) and "doc_id" in meta:
                id = str(meta["doc_id"])
                extra["meta"] = common.without_keys(meta, ["doc_id"])
                if len(meta) == 1:
                    del extra["meta"]
            words = None if task.get("tokens") is None else parse_tokens(task, text)
            if is_question := bool(task.get("_is_binary")):
                report.note("yes/no questions: read as incomplete")
            mentions = list(parse_mentions(task, report))
            yield AnnotatedText(text, mentions, place, id, extra, not is_question, words=words)


def parse_tokens(task: Record, text: str) -> list[Span]:
    """The offsets of the tokens that are not blank."""
    words, last_end = [], 0
    for token in common.require(task, "tokens", list, []):
        start, end = (token.get("start"), token.get("end")) if isinstance(token, dict) else (None, None)
        if type(start) is not int or type(end) is not int or not last_end <= start < end <= len(text):
            raise DataError(f"this token is not after the last one and in the text: {token!r:.80}.")
        if token.get("text", text[start:end]) != text[start:end]:
            raise DataError(f"token {token['text']!r:.40} is not at {start}-{end} of the text.")
        last_end = end
        if not text[start:end].isspace():
            words.append((start, end))
    return words


def parse_mentions(task: Record, report: ConversionReport) -> Iterator[Mention]:
    for span in common.json_objects(task, "spans"):
        if span.get("label") is None:
            report.note("dropped: an entity without a label")
            continue
        score = common.parse_probability(span.get("score"), report)
        extra = common.without_keys(span, SPAN_KEYS)
        yield Mention(span.get("start"), span.get("end"), span["label"], None, score, extra)  # type: ignore[arg-type]


def write(documents: Iterable[Document], path: Path, report: ConversionReport) -> None:
    """One document a line, with its words as tokens."""
    losses = common.report_losses(documents, "prodigy", report)
    common.write_json(losses, path, lambda document, place: to_task(document, report, place))


def to_task(document: Document, report: ConversionReport, place: str) -> Record:
    text = document.text or ""
    pieces = tokens(text, common.word_offsets(document), report, place)
    by_start = {token.start: k for k, token in enumerate(pieces)}
    by_end = {token.end: k for k, token in enumerate(pieces)}
    spans: list[Record] = []
    for entity, start, end in common.entity_offsets(document):
        span: Record = {"start": start, "end": end, "token_start": by_start[start], "token_end": by_end[end]}
        span["label"] = entity.label
        if entity.score is not None:
            span["score"] = entity.score
        spans.append(span | common.without_keys(entity.extra, SPAN_KEYS))
    task: Record = {
        "text": text,
        "tokens": [
            {"text": text[t.start : t.end], "start": t.start, "end": t.end, "id": k, "ws": t.blank}
            for k, t in enumerate(pieces)
        ],
        "spans": spans,
        **common.without_keys(document.extra, TASK_KEYS),
    }
    if document.id is not None:
        meta = document.extra.get("meta")
        task["meta"] = {**(meta if isinstance(meta, dict) else {}), "doc_id": document.id}
    return task
