"""ACE: nested mentions, heads, `&amp;`, several lines, inclusive ends, splits; all of it made up."""

import shutil

import pytest

from .reading import FIXTURES, assert_refused, documents, phrases

NEWS = FIXTURES / "ace" / "timex2norm" / "NEWS_0001.apf.xml"
HE, HEAD = 'START="139" END="140"', "<head>\n        <charseq %s>%s</charseq>"


def test_the_fixture_counted_by_hand():
    (news, talk), report = documents("ace")
    assert (news.id, talk.id) == ("NEWS_0001", "TALK_0002")
    headline, first, second = news.sentences
    assert phrases(headline) == [("Baker & Sons", "ORG")]
    assert phrases(first) == [
        ("The chairman of Baker & Sons, a bakery\nin Leeds", "PER"),
        ("Baker & Sons, a bakery\nin Leeds", "ORG"),
        ("a bakery\nin Leeds", "ORG"),
        ("Leeds", "GPE"),
    ]
    assert [first.words[e.head] if e.head is not None else e.heads for e in first.entities] == [
        "chairman",
        (3, 4, 5),  # the words Baker & Sons: all of them are the gold head
        "bakery",
        "Leeds",
    ]
    assert phrases(second) == [("He", "PER"), ("Oslo", "GPE"), ("his", "PER"), ("his two daughters", "PER")]
    assert second.entities[3].extra == {"mention": "NOM", "id": "NEWS_0001-E5-1", "entity": "NEWS_0001-E5"}
    assert [phrases(sentence) for sentence in talk.sentences] == [[("Ann Lee", "PER")], [("Peru", "GPE")]]
    assert report.counts == {
        "earlier passes of a document's annotation not read": 1,
        "sentences outside of <TEXT> without entities left out": 4,
        "time expressions not read": 1,
        "relations not read": 1,
    }


def test_one_document_and_subtypes():
    ((document,), _) = documents(NEWS)
    assert len(document.sentences) == 3
    assert documents(NEWS.with_name("NEWS_0001.sgm"))[0] == [document]
    (news, _), _ = documents("ace", subtypes=True)
    assert {entity.label for s in news.sentences for entity in s.entities} == {
        "PER:Individual",
        "PER:Group",
        "ORG:Commercial",
        "GPE:Population-Center",
    }


def test_a_split_by_a_list_of_ids(tmp_path):
    ids = tmp_path / "test.txt"
    for line in ("TALK_0002", "bc/timex2norm/TALK_0002.apf.xml", "TALK_0002.sgm"):
        ids.write_text(line + "\n\n")
        assert [document.id for document in documents("ace", ids=str(ids))[0]] == ["TALK_0002"]
    ids.write_text("TALK_0002\nNEWS_0009\n")
    assert_refused(r"test.txt:2: .*ace holds no document NEWS_0009", "ace", ids=str(ids))
    assert len(documents("ace", skip_bad=True, ids=str(ids))[0]) == 1
    ids.write_text("\n")
    assert_refused(r"test.txt is empty, and should list the ids", "ace", ids=str(ids))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('END="76"', 'END="78"', "the head of this mention should be 'chairman', but in .*sgm without its tags"),
        (HE, 'START="140" END="139"', "extent 140-139 of a mention ends before it begins"),
        (HE, 'START="139" END="9999"', "extent 139-9999 of a mention ends after the text"),
        (HE, 'START="139"', "END of this charseq is '', and should be a number"),
        ('START="139"', 'START="-1"', "START of this charseq is '-1'"),
        ('TYPE="PER" ', "", "this mention is of an entity without TYPE"),
        ("extent>", "extant>", "this mention has no extent"),
        (HEAD % (HE, "He"), HEAD % ('START="161" END="163"', "his"), "entity 131-133 PER has its head at 153-156"),
        ("</document>", "", "not well-formed XML"),
    ],
)
def test_mistakes_have_a_place(tmp_path, old, new, expected):
    assert old in NEWS.read_text()
    shutil.copy(NEWS.with_name("NEWS_0001.sgm"), tmp_path)
    (tmp_path / NEWS.name).write_text(NEWS.read_text().replace(old, new))
    assert_refused(r"NEWS_0001.apf.xml:\d+: .*" + expected, tmp_path, "ace")
    assert documents(tmp_path, "ace", skip_bad=True)[1].skipped


def test_files_that_are_missing(tmp_path):
    assert_refused(r"genia.xml is neither a folder of ACE documents nor an .apf.xml", "genia.xml", "ace")
    assert_refused(r"holds no .apf.xml file", tmp_path, "ace")
    shutil.copy(NEWS, tmp_path)
    assert_refused(r"NEWS_0001.sgm does not exist, and .*apf.xml needs it", tmp_path, "ace")
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        shutil.copy(NEWS, tmp_path / folder)
    assert_refused(r"are the same document. Read one of the folders", tmp_path, "ace")
