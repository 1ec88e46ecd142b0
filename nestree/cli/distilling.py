"""The command that trains a small model on what large ones make of texts: distill."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestree.cli.data import reading
from nestree.cli.learning import (
    Device,
    check_resuming,
    decided,
    documents_of,
    evaluated_on_test,
    given_origin,
    is_first,
    names_of,
    settings_of,
    shown,
)
from nestree.cli.options import From, Read, Sentences, Words
from nestree.cli.predicting import options_by_format, say_left_out
from nestree.cli.running import INTERRUPTED, Quiet, Verbose, say
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.model import Recognizer
    from nestree.sentence import Sentence


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
    from nestree.card import about

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
    say(training.summary(result))
    if result.evaluation is None:
        say(f"Everything is saved. Go on with: nestree distill --resume {folder}")
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
    from nestree.pipeline import best_device
    from nestree.training import distill as library

    how = origin["distill"]
    teachers = [checkpoint.load(hub.find(name), best_device(device)) for name in how["teachers"]]
    library.check(corpus, teachers, how["hard"])  # before texts are read, which may take long
    texts = texts_of(origin, teachers[0], [Path(name) for name in how["unlabelled"]])
    size = sum(len(text.words) for text in texts)
    say(f"{len(texts):,} sentences of {size:,} words without annotation.")
    given = {"repeat": how["repeat"]} if how["repeat"] else {}
    return library.lessons(corpus, texts, teachers, hard=how["hard"], seed=seed, **given)


def texts_of(origin: dict[str, Any], teacher: "Recognizer", files: Sequence[Path]) -> "list[Sentence]":
    """The sentences of files without annotation; plain text is split as the teacher does, unless options say so."""
    from nestree.data import formats
    from nestree.data.files import STDIO
    from nestree.pipeline.jobs import jobs as jobs_of

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
