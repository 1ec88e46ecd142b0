"""Clocks, peak memory, the machine of a measurement, and result files.

A `Sample` runs something once and returns milliseconds by clock. Competitors are sampled in turns, so that a slow
minute of the machine affects all of them, and ratios hold.
"""

import gc
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from importlib import metadata
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch

Call = Callable[[], object]
Sample = Callable[[], dict[str, float]]  # milliseconds by clock: `wall`, `device`
Row = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
QUIET = 0.07 * (os.cpu_count() or 1)  # cores that other programs may use during a measurement


class Spread(NamedTuple):
    """Milliseconds of several runs."""

    median: float
    low: float  # first quartile
    high: float  # third quartile
    runs: int


class Competitor(NamedTuple):
    sample: Sample
    per_round: int  # samples in each of its turns


def spread(milliseconds: Sequence[float]) -> Spread:
    """
    >>> spread([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.5, high=2.5, runs=3)
    """
    median = statistics.median(milliseconds)
    if len(milliseconds) == 1:
        return Spread(median, median, median, 1)
    low, _, high = statistics.quantiles(milliseconds, n=4, method="inclusive")
    return Spread(median, low, high, len(milliseconds))


def interleave(competitors: Mapping[str, Competitor], rounds: int) -> tuple[dict[str, dict[str, Spread]], float]:
    """Sample all in turns, the first also at the end; spreads by competitor and clock, and how many cores other
    programs used meanwhile: threads that wait for each other suffer most from them, even in turns."""
    gc.collect()
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in competitors}
    start = time.perf_counter(), other_cpu_seconds()
    for name in [*competitors] * rounds + [next(iter(competitors))]:
        samples[name] += [competitors[name].sample() for _ in range(competitors[name].per_round)]
    cores = max(0.0, other_cpu_seconds() - start[1]) / (time.perf_counter() - start[0])
    spreads = {
        name: {clock: spread([sample[clock] for sample in taken]) for clock in taken[0]}
        for name, taken in samples.items()
    }
    return spreads, cores


def other_cpu_seconds() -> float:
    """CPU seconds of other programs and other guests of the machine so far; 0 where /proc is missing."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields)
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return busy - time.process_time()


def rotate(calls: Sequence[Call]) -> Call:
    """Each call runs the next of these: the same work on other inputs, which are in no cache."""
    turn = cycle(calls)
    return lambda: next(turn)()


# Clocks


def wall_clock(call: Call, device: str) -> Sample:
    """Host time of one call, until the device has finished."""

    def sample() -> dict[str, float]:
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        return {"wall": (time.perf_counter() - start) * 1e3}

    return sample


def event_clock(call: Call) -> Sample:
    """CUDA events around one call, which include idle times of the device, and host time of the same."""

    def sample() -> dict[str, float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        torch.cuda.synchronize()
        start = time.perf_counter()
        events[0].record()
        call()
        events[1].record()
        torch.cuda.synchronize()
        wall = (time.perf_counter() - start) * 1e3
        return {"wall": wall, "device": events[0].elapsed_time(events[1])}

    return sample


def graph_clock(call: Call, captured: Sequence[Call], after_warmup: Call, least_ms: float = 2.0) -> Sample:
    """CUDA events around replays of CUDA graphs, and host time of one call outside of a graph.

    `captured` do on the device what `call` does, each on its own inputs; a sample is the mean of as many replays, in
    turns, as take `least_ms` together. Raises RuntimeError if they synchronize, which cannot be captured.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for work in [*captured, *captured]:
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    after_warmup()
    graphs = []
    for work in captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side, capture_error_mode="relaxed"):
            work()
        graphs.append(graph)

    def replays(count: int) -> Sample:
        def replay() -> None:
            for i in range(count):
                graphs[i % len(graphs)].replay()

        return event_clock(replay)

    once = replays(len(graphs))
    once()
    count = max(len(graphs), round(least_ms * len(graphs) / max(once()["device"], 1e-3)))
    many, wall = replays(count), wall_clock(call, "cuda")
    return lambda: {**wall(), "device": many()["device"] / count}


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# Memory


def peak_cuda(call: Call) -> float:
    """MiB by which the allocated GPU memory rises during a call."""
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def peak_cpu(prepare: Callable[..., tuple[Call, Call]], *arguments: Any) -> float | None:
    """MiB by which the resident memory of a new process rises during a call; None where /proc is missing.

    `prepare`, a function of a module, returns two calls: one that loads all code, and the one to measure. The process
    is new because allocators keep freed memory, and a later call would seem to need none.
    """
    if not os.access("/proc/self/clear_refs", os.W_OK):
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([prepare.__module__])
    with ProcessPoolExecutor(1, context) as pool:
        try:
            return pool.submit(memory_rise, prepare, *arguments).result()
        except BrokenProcessPool:  # it was killed: too much memory
            return None


def memory_rise(prepare: Callable[..., tuple[Call, Call]], *arguments: Any) -> float:
    load, call = prepare(*arguments)
    load()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = read_status("VmRSS")
    output = call()  # kept until the peak is read
    rise = read_status("VmHWM") - before
    del output
    return rise / 2**20


def read_status(key: str, process: int | str = "self") -> int:
    """Bytes, from /proc/PROCESS/status."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


# Results


def provenance(device: str, commit: str | None) -> Row:
    """Date, commit, machine and versions, for a result."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit or git_commit(),
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu_model(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "numba", "triton", "torch-struct")},
    }


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """The commit of this checkout, with `+` if files differ from it; None outside a checkout."""
    git = ["git", "-C", str(ROOT)]
    try:
        commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True, stderr=subprocess.DEVNULL)
        changed = subprocess.check_output([*git, "status", "--porcelain", "-uno"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.strip() + ("+" if changed.strip() else "")


def cpu_model() -> str:
    try:
        lines = subprocess.check_output(["lscpu"], text=True, stderr=subprocess.DEVNULL).splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.lower().startswith("model name"))
    except (OSError, subprocess.CalledProcessError, StopIteration):
        return platform.processor() or platform.machine()


def store(result: object, path: Path | None) -> str:
    """The result as one line of JSON, floats rounded to six digits; replaces the file atomically, if one is named."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.6g}")
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            value = value._asdict()
        if isinstance(value, Mapping):
            return {str(key): rounded(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [rounded(item) for item in value]
        return value

    line = json.dumps(rounded(result), allow_nan=False)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
            file.write(line + "\n")
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    return line
