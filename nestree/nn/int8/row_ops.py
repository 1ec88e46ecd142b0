"""What is done to one row of numbers at a time, spelt out for LLVM: rounding to 8 bits, GELU, norms, exponentials.

A row is a stretch of an array, given as the array and the index at which it begins. Rows of vectors have a multiple of
16 numbers; those of `highest`, `exponentials` and `four_sums` may have any, and are touched up to SPARE beyond that.
"""

import math
from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from nestree.treecrf.numba_kernels.simd import FUSED, LN2, Code, Value

LARGEST = 127.0  # in 8 bits
WIDE = 4  # registers that are worked on together: 16 numbers
LEAST = -80.0  # exp of less is as good as 0
FLAT = 3.75  # beyond it, GELU is the number itself, or 0
STRIDE = 8  # numbers that `four_sums` writes at once
SPARE = STRIDE - 1  # numbers at the end of a row that may be touched
FLOAT, LINE = ir.FloatType(), ir.IntType(64)


def share(square: float) -> float:
    """GELU is x (1/2 + x share(x²))."""
    return 0.5 * math.erf(math.sqrt(square / 2)) / math.sqrt(square)


GELU = [
    float(number)
    for number in np.polynomial.Chebyshev.interpolate(np.vectorize(share), 6, [0, FLAT**2])
    .convert(kind=np.polynomial.Polynomial)
    .coef
]
EXP = [1 / math.factorial(power) for power in range(7)]  # |x| < 0.35: 1.3e-7


class Rows(Code):
    """Writes code for rows of float32."""

    def unary(self, name: str, value: Value) -> Value:
        """An operation that LLVM knows, such as fabs."""
        kind = ir.FunctionType(value.type, [value.type])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}.v{self.lanes}f32")
        return self.builder.call(function, [value])

    def polynomial(self, coefficients: list[float], x: Value) -> Value:
        """By halves, so that no step has to wait for many others."""
        terms: list[Value] = [self.constant(number) for number in coefficients]
        while len(terms) > 1:
            pairs = [self.sum_of(terms[k], terms[k + 1], x) for k in range(0, len(terms) - 1, 2)]
            terms = pairs + terms[2 * len(pairs) :]
            x = self.builder.fmul(x, x)
        return terms[0]

    def sum_of(self, one: Value, other: Value, factor: Value) -> Value:
        """one + other * factor, rounded once."""
        return self.builder.fadd(one, self.builder.fmul(other, factor, flags=FUSED), flags=FUSED)

    def binary(self, name: str, one: Value, other: Value) -> Value:
        """minnum or maxnum."""
        kind = ir.FunctionType(one.type, [one.type, one.type])
        name = f"llvm.{name}.v{self.lanes}f32"
        return self.builder.call(
            cgutils.get_or_insert_function(self.builder.module, kind, name), [one, other]
        )

    def every(self, width: Value, work: Callable[[Value], None]) -> None:
        """work(x) for the index of the first number of each register."""
        step = ir.Constant(width.type, self.lanes)
        with cgutils.for_range_slice(self.builder, width.type(0), width, step, width.type) as (x, _):
            work(x)

    def add(self, variable: Value, value: Value) -> None:
        self.builder.store(self.builder.fadd(self.builder.load(variable), value), variable)

    def total(self, variable: Value) -> Value:
        return self.fold(self.builder.load(variable), self.builder.fadd)


@intrinsic
def size_of(_typing, row, at, width):
    """The largest size of a number in a row."""

    def generate(context, builder, signature, arguments):
        code = Rows(context, builder, signature, arguments, WIDE)
        row, at, width = code.arguments
        found = code.variable(code.constant(0.0))

        def look(x: Value) -> None:
            size = code.unary("fabs", code.load(row, builder.add(at, x)))
            builder.store(code.larger(size, builder.load(found)), found)

        code.every(width, look)
        return code.fold(builder.load(found), code.larger)

    return types.float32(row, at, width), generate


@intrinsic
def round_row(_typing, row, at, width, size, numbers, numbers_at):
    """Write a row as whole numbers from -127 to 127. Returns what they are to be multiplied with."""

    def generate(context, builder, signature, arguments):
        code = Rows(context, builder, signature, arguments, WIDE)
        row, at, width, size, numbers, numbers_at = code.arguments
        something = builder.fcmp_ordered(">", size, FLOAT(0.0))
        factor = builder.select(something, builder.fdiv(FLOAT(LARGEST), size), FLOAT(0.0))
        factors, small = code.everywhere(factor), ir.VectorType(ir.IntType(8), code.lanes)

        def write(x: Value) -> None:
            whole = code.unary("roundeven", builder.fmul(code.load(row, builder.add(at, x)), factors))
            place = builder.gep(numbers, [builder.add(numbers_at, x)])
            value = builder.fptosi(whole, small)
            builder.store(value, builder.bitcast(place, small.as_pointer()), align=1)

        code.every(width, write)
        return builder.fmul(size, FLOAT(1 / LARGEST))

    return types.float32(row, at, width, types.float32, numbers, numbers_at), generate


@intrinsic
def gelu(_typing, row, at, width):
    """row = GELU(row). Returns the largest size of a number."""

    def generate(context, builder, signature, arguments):
        code = Rows(context, builder, signature, arguments, WIDE)
        row, at, width = code.arguments
        found = code.variable(code.constant(0.0))

        def change(x: Value) -> None:
            number = code.load(row, builder.add(at, x))
            near = code.binary("minnum", number, code.constant(FLAT))
            near = code.binary("maxnum", near, code.constant(-FLAT))
            slope = code.polynomial(GELU, builder.fmul(near, near))
            number = builder.fmul(number, code.sum_of(code.constant(0.5), near, slope))
            code.store(number, row, builder.add(at, x))
            builder.store(code.larger(code.unary("fabs", number), builder.load(found)), found)

        code.every(width, change)
        return code.fold(builder.load(found), code.larger)

    return types.float32(row, at, width), generate


@intrinsic
def add_and_normalise(_typing, row, at, other, other_at, width, weight, bias, epsilon):
    """row = weight (row + other, with mean 0 and deviation 1) + bias. Returns the largest size of a number."""

    def generate(context, builder, signature, arguments):
        code = Rows(context, builder, signature, arguments, WIDE)
        row, at, other, other_at, width, weight, bias, epsilon = code.arguments
        count = builder.sitofp(width, FLOAT)
        sums, squares, found = (code.variable(code.constant(0.0)) for _ in range(3))

        def add(x: Value) -> None:
            added = builder.fadd(
                code.load(row, builder.add(at, x)), code.load(other, builder.add(other_at, x))
            )
            code.store(added, row, builder.add(at, x))
            code.add(sums, added)

        code.every(width, add)
        mean = code.everywhere(builder.fdiv(code.total(sums), count))

        def centred(x: Value) -> Value:
            return builder.fsub(code.load(row, builder.add(at, x)), mean)

        code.every(width, lambda x: code.add(squares, builder.fmul(centred(x), centred(x))))
        variance = builder.fadd(builder.fdiv(code.total(squares), count), epsilon)
        root = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(FLOAT, [FLOAT]), "llvm.sqrt.f32"
        )
        factor = code.everywhere(builder.fdiv(FLOAT(1.0), builder.call(root, [variance])))

        def write(x: Value) -> None:
            number = builder.fmul(builder.fmul(centred(x), factor), code.load(weight, x), flags=FUSED)
            number = builder.fadd(number, code.load(bias, x), flags=FUSED)
            code.store(number, row, builder.add(at, x))
            builder.store(code.larger(code.unary("fabs", number), builder.load(found)), found)

        code.every(width, write)
        return code.fold(builder.load(found), code.larger)

    return types.float32(row, at, other, other_at, width, weight, bias, types.float32), generate


@intrinsic
def four_sums(_typing, out, at, step, w, w_at, w_step, a, a_at, a_step, count, width):
    """out[r, x] = sum over t < count of w[r, t] * a[t, x], for four rows r and all x < width."""

    def generate(context, builder, signature, arguments):
        code = Rows(context, builder, signature, arguments)
        out, at, step, w, w_at, w_step, a, a_at, a_step, count, width = code.arguments
        lanes, line = code.lanes, width.type
        with cgutils.for_range_slice(builder, line(0), width, line(2 * lanes), line) as (x, _):
            sums = [[code.variable(code.constant(0.0)) for _ in range(2)] for _ in range(4)]
            with cgutils.for_range(builder, count) as each:
                here = builder.add(builder.add(a_at, x), builder.mul(a_step, each.index))
                terms = [code.load(a, builder.add(here, line(lanes * c))) for c in range(2)]
                for r in range(4):
                    place = builder.add(builder.add(w_at, builder.mul(w_step, line(r))), each.index)
                    factor = code.everywhere(builder.load(builder.gep(w, [place])))
                    for c in range(2):
                        total = code.sum_of(builder.load(sums[r][c]), terms[c], factor)
                        builder.store(total, sums[r][c])
            for r in range(4):
                row = builder.add(builder.add(at, x), builder.mul(step, line(r)))
                for c in range(2):
                    code.store(builder.load(sums[r][c]), out, builder.add(row, line(lanes * c)))
        return context.get_dummy_value()

    return types.void(out, at, step, w, w_at, w_step, a, a_at, a_step, count, width), generate


@intrinsic
def highest(_typing, row, at, width):
    """The largest number of a row of any width."""

    def generate(context, builder, signature, arguments):
        code = Rows(context, builder, signature, arguments)
        row, at, width = code.arguments
        none = code.constant(-math.inf)
        found = code.variable(none)
        with code.registers(width) as (x, valid):
            numbers = builder.select(valid, code.load(row, builder.add(at, x)), none)
            builder.store(code.larger(numbers, builder.load(found)), found)
        return code.fold(builder.load(found), code.larger)

    return types.float32(row, at, width), generate


@intrinsic
def exponentials(_typing, row, at, width, top):
    """row = exp(row - top), for a top that no number exceeds. Returns their sum."""

    def generate(context, builder, signature, arguments):
        code = Rows(context, builder, signature, arguments)
        row, at, width, top = code.arguments
        top, sums = code.everywhere(top), code.variable(code.constant(0.0))
        with code.registers(width) as (x, valid):
            number = builder.fsub(code.load(row, builder.add(at, x)), top)
            number = code.larger(number, code.constant(LEAST))
            # number = whole * ln 2 + rest
            whole = code.unary("roundeven", builder.fmul(number, code.constant(1 / LN2)))
            rest = builder.fsub(number, builder.fmul(whole, code.constant(LN2), flags=FUSED), flags=FUSED)
            result = code.polynomial(EXP, rest)
            power = builder.shl(builder.fptosi(whole, code.whole), code.constant(23, code.whole))
            result = builder.bitcast(builder.add(builder.bitcast(result, code.whole), power), code.vector)
            result = builder.select(valid, result, code.constant(0.0))
            code.store(result, row, builder.add(at, x))
            code.add(sums, result)
        return code.total(sums)

    return types.float32(row, at, width, types.float32), generate
