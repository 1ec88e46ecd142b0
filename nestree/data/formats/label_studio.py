"""Label Studio: tasks as it exports and imports them, a JSON list or one a line.

    [{"id": 1, "data": {"text": "in Rome"},
      "annotations": [{"result": [{"type": "labels", "from_name": "label", "to_name": "text",
                                   "value": {"start": 3, "end": 7, "text": "Rome", "labels": ["GPE"]}}]}]}]

`predictions` have the form of `annotations`, with scores: written, they are what an annotator finds already there.
The short form of an export (JSON-MIN) and the `completions` of old versions are read, too.

Offsets count characters. Old versions counted UTF-16 units, of which an emoji has two, or CRLF as one character.
Regions repeat their text, so this is noticed, put right and counted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from nestree.data.alignment import UNSURE, CharacterSpan, align_spans, has_surrogate_pairs, to_code_points
from nestree.data.formats.jsonl import dumped
from nestree.data.io import (
    ConversionReport,
    atomic_writer,
    json_objects,
    json_records,
    probability,
    short_regions,
)
from nestree.data.lossiness import report_losses
from nestree.errors import DataError, InputError
from nestree.types import Document, Entity, Sentence

OF_SHORT_TASKS = (
    "id",
    "annotator",
    "annotation_id",
    "created_at",
    "updated_at",
    "lead_time",
)  # not of their data
PARTS = ("annotations", "predictions")
NOT_WRITTEN = (
    "heads",
    "further keys of entities",
    "further keys of sentences",
    "ids of sentences",
    "marks of incomplete sentences",
    "borders of words",
    "borders of sentences",
)


class Region(NamedTuple):
    start: int
    end: int
    labels: list[str]
    phrase: str | None  # as the region repeats it
    score: float | None


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
    if part and part not in PARTS:
        raise InputError(f"a task has no part {part!r}. Choose one of {', '.join(PARTS)}.")
    for place, task in json_records(path, tally):
        try:
            task = whole(task, field, from_name, place)
            result = chosen(task, part, annotator, tally, place)
            if result is None and annotator:
                tally.note("tasks without annotations of this annotator left out", place)
                continue
            yield document(task, result, words, sentences, field, from_name, tally, place)
        except DataError as error:
            tally.bad(error)


def whole(task: dict[str, Any], field: str, from_name: str, place: str) -> dict[str, Any]:
    """The task in its long form."""
    if "data" in task:
        if not isinstance(task["data"], dict):
            raise DataError(f"{place}: `data` must be an object, and is {task['data']!r:.40}.")
        return task
    if not isinstance(task.get(field), str):
        raise DataError(
            f"{place}: a task needs `data` with a text, and this one has {', '.join(task)[:60] or 'nothing'}."
        )
    result = []
    names = [from_name] if from_name else short_regions(task) or ["label"]
    for name in names:
        values = task.get(name, [])
        if not isinstance(values, list):
            raise DataError(f"{place}: `{name}` must be a list of regions, and is {values!r:.40}.")
        result += [{"type": "labels", "from_name": name, "value": value} for value in values]
    by = {"completed_by": task.get("annotator"), "result": result}
    data = {key: value for key, value in task.items() if key not in {*names, *OF_SHORT_TASKS}}
    return {"id": task.get("id"), "data": data, "annotations": [by] if result else []}


def chosen(
    task: dict[str, Any], part: str, annotator: str, tally: ConversionReport, place: str
) -> list[dict[str, Any]] | None:
    """The regions of the annotation or prediction to be read; None: there is none."""
    annotations = json_objects(task, "annotations", place) or json_objects(task, "completions", place)
    cancelled = [a for a in annotations if a.get("was_cancelled")]
    if cancelled:
        tally.note("cancelled annotations not read", place, len(cancelled))
    annotations = [a for a in annotations if not a.get("was_cancelled") and made_by(a, annotator)]
    predictions = [p for p in json_objects(task, "predictions", place) if made_by(p, annotator)]
    found = {"annotations": annotations, "predictions": predictions, "": annotations or predictions}[part]
    if not found:
        return None
    if not part and found is predictions:
        tally.note("predictions read: the task has no annotations", place)
    if len(found) > 1:
        tally.note("further annotations of the same task not read", place, len(found) - 1)
    best = next((a for a in found if a.get("ground_truth")), found[0])
    return json_objects(best, "result", place)


def made_by(annotation: dict[str, Any], annotator: str) -> bool:
    by = annotation.get("completed_by", annotation.get("model_version"))
    names = [by.get("id"), by.get("email")] if isinstance(by, dict) else [by]
    return not annotator or annotator in [str(name) for name in names]


def document(
    task: dict[str, Any],
    result: list[dict[str, Any]] | None,
    words: str,
    sentences: str,
    field: str,
    from_name: str,
    tally: ConversionReport,
    place: str,
) -> Document:
    data = task["data"]
    text = data.get(field)
    if not isinstance(text, str):
        raise DataError(
            f"{place}: the data has no text called {field!r}, only {', '.join(data)[:60] or 'nothing'}. "
            "Choose the option `field`."
        )
    regions = list(read_regions(result or [], from_name, tally, place))
    text, regions = put_right(text, regions, tally, place)
    spans = [
        CharacterSpan(region.start, region.end, label, None, region.score)
        for region in regions
        for label in region.labels
    ]
    id = data.get("doc_id", task.get("id"))
    found = align_spans(
        text,
        spans,
        id=None if id is None else str(id),
        words=words,
        sentences=sentences,
        tally=tally,
        place=place,
        extra={key: value for key, value in data.items() if key not in (field, "doc_id")},
    )
    if result is not None:
        return found
    tally.note("tasks without annotations: read as incomplete", place)
    return replace(found, sentences=tuple(replace(s, complete=False) for s in found.sentences))


def read_regions(
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
            start, end, labels, phrase = (value.get(key) for key in ("start", "end", "labels", "text"))
            if type(start) is not int or type(end) is not int:
                raise DataError(f"{place}: a region needs `start` and `end` in characters: {value!r:.80}.")
            if not isinstance(labels, list) or not all(isinstance(name, str) and name for name in labels):
                raise DataError(f"{place}: `labels` of region {start}-{end} must be names: {labels!r:.40}.")
            if not labels:
                tally.note("dropped: an entity without a label", place)
            score = probability(item.get("score", value.get("score")), tally, place)
            yield Region(start, end, labels, phrase if isinstance(phrase, str) else None, score)


def put_right(
    text: str, regions: list[Region], tally: ConversionReport, place: str
) -> tuple[str, list[Region]]:
    """The text and its regions, their offsets in characters, whatever they count."""
    if all(fits(region, text) for region in regions):
        if has_surrogate_pairs(text) and any(region.phrase is None for region in regions):
            tally.note(UNSURE, place)
        return text, regions
    with_lf = text.replace("\r\n", "\n")
    for other, unit, what in (
        (text, "utf-16", "offsets counted UTF-16 units: made to count characters"),
        (with_lf, "characters", "offsets count CRLF as one character: text read with LF"),
        (with_lf, "utf-16", "offsets count CRLF as one character: text read with LF"),
    ):
        count = to_code_points(other, unit)
        changed = [region._replace(start=count(region.start), end=count(region.end)) for region in regions]
        if all(fits(region, other) for region in changed):
            tally.note(what, place)
            return other, changed
    tally.note("offsets trusted: the region repeats another text", place)
    return text, regions


def fits(region: Region, text: str) -> bool:
    """Is the phrase that the region repeats the one at its offsets? Blanks do not matter, nor how breaks are told."""
    if region.phrase is None:
        return True
    if region.end > len(text):
        return False
    there, repeated = text[max(0, region.start) : max(0, region.end)], region.phrase.replace("\\n", "")
    return "".join(there.replace("\\n", "").split()) == "".join(repeated.split())


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
    if part not in PARTS:
        raise InputError(f"a task has no part {part!r}. Choose one of {', '.join(PARTS)}.")
    listed = ".jsonl" not in path.suffixes
    lost = NOT_WRITTEN if part == "predictions" else (*NOT_WRITTEN, "scores")
    with atomic_writer(path) as file:
        file.write("[\n" if listed else "")
        for number, document in enumerate(documents, 1):
            place = document.id or f"document {number}"
            report_losses(document, "label-studio", lost, tally, place)
            if number > 1:
                file.write(",\n" if listed else "\n")
            task = to_task(document.with_text(), part, from_name, to_name, field, model)
            file.write(dumped(task, f"{path}, {place}"))
        file.write("\n]\n" if listed else "\n")


def to_task(
    document: Document, part: str, from_name: str, to_name: str, field: str, model: str
) -> dict[str, Any]:
    data: dict[str, Any] = {field: document.text}
    if document.id is not None:
        data["doc_id"] = document.id
    data.update((key, value) for key, value in document.extra.items() if key not in data)
    entities = [(sentence, entity) for sentence in document.sentences for entity in sentence.entities]
    result = [
        region(sentence, entity, number, from_name, to_name)
        for number, (sentence, entity) in enumerate(entities, 1)
    ]
    if part == "annotations":
        return {"data": data, part: [{"result": result}]}
    scores = [entity.score for _, entity in entities if entity.score is not None]
    for item, (_, entity) in zip(result, entities, strict=True):
        item.update({} if entity.score is None else {"score": entity.score})
    sure = {"score": sum(scores) / len(scores)} if scores else {}  # as its entities are on average
    return {"data": data, part: [{"model_version": model, **sure, "result": result}]}


def region(sentence: Sentence, entity: Entity, number: int, from_name: str, to_name: str) -> dict[str, Any]:
    start, end = sentence.characters(entity)
    value = {"start": start, "end": end, "text": sentence.phrase(entity), "labels": [entity.label]}
    names = {"from_name": from_name, "to_name": to_name, "type": "labels"}
    return {"id": f"e{number}", **names, "value": value}
