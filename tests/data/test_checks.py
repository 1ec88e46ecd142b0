"""Checks: each kind of problem is found at its place, and real data has its known problems."""

import json
from collections import Counter
from pathlib import Path

import pytest

from nestree.data.checks import KINDS, Report, check, encoding_problems
from tests.tiny import write_text


def entity(start, end, label="PER", **more):
    return {"start": start, "end": end, "label": label, **more}


def line(words, *entities, **more):
    return json.dumps({"tokens": words.split(), "entities": list(entities), **more}, ensure_ascii=False)


def file(path: Path, *lines: str) -> Path:
    return write_text(path, "\n".join(lines) + "\n")


PERSONS = entity(0, 1), entity(2, 3), entity(4, 5, "GPE")
PLAIN = [line("Ann met Bob in Rome", *PERSONS, sent_id=f"p{n}") for n in "12"]


def kinds(report: Report) -> Counter[str]:
    return Counter(finding.kind for finding in report.findings)


def test_data_without_problems(tmp_path):
    report = check([file(tmp_path / "a.jsonl", *PLAIN)])
    assert (report.findings, report.unreadable) == ([], False)
    assert report.as_text() == report.verdict == "No problems in 1 file, 2 sentences, 6 entities."


@pytest.mark.parametrize(
    ("kind", "bad", "message"),
    [
        ("crossing", line("a b c d", entity(0, 3), entity(1, 4, "GPE")), '0-3 PER "a b c" and 1-4 GPE "b c d"'),
        ("duplicate", line("a b", entity(0, 1), entity(0, 2), entity(0, 1)), '0-1 PER "a"'),
        ("empty", line("a b", entity(1, 1)), "entity 1-1 PER is empty"),
        ("empty", line("a b", entity(2, 1)), "entity 2-1 PER is empty"),
        ("out-of-range", line("a b", entity(1, 3)), "entity 1-3 PER ends after the sentence, which has 2 words"),
        ("bad-record", line("a b", entity(-1, 1)), "start -1"),
        ("bad-record", '{"tokens": ["a"', "not JSON"),
        ("label-spelling", line("a", entity(0, 1, "PER ")), "'PER ' 1 time; mostly 'PER'"),
        ("label-spelling", line("a", entity(0, 1, "Per")), "'Per' 1 time; mostly 'PER'"),
        ("label-spelling", line("a", entity(0, 1, " NEW")), "' NEW' 1 time; with extra white space"),
        ("label-once", line("a", entity(0, 1, "NEW")), "'NEW'"),
        ("long-sentence", line("a " * 11), "11 words"),
        ("mojibake", line("a cafÃ© b"), "cafÃ© (should be café)"),
        ("replacement", line("a caf\ufffd b"), "'caf\\ufffd' has U+FFFD"),
        ("control", line("a b\x07c"), "'b\\x07c' has U+0007"),
        ("control", line("a\x00"), "'a\\x00' has U+0000"),
        ("control", line("Москва\u200b"), "'Москва\\u200b' has U+200B"),
        ("control", line("soft\u00adhyphen"), "'soft\\xadhyphen' has U+00AD"),
    ],
)
def test_each_kind_is_found_at_its_place(tmp_path, kind, bad, message):
    path = file(tmp_path / "a.jsonl", *PLAIN, bad)
    report = check([path], long_sentence=10)
    (finding,) = report.findings
    assert finding.kind == kind
    assert message in finding.message
    number = 3 if kind in ("empty", "out-of-range", "bad-record") else "sentence 3"
    assert finding.place in (f"{path}:{number}", f"{path}, {number}")
    level = KINDS[kind].level
    assert report.verdict.startswith(f"1 {level} in 1 file, ")
    assert KINDS[kind].remedy in report.as_text()
    assert report.as_json()["findings"][0]["remedy"] == KINDS[kind].remedy


def test_shown_places(tmp_path):
    path = file(tmp_path / "a.jsonl", line("a b", entity(0, 1), entity(0, 1), sent_id="s-7"), *PLAIN)
    assert [finding.place for finding in check([path]).findings] == [f"{path}, sentence 1 (s-7)"]
    twice = line("a b", entity(0, 1), entity(0, 1))
    report = check([file(tmp_path / "a.jsonl", *[twice] * 8)])
    assert "and 3 more" in report.as_text()
    assert report.as_text().count('0-1 PER "a"') == 5
    assert report.as_text(None).count('0-1 PER "a"') == 8
    assert len(report.as_json()["findings"]) == 8
    bad = line("a b c", entity(0, 2, "X\n0 errors"), entity(1, 3, "X"), doc_id="d\nfake", sent_id="s")
    text = check([file(tmp_path / "a.jsonl", bad)]).as_text()
    assert r"X\n0 errors" in text
    assert not any(part.startswith(("0 errors", "fake")) for part in text.splitlines())


def test_rare_and_unseen_labels(tmp_path):
    many = [line("a b", entity(0, 1, "protein"), entity(1, 2, "PER"))] * 20
    path = file(tmp_path / "a.jsonl", *many, line("a b", entity(0, 1, "protien"), entity(1, 2, "PRE")))
    assert [(f.kind, f.message) for f in check([path]).findings] == [
        ("label-similar", "'protien' 1 time; 'protein' 20 times"),
        ("label-similar", "'PRE' 1 time; 'PER' 20 times"),
    ]
    train = file(tmp_path / "train.jsonl", *PLAIN)
    dev = file(tmp_path / "dev.jsonl", line("x", entity(0, 1, "NEW")), line("y", entity(0, 1, "NEW")))
    report = check([train, dev])
    (finding,) = report.findings
    assert (finding.kind, finding.message) == ("label-unseen", "'NEW' 2 times")
    assert finding.place == f"{dev}, sentence 1"


def test_changes_in_reading(tmp_path):
    entities = [entity(2, 9), entity(13, 17, "X"), entity(13, 17, "X")]
    path = file(tmp_path / "a.jsonl", json.dumps({"text": "Unbelievable news .", "entities": entities}))
    report = check([path])
    assert kinds(report) == {"cuts-word": 1, "duplicate": 1, "label-once": 1}
    assert {f.place for f in report.findings if f.kind == "cuts-word"} == {f"{path}:1"}
    entities = [entity(1, 3, "X"), entity(0, 1, "X"), entity(0, 2, "Y"), entity(3, 4, "Y")]
    report = check([file(tmp_path / "b.jsonl", json.dumps({"text": "a  b", "entities": entities}))])
    assert kinds(report) == {"empty": 1, "changed": 1, "label-once": 1}


OUTSIDE = [entity(0, 9), entity(3, 1)]  # of "Rome"
MENTION = {"start": 0, "end": 3, "entity_type": "X"}


@pytest.mark.parametrize(
    ("format", "content", "expected"),
    [
        ("jsonl", json.dumps({"text": "Rome", "entities": OUTSIDE}), ["out-of-range", "empty"]),
        ("triplets", "a b\n0,9 X|0,1 X\n\na b\n1,1 X\n", ["out-of-range", "empty"]),
        ("columns", "a\tB-X\nb\tI-X\nc\n\n", ["bad-record"]),
        ("pubtator", "1|t|Rome\n1|a|\n1\t0\t9\tRome\tX\n\n", ["out-of-range"]),
        ("research-json", json.dumps({"tokens": ["a"], "entity_mentions": [MENTION]}), ["out-of-range"]),
        ("prodigy", json.dumps({"text": "Rome", "spans": OUTSIDE}), ["out-of-range", "empty"]),
    ],
)
def test_invalid_spans_in_other_formats(tmp_path, format, content, expected):
    path = file(tmp_path / "a", content)
    report = check([path], format)
    found = [finding for finding in report.findings if KINDS[finding.kind].level == "error"]
    assert [finding.kind for finding in found] == expected
    assert all(finding.place.startswith(f"{path}") for finding in found)


def test_normal_forms_in_files(tmp_path):
    apart = line("cafe\u0301 b")
    assert kinds(check([file(tmp_path / "a.jsonl", apart, apart)])) == {}
    report = check([file(tmp_path / "a.jsonl", apart, line("café b"))])
    assert [(f.kind, f.message) for f in report.findings] == [("normal-forms", "cafe\u0301 (cafe\\u0301)")]


LONG = line("this sentence is long enough to be no chance", doc_id="d1")
SHORT = line("I do not", doc_id="d2")


def test_leaks_between_files(tmp_path):
    train = file(tmp_path / "train.jsonl", SHORT, LONG)
    test = file(tmp_path / "test.jsonl", line("a"), LONG, LONG, SHORT)
    report = check([train, test])
    assert kinds(report) == {"leaked-sentence": 2, "leaked-document": 2}
    sentences = [f for f in report.findings if f.kind == "leaked-sentence"]
    assert sentences[0].place == f"{test}, sentence 2 (d1)"
    assert sentences[0].message.startswith(f"also {train}, sentence 2 (d1): ")
    assert report.count("error") == 0
    other = file(tmp_path / "more_train.jsonl", LONG)
    assert kinds(check([train, other])) == {}  # both for training
    assert kinds(check([file(tmp_path / "a.jsonl", LONG), file(tmp_path / "b.jsonl", LONG)])).total() == 2


def test_unreadable_files(tmp_path):
    bad = file(tmp_path / "bad.jsonl", line("a b", entity(0, 1), entity(0, 1)), *PLAIN)
    missing, empty = tmp_path / "missing.jsonl", file(tmp_path / "empty.jsonl", "")
    report = check([missing, empty, bad])
    assert kinds(report) == {"unreadable": 2, "duplicate": 1}
    assert report.unreadable
    assert report.verdict == "2 errors and 1 warning in 3 files, 3 sentences, 8 entities."


BEYOND_ASCII = "café Müller naïve Ångström “quoted” don’t 5° Ærø Über straße … €5 São 2×"


@pytest.mark.parametrize("word", BEYOND_ASCII.split())
@pytest.mark.parametrize("wrong", ["cp1252", "latin-1"])
def test_mojibake_is_repaired(word, wrong):
    data = word.encode()
    broken = "".join(bytes([b]).decode(wrong, errors="ignore") or chr(b) for b in data)
    found = [message for kind, message in encoding_problems(f"a {broken} b") if kind == "mojibake"]
    assert found == [f"{broken} (should be {word})"]


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "café Müller “quoted” don’t 5°",
        "a MAÇÔ no MAÇÃ” e a IRMÃ…",  # capitals before a quotation mark
        "Âge âgé Ão",
        "«CAFÉ» »Ä« Ñ»",
        "שלום مرحبا 你好 👩‍👩‍👧 नमस्ते",
        "a\tb\r\nc",
    ],
)
def test_unusual_text_is_no_problem(text):
    assert list(encoding_problems(text)) == []


def test_known_problems_of_genia(shared):
    folder = shared / "data" / "genia_paper"
    report = check([folder / f"{part}.jsonl.gz" for part in ("train", "dev", "test")])
    assert kinds(report) == {"leaked-document": 2, "leaked-sentence": 5, "long-sentence": 1}
    assert (report.sentences, report.entities) == (18546, 56435)
