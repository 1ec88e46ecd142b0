"""Ctrl-C, and the signal that ends a job: training finishes its update, saves and stops.

A second one ends it at once.
"""

import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from nestree import checkpoint
from nestree.config import Settings
from nestree.errors import PotentialsError, TrainingError
from nestree.evaluation import Evaluation, evaluate
from nestree.model import Recognizer
from nestree.pipeline import PredictOptions, predict
from nestree.training import state
from nestree.training.callbacks import Callbacks, EpochEnd, Step
from nestree.training.dataset import Corpus, batches, rank_share
from nestree.training.optimizer import Average, lr_schedule, set_lr
from nestree.training.run_dir import RunDir
from nestree.training.state import Progress
from nestree.training.step import AsyncScalars, GradientStep
from nestree.treecrf.memory import is_out_of_memory
from nestree.types import Sentence


@dataclass
class StopSignal:
    asked: bool = False  # of this process
    agreed: bool = False  # by all processes, at the same update


@contextmanager
def stop_on_interrupt() -> Iterator[StopSignal]:
    """Within this, signals ask to stop instead of stopping."""
    stop = StopSignal()
    before: dict[int, Any] = {}

    def ask(number: int, _: Any) -> None:
        stop.asked = True
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


Update = list[list[int]]  # batches of numbers of sentences


@dataclass
class Run:
    """Everything that a run of training holds."""

    settings: Settings
    corpus: Corpus
    folder: RunDir
    accelerator: Accelerator
    model: Recognizer
    optimiser: torch.optim.AdamW
    average: Average
    updater: GradientStep
    progress: Progress
    watchers: list[Callbacks]
    stop: StopSignal
    save_every: float  # seconds
    best: dict[str, Tensor] = field(
        default_factory=dict
    )  # weights of the best epoch, until they are on the disk
    saved_at: float = field(default_factory=time.monotonic)

    @property
    def leads(self) -> bool:
        """Of several processes, one writes and speaks."""
        return bool(self.accelerator.is_main_process)

    def tell(self, text: str) -> None:
        """Something that the user should know."""
        for watcher in self.watchers:
            watcher.note(text, self.progress.updates)

    @property
    def save_is_due(self) -> bool:
        return time.monotonic() - self.saved_at >= self.save_every


def run_epochs(run: Run) -> None:
    """All epochs that are left, or until somebody asks to stop."""
    progress, settings = run.progress, run.settings.training
    while not (progress.finished or run.stop.agreed):
        if train_epoch(run):
            end_epoch(run)
            if progress.epoch > settings.epochs:
                progress.finished = "all epochs are done"
            elif (
                settings.early_stopping_patience
                and no_callbacks(progress) >= settings.early_stopping_patience
            ):
                progress.finished = f"dev F1 did not rise for {settings.early_stopping_patience} epochs"
        if progress.finished or run.stop.agreed or run.save_is_due:
            save(run)


def no_callbacks(progress: Progress) -> int:
    """How many epochs ago the best one was; while nothing has been found at all, there is none."""
    return progress.epoch - 1 - progress.best_epoch if progress.best_f1 > 0 else 0


def updates_of(run: Run, epoch: int) -> list[Update]:
    """The updates of an epoch."""
    settings = run.settings.training
    found = batches(run.updater.lengths, settings.batch_words, settings.seed, epoch)
    return [
        found[k : k + settings.gradient_accumulation]
        for k in range(0, len(found), settings.gradient_accumulation)
    ]


def train_epoch(run: Run) -> bool:
    """The updates of this epoch that are left; False: somebody asked to stop before its end."""
    progress = run.progress
    updates = updates_of(run, progress.epoch)
    clock = Clock(run.progress, run.settings.training.epochs, len(updates))
    run.model.train()
    if progress.update == 0:
        progress.pieces = max(1, progress.pieces // 2)  # there may be more memory than before
    pending: PendingStep | None = None
    ahead = [*updates[progress.update + 1 :], []]
    for update, after in zip(updates[progress.update :], ahead, strict=False):
        at = progress.epoch - 1 + (progress.update + 1) / len(updates)
        set_lr(run.optimiser, lr_schedule(at, run.settings.training))
        last, pending = pending, optimizer_step(run, update, after, pending)
        if last:
            finish_step(run, last, clock)
        if run.stop.agreed:
            break
        if run.save_is_due:
            finish_step(run, pending, clock)
            pending = None
            save(run)
    if pending:
        finish_step(run, pending, clock)
    clock.stop()
    return progress.update == len(updates)


@dataclass
class PendingStep:
    """An update whose numbers are still to be read."""

    update: Update
    number: int
    names: list[str]
    numbers: AsyncScalars


def optimizer_step(run: Run, update: Update, after: Update, last: PendingStep | None) -> PendingStep:
    """One update of the weights; `after`: the one that follows."""
    progress, clip = run.progress, run.settings.training.clip_norm
    try:
        sums = run.updater.gradients(update, progress.updates + 1, after)
    except PotentialsError as why:  # a GPU may tell of the update before
        raise bad_update(
            run, [*(last.update if last else []), *update], progress.updates + 1, str(why)
        ) from None
    norm = torch.nn.utils.clip_grad_norm_(run.updater.parameters, clip or math.inf)
    run.optimiser.step()
    progress.update += 1
    progress.updates += 1
    run.average.update(run.model, progress.updates)
    values = torch.stack([*sums.values(), torch.full_like(norm, float(run.stop.asked))])
    if run.accelerator.num_processes > 1:
        values = run.accelerator.reduce(values, "sum")
    return PendingStep(update, progress.updates, list(sums), AsyncScalars(torch.cat([values, norm[None]])))


def finish_step(run: Run, pending: PendingStep, clock: "Clock") -> None:
    """Read the numbers of an update: is it well, does anybody want to stop?"""
    *sums, stop, norm = pending.numbers.read()
    losses = dict(zip(pending.names, sums, strict=True))
    if not all(map(math.isfinite, (*sums, norm))):
        bad = ", ".join(f"{name} {value}" for name, value in {**losses, "gradient": norm}.items())
        raise bad_update(run, pending.update, pending.number, bad)
    if stop:
        run.stop.agreed = True
    progress = run.progress
    sentences = [k for batch in pending.update for k in batch]
    progress.mentions += sum(run.updater.mentions[k] for k in sentences)
    for name, value in losses.items():
        progress.losses[name] = progress.losses.get(name, 0.0) + value
    step = clock.step(len(sentences), per_mention(progress))
    for watcher in run.watchers:
        watcher.step(step)


def per_mention(progress: Progress) -> dict[str, float]:
    return {name: value / max(1, progress.mentions) for name, value in progress.losses.items()}


def bad_update(run: Run, update: Update, number: int, why: str) -> TrainingError:
    """The sentences are kept, to be looked at; the last good state is on the disk."""
    if run.leads:
        run.folder.keep_batch(run.corpus.train[k] for batch in update for k in batch)
        flush_best(run)
    return TrainingError(
        f"update {number} of epoch {run.progress.epoch} gave numbers that are not finite: {why.rstrip('.')}. Its "
        f"sentences are in {run.folder.bad_batch}. Train anew, under another name, with a lower training.lr, "
        "training.encoder_lr or training.rho; or look at these sentences."
    )


def end_epoch(run: Run) -> None:
    """Evaluate, remember the best, and tell everybody."""
    progress = run.progress
    run.average.swap(run.model)
    started = time.monotonic()
    scores = evaluated(run).entities
    if scores.f1 > progress.best_f1:
        progress.best_f1, progress.best_epoch = scores.f1, progress.epoch
        run.best = {name: value.detach().clone() for name, value in run.model.state_dict().items()}
    run.average.swap(run.model)
    end = EpochEnd(
        epoch=progress.epoch,
        epochs=run.settings.training.epochs,
        updates=progress.updates,
        losses=per_mention(progress),
        precision=scores.precision,
        recall=scores.recall,
        f1=scores.f1,
        best_f1=progress.best_f1,
        best_epoch=progress.best_epoch,
        seconds=progress.epoch_seconds,
        dev_seconds=time.monotonic() - started,
    )
    for watcher in run.watchers:
        watcher.epoch(end)
    progress.epoch += 1
    progress.update = progress.mentions = 0
    progress.losses, progress.epoch_seconds = {}, 0.0


def evaluated(run: Run, scored: bool = False) -> Evaluation:
    """The model on dev, `scored`: with probabilities; each process predicts its share, and all learn all."""
    dev, one, asked = run.corpus.dev, run.accelerator, PredictOptions(scored=scored)
    if one.num_processes == 1:
        return evaluate(dev, predicted(run, dev, asked), resamples=0)
    order = sorted(range(len(dev)), key=lambda k: len(dev[k].words))
    mine = rank_share(order, one.process_index, one.num_processes)
    found = dict(gather_object(list(zip(mine, predicted(run, [dev[k] for k in mine], asked), strict=True))))
    return evaluate(dev, [found[k] for k in range(len(dev))], resamples=0)


def predicted(run: Run, sentences: Sequence[Sentence], asked: PredictOptions) -> list[Sentence]:
    """What is found in them; if there is not enough memory, without records of passes once more."""
    try:
        return predict(run.model, sentences, asked=asked)
    except (MemoryError, RuntimeError) as why:
        if not (is_out_of_memory(why) and run.updater.give_up_records()):
            raise
    return predict(run.model, sentences, asked=asked)


def save(run: Run) -> None:
    """First the best model, then the state: a state on the disk never knows of a model that is not there."""
    run.saved_at = time.monotonic()
    if run.leads:
        flush_best(run)
        state.save_state(run.folder.state, run.progress, run.model, run.optimiser, run.average)
    run.best = {}


def flush_best(run: Run) -> None:
    if run.best:
        checkpoint.save_weights(run.best, run.folder.path)


class Clock:
    """How fast an epoch goes, and how long everything will take."""

    def __init__(self, progress: Progress, epochs: int, updates: int) -> None:
        self.progress, self.epochs, self.updates = progress, epochs, updates
        self.started = self.last = time.monotonic()
        self.first = progress.update
        self.sentences = 0

    def stop(self) -> None:
        """Count the time that has passed."""
        now = time.monotonic()
        self.progress.seconds += now - self.last
        self.progress.epoch_seconds += now - self.last
        self.last = now

    def step(self, sentences: int, losses: dict[str, float]) -> Step:
        self.stop()
        self.sentences += sentences
        passed = max(self.last - self.started, 1e-9)
        left = (self.epochs - self.progress.epoch + 1) * self.updates - self.progress.update
        return Step(
            epoch=self.progress.epoch,
            epochs=self.epochs,
            share=self.progress.update / self.updates,
            losses=losses,
            best_f1=max(0.0, self.progress.best_f1),
            sentences_per_second=self.sentences / passed,
            seconds_left=left * passed / max(1, self.progress.update - self.first),
        )
