"""Conversion between formats, and its report."""

import csv
import json
import re
from pathlib import Path

import pytest

from nestree.data.convert import convert
from nestree.data.formats import read
from nestree.errors import DataError, InputError

COUNTED = Path(__file__).parent / "fixtures" / "commands" / "counted.jsonl"


def test_conversion_report(tmp_path):
    conversion = convert(COUNTED, tmp_path / "out.data")
    assert (conversion.source_format, conversion.target_format) == ("jsonl", "triplets")
    for report in (conversion.reading, conversion.writing):
        assert (report.documents, report.sentences, report.entities) == (3, 5, 12)
    again = [s.words for d in read(tmp_path / "out.data") for s in d.sentences]
    assert again == [s.words for d in read(COUNTED) for s in d.sentences]
    text = conversion.as_text().splitlines()
    assert text[0] == f"read     3 documents, 5 sentences, 12 entities from {COUNTED} (jsonl)"
    assert text[1] == f"written  5 sentences, 12 entities to {tmp_path / 'out.data'} (triplets)"
    assert any(line.split()[0] == "3" and "ids of documents not written" in line for line in text[2:])
    assert json.loads(json.dumps(conversion.as_json()))["written"]["entities"] == 12


def test_documents_that_a_format_has_no_place_for_are_counted(tmp_path):
    source = tmp_path / "a.jsonl"
    texts = {"one": "Bank\rof Oslo", "two": "nothing", "three": ""}
    entities = {"one": [{"start": 0, "end": 12, "label": "ORG"}]}
    lines = [{"text": t, "doc_id": name, "entities": entities.get(name, [])} for name, t in texts.items()]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, format, documents, sentences in [
        ("a.csv", None, 1, 1),
        ("words.jsonl", None, 3, 2),
        ("set", "datasets", 2, 2),
        ("a.iob2", None, 0, 2),
    ]:
        sides = convert(source, tmp_path / name, target_format=format).as_json()
        assert sides["read"]["documents"] == 3
        assert (sides["written"]["documents"], sides["written"]["sentences"]) == (documents, sentences)
    sides = convert(tmp_path / "a.iob2", tmp_path / "b.csv").as_json()
    assert (sides["written"]["documents"], sides["written"]["sentences"]) == (0, 1)
    with open(tmp_path / "a.csv", newline="") as file:  # a carriage return is quoted
        assert [row["text"] for row in csv.DictReader(file)] == ["Bank\rof Oslo"]


def test_bad_records_stop_or_are_skipped(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text(
        '{"tokens": ["a"], "entities": []}\n{"tokens": []}\n{"tokens": ["b"], "entities": []}\n'
    )
    with pytest.raises(DataError, match=r"a\.jsonl:2: "):
        convert(source, tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]

    conversion = convert(source, tmp_path / "out.jsonl", skip_bad=True)
    assert (conversion.writing.sentences, len(conversion.reading.skipped)) == (2, 1)
    assert conversion.reading.skipped[0].startswith(f"{source}:2: ")
    assert conversion.reading.skipped[0] in conversion.as_text()
    assert conversion.as_json()["read"]["skipped"] == conversion.reading.skipped


def test_the_input_is_not_overwritten(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(COUNTED.read_bytes())
    (tmp_path / "link.jsonl").symlink_to(path)
    for source, target in [
        (path, path),
        (path, tmp_path / "link.jsonl"),
        (tmp_path, path),
        (tmp_path, tmp_path),
    ]:
        with pytest.raises(
            InputError, match=f"^{re.escape(str(target))} is the input. Write to another file.$"
        ):
            convert(source, target, "jsonl", "jsonl", skip_bad=True)
    assert path.read_bytes() == COUNTED.read_bytes()
    convert(tmp_path, tmp_path / "new.jsonl")  # a new file in the folder that is read
