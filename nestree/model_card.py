"""The model card: what somebody who finds a model directory should know, with the fields that the hub reads on top.

Every number in it is one of the training itself: of its data, and of the evaluation at its end. What only a person
can know (a name, a licence, whom to thank) is given as `--card KEY=VALUE`; where it is not, the card says so.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nestree import __version__
from nestree.config import Settings, known, recipes
from nestree.data.statistics import Statistics, as_markdown
from nestree.errors import ConfigError
from nestree.evaluation import Evaluation, Score
from nestree.types import Sentence

ABOUT = {
    "name": "what the model is called",
    "license": "of the model, as the hub writes licences: apache-2.0, cc-by-4.0, other",
    "language": "of the texts, as the hub writes it: en, de",
    "data": "what it was trained on",
    "note": "attribution, and whatever else people should know, in Markdown",
}
TAGS = ["named-entity-recognition", "nested-named-entity-recognition", "entity-heads", "tree-crf"]
OWN = ("encoder.path", "training.seed")  # settings that make no recipe
SMALL_COUNT = 20  # entities of a label, or fewer, whose score is mostly chance


@dataclass(frozen=True)
class Card:
    """All that a card tells; what is not known is left out of it."""

    settings: Settings
    labels: Sequence[str]
    about: Mapping[str, str] = field(default_factory=dict)  # by the keys of ABOUT: what people say
    statistics: Mapping[str, Statistics] = field(default_factory=dict)  # of train and dev
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)  # on dev, and on test
    course: str = ""  # how training went, in a sentence

    def __str__(self) -> str:
        """The card in Markdown."""
        parts = [front_matter(self), opening(self), use(self)]
        parts += [*data(self), *scores(self), *limits(self), settings(self), licence(self)]
        return "\n\n".join(parts) + "\n"


def about(given: Iterable[str]) -> dict[str, str]:
    """What KEY=VALUE arguments say.

    >>> about(["license=cc-by-4.0"])
    {'license': 'cc-by-4.0'}
    """
    found = {}
    for each in given:
        key, _, value = each.partition("=")
        if not value.strip():
            raise ConfigError(f"--card {each}: write KEY=VALUE, such as --card license=cc-by-4.0.")
        known(key.strip(), ABOUT, f"--card {each}: a card has no place for {key.strip()!r}.")
        found[key.strip()] = value.strip()
    return found


def counted(sentences: Iterable[Sentence]) -> Statistics:
    """The statistics of sentences without documents."""
    found = Statistics()
    for sentence in sentences:
        found.add(sentence)
    return found


# What the hub reads


def front_matter(card: Card) -> str:
    lines = ["---", "library_name: nestree", "pipeline_tag: token-classification"]
    lines.append(f"license: {json.dumps(card.about.get('license', 'unknown'))}")
    if "language" in card.about:
        lines.append(f"language: {json.dumps(card.about['language'])}")
    encoder = card.settings.encoder.path
    if is_hub_name(encoder) and not Path(encoder).exists():
        lines.append(f"base_model: {json.dumps(encoder)}")
    lines += ["tags:", *(f"- {tag}" for tag in TAGS)]
    lines += ["metrics:", *(f"- {name}" for name in ("precision", "recall", "f1"))]
    if card.evaluations:
        lines += ["model-index:", f"- name: {json.dumps(name_of(card))}", "  results:"]
    for part, evaluation in card.evaluations.items():
        score = evaluation.entities
        lines += [
            "  - task:",
            "      type: token-classification",
            "      name: nested named entity recognition",
            "    dataset:",
            f"      name: {json.dumps(card.about.get('data', 'not named'), ensure_ascii=False)}",
            "      type: custom",
            f"      split: {part}",
            "    metrics:",
        ]
        for name in ("precision", "recall", "f1"):
            lines += [f"    - type: {name}", f"      value: {getattr(score, name):.4f}"]
    return "\n".join([*lines, "---"])


def is_hub_name(name: str) -> bool:
    """Could this be OWNER/NAME on the hub?

    >>> is_hub_name("sentence-transformers/all-MiniLM-L6-v2"), is_hub_name("./encoders/mine")
    (True, False)
    """
    return re.fullmatch(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", name) is not None


def name_of(card: Card) -> str:
    return card.about.get("name", "a nestree model")


# What people read


def opening(card: Card) -> str:
    heads = ", a head word" if card.settings.model.structure == "lexical" else ""
    trees = card.settings.model.structure != "none" and card.settings.decoding.method != "spans"
    tree = "A sentence is read as one tree, so entities never cross. " if trees else ""
    return (
        f"# {prose(name_of(card))}\n\n"
        f"Finds nested named entities: stretches of text that may contain each other, each with a label{heads} and a "
        f"probability. {tree}Made with nestree {__version__}.\n\n"
        f"Labels: {', '.join(prose(label) for label in card.labels)}."
    )


def use(card: Card) -> str:
    name = name_of(card)
    where = name if is_hub_name(name) else "THIS_DIRECTORY"
    return f"""## How to use it

```python
import nestree

ner = nestree.load({json.dumps(where, ensure_ascii=False)})
doc = ner("The president of the University of California met Iraqi army leaders.")
for entity in doc.entities:
    print(entity.text, entity.label, entity.score)
```

```bash
nestree predict text.txt --model {where}
nestree evaluate --model {where} gold.jsonl
```"""


def data(card: Card) -> list[str]:
    """What it was trained on."""
    if not card.statistics:
        return []
    lines = ["## Data", ""]
    if "data" in card.about:
        lines += [f"{prose(card.about['data'])}.".replace("..", "."), ""]
    for part, found in card.statistics.items():
        share = f"{100 * found.nested_entities / found.entities:.1f} %" if found.entities else "none"
        lines.append(
            f"- {part}: {found.sentences:,} sentences, {found.entities:,} entities, {share} of them nested"
        )
    return ["\n".join([*lines, "", as_markdown(card.statistics)])]


def scores(card: Card) -> list[str]:
    """How good it is."""
    if not card.evaluations:
        return []
    parts = [f"## Scores\n\nAn entity is right if start, end and label are. {card.course}".strip()]
    for part, evaluation in card.evaluations.items():
        lines = [f"### {part}, {evaluation.sentences:,} sentences", ""]
        lines += ["| | gold | predicted | P | R | F1 |", "|---|---:|---:|---:|---:|---:|"]
        lines.append(row("**all**", evaluation.entities))
        lines += [row(prose(label), score) for label, score in evaluation.labels.items()]
        lines += [row(f"*{name}*", score) for name, score in evaluation.nesting.items()]
        heads, calibration = evaluation.heads, evaluation.calibration
        more = []
        if heads and heads.accuracy is not None:
            more.append(
                f"- heads: {100 * heads.accuracy:.1f} % right, of {heads.judged:,} spans of several words"
            )
        if calibration:
            more.append(
                f"- probabilities: expected calibration error {100 * calibration.error:.1f} %, Brier score "
                f"{calibration.brier:.3f}, of {calibration.scored:,} entities"
            )
        parts.append("\n".join([*lines, *([""] if more else []), *more]))
    return parts


def row(name: str, score: Score) -> str:
    numbers = (f"{100 * value:.2f}" for value in (score.precision, score.recall, score.f1))
    return f"| {name} | {score.gold:,} | {score.predicted:,} | {' | '.join(numbers)} |"


def limits(card: Card) -> list[str]:
    """What not to expect."""
    if not card.evaluations:
        return []
    lines = [
        "## Limits",
        "",
        "- It knows these labels and no others, in the sense in which its data uses them.",
        "- Its scores are of text like its data. On other text expect less, and measure: `nestree evaluate`.",
    ]
    if "dev" in card.evaluations:
        lines.append("- Its best epoch was chosen by the scores on dev, so these are a little too good.")
    part, evaluation = next(iter(card.evaluations.items()))
    rare = [prose(label) for label, score in evaluation.labels.items() if score.gold <= SMALL_COUNT]
    if rare:
        lines.append(
            f"- Too rare in {part} for their scores to mean much ({SMALL_COUNT} entities or fewer): {', '.join(rare)}."
        )
    return ["\n".join(lines)]


def settings(card: Card) -> str:
    """By what it differs from the nearest recipe."""
    near = min(recipes(), key=lambda recipe: (len(made_otherwise(card.settings, recipe)), "/" in recipe))
    other = made_otherwise(card.settings, near)
    lines = ["## Settings", "", f"Encoder: {Path(card.settings.encoder.path).name}. "]
    lines[-1] += f"Seed: {card.settings.training.seed}. All settings are in `config.toml`. "
    lines[-1] += f"They are those of the recipe `{near}`" + (", but for:" if other else ".")
    if other:
        lines += ["", "| setting | here | recipe |", "|---|---|---|"]
        lines += [f"| `{key}` | {prose(str(a))} | {prose(str(b))} |" for key, (a, b) in other.items()]
    return "\n".join(lines)


def made_otherwise(settings: Settings, recipe: str) -> dict[str, tuple[object, object]]:
    """The keys whose values are not those of the recipe, with both."""
    here, there = (dataclasses.asdict(each) for each in (settings, Settings.read(recipe)))
    return {
        f"{section}.{key}": (value, there[section][key])
        for section, values in here.items()
        for key, value in values.items()
        if value != there[section][key] and f"{section}.{key}" not in OWN
    }


def licence(card: Card) -> str:
    lines = ["## Licence and attribution", ""]
    if "license" in card.about:
        lines.append(f"Licence: {prose(card.about['license'])}.")
    else:
        lines.append(
            "Nobody has stated a licence yet. Fill it in here and in the first lines of this file; those of the data "
            "and of the encoder have a say in it."
        )
    if "note" in card.about:
        lines += ["", card.about["note"]]
    return "\n".join(lines)


def prose(text: str) -> str:
    """Text in which Markdown finds nothing of its own, on one line.

    >>> prose("a|b*")
    'a\\\\|b\\\\*'
    """
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))
