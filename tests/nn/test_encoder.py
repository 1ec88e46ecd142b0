"""Vectors of words and fenceposts: any family of encoders, windows, features beside, an LSTM above."""

import copy
import itertools
import json
import shutil

import pytest
import torch
from transformers import AutoConfig, AutoModel
from typer.testing import CliRunner

from nestree.checkpoint import load, save
from nestree.cli import app
from nestree.errors import ModelError
from nestree.nn.encoder import LockedDropout, ScalarMix, load_pretrained, max_input_length
from nestree.types import Sentence
from tests import tiny
from tests.tiny import sentence, write_text

# DeBERTa in transformers uses what PyTorch will give up
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def check_batches(model, sentences):
    """The vectors of each sentence are the same alone and in a batch."""
    together = model.encoder(model.collate(sentences))
    for b, each in enumerate(sentences):
        alone, n = model.encoder(model.collate([each])), len(each.words)
        for vectors, others in zip(alone, together, strict=True):
            torch.testing.assert_close(vectors[0], others[b, : n + 1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_families_of_encoders(tmp_path, family):
    model = tiny.model(tiny.encoder(tmp_path, family, longest=24)).eval()
    long = sentence("police arrested two members of the group in the north of Oslo")
    odd = Sentence(["\u200b", "a", "東"])
    given = [*tiny.SENTENCES, long, odd]
    batch = model.collate(given)
    assert batch.windows is not None  # several windows, and the longest is as long as the encoder allows
    assert batch.subwords.shape[1] <= 24
    assert model.encoder(batch).words.shape == (10, 13, model.encoder.size)
    check_batches(model, given)
    model.losses(batch).total.backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_words_are_means_of_their_subwords(tmp_path, family):
    model = tiny.model(tiny.encoder(tmp_path, family), "default", "encoder.word_shape_size=0").eval()
    words = ["ab", "c"]
    batch = model.collate([Sentence(words)])
    blank = family in tiny.BYTE_LEVEL  # a blank is a piece there
    assert batch.subwords.shape == (1, 2 + 3 + 2 * blank)
    expected = model.tokenizer("ab c" if not blank else " ab c")["input_ids"]
    assert batch.subwords[0].tolist() == expected
    reference = AutoModel.from_pretrained(tmp_path).eval()
    states = reference(batch.subwords, output_hidden_states=True).hidden_states
    mixed = (states[-1] + states[-2])[0] / 2
    cut = 3 if blank else 2
    rows = [mixed[0], mixed[1 : 1 + cut].mean(0), mixed[1 + cut : -1].mean(0), mixed[-1]]
    half = tiny.HIDDEN // 2
    vectors = model.encoder(batch)
    for t in range(3):
        torch.testing.assert_close(vectors.words[0, t], rows[t], rtol=1e-4, atol=1e-5)
        post = torch.cat([rows[t][:half], rows[t + 1][half:]])
        torch.testing.assert_close(vectors.posts[0, t], post, rtol=1e-4, atol=1e-5)


def test_features_beside_and_above(tmp_path):
    folder = tiny.encoder(tmp_path / "encoder")
    vectors = write_text(tmp_path / "vectors.txt", "lisbon 1 2 3\nthe 4 5 6\n")
    model = tiny.model(folder, "default", f"encoder.word_vectors={vectors}").eval()
    assert model.encoder.size == tiny.HIDDEN + 3 + 8
    batch = model.collate(tiny.SENTENCES)
    assert batch.vectors[0, :5].tolist() == [0, 2, 0, 0, 1]  # "Lisbon" is found in lower case
    assert not model.encoder.vectors.weight.requires_grad
    assert model.encoder.vectors.weight.tolist() == [[0, 0, 0], [1, 2, 3], [4, 5, 6]]
    check_batches(model, tiny.SENTENCES)
    tall = tiny.model(folder, "default", "encoder.lstm_layers=2", "encoder.lstm_size=7").eval()
    assert tall.encoder.size == 14
    check_batches(tall, tiny.SENTENCES)


def test_four_lstms_side_by_side(tmp_path):
    changes = ["encoder.lstms=4", "encoder.lstm_layers=1", "encoder.lstm_size=7"]
    model = tiny.model(tiny.encoder(tmp_path), "default", *changes).eval()
    together = model.encoder(model.collate(tiny.SENTENCES))
    assert {tuple(vectors.shape) for vectors in together} == {(8, 11, 14)}
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(together, 2))
    check_batches(model, tiny.SENTENCES)
    # Each serves one kind of score: without the others, it is the same.
    for k, name in enumerate(("posts", "words", "label_posts", "label_words")):
        one = copy.deepcopy(model.encoder)
        one.lstms = torch.nn.ModuleList([model.encoder.lstms[k]])
        alone = one(model.collate(tiny.SENTENCES))
        assert torch.equal(getattr(alone, name), getattr(together, name))
        assert alone.words is alone.label_words


def test_locked_dropout_and_scalar_mix():
    torch.manual_seed(0)
    dropout = LockedDropout(0.5)
    x = dropout(torch.ones(3, 4, 100))
    assert set(x.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(x, x[:, :1].expand_as(x))
    assert not torch.equal(x[0], x[1])
    assert torch.equal(dropout.eval()(x), x)
    assert not bool(LockedDropout(0.9)(torch.full((1, 1, 9), torch.nan)).nan_to_num(1.0).eq(0).all())
    mix = ScalarMix(2)
    layers = (torch.ones(1, 1, 1), torch.full((1, 1, 1), 3.0))
    assert mix(layers).item() == 2.0
    with torch.no_grad():
        mix.weights[1] = 50.0
        mix.factor.fill_(2.0)
    assert mix(layers).item() == pytest.approx(6.0)


def test_the_longest_input(tmp_path):
    for family in [*tiny.FAMILIES, "roberta-prelayernorm"]:
        model = tiny.model(tiny.encoder(tmp_path / family, family, longest=40))
        model.tokenizer.model_max_length = 10**30  # unknown
        longest = max_input_length(model.tokenizer, model.encoder.transformer)
        assert 39 <= longest <= 41, family
        full = torch.full((1, longest), 5)
        model.encoder.hidden_states(full, torch.ones_like(full))  # it can read so many


def test_what_is_wrong_is_said(tmp_path):
    with pytest.raises(ModelError, match=r"no encoder found; there is no such folder\. Give"):
        load_pretrained(str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match=r"no encoder found; there is no such folder, and on the hub: "):
        load_pretrained("no one/nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="no encoder found; in this folder"):
        load_pretrained(str(tmp_path / "empty"))
    folder = tiny.encoder(tmp_path / "encoder")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**5}))
    with pytest.raises(ModelError, match=r"num_hidden_layers is 100000, and model.safetensors has \d+"):
        load_pretrained(str(folder))
    for kind in ("bart", "clip"):
        AutoConfig.for_model(kind).save_pretrained(folder)
        with pytest.raises(ModelError, match=f"is a {kind} model, and not an encoder of text alone. Choose one, such"):
            load_pretrained(str(folder))


def with_code(folder, **config):
    """Add Python code to the folder of an encoder, named in its configuration; the file that it would write."""
    (folder / "ran.py").write_text(
        "from pathlib import Path\nfrom transformers import BertConfig, BertModel\n"
        f"Path({str(folder / 'ran')!r}).touch()\n\n"
        "class Config(BertConfig):\n    model_type = 'unknown'\n\nclass Model(BertModel):\n    config_class = Config\n"
    )
    path = folder / "config.json"
    classes = {"AutoConfig": "ran.Config", "AutoModel": "ran.Model"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": classes} | config))
    return folder / "ran"


@pytest.mark.parametrize("command", ["predict", "train"])
def test_code_of_a_model_is_not_run_and_nobody_is_asked(tiny_model, tiny_data, tmp_path, command):
    if command == "train":
        folder = tiny.encoder(tmp_path / "model" / "encoder")
    else:
        folder = shutil.copytree(tiny_model, tmp_path / "model") / "encoder"
        (folder.parent / "manifest.json").unlink(missing_ok=True)
    ran = with_code(folder, model_type="unknown")
    arguments = {
        "predict": ["-", "--model", folder.parent],
        "train": ["--train", tiny_data, "--set", f"encoder.path={folder}", "--out", tmp_path / "new"],
    }
    done = CliRunner().invoke(app, [command, *map(str, arguments[command])], input="y\ny\ny\ntext\n")
    assert not ran.exists()
    assert (done.exit_code, done.stdout) == (2, "")
    assert "nestree does not run the code of a model" in done.stderr
    assert "[y/N]" not in done.output


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_code_is_not_needed_where_the_architecture_is_known(tmp_path, caplog, family):
    folder = tiny.encoder(tmp_path / "encoder", family)
    ran = with_code(folder, attn_implementation="somebody/kernel")
    model = tiny.model(folder)
    assert "comes with Python code, which nestree does not run" in caplog.text
    caplog.clear()
    save(model, tmp_path / "model")
    assert "auto_map" not in (tmp_path / "model" / "encoder" / "config.json").read_text()
    load(tmp_path / "model")
    assert (caplog.text, ran.exists()) == ("", False)
    (tmp_path / "model" / "encoder" / "ran.py").touch()
    load(tmp_path / "model")
    assert "comes with Python code" in caplog.text
