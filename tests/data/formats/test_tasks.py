"""Annotation tools: doccano, Prodigy, Label Studio; their exports, and tasks that we write."""

import json

import pytest

from nestree.errors import InputError
from nestree.types import Document, Entity, Sentence
from tests.tiny import write_text

from .reading import documents, phrases, read_one, write

# doccano: the three keys, triples and objects, and what its offsets may count


@pytest.mark.parametrize("key", ["label", "labels", "entities"])
def test_all_three_keys_of_doccano_say_the_same(key):
    found, report = documents(f"tools/doccano_{key}.jsonl", "doccano")
    assert [document.id for document in found] == ["1", "2"]
    assert sorted(phrases(found[0].sentences[0])) == [
        ("Ada Blum of the Bank", "ODD"),
        ("Palermo", "GPE"),
        ("The mayor of Palermo", "PER"),
        ("the Bank of Sicily", "ORG"),
    ]
    assert [phrases(s) for s in found[1].sentences if s.entities] == [[("The Zürich Zoo", "ORG")]]
    assert "\r\n" in (found[1].text or "")
    assert report.counts == ({"relations not read": 1} if key == "entities" else {})


FAMILY = "👨‍👩‍👧 é\u0301\u0323, Rome"  # five characters of which three are two units, an e with three marks


@pytest.mark.parametrize(("offsets", "start"), [("characters", 11), ("utf-16", 14), ("graphemes", 5)])
def test_offsets_count_what_is_chosen(tmp_path, offsets, start):
    record = {"text": FAMILY, "label": [[start, start + 4, "GPE"]]}
    document, report = read_one(tmp_path, "doccano", record, offsets=offsets)
    assert [phrase for s in document.sentences for phrase in phrases(s)] == [("Rome", "GPE")]
    assert len(report.counts) == (offsets == "characters")


def test_unsure_offsets_are_counted_where_they_matter(tmp_path):
    for text, counts in {"é Rome": [], "🙂 Rome": [1]}.items():
        _, report = read_one(tmp_path, "doccano", {"text": text, "label": [[2, 6, "GPE"]]})
        assert list(report.counts.values()) == counts
    with pytest.raises(InputError, match="offsets is one of characters, utf-16, graphemes, not 'bytes'"):
        read_one(tmp_path, "doccano", {"text": "Rome"}, offsets="bytes")


@pytest.mark.parametrize("key", ["label", "labels", "entities"])
def test_what_is_written_for_doccano_comes_back(tmp_path, key):
    entities = Entity(0, 2, "X", head=1, score=0.5), Entity(1, 2, "GPE")
    sentences = Sentence(("in", "Rome"), entities), Sentence(("So",))
    write([Document(sentences, None, "d", {"more": [1]})], tmp_path / "a", "doccano", key=key)
    record = json.loads((tmp_path / "a").read_text())
    assert record["text"] == "in Rome\nSo"
    assert len(record[key]) == 2
    (back,), _ = documents(tmp_path / "a", "doccano", words="whitespace", sentences="lines")
    assert [s.words for s in back.sentences] == [("in", "Rome"), ("So",)]
    assert {e.span for e in back.sentences[0].entities} == {(0, 2), (1, 2)}
    assert (back.id, back.extra) == ("d", {"more": [1]})


# Prodigy: tokens kept, answers heeded, spans in characters


def test_tokens_of_prodigy_are_the_words_and_answers_are_heeded():
    (acme, rome), report = documents("tools/prodigy.jsonl")
    words = ["New York-based Acme Inc. sues .", "Its CEO left 🙂 ."]
    assert [s.words for s in acme.sentences] == [tuple(sentence.split()) for sentence in words]
    assert [phrases(s) for s in acme.sentences] == [
        [("New York-based Acme Inc.", "ORG"), ("New York-based", "GPE")],
        [("Its CEO", "PER"), ("Its", "ORG")],
    ]
    boss = acme.sentences[1].entities[0]
    assert (boss.score, boss.extra) == (0.7, {"source": "m"})
    assert (acme.id, acme.extra["meta"]) == ("a1", {"page": 2})
    assert [s.complete for s in acme.sentences] == [True, True]
    assert rome.sentences[0].words == ("Rome", "is", "n't", "far", ".")
    assert [s.complete for s in rome.sentences] == [False]
    assert report.counts == {
        "widened to word boundaries": 1,
        "tasks that were rejected or ignored left out": 2,
        "relations not read": 1,
        "yes/no questions: read as incomplete": 1,
    }


def test_a_span_without_label_or_word_is_dropped_and_counted(tmp_path):
    tokens = [{"text": "in", "start": 0, "end": 2}]
    places = [(3, 7, {"label": "A"}), (0, 2, {}), (2, 3, {"label": "B"})]
    spans = [{"start": start, "end": end, **label} for start, end, label in places]
    document, report = read_one(tmp_path, "prodigy", {"text": "in Rome", "tokens": tokens, "spans": spans})
    assert document.sentences[0].entities == ()
    assert report.counts == {
        "dropped: an entity that holds no word": 1,
        "dropped: an entity without a label": 1,
        "dropped: an entity of white space only": 1,
    }


def test_a_span_that_goes_beyond_the_tokens_is_narrowed_and_counted(tmp_path):
    tokens = [{"text": "in", "start": 0, "end": 2}]
    spans = [{"start": 0, "end": 7, "label": "A"}]
    document, report = read_one(tmp_path, "prodigy", {"text": "in Rome", "tokens": tokens, "spans": spans})
    assert document.sentences[0].entities == (Entity(0, 1, "A"),)
    assert report.counts == {"narrowed: an entity begins or ends outside of all words": 1}


def test_written_tokens_spell_the_text_and_ends_are_inclusive(tmp_path):
    text = "Do  n't\r\ngo 🙂"
    entities = Entity(0, 4, "X", score=0.5, extra={"source": "m"}), Entity(2, 4, "Y", head=2)
    sentence = Sentence(("Do", "n't", "go", "🙂"), entities, text, ((0, 2), (4, 7), (9, 11), (12, 13)))
    write([Document((sentence,), text, "d", {"meta": {"page": 1}})], tmp_path / "a", "prodigy")
    task = json.loads((tmp_path / "a").read_text(encoding="utf-8"))
    assert "".join(t["text"] + " " * t["ws"] for t in task["tokens"]) == text
    assert [t["id"] for t in task["tokens"]] == list(range(6))
    assert [(s["token_start"], s["token_end"]) for s in task["spans"]] == [(0, 5), (4, 5)]
    assert task["meta"] == {"page": 1, "doc_id": "d"}
    (back,), _ = documents(tmp_path / "a", "prodigy")
    assert back.sentences[0].words == sentence.words
    entities = [(e.span, e.score, e.extra) for e in back.sentences[0].entities]
    assert entities == [((0, 4), 0.5, {"source": "m"}), ((2, 4), None, {})]
    assert (back.text, back.id, back.extra) == (text, "d", {"meta": {"page": 1}})


# Label Studio: tasks made by hand in the form of its exports, and tasks that we write


def entities(document):
    return [phrase for sentence in document.sentences for phrase in phrases(sentence)]


def region(start, end, *labels, **value):
    return {"type": "labels", "value": {"start": start, "end": end, "labels": [*labels], **value}}


def test_the_export_of_label_studio_has_nested_crossing_and_double_labels():
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


def test_offsets_of_old_versions_are_noticed_and_put_right():
    found, report = documents("tools/label_studio_old.jsonl", "label-studio")
    for document in found:
        assert entities(document) == [("Zürich", "GPE"), ("The Zürich Zoo", "ORG")]
    assert ["\r\n" in (document.text or "") for document in found] == [True, False, False]
    assert report.counts == {
        "offsets counted UTF-16 units: converted to characters": 1,
        "offsets count CRLF as one character: text read with LF": 2,
    }


def test_the_short_form_is_read(tmp_path):
    (document,), _ = documents("tools/label_studio_min.json", "label-studio")
    assert document.id == "9"
    assert sorted(phrases(document.sentences[0])) == [("Palermo", "GPE"), ("The mayor of Palermo", "PER")]
    task = {"id": 1, "text": "in Rome", "ner": [{"start": 3, "end": 7, "text": "Rome", "labels": ["GPE"]}]}
    document, _ = read_one(tmp_path, "label-studio", task)  # after a control of this name
    assert phrases(document.sentences[0]) == [("Rome", "GPE")]


def test_offsets_that_do_not_fit_are_counted(tmp_path):
    def read_regions(text, *result):
        task = {"data": {"text": text}, "annotations": [{"result": [*result]}]}
        document, report = read_one(tmp_path, "label-studio", task)
        return entities(document), report.counts

    found, counts = read_regions("I like Rome 😀", region(7, 14, "GPE", text="Rome 😀"))
    assert found == [("Rome 😀", "GPE")]
    assert counts == {"offsets counted UTF-16 units: converted to characters": 1}
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
