"""Kernels of CPU inference in 8 bits: operations on rows, products, and whole layers of the BERT family.

A row is a stretch of an array, given as the array and the index of its first number. Rows of vectors have a multiple of
16 numbers; those of `softmax_four_rows` and `multiply_four_rows` may have any, and are touched up to OVERHANG beyond.

Products: a number is an integer from -127 to 127 times a scale: of its row, for inputs; of its output, for weights.
Integers are multiplied and summed exactly, in 32 bits, so that every kernel gives the same sums; the scales come last.
`linear_reference` is the definition, in plain PyTorch. Weights lie in panels of OUTPUTS outputs, a panel in steps of
GROUP inputs, so that a tile of TILE_ROWS rows times OUTPUTS is summed in registers while memory is read from front to
back.

A layer of the BERT family is one kernel, on rows without padding: windows of subwords lie one after another, and a few
whole windows at a time go through all of the layer, so that intermediate results stay in the cache. Linear maps are
products in 8 bits, all else is float32.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils, types
from torch import Tensor

from nestree.nn.int8 import selected_kernel
from nestree.treecrf.numba_kernels.simd import FUSED, LN2, Code, Value, compiled, kernel, simd_function

KERNEL = selected_kernel()
INT8_MAX = 127.0
ROUNDING = 1.5 * 2**23  # added to a small float32, its last bits are the nearest integer, half to even
REGISTERS = 4  # that are worked on together: 16 numbers
MIN_EXPONENT = -80.0  # exp of less is as good as 0
GELU_LIMIT = 3.75  # beyond it, GELU(x) is x, or 0
WIDE = 1 if KERNEL.name == "sdot" else 2  # registers of 16 bytes that rows of any width are processed in
STRIDE = 8 * WIDE  # numbers that `multiply_four_rows` writes at once
OVERHANG = STRIDE - 1  # numbers at the end of a row that may be touched
FLOAT = ir.FloatType()
TILE_ROWS, OUTPUTS = KERNEL.tile_rows, KERNEL.lanes * KERNEL.tile_registers
GROUP = KERNEL.group  # inputs that one instruction multiplies for each of its sums
STEP = 16  # inputs that are read together
BLOCK = 64  # rows that stay in the first-level cache while weights pass by
UNSIGNED_SHIFT = 128  # added to inputs where the instruction takes unsigned ones

INT8, INT16, INT32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
SUMS = ir.VectorType(INT32, KERNEL.lanes)


# Operations on rows


def gelu_slope(square: float) -> float:
    """GELU(x) is x (1/2 + x gelu_slope(x²))."""
    return 0.5 * math.erf(math.sqrt(square / 2)) / math.sqrt(square)


GELU_POLYNOMIAL = np.polynomial.Chebyshev.interpolate(np.vectorize(gelu_slope), 6, [0, GELU_LIMIT**2])
GELU_COEFFICIENTS = GELU_POLYNOMIAL.convert(kind=np.polynomial.Polynomial).coef.tolist()
EXP_COEFFICIENTS = [1 / math.factorial(power) for power in range(7)]  # |x| < 0.35: 1.3e-7


class RowCode(Code):
    """Emits code for rows of float32."""

    def call(self, name: str, *values: Value) -> Value:
        """An intrinsic function of LLVM on vectors, such as fabs or minnum."""
        kind = values[0].type
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(kind, [kind] * len(values)), f"llvm.{name}.v{self.lanes}f32"
        )
        return self.builder.call(function, values)

    def polynomial(self, coefficients: list[float], x: Value) -> Value:
        """Evaluated pairwise, so that the chain of dependent operations is short."""
        terms: list[Value] = [self.constant(number) for number in coefficients]
        while len(terms) > 1:
            pairs = [self.multiply_add(terms[k], terms[k + 1], x) for k in range(0, len(terms) - 1, 2)]
            terms = pairs + terms[2 * len(pairs) :]
            x = self.builder.fmul(x, x)
        return terms[0]

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """a + b * c, rounded once."""
        return self.builder.fadd(a, self.builder.fmul(b, c, flags=FUSED), flags=FUSED)

    def add(self, variable: Value, value: Value) -> None:
        self.builder.store(self.builder.fadd(self.builder.load(variable), value), variable)

    def reduce_sum(self, variable: Value) -> Value:
        return self.fold(self.builder.load(variable), self.builder.fadd)

    def keep_abs_max(self, variable: Value, value: Value) -> None:
        largest = self.maximum(self.call("fabs", value), self.builder.load(variable))
        self.builder.store(largest, variable)

    def reduce_max(self, variable: Value) -> Value:
        return self.fold(self.builder.load(variable), self.maximum)


row_intrinsic = partial(simd_function, code_type=RowCode, widen=False)


@row_intrinsic(types.float32, REGISTERS)
def abs_max(code, row, at, width):
    """The largest absolute value of a row."""
    largest = code.variable(code.constant(0.0))
    with code.registers(width) as (x, _):
        code.keep_abs_max(largest, code.load(row, at, x))
    return code.reduce_max(largest)


@row_intrinsic(types.float32, REGISTERS)
def quantize_row(code, row, at, width, largest, numbers, numbers_at):
    """Write a row as integers from -127 to 127, given its largest absolute value. Returns their scale.

    Where the kernel takes unsigned integers, 128 is added to them.
    """
    builder = code.builder
    nonzero = builder.fcmp_ordered(">", largest, FLOAT(0.0))
    factor = builder.select(nonzero, builder.fdiv(FLOAT(INT8_MAX), largest), FLOAT(0.0))
    factors, vector = code.broadcast(factor), ir.VectorType(numbers.type.pointee, code.lanes)
    with code.registers(width) as (x, _):
        rounded = builder.fadd(builder.fmul(code.load(row, at, x), factors), code.constant(ROUNDING))
        pointer = builder.gep(numbers, [builder.add(numbers_at, x)])
        value = builder.trunc(builder.bitcast(rounded, code.int_vector), vector)
        if KERNEL.input_type == np.uint8:
            value = builder.xor(value, ir.Constant(vector, [-128] * code.lanes))
        builder.store(value, builder.bitcast(pointer, vector.as_pointer()), align=1)
    return builder.fmul(largest, FLOAT(1 / INT8_MAX))


@row_intrinsic(types.float32, REGISTERS)
def gelu(code, row, at, width):
    """row = GELU(row). Returns the largest absolute value."""
    builder = code.builder
    largest = code.variable(code.constant(0.0))
    with code.registers(width) as (x, _):
        number = code.load(row, at, x)
        near = code.call("minnum", number, code.constant(GELU_LIMIT))
        near = code.call("maxnum", near, code.constant(-GELU_LIMIT))
        slope = code.polynomial(GELU_COEFFICIENTS, builder.fmul(near, near))
        number = builder.fmul(number, code.multiply_add(code.constant(0.5), near, slope))
        code.store(number, row, at, x)
        code.keep_abs_max(largest, number)
    return code.reduce_max(largest)


@row_intrinsic(types.float32, REGISTERS)
def add_and_normalize(code, row, at, other, other_at, width, weight, bias, epsilon):
    """row = weight (row + other, with mean 0 and deviation 1) + bias. Returns the largest absolute value."""
    builder = code.builder
    count = builder.sitofp(width, FLOAT)
    sums, squares, largest = (code.variable(code.constant(0.0)) for _ in range(3))
    with code.registers(width) as (x, _):
        added = builder.fadd(code.load(row, at, x), code.load(other, other_at, x))
        code.store(added, row, at, x)
        code.add(sums, added)
    mean = code.broadcast(builder.fdiv(code.reduce_sum(sums), count))

    def centered(x: Value) -> Value:
        return builder.fsub(code.load(row, at, x), mean)

    with code.registers(width) as (x, _):
        code.add(squares, builder.fmul(centered(x), centered(x)))
    variance = builder.fadd(builder.fdiv(code.reduce_sum(squares), count), epsilon)
    sqrt_type = ir.FunctionType(FLOAT, [FLOAT])
    root = cgutils.get_or_insert_function(builder.module, sqrt_type, "llvm.sqrt.f32")
    factor = code.broadcast(builder.fdiv(FLOAT(1.0), builder.call(root, [variance])))

    with code.registers(width) as (x, _):
        number = builder.fmul(builder.fmul(centered(x), factor), code.load(weight, x), flags=FUSED)
        number = builder.fadd(number, code.load(bias, x), flags=FUSED)
        code.store(number, row, at, x)
        code.keep_abs_max(largest, number)
    return code.reduce_max(largest)


@row_intrinsic(types.float32, REGISTERS)
def leaky_relu(code, row, at, width, slope):
    """row = max(row, slope * row). Returns the largest absolute value."""
    largest, slopes = code.variable(code.constant(0.0)), code.broadcast(slope)
    with code.registers(width) as (x, _):
        number = code.load(row, at, x)
        number = code.maximum(number, code.builder.fmul(number, slopes))
        code.store(number, row, at, x)
        code.keep_abs_max(largest, number)
    return code.reduce_max(largest)


@row_intrinsic(types.float32)
def rotate(code, row, at, middle, cos, sin, start):
    """Rotary position embeddings: pairs of numbers, in two halves of `middle`, rotated by the angles from `start` on.

    Returns the largest absolute value.
    """
    builder, largest = code.builder, code.variable(code.constant(0.0))
    halves = at, builder.add(at, middle)
    angles = start, builder.add(start, middle)
    with code.registers(middle) as (x, _):
        one, other = (code.load(row, half, x) for half in halves)
        for half, angle, (same, opposite) in zip(halves, angles, ((one, other), (other, one)), strict=True):
            number = builder.fadd(
                builder.fmul(same, code.load(cos, angle, x)),
                builder.fmul(opposite, code.load(sin, angle, x)),
            )
            code.store(number, row, half, x)
            code.keep_abs_max(largest, number)
    return code.reduce_max(largest)


@row_intrinsic(registers=WIDE)
def multiply_four_rows(code, out, at, step, w, w_at, w_step, a, a_at, a_step, count, width):
    """out[r, x] = sum over t < count of w[r, t] * a[t, x], for four rows r and all x < width."""
    builder, lanes, index = code.builder, code.lanes, width.type
    w_rows = [builder.add(w_at, builder.mul(w_step, index(r))) for r in range(4)]

    def add_terms(t: Value, sums: Value, factors: list[Value]) -> None:
        offset = builder.add(builder.add(a_at, x), builder.mul(a_step, t))
        terms = [code.load(a, offset, index(lanes * c)) for c in range(2)]
        for r in range(4):
            for c in range(2):
                total = code.multiply_add(builder.load(sums[r][c]), terms[c], factors[r])
                builder.store(total, sums[r][c])

    with cgutils.for_range_slice(builder, index(0), width, index(2 * lanes), index) as (x, _):
        sums = [[code.variable(code.constant(0.0)) for _ in range(2)] for _ in range(4)]
        together = index(0)
        if KERNEL.name == "sdot":  # an instruction can repeat one lane of a register
            together = builder.and_(count, index(-4))
            with cgutils.for_range_slice(builder, index(0), together, index(4), index) as (t, _):
                registers = [code.load(w, row, t) for row in w_rows]
                for lane in range(4):
                    repeated = ir.Constant(ir.VectorType(INT32, 4), [lane] * 4)
                    factors = [builder.shuffle_vector(row, row, repeated) for row in registers]
                    add_terms(builder.add(t, index(lane)), sums, factors)
        with cgutils.for_range_slice(builder, together, count, index(1), index) as (t, _):
            numbers = [builder.load(builder.gep(w, [builder.add(row, t)])) for row in w_rows]
            add_terms(t, sums, [code.broadcast(number) for number in numbers])
        for r in range(4):
            row = builder.add(builder.add(at, x), builder.mul(step, index(r)))
            for c in range(2):
                code.store(builder.load(sums[r][c]), out, builder.add(row, index(lanes * c)))


@row_intrinsic(registers=WIDE)
def softmax_four_rows(code, rows, at, step, width):
    """Softmax over each of four rows of any width; four at once, as the operations on one depend on each other."""
    builder, minus_infinity, index = code.builder, code.constant(-math.inf), width.type
    starts = [builder.add(at, builder.mul(step, index(r))) for r in range(4)]
    largest = [code.variable(minus_infinity) for _ in starts]
    sums = [code.variable(code.constant(0.0)) for _ in starts]
    with code.registers(width) as (x, valid):
        for start, variable in zip(starts, largest, strict=True):
            numbers = builder.select(valid, code.load(rows, start, x), minus_infinity)
            builder.store(code.maximum(numbers, builder.load(variable)), variable)
    tops = [code.broadcast(code.reduce_max(variable)) for variable in largest]
    with code.registers(width) as (x, valid):
        for start, top, variable in zip(starts, tops, sums, strict=True):
            number = builder.fsub(code.load(rows, start, x), top)
            number = code.maximum(number, code.constant(MIN_EXPONENT))
            # number = multiple * ln 2 + remainder
            multiple = code.call("roundeven", builder.fmul(number, code.constant(1 / LN2)))
            remainder = builder.fsub(number, builder.fmul(multiple, code.constant(LN2), flags=FUSED), flags=FUSED)
            result = code.polynomial(EXP_COEFFICIENTS, remainder)
            exponent_bits = builder.shl(builder.fptosi(multiple, code.int_vector), code.constant(23, code.int_vector))
            result = builder.bitcast(builder.add(builder.bitcast(result, code.int_vector), exponent_bits), code.vector)
            result = builder.select(valid, result, code.constant(0.0))
            code.store(result, rows, start, x)
            code.add(variable, result)
    factors = [code.broadcast(builder.fdiv(FLOAT(1.0), code.reduce_sum(variable))) for variable in sums]
    with code.registers(width) as (x, _):
        for start, factor in zip(starts, factors, strict=True):
            number = builder.fmul(code.load(rows, start, x), factor)
            code.store(number, rows, start, x)


@row_intrinsic()
def transpose(code, rows, at, step, count, width, out, out_at, out_step):
    """out[x, r] = rows[r, x] for r < count and x < width, in squares of 4 x 4: up to three more of each are touched."""
    builder, index, four = code.builder, width.type, ir.VectorType(FLOAT, 4)

    def pointer(array: Value, position: Value) -> Value:
        return builder.bitcast(builder.gep(array, [position]), four.as_pointer())

    def shuffle(a: Value, b: Value, *lanes: int) -> Value:
        return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(INT32, 4), lanes))

    with cgutils.for_range_slice(builder, index(0), count, index(4), index) as (r, _):
        starts = [builder.add(at, builder.mul(step, builder.add(r, index(k)))) for k in range(4)]
        with cgutils.for_range_slice(builder, index(0), width, index(4), index) as (x, _):
            a, b, c, d = (builder.load(pointer(rows, builder.add(s, x)), align=4) for s in starts)
            low, high = shuffle(a, b, 0, 4, 1, 5), shuffle(a, b, 2, 6, 3, 7)
            other_low, other_high = shuffle(c, d, 0, 4, 1, 5), shuffle(c, d, 2, 6, 3, 7)
            columns = [
                shuffle(one, two, *lanes)
                for one, two in ((low, other_low), (high, other_high))
                for lanes in ((0, 1, 4, 5), (2, 3, 6, 7))
            ]
            for k, column in enumerate(columns):
                to = builder.add(builder.mul(out_step, builder.add(x, index(k))), r)
                builder.store(column, pointer(out, builder.add(out_at, to)), align=4)


# Products


class Int8Weights(NamedTuple):
    """A linear map in 8 bits."""

    numbers: np.ndarray  # [inputs * outputs] in panels
    offsets: np.ndarray  # [outputs] the sums begin with these, to undo UNSIGNED_SHIFT
    scales: np.ndarray  # [outputs]
    bias: np.ndarray  # [outputs]
    in_features: int
    out_features: int


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

    if KERNEL.input_type == np.int16:  # products of 8 bits saturate without VNNI: multiply in 16 bits
        vector = ir.VectorType(INT16, 2 * KERNEL.lanes)
        name = {8: "x86.avx2.pmadd.wd", 16: "x86.avx512.pmaddw.d.512"}[KERNEL.lanes]
        multiply_add = intrinsic(name, vector, vector)
        products = builder.call(multiply_add, [builder.bitcast(inputs, vector), builder.sext(weights, vector)])
        return builder.add(sums, products)
    inputs = builder.bitcast(inputs, weights.type)
    if KERNEL.input_type == np.uint8:
        vpdpbusd = intrinsic(f"x86.avx512.vpdpbusd.{32 * KERNEL.lanes}", SUMS, weights.type, weights.type)
        return builder.call(vpdpbusd, [sums, inputs, weights])
    sdot = intrinsic("aarch64.neon.sdot.v4i32.v16i8", SUMS, weights.type, weights.type)
    return builder.call(sdot, [sums, weights, inputs])


@row_intrinsic(registers=KERNEL.lanes // 4)
def multiply_tile(
    code, out, at, step, rows, rows_at, width, scales, first, panel, panel_at, offsets, factors, bias, column
):
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
                    inputs = builder.shuffle_vector(registers[r], registers[r], ir.Constant(SUMS, [part] * lanes))
                else:
                    inputs = code.broadcast(load(INT32, rows, row_starts[r], x))
                for total, weight in zip(sums[r], weights, strict=True):
                    builder.store(dot_product(code, builder.load(total), inputs, weight), total)
    for c, offset in enumerate(columns):
        factor, added = code.load(factors, offset), code.load(bias, offset)
        for r in range(TILE_ROWS):
            scale = builder.load(builder.gep(scales, [builder.add(first, index(r))]))
            number = builder.sitofp(builder.load(sums[r][c]), code.vector)
            number = builder.fmul(number, builder.fmul(factor, code.broadcast(scale)), flags=FUSED)
            number = builder.fadd(number, added, flags=FUSED)
            row = builder.add(at, builder.mul(step, index(r)))
            code.store(number, out, builder.add(row, index(lanes * c)))


@compiled
def multiply(numbers, scales, count, weights, out, out_at):
    """out[count, outputs] from `out_at` on = rows times weights. Up to TILE_ROWS - 1 more rows are written."""
    inputs, outputs = weights.in_features, weights.out_features
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
    quantize_rows(rows, 0, count, weights.in_features, numbers, scales)
    multiply(numbers, scales, count, weights, out, 0)


def pad_rows(count: int) -> int:
    """Rows of a buffer that whole tiles read and write."""
    return -(-count // TILE_ROWS) * TILE_ROWS


def linear(x: Tensor, weights: Int8Weights) -> Tensor:
    """x [..., inputs] times weights: [..., outputs], in float32."""
    rows = x.detach().reshape(-1, weights.in_features).float().contiguous().numpy()
    count, padded = len(rows), pad_rows(len(rows))
    out = np.empty((padded, weights.out_features), np.float32)
    numbers: np.ndarray = np.empty(padded * weights.in_features, KERNEL.input_type)
    scales = np.empty(padded, np.float32)
    linear_kernel(rows.reshape(-1), count, numbers, scales, weights, out.reshape(-1))
    return torch.from_numpy(out[:count]).view(*x.shape[:-1], weights.out_features)


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., inputs] times weight [outputs, inputs]: sums of integers, exact, and then the scales.

    >>> x, weight = torch.tensor([[1.0, -0.5, 0.25]]), torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]])
    >>> linear_reference(x, weight, torch.tensor([0.0, 1.0]))
    tensor([[1.0000, 1.5039]])
    """

    def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
        largest = rows.float().abs().amax(-1, keepdim=True)  # [..., 1]
        factors = torch.where(largest > 0, INT8_MAX / largest, 0.0)
        return (rows.float() * factors).round().double(), largest / INT8_MAX  # half to even, as the kernels do

    (numbers, scales), (weights, weight_scales) = quantize(x), quantize(weight)
    product = (numbers @ weights.T).float() * (scales * weight_scales[:, 0])  # [..., outputs]
    return product if bias is None else product + bias


# Layers of the BERT family

ROWS = 128  # that go through a layer together, or more, as windows are whole


class Norm(NamedTuple):
    weight: np.ndarray  # [D]
    bias: np.ndarray  # [D]
    epsilon: np.float32


class LayerWeights(NamedTuple):
    """The weights of a layer. Queries are divided by the root of a head's size already."""

    qkv: Int8Weights  # D -> 3 D: queries, keys, values
    output: Int8Weights  # D -> D
    output_norm: Norm
    up: Int8Weights  # D -> hidden
    down: Int8Weights  # hidden -> D
    norm: Norm
    heads: int


class Workspace(NamedTuple):
    """Buffers for the rows that go through a layer together."""

    numbers: np.ndarray  # [rows * hidden] int8
    scales: np.ndarray  # [rows]
    qkv: np.ndarray  # [rows * 3 D]
    keys: np.ndarray  # [(size of a head + 3) * longest window] of one head, transposed
    attention: np.ndarray  # [4 * longest window]
    context: np.ndarray  # [rows * D]
    middle: np.ndarray  # [rows * D]
    hidden: np.ndarray  # [rows * hidden]


def allocate_workspace(layer: LayerWeights, longest: int) -> Workspace:
    """For windows of so many subwords at most."""
    rows, size, hidden = pad_rows(ROWS + longest), layer.qkv.in_features, layer.up.out_features
    width = longest + OVERHANG
    return Workspace(
        np.empty(rows * max(hidden, size), KERNEL.input_type),
        np.ones(rows, np.float32),
        np.empty(rows * 3 * size, np.float32),
        np.empty((size // layer.heads + 3) * width, np.float32),
        np.empty(4 * width, np.float32),
        np.empty(rows * size, np.float32),
        np.empty(rows * size, np.float32),
        np.empty(rows * hidden, np.float32),
    )


@compiled
def attend(qkv, first, count, size, heads, keys, attention, context):
    """context = attention within one window of `count` rows from `first` on. Up to three more rows are written."""
    head_size, step, width = size // heads, 3 * size, count + OVERHANG
    for head in range(0, size, head_size):
        transpose(qkv, first * step + size + head, step, count, head_size, keys, 0, width)
        values = first * step + 2 * size + head
        for i in range(first, first + count, 4):
            multiply_four_rows(attention, 0, width, qkv, i * step + head, step, keys, 0, width, head_size, count)
            softmax_four_rows(attention, 0, width, count)
            multiply_four_rows(context, i * size + head, size, attention, 0, width, qkv, values, step, count, head_size)


@compiled
def run_windows(states, out, ends, first, last, start, layer, work):
    """The layer for windows first to last, whose rows begin at `start`."""
    size, hidden = layer.qkv.in_features, layer.up.out_features
    count, at = ends[last - 1] - start, start * size
    quantize_rows(states, at, count, size, work.numbers, work.scales)
    multiply(work.numbers, work.scales, count, layer.qkv, work.qkv, 0)
    row = 0
    for w in range(first, last):
        end = ends[w] - start
        attend(work.qkv, row, end - row, size, layer.heads, work.keys, work.attention, work.context)
        row = end
    quantize_rows(work.context, 0, count, size, work.numbers, work.scales)
    multiply(work.numbers, work.scales, count, layer.output, work.middle, 0)
    norm = layer.output_norm
    for r in range(count):
        largest = add_and_normalize(
            work.middle, r * size, states, at + r * size, size, norm.weight, norm.bias, norm.epsilon
        )
        work.scales[r] = quantize_row(work.middle, r * size, size, largest, work.numbers, r * size)
    multiply(work.numbers, work.scales, count, layer.up, work.hidden, 0)
    for r in range(count):
        largest = gelu(work.hidden, r * hidden, hidden)
        work.scales[r] = quantize_row(work.hidden, r * hidden, hidden, largest, work.numbers, r * hidden)
    multiply(work.numbers, work.scales, count, layer.down, out, at)
    norm = layer.norm
    for r in range(count):
        add_and_normalize(out, at + r * size, work.middle, r * size, size, norm.weight, norm.bias, norm.epsilon)


@compiled
def run_layer(states, out, ends, layer, work):
    """out = the layer on states [rows * D]; ends [windows] of their rows. `out` has TILE_ROWS - 1 rows more."""
    first, start = 0, 0
    while first < len(ends):
        last = first + 1
        while last < len(ends) and ends[last] - start <= ROWS:
            last += 1
        run_windows(states, out, ends, first, last, start, layer, work)
        start, first = ends[last - 1], last


@compiled
def linear_of_layer(maps, k):
    return Int8Weights(
        maps.numbers[k], maps.offsets[k], maps.scales[k], maps.bias[k], maps.in_features, maps.out_features
    )


@compiled
def norm_of_layer(norms, k):
    return Norm(norms.weight[k], norms.bias[k], norms.epsilon)


@partial(kernel, variant=KERNEL.name)
def embed_kernel(subwords, positions, word_table, position_table, norm, out):
    """out [rows * D] = layer norm of word_table[subwords] + position_table[positions]. Returns whether all exist."""
    size, flat = word_table.shape[1], position_table.reshape(-1)
    for r in range(len(subwords)):
        if not (0 <= subwords[r] < len(word_table) and 0 <= positions[r] < len(position_table)):
            return False
        for x in range(size):
            out[r * size + x] = word_table[subwords[r], x]
        add_and_normalize(out, r * size, flat, positions[r] * size, size, norm.weight, norm.bias, norm.epsilon)
    return True


@partial(kernel, variant=KERNEL.name)
def run_layers(states, ends, count, layers, work):
    """All layers, whose arrays are stacked: layer k reads states[k] and writes states[k + 1], cyclically."""
    for k in range(count):
        layer = LayerWeights(
            linear_of_layer(layers.qkv, k), linear_of_layer(layers.output, k), norm_of_layer(layers.output_norm, k),
            linear_of_layer(layers.up, k), linear_of_layer(layers.down, k), norm_of_layer(layers.norm, k), layers.heads,
        )  # fmt: skip
        run_layer(states[k % len(states)], states[(k + 1) % len(states)], ends, layer, work)


def stack_weights(several: Sequence[Any]) -> Any:
    """The weights of several maps, norms or layers of the same shape as one: arrays are stacked."""
    first = several[0]
    if isinstance(first, np.ndarray):
        return np.stack(several)
    if isinstance(first, tuple):
        return type(first)(*map(stack_weights, zip(*several, strict=True)))
    return first


# After the layers


@kernel
def pool_kernel(cells, weights, windows, rows, positions, layers, factors, out):
    """out[position] = the sum of weight * factor * layers[layer, row] over the cells of a position and all layers.

    A cell is a flat index into [B, positions, K, P]: place p of window k of a sentence. windows [B, K] numbers these
    windows, and rows [W, P] says which row of `layers` lies there.
    """
    count, length = windows.shape[1], rows.shape[1]
    for c in range(len(cells)):
        position, place = cells[c] // (count * length), cells[c] % length
        row = rows[windows[position // positions, cells[c] // length % count], place]
        for layer in range(len(factors)):
            factor = weights[c] * factors[layer]
            for x in range(out.shape[1]):
                out[position, x] += factor * layers[layer, row, x]


@kernel
def normalized_dot_kernel(rows, weight, bias, epsilon, out):
    """out = the product of each row, with mean 0 and deviation 1, and the weight, plus the bias."""
    size = rows.shape[1]
    for r in range(len(rows)):
        total = squares = dot = 0.0
        for x in range(size):
            total += rows[r, x]
        for x in range(size):
            centered = rows[r, x] - total / size
            squares += centered * centered
            dot += centered * weight[x]
        out[r] = dot / math.sqrt(squares / size + epsilon) + bias


# Scores of spans and arcs


class ScorerWeights(NamedTuple):
    """The weights of a `Scorer`. The first product of a biaffine map has OUTPUTS more outputs; the first is a bias."""

    posts: Int8Weights  # D -> 2 size: left and right ends of spans
    words: Int8Weights  # D -> 2 size: heads and modifiers
    spans: Int8Weights  # size -> channels * (size + OUTPUTS)
    arcs: Int8Weights  # size -> size + OUTPUTS
    size: int
    channels: int
    slope: np.float32  # of the leaky ReLU for negative numbers
    normalize: bool
    softening: np.float32  # added to standard deviations


class ScorerWorkspace(NamedTuple):
    """Buffers for the rows of a few sentences."""

    numbers: np.ndarray  # [rows * inputs] int8
    scales: np.ndarray  # [rows]
    sides: np.ndarray  # [rows * 2 size] both sides of a biaffine product
    left_products: np.ndarray  # [rows * channels * (size + OUTPUTS)]
    columns: np.ndarray  # [size * (longest + OVERHANG)] the right side of one sentence, transposed
    products: np.ndarray  # [4 * (longest + OVERHANG)]


def allocate_scorer_workspace(weights: ScorerWeights, longest: int) -> ScorerWorkspace:
    """For sentences of so many fenceposts at most."""
    rows, width = pad_rows(ROWS + longest), longest + OVERHANG
    return ScorerWorkspace(
        np.empty(rows * max(weights.posts.in_features, weights.size), KERNEL.input_type),
        np.ones(rows, np.float32),
        np.empty(rows * 2 * weights.size, np.float32),
        np.zeros((rows * weights.channels + 3) * (weights.size + OUTPUTS), np.float32),
        np.zeros(weights.size * width, np.float32),
        np.empty(4 * width, np.float32),
    )


@compiled
def project_sides(vectors, lengths, first, last, n, first_map, second_map, weights, cos, sin, work):
    """Both sides of a biaffine product in `work.sides`, and the left one times the weights in `work.left_products`.

    Rows are the n + 1 positions of the sentences from `first` to `last`, without padding.
    """
    size, inputs, row = weights.size, first_map.in_features, 0
    for b in range(first, last):
        for position in range(lengths[b] + 1):
            at = (b * (n + 1) + position) * inputs
            largest = abs_max(vectors, at, inputs)
            work.scales[row] = quantize_row(vectors, at, inputs, largest, work.numbers, row * inputs)
            row += 1
    multiply(work.numbers, work.scales, row, first_map, work.sides, 0)
    row = 0
    for b in range(first, last):
        for position in range(lengths[b] + 1):
            at, angle = row * 2 * size, position * size
            leaky_relu(work.sides, at + size, size, weights.slope)
            largest = leaky_relu(work.sides, at, size, weights.slope)
            if cos.size:
                rotate(work.sides, at + size, size // 2, cos, sin, angle)
                largest = rotate(work.sides, at, size // 2, cos, sin, angle)
            work.scales[row] = quantize_row(work.sides, at, size, largest, work.numbers, row * size)
            row += 1
    multiply(work.numbers, work.scales, row, second_map, work.left_products, 0)


@compiled
def write_products(work, row, posts, size, channels, chart, chart_at, row_step, lower):
    """chart = products of all rows of one sentence, from `row` on, with its columns from `lower` on.

    `lower`: 0 for the cells above the diagonal, 1 for all cells but the diagonal.
    """
    width, pitch = posts + OVERHANG, size + OUTPUTS
    transpose(work.sides, (row + lower) * 2 * size + size, 2 * size, posts - lower, size, work.columns, lower, width)
    for line in range(0, posts * channels, 4):
        begin = lower or line // channels + 1
        at = (row * channels + line) * pitch
        if begin < posts:
            multiply_four_rows(
                work.products, 0, width, work.left_products, at, pitch, work.columns, begin, width, size, posts - begin
            )
        for r in range(min(4, posts * channels - line)):
            i, c = (line + r) // channels, (line + r) % channels
            bias = work.left_products[at + r * pitch + size]
            for j in range(lower or i + 1, posts):
                if i != j:
                    to = chart_at + i * row_step + (j - lower) * channels + c
                    chart[to] = work.products[r * width + j - begin] + bias


@compiled
def normalize_chart(chart, at, posts, row_step, channels, lower, softening):
    """Mean 0 and deviation 1 over the cells of one sentence: as `scorers.normalize_scores`."""
    count, total, squares = 0, 0.0, 0.0
    for i in range(posts):
        for j in range(lower or i + 1, posts):
            if i != j:
                for c in range(channels):
                    total += chart[at + i * row_step + (j - lower) * channels + c]
                    count += 1
    mean = np.float32(total / max(count, 1))
    for i in range(posts):
        for j in range(lower or i + 1, posts):
            if i != j:
                for c in range(channels):
                    centered = chart[at + i * row_step + (j - lower) * channels + c] - mean
                    squares += centered * centered
    deviation = np.float32(math.sqrt(max(squares / max(count, 1), 1e-12)))
    factor = np.float32(1) / (deviation + softening)
    for i in range(posts):
        for j in range(lower or i + 1, posts):
            if i != j:
                for c in range(channels):
                    to = at + i * row_step + (j - lower) * channels + c
                    chart[to] = (chart[to] - mean) * factor


@compiled
def score_pairs(
    vectors, lengths, first, last, n, first_map, second_map, weights, cos, sin, work, channels, lower, chart
):
    """chart [B, n + 1, n + 1 - lower, channels] of the sentences from `first` to `last`, a biaffine product."""
    project_sides(vectors, lengths, first, last, n, first_map, second_map, weights, cos, sin, work)
    row, row_step = 0, (n + 1 - lower) * channels
    for b in range(first, last):
        posts, at = lengths[b] + 1, b * (n + 1) * row_step
        write_products(work, row, posts, weights.size, channels, chart, at, row_step, lower)
        if weights.normalize:
            normalize_chart(chart, at, posts, row_step, channels, lower, weights.softening)
        row += posts


@partial(kernel, variant=KERNEL.name)
def score_kernel(posts, words, lengths, n, weights, cos, sin, work, mention, arcs):
    """mention [B, n + 1, n + 1, channels] and arcs [B, n + 1, n], from the root or a word to a word."""
    first = 0
    while first < len(lengths):
        rows, last = lengths[first] + 1, first + 1
        while last < len(lengths) and rows + lengths[last] + 1 <= ROWS:
            rows += lengths[last] + 1
            last += 1
        score_pairs(
            posts, lengths, first, last, n, weights.posts, weights.spans, weights, cos, sin, work, weights.channels, 0,
            mention,
        )  # fmt: skip
        score_pairs(
            words, lengths, first, last, n, weights.words, weights.arcs, weights, cos, sin, work, 1, 1, arcs
        )  # fmt: skip
        first = last


# Scores of labels


class LabelWeights(NamedTuple):
    """The weights of a `LabelScorer` that reads heads: of left ends, right ends and heads of spans."""

    mlps: tuple[Int8Weights, Int8Weights, Int8Weights]  # D -> size
    sides: tuple[Int8Weights, Int8Weights, Int8Weights]  # size -> rank
    out: np.ndarray  # [rank * (labels + OVERHANG)]
    bias: np.ndarray  # [labels]
    slope: np.float32  # of the leaky ReLU for negative numbers


class LabelWorkspace(NamedTuple):
    """Buffers for the rows that go through an MLP together, and for the vectors of four triples."""

    numbers: np.ndarray  # [ROWS * inputs] int8
    scales: np.ndarray  # [ROWS]
    hidden: np.ndarray  # [ROWS * size]
    products: np.ndarray  # [4 * rank]
    scores: np.ndarray  # [4 * (labels + OVERHANG)]


def allocate_label_workspace(weights: LabelWeights) -> LabelWorkspace:
    mlp, rank, rows = weights.mlps[0], weights.sides[0].out_features, pad_rows(ROWS)
    return LabelWorkspace(
        np.empty(rows * max(mlp.in_features, mlp.out_features), KERNEL.input_type),
        np.ones(rows, np.float32),
        np.empty(rows * mlp.out_features, np.float32),
        np.zeros(4 * rank, np.float32),
        np.empty(4 * (len(weights.bias) + OVERHANG), np.float32),
    )


@partial(kernel, variant=KERNEL.name)
def label_kernel(posts, words, rows, weights, work, index, used, vectors, out):
    """out [triples, labels] of triples `rows` [3, triples]: rows of `posts`, of `posts` again, and of `words`.

    Returns whether all of these rows exist. A row goes through its MLP once. index [rows of `posts`] and used [the
    same] are filled here, for one side after the other; vectors: [3, distinct rows + TILE_ROWS, rank].
    """
    rank, labels, triples = weights.sides[0].out_features, len(weights.bias), rows.shape[1]
    pitch, width = vectors.size // 3, labels + OVERHANG
    for side in range(3):
        mlp, second = weights.mlps[side], weights.sides[side]
        given, inputs, size, count = posts if side < 2 else words, mlp.in_features, mlp.out_features, 0
        index[:] = -1
        for t in range(triples):
            row = rows[side, t]
            if not 0 <= row < len(index):
                return False
            if index[row] < 0:
                index[row], used[count] = count, row
                count += 1
            rows[side, t] = side * pitch + index[row] * rank
        for start in range(0, count, ROWS):
            block = min(ROWS, count - start)
            for r in range(block):
                at = used[start + r] * inputs
                largest = abs_max(given, at, inputs)
                work.scales[r] = quantize_row(given, at, inputs, largest, work.numbers, r * inputs)
            multiply(work.numbers, work.scales, block, mlp, work.hidden, 0)
            for r in range(block):
                at = r * size
                largest = leaky_relu(work.hidden, at, size, weights.slope)
                work.scales[r] = quantize_row(work.hidden, at, size, largest, work.numbers, at)
            multiply(work.numbers, work.scales, block, second, vectors, side * pitch + start * rank)
    for first in range(0, triples, 4):
        last = min(triples, first + 4)
        for t in range(first, last):
            left, right, head, at = rows[0, t], rows[1, t], rows[2, t], (t - first) * rank
            for x in range(rank):
                work.products[at + x] = vectors[left + x] * vectors[right + x] * vectors[head + x]
        multiply_four_rows(work.scores, 0, width, work.products, 0, rank, weights.out, 0, width, rank, labels)
        for t in range(first, last):
            for label in range(labels):
                out[t, label] = work.scores[(t - first) * width + label] + weights.bias[label]
    return True
