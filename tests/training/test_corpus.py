"""What is trained on: parts of the data, labels, and sentences that no tree can hold."""

import pytest

from nestree.errors import TrainingError
from nestree.training import corpus, for_small_data
from nestree.training.dataset import mentions, uncrossed
from nestree.types import Document, Entity, Sentence, crossing_pairs

WORDS = tuple("abcdef")
CROSSED = Sentence(WORDS, [Entity(0, 3, "A"), Entity(2, 5, "B"), Entity(5, 6, "A")], id="s-7")
GOOD = Sentence(WORDS, [Entity(0, 3, "A"), Entity(0, 1, "B")])


def documents(*sentences: Sentence) -> list[Document]:
    return [Document((sentence,)) for sentence in sentences]


def numbered(count: int, per_document: int = 1) -> list[Document]:
    sentences = [Sentence((f"w{k}", "x"), [Entity(0, 1, "A")]) for k in range(count)]
    return [
        Document(tuple(sentences[k : k + per_document]), id=f"d{k}") for k in range(0, count, per_document)
    ]


def test_without_dev_a_seventh_is_set_aside_by_seed():
    first, again, other = (corpus(numbered(100), None, seed=seed) for seed in (1, 1, 2))
    assert (len(first.train), len(first.dev)) == (85, 15)
    assert not set(first.train) & set(first.dev)
    assert first.dev == again.dev
    assert first.dev != other.dev
    assert "15 sentences (15 %" in first.notes[0]


def test_documents_are_not_torn_apart():
    found = corpus(numbered(100, per_document=5), None, seed=1)
    home = {sentence: document.id for document in numbered(100, 5) for sentence in document.sentences}
    assert not {home[s] for s in found.train} & {home[s] for s in found.dev}


def test_too_few_sentences_to_divide():
    with pytest.raises(TrainingError, match=r"3 sentences are too few to set some aside. Name dev data"):
        corpus(numbered(3), None, seed=1)


def test_labels_come_from_training_the_most_frequent_first():
    found = corpus(
        documents(GOOD, Sentence(WORDS, [Entity(0, 1, "B")])),
        documents(Sentence(WORDS, [Entity(0, 1, "Z")])),
        seed=1,
    )
    assert found.labels == ("B", "A")
    assert found.notes == ("labels of dev that training never sees: Z.",)


@pytest.mark.parametrize(("train", "dev", "what"), [((), (GOOD,), "training"), ((GOOD,), (), "dev")])
def test_data_without_entities_is_refused(train, dev, what):
    nothing = Sentence(WORDS)
    with pytest.raises(TrainingError, match=f"the {what} data has no entities"):
        corpus(documents(nothing, *train), documents(nothing, *dev), seed=1)


def test_crossing_gold_is_named_and_counted():
    found = corpus(documents(GOOD, CROSSED), documents(CROSSED), seed=1)
    assert found.train == (GOOD, CROSSED)  # the model leaves it out of the trees
    assert "1 training sentence has entities that cross" in found.notes[0]
    assert "sentence 2 (s-7): 0-3 A and 2-5 B" in found.notes[0]
    assert [mentions(s, trees=True) for s in found.train] == [2, 0]
    assert [mentions(s, trees=False) for s in found.train] == [2, 3]


def test_crossing_gold_is_dropped_on_request_but_never_from_dev():
    found = corpus(documents(GOOD, CROSSED), documents(CROSSED), seed=1, crossing_gold="drop")
    assert [entity.span for entity in found.train[1].entities] == [(0, 3), (5, 6)]
    assert "1 of these entities are left out" in found.notes[0]
    assert found.dev == (CROSSED,)


def test_crossing_gold_is_refused_on_request():
    with pytest.raises(TrainingError, match=r"no tree holds both: sentence 2 \(s-7\): 0-3 A and 2-5 B"):
        corpus(documents(GOOD, CROSSED), documents(GOOD), seed=1, crossing_gold="refuse")


def test_the_fewest_entities_go():
    middle = [Entity(0, 3, "A"), Entity(2, 5, "B"), Entity(2, 5, "C"), Entity(4, 7, "A"), Entity(1, 2, "A")]
    assert [e.span for e in uncrossed(middle)] == [(0, 3), (4, 7), (1, 2)]
    assert crossing_pairs(uncrossed(middle)) == []


def test_the_fingerprint_knows_every_change():
    base = corpus(documents(GOOD, GOOD), documents(GOOD), seed=1)
    relabelled = Sentence(WORDS, [Entity(0, 3, "A"), Entity(0, 1, "A")])
    others = [
        corpus(documents(GOOD, relabelled), documents(GOOD), seed=1),
        corpus(documents(GOOD), documents(GOOD), seed=1),
        corpus(documents(GOOD, GOOD), documents(relabelled), seed=1),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert corpus(documents(GOOD, GOOD), documents(GOOD), seed=9).fingerprint == base.fingerprint


def test_little_data_gets_smaller_batches_and_more_epochs(settings):
    little = corpus(numbered(100), numbered(10), seed=1)  # 200 words
    usual = settings("training.epochs=10", "training.batch_words=800")
    changed, noted = for_small_data(usual, little)
    assert changed.training.batch_words == 150
    assert changed.training.epochs * 200 >= 300 * 150
    assert noted.notes[-1].startswith(
        "200 words are little to learn from: up to 225 epochs with batches of 150 words instead of 10 with 800, until "
        "dev F1 has not risen for 56."
    )
    gathered, _ = for_small_data(usual.changed(["training.gradient_accumulation=4"]), little)
    assert gathered.training.epochs * 200 >= 300 * 4 * gathered.training.batch_words
    few, _ = for_small_data(usual, little, epochs=10)
    assert (few.training.epochs, few.training.batch_words, few.training.early_stopping_patience) == (
        10,
        150,
        10,
    )
    _, noted = for_small_data(usual, little, epochs=10)
    assert (
        "learn from: 10 epochs with batches of 150 words instead of 10 with 800. To decide" in noted.notes[-1]
    )
    again = for_small_data(few, little, epochs=10)
    assert again == (few, little)  # nothing is left to change
    patient, _ = for_small_data(usual.changed(["training.early_stopping_patience=3"]), little)
    assert patient.training.early_stopping_patience == 3
    plenty = settings("training.epochs=10", "training.batch_words=6")
    assert for_small_data(plenty, little) == (plenty, little)
