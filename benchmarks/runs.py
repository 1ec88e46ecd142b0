"""One run of a benchmark of training, in a process of its own: it trains, scores, and reports on the way."""

import math
import os
import shutil
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TELL = 2.0  # seconds between two words about the update under way
LEAST_RESERVE = 30.0  # seconds kept for saving, temperatures and scoring, of several runs at once


@dataclass(frozen=True)
class Job:
    """What to run."""

    name: str
    data: str  # a folder with files called train, dev and test
    recipe: str
    seed: int
    changes: tuple[str, ...]
    folder: str  # of the model; predictions lie beside it
    device: str
    threads: int
    deadline: float | None  # in seconds since 1970; the run has reported by then
    steps: int  # that are measured at the end; 0: none
    only_steps: bool
    keep_model: bool
    analyse: bool
    distill: dict[str, float] = field(default_factory=dict)  # see benchmarks.training; {}: ordinary training
    teachers: tuple[str, ...] = ()
    unlabelled: tuple[str, ...] = ()


def run(job: Job, mouth: Connection) -> None:
    """What a process does: whatever happens, the row says so. Its own output goes to a file beside the model."""
    Path(job.folder).parent.mkdir(parents=True, exist_ok=True)
    log = open(f"{job.folder}.log", "a", buffering=1)  # noqa: SIM115  until the process ends
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        mouth.send(("row", steps_alone(job) if job.only_steps else trained(job, mouth)))
    except BaseException as why:
        traceback.print_exc()
        mouth.send(("row", {"status": "failed", "why": f"{type(why).__name__}: {why}"[:300]}))
        sys.exit(1)


def loaded(job: Job) -> tuple[Any, Any, list[Any]]:
    """The settings, the corpus and the documents of test."""
    import torch

    from nestree import training
    from nestree.config import Settings
    from nestree.data import formats
    from nestree.training.experiment import parts_of

    torch.set_num_threads(job.threads)
    settings = Settings.read(job.recipe).changed([*job.changes, f"training.seed={job.seed}"])
    parts = {part: list(formats.read(path)) for part, path in parts_of(Path(job.data)).items()}
    corpus = training.corpus(
        parts["train"],
        parts.get("dev"),
        seed=job.seed,
        crossing_gold=settings.training.crossing,
        context=settings.encoder.context,
    )
    return settings, corpus, parts.get("test", [])


def steps_alone(job: Job) -> dict[str, Any]:
    from benchmarks.steps import measured

    settings, corpus, _ = loaded(job)
    return {"status": "finished", "step": measured(settings, corpus, job.device, job.steps)}


def trained(job: Job, mouth: Connection) -> dict[str, Any]:
    """Train, and score the best epoch."""
    import torch

    from nestree import checkpoint, training
    from nestree.pipeline import select_device
    from nestree.temperature import best_decoder, fit_temperatures

    settings, corpus, test = loaded(job)
    started = time.perf_counter()
    lessons = None
    if job.distill:
        corpus, lessons = distilled(job, corpus)
    prepared = time.perf_counter() - started
    count = sum(len(document.sentences) for document in test)
    reporter = Reporter(mouth, job.deadline, 1 + count / max(1, len(corpus.dev)))
    folder = Path(job.folder)
    result = training.train(
        settings,
        corpus,
        folder,
        device=job.device,
        save_every=math.inf,
        watcher=reporter,
        lessons=lessons,
    )
    del lessons
    row: dict[str, Any] = {
        "status": "finished" if result.evaluation else "stopped at the budget",
        "why_ended": result.why,
        "settings": settings.as_toml().replace(settings.encoder.path, Path(settings.encoder.path).name),
        "epochs_planned": settings.training.epochs,
        "epochs_done": result.epochs,
        "best_epoch": result.best_epoch,
        "train_sentences": len(corpus.train),
        "train_words": sum(len(sentence.words) for sentence in corpus.train),
        "preparation_seconds": prepared,
        "notes": reporter.notes,
        **reporter.times(len(corpus.train)),
    }
    if torch.cuda.is_available():
        row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    if not (folder / checkpoint.WEIGHTS).is_file():
        return {**row, "status": "stopped before the first epoch was done"}
    model = checkpoint.load(folder, select_device(job.device))
    if not result.evaluation:  # training would have done it at its end
        model.temperatures = fit_temperatures(model, corpus.dev)
        if settings.decoding.tune:
            model.settings = replace(settings, decoding=best_decoder(model, corpus.dev))
    row["decoding"] = asdict(model.settings.decoding)
    row["dev"] = scored(model, corpus.dev, job.analyse)[0]
    if test:
        row["test"], found = scored(model, model.sentences_of(test), job.analyse)
        keep_predictions(test, found, Path(f"{job.folder}.predictions.jsonl.gz"))
        row["robustness"] = robustness(model, model.sentences_of(test))
    if not job.keep_model:
        shutil.rmtree(folder)
    if job.steps and result.evaluation:
        mouth.send(("row", row))  # what is known stays, whatever happens next
        from benchmarks.steps import measured

        del model
        row["step"] = measured(settings, corpus, job.device, job.steps)
    return row


def distilled(job: Job, corpus: Any) -> tuple[Any, Any]:
    """The corpus with unlabelled sentences, and the lessons of the teachers."""
    from nestree import checkpoint
    from nestree.data import formats
    from nestree.decoding import NO_TEMPERATURES
    from nestree.pipeline import select_device
    from nestree.training.distill import AUGMENTATION_RATE, LABELED_COPIES, make_teachers

    teachers = [checkpoint.load(folder, select_device(job.device)) for folder in job.teachers]
    if job.distill.get("raw"):
        for teacher in teachers:
            teacher.temperatures = NO_TEMPERATURES
    texts, left = [], job.distill.get("words", math.inf)
    for path in job.unlabelled:
        for document in formats.read(Path(path)):
            for sentence in document.sentences:
                if left > 0:
                    texts.append(sentence)
                    left -= len(sentence.words)
    return make_teachers(
        corpus,
        texts,
        teachers,
        hard=bool(job.distill.get("hard")),
        repeat=int(job.distill.get("repeat", LABELED_COPIES)),
        varied=job.distill.get("varied", AUGMENTATION_RATE),
        seed=job.seed,
    )


NAMES = (
    *("Paris", "Apple", "Google", "London", "Microsoft", "Obama", "Germany"),
    *("Berlin", "Amazon", "Shakespeare", "Einstein", "Toyota", "Japan", "NASA"),
)


def robustness(model: Any, sentences: Sequence[Any]) -> dict[str, float]:
    """F1 on other forms of the same sentences; of how many names alone, and with a period, something is found."""
    from nestree.evaluation import evaluate
    from nestree.pipeline import Pipeline, predict
    from nestree.training.distill import in_case, without_punctuation

    forms = {
        "upper": [in_case(sentence, str.upper) for sentence in sentences],
        "lower": [in_case(sentence, str.lower) for sentence in sentences],
        "no_punctuation": [without_punctuation(sentence) for sentence in sentences],
    }
    row = {
        name: 100 * evaluate(given, predict(model, given), resamples=0).entities.f1
        for name, given in forms.items()
    }
    ner = Pipeline(model)
    for name, end in (("names", ""), ("names_with_period", ".")):
        row[name] = sum(bool(ner(each + end).entities) for each in NAMES) / len(NAMES)
    return row


class Reporter:
    """Tells the parent process, and asks training to stop in time to score the best epoch."""

    def __init__(self, mouth: Connection, deadline: float | None, scoring: float) -> None:
        """`scoring`: how much longer than an evaluation on dev it takes to score everything."""
        self.mouth, self.deadline, self.scoring = mouth, deadline, scoring
        self.epochs: list[Any] = []
        self.notes: list[str] = []
        self.told = 0.0
        self.asked = False

    def note(self, text: str, updates: int) -> None:
        self.notes.append(text[:300])

    def step(self, step: Any) -> None:
        now = time.time()
        if now - self.told > TELL:
            self.told = now
            self.mouth.send(
                (
                    "step",
                    f"{step.epoch}/{step.epochs} {100 * step.share:.0f} % F1 {100 * step.best_f1:.1f} "
                    f"{step.sentences_per_second:,.0f}/s {step.seconds_left:.0f} s left",
                )
            )
        self.stop_in_time(now)

    def epoch(self, end: Any) -> None:
        self.epochs.append(end)
        print(end, flush=True)
        self.mouth.send(("epoch", {**asdict(end), "losses": dict(end.losses)}))
        self.stop_in_time(time.time())

    def stop_in_time(self, now: float) -> None:
        if self.deadline is None or self.asked:
            return
        evaluation = self.epochs[-1].dev_seconds if self.epochs else 0.0
        if now > self.deadline - max(LEAST_RESERVE, 2 * self.scoring * evaluation):
            self.asked = True
            signal.raise_signal(signal.SIGTERM)  # training finishes its update, saves and ends

    def times(self, sentences: int) -> dict[str, float]:
        """Of an epoch, the first aside, if there are others: kernels are compiled in it."""
        later = self.epochs[1:] or self.epochs
        if not later:
            return {}
        seconds = statistics.median(end.seconds for end in later)
        return {
            "train_seconds_per_epoch": seconds,
            "dev_seconds_per_epoch": statistics.median(end.dev_seconds for end in later),
            "train_sentences_per_second": sentences / seconds,
        }


def scored(
    model: Any, sentences: Sequence[Any], analyse: bool, every_way: bool = False
) -> tuple[dict[str, Any], list[Any]]:
    """Percentages and what is behind them, and the sentences with the entities that the model finds.

    `analyse`: in detail; where heads are known, or `every_way` is asked for, also decoded in other ways.
    """
    from benchmarks.details import by_sentence, details, other_decoders, summary
    from nestree.evaluation import evaluate
    from nestree.pipeline import PredictOptions, predict
    from nestree.temperature import decoder_f1

    started = time.perf_counter()
    found = predict(model, sentences, asked=PredictOptions(scored=True))
    seconds = time.perf_counter() - started
    evaluation = evaluate(sentences, found, resamples=0)
    row = {**summary(evaluation), "sentences_per_second": len(sentences) / seconds}
    row["f1_by_decoder"] = {
        f"{decoder.method} {decoder.threshold:g}": 100 * f1
        for decoder, f1 in decoder_f1(model, sentences).items()
    }
    if analyse:
        row |= {"details": details(evaluation), "by_sentence": by_sentence(sentences, found)}
        if every_way or (evaluation.heads is not None and evaluation.heads.accuracy is not None):
            row["decoders"] = other_decoders(model, sentences)
    return row, found


def keep_predictions(documents: Sequence[Any], found: Sequence[Any], path: Path) -> None:
    from nestree.data import formats

    left = iter(found)
    formats.write(
        [replace(d, sentences=tuple(next(left) for _ in d.sentences)) for d in documents], path, "jsonl"
    )
