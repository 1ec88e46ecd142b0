"""The commands train, distill, pretrain and experiment, and predictions as other commands need them."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestree.cli.data import Table, read_options, read_progress
from nestree.cli.predict import options_by_format, warn_left_out
from nestree.cli.progress import PretrainProgress
from nestree.cli.runtime import (
    BAD_INPUT,
    INTERRUPTED,
    QUIET,
    Commands,
    Device,
    Files,
    From,
    Quiet,
    Read,
    Sentences,
    TableFormat,
    Verbose,
    Words,
    pluralize,
    print_json,
    print_line,
    progress_bar,
)
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.config import Settings
    from nestree.evaluation import Evaluation
    from nestree.model import Recognizer
    from nestree.pipeline import PredictOptions
    from nestree.predict_files import JobPlan
    from nestree.training import Corpus
    from nestree.training.distill import Teachers
    from nestree.types import Document, Sentence

PARTS = ("train", "dev", "test")

TrainFile = Annotated[
    Path | None, typer.Option("--train", metavar="FILE", help="Annotated data to learn from.")
]
DevFile = Annotated[
    Path | None,
    typer.Option("--dev", metavar="FILE", help="To choose the best epoch. [default: 15 % of --train]"),
]
TestFile = Annotated[Path | None, typer.Option("--test", metavar="FILE", help="To evaluate on at the end.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="A new directory for the model.")]
Config = Annotated[
    str | None,
    typer.Option("--config", metavar="RECIPE", help="A TOML file or a recipe. [default: default]"),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; may be repeated."),
]
Resume = Annotated[
    Path | None, typer.Option("--resume", metavar="DIR", help="Go on with the run in this directory.")
]
SaveEvery = Annotated[
    float, typer.Option("--save-every", metavar="SECONDS", min=0, help="How often to save the state.")
]
CardEntries = Annotated[
    list[str] | None,
    typer.Option(
        "--card",
        metavar="KEY=VALUE",
        help="For the model card: name, license, language, data or note; may be repeated.",
    ),
]


def train(
    train_file: TrainFile = None,
    dev_file: DevFile = None,
    test_file: TestFile = None,
    out: Out = None,
    config: Config = None,
    overrides: Overrides = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print the complete settings as TOML, and do nothing else.")
    ] = False,
    init: Annotated[
        str | None, typer.Option("--init", metavar="MODEL", help="Start from this model of nestree.")
    ] = None,
    resume: Resume = None,
    device: Device = "auto",
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write curves for TensorBoard, too.")
    ] = False,
    save_every: SaveEvery = 120.0,
    card: CardEntries = None,
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Train a model; a run that was interrupted goes on with --resume.

    Exit codes: 0 trained; 2 bad input, or training cannot go on; 130 interrupted, and saved.
    """
    from nestree import hub
    from nestree.model_card import parse_fields

    entries = parse_fields(card or ())
    files = named_files(train_file, dev_file, test_file)
    if resume:
        fixed = {"--out": out, "--config": config, "--set": overrides, "--init": init}
        origin = {**resumed_origin("train", resume, fixed), **files}
        settings, start = read_settings(None, resume, ()), None
    else:
        start = hub.resolve(init) if init else None
        settings = read_settings(config, start, overrides or ())
        options = {"format": source_format, "words": words, "sentences": sentences, "read": read or []}
        origin = {"options": options, **files}
    if show_config:
        typer.echo(settings.to_toml(), nl=False)
        return
    folder = resume or out
    if folder is None or "train" not in origin:
        raise InputError("name data with --train FILE and a new directory with --out DIR.")
    origin["card"] = {"data": data_names(origin), **origin.get("card", {}), **entries}
    run_training(
        "train",
        settings,
        origin,
        folder,
        device,
        overrides=None if resume or config else overrides or (),
        resume=resume is not None,
        init=start,
        tensorboard=tensorboard,
        save_every=save_every,
    )


def distill(
    teacher: Annotated[
        list[str] | None,
        typer.Option("--teacher", metavar="MODEL", help="A model to learn from; may be repeated."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", metavar="NAME", help="The student's encoder: a folder or hub name."),
    ] = None,
    train_file: TrainFile = None,
    unlabelled: Annotated[
        list[Path] | None,
        typer.Option("--unlabelled", metavar="FILES", help="Texts for the teachers; may be repeated."),
    ] = None,
    dev_file: DevFile = None,
    test_file: TestFile = None,
    out: Out = None,
    hard: Annotated[
        bool, typer.Option("--hard", help="Learn only which entities the teacher finds in the texts.")
    ] = False,
    repeat: Annotated[
        int | None, typer.Option("--repeat", min=1, help="Copies of --train in an epoch. [default: 4]")
    ] = None,
    config: Config = None,
    overrides: Overrides = None,
    resume: Resume = None,
    device: Device = "auto",
    save_every: SaveEvery = 120.0,
    card: CardEntries = None,
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Train a small model, the student, on the predictions of larger ones, its teachers, on texts without annotation.

    The student learns the teachers' probabilities of all trees, heads and labels, of several teachers their mean, and
    the entities of --train. Plain text is split into words as the first teacher does. Exit codes: as of `train`.
    """
    from nestree.model_card import parse_fields

    entries = parse_fields(card or ())
    files = named_files(train_file, dev_file, test_file)
    if resume:
        fixed = {
            **{"--teacher": teacher, "--unlabelled": unlabelled, "--encoder": encoder},
            **{"--out": out, "--config": config, "--set": overrides},
        }
        origin = {**resumed_origin("distill", resume, fixed), **files}
        settings = read_settings(None, resume, ())
    else:
        if not (teacher and train_file and out):
            raise InputError(
                "name teachers with --teacher MODEL, data with --train FILE and a new directory with --out DIR."
            )
        settings = read_settings(config, None, overrides or ())
        if encoder:
            settings = replace(settings, encoder=replace(settings.encoder, path=encoder))
        distillation = {
            "teachers": [str(Path(name).resolve()) if Path(name).exists() else name for name in teacher],
            "unlabelled": [str(path.resolve()) for path in unlabelled or ()],
            "hard": hard,
            "repeat": repeat,
        }
        options = {"format": source_format, "words": words, "sentences": sentences, "read": read or []}
        origin = {"options": options, "distill": distillation, **files}
    folder = resume or out
    assert folder is not None
    teachers, texts = (
        ", ".join(Path(name).name for name in origin["distill"][key]) for key in ("teachers", "unlabelled")
    )
    note = f"Distilled from {teachers}" + (f", on {texts}" if texts else "") + "."
    origin["card"] = {"data": data_names(origin), "note": note, **origin.get("card", {}), **entries}
    run_training(
        "distill",
        settings,
        origin,
        folder,
        device,
        overrides=None if resume or config else overrides or (),
        resume=resume is not None,
        save_every=save_every,
    )


def named_files(*paths: Path | None) -> dict[str, str]:
    """The absolute paths of the data files that the command names."""
    return {part: str(path.resolve()) for part, path in zip(PARTS, paths, strict=True) if path}


def data_names(origin: Mapping[str, Any]) -> str:
    """The names of the data files, without their folders, which are private."""
    return ", ".join(dict.fromkeys(Path(origin[part]).name for part in PARTS if part in origin))


def resumed_origin(command: str, folder: Path, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The origin of the run to resume; raise if an option of `fixed` is given, or if another command started it."""
    from nestree import training

    for name, value in fixed.items():
        if value:
            raise InputError(f"--resume goes on with the settings of the run, so {name} does not go with it.")
    origin = training.origin_of(folder)
    started_by = "distill" if "distill" in origin else "train"
    if started_by != command:
        raise InputError(
            f"{folder} was started by `nestree {started_by}`. Go on with: nestree {started_by} --resume {folder}"
        )
    return origin


def read_settings(recipe: str | None, model: Path | None, overrides: Sequence[str]) -> "Settings":
    """The settings of a recipe or file or, if none is named, of a model directory, with overrides."""
    from nestree.config import Settings

    own = Settings.load(model / "config.toml") if model and recipe is None else None
    return (own or Settings.read(recipe or "default")).with_overrides(overrides)


def is_set(overrides: Sequence[str], key: str) -> bool:
    return any(override.split("=")[0].strip() == key for override in overrides)


def run_training(
    command: str,
    settings: "Settings",
    origin: dict[str, Any],
    folder: Path,
    device: str,
    overrides: Sequence[str] | None,
    **options: Any,
) -> None:
    """Read the data, train, and evaluate on the test data. `options` are those of `training.train`.

    Small data changes epochs and batches, except for what `overrides` sets; None: it changes nothing.
    """
    from accelerate import PartialState

    from nestree import training
    from nestree.cli.runtime import format_scores
    from nestree.evaluation import evaluate
    from nestree.pipeline import PredictOptions

    parts = read_parts(origin)
    corpus = training.make_corpus(
        parts["train"],
        parts.get("dev"),
        seed=settings.training.seed,
        crossing_gold=settings.training.crossing,
        context=settings.encoder.context,
    )
    teachers = None
    if command == "distill":
        corpus, teachers = load_teachers(origin, corpus, settings.training.seed, device)
    if overrides is not None and not is_set(overrides, "training.batch_words"):
        epochs = settings.training.epochs if is_set(overrides, "training.epochs") else None
        settings, corpus = training.adapt_to_small_data(settings, corpus, epochs)
    with training_progress() as callbacks:
        result = training.fit(
            settings,
            corpus,
            folder,
            device=device,
            callbacks=callbacks,
            origin=origin,
            about=origin["card"],
            teachers=teachers,
            **options,
        )
    if not PartialState().is_main_process:
        return
    print_line(training.summary(result))
    if result.evaluation is None:
        print_line(f"Everything is saved. Go on with: nestree {command} --resume {folder}")
        raise typer.Exit(INTERRUPTED)
    test: Evaluation | None = None
    if "test" in parts:
        gold = [sentence for document in parts["test"] for sentence in document.sentences]
        predicted = predict_documents(folder, parts["test"], device, PredictOptions(scored=True))
        test = evaluate(gold, predicted, resamples=0)
        print_line(f"test: {format_scores(test, False)}")
    training.save_scores(result, test)


def read_parts(origin: Mapping[str, Any]) -> "dict[str, list[Document]]":
    """The documents of the data files of a run."""
    from nestree.data import formats

    options = origin["options"]
    paths = {part: Path(origin[part]) for part in PARTS if part in origin}
    with read_progress(list(paths.values())):
        chosen = read_options(
            list(paths.values()), options["format"], options["read"], options["words"], options["sentences"]
        )
        return {part: list(formats.read(path, options["format"], **chosen)) for part, path in paths.items()}


def load_teachers(
    origin: Mapping[str, Any], corpus: "Corpus", seed: int, device: str
) -> "tuple[Corpus, Teachers | None]":
    """The corpus with the unlabelled texts, and the teachers of both."""
    from nestree import checkpoint, hub
    from nestree.nn.devices import select_device
    from nestree.training.distill import check_teachers, make_teachers

    distillation, options = origin["distill"], origin["options"]
    teachers = [
        checkpoint.load(hub.resolve(name), select_device(device)) for name in distillation["teachers"]
    ]
    check_teachers(corpus, teachers, distillation["hard"])  # before texts are read, which may take long
    texts: list[Sentence] = []
    if distillation["unlabelled"]:
        jobs = find_texts([Path(name) for name in distillation["unlabelled"]], None)
        rules = teachers[0].text_rules
        plain = {job.format for job in jobs.jobs} & {"text"}
        words, sentences = options["words"] or rules.words, options["sentences"] or rules.sentences
        texts = list(read_texts(jobs, options_by_format(plain, None, words, sentences)))
    size = sum(len(text.words) for text in texts)
    print_line(f"{len(texts):,} sentences of {size:,} words without annotation.")
    copies = {"labeled_copies": distillation["repeat"]} if distillation["repeat"] else {}
    return make_teachers(corpus, texts, teachers, hard=distillation["hard"], seed=seed, **copies)


def find_texts(files: Sequence[Path], source_format: str | None) -> "JobPlan":
    """The files to read, those of folders included; names those that are left out."""
    from nestree.data.io import STDIO
    from nestree.predict_files import plan_jobs

    found = plan_jobs(files, source_format, STDIO, "jsonl")
    if found.left_out:
        warn_left_out(found.left_out)
    return found


def read_texts(jobs: "JobPlan", options: Mapping[str, Mapping[str, Any]]) -> "Iterator[Sentence]":
    """The sentences of files, read with the options of their format."""
    from nestree.data import formats

    with read_progress([job.source for job in jobs.jobs]):
        for job in jobs.jobs:
            for document in formats.read(job.source, job.format, **options.get(job.format, {})):
                yield from document.sentences


def training_progress() -> AbstractContextManager[Any]:
    """Callbacks that show a progress bar on a terminal, else a line for each epoch; none with --quiet."""
    from nestree.cli.progress import LogLines, TrainingProgress

    if Commands.verbosity == QUIET:
        return nullcontext()
    return TrainingProgress() if sys.stderr and sys.stderr.isatty() else LogLines()


def predict_documents(
    folder: Path, documents: "Sequence[Document]", device: str, options: "PredictOptions | None" = None
) -> "list[Sentence]":
    """The sentences of documents with the entities that the model of a directory predicts."""
    model = load_model(folder, device)
    return predict_sentences(model, model.sentences_with_context(documents), options)


def load_model(folder: Path, device: str) -> "Recognizer":
    """The model of a directory as `nestree predict` loads it."""
    from nestree.pipeline import load

    return load(folder, device).inference_model


def predict_sentences(
    model: "Recognizer", sentences: "Sequence[Sentence]", options: "PredictOptions | None" = None
) -> "list[Sentence]":
    """The sentences with predicted entities; shows a progress bar on a terminal."""
    from nestree.pipeline import PredictOptions, predict

    options = options or PredictOptions()
    if Commands.verbosity == QUIET or not (sys.stderr and sys.stderr.isatty()):
        return predict(model, sentences, options=options)
    with progress_bar(total=len(sentences), unit="sentence", desc="predicting", delay=1) as bar:
        return predict(model, sentences, on_progress=bar.update, options=options)


def pretrain(
    files: Files,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new directory for the encoder.")],
    encoder: Annotated[
        str | None,
        typer.Option(
            "--encoder", metavar="NAME", help="A folder or hub name. [default: the default recipe's]"
        ),
    ] = None,
    passes: Annotated[int, typer.Option("--passes", min=1, help="How often it reads all of them.")] = 10,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Of everything random.")] = 1,
    device: Device = "auto",
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Continue the masked-language-model pretraining of an encoder on texts, annotated or not.

    Plain text is read (.txt, standard input, folders of texts), and any format that `nestree formats` lists.
    The result is an ordinary encoder folder: `nestree train --set encoder.path=DIR` starts from it.
    """
    from nestree.config import Settings
    from nestree.training import pretrain as library

    jobs = find_texts(files, source_format)
    options = options_by_format({job.format for job in jobs.jobs}, read, words, sentences)

    def counted_texts() -> "Iterator[Sentence]":
        """All sentences; prints their number when all are read."""
        number = size = 0
        for sentence in read_texts(jobs, options):
            number, size = number + 1, size + len(sentence.words)
            yield sentence
        sizes = f"{pluralize(size, 'word', 'words')} in {pluralize(number, 'sentence', 'sentences')}"
        print_line(f"{sizes}, to be read {'once' if passes == 1 else f'{passes} times'}.")

    name = Settings.read("default").encoder.path if encoder is None else encoder
    with PretrainProgress() if Commands.verbosity != QUIET else nullcontext() as callback:
        library.pretrain(name, counted_texts(), out, passes, seed, device, on_progress=callback)
    print_line(f"nestree train --set encoder.path={shlex.quote(str(out))} starts from it.")


def experiment(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A directory for all runs.")],
    data: Annotated[
        list[str],
        typer.Option(
            "--data", metavar="NAME=DIR", help="A folder with train, dev and test; may be repeated."
        ),
    ],
    recipes: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="RECIPE", help="A TOML file or a recipe; may be repeated."),
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N,...", help="Each recipe is trained once with each.")
    ] = "1,2,3",
    overrides: Overrides = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Runs at the same time.")] = 1,
    device: Device = "auto",
    format: Table = TableFormat.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Train every recipe on every data set with every seed; show means and deviations.

    What is done is not done again: after an interruption, start it again.
    """
    from nestree.nn.devices import select_device
    from nestree.training import experiment

    select_device(device)  # an error is better found now
    if out.exists() and not out.is_dir():
        raise InputError(
            f"{out} is a file, and runs need a directory. Give the name of a new one; data is named with --data "
            "NAME=DIR."
        )
    if is_set(overrides or (), "training.seed"):
        raise InputError("--set training.seed: an experiment takes its seeds from --seeds. Give them there.")
    folders = parse_data(data)
    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise InputError(f"--seeds {seeds}: write numbers with commas between them, such as 1,2,3.") from None
    specs = experiment.run_specs(
        out, recipes or ["default"], folders, numbers, overrides or (), ["--device", device]
    )
    for name, folder in folders.items():
        parts = experiment.data_files(folder)
        if "dev" not in parts:
            print_line(f"{name}: {folder} has no file called dev. A share of train takes its place.")
        if "test" not in parts:
            print_line(
                f"{name}: {folder} has no file called test. Its numbers are those of dev, which chooses the epoch."
            )
    try:
        failed = experiment.run_all(specs, jobs, print_line)
    except KeyboardInterrupt:
        print_line("What was running is saved. Start the experiment again to go on.")
        raise
    groups = experiment.group_results(specs)
    if format is TableFormat.json:
        print_json([group.as_json() for group in groups])
    else:
        print_table(experiment.table(groups), format)
    if failed:
        print_line(f"\n{len(failed)} of {len(specs)} runs failed:")
        for name, reason in failed.items():
            print_line(f"  {name}: {reason}")
        print_line("Start the experiment again to try them again.")
        raise typer.Exit(BAD_INPUT)


def parse_data(data: Sequence[str]) -> dict[str, Path]:
    """The folders of NAME=DIR arguments by name."""
    folders: dict[str, Path] = {}
    for argument in data:
        name, equals, folder = argument.partition("=")
        if not (name and equals and folder) or Path(name).name != name:
            raise InputError(f"--data {argument}: write --data NAME=DIR, such as genia=data/genia.")
        if name in folders:
            raise InputError(
                f"--data {argument}: there is a data set called {name} already. Call it something else."
            )
        folders[name] = Path(folder)
    return folders


def print_table(rows: Sequence[Sequence[str]], format: TableFormat) -> None:
    """Print a table whose first row is the header."""
    header, *body = rows
    if format is TableFormat.markdown:
        for row in (header, ["---"] * len(header), *body):
            typer.echo(f"| {' | '.join(row)} |")
    else:
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        for row in rows:
            typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
