"""One update: the gradients of this process' share, added up over processes, and one step of the optimiser.

The loss is divided by the gold mentions of the whole update, so pieces and processes make no difference to it. What
does not fit into memory is cut into twice as many pieces and done again; a process that does so asks nobody.
Numbers are read when the next update is already under way, so that a GPU never waits.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from nestree.config import Settings
from nestree.errors import TrainingError
from nestree.model import Recognizer
from nestree.nn.batch import Batch, Targets, pad_to_bucket
from nestree.training.callbacks import Callbacks
from nestree.training.cuda_graphs import GraphCache, can_capture
from nestree.training.dataset import mentions, microbatches, rank_share
from nestree.training.distill import Teachers
from nestree.training.state import Progress
from nestree.treecrf.memory import is_out_of_memory
from nestree.types import Sentence

log = logging.getLogger(__name__)


@dataclass
class GradientStep:
    """Makes gradients of batches of these sentences."""

    model: Recognizer
    sentences: Sequence[Sentence]
    accelerator: Accelerator
    settings: Settings
    progress: Progress
    watchers: Sequence[Callbacks] = ()
    lessons: Teachers | None = None  # of teachers

    def __post_init__(self) -> None:
        trees = self.settings.model.structure != "none"
        self.lengths = [len(sentence.words) for sentence in self.sentences]
        self.mentions = [mentions(sentence, trees) for sentence in self.sentences]
        if self.lessons is not None:
            self.mentions = self.lessons.mentions(self.mentions, self.lengths)
        self.targets: dict[tuple[int, ...], Targets] = {}  # of the pieces of this update
        self.parameters = learning(self.model)  # to look through all modules takes a millisecond
        transformer: Any = self.model.encoder.transformer
        self.movable: dict[str, list[Tensor]] = {  # what SAM or FGM perturbs
            "fgm": [transformer.get_input_embeddings().weight],
            "sam": [*learning(transformer)],
        }
        self.after: Sequence[Sequence[int]] = ()  # the batches of the next update
        self.before: list[Tensor] = []  # weights before the perturbation
        self.recorder: GraphCache | None = None
        if self.settings.training.cuda_graphs and can_capture(self.model):
            self.recorder = GraphCache(self.model, self.parameters, self.accelerator.autocast, self.tell)
        self.plain: list[Tensor] = []  # gradients of a first pass, where those of a second take their place
        device = self.accelerator.device
        self.inputs = Prefetcher(
            self.model,
            self.sentences,
            device,
            ahead=device.type == "cuda",
            framed=self.recorder is not None,
            lessons=self.lessons,
        )

    def gradients(
        self, batches: Sequence[Sequence[int]], number: int, after: Sequence[Sequence[int]] = ()
    ) -> dict[str, Tensor]:
        """The gradients of update `number` of the run, in the parameters; each part of the loss, summed.

        With rho > 0, SAM or FGM adds the gradients of the same sentences, with the same dropout, at perturbed weights.
        `after`: the batches of the next update, which are prefetched.
        """
        self.after, self.targets = after, {}
        total = max(1, sum(self.mentions[k] for batch in batches for k in batch))
        found = self.of_all(batches, number, total)
        if self.settings.training.rho:
            plain = self.gradients_aside()
            with self.moved():
                self.of_all(batches, number, total)
            torch._foreach_add_(gradients_held(self.parameters), plain)
        return found

    def gradients_aside(self) -> list[Tensor]:
        """The gradients as they are now, whatever is computed next."""
        now = gradients_held(self.parameters)
        if self.recorder is None:
            return now  # the next pass makes new ones
        if not self.plain:
            self.plain = [torch.empty_like(gradient) for gradient in now]
        torch._foreach_copy_(self.plain, now)
        return self.plain

    def of_all(self, batches: Sequence[Sequence[int]], number: int, total: int) -> dict[str, Tensor]:
        """The same for the weights as they are, of all processes together."""
        while (found := self.try_gradients(batches, number, total)) is None:
            self.make_room(batches)
        fill(self.parameters)
        if self.accelerator.num_processes > 1:
            add_up(self.accelerator, self.parameters)
        return found

    def try_gradients(
        self, batches: Sequence[Sequence[int]], number: int, total: int
    ) -> dict[str, Tensor] | None:
        """None: there was not enough memory, and nothing is kept of it."""
        torch.manual_seed(random_seed(self.settings.training.seed, number, self.accelerator.process_index))
        self.forget_gradients()
        mine = self.pieces_of(batches)
        self.inputs.wanted = [*mine, *self.pieces_of(self.after)]
        weight = 1.0 if mine else 0.0
        sums: dict[str, Tensor] = {}
        try:
            for piece in mine or [batches[0][:1]]:  # where there is nothing to do, zeros are made
                for name, value in self.added(piece, weight / total).items():
                    sums[name] = sums.get(name, 0.0) + weight * value
        except (MemoryError, RuntimeError) as why:
            if not is_out_of_memory(why):
                raise
            log.info("%s", why)
            return None
        return sums

    def pieces_of(self, batches: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """What this process does of these batches, cut so that it fits into memory."""
        process, processes = self.accelerator.process_index, self.accelerator.num_processes
        shares = [rank_share(batch, process, processes) for batch in batches]
        return [piece for each in shares for piece in microbatches(each, self.lengths, self.progress.pieces)]

    def added(self, piece: Sequence[int], scale: float) -> dict[str, Tensor]:
        """Add the gradients of `scale` times the loss of a piece to those that are there; each part of the loss."""
        batch = self.inputs.of(piece)
        if self.lessons is not None:
            targets = self.targets.get(tuple(piece)) or self.lessons.targets(batch)
            self.targets[tuple(piece)] = targets  # a second pass of the update learns the same
            batch = dataclasses.replace(batch, readings=(), targets=targets)
        if self.recorder is not None:
            found = self.recorder.add(batch, scale)
            if found is not None:
                self.inputs.look_ahead()
                return found
        with self.accelerator.autocast():
            losses = self.model.losses(batch)
        self.inputs.look_ahead()
        (losses.total * scale).backward()
        return {name: value.detach() for name, value in {**losses.parts, **losses.metrics}.items()}

    @contextmanager
    def moved(self) -> Iterator[None]:
        """Within this, the weights are perturbed by `rho` along their normalized gradient."""
        weights = self.movable[self.settings.training.perturbation]
        if len(self.before) != len(weights):
            self.before = [torch.empty_like(weight, requires_grad=False) for weight in weights]
        with torch.no_grad():
            torch._foreach_copy_(self.before, weights)  # all at once, not one by one
            slopes = gradients_held(weights)
            norm = torch.stack(torch._foreach_norm(slopes)).norm().clamp(min=1e-12)
            length = self.settings.training.rho / norm
            if self.recorder is None:
                slopes = [*torch._foreach_mul(slopes, length)]
            else:  # these were put aside, and the next pass begins from zero
                torch._foreach_mul_(slopes, length)
            torch._foreach_add_(weights, slopes)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, self.before)

    def forget_gradients(self) -> None:
        if self.recorder is not None:  # which knows where they are
            torch._foreach_zero_(self.recorder.gradients)
            return
        for parameter in self.parameters:
            parameter.grad = None

    def give_up_records(self) -> bool:
        """Have the memory of all records back, and make no more; False: there is nothing to give up."""
        if self.recorder is None:
            return False
        self.recorder, self.inputs.framed, self.plain = None, False, []
        self.let_go()
        self.tell("out of memory: passes are not recorded any more, which is slower; results stay the same.")
        return True

    def make_room(self, batches: Sequence[Sequence[int]]) -> None:
        """Without records first; then with twice as many pieces, if that changes anything."""
        if self.give_up_records():
            return
        self.let_go()
        mine = self.pieces_of(batches) or [batches[0][:1]]
        if all(len(piece) == 1 for piece in mine):
            longest = max((k for piece in mine for k in piece), key=lambda k: self.lengths[k])
            raise TrainingError(
                f"there is not enough memory for a sentence of {self.lengths[longest]} words alone: "
                f"{self.sentences[longest]} Leave it out, or train on a larger device."
            )
        self.progress.pieces *= 2
        self.tell(
            f"out of memory: in this epoch each batch is done in {self.progress.pieces} pieces from now on; "
            "results stay the same."
        )

    def let_go(self) -> None:
        """Hold no memory that can be had again."""
        self.forget_gradients()
        self.inputs.forget()
        self.targets = {}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def tell(self, text: str) -> None:
        log.warning(text)
        for watcher in self.watchers:
            watcher.note(text, self.progress.updates)


class Prefetcher:
    """Batches on their way to the device; with `ahead`, another thread makes them, those of the next update in advance.

    To make one and to lay it out where a GPU can fetch it takes about as long as the way back through the network,
    during which this thread has nothing to do.
    """

    def __init__(
        self,
        model: Recognizer,
        sentences: Sequence[Sentence],
        device: torch.device,
        ahead: bool,
        framed: bool = False,
        lessons: Teachers | None = None,
    ) -> None:
        """`framed`: in few shapes, where that can be. `lessons`: batches hold what teachers read, too."""
        self.model, self.sentences, self.device, self.framed = model, sentences, device, framed
        self.lessons = lessons
        self.wanted: list[Sequence[int]] = []  # pieces of this update and of the next; no others are kept
        self.made: dict[tuple[int, ...], Future[Batch]] = {}
        self.helper = ThreadPoolExecutor(1, "batches") if ahead else None  # the only one that makes any

    def of(self, piece: Sequence[int]) -> Batch:
        if self.helper is None:
            return self.make(piece).to(self.device)
        key = tuple(piece)
        found = self.made.get(key) or self.helper.submit(self.make, key)
        try:
            return found.result().to(self.device)
        except BaseException:
            self.made.pop(key, None)  # it may succeed another time
            raise

    def make(self, piece: Sequence[int]) -> Batch:
        batch = self.model.collate([self.sentences[k] for k in piece])
        if self.lessons is not None:
            batch = self.lessons.attach(batch, piece)
        if self.framed:
            splitter = self.model.collator.splitter
            batch = pad_to_bucket(batch, splitter.pad, splitter.longest) or batch
        return batch.pin_memory() if self.device.type == "cuda" else batch  # it then goes there unattended

    def look_ahead(self) -> None:
        """Begin to make what will be wanted and is not there."""
        if self.helper is not None:
            made, helper = self.made, self.helper
            keys = map(tuple, self.wanted)
            self.made = {key: made.get(key) or helper.submit(self.make, key) for key in keys}

    def forget(self) -> None:
        """Drop what was made, or begun."""
        for batch in self.made.values():
            batch.cancel()
        self.made = {}


def learning(part: nn.Module) -> list[nn.Parameter]:
    """The weights that change in training."""
    return [weight for weight in part.parameters() if weight.requires_grad]


def random_seed(seed: int, number: int, process: int) -> int:
    """What the dropout of an update follows from."""
    digest = hashlib.sha256(f"update {seed} {number} {process}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


@torch.no_grad()
def fill(parameters: Iterable[nn.Parameter]) -> None:
    """No gradient is a gradient of 0, so that steps do not depend on which process saw what."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


@torch.no_grad()
def add_up(accelerator: Accelerator, parameters: Iterable[nn.Parameter]) -> None:
    """Replace gradients by their sums over all processes."""
    gradients = gradients_held(parameters)
    total = accelerator.reduce(torch.cat([gradient.reshape(-1) for gradient in gradients]), "sum")
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, summed in zip(gradients, total.split(sizes), strict=True):
        gradient.copy_(summed.view_as(gradient))


def gradients_held(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Their gradients."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


class AsyncScalars:
    """Numbers on a device, read without making it wait: ask when more work has been queued behind them."""

    def __init__(self, values: Tensor) -> None:
        self.event = None
        self.values = values
        if values.is_cuda:
            self.values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self.values.copy_(values, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()

    def read(self) -> list[float]:
        if self.event is not None:
            self.event.synchronize()
        return [float(value) for value in self.values.tolist()]
