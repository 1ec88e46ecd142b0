"""Sharing work between threads: by sentences, and where there are fewer of them than threads, within each.

Numba's own threads would stop the process when two threads of Python use them at a time. Kernels run without the
GIL, so threads of Python do. Every cell is computed by one thread, in an order that depends on nothing but the
length of the sentence: the bits of a result depend neither on the number of threads nor on the rest of the batch.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch

from nestree.treecrf.numba_kernels.inside import TILE

LONG = 64  # words of a sentence that is worth several threads
ALL_STEPS = 1 << 30


@cache
def pool(process: int) -> ThreadPoolExecutor:
    """The threads of this process: a fork has none of them."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="nestree")


def share_out(work: Callable[[Any], None], parts: Iterable) -> None:
    """Do the work for all parts, on as many threads as torch may use, this one among them."""
    left = deque(parts)

    def take_part() -> None:
        while True:
            try:
                part = left.popleft()
            except IndexError:
                return
            work(part)

    helpers = min(torch.get_num_threads(), len(left)) - 1
    helping = [pool(os.getpid()).submit(take_part) for _ in range(helpers)]
    try:
        take_part()
    finally:
        left.clear()
        for helper in helping:
            if not helper.cancel():
                helper.result()


def parts_of(lengths: Sequence[int], power: int) -> list[np.ndarray]:
    """The sentences, longest first, in parts that are worth a thread. Work grows as this power of the length."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    threads = torch.get_num_threads()
    costs = [lengths[r] ** power / 15 + 120 * lengths[r] ** 2 for r in order]  # in nanoseconds, about
    enough = max(1e5, sum(costs) / (2 * threads)) if threads > 1 else math.inf
    parts, part, size = [], [], 0.0
    for r, cost in zip(order, costs, strict=True):
        part.append(r)
        size += cost
        if size >= enough:
            parts.append(np.array(part))
            part, size = [], 0.0
    return [*parts, np.array(part)] if part else parts


def run(kernel: Callable, lengths: np.ndarray, prepare: Callable[[int], Callable[[], tuple]]) -> None:
    """Run all steps of a kernel for all sentences.

    `prepare(n)` makes the place for sentences of up to n words, one after the other, and returns a function that
    makes the arguments of one thread there.
    """
    sizes, threads = lengths.tolist(), torch.get_num_threads()
    if len(sizes) >= threads or max(sizes, default=0) < LONG:

        def whole(part: np.ndarray) -> None:
            kernel(part, 0, ALL_STEPS, 0, 1, *prepare(sizes[part[0]])())

        share_out(whole, parts_of(sizes, 4))
        return
    for r, n in enumerate(sizes):
        part, place = np.array([r]), prepare(n)
        arguments = [place() for _ in range(threads)]
        for step in range(n // TILE + 3):

            def one_share(share: int, step: int = step, part: Any = part, arguments: Any = arguments) -> None:
                kernel(part, step, step + 1, share, threads, *arguments[share])

            share_out(one_share, range(threads))
