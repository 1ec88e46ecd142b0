"""The commands train, distill, pretrain and experiment."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

from nestree.cli.options import PARTS, Files, OutArgument, Reading, TableFormat, output_path, parse_numbers
from nestree.cli.predict import find_jobs
from nestree.cli.runtime import (
    BAD_INPUT,
    INTERRUPTED,
    QUIET,
    Commands,
    PretrainProgress,
    TrainingProgress,
    print_json,
    print_line,
    reading_progress,
)
from nestree.errors import InputError, plural

if TYPE_CHECKING:
    from nestree.config import Settings
    from nestree.model import Recognizer
    from nestree.predict_files import JobPlan
    from nestree.training import Corpus
    from nestree.training.distill import Teachers
    from nestree.types import Sentence


@dataclass(frozen=True)
class RunOptions:
    """The data of a training run, its settings and its folder."""

    data: Path | None = None
    train: Path | None = None
    dev: Path | None = None
    test: Path | None = None
    out: Path | None = None
    config: str | None = None
    encoder: str | None = None
    epochs: int | None = None
    batch_words: int | None = None
    lr: float | None = None
    encoder_lr: float | None = None
    seed: int | None = None
    overrides: list[str] | None = None
    resume: Path | None = None
    device: str = "auto"
    save_every: float | None = None
    card: list[str] | None = None

    @property
    def shortcuts(self) -> dict[str, Any]:
        """The settings of section `training` that have options of their own and are given."""
        names = ("epochs", "batch_words", "lr", "encoder_lr", "seed")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def settings(self, model: Path | None) -> "Settings":
        """The settings of the recipe or, if none is named, of a model folder, with all changes."""
        from nestree.config import Settings

        if model and self.config is None:
            from nestree.training.dataset import load_init_settings

            settings = load_init_settings(model)
        else:
            settings = Settings.read(self.config or "default")
        settings = settings.with_overrides(self.overrides or ())
        settings = replace(settings, training=replace(settings.training, **self.shortcuts))
        if self.encoder:
            settings = replace(settings, encoder=replace(settings.encoder, path=self.encoder))
        return settings

    def is_set(self, name: str, section: str = "training") -> bool:
        """Whether an option or --set gives this setting."""
        from nestree.config import split_override

        own = self.encoder if (section, name) == ("encoder", "path") else self.shortcuts.get(name)
        return own is not None or (section, name) in (split_override(each)[:2] for each in self.overrides or ())

    def files(self) -> dict[str, str]:
        """The absolute paths of the data files by part."""
        from nestree.training.dataset import part_files

        if self.data and self.train:
            raise InputError("--data and --train both name training data. Leave one of them out.")
        paths = part_files(self.data) if self.data else {}
        paths |= {part: path for part in PARTS if (path := getattr(self, part))}
        if Path("-") in paths.values():
            raise InputError("training data is read more than once, and standard input cannot be. Name files.")
        return {part: os.path.realpath(path) for part, path in paths.items()}


def train(
    run: RunOptions,
    reading: Reading,
    source: Annotated[
        Path | None, Argument(metavar="DATA", help="A folder or file; the same as --data or --train DATA.")
    ] = None,
    init: str | None = None,
    show_config: bool = False,
    tensorboard: bool = False,
) -> None:
    """Train a model; --resume continues an interrupted run.

    Exit codes: 0 trained; 2 bad input, or training cannot continue; 130 interrupted, and saved.
    """
    from nestree import hub

    if source:
        if run.data or run.train:
            option = "--data" if run.data else "--train"
            raise InputError(f"{source} and {option} both name training data. Leave one out.")
        run = replace(run, data=source) if source.is_dir() else replace(run, train=source)
    if init and run.is_set("path", "encoder"):
        raise InputError("--init brings the encoder of its model with it. Leave --encoder out.")
    start = hub.resolve(init) if init else None
    settings, origin = prepare_run(run, reading, {"--init": init}, start, {})
    if show_config:
        typer.echo(settings.to_toml(), nl=False)
        return
    run_training(settings, origin, run, init=start, tensorboard=tensorboard)


def distill(
    run: RunOptions,
    reading: Reading,
    teacher: list[str] | None = None,
    unlabelled: list[Path] | None = None,
    hard: bool = False,
    repeat: int | None = None,
) -> None:
    """Train a small model, the student, on the predictions of larger ones, its teachers, on texts without annotation.

    The student learns the teachers' probabilities of all trees, heads and labels, of several teachers their mean, and
    the entities of --train. Plain text is split into words as the first teacher does. Exit codes: as of `train`.
    """
    if not (run.resume or teacher):
        raise InputError("name one or more teachers with --teacher MODEL.")
    if Path("-") in (unlabelled or ()):
        raise InputError("unlabelled texts are read again by --resume, and standard input cannot be. Name files.")
    if hard and not (run.resume or unlabelled):
        raise InputError("--hard learns what the teacher finds in texts, and there are none. Name them: --unlabelled.")
    distillation = {
        "teachers": [os.path.realpath(name) if Path(name).exists() else name for name in teacher or ()],
        "unlabelled": [os.path.realpath(path) for path in unlabelled or ()],
        "hard": hard,
        "repeat": repeat,
    }
    fixed = {"--teacher": teacher, "--unlabelled": unlabelled, "--hard": hard, "--repeat": repeat}
    note = f"Distilled from {', '.join(Path(name).name for name in teacher or ())}"
    if unlabelled:
        note += f", on {', '.join(path.name for path in unlabelled)}"
    more = {"distill": distillation, "card": {"note": f"{note}."}}
    settings, origin = prepare_run(run, reading, fixed, None, more)
    run_training(settings, origin, run)


def prepare_run(
    run: RunOptions, reading: Reading, fixed: Mapping[str, Any], model: Path | None, more: Mapping[str, Any]
) -> "tuple[Settings, dict[str, Any]]":
    """The settings and the origin of a new run or of the one to resume.

    The origin is what a resumed run needs to know: files, options for reading, the card, and `more`. `fixed`: further
    options that --resume excludes. `model`: the folder of the model to start from.
    """
    from nestree import training
    from nestree.config import Settings
    from nestree.model_card import parse_fields
    from nestree.training.train import SAVE_EVERY

    files, card = run.files(), parse_fields(run.card or ())
    if run.resume:
        named = {"--out": run.out, "--config": run.config, "--set": run.overrides, "--encoder": run.encoder}
        shortcuts = {f"--{name.replace('_', '-')}": True for name in run.shortcuts}
        for name, value in {**named, **shortcuts, **fixed}.items():
            if value:
                raise InputError(f"--resume continues with the settings of the run. Leave out {name}.")
        origin = {**training.origin_of(run.resume), **files}
        settings = Settings.load(run.resume / "config.toml")
    else:
        options = {"format": reading.source_format, "words": reading.words, "sentences": reading.sentences}
        origin = {"options": {**options, "read": reading.read or []}, **more, **files}
        settings = run.settings(model)
    # In the card, data files stand without their folders, which are private.
    data = ", ".join(dict.fromkeys(Path(origin[part]).name for part in PARTS if part in origin))
    origin["card"] = {"data": data, **origin.get("card", {}), **card}
    origin["save_every"] = origin.get("save_every", SAVE_EVERY) if run.save_every is None else run.save_every
    return settings, origin


def run_training(settings: "Settings", origin: dict[str, Any], run: RunOptions, **options: Any) -> None:
    """Read the data, and train or distil. `options` are those of `training.fit`."""
    from accelerate import PartialState

    from nestree import training
    from nestree.training.run_dir import RunDir

    folder = run.resume or run.out
    if run.resume and "train" not in origin:
        raise InputError(
            f"{run.resume} was trained from Python on documents in memory. Continue it with nestree.train(..., "
            f"out={str(run.resume)!r}, resume=True), or name the same data with --train and --dev."
        )
    if folder is None or "train" not in origin:
        data = "" if "train" in origin else "training data, a file or a folder, and "
        raise InputError(f"name {data}a new folder for the model with --out DIR.")
    if not run.resume:
        RunDir(folder).check_new()  # before data is read, which may take long
    reading = Reading(*(origin["options"].get(name) for name in ("format", "words", "sentences", "read")))
    paths = {part: Path(origin[part]) for part in PARTS if part in origin}
    with reading_progress([*paths.values()]):
        parts = {part: list(reading.documents(path)) for part, path in paths.items()}
    teachers = load_teachers(origin["distill"], run.device) if "distill" in origin else []
    context = max(s.encoder.context for s in (settings, *(teacher.settings for teacher in teachers)))
    seed, crossing = settings.training.seed, settings.training.crossing
    corpus = training.make_corpus(
        parts["train"], parts.get("dev"), parts.get("test"), seed=seed, crossing_gold=crossing, context=context
    )
    if teachers:
        corpus, options["teachers"] = add_unlabelled(origin["distill"], reading, corpus, teachers, seed, context)
    if not run.resume and run.config in (None, "default") and not run.is_set("batch_words"):
        epochs = settings.training.epochs if run.is_set("epochs") else None
        settings, corpus = training.adapt_to_small_data(settings, corpus, epochs)
    with TrainingProgress() if Commands.verbosity > QUIET else nullcontext() as callbacks:
        result = training.fit(
            settings,
            corpus,
            folder,
            device=run.device,
            resume=run.resume is not None,
            save_every=origin["save_every"],
            callbacks=callbacks,
            origin=origin,
            about=origin["card"],
            test=parts.get("test"),
            **options,
        )
    if not PartialState().is_main_process:
        return
    print_line(training.summary(result))
    if result.evaluation is None:
        print_line(f"Everything is saved. Continue with: nestree train --resume {shlex.quote(str(folder))}")
        raise typer.Exit(INTERRUPTED)


def load_teachers(distillation: dict[str, Any], device: str) -> "list[Recognizer]":
    """The teachers; an error if the run began with others."""
    from nestree import checkpoint, hub
    from nestree.nn.devices import select_device
    from nestree.predict_files import fingerprint

    folders = [hub.resolve(name) for name in distillation["teachers"]]
    fingerprints = [fingerprint(folder) for folder in folders]
    if distillation.setdefault("fingerprints", fingerprints) != fingerprints:
        raise InputError(
            "the teachers have changed since this run began. Resume with the same models, or distil anew in another "
            "directory."
        )
    return [checkpoint.load(folder, select_device(device)) for folder in folders]


def add_unlabelled(
    distillation: Mapping[str, Any],
    reading: Reading,
    corpus: "Corpus",
    teachers: "Sequence[Recognizer]",
    seed: int,
    context: int,
) -> "tuple[Corpus, Teachers | None]":
    """The corpus with the unlabelled texts, and the teachers of both. `context`: words around each sentence."""
    from nestree.training.distill import check_teachers, make_teachers

    check_teachers(corpus, teachers, distillation["hard"])  # before texts are read, which may take long
    texts: list[Sentence] = []
    if distillation["unlabelled"]:
        jobs = find_jobs([Path(name) for name in distillation["unlabelled"]], None, Path("-"), "jsonl")
        rules = teachers[0].text_rules._asdict()
        rules = {name: getattr(reading, name) or rule for name, rule in rules.items()}
        texts = list(read_sentences(jobs, {"text": rules}, context))
    size = sum(len(text.words) for text in texts)
    print_line(f"{plural(len(texts), 'sentence')} of {plural(size, 'word')} without annotation.")
    copies = {"labeled_copies": distillation["repeat"]} if distillation["repeat"] else {}
    return make_teachers(corpus, texts, teachers, hard=distillation["hard"], seed=seed, **copies)


def read_sentences(jobs: "JobPlan", options: Mapping[str, Mapping[str, Any]], context: int = 0) -> "Iterator[Sentence]":
    """The sentences of files, read with the options of their format, with this many words of context."""
    from nestree.data import formats
    from nestree.types import with_context

    with reading_progress([job.source for job in jobs.jobs]):
        for job in jobs.jobs:
            for document in formats.read(job.source, job.format, **options.get(job.format, {})):
                for part in with_context([document], context):
                    yield from part.sentences


def pretrain(
    files: Files,
    reading: Reading,
    out: Path,
    encoder: str | None = None,
    passes: int = 10,
    window: int = 128,
    batch_size: int = 32,
    mask_rate: float = 0.15,
    encoder_lr: float = 5e-5,
    seed: int = 1,
    device: str = "auto",
) -> None:
    """Continue the masked-language-model pretraining of an encoder on texts, annotated or not.

    Plain text is read (.txt, standard input, folders of texts), and any format that `nestree formats` lists. The
    encoder is that of the default recipe, unless --encoder names another one. `nestree train --encoder DIR` starts
    from the result.
    """
    from nestree.config import Settings
    from nestree.training import pretrain as library

    jobs = find_jobs(files, reading.source_format, Path("-"), "jsonl")
    options = reading.options_by_format(job.format for job in jobs.jobs)

    def counted_sentences() -> "Iterator[Sentence]":
        """All sentences; prints their number when all are read."""
        number = size = 0
        for sentence in read_sentences(jobs, options):
            number, size = number + 1, size + len(sentence.words)
            yield sentence
        sizes = f"{plural(size, 'word')} in {plural(number, 'sentence')}"
        print_line(f"{sizes}, to be read {'once' if passes == 1 else f'{passes} times'}.")

    name = encoder or Settings.read("default").encoder.path
    with PretrainProgress() if Commands.verbosity > QUIET else nullcontext() as callback:
        library.pretrain(
            name, counted_sentences(), out, passes, seed, device, callback,
            window=window, batch_size=batch_size, mask_rate=mask_rate, encoder_lr=encoder_lr,
        )  # fmt: skip
    print_line(f"Train a model with it: nestree train --encoder {shlex.quote(str(out))}")


def experiment(
    data_sets: list[str],
    target: OutArgument = None,
    out: Path | None = None,
    recipes: list[str] | None = None,
    seeds: str = "1,2,3",
    overrides: list[str] | None = None,
    jobs: int = 1,
    device: str = "auto",
    format: TableFormat = "text",
) -> None:
    """Train every recipe on every data set with every seed; show means and deviations.

    Finished runs are not repeated: after an interruption, start the same command again.
    """
    from nestree.config import split_override
    from nestree.display import markdown_table, text_table
    from nestree.nn.devices import select_device
    from nestree.training import experiment
    from nestree.training.dataset import part_files

    folder = output_path(target, out)
    select_device(device)  # an error is better found now
    if folder.exists() and not folder.is_dir():
        raise InputError(
            f"{folder} is a file, and runs need a directory. Give the name of a new one; data is named with --data "
            "NAME=DIR."
        )
    if any(split_override(override)[:2] == ("training", "seed") for override in overrides or ()):
        raise InputError("--set training.seed: an experiment takes its seeds from --seeds. Give them there.")
    folders: dict[str, Path] = {}
    for argument in data_sets:
        name, equals, path = argument.partition("=")
        if not (name and equals and path) or Path(name).name != name:
            raise InputError(f"--data {argument}: write --data NAME=DIR, such as genia=data/genia.")
        if name in folders:
            already = f"there is a data set called {name} already"
            raise InputError(f"--data {argument}: {already}. Give another name.")
        folders[name] = Path(path)
    numbers = parse_numbers(seeds, "--seeds", int, "1,2,3")
    options = ["--device", device]
    specs = experiment.run_specs(folder, recipes or ["default"], folders, numbers, overrides or (), options)
    instead = {
        "dev": "A share of train takes its place.",
        "test": "Its numbers are those of dev, which chooses the epoch.",
    }
    for name, data in folders.items():
        parts = part_files(data)
        for part, what in instead.items():
            if part not in parts:
                print_line(f"{name}: {data} has no file called {part}. {what}")
    try:
        failed = experiment.run_all(specs, jobs, print_line)
    except KeyboardInterrupt:
        print_line("What was running is saved. Start the experiment again to continue.")
        raise
    groups = experiment.group_results(specs)
    if format == "json":
        print_json([group.as_json() for group in groups])
    elif groups:
        rows = experiment.table(groups)
        typer.echo((markdown_table if format == "markdown" else text_table)(rows, [True] * len(rows[0])))
    if failed:
        print_line(f"\n{len(failed)} of {len(specs)} runs failed:")
        for name, reason in failed.items():
            print_line(f"  {name}: {reason}")
        print_line("Start the experiment again to try them again.")
        raise typer.Exit(BAD_INPUT)
