"""The model card: README.md of a model directory, with the metadata that the Hugging Face hub reads.

Its numbers come from the training data and from the evaluation at the end of training. What only a person can know
(name, licence, attribution) comes from `--card KEY=VALUE`; without it, the card says that it is missing. The text is
in model_card.md.jinja.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from nestree import __version__
from nestree.config import Settings, check_name, recipe_names
from nestree.data.statistics import Statistics, as_markdown, count
from nestree.display import escape_markdown
from nestree.errors import ConfigError
from nestree.evaluation import Evaluation
from nestree.types import Document, Sentence

FIELDS = {
    "name": "what the model is called",
    "license": "of the model, as the hub writes licences: apache-2.0, cc-by-4.0, other",
    "language": "of the texts, as the hub writes it: en, de",
    "data": "what it was trained on",
    "note": "attribution, and whatever else people should know, in Markdown",
}
LABEL_FIELD = "label."  # label.person=... describes the label `person`
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # OWNER/NAME
TAGS = ["named-entity-recognition", "nested-named-entity-recognition", "entity-heads", "tree-crf"]
METRICS = ["precision", "recall", "f1"]
NOT_IN_RECIPES = ("encoder.path", "training.seed")
RARE_COUNT = 20  # gold entities of a label, or fewer: its score is not reliable


@dataclass(frozen=True)
class Card:
    """What a card says; parts without values are left out."""

    settings: Settings
    labels: Sequence[str]
    about: Mapping[str, str] = field(default_factory=dict)  # by the keys of FIELDS, and label.LABEL
    statistics: Mapping[str, Statistics] = field(default_factory=dict)  # of train and dev
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)  # on dev, and on test
    training: str = ""  # a sentence about it

    def __str__(self) -> str:
        """The card in Markdown."""
        from huggingface_hub import EvalResult, ModelCard, ModelCardData

        name, encoder = self.about.get("name", "a nestree model"), self.settings.encoder.path
        results = [
            EvalResult(
                task_type="token-classification",
                task_name="nested named entity recognition",
                dataset_type="custom",
                dataset_name=self.about.get("data", "not named"),
                dataset_split=part,
                metric_type=metric,
                metric_value=round(getattr(evaluation.entities, metric), 4),
            )
            for part, evaluation in self.evaluations.items()
            for metric in METRICS
        ]
        data = ModelCardData(
            library_name="nestree",
            pipeline_tag="token-classification",
            license=self.about.get("license", "unknown"),
            language=self.about.get("language"),
            base_model=encoder if HUB_NAME.fullmatch(encoder) and not Path(encoder).exists() else None,
            tags=TAGS,
            metrics=METRICS,
            model_name=name if results else None,
            eval_results=results or None,
        )
        structure = self.settings.model.structure
        location = name if HUB_NAME.fullmatch(name) else "THIS_DIRECTORY"
        first = next(iter(self.evaluations.values()), None)
        changes = {recipe: changed_settings(self.settings, recipe) for recipe in recipe_names()}
        nearest = min(changes, key=lambda recipe: (len(changes[recipe]), "/" in recipe))
        card = ModelCard.from_template(
            data,
            template_str=files("nestree").joinpath("model_card.md.jinja").read_text("utf-8"),
            card=self,
            name=name,
            version=__version__,
            descriptions=[
                (escape_markdown(label), self.about[LABEL_FIELD + label])
                for label in self.labels
                if LABEL_FIELD + label in self.about
            ],
            escape=escape_markdown,
            heads=structure == "lexical",
            trees=structure != "none" and self.settings.decoding.method != "spans",
            location=location,
            quoted_location=json.dumps(location, ensure_ascii=False),
            statistics_table=as_markdown(self.statistics) if self.statistics else "",
            rare_count=RARE_COUNT,
            rare_labels=[escape_markdown(x) for x, s in first.labels.items() if s.gold <= RARE_COUNT] if first else [],
            encoder=Path(encoder).name,
            recipe=nearest,
            changes=changes[nearest],
        )
        return str(card) + "\n"


def parse_fields(arguments: Iterable[str]) -> dict[str, str]:
    """The fields of a card from KEY=VALUE arguments.

    >>> parse_fields(["license=cc-by-4.0"])
    {'license': 'cc-by-4.0'}
    """
    fields = {}
    for argument in arguments:
        key, value = (part.strip() for part in argument.partition("=")[::2])
        if not value:
            raise ConfigError(f"--card {argument}: write KEY=VALUE, such as --card license=cc-by-4.0.")
        if not key.startswith(LABEL_FIELD):
            check_name(key, [*FIELDS, f"{LABEL_FIELD}LABEL"], f"--card {argument}: a card has no place for {key!r}.")
        fields[key] = value
    return fields


def count_statistics(sentences: Iterable[Sentence]) -> Statistics:
    """The statistics of sentences without documents."""
    return count([Document(tuple(sentences))])


def label_descriptions(card: str, labels: Iterable[str]) -> dict[str, str]:
    """The labels, each with the description that the card gives it, or an empty string.

    >>> label_descriptions("- **person**: people, also fictional ones", ["person", "place"])
    {'person': 'people, also fictional ones', 'place': ''}
    """
    lines = dict(line[4:].split("**: ", 1) for line in card.splitlines() if line.startswith("- **") and "**: " in line)
    return {label: lines.get(escape_markdown(label), "") for label in labels}


def changed_settings(settings: Settings, recipe: str) -> dict[str, tuple[object, object]]:
    """The settings that differ from the recipe: the value here, and that of the recipe."""
    ours, theirs = dataclasses.asdict(settings), dataclasses.asdict(Settings.read(recipe))
    return {
        f"{section}.{key}": (value, theirs[section][key])
        for section, values in ours.items()
        for key, value in values.items()
        if value != theirs[section][key] and f"{section}.{key}" not in NOT_IN_RECIPES
    }
