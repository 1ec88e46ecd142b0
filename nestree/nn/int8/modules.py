"""Networks whose linear maps are products in 8 bits, made of others.

BERT and its kin are read without padding, each layer by one kernel; in any other network, the linear maps are replaced
and the rest stays.
"""

from typing import TypeVar

import torch
from torch import Tensor, nn

from nestree.nn.encoder import Encoder
from nestree.nn.int8.bert import Int8Bert, MixedStates, array, supports
from nestree.nn.int8.gemm import STEP, Weights, fits, linear, weights_of
from nestree.nn.scorers import Biaffine, with_one

Network = TypeVar("Network", bound=nn.Module)


class Int8Linear(nn.Module):
    """A linear map whose products are in 8 bits."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weights = weights_of(array(linear.weight), None if linear.bias is None else array(linear.bias))

    def forward(self, x: Tensor) -> Tensor:  # [..., inputs]
        return times(x, self.weights)


class Int8Biaffine(nn.Module):
    """The scores of pairs; the larger of two products is in 8 bits."""

    def __init__(self, pairs: Biaffine):
        super().__init__()
        channels, size = pairs.weight.shape[0], pairs.weight.shape[1] - 1
        self.channels, self.padding = channels, STEP - 1  # beside the 1 that is appended
        weight = nn.functional.pad(pairs.weight.detach(), (0, self.padding))  # [C, size + 1, size + STEP]
        both = weight.transpose(1, 2).reshape(channels * (size + STEP), size + 1)
        self.weights = weights_of(array(both[:, :-1]), array(both[:, -1]))
        self.each = pairs.each

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """[B, P, size], [B, Q, size] -> all pairs [B, P, Q, channels]."""
        (batch, rows, _), columns = left.shape, right.shape[1]
        half = times(left, self.weights).view(batch, rows * self.channels, -1)  # [B, P * C, size + STEP]
        right = nn.functional.pad(with_one(right), (0, self.padding))  # [B, Q, size + STEP]
        # PyTorch multiplies by a transposed copy many times faster than by a transposed view
        scores = half @ right.transpose(1, 2).contiguous()  # [B, P * C, Q]
        return scores.view(batch, rows, self.channels, columns).transpose(2, 3)


class Int8Encoder(Encoder):
    """One whose states are in 8 bits and in float32, also where others are in bfloat16."""

    def states(self, pieces: Tensor, attention: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", enabled=False):
            return super().states(pieces, attention)


def times(x: Tensor, weights: Weights) -> Tensor:
    """x [..., inputs] -> [..., outputs]"""
    rows = x.reshape(-1, weights.inputs).float()
    found = torch.from_numpy(linear(rows.numpy(), weights))
    return found.view(*x.shape[:-1], weights.outputs)


def replaced(network: Network) -> Network:
    """This network; its parts have become quick."""
    if isinstance(network, Encoder):
        network.__class__ = Int8Encoder  # type: ignore[assignment]  # it is one
        if supports(network.transformer):
            fast = Int8Bert(network.transformer, network.mix)
            network._modules.update(transformer=fast, mix=MixedStates())
    for name, part in network._modules.items():
        if isinstance(part, nn.Linear):
            if fits(part.in_features, part.out_features):
                network._modules[name] = Int8Linear(part)
        elif isinstance(part, Biaffine) and fits(part.weight.shape[1] - 1, part.weight.shape[1] - 1):
            network._modules[name] = Int8Biaffine(part)
        elif part is not None and not isinstance(part, Int8Bert):
            replaced(part)
    return network
