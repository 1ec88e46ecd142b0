"""The pretrained encoder in bfloat16: its weights are turned all at once, not one by one wherever they are used.

Weights and their gradients stay in float32 for whoever changes them. Under autocast alone, every layer turns its
weights, its inputs and, on the way back, its gradients by operations of their own: a third of all that is queued.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Weights = dict[str, Tensor]
HALF = torch.bfloat16


def uses_bf16(device: torch.device) -> bool:
    """Is this device asked to compute in bfloat16 now?"""
    name = device.type
    able = torch.amp.is_autocast_available(name)
    return able and torch.is_autocast_enabled(name) and torch.get_autocast_dtype(name) == HALF


def none_of_them(name: str) -> bool:
    return False


def bf16_state(network: nn.Module, whole: Callable[[str], bool] = none_of_them) -> Weights:
    """The weights of a network in bfloat16, by name; `whole`: which stay in float32, as all gradients do."""
    found = dict(network.named_parameters())
    names = [name for name in found if not whole(name)]
    return {**found, **dict(zip(names, _Halved.apply(*(found[name] for name in names)), strict=True))}


def call(network: nn.Module, weights: Weights, **inputs: Any) -> Any:
    """What the network says with these weights in place of its own."""
    with torch.autocast(next(iter(weights.values())).device.type, enabled=False):
        return functional_call(network, weights, (), inputs)


class Bf16WeightCache:
    """Holds the halved weights of a network for as long as they do not change."""

    def __init__(self, whole: Callable[[str], bool] = none_of_them) -> None:
        """`whole`: which weights are not halved, by name."""
        self.whole = whole
        self.kept: Weights | None = None

    def weights(self, network: nn.Module) -> Weights:
        return self.kept if self.kept is not None else bf16_state(network, self.whole)

    @contextmanager
    def keeping(self, network: nn.Module) -> Iterator[None]:
        """Within this, nothing learns: weights are turned once."""
        if self.kept is not None:
            yield
            return
        with torch.no_grad():
            self.kept = bf16_state(network, self.whole)
        try:
            yield
        finally:
            self.kept = None


class _Halved(torch.autograd.Function):
    """Many tensors in bfloat16, and their gradients in the types they had."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # what is not used gets no gradient, and does not decay
        ctx.types = [tensor.dtype for tensor in tensors]
        return cast_to_bf16(tensors, [HALF] * len(tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return cast_gradients(gradients, ctx.types)


def cast_gradients(
    gradients: Sequence[Tensor | None], types: Sequence[torch.dtype]
) -> tuple[Tensor | None, ...]:
    """The gradients that there are, in these types."""
    found = list(gradients)
    there = [
        (k, gradient)
        for k, gradient in enumerate(gradients)
        if gradient is not None and gradient.dtype != types[k]
    ]
    back = cast_to_bf16([gradient for _, gradient in there], [types[k] for k, _ in there])
    for (k, _), gradient in zip(there, back, strict=True):
        found[k] = gradient
    return tuple(found)


def cast_to_bf16(
    tensors: "tuple[Tensor, ...] | list[Tensor]", types: list[torch.dtype]
) -> tuple[Tensor, ...]:
    """Tensors in other types, by as few operations as there can be."""
    made = [
        torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)
        for tensor, dtype in zip(tensors, types, strict=True)
    ]
    if made:
        torch._foreach_copy_(made, list(tensors))
    return tuple(made)
