"""Work on several threads of a CPU, each on a piece of its own.

Two threads with a batch each are faster than one batch on two threads: they wait for each other only at the end. So
PyTorch uses no further threads within those of the crew, and as many as before elsewhere.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Given = TypeVar("Given")
Made = TypeVar("Made")


def on_threads(work: Callable[[Given], Made], given: Sequence[Given]) -> Iterator[Made]:
    """work(one) for each of these, in their order; on as many threads as PyTorch uses."""
    threads = torch.get_num_threads()
    if min(threads, len(given)) < 2:
        yield from map(work, given)
        return
    waiting: list[Future[Made]] = []
    try:
        waiting += [crew(os.getpid(), threads).submit(work, one) for one in given]
        for future in waiting:
            yield future.result()
    finally:
        for future in waiting:
            future.cancel()
        for future in waiting:
            if not future.cancelled():
                future.exception()  # wait: it may still be at work


@functools.cache
def crew(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of this process: a fork has none of them."""
    before = torch.get_num_threads()
    there = threading.Barrier(threads + 1)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="nestree-reader")
    for _ in range(threads):
        pool.submit(report, there)
    there.wait()
    torch.set_num_threads(before)  # a thread sets its own number, and that of threads to come
    return pool


def report(there: threading.Barrier) -> None:
    """The first that a thread of the crew does."""
    torch.get_num_threads()  # when first asked, a thread takes the number of all others
    torch.set_num_threads(1)
    there.wait()
