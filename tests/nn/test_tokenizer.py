"""Words in subwords, subwords in windows: nothing is lost."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from nestree.errors import ModelError
from nestree.nn import tokenizer as tokenizer_module
from nestree.nn.features import word_shape
from nestree.nn.tokenizer import SubwordTokenizer, cut_windows
from nestree.types import Sentence
from tests import tiny


def unpack(packed):
    """Each sentence of PackedSubwords by itself; `windows` are the subwords of each of its windows."""
    windows = iter(np.split(packed.ids, np.cumsum(packed.sizes)[:-1]))
    names = ("position", "window", "place", "weight")
    cells = [np.split(getattr(packed, name), np.cumsum(packed.cells)[:-1]) for name in names]
    shapes = np.split(packed.shapes, np.cumsum([position[-1] - 1 for position in cells[0]])[:-1])
    return [
        SimpleNamespace(windows=[next(windows) for _ in range(count)], shapes=own_shapes,
                        **dict(zip(names, own, strict=True)))
        for count, own_shapes, *own in zip(packed.windows, shapes, *cells, strict=True)
    ]  # fmt: skip


def make(longest=20, tokenizer=None):
    return SubwordTokenizer(tokenizer or tiny.letter_tokenizer(), longest)


@pytest.mark.parametrize("room", [1, 2, 3, 5, 8, 50])
@pytest.mark.parametrize("seed", range(5))
def test_windows_cover_all_words_and_fit(room, seed):
    random = np.random.default_rng(seed)
    words = random.integers(1, 60, size=4)
    sizes = random.integers(1, max(1, room // 4) + 1, size=words.sum())
    posts = np.concatenate([[0], np.cumsum(sizes)])
    counts, spans, window_of = cut_windows(posts, words, room)
    assert (posts[spans[:, 1]] - posts[spans[:, 0]] <= room).all()
    at = np.arange(len(sizes))
    assert (spans[window_of, 0] <= at).all()
    assert (at < spans[window_of, 1]).all()
    ends = np.cumsum(words)
    for own, start, end in zip(np.split(spans, np.cumsum(counts)[:-1]), ends - words, ends, strict=True):
        assert (own[0, 0], own[-1, 1]) == (start, end)
        assert all(a[0] < b[0] <= a[1] < b[1] for a, b in pairwise(own.tolist()))


def test_a_word_is_taken_from_where_it_is_most_central():
    _, spans, window_of = cut_windows(np.arange(13), np.array([12]), 8)
    assert spans.tolist() == [[0, 8], [4, 12]]
    assert window_of.tolist() == [0] * 6 + [1] * 6
    _, spans, window_of = cut_windows(np.arange(101), np.array([100]), 16)
    for w, (a, b) in enumerate(spans[window_of].tolist()):
        assert min(w - a, b - 1 - w) >= 3 or w < 8 or w >= 92


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_each_sentence_has_the_subwords_that_the_tokenizer_gives_it(family):
    """Words are split once, whatever their neighbours, and many sentences are packed together."""
    splitter = make(30, tiny.byte_tokenizer() if family in tiny.BYTE_LEVEL else tiny.letter_tokenizer())
    sentences = ["a", "Ab c", "abc d ef a Ab", "a \u200b c \x00", "x" * 60 + " a", "b " * 70]
    sentences = [Sentence(words.split(" ")) for words in map(str.strip, sentences)]
    first, last = len(splitter.first), len(splitter.last)
    for sentence, found in zip(sentences, unpack(splitter(sentences)), strict=True):
        assert found.shapes.tolist() == [*map(word_shape, sentence.words)]
        assert all(len(window) <= 30 for window in found.windows)
        for window in found.windows:
            assert window[:first].tolist() == splitter.first
            assert window[len(window) - last :].tolist() == splitter.last
        for w, word in enumerate(sentence.words):
            own = found.position == w + 1
            word = [splitter.prefix + word]
            encoding = splitter.backend.encode(word, is_pretokenized=True, add_special_tokens=False)
            expected = encoding.ids[: max(1, splitter.capacity // 4)] or [splitter.unknown]
            (number,) = set(found.window[own].tolist())
            assert found.windows[number][found.place[own]].tolist() == expected
            assert found.weight[own] == pytest.approx(1 / len(expected))
        assert (found.position[0], found.window[0], found.place[0]) == (0, 0, 0)
        end = len(sentence.words) + 1, len(found.windows) - 1, len(found.windows[-1]) - 1
        assert (found.position[-1], found.window[-1], found.place[-1]) == end
        assert found.weight[0] == found.weight[-1] == 1


def test_words_that_leave_the_cache_are_split_anew(monkeypatch):
    splitter = make()
    sentences = [Sentence(["abc", "d", "ef"]), Sentence(["d", "gh", "abc"]), Sentence(["x", "abc", "yz"])]
    expected = [splitter([sentence]).ids.tolist() for sentence in sentences]
    for sentence, ids in zip(sentences[::-1], expected[::-1], strict=True):
        splitter.word_numbers.clear()
        assert splitter([sentence]).ids.tolist() == ids
    assert splitter(sentences).ids.tolist() == [i for ids in expected for i in ids]
    monkeypatch.setattr(tokenizer_module, "CACHED_WORDS", 3)
    assert splitter([Sentence(["x", "abc", "new"])]).ids[:-4].tolist() == expected[2][:-3]
    assert splitter.word_numbers.keys() == {"x", "abc", "new"}
    monkeypatch.setattr(tokenizer_module, "CACHED_CHARACTERS", 5_000)
    for k in range(20):
        splitter([Sentence([f"{k}" + "a" * 2_000])])
    assert sum(map(len, splitter.word_numbers)) <= 5_000


def test_words_whose_splitting_failed_are_split_later(monkeypatch):
    splitter = make()
    expected = splitter([Sentence(["c", "ab"])]).ids.tolist()
    with monkeypatch.context() as patch:
        patch.setattr(splitter, "split", lambda words: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            splitter([Sentence(["ab", "xy"])])
    assert splitter([Sentence(["xy", "c"])]).ids[2] != expected[1]
    assert splitter([Sentence(["c", "ab"])]).ids.tolist() == expected


def test_settings_of_tokenizers():
    tokenizer = tiny.letter_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    assert make(40, tokenizer)([Sentence(["abcdefgh"])]).sizes.tolist() == [10]
    with pytest.raises(ModelError, match="leaves no room for words"):
        make(longest=2)
    with pytest.raises(ModelError, match="choose an encoder with a fast tokenizer"):
        SubwordTokenizer(SimpleNamespace(is_fast=False), 10)
