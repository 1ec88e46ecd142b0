"""The tree engine against its reference and its peers: `python -m benchmarks.treecrf [--device cpu|cuda]`.

Runs the correctness tests of the backend first and reports no speed while one fails. Prints tables and, last,
one line of JSON with everything; the same line goes to benchmarks/results/. Rows are kept in a file beside it as they
are measured, should the run be cut short.

Every time is the median of several runs in one process, engines in turns, on three sets of normal scores.
`wall` is the host's clock around the public call; on a GPU, `device` is a replayed CUDA graph of the same
call, or events around it where it waits for the device and cannot be recorded, as the reference does.
"""

import argparse
import gc
import importlib.util
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from benchmarks.engines import (
    BOTH,
    FORWARD,
    OPERATIONS,
    OURS,
    REFERENCE,
    SUPAR,
    TORCH_STRUCT,
    Engine,
    Inputs,
    agree,
    engine,
    for_memory,
    random_inputs,
)
from benchmarks.preflight import first_calls, run_tests
from benchmarks.report import Row
from benchmarks.timing import (
    ROOT,
    Call,
    Lane,
    Sample,
    event_clock,
    graph_clock,
    one_line,
    peak_cpu,
    peak_cuda,
    provenance,
    rotating,
    undisturbed,
    wall_clock,
    write_whole,
)
from nestree.errors import ChartMemoryError
from nestree.treecrf import log_partition, memory, raise_pending, reference, use_backend

SIZES = {
    "cpu": "16x10,16x20,16x30,16x40,16x60,64x10,1x100",
    "cuda": "64x10,64x20,64x30,64x50,64x80,32x120,16x150,256x30",
}
INPUT_SETS = 3
LONGEST_RUN = {"cpu": 60.0, "cuda": 10.0}  # seconds; a peer that is expected to take longer is skipped
PEER_SECONDS = {"cpu": 8.0, "cuda": 1.0}  # about what the repeats of a peer may take, per operation and size
OWN_SECONDS = 0.3  # the same for ours, per round
ROUNDS = (2, 7)
TRIES = {"cpu": 5, "cuda": 1}  # again, if other programs kept the processor busy
PEAK = {
    "cpu": "rise of the resident memory of a fresh process during one call (VmHWM, reset before the call)",
    "cuda": "rise of torch.cuda.max_memory_allocated during one call",
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    out = report.console()
    result: Row = {"benchmark": "treecrf", **provenance(options.device, options.commit)}
    result["tests"] = None if options.skip_tests else run_tests(options.device, options.tests)
    result["first_call_seconds"] = first_calls(options.device)
    engines, result["peers"] = contenders(options.device, options.supar)
    result["rows"] = []
    for row in measure_all(engines, options):
        result["rows"].append(row)
        write_whole(unfinished(options.out), one_line(result) + "\n")  # should the run be cut short
    if options.device == "cpu":
        result["one_or_two_threads"] = [one_or_two_threads(batch, n) for batch, n in options.sizes]
    clock = "device" if options.device == "cuda" else "wall"
    result["growth"] = report.growth(result["rows"], clock)
    result["peak_memory"] = PEAK[options.device]
    show(result, options.device, clock, engines, out)
    line = one_line(result)
    write_whole(options.out, line + "\n")
    unfinished(options.out).unlink(missing_ok=True)
    print(line)


def unfinished(out: Path) -> Path:
    """Where the rows that are there already wait for the others."""
    return out.with_suffix(".unfinished.json")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.treecrf", description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--supar", type=Path, help="a checkout of SuPar's source, to be measured too")
    parser.add_argument("--sizes", help="batch x words, as in 16x20,64x30")
    parser.add_argument("--skip-tests", action="store_true", help="for trying things out; the result says so")
    parser.add_argument(
        "--tests", type=Path, metavar="XML", help="what pytest --junitxml said of them just now"
    )
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/treecrf-DEVICE.json")
    parser.add_argument("--commit", help="what to record as the commit where this is no git checkout")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; leave --device out to measure the CPU.")
    try:
        pairs = [size.split("x") for size in (options.sizes or SIZES[options.device]).split(",")]
        options.sizes = [(int(batch), int(n)) for batch, n in pairs]
    except ValueError:
        parser.error(f"--sizes {options.sizes} is no list of sizes; write batch x words, as in 16x20,64x30.")
    options.out = options.out or ROOT / "benchmarks" / "results" / f"treecrf-{options.device}.json"
    return options


# Before anything is timed


def contenders(device: str, supar: Path | None) -> tuple[dict[str, list[Engine]], Row]:
    """Whom to measure on which trees, and how far each peer is from us, or why it is left out."""
    both = [engine(OURS, device), engine(REFERENCE, device)]
    engines, notes = {"lexical": both, "plain": both}, Row()
    if importlib.util.find_spec("torch_struct"):
        engines["plain"] = [*both, engine(TORCH_STRUCT, device)]
    else:
        notes[TORCH_STRUCT] = "skipped: the package torch-struct is not installed"
    if supar is not None:
        engines["lexical"] = [*both, engine(SUPAR, device, supar)]
    else:
        notes[SUPAR] = "skipped: pass a checkout of its source with --supar"
    for trees, some in engines.items():
        for peer in some[2:]:
            notes[peer.name] = {"difference from ours": agree(peer, trees, device)}
    return engines, notes


# Measuring


def measure_all(engines: dict[str, list[Engine]], options: argparse.Namespace) -> Iterator[Row]:
    """A row for each operation and size, as it is measured."""
    plan = [
        (trees, operation, batch, n)
        for trees, operations in OPERATIONS.items()
        for operation in operations
        for batch, n in options.sizes
    ]
    rows: list[Row] = []
    with report.steps(sum(guess(trees, batch, n) for trees, _, batch, n in plan)) as progress:
        for trees, operation, batch, n in plan:
            progress.begin(f"{trees} {operation} {batch}x{n}")
            rows.append(measure(engines[trees], trees, operation, batch, n, options, rows))
            progress.end(guess(trees, batch, n))
            yield rows[-1]


def measure(
    engines: Sequence[Engine],
    trees: str,
    operation: str,
    batch: int,
    n: int,
    options: argparse.Namespace,
    before: Sequence[Row],
) -> Row:
    """One operation at one size, by every engine that can."""
    device = options.device
    row: Row = {"trees": trees, "operation": operation, "batch": batch, "n": n}
    sets = [random_inputs(trees, batch, n, device, seed, torch.float32) for seed in range(INPUT_SETS)]
    if operation == FORWARD and too_much(engines[1], row, sets[0], device, before) is None:
        compare(sets[0], engines[0])
    lanes, slowest = {}, 0.0
    for one in engines:
        if operation not in one.operations:
            continue
        why = None if one.name == OURS else too_much(one, row, sets[0], device, before)
        try:
            if why is None:
                sample, seconds, row[one.name] = prepared(one, row, sets, options)
        except (torch.OutOfMemoryError, ChartMemoryError) as error:
            why = str(error).split("\n")[0]
        if why is not None:
            row[one.name] = {"skipped": why}
            continue
        lanes[one.name] = Lane(sample, runs(OWN_SECONDS, seconds, 1, 10) if one.name == OURS else 1)
        slowest = max(slowest, seconds if one.name != OURS else 0.0)
    measured, row["others_busy_cores"] = undisturbed(
        lanes, runs(PEER_SECONDS[device], slowest, *ROUNDS), tries=TRIES[device]
    )
    for name, times in measured.items():
        row[name].update(times)
    row["ratio"] = {
        name: {clock: row[name][clock].median / row[OURS][clock].median for clock in clocks(device)}
        for name in lanes
        if name != OURS
    }
    if device == "cuda" and trees == "lexical" and "H200" in torch.cuda.get_device_name():
        quote(row)
    lanes.clear()
    gc.collect()
    if device == "cuda":
        raise_pending()
        torch.cuda.empty_cache()
    return row


def prepared(
    one: Engine, row: Row, sets: Sequence[Inputs], options: argparse.Namespace
) -> tuple[Sample, float, Row]:
    """A sample for an engine that is warm, about how many seconds it takes, and its memory."""
    operation, device = row["operation"], options.device
    inputs = [one.prepare(some) for some in sets]
    calls = [partial(one.operations[operation], some) for some in inputs]
    found: Row = {}
    with one.setting():
        clock = wall_clock(calls[0], device)
        seconds = clock()["wall"] / 1e3
        if one.name == OURS or seconds < 1:  # the first was for compiling and for caches
            seconds = clock()["wall"] / 1e3
        if device == "cpu":
            sample = wall_clock(rotating(calls), device)
        else:
            sample, found["device_by"] = device_clock(one, operation, calls, inputs)
    if device == "cuda":
        found["peak_mib"] = peak_cuda(within(one, calls[0]))
    else:
        size = (row["trees"], operation, row["batch"], row["n"])
        found["peak_mib"] = peak_cpu(for_memory, one.name, options.supar, *size)
    return within(one, sample), seconds, found


def device_clock(
    one: Engine, operation: str, calls: Sequence[Call], inputs: Sequence[Any]
) -> tuple[Sample, str]:
    """A replayed graph where the engine can be recorded, else events around the call."""
    if operation not in one.recorded:
        return event_clock(rotating(calls)), "events"
    try:
        recorded = [partial(one.recorded[operation], some) for some in inputs]
        return graph_clock(rotating(calls), recorded, settle=raise_pending), "graph"
    except RuntimeError as why:
        return event_clock(rotating(calls)), f"events; not recorded: {str(why).splitlines()[0]}"


def within(one: Engine, call: Any) -> Any:
    def run() -> Any:
        with one.setting():
            return call()

    return run


def compare(inputs: Inputs, ours: Engine) -> None:
    """Ends the program unless the inputs to be timed give the reference's log Z on our backend."""
    with torch.no_grad():
        with ours.setting():
            fast = log_partition(*inputs)
        with use_backend("reference"):
            slow = log_partition(*inputs)
    difference = float(((fast - slow).abs() / slow.abs().clamp(min=1)).max())
    if not difference < 1e-4:
        raise SystemExit(
            f"no speed is reported: log Z of ours and of the reference differ by {difference:.2g}."
        )


def too_much(one: Engine, row: Row, inputs: Inputs, device: str, before: Sequence[Row]) -> str | None:
    """Why a peer is not run at this size: its memory, or its time as a smaller size foretells it."""
    gradient = row["operation"] not in (FORWARD, "best trees")
    needed = 2 * reference.chart_bytes(inputs.potentials, gradient)
    free = memory.free_bytes(torch.device(device))
    if free is not None and needed > free:
        return f"it would need about {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
    size = work(row["trees"], row["batch"], row["n"])
    known = [
        (work(past["trees"], past["batch"], past["n"]), past[one.name]["wall"].median)
        for past in before
        if (past["trees"], past["operation"]) == (row["trees"], row["operation"])
        and "wall" in past.get(one.name, {})
    ]
    if known:
        nearest, milliseconds = max(known)
        expected = milliseconds / 1e3 * size / nearest
        if expected > LONGEST_RUN[device]:
            return f"one run would take about {expected:.0f} s"
    return None


def work(trees: str, batch: int, n: int) -> float:
    return batch * float(n) ** (4 if trees == "lexical" else 3)


def guess(trees: str, batch: int, n: int) -> float:
    """Seconds that the measurements of one operation may take; only for the progress bar."""
    return 3 + 1e-7 * work(trees, batch, n)


def runs(seconds: float, each: float, least: int, most: int) -> int:
    return max(least, min(most, int(seconds / max(each, 1e-6))))


def clocks(device: str) -> tuple[str, ...]:
    return ("device", "wall") if device == "cuda" else ("wall",)


def quote(row: Row) -> None:
    """Put the published figure for this size and operation beside ours."""
    figures = report.PUBLISHED.get((row["batch"], row["n"]))
    place = OPERATIONS["lexical"].index(row["operation"])
    if figures and place < len(figures):
        row["published_ms"] = figures[place]
        row["ratio"]["published"] = figures[place] / row[OURS]["device"].median


def one_or_two_threads(batch: int, n: int) -> Row:
    """Forward + backward of ours with one thread and with two, in turns."""
    ours, usual = engine(OURS, "cpu"), torch.get_num_threads()
    sets = [random_inputs("lexical", batch, n, "cpu", seed, torch.float32) for seed in range(INPUT_SETS)]
    sample = wall_clock(rotating([partial(ours.operations[BOTH], some) for some in sets]), "cpu")

    def with_threads(threads: int) -> dict[str, float]:
        torch.set_num_threads(threads)
        try:
            with ours.setting():
                return sample()
        finally:
            torch.set_num_threads(usual)

    start = time.perf_counter()
    for threads in (1, 2):
        with_threads(threads)
    each = runs(OWN_SECONDS, (time.perf_counter() - start) / 2, 1, 10)
    lanes = {str(k): Lane(partial(with_threads, k), each) for k in (1, 2)}
    found, others = undisturbed(lanes, rounds=5, tries=TRIES["cpu"])
    one, two = found["1"]["wall"], found["2"]["wall"]
    gain = one.median / two.median
    return {"batch": batch, "n": n, "1": one, "2": two, "gain": gain, "others_busy_cores": others}


# Telling


def show(result: Row, device: str, clock: str, engines: dict[str, list[Engine]], out: Any) -> None:
    out.print(f"{result['device']}, torch {result['versions']['torch']}, commit {result['commit']}")
    tests = result["tests"]
    out.print(
        f"tests: {tests['passed']} passed" if tests else "tests: SKIPPED, so these numbers count for nothing"
    )
    for state, seconds in result["first_call_seconds"].items():
        out.print(f"first call of everything, {state}: {seconds['all']:.2f} s")
    for trees, some in engines.items():
        rows = [row for row in result["rows"] if row["trees"] == trees]
        peers = [one.name for one in some[1:]]
        title = f"{trees} trees: median (quartiles); ratios from this one run, engines measured in turns"
        out.print(report.times_table(title, rows, peers, clocks(device)))
        for line in (*report.skipped(rows, peers), *report.disturbed(rows)):
            out.print(line)
    for name, note in result["peers"].items():
        out.print(f"{name}: {note}")
    if any("published_ms" in row for row in result["rows"]):
        out.print(
            "published: the code released with the paper on an H200, measured earlier; quoted, not run here"
        )
    if device == "cuda":
        by = sorted(
            {
                f"{name}: {row[name]['device_by']}"
                for row in result["rows"]
                for name in row
                if is_timed(row[name])
            }
        )
        out.print("device time by: " + "; ".join(by))
    out.print(f"peak memory: {result['peak_memory']}")
    if result["growth"]:
        out.print(report.growth_table(result["growth"], clock))
    if device == "cpu":
        out.print(report.threads_table(result["one_or_two_threads"]))


def is_timed(value: Any) -> bool:
    return isinstance(value, dict) and "device_by" in value


if __name__ == "__main__":
    main()
