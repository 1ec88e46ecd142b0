"""Label Studio and doccano, with the requests that they send."""

import json

import pytest

from nestree.data.formats.tasks import label_config
from nestree.pipeline import Pipeline
from nestree.serve.annotation_tools import parse_config
from tests import tiny
from tests.cli.run import succeed
from tests.serve.conftest import TestClient
from tests.serve.test_app import error_of, post

TEXT = "😀🎉 the mayor of Lisbon met the president"
CONFIG = """<View>
  <Choices name="mood" toName="text"><Choice value="good"/></Choices>
  <Labels name="image-labels" toName="image"><Label value="PER"/></Labels>
  <Header value="Entities"/><Image name="image" value="$image"/>
  <View style="x"><Labels name="ner" toName="text"><Label value="Per" background="red"/><Label value="GPE"/>
    <Label value="Nothing of the model"/></Labels></View>
  <Text name="text" value="$body" granularity="word"/>
</View>"""


def task(text: str = TEXT, id: int = 1) -> dict:
    """As Label Studio 1.23 serializes a task for /predict."""
    others = {"meta": {}, "is_labeled": False, "updated_by": None, "comment_authors": []}
    data = {"body": text, "image": "x.png"}
    return {"id": id, "data": data, "created_at": "2026-01-05T10:00:00.000000Z", **others}


def predict_request(*tasks: dict, context: object = None) -> dict:
    params = {"login": None, "password": None, "context": context}
    return {"tasks": list(tasks), "project": "1.1767607200", "label_config": CONFIG, "params": params}


def region(start: int, end: int, *labels: str) -> dict:
    value = {"start": start, "end": end, "labels": list(labels), "text": TEXT[start:end]}
    return {"id": "x1", "type": "labels", "from_name": "ner", "to_name": "text", "value": value}


def predict(client: TestClient, *tasks: dict, context: object = None) -> list[dict]:
    """The predictions of tasks."""
    return post(client, predict_request(*tasks, context=context), "/label-studio/predict").json()["results"]


def spans(prediction: dict) -> set[tuple[int, int, str]]:
    return {(r["value"]["start"], r["value"]["end"], *r["value"]["labels"]) for r in prediction["result"]}


def test_setup_checks_the_labeling_config(client: TestClient):
    request = {"project": "1.1767607200", "schema": CONFIG, "access_token": "x", "extra_params": None}
    assert post(client, request, "/label-studio/setup").json() == {"model_version": "tiny"}
    assert client.get("/label-studio/health").json()["status"] == "UP"
    assert client.get("/label-studio/versions").json() == {"versions": ["tiny"]}
    assert post(client, {"config": CONFIG}, "/label-studio/validate").json()["labels"] == ["GPE", "Per"]
    image = '<View><Labels name="a" toName="b"><Label value="PER"/></Labels><Image name="b"/></View>'
    other = '<View><Labels name="a" toName="t"><Label value="x"/></Labels><Text name="t"/></View>'
    for config, message in {
        "<View>": "not valid XML",
        '<!DOCTYPE x [<!ENTITY a "b">]><View>&a;</View>': "not valid XML",
        "<View/>": "no Labels whose toName is a Text",
        image: "no Labels",
        other: "none of the model's",
    }.items():
        response = post(client, {**request, "schema": config}, "/label-studio/setup")
        assert message in error_of(response, 422, "invalid")


def test_predictions_have_code_point_offsets_and_the_names_of_the_config(client: TestClient, pipeline: Pipeline):
    tasks = task(), task("", 2), task("she left", 3)
    answer = post(client, predict_request(*tasks), "/label-studio/predict").json()
    assert answer["model_version"] == "tiny"
    assert len(answer["results"]) == 3
    names = {"PER": "Per", "GPE": "GPE"}
    for text, prediction in zip([TEXT, "", "she left"], answer["results"], strict=True):
        found = [(e, label) for e in pipeline(text).entities for label in e.labels if label in names]
        expected = {(e.start, e.end, names[label]) for e, label in found}
        assert spans(prediction) == expected
        assert prediction["model_version"] == "tiny"
        for each in prediction["result"]:
            assert (each["from_name"], each["to_name"], each["type"]) == ("ner", "text", "labels")
            assert each["value"]["text"] == text[each["value"]["start"] : each["value"]["end"]]
            assert each["score"] == round(each["score"], 6)
    assert answer["results"][0]["result"]
    scores = [each["score"] for each in answer["results"][0]["result"]]
    assert answer["results"][0]["score"] == round(sum(scores) / len(scores), 6)


@pytest.mark.parametrize("unit", ["code points", "UTF-16", "no text"])
def test_drawn_regions_are_known(client: TestClient, pipeline: Pipeline, unit: str):
    start, end = TEXT.index("the mayor of"), TEXT.index(" of")  # "the mayor"
    drawn = region(start, end + 1, "Per")  # with a blank at its end
    if unit == "UTF-16":
        drawn["value"].update(start=start + 2, end=end + 3)
    if unit == "no text":
        del drawn["value"]["text"]
    other = region(TEXT.index("Lisbon"), TEXT.index("Lisbon") + 6, "Nothing of the model")
    crossing = region(start + 4, end + 3, "GPE")
    context = {"annotation_id": None, "draft_id": 0, "user_id": None, "result": [drawn, other, crossing]}
    (prediction,) = predict(client, task(), context=context)
    known = [(start, end, "PER"), (TEXT.index("Lisbon"), TEXT.index("Lisbon") + 6)]
    expected = pipeline(TEXT, known=known)
    assert (start, end) in [(e.start, e.end) for e in expected.entities]
    drawn_spans = {span[:2] for span in known}
    assert spans(prediction) == {
        (e.start, e.end, {"PER": "Per"}.get(e.label, e.label))
        for e in expected.entities
        if (e.start, e.end) not in drawn_spans and e.label in ("PER", "GPE")
    }
    (free,) = predict(client, task())
    assert spans(prediction) != spans(free)


@pytest.mark.parametrize("context", [{}, [], {"result": None}, {"result": [7]}, {"result": [{"type": "relation"}]}])
def test_odd_contexts_are_ignored(client: TestClient, context):
    assert predict(client, task(), context=context) == predict(client, task())


@pytest.mark.parametrize("data", [None, {}, {"text": TEXT}, {"body": None}, {"body": 7}])
def test_a_task_without_a_text_gets_an_empty_prediction(client: TestClient, caplog, data):
    context = {"result": [region(0, 2, "Per")]}
    before, empty, after = predict(client, task(), {**task(id=7), "data": data}, task(), context=context)
    assert [before, after] == predict(client, task(), context=context) * 2
    assert (empty["result"], empty["score"]) == ([], 0.0)
    assert (
        "tasks[1].data has no text called 'body', which the labeling config shows; this is so for 1 of 3" in caplog.text
    )
    response = post(client, predict_request({**task(), "data": data}), "/label-studio/predict")
    assert "tasks[0].data has no text called 'body'" in error_of(response, 422, "invalid")


def test_wrong_requests_and_events_that_are_ignored(client: TestClient):
    context = {"result": [{"type": "labels", "from_name": "ner", "value": {"start": "x", "labels": ["Per"]}}]}
    error_of(post(client, predict_request(task(), context=context), "/label-studio/predict"), 422, "invalid")
    error_of(post(client, {"tasks": 7}, "/label-studio/predict"), 422, "invalid")
    event = {"action": "ANNOTATION_CREATED", "task": task(), "annotation": {"result": [region(0, 3, "Per")]}}
    assert post(client, event, "/label-studio/webhook").status_code == 200
    for path in ("train", "delete", "duplicate_model", "job_status"):
        assert post(client, {"project": "1.1767607200"}, f"/label-studio/{path}").status_code == 200


def test_label_config_of_a_model(tiny_model):
    config = succeed("label-config", tiny_model).stdout
    assert parse_config(config, tiny.LABELS) == ("label", "text", "text", {x: x for x in tiny.LABELS})
    assert parse_config(label_config(['a<"b']), ['a<"b']).labels == {'a<"b': 'a<"b'}


def test_doccano(client: TestClient, pipeline: Pipeline):
    answer = post(client, {"text": TEXT}, "/doccano").json()
    utf16 = TEXT.encode("utf-16-le")
    assert answer
    expected = [(e.text, label) for e in pipeline(TEXT).entities for label in e.labels]
    places = [(2 * each["start_offset"], 2 * each["end_offset"], each["label"]) for each in answer]
    got = [(utf16[i:j].decode("utf-16-le"), label) for i, j, label in places]
    assert got == expected
    answer = post(client, {"text": TEXT}, "/doccano?offsets=characters").json()
    assert [(TEXT[e["start_offset"] : e["end_offset"]], e["label"]) for e in answer] == expected
    assert json.dumps(answer).startswith('[{"label"')
    error_of(post(client, {"texts": []}, "/doccano"), 422, "invalid")
    error_of(post(client, {"text": "a"}, "/doccano?offsets=bytes"), 422, "invalid")
