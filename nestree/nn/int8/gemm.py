"""Products of rows and weights in 8 bits each, with the processor's instruction for that, which ARM calls SDOT.

A number is a whole number from -127 to 127 times a scale: of its row, for what is multiplied; of its output, for a
weight. Whole numbers are multiplied and summed exactly, in 32 bits; the scales come last. plain.py says the same in a
few lines.

Weights lie in panels of OUTPUTS outputs, a panel in steps of STEP inputs, so that a tile of TALL rows times OUTPUTS is
summed in registers while reading memory from front to back.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from nestree.nn.int8.row_ops import LARGEST, round_row, size_of
from nestree.treecrf.numba_kernels.jit import called, kernel
from nestree.treecrf.numba_kernels.simd import FUSED, Code

TALL = 4  # rows of a tile
ACROSS = 4  # registers of a tile's row, each for four outputs
OUTPUTS = 4 * ACROSS
STEP = 16  # inputs: a register of them
BLOCK = 64  # rows that stay in the first-level cache while weights pass by

BYTES, FOURS = ir.VectorType(ir.IntType(8), 16), ir.VectorType(ir.IntType(32), 4)


class Weights(NamedTuple):
    """A linear map in 8 bits."""

    numbers: np.ndarray  # [inputs * outputs] in panels
    scales: np.ndarray  # [outputs]
    bias: np.ndarray  # [outputs]
    inputs: int
    outputs: int


def fits(inputs: int, outputs: int) -> bool:
    """Does a linear map of this shape fill whole registers and panels?"""
    return inputs % STEP == 0 and outputs % OUTPUTS == 0


def rounded(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights [outputs, inputs] as whole numbers, and the scale [outputs] of each output."""
    scales = np.abs(weight).max(1) / np.float32(LARGEST)
    numbers = np.rint(weight / np.where(scales > 0, scales, 1)[:, None])
    return numbers.astype(np.int8), scales.astype(np.float32)


def weights_of(weight: np.ndarray, bias: np.ndarray | None) -> Weights:
    """The linear map of weights [outputs, inputs] in float32."""
    outputs, inputs = weight.shape
    numbers, scales = rounded(weight)
    panels = numbers.reshape(outputs // OUTPUTS, OUTPUTS, inputs // 4, 4).transpose(0, 2, 1, 3)
    given = np.zeros(outputs, np.float32) if bias is None else np.array(bias, np.float32)
    return Weights(np.ascontiguousarray(panels).reshape(-1), scales, given, inputs, outputs)


@intrinsic
def tile(_typing, out, at, step, rows, rows_at, width, scales, first, panel, panel_at, factors, bias, column):
    """out[TALL, OUTPUTS] = rows[TALL, width] times a panel, times both scales, plus the bias."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        out, at, step, rows, rows_at, width, scales, first, panel, panel_at, factors, bias, column = (
            code.arguments
        )
        line = width.type
        kind = ir.FunctionType(FOURS, [FOURS, BYTES, BYTES])
        name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
        dot = cgutils.get_or_insert_function(builder.module, kind, name)
        sums = [[code.variable(ir.Constant(FOURS, [0] * 4)) for _ in range(ACROSS)] for _ in range(TALL)]

        def sixteen(array, *terms):
            place = array
            for term in terms:
                place = builder.gep(place, [term])
            return builder.load(builder.bitcast(place, BYTES.as_pointer()), align=1)

        with cgutils.for_range_slice(builder, line(0), width, line(STEP), line) as (k, _):
            taken = [sixteen(rows, rows_at, builder.mul(width, line(r)), k) for r in range(TALL)]
            for four in range(STEP // 4):
                place = builder.mul(builder.add(k, line(4 * four)), line(OUTPUTS))
                others = [sixteen(panel, panel_at, place, line(16 * c)) for c in range(ACROSS)]
                for r in range(TALL):
                    inputs = builder.bitcast(taken[r], FOURS)
                    inputs = builder.shuffle_vector(inputs, inputs, ir.Constant(FOURS, [four] * 4))
                    inputs = builder.bitcast(inputs, BYTES)
                    for c in range(ACROSS):
                        before = builder.load(sums[r][c])
                        builder.store(builder.call(dot, [before, others[c], inputs]), sums[r][c])
        for c in range(ACROSS):
            place = builder.add(column, line(4 * c))
            factor, added = code.load(factors, place), code.load(bias, place)
            for r in range(TALL):
                scale = builder.load(builder.gep(scales, [builder.add(first, line(r))]))
                number = builder.sitofp(builder.load(sums[r][c]), code.vector)
                number = builder.fmul(number, builder.fmul(factor, code.everywhere(scale)), flags=FUSED)
                number = builder.fadd(number, added, flags=FUSED)
                row = builder.add(at, builder.mul(step, line(r)))
                code.store(number, out, builder.add(row, line(4 * c)))
        return context.get_dummy_value()

    return types.void(
        out, at, step, rows, rows_at, width, scales, first, panel, panel_at, factors, bias, column
    ), generate


@called
def multiply(numbers, scales, count, weights, out, out_at):
    """out[count, outputs] from `out_at` on = rows times weights. Up to TALL - 1 more rows are written."""
    inputs, outputs = weights.inputs, weights.outputs
    for top in range(0, count, BLOCK):
        for column in range(0, outputs, OUTPUTS):
            for r in range(top, min(count, top + BLOCK), TALL):
                tile(
                    out,
                    out_at + r * outputs + column,
                    outputs,
                    numbers,
                    r * inputs,
                    inputs,
                    scales,
                    r,
                    weights.numbers,
                    column * inputs,
                    weights.scales,
                    weights.bias,
                    column,
                )


@called
def round_rows(rows, at, count, width, numbers, scales):
    """Rows from `at` on in 8 bits."""
    for r in range(count):
        size = size_of(rows, at + r * width, width)
        scales[r] = round_row(rows, at + r * width, width, size, numbers, r * width)


@kernel
def linear_part(rows, count, numbers, scales, weights, out):
    round_rows(rows, 0, count, weights.inputs, numbers, scales)
    multiply(numbers, scales, count, weights, out, 0)


def padded(count: int) -> int:
    """Rows of a buffer that tiles can read and write."""
    return -(-count // TALL) * TALL


def linear(rows: np.ndarray, weights: Weights) -> np.ndarray:
    """rows [count, inputs] times weights: [count, outputs]."""
    count = len(rows)
    room = padded(count)
    out = np.empty(room * weights.outputs, np.float32)
    numbers, scales = np.empty(room * weights.inputs, np.int8), np.ones(room, np.float32)
    linear_part(np.ascontiguousarray(rows).reshape(-1), count, numbers, scales, weights, out)
    return out.reshape(room, weights.outputs)[:count]
