"""PubTator: title and abstract as one text, offsets compared, relations counted."""

import pytest

from nestree.data import formats
from nestree.data.io import ConversionReport
from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence
from tests.data.formats.reading import documents, phrases


def read_text(folder, text, **options):
    path = folder / "a.txt"
    path.write_text(text, encoding="utf-8")
    return list(formats.read(path, "pubtator", options.pop("report", ConversionReport()), **options))


def test_articles_are_read_and_the_title_is_a_sentence_of_its_own():
    (fever, gene), report = documents("tools/pubtator.txt")
    assert fever.id == "111"
    assert fever.text == (
        "Rome fever in children of Rome\nThe Rome fever (malaria) was common. It is rare now."
    )
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
    assert (gene.text, phrases(gene.sentences[0])) == (
        "No | abstract: α-Synuclein",
        [("α-Synuclein", "Gene")],
    )
    assert report.counts == {"relations not read": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\t0\t4\tRoma\tPlace", ":3: the annotation says 'Roma', but at its offsets the text says 'Rome'"),
        ("1\t0\t99\tRome\tPlace", ":3: entity 0-99 Place ends after the text"),
        ("1\t4\t0\t\tPlace", ":3: entity 4-0 Place ends before it begins"),
        ("1\t-1\t4\tRome\tPlace", ":3: entity -1-4 Place begins before the text"),
        ("1\t0\tx\tRome\tPlace", ":3: the end must be a number, and is 'x'"),
        ("1\t0\t4\tRome\t", ":3: the annotation has no type"),
        ("2\t0\t4\tRome\tPlace", ":3: this annotation of 2 stands in the article 1"),
        ("nonsense", ":3: this is not a PubTator line: 'nonsense'. Expected: ID|t|title"),
        ("1|a|again", ":3: this is not a PubTator line"),
    ],
)
def test_errors_say_where_and_what(tmp_path, line, message):
    with pytest.raises(DataError) as error:
        read_text(tmp_path, f"1|t|Rome\n1|a|fever\n{line}\n")
    assert str(error.value).startswith(f"{tmp_path / 'a.txt'}{message}")
    skipping = ConversionReport(skip_bad=True)
    (document,) = read_text(tmp_path, f"1|t|Rome\n1|a|fever\n{line}\n1\t5\t10\tfever\tX\n", report=skipping)
    assert [phrases(s) for s in document.sentences] == [[], [("fever", "X")]]
    assert len(skipping.skipped) == 1


def test_an_entity_across_title_and_abstract_joins_them(tmp_path):
    report = ConversionReport()
    (document,) = read_text(tmp_path, "1|t|in Rome\n1|a|fever\n1\t3\t13\tRome fever\tX\n", report=report)
    assert [phrases(s) for s in document.sentences] == [[("Rome\nfever", "X")]]
    assert report.counts == {"sentences joined around an entity": 1}


def test_written_offsets_hold_and_what_is_changed_is_counted(tmp_path):
    text = "Rome\tfever\r\n in\nRome 🙂"
    sentence = Sentence(
        ("Rome", "fever", "in", "Rome", "🙂"),
        (
            Entity(0, 2, "D", head=1, extra={"id": "M1", "other": 1}),
            Entity(1, 5, "A\tB", score=0.5),
            Entity(4, 5, "E"),
        ),
        text,
        ((0, 4), (5, 10), (13, 15), (16, 20), (21, 22)),
    )
    report = ConversionReport()
    formats.write(
        [Document((sentence,), text, "a|b", {"k": 1}), Document(())], tmp_path / "a", "pubtator", report
    )
    assert (tmp_path / "a").read_text(encoding="utf-8") == (
        "a_b|t|Rome\tfever\n"
        "a_b|a|  in Rome 🙂\n"
        "a_b\t0\t10\tRome fever\tD\tM1\n"
        "a_b\t5\t22\tfever   in Rome 🙂\tA B\t\n"
        "a_b\t21\t22\t🙂\tE\t\n"
        "\n2|t|\n2|a|\n\n"
    )
    assert report.counts == {
        "heads not written: pubtator cannot hold them": 1,
        "scores not written: pubtator cannot hold them": 1,
        "extra keys of documents not written: pubtator cannot hold them": 1,
        "sentence boundaries not written: pubtator cannot hold them": 1,
        "extra keys of entities not written: pubtator cannot hold them": 1,
        "ids changed: pubtator cannot hold spaces and | in them": 1,
        "ids generated: pubtator needs one": 1,
        "line ends written as blanks: pubtator cannot hold them": 1,
        "labels changed: pubtator has no place for tabs and line ends in them": 1,
    }
    back, empty = formats.read(tmp_path / "a", "pubtator", words="whitespace")
    assert [(s.words, [(e.span, e.label) for e in s.entities]) for s in back.sentences] == [
        (sentence.words, [((0, 2), "D"), ((1, 5), "A B"), ((4, 5), "E")])
    ]
    assert empty.sentences == ()
