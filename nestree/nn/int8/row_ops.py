"""SIMD operations on one row of numbers, written for LLVM: quantization, GELU, layer norm, exponentials.

A row is a stretch of an array, given as the array and the index of its first number. Rows of vectors have a multiple of
16 numbers; those of `row_max`, `exp_row` and `multiply_four_rows` may have any, and are touched up to OVERHANG beyond.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from nestree.nn.int8 import selected_kernel
from nestree.treecrf.numba_kernels.simd import FUSED, LN2, Code, Value

KERNEL = selected_kernel()
INT8_MAX = 127.0
REGISTERS = 4  # that are worked on together: 16 numbers
MIN_EXPONENT = -80.0  # exp of less is as good as 0
GELU_LIMIT = 3.75  # beyond it, GELU(x) is x, or 0
WIDE = 1 if KERNEL.name == "sdot" else 2  # registers of 16 bytes that rows of any width are processed in
STRIDE = 8 * WIDE  # numbers that `multiply_four_rows` writes at once
OVERHANG = STRIDE - 1  # numbers at the end of a row that may be touched
FLOAT = ir.FloatType()


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

    def load_at(self, row: Value, at: Value, x: Value) -> Value:
        return self.load(row, self.builder.add(at, x))

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

    def for_each_register(self, width: Value, body: Callable[[Value], None]) -> None:
        """body(x) for the index of the first number of each register."""
        step = ir.Constant(width.type, self.lanes)
        with cgutils.for_range_slice(self.builder, width.type(0), width, step, width.type) as (x, _):
            body(x)

    def add(self, variable: Value, value: Value) -> None:
        self.builder.store(self.builder.fadd(self.builder.load(variable), value), variable)

    def total(self, variable: Value) -> Value:
        return self.fold(self.builder.load(variable), self.builder.fadd)

    def keep_abs_max(self, variable: Value, value: Value) -> None:
        largest = self.larger(self.call("fabs", value), self.builder.load(variable))
        self.builder.store(largest, variable)

    def maximum(self, variable: Value) -> Value:
        return self.fold(self.builder.load(variable), self.larger)


def row_intrinsic(registers: int = 1) -> Callable[[Callable[..., Value | None]], Any]:
    """An intrinsic of numba from a function of (RowCode, *arguments) that emits code and returns a float32 or None."""

    def decorate(emit: Callable[..., Value | None]) -> Any:
        def operation(_typing, *kinds):
            def codegen(context, builder, signature, arguments):
                code = RowCode(context, builder, signature, arguments, registers)
                result = emit(code, *code.arguments)
                return context.get_dummy_value() if result is None else result

            returns = types.void if emit.__annotations__["return"] is None else types.float32
            return returns(*kinds), codegen

        operation.__signature__ = inspect.signature(emit)  # type: ignore[attr-defined]  # numba looks at it
        operation.__name__, operation.__doc__ = emit.__name__, emit.__doc__
        return intrinsic(operation)

    return decorate


@row_intrinsic(REGISTERS)
def abs_max(code, row, at, width) -> Value:
    """The largest absolute value of a row."""
    largest = code.variable(code.constant(0.0))
    code.for_each_register(width, lambda x: code.keep_abs_max(largest, code.load_at(row, at, x)))
    return code.maximum(largest)


@row_intrinsic(REGISTERS)
def quantize_row(code, row, at, width, largest, numbers, numbers_at) -> Value:
    """Write a row as integers from -127 to 127, given its largest absolute value. Returns their scale.

    Where the kernel takes unsigned integers, 128 is added to them.
    """
    builder = code.builder
    nonzero = builder.fcmp_ordered(">", largest, FLOAT(0.0))
    factor = builder.select(nonzero, builder.fdiv(FLOAT(INT8_MAX), largest), FLOAT(0.0))
    factors, vector = code.everywhere(factor), ir.VectorType(numbers.type.pointee, code.lanes)

    def write(x: Value) -> None:
        rounded = code.call("roundeven", builder.fmul(code.load_at(row, at, x), factors))
        pointer = builder.gep(numbers, [builder.add(numbers_at, x)])
        value = builder.fptosi(rounded, vector)
        if KERNEL.input_type == np.uint8:
            value = builder.xor(value, ir.Constant(vector, [-128] * code.lanes))
        builder.store(value, builder.bitcast(pointer, vector.as_pointer()), align=1)

    code.for_each_register(width, write)
    return builder.fmul(largest, FLOAT(1 / INT8_MAX))


@row_intrinsic(REGISTERS)
def gelu(code, row, at, width) -> Value:
    """row = GELU(row). Returns the largest absolute value."""
    builder = code.builder
    largest = code.variable(code.constant(0.0))

    def update(x: Value) -> None:
        number = code.load_at(row, at, x)
        near = code.call("minnum", number, code.constant(GELU_LIMIT))
        near = code.call("maxnum", near, code.constant(-GELU_LIMIT))
        slope = code.polynomial(GELU_COEFFICIENTS, builder.fmul(near, near))
        number = builder.fmul(number, code.multiply_add(code.constant(0.5), near, slope))
        code.store(number, row, builder.add(at, x))
        code.keep_abs_max(largest, number)

    code.for_each_register(width, update)
    return code.maximum(largest)


@row_intrinsic(REGISTERS)
def add_and_normalize(code, row, at, other, other_at, width, weight, bias, epsilon) -> Value:
    """row = weight (row + other, with mean 0 and deviation 1) + bias. Returns the largest absolute value."""
    builder = code.builder
    count = builder.sitofp(width, FLOAT)
    sums, squares, largest = (code.variable(code.constant(0.0)) for _ in range(3))

    def add(x: Value) -> None:
        added = builder.fadd(code.load_at(row, at, x), code.load_at(other, other_at, x))
        code.store(added, row, builder.add(at, x))
        code.add(sums, added)

    code.for_each_register(width, add)
    mean = code.everywhere(builder.fdiv(code.total(sums), count))

    def centered(x: Value) -> Value:
        return builder.fsub(code.load_at(row, at, x), mean)

    code.for_each_register(width, lambda x: code.add(squares, builder.fmul(centered(x), centered(x))))
    variance = builder.fadd(builder.fdiv(code.total(squares), count), epsilon)
    sqrt_type = ir.FunctionType(FLOAT, [FLOAT])
    root = cgutils.get_or_insert_function(builder.module, sqrt_type, "llvm.sqrt.f32")
    factor = code.everywhere(builder.fdiv(FLOAT(1.0), builder.call(root, [variance])))

    def write(x: Value) -> None:
        number = builder.fmul(builder.fmul(centered(x), factor), code.load(weight, x), flags=FUSED)
        number = builder.fadd(number, code.load(bias, x), flags=FUSED)
        code.store(number, row, builder.add(at, x))
        code.keep_abs_max(largest, number)

    code.for_each_register(width, write)
    return code.maximum(largest)


@row_intrinsic(WIDE)
def multiply_four_rows(code, out, at, step, w, w_at, w_step, a, a_at, a_step, count, width) -> None:
    """out[r, x] = sum over t < count of w[r, t] * a[t, x], for four rows r and all x < width."""
    builder, lanes, index = code.builder, code.lanes, width.type
    with cgutils.for_range_slice(builder, index(0), width, index(2 * lanes), index) as (x, _):
        sums = [[code.variable(code.constant(0.0)) for _ in range(2)] for _ in range(4)]
        with cgutils.for_range(builder, count) as loop:
            offset = builder.add(builder.add(a_at, x), builder.mul(a_step, loop.index))
            terms = [code.load_at(a, offset, index(lanes * c)) for c in range(2)]
            for r in range(4):
                pointer = builder.add(builder.add(w_at, builder.mul(w_step, index(r))), loop.index)
                factor = code.everywhere(builder.load(builder.gep(w, [pointer])))
                for c in range(2):
                    total = code.multiply_add(builder.load(sums[r][c]), terms[c], factor)
                    builder.store(total, sums[r][c])
        for r in range(4):
            row = builder.add(builder.add(at, x), builder.mul(step, index(r)))
            for c in range(2):
                code.store(builder.load(sums[r][c]), out, builder.add(row, index(lanes * c)))


@row_intrinsic(WIDE)
def row_max(code, row, at, width) -> Value:
    """The largest number of a row of any width."""
    none = code.constant(-math.inf)
    largest = code.variable(none)
    with code.registers(width) as (x, valid):
        numbers = code.builder.select(valid, code.load_at(row, at, x), none)
        code.builder.store(code.larger(numbers, code.builder.load(largest)), largest)
    return code.maximum(largest)


@row_intrinsic(WIDE)
def exp_row(code, row, at, width, top) -> Value:
    """row = exp(row - top), for a top that no number exceeds. Returns their sum."""
    builder = code.builder
    top, sums = code.everywhere(top), code.variable(code.constant(0.0))
    with code.registers(width) as (x, valid):
        number = builder.fsub(code.load_at(row, at, x), top)
        number = code.larger(number, code.constant(MIN_EXPONENT))
        # number = whole * ln 2 + rest
        whole = code.call("roundeven", builder.fmul(number, code.constant(1 / LN2)))
        rest = builder.fsub(number, builder.fmul(whole, code.constant(LN2), flags=FUSED), flags=FUSED)
        result = code.polynomial(EXP_COEFFICIENTS, rest)
        power = builder.shl(builder.fptosi(whole, code.whole), code.constant(23, code.whole))
        result = builder.bitcast(builder.add(builder.bitcast(result, code.whole), power), code.vector)
        result = builder.select(valid, result, code.constant(0.0))
        code.store(result, row, builder.add(at, x))
        code.add(sums, result)
    return code.total(sums)
