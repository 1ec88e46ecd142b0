"""GENIA's XML: types, coordinations, the split, and real files. What is refused: tests/cli/test_bad_input.py."""

import pytest

from nestree.data.formats.biomedical import choose_genia_label, parse_genia_articles, sentence_range
from nestree.data.io import ConversionReport
from nestree.errors import DataError

from .reading import FIXTURES, converted_documents, documents, phrases, sentences, squeezed


def test_five_types_counted_by_hand():
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
    path = tmp_path / "a.xml"
    path.write_text(f'<set><article><sentence><cons sem="{sem}">A or B, C</cons></sentence></article></set>')
    assert phrases(sentences(path, "genia", types="all")[0]) == [
        ("A or B, C", "lipid"),
        ("A or B, C", "protein_molecule"),
        ("A or B, C", "cell_type"),
    ]


def test_the_split_has_the_sizes_of_the_paper_and_goes_through_articles(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text("<set><article>" + "<sentence>x</sentence>\n" * 18546 + "</article></set>")
    assert sentence_range(path, "train") == range(15022)
    assert sentence_range(path, "dev") == range(15022, 15022 + 1669)
    assert sentence_range(path, "test") == range(15022 + 1669, 15022 + 1669 + 1855)
    whole = sentences("genia.xml")
    article = FIXTURES.joinpath("genia.xml").read_text().partition("<article>")
    many = article[0] + "".join("<article>" + article[2].partition("</set>")[0] for _ in range(20)) + "</set>"
    (tmp_path / "many.xml").write_text(many)
    parts = [sentences(tmp_path / "many.xml", part=part) for part in ("train", "dev", "test")]
    assert [len(part) for part in parts] == [81, 9, 10]
    assert [s.words for part in parts for s in part] == [s.words for s in whole * 20]


def test_a_bad_file_of_a_folder_is_skipped(tmp_path):
    good = FIXTURES.joinpath("genia.xml").read_text()
    (tmp_path / "a.xml").write_text(good[:900])
    (tmp_path / "b.xml").write_text(good)
    found, report = documents(tmp_path, "genia", skip_bad=True)
    assert len(found) >= 2
    assert len(report.skipped) == 1
    assert report.skipped[0].startswith(str(tmp_path / "a.xml:"))
    assert report.places["entities of other types left out"][-1].startswith(str(tmp_path / "b.xml:"))
    with pytest.raises(DataError, match=r"holds no .xml file"):
        documents(FIXTURES / "brat", "genia")


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
    """Where a mark is, blanks not counted."""
    return tuple(len("".join(text[:at].split())) for at in mark[:2])


def labels(mark):
    return {choose_genia_label(sem, "five") for sem in mark[2].strip("()").split()}
