"""Ctrl-C, and the signal that ends a job: training finishes its update, saves and stops.

A second one ends it at once.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Stop:
    asked: bool = False  # of this process
    agreed: bool = False  # by all processes, at the same update


@contextmanager
def stopping() -> Iterator[Stop]:
    """Within this, signals ask to stop instead of stopping."""
    stop = Stop()
    before: dict[int, Any] = {}

    def ask(number: int, _: Any) -> None:
        stop.asked = True
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
