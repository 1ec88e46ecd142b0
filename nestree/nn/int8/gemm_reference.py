"""Products in 8 bits in plain PyTorch: the definition that the kernels of gemm.py match.

>>> rows = torch.tensor([[1.0, -0.5, 0.25]])
>>> quantize_rows(rows)
(tensor([[127., -64.,  32.]], dtype=torch.float64), tensor([[0.0079]]))
>>> linear(rows, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]]), torch.tensor([0.0, 1.0]))
tensor([[1.0000, 1.5039]])
"""

import torch
from torch import Tensor

INT8_MAX = 127


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as integers from -127 to 127 [..., D], and the scale of each row [..., 1]."""
    largest = rows.abs().amax(-1, keepdim=True)  # [..., 1]
    factors = torch.where(largest > 0, INT8_MAX / largest, 0.0)
    return (rows * factors).round().double(), largest / INT8_MAX  # half to even, as the kernels do


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """rows [..., inputs] times weight [outputs, inputs]: sums of integers, exact, and then the scales."""
    numbers, scales = quantize_rows(rows.float())
    weights, weight_scales = quantize_rows(weight.float())
    product = (numbers @ weights.T).float() * (scales * weight_scales[:, 0])  # [..., outputs]
    return product if bias is None else product + bias
