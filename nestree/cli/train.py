"""The command `train`, and predictions as other commands need them."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestree.cli.data import Table, options_for, reading
from nestree.cli.predict import options_by_format, say_left_out
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
    TableShape,
    Verbose,
    Words,
    counted,
    print_json,
    print_line,
    progress_bar,
)
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.evaluation import Evaluation
    from nestree.model import Recognizer
    from nestree.pipeline import PredictOptions
    from nestree.types import Document


def train(
    train_file: Annotated[
        Path | None, typer.Option("--train", metavar="FILE", help="Annotated data to learn from.")
    ] = None,
    dev_file: Annotated[
        Path | None,
        typer.Option("--dev", metavar="FILE", help="To choose the best epoch. [default: 15 % of --train]"),
    ] = None,
    test_file: Annotated[
        Path | None, typer.Option("--test", metavar="FILE", help="To evaluate on at the end.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new directory for the model.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="RECIPE", help="A TOML file or a recipe. [default: default]"),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    init: Annotated[
        str | None, typer.Option("--init", metavar="MODEL", help="Start from this model of nestree.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Go on with the run in this directory.")
    ] = None,
    device: Device = "auto",
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write curves for TensorBoard, too.")
    ] = False,
    save_every: Annotated[
        float, typer.Option("--save-every", metavar="SECONDS", min=0, help="How often to save the state.")
    ] = 120.0,
    card: Annotated[
        list[str] | None,
        typer.Option(
            "--card",
            metavar="KEY=VALUE",
            help="For the model card: name, license, language, data or note; may be repeated.",
        ),
    ] = None,
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
    from nestree import hub, training
    from nestree.model_card import about

    told = about(card or ())
    if resume:
        check_resuming(out, config, changes, init)
        origin = given_origin(training.origin_of(resume), train_file, dev_file, test_file)
        if "distill" in origin:
            raise InputError(f"{resume} has teachers. Go on with: nestree distill --resume {resume}")
        settings, start = settings_of(None, resume, []), None
    else:
        if not (train_file and out):
            raise InputError("name data with --train FILE and a new directory with --out DIR.")
        options = {"format": source_format, "words": words, "sentences": sentences, "read": read or []}
        origin = given_origin({"options": options}, train_file, dev_file, test_file)
        start = hub.resolve(init) if init else None
        settings = settings_of(config, start, changes or [])
    folder = resume or out
    assert folder is not None
    origin["card"] = {"data": names_of(origin), **origin.get("card", {}), **told}
    parts = documents_of(origin)
    corpus = training.corpus(
        parts["train"],
        parts.get("dev"),
        seed=settings.training.seed,
        crossing_gold=settings.training.crossing,
        context=settings.encoder.context,
    )
    if not (resume or config or decided(changes or [], "training.batch_words")):
        epochs = settings.training.epochs if decided(changes or [], "training.epochs") else None
        settings, corpus = training.for_small_data(settings, corpus, epochs)
    with shown() as watcher:
        result = training.train(
            settings,
            corpus,
            folder,
            resume=resume is not None,
            init=start,
            device=device,
            tensorboard=tensorboard,
            save_every=save_every,
            watcher=watcher,
            origin=origin,
            about=origin["card"],
        )
    if not is_first():
        return
    print_line(training.summary(result))
    if result.evaluation is None:
        print_line(f"Everything is saved. Go on with: nestree train --resume {folder}")
        raise typer.Exit(INTERRUPTED)
    test = evaluated_on_test(folder, parts["test"], device) if "test" in parts else None
    training.keep_scores(result, test)


def check_resuming(
    out: Path | None, config: str | None, changes: Sequence[str] | None, init: str | None
) -> None:
    """What a run was started with stays as it is."""
    for name, value in {"--out": out, "--config": config, "--set": changes, "--init": init}.items():
        if value:
            raise InputError(f"--resume goes on with the settings of the run, so {name} does not go with it.")


def decided(changes: Sequence[str], key: str) -> bool:
    """Whether the user sets this."""
    return any(change.split("=")[0].strip() == key for change in changes)


def given_origin(origin: dict[str, Any], *files: Path | None) -> dict[str, Any]:
    """Where the data of a run is; what the command names now counts."""
    named = {
        name: str(path.resolve()) for name, path in zip(("train", "dev", "test"), files, strict=True) if path
    }
    return {**origin, **named}


def names_of(origin: dict[str, Any]) -> str:
    """The files of a run by their names alone: where they are is nobody's business."""
    return ", ".join(
        dict.fromkeys(Path(origin[name]).name for name in ("train", "dev", "test") if name in origin)
    )


def settings_of(recipe: str | None, init: Path | None, changes: Sequence[str]) -> Any:
    """The settings of a recipe or file, or those of the model to start from, with changes."""
    from nestree.config import Settings

    own = Settings.saved(init / "config.toml") if init and recipe is None else None
    settings = own or Settings.read(recipe or "default")
    return settings.changed(changes) if changes else settings


def documents_of(origin: dict[str, Any]) -> "dict[str, list[Document]]":
    """The documents of each file of a run."""
    from nestree.data import formats

    given = origin["options"]
    paths = {name: Path(origin[name]) for name in ("train", "dev", "test") if name in origin}
    with reading(list(paths.values())):
        options = options_for(
            list(paths.values()), given["format"], given["read"], given["words"], given["sentences"]
        )
        return {name: list(formats.read(path, given["format"], **options)) for name, path in paths.items()}


def is_first() -> bool:
    """Of the processes of `torchrun`, one speaks."""
    from accelerate import PartialState

    return bool(PartialState().is_main_process)


def shown() -> "Any":
    """Whoever looks on sees a bar with numbers on a terminal, else a line for each epoch; or nothing with --quiet."""
    from nestree.cli.progress import LogLines, TrainingProgress

    if Commands.verbosity == QUIET:
        from contextlib import nullcontext

        return nullcontext()
    return TrainingProgress() if sys.stderr and sys.stderr.isatty() else LogLines()


def evaluated_on_test(folder: Path, documents: "list[Document]", device: str) -> "Evaluation":
    from nestree.cli.runtime import headline
    from nestree.evaluation import evaluate
    from nestree.pipeline import PredictOptions

    gold = [sentence for document in documents for sentence in document.sentences]
    found = evaluate(gold, predicted_by(folder, documents, device, PredictOptions(scored=True)), resamples=0)
    print_line(f"test: {headline(found, False)}")
    return found


def predicted_by(
    folder: Path, documents: "Sequence[Document]", device: str, asked: "PredictOptions | None" = None
) -> list[Any]:
    """Their sentences with the entities that the model of a directory finds, and a bar to watch it."""
    reader = read_with(folder, device)
    return predicted_with(reader, reader.sentences_of(documents), asked)


def read_with(folder: Path, device: str) -> "Recognizer":
    """The model of a directory, as `nestree predict` reads with it."""
    from nestree.pipeline import load

    return load(folder, device).reader


def predicted_with(
    model: "Recognizer", sentences: Sequence[Any], asked: "PredictOptions | None" = None
) -> list[Any]:
    """The same with a model that is loaded; `asked`: for more than entities."""
    from nestree.pipeline import PredictOptions, predict

    asked = asked or PredictOptions()
    if Commands.verbosity == QUIET or not (sys.stderr and sys.stderr.isatty()):
        return predict(model, sentences, asked=asked)
    with progress_bar(total=len(sentences), unit="sentence", desc="predicting", delay=1) as bar:
        return predict(model, sentences, tell=bar.update, asked=asked)


if TYPE_CHECKING:
    from nestree.model import Recognizer
    from nestree.types import Sentence


def distill(
    teacher: Annotated[
        list[str] | None,
        typer.Option("--teacher", metavar="MODEL", help="A model to learn from; may be repeated."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", metavar="NAME", help="The student's encoder: a folder or hub name."),
    ] = None,
    train_file: Annotated[
        Path | None, typer.Option("--train", metavar="FILE", help="Annotated data to learn from, too.")
    ] = None,
    unlabelled: Annotated[
        list[Path] | None,
        typer.Option("--unlabelled", metavar="FILES", help="Texts for the teachers; may be repeated."),
    ] = None,
    dev_file: Annotated[
        Path | None,
        typer.Option("--dev", metavar="FILE", help="To choose the best epoch. [default: 15 % of --train]"),
    ] = None,
    test_file: Annotated[
        Path | None, typer.Option("--test", metavar="FILE", help="To evaluate on at the end.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new directory for the student.")
    ] = None,
    hard: Annotated[
        bool, typer.Option("--hard", help="Learn only which entities the teacher finds in the texts.")
    ] = False,
    repeat: Annotated[
        int | None, typer.Option("--repeat", min=1, help="Copies of --train in an epoch. [default: 4]")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="RECIPE", help="A TOML file or a recipe. [default: default]"),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Go on with the run in this directory.")
    ] = None,
    device: Device = "auto",
    save_every: Annotated[
        float, typer.Option("--save-every", metavar="SECONDS", min=0, help="How often to save the state.")
    ] = 120.0,
    card: Annotated[
        list[str] | None,
        typer.Option("--card", metavar="KEY=VALUE", help="For the model card, as with `nestree train`."),
    ] = None,
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Train a small model, the student, on what larger ones, its teachers, make of texts without annotation.

    The student learns the teachers' probabilities of all trees, heads and labels, of several teachers their mean, and
    the entities of --train. Of plain text the words are split as the first teacher does. Exit codes: as of `train`.
    """
    from nestree import training
    from nestree.model_card import about

    told = about(card or ())
    if resume:
        for name, value in {"--teacher": teacher, "--unlabelled": unlabelled, "--encoder": encoder}.items():
            if value:
                raise InputError(
                    f"--resume goes on with the settings of the run, so {name} does not go with it."
                )
        check_resuming(out, config, changes, None)
        origin = given_origin(training.origin_of(resume), train_file, dev_file, test_file)
        if "distill" not in origin:
            raise InputError(
                f"{resume} is no run of `nestree distill`. Go on with: nestree train --resume {resume}"
            )
        settings = settings_of(None, resume, [])
    else:
        if not (teacher and train_file and out):
            raise InputError(
                "name teachers with --teacher MODEL, data with --train FILE and a new directory with --out DIR."
            )
        options = {"format": source_format, "words": words, "sentences": sentences, "read": read or []}
        how = {
            "teachers": [str(Path(each).resolve()) if Path(each).exists() else each for each in teacher],
            "unlabelled": [str(path.resolve()) for path in unlabelled or ()],
            "hard": hard,
            "repeat": repeat,
        }
        origin = given_origin({"options": options, "distill": how}, train_file, dev_file, test_file)
        settings = settings_of(config, None, changes or [])
        if encoder:
            settings = settings.changed([f"encoder.path={encoder}"])
    folder = resume or out
    assert folder is not None
    origin["card"] = {"data": names_of(origin), "note": told_by(origin), **origin.get("card", {}), **told}
    parts = documents_of(origin)
    labelled = training.corpus(
        parts["train"],
        parts.get("dev"),
        seed=settings.training.seed,
        crossing_gold=settings.training.crossing,
        context=settings.encoder.context,
    )
    corpus, lessons = prepared(origin, labelled, settings.training.seed, device)
    if not (resume or config or decided(changes or [], "training.batch_words")):
        epochs = settings.training.epochs if decided(changes or [], "training.epochs") else None
        settings, corpus = training.for_small_data(settings, corpus, epochs)
    with shown() as watcher:
        result = training.train(
            settings,
            corpus,
            folder,
            resume=resume is not None,
            device=device,
            save_every=save_every,
            watcher=watcher,
            origin=origin,
            about=origin["card"],
            lessons=lessons,
        )
    if not is_first():
        return
    print_line(training.summary(result))
    if result.evaluation is None:
        print_line(f"Everything is saved. Go on with: nestree distill --resume {folder}")
        raise typer.Exit(INTERRUPTED)
    test = evaluated_on_test(folder, parts["test"], device) if "test" in parts else None
    training.keep_scores(result, test)


def told_by(origin: dict[str, Any]) -> str:
    """What the card says about teachers and texts, by their names alone."""
    how = origin["distill"]
    teachers = ", ".join(Path(name).name for name in how["teachers"])
    texts = ", ".join(Path(name).name for name in how["unlabelled"])
    return f"Distilled from {teachers}" + (f", on {texts}" if texts else "") + "."


def prepared(origin: dict[str, Any], corpus: Any, seed: int, device: str) -> tuple[Any, Any]:
    """The corpus with unlabelled texts, and what the teachers say about it."""
    from nestree import checkpoint, hub
    from nestree.pipeline import select_device
    from nestree.training import distill as library

    how = origin["distill"]
    teachers = [checkpoint.load(hub.resolve(name), select_device(device)) for name in how["teachers"]]
    library.check(corpus, teachers, how["hard"])  # before texts are read, which may take long
    texts = texts_of(origin, teachers[0], [Path(name) for name in how["unlabelled"]])
    size = sum(len(text.words) for text in texts)
    print_line(f"{len(texts):,} sentences of {size:,} words without annotation.")
    given = {"repeat": how["repeat"]} if how["repeat"] else {}
    return library.make_teachers(corpus, texts, teachers, hard=how["hard"], seed=seed, **given)


def texts_of(origin: dict[str, Any], teacher: "Recognizer", files: Sequence[Path]) -> "list[Sentence]":
    """The sentences of files without annotation; plain text is split as the teacher does, unless options say so."""
    from nestree.data import formats
    from nestree.data.io import STDIO
    from nestree.predict_files import jobs as jobs_of

    if not files:
        return []
    jobs = jobs_of(files, None, STDIO, "jsonl")
    if jobs.left_out:
        say_left_out(jobs.left_out)
    options, rules = origin["options"], teacher.text_rules
    plain = {job.format for job in jobs.jobs} & {"text"}
    how = options_by_format(
        plain, None, options["words"] or rules.words, options["sentences"] or rules.sentences
    )
    with reading([job.source for job in jobs.jobs]):
        return [
            sentence
            for job in jobs.jobs
            for document in formats.read(job.source, job.format, **how.get(job.format, {}))
            for sentence in document.sentences
        ]


if TYPE_CHECKING:
    from nestree.types import Sentence


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
    from nestree.data import formats
    from nestree.data.io import STDIO
    from nestree.predict_files import jobs as jobs_of
    from nestree.training.pretrain import pretrain as get_used

    jobs = jobs_of(files, source_format, STDIO, "jsonl")
    if jobs.left_out:
        say_left_out(jobs.left_out)
    how = options_by_format({job.format for job in jobs.jobs}, read, words, sentences)

    def texts() -> "Iterator[Sentence]":
        """All sentences, read when they are asked for: when all else is there."""
        number = size = 0
        with reading([job.source for job in jobs.jobs]):
            for job in jobs.jobs:
                for document in formats.read(job.source, job.format, **how.get(job.format, {})):
                    for sentence in document.sentences:
                        number, size = number + 1, size + len(sentence.words)
                        yield sentence
        read_them = f"{counted(size, 'word', 'words')} in {counted(number, 'sentence', 'sentences')}"
        print_line(f"{read_them}, to be read {'once' if passes == 1 else f'{passes} times'}.")

    name = Settings.read("default").encoder.path if encoder is None else encoder
    with PretrainProgress() if Commands.verbosity != QUIET else nullcontext() as watcher:
        get_used(name, texts(), out, passes, seed, device, tell=watcher)
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
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="Change a setting in all runs; may be repeated."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Runs at the same time.")] = 1,
    device: Device = "auto",
    format: Table = TableShape.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Train every recipe on every data set with every seed; show means and deviations.

    What is done is not done again: after an interruption, start it again.
    """
    from nestree.pipeline import select_device
    from nestree.training import experiment

    select_device(device)  # what is wrong is better known now
    check(out, changes or ())
    folders = folders_of(data)
    runs = experiment.run_specs(
        out, recipes or ["default"], folders, numbers(seeds), changes or (), ["--device", device]
    )
    for name, folder in folders.items():
        say_what_lacks(name, folder, experiment.parts_of(folder))
    try:
        failed = experiment.run_all(runs, jobs, print_line)
    except KeyboardInterrupt:
        print_line("What was running is saved. Start the experiment again to go on.")
        raise
    groups = experiment.groups(runs)
    if format is TableShape.json:
        print_json([experiment.as_values(group) for group in groups])
    else:
        show(experiment.table(groups), format)
    if failed:
        print_line(f"\n{len(failed)} of {len(runs)} runs failed:")
        for name, why in failed.items():
            print_line(f"  {name}: {why}")
        print_line("Start the experiment again to try them again.")
        raise typer.Exit(BAD_INPUT)


def check(out: Path, changes: Sequence[str]) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(
            f"{out} is a file, and runs need a directory. Give the name of a new one; data is named with --data "
            "NAME=DIR."
        )
    if decided(changes, "training.seed"):
        raise InputError("--set training.seed: an experiment takes its seeds from --seeds. Give them there.")


def say_what_lacks(name: str, folder: Path, parts: Mapping[str, Path]) -> None:
    if "dev" not in parts:
        print_line(f"{name}: {folder} has no file called dev. A share of train takes its place.")
    if "test" not in parts:
        print_line(
            f"{name}: {folder} has no file called test. Its numbers are those of dev, which chooses the epoch."
        )


def folders_of(data: list[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for each in data:
        name, folder = named(each)
        if name in found:
            raise InputError(
                f"--data {each}: there is a data set called {name} already. Call it something else."
            )
        found[name] = folder
    return found


def named(each: str) -> tuple[str, Path]:
    name, equals, folder = each.partition("=")
    if not (name and equals and folder) or Path(name).name != name:
        raise InputError(f"--data {each}: write --data NAME=DIR, such as genia=data/genia.")
    return name, Path(folder)


def numbers(seeds: str) -> list[int]:
    try:
        return [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise InputError(f"--seeds {seeds}: write numbers with commas between them, such as 1,2,3.") from None


def show(rows: list[list[str]], format: TableShape) -> None:
    """A table; its first row names the columns."""
    head, *body = rows
    if format is TableShape.markdown:
        for row in (head, ["---"] * len(head), *body):
            typer.echo(f"| {' | '.join(row)} |")
    else:
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        for row in rows:
            typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
