"""Constants, modes and device functions that the kernels share."""

import os

import triton
import triton.language as tl

from nestree.treecrf.async_errors import NO_TREE_BIT, TOO_LARGE_BIT, WRONG_LENGTH
from nestree.treecrf.potentials import IMPOSSIBLE, MAX_SCORE, NO_TREE

LOG_ZERO = tl.constexpr(-1e30)  # the logarithm of zero, where -inf - -inf would be NaN
LOWEST = tl.constexpr(IMPOSSIBLE)
HIGHEST = tl.constexpr(MAX_SCORE)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
MIN_TRUSTED = tl.constexpr(2.0**-100)  # below this a sum may have lost terms that matter
MAX_TRUSTED = tl.constexpr(2.0**120)
MIN_ROW_MAXIMUM = tl.constexpr(2.0**-50)  # a row whose cells are all below this does not fit its exponent
# A head below MIN_TRUSTED can be ignored unless the rest of the tree weighs more than this.
MAX_IGNORED_WEIGHT = tl.constexpr(2.0**50)
HEAD_BIT = tl.constexpr(16)
NO_TREE_FLAG = tl.constexpr(NO_TREE_BIT)
TOO_LARGE_FLAG = tl.constexpr(TOO_LARGE_BIT)
MAX_PRECISE_LOG = tl.constexpr(2.0**16)  # float32 holds larger logarithms to less than 2^-7
MAX_EXACT_EXPONENT = tl.constexpr(2.0**23)  # float32 holds whole numbers up to twice this
WRONG_LENGTH_FLAG = tl.constexpr(WRONG_LENGTH)
NO_TREE_AT = tl.constexpr(NO_TREE)
SAFE_EXPONENT = tl.constexpr(100.0)
MIN_EXPONENT = tl.constexpr(-1e8)  # the exponent of an impossible span is below this
MAX_SCALED_INHERIT = tl.constexpr(32.0)  # `inherit` beyond this, in base 2, needs LOGSPACE
WIDTHS = tl.constexpr(4)  # of a block, whose far splits are summed together
STARTS = tl.constexpr(2)  # of neighbouring spans of each width, likewise
FAR_FROM = tl.constexpr(8)  # blocks of widths beyond this have far terms
SCALED = tl.constexpr(0)
LOGSPACE = tl.constexpr(1)
VITERBI = tl.constexpr(2)
HARDWARE = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")  # the interpreter has no PTX
PRECISION = tl.constexpr("tf32x3")  # of matrix products: three products of halves, as good as float32


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
def not_a_score(value):
    """Which values are neither between -MAX_SCORE and MAX_SCORE nor IMPOSSIBLE; NaN counts."""
    return ((tl.abs(value) <= HIGHEST) | (value < NO_TREE_AT)) == 0


@triton.jit
def any_invalid(pointer, mask):
    """1 if a cell of the mask does not hold a score."""
    bad = not_a_score(tl.load(pointer, mask, other=0.0)) & mask
    return tl.max(tl.max(bad.to(tl.int32), 1), 0)


@triton.jit
def at_most_one(probability):
    """Clamp to 1 what rounding led beyond it. NaN stays NaN."""
    return tl.where(probability > 1.0, 1.0, probability)


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
