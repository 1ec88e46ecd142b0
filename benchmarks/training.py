"""Train recipes on data sets with several seeds, several runs at once, and score them.

    python -m benchmarks.training --data DIR --encoder PATH --out FILE genia:default litbank:default:1,2,3

A run is DATA:RECIPE[:SEEDS[:SETTING,SETTING...]]; DIR/DATA holds files called train, dev and test. Each run is a
process that calls `nestree.training.fit`. The output file is written after each epoch of any run. After Ctrl-C or
SIGTERM, as of `timeout 600 python -m ...`, runs stop after the current update, and their best epoch so far is scored;
with `--keep-models`, they can be continued (`--resume`). Test data is scored once, with the best epoch on dev.
`nestree experiment` does the same for users, without analysis and distillation.

With `--teachers` and `--unlabelled`, runs with settings `distill.KEY=VALUE` distil these models:

    words      of unlabelled text, at most              teachers   how many of them, the first ones [1]
    hard       1: hard labels [0]                       repeat, varied   see nestree.training.distill.make_teachers
    raw        1: teachers without their temperatures [0]

`--only-steps N` times N steps of each run, one run after another, and trains no model.
"""

import argparse
import importlib
import math
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.analysis import count_by_sentence, score_model, score_robustness
from benchmarks.processes import Send, run_processes
from benchmarks.tables import format_mean
from benchmarks.timing import Row, provenance, store, synchronize
from nestree import checkpoint, training
from nestree.config import Settings
from nestree.data import formats
from nestree.decoding import UNIT_TEMPERATURES
from nestree.model import Recognizer
from nestree.nn.devices import select_device
from nestree.temperature import best_decoder, fit_temperatures
from nestree.training import Callbacks, Corpus
from nestree.training.cuda_graphs import USES_BEFORE_CAPTURE
from nestree.training.dataset import batches, part_files
from nestree.training.distill import AUGMENTATION_RATE, LABELED_COPIES, make_teachers
from nestree.training.experiment import recipe_name
from nestree.training.loop import train_epoch
from nestree.types import Document, Sentence, with_context

PROFILED_STEPS = 16  # that the profiler keeps in memory
KERNELS = 20  # that are named
TREE_KERNELS = tuple(
    f"{name}_kernel" for name in ("inside", "outside", "spans", "arcs", "prepare", "backtrack", "error")
)


@dataclass(frozen=True)
class Job:
    """A run, and how to execute it."""

    name: str
    data: Path  # a directory with files called train, dev and test
    recipe: str
    seed: int
    changes: tuple[str, ...]
    distill: dict[str, float]  # empty: ordinary training
    options: argparse.Namespace  # of the command line

    @property
    def folder(self) -> Path:
        """Of the model; predictions and the log lie beside it."""
        folder: Path = self.options.folder / self.name
        return folder


def main(arguments: Sequence[str] | None = None) -> int:
    options, started = parse_arguments(arguments), time.time()
    jobs = make_jobs(options)
    at_once = 1 if options.only_steps else min(options.jobs, len(jobs))
    rows = {name: {**describe(job), "status": "not begun"} for name, job in jobs.items()}
    result = {
        "benchmark": "training",
        **provenance(select_device(options.device).type, options.commit),
        "side_by_side": at_once,
        "rows": list(rows.values()),
    }

    def receive(name: str, report: Row) -> None:
        row = rows[name]
        row.update(report)
        facts = [row["status"], row.get("why", "")]
        facts += [f"epoch {end['epoch']}, dev F1 {100 * end['f1']:.2f}" for end in report.get("epochs", ())[-1:]]
        facts += [f"{part} F1 {row[part]['f1']:.2f}" for part in ("dev", "test") if part in report]
        facts += [f"{report['step']['mean_ms']:.1f} ms a step"] if "step" in report else []
        print(f"{time.time() - started:6.0f} s  {name}: {' '.join(facts)}", file=sys.stderr, flush=True)
        store(result, options.out)

    run_processes(run_job, jobs, at_once, receive)
    groups: dict[str, list[float]] = {}
    for row in rows.values():
        if "test" in row:
            name = f"{row['data']} {row['recipe']} {' '.join(row['changes'])} {row.get('distill', '')}"
            groups.setdefault(name.strip(), []).append(row["test"]["f1"])
    for name, scores in groups.items():
        print(f"{name}: test F1 {format_mean(scores)}, {len(scores)} seeds")
    print(store(result, options.out))
    return int(any(row["status"] == "failed" for row in rows.values()))


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("runs", nargs="+", metavar="DATA:RECIPE[:SEEDS[:SETTINGS]]")
    add("--data", type=Path, required=True, metavar="DIR", help="a directory of data sets")
    add("--out", type=Path, required=True, metavar="FILE", help="the JSON file")
    add("--folder", type=Path, help="for models and predictions; default: beside --out")
    add("--encoder", metavar="PATH", help="the encoder of all runs, in place of the recipe's")
    add("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    add("--teachers", type=Path, nargs="+", default=[], metavar="DIR", help="models to distil")
    add("--init", type=Path, metavar="DIR", help="a model to start each run from")
    add("--unlabelled", type=Path, nargs="+", default=[], metavar="FILE", help="texts for distillation")
    add("--jobs", type=int, default=1, help="runs at once")
    add("--steps", type=int, default=0, help="time this many steps after each run")
    add("--only-steps", type=int, metavar="N", help="time N steps of each run, and train no model")
    add("--keep-models", action="store_true", help="without it, only predictions are kept")
    add("--resume", action="store_true", help="continue runs in --folder that were stopped")
    add("--analyze", "--analyse", action="store_true", help="analyze errors")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--commit", help="the commit to record outside a git checkout")
    options = parser.parse_args(arguments)
    options.folder = options.folder or options.out.parent / options.out.stem
    return options


def make_jobs(options: argparse.Namespace) -> dict[str, Job]:
    """The runs of the command line in their order, seed by seed, by name."""
    shared_changes = [*options.set, *([f"encoder.path={options.encoder}"] if options.encoder else [])]
    jobs: dict[str, Job] = {}
    for spec in options.runs:
        data, recipe, seeds, settings = (*spec.split(":", 3), "", "", "")[:4]
        if not recipe:
            raise SystemExit(f"{spec}: name data and a recipe, such as genia:default.")
        own = [change for change in settings.split(",") if change]
        changes = [change for change in own if not change.startswith("distill.")]
        pairs = (c.removeprefix("distill.").partition("=") for c in own if c not in changes)
        distill = {key: float(value) for key, _, value in pairs}
        data_folder = options.data / data
        for seed in (seeds or "1").split(","):
            name = f"{data}-{recipe_name(recipe)}-{seed}" + (f"-{len(jobs) + 1}" if own else "")
            values = data_folder, recipe, int(seed), (*shared_changes, *changes), distill
            jobs[name] = Job(name, *values, options)
    return jobs


def describe(job: Job) -> Row:
    """The beginning of a row; of the path of an encoder, only the name."""
    changes = [re.sub(r"^encoder\.path=.*/", "encoder.path=", change) for change in job.changes]
    row: Row = {"name": job.name, "data": job.data.name, "recipe": job.recipe, "seed": job.seed}
    if job.options.init:
        row["init"] = job.options.init.name
    return {**row, "changes": changes, **({"distill": job.distill} if job.distill else {})}


# One run, in its process


def run_job(job: Job, send: Send) -> None:
    """Train and score, or time steps. Output goes to a log beside the model."""
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    log = open(f"{job.folder}.log", "a", buffering=1)  # noqa: SIM115  until the process ends
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    if not job.options.only_steps:
        return train_and_score(job, send)
    settings, corpus = adapt(job, *load_data(job)[:2])
    send({"status": "finished", "step": measure_steps(settings, corpus, job.options.device, job.options.only_steps)})


def load_data(job: Job, context: int = 0) -> tuple[Settings, Corpus, list[Document]]:
    """The settings, the corpus and the test documents. `context`: words around each sentence that teachers read."""
    settings = Settings.read(job.recipe).with_overrides([*job.changes, f"training.seed={job.seed}"])
    parts = {part: list(formats.read(path)) for part, path in part_files(job.data).items()}
    corpus = training.make_corpus(
        parts["train"],
        parts.get("dev"),
        seed=job.seed,
        crossing_gold=settings.training.crossing,
        context=max(context, settings.encoder.context),
    )
    return settings, corpus, parts.get("test", [])


def adapt(job: Job, settings: Settings, corpus: Corpus) -> tuple[Settings, Corpus]:
    """Adapt `default` to small data, as `nestree train` and `nestree distill` do."""
    keys = {change.partition("=")[0] for change in job.changes}
    if job.recipe != "default" or "training.batch_words" in keys:
        return settings, corpus
    epochs = settings.training.epochs if "training.epochs" in keys else None
    return training.adapt_to_small_data(settings, corpus, epochs)


def train_and_score(job: Job, send: Send) -> None:
    """Train, and score the best epoch."""
    options, folder, teachers = job.options, job.folder, None
    started = time.perf_counter()
    recognizers = load_teachers(job)
    context = max([0, *(teacher.settings.encoder.context for teacher in recognizers)])
    settings, corpus, test = load_data(job, context)
    if recognizers:
        corpus, teachers = add_unlabelled(job, corpus, recognizers, max(context, settings.encoder.context))
    settings, corpus = adapt(job, settings, corpus)
    prepared = time.perf_counter() - started
    reporter = Reporter(send)
    result = training.fit(
        settings,
        corpus,
        folder,
        device=options.device,
        resume=options.resume and folder.exists(),
        init=options.init,
        save_every=math.inf,
        callbacks=reporter,
        teachers=teachers,
    )
    del teachers
    row: Row = {
        "status": "finished" if result.evaluation else "stopped",
        "why_ended": result.why,
        "settings": settings.to_toml().replace(settings.encoder.path, Path(settings.encoder.path).name),
        "epochs_planned": settings.training.epochs,
        "epochs_done": result.epochs,
        "best_epoch": result.best_epoch,
        "train_sentences": len(corpus.train),
        "train_words": sum(len(sentence.words) for sentence in corpus.train),
        "preparation_seconds": prepared,
        "notes": reporter.notes,
        **reporter.epoch_times(len(corpus.train)),
    }
    if torch.cuda.is_available():
        row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    if not (folder / checkpoint.WEIGHTS).is_file():
        return send({**row, "status": "stopped before the first epoch was done"})
    model = checkpoint.load(folder, select_device(options.device))
    if not result.evaluation:  # training does this at its end
        model.temperatures = fit_temperatures(model, corpus.dev)
        if settings.decoding.tune:
            model.settings = replace(settings, decoding=best_decoder(model, corpus.dev))
    row["decoding"], row["temperatures"] = asdict(model.settings.decoding), model.temperatures._asdict()
    row["dev"] = score_model(model, corpus.dev, options.analyze)[0]
    if test:
        sentences = model.sentences_with_context(test)
        row["test"], predicted = score_model(model, sentences, options.analyze)
        if options.analyze:
            row["test"]["by_sentence"] = count_by_sentence(sentences, predicted)
        left = iter(predicted)
        documents = [replace(d, sentences=tuple(next(left) for _ in d.sentences)) for d in test]
        formats.write(documents, Path(f"{job.folder}.predictions.jsonl.gz"), "jsonl")
        row["robustness"] = score_robustness(model, sentences)
    if not options.keep_models:
        shutil.rmtree(folder)
    send(row)
    if options.steps and result.evaluation:
        del model
        send({"step": measure_steps(settings, corpus, options.device, options.steps)})
    return None


def load_teachers(job: Job) -> list[Recognizer]:
    """The teachers of a run; none: ordinary training."""
    names = job.options.teachers[: int(job.distill.get("teachers", 1))] if job.distill else []
    teachers = [checkpoint.load(folder, select_device(job.options.device)) for folder in names]
    if job.distill.get("raw"):
        for teacher in teachers:
            teacher.temperatures = UNIT_TEMPERATURES
    return teachers


def add_unlabelled(job: Job, corpus: Corpus, teachers: Sequence[Recognizer], context: int) -> tuple[Corpus, Any]:
    """The corpus with unlabelled sentences, and the teachers of both."""
    unlabelled: list[Sentence] = []
    left = job.distill.get("words", math.inf)
    documents = chain.from_iterable(map(formats.read, job.options.unlabelled))
    for document in documents:
        for sentence in with_context([document], context)[0].sentences:
            if left > 0:
                unlabelled.append(sentence)
                left -= len(sentence.words)
        if left <= 0:
            break
    return make_teachers(
        corpus,
        unlabelled,
        teachers,
        hard=bool(job.distill.get("hard")),
        labeled_copies=int(job.distill.get("repeat", LABELED_COPIES)),
        augmentation_rate=job.distill.get("varied", AUGMENTATION_RATE),
        seed=job.seed,
    )


class Reporter(Callbacks):
    """Callbacks that report epochs to the parent process."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.epochs: list[Any] = []
        self.notes: list[str] = []

    def note(self, text: str, updates: int) -> None:
        self.notes.append(text[:300])

    def epoch(self, end: Any) -> None:
        self.epochs.append(end)
        print(end, flush=True)
        self.send({"status": "running", "epochs": [asdict(each) for each in self.epochs]})

    def epoch_times(self, sentences: int) -> dict[str, float]:
        """Medians over epochs; without the first, in which kernels are compiled, if there are others."""
        epochs = self.epochs[1:] or self.epochs
        if not epochs:
            return {}
        seconds = statistics.median(end.seconds for end in epochs)
        return {
            "train_seconds_per_epoch": seconds,
            "dev_seconds_per_epoch": statistics.median(end.dev_seconds for end in epochs),
            "train_sentences_per_second": sentences / seconds,
        }


# The time of a step


class MeasuredError(Exception):
    """Leaves `training.fit` once its steps are measured."""


def measure_steps(settings: Settings, corpus: Corpus, device: str, steps: int) -> Row:
    """Milliseconds of a training step and, on a GPU, what its kernels take.

    The loop is that of `nestree.training` on the sentences of the first updates of an epoch. Passes over them repeat
    until kernels are compiled and CUDA graphs are captured; then one is timed, and one is profiled. A sample may lack
    long sentences: the time of tree sums grows with the fourth power of the length.
    """
    options, everything = settings.training, len(corpus.train)
    lengths = [len(sentence.words) for sentence in corpus.train]
    sample = batches(lengths, options.batch_words, options.seed, 1)[: steps * options.gradient_accumulation]
    sentences = tuple(corpus.train[k] for batch in sample for k in batch)
    corpus = replace(corpus, train=sentences, dev=corpus.dev[:1])
    row: Row = {}

    def measure(run: Any) -> None:
        device = run.accelerator.device.type

        def run_pass() -> float:
            run.progress.epoch, run.progress.update = 1, 0
            synchronize(device)
            started = time.perf_counter()
            train_epoch(run)
            synchronize(device)
            return time.perf_counter() - started

        warmup = sum(run_pass() for _ in range(1 + USES_BEFORE_CAPTURE * (device == "cuda")))
        seconds, count = run_pass(), run.progress.update
        row.update(
            steps=count,
            sentences=len(sentences),
            words=sum(len(sentence.words) for sentence in sentences),
            longest=max(len(sentence.words) for sentence in sentences),
            mean_ms=1e3 * seconds / count,
            sentences_per_second=len(sentences) / seconds,
            epoch_seconds=seconds / len(sentences) * everything,
            warm_up_seconds=warmup,
        )
        if device == "cuda":
            row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
            row["profile"] = profiler.profile(run_pass, count, row["mean_ms"])
            row["tree_share"] = row["profile"]["trees_ms"] / row["mean_ms"]
        raise MeasuredError

    profiler = StepProfiler()
    module = importlib.import_module("nestree.training.train")
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(module, "run_epochs", measure):
        try:
            training.fit(
                settings, corpus, Path(folder) / "model", device=device, save_every=math.inf, callbacks=profiler
            )
        except MeasuredError:
            return row
    raise AssertionError("training did not call run_epochs")


class StepProfiler(Callbacks):
    """Callbacks that pass the steps of training on to PyTorch's profiler."""

    profiler: Any = None

    def step(self, step: Any) -> None:
        if self.profiler is not None:
            self.profiler.step()

    def profile(self, run_pass: Callable[[], object], steps: int, mean_ms: float) -> Row:
        """Milliseconds per step of a pass by CUDA kernel."""
        from torch.profiler import ProfilerActivity, profile, schedule

        kernels: dict[str, list[float]] = {}

        def collect(profiler: Any) -> None:
            for event in profiler.events() or ():
                spans_kernels = event.name.startswith(("Optimizer.", "ProfilerStep"))
                if event.device_type == torch.autograd.DeviceType.CUDA and not spans_kernels:
                    kernels.setdefault(event.name, []).append(event.device_time_total / 1e3)

        windows = schedule(wait=0, warmup=0, active=PROFILED_STEPS)
        activities = [ProfilerActivity.CUDA, ProfilerActivity.CPU]
        with profile(activities=activities, schedule=windows, on_trace_ready=collect) as self.profiler:
            run_pass()
        self.profiler = None
        busy = sum(map(sum, kernels.values()))
        trees = sum(sum(times) for name, times in kernels.items() if name.startswith(TREE_KERNELS))
        longest = sorted(kernels, key=lambda name: -sum(kernels[name]))[:KERNELS]
        return {
            "busy_ms": busy / steps,
            "busy_share": busy / steps / mean_ms,
            "launches": sum(map(len, kernels.values())) / steps,
            "trees_ms": trees / steps,
            "trees_of_busy": trees / busy if busy else 0.0,
            "kernels": {
                name[:80]: {"ms": sum(kernels[name]) / steps, "launches": len(kernels[name]) / steps}
                for name in longest
            },
        }


if __name__ == "__main__":
    sys.exit(main())
