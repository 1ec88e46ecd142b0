"""Modules whose matrix products are in 8 bits, made from float32 ones.

A layer of the BERT family is one kernel, on rows without padding: windows of subwords lie one after another, and a few
whole windows at a time go through all of the layer, so that intermediate results stay in the cache. Linear maps are
products in 8 bits, all else is float32.
"""

import copy
import threading
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nestree.nn.bert import BERT_LAYER, Bert, Weights
from nestree.nn.int8.gemm import (
    KERNEL,
    OUTPUTS,
    TILE_ROWS,
    Int8Weights,
    fits,
    linear,
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
from nestree.nn.scorers import Biaffine, with_one
from nestree.treecrf.numba_kernels.jit import compiled, kernel
from nestree.treecrf.numba_kernels.simd import scale

ROWS = 64  # that go through a layer together, or more, as windows are whole


def int8_module(module: nn.Module) -> nn.Module | None:
    """The 8-bit version of this module; None: it has none, though its children may have."""
    if isinstance(module, Bert):
        return Int8Bert(module) if kernel_supports(module.config) else Int8LinearBert(module)
    if isinstance(module, nn.Linear) and fits(module.in_features, module.out_features):
        return Int8Linear(module)
    if isinstance(module, Biaffine) and fits(module.weight.shape[1] - 1, module.weight.shape[1] - 1):
        return Int8Biaffine(module)
    return None


def to_array(tensor: Tensor) -> np.ndarray:
    """A copy in float32: the original may be trained further."""
    return tensor.detach().float().cpu().numpy().copy()


class Int8Linear(nn.Module):
    """A linear layer."""

    def __init__(self, float_linear: nn.Linear):
        super().__init__()
        bias = None if float_linear.bias is None else to_array(float_linear.bias)
        self.int8_weights = quantize_weights(to_array(float_linear.weight), bias)

    def forward(self, x: Tensor) -> Tensor:  # [..., inputs]
        return linear(x, self.int8_weights).to(x.dtype)


class Int8Biaffine(nn.Module):
    """A Biaffine whose first, larger product is in 8 bits."""

    def __init__(self, biaffine: Biaffine):
        super().__init__()
        channels, size = biaffine.weight.shape[0], biaffine.weight.shape[1] - 1
        self.channels, self.padding = channels, OUTPUTS - 1  # beside the 1 that is appended
        weight = pad(biaffine.weight.detach(), (0, self.padding))  # [C, size + 1, size + OUTPUTS]
        stacked = weight.transpose(1, 2).reshape(channels * (size + OUTPUTS), size + 1)
        self.int8_weights = quantize_weights(to_array(stacked[:, :-1]), to_array(stacked[:, -1]))
        self.biaffine = copy.deepcopy(biaffine)

    def score_pairs(self, left: Tensor, right: Tensor) -> Tensor:
        return self.biaffine.score_pairs(left, right)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """[B, P, size], [B, Q, size] -> all pairs [B, P, Q, channels]."""
        (batch, rows, _), columns = left.shape, right.shape[1]
        half = linear(left, self.int8_weights).view(
            batch, rows * self.channels, -1
        )  # [B, P * C, size + OUTPUTS]
        right = pad(with_one(right), (0, self.padding))  # [B, Q, size + OUTPUTS]
        # PyTorch multiplies by a transposed copy many times faster than by a transposed view
        scores = half @ right.transpose(1, 2).contiguous()  # [B, P * C, Q]
        return scores.view(batch, rows, self.channels, columns).transpose(2, 3)


class Int8LinearBert(Bert):
    """A Bert whose linear layers are in 8 bits, for those that the kernels of `Int8Bert` do not support."""

    def __init__(self, bert: Bert):
        weights = {name: weight.detach().clone() for name, weight in bert.named_parameters()}
        int8_weights = {}
        for name in [name.removesuffix(".weight") for name in weights if name.startswith("encoder.layer.")]:
            weight = weights.get(f"{name}.weight")
            if weight is not None and weight.ndim == 2 and fits(weight.shape[1], weight.shape[0]):
                bias = to_array(weights[f"{name}.bias"])
                int8_weights[name] = quantize_weights(to_array(weights.pop(f"{name}.weight")), bias)
        super().__init__(bert.config, weights)
        self.int8_weights = int8_weights
        self.train(bert.training)

    def forward(
        self, subwords: Tensor, mask: Tensor, last_layers: int, weights: Weights | None = None
    ) -> list[Tensor]:
        return super().forward(subwords, mask, last_layers)  # with its own weights, under autocast, too

    def linear(self, weights: Weights, name: str, x: Tensor) -> Tensor:
        if name in self.int8_weights:
            return linear(x, self.int8_weights[name])
        return super().linear(weights, name, x)


# BERT, one kernel per layer


class Norm(NamedTuple):
    weight: np.ndarray  # [D]
    bias: np.ndarray  # [D]
    epsilon: np.float32


class LayerWeights(NamedTuple):
    """The weights of a layer. Queries are divided by the root of a head's size already."""

    qkv: Int8Weights  # D -> 3 D: queries, keys, values
    output: Int8Weights  # D -> D
    output_norm: Norm
    up: Int8Weights  # D -> hidden
    down: Int8Weights  # hidden -> D
    norm: Norm
    heads: int


class Workspace(NamedTuple):
    """Buffers for the rows that go through a layer together."""

    numbers: np.ndarray  # [rows * hidden] int8
    scales: np.ndarray  # [rows]
    qkv: np.ndarray  # [rows * 3 D]
    keys: np.ndarray  # [size of a head * longest window]
    attention: np.ndarray  # [4 * longest window]
    context: np.ndarray  # [rows * D]
    middle: np.ndarray  # [rows * D]
    hidden: np.ndarray  # [rows * hidden]


def allocate_workspace(layer: LayerWeights, longest: int) -> Workspace:
    """For windows of so many subwords at most."""
    rows, size, hidden = pad_rows(ROWS + longest), layer.qkv.inputs, layer.up.outputs
    width = longest + OVERHANG
    return Workspace(
        np.empty(rows * max(hidden, size), KERNEL.input_type),
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


@partial(kernel, variant=KERNEL.name)
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
    even = fits(size, hidden) and fits(hidden, size) and size % (STRIDE * heads) == 0
    return config.model_type != "mpnet" and even


class Int8Bert(Bert):
    """A Bert whose layers are computed in 8 bits; its parameters are those of the embeddings alone."""

    def __init__(self, bert: Bert):
        parameters = dict(bert.named_parameters())
        embeddings = {n: w.detach().clone() for n, w in parameters.items() if n.startswith("embeddings")}
        super().__init__(bert.config, embeddings)
        self.train(bert.training)
        self.layer_weights = [
            quantize_layer(parameters, f"encoder.layer.{layer}.", bert.config)
            for layer in range(bert.config.num_hidden_layers)
        ]
        self.buffers_of_thread = ThreadBuffers()

    def forward(
        self, subwords: Tensor, mask: Tensor, last_layers: int, weights: Weights | None = None
    ) -> list[Tensor]:
        """As of `Bert`, without dropout, in float32 also under autocast; the states of padding mean nothing."""
        flat = mask.flatten()
        ends = mask.sum(1).cumsum(0).numpy()
        rows, size = int(ends[-1]), self.layer_weights[0].qkv.inputs
        index = flat.nonzero()[:, 0]  # [rows]
        states, workspace = self.buffers_of_thread.get(self.layer_weights[0], rows, mask.shape[1])
        state, other = states
        first = 0 if self.padding_position is None else self.padding_position + 1
        with torch.autocast("cpu", enabled=False):
            positions = index % mask.shape[1] + first
            embedded = self.embed(dict(self.named_parameters()), subwords.flatten()[index], positions)
        state[: rows * size] = embedded.detach().reshape(-1).numpy()
        row_of = (flat.cumsum(0) - 1).clamp(min=0)  # [W * P] padding gets the row before it
        results = []
        for number in range(len(self.layer_weights) + 1):
            if number:
                run_layer(state, other, ends, self.layer_weights[number - 1], workspace)
                state, other = other, state
            if number > len(self.layer_weights) - last_layers:
                packed = torch.from_numpy(state[: rows * size]).view(rows, size)
                results.append(packed.index_select(0, row_of).view(*mask.shape, size))
        return results

    def dropout(self, x: Tensor) -> Tensor:
        return x


class ThreadBuffers(threading.local):
    """The buffers of each thread, kept between calls: allocating them costs more than using them."""

    rows = longest = 0
    states: tuple[np.ndarray, np.ndarray]  # [rows * D + a few rows]: before and after a layer
    workspace: Workspace

    def __reduce__(self) -> tuple[type["ThreadBuffers"], tuple[()]]:
        """A copy begins without any."""
        return ThreadBuffers, ()

    def get(
        self, layer: LayerWeights, rows: int, longest: int
    ) -> tuple[tuple[np.ndarray, np.ndarray], Workspace]:
        """States and workspace for so many rows, in windows of at most `longest` subwords."""
        if rows > self.rows or longest > self.longest:
            self.rows, self.longest = max(rows, self.rows), max(longest, self.longest)
            count = (self.rows + TILE_ROWS - 1) * layer.qkv.inputs
            self.states = np.empty(count, np.float32), np.empty(count, np.float32)
            self.workspace = allocate_workspace(layer, self.longest)
        return self.states, self.workspace


def quantize_layer(parameters: Weights, prefix: str, config: Any) -> LayerWeights:
    """The weights of the layer whose parameters begin with `prefix`."""
    *projections, output, output_norm = BERT_LAYER
    query_factor = np.float32((config.hidden_size // config.num_attention_heads) ** -0.5)

    def array(name: str) -> np.ndarray:
        return to_array(parameters[prefix + name])

    def qkv(kind: str) -> np.ndarray:
        query, key, value = (array(f"{name}.{kind}") for name in projections)
        return np.concatenate([query * query_factor, key, value])

    def quantize(name: str) -> Int8Weights:
        return quantize_weights(array(f"{name}.weight"), array(f"{name}.bias"))

    def norm(name: str) -> Norm:
        return Norm(array(f"{name}.weight"), array(f"{name}.bias"), np.float32(config.layer_norm_eps))

    return LayerWeights(
        quantize_weights(qkv("weight"), qkv("bias")),
        quantize(output),
        norm(output_norm),
        quantize("intermediate.dense"),
        quantize("output.dense"),
        norm("output.LayerNorm"),
        config.num_attention_heads,
    )
