"""Networks whose linear maps are products in 8 bits, made of others.

BERT and its kin are read without padding, each layer by one kernel; in any other network, the linear maps are replaced
and the rest stays.
"""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from nestree.nn.encoder import Encoder
from nestree.nn.quick.products import fits, linear, weights_of
from nestree.nn.quick.transformer import QuickTransformer, array, serves

Network = TypeVar("Network", bound=nn.Module)


class QuickLinear(nn.Module):
    """A linear map whose products are in 8 bits."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weights = weights_of(array(linear.weight), None if linear.bias is None else array(linear.bias))

    def forward(self, x: Tensor) -> Tensor:  # [..., inputs]
        rows = x.reshape(-1, self.weights.inputs).float()
        found = torch.from_numpy(linear(rows.numpy(), self.weights))
        return found.view(*x.shape[:-1], self.weights.outputs)


def replaced(network: Network) -> Network:
    """The same network with quick parts; what is not replaced, both share."""
    made = copy.copy(network)
    made._modules = dict(network._modules)
    if isinstance(network, Encoder) and serves(network.transformer):
        made._modules["transformer"] = QuickTransformer(network.transformer, len(network.mix.weights))
    for name, part in made._modules.items():
        if isinstance(part, nn.Linear):
            if fits(part.in_features, part.out_features):
                made._modules[name] = QuickLinear(part)
        elif part is not None and not isinstance(part, QuickTransformer):
            made._modules[name] = replaced(part)
    return made
