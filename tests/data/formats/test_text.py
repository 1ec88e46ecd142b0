"""Plain text: files, lines, folders; long files in parts that lose nothing."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestree.data.formats import read
from nestree.data.formats.text import read_text
from nestree.data.io import ConversionReport, report_progress
from tests.tiny import write_bytes, write_text

from .reading import assert_refused, documents


def texts(path, **options):
    return [(document.id, document.text) for document in read(path, "text", **options)]


def test_a_file_is_a_document_with_its_line_ends_and_without_its_mark(tmp_path):
    path = write_bytes(tmp_path / "a.txt", "\ufeffOslo.\r\n\r\nIt rained.\n".encode())
    (document,) = read(path, "text")
    assert (document.id, document.text, document.extra) == ("a", "Oslo.\r\n\r\nIt rained.\n", {})
    assert [sentence.words for sentence in document.sentences] == [("Oslo", "."), ("It", "rained", ".")]
    assert document.sentences[1].start == 9


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b" \n\n"])
def test_nothing_is_a_text_too(tmp_path, data):
    path = write_bytes(tmp_path / "a.txt", data)
    (document,) = read(path, "text")
    assert (document.text, document.sentences) == (data.decode("utf-8-sig"), ())


def test_folders_are_read_in_order_with_paths_as_ids(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.txt").write_text("Two.")
    (tmp_path / "a.txt").write_text("One.")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"Three."))
    (tmp_path / "notes.md").write_text("Not this.")
    assert texts(tmp_path) == [("a", "One."), ("b/a", "Two."), ("c", "Three.")]
    (tmp_path / "empty").mkdir()
    assert_refused(r"empty holds no .txt file", tmp_path / "empty", "text")


def test_lines_as_documents(tmp_path):
    path = write_bytes(tmp_path / "a.txt", b"One. And.\r\n\n  \nTwo\xff\nThree")
    found, report = documents(path, "text", skip_bad=True, documents="lines")
    assert [(d.id, d.text) for d in found] == [("a:1", "One. And."), ("a:5", "Three")]
    (skipped,) = report.skipped
    assert skipped.startswith(f"{path}:4: byte 0xff is not UTF-8. Convert the file to UTF-8, for example")


def test_a_long_file_comes_in_parts_that_say_where_they_begin(tmp_path):
    whole = "Ö one.\n\nTwo two.\nThree.\n\nFour four four four."
    path = write_text(tmp_path / "a.txt", whole)
    found = list(read(path, "text", longest=20))
    assert [d.text for d in found] == ["Ö one.\n\n", "Two two.\nThree.\n\n", "Four four four four."]
    assert [d.id for d in found] == ["a#1", "a#2", "a#3"]
    assert [d.extra["start"] for d in found] == [0, 8, 25]
    assert texts(path, longest=len(whole.encode())) == [("a", whole)]
    path = write_bytes(tmp_path / "a.txt", b"One one one.\n\n" * 9 + b"caf\xe9.\n")
    assert_refused(r"a.txt:19: byte 0xe9 is not UTF-8", path, "text", longest=30)


def test_what_is_read_ahead_is_no_progress(tmp_path):
    path = write_text(tmp_path / "a.txt", "Oslo.\n" * 499_000)  # three parts
    counts = []
    with report_progress(counts.append):
        done = [sum(counts) for _ in read_text(path, ConversionReport(), longest=2_500_000)]
    assert done == pytest.approx([1e6, 2e6, 2_994_000], abs=150_000)
    assert sum(counts) == path.stat().st_size


@given(st.text(st.sampled_from("aö中😀 \n\r\u0301"), max_size=60), st.integers(4, 20))
def test_no_character_is_lost(tmp_path_factory, whole, longest):
    path = write_bytes(tmp_path_factory.getbasetemp() / "some.txt", whole.encode())
    found = list(read(path, "text", longest=longest))
    assert "".join(d.text for d in found) == whole
    assert all(whole[d.extra.get("start", 0) :].startswith(d.text) for d in found)
    assert all(len(d.text.encode()) <= longest for d in found)
