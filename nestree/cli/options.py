"""The options that several commands share, each declared once.

A parameter of a command whose type is a dataclass, such as `Reading`, stands for the options of its fields:
`expand_options` makes them parameters of the command.
"""

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_origin, get_type_hints

import typer
from typer import Argument, Option

from nestree import __version__
from nestree.cli.runtime import set_quiet, set_verbose
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.data.io import ConversionReport
    from nestree.types import Document

PARTS = ("train", "dev", "test")
OutputFormat = Literal["text", "json"]
TableFormat = Literal["text", "markdown", "json"]


def print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"nestree {__version__}")
        raise typer.Exit


def choices(parameter: str) -> Iterable[str]:
    """The values of one of the parameters in COMPLETED."""
    from nestree.data.formats import FORMATS
    from nestree.text import SENTENCE_RULES, WORD_STYLES

    if parameter == "target_format":
        return [name for name, format in FORMATS.items() if format.writable]
    return {"words": WORD_STYLES, "sentences": SENTENCE_RULES}.get(parameter, tuple(FORMATS))


def complete(parameter: str) -> Callable[[str], list[str]]:
    """Shell completion with the values of this parameter."""
    return lambda incomplete: [name for name in choices(parameter) if name.startswith(incomplete)]


Version = Annotated[bool, Option("--version", callback=print_version, is_eager=True, help="Show the version.")]
Files = Annotated[list[Path], Argument(metavar="FILES", help="Files or folders; - is standard input.")]
Source = Annotated[Path, Argument(metavar="IN", help="A file or folder; - is standard input.")]
OutArgument = Annotated[Path | None, Argument(metavar="OUT", help="Where to write; the same as --out OUT.")]


class Opt(NamedTuple):
    """The help of an option, its metavar, the minimum of a number, and its name if it differs from the parameter's."""

    help: str
    metavar: str | None = None
    min: float | None = None
    name: str | None = None


# The options of all commands by the names of their parameters: the type and the default stand in the signatures.
OPTIONS = {
    "annotated": Opt("Annotated data, to measure the change in F1.", "FILE", name="--data"),
    "batch_size": Opt("Windows in a batch.", "N", 1),
    "batch_words": Opt("Words in a batch.", "N", 1),
    "budget": Opt("Words to annotate; with --partial, spans to ask about.", "N", 1),
    "by": Opt("Keep together: sentence or document. [default: document, if each has an id or a text]", "UNIT"),
    "card": Opt(
        "For the model card: name, license, language, data, note or label.LABEL; may be repeated.", "KEY=VALUE"
    ),
    "compare": Opt("A model or another prediction: is the difference significant?", "OTHER"),
    "config": Opt("A TOML file or a recipe. [default: default]", "RECIPE"),
    "criterion": Opt(
        "How to rank: f1-loss, entity-entropy, mnlp, tree-entropy or random; each per word.",
        "CRITERION",
        name="--by",
    ),
    "data": Opt("A folder with files called train, dev and test.", "DIR"),
    "data_sets": Opt("A folder with files called train, dev and test; may be repeated.", "NAME=DIR", name="--data"),
    "dev": Opt("Annotated data to choose the best epoch. [default: 15 % of --train]", "FILE"),
    "device": Opt("auto, cpu, cuda, cuda:N or mps.", "NAME"),
    "diversity": Opt("Choose different ones among the best: none, k-center or k-means.", "METHOD"),
    "drawn": Opt("How many sentences are drawn.", "N", 0, "--trees"),
    "duplicates": Opt("Count an entity as often as it is annotated, in the last line printed."),
    "encoder": Opt("The encoder: a folder or hub name. [default: that of the recipe]", "NAME"),
    "encoder_lr": Opt("Peak learning rate of the encoder.", "LR", 0),
    "epochs": Opt("Passes over the training data.", "N", 1),
    "exclude": Opt("Data that is annotated already; may be repeated.", "FILE"),
    "first": Opt("Show the first N sentences.", "N", 1),
    "format": Opt("How to print the result; json is for programs."),
    "gold": Opt("Annotated data, to measure the change in F1.", "FILE"),
    "hard": Opt("Learn only which entities the teacher finds in the texts."),
    "html": Opt("Write a page with plots and errors, too.", "FILE"),
    "in_order": Opt("Do not shuffle: the first part gets the first units."),
    "init": Opt("Start from this model of nestree.", "MODEL"),
    "int8": Opt("Weights in 8 bits."),
    "jobs": Opt("Runs at the same time.", "N", 1),
    "labels": Opt("Only entities with this label; may be repeated.", "LABEL", name="--label"),
    "lists": Opt("Instead of --parts: the ids of a part, one a line; may be repeated.", "NAME=FILE", name="--list"),
    "long_sentence": Opt("Report longer sentences.", "WORDS", 1),
    "longest_line": Opt("Read lines up to this length. [default: 64 MB]", "BYTES", 1),
    "lr": Opt("Peak learning rate of all parameters outside the encoder.", "LR", 0),
    "mask_rate": Opt("The share of the words that are masked and predicted.", "SHARE", 0),
    "max_body_bytes": Opt("Bytes of a request; more: 413.", "N", 1),
    "max_bytes": Opt("Read files that expand to this much. [default: 4 GB]", "BYTES", 1),
    "max_docbin_bytes": Opt("Read DocBins that expand to this much. [default: 512 MB]", "BYTES", 1),
    "max_nesting": Opt("Read sentences where this many entities share a word. [default: 100]", "N", 1),
    "max_request_words": Opt("Words of a request; more: 413.", "N", 1),
    "max_sentence_words": Opt("Read longer sentences in overlapping windows.", "WORDS", 4),
    "max_waiting_requests": Opt("Requests in the queue; more: 429.", "N", 1),
    "max_waiting_words": Opt("Words in the queue; more: 429.", "N", 1),
    "max_xml_depth": Opt("Read XML with elements nested this deep. [default: 1000]", "N", 1),
    "model": Opt("A folder, OWNER/NAME on the hub, or gum-minilm, the bundled model.", "MODEL"),
    "only": Opt("Show this document or sentence; may be repeated.", "ID"),
    "onnx": Opt("The folder to write.", "FOLDER"),
    "out": Opt("The file or folder to write.", "OUT"),
    "overrides": Opt("Change a setting; may be repeated.", "SECTION.KEY=VALUE", name="--set"),
    "parts": Opt("The parts and their shares. [default: train=80,dev=10,test=10]", "NAME=SHARE,..."),
    "partial": Opt("Ask only about the single spans in doubt."),
    "passes": Opt("How often all texts are read.", "N", 1),
    "penalties": Opt("Penalties on shared heads to decode with.", "C,...", name="--head-sharing-penalties"),
    "ray": Opt("Predict on a Ray cluster, HOST:PORT or auto; without an address, Ray is started here.", "[ADDRESS]"),
    "read": Opt("An option of the input format, such as ends=inclusive; may be repeated.", "NAME=VALUE"),
    "recipes": Opt("A TOML file or a recipe; may be repeated. [default: default]", "RECIPE", name="--config"),
    "repeat": Opt("Copies of --train in an epoch. [default: 4]", "N", 1),
    "resamples": Opt("Resamples for confidence intervals; 0: none.", "N", 0, "--bootstrap"),
    "rest": Opt("With --list: the part of what is in no list.", "NAME"),
    "resume": Opt("Continue an interrupted run.", "DIR"),
    "save_every": Opt("How often the state of training is saved. [default: 120]", "SECONDS", 0),
    "seed": Opt("The random seed: the same seed gives the same result.", "N", 0),
    "seeds": Opt("Each recipe is trained once with each.", "N,..."),
    "sentences": Opt("How text is split into sentences: rules, lines.", "RULE"),
    "show_all": Opt("Show all places, not only the first five.", name="--all"),
    "show_config": Opt("Print the complete settings as TOML, and do nothing else."),
    "skip_bad": Opt("Skip what cannot be read, and list it."),
    "source_format": Opt("The format of the data, if it is not detected.", "FORMAT", name="--from"),
    "stratify": Opt("Give each part its share of the entities of each label."),
    "strict": Opt("Exit with 1 for warnings, too."),
    "target_format": Opt("The format to write, if the name of OUT does not show it.", "FORMAT", name="--to"),
    "teacher": Opt("A model to learn from; may be repeated.", "MODEL"),
    "tensorboard": Opt("Write curves for TensorBoard, too."),
    "test": Opt("Annotated data to evaluate on at the end.", "FILE"),
    "threshold": Opt("The lowest probability of an entity, from 0 to less than 1.", "P"),
    "timeout": Opt("Seconds until an answer; longer: 504.", "SECONDS", 0.1),
    "train": Opt("Annotated data to learn from.", "FILE"),
    "tree": Opt("Draw the tree of each sentence; a page has them in any case."),
    "trees": Opt("Write the trees, too; only JSON lines can hold them."),
    "unit": Opt("What is ranked and annotated as a whole: sentence or document.", "UNIT"),
    "unlabelled": Opt("Texts for the teachers; may be repeated.", "FILES"),
    "window": Opt("Subwords that the encoder reads at once.", "N", 8),
    "words": Opt("How text is split into words: treebank, ud, split-hyphens, whitespace.", "STYLE"),
    "workers": Opt(
        "Processes that predict on a CPU; 0: threads, as fast on up to four cores. With --ray, actors; 0: all.",
        "N",
        0,
    ),
    "write": Opt("An option of the output format; may be repeated.", "NAME=VALUE"),
}
VALUES: dict[Any, tuple[str, Callable[[str], Any]]] = {  # of options of formats, by type
    bool: ("(?i)true|yes|1|false|no|0", lambda value: value.lower() in ("true", "yes", "1")),
    int: (r"-?\d{1,18}", int),
}
SHORT_NAMES = {"out": ("-o",), "html": ("--out", "-o"), "passes": ("--epochs",)}
COMPLETED = ("source_format", "target_format", "words", "sentences")


@dataclass(frozen=True)
class Verbosity:
    """-v and -q take effect in their callbacks, so they may stand before and after the name of the command."""

    verbose: Annotated[
        int,
        Option("--verbose", "-v", count=True, callback=set_verbose, show_default=False, help="Show the log."),
    ] = 0
    quiet: Annotated[bool, Option("--quiet", "-q", callback=set_quiet, help="Print only results and errors.")] = False


@dataclass(frozen=True)
class Reading:
    """How data is read, and limits on what a file may cost to read."""

    source_format: str | None = None
    words: str | None = None
    sentences: str | None = None
    read: list[str] | None = None
    longest_line: int | None = None
    max_bytes: int | None = None
    max_docbin_bytes: int | None = None
    max_xml_depth: int | None = None
    max_nesting: int | None = None

    def limits(self) -> AbstractContextManager[None]:
        """A context in which the limits hold."""
        from nestree.data.io import LIMIT_NAMES, limits

        return limits(**{name: value for name in LIMIT_NAMES if (value := getattr(self, name)) is not None})

    def options(self, format: str) -> dict[str, Any]:
        """--read, --words and --sentences as keyword arguments for the reader of this format."""
        from nestree.data.formats import options

        values = parse_options(self.read or (), format, "read")
        given = {"words": self.words, "sentences": self.sentences}
        for name, value in {name: value for name, value in given.items() if value is not None}.items():
            if value not in choices(name):
                raise InputError(f"--{name} {value}: choose one of {', '.join(choices(name))}.")
            if name not in options(format, "read"):
                raise InputError(f"--{name} {value}: {format} data has its own {name}. Leave this out.")
            values[name] = value
        return values

    def options_by_format(self, formats: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The options for each of several formats; empty if no option is given."""
        given = self.read or self.words or self.sentences
        return {format: self.options(format) for format in sorted(set(formats))} if given else {}

    def documents(
        self, path: Path, report: "ConversionReport | None" = None, **text_rules: str
    ) -> "Iterator[Document]":
        """The documents of a file or folder; `text_rules`: see `nestree.data.formats.read`."""
        from nestree.data import formats

        format = self.source_format or formats.detect_format(path)
        return formats.read(path, format, report, text_rules, **self.options(format))


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer needs it: with -v and -q, with the options of dataclasses, and with the texts of OPTIONS."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}

    def add(name: str, annotation: Any, default: Any) -> None:
        if is_dataclass(annotation):
            groups[name] = annotation
            hints = get_type_hints(annotation, include_extras=True)
            for field in fields(annotation):
                add(field.name, hints[field.name], field.default)
        else:
            option = annotation if get_origin(annotation) is Annotated else make_option(name, annotation)
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, keyword, default=default, annotation=option))

    given = inspect.signature(command).parameters.values()
    for parameter in sorted(given, key=lambda parameter: parameter.name in ("reading", "limits")):  # last
        add(parameter.name, parameter.annotation, parameter.default)
    add("verbosity", Verbosity, None)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        del values["verbosity"]
        with values["reading"].limits() if "reading" in values else nullcontext():
            command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def make_option(parameter: str, kind: Any) -> Any:
    """The option of a parameter of this type."""
    about = OPTIONS[parameter]
    names = (about.name or f"--{parameter.replace('_', '-')}", *SHORT_NAMES.get(parameter, ()))
    completion = complete(parameter) if parameter in COMPLETED else None
    option = Option(*names, help=about.help, metavar=about.metavar, min=about.min, autocompletion=completion)
    return Annotated[kind, option]


def output_path(argument: Path | None, option: Path | None) -> Path:
    """The path that is named as OUT or with --out."""
    if argument and option:
        raise InputError(f"the output is named twice, {argument} and --out {option}. Name it once.")
    if not (path := argument or option):
        raise InputError("name the output: OUT, or --out OUT.")
    return path


def parse_options(arguments: Iterable[str], format: str, verb: Literal["read", "write"]) -> dict[str, Any]:
    """NAME=VALUE arguments as keyword arguments for the reader or writer of the format.

    >>> parse_options(["word=2"], "columns", "read")
    {'word': 2}
    """
    from nestree.data.formats import options

    known = options(format, verb)
    values = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise InputError(f"--{verb} {argument} has no value: write --{verb} {argument}=VALUE.")
        if name not in known:
            close = difflib.get_close_matches(name, list(known), n=1)
            hint = f"Did you mean {close[0]}?" if close else f"It has {', '.join(known) or 'none'}."
            raise InputError(f"--{verb} {argument}: {format} has no such option. {hint}")
        kind = known[name].annotation
        expected, parse = VALUES.get(kind, (".*", str))
        if not re.fullmatch(expected, value):
            meant = "true or false" if kind is bool else "a whole number"
            raise InputError(f"--{verb} {argument}: the value must be {meant}.")
        values[name] = parse(value)
    return values


def parse_numbers(text: str, option: str, kind: type, example: str) -> list[Any]:
    """Numbers with commas between them, as the value of an option."""
    try:
        numbers = [kind(number) for number in text.split(",") if number]
    except ValueError:
        numbers = []
    if not numbers:
        raise InputError(f"{option} {text}: write numbers with commas between them, such as {example}.")
    return numbers
