"""CUDA graphs of whole training passes: one launch replays what the host would have to queue kernel by kernel.

A graph holds the forward and backward pass of one batch shape: encoder, scorers, tree sums and losses. It reads weights
and inputs at fixed addresses and adds to gradients at fixed addresses. Batches are padded to few shapes
(nn.batch.pad_to_bucket); a shape is captured once it has been seen a few times.
"""

import gc
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nestree.model import Recognizer
from nestree.nn.batch import Batch, TensorDataclass
from nestree.nn.bert import Bert
from nestree.treecrf import is_out_of_memory

MAX_GRAPHS = 96  # batches of further shapes are computed without a graph
USES_BEFORE_CAPTURE = 2  # passes of a shape without a graph: rare shapes are not worth one

log = logging.getLogger(__name__)
Shape = tuple[Any, ...]


def can_capture(model: Recognizer) -> bool:
    """Whether passes of this model run on a GPU without synchronizing with the host."""
    settings = model.settings
    return (
        model.device.type == "cuda"
        and isinstance(model.encoder.transformer, Bert)
        and not settings.encoder.lstm_layers  # needs lengths on the host
        and not settings.loss.entropy_weight  # runs on the reference backend
    )


class GraphCache:
    """Captures the passes of a model in training, by shape, and replays them."""

    def __init__(
        self,
        model: Recognizer,
        parameters: Sequence[nn.Parameter],
        autocast: Callable[[], AbstractContextManager[Any]],
        notify: Callable[[str], None],
    ) -> None:
        self.model, self.parameters, self.autocast, self.notify = model, parameters, autocast, notify
        self.graphs: dict[Shape, CapturedGraph] = {}
        self.uses: Counter[Shape] = Counter()
        self.max_graphs = MAX_GRAPHS
        self.pool: Any = None  # of memory, shared by all graphs: no two of them run at once
        self.warmup_stream: torch.cuda.Stream | None = None  # one for all graphs, as each stream keeps memory
        self.gradients = [torch.zeros_like(parameter) for parameter in parameters]
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            parameter.grad = gradient

    def add_gradients(self, batch: Batch, scale: float) -> dict[str, Tensor] | None:
        """Add the gradients of `scale` times the loss to those of the parameters; returns the unscaled losses.

        None: there is no graph of this shape, yet or at all.
        """
        if batch.windows is not None:  # not padded to a bucket
            return None
        shape = shape_key(batch)
        self.uses[shape] += 1
        may_capture = self.uses[shape] > USES_BEFORE_CAPTURE and len(self.graphs) < self.max_graphs
        if may_capture and shape not in self.graphs:
            self.capture_shape(shape, batch)
        graph = self.graphs.get(shape)
        return None if graph is None else graph.replay(batch, scale)

    def capture_shape(self, shape: Shape, batch: Batch) -> None:
        """Capture a graph, which leaves gradients and random state as they were; if it fails, capture no more."""
        before = [gradient.clone() for gradient in self.gradients]
        device, collecting = self.model.device, gc.isenabled()
        gc.disable()  # a collection that frees the graphs of an earlier training would break the capture
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                self.graphs[shape] = CapturedGraph(self, batch)
        except (MemoryError, RuntimeError) as why:
            self.max_graphs = len(self.graphs)
            log.info("%s", why)
            if not is_out_of_memory(why):  # if this is not an error of the capture, it recurs without one
                reason = str(why).strip().partition("\n")[0]
                self.notify(
                    f"CUDA graphs cannot be captured here, so training is slower; results stay the same. ({reason})"
                )
        finally:
            torch._foreach_copy_(self.gradients, before)
            if collecting:
                gc.enable()

    def run_pass(self, batch: Batch, scale: Tensor) -> dict[str, Tensor]:
        """The computation that is captured: forward, backward, and addition to the gradients."""
        with torch.enable_grad():
            with self.autocast():
                losses = self.model.losses(batch)
            new = torch.autograd.grad(losses.total * scale, self.parameters, allow_unused=True)
        pairs = [(sums, grad) for sums, grad in zip(self.gradients, new, strict=True) if grad is not None]
        for same_layout in (True, False):  # tensors of equal strides are added in one kernel
            group = [(a, b) for a, b in pairs if (a.stride() == b.stride()) == same_layout]
            if group:
                torch._foreach_add_([a for a, _ in group], [b for _, b in group])
        return losses.detached()


class CapturedGraph:
    """The graph of one shape, with its inputs and outputs."""

    def __init__(self, cache: GraphCache, batch: Batch) -> None:
        self.batch = batch.map_tensors(Tensor.clone)
        self.scale = torch.zeros((), device=batch.subwords.device)
        self.names: list[str] = []

        def run() -> Tensor:
            losses = cache.run_pass(replace(self.batch), self.scale)  # a copy without cached properties
            self.names = list(losses)
            return torch.stack(list(losses.values()))

        self.graph, self.values = capture(run, cache)

    def replay(self, batch: Batch, scale: float) -> dict[str, Tensor]:
        for target, source in zip(tensors_of(self.batch), tensors_of(batch), strict=True):
            target.copy_(source, non_blocking=True)
        self.scale.fill_(scale)
        self.graph.replay()
        return dict(zip(self.names, self.values.clone().unbind(), strict=True))


def capture(run: Callable[[], Tensor], cache: GraphCache) -> tuple[Any, Tensor]:
    """The graph of `run`, and the tensor that its replays write to."""
    if cache.pool is None:
        cache.pool = torch.cuda.graph_pool_handle()
    warmup = cache.warmup_stream = cache.warmup_stream or torch.cuda.Stream()
    current = torch.cuda.current_stream()
    warmup.wait_stream(current)
    try:
        with torch.cuda.stream(warmup):  # kernels are compiled and libraries initialized
            run()
    finally:
        current.wait_stream(warmup)
    graph = torch.cuda.CUDAGraph()
    # "thread_local": other threads may use the device meanwhile. The outer context restores the current stream even if
    # the capture fails.
    recording = torch.cuda.graph(graph, pool=cache.pool, capture_error_mode="thread_local")
    with torch.cuda.stream(current), recording:
        values = run()
    return graph, values


def shape_key(batch: Batch) -> Shape:
    """Batches with equal keys can share a graph."""
    partial = batch.gold is not None and batch.gold.partial
    return (partial, *(tuple(tensor.shape) for tensor in tensors_of(batch)))


def tensors_of(part: TensorDataclass) -> list[Tensor]:
    """All tensors of a batch, in a fixed order."""
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    part.map_tensors(collect)
    return tensors
