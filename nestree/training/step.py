"""The gradients of one update, summed over microbatches and processes.

The loss is divided by the number of gold mentions of the whole update, so that microbatches and processes make no
difference. After an out-of-memory error the update is repeated with twice as many microbatches; other processes need
not know. Losses are read back while the next update is running, so that a GPU never waits.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor

from nestree.config import Settings
from nestree.errors import TrainingError
from nestree.model import Recognizer
from nestree.nn.batch import Batch, SoftTargets, pad_to_bucket
from nestree.training.callbacks import Callbacks
from nestree.training.cuda_graphs import GraphCache, can_capture
from nestree.training.dataset import count_mentions, microbatches
from nestree.training.distill import Teachers
from nestree.training.optimizer import Perturbation, gradients_of
from nestree.training.run_dir import Progress
from nestree.treecrf import is_out_of_memory
from nestree.types import Sentence

log = logging.getLogger(__name__)
Update = Sequence[Sequence[int]]  # batches of indices of sentences


@dataclass
class GradientStep:
    """Computes the gradients of updates on these sentences."""

    model: Recognizer
    sentences: Sequence[Sentence]
    accelerator: Accelerator
    settings: Settings
    progress: Progress
    callbacks: Sequence[Callbacks] = ()
    teachers: Teachers | None = None

    def __post_init__(self) -> None:
        trees = self.settings.model.structure != "none"
        self.lengths = [len(sentence.words) for sentence in self.sentences]
        self.mentions = [count_mentions(sentence, trees) for sentence in self.sentences]
        if self.teachers is not None:
            self.mentions = self.teachers.mentions(self.mentions, self.lengths)
        self.soft_targets: dict[tuple[int, ...], SoftTargets] = {}  # by microbatch of this update
        # Listed once: to walk through all modules takes a millisecond.
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.perturbation: Perturbation | None = None
        if self.settings.training.rho:
            self.perturbation = Perturbation(self.model.encoder.transformer, self.parameters, self.settings.training)
        self.next_update: Update = ()
        self.graphs: GraphCache | None = None
        if self.settings.training.cuda_graphs and can_capture(self.model):
            self.graphs = GraphCache(self.model, self.parameters, self.accelerator.autocast, self.notify)
        device = self.accelerator.device
        self.prefetcher = Prefetcher(
            self.model, self.sentences, device, device.type == "cuda", self.graphs is not None, self.teachers
        )

    def gradients(self, update: Update, number: int, next_update: Update = ()) -> dict[str, Tensor]:
        """Compute the gradients of update `number` of the run into the parameters; returns the summed losses.

        With rho > 0, SAM or FGM adds the gradients of the same sentences, with the same dropout, at perturbed weights.
        The batches of `next_update` are prefetched.
        """
        self.next_update, self.soft_targets = next_update, {}
        losses = self.run_pass(update, number)
        if self.perturbation is not None:
            self.perturbation.add_gradients(lambda: self.run_pass(update, number))
        return losses

    @torch.enable_grad()
    def run_pass(self, update: Update, number: int) -> dict[str, Tensor]:
        """The gradients of all processes at the current weights; returns the summed losses of this process."""
        losses: dict[str, Tensor] = {}
        while not losses:
            try:
                losses = self.local_gradients(update, number)
            except (MemoryError, RuntimeError) as why:
                if not is_out_of_memory(why):
                    raise
                log.info("%s", why)
            if not losses:  # after the traceback, which holds tensors, is gone
                self.reduce_memory(update)
        for parameter in self.parameters:
            if parameter.grad is None:  # so that an update does not depend on which process had which sentences
                parameter.grad = torch.zeros_like(parameter)
        if self.accelerator.num_processes > 1:
            gradients = gradients_of(self.parameters)
            sums = self.accelerator.reduce(torch.cat([gradient.reshape(-1) for gradient in gradients]), "sum")
            parts = sums.split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
        return losses

    def local_gradients(self, update: Update, number: int) -> dict[str, Tensor]:
        """The gradients of this process; returns its summed losses."""
        rank = self.accelerator.process_index
        digest = hashlib.sha256(f"update {self.settings.training.seed} {number} {rank}".encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:7], "big"))  # dropout follows from the seed and the update
        self.clear_gradients()
        mentions = max(1, sum(self.mentions[k] for batch in update for k in batch))
        parts = self.split(update)
        self.prefetcher.upcoming = [*parts, *self.split(self.next_update)]
        weight = 1.0 if parts else 0.0  # a process without a share computes gradients of 0
        losses: dict[str, Tensor] = {}
        for part in parts or [update[0][:1]]:
            for name, value in self.add_gradients(part, weight / mentions).items():
                losses[name] = losses.get(name, 0.0) + weight * value
        return losses

    def split(self, update: Update) -> list[Sequence[int]]:
        """The microbatches of this process."""
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        return [
            part
            for batch in update
            for part in microbatches(batch[rank::processes], self.lengths, self.progress.microbatches)
        ]

    def add_gradients(self, part: Sequence[int], scale: float) -> dict[str, Tensor]:
        """Add the gradients of `scale` times the loss of a microbatch; returns the unscaled losses."""
        batch = self.prefetcher.get(part)
        if self.teachers is not None:
            soft_targets = self.soft_targets.get(tuple(part)) or self.teachers.soft_targets(batch)
            self.soft_targets[tuple(part)] = soft_targets  # for the second pass of this update
            batch = dataclasses.replace(batch, teacher_batches=(), soft_targets=soft_targets)
        values = None if self.graphs is None else self.graphs.add_gradients(batch, scale)
        if values is not None:
            self.prefetcher.prefetch()
            return values
        with self.accelerator.autocast():
            losses = self.model.losses(batch)
        self.prefetcher.prefetch()
        (losses.total * scale).backward()
        return losses.detached()

    def clear_gradients(self) -> None:
        if self.graphs is not None:  # graphs add to these tensors
            torch._foreach_zero_(self.graphs.gradients)
            return
        for parameter in self.parameters:
            parameter.grad = None

    def drop_graphs(self) -> bool:
        """Free the memory of all CUDA graphs and capture no more; False: there are none."""
        if self.graphs is None:
            return False
        self.graphs, self.prefetcher.bucketed = None, False
        self.clear_caches()
        self.notify("out of memory: CUDA graphs are not used any more, which is slower; results stay the same.")
        return True

    def reduce_memory(self, update: Update) -> None:
        """Drop the CUDA graphs; if there are none, double the number of microbatches."""
        if self.drop_graphs():
            return
        self.clear_caches()
        parts = self.split(update) or [update[0][:1]]
        if all(len(part) == 1 for part in parts):
            longest = max((k for part in parts for k in part), key=lambda k: self.lengths[k])
            raise TrainingError(
                f"there is not enough memory for a sentence of {self.lengths[longest]} words alone: "
                f"{self.sentences[longest]} Leave it out, or train on a larger device."
            )
        self.progress.microbatches *= 2
        self.notify(
            f"out of memory: in this epoch each batch is split into {self.progress.microbatches} microbatches from "
            "now on; results stay the same."
        )

    def clear_caches(self) -> None:
        self.clear_gradients()
        for future in self.prefetcher.futures.values():
            future.cancel()
        self.prefetcher.futures = {}
        self.soft_targets = {}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def notify(self, text: str) -> None:
        for callback in self.callbacks:
            callback.note(text, self.progress.updates)


@dataclass
class Prefetcher:
    """Collates batches and moves them to the device; in the background, those of the next update in advance.

    To collate a batch and copy it to pinned memory takes about as long as the backward pass, during which the main
    thread has nothing to do.
    """

    model: Recognizer
    sentences: Sequence[Sentence]
    device: torch.device
    background: bool
    bucketed: bool = False  # pad batches to few shapes
    teachers: Teachers | None = None  # whose inputs are attached

    def __post_init__(self) -> None:
        self.upcoming: list[Sequence[int]] = []  # the microbatches of this update and the next one
        self.futures: dict[tuple[int, ...], Future[Batch]] = {}
        self.executor = ThreadPoolExecutor(1, "batches") if self.background else None

    def get(self, part: Sequence[int]) -> Batch:
        """The batch of these sentences, on the device."""
        if self.executor is None:
            return self.collate(part).to(self.device)
        key = tuple(part)
        future = self.futures.get(key) or self.executor.submit(self.collate, key)
        try:
            return future.result().to(self.device)
        except BaseException:
            self.futures.pop(key, None)  # another attempt may succeed
            raise

    def collate(self, part: Sequence[int]) -> Batch:
        batch = self.model.collate([self.sentences[k] for k in part])
        if self.teachers is not None:
            batch = self.teachers.attach(batch, part)
        if self.bucketed:
            tokenizer = self.model.collator.tokenizer
            batch = pad_to_bucket(batch, tokenizer.pad, tokenizer.longest) or batch
        return batch.pin_memory() if self.device.type == "cuda" else batch  # pinned: copied asynchronously

    def prefetch(self) -> None:
        """Start to collate what is upcoming; drop everything else."""
        if self.executor is not None:
            futures, submit = self.futures, self.executor.submit
            keys = map(tuple, self.upcoming)
            self.futures = {key: futures.get(key) or submit(self.collate, key) for key in keys}
