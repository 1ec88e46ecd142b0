"""Reading and writing files: every way in which they can be wrong, JSON records, XML, reports, and atomic writes."""

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestree.data.io import (
    MAX_PLACES,
    ConversionReport,
    atomic_path,
    atomic_writer,
    current_limits,
    json_records,
    limits,
    parse_events,
    parse_json,
    read_lines,
    read_text,
    report_progress,
)
from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence
from tests.tiny import write_bytes, write_text


def test_report_counts_changes_errors_and_documents():
    report = ConversionReport()
    for number in range(8):
        report.note("widened", f"a:{number}", times=2)
    assert report.counts == {"widened": 16}
    assert report.places == {"widened": [f"a:{number}" for number in range(MAX_PLACES)]}
    with pytest.raises(DataError, match="a:1: wrong"):
        report.bad(DataError("a:1: wrong"))
    report.skip_bad = True
    report.bad(DataError("a:1: wrong"))
    assert report.skipped == ["a:1: wrong"]
    document = Document([Sentence(["a"], [Entity(0, 1, "X"), Entity(0, 1, "Y")]), Sentence(["b"])])
    documents = report.count(iter([document, document]))
    assert next(documents) is document
    assert (report.documents, report.sentences, report.entities) == (1, 2, 2)
    assert list(documents) == [document]
    assert (report.documents, report.sentences, report.entities) == (2, 4, 4)


def test_lines_have_numbers_and_progress_is_reported(tmp_path):
    path = write_bytes(tmp_path / "a.txt", "\ufeffone\r\n\ntwo\u2028still two\nthree".encode())
    assert list(read_lines(path)) == [(1, "one"), (2, ""), (3, "two\u2028still two"), (4, "three")]
    assert read_text(path) == "one\r\n\ntwo\u2028still two\nthree"
    sizes = []
    with report_progress(sizes.append):
        assert sum(1 for _ in read_lines(write_bytes(tmp_path / "a.txt", b"x\n" * 100_000))) == 100_000
    assert sum(sizes) == 200_000
    assert len(sizes) > 1


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"good\nna\xefve\n", r"a.txt:2: byte 0xef is not UTF-8. Convert the file"),
        ("für".encode("utf-16"), r"a.txt:1: byte 0xff is not UTF-8"),
        (gzip.compress(b"one\n" * 10000, mtime=0)[:40], "cannot be decompressed: .*cut off"),
        (gzip.compress(b"one\n", mtime=0)[:-6] + b"wrong!", "cannot be decompressed"),
        (b"\x1f\x8bnot gzip", "cannot be decompressed"),
        *((pack(b"one\n"), "a.txt is a compressed file .* Decompress it") for pack in (bz2.compress, lzma.compress)),
        (b"PK\x03\x04" + bytes(30), "a.txt is a compressed file or an office document; .* only gzip is read"),
    ],
)
def test_bytes_that_cannot_be_read(tmp_path, data, expected):
    path = write_bytes(tmp_path / "a.txt", data)
    for read in (lambda: list(read_lines(path)), lambda: read_text(path)):
        with pytest.raises(DataError, match=expected):
            read()


def test_paths_that_are_no_files(tmp_path):
    (tmp_path / "file").write_text("")
    for name, message in {
        "": "is a directory, and a file is needed",
        "no": "does not exist",
        "file/in": "cannot be read: Not a directory",
        "x" * 5000: "cannot be read: File name too long",
    }.items():
        with pytest.raises(DataError, match=message):
            read_text(tmp_path / name)


def test_lines_longer_than_the_limit(tmp_path):
    path = write_bytes(tmp_path / "a.txt", b"short\n" + b"x" * 50 + b"\n")
    for read in (lambda: list(read_lines(path)), lambda: read_text(path)):
        too_long = r"a.txt:2: this line is longer than 49 bytes.*--longest-line"
        with limits(longest_line=49), pytest.raises(DataError, match=too_long):
            read()
        with limits(longest_line=51):
            read()
    assert current_limits.get().longest_line == 64 * 2**20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"broken', "Unterminated string starting at character 2"),
        ('{"a": }', "a:3: this is not JSON: Expecting value at character 7: .*'"),
        ('{"a": 1}{', "Extra data at character 9"),
        ('{\n"a" 1}', "at line 2, character 5"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": Infinity}', "Infinity is not a number"),
        ('{"a": [1.5, -1e400]}', "-1e400 is too large for a number. Write a smaller one, or null"),
        (f'{{"a": {"9" * 4000}.5}}', r"9999999999... \(4,000 digits\).5 is too large"),
        ("[" * 100_000, "not JSON that can be read"),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ("1" * 5000, "not JSON that can be read"),
        ("", "this is not JSON"),
        ("{", r"character 2: '\{'\. Write one whole object a line\."),
        ('{"text": "in Rome", "entities": [', r"\. Write one whole object a line\."),
    ],
)
def test_invalid_json(text, expected):
    with pytest.raises(DataError, match=f"a:3: .*{expected}" if not expected.startswith("a:") else expected):
        parse_json(text, "a:3")


def fail(file):
    file.write("half")
    raise ZeroDivisionError


def test_files_are_written_atomically(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with atomic_writer(path) as file:
        file.write("one\n")
        assert not path.exists()
    assert path.read_bytes() == b"one\n"
    with pytest.raises(ZeroDivisionError), atomic_writer(path) as file:
        fail(file)
    assert path.read_bytes() == b"one\n"
    assert list(path.parent.iterdir()) == [path]
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DataError, match="y cannot be written"), atomic_writer(tmp_path / "loop" / "y") as file:
        pass


def test_a_file_does_not_replace_a_folder(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="a is a directory"), atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("x")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["a"]


def test_gzip_is_deterministic_and_devices_are_written_to(tmp_path):
    for name in ("a.gz", "b.gz"):
        with atomic_writer(tmp_path / name) as file:
            file.write("é\n")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert read_text(tmp_path / "a.gz") == "é\n"
    with atomic_writer(Path("/dev/null")) as file:
        file.write("gone")
    assert not Path("/dev/null").is_file()


def test_folders_are_written_atomically(tmp_path):
    path = tmp_path / "out"
    with pytest.raises(ZeroDivisionError), atomic_path(path) as name, open(name, "w") as file:
        fail(file)
    assert list(tmp_path.iterdir()) == []
    with atomic_path(path) as folder:
        folder.mkdir()
        (folder / "a").write_text("a")
        assert not path.exists()
    assert [file.name for file in path.iterdir()] == ["a"]
    with pytest.raises(DataError, match="a directory that is not empty"), atomic_path(path):
        pass


def test_several_writers_of_one_path_have_their_own_folders(tmp_path):
    path = tmp_path / "a.txt"
    with atomic_path(path) as first, atomic_path(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"  # whose context ends last
    with atomic_path(path) as again:
        assert again == first
        again.write_text("again")
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_names_the_final_path(tmp_path):
    def write_below_a_file() -> None:
        with atomic_path(tmp_path / "new") as folder:
            folder.mkdir()
            (folder / "file").write_text("")
            with atomic_writer(folder / "file" / "a"):
                pass

    with pytest.raises(DataError) as caught:
        write_below_a_file()
    assert str(caught.value).startswith(f"{tmp_path / 'new' / 'file' / 'a'} cannot be written: ")


def parse(folder: Path, text: str, report: ConversionReport | None = None) -> list[tuple[str, dict]]:
    path = write_text(folder / "a.json", text)
    records = json_records(path, report or ConversionReport())
    return [(place.removeprefix(str(path)), value) for place, value in records]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('{"a": 1}\n\n{"a": 2}\n', [":1", ":3"]),
        ('\ufeff{"a": 1}\r\n{"a": 2}', [":1", ":2"]),
        ('[{"a": 1}, {"a": 2}]', [":1, record 1", ":1, record 2"]),
        ('\n[\n {"a":\n 1},\n\n {"a": 2}\n]\n', [":3, record 1", ":6, record 2"]),
        ('{\n "a": 1\n}\n{\n "a": 2\n}\n', [":1, record 1", ":4, record 2"]),
        ('{"a":\n1} {"a": 2}', [":1, record 1", ":2, record 2"]),
    ],
)
def test_lists_and_lines_give_the_same_objects(tmp_path, text, places):
    assert parse(tmp_path, text) == [(places[0], {"a": 1}), (places[1], {"a": 2})]


@pytest.mark.parametrize("text", ["", "\n  \n", "[]", "[\n]\n"])
def test_files_without_objects(tmp_path, text):
    assert parse(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1}\n{"a": 2}]', ':2: a comma or ] is missing before \'{"a": 2}]'),
        ('[{"a": 1},\n{"a": 2}', ":2: a comma or ] is missing. The file may be cut off."),
        ('[{"a": 1}] {"a": 2}', ':1: the list has ended, and more follows: \'{"a": 2}'),
        ('[{"a": 1},\n{"a"', ":2: this is not JSON: Expecting ':' delimiter"),
        ('[{"a": 1},\n\n{"a": tru}]', ":3: this is not JSON: Expecting value"),
        ('[{"a": 1},]', ":1: this is not JSON: Expecting value"),
        ('[{"a": NaN}]', ":1: this is not JSON that can be read: NaN is not a number"),
        ('[{"a": "\\ud800"}]', ":1: one half of a surrogate pair"),
        ("[1]", ":1, record 1: an object {...} is expected here, and this is 1."),
        ('{"a": 1}\n[2]', ":2: an object {...} is expected here, and this is [2]."),
        ('{"a": 1}\n{"a"', ":2: this is not JSON"),
        ("[" * 100_000, ":1: this is not JSON that can be read: maximum recursion"),
    ],
)
def test_errors_in_json_records_name_their_line(tmp_path, text, message):
    with pytest.raises(DataError) as error:
        parse(tmp_path, text)
    assert str(error.value).startswith(str(tmp_path / "a.json") + message)


def test_skipping_bad_records(tmp_path):
    report = ConversionReport(skip_bad=True)
    assert parse(tmp_path, '{"a": 1}\n{"a"\n{"a": 3}', report) == [(":1", {"a": 1}), (":3", {"a": 3})]
    assert len(report.skipped) == 1
    report = ConversionReport(skip_bad=True)
    found = parse(tmp_path, '[{"a": 1}, 5, {"a": 3}, {"a" 4}]', report)
    assert found == [(":1, record 1", {"a": 1}), (":1, record 3", {"a": 3})]
    number, rest = report.skipped
    assert "an object {...} is expected" in number
    assert "not JSON" in rest


strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
scalars = st.none() | st.booleans() | st.integers() | strings
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
objects = st.lists(st.dictionaries(strings, values, max_size=4), max_size=6)


@settings(max_examples=60)
@given(objects, st.sampled_from([None, 0, 2]), st.booleans(), st.booleans())
def test_round_trip_of_any_objects(tmp_path_factory, values, indent, ascii_only, as_list):
    folder = tmp_path_factory.mktemp("records")
    if as_list:
        text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
    else:
        text = "\n".join(json.dumps(value, ensure_ascii=ascii_only) for value in values)
    assert [value for _, value in parse(folder, text)] == values


# XML as events: lines, encodings, compressed files, and how long a line may be. What is refused: test_bad_input.py.


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
def test_encodings_and_compressed_files(tmp_path, encoding):
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n<a>é</a>'
    path = write_bytes(tmp_path / "a.xml", gzip.compress(text.encode(encoding)))
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
