"""Experiments: every recipe on every data set with every seed, several at once, and one table at the end.

Each run is a process of its own, `nestree train`, in a directory of its own. What is done is not done again, and what
was interrupted goes on; so an experiment is resumed by starting it again. If the experiment is killed, its runs go on
by themselves, and the experiment that is started next waits for them.
"""

import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from nestree.checkpoint import CONFIG
from nestree.config import Settings
from nestree.errors import InputError
from nestree.training.run_dir import RunDir

PARTS = ("train", "dev", "test")
PAUSE = 0.5  # seconds between two looks at running processes


@dataclass(frozen=True)
class RunSpec:
    """One run of an experiment."""

    data: str
    recipe: str
    seed: int
    settings: Settings
    folder: Path
    command: tuple[str, ...]  # that starts it

    @property
    def done(self) -> bool:
        return RunDir(self.folder).scores.is_file()

    @property
    def name(self) -> str:
        return f"{self.data} {self.recipe} seed {self.seed}"

    @property
    def output(self) -> Path:
        """What the run says."""
        return self.folder.parent / f"{self.folder.name}.txt"

    def next_command(self) -> list[str]:
        """Start it, or go on with it."""
        resumable = RunDir(self.folder).state.is_file()
        more = ["--resume", str(self.folder)] if resumable else list(self.command)
        return [sys.executable, "-m", "nestree", "train", *more]


def run_specs(
    out: Path,
    recipes: Sequence[str],
    data: Mapping[str, Path],
    seeds: Sequence[int],
    changes: Sequence[str] = (),
    more: Sequence[str] = (),
) -> list[RunSpec]:
    """All runs: seed by seed, so that early results cover everything. `more` are options of `nestree train`."""
    for what, names in (("recipe", [*map(short, recipes)]), ("seed", seeds)):
        twice = next((name for name in names if list(names).count(name) > 1), None)
        if twice is not None:
            raise InputError(f"the {what} {twice} is named twice; each of them needs a directory of its own.")
    found = []
    for seed in seeds:
        for name, folder in data.items():
            files = parts_of(folder)
            for recipe in recipes:
                place = out / name / short(recipe) / f"seed-{seed}"
                changed = [*changes, f"training.seed={seed}"]
                settings = Settings.read(recipe).changed(changed)
                command = [word for part, path in files.items() for word in (f"--{part}", str(path))]
                command += ["--out", str(place), "--config", recipe]
                command += [word for change in changed for word in ("--set", change)]
                found.append(RunSpec(name, short(recipe), seed, settings, place, (*command, *more)))
                check_same(found[-1])
    return found


def check_same(cell: RunSpec) -> None:
    """A run of before counts only if it was made with the settings of now."""
    path = cell.folder / CONFIG
    if not path.is_file():
        return
    now, before = (dataclasses.asdict(each) for each in (cell.settings, Settings.saved(path)))
    for section, keys in now.items():
        for key, value in keys.items():
            if before[section][key] != value:
                raise InputError(
                    f"{cell.folder} was trained with {section}.{key} = {before[section][key]!r}, and now it is "
                    f"{value!r}. Give another directory for this experiment, or remove that one."
                )


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


# Running


@dataclass
class Runs:
    """Which runs wait, run and have failed."""

    jobs: int
    tell: Callable[[str], None]
    waiting: list[RunSpec]
    running: dict["subprocess.Popen[bytes]", RunSpec]
    elsewhere: list[RunSpec]  # in processes of an experiment of before
    failed: dict[str, str]  # name -> why

    def said(self, what: str, cell: RunSpec, more: str = "") -> None:
        self.tell(f"{what:8}  {cell.name}{more}")

    def start(self) -> None:
        """As many as may run at once."""
        while self.waiting and len(self.running) + len(self.elsewhere) < self.jobs:
            cell = self.waiting.pop(0)
            resumed = RunDir(cell.folder).state.is_file()
            try:
                self.running[start(cell, self.jobs)] = cell
            except BlockingIOError:
                self.elsewhere.append(cell)
                self.said("waiting", cell, ": another process is training it")
            else:
                self.said("goes on" if resumed else "started", cell, f"; what it says: {cell.output}")

    def look(self) -> None:
        """Who is ready?"""
        for cell in [cell for cell in self.elsewhere if not busy(cell)]:
            self.elsewhere.remove(cell)
            if cell.done:
                self.finished(cell)
            else:
                self.waiting.insert(0, cell)
        for process in [process for process in self.running if process.poll() is not None]:
            cell = self.running.pop(process)
            if process.returncode or not cell.done:
                self.failed[cell.name] = f"{reason(process.returncode, cell.output)} ({cell.output})"
                self.said("failed", cell, f": {reason(process.returncode, cell.output)}")
            else:
                self.finished(cell)

    def finished(self, cell: RunSpec) -> None:
        left = len(self.waiting) + len(self.running) + len(self.elsewhere)
        self.said("finished", cell, f": {headline(cell)}; {left} to go" if left else f": {headline(cell)}")


def run_all(todo: Sequence[RunSpec], jobs: int, tell: Callable[[str], None]) -> dict[str, str]:
    """Run what is not done yet, so many at once; returns the names of those that failed, and why."""
    runs = Runs(jobs, tell, [cell for cell in todo if not cell.done], {}, [], {})
    try:
        while runs.waiting or runs.running or runs.elsewhere:
            runs.start()
            time.sleep(PAUSE)
            runs.look()
    finally:
        for process in runs.running:  # Ctrl-C: each of them saves and stops
            process.terminate()
        for process in runs.running:
            process.wait()
    return runs.failed


def start(cell: RunSpec, jobs: int) -> "subprocess.Popen[bytes]":
    """In a session of its own: Ctrl-C in a terminal is heard by us, and told once.

    BlockingIOError: another process has it. A run locks what it writes to, and nothing but its end opens that again.
    """
    cell.folder.parent.mkdir(parents=True, exist_ok=True)
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))} if jobs > 1 else {}
    with open(cell.output, "ab") as file:
        lock(file)
        return subprocess.Popen(
            cell.next_command(),
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            env={**threads, **os.environ},
            start_new_session=True,
        )


def busy(cell: RunSpec) -> bool:
    """Is another process training it?"""
    try:
        with open(cell.output, "ab") as file:
            lock(file)
    except BlockingIOError:
        return True
    return False


def lock(file: IO[bytes]) -> None:
    """Until all processes that have it open close it. Where there are no locks, nothing happens."""
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def reason(code: int, output: Path) -> str:
    """Why a run failed: the last thing it said, or the signal that ended it."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {code}"


# Results


@dataclass(frozen=True)
class Group:
    """One recipe on one data set: the numbers of all seeds that are done."""

    data: str
    recipe: str
    seeds: list[int]
    values: dict[str, list[float]]


def scores_of(cell: RunSpec) -> dict[str, float]:
    """The numbers of the table, in per cent; of times, in seconds."""
    found: dict[str, Any] = json.loads(RunDir(cell.folder).scores.read_text(encoding="utf-8"))
    values = {}
    last = "test" if "test" in found else "dev"
    for part in ("dev", "test"):
        if part in found:
            score = found[part]["entities"]
            if part == last:
                values.update({f"{part} P": 100 * score["precision"], f"{part} R": 100 * score["recall"]})
            values[f"{part} F1"] = 100 * score["f1"]
            heads = found[part]["heads"]
            if heads and heads.get("accuracy") is not None:
                values[f"{part} heads"] = 100 * heads["accuracy"]
    return {**values, "epoch s": found["seconds_per_epoch"]}


def headline(cell: RunSpec) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in scores_of(cell).items())


def groups(found: Iterable[RunSpec]) -> list[Group]:
    """What is done, by data set and recipe."""
    made: dict[tuple[str, str], Group] = {}
    for cell in found:
        group = made.setdefault((cell.data, cell.recipe), Group(cell.data, cell.recipe, seeds=[], values={}))
        if cell.done:
            group.seeds.append(cell.seed)
            for name, value in scores_of(cell).items():
                group.values.setdefault(name, []).append(value)
    return [group for group in made.values() if group.seeds]


def table(found: Sequence[Group]) -> list[list[str]]:
    """Means and standard deviations over seeds, a row for each recipe and data set; the first row names columns."""
    names = list(dict.fromkeys(name for group in found for name in group.values))
    rows = [["data", "recipe", "seeds", *names]]
    for group in found:
        cells = [spread(group.values.get(name, [])) for name in names]
        rows.append([group.data, group.recipe, str(len(group.seeds)), *cells])
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


def as_values(group: Group) -> dict[str, Any]:
    """The same for programs: every number, not rounded."""
    numbers = {
        name: {
            "mean": statistics.fmean(values),
            "deviation": statistics.stdev(values) if len(values) > 1 else None,
            "values": values,
        }
        for name, values in group.values.items()
    }
    return {"data": group.data, "recipe": group.recipe, "seeds": group.seeds, **numbers}
