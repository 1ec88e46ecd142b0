"""An encoder that gets used to texts: what is hidden from it, and what becomes of it."""

from itertools import chain

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nestree.cli import app
from nestree.errors import InputError, TrainingError
from nestree.nn.encoder import load_pretrained, load_tokenizer
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.training import pretrain as adapting
from nestree.training.pretrain import MASK_RATE, Texts, pretrain
from nestree.types import Sentence
from tests import tiny

MANY = tiny.SENTENCES * 12


@pytest.fixture(scope="module", params=["bert", "mpnet", "roberta"])
def folder(request, tmp_path_factory):
    return tiny.encoder(tmp_path_factory.mktemp("encoder"), request.param)


@pytest.fixture
def tokenizer(folder):
    return load_tokenizer(str(folder))


@pytest.fixture
def texts(tokenizer):
    return Texts(SubwordTokenizer(tokenizer, 32), MANY, tokenizer.mask_token_id, len(tokenizer), seed=1)


def shown_without_hiding(texts, monkeypatch):
    """The pieces of all tasks of a pass, window by window, as they stand."""
    monkeypatch.setattr(adapting, "MASK_RATE", 1e-12)
    monkeypatch.setattr(adapting, "MASKED", -1.0)
    monkeypatch.setattr(adapting, "EXCHANGED", 0.0)
    return [
        pieces[real].tolist()
        for task in texts.tasks()
        for pieces, real in zip(task.pieces, task.real, strict=True)
    ]


def test_every_word_is_read_once_in_each_pass_as_training_reads_it(texts, monkeypatch):
    first, last = texts.splitter.first, texts.splitter.last
    whole = [piece for s in MANY for piece in texts.splitter.pieces_of(s.words).tolist()]
    passes = [shown_without_hiding(texts, monkeypatch) for _ in range(6)]
    for windows in passes:
        assert all(window[: len(first)] == first and window[-len(last) :] == last for window in windows)
        assert all(len(window) <= 32 for window in windows)
        inner = sorted(window[len(first) : -len(last)] for window in windows)
        assert sorted(chain(*inner)) == sorted(whole)
    assert len({str(sorted(windows)) for windows in passes}) > 1  # they begin elsewhere
    in_order = [texts.ids[texts.posts[a] : texts.posts[b]].tolist() for a, b in texts.windows(5)]
    assert [*chain(*in_order)] == whole
    assert len(in_order[0]) <= texts.splitter.room - 5


def test_windows_come_in_any_order(texts, monkeypatch):
    windows = texts.windows(0)
    monkeypatch.setattr(texts, "windows", lambda _: list(windows))
    orders = {str(shown_without_hiding(texts, monkeypatch)) for _ in range(5)}
    assert len(orders) == 5


def test_some_words_are_hidden_and_asked_for(tokenizer):
    texts = Texts(SubwordTokenizer(tokenizer, 512), MANY, tokenizer.mask_token_id, len(tokenizer), seed=1)
    asked = real = masked = same = 0
    for _ in range(20):
        tasks = list(texts.tasks())
        assert len(tasks) == texts.updates
        for task in tasks:
            assert (task.pieces[~task.real] == tokenizer.pad_token_id).all()
            assert task.real.flatten()[task.places].all()
            shown = task.pieces.flatten()[task.places]
            masked += int((shown == tokenizer.mask_token_id).sum())
            same += int((shown == task.answers).sum())
            asked += len(task.places)
            real += int(task.real.sum()) - 2 * len(task.real)
            elsewhere = torch.ones(task.pieces.numel(), dtype=torch.bool)
            elsewhere[task.places] = False
            assert not (task.pieces.flatten()[elsewhere] == tokenizer.mask_token_id).any()
    assert asked / real == pytest.approx(MASK_RATE, abs=0.03)
    assert masked / asked == pytest.approx(0.8, abs=0.04)
    assert same / asked == pytest.approx(0.1, abs=0.04)  # the last tenth is another piece


def test_words_are_hidden_whole_and_one_at_least(texts):
    start, end = texts.windows(0)[0]
    sizes = np.diff(texts.posts[start : end + 1])
    assert sizes.max() > 1
    for _ in range(30):
        shown, answers = texts.hidden(start, end)
        assert len(shown) == len(answers)
        inner = answers[len(texts.splitter.first) : -len(texts.splitter.last)] >= 0
        assert all(len(set(word.tolist())) == 1 for word in np.split(inner, np.cumsum(sizes)[:-1]))
    assert all((texts.hidden(k, k + 1)[1] >= 0).any() for k in range(20))  # of one word, that one


def test_monstrous_words_fit(tokenizer):
    words = Sentence(("a" * 5000, "b", "c" * 700))
    texts = Texts(SubwordTokenizer(tokenizer, 32), [words], tokenizer.mask_token_id, len(tokenizer), seed=1)
    assert all(task.pieces.shape[1] <= 32 for task in texts.tasks())


def test_rates_rise_and_fall_and_are_never_zero():
    rates = [adapting.lr_factor(done, 200) for done in range(1, 201)]
    assert rates[0] == pytest.approx(1 / 20)
    assert max(rates) == rates[19] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(1 / 180)
    assert rates[:20] == sorted(rates[:20])
    assert rates[20:] == sorted(rates[20:], reverse=True)


def test_every_update_has_its_rate_and_its_gradient_is_clipped(folder, tmp_path, monkeypatch):
    rates, clipped = [], []
    move, clip = adapting.set_lr, torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(adapting, "set_lr", lambda o, share: (rates.append(share), move(o, share)))
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda ps, most: (clipped.append(most), clip(ps, most))
    )
    pretrain(str(folder), MANY, tmp_path / "new", passes=3, device="cpu")
    assert len(rates) % 3 == 0
    assert rates == [adapting.lr_factor(done, len(rates)) for done in range(1, len(rates) + 1)]
    assert clipped == [5.0] * len(rates)


def test_it_learns_and_is_an_encoder(folder, tmp_path, caplog):
    losses = {}
    pretrain(
        str(folder),
        MANY,
        tmp_path / "new",
        passes=40,
        seed=1,
        device="cpu",
        tell=lambda told: losses.update({told.passes: told.loss}),
    )
    assert losses[40] < 0.97 * losses[1]
    before, after = load_pretrained(str(folder)), load_pretrained(str(tmp_path / "new"))
    assert not caplog.records  # nothing is missing, nothing unexpected
    assert load_tokenizer(str(tmp_path / "new")).mask_token_id is not None
    moved = [
        not torch.equal(one, two) for one, two in zip(before.parameters(), after.parameters(), strict=True)
    ]
    assert sum(moved) > len(moved) / 2
    assert (
        len({path.stat().st_mode for path in (tmp_path / "new").iterdir()}) == 1
    )  # whoever may read one, may all


def test_a_few_words_once_are_learned_from(folder, tmp_path):
    pretrain(str(folder), MANY[:1], tmp_path / "new", passes=1, device="cpu")
    before, after = (
        load_pretrained(str(place)).get_input_embeddings().weight for place in (folder, tmp_path / "new")
    )
    assert not torch.equal(before, after)


def test_the_seed_tells_all(folder, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        pretrain(str(folder), MANY[:8], tmp_path / name, passes=2, seed=seed, device="cpu")
    a, b, c = (load_pretrained(str(tmp_path / name)).get_input_embeddings().weight for name in "abc")
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_nothing_to_read(folder, tmp_path):
    with pytest.raises(InputError, match="no words to read"):
        pretrain(str(folder), [], tmp_path / "new", device="cpu")
    assert list(tmp_path.iterdir()) == []


def never():
    raise AssertionError("nothing is read before all else is checked")
    yield


def test_what_is_wrong_is_found_before_anything_is_read(folder, tmp_path, tiny_model):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file, and a directory is meant"):
        pretrain(str(folder), never(), tmp_path / "file", device="cpu")
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(InputError, match="is a model of nestree"):
        pretrain(str(tiny_model), never(), tmp_path / "new", device="cpu")
    odd = tiny.encoder(tmp_path / "electra", "electra")
    tokenizer = load_tokenizer(str(odd))
    tokenizer.mask_token = None
    with pytest.raises(InputError, match="knows no piece that hides others"):
        adapting.check(tokenizer, load_pretrained(str(odd)), "odd")
    network = load_pretrained(str(odd))
    network.config.hidden_size += 1
    with pytest.raises(InputError, match="vectors of 32 dimensions and end with 33"):
        adapting.check(load_tokenizer(str(odd)), network, "odd")


def test_what_is_no_number_and_too_little_memory(folder, tmp_path, monkeypatch):
    learned = adapting.mlm_loss
    monkeypatch.setattr(adapting, "mlm_loss", lambda *given: learned(*given) * torch.nan)
    with pytest.raises(TrainingError, match="became nan by update"):
        pretrain(str(folder), MANY, tmp_path / "new", device="cpu")

    def too_large(*_):
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(adapting, "mlm_loss", too_large)
    with pytest.raises(TrainingError, match="not enough memory on cpu for 32 windows of 64 pieces"):
        pretrain(str(folder), MANY, tmp_path / "new", device="cpu")
    assert not (tmp_path / "new").exists()


def run(*arguments):
    return CliRunner().invoke(app, ["pretrain", *map(str, arguments)])


def test_the_command_reads_texts_and_data(folder, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("The University of California spoke. It rained in Berlin.\n")
    (tmp_path / "texts" / "odd.xyz").write_text("nothing")
    data = tmp_path / "data.jsonl"
    data.write_text('{"words": ["in", "Rome"], "entities": []}\n')
    options = ("--out", tmp_path / "new", "--encoder", folder, "--device", "cpu")
    done = run("--passes", 2, tmp_path / "texts", data, *options)
    assert done.exit_code == 0, done.stderr
    assert "13 words in 3 sentences, to be read 2 times" in done.stderr
    assert "odd.xyz" in done.stderr
    assert "pass 2:" in done.stderr
    assert "shards" not in done.stderr
    assert load_pretrained(str(tmp_path / "new")) is not None
    again = run(data, *options)
    assert again.exit_code == 2
    assert "is a directory that is not empty" in again.stderr
    assert "words in" not in again.stderr
