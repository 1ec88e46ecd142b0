"""Stored weights in 8 bits: groups of integers from -127 to 127, and one scale for each group.

A weight is its integer times the scale of its group. Integers have 7 bits and scales, in bfloat16, have 8, so their
product is exact in float32: the same weights on every machine, to the bit. No weight changes by more than half a scale.
Biases, norms and other small tensors keep their precision.

>>> weights = {"mix": torch.ones(4), "matrix": torch.linspace(-1, 1, 8192).view(64, 128)}
>>> small = quantize_state(weights)
>>> small["matrix"].dtype, small["scales/matrix"].shape
(torch.int8, torch.Size([128]))
>>> float((dequantize_state(small)["matrix"] - weights["matrix"]).abs().max()) <= 0.5 / 127
True
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from nestree.errors import ModelError

GROUP = 64  # weights that share a scale
INT8_MAX = 127
MIN_SIZE = 1024  # smaller tensors stay as they are
SCALES = "scales/"  # prefix of the names of scales


def quantize_state(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in 8 bits, with their scales; small tensors as they are."""
    state = {}
    for name, value in weights.items():
        if value.ndim < 2 or value.numel() < MIN_SIZE or not value.is_floating_point():
            state[name] = value
            continue
        if not value.isfinite().all():
            raise ModelError(f"{name} holds numbers that are not finite; such a model is useless. Train it again.")
        groups = to_groups(value.float())  # [groups, GROUP]
        scales = (groups.abs().amax(1) / INT8_MAX).bfloat16()  # [groups]
        divisors = scales.float().masked_fill(scales == 0, 1.0)[:, None]
        integers = (groups / divisors).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)
        state[name] = integers.flatten()[: value.numel()].view(value.shape)
        state[SCALES + name] = scales
    return state


def dequantize_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The float32 weights of a quantized state; tensors without scales as they are."""
    for name in tensors:
        if name.startswith(SCALES) and name.removeprefix(SCALES) not in tensors:
            raise ModelError(f"{name} are there, and what they scale is not")
    return {
        name: dequantize(name, value, tensors.get(SCALES + name))
        for name, value in tensors.items()
        if not name.startswith(SCALES)
    }


def dequantize(name: str, value: Tensor, scales: Tensor | None) -> Tensor:
    if scales is None:
        if value.dtype == torch.int8:
            raise ModelError(f"{name} has no scales")
        if not value.isfinite().all():
            raise ModelError(f"{name} holds numbers that are not finite")
        return value
    count = -(-value.numel() // GROUP)
    if value.dtype != torch.int8 or scales.dtype != torch.bfloat16 or scales.shape != (count,):
        raise ModelError(
            f"{name} has {list(scales.shape)} scales of {scales.dtype} for {value.dtype}, and needs [{count}] of "
            "bfloat16 for int8"
        )
    if not (scales.float() * INT8_MAX).isfinite().all():
        raise ModelError(f"{name} has scales that are not finite")
    groups = to_groups(value) * scales.float()[:, None]  # [groups, GROUP]
    return groups.flatten()[: value.numel()].view(value.shape)


def to_groups(value: Tensor) -> Tensor:
    """All numbers in rows of GROUP, the last one padded with zeros."""
    flat = value.flatten()
    missing = -flat.numel() % GROUP
    return torch.cat([flat, flat.new_zeros(missing)]).view(-1, GROUP) if missing else flat.view(-1, GROUP)
