"""Label Studio: tasks as it exports and imports them, a JSON list or one a line.

    [{"id": 1, "data": {"text": "in Rome"},
      "annotations": [{"result": [{"type": "labels", "from_name": "label", "to_name": "text",
                                   "value": {"start": 3, "end": 7, "text": "Rome", "labels": ["GPE"]}}]}]}]

`predictions` have the form of `annotations`, with scores: an annotator sees them as pre-labelled entities.
The short form of an export (JSON-MIN) and the `completions` of old versions are read, too.

Offsets count characters. Old versions counted UTF-16 units, of which an emoji has two, or CRLF as one character.
Regions repeat their text, so such offsets are noticed, corrected and counted.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nestree.data.alignment import (
    AMBIGUOUS_OFFSETS,
    LabeledSpan,
    align_spans,
    has_surrogate_pairs,
    to_code_points,
)
from nestree.data.formats.common import (
    check_choice,
    dump_json,
    entity_offsets,
    mark_incomplete,
    optional_str,
    require_offsets,
    skip_bad,
)
from nestree.data.io import (
    ConversionReport,
    atomic_writer,
    json_objects,
    json_records,
    label_studio_regions,
    parse_probability,
)
from nestree.data.lossiness import report_losses
from nestree.errors import DataError
from nestree.types import Document

TASK_KEYS = ("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time")  # of a short task
PARTS = ("annotations", "predictions")


class Region(NamedTuple):
    start: int
    end: int
    labels: list[str]
    phrase: str | None  # the text that the region repeats
    score: float | None

    def matches(self, text: str) -> bool:
        """Is the phrase at these offsets? Blanks and line breaks, which may be written as \\n, do not matter."""
        if self.phrase is None:
            return True
        actual, phrase = (
            "".join(part.replace("\\n", "").split())
            for part in (text[max(0, self.start) : max(0, self.end)], self.phrase)
        )
        return self.end <= len(text) and actual == phrase


def read(
    path: Path,
    tally: ConversionReport,
    *,
    words: str = "treebank",
    sentences: str = "rules",
    part: str = "",
    annotator: str = "",
    field: str = "text",
    from_name: str = "",
) -> Iterator[Document]:
    """The tasks of an export, each a document.

    words, sentences: how the text is split (see nestree.text). part: "annotations" or "predictions"; if it is not
    given, the annotations of a task or, if it has none, its predictions. annotator: only what this one made: the
    number or address of a person, the version of a model. field: which field of the data holds the text.
    from_name: only the regions of this control of the labeling config.
    """
    check_choice("part", part, (*PARTS, ""))
    for place, task in json_records(path, tally):
        with skip_bad(tally):
            task = to_long_form(task, field, from_name, place)
            result = select_result(task, part, annotator, tally, place)
            if result is None and annotator:
                tally.note("tasks without annotations of this annotator left out", place)
                continue
            data = task["data"]
            text = data.get(field)
            if not isinstance(text, str):
                raise DataError(
                    f"{place}: the data has no text called {field!r}, only {', '.join(data)[:60] or 'nothing'}. "
                    "Choose the option `field`."
                )
            text, regions = correct_offsets(
                text, list(parse_regions(result or [], from_name, tally, place)), tally, place
            )
            document = align_spans(
                text,
                [LabeledSpan(r.start, r.end, label, None, r.score) for r in regions for label in r.labels],
                id=optional_str(data.get("doc_id", task.get("id"))),
                words=words,
                sentences=sentences,
                tally=tally,
                place=place,
                extra={key: value for key, value in data.items() if key not in (field, "doc_id")},
            )
            if result is None:
                tally.note("tasks without annotations: read as incomplete", place)
                document = mark_incomplete(document)
            yield document


def to_long_form(task: dict[str, Any], field: str, from_name: str, place: str) -> dict[str, Any]:
    """The task with `data` and `annotations`; a short task has its regions beside its text."""
    if "data" in task:
        if not isinstance(task["data"], dict):
            raise DataError(f"{place}: `data` must be an object, and is {task['data']!r:.40}.")
        return task
    if not isinstance(task.get(field), str):
        raise DataError(
            f"{place}: a task needs `data` with a text, and this one has {', '.join(task)[:60] or 'nothing'}."
        )
    result = []
    names = [from_name] if from_name else label_studio_regions(task) or ["label"]
    for name in names:
        values = task.get(name, [])
        if not isinstance(values, list):
            raise DataError(f"{place}: `{name}` must be a list of regions, and is {values!r:.40}.")
        result += [{"type": "labels", "from_name": name, "value": value} for value in values]
    annotation = {"completed_by": task.get("annotator"), "result": result}
    data = {key: value for key, value in task.items() if key not in (*names, *TASK_KEYS)}
    return {"id": task.get("id"), "data": data, "annotations": [annotation] if result else []}


def select_result(
    task: dict[str, Any], part: str, annotator: str, tally: ConversionReport, place: str
) -> list[dict[str, Any]] | None:
    """The regions of the annotation or prediction to be read; None if there is none."""

    def is_by_annotator(annotation: dict[str, Any]) -> bool:
        author = annotation.get("completed_by", annotation.get("model_version"))
        names = [author.get("id"), author.get("email")] if isinstance(author, dict) else [author]
        return not annotator or annotator in [str(name) for name in names]

    annotations = json_objects(task, "annotations", place) or json_objects(task, "completions", place)
    if cancelled := sum(bool(a.get("was_cancelled")) for a in annotations):
        tally.note("cancelled annotations not read", place, cancelled)
    annotations = [a for a in annotations if not a.get("was_cancelled") and is_by_annotator(a)]
    predictions = [p for p in json_objects(task, "predictions", place) if is_by_annotator(p)]
    candidates = {"annotations": annotations, "predictions": predictions, "": annotations or predictions}[
        part
    ]
    if not candidates:
        return None
    if not part and candidates is predictions:
        tally.note("predictions read: the task has no annotations", place)
    if len(candidates) > 1:
        tally.note("further annotations of the same task not read", place, len(candidates) - 1)
    best = next((a for a in candidates if a.get("ground_truth")), candidates[0])
    return json_objects(best, "result", place)


def parse_regions(
    result: list[dict[str, Any]], from_name: str, tally: ConversionReport, place: str
) -> Iterator[Region]:
    """The labelled spans of text; all else is counted."""
    for item in result:
        value, kind = item.get("value"), item.get("type", "labels")
        if kind == "relation":
            tally.note("relations not read", place)
        elif kind != "labels" or not isinstance(value, dict):
            tally.note("regions that are no labelled text not read", place)
        elif from_name and item.get("from_name") != from_name:
            tally.note("regions of other controls not read", place)
        else:
            start, end = require_offsets(value, place)
            labels, phrase = value.get("labels"), value.get("text")
            if not isinstance(labels, list) or not all(isinstance(name, str) and name for name in labels):
                raise DataError(f"{place}: `labels` of region {start}-{end} must be names: {labels!r:.40}.")
            if not labels:
                tally.note("dropped: an entity without a label", place)
            score = parse_probability(item.get("score", value.get("score")), tally, place)
            yield Region(start, end, labels, phrase if isinstance(phrase, str) else None, score)


def correct_offsets(
    text: str, regions: list[Region], tally: ConversionReport, place: str
) -> tuple[str, list[Region]]:
    """The text and its regions with offsets in characters, whatever the file counts."""
    if all(region.matches(text) for region in regions):
        if has_surrogate_pairs(text) and any(region.phrase is None for region in regions):
            tally.note(AMBIGUOUS_OFFSETS, place)
        return text, regions
    with_lf = text.replace("\r\n", "\n")
    for candidate, unit, correction in (
        (text, "utf-16", "offsets counted UTF-16 units: made to count characters"),
        (with_lf, "characters", "offsets count CRLF as one character: text read with LF"),
        (with_lf, "utf-16", "offsets count CRLF as one character: text read with LF"),
    ):
        convert = to_code_points(candidate, unit)
        converted = [
            region._replace(start=convert(region.start), end=convert(region.end)) for region in regions
        ]
        if all(region.matches(candidate) for region in converted):
            tally.note(correction, place)
            return candidate, converted
    tally.note("offsets trusted: the region repeats another text", place)
    return text, regions


def write(
    documents: Iterable[Document],
    path: Path,
    tally: ConversionReport,
    *,
    part: str = "annotations",
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
    check_choice("part", part, PARTS)
    is_list = ".jsonl" not in path.suffixes
    lost_parts = ("scores",) if part == "annotations" else ()
    with atomic_writer(path) as file:
        file.write("[\n" if is_list else "")
        for number, (place, document) in enumerate(
            report_losses(documents, "label-studio", tally, *lost_parts)
        ):
            document = document.with_text()
            data: dict[str, Any] = {field: document.text}
            if document.id is not None:
                data["doc_id"] = document.id
            data.update((key, value) for key, value in document.extra.items() if key not in data)
            task = {"data": data, part: [to_annotation(document, part, from_name, to_name, model)]}
            separator = "" if not number else ",\n" if is_list else "\n"
            file.write(separator + dump_json(task, f"{path}, {place}"))
        file.write("\n]\n" if is_list else "\n")


def to_annotation(document: Document, part: str, from_name: str, to_name: str, model: str) -> dict[str, Any]:
    """The entities as an annotation or, with their scores and the mean of these, as a prediction."""
    annotation: dict[str, Any] = {"model_version": model} if part == "predictions" else {}
    result, scores = [], []
    for number, (entity, start, end) in enumerate(entity_offsets(document), 1):
        phrase = (document.text or "")[start:end]
        region: dict[str, Any] = {
            "id": f"e{number}",
            "from_name": from_name,
            "to_name": to_name,
            "type": "labels",
        }
        region["value"] = {"start": start, "end": end, "text": phrase, "labels": [entity.label]}
        if part == "predictions" and entity.score is not None:
            region["score"] = entity.score
            scores.append(entity.score)
        result.append(region)
    if scores:
        annotation["score"] = sum(scores) / len(scores)
    return {**annotation, "result": result}
