"""The command `predict`."""

import gc
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

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
    option_values,
    pluralize,
    print_line,
    reading_options,
)
from nestree.errors import InputError, NestreeError

if TYPE_CHECKING:
    from nestree.predict_files import FilePredictOptions, JobPlan, Summary

SKIPPED_SHOWN = 20

ModelName = Annotated[
    str | None, Option("--model", metavar="MODEL",
                       help="A model directory, OWNER/NAME on the hub, or gum-minilm: the bundled model, the default."),
]  # fmt: skip
Threshold = Annotated[
    float | None, Option("--threshold", metavar="P",
                         help="The lowest probability of an entity, from 0 to less than 1: higher means more precise."),
]  # fmt: skip
MaxSentenceWords = Annotated[
    int | None, Option("--max-sentence-words", metavar="WORDS", min=4,
                       help="Longer sentences are read in overlapping windows. [default: 200]"),
]  # fmt: skip
BatchWords = Annotated[
    int | None, Option("--batch-words", metavar="N", min=1,
                       help="Words in one batch. [default: 4000; on CUDA 16000]"),
]  # fmt: skip
Out = Annotated[
    Path, Option("--out", metavar="OUT",
                 help="A file; for several files or a directory of them, a directory; - is standard output."),
]  # fmt: skip
WithTrees = Annotated[bool, Option("--trees", help="Write the trees, too; only JSON lines can hold them.")]
Resume = Annotated[bool, Option("--resume", help="Continue in the directory of --out: finished files stay.")]


def predict(
    files: Files,
    model: ModelName = None,
    out: Out = Path("-"),
    target_format: To = None,
    threshold: Threshold = None,
    trees: WithTrees = False,
    resume: Resume = False,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    batch_words: BatchWords = None,
    max_sentence_words: MaxSentenceWords = None,
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    write: Write = None,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Find the entities of texts or sentences; entities in the data are replaced.

    Reads plain text (.txt, standard input, directories of texts) and every format that `nestree formats` lists. Writes
    JSON lines, or the format of --to. Exit codes: 0 all is done; 1 something was skipped; 2 bad input.
    """
    from nestree.data.io import check_output_path
    from nestree.pipeline import default_batch_words
    from nestree.predict_files import FOLDER_FORMATS, FilePredictOptions, open_resume_log, predict_files
    from nestree.predict_files import plan_jobs as find_jobs

    jobs = find_jobs(files, source_format, out, target_format)
    if resume and jobs.folder is None:
        raise InputError("--resume goes on with a folder: name several files, or a folder, and --out FOLDER.")
    if jobs.left_out:
        warn_left_out(jobs.left_out)
    reading = options_by_format({job.format for job in jobs.jobs}, read, words, sentences)
    writing = option_values(write or (), jobs.format, "write")
    if jobs.format == "label-studio":
        writing = {"part": "predictions", "model": model_version(model), **writing}
    started = monotonic()
    if jobs.folder is None and jobs.format not in FOLDER_FORMATS:
        check_output_path(out)
    pipeline, folder = load_pipeline(model, device, max_sentence_words)
    options = FilePredictOptions(
        pipeline.predict_options(threshold, trees),
        batch_words or default_batch_words(pipeline.device),
        reading,
        writing,
        skip_bad,
    )
    log = None
    if jobs.folder:
        choices = choices_to_log(options, folder, jobs.format, source_format, pipeline.device.type)
        log = open_resume_log(jobs, choices, resume)
    try:
        with progress_display(jobs) as on_progress:
            summary = predict_files(pipeline, jobs, options, log, on_progress)
    except (NestreeError, KeyboardInterrupt):
        if log is not None:
            done = sum(log.is_done(job.name, job.source) for job in jobs.jobs)
            print_line(
                f"Done: {done:,} of {len(jobs.jobs):,} files. Go on with the same command and --resume."
            )
        raise
    print_summary(summary, jobs, monotonic() - started)
    if skipped := summary.skipped:  # --quiet does not hide these
        more = len(skipped) - SKIPPED_SHOWN
        typer.echo(f"{len(skipped):,} skipped:", err=True)
        for message in [*skipped[:SKIPPED_SHOWN], *([f"... and {more:,} more"] if more > 0 else [])]:
            typer.echo(f"  {message}", err=True)
        raise typer.Exit(FOUND_ERRORS)


def warn_left_out(paths: Sequence[Path]) -> None:
    """Warn about files of a directory that are not read."""
    more = len(paths) - 1
    others = f" and {more:,} other{'s' * (more > 1)}" if more else ""
    print_line(
        f"left out, as a name does not tell the format: {paths[0]}{others}. To read all as one format, name it, with "
        "--from."
    )


def load_pipeline(model: str | None, device: str, max_sentence_words: int | None) -> Any:
    """A Pipeline, and the model's directory."""
    from nestree import hub
    from nestree.nn.batch import MAX_SENTENCE_WORDS
    from nestree.pipeline import load

    folder = hub.resolve(model)
    pipeline = load(folder, device, max_sentence_words or MAX_SENTENCE_WORDS)
    gc.freeze()  # exempt the model from garbage collection, which would visit all of it repeatedly
    return pipeline, folder


def options_by_format(
    formats: set[str], read: Sequence[str] | None, words: str | None, sentences: str | None
) -> dict[str, dict[str, Any]]:
    """The reading options of the command line for each format that is read."""
    if not (read or words or sentences):
        return {}
    return {format: reading_options(format, read, words, sentences) for format in sorted(formats)}


def model_version(model: str | None) -> str:
    """The origin of predictions, for Label Studio."""
    from nestree import __version__
    from nestree.hub import is_bundled

    if is_bundled(model):
        return f"nestree {__version__}"
    assert model is not None
    return Path(model).resolve().name if Path(model).exists() else model


def choices_to_log(
    options: "FilePredictOptions", folder: Path, format: str, source_format: str | None, device: str
) -> dict[str, Any]:
    """Everything that determines the output, under the names of the command line: --resume compares it."""
    from nestree.predict_files import fingerprint

    asked = options.predict_options
    return {
        "--model": fingerprint(folder),
        "--from": source_format,
        "--to": format,
        "--threshold": asked.settings.decoding.threshold if asked.settings else None,
        "--trees": asked.trees,
        "--max-sentence-words": asked.max_sentence_words,
        "--batch-words": options.batch_words,
        "--device": device,
        "options to read": {key: dict(value) for key, value in options.read_options.items()},
        "options to write": dict(options.write_options),
    }


def progress_display(jobs: "JobPlan") -> AbstractContextManager[Any]:
    """A progress bar, unless --quiet, standard error is no terminal, or the results themselves go to the terminal."""
    from nestree.cli.progress import PredictionProgress

    results_on_terminal = str(jobs.jobs[0].target) == "-" and sys.stdout.isatty()
    if Commands.verbosity == QUIET or results_on_terminal or not sys.stderr.isatty():
        return nullcontext()
    return PredictionProgress(len(jobs.jobs))


def print_summary(summary: "Summary", jobs: "JobPlan", seconds: float) -> None:
    from nestree.data.convert import conversion_summary

    if all(job.format == "text" for job in jobs.jobs):
        # Words and sentences come from us, not from the data: nothing is lost if they are not written.
        for loss in [loss for loss in summary.write_report.counts if loss.startswith("borders of ")]:
            del summary.write_report.counts[loss]
    for line in conversion_summary(replace(summary.read_report, skipped=[]), summary.write_report):
        print_line(line)
    if summary.windowed_sentences:
        print_line(
            f"{summary.windowed_sentences:7,}  sentences too long to be read at once: read through windows"
        )
    files = f" of {pluralize(summary.files, 'file', 'files')}" if len(jobs.jobs) > 1 else ""
    before = f" ({summary.done_before:,} done before)" if summary.done_before else ""
    print_line(
        f"{pluralize(summary.entities, 'entity', 'entities')} in "
        f"{pluralize(summary.sentences, 'sentence', 'sentences')}"
        f"{files}{before}; {pluralize(summary.words, 'word', 'words')}, {seconds:.1f} s, loading included"
    )
