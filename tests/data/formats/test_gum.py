"""GUM: brackets, heads from the tree, texts; and real files."""

import re
import sys

import pytest

from tests.tiny import write_text

from .reading import FIXTURES, assert_refused, converted_documents, documents, phrases

GUM = FIXTURES / "gum.conllu"


def test_the_fixture_counted_by_hand():
    (first, second), report = documents(GUM)
    assert (first.id, second.id) == ("GUM_made_up", "GUM_second")
    one, two = first.sentences
    house, barn = ("Ida Berg's house, a red barn", "object"), ("a red barn", "object")
    assert phrases(one) == [house, ("Ida Berg's", "person"), barn]
    assert [(entity.head, entity.heads) for entity in one.entities] == [(3, ()), (0, ()), (7, ())]
    assert [entity.extra["named"] for entity in one.entities] == [False, True, False]
    extra = {"identity": "Ida_Berg%2C_painter", "min": [0, 1], "infstat": "new", "named": True}
    assert one.entities[1].extra == extra
    assert [(e.head, e.heads) for e in two.entities] == [(None, (1, 4))]  # two words, and a bracket aside
    assert one.extra["dep_heads"] == [3, 0, 0, 9, 7, 7, 7, 3, 3, -1, 9]
    assert first.text == "Ida Berg's house, a red barn, burned. To see (to learn)"
    assert report.counts == {
        "empty nodes not read": 1,
        "lemmas, fine tags, features and enhanced trees not read": 3,
        "coreference not read": 3,
    }


def test_entities_in_one_another_and_in_fragments(tmp_path):
    def read_entities(header, *entities):
        row = "{}\tw{}\t_\tNOUN\t_\t_\t0\tdep\t_\tEntity={}\n"
        rows = [row.format(k + 1, k, entity) for k, entity in enumerate(entities)]
        text = f"# global.Entity = {header}\n{''.join(rows)}\n"
        (document,), report = documents(write_text(tmp_path / "a.conllu", text))
        return phrases(document.sentences[0]), report.counts

    found, _ = read_entities("GRP-etype-infstat", "(1-person-new", "(1-person-giv", "1)", "(2-place-new)1)")
    # the inner one ends first
    assert found == [("w0 w1 w2 w3", "person"), ("w1 w2", "person"), ("w3", "place")]
    found, counts = read_entities("eid-etype", "(5[1/2]-x)", "", "(5[2/2]-x)")
    assert found == [("w0 w1 w2", "x")]
    assert counts == {"fragments joined: the entity holds what is between them, too": 1}


def test_paragraphs_texts_without_the_words_and_files_without_documents(tmp_path):
    def changed(pattern, replacement):
        return documents(write_text(tmp_path / "a.conllu", re.sub(pattern, replacement, GUM.read_text())))

    (first, _), _ = changed("# sent_id = GUM_made_up-2", r"# newpar\n\g<0>")
    assert "burned.\n\nTo see" in first.text
    (_, second), report = changed("# text = Oslo", "# text = Bergen")
    assert (second.text, second.sentences[0].text, second.sentences[0].words) == (None, None, ("Oslo",))
    assert report.counts["texts not kept: the words do not follow each other in them"] == 1
    found, _ = changed("# newdoc.*\n", "")
    assert [(document.id, len(document.sentences)) for document in found] == [(None, 1)] * 3


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Entity=1)", "Entity=9)", "a.conllu:1: word 3 closes entity 9, which was not opened"),
        ("Entity=1)", "_", "a.conllu:1: entity 1 is not closed in this sentence"),
        ("Entity=1)", "Entity=1))", "word 3 has brackets that cannot be read"),
        ("(1-person-", "(1--", "has no type"),
        ("(1-person-new-nnnnn-cf2-1,2-coref-Ida_Berg%2C_painter", "(1", "has no type"),
        ("\n2\tBerg", "\n5\tBerg", "a.conllu:1: word 2 of this sentence has the number 5"),
        ("\n2\tBerg\tBerg\t", "\n2\t", "a.conllu:1: this sentence is not CoNLL-U"),
        ("\t10\tnsubj\t_\tSpaceAfter=No", "", "a.conllu:1: this sentence is not CoNLL-U: a word has fewer than ten"),
        ("\tnmod:poss\t_\t", " ", "a.conllu:1: this sentence is not CoNLL-U"),
    ],
)
def test_mistakes_have_a_place_and_only_their_sentence_is_skipped(tmp_path, old, new, expected):
    text = GUM.read_text().replace("# newpar\n", "").replace(old, new, 1)
    path = write_text(tmp_path / "a.conllu", text)
    assert_refused(expected, path)
    found, report = documents(path, skip_bad=True)
    assert sum(len(document.sentences) for document in found) == 2
    assert len(report.skipped) == 1


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "conllu", None)
    assert_refused(r"pip install 'nestree\[formats\]'", GUM)


def test_folders(tmp_path):
    assert_refused(r"holds no .conllu file", tmp_path, "gum")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.conllu").write_text(GUM.read_text())
    assert len(documents(tmp_path)[0]) == 2


def test_the_real_files_agree_with_the_converted_set(shared):
    """10 documents, 643 sentences, 2914 entities: labels, heads and all else are equal.

    The converted set lists `heads` also where only punctuation is left aside to find one: twice.
    """
    raw, report = documents(shared / "data" / "raw" / "gum_conllu")
    assert (report.documents, report.sentences, report.entities) == (10, 643, 2914)
    assert report.counts == {
        "empty nodes not read": 12,
        "lemmas, fine tags, features and enhanced trees not read": 643,
        "coreference not read": 596,  # sentences that have entities
    }
    converted = {document.id: document for document in converted_documents(shared, "gum_open")}
    more_heads = 0
    for document in raw:
        for mine, theirs in zip(document.sentences, converted[document.id].sentences, strict=True):
            assert (mine.words, mine.id, mine.extra) == (theirs.words, theirs.id, theirs.extra)
            key = lambda e: (e.start, e.end, e.label, e.head, sorted(e.extra.items(), key=str))  # noqa: E731
            assert sorted(map(key, mine.entities), key=str) == sorted(map(key, theirs.entities), key=str)
            more_heads += sum(e.head is not None and e.heads != () for e in theirs.entities)
            ours, others = ([e.heads for e in s.entities if e.head is None] for s in (mine, theirs))
            assert ours == others
    assert more_heads == 2


def test_a_document_begins_even_if_its_first_sentence_cannot_be_read(tmp_path):
    text = GUM.read_text(encoding="utf-8").rstrip("\n") + "\n\n"
    bad = "# newdoc id = other\n1\tx\n\n"
    good = "1\tRome\tRome\tPROPN\t_\t_\t0\troot\t_\t_\n\n"
    path = write_text(tmp_path / "a.conllu", text + bad + good)
    (*_, last), report = documents(path, skip_bad=True)
    assert (last.id, [s.words for s in last.sentences], len(report.skipped)) == ("other", [("Rome",)], 1)
