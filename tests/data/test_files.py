"""Opening and writing files: every way in which they can be wrong, and nothing half written."""

import gzip
import io
import sys
from pathlib import Path

import pytest

from nestree.data.io import (
    STDIO,
    atomic_path,
    atomic_writer,
    current,
    limits,
    lines,
    parse_json,
    read_text,
    report_progress,
)
from nestree.errors import DataError


def test_lines_with_their_numbers(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\ntwo\u2028still two\nthree".encode())
    assert list(lines(path)) == [(1, "one"), (2, ""), (3, "two\u2028still two"), (4, "three")]
    assert read_text(path) == "one\r\n\ntwo\u2028still two\nthree"


def test_gzip_is_told_by_its_bytes(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(gzip.compress(b"one\ntwo\n", mtime=0))
    assert [line for _, line in lines(path)] == ["one", "two"]


def test_standard_input(monkeypatch):
    for data in (b"one\ntwo\n", gzip.compress(b"one\ntwo\n", mtime=0)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
        assert [line for _, line in lines(STDIO)] == ["one", "two"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"good\nna\xefve\n", r"a.txt:2: byte 0xef is not UTF-8. Convert the file"),
        ("für".encode("utf-16"), r"a.txt:1: byte 0xff is not UTF-8"),
        (gzip.compress(b"one\n" * 10000, mtime=0)[:40], "cannot be unpacked: .*cut off"),
        (gzip.compress(b"one\n", mtime=0)[:-6] + b"wrong!", "cannot be unpacked"),
        (b"\x1f\x8bnot gzip", "cannot be unpacked"),
    ],
)
def test_bytes_that_cannot_be_read(tmp_path, data, expected):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    for read in (lambda: list(lines(path)), lambda: read_text(path)):
        with pytest.raises(DataError, match=expected):
            read()


def test_what_is_not_a_file(tmp_path):
    with pytest.raises(DataError, match="is a directory, and a file is meant"):
        list(lines(tmp_path))
    with pytest.raises(DataError, match="does not exist"):
        read_text(tmp_path / "no")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be read: Not a directory"):
        read_text(tmp_path / "file" / "in")
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        read_text(tmp_path / ("x" * 5000))


def test_a_line_beyond_the_limit(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"short\n" + b"x" * 50 + b"\n")
    for read in (lambda: list(lines(path)), lambda: read_text(path)):
        with (
            limits(longest_line=49),
            pytest.raises(DataError, match=r"a.txt:2: this line is longer than 49 bytes.*--longest-line"),
        ):
            read()
        with limits(longest_line=51):
            read()
    assert current.get().longest_line == 64 * 2**20


def test_someone_may_watch_how_much_is_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x\n" * 100_000)
    told = []
    with report_progress(told.append):
        assert sum(1 for _ in lines(path)) == 100_000
    assert sum(told) == 200_000
    assert len(told) > 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": }', "a:3: this is not JSON: Expecting value at character 7: .*'"),
        ('{"a": 1}{', "Extra data at character 9"),
        ('{\n"a" 1}', "at line 2, character 5"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": [1.5, -1e400]}', "-1e400 is too large for a number. Write a smaller one, or null"),
        (f'{{"a": {"9" * 4000}.5}}', r"9999999999... \(4,000 digits\).5 is too large"),
        ("[" * 100_000, "not JSON that can be read"),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ("1" * 5000, "not JSON that can be read"),
        ("", "this is not JSON"),
    ],
)
def test_json_that_is_none(text, expected):
    with pytest.raises(DataError, match=f"a:3: .*{expected}" if not expected.startswith("a:") else expected):
        parse_json(text, "a:3")


def test_json_with_whole_surrogate_pairs_is_fine():
    assert parse_json('{"a": "\\ud83d\\ude00"}', "a:1") == {"a": "😀"}


def interrupted(file):
    file.write("half")
    raise ZeroDivisionError


def test_a_file_is_there_when_all_of_it_is_written(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with atomic_writer(path) as file:
        file.write("one\n")
        assert not path.exists()
    assert path.read_bytes() == b"one\n"
    with pytest.raises(ZeroDivisionError), atomic_writer(path) as file:
        interrupted(file)
    assert path.read_bytes() == b"one\n"
    assert list(path.parent.iterdir()) == [path]


def test_an_empty_folder_becomes_no_file(tmp_path):
    (tmp_path / "a").mkdir()
    with (
        pytest.raises(DataError, match="a is a directory, and a file"),
        atomic_path(tmp_path / "a") as temporary,
    ):
        temporary.write_text("x")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["a"]


def test_who_reads_a_file_while_it_is_replaced_sees_the_old_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with open(path) as reading:
        with atomic_writer(path) as file:
            file.write("new")
        assert (reading.read(), path.read_text()) == ("old", "new")


def test_gzip_is_written_the_same_each_time(tmp_path):
    for name in ("a.gz", "b.gz"):
        with atomic_writer(tmp_path / name) as file:
            file.write("é\n")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert read_text(tmp_path / "a.gz") == "é\n"


def test_a_folder_is_there_when_all_of_it_is_written(tmp_path):
    path = tmp_path / "out"
    with pytest.raises(ZeroDivisionError), atomic_path(path) as name, open(name, "w") as file:
        interrupted(file)
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


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"), atomic_writer(tmp_path / "file" / "a"):
        pass
    with pytest.raises(DataError, match="is a directory, and a file is meant"), atomic_writer(tmp_path):
        pass
    with pytest.raises(DataError, match="standard output"), atomic_path(STDIO):
        pass


def test_text_that_is_no_unicode_is_not_written(tmp_path):
    with (
        pytest.raises(DataError, match=r"a.txt cannot be written: .*surrogate"),
        atomic_writer(tmp_path / "a.txt") as file,
    ):
        file.write("half a pair: \ud800")
    assert list(tmp_path.iterdir()) == []


def test_standard_output_gets_everything_or_nothing(capfdbinary):
    with pytest.raises(ZeroDivisionError), atomic_writer(STDIO) as file:
        interrupted(file)
    with atomic_writer(STDIO) as file:
        file.write("whole é\n")
    assert capfdbinary.readouterr().out == "whole é\n".encode()


def test_a_device_is_written_to_as_it_is():
    with atomic_writer(Path("/dev/null")) as file:
        file.write("gone")
    assert not Path("/dev/null").is_file()
