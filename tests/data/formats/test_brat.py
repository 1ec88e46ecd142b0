"""brat: fragments, CRLF, the comparison with the text, and real files."""

import pytest

from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence

from .reading import assert_refused, converted_documents, documents, phrases, spans, write


def write_brat_folder(folder, text, *annotations):
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_bytes(text.encode())
    (folder / "a.ann").write_bytes("".join(line + "\n" for line in annotations).encode())
    return folder


def test_the_fixture_counted_by_hand():
    (first, plain), report = documents("brat", sentences="lines")
    assert (first.id, plain.id) == ("a", "plain")
    assert [phrases(sentence) for sentence in first.sentences] == [
        [
            # two fragments with only a line end between them
            ("Duffy & Sons\nCompany of Oslo, Norway", "ORG"),
            ("Oslo, Norway", "GPE"),
            ("Oslo", "GPE"),
            ("Oslo, Norway\nand a café in Rome", "GPE"),  # two fragments with words between them
            ("a café in Rome", "FAC"),
            ("Ola", "PER"),  # after é and an emoji: characters are counted, not bytes
        ]
    ]
    assert report.counts == {
        "fragments joined: the entity holds what is between them, too": 1,
        "sentences joined around an entity": 2,
        "relations not read": 1,
        "attributes not read": 1,
        "notes not read": 1,
        "texts without an .ann file: no entities": 1,
    }


def test_one_document_by_the_name_of_either_file(tmp_path):
    folder = write_brat_folder(tmp_path / "x", "Maya Ortiz spoke.", "T1\tPER 0 10\tMaya Ortiz")
    for name in ("a.txt", "a.ann"):
        ((document,), _) = documents(folder / name)
        assert (document.id, phrases(document.sentences[0])) == ("a", [("Maya Ortiz", "PER")])


@pytest.mark.parametrize(
    ("end", "start", "counted"),
    [
        ("\r\n", 13, None),
        ("\r\n", 12, "offsets count CRLF as one character: text read with LF"),
        ("\n", 12, None),
        ("\n", 13, "offsets count line ends as CRLF, the text has LF: corrected"),
    ],
)
def test_line_ends_of_two_characters(tmp_path, end, start, counted):
    annotations = (f"T1\tPER {start} {start + 10}\tMaya Ortiz\r", f"T2\tX 6 {start + 4}\tline. Maya")
    folder = write_brat_folder(tmp_path / "x", f"First line.{end}Maya Ortiz spoke.{end}", *annotations)
    ((document,), report) = documents(folder)
    assert [e.text.split() for e in document.entities] == [["line.", "Maya"], ["Maya", "Ortiz"]]
    counts = {what: times for what, times in report.counts.items() if "offsets" in what}
    assert counts == ({counted: 1} if counted else {})
    assert ("\r" in document.text) == (end == "\r\n" and counted is None)


def test_mentions_broken_over_two_lines(tmp_path):
    text, second = "Ann\nRose Li left.", "T2\tPER 9 11\tLi"
    (document,), report = documents(write_brat_folder(tmp_path / "x", text, "T1\tPER 0 11\tAnn\nRose Li", second))
    assert [e.text for e in document.entities] == ["Ann\nRose Li", "Li"]
    assert report.counts["lines that continue the text of the annotation before"] == 1
    with pytest.raises(DataError, match=r"a.ann:1: the annotation says 'Ann Ross Li', but"):
        documents(write_brat_folder(tmp_path / "x", text, "T1\tPER 0 11\tAnn\nRoss Li"))


@pytest.mark.parametrize("moved", [0, 1])
@pytest.mark.parametrize("start", [0, 12])
def test_byte_order_marks(tmp_path, moved, start):
    text = "First line.\nMaya Ortiz spoke." if start else "Maya Ortiz spoke."
    phrase = "\ufeffMaya Ortiz" if moved and not start else "Maya Ortiz"
    begin = 0 if not start else start + moved
    annotation = f"T1\tPER {begin} {start + 10 + moved}\t{phrase}"
    ((document,), report) = documents(write_brat_folder(tmp_path / "x", "\ufeff" + text, annotation))
    assert document.text == text
    assert phrases(document.sentences[-1]) == [("Maya Ortiz", "PER")]
    counted = "offsets count the byte order mark: left out, and offsets moved by one"
    assert report.counts == ({counted: 1} if moved else {})
    assert_refused("at its offsets", write_brat_folder(tmp_path / "x", text, "T1\tPER 1 11\tMaya Ortiz"))


@pytest.mark.parametrize("tab", ["", "\t"])
def test_annotations_without_their_text_or_with_endless_offsets(tmp_path, tab):
    _, report = documents(write_brat_folder(tmp_path / "x", "Maya Ortiz spoke.", f"T1\tPER 0 10{tab}"))
    assert report.counts == {"annotations without their text: not compared": 1}
    with pytest.raises(DataError, match=r"a\.ann:1: these are not offsets"):
        documents(write_brat_folder(tmp_path / "x", "Maya Ortiz spoke.", "T1\tPER 0 " + "9" * 5000 + "\tMaya"))


def test_folders_that_are_no_brat_data(tmp_path):
    assert_refused(r"holds no .ann file", tmp_path, "brat")
    (tmp_path / "a.ann").write_text("")
    assert_refused(r"a.ann has no text: put a.txt beside it", tmp_path, "brat")
    assert_refused(r"b.txt does not exist", tmp_path / "b.ann", "brat")


def test_what_is_written_is_what_brat_reads(tmp_path):
    text = "He met\nAnn Lee in Oslo.\n"
    words = [(0, 2), (3, 6), (7, 10), (11, 14), (15, 17), (18, 22), (22, 23)]
    entities = [Entity(1, 4, "A B", head=2), Entity(2, 4, "PER")]
    sentence = Sentence([text[i:j] for i, j in words], entities, text[:-1], words)
    report = write([Document([sentence], text, id) for id in (".a/b:%", None, ".a/b:%")], tmp_path / "out", "brat")
    names = sorted(path.name for path in (tmp_path / "out").iterdir() if path.suffix == ".ann")
    assert names == ["%2Ea%2Fb%3A%25-2.ann", "%2Ea%2Fb%3A%25.ann", "document-000002.ann"]
    annotations = "T1\tA_B 3 6;7 14\tmet Ann Lee\nT2\tPER 7 14\tAnn Lee\n"
    assert (tmp_path / "out" / names[1]).read_text() == annotations
    assert (tmp_path / "out" / "document-000002.txt").read_text() == text
    assert report.counts == {
        "heads not written: brat cannot hold them": 3,
        "word boundaries not written: brat cannot hold them": 3,
        "sentence boundaries not written: brat cannot hold them": 3,
        "labels changed: brat allows no white space in them": 3,
        "ids changed: two documents have the same": 1,
    }
    back, _ = documents(tmp_path / "out")
    assert sorted(document.id for document in back) == [".a/b:%", ".a/b:%-2", "document-000002"]
    assert spans(back[0].sentences[0]) == [(1, 4, "A_B"), (2, 4, "PER")]


def test_an_entity_of_line_ends_cannot_be_written(tmp_path):
    blank = Document([Sentence(["a", "\n"], [Entity(1, 2, "X"), Entity(0, 1, "Y")])])
    report = write([blank], tmp_path / "out", "brat")
    assert report.counts["dropped: an entity of white space only"] == 1
    assert phrases(documents(tmp_path / "out")[0][0].sentences[0]) == [("a", "Y")]


def test_the_real_files_agree_with_the_converted_set(shared):
    """10 documents, 869 sentences, 1326 entities: all of them, and no difference."""
    raw, report = documents(shared / "data" / "raw" / "litbank_brat", words="whitespace", sentences="lines")
    assert (report.documents, report.sentences, report.entities, report.counts) == (10, 869, 1326, {})
    converted = {document.id: document for document in converted_documents(shared, "litbank")}
    for document in raw:
        other = converted[document.id.removesuffix("_brat")]
        for mine, theirs in zip(document.sentences, other.sentences, strict=True):
            assert mine.words == theirs.words
            assert sorted(spans(mine)) == sorted(spans(theirs))
