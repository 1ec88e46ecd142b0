"""Recipes, overrides, bases, and the errors of wrong settings."""

import dataclasses
import re
import tomllib
from dataclasses import replace

import pytest

from nestree import checkpoint
from nestree.config import KINDS, RECIPES, Settings, recipe_names
from nestree.errors import ConfigError
from tests.tiny import write_text

ROWS = [name for name in recipe_names() if name.startswith("ablation/")]

# structure, mention, labeling, joint, head_sharing_penalty, method: the table of docs/model.md
TABLE = [
    ("none", "labels", "none", False, 0.0, "spans"),
    ("none", "yes-no", "span", False, 0.0, "spans"),
    ("plain", "labels", "none", False, 0.0, "viterbi"),
    ("lexical", "labels", "none", False, 0.0, "viterbi"),
    ("plain", "score", "span", False, 0.0, "viterbi"),
    ("lexical", "score", "span", False, 0.0, "viterbi"),
    ("lexical", "yes-no", "span", False, 0.0, "viterbi"),
    ("lexical", "yes-no", "span", False, 0.0, "spans"),
    ("lexical", "yes-no", "span", False, 0.4, "viterbi"),
    ("lexical", "yes-no", "head", False, 0.0, "viterbi"),
    ("lexical", "yes-no", "head", False, 0.4, "viterbi"),
    ("lexical", "yes-no", "head", True, 0.4, "viterbi"),
]


def test_rows_of_the_ablation_differ_only_in_the_table():
    last = Settings.read(ROWS[-1])
    for name, row in zip(ROWS, TABLE, strict=True):
        structure, mention, labeling, joint, penalty, method = row
        values = {"structure": structure, "mention": mention, "labeling": labeling}
        model = replace(last.model, **values, normalize=structure != "none")
        loss = replace(last.loss, joint=joint, head_sharing_penalty=penalty)
        expected = replace(last, model=model, loss=loss, decoding=replace(last.decoding, method=method))
        assert Settings.read(name) == expected
    overrides = (
        "model.rotary=true model.head_prior=true loss.negative_sampling_rate=0.35 decoding.method=mbr "
        "decoding.threshold=0.4 decoding.tune=true decoding.head_prior_weight=2.0 decoding.head_sharing_penalty=2.0 "
        "training.rho=0.5 training.perturbation=sam training.epochs=10 training.cuda_graphs=true"
    )
    assert last.with_overrides(overrides.split()) == Settings.read("default")


def test_paper_and_release():
    assert recipe_names() == [*ROWS, "default", "paper", "release"]
    paper, release = Settings.read("paper"), Settings.read("release")
    assert (paper.training.beta2, paper.training.epsilon, paper.encoder.lstm_layers) == (0.9, 1e-12, 3)
    assert (paper.loss.joint, paper.model.rotary, paper.encoder.lstms) == (False, False, 1)
    assert release.training == paper.training
    assert (release.model.rotary, release.encoder.lstms, release.loss.hard_negatives) == (True, 4, 10)
    assert (release.loss.regularization_space, release.loss.entropy_weight) == ("gold", 1.0)


@pytest.mark.parametrize("name", recipe_names())
def test_round_trip_of_recipes(name, tmp_path):
    settings = Settings.read(name)
    (tmp_path / "config.toml").write_text(settings.to_toml(), encoding="utf-8")
    assert Settings.load(tmp_path / "config.toml") == Settings.read(tmp_path / "config.toml") == settings
    assert settings.to_toml().count("  # ") == sum(len(dataclasses.fields(kind)) for kind in KINDS.values())
    text = (RECIPES / f"{name}.toml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    if "base" not in tomllib.loads(text):
        assert text.endswith("\n\n" + settings.to_toml()), "notes and order as `as_toml` writes them"


def test_round_trip_of_odd_strings(tmp_path):
    settings = Settings.read("default").with_overrides(['encoder.path="a\\\\b \\"c\\" ünï\\u0007 #"'])
    assert settings.encoder.path == 'a\\b "c" ünï\x07 #'
    (tmp_path / "config.toml").write_text(settings.to_toml(), encoding="utf-8")
    assert Settings.load(tmp_path / "config.toml") == settings


def test_overrides_and_their_checks():
    overrides = ["epochs=3", "training.lr = 1", "encoder.path=some/folder", "loss.joint=false"]
    settings = Settings.read("default").with_overrides([*overrides, "decoding.head_sharing_penalty=-2"])
    assert (settings.training.epochs, settings.training.lr, settings.loss.joint) == (3, 1.0, False)
    assert type(settings.training.lr) is float
    assert (settings.encoder.path, settings.decoding.head_sharing_penalty) == ("some/folder", -2.0)
    assert Settings.read("default").with_overrides([]) == Settings.read("default")
    plain = ["model.structure=plain", "model.labeling=span", "model.head_prior=false", "loss.joint=false"]
    penalties = ["loss.head_sharing_penalty=0", "decoding.head_sharing_penalty=0"]
    Settings.read("default").with_overrides([*plain, *penalties])
    with pytest.raises(ConfigError, match=r'model\.labeling = "head" needs'):
        Settings.read("default").with_overrides(["model.structure=plain"])


@pytest.mark.parametrize("path", ["2024", "1e5", "true", "nan", "[a]", "2024-01-01", "my encoder"])
def test_strings_that_look_like_other_values(path):
    assert Settings.read("default").with_overrides([f"encoder.path={path}"]).encoder.path == path
    assert Settings.read("default").with_overrides([f'encoder.path="{path}"']).encoder.path == path


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epoch=3", r"no training\.epoch\. Did you mean training\.epochs\?"),
        ("trainig.epochs=3", r"no section trainig\. Did you mean training\?"),
        ("xyz.epochs=3", r"There are encoder, model, loss, decoding, training\."),
        ("dropout=0.3", r"several sections have this key\. Write encoder\.dropout or model\.dropout\."),
        ("batch_size=8", r"batch_size=8: no setting has this name\. Did you mean batch_words\?"),
        ("learning_rate=1e-3", r"Did you mean lr\?"),
        ("xyz=1", r"no setting has this name\. `nestree train --show-config` prints all of them\."),
        ("training.epochs", "write section.key=value"),
        ("training.=3", "write section.key=value"),
        (".epochs=3", "write section.key=value"),
        ("training.epochs=many", "training.epochs is 'many'; it must be a whole number"),
        ("training.epochs=2.5", "must be a whole number"),
        ("training.epochs=true", "must be a whole number"),
        ("training.lr=nan", "must be a number"),
        ("training.lr=true", "must be a number"),
        ("loss.joint=1", "must be true or false"),
        ("model.structure=tree", "one of 'none', 'plain', 'lexical'"),
        ("model.mention=[1]", "one of 'score', 'yes-no', 'labels'"),
        ("training.epochs=0", "must be 1 or more"),
        ("training.seed=99999999999999999999", "seed is 99999999999999999999; it must lie between 0"),
        ("encoder.context=-1", "encoder.context is -1; it must be 0 or more"),
        ("decoding.head_prior_weight=-1", r"head_prior_weight is -1.0; it must lie between 0 and 100\."),
        ("loss.head_sharing_penalty=-0.1", "loss.head_sharing_penalty is -0.1; it must lie between 0 and"),
        ("model.dropout=1", "must be 0 or more and less than 1"),
        ("training.epsilon=0", "must be 1e-30 or more"),
        ("encoder.lstms=2", "encoder.lstms is 2; it must be one of 1, 4"),
        ("encoder.lstms=true", "encoder.lstms is True; it must be one of 1, 4"),
        ("encoder.lstms=4", "encoder.lstms = 4 needs encoder.lstm_layers of 1 or more"),
        ("model.labeling=none", 'must be "span" or "head"'),
        ("model.mention=labels", 'must then be "none"'),
        ("model.labeling=span", "loss.joint needs"),
        ("model.mention=score", 'needs model.structure = "lexical" and model.mention = "yes-no"'),
        ("ablation/02-unstructured-two-stage: model.mention=score", "only ranks trees"),
        ("ablation/02-unstructured-two-stage: loss.head_sharing_penalty=0.4", "needs heads"),
        ("ablation/03-tree-one-stage: decoding.head_sharing_penalty=0.4", "needs heads"),
        ("release: model.mlp_size=301", "model.rotary needs an even model.mlp_size"),
        ("release: model.labeling=span", "all four kinds of scores"),
        ("ablation/02-unstructured-two-stage: loss.entropy_weight=1", "about trees"),
        ("ablation/02-unstructured-two-stage: decoding.method=viterbi", 'must be "spans" or "mbr"'),
        ("ablation/06-lexical-two-stage: decoding.method=spans", 'decoding.method = "spans" needs'),
        ("ablation/06-lexical-two-stage: loss.hard_negatives=10", "loss.hard_negatives needs"),
    ],
)
def test_wrong_values(override, message):
    recipe, override = override.rsplit(": ", 1) if ": " in override else ("default", override)
    with pytest.raises(ConfigError, match=message):
        Settings.read(recipe).with_overrides([override])


def test_numbers_are_finite_however_they_are_set():
    settings = Settings.read("default")
    for lr in (float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=rf"training\.lr is {lr}; it must be a number\."):
            replace(settings, training=replace(settings.training, lr=lr))


COMPLETE = Settings.read("default").to_toml()


def without(name: str) -> str:
    return "\n".join(line for line in COMPLETE.splitlines() if not line.startswith(name))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (without("epochs"), r'mine.toml: \[training\] lacks epochs. Add .* the file with base = "default"'),
        (without("[loss]"), "there is no model.joint"),
        (COMPLETE + "speed = 3\n", "there is no training.speed"),
        (COMPLETE + "average = 0.0\n", "there is no training.average"),
        (COMPLETE + "[extra]\na = 1\n", "there is no section extra"),
        ("loss = 3\n", r"the section \[encoder\] is missing"),
        (COMPLETE + "speed = \n", "this is not TOML"),
        (re.sub(r"epochs = \d+", "epochs = 0", COMPLETE), "mine.toml: training.epochs is 0"),
        ("base = 3\n" + COMPLETE, "base is 3; it must be the name of a recipe or of a file"),
        ('base = "defualt"\n', r"base of .*mine.toml: defualt: neither .* The recipes are .*default, paper"),
        ('base = "mine.toml"\n', r"base of .*mine.toml: mine.toml: it is a base of itself"),
        ('base = "default"\n[training]\nepoch = 3\n', r"Did you mean training\.epochs\?"),
        ('base = "default"\ntraining = 3\n', r"training is 3, and must be a section: \[training\]"),
    ],
)
def test_wrong_files(tmp_path, text, message):
    path = write_text(tmp_path / "mine.toml", text)
    with pytest.raises(ConfigError, match=message):
        Settings.read(path)


def test_numbers_that_toml_would_write_otherwise():
    assert Settings.read("default").with_overrides(["training.rho=.5", "lr=2."]).training.rho == 0.5


def test_a_byte_order_mark_is_no_error(tmp_path):
    path = write_text(tmp_path / "mine.toml", '\ufeffbase = "paper"\n')
    assert Settings.read(path) == Settings.read("paper")
    path = write_text(tmp_path / "config.toml", "\ufeff" + Settings.read("paper").to_toml())
    assert Settings.load(path) == Settings.read("paper")


@pytest.mark.parametrize(
    ("recipe", "meant"),
    [("12-joint", "ablation/12-joint"), ("default.toml", "default"), ("mine", r"mine\.toml")],
)
def test_recipes_by_almost_their_names(tmp_path, monkeypatch, recipe, meant):
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "mine.toml", 'base = "default"\n')
    with pytest.raises(ConfigError, match=rf"{recipe}: neither a TOML file .* Did you mean {meant}\?"):
        Settings.read(recipe)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "mine.toml").write_bytes('base = "default"\n# Müller\n'.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"mine\.toml:2: byte 0xfc is not UTF-8\. Convert the file to UTF-8\."):
        Settings.read(tmp_path / "mine.toml")
    for name in (tmp_path, "defualt"):
        with pytest.raises(ConfigError, match=r"neither a TOML file .* The recipes are .*default, paper"):
            Settings.read(name)


def test_bases_of_files(tmp_path):
    """A base is a file beside the one that names it, or a recipe; bases may have bases."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "first.toml").write_text('base = "default"\n[training]\nepochs = 3\nlr = 1.0\n')
    (tmp_path / "sub" / "second.toml").write_text('base = "../first.toml"\n[training]\nlr = 2.0\n')
    settings = Settings.read(tmp_path / "sub" / "second.toml")
    assert settings == Settings.read("default").with_overrides(["training.epochs=3", "training.lr=2"])
    (tmp_path / "first.toml").write_text('base = "sub/second.toml"\n')
    with pytest.raises(ConfigError, match=r"base of itself, by way of .*first.toml, .*second.toml"):
        Settings.read(tmp_path / "sub" / "second.toml")


def test_settings_of_a_model_are_complete(tmp_path):
    (tmp_path / "config.toml").write_text('base = "default"\n')
    with pytest.raises(ConfigError, match="there is no section base"):
        Settings.load(tmp_path / "config.toml")
    with pytest.raises(ConfigError, match=r"cannot be read: .* Fetch or train the model again"):
        Settings.load(tmp_path / "absent.toml")
    bundled = checkpoint.bundled_model()
    checkpoint.check_manifest(bundled)
    assert (bundled / "config.toml").read_text() == Settings.load(bundled / "config.toml").to_toml()
