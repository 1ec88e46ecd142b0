"""Batches: tensors of words and gold; padding to buckets changes neither losses nor gradients."""

import pytest
import torch

from nestree.model import Recognizer
from nestree.nn.batch import Collator, bucket_size, pad_to_bucket
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.types import Entity, Sentence
from tests import tiny
from tests.tiny import sentence


def collator(**options) -> Collator:
    return Collator(SubwordTokenizer(tiny.letter_tokenizer(), 20), ["A", "B"], **{"trees": True, **options})


def test_padding_pooling_windows_and_moving():
    batch = collator().words([Sentence(["ab", "c"]), Sentence(["d"])])
    assert (batch.sizes, batch.words, batch.windows) == ((2, 1), 3, None)
    assert batch.attention_mask.tolist() == [[1] * 5, [1] * 3 + [0] * 2]
    rows = [[1, 0, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert batch.pooling[0].tolist() == rows
    assert batch.pooling[1].tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0] * 5]
    with torch.inference_mode():
        assert not batch.map_tensors(torch.clone).pooling.is_inference()  # so that training can use it
    moved = collator(shapes=True, vectors={"a": 1}).collate([sentence("a b", "0-1 A")]).to("meta")
    tensors = [moved.lengths, moved.subwords, moved.pooling, moved.shapes, moved.vectors, moved.gold.spans]
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert moved.gold.mentions == 1
    batch = collator().words([Sentence(["a"]), Sentence(["b"] * 30), Sentence(["c"])])
    rows = batch.windows.shape[1]
    assert batch.windows[:, 0].tolist() == [0, 1, 1 + rows]
    assert batch.windows[1].tolist() == list(range(1, 1 + rows))
    assert len(batch.subwords) == 2 + rows
    sums = batch.pooling.sum(-1)
    assert sums[1].allclose(torch.ones(32))
    assert sums[0].tolist() == [1.0] * 3 + [0.0] * 29


def test_gold():
    nested = sentence("a b c", "0-2 A", "0-2 B", "2-3 B", "2-3 B")
    crossing = sentence("a b c", "0-2 A", "1-3 B")
    sentences = [nested, crossing, Sentence(["a"], complete=False)]
    gold = collator().collate(sentences).gold
    assert gold.spans.tolist() == [[0, 0, 2], [0, 2, 3]]
    assert gold.labels.tolist() == [[True, True], [False, True]]
    assert gold.pairs.tolist() == [[0, 0], [0, 1], [1, 2]]
    assert gold.used.tolist() == [True, False, True]
    assert gold.complete.tolist() == [True, True, False]
    assert gold.mentions == 2
    without_trees = collator(trees=False).collate(sentences).gold
    assert without_trees.used.tolist() == [True, True, True]
    assert without_trees.mentions == 4
    labels_of_one_span = [Entity(0, 2, "A", head=1), Entity(0, 2, "B")]  # whose head one of them has
    assert collator().collate([Sentence(["a", "b"], labels_of_one_span)]).gold.heads.tolist() == [1]
    empty = collator().collate([Sentence(["a", "b"])]).gold
    assert (empty.spans.shape, empty.labels.shape, empty.pairs.shape) == ((0, 3), (0, 2), (0, 2))


def test_gold_is_cached_by_identity_but_never_that_of_another_sentence():
    """A new sentence may get the identity of one that is gone."""
    shared = collator()
    for k in range(200):
        gold = shared.collate([sentence("a b c", f"{k % 3}-3 {'AB'[k % 2]}")]).gold
        assert gold.spans.tolist() == [[0, k % 3, 3]]
        assert gold.labels.tolist() == [[k % 2 == 0, k % 2 == 1]]


# Buckets


RECIPES = ["default", "paper", *(f"ablation/{row}" for row in ("01-unstructured-one-stage", "02-unstructured-two-stage",
    "03-tree-one-stage", "05-tree-two-stage", "11-both"))]  # fmt: skip
CROSSING = Sentence(["a", "b", "c"], [Entity(0, 2, tiny.LABELS[0]), Entity(1, 3, tiny.LABELS[0])])


@pytest.fixture
def folder(tiny_encoders):
    return tiny_encoders("mpnet")


def make_model(folder, recipe: str, *changes: str) -> Recognizer:
    return tiny.model(folder, recipe, "encoder.lstm_layers=0", *changes).double().eval()  # without dropout


def losses_and_gradients(model, batch):
    model.zero_grad()
    losses = model.losses(batch)
    losses.total.backward()
    values = {name: float(value.detach()) for name, value in {**losses.parts, **losses.metrics}.items()}
    return values, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check_padding(model, batch):
    """The losses, which padding does not change; neither does it change their gradients."""
    padded = pad_to_bucket(batch, model.collator.tokenizer.pad, 64)
    (values, expected), (others, found) = (losses_and_gradients(model, each) for each in (batch, padded))
    assert others == pytest.approx(values, rel=1e-6, abs=1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    return values


@pytest.mark.parametrize("recipe", [*RECIPES, "default loss.hard_negatives=20", "ablation/02-unstructured-two-stage "
                                    "loss.hard_negatives=20"])  # fmt: skip
def test_padding_changes_neither_losses_nor_gradients(folder, recipe):
    model = make_model(folder, *recipe.split())
    for sentences in (tiny.SENTENCES, [*tiny.SENTENCES[2:4], CROSSING]):
        check_padding(model, model.collate(sentences))


def test_padding_changes_nothing_where_spans_are_forbidden(folder):
    model = make_model(folder, "default", "loss.negative_sampling_rate=0")  # so that nothing is drawn
    first, *others = tiny.SENTENCES
    known = first.entities[:1]
    partly = Sentence(first.words, known, complete=False, forbidden=[(3, 4), (5, 6), (5, 7)])
    unknown = Sentence(first.words, known, complete=False)
    batches = [model.collate([sentence, *others]) for sentence in (partly, unknown)]
    assert [batch.gold.forbidden is None for batch in batches] == [False, True]
    assert len(pad_to_bucket(batches[0], model.collator.tokenizer.pad, 64).gold.forbidden) == 256
    values = check_padding(model, batches[0])
    assert losses_and_gradients(model, batches[1])[0] != pytest.approx(values, rel=1e-3)


def test_few_shapes_serve_many_batches(folder):
    model = make_model(folder, "default")
    found = set()
    longest = max(tiny.SENTENCES, key=lambda sentence: len(sentence.words))
    for count in range(24, 31):
        sentences = [longest, *(tiny.SENTENCES * 4)[: count - 1]]
        batch = pad_to_bucket(model.collate(sentences), 1, 64)
        (rows, places), n = batch.subwords.shape, batch.longest
        assert rows % 2 == 0
        assert rows > len(sentences)
        assert places % 8 == 0
        assert batch.pooling.shape == (rows, n + 2, places)
        assert not batch.gold.used[len(sentences) :].any()
        added = batch.gold.spans[batch.gold.spans[:, 0] >= len(sentences)]
        assert (added[:, 0] < rows).all()
        assert (added[:, 1:] <= n).all()
        assert len(added.unique(dim=0)) >= min(len(added), n * n) / 2
        found.add((rows, places, len(batch.gold.spans), len(batch.gold.pairs), len(batch.pooling_index)))
    assert len(found) <= 2
    assert all(n <= bucket_size(n, 2, 4) <= max(n + 1, 1.25 * n) for n in range(1, 2000))
    assert pad_to_bucket(model.collate_words(tiny.SENTENCES), 1, 64) is None  # no gold
    assert pad_to_bucket(model.collate([Sentence(["word"] * 600)]), 1, 64) is None  # several windows


@pytest.mark.parametrize(("family", "longest"), [("bert", 60), ("mpnet", 100)])
def test_nothing_is_padded_beyond_what_an_encoder_reads(tmp_path, family, longest):
    model = make_model(tiny.encoder(tmp_path, family, longest=longest), "default")
    batch = model.collate([Sentence(["a"] * (longest - 2))])
    assert batch.windows is None
    splitter = model.collator.tokenizer
    found = pad_to_bucket(batch, splitter.pad, splitter.longest)
    assert found.subwords.shape[1] == longest
    with torch.no_grad():
        assert float(model.losses(found).total) == pytest.approx(float(model.losses(batch).total), rel=1e-6)
