"""Words in pieces, pieces in windows: nothing is lost."""

from itertools import pairwise

import numpy as np
import pytest

from nestree.errors import ModelError
from nestree.nn import tokenizer as pieces_module
from nestree.nn.features import word_shape
from nestree.nn.tokenizer import SubwordTokenizer, group_by_word, most_central, windows
from nestree.types import Sentence
from tests import tiny


@pytest.mark.parametrize("room", [1, 2, 3, 5, 8, 50])
@pytest.mark.parametrize("seed", range(5))
def test_windows_cover_all_words_and_fit(room, seed):
    random = np.random.default_rng(seed)
    sizes = random.integers(1, max(1, room // 4) + 1, size=int(random.integers(1, 60))).tolist()
    found = windows(sizes, room)
    assert {w for a, b in found for w in range(a, b)} == set(range(len(sizes)))
    assert all(0 < sum(sizes[a:b]) <= room for a, b in found)
    assert all(x[0] < y[0] and x[1] < y[1] for x, y in pairwise(found))
    for w, k in enumerate(most_central(sizes, found)):
        a, b = found[k]
        assert a <= w < b


def test_a_word_is_taken_from_where_it_is_most_central():
    sizes = [1] * 12
    assert windows(sizes, 8) == [(0, 8), (4, 12)]
    assert most_central(sizes, windows(sizes, 8)) == [0] * 6 + [1] * 6


def test_words_in_the_middle_have_neighbours_on_both_sides():
    sizes = [1] * 100
    found = windows(sizes, 16)
    for w, k in enumerate(most_central(sizes, found)):
        a, b = found[k]
        assert min(w - a, b - 1 - w) >= 3 or w < 8 or w >= 92


def made(longest=20, tokenizer=None):
    return SubwordTokenizer(tokenizer or tiny.letter_tokenizer(), longest)


def test_pieces_of_words():
    splitter = made()
    (found,) = splitter([Sentence(["Ab", "c"])])
    vocabulary = tiny.letter_tokenizer().get_vocab()
    assert [w.tolist() for w in found.windows] == [
        [2, vocabulary["a"], vocabulary["##b"], vocabulary["c"], 3]
    ]
    assert found.position.tolist() == [0, 1, 1, 2, 3]
    assert found.place.tolist() == [0, 1, 2, 3, 4]
    assert found.weight.tolist() == [1, 0.5, 0.5, 1, 1]


def test_words_without_pieces_and_monstrous_words():
    splitter = made(longest=18)
    (found,) = splitter([Sentence(["\u200b", "x" * 60, "\x00"])])
    assert found.position.tolist() == [0, 1, 2, 2, 2, 2, 3, 4]
    assert found.windows[0][1] == found.windows[0][6] == splitter.unknown


def test_long_sentences_have_the_last_special_piece_of_their_last_window():
    (found,) = made(longest=10)([Sentence(["a"] * 30)])
    assert len(found.windows) > 3
    assert all(window[0] == 2 and window[-1] == 3 for window in found.windows)
    assert (found.window[-1], found.place[-1]) == (len(found.windows) - 1, len(found.windows[-1]) - 1)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_each_sentence_has_the_pieces_that_the_tokenizer_gives_it(family):
    """Words are split once, whatever their neighbours, and many sentences are laid out together."""
    tokenizer = tiny.byte_tokenizer() if family in tiny.BYTE_LEVEL else tiny.letter_tokenizer()
    splitter = made(30, tokenizer)
    given = [
        ["a"],
        ["Ab", "c"],
        ["abc", "d", "ef", "a", "Ab"],
        ["a", "\u200b", "c"],
        ["x" * 60, "a"],
        ["b"] * 70,
    ]
    together = splitter([Sentence(words) for words in given])
    for words, found in zip(given, together, strict=True):
        encoding = splitter.backend.encode(
            [splitter.prefix + word for word in words], is_pretokenized=True, add_special_tokens=False
        )
        most = max(1, splitter.room // 4)
        ids = [each[:most] or [splitter.unknown] for each in group_by_word(encoding, len(words))]
        for one, other in zip(found, splitter.arrange(ids, np.array([*map(word_shape, words)])), strict=True):
            if isinstance(one, tuple):
                assert [window.tolist() for window in one] == [window.tolist() for window in other]
            else:
                np.testing.assert_array_equal(one, other)
                assert one.dtype == other.dtype


def test_few_words_are_known_at_a_time(monkeypatch):
    splitter = made()
    splitter([Sentence(["a", "b"])])
    monkeypatch.setattr(pieces_module, "CACHED_WORDS", 3)
    (found,) = splitter([Sentence(["b", "c", "d"])])
    assert splitter.known.keys() == {"b", "c", "d"}
    assert len(found.windows[0]) == 5


def test_words_that_were_forgotten_are_split_anew():
    splitter = made()
    given = [Sentence(["abc", "d", "ef"]), Sentence(["d", "gh", "abc"]), Sentence(["x", "abc", "yz"])]
    expected = [splitter([sentence]).ids.tolist() for sentence in given]
    for sentence, ids in zip(given[::-1], expected[::-1], strict=True):
        splitter.known.clear()
        assert splitter([sentence]).ids.tolist() == ids
    assert [each.windows[0].tolist() for each in splitter(given)] == expected


def test_words_that_were_not_split_in_the_end_are_split_later(monkeypatch):
    splitter = made()
    expected = splitter([Sentence(["c", "ab"])]).ids.tolist()
    with monkeypatch.context() as patch:
        patch.setattr(splitter, "split", lambda words: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            splitter([Sentence(["ab", "xy"])])
    assert splitter([Sentence(["xy", "c"])]).ids[2] != expected[1]
    assert splitter([Sentence(["c", "ab"])]).ids.tolist() == expected


def test_words_and_sentences_of_several_windows_are_remembered(monkeypatch):
    splitter = made(longest=10)
    given = [Sentence([letter] * 30) for letter in "abc"]
    expected = splitter(given).ids.tolist()
    assert len(splitter.kept) == 3
    monkeypatch.setattr(splitter, "split", None)
    monkeypatch.setattr(splitter, "arrange", None)
    assert splitter(given).ids.tolist() == expected
    assert splitter([Sentence(["b", "a"])]).sizes.tolist() == [4]
    monkeypatch.undo()
    monkeypatch.setattr(pieces_module, "CACHED_SENTENCES", 3)
    splitter([Sentence(["a"] * 31)])
    assert len(splitter.kept) == 1


def test_monstrous_words_are_not_remembered_for_long(monkeypatch):
    monkeypatch.setattr(pieces_module, "CACHED_CHARACTERS", 5_000)
    splitter = made()
    for k in range(20):
        (found,) = splitter([Sentence([f"{k}" + "a" * 2_000])])
        assert len(found.windows) == 1
    assert sum(map(len, splitter.known)) <= 5_000


def test_settings_of_a_tokenizer_do_not_cut_sentences():
    tokenizer = tiny.letter_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    (found,) = made(40, tokenizer)([Sentence(["abcdefgh"])])
    assert len(found.windows[0]) == 10


def test_encoders_without_special_pieces():
    tokenizer = tiny.letter_tokenizer()
    tokenizer.backend_tokenizer.post_processor = None
    (found,) = made(10, tokenizer)([Sentence(["a", "b"])])
    assert len(found.windows[0]) == 2
    assert found.place.tolist() == [0, 0, 1, 1]


def test_what_is_wrong_is_said():
    with pytest.raises(ModelError, match="leaves no room for words"):
        made(longest=2)

    class Slow:
        is_fast = False

    with pytest.raises(ModelError, match="choose an encoder with a fast tokenizer"):
        SubwordTokenizer(Slow(), 10)
