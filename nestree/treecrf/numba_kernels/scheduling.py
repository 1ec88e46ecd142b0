"""Work shared between threads: by sentences, and within a sentence if there are fewer sentences than threads.

Kernels release the GIL and run in Python threads: numba's own threads abort the process if two Python threads use them
at the same time. Every cell is computed by one thread, in an order that depends only on the length of the sentence: the
bits of a result depend neither on the number of threads nor on the rest of the batch.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from nestree.treecrf.numba_kernels.inside import steps_per_pass

MIN_SPLIT_WORDS = 64  # shorter sentences are not worth several threads
MIN_THREAD_NANOSECONDS = 3e5  # of work per thread; waking one takes a tenth of that or more
ALL_STEPS = 1 << 30


class WorkQueue(NamedTuple):
    """The sentences that a kernel works on, and which of their steps."""

    next: np.ndarray  # [1] the next index into `order`, shared by all threads
    order: np.ndarray  # [m] sentences
    first: int  # step
    last: int  # step, exclusive
    share: int  # this thread's share of each step
    shares: int


@cache
def pool(process: int) -> ThreadPoolExecutor:
    """The thread pool of this process: a forked child has none of its threads."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="nestree")


def run_in_threads(work: Callable[[int], None], threads: int) -> None:
    """Call work(0), work(1), ..., each on its own thread, the first on this one."""
    futures = [(k, pool(os.getpid()).submit(work, k)) for k in range(1, threads)]
    try:
        work(0)
    finally:
        for k, future in futures:
            if future.cancel():  # it has not begun
                work(k)
            else:
                future.result()


class ThreadPlan(NamedTuple):
    """The number of threads, and whether all of them work on the same sentence."""

    threads: int
    split_sentences: bool

    @property
    def slots(self) -> int:
        """How many sentences are in work at the same time."""
        return 1 if self.split_sentences else self.threads


def plan_threads(lengths: np.ndarray, power: int) -> ThreadPlan:
    """How many threads pay off if work grows with this power of the length; with the fourth, sentences can be split."""
    threads, sentences, longest = torch.get_num_threads(), len(lengths), int(max(lengths.max(initial=0), 1))
    if power == 4 and sentences < threads and longest >= MIN_SPLIT_WORDS:
        return ThreadPlan(threads, True)
    nanoseconds = sentences * (longest**power / 8 + 150 * longest**2)
    return ThreadPlan(max(1, min(threads, sentences, int(nanoseconds / MIN_THREAD_NANOSECONDS))), False)


def run(plan: ThreadPlan, lengths: np.ndarray, passes: int, work: Callable[[WorkQueue, int], None]) -> None:
    """Call work(queue, slot) on every thread of the plan, until all steps of all sentences are done."""
    if plan.split_sentences:
        for r, n in enumerate(lengths.tolist()):
            for step in range(passes * steps_per_pass(n)):

                def run_share(thread: int, r: int = r, step: int = step) -> None:
                    counter, order = np.zeros(1, np.int64), np.array([r])
                    work(WorkQueue(counter, order, step, step + 1, thread, plan.threads), 0)

                run_in_threads(run_share, plan.threads)
        return
    # A free thread takes the next sentence, the longest first.
    queue = WorkQueue(np.zeros(1, np.int64), np.argsort(-lengths, kind="stable"), 0, ALL_STEPS, 0, 1)

    def take_items(thread: int) -> None:
        if queue.next[0] < len(queue.order):
            work(queue, thread)

    run_in_threads(take_items, plan.threads)
