"""Compilation of kernels, cached on disk; and SIMD code written in LLVM operations, for their inner loops.

A row is a slice of an array, given as the array and the index at which it begins. LLVM's own vectorizer would choose
the wrong axis in `sum_rows`, and leave most of such short rows to scalar code. Here a row is always processed in whole
registers of 16 bytes, so reads and writes may go up to SIMD_SLACK numbers beyond its end.
"""

import inspect
import logging
import math
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import CellType, FunctionType
from typing import Any, cast

import numba
from llvmlite import ir
from numba.core import cgutils, event, types
from numba.extending import intrinsic

from nestree.treecrf.potentials import NO_TREE

# Kernels allocate nothing. Without numba's reference counts calls are cheap and threads do not contend for counters.
OPTIONS = {"nogil": True, "_nrt": False, "no_cfunc_wrapper": True}
CALLED_BY_KERNELS = OPTIONS | {"no_cpython_wrapper": True}  # a wrapper takes longer to compile than most functions
LN2 = math.log(2)
SIMD_SLACK = 3  # numbers at the end of a row that a register may touch
ZERO_EXPONENT = -(1 << 28)  # the exponent of 0
FUSED = ("contract",)  # allows fused multiply-add
NO_NAN = ("nnan", "nsz")
LN2_IN_PARTS = 0.6931471803691238, 1.9082149292705877e-10  # integer times the first is exact

Value = Any  # an LLVM value

logger = logging.getLogger(__name__)


# Compilation


class CompilationLog(event.Listener):
    """Logs the first compilation of a kernel that is not in the cache."""

    def on_start(self, event_: event.Event) -> None:
        if event_.data["dispatcher"].py_func.__module__.startswith("nestree."):
            # A warning, as Python hides what is less: the first call would seem to hang.
            logger.warning("compiling kernels: up to a minute, once on this machine")
            event.unregister("numba:compile", self)

    def on_end(self, event_: event.Event) -> None:
        pass


event.register("numba:compile", CompilationLog())


def kernel(function: Callable, variant: str = "") -> Callable:
    """A compiled function that Python calls; cached on disk, for each variant.

    Numba caches in NUMBA_CACHE_DIR if that is set, beside the source, or in the home directory, for each kind of
    processor by itself; if it can write to none of them, a folder of this user among the temporary files serves.
    """
    hashed, config, reason = with_source_hash(function, variant), cast(Any, numba.config), None
    before = config.CACHE_DIR
    for folder in (lambda: before, temporary_cache):
        config.CACHE_DIR = folder() or before  # read when the function is decorated
        try:
            return ignore_full_disk(numba.njit(hashed, cache=True, **OPTIONS))
        except RuntimeError as why:  # nowhere to write
            reason = why
        finally:
            config.CACHE_DIR = before
    logger.info("compiled code is not kept between runs: %s", reason)
    return numba.njit(function, **OPTIONS)


def ignore_full_disk(dispatcher: Any) -> Any:
    """The compiled function, which also works if its code cannot be written to the cache."""
    save = dispatcher._cache.save_overload

    def save_if_possible(*compiled: Any) -> None:
        try:
            save(*compiled)
        except OSError as why:
            logger.info("compiled code is not kept between runs: %s", why)

    dispatcher._cache.save_overload = save_if_possible
    return dispatcher


@cache
def temporary_cache() -> str | None:
    """A temporary folder that only this user can write to, as its code will be run; None: there is none."""
    if not hasattr(os, "getuid"):
        return None
    try:
        folder = Path(tempfile.gettempdir()) / f"nestree-cache-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return str(folder) if private else None


def with_source_hash(function: Callable, variant: str) -> Callable:
    """The same function with a closure over its variant and a hash of the sources of its folder and of this one.

    Numba recompiles when the function's own file or its closure has changed. The hash makes it notice changes in the
    files of the functions that it calls.
    """
    folders = sorted({Path(__file__).parent, Path(function.__code__.co_filename).parent})
    code = function.__code__.replace(co_freevars=("SOURCES",))
    hashes = CellType("".join([variant, *map(source_hash, folders)]))
    return FunctionType(code, function.__globals__, function.__name__, closure=(hashes,))


@cache
def source_hash(folder: Path) -> str:
    """A hash of the Python files of a folder."""
    return sha256(b"".join(file.read_bytes() for file in sorted(folder.glob("*.py")))).hexdigest()


def compiled(function: Callable) -> Callable:
    """A compiled function that only kernels call: without a wrapper, a call from Python crashes."""
    dispatcher = numba.njit(function, **CALLED_BY_KERNELS)
    if dispatcher is function:  # NUMBA_DISABLE_JIT is set
        return function
    get_call_template = dispatcher.get_call_template

    def without_literals(args: Iterable[Any], kws: dict[str, Any]) -> Any:
        """Else numba compiles the function again for each constant that it is called with."""
        return get_call_template(tuple(map(types.unliteral, args)), kws)

    dispatcher.get_call_template = without_literals
    return dispatcher


def compiled_inline(function: Callable) -> Callable:
    """A compiled function that is inlined into the kernels that call it."""
    return numba.njit(function, forceinline=True, **CALLED_BY_KERNELS)


# LLVM code


class Code:
    """Emits the code of one intrinsic. Array arguments become pointers to their data, None stays None."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any, registers: int = 1) -> None:
        self.builder = builder
        self.arguments = []
        for kind, value in zip(signature.args, arguments, strict=True):
            if isinstance(kind, types.Array):
                value = context.make_array(kind)(context, builder, value).data
            self.arguments.append(None if isinstance(kind, types.NoneType) else value)
        self.number = context.get_data_type(signature.args[0].dtype)
        self.size = context.get_abi_sizeof(self.number)
        self.use_registers(registers)

    def use_registers(self, registers: int) -> None:
        """Vectors fill this many registers of 16 bytes."""
        self.lanes = 16 * registers // self.size
        self.vector = ir.VectorType(self.number, self.lanes)
        self.int_vector = ir.VectorType(ir.IntType(8 * self.size), self.lanes)

    def load(self, row: Value, at: Value, x: Value = None) -> Value:
        """The vector at row[at], or at row[at + x]."""
        pointer = self.builder.gep(row, [at if x is None else self.builder.add(at, x)])
        kind = ir.VectorType(row.type.pointee, self.lanes)
        return self.builder.load(self.builder.bitcast(pointer, kind.as_pointer()), align=self.size)

    def store(self, value: Value, row: Value, at: Value, x: Value = None) -> None:
        pointer = self.builder.gep(row, [at if x is None else self.builder.add(at, x)])
        self.builder.store(value, self.builder.bitcast(pointer, value.type.as_pointer()), align=self.size)

    def broadcast(self, number: Value) -> Value:
        """A vector with this number in every lane."""
        kind = ir.VectorType(number.type, self.lanes)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), None)
        return self.builder.shuffle_vector(first, first, zeros)

    def constant(self, number: float, kind: Any = None) -> Value:
        return ir.Constant(kind or self.vector, [number] * self.lanes)

    def variable(self, start: Value) -> Value:
        return cgutils.alloca_once_value(self.builder, start)

    @contextmanager
    def registers(self, width: Value) -> Iterator[tuple[Value, Value]]:
        """Loop over the registers of a row: the index of the first lane, and a mask of the lanes in the row."""
        step = ir.Constant(width.type, self.lanes)
        order = ir.Constant(self.int_vector, list(range(self.lanes)))
        with cgutils.for_range_slice(self.builder, width.type(0), width, step, width.type) as (x, _):
            left = self.builder.sub(width, x)
            if self.size < 8:
                left = self.builder.trunc(left, self.int_vector.element)
            yield x, self.builder.icmp_signed("<", order, self.broadcast(left))

    def fold(self, vector: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """Reduce the lanes to one number; integers become int64."""
        parts = [self.builder.extract_element(vector, ir.IntType(32)(lane)) for lane in range(self.lanes)]
        while len(parts) > 1:
            parts = [combine(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return self.builder.sext(parts[0], ir.IntType(64)) if parts[0].type == ir.IntType(32) else parts[0]

    def reduce_row(
        self, width: Value, identity: Value, combine: Callable[[Value, Value], Value], of: Callable[[Value], Value]
    ) -> Value:
        """Combine of(x) for all registers x of a row; `identity` changes nothing when it is combined."""
        result = self.variable(identity)
        with self.registers(width) as (x, valid):
            vector = self.builder.select(valid, of(x), identity)
            self.builder.store(combine(vector, self.builder.load(result)), result)
        return self.fold(self.builder.load(result), combine)

    def maximum(self, a: Value, b: Value) -> Value:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b, flags=NO_NAN), a, b)

    def maximum_int(self, a: Value, b: Value) -> Value:
        """The same for integers."""
        return self.builder.select(self.builder.icmp_signed(">", a, b), a, b)


def simd_function(
    returns: Any = types.void, registers: int = 1, code_type: type[Code] = Code, widen: bool = True
) -> Callable[[Callable], Callable]:
    """Make a function that compiled code can call from emit(code, *arguments), which emits its LLVM code.

    `returns` is the type of the result, None that of the numbers of the first argument. With `widen`, numbers arrive as
    float64 and int64, whatever they were.
    """

    def decorate(emit: Callable) -> Callable:
        def typed(_typing, *arguments):
            def generate(context, builder, signature, values):
                code = code_type(context, builder, signature, values, registers)
                result = emit(code, *code.arguments)
                return context.get_dummy_value() if result is None else result

            kinds = map(widest, arguments) if widen else arguments
            return (arguments[0].dtype if returns is None else returns)(*kinds), generate

        typed.__signature__ = inspect.signature(emit)  # type: ignore[attr-defined]
        typed.__name__, typed.__doc__ = emit.__name__, emit.__doc__
        return intrinsic(typed)

    return decorate


def widest(kind: Any) -> Any:
    if isinstance(kind, types.Float):
        return types.float64
    return types.int64 if isinstance(kind, types.Integer) else kind


@simd_function(types.int64)
def next_item(code, counter):
    """Atomically increment the counter and return its old value."""
    return code.builder.atomic_rmw("add", counter, ir.IntType(64)(1), "monotonic")


# Reductions over many rows


def row_reductions(kind: str) -> tuple[Callable, Callable]:
    """Functions for the first block of a row and for a whole row.

    "sum": out[x] = sum over t < count of w[t] * a[t, x] * b[t, x]; "add" adds that to out[x]; "max": out[x] = max over
    t of w[t] + a[t, x] + b[t, x]. Either of w and b may be None. Rows a[t] begin at a_at + t * a_step, b likewise.
    """

    def reduce_registers(code, out, at, count, w, w_at, a, a_at, a_step, b, b_at, b_step):
        builder = code.builder
        start = code.load(out, at) if kind == "add" else code.constant(-math.inf if kind == "max" else 0.0)
        result = code.variable(start)
        with cgutils.for_range(builder, count) as loop:
            t = loop.index
            term, factors = code.load(a, a_at, builder.mul(a_step, t)), []
            if b is not None:
                factors.append(code.load(b, b_at, builder.mul(b_step, t)))
            if w is not None:
                factors.append(code.broadcast(builder.load(builder.gep(w, [builder.add(w_at, t)]))))
            for factor in factors:
                if kind == "max":
                    term = builder.fadd(term, factor)
                else:
                    term = builder.fmul(term, factor, flags=FUSED)
            total = builder.load(result)
            total = code.maximum(term, total) if kind == "max" else builder.fadd(total, term, flags=FUSED)
            builder.store(total, result)
        code.store(builder.load(result), out, at)

    four, two, one = (simd_function(registers=count)(reduce_registers) for count in (4, 2, 1))

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


@simd_function(None)
def row_max(code, row, at, width):
    """The largest number of a row without negative numbers."""
    return code.reduce_row(width, code.constant(0.0), code.maximum, lambda x: code.load(row, at, x))


@simd_function(types.int64)
def small_flags(code, row, at, width, least):
    """Bit 1: a number of the row lies between 0 and `least`; bit 2: one is 0."""
    builder, none = code.builder, code.constant(0, code.int_vector)
    least = code.broadcast(builder.fptrunc(least, code.number) if code.size < 8 else least)

    def flag(x: Value) -> Value:
        numbers = code.load(row, at, x)
        zero = builder.fcmp_ordered("==", numbers, code.constant(0.0))
        kind = builder.select(zero, code.constant(2, code.int_vector), code.constant(1, code.int_vector))
        return builder.select(builder.fcmp_ordered("<", numbers, least), kind, none)

    return code.reduce_row(width, none, builder.or_, flag)


@simd_function(None)
def dot(code, a, a_at, b, b_at, width):
    builder, total = code.builder, code.variable(code.constant(0.0))
    with code.registers(width) as (x, valid):
        left = builder.select(valid, code.load(a, a_at, x), code.constant(0.0))
        right = builder.select(valid, code.load(b, b_at, x), code.constant(0.0))
        product = builder.fmul(left, right, flags=FUSED)
        builder.store(builder.fadd(builder.load(total), product, flags=FUSED), total)
    return code.fold(builder.load(total), builder.fadd)


@simd_function()
def scale(code, row, at, width, factor, target, target_at):
    """target = row * factor"""
    builder = code.builder
    factor = code.broadcast(builder.fptrunc(factor, code.number) if code.size < 8 else factor)
    with code.registers(width) as (x, _):
        code.store(builder.fmul(code.load(row, at, x), factor), target, target_at, x)


@simd_function()
def multiply(code, row, at, width, factors):
    """row *= factors"""
    with code.registers(width) as (x, _):
        code.store(code.builder.fmul(code.load(row, at, x), code.load(factors, x)), row, at, x)


@simd_function(types.int64)
def max_of_sums(code, a, a_at, b, b_at, count):
    """The largest a[t] + b[t], of integers."""
    none = code.constant(2 * ZERO_EXPONENT, code.int_vector)
    return code.reduce_row(
        count, none, code.maximum_int, lambda t: code.builder.add(code.load(a, a_at, t), code.load(b, b_at, t))
    )


@simd_function(types.int64)
def write_powers_of_two(code, bits, offset, a, a_at, b, b_at, count, least):
    """Write the bits of 2 ** (offset + a[t] + b[t]), or 0 where that is below 2 ** least.

    Returns the largest exponent that was dropped, or less than ZERO_EXPONENT if none above it was.
    """
    builder = code.builder
    fraction, bias = (23, 127) if code.size == 4 else (52, 1023)
    if code.size == 4:
        offset, least = (builder.trunc(number, code.int_vector.element) for number in (offset, least))
    offset, least = code.broadcast(offset), code.broadcast(least)
    none, zero, limit = (code.constant(number, code.int_vector) for number in (2 * ZERO_EXPONENT, 0, 2 * bias))

    def write(t: Value) -> Value:
        exponent = builder.add(builder.add(offset, code.load(a, a_at, t)), code.load(b, b_at, t))
        dropped = builder.icmp_signed("<", exponent, least)
        biased = code.maximum_int(builder.add(exponent, code.constant(bias, code.int_vector)), zero)
        biased = builder.select(dropped, zero, biased)
        biased = builder.select(builder.icmp_signed("<", biased, limit), biased, limit)
        code.store(builder.shl(biased, code.constant(fraction, code.int_vector)), bits, t)
        return builder.select(dropped, exponent, none)

    return code.reduce_row(count, none, code.maximum_int, write)


@simd_function(types.int64)
def exponentials(code, scores, at, width, offset, offset_at, least, most, numbers, numbers_at, powers, powers_at):
    """numbers = exp(scores - offset), and 0 for impossible parts.

    With powers, exp(scores - offset) = numbers * 2 ** powers, and the numbers are about 1. Either of offset
    and powers may be None. Returns 1 if a possible score - offset is not from `least` to `most`; then the numbers are
    invalid.
    """
    builder, size = code.builder, code.size
    code.use_registers(size // 4)  # four numbers at a time
    double, integer = ir.VectorType(ir.DoubleType(), 4), ir.VectorType(ir.IntType(64), 4)

    def constant(number: float, kind: Any = double) -> Value:
        return ir.Constant(kind, [number] * 4)

    def narrow(vector: Value, kind: Any, convert: Callable) -> Value:
        return vector if kind == vector.type.element else convert(vector, ir.VectorType(kind, 4))

    out_of_range = code.variable(ir.IntType(1)(0))
    with code.registers(width) as (x, valid):
        score = code.load(scores, at, x)
        score = builder.fpext(score, double) if size == 4 else score
        valid = builder.and_(valid, builder.fcmp_ordered(">", score, constant(NO_TREE)))
        if offset is not None:
            score = builder.fsub(score, code.load(offset, offset_at, x))
        score = builder.select(valid, score, constant(0.0))
        fits = builder.fcmp_ordered(">=", score, code.broadcast(least))
        fits = builder.and_(fits, builder.fcmp_ordered("<=", score, code.broadcast(most)))
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
        degree = 9 if size == 4 else 13  # |rest| < 0.35: errors of 7e-12 and 3e-18, below those of the scores
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
            code.store(narrow(whole, powers.type.pointee, builder.trunc), powers, powers_at, x)
        result = builder.select(valid, result, constant(0.0))
        code.store(narrow(result, numbers.type.pointee, builder.fptrunc), numbers, numbers_at, x)
    return builder.zext(builder.load(out_of_range), ir.IntType(64))
