"""The command `train`, and predictions as other commands need them."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestree.cli.data import options_for, reading
from nestree.cli.options import From, Read, Sentences, Words
from nestree.cli.running import INTERRUPTED, QUIET, Commands, Quiet, Verbose, progress_bar, say
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.evaluation import Evaluation
    from nestree.model import Recognizer
    from nestree.pipeline.sentences import Asked
    from nestree.sentence import Document

Model = Annotated[
    Path, typer.Option("--model", metavar="DIR", help="A model directory, as `nestree train` makes them.")
]
Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or mps; auto: the best there is.")
]


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
    from nestree.card import about

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
        start = hub.find(init) if init else None
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
    say(training.summary(result))
    if result.evaluation is None:
        say(f"Everything is saved. Go on with: nestree train --resume {folder}")
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
    from nestree.cli.watching import Bar, Lines

    if Commands.verbosity == QUIET:
        from contextlib import nullcontext

        return nullcontext()
    return Bar() if sys.stderr and sys.stderr.isatty() else Lines()


def evaluated_on_test(folder: Path, documents: "list[Document]", device: str) -> "Evaluation":
    from nestree.cli.scoring import headline
    from nestree.evaluation import evaluate
    from nestree.pipeline.sentences import Asked

    gold = [sentence for document in documents for sentence in document.sentences]
    found = evaluate(gold, predicted_by(folder, documents, device, Asked(scored=True)), resamples=0)
    say(f"test: {headline(found, False)}")
    return found


def predicted_by(
    folder: Path, documents: "Sequence[Document]", device: str, asked: "Asked | None" = None
) -> list[Any]:
    """Their sentences with the entities that the model of a directory finds, and a bar to watch it."""
    reader = read_with(folder, device)
    return predicted_with(reader, reader.sentences_of(documents), asked)


def read_with(folder: Path, device: str) -> "Recognizer":
    """The model of a directory, as `nestree predict` reads with it."""
    from nestree.pipeline import load

    return load(folder, device).reader


def predicted_with(model: "Recognizer", sentences: Sequence[Any], asked: "Asked | None" = None) -> list[Any]:
    """The same with a model that is loaded; `asked`: for more than entities."""
    from nestree.pipeline import predict
    from nestree.pipeline.sentences import Asked

    asked = asked or Asked()
    if Commands.verbosity == QUIET or not (sys.stderr and sys.stderr.isatty()):
        return predict(model, sentences, asked=asked)
    with progress_bar(total=len(sentences), unit="sentence", desc="predicting", delay=1) as bar:
        return predict(model, sentences, tell=bar.update, asked=asked)
