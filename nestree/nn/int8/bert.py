"""One layer of a BERT-like encoder in a single kernel, on rows without padding.

Windows of pieces lie one after another; a few whole windows at a time go through all of the layer, so that what is
between its steps stays in the cache. Linear maps are products in 8 bits, all else is float32.
"""

import threading
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nestree.nn.encoder import ScalarMix, looked_at
from nestree.nn.int8.gemm import TALL, Weights, fits, multiply, padded, round_rows, weights_of
from nestree.nn.int8.row_ops import (
    SPARE,
    STRIDE,
    add_and_normalise,
    exponentials,
    four_sums,
    gelu,
    highest,
    round_row,
)
from nestree.treecrf.numba_kernels.jit import called, kernel
from nestree.treecrf.numba_kernels.simd import scale

ROWS = 64  # that go through a layer together, or more, as windows are whole


class Norm(NamedTuple):
    weight: np.ndarray  # [D]
    bias: np.ndarray  # [D]
    epsilon: np.float32


class Layer(NamedTuple):
    """The weights of a layer. Queries are divided by the root of a head's size already."""

    asked: Weights  # D -> 3 D: queries, keys, values
    answer: Weights  # D -> D
    answer_norm: Norm
    wide: Weights  # D -> hidden
    narrow: Weights  # hidden -> D
    norm: Norm
    heads: int


class LayerWorkspace(NamedTuple):
    """Memory to work in, for so many rows at once."""

    numbers: np.ndarray  # [rows * hidden]
    scales: np.ndarray  # [rows]
    asked: np.ndarray  # [rows * 3 D]
    keys: np.ndarray  # [size of a head * longest window]
    looks: np.ndarray  # [4 * longest window]
    context: np.ndarray  # [rows * D]
    middle: np.ndarray  # [rows * D]
    hidden: np.ndarray  # [rows * hidden]


def layer_workspace(layer: Layer, longest: int) -> LayerWorkspace:
    """For windows of so many pieces at most."""
    rows, size, hidden = padded(ROWS + longest), layer.asked.inputs, layer.wide.outputs
    broad = longest + SPARE

    def floats(count: int) -> np.ndarray:
        return np.empty(count, np.float32)

    return LayerWorkspace(
        np.empty(rows * max(hidden, size), np.int8),
        np.ones(rows, np.float32),
        floats(rows * 3 * size),
        np.zeros(size // layer.heads * broad, np.float32),  # beyond a window, what is read must be a number
        floats(4 * broad),
        floats(rows * size),
        floats(rows * size),
        floats(rows * hidden),
    )


@called
def attend(asked, first, count, size, heads, keys, looks, context):
    """context of the rows of one window = what its pieces see in each other. Up to three more rows are written."""
    each, step, broad = size // heads, 3 * size, count + SPARE
    for head in range(0, size, each):
        for j in range(count):
            for d in range(each):
                keys[d * broad + j] = asked[(first + j) * step + size + head + d]
        values = first * step + 2 * size + head
        for i in range(first, first + count, 4):
            four_sums(looks, 0, broad, asked, i * step + head, step, keys, 0, broad, each, count)
            for r in range(min(4, first + count - i)):
                total = exponentials(looks, r * broad, count, highest(looks, r * broad, count))
                scale(looks, r * broad, count, 1 / total, looks, r * broad)
            four_sums(context, i * size + head, size, looks, 0, broad, asked, values, step, count, each)


@called
def normalise_rows(rows, at, others, others_at, count, size, norm, numbers, scales):
    """rows = norm(rows + others), and the same in 8 bits."""
    for r in range(count):
        here, there = at + r * size, others_at + r * size
        largest = add_and_normalise(rows, here, others, there, size, norm.weight, norm.bias, norm.epsilon)
        scales[r] = round_row(rows, here, size, largest, numbers, r * size)


@called
def some_windows(states, out, ends, first, last, start, layer, room):
    """The layer for windows first to last, whose rows begin at `start`."""
    size, hidden = layer.asked.inputs, layer.wide.outputs
    count, at = ends[last - 1] - start, start * size
    round_rows(states, at, count, size, room.numbers, room.scales)
    multiply(room.numbers, room.scales, count, layer.asked, room.asked, 0)
    row = 0
    for w in range(first, last):
        end = ends[w] - start
        attend(room.asked, row, end - row, size, layer.heads, room.keys, room.looks, room.context)
        row = end
    round_rows(room.context, 0, count, size, room.numbers, room.scales)
    multiply(room.numbers, room.scales, count, layer.answer, room.middle, 0)
    normalise_rows(room.middle, 0, states, at, count, size, layer.answer_norm, room.numbers, room.scales)
    multiply(room.numbers, room.scales, count, layer.wide, room.hidden, 0)
    for r in range(count):
        largest = gelu(room.hidden, r * hidden, hidden)
        room.scales[r] = round_row(room.hidden, r * hidden, hidden, largest, room.numbers, r * hidden)
    multiply(room.numbers, room.scales, count, layer.narrow, out, at)
    for r in range(count):
        here = at + r * size
        add_and_normalise(
            out, here, room.middle, r * size, size, layer.norm.weight, layer.norm.bias, layer.norm.epsilon
        )


@kernel
def layer_part(states, out, ends, layer, room):
    """out = the layer on states [rows * D]; ends [windows] of their rows. `out` has TALL - 1 rows more."""
    first, start = 0, 0
    while first < len(ends):
        last = first + 1
        while last < len(ends) and ends[last] - start <= ROWS:
            last += 1
        some_windows(states, out, ends, first, last, start, layer, room)
        start, first = ends[last - 1], last


COUNTED_FROM = {
    "bert": 0,
    "electra": 0,
    "roberta": 1,
    "xlm-roberta": 1,
    "camembert": 1,
}  # 1: after the padding id


class Int8Bert(nn.Module):
    """The mixed last layers of an encoder of `transformers`, computed in 8 bits."""

    def __init__(self, transformer: Any, mix: ScalarMix):
        super().__init__()
        self.config, self.embeddings, self.mix = transformer.config, transformer.embeddings, mix
        self.projection = getattr(transformer, "embeddings_project", None)
        config = transformer.config
        self.first_place = COUNTED_FROM[config.model_type] * ((config.pad_token_id or 0) + 1)
        self.layers = [layer_of(each, config) for each in transformer.encoder.layer]
        self.desks = WorkspacePool()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        """`hidden_states`: one, the mixture [W, P, D]; padding is 0."""
        real = looked_at(attention_mask)  # [W, P]
        ends = real.sum(1).cumsum(0).numpy()
        rows, size = int(ends[-1]), self.layers[0].asked.inputs
        desk = self.desks.for_this_thread(self.layers[0], rows, real.shape[1])
        state, other = desk.states
        state[: rows * size] = self.embedded(input_ids, real)
        shares = self.shares()
        mixed = torch.zeros(rows, size)
        for number in range(len(self.layers) + 1):
            if number:
                layer_part(state, other, ends, self.layers[number - 1], desk.room)
                state, other = other, state
            if number in shares:
                mixed.add_(torch.from_numpy(state[: rows * size]).view(rows, size), alpha=shares[number])
        return SimpleNamespace(hidden_states=(spread_out(mixed, real),))

    def get_input_embeddings(self) -> nn.Module:
        """As encoders of `transformers` call it."""
        table: nn.Module = self.embeddings.word_embeddings
        return table

    def shares(self) -> dict[int, float]:
        """How much of each layer is in the mixture, by its number; 0: the embeddings."""
        found: list[float] = (self.mix.weights.softmax(0) * self.mix.factor).tolist()
        return dict(enumerate(found, len(self.layers) + 1 - len(found)))

    def embedded(self, input_ids: Tensor, real: Tensor) -> np.ndarray:
        """[rows * D] of all pieces that are no padding."""
        places = (torch.arange(real.shape[1]) + self.first_place).expand_as(real)[real]  # [rows]
        pieces = input_ids[real]  # [rows]
        found = self.embeddings(
            input_ids=pieces[None], position_ids=places[None], token_type_ids=torch.zeros_like(pieces)[None]
        )
        if self.projection is not None:
            found = self.projection(found)
        flat: np.ndarray = found.contiguous().view(-1).numpy()
        return flat


class Workspace(NamedTuple):
    """Memory to work in."""

    rows: int
    longest: int
    states: tuple[np.ndarray, np.ndarray]  # [rows * D + a little]
    room: LayerWorkspace


class WorkspacePool(threading.local):
    """One for each thread, kept: memory that is new each time costs more than what is done with it."""

    desk: Workspace | None = None

    def __reduce__(self) -> tuple[type["WorkspacePool"], tuple[()]]:
        """A copy begins with none."""
        return WorkspacePool, ()

    def for_this_thread(self, layer: Layer, rows: int, longest: int) -> Workspace:
        """A desk for so many rows, in windows of so many pieces at most."""
        desk = self.desk
        if desk is None or desk.rows < rows or desk.longest < longest:
            rows, longest = max(rows, desk.rows if desk else 0), max(longest, desk.longest if desk else 0)
            numbers = (rows + TALL - 1) * layer.asked.inputs
            states = np.empty(numbers, np.float32), np.empty(numbers, np.float32)
            desk = self.desk = Workspace(rows, longest, states, layer_workspace(layer, longest))
        return desk


class MixedStates(nn.Module):
    """In place of a Mix: there is nothing left to mix."""

    weights = (1.0,)

    def forward(self, layers: tuple[Tensor]) -> Tensor:
        return layers[0]


def spread_out(rows: Tensor, real: Tensor) -> Tensor:
    """Rows [rows, D] at their places among padding: [W, P, D]."""
    if len(rows) == real.numel():
        return rows.view(*real.shape, -1)
    padded = rows.new_zeros(*real.shape, rows.shape[1])
    padded[real] = rows
    return padded


def supports(transformer: Any) -> bool:
    """Is this an encoder whose layers are those of BERT, in sizes that fit?"""
    config = getattr(transformer, "config", None)
    if config is None or config.model_type not in COUNTED_FROM or config.hidden_act != "gelu":
        return False
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        return False
    size, hidden, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    absolute = getattr(config, "position_embedding_type", "absolute") == "absolute"
    return absolute and fits(size, hidden) and fits(hidden, size) and size % (STRIDE * heads) == 0


def layer_of(layer: Any, config: Any) -> Layer:
    """The weights of a layer of `transformers`."""
    asked = layer.attention.self
    heads: int = config.num_attention_heads
    shrunk = np.float32((config.hidden_size // heads) ** -0.5)
    parts = [(asked.query, shrunk), (asked.key, np.float32(1)), (asked.value, np.float32(1))]
    weight = np.concatenate([array(part.weight) * factor for part, factor in parts])
    bias = np.concatenate([array(part.bias) * factor for part, factor in parts])
    return Layer(
        weights_of(weight, bias),
        weights_of(array(layer.attention.output.dense.weight), array(layer.attention.output.dense.bias)),
        norm_of(layer.attention.output.LayerNorm),
        weights_of(array(layer.intermediate.dense.weight), array(layer.intermediate.dense.bias)),
        weights_of(array(layer.output.dense.weight), array(layer.output.dense.bias)),
        norm_of(layer.output.LayerNorm),
        heads,
    )


def norm_of(norm: Any) -> Norm:
    return Norm(array(norm.weight), array(norm.bias), np.float32(norm.eps))


def array(parameter: Tensor) -> np.ndarray:
    return parameter.detach().float().cpu().contiguous().numpy()
