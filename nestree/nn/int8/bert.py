"""The BERT family in 8 bits: each layer is one kernel, on rows without padding.

Windows of subwords lie one after another; a few whole windows at a time go through all of the layer, so that
intermediate results stay in the cache. Linear maps are products in 8 bits, all else is float32.
"""

import threading
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nestree.nn.bert import BERT_LAYER, Bert, Weights
from nestree.nn.int8.gemm import (
    TILE_ROWS,
    Int8Weights,
    fits,
    multiply,
    pad_rows,
    quantize_rows,
    quantize_weights,
)
from nestree.nn.int8.row_ops import (
    OVERHANG,
    STRIDE,
    add_and_normalize,
    exp_row,
    gelu,
    multiply_four_rows,
    quantize_row,
    row_max,
)
from nestree.treecrf.numba_kernels.jit import compiled, kernel
from nestree.treecrf.numba_kernels.simd import scale

ROWS = 64  # that go through a layer together, or more, as windows are whole


class Norm(NamedTuple):
    weight: np.ndarray  # [D]
    bias: np.ndarray  # [D]
    epsilon: np.float32


class Layer(NamedTuple):
    """The weights of a layer. Queries are divided by the root of a head's size already."""

    qkv: Int8Weights  # D -> 3 D: queries, keys, values
    output: Int8Weights  # D -> D
    output_norm: Norm
    up: Int8Weights  # D -> hidden
    down: Int8Weights  # hidden -> D
    norm: Norm
    heads: int


class LayerWorkspace(NamedTuple):
    """Buffers for the rows that go through a layer together."""

    numbers: np.ndarray  # [rows * hidden] int8
    scales: np.ndarray  # [rows]
    qkv: np.ndarray  # [rows * 3 D]
    keys: np.ndarray  # [size of a head * longest window]
    attention: np.ndarray  # [4 * longest window]
    context: np.ndarray  # [rows * D]
    middle: np.ndarray  # [rows * D]
    hidden: np.ndarray  # [rows * hidden]


def allocate_workspace(layer: Layer, longest: int) -> LayerWorkspace:
    """For windows of so many subwords at most."""
    rows, size, hidden = pad_rows(ROWS + longest), layer.qkv.inputs, layer.up.outputs
    width = longest + OVERHANG
    return LayerWorkspace(
        np.empty(rows * max(hidden, size), np.int8),
        np.ones(rows, np.float32),
        np.empty(rows * 3 * size, np.float32),
        np.zeros(size // layer.heads * width, np.float32),  # what is read beyond a window must be finite
        np.empty(4 * width, np.float32),
        np.empty(rows * size, np.float32),
        np.empty(rows * size, np.float32),
        np.empty(rows * hidden, np.float32),
    )


@compiled
def attend(qkv, first, count, size, heads, keys, attention, context):
    """context = attention within one window of `count` rows from `first` on. Up to three more rows are written."""
    head_size, step, width = size // heads, 3 * size, count + OVERHANG
    for head in range(0, size, head_size):
        for j in range(count):
            for d in range(head_size):
                keys[d * width + j] = qkv[(first + j) * step + size + head + d]
        values = first * step + 2 * size + head
        for i in range(first, first + count, 4):
            multiply_four_rows(
                attention, 0, width, qkv, i * step + head, step, keys, 0, width, head_size, count
            )
            for r in range(min(4, first + count - i)):
                total = exp_row(attention, r * width, count, row_max(attention, r * width, count))
                scale(attention, r * width, count, 1 / total, attention, r * width)
            multiply_four_rows(
                context, i * size + head, size, attention, 0, width, qkv, values, step, count, head_size
            )


@compiled
def run_windows(states, out, ends, first, last, start, layer, work):
    """The layer for windows first to last, whose rows begin at `start`."""
    size, hidden = layer.qkv.inputs, layer.up.outputs
    count, at = ends[last - 1] - start, start * size
    quantize_rows(states, at, count, size, work.numbers, work.scales)
    multiply(work.numbers, work.scales, count, layer.qkv, work.qkv, 0)
    row = 0
    for w in range(first, last):
        end = ends[w] - start
        attend(work.qkv, row, end - row, size, layer.heads, work.keys, work.attention, work.context)
        row = end
    quantize_rows(work.context, 0, count, size, work.numbers, work.scales)
    multiply(work.numbers, work.scales, count, layer.output, work.middle, 0)
    norm = layer.output_norm
    for r in range(count):
        largest = add_and_normalize(
            work.middle, r * size, states, at + r * size, size, norm.weight, norm.bias, norm.epsilon
        )
        work.scales[r] = quantize_row(work.middle, r * size, size, largest, work.numbers, r * size)
    multiply(work.numbers, work.scales, count, layer.up, work.hidden, 0)
    for r in range(count):
        largest = gelu(work.hidden, r * hidden, hidden)
        work.scales[r] = quantize_row(work.hidden, r * hidden, hidden, largest, work.numbers, r * hidden)
    multiply(work.numbers, work.scales, count, layer.down, out, at)
    norm = layer.norm
    for r in range(count):
        add_and_normalize(
            out, at + r * size, work.middle, r * size, size, norm.weight, norm.bias, norm.epsilon
        )


@kernel
def run_layer(states, out, ends, layer, work):
    """out = the layer on states [rows * D]; ends [windows] of their rows. `out` has TILE_ROWS - 1 rows more."""
    first, start = 0, 0
    while first < len(ends):
        last = first + 1
        while last < len(ends) and ends[last] - start <= ROWS:
            last += 1
        run_windows(states, out, ends, first, last, start, layer, work)
        start, first = ends[last - 1], last


def kernel_supports(config: Any) -> bool:
    """Whether the kernel computes layers of this configuration: it has no bias by distance, and needs even sizes."""
    size, hidden, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    return (
        config.model_type != "mpnet"
        and fits(size, hidden)
        and fits(hidden, size)
        and size % (STRIDE * heads) == 0
    )


class Int8Bert(Bert):
    """A Bert whose layers are computed in 8 bits; its parameters are those of the embeddings alone."""

    def __init__(self, bert: Bert):
        parameters = {name: weight.detach() for name, weight in bert.named_parameters()}
        super().__init__(
            bert.config, {name: w.clone() for name, w in parameters.items() if name.startswith("embeddings")}
        )
        self.train(bert.training)
        arrays = {
            name: to_array(weight) for name, weight in parameters.items() if name.startswith("encoder.")
        }
        layers = range(bert.config.num_hidden_layers)
        self.layers = [quantize_layer(arrays, f"encoder.layer.{layer}.", bert.config) for layer in layers]
        self.workspaces = WorkspacePool()

    def forward(
        self, subwords: Tensor, mask: Tensor, layers: int, weights: Weights | None = None
    ) -> list[Tensor]:
        """As of `Bert`, without dropout, in float32 also under autocast; the states of padding are 0."""
        ends = mask.sum(1).cumsum(0).numpy()
        rows, size = int(ends[-1]), self.layers[0].qkv.inputs
        index = mask.flatten().nonzero()[:, 0]  # [rows]
        workspace = self.workspaces.get(self.layers[0], rows, mask.shape[1])
        state, other = workspace.states
        first = 0 if self.padding_position is None else self.padding_position + 1
        positions = index % mask.shape[1] + first
        with torch.autocast("cpu", enabled=False):
            embedded = self.embed(dict(self.named_parameters()), subwords.flatten()[index], positions)
        state[: rows * size] = embedded.detach().reshape(-1).numpy()
        states = []
        for number in range(len(self.layers) + 1):
            if number:
                run_layer(state, other, ends, self.layers[number - 1], workspace.layer)
                state, other = other, state
            if number > len(self.layers) - layers:
                unpacked = torch.zeros(mask.numel(), size)
                unpacked[index] = torch.from_numpy(state[: rows * size]).view(rows, size)
                states.append(unpacked.view(*mask.shape, size))
        return states

    def dropout(self, x: Tensor) -> Tensor:
        return x


class Workspace(NamedTuple):
    """Buffers for so many rows, in windows of at most `longest` subwords."""

    rows: int
    longest: int
    states: tuple[np.ndarray, np.ndarray]  # [rows * D + a few rows]
    layer: LayerWorkspace


class WorkspacePool(threading.local):
    """The workspace of each thread, kept between calls: allocating one costs more than using it."""

    workspace: Workspace | None = None

    def __reduce__(self) -> tuple[type["WorkspacePool"], tuple[()]]:
        """A copy begins without one."""
        return WorkspacePool, ()

    def get(self, layer: Layer, rows: int, longest: int) -> Workspace:
        old = self.workspace
        if old is not None and old.rows >= rows and old.longest >= longest:
            return old
        if old is not None:
            rows, longest = max(rows, old.rows), max(longest, old.longest)
        count = (rows + TILE_ROWS - 1) * layer.qkv.inputs
        states = np.empty(count, np.float32), np.empty(count, np.float32)
        self.workspace = Workspace(rows, longest, states, allocate_workspace(layer, longest))
        return self.workspace


def quantize_layer(arrays: dict[str, np.ndarray], prefix: str, config: Any) -> Layer:
    """The weights of the layer whose parameters begin with `prefix`."""
    *projections, output, output_norm = BERT_LAYER
    factors = [
        np.float32((config.hidden_size // config.num_attention_heads) ** -0.5),
        np.float32(1),
        np.float32(1),
    ]

    def scaled(kind: str) -> np.ndarray:
        pairs = zip(projections, factors, strict=True)
        return np.concatenate([arrays[f"{prefix}{name}.{kind}"] * factor for name, factor in pairs])

    def linear(name: str) -> Int8Weights:
        return quantize_weights(arrays[f"{prefix}{name}.weight"], arrays[f"{prefix}{name}.bias"])

    def norm(name: str) -> Norm:
        epsilon = np.float32(config.layer_norm_eps)
        return Norm(arrays[f"{prefix}{name}.weight"], arrays[f"{prefix}{name}.bias"], epsilon)

    return Layer(
        quantize_weights(scaled("weight"), scaled("bias")),
        linear(output),
        norm(output_norm),
        linear("intermediate.dense"),
        linear("output.dense"),
        norm("output.LayerNorm"),
        config.num_attention_heads,
    )


def to_array(tensor: Tensor) -> np.ndarray:
    """A copy in float32: the original may learn on."""
    return tensor.detach().float().cpu().numpy().copy()
