"""Batches: tensors of words and gold; padding to buckets changes neither losses nor gradients."""

import pytest
import torch

from nestree.config import Settings
from nestree.model import Recognizer
from nestree.nn.batch import Collator, bucket_size, pad_to_bucket
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.types import Entity, Sentence
from tests import tiny
from tests.tiny import sentence


def collator(**options) -> Collator:
    return Collator(SubwordTokenizer(tiny.letter_tokenizer(), 20), ["A", "B"], **{"trees": True, **options})


def test_padding_and_pooling():
    batch = collator().words([Sentence(["ab", "c"]), Sentence(["d"])])
    assert batch.sizes == (2, 1)
    assert batch.words == 3
    assert batch.subwords.shape == (2, 5)
    assert batch.attention_mask.tolist() == [[1] * 5, [1] * 3 + [0] * 2]
    assert batch.windows is None
    assert batch.pooling[0].tolist() == [
        [1, 0, 0, 0, 0],
        [0, 0.5, 0.5, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    assert batch.pooling[1].tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0] * 5]
    assert batch.gold is batch.shapes is batch.vectors is None


def test_pooling_made_in_inference_mode_serves_training():
    batch = collator().words([Sentence(["ab", "c"])])
    with torch.inference_mode():
        assert not batch.map_tensors(torch.clone).pooling.is_inference()


def test_windows_of_a_long_sentence_beside_short_ones():
    batch = collator().words([Sentence(["a"]), Sentence(["b"] * 30), Sentence(["c"])])
    rows = batch.windows.shape[1]
    assert batch.windows[:, 0].tolist() == [0, 1, 1 + rows]
    assert batch.windows[1].tolist() == list(range(1, 1 + rows))
    assert len(batch.subwords) == 2 + rows
    sums = batch.pooling.sum(-1)
    assert sums[1].allclose(torch.ones(32))
    assert sums[0].tolist() == [1.0] * 3 + [0.0] * 29


def test_gold():
    given = [
        sentence("a b c", "0-2 A", "0-2 B", "2-3 B", "2-3 B"),
        sentence("a b c", "0-2 A", "1-3 B"),
        Sentence(["a"], complete=False),
    ]
    gold = collator().collate(given).gold
    assert gold.spans.tolist() == [[0, 0, 2], [0, 2, 3]]
    assert gold.labels.tolist() == [[True, True], [False, True]]
    assert gold.pairs.tolist() == [[0, 0], [0, 1], [1, 2]]
    assert gold.used.tolist() == [True, False, True]
    assert gold.complete.tolist() == [True, True, False]
    assert gold.mentions == 2
    without_trees = collator(trees=False).collate(given).gold
    assert without_trees.used.tolist() == [True, True, True]
    assert without_trees.mentions == 4


def test_gold_of_a_sentence_is_that_of_this_sentence():
    """It is remembered by identity, and a new sentence may get the identity of one that is gone."""
    made = collator()
    for k in range(200):
        given = sentence("a b c", f"{k % 3}-3 {'AB'[k % 2]}")
        gold = made.collate([given]).gold
        assert gold.spans.tolist() == [[0, k % 3, 3]]
        assert gold.labels.tolist() == [[k % 2 == 0, k % 2 == 1]]


def test_no_entities():
    gold = collator().collate([Sentence(["a", "b"])]).gold
    assert gold.spans.shape == (0, 3)
    assert gold.labels.shape == (0, 2)
    assert gold.pairs.shape == (0, 2)
    assert gold.mentions == 0


def test_moving():
    batch = collator(shapes=True, vectors={"a": 0}).collate([sentence("a b", "0-1 A")])
    moved = batch.to("meta")
    tensors = [moved.lengths, moved.subwords, moved.pooling, moved.shapes, moved.vectors]
    tensors += [moved.gold.spans, moved.gold.labels]
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert moved.sentences == batch.sentences
    assert moved.gold.mentions == 1
    assert batch.lengths.device.type == "cpu"


# Buckets


RECIPES = ["default", "paper", *(f"ablation/{row}" for row in ("01-unstructured-one-stage", "02-unstructured-two-stage",
    "03-tree-one-stage", "05-tree-two-stage", "07-lexical-yes-no", "11-both", "12-joint"))]  # fmt: skip
CROSSING = Sentence(["a", "b", "c"], [Entity(0, 2, tiny.LABELS[0]), Entity(1, 3, tiny.LABELS[0])])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.encoder(tmp_path_factory.mktemp("encoder"), "mpnet")


def model_of(folder, recipe: str, *changes: str) -> Recognizer:
    torch.manual_seed(0)
    quiet = [
        "encoder.dropout=0",
        "model.dropout=0",
        "encoder.lstm_layers=0",
        "encoder.word_vectors=",
        *changes,
    ]
    model = Recognizer(tiny.settings(recipe, *quiet), tiny.LABELS, folder).double()
    return model.eval()  # without dropout


def slopes(model, batch):
    model.zero_grad()
    losses = model.losses(batch)
    losses.total.backward()
    values = {name: float(value.detach()) for name, value in {**losses.parts, **losses.metrics}.items()}
    return values, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("changes", [[], ["loss.hard_negatives=20"]], ids=["", "negatives"])
def test_what_is_added_counts_for_nothing(folder, recipe, changes):
    if changes and Settings.read(recipe).model.mention != "yes-no":
        pytest.skip("hard negatives are of two stages")
    model = model_of(folder, recipe, *changes)
    for some in (tiny.SENTENCES, tiny.SENTENCES[:1], [*tiny.SENTENCES[2:4], CROSSING]):
        batch = model.collate(some)
        values, right = slopes(model, batch)
        right = {name: slope.clone() for name, slope in right.items()}
        others, found = slopes(model, pad_to_bucket(batch, model.collator.tokenizer.pad, 64))
        assert others == pytest.approx(values, rel=1e-6, abs=1e-6)
        assert right.keys() == found.keys()
        for name in right:
            torch.testing.assert_close(found[name], right[name], rtol=1e-5, atol=1e-7, msg=name)


def test_few_shapes_serve_many_batches(folder):
    model = model_of(folder, "default")
    found = set()
    longest = max(tiny.SENTENCES, key=lambda sentence: len(sentence.words))
    for count in range(24, 31):
        some = [longest, *(tiny.SENTENCES * 4)[: count - 1]]
        batch = pad_to_bucket(model.collate(some), 1, 64)
        (rows, places), n = batch.subwords.shape, batch.longest
        assert rows % 2 == 0
        assert rows > len(some)
        assert places % 8 == 0
        assert batch.pooling.shape == (rows, n + 2, places)
        assert not batch.gold.used[len(some) :].any()
        added = batch.gold.spans[batch.gold.spans[:, 0] >= len(some)]
        assert (added[:, 0] < rows).all()
        assert (added[:, 1:] <= n).all()
        assert len(added.unique(dim=0)) >= min(len(added), n * n) / 2
        found.add((rows, places, len(batch.gold.spans), len(batch.gold.pairs), len(batch.pooling_index)))
    assert len(found) <= 2


def test_little_is_added():
    assert all(n <= bucket_size(n, 2, 4) <= max(n + 1, 1.25 * n) for n in range(1, 2000))
    assert len({bucket_size(n, 8, 8) for n in range(1, 513)}) < 40


def test_what_has_no_such_shape(folder):
    model = model_of(folder, "default")
    assert pad_to_bucket(model.collate_words(tiny.SENTENCES), 1, 64) is None  # no gold
    long = Sentence(["word"] * 600)
    assert model.collate([long]).windows is not None
    assert pad_to_bucket(model.collate([long]), 1, 64) is None


@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize("longest", [60, 64, 100])
def test_nothing_is_padded_beyond_what_an_encoder_reads(tmp_path, family, longest):
    model = model_of(tiny.encoder(tmp_path, family, longest=longest), "default")
    batch = model.collate([Sentence(["a"] * (longest - 2))])
    assert batch.windows is None
    splitter = model.collator.tokenizer
    found = pad_to_bucket(batch, splitter.pad, splitter.longest)
    assert found.subwords.shape[1] == longest
    with torch.no_grad():
        assert float(model.losses(found).total) == pytest.approx(float(model.losses(batch).total), rel=1e-6)
