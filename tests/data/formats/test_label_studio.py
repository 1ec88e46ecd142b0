"""Label Studio: tasks made by hand in the form of its exports, and tasks that we write."""

import json

from nestree.types import Document, Entity, Sentence
from tests.tiny import write_text

from .reading import documents, phrases, read_one, write


def entities(document):
    return [phrase for sentence in document.sentences for phrase in phrases(sentence)]


def region(start, end, *labels, **value):
    return {"type": "labels", "value": {"start": start, "end": end, "labels": [*labels], **value}}


def test_the_export_is_read_with_nested_crossing_and_double_labels():
    found, report = documents("tools/label_studio.json")
    assert [document.id for document in found] == ["101", "zoo", "103", "104"]
    mayor, zoo, unseen, predicted = found
    assert phrases(mayor.sentences[0]) == [
        ("The mayor of Palermo", "PER"),
        ("The mayor of Palermo", "ROLE"),
        ("Palermo", "GPE"),
        ("Ada Blum", "PER"),
        ("Ada Blum of the Bank", "ODD"),
        ("the Bank of Sicily", "ORG"),
        ("Sicily", "LOC"),
    ]
    assert mayor.extra == {"source": "news"}
    assert entities(zoo) == [("Zürich", "GPE"), ("The Zürich Zoo", "ORG"), ("Zürich", "GPE")]
    assert zoo.text == "Olá 🙂 Zürich!\r\nThe Zürich Zoo opened."
    assert [s.complete for s in unseen.sentences] == [False]
    assert [(e.label, e.score) for e in predicted.sentences[0].entities] == [("LOC", 0.9), ("GPE", 0.6)]
    assert report.counts == {
        "cancelled annotations not read": 1,
        "further annotations of the same task not read": 1,
        "relations not read": 1,
        "regions that are no labelled text not read": 1,
        "tasks without annotations: read as incomplete": 1,
        "predictions read: the task has no annotations": 1,
    }


def test_one_annotator_one_control_or_the_predictions_can_be_chosen(tmp_path):
    by_three, report = documents("tools/label_studio.json", annotator="3")
    assert [document.id for document in by_three] == ["101", "zoo"]
    assert phrases(by_three[0].sentences[0]) == [("Palermo", "GPE")]
    assert report.counts["tasks without annotations of this annotator left out"] == 2
    by_address, _ = documents("tools/label_studio.json", annotator="ada@example.org")
    assert len(by_address[0].sentences[0].entities) == 7
    predicted, _ = documents("tools/label_studio.json", part="predictions")
    assert phrases(predicted[0].sentences[0]) == [("Sicily", "LOC")]
    assert predicted[0].sentences[0].entities[0].score == 0.4
    result = [region(0, 4, "A") | {"from_name": "ner"}, region(0, 4, "B") | {"from_name": "topic"}]
    task = {"data": {"body": "Rome"}, "annotations": [{"result": result}]}
    document, report = read_one(tmp_path, "label-studio", task, from_name="ner", field="body")
    assert phrases(document.sentences[0]) == [("Rome", "A")]
    assert report.counts == {"regions of other controls not read": 1}


def test_the_export_of_a_project_has_only_the_ids_of_predictions(tmp_path):
    """As Label Studio 1.x writes it."""
    annotation = {"id": 1, "completed_by": 1, "result": [region(0, 3, "PER")], "was_cancelled": False}
    tasks = [
        {"id": 1, "annotations": [annotation], "predictions": [1, 2], "data": {"text": "Ann left."}},
        {"id": 2, "annotations": [], "predictions": [3], "data": {"text": "It rained."}},
    ]
    found, report = documents(write_text(tmp_path / "export.json", json.dumps(tasks)), "label-studio")
    assert [entities(document) for document in found] == [[("Ann", "PER")], []]
    assert report.counts["predictions not read: the export of a project has only their ids"] == 1


def test_offsets_of_old_versions_are_noticed_and_put_right(tmp_path):
    found, report = documents("tools/label_studio_old.jsonl", "label-studio")
    for document in found:
        assert entities(document) == [("Zürich", "GPE"), ("The Zürich Zoo", "ORG")]
    assert ["\r\n" in (document.text or "") for document in found] == [True, False, False]
    assert report.counts == {
        "offsets counted UTF-16 units: converted to characters": 1,
        "offsets count CRLF as one character: text read with LF": 2,
    }
    result = [region(7, 14, "GPE", text="Rome 😀")]
    task = {"data": {"text": "I like Rome 😀"}, "annotations": [{"result": result}]}
    document, report = read_one(tmp_path, "label-studio", task)
    assert phrases(document.sentences[0]) == [("Rome 😀", "GPE")]
    assert report.counts == {"offsets counted UTF-16 units: converted to characters": 1}


def test_the_short_form_is_read(tmp_path):
    (document,), _ = documents("tools/label_studio_min.json", "label-studio")
    assert document.id == "9"
    assert sorted(phrases(document.sentences[0])) == [("Palermo", "GPE"), ("The mayor of Palermo", "PER")]
    task = {"id": 1, "text": "in Rome", "ner": [{"start": 3, "end": 7, "text": "Rome", "labels": ["GPE"]}]}
    document, _ = read_one(tmp_path, "label-studio", task)  # after a control of this name
    assert phrases(document.sentences[0]) == [("Rome", "GPE")]


def test_what_cannot_be_settled_is_counted(tmp_path):
    def read_regions(text, *result):
        document, report = read_one(
            tmp_path, "label-studio", {"data": {"text": text}, "annotations": [{"result": [*result]}]}
        )
        return entities(document), report.counts

    found, counts = read_regions("in 🙂 Rome", region(5, 9, "GPE", text="Roma"))
    assert found == [("Rome", "GPE")]
    assert counts == {"offsets trusted: the region repeats another text": 1}
    _, (unsettled,) = read_regions("in 🙂 Rome", region(5, 9, "GPE"))
    assert unsettled.startswith("offsets in a text with emoji taken as characters:")
    found, counts = read_regions("Rome", region(0, 4), region(0, 4, "A") | {"score": 7})
    assert found == [("Rome", "A")]
    assert counts == {"dropped: an entity without a label": 1, "scores not read: not a probability": 1}


TEXT = "Ada Blum 🙂\r\nof Rome"
ENTITIES = Entity(0, 5, "PER", head=1, score=0.75), Entity(4, 5, "GPE", score=0.25), Entity(1, 3, "ODD")
OFFSETS = (0, 3), (4, 8), (9, 10), (12, 14), (15, 19)
SENTENCE = Sentence(("Ada", "Blum", "🙂", "of", "Rome"), ENTITIES, TEXT, OFFSETS, id="s")


def test_predictions_carry_scores_and_the_names_of_the_config(tmp_path):
    path = tmp_path / "out.json"
    names = {"from_name": "ner", "to_name": "words", "field": "body", "model": "m2"}
    document = Document((SENTENCE,), TEXT, "d1", {"source": "x"})
    write([document], path, "label-studio", part="predictions", **names)
    (task,) = json.loads(path.read_text(encoding="utf-8"))
    assert task["data"] == {"body": TEXT, "doc_id": "d1", "source": "x"}
    (prediction,) = task["predictions"]
    assert prediction["model_version"] == "m2"
    assert prediction["score"] == 0.5
    first = prediction["result"][0]
    value = {"start": 0, "end": 19, "text": TEXT, "labels": ["PER"]}
    expected = {"id": "e1", "from_name": "ner", "to_name": "words", "type": "labels"}
    assert first == {**expected, "score": 0.75, "value": value}
    assert "score" not in prediction["result"][2]
    (back,), _ = documents(path, "label-studio", field="body", words="whitespace", sentences="rules")
    assert (back.text, back.id, back.extra) == (TEXT, "d1", {"source": "x"})
    assert {(e.start, e.end, e.label, e.score) for e in back.sentences[0].entities} == {
        (e.start, e.end, e.label, e.score) for e in SENTENCE.entities
    }


def test_no_documents_are_an_empty_list(tmp_path):
    write([], tmp_path / "a.json", "label-studio")
    assert json.loads((tmp_path / "a.json").read_text()) == []
