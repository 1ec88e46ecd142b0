"""Several runs side by side, each in a process that reports to this one."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from benchmarks.timing import Row

Send = Callable[[Row], None]


def run_processes(
    work: Callable[[Any, Send], None], jobs: Mapping[str, Any], at_once: int, receive: Callable[[str, Row], object]
) -> None:
    """Call work(job, send) for each job in a process of its own, `at_once` of them at a time.

    What a process sends is given to receive(name, row); of one that fails also the reason, as "why". SIGINT (Ctrl-C)
    and SIGTERM (`timeout 600 python -m ...`) are passed on, and no further process begins: training saves and ends.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["nestree.training"])
    waiting, running = list(jobs), {}  # running: by the pipe through which a process reports

    def stop(*_: object) -> None:
        waiting.clear()
        for _, process in running.values():
            process.terminate()

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=execute, args=(work, jobs[name], at_once, sender), name=name)
                process.start()
                sender.close()
                running[receiver] = name, process
            for pipe in wait(list(running)):
                name, process = running[pipe]
                try:
                    receive(name, pipe.recv())
                except EOFError:
                    process.join()
                    del running[pipe]
                    if process.exitcode:
                        receive(name, {"status": "failed", "why": f"its process ended with {process.exitcode}"})
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def execute(work: Callable[[Any, Send], None], job: Any, at_once: int, pipe: Connection) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // at_once))
    try:
        work(job, pipe.send)
    except BaseException as error:
        traceback.print_exc()
        pipe.send({"status": "failed", "why": f"{type(error).__name__}: {error}"[:300]})
