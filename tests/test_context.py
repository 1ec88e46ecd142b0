"""`encoder.context`: sentences between their neighbours, from subwords to commands."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import nestree
from nestree.data import formats
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.training import fit, make_corpus
from nestree.types import Context, Document, Sentence, with_context
from tests import tiny
from tests.cli.run import nestree as nestree_command
from tests.nn.test_tokenizer import unpack

PARTS = tiny.SENTENCES[:4], tiny.SENTENCES[4:7], tiny.SENTENCES[7:]
DOCUMENTS = [Document(tuple(part), id=id) for part, id in zip(PARTS, "abc", strict=True)]
TEXT = "The mayor of Lisbon left. She met the president of the club. It rained in Oslo all night."


# Documents


def test_neighbours_are_of_the_same_document():
    first, second, third = with_context(DOCUMENTS, 2)
    assert (first, second, third) == tuple(DOCUMENTS)
    assert [sentence.context for sentence in first.sentences] == [
        ((), ("police", "in")),
        (("the", "president"), ("she", "left")),
        (("the", "group"), ("the", "Bank")),
        (("she", "left"), ()),
    ]
    assert second.sentences[0].context == ((), ("Lisbon", "fans"))  # of two sentences
    assert third.sentences[0].context == ((), ())
    assert with_context(DOCUMENTS, 0)[0] is DOCUMENTS[0]
    found = make_corpus(DOCUMENTS, None, seed=1, context=3)
    there = {s.words: s.context for document in with_context(DOCUMENTS, 3) for s in document.sentences}
    assert {s.words: s.context for s in (*found.train, *found.dev)} == there
    assert all(s.context is None for s in make_corpus(DOCUMENTS, None, seed=1).train)


# Subwords


def context_windows(sentence, longest=20, context=2, tokenizer=None):
    (found,) = unpack(SubwordTokenizer(tokenizer or tiny.letter_tokenizer(), longest, context)([sentence]))
    return found


def subword_names(window):
    return tiny.letter_tokenizer().convert_ids_to_tokens(window.tolist())


SENTENCE = Sentence(["Ab", "c"], context=(("u", "v", "yz"), ("d", "e", "f")))


def test_subwords_stand_between_those_of_their_neighbours():
    found = context_windows(SENTENCE)
    assert subword_names(found.windows[0]) == ["[CLS]", "v", "y", "##z", "a", "##b", "c", "d", "e", "[SEP]"]
    assert found.position.tolist() == [0, 1, 1, 2, 3]
    assert found.place.tolist() == [0, 4, 5, 6, 9]
    assert found.weight.tolist() == [1, 0.5, 0.5, 1, 1]


LETTERS = Sentence(list("abcdefgh"), context=(("u", "v", "yz"), ("i", "j", "k")))
ROOM = {0: ("", ""), 1: ("", "i"), 2: ("##z", "i"), 3: ("##z", "i j"), 4: ("y ##z", "i j")}
ROOM[9] = ("v y ##z", "i j")


def test_the_room_that_is_left_is_shared():
    for room, (before, after) in ROOM.items():
        expected = ["[CLS]", *before.split(), *"abcdefgh", *after.split(), "[SEP]"]
        assert subword_names(context_windows(LETTERS, 10 + room).windows[0]) == expected
    alone = replace(LETTERS, context=(LETTERS.context[0], ()))
    beside = subword_names(context_windows(alone, 13).windows[0])[1:4]
    assert beside == ["v", "y", "##z"]  # one side takes what the other leaves
    tokenizer = tiny.letter_tokenizer()
    tokenizer.backend_tokenizer.post_processor = None  # an encoder without special subwords
    found = context_windows(SENTENCE, tokenizer=tokenizer)
    assert subword_names(found.windows[0]) == ["v", "y", "##z", "a", "##b", "c", "d", "e"]
    assert found.place.tolist() == [3, 3, 4, 5, 5]


def test_own_subwords_are_never_lost():
    chance = random.Random(1)

    def words(most):
        return tuple("".join(chance.choices("abc", k=chance.randint(1, 4))) for _ in range(most))

    alone = [Sentence(words(chance.randint(1, 9))) for _ in range(40)]
    given = [replace(s, context=(words(chance.randint(0, 6)), words(chance.randint(0, 6)))) for s in alone]
    splitter = SubwordTokenizer(tiny.letter_tokenizer(), 14, 4)
    several = 0
    for own, found in zip(unpack(splitter(alone)), unpack(splitter(given)), strict=True):
        if len(own.windows) > 1:
            assert [*map(list, found.windows)] == [*map(list, own.windows)]
            assert found.place.tolist() == own.place.tolist()
            several += 1
            continue
        assert len(found.windows[0]) <= 14
        for name in ("position", "window", "weight", "shapes"):
            np.testing.assert_array_equal(getattr(own, name), getattr(found, name))
        np.testing.assert_array_equal(own.windows[0][own.place], found.windows[0][found.place])
        assert (found.place[0], found.place[-1]) == (0, len(found.windows[0]) - 1)
    assert 0 < several < 40


# Vectors


@torch.inference_mode()
def test_words_see_their_neighbours_if_they_should(tiny_encoder):
    with_context, without = (tiny.model(tiny_encoder, "default", f"encoder.context={k}").eval() for k in (3, 0))
    alone = DOCUMENTS[0].sentences
    given = with_context.sentences_with_context(DOCUMENTS[:1])
    assert given == without.sentences_with_context(DOCUMENTS[:1]) == list(alone)
    bare = without(without.collate(alone))
    for model, sentences in ((with_context, alone), (without, given)):  # none is given; none is wanted
        same = model(model.collate(sentences))
        assert torch.equal(same.mention, bare.mention)
        assert torch.equal(same.arc, bare.arc)
    seen = with_context.encoder(with_context.collate(given)).words
    for b, sentence in enumerate(given):  # a batch equals its sentences
        one = with_context.encoder(with_context.collate([sentence])).words[0]
        torch.testing.assert_close(seen[b, : len(sentence.words) + 1], one, rtol=1e-4, atol=1e-5)
    unseen = without.encoder(without.collate(alone)).words
    assert seen.shape == unseen.shape
    words = slice(1, min(len(sentence.words) for sentence in alone) + 1)
    assert ((seen - unseen)[:, words].abs().amax(-1) > 1e-4).all()


# Models


@pytest.fixture(scope="module")
def place(tiny_encoder, tmp_path_factory) -> Path:
    """A folder with data and a model that reads four words on either side."""
    folder = tmp_path_factory.mktemp("place")
    overrides = ["encoder.context=4", "training.epochs=8", "training.batch_words=20"]
    settings = tiny.settings("default", f"encoder.path={tiny_encoder}", *overrides)
    data = make_corpus(DOCUMENTS, DOCUMENTS, seed=1, context=4)
    fit(settings, data, folder / "model", device="cpu")
    formats.write(DOCUMENTS, folder / "data.jsonl", "jsonl")
    (folder / "text.txt").write_text(TEXT)
    return folder


def scores(sentences):
    return [(e.start, e.end, e.label, round(e.score, 4)) for s in sentences for e in s.entities]


def test_a_text_a_file_and_its_words_give_the_same(place, tmp_path):
    ner = nestree.load(place / "model", "cpu", precision="float32")
    document = ner(TEXT)
    assert len(document.sentences) == 3
    assert ner([TEXT, "Lisbon."])[0].entities == document.entities
    how = ["--model", place / "model", "--out"]
    done = nestree_command("predict", place / "text.txt", *how, tmp_path / "a.jsonl", "--trees")
    assert done.exit_code == 0
    formats.write([replace(document, id="t")], tmp_path / "words.jsonl", "jsonl")
    assert nestree_command("predict", tmp_path / "words.jsonl", *how, tmp_path / "b.jsonl").exit_code == 0
    for name in ("a.jsonl", "b.jsonl"):
        (found,) = formats.read(tmp_path / name)
        assert [s.words for s in found.sentences] == [s.words for s in document.sentences]
        assert scores(found.sentences) == scores(document.sentences) != []
    alone = ner.words([sentence.words for sentence in document.sentences])
    assert scores(alone) != scores(document.sentences)  # words alone have no neighbours


@pytest.fixture
def seen(record_calls) -> set[Context]:
    """The contexts of all sentences that were tokenized, if they have any."""
    contexts = set()

    def add(_, sentences):
        contexts.update(s.context for s in sentences if any(s.context or ()))

    record_calls(SubwordTokenizer, "__call__", add)
    return contexts


@pytest.mark.parametrize(
    "arguments",
    [
        ("evaluate", "data.jsonl", "--model", "model", "-q"),
        ("analyze", "data.jsonl", "--model", "model", "--head-sharing-penalties", "0", "--trees", "1"),
        ("quantize", "model", "--gold", "data.jsonl", "--out", "small", "-q"),
        ("predict", "data.jsonl", "--model", "model"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_read_sentences_in_context(place, seen, monkeypatch, arguments):
    monkeypatch.chdir(place)
    done = nestree_command(*arguments)
    assert done.exit_code == 0, done.output
    wanted = [s.context for document in with_context(DOCUMENTS, 4) for s in document.sentences]
    assert seen == {context for context in wanted if any(context)}


def test_teachers_read_sentences_in_context(place, tiny_encoder, seen, monkeypatch):
    """A student without context learns from a teacher with context, of labelled and unlabelled texts."""
    monkeypatch.chdir(place)
    plurals = ([replace(s, words=[f"{w}s" for w in s.words], entities=()) for s in d] for d in PARTS)
    texts = [Document(sentences) for sentences in plurals]
    formats.write(texts, Path("texts.jsonl"), "jsonl")
    options = ["--train", "data.jsonl", "--dev", "data.jsonl", "--encoder", tiny_encoder, "--epochs", 1]
    options += ["--set", "encoder.mix_layers=2"]
    options += ["--teacher", "model", "--unlabelled", "texts.jsonl", "--out", "student"]
    done = nestree_command("distill", *options)
    assert done.exit_code == 0, done.output
    wanted = [s.context for d in with_context([*DOCUMENTS, *texts], 4) for s in d.sentences]
    assert {context for context in wanted if any(context)} <= seen


def test_spacy_reads_sentences_in_context(place, seen):
    spacy = pytest.importorskip("spacy")
    nlp = spacy.blank("en")
    nlp.add_pipe("nestree", config={"model": str(place / "model"), "device": "cpu"})
    nlp("She left. It rained.")
    assert seen == {((), ("It", "rained", ".")), (("She", "left", "."), ())}
