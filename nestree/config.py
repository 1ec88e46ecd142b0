"""Settings: everything that makes one model differ from another, read from one complete TOML file.

A recipe names every key: what is missing or unknown is an error that names the nearest key. Values on the
command line change single keys; `as_toml` gives the file that is saved with a model.

>>> settings = Settings.read("default").changed(["model.mlp_size=128", "encoder.path=./my-encoder"])
>>> settings.model.mlp_size, settings.encoder.path
(128, './my-encoder')
>>> settings.changed(["model.sise=128"])
Traceback (most recent call last):
    ...
nestree.errors.ConfigError: model.sise=128: there is no model.sise. Did you mean model.mlp_size?
"""

import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from nestree.errors import ConfigError

RECIPES = Path(__file__).resolve().parent / "configs"


def key(note: str, before: Any = None) -> Any:
    """A key without a default; the note stands beside it in every file.

    `before`: if the key is newer than layout 1 of model directories, how models from before it behave.
    """
    return dataclasses.field(metadata={"note": note, "before": before})


@dataclass(frozen=True)
class EncoderSettings:
    """How words become vectors."""

    path: str = key("folder or hub name of a Hugging Face encoder")
    context: int = key("words of context on either side of a sentence; 0: none", before=0)
    mix_layers: int = key("number of last layers in the scalar mix")
    dropout: float = key("locked dropout on word vectors")
    word_shape_size: int = key("size of the word-shape embedding (Capital, UPPER, digits); 0: none")
    characters: int = key("size of the character features; 0: none")
    word_vectors: str = key('file of static word vectors, GloVe text or .npy; "": none')
    lstm_layers: int = key("layers of the BiLSTM; 0: none")
    lstm_size: int = key("size of the BiLSTM, per direction")
    lstm_dropout: float = key("locked dropout before each BiLSTM layer")
    lstms: int = key(
        "1: one BiLSTM for all scores; 4: one each for spans, arcs, label ends, label heads", before=1
    )


@dataclass(frozen=True)
class ModelSettings:
    """What is scored."""

    structure: Literal["none", "plain", "lexical"] = key("trees: none, plain, or lexical (with heads)")
    mention: Literal["score", "yes-no", "labels"] = key("span scores of stage one")
    labeling: Literal["none", "span", "head"] = key(
        "what stage two classifies: nothing, spans, or spans with heads"
    )
    mlp_size: int = key("size of the MLPs for spans and arcs")
    label_mlp_size: int = key("size of the MLPs for labels")
    rank: int = key("rank of the triaffine label scorer; 0: full tensor")
    head_prior: bool = key("learn which words head entities from their word embeddings alone", before=False)
    dropout: float = key("locked dropout after the MLPs")
    normalize: bool = key("normalize the scores of each sentence to mean 0 and standard deviation `scale`")
    scale: float = key("standard deviation of normalized scores")
    rotary: bool = key("rotary position embeddings in the biaffine scorers", before=False)


@dataclass(frozen=True)
class LossSettings:
    """What is minimized."""

    joint: bool = key("one likelihood of entities and labels instead of separate tree and label losses")
    label: Literal["ranking", "sigmoid", "softmax"] = key("label loss; softmax: one label per span")
    hard_negatives: int = key(
        "spans per sentence in the label loss, gold plus most likely false ones; 0: gold only"
    )
    head_sharing_penalty: float = key(
        "c: penalty of a gold entity whose head also heads a larger span; 0: none"
    )
    regularization_space: Literal["all", "gold"] = key("trees that head regularization sums over")
    entropy_weight: float = key("weight of the tree entropy, which is maximized; 0: none; slow")
    negative_sampling_rate: float = key(
        "spans per word sampled as negatives in incomplete sentences; 0: none", before=0.0
    )


@dataclass(frozen=True)
class DecodingSettings:
    """How scores become entities."""

    method: Literal["viterbi", "mbr", "spans"] = key(
        "viterbi: best tree; mbr: highest expected F1; spans: each span alone, entities may cross"
    )
    threshold: float = key("lowest probability of an entity; 0: any")
    tune: bool = key("choose method and threshold by dev F1 when training ends", before=False)
    non_entity_bias: float = key("added to the score of `no`")
    head_sharing_penalty: float = key("c in decoding; may be negative")
    head_prior_weight: float = key("weight of model.head_prior when heads are chosen; 0: none", before=0.0)


@dataclass(frozen=True)
class TrainingSettings:
    """How it is minimized."""

    seed: int = key("random seed")
    epochs: int = key("passes over the training data")
    batch_words: int = key("words in a batch")
    gradient_accumulation: int = key("batches per update")
    encoder_lr: float = key("peak learning rate of the encoder")
    layer_decay: float = key(
        "learning rate of each encoder layer relative to the layer above; 1: equal", before=1.0
    )
    lr: float = key("peak learning rate of all other parameters")
    warmup_epochs: float = key("epochs of linear warmup; then linear decay to 0")
    weight_decay: float = key("of AdamW")
    beta1: float = key("of AdamW")
    beta2: float = key("of AdamW")
    epsilon: float = key("of AdamW")
    clip_norm: float = key("largest gradient norm; 0: no clipping")
    rho: float = key("size of the SAM or FGM perturbation; 0: none", before=0.0)
    perturbation: Literal["fgm", "sam"] = key(
        "fgm: subword embeddings; sam: all encoder weights", before="fgm"
    )
    cuda_graphs: bool = key("replay CUDA graphs on a GPU: faster, more memory", before=False)
    early_stopping_patience: int = key("epochs without a better dev F1 before training stops; 0: never")
    average: float = key("decay of the moving average of the weights; 0: none")
    crossing: Literal["skip", "drop", "refuse"] = key("sentences whose gold entities cross")


@dataclass(frozen=True)
class Settings:
    """All settings of a model and its training."""

    encoder: EncoderSettings
    model: ModelSettings
    loss: LossSettings
    decoding: DecodingSettings
    training: TrainingSettings

    def __post_init__(self) -> None:
        check_ranges(self)
        check_fit(self)

    @classmethod
    def read(cls, recipe: str | Path) -> "Settings":
        """The settings of a file, or of a recipe of nestree, such as "default" or "ablation/12-joint"."""
        path = Path(recipe)
        own = not path.is_file()
        if own:
            path = RECIPES / f"{recipe}.toml"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as why:
            raise ConfigError(
                f"{recipe}: neither a TOML file that can be read nor a recipe. The recipes are "
                f"{', '.join(recipes())}."
            ) from why
        values = values_of(
            text, str(recipe)
        )  # a file may be of an earlier nestree, as the settings of a model are
        return from_values(values if own else with_later_keys(values), str(recipe))

    @classmethod
    def saved(cls, path: Path) -> "Settings":
        """The settings of a model; one that an earlier nestree made lacks the keys that came later."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as why:
            raise ConfigError(f"{path} cannot be read: {why}. Fetch or train the model again.") from why
        return from_values(with_later_keys(values_of(text, str(path))), str(path))

    def changed(self, changes: Iterable[str]) -> "Settings":
        """These settings with changes of the form section.key=value. They are checked when all are made."""
        values = dataclasses.asdict(self)
        for change in changes:
            name, equals, value = change.partition("=")
            section, dot, last = name.strip().partition(".")
            if not (equals and dot):
                raise ConfigError(f"{change}: write section.key=value, such as training.epochs=20.")
            known(section, SECTIONS, f"{change}: there is no section {section}.")
            known(
                last,
                [field.name for field in dataclasses.fields(SECTIONS[section])],
                f"{change}: there is no {section}.{last}.",
                f"{section}.",
            )
            values[section][last] = parsed(value.strip())
        return from_values(values, "--set")

    def as_toml(self) -> str:
        """The complete file."""
        parts = []
        for section, kind in SECTIONS.items():
            values = getattr(self, section)
            lines = [
                f"{field.name} = {written(getattr(values, field.name))}" for field in dataclasses.fields(kind)
            ]
            notes = [field.metadata["note"] for field in dataclasses.fields(kind)]
            wide = min(28, max(map(len, lines)))
            body = [f"{line:{wide}}  # {note}" for line, note in zip(lines, notes, strict=True)]
            parts.append("\n".join([f"[{section}]", *body]))
        return "\n\n".join(parts) + "\n"


SECTIONS: dict[str, type] = {
    field.name: get_type_hints(Settings)[field.name] for field in dataclasses.fields(Settings)
}


def recipes() -> list[str]:
    """The names of the recipes that come with nestree."""
    return [path.relative_to(RECIPES).with_suffix("").as_posix() for path in sorted(RECIPES.rglob("*.toml"))]


def from_toml(text: str, place: str) -> Settings:
    """The settings in the text of a file; `place` names it in errors."""
    return from_values(values_of(text, place), place)


def values_of(text: str, place: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as why:  # also for a number of thousands of digits
        raise ConfigError(f"{place}: this is not TOML: {why}.") from why
    except RecursionError:
        raise ConfigError(f"{place}: values are nested too deeply; a recipe has sections of keys.") from None


def with_later_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """These values and, where they lack a key that came later, what went without saying before it."""
    filled = dict(values)
    for section, kind in SECTIONS.items():
        if isinstance(values.get(section), Mapping):
            later = {field.name: field.metadata["before"] for field in dataclasses.fields(kind)}
            known = {name: value for name, value in later.items() if value is not None}
            filled[section] = {**known, **values[section]}
    return filled


def from_values(values: Mapping[str, Any], place: str) -> Settings:
    """Settings from sections of keys. Every key must be there, and no other."""
    for section in values:
        known(section, SECTIONS, f"{place}: there is no section {section}.")
    made = {}
    for section, kind in SECTIONS.items():
        given = values.get(section)
        if not isinstance(given, Mapping):
            raise ConfigError(f"{place}: the section [{section}] is missing; a recipe is complete.")
        hints = get_type_hints(kind)
        for name in given:
            known(name, list(hints), f"{place}: there is no {section}.{name}.", f"{section}.")
        missing = [name for name in hints if name not in given]
        if missing:
            raise ConfigError(
                f"{place}: [{section}] lacks {', '.join(missing)}; a recipe names every key. "
                f"Copy what is missing from {RECIPES / 'default.toml'}."
            )
        made[section] = kind(
            **{name: fitting(given[name], hint, f"{place}: {section}.{name}") for name, hint in hints.items()}
        )
    try:
        return Settings(**made)
    except ConfigError as why:
        raise ConfigError(f"{place}: {why}") from None


def fitting(value: Any, hint: Any, place: str) -> Any:
    """The value as the type that is asked for, if it is one of it."""
    if type(value) is int and value.bit_length() > 1000:
        raise ConfigError(
            f"{place} is a whole number of {value.bit_length():,} bits, and too large. Write a smaller one."
        )
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        raise ConfigError(f"{place} is {value!r}; it must be one of {', '.join(map(repr, get_args(hint)))}.")
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint or (hint is float and not math.isfinite(value)):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
        raise ConfigError(f"{place} is {value!r}; it must be {words[hint]}.")
    return value


def parsed(value: str) -> Any:
    """A value of the command line: as TOML reads it, or the string as it is."""
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return value


def written(value: Any) -> str:
    """A value as TOML writes it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)  # for our types, both write alike


def known(name: str, names: Iterable[str], complaint: str, prefix: str = "") -> None:
    """Raise unless the name is one of those."""
    names = list(names)
    if name in names:
        return
    near = difflib.get_close_matches(name, names, 1, 0.5)
    advice = f"Did you mean {prefix}{near[0]}?" if near else f"There are {', '.join(names)}."
    raise ConfigError(f"{complaint} {advice}")


# What fits

AT_LEAST: dict[str, float] = {
    "encoder.context": 0,
    "encoder.mix_layers": 1,
    "encoder.word_shape_size": 0,
    "encoder.characters": 0,
    "encoder.lstm_layers": 0,
    "encoder.lstm_size": 1,
    "model.mlp_size": 1,
    "model.label_mlp_size": 1,
    "model.rank": 0,
    "loss.hard_negatives": 0,
    "loss.head_sharing_penalty": 0,
    "loss.entropy_weight": 0,
    "loss.negative_sampling_rate": 0,
    "training.seed": 0,
    "training.epochs": 1,
    "training.batch_words": 1,
    "training.gradient_accumulation": 1,
    "training.encoder_lr": 0,
    "training.lr": 0,
    "training.warmup_epochs": 0,
    "training.weight_decay": 0,
    "training.clip_norm": 0,
    "training.rho": 0,
    "training.early_stopping_patience": 0,
}
SHARES = [
    "encoder.dropout",
    "encoder.lstm_dropout",
    "model.dropout",
    "training.beta1",
    "training.beta2",
    "training.average",
    "decoding.threshold",
]


SCORES = [
    "model.scale",
    "loss.head_sharing_penalty",
    "loss.entropy_weight",
    "decoding.non_entity_bias",
    "decoding.head_sharing_penalty",
]
LARGEST_SCORE = 1e6  # far from what float32 cannot hold, and from the score of what is impossible


def check_ranges(settings: Settings) -> None:
    """Raise if a number is too small or too large to mean anything."""

    def value(name: str) -> Any:
        section, last = name.split(".")
        return getattr(getattr(settings, section), last)

    for name, least in AT_LEAST.items():
        if value(name) < least:
            raise ConfigError(f"{name} is {value(name)}; it must be {least} or more.")
    if settings.training.seed >= 2**63:
        raise ConfigError(f"training.seed is {settings.training.seed}; it must be less than 2^63.")
    for name in SHARES:
        if not 0 <= value(name) < 1:
            raise ConfigError(f"{name} is {value(name)}; it must be 0 or more and less than 1.")
    if not 0 < settings.training.layer_decay <= 1:
        raise ConfigError(
            f"training.layer_decay is {settings.training.layer_decay}; it must be greater than 0 and at most 1."
        )
    for name in ("model.scale", "training.epsilon"):
        if value(name) <= 0:
            raise ConfigError(f"{name} is {value(name)}; it must be greater than 0.")
    for name in SCORES:
        if abs(value(name)) > LARGEST_SCORE:
            raise ConfigError(f"{name} is {value(name):g}; it must lie within {LARGEST_SCORE:,.0f} of 0.")
    if settings.encoder.lstms not in (1, 4):
        raise ConfigError(f"encoder.lstms is {settings.encoder.lstms}; it must be 1 or 4.")


def check_fit(settings: Settings) -> None:
    """Raise if two settings ask for something that does not exist."""
    model, loss, decoding = settings.model, settings.loss, settings.decoding
    one_stage = model.mention == "labels"
    refused = [
        (
            one_stage and model.labeling != "none",
            'model.mention = "labels" gives the labels in stage one; model.labeling must then be "none".',
        ),
        (
            not one_stage and model.labeling == "none",
            f'model.mention = "{model.mention}" finds spans without labels; '
            'model.labeling must be "span" or "head".',
        ),
        (
            model.mention == "score" and model.structure == "none",
            'model.mention = "score" only ranks trees; without a structure it must be "yes-no" or "labels".',
        ),
        (
            model.labeling == "head" and (model.structure != "lexical" or model.mention != "yes-no"),
            'model.labeling = "head" needs model.structure = "lexical" and model.mention = "yes-no".',
        ),
        (
            settings.encoder.lstms == 4 and (settings.encoder.lstm_layers == 0 or model.labeling != "head"),
            "encoder.lstms = 4 needs encoder.lstm_layers of 1 or more, and all four kinds of scores: "
            'model.labeling = "head".',
        ),
        (
            model.head_prior and model.structure != "lexical",
            'model.head_prior is about heads, which only model.structure = "lexical" has.',
        ),
        (
            not 0 <= decoding.head_prior_weight <= 100,
            f"decoding.head_prior_weight is {decoding.head_prior_weight:g}; it must lie between 0 and 100.",
        ),
        (
            model.rotary
            and bool(model.mlp_size % 2 or (model.labeling == "span" and model.label_mlp_size % 2)),
            "model.rotary turns dimensions in pairs; model.mlp_size and model.label_mlp_size must be even.",
        ),
        (
            loss.joint and model.labeling != "head",
            'loss.joint needs model.labeling = "head"; without heads it would be the same as two losses.',
        ),
        (
            (loss.head_sharing_penalty != 0 or decoding.head_sharing_penalty != 0)
            and model.structure != "lexical",
            'head_sharing_penalty, in loss and decoding, needs heads: model.structure must be "lexical".',
        ),
        (
            loss.hard_negatives != 0 and model.mention != "yes-no",
            'loss.hard_negatives needs model.mention = "yes-no".',
        ),
        (
            loss.entropy_weight != 0 and model.structure == "none",
            'loss.entropy_weight is about trees; model.structure must not be "none".',
        ),
        (
            decoding.method == "viterbi" and model.structure == "none",
            'decoding.method must be "spans" or "marginals" where model.structure is "none".',
        ),
        (
            decoding.method == "spans" and model.mention == "score",
            'decoding.method = "spans" needs model.mention = "yes-no" or "labels".',
        ),
    ]
    for wrong, why in refused:
        if wrong:
            raise ConfigError(why)
