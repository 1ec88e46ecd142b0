"""Experiments: every recipe on every data set with every seed, several at once, and one table at the end.

Each run is a process of its own, `nestree train`, in a directory of its own. What is done is not done again, and what
was interrupted goes on; so an experiment is resumed by starting it again.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestree.errors import InputError
from nestree.training.folder import Folder

PARTS = ("train", "dev", "test")
PAUSE = 0.5  # seconds between two looks at running processes


@dataclass(frozen=True)
class Cell:
    """One run of an experiment."""

    data: str
    recipe: str
    seed: int
    folder: Path
    command: tuple[str, ...]  # that starts it

    @property
    def done(self) -> bool:
        return Folder(self.folder).scores.is_file()

    @property
    def name(self) -> str:
        return f"{self.data} {self.recipe} seed {self.seed}"

    def next_command(self) -> list[str]:
        """Start it, or go on with it."""
        resumable = Folder(self.folder).state.is_file()
        more = ["--resume", str(self.folder)] if resumable else list(self.command)
        return [sys.executable, "-m", "nestree", "train", *more]


def cells(
    out: Path,
    recipes: Sequence[str],
    data: Mapping[str, Path],
    seeds: Sequence[int],
    changes: Sequence[str] = (),
    more: Sequence[str] = (),
) -> list[Cell]:
    """All runs: seed by seed, so that early results cover everything. `more` are options of `nestree train`."""
    found = []
    for seed in seeds:
        for name, folder in data.items():
            files = parts_of(folder)
            for recipe in recipes:
                place = out / name / short(recipe) / f"seed-{seed}"
                command = [word for part, path in files.items() for word in (f"--{part}", str(path))]
                command += ["--out", str(place), "--config", recipe]
                for change in (*changes, f"training.seed={seed}"):
                    command += ["--set", change]
                found.append(Cell(name, short(recipe), seed, place, (*command, *more)))
    return found


def short(recipe: str) -> str:
    """What to call a recipe or a file of settings.

    >>> short("ablation/12-joint"), short("mine/fast.toml")
    ('12-joint', 'fast')
    """
    return Path(recipe).name.removesuffix(".toml")


def parts_of(folder: Path) -> dict[str, Path]:
    """The files of a data set: those of a folder whose names begin with train, dev and test."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder. Name one that holds files called train, dev and test.")
    found: dict[str, Path] = {}
    for part in PARTS:
        named = sorted(path for path in folder.iterdir() if path.name.split(".")[0] == part)
        if len(named) > 1:
            raise InputError(f"{folder} has several files for {part}: {', '.join(p.name for p in named)}.")
        if named:
            found[part] = named[0]
    if "train" not in found:
        raise InputError(f"{folder} has no file called train. Name one that holds train, dev and test.")
    return found


def run_all(todo: Iterable[Cell], jobs: int, tell: Callable[[str], None]) -> list[Cell]:
    """Run what is not done yet, so many at once; those that failed are returned."""
    waiting, failed = [cell for cell in todo if not cell.done], []
    running: dict[subprocess.Popen[bytes], Cell] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                running[start(cell)] = cell
                tell(f"started   {cell.name}")
            for process in [process for process in running if process.poll() is not None]:
                cell = running.pop(process)
                if process.returncode or not cell.done:
                    failed.append(cell)
                    tell(f"failed    {cell.name}: {last_line(output(cell))}")
                else:
                    tell(f"finished  {cell.name}: {headline(cell)}")
            if running:
                time.sleep(PAUSE)
    finally:
        for process in running:  # Ctrl-C: each of them saves and stops
            process.terminate()
        for process in running:
            process.wait()
    return failed


def output(cell: Cell) -> Path:
    return cell.folder.parent / f"{cell.folder.name}.txt"


def start(cell: Cell) -> "subprocess.Popen[bytes]":
    cell.folder.parent.mkdir(parents=True, exist_ok=True)
    with open(output(cell), "ab") as file:
        return subprocess.Popen(cell.next_command(), stdout=file, stderr=file, stdin=subprocess.DEVNULL)


def last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else f"see {path}"


def scores_of(cell: Cell) -> dict[str, float]:
    """The numbers of the table, in per cent; of times, in seconds."""
    found: dict[str, Any] = json.loads(Folder(cell.folder).scores.read_text(encoding="utf-8"))
    values = {}
    for part in ("dev", "test"):
        if part in found:
            values[f"{part} F1"] = 100 * found[part]["entities"]["f1"]
            heads = found[part]["heads"]
            if heads and heads.get("accuracy") is not None:
                values[f"{part} heads"] = 100 * heads["accuracy"]
    return {**values, "epoch s": found["seconds_per_epoch"]}


def headline(cell: Cell) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in scores_of(cell).items())


def table(found: Iterable[Cell]) -> list[list[str]]:
    """Means and standard deviations over seeds, a row for each recipe and data set; the first row names columns."""
    groups: dict[tuple[str, str], list[dict[str, float]]] = {}
    for cell in found:
        if cell.done:
            groups.setdefault((cell.data, cell.recipe), []).append(scores_of(cell))
    names = list(dict.fromkeys(name for runs in groups.values() for run in runs for name in run))
    rows = [["data", "recipe", "seeds", *names]]
    for (data, recipe), runs in groups.items():
        cells = [spread([run[name] for run in runs if name in run]) for name in names]
        rows.append([data, recipe, str(len(runs)), *cells])
    return rows


def spread(values: Sequence[float]) -> str:
    """
    >>> spread([80.0, 81.0]), spread([80.0]), spread([])
    ('80.50 ± 0.71', '80.00', '')
    """
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean
