"""Continued pretraining: what is masked, and the encoder that results."""

from itertools import chain

import numpy as np
import pytest
import torch

from nestree.errors import InputError, TrainingError
from nestree.nn.encoder import load_pretrained, load_tokenizer
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.training import pretrain as mlm
from nestree.training.pretrain import MaskedTexts, pretrain
from nestree.types import Sentence
from tests import tiny
from tests.cli.run import refuse, succeed
from tests.tiny import write_text

MANY = tiny.SENTENCES * 12


@pytest.fixture(scope="module", params=["mpnet", "roberta"])  # subwords of letters and of bytes
def folder(request, tiny_encoders):
    return tiny_encoders(request.param)


@pytest.fixture
def tokenizer(folder):
    return load_tokenizer(str(folder))


def masked_texts(tokenizer, longest, sentences=MANY, **options):
    splitter = SubwordTokenizer(tokenizer, longest)
    return MaskedTexts(splitter, sentences, tokenizer.mask_token_id, len(tokenizer), seed=1, **options)


@pytest.fixture
def texts(tokenizer):
    return masked_texts(tokenizer, 32)


def unmasked_windows(texts, monkeypatch):
    """The subwords of all windows of a pass, not masked."""
    monkeypatch.setattr(texts, "mask_rate", 1e-12)
    monkeypatch.setattr(mlm, "MASKED", -1.0)
    monkeypatch.setattr(mlm, "REPLACED", 0.0)
    windows = [pair for task in texts.tasks() for pair in zip(task.subwords, task.attention, strict=True)]
    return [subwords[attention].tolist() for subwords, attention in windows]


def test_every_word_is_read_once_in_each_pass(texts, monkeypatch):
    first, last = texts.subword_tokenizer.first, texts.subword_tokenizer.last
    whole = [piece for s in MANY for piece in texts.subword_tokenizer.subwords([s.words])[0].tolist()]
    passes = [unmasked_windows(texts, monkeypatch) for _ in range(6)]
    for windows in passes:
        assert all(window[: len(first)] == first and window[-len(last) :] == last for window in windows)
        assert all(len(window) <= 32 for window in windows)
        inner = sorted(window[len(first) : -len(last)] for window in windows)
        assert sorted(chain(*inner)) == sorted(whole)
    assert len({str(sorted(windows)) for windows in passes}) > 1  # they begin elsewhere
    in_order = [texts.ids[texts.posts[a] : texts.posts[b]].tolist() for a, b in texts.windows(5)]
    assert [*chain(*in_order)] == whole
    assert len(in_order[0]) <= texts.subword_tokenizer.capacity - 5


@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_masked_words_have_their_shares_and_long_words_fit(tokenizer, rate):
    texts = masked_texts(tokenizer, 512, batch_size=1, mask_rate=rate)
    assert texts.updates == len(texts.windows(0))
    asked = real = masked = same = 0
    for _ in range(20):
        tasks = list(texts.tasks())
        assert len(tasks) == texts.updates
        for task in tasks:
            assert (task.subwords[~task.attention] == tokenizer.pad_token_id).all()
            assert task.attention.flatten()[task.positions].all()
            shown = task.subwords.flatten()[task.positions]
            masked += int((shown == tokenizer.mask_token_id).sum())
            same += int((shown == task.labels).sum())
            asked += len(task.positions)
            real += int(task.attention.sum()) - 2 * len(task.attention)
            elsewhere = torch.ones(task.subwords.numel(), dtype=torch.bool)
            elsewhere[task.positions] = False
            assert not (task.subwords.flatten()[elsewhere] == tokenizer.mask_token_id).any()
    assert asked / real == pytest.approx(rate, abs=0.03)
    assert masked / asked == pytest.approx(0.8, abs=0.04)
    assert same / asked == pytest.approx(0.1, abs=0.04)  # the last tenth is another piece
    texts = masked_texts(tokenizer, 32, [Sentence(("a" * 5000, "b", "c" * 700))])
    assert all(task.subwords.shape[1] <= 32 for task in texts.tasks())


def test_whole_words_are_masked_and_at_least_one(texts):
    start, end = texts.windows(0)[0]
    sizes = np.diff(texts.posts[start : end + 1])
    assert sizes.max() > 1
    for _ in range(30):
        shown, answers = texts.mask_window(start, end)
        assert len(shown) == len(answers)
        inner = answers[len(texts.subword_tokenizer.first) : -len(texts.subword_tokenizer.last)] >= 0
        assert all(len(set(word.tolist())) == 1 for word in np.split(inner, np.cumsum(sizes)[:-1]))
    assert all((texts.mask_window(k, k + 1)[1] >= 0).any() for k in range(20))  # of one word, that one


def test_it_learns_and_is_an_encoder(folder, tmp_path, caplog):
    losses, new = {}, tmp_path / "new"

    def store(step):
        losses[step.passes] = step.loss

    pretrain(str(folder), MANY, new, 20, 1, "cpu", store, encoder_lr=1e-3)
    assert losses[20] < 0.92 * losses[1]
    before, after = load_pretrained(str(folder)), load_pretrained(str(new))
    assert not caplog.records  # nothing is missing, nothing unexpected
    assert load_tokenizer(str(new)).mask_token_id is not None
    pairs = list(zip(before.parameters(), after.parameters(), strict=True))
    assert sum(not torch.equal(one, two) for one, two in pairs) > len(pairs) / 2
    assert len({path.stat().st_mode for path in new.iterdir()}) == 1  # all files have the same permissions


def test_the_same_seed_gives_the_same_encoder(tiny_encoder, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        pretrain(str(tiny_encoder), MANY[:1], tmp_path / name, passes=1, seed=seed, device="cpu")
    encoders = (tiny_encoder, tmp_path / "a", tmp_path / "b", tmp_path / "c")
    before, a, b, c = (load_pretrained(str(path)).get_input_embeddings().weight for path in encoders)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert not torch.equal(a, before)


def unread_sentences():
    raise AssertionError("nothing is read before all else is checked")
    yield


def test_errors_are_found_before_anything_is_read(tiny_encoder, tmp_path, tiny_model):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file, and a directory is needed"):
        pretrain(str(tiny_encoder), unread_sentences(), tmp_path / "file", device="cpu")
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(InputError, match="is a model of nestree"):
        pretrain(str(tiny_model), unread_sentences(), tmp_path / "new", device="cpu")
    tokenizer, network = load_tokenizer(str(tiny_encoder)), load_pretrained(str(tiny_encoder))
    tokenizer.mask_token = None
    with pytest.raises(InputError, match="has no mask token"):
        mlm.check_encoder(tokenizer, network, "odd")
    network.config.hidden_size += 1
    with pytest.raises(InputError, match="have 32 dimensions and its states 33"):
        mlm.check_encoder(load_tokenizer(str(tiny_encoder)), network, "odd")
    with pytest.raises(InputError, match="a mask rate of 1 cannot be used"):
        pretrain(str(tiny_encoder), unread_sentences(), tmp_path / "new", device="cpu", mask_rate=1)
    with pytest.raises(InputError, match="no words to read"):
        pretrain(str(tiny_encoder), [], tmp_path / "new", device="cpu")
    assert not (tmp_path / "new").exists()


def test_nan_loss_and_out_of_memory(tiny_encoder, tmp_path, monkeypatch):
    learned = mlm.mlm_loss
    monkeypatch.setattr(mlm, "mlm_loss", lambda *given: learned(*given) * torch.nan)
    with pytest.raises(TrainingError, match="the loss became nan by update"):
        pretrain(str(tiny_encoder), MANY, tmp_path / "new", device="cpu")

    def too_large(*_):
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(mlm, "mlm_loss", too_large)
    with pytest.raises(TrainingError, match="not enough memory on cpu for 32 windows of 64 subwords"):
        pretrain(str(tiny_encoder), MANY, tmp_path / "new", device="cpu")
    assert not (tmp_path / "new").exists()


def test_the_command_reads_texts_and_data(tiny_encoder, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("The University of California spoke. It rained in Berlin.\n")
    (tmp_path / "texts" / "odd.xyz").write_text("nothing")
    data = write_text(tmp_path / "data.jsonl", '{"words": ["in", "Rome"], "entities": []}\n')
    options = ("--out", tmp_path / "new", "--encoder", tiny_encoder, "--device", "cpu")
    mlm_options = ("--window", 16, "--batch-size", 1, "--mask-rate", 0.3, "--encoder-lr", 1e-4)
    done = succeed("pretrain", "--passes", 2, tmp_path / "texts", data, *options, *mlm_options)
    for part in ("13 words in 3 sentences, to be read 2 times", "odd.xyz", "pass 2:"):
        assert part in done.stderr
    assert "shards" not in done.stderr
    assert load_pretrained(str(tmp_path / "new")) is not None
    again = refuse("pretrain", data, *options)
    assert "is a directory that is not empty" in again
    assert "words in" not in again
