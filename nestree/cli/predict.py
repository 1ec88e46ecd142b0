"""The commands `predict`, `select`, `quantize` and `export`, and predictions as other commands need them."""

import gc
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

from nestree.cli.options import Files, Reading, parse_options
from nestree.cli.runtime import (
    FOUND_ERRORS,
    QUIET,
    Commands,
    PredictionProgress,
    on_terminal,
    print_line,
    progress_bar,
    reading_progress,
    total_bytes,
)
from nestree.errors import DataError, InputError, NestreeError, plural

if TYPE_CHECKING:
    from nestree.model import Recognizer
    from nestree.pipeline import Pipeline, PredictOptions
    from nestree.predict_files import FilePredictOptions, JobPlan, Summary
    from nestree.types import Document, Sentence

SKIPPED_SHOWN = 20
TASK_FORMATS = ("label-studio", "prodigy", "doccano", "brat", "jsonl")


def predict(
    files: Files,
    reading: Reading,
    model: str | None = None,
    out: Path = Path("-"),
    target_format: str | None = None,
    threshold: float | None = None,
    labels: list[str] | None = None,
    trees: bool = False,
    resume: bool = False,
    skip_bad: bool = False,
    device: str = "auto",
    batch_words: int | None = None,
    max_sentence_words: int = 200,
    workers: int = 0,
    ray: str | None = None,
    write: list[str] | None = None,
) -> None:
    """Find the entities of texts or sentences; entities in the data are replaced.

    Reads plain text (.txt, standard input, folders of texts) and every format that `nestree formats` lists. Writes
    JSON lines, or the format of --to. Exit codes: 0 all is done; 1 something was skipped; 2 bad input.
    """
    import torch

    from nestree.data.formats import FOLDER_FORMATS
    from nestree.data.io import check_output_path
    from nestree.data.object_store import as_url, open_store
    from nestree.pipeline import default_batch_words
    from nestree.predict_files import FilePredictOptions, open_resume_log, predict_files

    if not target_format and not out.suffix:
        target_format = "jsonl"
    check_files(files, "predict")
    jobs = find_jobs(files, reading.source_format, out, target_format, skip_bad)
    if resume and jobs.folder is None:
        raise InputError("--resume continues in a folder: name several files, or a folder, and --out FOLDER.")
    write_options = parse_options(write or (), jobs.format, "write")
    if jobs.format == "label-studio":
        write_options = {"part": "predictions", "model": model_name(model), **write_options}
    started = monotonic()
    if url := as_url(out):
        store = open_store(url)
        if jobs.folder is None and jobs.format in FOLDER_FORMATS and store.names():
            raise InputError(f"{url} is not empty. Give a new name.")
    elif jobs.folder is None and jobs.format not in FOLDER_FORMATS:
        check_output_path(out)
    with nullcontext() if ray is None else ray_cluster(ray, model, workers, device) as cluster:
        # On a cluster, the pipeline of this process only reads.
        pipeline, folder = load_pipeline(
            model, "cpu" if cluster else device, max_sentence_words, 0 if cluster else workers
        )
        target = torch.device(cluster.device) if cluster else pipeline.device
        options = FilePredictOptions(
            pipeline.predict_options(threshold, trees, labels or None),
            batch_words or default_batch_words(target),
            reading.options_by_format(job.format for job in jobs.jobs),
            write_options,
            skip_bad,
        )
        log = None
        if jobs.folder:
            choices = choices_to_log(options, folder, jobs.format, reading.source_format, target.type)
            log = open_resume_log(jobs, choices, resume)
        try:
            with progress_display(jobs) as on_progress:
                summary = predict_files(pipeline, jobs, options, log, on_progress, cluster)
        except (NestreeError, KeyboardInterrupt) as error:
            if log is not None:
                done = sum(log.is_done(job.name, job.source) for job in jobs.jobs)
                bad = isinstance(error, DataError) and not isinstance(error.__context__, OSError)
                skip = ", and with --skip-bad to leave out what cannot be read" if bad else ""
                print_line(
                    f"Done: {done:,} of {len(jobs.jobs):,} files. Continue with the same command and --resume{skip}."
                )
            raise
    print_summary(summary, jobs, monotonic() - started)
    if skipped := summary.skipped:  # --quiet does not hide these
        more = len(skipped) - SKIPPED_SHOWN
        typer.echo(f"{len(skipped):,} skipped:", err=True)
        for message in [*skipped[:SKIPPED_SHOWN], *([f"... and {more:,} more"] if more > 0 else [])]:
            typer.echo(f"  {message}", err=True)
        raise typer.Exit(FOUND_ERRORS)


def ray_cluster(address: str, model: str | None, workers: int, device: str) -> AbstractContextManager[Any]:
    from nestree.integrations.ray import ADDRESS, connect

    if not ADDRESS.fullmatch(address):
        raise InputError(
            f"--ray {address}: this is no address. Write HOST:PORT, or auto for a cluster on this machine; "
            "without an address, Ray is started here."
        )
    return connect(address, model, workers, device)


def find_jobs(
    files: Sequence[Path], format: str | None, out: Path, target_format: str | None, skip_bad: bool = False
) -> "JobPlan":
    """The files to read, those of folders included; says which files of folders are not read."""
    from nestree.predict_files import plan_jobs

    jobs = plan_jobs(files, format, out, target_format, skip_bad)
    if jobs.left_out:
        more = len(jobs.left_out) - 1
        others = f" and {plural(more, 'other')}" if more else ""
        print_line(
            f"left out, because the name does not show the format: {jobs.left_out[0]}{others}. To read all files as "
            "one format, name it with --from."
        )
    return jobs


def check_files(files: Sequence[Path], command: str) -> None:
    """Raise if one of the arguments seems to be a text rather than the name of a file."""
    for path in files:
        is_name = str(path) == "-" or (path.suffix and not path.suffix.endswith(".")) or path.exists()
        if not is_name:
            raise InputError(
                f"{path} does not exist. If it is a text and not a file, pipe it: "
                f"echo {shlex.quote(str(path))} | nestree {command} -"
            )


def load_pipeline(
    model: str | Path | None, device: str, max_sentence_words: int = 200, workers: int = 0
) -> "tuple[Pipeline, Path]":
    """A pipeline, and the folder of its model."""
    from nestree import hub
    from nestree.pipeline import load

    folder = hub.resolve(model)
    pipeline = load(folder, device, max_sentence_words, workers=workers)
    gc.freeze()  # exempt the model from garbage collection, which would visit all of it repeatedly
    return pipeline, folder


def model_name(model: str | None) -> str:
    """The name of a model, for Label Studio and reports: of a folder, its own name."""
    from nestree import hub

    if hub.is_bundled(model):
        return hub.BUNDLED_NAME
    return Path(str(model)).resolve().name if Path(str(model)).exists() else str(model)


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
        "--label": sorted(asked.label_thresholds) if asked.label_thresholds else None,
        "--trees": asked.trees,
        "--max-sentence-words": asked.max_sentence_words,
        "--batch-words": options.batch_words,
        "--device": device,
        "options to read": {key: dict(value) for key, value in options.read_options.items()},
        "options to write": dict(options.write_options),
    }


def progress_display(jobs: "JobPlan") -> AbstractContextManager[Any]:
    """Progress, unless --quiet is given or the results themselves go to the terminal."""
    results_on_terminal = str(jobs.jobs[0].target) == "-" and sys.stdout.isatty()
    shown = Commands.verbosity > QUIET and not results_on_terminal
    return PredictionProgress(len(jobs.jobs)) if shown else nullcontext()


def print_summary(summary: "Summary", jobs: "JobPlan", seconds: float) -> None:
    from nestree.data.convert import conversion_summary

    if all(job.format == "text" for job in jobs.jobs):
        # The texts are still there, and their words and sentences are ours: nothing is lost if they are not written.
        ours = ("texts ", "word boundaries ", "sentence boundaries ", "document boundaries ")
        for loss in [loss for loss in summary.write_report.counts if loss.startswith(ours)]:
            del summary.write_report.counts[loss]
    for line in conversion_summary(replace(summary.read_report, skipped=[]), summary.write_report):
        print_line(line)
    if summary.windowed_sentences:
        print_line(f"{summary.windowed_sentences:7,}  long sentences read in overlapping windows")
    files = f" of {plural(summary.files, 'file')}" if len(jobs.jobs) > 1 else ""
    before = f" ({summary.done_before:,} done before)" if summary.done_before else ""
    print_line(
        f"{plural(summary.entities, 'entity')} in {plural(summary.sentences, 'sentence')}{files}{before}; "
        f"{plural(summary.words, 'word')}, {seconds:.1f} s, loading included"
    )


def predict_sentences(
    model: "Recognizer", sentences: "Sequence[Sentence]", options: "PredictOptions | None" = None
) -> "list[Sentence]":
    """The sentences with predicted entities; shows a progress bar on a terminal."""
    from nestree.pipeline import PredictOptions, predict

    options = options or PredictOptions()
    if not on_terminal():
        return predict(model, sentences, options=options)
    with progress_bar(total=len(sentences), unit="sentence", desc="predicting", delay=1) as bar:
        return predict(model, sentences, on_progress=bar.update, options=options)


def predict_documents(folder: Path, documents: "Sequence[Document]", device: str) -> "list[Sentence]":
    """The sentences of documents with the entities that the model of a folder predicts."""
    model = load_pipeline(folder, device)[0].inference_model
    return predict_sentences(model, model.sentences_with_context(documents))


def select(
    pool: Files,
    reading: Reading,
    budget: int,
    out: Path = Path("-"),
    target_format: str | None = None,
    model: str | None = None,
    criterion: str = "f1-loss",
    diversity: str = "none",
    unit: str = "sentence",
    exclude: list[Path] | None = None,
    partial: bool = False,
    seed: int = 1,
    device: str = "auto",
) -> None:
    """Choose what to annotate next: the sentences, documents or spans of a pool that help the model most.

    They are written as tasks for an annotation tool, best first, with the model's entities to be corrected and the
    model's uncertainty. --to: label-studio, prodigy, doccano, brat or jsonl; with --partial, label-studio or jsonl.
    """
    from nestree.acquisition import json_questions, load_fast
    from nestree.acquisition import select as library
    from nestree.data import formats
    from nestree.data.io import ConversionReport, check_output_path

    target_format = target_format or (formats.detect_output_format(out) if out.suffix else "jsonl")
    targets = ("label-studio", "jsonl") if partial else TASK_FORMATS
    if target_format not in targets:
        purpose = "--partial writes questions" if partial else "tasks are written"
        raise InputError(f"{purpose} as {' or '.join(targets)}, not as {target_format}. Choose one of these with --to.")
    jobs = find_jobs(pool, reading.source_format, Path("-"), "jsonl").jobs
    check_output_path(out, [*(job.source for job in jobs), *(exclude or ())])
    started = monotonic()
    pipeline = load_fast(model, device)
    rules = pipeline.model.text_rules._asdict()
    # Excluded data is split like the pool, so that its sentences are found there.
    split = {name: value for name in rules if (value := getattr(reading, name))}

    def stream() -> "Iterator[Document]":
        for job in jobs:
            yield from replace(reading, source_format=job.format).documents(job.source, **rules)

    with reading_progress([job.source for job in jobs]):
        selection = library(
            stream(),
            budget=budget,
            model=pipeline,
            by=criterion,
            diversity=diversity,
            unit=unit,
            exclude=[Reading().documents(path, **rules | split) for path in exclude or ()],
            partial=partial,
            seed=seed,
        )
    for note in selection.notes:
        print_line(note)
    write_options = {}
    if target_format == "label-studio":
        write_options = {"part": "predictions", "model": model_name(model)}
    tasks = selection.documents
    if partial and target_format == "jsonl":
        tasks = [json_questions(document) for document in tasks]
    if target_format == "brat":  # which has no place for the order but the names of files
        width = len(str(len(tasks)))
        tasks = [replace(d, id=f"{k:0{width}}-{d.id}") for k, d in enumerate(tasks, 1)]
    formats.write(tasks, out, target_format, ConversionReport(), **write_options)
    asked = f"{plural(selection.questions, 'question')} about " * partial
    sentences = sum(len(document.sentences) for document in tasks)
    print_line(
        f"{asked}{plural(sentences, 'sentence')}, {plural(selection.words, 'word')}, of "
        f"{plural(selection.pool_sentences, 'sentence')}, {plural(selection.pool_words, 'word')}; "
        f"{monotonic() - started:.1f} s, loading included"
    )


def quantize(
    model: Annotated[str, Argument(metavar="MODEL", help="A folder, gum-minilm, or OWNER/NAME on the hub.")],
    reading: Reading,
    out: Path,
    gold: Path | None = None,
    device: str = "auto",
) -> None:
    """Store the weights of a model in 8 bits each: a quarter of its size, and nearly the same entities.

    The small model is used as any other. With --gold both are evaluated, and the card of the small one has the scores.
    """
    from nestree import checkpoint, hub
    from nestree.api import score_compression
    from nestree.data.io import atomic_path

    documents = []
    if gold:
        with reading_progress([gold]):
            documents = list(reading.documents(gold))
    folder = hub.resolve(model)
    checkpoint.check_output_outside_model(out, folder)
    with atomic_path(out) as temporary:
        checkpoint.quantize(folder, temporary)
        if gold:
            annotated = [sentence for document in documents for sentence in document.sentences]
            before, after = (predict_documents(path, documents, device) for path in (folder, temporary))
            cost = score_compression(annotated, before, after).summary("before", "in 8 bits")
            checkpoint.add_to_card(temporary, f"{gold.name}: {cost}")
            print_line(cost)
    size_before = sum(path.stat().st_size for path in checkpoint.model_files(folder))
    print_line(f"{size_before / 1e6:.1f} MB -> {total_bytes(out) / 1e6:.1f} MB: {out}")


def export(
    model: Annotated[str, Argument(metavar="MODEL", help="A folder, gum-minilm, or OWNER/NAME on the hub.")],
    reading: Reading,
    onnx: Path,
    int8: bool = False,
    annotated: Path | None = None,
) -> None:
    """Write a model as an ONNX graph, which `nestree.load` and all commands run with ONNX Runtime.

    Trees stay in nestree, so that everything works as before. With --data both models are evaluated, and the card of
    the exported one has the scores.
    """
    from nestree.api import EXPORT, export

    documents = None
    if annotated:
        with reading_progress([annotated]):
            documents = list(reading.documents(annotated))
    scores = export(model, onnx, int8=int8, data=documents)
    if scores:
        print_line(scores.summary(*EXPORT))
    print_line(f"{total_bytes(onnx) / 1e6:.1f} MB, {'8 bits' if int8 else 'float32'}: {onnx}")
