"""BioC, PubTator and GENIA's XML. What XML is refused: tests/cli/test_bad_input.py."""

import json

import bioc
import bioc.biocjson
import pytest

from nestree.data.formats.biomedical import choose_genia_label, parse_genia_articles, sentence_range
from nestree.data.io import ConversionReport
from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence
from tests.tiny import write_text

from .reading import FIXTURES, assert_refused, converted_documents, documents, phrases, sentences, squeezed, write

# BioC, XML and JSON, made by hand and by the library itself


def collection(annotation):
    passage = f"<passage><offset>0</offset><text>in Rome</text>{annotation}</passage>"
    return f"<collection><document><id>1</id>{passage}</document></collection>"


def annotation(offset):
    """Of Rome, which is at 3."""
    location = f'<location offset="{offset}" length="4"/>'
    return f'<annotation id="T"><infon key="type">GPE</infon>{location}<text>Rome</text></annotation>'


def read_bioc(folder, text, **options):
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
    (document,), _ = read_bioc(tmp_path, text, label="class")
    assert phrases(document.sentences[0]) == [("Rome", "GPE")]
    with pytest.raises(DataError, match=r"infon 'type' is None.*option `label`; there are class"):
        read_bioc(tmp_path, text)
    text = collection(annotation(2) + annotation(3))
    (document,), report = read_bioc(tmp_path, text, skip_bad=True)
    assert phrases(document.sentences[0]) == [("Rome", "GPE")]
    assert len(report.skipped) == 1
    (document,), _ = documents("tools/bioc_lines.jsonl", "bioc")
    assert (document.id, phrases(document.sentences[0])) == ("9", [("Rome", "GPE")])


def test_passages_are_written_as_they_were_read_and_the_library_agrees(tmp_path):
    (fever, empty), _ = documents("tools/bioc.xml")
    write([fever, empty], tmp_path / "b.xml", "bioc")
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
    with pytest.raises(DataError, match=r"a.xml, document 1: .*Write BioC as JSON instead, with --write kind=json"):
        write(strange, tmp_path / "a.xml", "bioc")
    assert list(tmp_path.iterdir()) == []
    write(strange, tmp_path / "a.xml", "bioc", kind="json")
    assert json.loads((tmp_path / "a.xml").read_text())["documents"][0]["passages"][0]["text"] == "a\x00b"


def test_page_breaks_are_line_ends_in_xml(tmp_path):
    text = "Rome.\fOslo rose."
    document = Document((Sentence(("Rome.\fOslo",), (Entity(0, 1, "A"),), "Rome.\fOslo", ((0, 10),)),), text)
    report = write([document], tmp_path / "a.xml", "bioc")
    assert [what[:11] for what in report.counts if "written as" in what] == ["page breaks"]
    (back,), _ = documents(tmp_path / "a.xml", "bioc")
    assert back.text == text.replace("\f", "\n")
    write([document], tmp_path / "a.json", "bioc")
    (back,), _ = documents(tmp_path / "a.json", "bioc")
    assert back.text == text


# PubTator: title and abstract as one text, offsets compared, relations counted


def test_articles_of_pubtator_are_read_and_the_title_is_a_sentence_of_its_own():
    (fever, gene), report = documents("tools/pubtator.txt")
    assert fever.id == "111"
    title = "Rome fever in children of Rome"
    assert fever.text == f"{title}\nThe Rome fever (malaria) was common. It is rare now."
    assert [" ".join(s.words) for s in fever.sentences] == [
        "Rome fever in children of Rome",
        "The Rome fever ( malaria ) was common .",
        "It is rare now .",
    ]
    assert [sorted(phrases(s)) for s in fever.sentences] == [
        [("Rome", "Place"), ("Rome", "Place"), ("Rome fever", "Disease"), ("children of Rome", "Group")],
        [("Rome fever", "Disease"), ("malaria", "Disease")],
        [],
    ]
    composite = next(e for e in fever.sentences[1].entities if e.start == 1)
    assert composite.extra == {"id": "D008288", "mentions": "Rome fever|fever"}
    assert gene.text == "No | abstract: α-Synuclein"
    assert phrases(gene.sentences[0]) == [("α-Synuclein", "Gene")]
    assert report.counts == {"relations not read": 1}


def test_written_offsets_hold_and_what_is_changed_is_counted(tmp_path):
    text = "Rome\tfever\r\n in\nRome 🙂"
    entities = [Entity(0, 2, "D", head=1, extra={"id": "M1", "other": 1}), Entity(1, 5, "A\tB", score=0.5)]
    offsets = ((0, 4), (5, 10), (13, 15), (16, 20), (21, 22))
    sentence = Sentence(["Rome", "fever", "in", "Rome", "🙂"], [*entities, Entity(4, 5, "E")], text, offsets)
    report = write([Document((sentence,), text, "a|b", {"k": 1}), Document(())], tmp_path / "a", "pubtator")
    assert (tmp_path / "a").read_text(encoding="utf-8") == (
        "a_b|t|Rome\tfever\n"
        "a_b|a|  in Rome 🙂\n"
        "a_b\t0\t10\tRome fever\tD\tM1\n"
        "a_b\t5\t22\tfever   in Rome 🙂\tA B\t\n"
        "a_b\t21\t22\t🙂\tE\t\n"
        "\n2|t|\n2|a|\n\n"
    )
    assert {what: times for what, times in report.counts.items() if "not written" not in what} == {
        "ids changed: pubtator cannot hold spaces and | in them": 1,
        "ids generated: pubtator needs one": 1,
        "line ends written as spaces: pubtator cannot hold them": 1,
        "labels changed: pubtator has no place for tabs and line ends in them": 1,
    }
    (back, empty), _ = documents(tmp_path / "a", "pubtator", words="whitespace")
    assert [(s.words, [(e.span, e.label) for e in s.entities]) for s in back.sentences] == [
        (sentence.words, [((0, 2), "D"), ((1, 5), "A B"), ((4, 5), "E")])
    ]
    assert empty.sentences == ()
    for text in ("a\rb", "a\n", "a\r"):
        report = write([Document((), text, "1")], tmp_path / "a", "pubtator")
        assert report.counts == {"line ends written as spaces: pubtator cannot hold them": 1}, text
    write([Document((), "a", "\ufeffx")], tmp_path / "a", "pubtator")
    assert documents(tmp_path / "a", "pubtator")[0][0].id == "_x"


# GENIA: types, coordinations, the split, and real files


def test_five_types_of_genia_counted_by_hand():
    (first, second), report = documents("genia.xml")
    assert (first.id, second.id) == ("MEDLINE:1", "MEDLINE:2")
    assert [phrases(sentence) for sentence in (*first.sentences, *second.sentences)] == [
        [("AB-3 gene", "DNA"), ("AB-3", "protein"), ("K and L cells", "cell_type")],
        [("AB-3", "protein")],  # a family and a molecule: one entity when the types are five
        [("mRNA", "RNA"), ("H9-cell lines", "cell_line")],
        [],
        [("AB-3 or lipid", "protein")],
    ]
    assert first.sentences[1].text == "AB-3 & QX bind."
    assert first.sentences[2].text == "No mRNA was found in H9-cell lines."
    assert first.sentences[0].words[:3] == ("AB", "-", "3")
    assert report.counts == {
        "entities of other types left out": 3,
        "cons without a type (parts of coordinations) left out": 3,
        "the same span twice with one label: one left out": 1,
    }


def test_all_types_without_coordinations():
    (first, second), report = documents("genia.xml", types="all", coordinations=False, words="treebank")
    labels = [{label for _, label in phrases(sentence)} for sentence in first.sentences]
    assert labels[0] == {"other_name", "DNA_domain_or_region", "protein_molecule"}
    assert labels[1] == {"protein_family_or_group", "protein_molecule", "lipid"}
    assert second.sentences[1].entities == ()
    assert report.counts["coordinations left out"] == 2
    assert first.sentences[0].words[0] == "AB-3"


def test_coordinations_in_coordinations(tmp_path):
    sem = "(AND/OR (OR G#lipid G#protein_molecule) G#cell_type)"
    path = write_text(
        tmp_path / "a.xml", f'<set><article><sentence><cons sem="{sem}">A or B, C</cons></sentence></article></set>'
    )
    assert phrases(sentences(path, "genia", types="all")[0]) == [
        ("A or B, C", "lipid"),
        ("A or B, C", "protein_molecule"),
        ("A or B, C", "cell_type"),
    ]


def test_the_split_has_the_sizes_of_the_paper_and_goes_through_articles(tmp_path):
    path = write_text(tmp_path / "a.xml", "<set><article>" + "<sentence>x</sentence>\n" * 18546 + "</article></set>")
    assert sentence_range(path, "train") == range(15022)
    assert sentence_range(path, "dev") == range(15022, 15022 + 1669)
    assert sentence_range(path, "test") == range(15022 + 1669, 15022 + 1669 + 1855)
    whole = sentences("genia.xml")
    article = FIXTURES.joinpath("genia.xml").read_text().partition("<article>")
    many = article[0] + "".join("<article>" + article[2].partition("</set>")[0] for _ in range(20)) + "</set>"
    path = write_text(tmp_path / "many.xml", many)
    parts = [sentences(path, part=part) for part in ("train", "dev", "test")]
    assert [len(part) for part in parts] == [81, 9, 10]
    assert [s.words for part in parts for s in part] == [s.words for s in whole * 20]


def test_a_bad_file_of_a_folder_is_skipped(tmp_path):
    good = FIXTURES.joinpath("genia.xml").read_text()
    (tmp_path / "a.xml").write_text(good[:900])
    (tmp_path / "b.xml").write_text(good)
    (tmp_path / "._b.xml").write_bytes(b"\0\5\x16\7")  # as macOS leaves in archives
    found, report = documents(tmp_path, "genia", skip_bad=True)
    assert len(found) >= 2
    assert len(report.skipped) == 1
    assert report.skipped[0].startswith(str(tmp_path / "a.xml:"))
    assert report.places["entities of other types left out"][-1].startswith(str(tmp_path / "b.xml:"))
    assert_refused(r"holds no .xml file", FIXTURES / "brat", "genia")


def borders_shared(mark, marks):
    """Do both ends of a `cons` fall together with boundaries of others in it, or is there another on its span?"""
    i, j = mark[:2]
    inside = [m for m in marks if m is not mark and i <= m[0] and m[1] <= j]
    return any(m[0] == i for m in inside) and any(m[1] == j for m in inside)


@pytest.mark.parametrize(
    ("name", "equal", "shared_borders", "cut", "moved", "only_converted"),
    [("genia_paper", 5286, 32, 4, 1, 3), ("genia", 5206, 39, 4, 0, 2)],
)
def test_the_real_files_agree_with_the_converted_sets(shared, name, equal, shared_borders, cut, moved, only_converted):
    """180 articles, 1658 sentences: docs/data.md explains each of the differences that are counted here."""
    raw = shared / "data" / "raw" / "genia_gpml"
    by_text = {}
    for document in converted_documents(shared, name):
        for sentence in document.sentences:
            text, found = squeezed(sentence)
            by_text.setdefault(text, {})[document.id] = found
    articles = parse_genia_articles(raw, ConversionReport())
    marks = [constituents for article in articles for _, constituents in article.extra["sentences"]]
    mine, _ = documents(raw, "genia", coordinations=name == "genia_paper")
    assert (len(mine), len(marks)) == (180, 1658)
    counts = dict.fromkeys(("equal", "shared boundaries", "cut", "moved", "only converted"), 0)
    pairs = [(document.id, sentence) for document in mine for sentence in document.sentences]
    for (id, sentence), marked in zip(pairs, marks, strict=True):
        text, found = squeezed(sentence)
        others = by_text.get(text) or by_text[text + "."]  # a full stop was added where there was none
        other = others.get(id) or next(iter(others.values()))  # some titles have the id of the article before
        counts["equal"] += len(found & other)
        counts["only converted"] += len(other - found)
        for start, end, label in found - other:
            exact = [m for m in marked if places(sentence.text, m) == (start, end) and label in labels(m)]
            if not exact:
                counts["cut"] += 1  # the entity began or ended inside a word
            elif any(borders_shared(mark, marked) for mark in exact):
                counts["shared boundaries"] += 1
            else:
                counts["moved"] += 1
    assert list(counts.values()) == [equal, shared_borders, cut, moved, only_converted]


def places(text, mark):
    """Where a mark is, white space not counted."""
    return tuple(len("".join(text[:at].split())) for at in mark[:2])


def labels(mark):
    return {choose_genia_label(sem, "five") for sem in mark[2].strip("()").split()}
