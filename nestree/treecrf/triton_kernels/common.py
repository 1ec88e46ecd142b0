"""Constants, modes and device functions that the kernels share."""

import os

import triton
import triton.language as tl

from nestree.treecrf.potentials import IMPOSSIBLE

LOG_ZERO = tl.constexpr(-1e30)  # the logarithm of zero, where -inf - -inf would be NaN
LOWEST = tl.constexpr(IMPOSSIBLE)
LOG2_E = tl.constexpr(1.4426950408889634)
MIN_TRUSTED = tl.constexpr(2.0**-100)  # below this a sum may have lost terms that matter
MIN_EXPONENT = tl.constexpr(-1e8)  # the exponent of an impossible span is below this
WIDTHS = tl.constexpr(4)  # of a block, whose far splits are summed together
STARTS = tl.constexpr(2)  # of neighbouring spans of each width, likewise
FAR_FROM = tl.constexpr(8)  # blocks of widths beyond this have far terms
SCALED = tl.constexpr(0)
LOGSPACE = tl.constexpr(1)
VITERBI = tl.constexpr(2)
HARDWARE = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")  # the interpreter has no PTX


@triton.jit
def score(pointer, mask, MODE: tl.constexpr):
    """A potential, never below IMPOSSIBLE; in base 2 for sums."""
    value = tl.maximum(tl.load(pointer, mask, other=0.0), LOWEST)
    return value if MODE == VITERBI else value * LOG2_E


@triton.jit
def own_score(span, inherit, cell, live, lends, MODE: tl.constexpr, LEXICAL: tl.constexpr):
    """The score of a span; for SCALED sums with its `inherit`, if it lends its head to anyone."""
    own = score(span + cell, live, MODE)
    if MODE == SCALED and LEXICAL:
        own += score(inherit + cell, live & lends, MODE)
    return own


@triton.jit
def assign(lengths, batch, GROUPED: tl.constexpr, BATCH: tl.constexpr):
    """The sentence of this program, its index in the group of programs of the sentence, and the size of the group.

    Every sentence has one program. The others are assigned in proportion to the work of each sentence, which grows with
    the fourth power of its length. Integer arithmetic makes all programs agree.
    """
    program = tl.program_id(0)
    begin = program
    end = program + 1
    sentence = program
    if GROUPED:
        b = tl.arange(0, BATCH)
        words = tl.load(lengths + b, b < batch, other=0).to(tl.int64)
        work = tl.cumsum(words * words * words * words, 0)
        extra = (tl.num_programs(0) - batch) * work // tl.max(work, 0)
        ends = b + 1 + extra.to(tl.int32)  # of the programs of each sentence
        sentence = tl.sum((ends <= program).to(tl.int32), 0)
        begin = tl.max(tl.where(b < sentence, ends, 0), 0)
        end = tl.max(tl.where(b == sentence, ends, 0), 0)
    return sentence.to(tl.int64), program - begin, end - begin


@triton.jit
def grid_barrier(counter, arrivals, GROUPED: tl.constexpr):
    """Wait until all programs of the group have arrived, so that each sees what the others wrote."""
    tl.debug_barrier()
    if GROUPED:
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
        while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < arrivals:
            pass
        tl.debug_barrier()


@triton.jit
def log2(x):
    """The hardware's logarithm: within 2^-22, and one instruction."""
    return (
        tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
        if HARDWARE
        else tl.log2(x)
    )
