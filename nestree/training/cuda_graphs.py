"""Whole passes as recorded operations: a GPU replays in one go what a host would have to queue one by one.

A record (a CUDA graph) holds the way of one shape of batches through encoder, scorers, tree sums and losses, and all
the way back. It reads weights and a batch at fixed places, and adds gradients to those of the parameters, which stay
where they are, too. Batches are padded to few shapes (nn/frames.py); each is recorded once it was seen a few times.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from nestree.model import Recognizer
from nestree.nn.batch import Batch, TensorDataclass
from nestree.nn.bert import Bert
from nestree.treecrf.memory import is_out_of_memory

MAX_GRAPHS = 96  # records that are kept; batches of other shapes are computed as usual
USES_BEFORE_CAPTURE = (
    2  # passes of a shape that are computed as usual before one is recorded: rare shapes are not worth it
)
WARM_UP = 1  # runs right before recording: kernels are compiled, and libraries set themselves up

log = logging.getLogger(__name__)
Shape = tuple[Any, ...]


class Graph(Protocol):
    def replay(self) -> None: ...


def can_capture(model: Recognizer) -> bool:
    """Can passes of this model be recorded? Where nothing of them asks the host."""
    settings = model.settings
    return (
        model.device.type == "cuda"
        and isinstance(model.encoder.transformer, Bert)
        and not settings.encoder.lstm_layers  # these want lengths on the host
        and not settings.loss.entropy_weight  # by the reference
    )


class GraphCache:
    """Makes records of passes of a model in training, and replays them."""

    def __init__(
        self,
        model: Recognizer,
        parameters: Sequence[nn.Parameter],
        precision: Callable[[], AbstractContextManager[Any]],
        tell: Callable[[str], None],
    ) -> None:
        self.model, self.parameters, self.precision, self.tell = model, parameters, precision, tell
        self.records: dict[Shape, CapturedGraph] = {}
        self.seen: Counter[Shape] = Counter()
        self.most = MAX_GRAPHS
        self.pool: Any = None  # of memory, which all records share: never two of them are under way
        self.aside: torch.cuda.Stream | None = None  # to warm up on; one for all, as each keeps memory
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]

    def add(self, batch: Batch, scale: float) -> dict[str, Tensor] | None:
        """Add the gradients of `scale` times the loss to those of the parameters; each part of the loss, as it is.

        None: there is no record for this shape, yet or at all.
        """
        if batch.windows is not None:  # it was not padded to one of few shapes
            return None
        shape = shape_key(batch)
        record = self.records.get(shape)
        self.seen[shape] += 1
        if record is None and len(self.records) < self.most and self.seen[shape] > USES_BEFORE_CAPTURE:
            record = self.recorded(shape, batch)
        return None if record is None else record.replay(batch, scale)

    def recorded(self, shape: Shape, batch: Batch) -> "CapturedGraph | None":
        """A new record, if there is memory for it and the device can; if not, there will be no more of them."""
        try:
            with self.unnoticed():
                self.records[shape] = CapturedGraph(self, batch)
        except (MemoryError, RuntimeError) as why:
            self.most = len(self.records)
            log.info("%s", why)
            if not is_out_of_memory(
                why
            ):  # if it is no matter of recording, it comes again when it is computed
                first = str(why).strip().partition("\n")[0]
                self.tell(
                    f"passes cannot be recorded here, which is slower; results stay the same. ({first})"
                )
        return self.records.get(shape)

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """To record is to compute, a few times: gradients, and what will be drawn next, stay as they were."""
        before = [gradient.clone() for gradient in self.gradients]
        device = self.model.device
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                yield
        finally:
            torch._foreach_copy_(self.gradients, before)

    def computed(self, batch: Batch, scale: Tensor) -> dict[str, Tensor]:
        """What is recorded."""
        with torch.enable_grad():
            with self.precision():
                losses = self.model.losses(batch)
            slopes = torch.autograd.grad(losses.total * scale, self.parameters, allow_unused=True)
        there = [(to, slope) for to, slope in zip(self.gradients, slopes, strict=True) if slope is not None]
        for alike in (True, False):  # those that lie in memory alike are added in one go
            some = [(to, slope) for to, slope in there if (to.stride() == slope.stride()) == alike]
            if some:
                torch._foreach_add_([to for to, _ in some], [slope for _, slope in some])
        return {name: value.detach() for name, value in {**losses.parts, **losses.metrics}.items()}


class CapturedGraph:
    """A pass of one shape, and the places that it reads and writes."""

    def __init__(self, recorder: GraphCache, batch: Batch) -> None:
        self.batch = batch.each(Tensor.clone)
        self.scale = torch.zeros((), device=batch.pieces.device)
        self.names: list[str] = []

        def run() -> Tensor:
            fresh = replace(self.batch)  # what a batch remembers is not recorded
            found = recorder.computed(fresh, self.scale)
            self.names = list(found)
            return torch.stack(list(found.values()))

        self.graph, self.values = capture(run, recorder)

    def replay(self, batch: Batch, scale: float) -> dict[str, Tensor]:
        for place, value in zip(tensors_of(self.batch), tensors_of(batch), strict=True):
            place.copy_(value, non_blocking=True)
        self.scale.fill_(scale)
        self.graph.replay()
        return dict(zip(self.names, self.values.clone().unbind(), strict=True))


def capture(run: Callable[[], Tensor], recorder: GraphCache) -> tuple[Graph, Tensor]:
    """Operations that can be replayed, and where they write what they return."""
    if recorder.pool is None:
        recorder.pool = torch.cuda.graph_pool_handle()
    aside = recorder.aside = recorder.aside or torch.cuda.Stream()
    now = torch.cuda.current_stream()
    aside.wait_stream(now)
    try:
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                run()
    finally:
        now.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # Other threads may go on using the device meanwhile. Whatever happens, this one goes on where it is now.
    with (
        torch.cuda.stream(now),
        torch.cuda.graph(graph, pool=recorder.pool, capture_error_mode="thread_local"),
    ):
        values = run()
    return graph, values


def shape_key(batch: Batch) -> Shape:
    """Batches that are alike in this can share a record."""
    partial = batch.gold is not None and batch.gold.partial
    return (partial, *(tuple(tensor.shape) for tensor in tensors_of(batch)))


def tensors_of(part: TensorDataclass) -> list[Tensor]:
    """All of them, in a fixed order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    part.each(note)
    return found
