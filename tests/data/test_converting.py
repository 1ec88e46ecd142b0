"""Converting: what was read is written, and whatever could not be is told."""

import json
from pathlib import Path

import pytest

from nestree.data.convert import convert
from nestree.data.formats import read
from nestree.errors import DataError

COUNTED = Path(__file__).parent / "fixtures" / "commands" / "counted.jsonl"


def test_what_was_read_and_written_is_counted(tmp_path):
    done = convert(COUNTED, tmp_path / "out.data")
    assert (done.source_format, done.target_format) == ("jsonl", "triplets")
    assert (done.reading.documents, done.reading.sentences, done.reading.entities) == (3, 5, 12)
    assert (done.writing.documents, done.writing.sentences, done.writing.entities) == (3, 5, 12)
    again = [s.words for d in read(tmp_path / "out.data") for s in d.sentences]
    assert again == [s.words for d in read(COUNTED) for s in d.sentences]
    text = done.as_text().splitlines()
    assert text[0] == f"read     3 documents, 5 sentences, 12 entities from {COUNTED} (jsonl)"
    assert text[1] == f"written  3 documents, 5 sentences, 12 entities to {tmp_path / 'out.data'} (triplets)"
    assert any(line.split()[0] == "3" and "ids of documents not written" in line for line in text[2:])
    assert json.loads(json.dumps(done.as_json()))["written"]["entities"] == 12


def test_a_bad_record_stops_it_and_nothing_is_written(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text(
        '{"tokens": ["a"], "entities": []}\n{"tokens": []}\n{"tokens": ["b"], "entities": []}\n'
    )
    with pytest.raises(DataError, match=r"a\.jsonl:2: "):
        convert(source, tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]

    done = convert(source, tmp_path / "out.jsonl", skip_bad=True)
    assert (done.writing.sentences, len(done.reading.skipped)) == (2, 1)
    assert done.reading.skipped[0].startswith(f"{source}:2: ")
    assert done.reading.skipped[0] in done.as_text()
    assert done.as_json()["read"]["skipped"] == done.reading.skipped


def test_a_file_can_be_converted_into_itself(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(COUNTED.read_bytes())
    before = list(read(path))
    convert(path, path)
    assert list(read(path)) == before
