"""Products of rows and weights in 8 bits, with the instructions that a processor has for them.

A number is an integer from -127 to 127 times a scale: of its row, for inputs; of its output, for weights. Integers are
multiplied and summed exactly, in 32 bits, so that every kernel gives the same sums; the scales come last.
`linear_reference` is the definition, in plain PyTorch.

Weights lie in panels of OUTPUTS outputs, a panel in steps of GROUP inputs, so that a tile of TILE_ROWS rows times
OUTPUTS is summed in registers while memory is read from front to back.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils
from torch import Tensor

from nestree.nn.int8 import selected_kernel
from nestree.nn.int8.row_ops import INT8_MAX, abs_max, quantize_row, row_intrinsic
from nestree.treecrf.numba_kernels.jit import compiled, kernel
from nestree.treecrf.numba_kernels.simd import FUSED

KERNEL = selected_kernel()
TILE_ROWS, OUTPUTS = KERNEL.tile_rows, KERNEL.lanes * KERNEL.tile_registers
GROUP = KERNEL.group  # inputs that one instruction multiplies for each of its sums
STEP = 16  # inputs that are read together
BLOCK = 64  # rows that stay in the first-level cache while weights pass by
UNSIGNED_SHIFT = 128  # added to inputs where the instruction takes unsigned ones

INT8, INT16, INT32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
SUMS = ir.VectorType(INT32, KERNEL.lanes)


class Int8Weights(NamedTuple):
    """A linear map in 8 bits."""

    numbers: np.ndarray  # [inputs * outputs] in panels
    offsets: np.ndarray  # [outputs] the sums begin with these, to undo UNSIGNED_SHIFT
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
    panels = numbers.reshape(outputs // OUTPUTS, OUTPUTS, inputs // GROUP, GROUP).transpose(0, 2, 1, 3)
    shift = UNSIGNED_SHIFT if KERNEL.input_type == np.uint8 else 0
    offsets = -shift * numbers.sum(1, dtype=np.int32)
    bias = np.zeros(outputs, np.float32) if bias is None else np.array(bias, np.float32)
    flat = np.ascontiguousarray(panels).reshape(-1)
    return Int8Weights(flat, offsets, scales.astype(np.float32), bias, inputs, outputs)


def dot_product(code, sums, inputs, weights):
    """Add to each sum the products of GROUP inputs and weights; inputs, GROUP of them in each lane."""
    builder = code.builder

    def intrinsic(name, *kinds):
        function_type = ir.FunctionType(SUMS, kinds)
        return cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}")

    if KERNEL.input_type == np.int16:  # 8-bit products saturate in AVX2: multiply in 16 bits
        vector = ir.VectorType(INT16, 2 * KERNEL.lanes)
        multiply_add = intrinsic("x86.avx2.pmadd.wd", vector, vector)
        products = builder.call(
            multiply_add, [builder.bitcast(inputs, vector), builder.sext(weights, vector)]
        )
        return builder.add(sums, products)
    inputs = builder.bitcast(inputs, weights.type)
    if KERNEL.input_type == np.uint8:
        vpdpbusd = intrinsic(f"x86.avx512.vpdpbusd.{32 * KERNEL.lanes}", SUMS, weights.type, weights.type)
        return builder.call(vpdpbusd, [sums, inputs, weights])
    sdot = intrinsic("aarch64.neon.sdot.v4i32.v16i8", SUMS, weights.type, weights.type)
    return builder.call(sdot, [sums, weights, inputs])


@row_intrinsic(KERNEL.lanes // 4)
def multiply_tile(
    code, out, at, step, rows, rows_at, width, scales, first, panel, panel_at, offsets, factors, bias, column
) -> None:
    """out[TILE_ROWS, OUTPUTS] = rows[TILE_ROWS, width] times a panel, times both scales, plus the bias."""
    builder, index, lanes = code.builder, width.type, KERNEL.lanes

    def load(kind, array, *indices):
        for offset in indices:
            array = builder.gep(array, [offset])
        return builder.load(builder.bitcast(array, kind.as_pointer()), align=1)

    columns = [builder.add(column, index(lanes * c)) for c in range(KERNEL.tile_registers)]
    starts = [load(SUMS, offsets, c) for c in columns]
    sums = [[code.variable(start) for start in starts] for _ in range(TILE_ROWS)]
    row_starts = [builder.add(rows_at, builder.mul(width, index(r))) for r in range(TILE_ROWS)]
    with cgutils.for_range_slice(builder, index(0), width, index(STEP), index) as (k, _):
        if KERNEL.name == "sdot":  # an instruction can repeat one lane of a register
            registers = [load(SUMS, rows, start, k) for start in row_starts]
        for part in range(STEP // GROUP):
            x = builder.add(k, index(GROUP * part))
            offset = builder.mul(x, index(OUTPUTS))
            weights = [
                load(ir.VectorType(INT8, GROUP * lanes), panel, panel_at, offset, index(GROUP * lanes * c))
                for c in range(KERNEL.tile_registers)
            ]
            for r in range(TILE_ROWS):
                if KERNEL.name == "sdot":
                    inputs = builder.shuffle_vector(
                        registers[r], registers[r], ir.Constant(SUMS, [part] * lanes)
                    )
                else:
                    inputs = code.everywhere(load(INT32, rows, row_starts[r], x))
                for total, weight in zip(sums[r], weights, strict=True):
                    builder.store(dot_product(code, builder.load(total), inputs, weight), total)
    for c, offset in enumerate(columns):
        factor, added = code.load(factors, offset), code.load(bias, offset)
        for r in range(TILE_ROWS):
            scale = builder.load(builder.gep(scales, [builder.add(first, index(r))]))
            number = builder.sitofp(builder.load(sums[r][c]), code.vector)
            number = builder.fmul(number, builder.fmul(factor, code.everywhere(scale)), flags=FUSED)
            number = builder.fadd(number, added, flags=FUSED)
            row = builder.add(at, builder.mul(step, index(r)))
            code.store(number, out, builder.add(row, index(lanes * c)))


@compiled
def multiply(numbers, scales, count, weights, out, out_at):
    """out[count, outputs] from `out_at` on = rows times weights. Up to TILE_ROWS - 1 more rows are written."""
    inputs, outputs = weights.inputs, weights.outputs
    for top in range(0, count, BLOCK):
        for column in range(0, outputs, OUTPUTS):
            for r in range(top, min(count, top + BLOCK), TILE_ROWS):
                multiply_tile(
                    out, out_at + r * outputs + column, outputs, numbers, r * inputs, inputs, scales, r,
                    weights.numbers, column * inputs, weights.offsets, weights.scales, weights.bias, column,
                )  # fmt: skip


@compiled
def quantize_rows(rows, at, count, width, numbers, scales):
    """Rows from `at` on in 8 bits."""
    for r in range(count):
        largest = abs_max(rows, at + r * width, width)
        scales[r] = quantize_row(rows, at + r * width, width, largest, numbers, r * width)


@partial(kernel, variant=KERNEL.name)
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
    numbers: np.ndarray = np.empty(padded * weights.inputs, KERNEL.input_type)
    scales = np.ones(padded, np.float32)
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
