"""The encoder as recorded operations: a GPU replays in one go what a host would have to queue one by one.

A record (a CUDA graph) holds for one shape of a batch, so batches are padded to few shapes. What is recorded reads its
weights from fixed places, where they are put before each replay, those of products in bfloat16.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nestree.nn import direct, half

PLACES = 16  # windows are padded to a multiple of so many pieces,
ROWS = 8  # and batches to a multiple of so many windows
MOST = 24  # records that are kept; batches of other shapes are computed as usual
WARM_UP = 3  # runs before recording: libraries set themselves up in the first ones


class Recorder:
    """Makes records of an encoder, and replays them; gradients go to its weights in float32."""

    def __init__(self, network: nn.Module, layers: int) -> None:
        """`layers`: how many of the last ones are asked for."""
        self.config: Any = network.config
        self.layers = layers
        self.names, self.true = zip(*network.named_parameters(), strict=True)
        self.whole = [direct.whole(name) for name in self.names]
        self.places = [
            torch.empty_like(weight, dtype=weight.dtype if whole else half.HALF)
            for weight, whole in zip(self.true, self.whole, strict=True)
        ]
        self.records: dict[tuple[int, int], Record] = {}
        self.pool: Any = None

    def serves(self, pieces: Tensor) -> bool:
        """Is there a record for batches of this shape, or can there be one?"""
        return shape_for(pieces) in self.records or len(self.records) < MOST

    def states(self, pieces: Tensor, real: Tensor) -> tuple[Tensor, ...]:
        """What the last layers say of pieces [W, P], in training: [W, P, D], until the next call."""
        rows, places = shape_for(pieces)
        more = (0, places - pieces.shape[1], 0, rows - len(pieces))
        given = nn.functional.pad(pieces, more, value=self.config.pad_token_id)
        mask = nn.functional.pad(real, more)
        mask[:, 0] |= ~mask.any(1)  # a window that is not there looks at one piece, not at none
        weights = _Placed.apply(self, *self.true)
        record = self.records.get((rows, places))
        if record is None:
            record = self.records[rows, places] = self.recorded(given, mask)
        states = _Replayed.apply(record, given, mask, *weights)
        return tuple(state[: len(pieces), : pieces.shape[1]] for state in states)

    def recorded(self, pieces: Tensor, real: Tensor) -> "Record":
        """A record for batches of this shape."""
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        return Record(self, pieces.clone(), real.clone())

    def computed(self, pieces: Tensor, real: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
        """What is recorded."""
        named = dict(zip(self.names, weights, strict=True))
        return direct.states(self.config, named, pieces, real, learns=True)[-self.layers :]


class Record:
    """The way forward and the way back for one shape, and the places that they read and write."""

    def __init__(self, recorder: Recorder, pieces: Tensor, real: Tensor) -> None:
        self.pieces, self.real = pieces, real
        weights = [place.detach().requires_grad_() for place in recorder.places]
        # Other threads may go on using the device meanwhile.
        how = {"pool": recorder.pool, "capture_error_mode": "thread_local"}

        def forward() -> list[Tensor]:
            return recorder.computed(self.pieces, self.real, weights)

        def backward(states: Sequence[Tensor], slopes: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
            return torch.autograd.grad(states, weights, slopes, allow_unused=True)

        with torch.enable_grad(), torch.autocast("cuda", enabled=False):
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(WARM_UP):
                    states = forward()
                    backward(states, [torch.zeros_like(state) for state in states])
            torch.cuda.current_stream().wait_stream(aside)
            del states
            self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.forward, **how):
                said = forward()
            self.slopes = [torch.zeros_like(state) for state in said]
            with torch.cuda.graph(self.backward, **how):
                self.gradients = backward(said, self.slopes)
        self.states = [state.detach() for state in said]


class _Placed(torch.autograd.Function):
    """Weights at their places; gradients in the types of the weights."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.types = [weight.dtype for weight in weights]
        for kind in (True, False):  # of one type each: many are copied in one go
            chosen = [k for k, whole in enumerate(recorder.whole) if whole == kind]
            torch._foreach_copy_([recorder.places[k] for k in chosen], [weights[k] for k in chosen])
        return tuple(place.view_as(place) for place in recorder.places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return None, *half.returned(gradients, ctx.types)


class _Replayed(torch.autograd.Function):
    """A record, with what it is given put at its places."""

    @staticmethod
    def forward(
        ctx: Any, record: Record, pieces: Tensor, real: Tensor, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.record = record
        record.pieces.copy_(pieces)
        record.real.copy_(real)
        record.forward.replay()
        return tuple(state.view_as(state) for state in record.states)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> Any:
        record = ctx.record
        for place, slope in zip(record.slopes, slopes, strict=True):
            place.zero_() if slope is None else place.copy_(slope)
        record.backward.replay()
        return None, None, None, *record.gradients


def shape_for(pieces: Tensor) -> tuple[int, int]:
    """The shape that a batch is padded to.

    >>> shape_for(torch.zeros(33, 17)), shape_for(torch.zeros(8, 16))
    ((40, 32), (8, 16))
    """
    rows, places = pieces.shape
    return -(-rows // ROWS) * ROWS, -(-places // PLACES) * PLACES
