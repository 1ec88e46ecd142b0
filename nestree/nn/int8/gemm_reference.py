"""Products in 8 bits in plain PyTorch: what those of products.py must equal.

>>> rows = torch.tensor([[1.0, -0.5, 0.25]])
>>> quantize_rows(rows)
(tensor([[127., -64.,  32.]], dtype=torch.float64), tensor([[0.0079]]))
>>> product(rows, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]]), torch.tensor([0.0, 1.0]))
tensor([[1.0000, 1.5039]])
"""

import torch
from torch import Tensor, nn

LARGEST = 127


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as whole numbers from -127 to 127 [..., D], and the scale of each row [..., 1]."""
    sizes = rows.abs().amax(-1, keepdim=True)  # [..., 1]
    factors = torch.where(sizes > 0, LARGEST / sizes, 0.0)
    return (rows * factors).round().double(), sizes / LARGEST  # half to even, as the kernels do


def product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """rows [..., inputs] times weight [outputs, inputs]: sums of whole numbers, exact, and then the scales."""
    numbers, scales = quantize_rows(rows.float())
    weights, weight_scales = quantize_rows(weight.float())
    found = (numbers @ weights.T).float() * (scales * weight_scales[:, 0])  # [..., outputs]
    return found if bias is None else found + bias


class ReferenceInt8Linear(nn.Module):
    """A linear map by `product`."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.linear.weight, self.linear.bias)
