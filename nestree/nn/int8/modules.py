"""Modules whose matrix products are in 8 bits, made from float32 ones."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nestree.nn.bert import Bert, Weights
from nestree.nn.int8.bert import Int8Bert, kernel_supports, to_array
from nestree.nn.int8.gemm import STEP, Int8Weights, fits, linear, quantize_weights
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


class Int8Linear(nn.Module):
    def __init__(self, float_linear: nn.Linear):
        super().__init__()
        bias = None if float_linear.bias is None else to_array(float_linear.bias)
        self.weights = quantize_weights(to_array(float_linear.weight), bias)

    def forward(self, x: Tensor) -> Tensor:  # [..., inputs]
        return multiply(x, self.weights).to(x.dtype)


class Int8Biaffine(nn.Module):
    """A Biaffine whose first, larger product is in 8 bits."""

    def __init__(self, biaffine: Biaffine):
        super().__init__()
        channels, size = biaffine.weight.shape[0], biaffine.weight.shape[1] - 1
        self.channels, self.padding = channels, STEP - 1  # beside the 1 that is appended
        weight = pad(biaffine.weight.detach(), (0, self.padding))  # [C, size + 1, size + STEP]
        stacked = weight.transpose(1, 2).reshape(channels * (size + STEP), size + 1)
        self.weights = quantize_weights(to_array(stacked[:, :-1]), to_array(stacked[:, -1]))
        self.biaffine = copy.deepcopy(biaffine)

    def score_pairs(self, left: Tensor, right: Tensor) -> Tensor:
        return self.biaffine.score_pairs(left, right)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """[B, P, size], [B, Q, size] -> all pairs [B, P, Q, channels]."""
        (batch, rows, _), columns = left.shape, right.shape[1]
        half = multiply(left, self.weights).view(batch, rows * self.channels, -1)  # [B, P * C, size + STEP]
        right = pad(with_one(right), (0, self.padding))  # [B, Q, size + STEP]
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
        self, subwords: Tensor, mask: Tensor, layers: int, weights: Weights | None = None
    ) -> list[Tensor]:
        return super().forward(subwords, mask, layers)  # with its own weights, under autocast, too

    def linear(self, weights: Weights, name: str, x: Tensor) -> Tensor:
        if name in self.int8_weights:
            return multiply(x, self.int8_weights[name])
        return super().linear(weights, name, x)


def multiply(x: Tensor, weights: Int8Weights) -> Tensor:
    """x [..., inputs] -> [..., outputs], in float32"""
    rows = x.detach().reshape(-1, weights.inputs).float()
    return torch.from_numpy(linear(rows.numpy(), weights)).view(*x.shape[:-1], weights.outputs)
