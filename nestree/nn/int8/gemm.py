"""Products of rows and weights in 8 bits, with ARM's instruction for them (SDOT).

A number is an integer from -127 to 127 times a scale: of its row, for inputs; of its output, for weights. Integers are
multiplied and summed exactly, in 32 bits; the scales come last. `linear_reference` is the definition, in plain PyTorch.

Weights lie in panels of OUTPUTS outputs, a panel in steps of STEP inputs, so that a tile of TILE_ROWS rows times
OUTPUTS is summed in registers while memory is read from front to back.
"""

from typing import NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils
from torch import Tensor

from nestree.nn.int8.row_ops import INT8_MAX, abs_max, quantize_row, row_intrinsic
from nestree.treecrf.numba_kernels.jit import compiled, kernel
from nestree.treecrf.numba_kernels.simd import FUSED

TILE_ROWS = 4
TILE_REGISTERS = 4  # of a tile's row, each for four outputs
OUTPUTS = 4 * TILE_REGISTERS
STEP = 16  # inputs: a register of them
BLOCK = 64  # rows that stay in the first-level cache while weights pass by

INT8X16, INT32X4 = ir.VectorType(ir.IntType(8), 16), ir.VectorType(ir.IntType(32), 4)


class Int8Weights(NamedTuple):
    """A linear map in 8 bits."""

    numbers: np.ndarray  # [inputs * outputs] in panels
    scales: np.ndarray  # [outputs]
    bias: np.ndarray  # [outputs]
    inputs: int
    outputs: int


def fits(inputs: int, outputs: int) -> bool:
    """Whether a linear map of this shape fills whole registers and panels."""
    return inputs % STEP == 0 and outputs % OUTPUTS == 0


def quantize_weights(weight: np.ndarray, bias: np.ndarray | None) -> Int8Weights:
    """The linear map of weights [outputs, inputs] in float32."""
    outputs, inputs = weight.shape
    scales = np.abs(weight).max(1) / np.float32(INT8_MAX)
    numbers = np.rint(weight / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
    panels = numbers.reshape(outputs // OUTPUTS, OUTPUTS, inputs // 4, 4).transpose(0, 2, 1, 3)
    bias = np.zeros(outputs, np.float32) if bias is None else np.array(bias, np.float32)
    return Int8Weights(
        np.ascontiguousarray(panels).reshape(-1), scales.astype(np.float32), bias, inputs, outputs
    )


@row_intrinsic()
def multiply_tile(
    code, out, at, step, rows, rows_at, width, scales, first, panel, panel_at, factors, bias, column
) -> None:
    """out[TILE_ROWS, OUTPUTS] = rows[TILE_ROWS, width] times a panel, times both scales, plus the bias."""
    builder, index = code.builder, width.type
    dot_type = ir.FunctionType(INT32X4, [INT32X4, INT8X16, INT8X16])
    dot = cgutils.get_or_insert_function(builder.module, dot_type, "llvm.aarch64.neon.sdot.v4i32.v16i8")
    zeros = ir.Constant(INT32X4, [0] * 4)
    sums = [[code.variable(zeros) for _ in range(TILE_REGISTERS)] for _ in range(TILE_ROWS)]

    def load16(array, *offsets):
        for offset in offsets:
            array = builder.gep(array, [offset])
        return builder.load(builder.bitcast(array, INT8X16.as_pointer()), align=1)

    with cgutils.for_range_slice(builder, index(0), width, index(STEP), index) as (k, _):
        row_inputs = [load16(rows, rows_at, builder.mul(width, index(r)), k) for r in range(TILE_ROWS)]
        for four in range(STEP // 4):
            offset = builder.mul(builder.add(k, index(4 * four)), index(OUTPUTS))
            weights = [load16(panel, panel_at, offset, index(16 * c)) for c in range(TILE_REGISTERS)]
            for r in range(TILE_ROWS):
                inputs = builder.bitcast(row_inputs[r], INT32X4)
                inputs = builder.shuffle_vector(inputs, inputs, ir.Constant(INT32X4, [four] * 4))
                inputs = builder.bitcast(inputs, INT8X16)
                for c in range(TILE_REGISTERS):
                    before = builder.load(sums[r][c])
                    builder.store(builder.call(dot, [before, weights[c], inputs]), sums[r][c])
    for c in range(TILE_REGISTERS):
        offset = builder.add(column, index(4 * c))
        factor, added = code.load(factors, offset), code.load(bias, offset)
        for r in range(TILE_ROWS):
            scale = builder.load(builder.gep(scales, [builder.add(first, index(r))]))
            number = builder.sitofp(builder.load(sums[r][c]), code.vector)
            number = builder.fmul(number, builder.fmul(factor, code.everywhere(scale)), flags=FUSED)
            number = builder.fadd(number, added, flags=FUSED)
            row = builder.add(at, builder.mul(step, index(r)))
            code.store(number, out, builder.add(row, index(4 * c)))


@compiled
def multiply(numbers, scales, count, weights, out, out_at):
    """out[count, outputs] from `out_at` on = rows times weights. Up to TILE_ROWS - 1 more rows are written."""
    inputs, outputs = weights.inputs, weights.outputs
    for top in range(0, count, BLOCK):
        for column in range(0, outputs, OUTPUTS):
            for r in range(top, min(count, top + BLOCK), TILE_ROWS):
                multiply_tile(
                    out, out_at + r * outputs + column, outputs, numbers, r * inputs, inputs, scales, r,
                    weights.numbers, column * inputs, weights.scales, weights.bias, column,
                )  # fmt: skip


@compiled
def quantize_rows(rows, at, count, width, numbers, scales):
    """Rows from `at` on in 8 bits."""
    for r in range(count):
        largest = abs_max(rows, at + r * width, width)
        scales[r] = quantize_row(rows, at + r * width, width, largest, numbers, r * width)


@kernel
def linear_kernel(rows, count, numbers, scales, weights, out):
    quantize_rows(rows, 0, count, weights.inputs, numbers, scales)
    multiply(numbers, scales, count, weights, out, 0)


def pad_rows(count: int) -> int:
    """Rows of a buffer that whole tiles read and write."""
    return -(-count // TILE_ROWS) * TILE_ROWS


def linear(x: Tensor, weights: Int8Weights) -> Tensor:
    """x [..., inputs] times weights: [..., outputs], in float32."""
    rows = x.detach().reshape(-1, weights.inputs).float().contiguous().numpy()
    count, padded = len(rows), pad_rows(len(rows))
    out = np.empty((padded, weights.outputs), np.float32)
    numbers, scales = np.empty(padded * weights.inputs, np.int8), np.ones(padded, np.float32)
    linear_kernel(rows.reshape(-1), count, numbers, scales, weights, out.reshape(-1))
    return torch.from_numpy(out[:count]).view(*x.shape[:-1], weights.outputs)


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., inputs] times weight [outputs, inputs]: sums of integers, exact, and then the scales.

    >>> x, weight = torch.tensor([[1.0, -0.5, 0.25]]), torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]])
    >>> linear_reference(x, weight, torch.tensor([0.0, 1.0]))
    tensor([[1.0000, 1.5039]])
    """

    def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
        largest = rows.float().abs().amax(-1, keepdim=True)  # [..., 1]
        factors = torch.where(largest > 0, INT8_MAX / largest, 0.0)
        return (
            rows.float() * factors
        ).round().double(), largest / INT8_MAX  # half to even, as the kernels do

    (numbers, scales), (weights, weight_scales) = quantize(x), quantize(weight)
    product = (numbers @ weights.T).float() * (scales * weight_scales[:, 0])  # [..., outputs]
    return product if bias is None else product + bias
