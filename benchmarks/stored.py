"""The results that are kept under benchmarks/results: one JSON object a line, each what a benchmark said in the end."""

import json
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SMALL = re.compile(r"encoder\.path=.*MiniLM")
ENCODER, RECORDS = "encoder.path=", "training.cuda_graphs="
RERUNS = "reruns"  # how their files begin
RESULTS = Path(__file__).resolve().parent / "results"


def results(benchmark: str, folder: Path = RESULTS, again: bool = False) -> Iterator[Row]:
    """All that one benchmark said, file by file; `again`: when it was run once more, to see whether it can be."""
    files = (path for path in folder.glob("*.json") if path.name.startswith(RERUNS) == again)
    for path in sorted(files):
        for line in path.read_text(encoding="utf-8").splitlines():
            result = json.loads(line)
            if result.get("benchmark") == benchmark:
                yield {**result, "file": path.name}


def trainings(folder: Path = RESULTS, small: bool = False) -> list[Row]:
    """Every run that was scored on test, with where and when it ran; `small`: with the encoder of the box."""
    return [row for row in scored("training", folder) if small == is_small(row)]


def is_small(row: Row) -> bool:
    """Is its encoder that of the box?"""
    return any(map(SMALL.match, row["changes"]))


def reruns(folder: Path = RESULTS) -> list[Row]:
    """The runs that were made once more."""
    return scored("training", folder, again=True)


def analysed(folder: Path = RESULTS) -> list[Row]:
    """Every run, and every model that was there already, of which more than scores is known."""
    found = [*scored("analysis", folder), *trainings(folder)]
    return [row for row in found if "details" in row["test"]]


def scored(benchmark: str, folder: Path, again: bool = False) -> list[Row]:
    return [
        {**row, **{key: result[key] for key in ("device", "date", "commit", "file")}}
        for result in results(benchmark, folder, again)
        for row in result["rows"]
        if "test" in row
    ]


def changes(row: Row) -> tuple[str, ...]:
    """What a run changed in its recipe, but for how it was computed, and for the encoder that all runs were given.

    >>> changes({"changes": ["encoder.path=mpnet", "training.rho=0.3", "training.cuda_graphs=false"]})
    ('training.rho=0.3',)
    >>> changes({"changes": ["encoder.path=mpnet", "encoder.path=mpnet-litbank", "training.cuda_graphs=false"]})
    ('encoder.path=mpnet-litbank',)
    """
    encoders = [change for change in row["changes"] if change.startswith(ENCODER)]
    own = [] if is_small(row) else encoders[1:]  # of this run alone; that of the box has tables of its own
    return (*own, *(change for change in row["changes"] if not change.startswith((ENCODER, RECORDS))))


def epochs(runs: Sequence[Row]) -> str:
    """How many epochs these runs had, and how many they were to have: a machine may have ended before they did.

    >>> epochs([{"epochs_done": 6, "epochs_planned": 6}, {"epochs_done": 4, "epochs_planned": 6}])
    '4 to 6 of 6'
    """
    done, planned = [run["epochs_done"] for run in runs], max(run["epochs_planned"] for run in runs)
    few, most = min(done), max(done)
    return f"{few} of {planned}" if few == most else f"{few} to {most} of {planned}"


def grouped(rows: Iterable[Row]) -> dict[tuple[str, str, tuple[str, ...]], list[Row]]:
    """Runs that differ in their seeds alone, by data, recipe and changes."""
    found: dict[tuple[str, str, tuple[str, ...]], list[Row]] = {}
    for row in rows:
        found.setdefault((row["data"], row["recipe"], changes(row)), []).append(row)
    return found


def at(row: Row, path: str) -> Any:
    """
    >>> at({"test": {"f1": 3.0}}, "test.f1"), at({"test": {}}, "test.heads.accuracy")
    (3.0, None)
    """
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def spread(values: Sequence[float | None], digits: int = 2) -> str:
    """A mean, with the standard deviation of several.

    >>> spread([82.0, 83.0]), spread([82.0]), spread([None])
    ('82.50 ± 0.71', '82.00', '')
    """
    there = [value for value in values if value is not None]
    if not there:
        return ""
    mean = f"{statistics.mean(there):.{digits}f}"
    return f"{mean} ± {statistics.stdev(there):.{digits}f}" if len(there) > 1 else mean
