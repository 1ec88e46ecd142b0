"""Conversion between formats; tests/cli/test_data.py has more of it."""

import csv
import json
from pathlib import Path

from nestree.data.convert import convert
from nestree.data.formats import read

COUNTED = Path(__file__).parent / "fixtures" / "commands" / "counted.jsonl"


def test_documents_that_a_format_has_no_place_for_are_counted(tmp_path):
    source = tmp_path / "a.jsonl"
    texts = {"one": "Bank\rof Oslo", "two": "nothing", "three": ""}
    entities = {"one": [{"start": 0, "end": 12, "label": "ORG"}]}
    lines = [{"text": t, "doc_id": name, "entities": entities.get(name, [])} for name, t in texts.items()]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, documents in (("a.csv", 1), ("words.jsonl", 2)):
        options = {"by": "words"} if name == "words.jsonl" else {}
        conversion = convert(source, tmp_path / name, write_options=options)
        assert conversion.as_json()["read"]["documents"] == 3
        assert conversion.as_json()["written"]["documents"] == documents
    with open(tmp_path / "a.csv", newline="") as file:  # a carriage return is quoted
        assert [row["text"] for row in csv.DictReader(file)] == ["Bank\rof Oslo"]


def test_conversion_in_place(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(COUNTED.read_bytes())
    before = list(read(path))
    conversion = convert(path, path)
    assert (conversion.source_format, conversion.target_format) == ("jsonl", "jsonl")
    assert list(read(path)) == before
