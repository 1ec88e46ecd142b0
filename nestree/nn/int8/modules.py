"""Modules whose matrix products are in 8 bits, made from float32 ones."""

import copy
import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nestree.nn.bert import BERT_LAYER, Bert, Weights
from nestree.nn.int8.kernels import (
    OUTPUTS,
    STRIDE,
    TILE_ROWS,
    Int8Weights,
    LayerWeights,
    Norm,
    Workspace,
    allocate_workspace,
    fits,
    linear,
    quantize_weights,
    run_layer,
)
from nestree.nn.scorers import Biaffine, with_one


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
