"""An encoder that gets used to texts: what is hidden from it, and what becomes of it."""

import pytest
import torch
from typer.testing import CliRunner

from nestree.cli import app
from nestree.errors import InputError
from nestree.nn.encoder import load_pretrained, load_tokenizer
from nestree.training.adapting import HIDDEN, Texts, adapt
from tests import tiny

MANY = tiny.SENTENCES * 12


@pytest.fixture(scope="module", params=["bert", "mpnet"])
def folder(request, tmp_path_factory):
    return tiny.encoder(tmp_path_factory.mktemp("encoder"), request.param)


@pytest.fixture
def texts(folder):
    return Texts(load_tokenizer(str(folder)), MANY, seed=1, pieces=32)


def test_every_word_is_read_once(texts):
    for first in (0, 7, 15):
        windows = texts.windows(first)
        assert [number for window in windows for number in window] == list(range(len(texts.words)))
        assert all(sum(len(texts.words[k]) for k in window) <= 30 for window in windows if len(window) > 1)
    tasks = list(texts.tasks())
    assert len(tasks) == texts.updates


def test_some_words_are_hidden_and_asked_for(texts):
    tokenizer = texts.tokenizer
    asked = real = masked = 0
    for _ in range(20):
        for task in texts.tasks():
            assert (task.pieces[~task.real] == tokenizer.pad_token_id).all()
            places = task.places
            assert task.real.flatten()[places].all()
            shown = task.pieces.flatten()[places]
            masked += int((shown == tokenizer.mask_token_id).sum())
            asked += len(places)
            real += int(task.real.sum()) - 2 * len(task.real)
            elsewhere = torch.ones(task.pieces.numel(), dtype=torch.bool)
            elsewhere[places] = False
            assert not (task.pieces.flatten()[elsewhere] == tokenizer.mask_token_id).any()
    assert asked / real == pytest.approx(HIDDEN, abs=0.03)
    assert masked / asked == pytest.approx(0.8, abs=0.05)


def test_words_are_hidden_whole(texts):
    window = texts.windows(0)[0]
    for _ in range(30):
        shown, answers = texts.hidden(window)
        assert len(shown) == len(answers)
        place = 1
        for number in window:
            size = len(texts.words[number])
            assert len({answer is None for answer in answers[place : place + size]}) == 1
            place += size


def test_it_learns_and_is_an_encoder(folder, tmp_path):
    losses = {}
    adapt(
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
    assert load_tokenizer(str(tmp_path / "new")).mask_token_id is not None
    moved = [
        not torch.equal(one, two) for one, two in zip(before.parameters(), after.parameters(), strict=True)
    ]
    assert sum(moved) > len(moved) / 2


def test_the_seed_tells_all(folder, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        adapt(str(folder), MANY[:8], tmp_path / name, passes=2, seed=seed, device="cpu")
    a, b, c = (load_pretrained(str(tmp_path / name)).get_input_embeddings().weight for name in "abc")
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_nothing_to_read(folder, tmp_path):
    with pytest.raises(InputError, match="no words to read"):
        adapt(str(folder), [], tmp_path / "new", device="cpu")
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way_is_found_at_once(folder, tmp_path):
    (tmp_path / "new").write_text("mine")
    with pytest.raises(InputError, match="is a file, and a directory is meant"):
        adapt(str(folder), MANY, tmp_path / "new", device="cpu")
    assert (tmp_path / "new").read_text() == "mine"


def run(*arguments):
    return CliRunner().invoke(app, ["adapt", *map(str, arguments)])


def test_the_command_reads_texts_and_data(folder, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("The University of California spoke. It rained in Berlin.\n")
    (tmp_path / "texts" / "odd.xyz").write_text("nothing")
    data = tmp_path / "data.jsonl"
    data.write_text('{"words": ["in", "Rome"], "entities": []}\n')
    options = ("--out", tmp_path / "new", "--encoder", folder, "--passes", 2, "--device", "cpu")
    done = run(tmp_path / "texts", data, *options)
    assert done.exit_code == 0, done.stderr
    assert "13 words in 3 sentences, to be read 2 times" in done.stderr
    assert "odd.xyz" in done.stderr
    assert "pass 2:" in done.stderr
    assert "shards" not in done.stderr
    assert load_pretrained(str(tmp_path / "new")) is not None
    again = run(data, *options)
    assert again.exit_code == 2
    assert "is a directory that is not empty" in again.stderr
