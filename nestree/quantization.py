"""Weights in 8 bits each: groups of whole numbers from -127 to 127, and one scale for each group.

A weight is its number times the scale of its group. Numbers have 7 bits, scales are bfloat16 and have 8, so their
product is exact in float32: what is stored means the same weights on every machine, to the bit. No weight moves by
more than half a scale. Biases, norms and whatever else is small keep all their bits.

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
LARGEST = 127
WORTHWHILE = 1024  # a tensor of fewer numbers stays as it is
SCALES = "scales/"  # before the name of a tensor: the scales of its groups


def quantize_state(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """These weights in 8 bits, with their scales; small tensors as they are."""
    found = {}
    for name, value in weights.items():
        if value.ndim < 2 or value.numel() < WORTHWHILE or not value.is_floating_point():
            found[name] = value
            continue
        if not value.isfinite().all():
            raise ModelError(
                f"{name} holds numbers that are not finite; such a model is of no use. Train anew."
            )
        found[name], found[SCALES + name] = quantize_tensor(value)
    return found


def quantize_tensor(value: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers [as value], and the scales [groups] that they are to be multiplied with."""
    groups = grouped(value.float())  # [groups, GROUP]
    scales = (groups.abs().amax(1) / LARGEST).bfloat16()  # [groups]
    divisors = scales.float().masked_fill(scales == 0, 1.0)[:, None]
    numbers = (groups / divisors).round().clamp(-LARGEST, LARGEST).to(torch.int8)
    return numbers.flatten()[: value.numel()].view(value.shape), scales


def dequantize_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that `shrunk` made these tensors of, as float32; tensors without scales as they are."""
    for name in tensors:
        if name.startswith(SCALES) and name.removeprefix(SCALES) not in tensors:
            raise ModelError(f"{name} are there, and what they scale is not")
    return {
        name: scaled(name, value, tensors.get(SCALES + name))
        for name, value in tensors.items()
        if not name.startswith(SCALES)
    }


def scaled(name: str, value: Tensor, scales: Tensor | None) -> Tensor:
    if scales is None:
        if value.dtype == torch.int8:
            raise ModelError(f"{name} has no scales")
        if not value.isfinite().all():
            raise ModelError(f"{name} holds numbers that are not finite")
        return value
    groups = -(-value.numel() // GROUP)
    if value.dtype != torch.int8 or scales.dtype != torch.bfloat16 or scales.shape != (groups,):
        raise ModelError(
            f"{name} has {list(scales.shape)} scales of {scales.dtype} for {value.dtype}, and needs [{groups}] of "
            "bfloat16 for int8"
        )
    if not (scales.float() * LARGEST).isfinite().all():
        raise ModelError(f"{name} has scales that are not finite")
    whole = grouped(value) * scales.float()[:, None]  # [groups, GROUP]
    return whole.flatten()[: value.numel()].view(value.shape)


def grouped(value: Tensor) -> Tensor:
    """All numbers in rows of GROUP, the last filled up with zeros."""
    flat = value.flatten()
    missing = -flat.numel() % GROUP
    return torch.cat([flat, flat.new_zeros(missing)]).view(-1, GROUP) if missing else flat.view(-1, GROUP)
