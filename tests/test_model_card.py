"""The model card: the hub can read it, and its numbers are those of the data and the evaluation."""

import json
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from nestree import model_card
from nestree.config import Settings
from nestree.errors import ConfigError
from nestree.evaluation import evaluate
from nestree.model_card import Card
from nestree.types import Entity, Sentence
from tests import tiny
from tests.cli.run import nestree, succeed

WORDS = ["the", "mayor", "of", "Lisbon", "met", "them"]
ENTITIES = [Entity(0, 4, "PER", head=1), Entity(3, 4, "GPE"), Entity(5, 6, "a|b")]
GOLD = [Sentence(WORDS, ENTITIES), *tiny.SENTENCES]
PREDICTED = [
    replace(GOLD[0], entities=[Entity(0, 4, "PER", 1, 0.8), Entity(3, 4, "GPE", 3, 0.6), Entity(4, 5, "PER", 4, 0.4)]),
    *tiny.SENTENCES,
]  # fmt: skip


@pytest.fixture(scope="module")
def card() -> Card:
    changes = ["model.mlp_size=128", "training.seed=7", "encoder.path=owner/encoder"]
    fields = {"name": "me/my-model", "license": "cc-by-4.0", "language": "en", "data": 'News, "1999"'}
    fields |= {"note": "Thanks.", "label.PER": "people", "label.a|b": "both"}
    return Card(
        Settings.read("default").with_overrides(changes),
        ["PER", "GPE", "a|b"],
        fields,
        {"train": model_card.count_statistics(tiny.SENTENCES), "dev": model_card.count_statistics(GOLD)},
        {"dev": evaluate(GOLD, PREDICTED, resamples=0)},
        "This is epoch 3 of 5.",
    )


def test_metadata(card):
    data = ModelCard(str(card)).data
    assert (data.license, data.language, data.library_name) == ("cc-by-4.0", "en", "nestree")
    assert data.base_model == "owner/encoder"
    assert data.metrics == ["precision", "recall", "f1"]
    assert data.model_name == "me/my-model"
    scores = {result.metric_type: result.metric_value for result in data.eval_results}
    expected = evaluate(GOLD, PREDICTED, resamples=0).entities
    assert scores == {name: round(getattr(expected, name), 4) for name in ("precision", "recall", "f1")}
    assert {result.dataset_name for result in data.eval_results} == {'News, "1999"'}
    assert {result.dataset_split for result in data.eval_results} == {"dev"}


def test_missing_fields():
    bare = str(Card(Settings.read("default"), ["PER"]))
    data = ModelCard(bare).data
    assert (data.license, data.language, data.eval_results) == ("unknown", None, None)
    assert "No licence is stated yet. State it here" in bare
    assert "## Scores" not in bare
    assert 'nestree.load("THIS_DIRECTORY")' in bare
    titled = str(Card(Settings.read("default"), ["PER"], {"name": "My model"}))
    assert "# My model\n" in titled
    assert 'nestree.load("THIS_DIRECTORY")' in titled


def test_numbers_and_changed_settings(card):
    text = str(card)
    found = evaluate(GOLD, PREDICTED, resamples=0)
    assert "- train: 8 sentences, 18 entities, 66.7 % of them nested" in text
    assert f"| **all** | 21 | 21 | {100 * found.entities.precision:.2f} |" in text
    assert "| a\\|b | 1 | 0 | 0.00 | 0.00 | 0.00 |" in text  # a label may hold what makes a table
    assert "This is epoch 3 of 5." in text
    assert 'nestree.load("me/my-model")' in text
    assert "--model me/my-model gold.jsonl" in text
    assert model_card.label_descriptions(text, card.labels) == {"PER": "people", "GPE": "", "a|b": "both"}
    assert "- heads: 100.0 % correct, of 1 spans of several words" in text
    calibration = found.calibration
    brier = f"Brier score {calibration.brier:.3f}, of 3 entities"
    assert f"error {100 * calibration.error:.1f} %, {brier}" in text
    assert "Too rare in dev for their scores to mean much (20 entities or fewer): " in text
    assert text.endswith("Licence: cc-by-4.0.\n\nThanks.\n")
    text = str(card)
    assert "those of the recipe `default`, except:" in text
    assert "| `model.mlp_size` | 128 | 256 |" in text
    assert "encoder.path" not in text.split("## Settings")[1]  # no recipe without it
    assert "Encoder: encoder. Seed: 7." in text
    for recipe in ("default", "paper", "ablation/05-tree-two-stage"):
        other = Settings.read(recipe).with_overrides(["encoder.path=/home/me/encoder"])
        text = str(Card(other, ["PER"]))
        assert "but for" not in text
        assert "/home" not in text
    assert "`paper`" in str(Card(Settings.read("paper"), ["PER"]))


def test_models_without_trees_or_heads():
    recipes = ("default", "ablation/03-tree-one-stage", "ablation/01-unstructured-one-stage")
    cards = [str(Card(Settings.read(recipe), ["PER"])) for recipe in recipes]
    assert ["head word" in text for text in cards] == [True, False, False]
    assert ["never cross" in text for text in cards] == [True, True, False]


def test_local_encoders_are_no_base_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "encoders" / "mine").mkdir(parents=True)
    for path in ("encoders/mine", str(tmp_path / "encoders" / "mine")):
        card = Card(Settings.read("default").with_overrides([f"encoder.path={path}"]), ["PER"])
        assert ModelCard(str(card)).data.base_model is None
        assert "Encoder: mine." in str(card)


def test_fields():
    assert model_card.parse_fields(["note= a = b ", "label.x=y"]) == {"note": "a = b", "label.x": "y"}
    with pytest.raises(ConfigError, match=r"--card licence=mit: a card has no place .*mean license\?"):
        model_card.parse_fields(["licence=mit"])
    with pytest.raises(ConfigError, match=r"There are name, .*, note, label\.LABEL\.$"):
        model_card.parse_fields(["foo=1"])
    for nothing in ("license", "license= "):
        with pytest.raises(ConfigError, match=rf"^--card {nothing}: write KEY=VALUE, such as"):
            model_card.parse_fields([nothing])


def test_training_and_resuming_write_the_card(tiny_data, tmp_path):
    encoder, out = tiny.encoder(tmp_path / "encoder"), tmp_path / "model"
    recipe = tmp_path / "tiny.toml"
    changes = [f"encoder.path={encoder}", "training.epochs=12", "training.batch_words=40"]
    recipe.write_text(tiny.settings("default", *changes).to_toml())
    done = nestree("train", "--train", tiny_data, "--dev", tiny_data, "--test", tiny_data, "--out", out,
                   "--config", recipe, "--device", "cpu", "--card", "language=en")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    text = (out / "README.md").read_text()
    first = ModelCard(text).data
    assert (first.license, first.language) == ("unknown", "en")
    assert {result.dataset_name for result in first.eval_results} == {"data.jsonl"}
    assert "### dev, 8 sentences" in text
    assert "### test, 8 sentences" in text
    assert text.count("- probabilities: expected calibration error ") == 2  # on dev and on test
    scores = json.loads((out / "training" / "scores.json").read_text())
    f1 = {r.dataset_split: r.metric_value for r in first.eval_results if r.metric_type == "f1"}
    assert f1 == {part: round(scores[part]["entities"]["f1"], 4) for part in ("dev", "test")}
    assert str(tmp_path) not in text

    weights = (out / "weights.safetensors").read_bytes()
    fields = ["--card", "license=mit", "--card", "data=eight sentences"]
    succeed("train", "--resume", out, "--device", "cpu", *fields)
    again = ModelCard((out / "README.md").read_text()).data
    assert (again.license, again.language) == ("mit", "en")
    assert {result.dataset_name for result in again.eval_results} == {"eight sentences"}
    assert (out / "weights.safetensors").read_bytes() == weights
