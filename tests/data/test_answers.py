"""Answers to questions about single spans: known and forbidden spans, in JSON lines and Label Studio."""

import json
import re
from dataclasses import replace

import pytest

from nestree.acquisition import Question, Selection, Unit, json_questions, make_questions
from nestree.data.checks import KINDS, check
from nestree.data.formats import read, write
from nestree.data.io import ConversionReport
from nestree.errors import DataError, TrainingError
from nestree.training.dataset import make_corpus, merge_answers
from nestree.types import Document, Entity, Sentence
from tests.tiny import sentence, write_text

WORDS = ["the", "mayor", "of", "Lisbon", "met", "police", "in", "Oslo"]


def questions(*spans: tuple[int, int, str]) -> Document:
    unit = Unit(Document((Sentence(WORDS),), None, "d1"), [Sentence(WORDS)], "key")
    return make_questions([Question(unit, 0, Entity(i, j, l, None, 1 / 3), 0.1) for i, j, l in spans], Selection())[0]


def known_and_forbidden(sentence: Sentence) -> tuple:
    """What the answers to questions say of a sentence, which is incomplete."""
    assert not sentence.complete
    return [(e.span, e.label) for e in sentence.entities], sentence.forbidden


def test_json_lines_hold_forbidden_spans(tmp_path):
    partly = Sentence(WORDS, (Entity(0, 4, "PER"),), complete=False, forbidden=((5, 8), (0, 2)))
    for options in ({}, {"by": "characters"}):
        report, path = ConversionReport(), tmp_path / f"{len(options)}.jsonl"
        write([Document((partly,), None, "d1")], path, "jsonl", report, **options)
        (document,) = read(path, words="whitespace")
        assert known_and_forbidden(document.sentences[0]) == ([((0, 4), "PER")], ((0, 2), (5, 8)))
        assert not any("forbidden" in what for what in report.counts)


def test_null_for_questions_is_none(tmp_path):
    """Tables that are exported to JSON have a null in each row without a value."""
    path = write_text(tmp_path / "null.jsonl", '{"tokens": ["It", "rained"], "questions": null, "complete": null}')
    ((sentence,),) = (document.sentences for document in read(path))
    assert sentence.complete
    assert not sentence.extra.get("questions")


def test_answers_in_json_lines_become_known_and_forbidden_spans(tmp_path):
    asked = json_questions(questions((0, 4, "PER"), (3, 4, "ORG"), (5, 8, "ORG"), (7, 8, "GPE")))
    path = tmp_path / "questions.jsonl"
    write([asked], path, "jsonl")
    record = json.loads(path.read_text())
    assert [q["answer"] for q in record["questions"]] == [None] * 4
    assert record["questions"][0]["score"] == 0.333333
    (untouched,) = read(path)
    assert untouched.sentences[0].entities == untouched.sentences[0].forbidden == ()
    assert len(untouched.sentences[0].extra["questions"]) == 4
    for question, answer in zip(record["questions"], [True, "GPE", False, None], strict=True):
        question["answer"] = answer
    (document,) = read(write_text(path, json.dumps(record)))
    answered = document.sentences[0]
    assert known_and_forbidden(answered) == ([((0, 4), "PER"), ((3, 4), "GPE")], ((5, 8),))
    assert [q["start"] for q in answered.extra["questions"]] == [7]
    for answer in ("false", "True", "no", 1, ""):  # no labels
        record["questions"][0]["answer"] = answer
        with pytest.raises(DataError, match="the answer to a question must be true, false, a label or null"):
            list(read(write_text(path, json.dumps(record))))


def test_answers_in_label_studio_become_known_and_forbidden_spans(tmp_path):
    path = tmp_path / "tasks.json"
    asked = questions((0, 4, "PER"), (3, 4, "ORG"), (5, 8, "ORG"))
    write([asked], path, "label-studio", part="predictions")
    (task,) = json.loads(path.read_text())
    assert len(task["predictions"][0]["result"]) == len(task["data"]["questions"]) == 3
    report = ConversionReport()
    with pytest.raises(DataError, match="holds no label-studio data"):
        list(read(path, "label-studio", report))
    assert report.counts["questions without answers left out"] == 1
    kept, relabelled, _ = task["predictions"][0]["result"]  # the third is deleted
    relabelled["value"]["labels"] = ["GPE"]
    task["annotations"] = [{"result": [kept], "was_cancelled": True}]  # skipped, which is no answer
    path.write_text(json.dumps([task]))
    for part in ("", "annotations"):
        with pytest.raises(DataError, match="holds no label-studio data"):
            list(read(path, "label-studio", part=part))
    task["annotations"] = [{"result": [kept, relabelled]}]
    path.write_text(json.dumps([task]))
    (document,) = read(path, "label-studio", words="whitespace")
    expected = [((0, 4), "PER"), ((3, 4), "GPE")], ((5, 8),)
    assert known_and_forbidden(document.sentences[0]) == expected
    assert "questions" not in document.extra

    again = tmp_path / "again.json"  # known and forbidden spans are written as questions with answers
    write([document], again, "label-studio")
    (same,) = read(again, "label-studio", words="whitespace")
    assert known_and_forbidden(same.sentences[0]) == expected


def test_spans_that_are_no_words_are_counted(tmp_path):
    text = " ".join(WORDS)
    record = {"text": text, "entities": [], "forbidden": [[0, 9], [0, 6]], "complete": False}
    path = write_text(tmp_path / "a.jsonl", json.dumps(record))
    report = ConversionReport()
    (document,) = read(path, "jsonl", report, words="whitespace")
    assert document.sentences[0].forbidden == ((0, 2),)
    assert report.counts["dropped: a forbidden span that is no span of words in a sentence"] == 1


def partial_answer(*entities, forbidden=(), complete=False):
    known = replace(sentence(" ".join(WORDS), *entities), complete=complete, forbidden=forbidden)
    return Document((known,), None, "d1")


MAYOR = partial_answer("0-4 PER")


def test_what_several_answers_know_is_joined():
    other = Document((sentence("Lisbon", "0-1 GPE"),), None, "d2")
    first, second = partial_answer("0-4 PER", forbidden=((1, 2),)), partial_answer("3-4 GPE", forbidden=((5, 8),))
    merged = merge_answers([first, other, second])
    assert len(merged) == 2
    known = [((0, 4), "PER"), ((3, 4), "GPE")]
    assert known_and_forbidden(merged[0].sentences[0]) == (known, ((1, 2), (5, 8)))
    whole = partial_answer("0-4 PER", "3-4 GPE", complete=True)
    assert merge_answers([partial_answer("0-4 PER", forbidden=((1, 2),)), whole])[0] == whole


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (MAYOR, partial_answer(forbidden=((0, 4),)), "0-4 PER .'the mayor of Lisbon'. of one is no entity"),
        (MAYOR, partial_answer("0-4 ORG"), "0-4 PER .* of one is ORG"),
        (MAYOR, partial_answer("3-6 ORG"), "0-4 PER .* of one crosses an entity"),
        (MAYOR, partial_answer("3-4 GPE", complete=True), "0-4 PER .* of one is no entity"),
    ],
)
def test_answers_that_contradict_each_other_are_refused_and_found_by_check(first, second, why, tmp_path):
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "a.json", "b.json")]
    for document, files in ((first, paths[::2]), (second, paths[1::2])):
        (known,) = document.sentences
        if not known.complete:  # with a forbidden span, without which Label Studio could not hold it
            document = replace(document, sentences=(replace(known, forbidden=(*known.forbidden, (6, 8))),))
        write([document], files[0], "jsonl")
        write([document], files[1], "label-studio")
    for files in (paths[:2], paths[1::-1], paths[2:], paths[:1:-1]):
        found = check(files, options={"words": "whitespace"}).findings
        findings = [f for f in found if f.kind == "contradiction"]
        if not (first.sentences[0].complete or second.sentences[0].complete):
            assert not any(f.kind.startswith("leaked") for f in found)
        assert [f.place for f in findings] == [f"{files[1]}, sentence 1 (d1)"]
        assert str(files[0]) in findings[0].message
        assert re.search("is no entity|is (ORG|PER)|crosses an entity", findings[0].message)
    for documents in ([first, second], [second, first]):
        with pytest.raises(TrainingError, match=r"document d1 \(documents 1 and 2 of the training data\)"):
            make_corpus(documents, documents, seed=1)
    with pytest.raises(TrainingError, match=why):
        merge_answers([first, second])


def test_check_finds_contradictions_where_training_joins_annotations(tmp_path):
    contradictory = [partial_answer("0-4 PER", complete=True), partial_answer("0-4 ORG", complete=True)]
    other = Document((replace(MAYOR.sentences[0], words=[*WORDS, "."]),), None, "d1")
    for documents, expected in ((contradictory, []), ([*contradictory, other], ["contradiction"])):
        paths = [tmp_path / f"{number}.jsonl" for number in range(len(documents))]
        for document, path in zip(documents, paths, strict=True):
            write([document], path)
        try:
            merge_answers(documents)
        except TrainingError:
            assert expected
        report = check(paths)
        assert [f.kind for f in report.findings if KINDS[f.kind].level == "error"] == expected
    assert '0-4 ORG "the mayor of Lisbon" is PER in ' in report.as_text()
