"""Conversion between formats; tests/cli/test_data.py has more of it."""

import csv
import json
import re

import pytest

from nestree.data.convert import convert
from nestree.errors import InputError
from tests.data.formats.reading import COUNTED
from tests.tiny import write_bytes


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


def test_the_input_is_not_overwritten(tmp_path):
    path = write_bytes(tmp_path / "a.jsonl", COUNTED.read_bytes())
    (tmp_path / "link.jsonl").symlink_to(path)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "folder").symlink_to(tmp_path)
    pairs = [(path, path), (path, tmp_path / "link.jsonl"), (tmp_path, path), (tmp_path, tmp_path)]
    for source, target in [*pairs, (tmp_path / "linked", path)]:
        message = f"^{re.escape(str(target))} is the input. Write to another file.$"
        with pytest.raises(InputError, match=message):
            convert(source, target, "jsonl", "jsonl", skip_bad=True)
    assert path.read_bytes() == COUNTED.read_bytes()
    conversion = convert(tmp_path, tmp_path / "new.jsonl")  # a new file in the folder that is read
    assert (conversion.source_format, conversion.target_format) == ("jsonl", "jsonl")
