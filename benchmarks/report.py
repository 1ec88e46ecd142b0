"""What a benchmark of the tree engine prints: tables for people, from the rows that go into the JSON line."""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.engines import OURS, REFERENCE
from benchmarks.timing import QUIET, Spread

Row = dict[str, Any]

# Milliseconds on one H200, by (batch, n): forward, forward + backward, best trees of the code that was
# released with the paper (PyTorch, one step per width, recomputation): device time, float32, median.
# Measured by us at another time; quoted here, not run.
PUBLISHED = {
    (64, 10): (8.3, 23.9, 22.9),
    (64, 20): (21.2, 61.5, 50.3),
    (64, 30): (39.7, 90.4, 76.6),
    (64, 50): (54.5, 155.0, 137.0),
    (64, 80): (87.6, 264.0, 205.0),
    (32, 120): (160.0, 503.0, 448.0),
    (16, 150): (162.0, 600.0, 548.0),
    (256, 30): (43.5, 94.7, 61.1),
}


def console() -> Console:
    """Standard output, wide enough for the tables where it is not a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=230)


def times_table(title: str, rows: Sequence[Row], peers: Sequence[str], clocks: Sequence[str]) -> Table:
    """One row per operation and size: ours, then each peer with its ratio, median (quartiles) in ms."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    for name in ("operation", "B", "n"):
        table.add_column(name, justify="left" if name == "operation" else "right", no_wrap=True)
    published = any("published_ms" in row for row in rows)
    for name in (OURS, *peers):
        for clock in clocks:
            table.add_column(f"{name}\n{clock} ms", justify="right")
        table.add_column(f"{name}\npeak MiB", justify="right")
        if name != OURS:
            for clock in clocks:
                table.add_column(f"x {name}\n{clock}" if len(clocks) > 1 else f"x {name}", justify="right")
    if published:
        table.add_column("published\ndevice ms", justify="right")
        table.add_column("x published", justify="right")
    previous = None
    for row in rows:
        if previous not in (None, row["operation"]):
            table.add_section()
        previous = row["operation"]
        cells = [row["operation"], str(row["batch"]), str(row["n"])]
        for name in (OURS, *peers):
            cells += measured(row, name, clocks)
        if published and "published_ms" in row:
            cells += [f"{row['published_ms']:.3g}", times(row["ratio"]["published"])]
        elif published:
            cells += ["", ""]
        table.add_row(*cells)
    return table


def measured(row: Row, name: str, clocks: Sequence[str]) -> list[str]:
    columns = len(clocks) + 1 + (0 if name == OURS else len(clocks))
    one = row.get(name)
    if one is None:
        return [""] * columns
    if "skipped" in one:
        return ["skipped", *[""] * (columns - 1)]
    cells = [milliseconds(one[clock]) for clock in clocks]
    cells.append("?" if one["peak_mib"] is None else f"{one['peak_mib']:.3g}")
    if name != OURS:
        cells += [times(row["ratio"][name][clock]) for clock in clocks]
    return cells


def milliseconds(value: Spread) -> str:
    return f"{digits(value.median)} ({digits(value.low)}-{digits(value.high)})"


def digits(value: float) -> str:
    """
    >>> digits(0.012345), digits(1234.5)
    ('0.0123', '1234')
    """
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def skipped(rows: Sequence[Row], peers: Sequence[str]) -> Iterator[str]:
    """A line for each measurement that was not made, with the reason."""
    for row in rows:
        for name in peers:
            if "skipped" in row.get(name, {}):
                what = f"{row['trees']} {row['operation']} {row['batch']}x{row['n']}"
                yield f"skipped: {name}, {what}: {row[name]['skipped']}"


def disturbed(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each measurement beside which other programs ran."""
    for row in rows:
        if row["others_busy_cores"] > QUIET:
            what = f"{row['trees']} {row['operation']} {row['batch']}x{row['n']}"
            yield f"do not trust {what}: other programs kept {row['others_busy_cores']:.2f} cores busy meanwhile"


# How cost grows


def growth(rows: Sequence[Row], clock: str) -> list[Row]:
    """The exponent of the time in n at a fixed batch, and in the batch at a fixed n, from two sizes on."""
    found = []
    for name in (OURS, REFERENCE):
        timed = [row for row in rows if "skipped" not in row.get(name, {"skipped": ""})]
        for variable, fixed in (("n", "batch"), ("batch", "n")):
            groups: dict[tuple[str, str, int], list[tuple[int, float]]] = {}
            for row in timed:
                key = (row["trees"], row["operation"], row[fixed])
                groups.setdefault(key, []).append((row[variable], row[name][clock].median))
            for (trees, operation, at), points in groups.items():
                points.sort()
                if len(points) > 1:
                    found.append(
                        {
                            "trees": trees,
                            "operation": operation,
                            "engine": name,
                            "in": variable,
                            fixed: at,
                            "from": points[0][0],
                            "to": points[-1][0],
                            "exponent": exponent(points),
                            "exponent_at_the_end": exponent(points[-2:]),
                        }
                    )
    return found


def exponent(points: Sequence[tuple[int, float]]) -> float:
    """The slope of log time against log size, by least squares.

    >>> round(exponent([(10, 1.0), (20, 8.0), (40, 64.0)]), 6)
    3.0
    """
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def growth_table(found: Sequence[Row], clock: str) -> Table:
    table = Table(
        title=f"Growth: time ~ size^e, {clock} time. All: fitted over all sizes; end: between the last two.",
        title_justify="left",
    )
    for name in ("trees", "operation", "in", "at", "sizes", "ours, all", "end", "reference, all", "end"):
        table.add_column(name, no_wrap=True)
    lines: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        fixed = "batch" if one["in"] == "n" else "n"
        at = f"{'B' if fixed == 'batch' else 'n'} = {one[fixed]}"
        key = (str(one["trees"]), str(one["operation"]), "n" if one["in"] == "n" else "B", at)
        sizes = f"{one['from']}..{one['to']}"
        cells = lines.setdefault(key, [sizes, "", "", "", ""])
        place = 1 if one["engine"] == OURS else 3
        cells[place : place + 2] = [f"{one['exponent']:.2f}", f"{one['exponent_at_the_end']:.2f}"]
    for line, cells in lines.items():
        table.add_row(*line, *cells)
    return table


def threads_table(rows: Sequence[Row]) -> Table:
    table = Table(title="One thread against two, forward + backward, ms", title_justify="left")
    for name in ("B", "n", "1 thread", "2 threads", "gain"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        one, two = milliseconds(row["1"]), milliseconds(row["2"])
        table.add_row(str(row["batch"]), str(row["n"]), one, two, f"{row['gain']:.2f}x")
    return table


# Progress


class Steps:
    """Says on standard error what is being measured, and about how long the rest will take."""

    def __init__(self, total: float) -> None:
        self.total, self.done, self.start = total, 0.0, time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.task = self.bar.add_task("", total=total)

    def begin(self, what: str) -> None:
        self.bar.update(self.task, description=what)
        if not self.bar.console.is_terminal:
            spent = time.monotonic() - self.start
            left = f", about {spent / self.done * (self.total - self.done):.0f} s left" if self.done else ""
            print(f"{spent:6.1f} s: {what}{left}", file=sys.stderr)

    def end(self, weight: float) -> None:
        self.done += weight
        self.bar.advance(self.task, weight)


@contextmanager
def steps(total: float) -> Iterator[Steps]:
    shown = Steps(total)
    if not shown.bar.console.is_terminal:
        yield shown
        return
    with shown.bar:
        yield shown
