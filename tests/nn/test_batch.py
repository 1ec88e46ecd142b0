"""Batches: what is in them, and that gold is laid out as the trees want it."""

import torch

from nestree.nn.batch import Collator
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.types import Sentence
from tests import tiny
from tests.tiny import sentence


def collator(**options) -> Collator:
    return Collator(SubwordTokenizer(tiny.letter_tokenizer(), 20), ["A", "B"], **{"trees": True, **options})


def test_padding_and_pooling():
    batch = collator().words([Sentence(["ab", "c"]), Sentence(["d"])])
    assert batch.sizes == (2, 1)
    assert batch.words == 3
    assert batch.pieces.shape == (2, 5)
    assert batch.attention.tolist() == [[1] * 5, [1] * 3 + [0] * 2]
    assert batch.windows is None
    assert batch.pooling[0].tolist() == [
        [1, 0, 0, 0, 0],
        [0, 0.5, 0.5, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    assert batch.pooling[1].tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0] * 5]
    assert batch.gold is batch.shapes is batch.characters is batch.vectors is None


def test_pooling_serves_who_learns_after_somebody_has_read():
    batch = collator().words([Sentence(["ab", "c"])])
    with torch.inference_mode():
        assert not batch.each(torch.clone).pooling.is_inference()


def test_windows_of_a_long_sentence_beside_short_ones():
    batch = collator().words([Sentence(["a"]), Sentence(["b"] * 30), Sentence(["c"])])
    rows = batch.windows.shape[1]
    assert batch.windows[:, 0].tolist() == [0, 1, 1 + rows]
    assert batch.windows[1].tolist() == list(range(1, 1 + rows))
    assert len(batch.pieces) == 2 + rows
    sums = batch.pooling.sum(-1)
    assert sums[1].allclose(torch.ones(32))
    assert sums[0].tolist() == [1.0] * 3 + [0.0] * 29


def test_gold():
    given = [
        sentence("a b c", "0-2 A", "0-2 B", "2-3 B", "2-3 B"),
        sentence("a b c", "0-2 A", "1-3 B"),
        Sentence(["a"], complete=False),
    ]
    gold = collator().with_gold(given).gold
    assert gold.spans.tolist() == [[0, 0, 2], [0, 2, 3]]
    assert gold.labels.tolist() == [[True, True], [False, True]]
    assert gold.pairs.tolist() == [[0, 0], [0, 1], [1, 2]]
    assert gold.used.tolist() == [True, False, True]
    assert gold.complete.tolist() == [True, True, False]
    assert gold.mentions == 2
    without_trees = collator(trees=False).with_gold(given).gold
    assert without_trees.used.tolist() == [True, True, True]
    assert without_trees.mentions == 4


def test_gold_of_a_sentence_is_that_of_this_sentence():
    """It is remembered by identity, and a new sentence may get the identity of one that is gone."""
    made = collator()
    for k in range(200):
        given = sentence("a b c", f"{k % 3}-3 {'AB'[k % 2]}")
        gold = made.with_gold([given]).gold
        assert gold.spans.tolist() == [[0, k % 3, 3]]
        assert gold.labels.tolist() == [[k % 2 == 0, k % 2 == 1]]


def test_no_entities():
    gold = collator().with_gold([Sentence(["a", "b"])]).gold
    assert gold.spans.shape == (0, 3)
    assert gold.labels.shape == (0, 2)
    assert gold.pairs.shape == (0, 2)
    assert gold.mentions == 0


def test_moving():
    batch = collator(shapes=True, characters=True, vectors={"a": 0}).with_gold([sentence("a b", "0-1 A")])
    moved = batch.to("meta")
    tensors = [moved.lengths, moved.pieces, moved.pooling, moved.shapes, moved.characters, moved.vectors]
    tensors += [moved.gold.spans, moved.gold.labels]
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert moved.sentences == batch.sentences
    assert moved.gold.mentions == 1
    assert batch.lengths.device.type == "cpu"
