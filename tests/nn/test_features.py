"""Shapes and static vectors of words."""

import numpy as np
import pytest

from nestree.errors import ModelError
from nestree.nn.batch import Collator
from nestree.nn.features import SHAPES, read_vectors, word_shape
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.types import Sentence
from tests import tiny
from tests.tiny import write_text


def test_shapes():
    alike = [["the", "of"], ["Paris", "Rome"], ["NATO", "UN"], ["McKay", "iPod"], ["3", "7"], ["1984", "20"]]
    alike += [["p53", "il2"], ["IL-2", "UN-3"], ["-", "%"], ["--", "..."], ["I", "A"], ["東京", "大阪"]]
    numbers = [{word_shape(word) for word in words} for words in alike]
    assert all(len(found) == 1 for found in numbers)
    assert len(set.union(*numbers)) == len(alike)
    assert all(0 < word_shape(word) < SHAPES for words in alike for word in words)


def test_glove(tmp_path):
    path = write_text(tmp_path / "glove.txt", "the 1 2.5\nof -1 3e-2\nthe 9 9\n\u2028 4 5\n")
    words, vectors = read_vectors(path)
    assert words == ("the", "of", "\u2028")
    np.testing.assert_allclose(vectors, [[1, 2.5], [-1, 0.03], [4, 5]])
    path.write_text("2 3\nthe 1 2 3\nof 4 5 6\n", encoding="utf-8")  # as word2vec writes them
    assert read_vectors(path)[0] == ("the", "of")


def test_npy(tmp_path):
    path = tmp_path / "table.npy"
    np.save(path, np.array([[1, 2], [3, 4]]))
    (tmp_path / "table.txt").write_text("the\nof\n", encoding="utf-8")
    words, vectors = read_vectors(path)
    assert words == ("the", "of")
    assert vectors.dtype == np.float32
    np.save(path, np.zeros((3, 2)))
    with pytest.raises(ModelError, match=r"shape \(3, 2\) beside 2 words in table.txt"):
        read_vectors(path)
    np.save(path, np.array([{}]), allow_pickle=True)
    with pytest.raises(ModelError, match="not an array of numbers"):
        read_vectors(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2\nof 1\n", "glove.txt:2: 1 numbers instead of 2"),
        ("the 1 x\n", "glove.txt:1: 'the 1 x.n' is not a word and its numbers"),
        ("the\n", "glove.txt:1: 0 numbers instead of some"),
        ("", "no word vectors are in this file"),
        (None, r'glove\.txt: word vectors cannot be read: No such file.*set it to ""'),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text, message):
    if text is not None:
        (tmp_path / "glove.txt").write_text(text)
    with pytest.raises(ModelError, match=message):
        read_vectors(tmp_path / "glove.txt")


def test_rows_are_found_as_written_or_in_lower_case():
    rows = {"the": 1, "US": 2, "us": 3}
    collator = Collator(SubwordTokenizer(tiny.letter_tokenizer(), 64), ["A"], trees=True, vectors=rows)
    batch = collator.words([Sentence(["The", "US", "us", "x"]), Sentence(["us"])])
    assert batch.vectors.tolist() == [[0, 1, 2, 3, 0, 0], [0, 3, 0, 0, 0, 0]]
