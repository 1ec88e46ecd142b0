"""Before the inside pass: check values and lengths, and arrange the arcs."""

import triton
import triton.language as tl

from nestree.treecrf.triton_kernels.common import (
    LOG_ZERO,
    MAX_SCALED_INHERIT,
    VITERBI,
    WRONG_LENGTH_FLAG,
    any_invalid,
    score,
)


@triton.jit(do_not_specialize=["n"])
def prepare_kernel(
    span, arc, root, inherit, lengths, report, arc_out, arc_by_modifier, power, power_by_modifier, root_out, offset,
    n, pitch, MODE: tl.constexpr, LEXICAL: tl.constexpr, BR: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """Check the values, and arrange the arcs. A program has BX words of a sentence, as modifiers and as ends of spans.

    Every word but the root has one governor, so a constant (`offset`) can be subtracted from all scores of the arcs
    into a word and from its root score: every tree loses it. For sums it is their maximum, so that none exceeds 0.
    """
    b = tl.program_id(0).to(tl.int64)
    batch = tl.num_programs(0)
    given = tl.load(lengths + b)
    length = tl.minimum(tl.maximum(given, 1), n).to(tl.int32)
    status = tl.where(given == length, 0, WRONG_LENGTH_FLAG)
    needs_logspace = 0
    posts = n + 1
    x = tl.program_id(1) * BX + tl.arange(0, BX)
    r = tl.arange(0, BR)
    for i0 in range(0, length, BR):
        i = i0 + r[:, None]
        j = x[None, :] + 1
        cell = b * posts * posts + i * posts + j
        ok = (i < j) & (j <= length)
        status |= any_invalid(span + cell, ok)
        if LEXICAL:
            lends = ok & ((i > 0) | (j < length))
            status |= any_invalid(inherit + cell, lends) * 8
            too_large_to_scale = (tl.abs(score(inherit + cell, lends, MODE)) < MAX_SCALED_INHERIT) == 0
            needs_logspace |= tl.max(tl.max(too_large_to_scale.to(tl.int32), 1), 0)
    if LEXICAL:
        top = tl.full([BX], LOG_ZERO, tl.float32)
        for h0 in range(0, length, BR):
            h = h0 + r[:, None]
            ok = (h < length) & (x[None, :] < length) & (h != x[None, :])
            status |= any_invalid(arc + b * n * n + h * n + x[None, :], ok) * 2
            a = score(arc + b * n * n + h * n + x[None, :], ok, MODE)
            top = tl.maximum(top, tl.max(tl.where(ok, a, LOG_ZERO), 0))
        word = x < length
        status |= any_invalid((root + b * n + x)[None, :], word[None, :]) * 4
        at_root = score(root + b * n + x, word, MODE)
        top = tl.zeros([BX], tl.float32) if MODE == VITERBI else tl.maximum(top, at_root)
        tl.store(root_out + b * pitch + x, at_root - top, word)
        tl.store(offset + b * pitch + x, top, word)
        for h0 in range(0, length, BR):
            h = h0 + r[:, None]
            ok = (h < length) & word[None, :] & (h != x[None, :])
            a = score(arc + b * n * n + h * n + x[None, :], ok, MODE) - top[None, :]
            a = tl.where(ok, a, LOG_ZERO)
            cell = (h < length) & word[None, :]
            tl.store(arc_out + (b * n + h) * pitch + x[None, :], a, cell)
            tl.store(arc_by_modifier + (b * n + x[None, :]) * pitch + h, a, cell)
            if MODE != VITERBI:
                tl.store(power + (b * n + h) * pitch + x[None, :], tl.exp2(a), cell)
                tl.store(power_by_modifier + (b * n + x[None, :]) * pitch + h, tl.exp2(a), cell)
    tl.atomic_or(report + b, status)
    tl.atomic_or(report + 4 * batch + b, needs_logspace)
    if tl.program_id(1) == 0:
        tl.store(report + batch + b, given.to(tl.int32))
        tl.store(report + 2 * batch + b, length)
