"""How long and how much: medians of interleaved runs, CUDA graphs, peak memory, and what machine it was.

A sample is a function that runs something once and returns milliseconds, by the name of the clock. Samples of
rivals are taken in turns, so that a slow minute of the machine is shared by all of them, and ratios stand.
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
from datetime import UTC, datetime
from importlib import metadata
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch

Call = Callable[[], object]
Sample = Callable[[], dict[str, float]]  # runs once and returns milliseconds by clock: `wall`, `device`

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
QUIET = 0.07 * (os.cpu_count() or 1)  # cores that other programs may keep busy during a measurement


class Spread(NamedTuple):
    """What a number of runs took, in milliseconds."""

    median: float
    low: float  # the first quartile
    high: float  # the third
    runs: int


class Lane(NamedTuple):
    """One of several rivals that are measured in turns."""

    sample: Sample
    per_round: int  # how many samples it gives when it is its turn


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


def interleave(lanes: Mapping[str, Lane], rounds: int) -> dict[str, dict[str, Spread]]:
    """Every lane in turn, again and again; the first also comes last. Spreads by lane and clock."""
    gc.collect()
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in lanes}
    first = next(iter(lanes))
    for name in [*lanes] * rounds + [first]:
        taken[name] += [lanes[name].sample() for _ in range(lanes[name].per_round)]
    return {
        name: {clock: spread([sample[clock] for sample in samples]) for clock in samples[0]}
        for name, samples in taken.items()
    }


def undisturbed(
    lanes: Mapping[str, Lane], rounds: int, tries: int
) -> tuple[dict[str, dict[str, Spread]], float]:
    """interleave, and how many cores other programs kept busy meanwhile: the quietest of some tries.

    Turns share out a disturbance, but not evenly: threads that wait for each other suffer most.
    """
    found = []
    for again in range(tries):
        if again:
            wait_for_quiet()
        start = time.perf_counter(), others_seconds()
        spreads = interleave(lanes, rounds)
        others = max(0.0, others_seconds() - start[1]) / (time.perf_counter() - start[0])
        if others <= QUIET:
            return spreads, others
        found.append((others, spreads))
    others, spreads = min(found, key=lambda each: each[0])
    return spreads, others


def wait_for_quiet(most_seconds: float = 60.0) -> None:
    """Until other programs are done, but not for ever."""
    end = time.perf_counter() + most_seconds
    while time.perf_counter() < end:
        before = others_seconds()
        time.sleep(1.0)
        if others_seconds() - before <= QUIET:
            return


def others_seconds() -> float:
    """Seconds of all cores that went to other programs or to other guests of the machine; 0 if unknown."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields)
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return busy - time.process_time()


def rotating(calls: Sequence[Call]) -> Call:
    """Each call runs the next of these: the same work on other inputs, so that no cache knows them."""
    turn = cycle(calls)
    return lambda: next(turn)()


# Clocks


def wall_clock(call: Call, device: str) -> Sample:
    """The host's clock around one call; on a GPU, until the GPU has finished."""

    def sample() -> dict[str, float]:
        wait(device)
        start = time.perf_counter()
        call()
        wait(device)
        return {"wall": (time.perf_counter() - start) * 1e3}

    return sample


def event_clock(call: Call) -> Sample:
    """CUDA events around one call, the device's idle times included, and the host's clock around the same."""

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


def graph_clock(call: Call, recorded: Sequence[Call], settle: Call, least_ms: float = 2.0) -> Sample:
    """CUDA events around replays of recorded graphs, and the host's clock around one call as it is made.

    `recorded` do on the device what `call` does, each on inputs of its own; a sample is the mean of as many
    replays, in turns, as take `least_ms` together. `settle` comes between warm-up and recording. Raises if
    they wait for the GPU: that cannot be recorded.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for work in [*recorded, *recorded]:
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    settle()
    graphs = []
    for work in recorded:
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


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# Memory


def peak_cuda(call: Call) -> float:
    """MiB by which the memory that tensors hold on the GPU rises during a call."""
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / MIB


def peak_cpu(prepare: Callable[..., tuple[Call, Call]], *arguments: Any) -> float | None:
    """MiB by which a fresh process's resident memory rises during a call; None where there is no /proc.

    `prepare`, a function of a module, makes two calls there: one that loads all code, and the one to measure.
    A fresh process, because an allocator keeps what was freed, and a later call would seem to need nothing.
    """
    if not os.access("/proc/self/clear_refs", os.W_OK):
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([prepare.__module__])
    answer, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_resident_rise, args=(theirs, prepare, arguments))
    child.start()
    theirs.close()
    try:
        return answer.recv()
    except EOFError:
        return None  # it was killed: too much memory
    finally:
        child.join()


def _resident_rise(
    answer: Any, prepare: Callable[..., tuple[Call, Call]], arguments: tuple[Any, ...]
) -> None:
    load, call = prepare(*arguments)
    load()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    kept = call()
    answer.send((_status("VmHWM") - before) / MIB)
    del kept


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


# Where, when and what


def provenance(device: str, commit: str | None) -> dict[str, Any]:
    """What the numbers of a run belong to."""
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
    try:
        commit = subprocess.check_output(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, text=True, stderr=subprocess.DEVNULL
        )
        changed = subprocess.check_output(["git", "status", "--porcelain", "-uno"], cwd=ROOT, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.strip() + ("+" if changed.strip() else "")


def cpu_model() -> str:
    """
    >>> bool(cpu_model())
    True
    """
    for command in (["lscpu"], ["cat", "/proc/cpuinfo"]):
        try:
            lines = subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).splitlines()
        except (OSError, subprocess.CalledProcessError):
            continue
        for line in lines:
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def write_whole(path: Path, text: str) -> None:
    """The file holds all of the text or what it held before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def one_line(result: object) -> str:
    """JSON in one line, numbers rounded to six digits."""

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

    return json.dumps(rounded(result), allow_nan=False)
