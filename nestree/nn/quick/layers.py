"""One layer of a BERT-like encoder in a single kernel, on rows without padding.

Windows of pieces lie one after another; a few whole windows at a time go through all of the layer, so that what is
between its steps stays in the cache. Linear maps are products in 8 bits, all else is float32.
"""

from typing import NamedTuple

import numpy as np

from nestree.nn.quick.products import Weights, multiply, padded, round_rows
from nestree.nn.quick.rows import (
    SPARE,
    add_and_normalise,
    exponentials,
    four_sums,
    gelu,
    highest,
    round_row,
)
from nestree.treecrf.numba_kernels.jit import called, kernel
from nestree.treecrf.numba_kernels.simd import scale

ROWS = 64  # that go through a layer together, or more, as windows are whole


class Norm(NamedTuple):
    weight: np.ndarray  # [D]
    bias: np.ndarray  # [D]
    epsilon: np.float32


class Layer(NamedTuple):
    """The weights of a layer. Queries are divided by the root of a head's size already."""

    asked: Weights  # D -> 3 D: queries, keys, values
    answer: Weights  # D -> D
    answer_norm: Norm
    wide: Weights  # D -> hidden
    narrow: Weights  # hidden -> D
    norm: Norm
    heads: int


class Room(NamedTuple):
    """Memory to work in, for so many rows at once."""

    numbers: np.ndarray  # [rows * hidden]
    scales: np.ndarray  # [rows]
    asked: np.ndarray  # [rows * 3 D]
    keys: np.ndarray  # [size of a head * longest window]
    looks: np.ndarray  # [4 * longest window]
    context: np.ndarray  # [rows * D]
    middle: np.ndarray  # [rows * D]
    hidden: np.ndarray  # [rows * hidden]


def room_for(layer: Layer, longest: int) -> Room:
    """For windows of so many pieces at most."""
    rows, size, hidden = padded(ROWS + longest), layer.asked.inputs, layer.wide.outputs
    broad = longest + SPARE

    def floats(count: int) -> np.ndarray:
        return np.empty(count, np.float32)

    return Room(
        np.empty(rows * max(hidden, size), np.int8),
        np.ones(rows, np.float32),
        floats(rows * 3 * size),
        np.zeros(size // layer.heads * broad, np.float32),  # beyond a window, what is read must be a number
        floats(4 * broad),
        floats(rows * size),
        floats(rows * size),
        floats(rows * hidden),
    )


@called
def attend(asked, first, count, size, heads, keys, looks, context):
    """context of the rows of one window = what its pieces see in each other. Up to three more rows are written."""
    each, step, broad = size // heads, 3 * size, count + SPARE
    for head in range(0, size, each):
        for j in range(count):
            for d in range(each):
                keys[d * broad + j] = asked[(first + j) * step + size + head + d]
        values = first * step + 2 * size + head
        for i in range(first, first + count, 4):
            four_sums(looks, 0, broad, asked, i * step + head, step, keys, 0, broad, each, count)
            for r in range(min(4, first + count - i)):
                total = exponentials(looks, r * broad, count, highest(looks, r * broad, count))
                scale(looks, r * broad, count, 1 / total, looks, r * broad)
            four_sums(context, i * size + head, size, looks, 0, broad, asked, values, step, count, each)


@called
def normalise_rows(rows, at, others, others_at, count, size, norm, numbers, scales):
    """rows = norm(rows + others), and the same in 8 bits."""
    for r in range(count):
        here, there = at + r * size, others_at + r * size
        largest = add_and_normalise(rows, here, others, there, size, norm.weight, norm.bias, norm.epsilon)
        scales[r] = round_row(rows, here, size, largest, numbers, r * size)


@called
def some_windows(states, out, ends, first, last, start, layer, room):
    """The layer for windows first to last, whose rows begin at `start`."""
    size, hidden = layer.asked.inputs, layer.wide.outputs
    count, at = ends[last - 1] - start, start * size
    round_rows(states, at, count, size, room.numbers, room.scales)
    multiply(room.numbers, room.scales, count, layer.asked, room.asked, 0)
    row = 0
    for w in range(first, last):
        end = ends[w] - start
        attend(room.asked, row, end - row, size, layer.heads, room.keys, room.looks, room.context)
        row = end
    round_rows(room.context, 0, count, size, room.numbers, room.scales)
    multiply(room.numbers, room.scales, count, layer.answer, room.middle, 0)
    normalise_rows(room.middle, 0, states, at, count, size, layer.answer_norm, room.numbers, room.scales)
    multiply(room.numbers, room.scales, count, layer.wide, room.hidden, 0)
    for r in range(count):
        largest = gelu(room.hidden, r * hidden, hidden)
        room.scales[r] = round_row(room.hidden, r * hidden, hidden, largest, room.numbers, r * hidden)
    multiply(room.numbers, room.scales, count, layer.narrow, out, at)
    for r in range(count):
        here = at + r * size
        add_and_normalise(
            out, here, room.middle, r * size, size, layer.norm.weight, layer.norm.bias, layer.norm.epsilon
        )


@kernel
def layer_part(states, out, ends, layer, room):
    """out = the layer on states [rows * D]; ends [windows] of their rows. `out` has TALL - 1 rows more."""
    first, start = 0, 0
    while first < len(ends):
        last = first + 1
        while last < len(ends) and ends[last] - start <= ROWS:
            last += 1
        some_windows(states, out, ends, first, last, start, layer, room)
        start, first = ends[last - 1], last
