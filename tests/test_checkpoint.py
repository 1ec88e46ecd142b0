"""A model comes back as it was, in another process too; and every way in which a directory can be wrong."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch

import nestree
from nestree import checkpoint
from nestree.checkpoint import read_tensors, write_tensors
from nestree.decoding import Temperatures
from nestree.errors import ConfigError, DataError, ModelError, TrainingError
from nestree.model import Recognizer, TextRules
from nestree.nn.bert import FAMILIES, Bert
from nestree.nn.encoder import load_pretrained, load_saved
from nestree.pipeline import predict
from nestree.training.run_dir import RunDir
from tests import tiny
from tests.cli.run import process

INF, NAN = float("inf"), float("nan")


@pytest.fixture
def copy(tiny_model, tmp_path) -> Path:
    """A model to corrupt, without the manifest, which would find it first."""
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / "manifest.json").unlink()
    return folder


def test_the_same_weights_and_predictions_in_a_fresh_process(learned, tiny_model, tiny_data, tmp_path):
    done = process("predict", tiny_data, "--model", tiny_model, "--out", tmp_path / "found.jsonl", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    there = [sentence for document in nestree.read(tmp_path / "found.jsonl") for sentence in document.sentences]
    here = predict(learned, there)
    found, expected = ([(*e.span, e.label, e.head) for s in each for e in s.entities] for each in (there, here))
    assert found == expected != []
    loaded = checkpoint.load(tiny_model)
    assert loaded.settings == learned.settings
    assert loaded.labels == learned.labels
    assert not loaded.training
    before = learned.state_dict()
    assert before.keys() == loaded.state_dict().keys()
    assert all(torch.equal(before[name], value) for name, value in loaded.state_dict().items())
    assert not [name for name in before if "pooler" in name]  # it is not used


def test_a_directory_holds_no_pickle_and_others_may_read_it(tiny_model):
    names = {path.relative_to(tiny_model).as_posix() for path in tiny_model.rglob("*") if path.is_file()}
    assert {*FILES, "README.md"} <= names
    assert {Path(name).suffix for name in names} <= {".toml", ".json", ".safetensors", ".md", ".txt"}
    assert (tiny_model / "weights.safetensors").stat().st_mode == (tiny_model / "config.toml").stat().st_mode
    assert "Labels: GPE, LOC, ORG, PER." in (tiny_model / "README.md").read_text()


def test_text_rules_temperatures_and_card_come_back(learned, tmp_path, monkeypatch):
    monkeypatch.setattr(learned, "text_rules", TextRules("ud", "lines"))
    monkeypatch.setattr(learned, "temperatures", Temperatures(1.5, 0.75, 2.0, -0.5))
    checkpoint.save(learned, tmp_path / "m", "# My card")
    loaded = checkpoint.load(tmp_path / "m")
    assert loaded.text_rules == TextRules("ud", "lines")
    assert (loaded.temperatures, loaded.card) == (Temperatures(1.5, 0.75, 2.0, -0.5), "# My card")


def test_a_model_of_layout_1(copy):
    (copy / "labels.json").write_text(json.dumps({"format": 1, "nestree": "0.1.0", "labels": tiny.LABELS}))
    with_setting("path", '"/nowhere"')(copy)  # the encoder is in the directory
    loaded = checkpoint.load(copy)
    assert (loaded.text_rules, loaded.temperatures) == (TextRules(), Temperatures())
    assert loaded.settings.encoder.path == "/nowhere"


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # DeBERTa uses what PyTorch will give up
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_encoders_of_every_family_come_back(family, tmp_path):
    folder = tiny.encoder(tmp_path / "encoder", family)
    before = load_pretrained(str(folder)).eval()
    (folder / "model.safetensors").unlink()  # as in a model directory
    after = load_saved(str(folder))[1].eval()
    after.load_state_dict(before.state_dict())  # nothing else may depend on what was in memory
    subwords = torch.arange(5, 25)[None]
    assert isinstance(before, Bert) == isinstance(after, Bert) == (family in FAMILIES)
    if isinstance(before, Bert):
        assert torch.equal(*(model(subwords, subwords > 0, 1)[0] for model in (before, after)))
    else:
        assert torch.equal(*(model(subwords).last_hidden_state for model in (before, after)))


def test_only_a_model_in_training_is_said_to_be_uncalibrated(copy, caplog):
    (copy / "training").mkdir(exist_ok=True)
    (copy / "training" / "scores.json").unlink(missing_ok=True)
    checkpoint.load(copy)
    assert "training has not ended" in caplog.text
    caplog.clear()
    (copy / "training" / "scores.json").touch()  # edited after training, without its manifest
    checkpoint.load(copy)
    assert not caplog.text


def test_whole_or_not_at_all(learned, tiny_model, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"is a directory that is not empty. Give a new name"):
        checkpoint.save(learned, tiny_model)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(ModelError, match=r"could not be written: .*The disk is full"):
        checkpoint.save(learned, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def without(name):
    def corrupt(folder):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return corrupt


def edited(name, change):
    def corrupt(folder):
        before = (folder / name).read_text()
        assert change(before) != before
        (folder / name).write_text(change(before))

    return corrupt


def with_text(name, text):
    return lambda folder: (folder / name).write_text(text)


def with_values(**values):
    return with_text("labels.json", json.dumps({"format": 2, "labels": tiny.LABELS, **values}))


def with_setting(key, value):
    return edited("config.toml", lambda text: re.sub(rf"(?m)^{key} = \S+", f"{key} = {value}", text))


def with_encoder(name="config", **values):
    return edited(f"encoder/{name}.json", lambda text: json.dumps(json.loads(text) | values))


def with_tokenizer(change):
    return edited("encoder/tokenizer.json", change)


def with_short_vocabulary(text):
    values = json.loads(text)
    values["model"]["vocab"] = {piece: k for piece, k in values["model"]["vocab"].items() if k < 10}
    return json.dumps(values)


def cut(folder):
    with open(folder / "weights.safetensors", "r+b") as file:
        file.truncate(os.path.getsize(file.name) // 2)


def with_other_weights(change):
    def corrupt(folder):
        weights, _ = checkpoint.read_tensors(folder / "weights.safetensors")
        change(weights)
        checkpoint.save_weights(weights, folder)

    return corrupt


DEEP = "[" * 100_000
NOT_FOUND = r"encoder': no (tokenizer|encoder) found; in this folder: .*\. Give a"
NEWER = json.dumps({"format": 99, "nestree": "7.0", "labels": ["A"]})


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (shutil.rmtree, r"does not exist\. Name a directory that `nestree train` made"),
        (without("labels.json"), "has no labels.json: it is not a nestree model"),
        (without("config.toml"), "has no config.toml: it is incomplete"),
        (without("encoder"), "has no encoder: it is incomplete"),
        (without("encoder/tokenizer.json"), "has no encoder/tokenizer.json: it is incomplete"),
        (without("encoder/config.json"), "has no encoder/config.json: it is incomplete"),
        (without("weights.safetensors"), "has no weights.safetensors: it is incomplete"),
        (with_text("labels.json", "{"), "labels.json is not what nestree writes"),
        (with_text("labels.json", "[1]"), "labels.json is not what nestree writes"),
        (with_text("labels.json", DEEP), "labels.json is not what nestree writes"),
        (with_text("labels.json", NEWER), "made by nestree 7.0 in layout 99.*Update nestree"),
        (with_values(labels=[]), r"must list labels, and says \[\]"),
        (with_values(labels=["A", 3]), "must list labels"),
        (with_values(labels=["A", ""]), "the label '' is empty or has half of a surrogate"),
        (with_values(labels=["A", "\ud800"]), "the label .*ud800' is empty or has half of a surr"),
        (with_values(text={"words": "letters"}), "cannot split text by .*letters.*Update nestree"),
        (with_values(text=["ud"]), "it must say words and sentences"),
        (with_values(temperatures={"mention": 0}), "temperatures are .*must be numbers above 0"),
        (with_values(temperatures={"label_logit_offset": "nan"}), "temperatures are .*must be numbers"),
        (with_values(temperatures={"mention": "x"}), "temperatures are .*must be numbers above 0"),
        (with_values(temperatures={"heat": 1}), "temperatures are .*must be numbers above 0"),
        (with_values(temperatures=3), "temperatures are .*must be numbers above 0"),
        (with_text("config.toml", "[encoder"), "config.toml: this is not TOML"),
        (with_text("config.toml", f"[encoder]\npath = {DEEP}"), "config.toml: .*nested too deeply"),
        (with_setting("non_entity_bias", 1e300), r"non_entity_bias is 1e\+300; it must lie between -1,000,000"),
        (with_text("weights.safetensors", "hello"), "weights.safetensors cannot be read"),
        (cut, "cannot be read: .*It may be cut off"),
        (with_setting("mlp_size", 16), r"has the shape \[.*they belong to different models"),
        (with_other_weights(lambda w: w.pop(min(w))), "lacks .*it belongs to another config.toml"),
        (with_other_weights(lambda w: w.update(more=torch.ones(1))), "has more, which config.toml has no"),
        (with_other_weights(lambda w: w[min(w)].view(-1)[:1].fill_(NAN)), "numbers that are not finite"),
        (with_other_weights(lambda w: w[max(w)].view(-1)[:1].fill_(-INF)), "that are not finite"),
        (with_tokenizer(with_short_vocabulary), "the tokenizer has 10 subwords .* belong to different encoders"),
        (
            with_tokenizer(lambda text: re.sub(r'("ids": \[\s+)3', r"\g<1>300", text)),
            "special ones up to 300, .* belong to different encoders",
        ),
        (with_setting("lstm_layers", 10**5), "lstm_layers is 100000, and weights.safetensors has"),
        (with_setting("word_shape_size", 10**9), r"has the shape \[.*, 8\], and .* ask for \[.*10{9}"),
        (with_setting("word_shape_size", 10**30), "describe a network that cannot be built"),
        (with_encoder(num_hidden_layers=10**5), "num_hidden_layers is 100000, and weights.saf"),
        (with_encoder(intermediate_size=10**12), r"ask for \[10{12}, 32\]"),
        (with_encoder(vocab_size=10**17), "they belong to different|cannot be built|no encoder"),
        (with_encoder(hidden_size="32"), NOT_FOUND),
        (with_encoder(num_attention_heads=5), NOT_FOUND),
        (with_encoder(num_attention_heads=-2), "num_attention_heads is -2 in config.json; it must be 1 or more"),
        (with_encoder(num_attention_heads=2.0), NOT_FOUND),
        (with_encoder("tokenizer_config", pad_token=5), NOT_FOUND),
        (with_text("encoder/config.json", "[]"), NOT_FOUND),
        (with_text("encoder/config.json", "null"), NOT_FOUND),
        (with_text("encoder/tokenizer_config.json", "[]"), NOT_FOUND),
        (with_text("encoder/tokenizer.json", "{}"), NOT_FOUND),
        (with_tokenizer(lambda text: text[:300]), NOT_FOUND),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(copy, corrupt, message):
    corrupt(copy)
    with pytest.raises((ModelError, ConfigError), match=message):
        checkpoint.load(copy)


@pytest.mark.parametrize(
    "change",
    [
        with_encoder(text="a text", _attn_implementation="eager", values=1, self=2),
        with_encoder("tokenizer_config", model_max_length=None),
        with_encoder("tokenizer_config", model_max_length=1e30),
    ],
)
def test_values_that_do_not_matter_change_nothing(tiny_model, copy, change):
    change(copy)
    before, after = (predict(checkpoint.load(folder), tiny.SENTENCES) for folder in (tiny_model, copy))
    assert [s.entities for s in before] == [s.entities for s in after]


FILES = ["config.toml", "labels.json", "weights.safetensors", "encoder/config.json", "encoder/tokenizer.json"]


@pytest.mark.parametrize("name", FILES)
def test_files_are_those_of_the_manifest(tiny_model, tmp_path, name):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / "README.md").write_text("# My own words\n")
    assert checkpoint.load(folder).card == "# My own words\n"
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(ModelError, match=rf"{name} is not the file that manifest.json describes") as found:
        checkpoint.load(folder)
    assert "delete" in str(found.value)
    assert "verify=False" in str(found.value)
    with pytest.raises(ModelError, match=r"manifest.json describes"):
        checkpoint.quantize(folder, tmp_path / "small")
    (folder / name).unlink()
    with pytest.raises(ModelError, match=rf"has no {name}: it is incomplete"):
        checkpoint.load(folder)


def test_a_file_that_was_edited_on_purpose(tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    with_setting("threshold", 0.25)(folder)
    with pytest.raises(ModelError, match=r"config.toml is not the file that manifest.json describes"):
        nestree.load(folder, device="cpu")
    assert nestree.load(folder, device="cpu", verify=False).model.settings.decoding.threshold == 0.25
    assert Recognizer.from_pretrained(folder, verify=False).settings.decoding.threshold == 0.25
    (folder / "manifest.json").unlink()
    assert nestree.load(folder, device="cpu").model.settings.decoding.threshold == 0.25


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "files": {"labels.json": 3}}', "[" * 100_000])
def test_a_manifest_that_is_damaged(copy, text):
    (copy / "manifest.json").write_text(text)
    with pytest.raises(ModelError, match=r"manifest.json is not what nestree writes: it is damaged"):
        checkpoint.load(copy)
    (copy / "manifest.json").write_text('{"format": 2, "files": {}}')
    with pytest.raises(ModelError, match=r"manifest.json has the format 2; .*Update nestree"):
        checkpoint.load(copy)


def test_equal_weights_are_equal_bytes(tmp_path):
    files = [tmp_path / str(k) for k in range(10)]
    for path in files:
        metadata = {"z": "1", "ä": '"', "b": "2", "c": "\n"}
        write_tensors(path, {"b": torch.ones(2), "a": torch.ones(3)}, metadata)
    assert len({path.read_bytes() for path in files}) == 1
    tensors, facts = read_tensors(files[0])
    assert facts == {"z": "1", "ä": '"', "b": "2", "c": "\n"}
    assert torch.equal(tensors["a"], torch.ones(3))


def test_a_file_is_no_model_and_a_run_may_have_no_weights_yet(copy, tmp_path, caplog):
    (tmp_path / "m").write_text("")
    with pytest.raises(ModelError, match="is a file, and a model is a directory"):
        checkpoint.load(tmp_path / "m")
    (copy / "weights.safetensors").unlink()
    (copy / "manifest.json").unlink(missing_ok=True)
    (copy / "training").mkdir()
    with pytest.raises(ModelError, match=r"before the first evaluation. Start it again\."):
        checkpoint.load(copy)
    with pytest.raises(TrainingError, match=r"there is nothing to resume. Start the run again\."):
        RunDir(copy).load_progress()
    (copy / "training" / "state.safetensors").touch()
    with pytest.raises(ModelError, match=r"before the first evaluation. Continue with `nestree train"):
        checkpoint.load(copy)
    assert not caplog.text  # nothing of probabilities that are not calibrated


@pytest.mark.parametrize("size", [0, 1, 50, 1000])
def test_a_file_that_is_replaced_while_it_is_read(tmp_path, monkeypatch, size):
    """Header and tensors are of one file, although another one takes the name between the two."""
    path, opened = tmp_path / "state.safetensors", torch.UntypedStorage.from_file

    def replaced(*arguments, **options):
        monkeypatch.setattr(torch.UntypedStorage, "from_file", opened)
        write_tensors(path, {"new": torch.ones(size)}, {"which": "new"})
        return opened(*arguments, **options)

    write_tensors(path, {"old": torch.zeros(50)}, {"which": "old"})
    monkeypatch.setattr(torch.UntypedStorage, "from_file", replaced)
    tensors, facts = read_tensors(path)
    assert torch.UntypedStorage.from_file is not replaced
    assert facts == {"which": "new"}
    assert tensors["new"].tolist() == [1.0] * size
