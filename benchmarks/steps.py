"""A few steps of training, measured: how long one takes, which part takes how long, and what the GPU does meanwhile.

The loop is that of `nestree.training`, run on a sample of the training data: some of the batches of an epoch, or all of
them. The first pass compiles and warms up, the next is timed as a whole, one more part by part, the last by PyTorch's
profiler. A sample may have too few long sentences: what tree sums take grows with the fourth power of the length.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import nestree.losses
import nestree.model
import nestree.training.loop
from benchmarks.parts import Timeline, replaced, table
from nestree.config import Settings
from nestree.model import Recognizer
from nestree.nn.batch import Batch
from nestree.training import Corpus
from nestree.training.cuda_graphs import USES_BEFORE_CAPTURE
from nestree.training.dataset import batches
from nestree.training.loop import Run, StopSignal, train_epoch, updates_of
from nestree.training.optimizer import make_optimizer
from nestree.training.run_dir import Progress, RunDir
from nestree.training.step import GradientStep
from nestree.training.train import accelerator_for

STEPS = 40
PROFILED = 6  # steps that the profiler watches, where they are not recorded
AT_ONCE = 16  # steps that it keeps in memory
KERNELS = 20  # that are named
TREES = ("inside_kernel", "outside_kernel", "spans_kernel", "arcs_kernel", "prepare_kernel", "trace_kernel")


def measured(settings: Settings, corpus: Corpus, device: str, steps: int = STEPS) -> dict[str, Any]:
    """What a step of training takes."""
    everything = len(corpus.train)
    corpus = sample(settings, corpus, steps)
    with tempfile.TemporaryDirectory() as folder:
        run = ready(settings, corpus, device, Path(folder))
        device = run.accelerator.device.type
        recorder = run.updater.recorder
        seconds = {"warm_up": passed(run)}
        for _ in range(USES_BEFORE_CAPTURE if recorder else 0):  # it records what it sees again
            seconds["warm_up"] += passed(run)
        seconds["plain"] = passed(run)
        count = len(updates_of(run, 1))
        timeline = Timeline(device)
        with watched(run, timeline), timeline.running():
            seconds["watched"] = passed(run)
        parts = timeline.spent()
        found: dict[str, Any] = {
            "steps": count,
            "sentences": len(corpus.train),
            "words": sum(run.updater.lengths),
            "longest": max(run.updater.lengths),
            "mean_ms": 1e3 * seconds["plain"] / count,
            "sentences_per_second": len(corpus.train) / seconds["plain"],
            "epoch_seconds": seconds["plain"] / len(corpus.train) * everything,
            "tree_share": share(parts, "tree sums"),
            "parts": table(parts, count),
            "other_threads_ms": {name: 1e3 * s / count for name, s in timeline.elsewhere.items()},
            "warm_up_seconds": seconds["warm_up"],
            "watching_costs": seconds["watched"] / seconds["plain"],
        }
        if device == "cuda":
            found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
            found["profile"] = profiled(run, found["mean_ms"])
            if recorder:  # most tree sums are recorded, with all else: only the GPU's own time is known
                found["tree_share"] = found["profile"]["trees_ms"] / found["mean_ms"]
    return found


def sample(settings: Settings, corpus: Corpus, steps: int) -> Corpus:
    """The sentences of the first updates of an epoch; dev is not needed."""
    training = settings.training
    lengths = [len(sentence.words) for sentence in corpus.train]
    found = batches(lengths, training.batch_words, training.seed, 1)[: steps * training.gradient_accumulation]
    return replace(corpus, train=tuple(corpus.train[k] for batch in found for k in batch), dev=())


def ready(settings: Settings, corpus: Corpus, device: str, folder: Path) -> Run:
    """A run that is about to begin; nothing of it is written."""
    accelerator = accelerator_for(device)
    torch.manual_seed(settings.training.seed)
    model = Recognizer(settings, corpus.labels, settings.encoder.path).to(accelerator.device)
    progress = Progress(corpus.fingerprint)
    return Run(
        settings,
        corpus,
        RunDir(folder),
        accelerator,
        model,
        make_optimizer(model, model.encoder.transformer, settings.training),
        GradientStep(model, corpus.train, accelerator, settings, progress),
        progress,
        [],
        StopSignal(),
        float("inf"),
    )


def passed(run: Run) -> float:
    """Seconds of the first epoch, once more; the weights go on from where they are."""
    run.progress.epoch, run.progress.update = 1, 0
    run.progress.losses, run.progress.mentions = {}, 0
    synchronize(run)
    started = time.perf_counter()
    train_epoch(run)
    synchronize(run)
    return time.perf_counter() - started


def synchronize(run: Run) -> None:
    if run.accelerator.device.type == "cuda":
        torch.cuda.synchronize()


@contextmanager
def watched(run: Run, line: Timeline) -> Iterator[None]:
    """Within this, a timeline knows the parts of a step."""
    model, loop = run.model, nestree.training.loop
    with replaced(
        (model, "collate", line.around("collate", model.collate)),
        (Batch, "pin_memory", line.around("moving", Batch.pin_memory)),
        (Batch, "to", line.around("moving", Batch.to)),
        (model.encoder, "forward", line.around("encoder", model.encoder.forward)),
        (model.scorer, "forward", line.around("scorers", model.scorer.forward)),
        (nestree.losses, "log_partitions", line.around("tree sums", nestree.losses.log_partitions)),
        (nestree.losses, "entropy", line.around("tree sums", nestree.losses.entropy)),
        (nestree.model, "compute", line.around("losses", nestree.model.compute)),
        (torch.Tensor, "backward", line.around("backward", torch.Tensor.backward)),
        (torch.nn.utils, "clip_grad_norm_", line.around("clipping", torch.nn.utils.clip_grad_norm_)),
        (run.optimiser, "step", line.around("optimiser", run.optimiser.step)),
        (loop, "finish_step", line.around("reading", loop.finish_step)),
    ):
        yield


def share(parts: dict[str, Any], name: str) -> float:
    whole = sum(spent.device for spent in parts.values())
    return parts[name].device / whole if name in parts else 0.0


def profiled(run: Run, mean_ms: float) -> dict[str, Any]:
    """What the GPU is busy with, by the name of its kernels: milliseconds a step.

    Of all steps where they are recorded; else of the last ones, as what the host does for each is much to look through.
    """
    from torch.profiler import ProfilerActivity, profile

    updates = updates_of(run, 1)
    watched = updates if run.updater.recorder is not None else updates[-PROFILED:]
    steps = len(watched)
    kernels: dict[str, list[float]] = {}
    for first in range(0, steps, AT_ONCE):
        some = watched[first : first + AT_ONCE]
        with (
            replaced((nestree.training.loop, "updates_of", lambda run, epoch, some=some: some)),
            profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen,
        ):
            passed(run)
        for event in seen.events() or ():
            named = event.name.startswith("Optimizer.")  # no kernel, but the time of several
            if event.device_type == torch.autograd.DeviceType.CUDA and not named:
                kernels.setdefault(event.name, []).append(event.device_time_total / 1e3)
    busy = sum(map(sum, kernels.values()))
    trees = sum(sum(times) for name, times in kernels.items() if name.startswith(TREES))
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
