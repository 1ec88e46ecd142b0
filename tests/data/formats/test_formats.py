"""The table of formats: names, options, guessing, and what is wrong before a format is even read."""

import gzip
import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from nestree.data import formats
from nestree.data.formats import FORMATS, detect_format, detect_output_format, options, read, write
from nestree.data.io import STDIO, limits
from nestree.errors import DataError, InputError
from nestree.types import Document, Entity, Sentence
from tests.tiny import write_text

from .reading import FIXTURES, docs_section


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_can_be_read_and_has_simple_options(name):
    for verb in ("read", "write") if FORMATS[name].writable else ("read",):
        assert callable(formats.get_function(name, verb))
        for option in options(name, verb).values():
            assert type(option.default) in (str, bool, int)
            described = formats.get_function(name, verb).__doc__ or ""
            assert option.name in described or option.name in FORMATS[name].splitting


@pytest.mark.parametrize("name", [name for name, format in FORMATS.items() if format.writable])
def test_half_a_surrogate_pair_cannot_be_written(name, tmp_path):
    pytest.importorskip({"datasets": "datasets", "spacy": "spacy"}.get(name, "nestree"))
    bad = Document([Sentence(["a", "\ud800"], [Entity(1, 2, "X")])]).with_text()
    with pytest.raises(DataError, match=r"surrogates not allowed\. Correct this text"):
        write([bad], tmp_path / "out", name)
    assert list(tmp_path.iterdir()) == []


def test_names_and_options_that_do_not_exist():
    with pytest.raises(InputError, match=r"there is no format 'xlsx'. Choose one of jsonl, brat"):
        read("a", "xlsx")
    with pytest.raises(InputError, match=r"no format 'parquet'. Did you mean datasets\? Choose one of jsonl") as error:
        write([], "a", "parquet")
    assert "genia" not in str(error.value)  # which cannot be written
    with pytest.raises(InputError, match=r"genia can be read, not written. Choose one of jsonl"):
        write([], "a", "genia")
    with pytest.raises(InputError, match="brat has no option 'types' to read: its options are words"):
        read("a", "brat", types="all")
    with pytest.raises(InputError, match="brat has no option 'words' to write: it has none"):
        write([], "a", "brat", words="ud")


CHOICES = {  # the options that have choices, by format
    "read": "spacy heads, datasets ends, genia types, genia part, nne part, research-json ends, research-json offsets,"
    "triplets ends, text documents, label-studio part, doccano offsets",
    "write": "jsonl by, columns scheme, bioc kind, doccano key, label-studio part, triplets ends",
}


@pytest.mark.parametrize("verb", CHOICES)
def test_options_that_have_choices(tmp_path, verb):
    (tmp_path / "a").write_text("x")
    for name, option in (pair.split() for pair in CHOICES[verb].split(",")):
        call = (lambda *args, **chosen: list(read(*args, **chosen))) if verb == "read" else partial(write, [])
        with pytest.raises(InputError, match=f"^{option} is one of .*, not 'other'"):
            call(tmp_path / "a", name, **{option: "other"})


def assert_undetected(pattern: str, path: Path) -> None:
    """The format of this file is not guessed, and the message says why."""
    with pytest.raises(DataError, match=pattern):
        detect_format(path)


FIXTURE_FORMATS = {
    "brat": "brat brat/a.ann brat/a.txt",
    "ace": "ace ace/TALK_0002.apf.xml",
    "nne": "nne_standoff nne_standoff/02/wsj_0201.mrg",
    "genia": "genia.xml",
    "gum": "gum.conllu",
    "columns": "layers.iob2 joined.bioes germeval.tsv",
    "triplets": "triplets.data",
}


@pytest.mark.parametrize("expected", FIXTURE_FORMATS)
def test_fixtures_are_recognised(expected):
    for name in FIXTURE_FORMATS[expected].split():
        assert detect_format(FIXTURES / name) == expected


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"tokens": ["a"], "entities": []}, "jsonl"),
        ({"text": "a", "entities": [{"start": 0, "end": 1, "label": "X"}]}, "jsonl"),
        ({"text": "a", "entities": []}, "jsonl"),
        ({"text": "a", "entities": [{"start_offset": 0, "end_offset": 1, "label": "X"}]}, "doccano"),
        ({"text": "a", "entities": [[0, 1, "X"]]}, "doccano"),
        ({"text": "a", "label": [[0, 1, "X"]]}, "doccano"),
        ({"text": "a", "labels": [[0, 1, "X"]]}, "doccano"),
        ({"text": "a", "tokens": [], "spans": []}, "prodigy"),
        ({"sentence": "a", "ner": []}, "research-json"),
        ({"tokens": ["a"], "entities": [{"start": 0, "end": 1, "type": "X"}]}, "research-json"),
        ({"text": "a", "label": [{"start": 0, "end": 1, "labels": ["X"]}]}, "label-studio"),
        ({"text": "a", "ner": [{"start": 0, "end": 1, "labels": ["X"]}]}, "label-studio"),
        ({"tokens": ["a"], "entity_mentions": []}, "research-json"),
        ({"sentences": [["a"]], "ners": [[]]}, "research-json"),
        ({"source": "x", "date": "", "documents": []}, "bioc"),
        ([{"id": 1, "data": {"text": "a"}, "annotations": []}], "label-studio"),
        ({"data": {"text": "a"}, "completions": []}, "label-studio"),
        ({"id": "1", "passages": []}, "bioc"),
        ([{"text": "a", "label": [[0, 1, "X"]]}], "doccano"),
        ([{"sentence": ["a"], "ner": []}], "research-json"),
        ([{"tokens": ["a"], "entities": []}], "research-json"),
        ({"text": "a"}, None),
        ({"x": 1}, None),
        ([1], None),
    ],
)
def test_json_is_told_by_its_keys(tmp_path, record, expected):
    path = write_text(tmp_path / "a.json", json.dumps(record) + "\n")
    if expected:
        assert detect_format(path) == expected
    else:
        assert_undetected(r"a.json: its format is unknown. Name it, with --from", path)
        assert detect_format(path.rename(tmp_path / "a.jsonl")) == "jsonl"  # which then says what is wrong with it


def test_lines_without_entities_do_not_tell(tmp_path):
    entity = {"start_offset": 0, "end_offset": 1, "label": "X"}
    lines = '{"text": "a", "entities": []}\n' + json.dumps({"text": "a", "entities": [entity]})
    assert detect_format(write_text(tmp_path / "a.jsonl", lines)) == "doccano"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1|t|A title\n1|a|Text.\n", "pubtator"),
        ("\ufeff1|t|A title\n", "pubtator"),
        ('<?xml version="1.0"?><!DOCTYPE collection SYSTEM "BioC.dtd"><collection>', "bioc"),
        ("Mia\tB-PER\nran\tO\n\n-DOCSTART- O\n", "columns"),
        ("Mia ran\nNNP VBD\n0,1 PER|0,2 X Y\n\n", "triplets"),
        ("Only words.\n", None),
        ("Give me an O\nor a B\n", None),
    ],
)
def test_text_is_told_by_its_beginning(tmp_path, text, expected):
    path = write_text(tmp_path / "a.txt", text)
    if expected:
        assert detect_format(path) == expected
    else:
        assert_undetected(r"a.txt: plain text without annotations, .* its format with --from", path)


def test_what_is_there_twice_or_not_at_all_is_not_guessed(tmp_path):
    assert_undetected("is unknown", tmp_path)
    (tmp_path / "a.ann").write_text("")
    (tmp_path / "a.conllu").write_text("")
    assert_undetected("is unknown", tmp_path)
    (tmp_path / "a.conllu").unlink()
    assert detect_format(tmp_path) == "brat"
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "b.jsonl").write_text("")  # it would be left out
    assert_undetected("is unknown", tmp_path)
    assert_undetected("does not exist", tmp_path / "b.jsonl")
    assert_undetected("-: its format is unknown", STDIO)
    (tmp_path / "empty.txt").write_text("\n\n")
    assert_undetected(r"empty.txt is empty", tmp_path / "empty.txt")


def test_a_folder_of_xml(tmp_path):
    shutil.copy(FIXTURES / "genia.xml", tmp_path)
    assert detect_format(tmp_path) == "genia"
    (tmp_path / "genia.xml").write_text("<html></html>")
    assert_undetected("is unknown", tmp_path)


def test_names_to_write():
    formats_of = {"a.jsonl": "jsonl", "a.jsonl.gz": "jsonl", "a.spacy": "spacy", "a.iob2": "columns", "a.tsv": "csv"}
    for name, expected in formats_of.items():
        assert detect_output_format(Path(name)) == expected
    for name, message in {
        **dict.fromkeys(("a", "a.xml", "-"), "Name it, with --to"),
        "a.json": "several formats end in .json. Name a file of JSON lines a.jsonl",
        "a.conllu": "gum can be read, not written",
        "a.ann": "brat is written to a folder. Name one and the format, with --to brat",
        "a.arrow": "datasets is written to a folder or a file called .parquet",
        "a.iob": "columns is written to a file called .iob2",
    }.items():
        with pytest.raises(DataError, match=message):
            detect_output_format(Path(name))
    for name, meant in [("conll", "columns"), ("brt", "brat")]:
        with pytest.raises(InputError, match=f"Did you mean {meant}"):
            formats.write([], Path("a"), name)


def test_nothing_is_read_ahead_and_nothing_is_left_when_reading_fails(tmp_path):
    path = write_text(tmp_path / "a.jsonl", '{"tokens": ["a"]}\n' * 3 + "wrong\n")
    found = read(path)
    assert [next(found).sentences[0].words for _ in range(2)] == [("a",), ("a",)]
    with pytest.raises(DataError, match=r"a.jsonl:4"):
        list(found)
    for name in ("jsonl", "brat", "columns", "triplets"):
        with pytest.raises(DataError, match=r"a.jsonl:4"):
            write(read(path), tmp_path / "out", name)
        assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("name", ["bioc", "brat", "doccano", "jsonl", "label-studio", "prodigy", "pubtator", "spacy"])
@pytest.mark.parametrize("text", ["", " \n"])
def test_a_document_without_words_is_read_again(name, text, tmp_path):
    write([Document((), text, id="a")], tmp_path / "out", name)
    (found,) = read(tmp_path / "out", name)
    assert found.sentences == ()


MAYA = {"a.txt": b"Maya Ortiz spoke."}
TOO_DEEP = {"tokens": ["a"], "entities": [{"start": 0, "end": 1, "label": "X"}] * 101}
MESSAGES = {  # what is wrong: the files, and which of them to read
    "not UTF-8": ({"a.jsonl": b'{"tokens": ["a"]}\n' * 6 + b"na\xefve"}, "a.jsonl"),
    "cut-off gzip": ({"a.jsonl.gz": gzip.compress(b'{"tokens": ["a"]}\n' * 999)[:40]}, "a.jsonl.gz"),
    "zip, bzip2, xz, zstd, 7z": ({"a.zip": b"PK\x03\x04" + bytes(30)}, "a.zip"),
    "JSON": ({"a.jsonl": b'{"tokens": ["a"]}\n{"tokens": ["a"]\n'}, "a.jsonl"),
    "XML": ({"a.xml": b"<set>" + b"\n" * 11 + b"<article><title>" + b"<sentence>a b cd</title>"}, "a.xml"),
    "an entity beyond its text": ({**MAYA, "a.ann": b"\nT1\tPER 0 99\tMaya"}, "a.ann"),
    "an end before its start": ({**MAYA, "a.ann": b"\nT1\tPER 10 0\tMaya"}, "a.ann"),
    "another text than was annotated": ({**MAYA, "a.ann": b"\nT1\tPER 1 11\tMaya Ortiz"}, "a.ann"),
    "mixed formats": ({"a.iob2": b'{"tokens": ["a"]}\n'}, "a.iob2"),
    "an empty file": ({"a.iob2": b""}, "a.iob2"),
    "a folder for a file": ({"corpus/README": b""}, "corpus"),
    "a file that is not there": ({}, "a.jsonl"),
    "a line beyond the limit": ({"a.jsonl": b"x" * 100}, "a.jsonl"),
    "a compressed file that expands to too much": ({"a.jsonl.gz": gzip.compress(b"x" * 2**20)}, "a.jsonl.gz"),
    "XML that is too deep": ({"a.xml": b"<set>" + b"<a>" * 1000}, "a.xml"),
    "entities that are too deep": ({"a.jsonl": json.dumps(TOO_DEEP).encode()}, "a.jsonl"),
    "XML that declares entities": ({"a.xml": b'<!DOCTYPE set [<!ENTITY a "b">]><set></set>'}, "a.xml"),
}


def test_the_messages_in_the_docs_are_real(tmp_path):
    messages = dict(re.findall(r"^\| ([^|]+) \| `(.+)` \|$", docs_section("Bad input"), re.MULTILINE))
    assert messages.keys() == MESSAGES.keys()
    names = {".xml": "genia", ".ann": "brat", ".iob2": "columns"}
    for number, (what, (contents, name)) in enumerate(MESSAGES.items()):
        folder = tmp_path / str(number)
        for file, data in contents.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(data)
        lines, size = 99 if "limit" in what else 2**20, 99 if "expands" in what else 2**20
        with limits(longest_line=lines, max_bytes=size), pytest.raises(DataError) as error:
            list(read(folder / name, names.get((folder / name).suffix, "jsonl")))
        message = str(error.value).replace(f"{folder}/", "").replace("99 bytes.", "67,108,864 bytes.")
        message = message.replace("than 99 bytes,", "than 4,294,967,296 bytes,")
        assert message.startswith(messages[what].removesuffix("..."))
        assert messages[what].endswith("...") or message == messages[what]
