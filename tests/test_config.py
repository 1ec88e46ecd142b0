"""Recipes are complete and say what they should; whatever is wrong with settings is said in a sentence."""

import dataclasses
import re
import tomllib

import pytest

from nestree import checkpoint
from nestree.config import RECIPES, SECTIONS, Settings, from_toml, recipes
from nestree.errors import ConfigError

ROWS = [name for name in recipes() if name.startswith("ablation/")]

# structure, mention, labelling, joint, sharing, tree: the table of docs/model.md
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


def test_rows_of_the_ablation_differ_in_what_the_table_says_and_in_nothing_else():
    found = [Settings.read(name) for name in ROWS]
    assert [
        (
            s.model.structure,
            s.model.mention,
            s.model.labeling,
            s.loss.joint,
            s.loss.head_sharing_penalty,
            s.decoding.method,
        )
        for s in found
    ] == TABLE
    named = ["structure", "mention", "labeling", "joint", "sharing", "by"]
    same = found[-1].changed([])
    for settings, row in zip(found, TABLE, strict=True):
        values = dict(zip(named, row, strict=True))
        trees = values["structure"] != "none"  # whose scores are normalised
        assert settings == dataclasses.replace(
            same,
            model=dataclasses.replace(
                same.model, normalize=trees, **{name: values[name] for name in named[:3]}
            ),
            loss=dataclasses.replace(
                same.loss, joint=values["joint"], head_sharing_penalty=values["sharing"]
            ),
            decoding=dataclasses.replace(same.decoding, method=values["by"]),
        )
    scores = ["model.rotary=true", "model.head_prior=true", "loss.negative_sampling_rate=0.35"]
    search = ["method=mbr", "threshold=0.4", "tune=true", "head_prior_weight=2.0", "head_sharing_penalty=2.0"]
    learning = ["rho=0.5", "perturbation=sam", "epochs=10", "cuda_graphs=true"]
    ours = found[-1].changed(
        [*scores, *(f"decoding.{each}" for each in search), *(f"training.{each}" for each in learning)]
    )
    assert ours == Settings.read("default")


def test_the_recipes():
    assert recipes() == [*ROWS, "default", "paper", "release"]
    paper, release = Settings.read("paper"), Settings.read("release")
    assert (paper.training.beta2, paper.training.epsilon, paper.encoder.lstm_layers) == (0.9, 1e-12, 3)
    assert not paper.loss.joint
    assert (release.loss.hard_negatives, release.loss.regularization_space, release.loss.entropy_weight) == (
        10,
        "gold",
        1.0,
    )
    assert release.training == paper.training
    assert (paper.model.rotary, paper.encoder.lstms) == (False, 1)
    assert (release.model.rotary, release.encoder.lstms) == (True, 4)
    genia = release.changed(["loss.head_sharing_penalty=0", "loss.label=softmax"])
    assert (genia.loss.head_sharing_penalty, genia.loss.label) == (0.0, "softmax")


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_comes_back_as_it_was_written(name):
    settings = Settings.read(name)
    assert from_toml(settings.as_toml(), "again") == settings
    text = (RECIPES / f"{name}.toml").read_text(encoding="utf-8")
    assert text.endswith("\n\n" + settings.as_toml()), "notes and order as `as_toml` writes them"
    assert text.startswith("# ")


def test_odd_strings_come_back():
    odd = Settings.read("default").changed(['encoder.path="a\\\\b \\"c\\" ünï\\u0007 #"'])
    assert odd.encoder.path == 'a\\b "c" ünï\x07 #'
    assert from_toml(odd.as_toml(), "again") == odd


def test_every_key_has_a_note():
    for kind in SECTIONS.values():
        assert all(field.metadata["note"] for field in dataclasses.fields(kind))


def test_changes():
    settings = Settings.read("default").changed(
        [
            "training.epochs=3",
            "training.lr = 1",
            "encoder.path=some/folder",
            "decoding.head_sharing_penalty=-2",
            "loss.joint=false",
        ]
    )
    assert settings.training.epochs == 3
    assert settings.training.lr == 1.0
    assert type(settings.training.lr) is float
    assert settings.encoder.path == "some/folder"
    assert settings.decoding.head_sharing_penalty == -2.0
    assert not settings.loss.joint
    assert Settings.read("default").changed([]) == Settings.read("default")


def test_changes_are_checked_together():
    Settings.read("default").changed(
        [
            "model.structure=plain",
            "model.labeling=span",
            "model.head_prior=false",
            "loss.joint=false",
            "loss.head_sharing_penalty=0",
            "decoding.head_sharing_penalty=0",
        ]
    )
    with pytest.raises(ConfigError, match=r'model\.labeling = "head" needs'):
        Settings.read("default").changed(["model.structure=plain"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("training.epoch=3", r"no training\.epoch\. Did you mean training\.epochs\?"),
        ("trainig.epochs=3", r"no section trainig\. Did you mean training\?"),
        ("xyz.epochs=3", r"There are encoder, model, loss, decoding, training\."),
        ("epochs=3", "write section.key=value"),
        ("training.epochs", "write section.key=value"),
        ("training.epochs=many", "training.epochs is 'many'; it must be a whole number"),
        ("training.epochs=2.5", "must be a whole number"),
        ("training.epochs=true", "must be a whole number"),
        ("training.lr=nan", "must be a number"),
        ("training.lr=true", "must be a number"),
        ("loss.joint=1", "must be true or false"),
        ("encoder.path=3", "must be a string"),
        ("model.structure=tree", "one of 'none', 'plain', 'lexical'"),
        ("model.mention=[1]", "one of 'score', 'yes-no', 'labels'"),
        ("training.epochs=0", "must be 1 or more"),
        ("training.seed=99999999999999999999", "training.seed is 99999999999999999999; it must be less than"),
        (
            "decoding.head_prior_weight=-1",
            r"decoding.head_prior_weight is -1; it must lie between 0 and 100\.",
        ),
        ("loss.head_sharing_penalty=-0.1", "loss.head_sharing_penalty is -0.1; it must be 0 or more"),
        ("model.dropout=1", "less than 1"),
        ("model.scale=0", "greater than 0"),
        ("encoder.lstms=2", "encoder.lstms is 2; it must be 1 or 4"),
        ("encoder.lstms=4", "encoder.lstms = 4 needs encoder.lstm_layers of 1 or more"),
        ("model.labeling=none", 'must be "span" or "head"'),
        ("model.mention=labels", 'must then be "none"'),
        ("model.labeling=span", "loss.joint needs"),
        ("model.mention=score", 'needs model.structure = "lexical" and model.mention = "yes-no"'),
    ],
)
def test_what_is_wrong_is_said(change, words):
    with pytest.raises(ConfigError, match=words):
        Settings.read("default").changed([change])


@pytest.mark.parametrize(
    ("recipe", "change", "words"),
    [
        ("ablation/02-unstructured-two-stage", "model.mention=score", "only ranks trees"),
        ("ablation/02-unstructured-two-stage", "loss.head_sharing_penalty=0.4", "needs heads"),
        ("ablation/03-tree-one-stage", "decoding.head_sharing_penalty=0.4", "needs heads"),
        ("release", "model.mlp_size=301", "model.mlp_size and model.label_mlp_size must be even"),
        ("release", "model.labeling=span", "all four kinds of scores"),
        ("ablation/02-unstructured-two-stage", "loss.entropy_weight=1", "about trees"),
        ("ablation/02-unstructured-two-stage", "decoding.method=viterbi", "decoding.method must be"),
        ("ablation/06-lexical-two-stage", "decoding.method=spans", 'decoding.method = "spans" needs'),
        ("ablation/06-lexical-two-stage", "loss.hard_negatives=10", "loss.hard_negatives needs"),
    ],
)
def test_what_does_not_go_together_is_refused(recipe, change, words):
    with pytest.raises(ConfigError, match=words):
        Settings.read(recipe).changed([change])


def without(text: str, name: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith(name))


def test_files(tmp_path):
    text = Settings.read("default").as_toml()
    path = tmp_path / "mine.toml"
    for changed, words in [
        (without(text, "epochs"), r"mine.toml: \[training\] lacks epochs; a recipe names every key"),
        (without(text, "[loss]"), "there is no model.joint"),
        (text + "speed = 3\n", "there is no training.speed"),
        (text + "[extra]\na = 1\n", "there is no section extra"),
        ("loss = 3\n", r"the section \[encoder\] is missing"),
        (text + "speed = \n", "this is not TOML"),
        (re.sub(r"epochs = \d+", "epochs = 0", text), "mine.toml: training.epochs is 0"),
    ]:
        assert changed != text
        path.write_text(changed, encoding="utf-8")
        with pytest.raises(ConfigError, match=words):
            Settings.read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="neither a TOML file"):
        Settings.read(path)
    with pytest.raises(ConfigError, match=r"defualt: neither .* The recipes are .*default, paper"):
        Settings.read("defualt")


def test_models_from_before_a_key_behave_as_they_did(tmp_path):
    text = Settings.read("ablation/12-joint").as_toml()
    path = tmp_path / "config.toml"
    path.write_text(without(without(text, "lstms"), "rotary"), encoding="utf-8")
    assert Settings.saved(path) == Settings.read(path) == Settings.read("ablation/12-joint")
    path.write_text(without(without(text, "rotary"), "epochs"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\[training\] lacks epochs"):
        Settings.saved(path)
    newer = Settings.read("release")
    path.write_text(newer.as_toml(), encoding="utf-8")
    assert Settings.saved(path) == newer


def test_tomls_are_readable_by_others():
    assert set(tomllib.loads((RECIPES / "default.toml").read_text(encoding="utf-8"))) == set(SECTIONS)


def test_recipes_are_installed_with_the_package():
    """What `pip install` copies beside the modules is said in pyproject.toml."""
    package = RECIPES.parent
    patterns = tomllib.loads((package.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["package-data"]["nestree"]
    copied = {path for pattern in patterns for path in package.glob(pattern)}
    assert set(RECIPES.rglob("*.toml")) <= copied


def test_a_file_of_an_earlier_nestree_is_read_as_it_was_meant(tmp_path):
    text = Settings.read("default").as_toml()
    older = tmp_path / "older.toml"
    older.write_text(
        "".join(line for line in text.splitlines(True) if not line.startswith("perturbation = "))
    )
    assert Settings.read(older) == Settings.read("default").changed(["training.perturbation=fgm"])
    box = Settings.read(checkpoint.bundled_model() / "config.toml")
    assert (box.training.rho, box.training.perturbation, box.loss.label) == (1.0, "fgm", "ranking")
