"""Where the time of a step goes: its parts one after another, on the clock of the host and on that of the device.

Parts may lie within each other; time counts for the innermost one, so that all parts add up to the whole. On a GPU the
device's clock says how long it worked on a part or waited for its work: a part that the host is slow to queue is long
on both clocks, one that computes for long only on the device's.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

REST = "rest"  # what no part claims


class Spent(NamedTuple):
    """Seconds of one part."""

    host: float
    device: float


class Mark(NamedTuple):
    """From here on, time counts for this part."""

    part: str
    host: float
    device: Any  # a CUDA event; None on a CPU


class Timeline:
    """Marks of parts, while they are passed.

    >>> line = Timeline("cpu")
    >>> with line.running():
    ...     with line.part("outer"):
    ...         with line.part("inner"):
    ...             pass
    >>> list(line.spent())
    ['rest', 'outer', 'inner']
    """

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        self.thread = threading.get_ident()
        self.marks: list[Mark] = []
        self.within = [REST]
        self.elsewhere: dict[str, float] = {}  # seconds of parts that other threads did meanwhile

    def mark(self) -> None:
        event = None
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self.marks.append(Mark(self.within[-1], time.perf_counter(), event))

    @contextmanager
    def running(self) -> Iterator[None]:
        """From the first mark to the last, when the device has finished."""
        self.finish()
        self.mark()
        yield
        self.mark()
        self.finish()

    def finish(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What happens within this is a part of that name."""
        if threading.get_ident() != self.thread:
            started = time.perf_counter()
            yield
            self.elsewhere[name] = self.elsewhere.get(name, 0.0) + time.perf_counter() - started
            return
        self.within.append(name)
        self.mark()
        try:
            yield
        finally:
            self.within.pop()
            self.mark()

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose calls are parts of this name."""

        def called(*arguments: Any, **named: Any) -> Any:
            with self.part(name):
                return function(*arguments, **named)

        return called

    def spent(self) -> dict[str, Spent]:
        """Seconds by part, in the order in which parts first came."""
        found: dict[str, Spent] = {}
        for mark, after in zip(self.marks, self.marks[1:], strict=False):
            before = found.get(mark.part, Spent(0.0, 0.0))
            host = after.host - mark.host
            device = mark.device.elapsed_time(after.device) / 1e3 if self.cuda else host
            found[mark.part] = Spent(before.host + host, before.device + device)
        return found


@contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Within this, attributes of objects, classes and modules are others."""
    absent = object()
    before = [(owner, name, vars(owner).get(name, absent)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            if value is absent:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def table(parts: dict[str, Spent], times: int) -> dict[str, dict[str, float]]:
    """For a report: milliseconds of each part, on the mean of so many times, and its share of the device's clock."""
    whole = sum(spent.device for spent in parts.values()) or 1.0
    return {
        name: {
            "host_ms": 1e3 * spent.host / times,
            "device_ms": 1e3 * spent.device / times,
            "share": spent.device / whole,
        }
        for name, spent in parts.items()
    }
