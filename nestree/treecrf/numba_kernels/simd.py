"""SIMD code written in LLVM operations: sums and maxima over rows, and operations on one row.

A row is a slice of an array, given as the array and the index at which it begins. LLVM's own vectorizer would choose
the wrong axis in `sum_rows`, and leave most of such short rows to scalar code. Here a row is always processed in whole
registers of 16 bytes, so reads and writes may go up to SIMD_SLACK numbers beyond its end.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from nestree.treecrf.numba_kernels.jit import compiled_inline
from nestree.treecrf.potentials import NO_TREE

LN2 = math.log(2)
SIMD_SLACK = 3  # numbers at the end of a row that a register may touch
ZERO_EXPONENT = -(1 << 28)  # the exponent of 0
FUSED = ("contract",)  # allows fused multiply-add
NO_NAN = ("nnan", "nsz")
LN2_IN_PARTS = (
    0.6931471803691238,
    1.9082149292705877e-10,
)  # the product of the first and an integer is exact

Value = Any  # an LLVM value


class Code:
    """Emits the code of one intrinsic. Array arguments become pointers to their data, None stays None."""

    def __init__(
        self, context: Any, builder: Any, signature: Any, arguments: Any, registers: int = 1
    ) -> None:
        self.builder = builder
        self.arguments = []
        for kind, value in zip(signature.args, arguments, strict=True):
            if isinstance(kind, types.Array):
                value = context.make_array(kind)(context, builder, value).data
            self.arguments.append(None if isinstance(kind, types.NoneType) else value)
        self.number = context.get_data_type(signature.args[0].dtype)
        self.size = context.get_abi_sizeof(self.number)
        self.lanes = 16 * registers // self.size
        self.vector = ir.VectorType(self.number, self.lanes)
        self.whole = ir.VectorType(ir.IntType(8 * self.size), self.lanes)

    def load(self, row: Value, at: Value) -> Value:
        pointer = self.builder.gep(row, [at])
        kind = ir.VectorType(row.type.pointee, self.lanes)
        return self.builder.load(self.builder.bitcast(pointer, kind.as_pointer()), align=self.size)

    def store(self, value: Value, row: Value, at: Value) -> None:
        pointer = self.builder.bitcast(self.builder.gep(row, [at]), value.type.as_pointer())
        self.builder.store(value, pointer, align=self.size)

    def everywhere(self, number: Value) -> Value:
        """A vector with this number in every lane."""
        kind = ir.VectorType(number.type, self.lanes)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.IntType(32)(0))
        return self.builder.shuffle_vector(
            first, first, ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), None)
        )

    def constant(self, number: float, kind: Any = None) -> Value:
        return ir.Constant(kind or self.vector, [number] * self.lanes)

    def variable(self, start: Value) -> Value:
        return cgutils.alloca_once_value(self.builder, start)

    @contextmanager
    def registers(self, width: Value) -> Iterator[tuple[Value, Value]]:
        """Loop over the registers of a row: the index of the first lane, and a mask of the lanes in the row."""
        step = ir.Constant(width.type, self.lanes)
        order = ir.Constant(self.whole, list(range(self.lanes)))
        with cgutils.for_range_slice(self.builder, width.type(0), width, step, width.type) as (x, _):
            left = self.builder.sub(width, x)
            if self.size < 8:
                left = self.builder.trunc(left, self.whole.element)
            yield x, self.builder.icmp_signed("<", order, self.everywhere(left))

    def fold(self, vector: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """Reduce the lanes to one number."""
        parts = [self.builder.extract_element(vector, ir.IntType(32)(lane)) for lane in range(self.lanes)]
        while len(parts) > 1:
            parts = [combine(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def larger(self, a: Value, b: Value) -> Value:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b, flags=NO_NAN), a, b)

    def higher(self, a: Value, b: Value) -> Value:
        """The same for integers."""
        return self.builder.select(self.builder.icmp_signed(">", a, b), a, b)


@intrinsic
def next_item(_typing, counter):
    """Atomically increment the counter and return its old value."""

    def generate(context, builder, signature, arguments):
        counter = Code(context, builder, signature, arguments).arguments[0]
        return builder.atomic_rmw("add", counter, ir.IntType(64)(1), "monotonic")

    return types.int64(counter), generate


# Reductions over many rows


def row_reductions(kind: str) -> tuple[Callable, Callable]:
    """Functions for the first block of a row and for a whole row.

    "sum": out[x] = sum over t < count of w[t] * a[t, x] * b[t, x]; "add" adds that to out[x]; "max": out[x] = max over
    t of w[t] + a[t, x] + b[t, x]. Either of w and b may be None. Rows a[t] begin at a_at + t * a_step, b likewise.
    """

    def loop(registers: int) -> Callable:
        @intrinsic
        def fixed(_typing, out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step):
            def generate(context, builder, signature, arguments):
                code = Code(context, builder, signature, arguments, registers)
                out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step = code.arguments
                if kind == "add":
                    start = code.load(out, at)
                else:
                    start = code.constant(-math.inf if kind == "max" else 0.0)
                result = code.variable(start)
                with cgutils.for_range(builder, count) as loop_state:
                    t = loop_state.index
                    term = code.load(a, builder.add(a_at, builder.mul(a_step, t)))
                    factors = []
                    if b is not None:
                        factors.append(code.load(b, builder.add(b_at, builder.mul(b_step, t))))
                    if w is not None:
                        factors.append(code.everywhere(builder.load(builder.gep(w, [builder.add(w_at, t)]))))
                    for factor in factors:
                        if kind == "max":
                            term = builder.fadd(term, factor)
                        else:
                            term = builder.fmul(term, factor, flags=FUSED)
                    total = builder.load(result)
                    if kind == "max":
                        total = code.larger(term, total)
                    else:
                        total = builder.fadd(total, term, flags=FUSED)
                    builder.store(total, result)
                code.store(builder.load(result), out, at)
                return context.get_dummy_value()

            return types.void(out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step), generate

        return fixed

    four, two, one = loop(4), loop(2), loop(1)

    @compiled_inline
    def sum_block(width, out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step):
        """Reduce the first block of `width` words. Returns its size, at most SIMD_SLACK more than `width`."""
        lanes = 16 // out.itemsize
        if width > 3 * lanes:
            four(out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step)
            return 4 * lanes
        if width > lanes:
            two(out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step)
            return 2 * lanes
        one(out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step)
        return lanes

    @compiled_inline
    def sum_rows(width, out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step):
        x = 0
        while x < width:
            x += sum_block(width - x, out, at + x, count, w, w_at, a, a_at + x, a_step, b, b_at + x, b_step)

    return sum_block, sum_rows


sum_block, sum_rows = row_reductions("sum")
add_block, add_rows = row_reductions("add")
_, max_rows = row_reductions("max")


# Operations on one row


@intrinsic
def row_max(_typing, row, at, width):
    """The largest number of a row without negative numbers."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        row, at, width = code.arguments
        result = code.variable(code.constant(0.0))
        with code.registers(width) as (x, valid):
            numbers = builder.select(valid, code.load(row, builder.add(at, x)), code.constant(0.0))
            builder.store(code.larger(numbers, builder.load(result)), result)
        return code.fold(builder.load(result), code.larger)

    return row.dtype(row, at, width), generate


@intrinsic
def small_flags(_typing, row, at, width, least):
    """Bit 1: a number of the row lies between 0 and `least`; bit 2: one is 0."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        row, at, width, least = code.arguments
        least = code.everywhere(builder.fptrunc(least, code.number) if code.size < 8 else least)
        none = code.constant(0, code.whole)
        flags = code.variable(none)
        with code.registers(width) as (x, valid):
            numbers = code.load(row, builder.add(at, x))
            zero = builder.fcmp_ordered("==", numbers, code.constant(0.0))
            kind = builder.select(zero, code.constant(2, code.whole), code.constant(1, code.whole))
            kind = builder.select(builder.fcmp_ordered("<", numbers, least), kind, none)
            builder.store(builder.or_(builder.load(flags), builder.select(valid, kind, none)), flags)
        result = code.fold(builder.load(flags), builder.or_)
        return result if code.size == 8 else builder.sext(result, ir.IntType(64))

    return types.int64(row, at, width, types.float64), generate


@intrinsic
def dot(_typing, a, a_at, b, b_at, width):
    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        a, a_at, b, b_at, width = code.arguments
        total = code.variable(code.constant(0.0))
        with code.registers(width) as (x, valid):
            left, right = code.load(a, builder.add(a_at, x)), code.load(b, builder.add(b_at, x))
            left = builder.select(valid, left, code.constant(0.0))
            right = builder.select(valid, right, code.constant(0.0))
            product = builder.fmul(left, right, flags=FUSED)
            builder.store(builder.fadd(builder.load(total), product, flags=FUSED), total)
        return code.fold(builder.load(total), builder.fadd)

    return a.dtype(a, a_at, b, b_at, width), generate


@intrinsic
def scale(_typing, row, at, width, factor, target, target_at):
    """target = row * factor"""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        row, at, width, factor, target, target_at = code.arguments
        factor = code.everywhere(builder.fptrunc(factor, code.number) if code.size < 8 else factor)
        with code.registers(width) as (x, _):
            numbers = builder.fmul(code.load(row, builder.add(at, x)), factor)
            code.store(numbers, target, builder.add(target_at, x))
        return context.get_dummy_value()

    return types.void(row, at, width, types.float64, target, target_at), generate


@intrinsic
def multiply(_typing, row, at, width, factors):
    """row *= factors"""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        row, at, width, factors = code.arguments
        with code.registers(width) as (x, _):
            numbers = builder.fmul(code.load(row, builder.add(at, x)), code.load(factors, x))
            code.store(numbers, row, builder.add(at, x))
        return context.get_dummy_value()

    return types.void(row, at, width, factors), generate


@intrinsic
def max_of_sums(_typing, a, a_at, b, b_at, count):
    """The largest a[t] + b[t], of integers."""

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        a, a_at, b, b_at, count = code.arguments
        none = code.constant(2 * ZERO_EXPONENT, code.whole)
        result = code.variable(none)
        with code.registers(count) as (t, valid):
            sums = builder.add(code.load(a, builder.add(a_at, t)), code.load(b, builder.add(b_at, t)))
            builder.store(code.higher(builder.select(valid, sums, none), builder.load(result)), result)
        result = code.fold(builder.load(result), code.higher)
        return result if code.size == 8 else builder.sext(result, ir.IntType(64))

    return types.int64(a, a_at, b, b_at, count), generate


@intrinsic
def write_powers(_typing, bits, base, a, a_at, b, b_at, count, least):
    """Write the bits of 2 ** (base + a[t] + b[t]), or 0 where that is below 2 ** least.

    Returns the largest exponent that was dropped, or less than ZERO_EXPONENT if none above it was.
    """

    def generate(context, builder, signature, arguments):
        code = Code(context, builder, signature, arguments)
        bits, base, a, a_at, b, b_at, count, least = code.arguments
        fraction, bias = (23, 127) if code.size == 4 else (52, 1023)
        if code.size == 4:
            base, least = (builder.trunc(number, code.whole.element) for number in (base, least))
        base, least = code.everywhere(base), code.everywhere(least)
        none, zero = code.constant(2 * ZERO_EXPONENT, code.whole), code.constant(0, code.whole)
        dropped = code.variable(none)
        with code.registers(count) as (t, valid):
            power = builder.add(base, code.load(a, builder.add(a_at, t)))
            power = builder.add(power, code.load(b, builder.add(b_at, t)))
            small = builder.icmp_signed("<", power, least)
            biased = builder.add(power, code.constant(bias, code.whole))
            biased = builder.select(small, zero, code.higher(biased, zero))
            limit = code.constant(2 * bias, code.whole)
            biased = builder.select(builder.icmp_signed("<", biased, limit), biased, limit)
            code.store(builder.shl(biased, code.constant(fraction, code.whole)), bits, t)
            power = builder.select(builder.and_(small, valid), power, none)
            builder.store(code.higher(power, builder.load(dropped)), dropped)
        result = code.fold(builder.load(dropped), code.higher)
        return result if code.size == 8 else builder.sext(result, ir.IntType(64))

    return types.int64(bits, types.int64, a, a_at, b, b_at, count, types.int64), generate


# Exponentials


@intrinsic
def exponentials(
    _typing, scores, at, width, base, base_at, least, most, numbers, numbers_at, powers, powers_at
):
    """numbers = exp(scores - base), and 0 for impossible parts.

    With powers, exp(scores - base) = numbers * 2 ** powers, and the numbers are about 1. Either of base and powers may
    be None. Returns 1 if a possible score - base is not from `least` to `most`; then the numbers are invalid.
    """

    def generate(context, builder, signature, arguments):
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        code = Code(context, builder, signature, arguments, registers=size // 4)  # four at a time
        scores, at, width, base, base_at, least, most, numbers, numbers_at, powers, powers_at = code.arguments
        double, integer = ir.VectorType(ir.DoubleType(), 4), ir.VectorType(ir.IntType(64), 4)

        def constant(number, kind=double):
            return ir.Constant(kind, [number] * 4)

        def narrow(vector, kind, convert):
            return vector if kind == vector.type.element else convert(vector, ir.VectorType(kind, 4))

        out_of_range = code.variable(ir.IntType(1)(0))
        with code.registers(width) as (x, valid):
            score = code.load(scores, builder.add(at, x))
            score = builder.fpext(score, double) if size == 4 else score
            valid = builder.and_(valid, builder.fcmp_ordered(">", score, constant(NO_TREE)))
            if base is not None:
                score = builder.fsub(score, code.load(base, builder.add(base_at, x)))
            score = builder.select(valid, score, constant(0.0))
            fits = builder.fcmp_ordered(">=", score, code.everywhere(least))
            fits = builder.and_(fits, builder.fcmp_ordered("<=", score, code.everywhere(most)))
            for lane in range(4):
                outside = builder.not_(builder.extract_element(fits, ir.IntType(32)(lane)))
                builder.store(builder.or_(builder.load(out_of_range), outside), out_of_range)
            score = builder.select(fits, score, constant(0.0))
            # score = whole * ln 2 + rest; adding and subtracting 1.5 * 2 ** 52 rounds to the nearest integer
            shifted = builder.fadd(builder.fmul(score, constant(1 / LN2)), constant(1.5 * 2.0**52))
            whole = builder.fsub(shifted, constant(1.5 * 2.0**52))
            rest = score
            for part in LN2_IN_PARTS:
                rest = builder.fsub(rest, builder.fmul(whole, constant(part), flags=FUSED), flags=FUSED)
            degree = (
                9 if size == 4 else 13
            )  # |rest| < 0.35: errors of 7e-12 and 3e-18, below those of the scores
            result = constant(1 / math.factorial(degree))
            for power in range(degree - 1, -1, -1):
                product = builder.fmul(result, rest, flags=FUSED)
                result = builder.fadd(product, constant(1 / math.factorial(power)), flags=FUSED)
            whole = builder.fptosi(whole, integer)
            if powers is None:
                exponent = builder.shl(whole, constant(52, integer))
                result = builder.bitcast(builder.add(builder.bitcast(result, integer), exponent), double)
            else:
                whole = builder.select(valid, whole, constant(ZERO_EXPONENT, integer))
                code.store(
                    narrow(whole, powers.type.pointee, builder.trunc), powers, builder.add(powers_at, x)
                )
            result = builder.select(valid, result, constant(0.0))
            code.store(
                narrow(result, numbers.type.pointee, builder.fptrunc), numbers, builder.add(numbers_at, x)
            )
        return builder.zext(builder.load(out_of_range), ir.IntType(64))

    f64 = types.float64
    return types.int64(
        scores, at, width, base, base_at, f64, f64, numbers, numbers_at, powers, powers_at
    ), generate
