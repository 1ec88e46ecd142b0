"""XML as events: lines, encodings, packed files, and how long a line may be. What is refused: test_bad_input.py."""

import gzip

import pytest

from nestree.data.io import limits, parse_events
from nestree.errors import DataError
from tests.tiny import write_text


def event_tuples(path):
    return [(event.kind, event.name, event.line) for event in parse_events(path)]


def test_events_with_their_lines(tmp_path):
    path = write_text(tmp_path / "a.xml", '<a x="1">\n<b>é&amp;</b></a>\n')
    found = list(parse_events(path))
    elements = [(e.kind, e.name) for e in found if e.kind != "text"]
    assert elements == [("start", "a"), ("start", "b"), ("end", "b"), ("end", "a")]
    assert "".join(e.name for e in found if e.kind == "text") == "\né&"
    assert found[0].attributes == {"x": "1"}
    assert [e.line for e in found if e.name == "b"] == [2, 2]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_encodings_and_packed_files(tmp_path, encoding):
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n<a>é</a>'
    path = tmp_path / "a.xml"
    path.write_bytes(gzip.compress(text.encode(encoding)))
    assert [name for kind, name, _ in event_tuples(path) if kind == "text"] == ["é"]


def test_long_files_and_long_lines(tmp_path):
    path = write_text(tmp_path / "a.xml", "<a>" + "<b>x</b>\n" * 20_000 + "</oops>")
    found = parse_events(path)
    assert [next(found).name for _ in range(4)] == ["a", "b", "x", "b"]
    with pytest.raises(DataError, match=r"a.xml:20001: this is not well-formed XML"):
        list(found)
    path = write_text(tmp_path / "a.xml", "<a>\n" + "x" * 200_000 + "\n</a>")
    assert len(event_tuples(path)) > 3
    too_long = r"a.xml:2: this line is longer than 100,000 bytes"
    with limits(longest_line=100_000), pytest.raises(DataError, match=too_long):
        event_tuples(path)
