"""Prodigy: tokens kept, answers heeded, spans in characters."""

import json

from nestree.types import Document, Entity, Sentence

from .reading import documents, phrases, read_one, write


def test_tokens_are_the_words_and_answers_are_heeded():
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
        "dropped: an entity of blanks only": 1,
    }


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
