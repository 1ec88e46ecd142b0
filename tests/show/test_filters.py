"""Which documents and sentences are shown."""

import pytest

from nestree.errors import InputError
from nestree.show.filters import first_sentences, select_documents
from nestree.types import Document, Entity, Sentence

TEXT = "Ann ran. Bob sat.\n"
NEWS = Document(
    [
        Sentence(["Ann", "ran", "."], [Entity(0, 1, "PER")], "Ann ran.", [(0, 3), (4, 7), (7, 8)], 0, "n-1"),
        Sentence(["Bob", "sat", "."], [Entity(0, 1, "PER")], "Bob sat.", [(0, 3), (4, 7), (7, 8)], 9, "n-2"),
    ],
    TEXT,
    "news",
)
OTHER = Document([Sentence(["c"], id="o-1"), Sentence(["d"])], id="other")


def words(documents):
    return [[" ".join(sentence.words) for sentence in document.sentences] for document in documents]


def test_select_by_id():
    assert select_documents([NEWS, OTHER], ["news"]) == [NEWS]
    assert words(select_documents([NEWS, OTHER], ["o-1", "n-2"])) == [["Bob sat ."], ["c"]]
    assert words(select_documents([NEWS, OTHER], ["other", "o-1"])) == [["c", "d"]]
    assert select_documents([NEWS], ["n-2"])[0].id == "news"
    assert select_documents([NEWS], ["n-2"])[0].with_text().text == "Bob sat."


@pytest.mark.parametrize(
    ("id", "hint"), [("n-3", "Is n-2 meant?"), ("xyz", "The ids are n-1, n-2, news, o-1, other.")]
)
def test_unknown_ids(id, hint):
    with pytest.raises(InputError, match=f"no document and no sentence has the id {id}. {hint}"):
        select_documents([NEWS, OTHER], ["news", id])
    with pytest.raises(InputError, match="None has an id"):
        select_documents([Document([Sentence(["a"])])], [id])


def test_first_sentences():
    def documents():
        yield NEWS
        yield OTHER
        raise AssertionError("more was read than needed")

    assert words(first_sentences(documents(), 1)) == [["Ann ran ."]]
    assert words(first_sentences(documents(), 2)) == [["Ann ran .", "Bob sat ."]]
    assert words(first_sentences(documents(), 3)) == [["Ann ran .", "Bob sat ."], ["c"]]
    assert words(first_sentences([NEWS, OTHER], 9)) == words([NEWS, OTHER])
    assert next(first_sentences([NEWS], 1)).text == "Ann ran."
    assert next(first_sentences([NEWS], 2)).text == TEXT
