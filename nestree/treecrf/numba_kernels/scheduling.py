"""Sharing work between threads: by sentences, and where there are fewer of them than threads, within each.

Numba's own threads would stop the process when two threads of Python use them at a time. Kernels run without the
GIL, so threads of Python do. Every cell is computed by one thread, in an order that depends on nothing but the
length of the sentence: the bits of a result depend neither on the number of threads nor on the rest of the batch.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from nestree.treecrf.numba_kernels.inside import steps_of

MIN_SPLIT_WORDS = 64  # words of a sentence that is worth several threads
MIN_THREAD_NANOSECONDS = 3e5  # nanoseconds of work: waking a thread takes a tenth of that or more
ALL_STEPS = 1 << 30


class WorkQueue(NamedTuple):
    """The sentences that a kernel works on, and which of their steps."""

    next: np.ndarray  # [1] how many of the sentences have been taken, by all threads
    order: np.ndarray  # [m] sentences
    first: int  # step
    last: int  # step, exclusive
    share: int  # of each step
    shares: int


@cache
def pool(process: int) -> ThreadPoolExecutor:
    """The threads of this process: a fork has none of them."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="nestree")


def run_in_threads(work: Callable[[int], None], threads: int) -> None:
    """work(0), work(1) and so on, each on a thread of its own, the first on this one."""
    helping = [(k, pool(os.getpid()).submit(work, k)) for k in range(1, threads)]
    try:
        work(0)
    finally:
        for k, helper in helping:
            if helper.cancel():  # it has not begun
                work(k)
            else:
                helper.result()


class ThreadPlan(NamedTuple):
    """The number of threads, and whether all of them work on the same sentence."""

    threads: int
    split_sentences: bool

    @property
    def places(self) -> int:
        """How many sentences are being worked on at a time."""
        return 1 if self.split_sentences else self.threads


def plan_threads(lengths: np.ndarray, power: int) -> ThreadPlan:
    """How many threads pay off. Work grows with this power of the length; with the fourth, sentences can be split."""
    threads, sentences, longest = torch.get_num_threads(), len(lengths), int(max(lengths.max(initial=0), 1))
    if power == 4 and sentences < threads and longest >= MIN_SPLIT_WORDS:
        return ThreadPlan(threads, True)
    nanoseconds = sentences * (longest**power / 8 + 150 * longest**2)
    return ThreadPlan(max(1, min(threads, sentences, int(nanoseconds / MIN_THREAD_NANOSECONDS))), False)


def run(plan: ThreadPlan, lengths: np.ndarray, passes: int, work: Callable[[WorkQueue, int], None]) -> None:
    """Call work(queue, place) on every thread of the plan, until all steps of all sentences are done."""
    if plan.split_sentences:
        for r, n in enumerate(lengths.tolist()):
            for step in range(passes * steps_of(n)):

                def one_share(thread: int, r: int = r, step: int = step) -> None:
                    work(
                        WorkQueue(np.zeros(1, np.int64), np.array([r]), step, step + 1, thread, plan.threads),
                        0,
                    )

                run_in_threads(one_share, plan.threads)
        return
    # the next sentence goes to the first thread that is free, the longest first
    queue = WorkQueue(np.zeros(1, np.int64), np.argsort(-lengths, kind="stable"), 0, ALL_STEPS, 0, 1)

    def take_items(thread: int) -> None:
        if queue.next[0] < len(queue.order):
            work(queue, thread)

    run_in_threads(take_items, plan.threads)
