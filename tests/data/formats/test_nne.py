"""NNE: stand-off and trees, two folders of files with the same names; the fixtures are made up."""

import shutil

import pytest

from nestree.errors import DataError, InputError
from tests.tiny import write_text

from .reading import FIXTURES, assert_refused, documents, phrases

STANDOFF, TREES = FIXTURES / "nne_standoff", FIXTURES / "nne_trees"


def test_the_fixture_counted_by_hand():
    (first, second), report = documents(STANDOFF, "nne", trees=str(TREES))
    assert (first.id, second.id) == ("wsj_0001", "wsj_0201")
    one, two, three = first.sentences
    assert phrases(one) == [("Ada Okoye", "PER"), ("Ada", "FIRST"), ("Okoye", "NAME"), ("Lagos", "CITY")]
    without_traces = ("She", "sold", "ten", "boats", ".")  # *ICH*-2 and *T*-1
    assert (two.words, two.entities) == (without_traces, ())
    assert phrases(three) == [("five dollar", "MONEY"), ("dollar", "UNIT")]
    assert one.extra == {"pos": ["NNP", "NNP", "VBZ", "NN", "IN", "NNP", "."]}
    assert report.counts == {}


def test_files_without_trees_and_single_files():
    (first, _), report = documents(STANDOFF)
    assert first.sentences[0].words == ("0", "1", "2", "3", "4", "5", "6")
    assert report.entities == 7
    assert report.counts == {"words not known without the trees: their numbers instead": 2}
    ((document,), _) = documents(STANDOFF / "02" / "wsj_0201.mrg", trees=str(TREES / "02" / "wsj_0201.mrg"))
    assert phrases(document.sentences[0]) == [("Rome", "CITY")]
    assert documents(STANDOFF / "02" / "wsj_0201.mrg", trees=str(TREES))[0] == [document]


def test_which_section_is_in_which_part(tmp_path):
    for section in ("01", "02", "03", "22", "23", "24"):
        (tmp_path / section).mkdir()
        shutil.copy(STANDOFF / "02" / "wsj_0201.mrg", tmp_path / section / f"wsj_{section}01.mrg")
    parts = {"train": ["01", "03", "22"], "dev": ["02"], "test": ["23", "24"]}
    for part, sections in parts.items():
        found, _ = documents(tmp_path, "nne", part=part)
        assert [document.id for document in found] == [f"wsj_{section}01" for section in sections]
    assert_refused("holds no nne data", STANDOFF, "nne", part="test")


def test_the_two_folders_exchanged():
    with pytest.raises(DataError, match=r"wsj_0001.mrg:1: this file holds trees. Give the stand-off folder"):
        documents(TREES, "nne", trees=str(STANDOFF))
    assert_refused(r"wsj_0001.mrg:1: '0' is outside of any tree", STANDOFF, "nne", trees=str(STANDOFF))
    with pytest.raises(InputError, match="no_such_folder does not exist"):
        documents(STANDOFF, "nne", trees="no_such_folder")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("(NNP Ada)", "", r"wsj_0001.mrg:3: this sentence has 7 words, and its tree at .*wsj_0001.mrg:2 has 6"),
        ("( (NP (CD five) (NN dollar) (. .) ))", "", "has 3 sentences, and .* has 2 trees"),
        ("(. .) ))\n( (NP", "(. .) )\n( (NP", "trees/00/wsj_0001.mrg:8: this tree is not closed"),
        ("(. .) ))\n( (NP", "(. .) )))\n( (NP", "trees/00/wsj_0001.mrg:13: there is one closing bracket too many"),
    ],
)
def test_trees_that_do_not_fit(tmp_path, old, new, expected):
    trees = tmp_path / "trees"
    shutil.copytree(TREES, trees)
    path = trees / "00" / "wsj_0001.mrg"
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    assert_refused(expected, STANDOFF, "nne", trees=str(trees))


def test_stand_off_that_does_not_fit(tmp_path):
    path = write_text(tmp_path / "wsj_0001.mrg", "1 2\nNNP .\n0,0 CITY\n\n")
    assert_refused(r"wsj_0001.mrg:3: the first line of an NNE sentence numbers its", path)
    path.write_text("0 1\nNNP .\n0,2 CITY\n\n")
    assert_refused("ends after the sentence, which has 2 words", path)
    (tmp_path / "t.mrg").write_text("( (X (NN Rome) (. .)))")
    path.write_text("0 1\nNNP .\n0,0 CITY\n\n")
    _, report = documents(path, trees=str(tmp_path / "t.mrg"))
    assert report.counts == {"part-of-speech tags differ from those of the tree: the latter kept": 1}
    path = path.rename(tmp_path / "wsj_0009.mrg")
    assert_refused(r"wsj_0009.mrg does not exist: .* has no trees", tmp_path / "wsj_0009.mrg", trees=str(TREES))


def test_the_real_stand_off_files(shared):
    _, report = documents(shared / "data" / "raw" / "nne_standoff")
    assert (report.documents, report.sentences, report.entities) == (10, 89, 475)
