"""The command `predict`."""

import gc
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestree.cli.runtime import (
    FOUND_ERRORS,
    QUIET,
    Commands,
    Device,
    Files,
    From,
    Quiet,
    Read,
    Sentences,
    SkipBad,
    To,
    Verbose,
    Words,
    Write,
    counted,
    option_values,
    print_line,
    reading_options,
)
from nestree.errors import InputError, NestreeError

if TYPE_CHECKING:
    from nestree.predict_files import FilePredictOptions, Jobs, ResumeLog, Summary

SKIPPED_SHOWN = 20

ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="A model directory, OWNER/NAME on the hub, or box: the bundled model. [default: box]",
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        metavar="P",
        help="The probability that an entity needs, from 0 to less than 1; higher: fewer, and more of them right.",
    ),
]
LongestSentence = Annotated[
    int | None,
    typer.Option(
        "--longest", metavar="WORDS", min=4, help="Longer sentences are read through windows. [default: 200]"
    ),
]


def predict(
    files: Files,
    model: ModelName = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="OUT",
            help="A file; for several files or a folder of them, a folder; - is standard output.",
        ),
    ] = Path("-"),
    target_format: To = None,
    threshold: Threshold = None,
    trees: Annotated[
        bool, typer.Option("--trees", help="Keep the trees, too; only JSON lines have a place for them.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the folder of --out: files that are done stay.")
    ] = False,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    batch_words: Annotated[
        int | None,
        typer.Option(
            "--batch-words", metavar="N", min=1, help="Words read at once. [default: 4000; on CUDA 16000]"
        ),
    ] = None,
    longest: LongestSentence = None,
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    write: Write = None,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Find the entities of texts, or of sentences; those that the data has are replaced.

    Plain text is read (.txt, standard input, folders of texts), and any format that `nestree formats` lists. What is
    written is JSON lines, or what --to says. Exit codes: 0 all is done; 1 something was skipped; 2 bad input.
    """
    from nestree import predict_files as journal
    from nestree.data.io import check_output_path
    from nestree.predict_files import READ_AS_FOLDERS, predict_files
    from nestree.predict_files import jobs as jobs_of

    jobs = jobs_of(files, source_format, out, target_format)
    if resume and jobs.folder is None:
        raise InputError("--resume goes on with a folder: name several files, or a folder, and --out FOLDER.")
    if jobs.left_out:
        say_left_out(jobs.left_out)
    reading = options_by_format({job.format for job in jobs.jobs}, read, words, sentences)
    writing = options_to_write(jobs.format, write, model)
    started = monotonic()
    if jobs.folder is None and jobs.format not in READ_AS_FOLDERS:
        check_output_path(out)
    pipeline, folder = loaded(model, device, longest)
    how = how_to(pipeline, threshold, trees, batch_words, reading, writing, skip_bad)
    log = None
    if jobs.folder:
        told = described(how, folder, jobs.format, source_format, pipeline.device.type)
        log = journal.open_resume_log(jobs, told, resume)
    try:
        with bar(jobs) as tell:
            account = predict_files(pipeline, jobs, how, log, tell)
    except (NestreeError, KeyboardInterrupt):
        say_what_stays(jobs, log)
        raise
    say_what_was_done(account, jobs, monotonic() - started)
    if skipped := account.skipped:
        say_errors(skipped)
        raise typer.Exit(FOUND_ERRORS)


def say_left_out(paths: Sequence[Path]) -> None:
    more = len(paths) - 1
    others = f" and {more:,} other{'s' * (more > 1)}" if more else ""
    print_line(
        f"left out, as a name does not tell the format: {paths[0]}{others}. To read all as one format, name it, with "
        "--from."
    )


def loaded(model: str | None, device: str, longest: int | None) -> Any:
    """A model ready to read text, and its folder."""
    from nestree import hub
    from nestree.pipeline import MAX_SENTENCE_WORDS, load

    folder = hub.resolve(model)
    pipeline = load(folder, device, longest or MAX_SENTENCE_WORDS)
    gc.freeze()  # what is there by now stays; else Python looks for garbage in all of it, again and again
    return pipeline, folder


def how_to(
    pipeline: Any,
    threshold: float | None,
    trees: bool,
    batch_words: int | None,
    reading: Mapping[str, Any],
    writing: Mapping[str, Any],
    skip_bad: bool,
) -> "FilePredictOptions":
    from nestree.pipeline import default_batch_words
    from nestree.predict_files import FilePredictOptions

    asked = pipeline.asked(threshold, trees)
    return FilePredictOptions(
        asked, batch_words or default_batch_words(pipeline.device), reading, writing, skip_bad
    )


def options_by_format(
    kinds: set[str], read: Sequence[str] | None, words: str | None, sentences: str | None
) -> dict[str, dict[str, Any]]:
    """What was said about reading, for each format that is read."""
    if not (read or words or sentences):
        return {}
    return {kind: reading_options(kind, read, words, sentences) for kind in sorted(kinds)}


def options_to_write(format: str, write: Sequence[str] | None, model: str | None) -> dict[str, Any]:
    """What was said about writing; for Label Studio, what a model finds is a prediction, and says whose."""
    options = option_values(write or (), format, "write")
    if format == "label-studio":
        options = {"part": "predictions", "model": version_of(model), **options}
    return options


def version_of(model: str | None) -> str:
    """What a prediction gives as its origin."""
    from nestree import __version__
    from nestree.hub import is_bundled

    if is_bundled(model):
        return f"nestree {__version__}"
    assert model is not None
    return Path(model).resolve().name if Path(model).exists() else model


def described(
    how: "FilePredictOptions", folder: Path, format: str, source: str | None, device: str
) -> dict[str, Any]:
    """All that decides what is written, for the journal: names as the command line has them."""
    from nestree.predict_files import fingerprint

    threshold = how.asked.settings.decoding.threshold if how.asked.settings else None
    return {
        "--model": fingerprint(folder),
        "--from": source,
        "--to": format,
        "--threshold": threshold,
        "--trees": how.asked.trees,
        "--longest": how.asked.longest,
        "--batch-words": how.batch_words,
        "--device": device,
        "options to read": {key: dict(value) for key, value in how.reading.items()},
        "options to write": dict(how.writing),
    }


def bar(jobs: "Jobs") -> Any:
    """For whoever looks on, and does not see the results run by: how far it is, words per second, the time left."""
    from contextlib import nullcontext

    from nestree.cli.progress import PredictionProgress

    on_screen = str(jobs.jobs[0].target) == "-" and sys.stdout is not None and sys.stdout.isatty()
    if Commands.verbosity == QUIET or on_screen or not (sys.stderr and sys.stderr.isatty()):
        return nullcontext()
    return PredictionProgress(len(jobs.jobs))


def say_what_stays(jobs: "Jobs", log: "ResumeLog | None") -> None:
    """After an interruption: what is done stays done."""
    if log is not None:
        done = sum(log.is_done(job.name, job.source) for job in jobs.jobs)
        print_line(f"Done: {done:,} of {len(jobs.jobs):,} files. Go on with the same command and --resume.")


def say_what_was_done(account: "Summary", jobs: "Jobs", seconds: float) -> None:
    from dataclasses import replace

    from nestree.data.convert import conversion_summary as told

    if all(
        job.format == "text" for job in jobs.jobs
    ):  # words and sentences were not in the text, but our own
        for what in [each for each in account.writing.counts if each.startswith("borders of ")]:
            del account.writing.counts[what]
    read = replace(account.reading, skipped=[])  # these come last
    for line in told(read, account.writing):
        print_line(line)
    if account.windowed:
        print_line(f"{account.windowed:7,}  sentences too long to be read at once: read through windows")
    files = f" of {counted(account.files, 'file', 'files')}" if len(jobs.jobs) > 1 else ""
    before = f" ({account.done_before:,} done before)" if account.done_before else ""
    print_line(
        f"{counted(account.entities, 'entity', 'entities')} in {counted(account.sentences, 'sentence', 'sentences')}"
        f"{files}{before}; {counted(account.words, 'word', 'words')}, {seconds:.1f} s, loading included"
    )


def say_errors(skipped: Sequence[str]) -> None:
    """What was left out; --quiet does not hide it."""
    typer.echo(f"{len(skipped):,} skipped:", err=True)
    for sentence in skipped[:SKIPPED_SHOWN]:
        typer.echo(f"  {sentence}", err=True)
    if len(skipped) > SKIPPED_SHOWN:
        typer.echo(f"  ... and {len(skipped) - SKIPPED_SHOWN:,} more", err=True)
