"""Settings: everything that makes one model differ from another, read from TOML.

A recipe names every key, or names a `base`, another recipe or file, and the keys that differ from it. An unknown key
is an error that names the nearest one. The command line changes single keys (`--set section.key=value`); code changes
them with `dataclasses.replace`. The complete settings are saved with every model.

>>> settings = Settings.read("default").with_overrides(["model.mlp_size=128", "encoder.path=./my-encoder"])
>>> settings.model.mlp_size, settings.encoder.path
(128, './my-encoder')
>>> settings.with_overrides(["model.sise=128"])
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
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from nestree.errors import ConfigError, InputError

RECIPES = Path(__file__).resolve().parent / "configs"
LARGEST_SCORE = 1e6  # far below what float32 holds, and below the magnitude of an impossible score


def key(note: str, least: float | None = None, most: float | None = None, below: float | None = None) -> Any:
    """A key without a default; the note is written beside it in every complete file."""
    return dataclasses.field(metadata={"note": note, "least": least, "most": most, "below": below})


@dataclass(frozen=True)
class EncoderSettings:
    """How words become vectors."""

    path: str = key("folder or hub name of a Hugging Face encoder")
    context: int = key("words of context on either side of a sentence; 0: none", least=0)
    mix_layers: int = key("number of last layers in the scalar mix", least=1)
    dropout: float = key("locked dropout on word vectors", least=0, below=1)
    word_shape_size: int = key("size of the word-shape embedding (Capital, UPPER, digits); 0: none", least=0)
    word_vectors: str = key('file of static word vectors, GloVe text or .npy; "": none')
    lstm_layers: int = key("layers of the BiLSTM; 0: none", least=0)
    lstm_size: int = key("size of the BiLSTM, per direction", least=1)
    lstm_dropout: float = key("locked dropout before each BiLSTM layer", least=0, below=1)
    lstms: Literal[1, 4] = key("1: one BiLSTM for all scores; 4: one each for spans, arcs, label ends, label heads")


@dataclass(frozen=True)
class ModelSettings:
    """What is scored."""

    structure: Literal["none", "plain", "lexical"] = key("trees: none, plain, or lexical (with heads)")
    mention: Literal["score", "yes-no", "labels"] = key("span scores of stage one")
    labeling: Literal["none", "span", "head"] = key("what stage two classifies: nothing, spans, or spans with heads")
    mlp_size: int = key("size of the MLPs for spans and arcs", least=1)
    label_mlp_size: int = key("size of the MLPs for labels", least=1)
    rank: int = key("rank of the triaffine label scorer; 0: full tensor", least=0)
    head_prior: bool = key("learn which words head entities from their word embeddings alone")
    dropout: float = key("locked dropout after the MLPs", least=0, below=1)
    normalize: bool = key("normalize the scores of each sentence to mean 0 and standard deviation 1")
    rotary: bool = key("rotary position embeddings in the biaffine scorers")


@dataclass(frozen=True)
class LossSettings:
    """What is minimized."""

    joint: bool = key("one likelihood of entities and labels instead of separate tree and label losses")
    label: Literal["ranking", "sigmoid", "softmax"] = key("label loss; softmax: one label per span")
    gold_heads: bool = key("learn the heads of entities where they are annotated; false: heads are latent")
    hard_negatives: int = key(
        "spans per sentence in the label loss, gold plus most likely false ones; 0: gold only", least=0
    )
    head_sharing_penalty: float = key(
        "c: penalty of a gold entity whose head also heads a larger span; 0: none", least=0, most=LARGEST_SCORE
    )
    regularization_space: Literal["all", "gold"] = key("trees that head regularization sums over")
    entropy_weight: float = key(
        "weight of the tree entropy, which is maximized; 0: none; slow", least=0, most=LARGEST_SCORE
    )
    negative_sampling_rate: float = key("spans per word sampled as negatives in incomplete sentences; 0: none", least=0)


@dataclass(frozen=True)
class DecodingSettings:
    """How scores become entities."""

    method: Literal["viterbi", "mbr", "spans"] = key(
        "viterbi: best tree; mbr: highest expected F1; spans: each span alone, entities may cross"
    )
    threshold: float = key("lowest probability of an entity; 0: any", least=0, below=1)
    tune: bool = key("choose method and threshold by dev F1")
    non_entity_bias: float = key("added to the score of `no`", least=-LARGEST_SCORE, most=LARGEST_SCORE)
    head_sharing_penalty: float = key("c in decoding; may be negative", least=-LARGEST_SCORE, most=LARGEST_SCORE)
    head_prior_weight: float = key("weight of model.head_prior when heads are chosen; 0: none", least=0, most=100)


@dataclass(frozen=True)
class TrainingSettings:
    """How it is minimized."""

    seed: int = key("random seed", least=0, most=2**63 - 1)
    epochs: int = key("passes over the training data", least=1)
    batch_words: int = key("words in a batch", least=1)
    gradient_accumulation: int = key("batches per update", least=1)
    encoder_lr: float = key("peak learning rate of the encoder", least=0)
    lr: float = key("peak learning rate of all other parameters", least=0)
    warmup_epochs: float = key("epochs of linear warmup; then linear decay to 0", least=0)
    weight_decay: float = key("of AdamW", least=0)
    beta2: float = key("of AdamW", least=0, below=1)
    epsilon: float = key("of AdamW", least=1e-30)
    rho: float = key("size of the SAM or FGM perturbation; 0: none", least=0)
    perturbation: Literal["fgm", "sam"] = key("fgm: subword embeddings; sam: all encoder weights")
    cuda_graphs: bool = key("replay CUDA graphs on a GPU: faster, more memory")
    early_stopping_patience: int = key("epochs without a better dev F1 before training stops; 0: never", least=0)
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
        check_combinations(self)

    @classmethod
    def read(cls, recipe: str | Path) -> "Settings":
        """The settings of a file, or of a recipe of nestree, such as "default" or "ablation/12-joint"."""
        return from_values(read_values(recipe, Path(), []), str(recipe))

    @classmethod
    def load(cls, path: Path) -> "Settings":
        """The settings of a model, which are complete: no `base`."""
        try:
            text = path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
        except (OSError, UnicodeDecodeError) as why:
            raise ConfigError(f"{path} cannot be read: {why}. Fetch or train the model again.") from why
        return from_values(parse_toml(text, str(path)), str(path))

    def with_overrides(self, overrides: Iterable[str]) -> "Settings":
        """These settings with overrides of the form section.key=value, as the command line takes them.

        A key that only one section has may stand without its section. The values are checked when all are set.
        """
        values = dataclasses.asdict(self)
        for override in overrides:
            section, key, text = split_override(override)
            is_bare = SECTIONS[section][key] is str and not text.startswith(('"', "'"))
            values[section][key] = text if is_bare else parse_value(text)
        return from_values(values, "--set")

    def to_toml(self) -> str:
        """The complete file."""
        parts = []
        for section in SECTIONS:
            values = getattr(self, section)
            # JSON and TOML write strings, numbers and booleans alike.
            lines = {
                f"{field.name} = {json.dumps(getattr(values, field.name), ensure_ascii=False, allow_nan=False)}": field
                for field in dataclasses.fields(values)
            }
            width = min(28, max(map(len, lines)))
            body = [f"{line:{width}}  # {field.metadata['note']}" for line, field in lines.items()]
            parts.append("\n".join([f"[{section}]", *body]))
        return "\n\n".join(parts) + "\n"


KINDS: dict[str, type] = get_type_hints(Settings)
SECTIONS: dict[str, dict[str, Any]] = {section: get_type_hints(kind) for section, kind in KINDS.items()}


NAMES_ELSEWHERE = {
    "lr": "learning_rate",
    "epochs": "num_epochs num_train_epochs",
    "batch_words": "batch_size",
    "out": "output output_dir output_path save_dir folder path",
    "train": "train_data train_file train_path training_data",
    "dev": "dev_data valid validation eval_data",
    "test": "test_data",
    "encoder": "model model_name",
    "config": "settings recipe",
}
OTHER_NAMES = {other: ours for ours, names in NAMES_ELSEWHERE.items() for other in names.split()}


def recipe_names() -> list[str]:
    """The names of the recipes that come with nestree."""
    return [path.relative_to(RECIPES).with_suffix("").as_posix() for path in sorted(RECIPES.rglob("*.toml"))]


def read_values(recipe: str | Path, folder: Path, chain: list[Path]) -> dict[str, Any]:
    """The sections of a file, in `folder` unless its path is absolute, or of a recipe, on top of those of its base.

    `chain` lists the files that name this one as their base.
    """
    path = folder / recipe
    if not path.is_file():
        path = RECIPES / f"{recipe}.toml"
    place = f"base of {chain[-1]}: {recipe}" if chain else str(recipe)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as why:
        line, byte = why.object.count(b"\n", 0, why.start) + 1, why.object[why.start]
        raise ConfigError(f"{place}:{line}: byte {byte:#04x} is not UTF-8. Convert the file to UTF-8.") from why
    except OSError as why:
        names, name = recipe_names(), str(recipe).removesuffix(".toml")
        near = [known for known in names if f"/{known}".endswith(f"/{name}")]
        near += [f"{recipe}.toml"] if (folder / f"{recipe}.toml").is_file() else []
        advice = f"Did you mean {' or '.join(near)}?" if near else f"The recipes are {', '.join(names)}."
        raise ConfigError(f"{place}: neither a TOML file that can be read nor a recipe. {advice}") from why
    chain = [*chain, path.resolve()]
    if chain[-1] in chain[:-1]:
        raise ConfigError(f"{place}: it is a base of itself, by way of {', '.join(map(str, chain[1:]))}.")
    values = parse_toml(text, place)
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise ConfigError(f"{place}: base is {base!r}; it must be the name of a recipe or of a file.")
    merged = read_values(base, path.parent, chain)
    for section, changes in values.items():
        below = merged.get(section, {})
        both = isinstance(changes, Mapping) and isinstance(below, Mapping)
        merged[section] = {**below, **changes} if both else changes
    return merged


def split_override(override: str) -> tuple[str, str, str]:
    """The section, the key and the text of the value.

    >>> split_override("epochs = 3")
    ('training', 'epochs', '3')
    """
    name, equals, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and section and (key or not dot)):
        raise ConfigError(f"{override}: write section.key=value, such as training.epochs=20.")
    return *find_setting(name.strip(), override, "."), text.strip()


def find_setting(name: str, given: str, separator: str, others: Iterable[str] = ()) -> tuple[str, str]:
    """The section and the key of a setting. Errors begin with `given`, and may suggest `others`, too."""
    section, has_section, key = name.partition(separator)
    if not has_section:
        key, owners = name, [owner for owner, keys in SECTIONS.items() if name in keys]
        if len(owners) > 1:
            names = " or ".join(f"{owner}{separator}{key}" for owner in owners)
            raise ConfigError(f"{given}: several sections have this key. Write {names}.")
        if not owners:
            every_key = [known for keys in SECTIONS.values() for known in keys]
            near = [OTHER_NAMES.get(key), *difflib.get_close_matches(key, every_key, 1, 0.5)]
            meant = next((name for name in near if name in (*every_key, *others)), "")
            advice = f"Did you mean {meant}?" if meant else "`nestree train --show-config` prints all of them."
            raise ConfigError(f"{given}: no setting has this name. {advice}")
        section = owners[0]
    check_name(section, SECTIONS, f"{given}: there is no section {section}.")
    check_name(key, SECTIONS[section], f"{given}: there is no {section}{separator}{key}.", f"{section}{separator}")
    return section, key


def parse_toml(text: str, place: str) -> dict[str, Any]:
    """The values of a TOML text; `place` names it in errors."""
    try:
        return tomllib.loads(text)
    except ValueError as why:  # raised for numbers of thousands of digits, too
        raise ConfigError(f"{place}: this is not TOML: {why}.") from why
    except RecursionError:
        raise ConfigError(f"{place}: values are nested too deeply; a recipe has sections of keys.") from None


def parse_value(text: str) -> Any:
    """The value of a TOML text; else a number that TOML would write otherwise, such as .5; else the text itself."""
    with suppress(ValueError, RecursionError):
        return tomllib.loads(f"value = {text}")["value"]
    with suppress(ValueError):
        return float(text)
    return text


def from_values(values: Mapping[str, Any], place: str) -> Settings:
    """Settings from sections of keys: every key must be there, and no other."""
    for section in values:
        check_name(section, SECTIONS, f"{place}: there is no section {section}.")
    sections = {}
    for section, hints in SECTIONS.items():
        keys = values.get(section)
        if keys is None:
            raise ConfigError(
                f'{place}: the section [{section}] is missing. Add it, or begin the file with base = "default".'
            )
        if not isinstance(keys, Mapping):
            raise ConfigError(f"{place}: {section} is {keys!r:.40}, and must be a section: [{section}].")
        for name in keys:
            check_name(name, hints, f"{place}: there is no {section}.{name}.", f"{section}.")
        missing = [name for name in hints if name not in keys]
        if missing:
            raise ConfigError(
                f"{place}: [{section}] lacks {', '.join(missing)}. Add what is missing, or begin the file with "
                'base = "default".'
            )
        typed = {name: check_type(keys[name], hints[name], f"{place}: {section}.{name}") for name in hints}
        sections[section] = KINDS[section](**typed)
    try:
        return Settings(**sections)
    except ConfigError as why:
        raise ConfigError(f"{place}: {why}") from None


def check_type(value: Any, hint: Any, place: str) -> Any:
    """The value, converted to float where that is expected; raise if its type is wrong."""
    if type(value) is int and value.bit_length() > 1000:
        raise ConfigError(
            f"{place} is a whole number of {value.bit_length():,} bits, and too large. Write a smaller one."
        )
    if get_origin(hint) is Literal:
        if (type(value), value) in [(type(choice), choice) for choice in get_args(hint)]:
            return value
        raise ConfigError(f"{place} is {value!r}; it must be one of {', '.join(map(repr, get_args(hint)))}.")
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
        raise ConfigError(f"{place} is {value!r}; it must be {names[hint]}.")
    return value


def check_name(name: str, names: Iterable[str], complaint: str, prefix: str = "") -> None:
    """Raise the complaint, with the nearest name, unless `name` is one of `names`."""
    names = list(names)
    if name in names:
        return
    near = difflib.get_close_matches(name, names, 1, 0.5)
    advice = f"Did you mean {prefix}{near[0]}?" if near else f"There are {', '.join(names)}."
    raise ConfigError(f"{complaint} {advice}")


def check_ranges(settings: Settings) -> None:
    """Raise if a number is out of the range of its key."""
    for section, kind in KINDS.items():
        for field in dataclasses.fields(kind):
            value = getattr(getattr(settings, section), field.name)
            least, most, below = (field.metadata[bound] for bound in ("least", "most", "below"))
            if isinstance(value, float) and not math.isfinite(value):
                rule = "must be a number"
            elif most is not None and not least <= value <= most:
                rule = f"must lie between {least:,} and {most:,}"
            elif below is not None and not least <= value < below:
                rule = f"must be {least} or more and less than {below}"
            elif least is not None and value < least:
                rule = f"must be {least} or more"
            else:
                continue
            raise ConfigError(f"{section}.{field.name} is {value}; it {rule}.")


def check_combinations(settings: Settings) -> None:
    """Raise if two settings contradict each other."""
    encoder, model, loss, decoding = settings.encoder, settings.model, settings.loss, settings.decoding
    has_trees, has_heads = model.structure != "none", model.structure == "lexical"
    by_head, yes_no = model.labeling == "head", model.mention == "yes-no"
    odd_sizes = model.mlp_size % 2 or (model.labeling == "span" and model.label_mlp_size % 2)
    problem = ""
    if model.mention == "labels" and model.labeling != "none":
        problem = 'model.mention = "labels" gives labels in stage one; model.labeling must then be "none".'
    elif model.mention != "labels" and model.labeling == "none":
        problem = f'model.mention = "{model.mention}" gives no labels; model.labeling must be "span" or "head".'
    elif model.mention == "score" and not has_trees:
        problem = 'model.mention = "score" only ranks trees; without trees it must be "yes-no" or "labels".'
    elif by_head and not (has_heads and yes_no):
        problem = 'model.labeling = "head" needs model.structure = "lexical" and model.mention = "yes-no".'
    elif encoder.lstms == 4 and not encoder.lstm_layers:
        problem = "encoder.lstms = 4 needs encoder.lstm_layers of 1 or more."
    elif encoder.lstms == 4 and not by_head:
        problem = 'encoder.lstms = 4 needs all four kinds of scores: model.labeling = "head".'
    elif model.head_prior and not has_heads:
        problem = 'model.head_prior is about heads, which only model.structure = "lexical" has.'
    elif model.rotary and odd_sizes:
        problem = "model.rotary needs an even model.mlp_size and, for labels of spans, model.label_mlp_size."
    elif loss.joint and not by_head:
        problem = 'loss.joint needs model.labeling = "head"; without heads it equals two losses.'
    elif (loss.head_sharing_penalty or decoding.head_sharing_penalty) and not has_heads:
        problem = 'head_sharing_penalty, in loss and decoding, needs heads: model.structure = "lexical".'
    elif loss.gold_heads and not has_heads:
        problem = 'loss.gold_heads needs heads: model.structure = "lexical".'
    elif loss.hard_negatives and not yes_no:
        problem = 'loss.hard_negatives needs model.mention = "yes-no".'
    elif loss.entropy_weight and not has_trees:
        problem = 'loss.entropy_weight is about trees; model.structure must not be "none".'
    elif decoding.method == "viterbi" and not has_trees:
        problem = 'decoding.method must be "spans" or "mbr" where model.structure is "none".'
    elif decoding.method == "spans" and model.mention == "score":
        problem = 'decoding.method = "spans" needs model.mention = "yes-no" or "labels".'
    if problem:
        raise ConfigError(problem)


def check_threshold(threshold: Any) -> None:
    """Raise unless this is a lowest probability of an entity, one for each label, or None."""
    values = {"threshold": 0 if threshold is None else threshold}
    if isinstance(threshold, Mapping):
        values = {f"threshold[{label!r}]": value for label, value in threshold.items()}
    for name, value in values.items():
        if isinstance(value, bool) or not (isinstance(value, Real) and 0 <= value < 1):  # type: ignore[operator]
            raise InputError(f"{name} is {value!r:.60}; it must be a number, 0 or more and less than 1.")
