"""The epochs of a run: updates, evaluation on dev, early stopping, checkpoints.

On SIGINT (Ctrl-C) or SIGTERM training finishes its update, saves and stops; a second signal ends it at once.
"""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor

from nestree import checkpoint
from nestree.config import Settings
from nestree.errors import PotentialsError, TrainingError, format_duration
from nestree.evaluation import Evaluation, evaluate
from nestree.model import Recognizer
from nestree.pipeline import PredictOptions, predict
from nestree.temperature import best_decoder
from nestree.training.callbacks import Callbacks, EpochEnd, Step
from nestree.training.dataset import Corpus, epoch_batches
from nestree.training.optimizer import CLIP_NORM, lr_schedule, set_lr
from nestree.training.run_dir import Progress, RunDir
from nestree.training.step import GradientStep, Update
from nestree.treecrf import is_out_of_memory
from nestree.types import Sentence

ESTIMATE_AFTER = 60.0  # seconds of an epoch, or two epochs, until the duration of the run is estimated
CUDA_ESTIMATE_AFTER = 300.0  # likewise in the first epoch on a GPU, in which kernels are compiled for each size

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


@dataclass
class StopSignal:
    requested: bool = False  # in this process
    synchronized: bool = False  # known to all processes, at the same update


@contextmanager
def stop_on_interrupt() -> Iterator[StopSignal]:
    """Within this context, the first SIGINT or SIGTERM sets `requested`."""
    stop = StopSignal()
    handlers: dict[int, Any] = {}

    def request_stop(number: int, _: Any) -> None:
        stop.requested = True
        logger.warning("stopping after this update; the run can be resumed")
        signal.signal(number, handlers[number])

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handlers[number] = signal.signal(number, request_stop)
    try:
        yield stop
    finally:
        for handled, handler in handlers.items():
            signal.signal(handled, handler)


@dataclass
class Run:
    """The state of a run of training."""

    settings: Settings
    corpus: Corpus
    folder: RunDir
    accelerator: Accelerator
    model: Recognizer
    optimizer: torch.optim.AdamW
    step: GradientStep
    progress: Progress
    callbacks: list[Callbacks]
    stop: StopSignal
    save_every: float  # seconds
    best: dict[str, Tensor] = field(default_factory=dict)  # weights of the best epoch that are not saved yet
    saved_at: float = field(default_factory=time.monotonic)
    dev_seconds: float = 0.0  # of the last evaluation
    estimated: bool = False  # the duration was estimated
    first_step: tuple[int, float, float] | None = None  # of this process: its epoch, seconds and share of the epoch
    last_update: Update = field(default_factory=list)

    @property
    def is_main(self) -> bool:
        """Of several processes, one writes files and calls callbacks."""
        return bool(self.accelerator.is_main_process)

    @property
    def save_is_due(self) -> bool:
        return time.monotonic() - self.saved_at >= self.save_every


def run_epochs(run: Run) -> None:
    """The remaining epochs, until one of the reasons to stop."""
    progress, patience = run.progress, run.settings.training.early_stopping_patience
    while not (progress.finished or run.stop.synchronized):
        if train_epoch(run):
            end_epoch(run)
            # Patience begins with the first epoch whose F1 is above 0.
            stale = progress.epoch - 1 - progress.best_epoch if progress.best_f1 > 0 else 0
            if progress.epoch > run.settings.training.epochs:
                progress.finished = "all epochs are done"
            elif patience and stale >= patience:
                progress.finished = f"dev F1 did not rise for {patience} epoch{'s' * (patience > 1)}"
        if progress.finished or run.stop.synchronized or run.save_is_due:
            save(run)


class PendingStep(NamedTuple):
    """An update whose losses are copied to the host in the background."""

    update: Update
    number: int
    names: list[str]  # of the losses
    values: Tensor  # the losses, whether to stop, and the norm of the gradient
    copied: torch.cuda.Event | None


def train_epoch(run: Run) -> bool:
    """The remaining updates of this epoch; False: it was stopped before its end."""
    progress, settings = run.progress, run.settings.training
    size = settings.gradient_accumulation
    parts = epoch_batches(run.step.lengths, settings.batch_words, settings.seed, progress.epoch, progress.passes)
    updates = [parts[k : k + size] for k in range(0, len(parts), size)]
    run.model.train()
    if progress.update == 0:
        progress.microbatches = max(1, progress.microbatches // 2)  # there may be more memory than before
    pending: PendingStep | None = None
    clock = time.monotonic()

    def finish(pending: PendingStep | None) -> None:
        """Read the losses of an update, and report the progress."""
        nonlocal clock
        now = time.monotonic()
        progress.seconds += now - clock
        progress.epoch_seconds += now - clock
        clock = now
        if pending is not None:
            read_losses(run, pending)
            following = progress.updates - pending.number
            report_step(run, (progress.update - following) / len(updates))

    following = [*updates[progress.update + 1 :], []]
    for update, next_update in zip(updates[progress.update :], following, strict=False):
        epochs = progress.epoch - 1 + (progress.update + 1) / len(updates)
        set_lr(run.optimizer, lr_schedule(epochs, settings))
        previous, pending = pending, optimizer_step(run, update, next_update, pending)
        if pending.copied is None:  # on a CPU, its losses are known
            previous, pending = pending, None
        finish(previous)
        if run.stop.synchronized:
            break
        if run.save_is_due:
            finish(pending)
            pending = None
            save(run)
    finish(pending)
    return progress.update == len(updates)


def optimizer_step(run: Run, update: Update, next_update: Update, previous: PendingStep | None) -> PendingStep:
    """One update of the weights."""
    progress = run.progress
    try:
        losses = run.step.gradients(update, progress.updates + 1, next_update)
    except PotentialsError as why:  # a GPU may report that of the previous update
        suspects = [*(previous.update if previous else []), *update]
        raise bad_update(run, suspects, progress.updates + 1, str(why)) from None
    norm = torch.nn.utils.clip_grad_norm_(run.step.parameters, CLIP_NORM)
    run.optimizer.step()
    run.last_update = update
    progress.update += 1
    progress.updates += 1
    values = torch.stack([*losses.values(), torch.full_like(norm, float(run.stop.requested))])
    if run.accelerator.num_processes > 1:
        values = run.accelerator.reduce(values, "sum")
    values, copied = torch.cat([values, norm[None]]), None
    if values.is_cuda:
        values, copied = values.to("cpu", non_blocking=True), torch.cuda.Event()
        copied.record()
    return PendingStep(update, progress.updates, list(losses), values, copied)


def read_losses(run: Run, pending: PendingStep) -> None:
    """Add up the losses of an update after a check that they are finite; see whether any process wants to stop."""
    if pending.copied is not None:
        pending.copied.synchronize()
    *sums, stop, norm = pending.values.tolist()
    losses, progress = dict(zip(pending.names, sums, strict=True)), run.progress
    if not all(map(math.isfinite, (*sums, norm))):
        values = ", ".join(f"{name} {value}" for name, value in {**losses, "gradient": norm}.items())
        raise bad_update(run, pending.update, pending.number, values)
    if stop:
        run.stop.synchronized = True
    progress.mentions += sum(run.step.mentions[k] for batch in pending.update for k in batch)
    for name, value in losses.items():
        progress.losses[name] = progress.losses.get(name, 0.0) + value


def report_step(run: Run, share: float) -> None:
    """Report the progress when `share` of the epoch is done."""
    progress, epochs = run.progress, run.settings.training.epochs
    epochs_left, sentences = epochs - progress.epoch + 1, progress.passes * len(run.corpus.train)
    run.first_step = run.first_step or (progress.epoch, progress.epoch_seconds, share)
    first_epoch, seconds, done = run.first_step
    compiling = progress.epoch == first_epoch
    if not compiling:
        seconds = done = 0.0
    seconds_left = None
    if done < share:  # the first step may have compiled kernels
        seconds_per_epoch = (progress.epoch_seconds - seconds) / (share - done)
        seconds_left = seconds_per_epoch * (epochs_left - share) + run.dev_seconds * epochs_left
    step = Step(
        epoch=progress.epoch,
        epochs=epochs,
        share=share,
        losses=progress.losses_per_mention,
        best_f1=max(0.0, progress.best_f1),
        sentences_per_second=share * sentences / max(progress.epoch_seconds, 1e-9),
        seconds_left=seconds_left,
    )
    for callback in run.callbacks:
        callback.step(step)
    cuda = run.accelerator.device.type == "cuda"
    estimate_after = CUDA_ESTIMATE_AFTER if compiling and cuda else ESTIMATE_AFTER
    if seconds_left is not None and progress.epoch_seconds >= estimate_after:
        report_estimate(run, seconds_left, epochs_left)


def report_estimate(run: Run, seconds: float, epochs: int) -> None:
    """Note how long the rest of the run will take, once."""
    if epochs and not run.estimated:
        run.estimated = True
        sooner = ", less if training stops early" if run.settings.training.early_stopping_patience else ""
        run.step.notify(f"about {format_duration(seconds)} left for {epochs} more epoch{'s' * (epochs > 1)}{sooner}.")


def bad_update(run: Run, update: Update, number: int, reason: str) -> TrainingError:
    """The error of an update that is not finite. Its sentences are written; the last good state is on disk."""
    if run.is_main:
        run.folder.write_bad_batch(run.corpus.train[k] for batch in update for k in batch)
        flush_best(run)
    return TrainingError(
        f"update {number} of epoch {run.progress.epoch} gave numbers that are not finite: {reason.rstrip('.')}. Its "
        f"sentences are in {run.folder.bad_batch}. Train anew, under another name, with a lower training.lr, "
        "training.encoder_lr or training.rho; or look at these sentences."
    )


def end_epoch(run: Run) -> None:
    """Evaluate on dev, and keep the weights if they are the best so far."""
    progress, epochs = run.progress, run.settings.training.epochs
    started = time.monotonic()
    try:
        settings = tune_decoding(run) if run.settings.decoding.tune else None
        scores = evaluate_distributed(run, run.corpus.dev, settings).entities
    except PotentialsError as why:  # the last update of the epoch broke the weights
        raise bad_update(run, run.last_update, progress.updates, str(why)) from None
    run.dev_seconds = time.monotonic() - started
    if scores.f1 > progress.best_f1:
        progress.best_f1, progress.best_epoch = scores.f1, progress.epoch
        run.best = {name: value.detach().clone() for name, value in run.model.state_dict().items()}
    end = EpochEnd(
        epoch=progress.epoch,
        epochs=epochs,
        updates=progress.updates,
        losses=progress.losses_per_mention,
        precision=scores.precision,
        recall=scores.recall,
        f1=scores.f1,
        best_f1=progress.best_f1,
        best_epoch=progress.best_epoch,
        seconds=progress.epoch_seconds,
        dev_seconds=run.dev_seconds,
    )
    for callback in run.callbacks:
        callback.epoch(end)
    left = epochs - progress.epoch
    if progress.epoch > 1:  # in the first epoch, kernels are compiled
        report_estimate(run, left * (progress.epoch_seconds + run.dev_seconds), left)
    progress.epoch += 1
    progress.update = progress.mentions = 0
    progress.losses, progress.epoch_seconds = {}, 0.0


def tune_decoding(run: Run) -> Settings:
    """The settings with the decoder that has the highest F1 on dev with the present weights."""
    best: list[Any] = [None]
    if run.is_main:
        best = [retry_without_graphs(run, lambda: best_decoder(run.model, run.corpus.dev))]
    return replace(run.settings, decoding=broadcast_object_list(best)[0])


def evaluate_distributed(
    run: Run, gold: Sequence[Sentence], settings: Settings | None = None, scored: bool = False
) -> Evaluation:
    """Each process predicts its share. `settings`: instead of the model's; `scored`: with probabilities."""
    accelerator, options = run.accelerator, PredictOptions(scored=scored, settings=settings)
    order = sorted(range(len(gold)), key=lambda k: len(gold[k].words))
    share = order[accelerator.process_index :: accelerator.num_processes]
    sentences = [gold[k] for k in share]
    predicted = retry_without_graphs(run, lambda: predict(run.model, sentences, options=options))
    pairs = list(zip(share, predicted, strict=True))
    by_index = dict(pairs if accelerator.num_processes == 1 else gather_object(pairs))
    return evaluate(gold, [by_index[k] for k in range(len(gold))], resamples=0)


def retry_without_graphs(run: Run, function: Callable[[], Result]) -> Result:
    """The result of the function; if there is not enough memory for it, drop the CUDA graphs and call it again."""
    try:
        return function()
    except (MemoryError, RuntimeError) as error:
        if not (is_out_of_memory(error) and run.step.drop_graphs()):
            raise
    return function()


def save(run: Run) -> None:
    """Save the best model first, then the state, so that no state refers to a model that is not on disk."""
    run.saved_at = time.monotonic()
    if run.is_main:
        flush_best(run)
        run.folder.save_state(run.progress, run.model, run.optimizer)
    run.best = {}


def flush_best(run: Run) -> None:
    if run.best:
        checkpoint.save_weights(run.best, run.folder.path)
