"""Encoders without `transformers`: they say the same, are saved the same, and leave alone what is not for them."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from nestree import checkpoint
from nestree.errors import ModelError
from nestree.model import Recognizer
from nestree.nn.encoder import attention_mask
from nestree.nn.light import parts
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.pipeline import predict
from nestree.types import Sentence
from tests import tiny


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The `encoder` folder of a model, and the Recognizer that wrote it."""
    folder = tmp_path_factory.mktemp("light")
    source = tiny.encoder(folder / "source", longest=128)
    model = Recognizer(tiny.settings("default", f"encoder.path={source}"), tiny.LABELS, source)
    model.save_encoder(folder / "encoder")
    return folder / "encoder", model.eval()


def test_the_same_states(saved):
    folder, model = saved
    found = parts(folder)
    assert found is not None
    ours, theirs = found.transformer.eval(), model.encoder.transformer
    ours.load_state_dict(theirs.state_dict())
    real = torch.arange(9) < torch.tensor([9, 4, 1])[:, None]
    pieces = torch.randint(5, 40, real.shape, generator=torch.Generator().manual_seed(1))
    mask = attention_mask(real.long(), ours.config)
    with torch.inference_mode():
        said = [each(pieces, mask, output_hidden_states=True).hidden_states for each in (ours, theirs)]
    assert len(said[0]) == len(said[1]) == 3
    for one, other in zip(*said, strict=True):
        torch.testing.assert_close(one[real], other[real], rtol=1e-5, atol=1e-5)
    for mask in tiny.masks(real):
        with torch.inference_mode():
            again = ours(input_ids=pieces, attention_mask=mask).hidden_states
        assert all(map(torch.equal, said[0], again))


def test_the_same_pieces(saved):
    folder, model = saved
    words = [s.words for s in tiny.SENTENCES] + [("ÉTÉ", "日本", "a-b", "x" * 300, "\u200b", "Don't")]
    sentences = [Sentence(each) for each in words]
    ours, theirs = (
        SubwordTokenizer(tokenizer, 64)(sentences) for tokenizer in (parts(folder).tokenizer, model.tokenizer)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert [w.tolist() for w in one.windows] == [w.tolist() for w in other.windows]
        assert one.position.tolist() == other.position.tolist()


def test_saved_as_it_was_found(saved, tmp_path):
    folder, _ = saved
    found = parts(folder)
    found.tokenizer.save_pretrained(str(tmp_path))
    found.transformer.config.save_pretrained(str(tmp_path))
    files = sorted(path.name for path in folder.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert all((tmp_path / name).read_bytes() == (folder / name).read_bytes() for name in files)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mpnet"},
        {"hidden_act": "relu"},
        {"is_decoder": True},
        {"position_embedding_type": "relative_key"},
        {"vocab_size": None},
        {"hidden_size": "32"},
        {"num_attention_heads": 5},
    ],
)
def test_what_is_not_for_us(saved, tmp_path, change):
    folder, _ = saved
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | change
    config = {name: value for name, value in config.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert parts(tmp_path) is None
    (tmp_path / "config.json").write_text("{")
    assert parts(tmp_path) is None


def changed(model, folder, name, change):
    """A copy of a model in which a file of the encoder is another."""
    shutil.copytree(model, folder)
    path = folder / "encoder" / name
    path.write_text(change(path.read_text()))
    (folder / "manifest.json").unlink()
    return folder


def with_values(**values):
    return lambda text: json.dumps(json.loads(text) | values)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokenizer.json", lambda text: text[:300]),
        ("tokenizer.json", lambda text: "{}"),
        ("tokenizer_config.json", lambda text: "[]"),
        ("tokenizer_config.json", with_values(pad_token=5)),
        ("config.json", lambda text: "[]"),
        ("config.json", lambda text: "null"),
        ("config.json", with_values(hidden_size="32")),
        ("config.json", with_values(num_attention_heads=5)),
    ],
)
def test_damage_is_said_in_a_sentence(tiny_model, tmp_path, name, change):
    folder = changed(tiny_model, tmp_path / "model", name, change)
    with pytest.raises(
        ModelError, match=r"encoder': no (tokenizer|encoder) found; in this folder: .*\. Give a"
    ):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", with_values(text="a text", _attn_implementation="eager", values=1, self=2)),
        ("tokenizer_config.json", with_values(model_max_length=None)),
        ("tokenizer_config.json", with_values(model_max_length=1e30)),
    ],
)
def test_what_does_not_matter_changes_nothing(tiny_model, tmp_path, name, change):
    found = predict(checkpoint.load(changed(tiny_model, tmp_path / "model", name, change)), tiny.SENTENCES)
    expected = predict(checkpoint.load(tiny_model), tiny.SENTENCES)
    assert [s.entities for s in found] == [s.entities for s in expected]


def test_reading_imports_neither_transformers_nor_what_it_brings():
    code = (
        "import sys, nestree; nestree.load(device='cpu')('Ann lives in Lisbon.'); "
        "print([name for name in ('transformers', 'sympy', 'torch._dynamo', 'spacy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
