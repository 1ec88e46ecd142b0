"""The split of the data, labels, crossing entities, small data, batches."""

import random
import re
from dataclasses import replace

import pytest

from nestree.errors import TrainingError
from nestree.training import adapt_to_small_data, make_corpus
from nestree.training.dataset import batches, count_mentions, load_init_settings, microbatches
from nestree.types import Document, Entity, Sentence

WORDS = tuple("abcdef")
CROSSED = Sentence(WORDS, [Entity(0, 3, "A"), Entity(2, 5, "B"), Entity(5, 6, "A")], id="s-7")
GOOD = Sentence(WORDS, [Entity(0, 3, "A"), Entity(0, 1, "B")])


def documents(*sentences: Sentence) -> list[Document]:
    return [Document((sentence,)) for sentence in sentences]


def make_documents(count: int, per_document: int = 1) -> list[Document]:
    sentences = [Sentence((f"w{k}", "x"), [Entity(0, 1, "A")]) for k in range(count)]
    starts = range(0, count, per_document)
    return [Document(tuple(sentences[k : k + per_document]), id=f"d{k}") for k in starts]


def test_dev_data_is_split_by_seed_and_document_from_complete_sentences():
    first, again, other = (make_corpus(make_documents(100), None, seed=seed) for seed in (1, 1, 2))
    assert (len(first.train), len(first.dev)) == (85, 15)
    assert not set(first.train) & set(first.dev)
    assert first.dev == again.dev != other.dev
    assert "15 sentences (15 %" in first.notes[0]
    split = make_corpus(make_documents(100, per_document=5), None, seed=1)
    document = {sentence: d.id for d in make_documents(100, 5) for sentence in d.sentences}
    assert not {document[s] for s in split.train} & {document[s] for s in split.dev}
    with pytest.raises(TrainingError, match=r"too little to set dev data aside: 3 sentences. Name"):
        make_corpus(make_documents(3), None, seed=1)
    partial = [replace(s, complete=False) for d in make_documents(40) for s in d.sentences]
    mixed = [*make_documents(40), *(Document((s,), id=f"p{k}") for k, s in enumerate(partial))]
    for documents_ in (mixed, [replace(d, id=None) for d in mixed]):
        data = make_corpus(documents_, None, seed=1)
        assert (len(data.train), len(data.dev)) == (74, 6)
        assert all(sentence.complete for sentence in data.dev)
        assert "15 % of what is complete" in data.notes[0]
    with pytest.raises(TrainingError, match="aside: 0 completely annotated sentences"):
        make_corpus([Document((s,)) for s in partial], None, seed=1)
    data = make_corpus(mixed, documents(GOOD, *partial[:2]), seed=1)
    assert "2 of 3 dev sentences are not completely annotated" in data.notes[-1]


def test_equal_sentences_of_an_incomplete_document_stay_apart():
    known, open_ = Sentence(WORDS, [Entity(0, 1, "A")], complete=False), Sentence(WORDS, complete=False)
    document = Document((known, open_, GOOD), id="d")
    assert make_corpus([document], documents(GOOD), seed=1).train == (known, open_, GOOD)
    twice = make_corpus([document, Document((open_, known, GOOD), id="d")], documents(GOOD), seed=1)
    assert twice.train == (known, known, GOOD)  # the first of one document is the first of the other
    named = Document(tuple(replace(s, id="s") for s in (known, open_)), id="d")
    assert make_corpus([named], documents(GOOD), seed=1).train == (replace(known, id="s"),)


def test_long_sentences_are_cut_between_entities():
    words = tuple(f"w{k}" for k in range(500))
    entities = (Entity(0, 2, "A", head=1), Entity(190, 210, "B", heads=(195, 196)), Entity(499, 500, "A"))
    long = Sentence(words, entities, id="l", complete=False, forbidden=((300, 302),))
    too_long = Sentence(words, [Entity(10, 220, "A")])
    data = make_corpus(documents(GOOD, long, too_long), documents(GOOD), seed=1)
    first, second, third = data.train[1:]
    assert first.words + second.words + third.words == words
    assert (len(first.words), len(second.words)) == (190, 200)
    assert second.entities == (Entity(0, 20, "B", heads=(5, 6)),)
    assert second.forbidden == ((110, 112),)
    assert not second.complete
    assert third.entities == (Entity(109, 110, "A"),)
    too_long = "2 training sentences have more than 200 words.* 1 left out.* 500 words: w0 w1"
    assert re.search(too_long, data.notes[0])


def test_labels_of_training_data_by_frequency():
    b, z = (Sentence(WORDS, [Entity(0, 1, label)]) for label in "BZ")
    data = make_corpus(documents(GOOD, b), documents(z), documents(b, z), seed=1)
    assert data.labels == ("B", "A")
    assert data.notes == tuple(f"labels in {part} that the training data lacks: Z." for part in ("dev", "test"))


@pytest.mark.parametrize(("train", "dev", "name"), [((), (GOOD,), "training"), ((GOOD,), (), "dev")])
def test_data_without_entities(train, dev, name):
    empty = Sentence(WORDS)
    with pytest.raises(TrainingError, match=f"the {name} data has no entities"):
        make_corpus(documents(empty, *train), documents(empty, *dev), seed=1)


def test_crossing_entities():
    data = make_corpus(documents(GOOD, CROSSED), documents(CROSSED), seed=1)
    unnamed = make_corpus(documents(GOOD, replace(CROSSED, id=None)), documents(GOOD), seed=1)
    assert data.train == (GOOD, CROSSED)  # the loss leaves it out
    assert "1 training sentence has entities that cross" in data.notes[0]
    assert "trained on them. s-7: 0-3 A and 2-5 B" in data.notes[0]
    assert "trained on them. 'a b c d e f': 0-3 A" in unnamed.notes[0]
    assert [count_mentions(s, trees=True) for s in data.train] == [2, 0]
    assert [count_mentions(s, trees=False) for s in data.train] == [2, 3]
    dropped = make_corpus(documents(GOOD, CROSSED), documents(CROSSED), seed=1, crossing_gold="drop")
    assert [entity.span for entity in dropped.train[1].entities] == [(0, 3), (5, 6)]
    assert "1 of these entities is left out" in dropped.notes[0]
    assert dropped.dev == (CROSSED,)  # dev data never changes
    with pytest.raises(TrainingError, match=r"no tree holds both: s-7: 0-3 A and 2-5 B"):
        make_corpus(documents(GOOD, CROSSED), documents(GOOD), seed=1, crossing_gold="refuse")


def test_fingerprint():
    base = make_corpus(documents(GOOD, GOOD), documents(GOOD), seed=1)
    relabelled = Sentence(WORDS, [Entity(0, 3, "A"), Entity(0, 1, "A")])
    headed = replace(GOOD, entities=[replace(e, head=e.start) for e in GOOD.entities])
    one_document = [Document((GOOD, GOOD), id="d")]
    others = [
        make_corpus(documents(GOOD, headed), documents(GOOD), seed=1),
        make_corpus(one_document, documents(GOOD), seed=1, context=5),
        make_corpus(documents(GOOD, relabelled), documents(GOOD), seed=1),
        make_corpus(documents(GOOD), documents(GOOD), seed=1),
        make_corpus(documents(GOOD, GOOD), documents(relabelled), seed=1),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 6
    assert make_corpus(documents(GOOD, GOOD), documents(GOOD), seed=9).fingerprint == base.fingerprint


def test_small_data_gets_smaller_batches_and_more_epochs(settings):
    small = make_corpus(make_documents(100), make_documents(10), seed=1)  # 200 words
    usual = settings("training.epochs=10", "training.batch_words=800", "training.rho=0.5")
    adapted, data = adapt_to_small_data(usual, small)
    assert adapted.training.batch_words == 150
    assert (adapted.training.epochs, data.passes) == (19, 12)  # 225 passes, an evaluation after every twelfth
    assert data.notes[-1].startswith(
        "small training set (200 words): 456 updates, in 19 epochs of 12 passes over the data with batches of "
        "150 words instead of 10 with 800; rho = 0.03 instead of 0.5. To decide"
    )
    assert adapted.training.rho == 0.03
    medium = make_corpus(make_documents(20_000), make_documents(10), seed=1)  # 40,000 words
    adapted, data = adapt_to_small_data(settings("training.epochs=10", "training.batch_words=2000"), medium)
    assert (adapted.training.batch_words, adapted.training.epochs, data.passes) == (500, 10, 1)
    accumulating = replace(usual, training=replace(usual.training, gradient_accumulation=4))
    adapted, data = adapt_to_small_data(accumulating, small)
    assert adapted.training.epochs <= 20
    assert adapted.training.epochs * data.passes * 200 >= 300 * 4 * adapted.training.batch_words
    few, data = adapt_to_small_data(usual, small, epochs=10)
    assert (few.training.epochs, few.training.batch_words) == (10, 150)
    assert data.passes == 1
    assert "10 epochs with batches of 150 words instead of 10 with 800; rho" in data.notes[-1]
    assert adapt_to_small_data(few, small, epochs=10) == (few, small)
    assert "in 1 epoch with batches of 150 words" in adapt_to_small_data(usual, small, epochs=1)[1].notes[-1]
    patient = replace(usual, training=replace(usual.training, early_stopping_patience=3))
    assert adapt_to_small_data(patient, small)[0].training.early_stopping_patience == 3
    enough = settings("training.epochs=10", "training.batch_words=6")
    assert adapt_to_small_data(enough, small) == (enough, small)


@pytest.mark.parametrize(("rho", "expected"), [(0.5, 0.5), (0.0, 0.0)])
def test_a_model_of_small_data_does_not_pass_on_its_small_batches(settings, tmp_path, caplog, rho, expected):
    small = make_corpus(make_documents(100), make_documents(10), seed=1)
    usual = settings("training.epochs=10", "training.batch_words=2000", f"training.rho={rho}")
    adapted, _ = adapt_to_small_data(usual, small)
    for given in (adapted, usual):
        (tmp_path / "config.toml").write_text(given.to_toml(), encoding="utf-8")
        training = load_init_settings(tmp_path).training
        assert (training.epochs, training.batch_words, training.rho) == (10, 2000, expected)
    [message] = caplog.messages
    rho = ", rho = 0.03" if expected else ""  # without SAM, only the others change
    assert f" has epochs = 19, batch_words = 150{rho}, which look adapted to small data: " in message
    assert f"unless you set them, 10, 2000{', 0.5' if expected else ''} take their place. " in message
    assert message.endswith(f"To keep them, name {tmp_path / 'config.toml'} as the config.")


# Batches

RNG = random.Random(7)
LENGTHS = [RNG.randint(1, 60) for _ in range(300)]


@pytest.mark.parametrize("words", [1, 60, 500, 10**6])
def test_each_sentence_is_in_one_batch_within_the_budget(words):
    found = batches(LENGTHS, words, seed=3, epoch=1)
    assert sorted(k for batch in found for k in batch) == list(range(300))
    assert all(sum(LENGTHS[k] for k in batch) <= words or len(batch) == 1 for batch in found)


def test_batches_are_full_and_follow_from_seed_and_epoch():
    found = batches(LENGTHS, 500, seed=3, epoch=1)
    assert len(found) <= 1.15 * sum(LENGTHS) / 500 + 1
    assert sum(len(batch) * max(LENGTHS[k] for k in batch) for batch in found) < 1.2 * sum(LENGTHS)
    lengths = [20] * 50 + [300]
    for batch in batches(lengths, 1200, seed=1, epoch=1):
        assert len(batch) == 1 or len(batch) * max(lengths[k] for k in batch) <= 2 * 1200
    first = batches(LENGTHS, 500, seed=3, epoch=1)
    assert batches(LENGTHS, 500, seed=3, epoch=1) == first
    for other in (batches(LENGTHS, 500, seed=3, epoch=2), batches(LENGTHS, 500, seed=4, epoch=1)):
        assert sorted(map(sorted, other)) != sorted(map(sorted, first))  # other batches, not another order
    longest = [max(LENGTHS[k] for k in batch) for batch in first]
    assert longest != sorted(longest)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_microbatches_divide_a_batch(count):
    for batch in batches(LENGTHS, 200, seed=1, epoch=1):
        parts = microbatches(batch, LENGTHS, count)
        assert [k for part in parts for k in part] == batch
        assert len(parts) <= count
        assert all(parts)
    batch = batches(LENGTHS, 500, seed=3, epoch=1)[0]
    sizes = [sum(LENGTHS[k] for k in part) for part in microbatches(batch, LENGTHS, 2)]
    assert len(sizes) == 2
    assert abs(sizes[0] - sizes[1]) <= 2 * max(LENGTHS[k] for k in batch)
    assert batches([], 100, 1, 1) == microbatches([], [], 3) == []
