"""BioC, XML and JSON, made by hand and by the library itself."""

import json

import bioc
import bioc.biocjson
import pytest

from nestree.data import formats
from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence
from tests.tiny import write_text

from .reading import FIXTURES, documents, phrases


def collection(annotation):
    passage = f"<passage><offset>0</offset><text>in Rome</text>{annotation}</passage>"
    return f"<collection><document><id>1</id>{passage}</document></collection>"


def annotation(offset):
    """Of Rome, which is at 3."""
    location = f'<location offset="{offset}" length="4"/>'
    return f'<annotation id="T"><infon key="type">GPE</infon>{location}<text>Rome</text></annotation>'


def read_text(folder, text, **options):
    return documents(write_text(folder / "a.xml", text), "bioc", **options)


def test_xml_and_the_json_of_the_library_say_the_same(tmp_path):
    with open(FIXTURES / "tools/bioc.xml", encoding="utf-8") as file:
        found = bioc.biocxml.load(file)
    with open(tmp_path / "a.json", "w", encoding="utf-8") as file:
        bioc.biocjson.dump(found, file, indent=1)
    (fever, empty), report = documents("tools/bioc.xml")
    again, report_of_json = documents(tmp_path / "a.json")
    assert (again, report_of_json.counts) == ([fever, empty], report.counts)
    assert [d.extra for d in again] == [fever.extra, empty.extra]
    assert (fever.id, empty.id) == ("77", "78")
    assert fever.text == "Rome & Naples fever\nMr. Bo. left.\nHe saw 🙂."
    words = ["Rome & Naples fever", "Mr. Bo . left .", "He saw 🙂 ."]
    assert [" ".join(s.words) for s in fever.sentences] == words
    assert sorted(phrases(fever.sentences[0])) == [("Rome", "Place"), ("Rome & Naples fever", "Disease")]
    assert phrases(fever.sentences[1]) == [("Mr. Bo", "Person")]
    for document in (fever, again[0]):
        disease = next(e for e in document.sentences[0].entities if e.label == "Disease")
        assert (disease.score, disease.extra) == (0.5, {"id": "T1", "mesh": "D1"})
    assert fever.extra["journal"] == "J"
    assert fever.extra["passages"][0] == {"start": 10, "end": 29, "infons": {"type": "title"}}
    assert report.counts == {
        "relations not read": 1,
        "fragments joined: the entity holds what is between them, too": 1,
        "source, date, key and infons of a collection not read": 1,
    }


def test_labels_of_another_infon_and_bad_annotations(tmp_path):
    text = collection(annotation(3).replace('"type"', '"class"'))
    (document,), _ = read_text(tmp_path, text, label="class")
    assert phrases(document.sentences[0]) == [("Rome", "GPE")]
    with pytest.raises(DataError, match=r"infon 'type' is None.*option `label`; there are class"):
        read_text(tmp_path, text)
    text = collection(annotation(2) + annotation(3))
    (document,), report = read_text(tmp_path, text, skip_bad=True)
    assert phrases(document.sentences[0]) == [("Rome", "GPE")]
    assert len(report.skipped) == 1
    (document,), _ = documents("tools/bioc_lines.jsonl", "bioc")
    assert (document.id, phrases(document.sentences[0])) == ("9", [("Rome", "GPE")])


def test_passages_are_written_as_they_were_read_and_the_library_agrees(tmp_path):
    (fever, empty), _ = documents("tools/bioc.xml")
    formats.write([fever, empty], tmp_path / "b.xml", "bioc")
    with open(tmp_path / "b.xml", encoding="utf-8") as file:
        found = bioc.biocxml.load(file)
    assert [passage.offset for passage in found.documents[0].passages] == [10, 30]
    assert found.documents[0].passages[0].infons == {"type": "title"}
    bioc.validate(found)
    again, _ = documents(tmp_path / "b.xml", "bioc")
    assert [document.text for document in again] == [fever.text, empty.text]
    assert again[0].extra == fever.extra


def test_what_xml_cannot_hold_is_said_and_json_can(tmp_path):
    strange = [Document((Sentence(("a\x00b",), (Entity(0, 1, "A"),)),))]
    with pytest.raises(DataError, match=r"a.xml, document 1: .*Write BioC as JSON instead"):
        formats.write(strange, tmp_path / "a.xml", "bioc")
    assert list(tmp_path.iterdir()) == []
    formats.write(strange, tmp_path / "a.xml", "bioc", kind="json")
    assert json.loads((tmp_path / "a.xml").read_text())["documents"][0]["passages"][0]["text"] == "a\x00b"
