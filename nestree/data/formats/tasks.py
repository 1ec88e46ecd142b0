"""Tasks of annotation tools, as JSON: Label Studio, doccano, Prodigy.

Label Studio: tasks as it exports and imports them, a JSON list or one a line.

    [{"id": 1, "data": {"text": "in Rome"},
      "annotations": [{"result": [{"type": "labels", "from_name": "label", "to_name": "text",
                                   "value": {"start": 3, "end": 7, "text": "Rome", "labels": ["GPE"]}}]}]}]

`predictions` have the form of `annotations`, with scores: an annotator sees them as pre-labelled entities.
The short form of an export (JSON-MIN) and the `completions` of old versions are read, too.

Tasks of `nestree select --partial` have `questions` in their data, spans in characters, which are predictions, too. An
annotator keeps, relabels or deletes them: questions that are not among the annotations are forbidden spans, and all
else stays open.

Offsets count characters. Old versions counted UTF-16 units, of which an emoji has two, or CRLF as one character.
Regions repeat their text, so such offsets are detected, corrected and counted.

doccano: one text a line with its spans, under one of three keys, as triples or as objects.

    {"text": "in Rome", "label": [[3, 7, "GPE"]]}
    {"text": "in Rome", "labels": [[3, 7, "GPE"]]}
    {"text": "in Rome", "entities": [{"id": 1, "label": "GPE", "start_offset": 3, "end_offset": 7}]}

A JSON list of the same objects is read, too. What the offsets of doccano count depends on the settings of the
project: UTF-16 units or, if it counts grapheme clusters as one character, these. The file does not say which. It
only matters after emoji and combining marks, and is an option.

Prodigy: one task a line, with its spans in characters and, if it was annotated, its tokens.

    {"text": "in Rome", "tokens": [{"text": "in", "start": 0, "end": 2, "id": 0, "ws": true}, ...],
     "spans": [{"start": 3, "end": 7, "token_start": 1, "token_end": 1, "label": "GPE"}], "answer": "accept"}

The words are the tokens that are not white space, if there are tokens. `token_end` is inclusive; only the offsets in
characters are read. A task that was rejected or ignored is left out; the answer to a yes-or-no question is incomplete.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import quoteattr

from nestree.data.alignment import (
    AMBIGUOUS_OFFSETS,
    AnnotatedText,
    Mention,
    Unit,
    has_surrogate_pairs,
    to_code_points,
    tokens,
)
from nestree.data.formats import common, label_studio_regions
from nestree.data.formats.common import Record
from nestree.data.io import ConversionReport, json_records
from nestree.display import HTML_COLORS, color_index
from nestree.errors import DataError
from nestree.types import Document, Span

# Label Studio

SHORT_TASK_KEYS = ("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time")
FROM_NAME, TO_NAME, FIELD = "label", "text", "text"  # of `label_config`


def read_label_studio(
    path: Path,
    report: ConversionReport,
    *,
    part: Literal["annotations", "predictions", ""] = "",
    annotator: str = "",
    field: str = "text",
    from_name: str = "",
) -> Iterator[AnnotatedText]:
    """The tasks of an export, each a document.

    part: "annotations" or "predictions"; if it is not given, the annotations of a task or, if it has none, its
    predictions. annotator: only what this one made: the number or address of a person, the version of a model.
    field: which field of the data holds the text. from_name: only the regions of this control of the labeling config.
    """
    for place, task in json_records(path, report):
        with common.skip_bad(report, place):
            task = to_full_task(task, field, from_name)
            result = select_label_studio_result(task, part, annotator, report)
            if result is None and annotator:
                report.note("tasks without annotations of this annotator left out")
                continue
            data = task["data"]
            text, asked = data.get(field), parse_questions(data)
            given = (a for key in ("annotations", "completions") for a in common.json_objects(task, key))
            if asked and (result is None or all(annotation.get("was_cancelled") for annotation in given)):
                report.note("questions without answers left out")
                continue
            if not isinstance(text, str):
                raise DataError(
                    f"the data has no text called {field!r}, only {', '.join(data)[:60] or 'nothing'}. "
                    "Choose the option `field`."
                )
            mentions = list(parse_regions(result or [], from_name, report))
            text, mentions = correct_region_offsets(text, mentions, report)
            if result is None:
                report.note("tasks without annotations: read as incomplete")
            id = common.optional_str(data.get("doc_id", task.get("id")))
            extra = common.without_keys(data, (field, "doc_id", *(["questions"] if asked else [])))
            kept = {(mention.start, mention.end) for mention in mentions}
            forbidden = [span for span in asked if span not in kept]
            complete = result is not None and not asked
            yield AnnotatedText(text, mentions, place, id, extra, complete, forbidden=forbidden)


def parse_questions(data: Record) -> list[Span]:
    """The spans that the annotator was asked about."""
    questions = data.get("questions")
    if not common.is_list_of(questions, dict):
        return []  # a field of another program
    spans = [(question.get("start"), question.get("end")) for question in questions or ()]
    if not all(type(start) is int and type(end) is int for start, end in spans):
        raise DataError(f"`questions` need `start` and `end` in characters: {questions!r:.60}.")
    return spans


def to_full_task(task: Record, field: str, from_name: str) -> Record:
    """The task with `data` and `annotations`; a short task has its regions beside its text."""
    if "data" in task:
        common.require(task, "data", dict, {})
        return task
    if not isinstance(task.get(field), str):
        raise DataError(f"a task needs `data` with a text, and this one has {', '.join(task)[:60] or 'nothing'}.")
    names = [from_name] if from_name else label_studio_regions(task) or ["label"]
    result = [
        {"type": "labels", "from_name": name, "value": value}
        for name in names
        for value in common.require(task, name, list, [])
    ]
    annotation = {"completed_by": task.get("annotator"), "result": result}
    data = common.without_keys(task, (*names, *SHORT_TASK_KEYS))
    return {"id": task.get("id"), "data": data, "annotations": [annotation] if result else []}


def select_label_studio_result(
    task: Record, part: str, annotator: str, report: ConversionReport
) -> list[Record] | None:
    """The regions of the annotation or prediction to be read; None if there is none."""

    def is_by_annotator(annotation: Record) -> bool:
        author = annotation.get("completed_by", annotation.get("model_version"))
        names = [author.get("id"), author.get("email")] if isinstance(author, dict) else [author]
        return not annotator or annotator in [str(name) for name in names]

    annotations = common.json_objects(task, "annotations") or common.json_objects(task, "completions")
    if cancelled := sum(bool(a.get("was_cancelled")) for a in annotations):
        report.note("cancelled annotations not read", times=cancelled)
    annotations = [a for a in annotations if not a.get("was_cancelled") and is_by_annotator(a)]
    ids = task.get("predictions") if common.is_list_of(task.get("predictions"), int) else []
    predictions = [] if ids else [p for p in common.json_objects(task, "predictions") if is_by_annotator(p)]
    candidates = predictions if part == "predictions" else annotations
    if not part and not annotations and predictions:
        candidates = predictions
        if not cancelled:
            report.note("predictions read: the task has no annotations")
    if not candidates:
        if ids and part != "annotations":
            report.note("predictions not read: the export of a project has only their ids")
        return None
    if len(candidates) > 1:
        report.note("further annotations of the same task not read", times=len(candidates) - 1)
    best = next((a for a in candidates if a.get("ground_truth")), candidates[0])
    return common.json_objects(best, "result")


def parse_regions(result: list[Record], from_name: str, report: ConversionReport) -> Iterator[Mention]:
    """The labelled spans of text, one for each label; all else is counted."""
    texts: set[str] = set()
    for item in result:
        value, kind = item.get("value"), item.get("type", "labels")
        if kind == "relation":
            report.note("relations not read")
        elif kind != "labels" or not isinstance(value, dict):
            report.note("regions that are no labelled text not read")
        elif from_name and item.get("from_name") != from_name:
            report.note("regions of other controls not read")
        else:
            start, end, labels, phrase = (value.get(key) for key in ("start", "end", "labels", "text"))
            if type(start) is not int or type(end) is not int:
                raise DataError(f"a span needs `start` and `end` in characters: {value!r:.80}.")
            texts.add(str(item.get("to_name", "")))
            if len(texts) > 1:
                raise DataError(
                    f"its regions are of several texts, {' and '.join(sorted(texts))}. Choose those of one, with the "
                    "option `from_name`."
                )
            if not isinstance(labels, list) or not all(isinstance(name, str) and name for name in labels):
                raise DataError(f"`labels` of region {start}-{end} must be names: {labels!r:.40}.")
            if not labels:
                report.note("dropped: an entity without a label")
            score = common.parse_probability(item.get("score", value.get("score")), report)
            phrase = phrase if isinstance(phrase, str) else None
            yield from (Mention(start, end, label, None, score, phrase=phrase) for label in labels)


def correct_region_offsets(text: str, mentions: list[Mention], report: ConversionReport) -> tuple[str, list[Mention]]:
    """The text and its mentions with offsets in characters, whatever the file counts; phrases are compared here."""

    def matches(mention: Mention, text: str) -> bool:
        """Is the phrase at its offsets? White space, and line breaks written as \\n, do not matter."""
        parts = text[max(0, mention.start) : max(0, mention.end)], mention.phrase or ""
        actual, phrase = ("".join(part.replace("\\n", "").split()) for part in parts)
        return not mention.phrase or (mention.end <= len(text) and actual == phrase)

    with_lf, note_lf = text.replace("\r\n", "\n"), "offsets count CRLF as one character: text read with LF"
    unit: Unit
    for candidate, unit, correction in (
        (text, "characters", ""),
        (text, "utf-16", "offsets counted UTF-16 units: converted to characters"),
        (with_lf, "characters", note_lf),
        (with_lf, "utf-16", note_lf),
    ):
        convert = to_code_points(candidate, unit)
        moved = [m._replace(start=convert(m.start), end=convert(m.end)) for m in mentions]
        if all(matches(mention, candidate) for mention in moved):
            if correction:
                report.note(correction)
            elif has_surrogate_pairs(text) and not all(mention.phrase for mention in mentions):
                report.note(AMBIGUOUS_OFFSETS)
            return candidate, [mention._replace(phrase=None) for mention in moved]
    report.note("offsets trusted: the region repeats another text")
    return text, [mention._replace(phrase=None) for mention in mentions]


def write_label_studio(
    documents: Iterable[Document],
    path: Path,
    report: ConversionReport,
    *,
    part: Literal["annotations", "predictions"] = "annotations",
    from_name: str = "label",
    to_name: str = "text",
    field: str = "text",
    model: str = "nestree",
) -> None:
    """A JSON list of tasks; in a file called .jsonl, one a line.

    part: entities become "annotations" or "predictions" (with their scores, for pre-labelling). from_name, to_name:
    the names of the Labels and of the Text in the labeling config. field: the field of the data that this Text
    shows. model: the version that predictions give as their origin.
    """

    def to_task(document: Document) -> Record:
        data: Record = {field: document.text}
        if document.id is not None:
            data["doc_id"] = document.id
        data |= common.without_keys(document.extra, data)
        if forbidden := common.forbidden_offsets(document):
            known = [(start, end) for _, start, end in common.entity_offsets(document)]
            data["questions"] = [{"start": i, "end": j} for i, j in sorted({*known, *forbidden})]
        annotation: Record = {"result": list(to_regions(document, part, from_name, to_name))}
        if part == "predictions":
            scores = [region["score"] for region in annotation["result"] if "score" in region]
            mean = {"score": round(sum(scores) / len(scores), 6)} if scores else {}
            annotation = {"model_version": model, **mean, **annotation}
        return {"data": data, part: [annotation]}

    lost_parts = ("scores",) if part == "annotations" else ()
    documents = common.report_dropped(documents, "label-studio", report, *lost_parts)
    frame = ("", "\n", "\n") if ".jsonl" in path.suffixes else ("[\n", ",\n", "\n]\n")
    common.write_json(documents, path, report, to_task, frame)


def to_regions(document: Document, part: str, from_name: str, to_name: str) -> Iterator[Record]:
    """The entities as regions; as predictions, with their scores."""
    for number, (entity, start, end) in enumerate(common.entity_offsets(document), 1):
        phrase = (document.text or "")[start:end]
        region: Record = {"id": f"e{number}", "from_name": from_name, "to_name": to_name, "type": "labels"}
        region["value"] = {"start": start, "end": end, "text": phrase, "labels": [entity.label]}
        if part == "predictions" and entity.score is not None:
            region["score"] = entity.score
        yield region


def label_config(labels: Iterable[str]) -> str:
    """A labeling config with these labels, as `nestree label-config` prints it."""
    lines = [
        f"    <Label value={quoteattr(label)} background={quoteattr(HTML_COLORS[color_index(label)][0])}/>"
        for label in labels
    ]
    head = f'  <Labels name="{FROM_NAME}" toName="{TO_NAME}">'
    text = f'  <Text name="{TO_NAME}" value="${FIELD}"/>'
    return "\n".join(["<View>", head, *lines, "  </Labels>", text, "</View>"])


# doccano

SPANS_KEYS = ("label", "labels", "entities")


def read_doccano(path: Path, report: ConversionReport, *, offsets: Unit = "characters") -> Iterator[AnnotatedText]:
    """The texts of a file, each a document.

    offsets: what they count, "characters", "utf-16" or "graphemes".
    """
    for place, record in json_records(path, report):
        with common.skip_bad(report, place):
            text = common.require_text(record)
            common.count_relations(record, report)
            convert = to_code_points(text, offsets)
            mentions = list(parse_doccano_spans(record, convert))
            if offsets == "characters" and mentions and has_surrogate_pairs(text):
                report.note(AMBIGUOUS_OFFSETS)
            id = common.optional_str(record.get("doc_id", record.get("id")))
            extra = common.without_keys(record, (*SPANS_KEYS, "text", "doc_id", "relations"))
            yield AnnotatedText(text, mentions, place, id, extra)


def parse_doccano_spans(record: Record, convert: Callable[[int], int]) -> Iterator[Mention]:
    keys = [key for key in SPANS_KEYS if record.get(key)]
    if len(keys) > 1:
        raise DataError(f"`{keys[0]}` and `{keys[1]}` both hold spans. Leave out one of them.")
    for value in common.require(record, keys[0], list, []) if keys else ():
        start = end = label = None
        if isinstance(value, dict):
            start, end, label = (value.get(key) for key in ("start_offset", "end_offset", "label"))
        elif isinstance(value, list) and len(value) == 3:
            start, end, label = value
        if type(start) is not int or type(end) is not int or not isinstance(label, str) or not label:
            raise DataError(
                "a span is [start, end, label] or an object with start_offset, end_offset and label, and this is "
                f"{value!r:.60}. Labels are strings: texts that were classified have no spans."
            )
        extra = {"id": value["id"]} if isinstance(value, dict) and "id" in value else {}
        yield Mention(convert(start), convert(end), label, extra=extra)


def write_doccano(
    documents: Iterable[Document],
    path: Path,
    report: ConversionReport,
    *,
    key: Literal["label", "labels", "entities"] = "label",
) -> None:
    """One document a line. key: where its spans stand, "label", "labels" or "entities"."""

    def to_record(document: Document) -> Record:
        spans = [(start, end, entity.label) for entity, start, end in common.entity_offsets(document)]
        record: Record = {"text": document.text, key: spans}
        if key == "entities":
            record[key] = [
                {"id": number, "label": label, "start_offset": start, "end_offset": end}
                for number, (start, end, label) in enumerate(spans, 1)
            ]
            record["relations"] = []
        if document.id is not None:
            record["doc_id"] = document.id
        return record | common.without_keys(document.extra, (*SPANS_KEYS, *record))

    common.write_json(common.report_dropped(documents, "doccano", report), path, report, to_record)


# Prodigy

TASK_KEYS = {"text", "tokens", "spans", "answer", "relations", "_is_binary"}
SPAN_KEYS = {"start", "end", "label", "token_start", "token_end", "score", "text"}


def read_prodigy(path: Path, report: ConversionReport) -> Iterator[AnnotatedText]:
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
            words = None if task.get("tokens") is None else parse_prodigy_tokens(task, text)
            if is_question := bool(task.get("_is_binary")):
                report.note("yes/no questions: read as incomplete")
            mentions = list(parse_prodigy_spans(task, report))
            yield AnnotatedText(text, mentions, place, id, extra, not is_question, words=words)


def parse_prodigy_tokens(task: Record, text: str) -> list[Span]:
    """The offsets of the tokens that are not white space."""
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


def parse_prodigy_spans(task: Record, report: ConversionReport) -> Iterator[Mention]:
    for span in common.json_objects(task, "spans"):
        if span.get("label") is None:
            report.note("dropped: an entity without a label")
            continue
        score = common.parse_probability(span.get("score"), report)
        extra, start, end = common.without_keys(span, SPAN_KEYS), span.get("start"), span.get("end")
        phrase = span.get("text") if isinstance(span.get("text"), str) else None
        yield Mention(start, end, span["label"], None, score, extra, phrase=phrase)  # type: ignore[arg-type]


def write_prodigy(documents: Iterable[Document], path: Path, report: ConversionReport) -> None:
    """One document a line, with its words as tokens."""
    documents = common.report_dropped(documents, "prodigy", report)
    common.write_json(documents, path, report, lambda document: to_prodigy_task(document, report))


def to_prodigy_task(document: Document, report: ConversionReport) -> Record:
    text = document.text or ""
    pieces = tokens(text, common.word_offsets(document), report)
    by_start = {token.start: k for k, token in enumerate(pieces)}
    by_end = {token.end: k for k, token in enumerate(pieces)}
    spans: list[Record] = []
    for entity, start, end in common.entity_offsets(document):
        span: Record = {"start": start, "end": end, "token_start": by_start[start], "token_end": by_end[end]}
        span["label"] = entity.label
        if entity.score is not None:
            span["score"] = entity.score
        spans.append(span | common.without_keys(entity.extra, SPAN_KEYS))
    words = [
        {"text": text[t.start : t.end], "start": t.start, "end": t.end, "id": k, "ws": t.space}
        for k, t in enumerate(pieces)
    ]
    task = {"text": text, "tokens": words, "spans": spans, **common.without_keys(document.extra, TASK_KEYS)}
    if document.id is not None:
        meta = document.extra.get("meta")
        task["meta"] = {**(meta if isinstance(meta, dict) else {}), "doc_id": document.id}
    return task
