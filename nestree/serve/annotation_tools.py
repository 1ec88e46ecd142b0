"""Backends of annotation tools: Label Studio under /label-studio, doccano under /doccano.

Label Studio counts offsets in code points: its editor converts them from the UTF-16 units of the browser. Regions
repeat their text, by which offsets of versions that did not are recognized (`formats.tasks.correct_region_offsets`).
doccano's editor counts UTF-16 units.
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree.ElementTree import Element

from defusedxml import ElementTree
from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field

from nestree.data.alignment import AnnotatedText, valid_mentions
from nestree.data.formats.common import locate_errors
from nestree.data.formats.tasks import FIELD, FROM_NAME, TO_NAME, correct_region_offsets, parse_regions
from nestree.data.io import ConversionReport
from nestree.errors import InputError
from nestree.types import Document, round_probability

if TYPE_CHECKING:
    from nestree.serve.app import Service

log = logging.getLogger(__name__)


class PredictRequest(BaseModel):
    """What Label Studio sends to /predict; other keys are ignored."""

    model_config = ConfigDict(strict=True)
    tasks: list[dict[str, Any]]
    label_config: str | None = None
    params: dict[str, Any] | None = None


class SetupRequest(BaseModel):
    """What Label Studio sends to /setup and /validate."""

    model_config = ConfigDict(strict=True)
    setup_config: str | None = Field(None, alias="schema")
    config: str | None = None


class DoccanoRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    text: str


class Control(NamedTuple):
    """The Labels of a labeling config that are for a Text."""

    from_name: str
    to_name: str
    field: str  # of the data of a task
    labels: Mapping[str, str]  # of the model -> of the config


def parse_config(config: str | None, labels: Sequence[str]) -> Control:
    """The first Labels whose `toName` is a Text; labels are compared by name, in any case of letters.

    >>> from nestree.data.formats.tasks import label_config
    >>> parse_config(label_config(["person", "place"]), ["person", "place", "time"])
    Control(from_name='label', to_name='text', field='text', labels={'person': 'person', 'place': 'place'})
    """
    if not config:
        return Control(FROM_NAME, TO_NAME, FIELD, {label: label for label in labels})
    try:
        root: Element = ElementTree.fromstring(config)
    except (ElementTree.ParseError, ValueError) as error:  # defusedxml raises ValueErrors
        raise InputError(f"the labeling config is not valid XML: {error}.") from None
    texts = {element.get("name"): element for element in root.iter("Text")}
    for control in root.iter("Labels"):
        name, to_name = control.get("name"), (control.get("toName") or "").partition(",")[0].strip()
        if name is None or to_name not in texts:
            continue
        values = [element.get("value") or "" for element in control.iter("Label")]
        by_name = {value.casefold(): value for value in reversed(values)}
        shared = {label: by_name[label.casefold()] for label in labels if label.casefold() in by_name}
        if not shared:
            raise InputError(
                f"the labels of {name!r} ({', '.join(values)[:60]}) are none of the model's: {', '.join(labels)}. "
                "`nestree label-config MODEL` writes a config with them."
            )
        return Control(name, to_name, (texts[to_name].get("value") or "$text").removeprefix("$"), shared)
    raise InputError("the labeling config has no Labels whose toName is a Text; add them.")


def known_spans(result: Any, text: str, control: Control) -> list[tuple[int, int, str | None]]:
    """The regions that an annotator has drawn, as known entities; labels that the model lacks are left out.

    Regions may cross, and known entities may not: of two that cross, the first is known.
    """
    if not isinstance(result, list) or not all(isinstance(region, dict) for region in result):
        return []
    to_model = {name: label for label, name in control.labels.items()}
    report = ConversionReport(skip_bad=True)
    with locate_errors("params.context.result"):
        mentions = list(parse_regions(result, control.from_name, report))
    corrected, mentions = correct_region_offsets(text, mentions, report)
    if corrected != text:  # offsets that count CRLF as one character
        return []
    known: list[tuple[int, int, str | None]] = []
    for start, end, label, *_ in valid_mentions(AnnotatedText(text, mentions, ""), report):
        if not any(start < i < end < j or i < start < j < end for i, j, _ in known):
            known.append((start, end, to_model.get(label)))
    return known


def to_prediction(
    document: Document | Exception, control: Control, version: str, known: Sequence[tuple[int, int, Any]]
) -> dict[str, Any]:
    """A prediction of Label Studio, without what is known; an empty one for a text that failed."""
    result = []
    if isinstance(document, Exception):
        log.warning("a task of Label Studio failed: %s", type(document).__name__)
        document = Document((), "")
    known_regions = {(start, end) for start, end, _ in known}
    for entity in document.entities:
        for label, score in zip(entity.labels, map(round_probability, entity.scores), strict=True):
            if label in control.labels and (entity.start, entity.end) not in known_regions:
                region = {"id": f"{entity.start}-{entity.end}-{label}", "type": "labels", "score": score}
                region |= {"from_name": control.from_name, "to_name": control.to_name}
                value = {"start": entity.start, "end": entity.end, "text": entity.text}
                result.append({**region, "value": {**value, "labels": [control.labels[label]]}})
    scores = [region["score"] for region in result if isinstance(region["score"], float)]
    mean = round(sum(scores) / len(scores), 6) if scores else 0.0
    return {"result": result, "score": mean, "model_version": version}


def add_routes(app: FastAPI, service: "Service") -> None:
    version = service.options.model_name

    @app.get("/label-studio/health", tags=["Label Studio"])
    async def label_studio_health() -> Any:
        """Whether the model is loaded."""
        service.queue.get_pipeline()
        return {"status": "UP", "model_class": version}

    async def check_config(request: Request) -> Control:
        body = await service.read_json(request, SetupRequest)
        labels = service.queue.get_pipeline().model.labels
        return parse_config(body.setup_config or body.config, labels)

    @app.post("/label-studio/setup", tags=["Label Studio"])
    async def label_studio_setup(request: Request) -> Any:
        """Check the labeling config of a project."""
        await check_config(request)
        return {"model_version": version}

    @app.post("/label-studio/validate", tags=["Label Studio"])
    async def label_studio_validate(request: Request) -> Any:
        """Check a labeling config."""
        control = await check_config(request)
        return {"status": "ok", "labels": list(control.labels.values())}

    @app.get("/label-studio/versions", tags=["Label Studio"])
    async def label_studio_versions() -> Any:
        """The versions of the model: one."""
        return {"versions": [version]}

    @app.post("/label-studio/predict", tags=["Label Studio"])
    async def label_studio_predict(request: Request) -> Any:
        """Predict tasks. Regions that are drawn already (params.context.result) are known entities.

        All other entities are predicted given these, and do not contain them again. A task without a text gets an
        empty prediction.
        """
        body = await service.read_json(request, PredictRequest)
        context = (body.params or {}).get("context") or {}
        regions = context.get("result") if isinstance(context, dict) else None
        control = parse_config(body.label_config, service.queue.get_pipeline().model.labels)
        data = [task.get("data") for task in body.tasks]
        found = [each.get(control.field) if isinstance(each, dict) else None for each in data]
        texts = [text if isinstance(text, str) else "" for text in found]
        missing = [number for number, text in enumerate(found) if not isinstance(text, str)]
        if missing:
            message = (
                f"tasks[{missing[0]}].data has no text called {control.field!r}, which the labeling config shows; this "
                f"is so for {len(missing)} of {len(texts)} tasks. Correct the data, or the config."
            )
            if len(missing) == len(texts):
                raise InputError(message)
            log.warning("Label Studio: %s", message)
        known = [known_spans(regions, text, control) for text in texts]
        documents = await service.predict(request, texts, known, trees=False)
        predictions = [
            to_prediction(document, control, version, spans) for document, spans in zip(documents, known, strict=True)
        ]
        return {"results": predictions, "model_version": version}

    def ignore(path: str, answer: dict[str, Any]) -> None:
        @app.post(f"/label-studio/{path}", tags=["Label Studio"], name=f"label_studio_{path}")
        async def ignored() -> Any:
            """Accepted and ignored: this model is not trained by Label Studio."""
            return answer

    for path in ("webhook", "train", "delete", "duplicate_model"):
        ignore(path, {"status": "ok"})
    ignore("job_status", {"job_status": "finished"})

    @app.post("/doccano", tags=["doccano"])
    async def doccano(request: Request, offsets: str = "utf-16") -> Any:
        """Entities for doccano's auto labeling: {"text": ...} gives [{"label", "start_offset", "end_offset"}, ...].

        `offsets`: utf-16, which doccano's editor counts, or characters.
        """
        if offsets not in ("utf-16", "characters"):
            raise InputError(f"offsets is {offsets[:40]!r}; it must be utf-16 or characters.")
        body = await service.read_json(request, DoccanoRequest)
        document = (await service.predict(request, [body.text], trees=False))[0]
        if isinstance(document, Exception):
            raise document
        places: Sequence[int] = range(len(body.text) + 1)
        if offsets == "utf-16":  # the offset in UTF-16 units of each character, and of the end
            places = list(accumulate((1 + (character > "\uffff") for character in body.text), initial=0))
        return [
            {"label": label, "start_offset": places[entity.start], "end_offset": places[entity.end]}
            for entity in document.entities
            for label in entity.labels
        ]
