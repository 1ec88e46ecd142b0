"""Experiments: every recipe on every data set with every seed, several at once, and one table at the end.

Each run is a process `nestree train` with a directory of its own. Finished runs are not repeated and interrupted ones
are resumed, so an experiment is resumed by starting it again. If an experiment is killed, its runs continue, and the
next experiment waits for them.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from nestree.checkpoint import CONFIG, sha256, write_text
from nestree.config import Settings, split_override
from nestree.errors import InputError
from nestree.training.dataset import ADAPTED_SETTINGS, part_files
from nestree.training.run_dir import RunDir

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class RunSpec:
    """One run of an experiment."""

    data: str
    recipe: str
    seed: int
    settings: Settings
    folder: Path
    arguments: tuple[str, ...]  # of `nestree train`, to start it
    data_hash: str = ""  # of the files of the data set

    @property
    def done(self) -> bool:
        return RunDir(self.folder).scores.is_file()

    @property
    def resumable(self) -> bool:
        return RunDir(self.folder).state.is_file()

    @property
    def name(self) -> str:
        return f"{self.data} {self.recipe} seed {self.seed}"

    @property
    def output(self) -> Path:
        """The file with the output of the process."""
        return self.folder.parent / f"{self.folder.name}.txt"

    @property
    def hash_file(self) -> Path:
        """The file that says which data the runs of a data set have."""
        return self.folder.parents[1] / "data.sha256"

    def command(self) -> list[str]:
        """The command that starts the run, or resumes it."""
        arguments = ["--resume", str(self.folder)] if self.resumable else self.arguments
        return [sys.executable, "-m", "nestree", "train", *arguments]

    def check_unchanged(self) -> None:
        """Raise if the directory of the run holds one with other settings, or with other data."""
        if self.hash_file.is_file() and self.hash_file.read_text() != self.data_hash:
            raise InputError(
                f"the files of {self.data} have changed since {self.hash_file.parent} was trained. Give another "
                "directory for this experiment, or remove that one."
            )
        if not (self.folder / CONFIG).is_file():
            return
        now, before = asdict(self.settings), asdict(Settings.load(self.folder / CONFIG))
        fixed = [split_override(word)[1] for option, word in pairwise(self.arguments) if option == "--set"]
        is_adapted = self.recipe == "default" and "batch_words" not in fixed  # to small data; rho with the batches
        adapted = [key for key in ADAPTED_SETTINGS if is_adapted and (key == "rho" or key not in fixed)]
        if self.settings.decoding.tune:  # training chose them on dev
            adapted += ["method", "threshold"]
        changed = ((s, k) for s in now for k in now[s] if now[s][k] != before[s][k] and k not in adapted)
        for section, key in changed:
            raise InputError(
                f"{self.folder} was trained with {section}.{key} = {before[section][key]!r}, and now it is "
                f"{now[section][key]!r}. Give another directory for this experiment, or remove that one."
            )


def run_specs(
    out: Path,
    recipes: Sequence[str],
    data: Mapping[str, Path],
    seeds: Sequence[int],
    overrides: Sequence[str] = (),
    options: Sequence[str] = (),
) -> list[RunSpec]:
    """All runs: seed by seed, so that early results cover everything. `options` are those of `nestree train`."""
    specs: dict[Path, RunSpec] = {}
    hashes = {name: " ".join(map(sha256, part_files(folder).values())) for name, folder in data.items()}
    for seed in seeds:
        for name, folder in data.items():
            files = [word for part, path in part_files(folder).items() for word in (f"--{part}", str(path))]
            for recipe in recipes:
                own_overrides = [*overrides, f"training.seed={seed}"]
                settings = Settings.read(recipe).with_overrides(own_overrides)
                run = out / name / recipe_name(recipe) / f"seed-{seed}"
                changes = [word for override in own_overrides for word in ("--set", override)]
                arguments = (*files, "--out", str(run), "--config", recipe, *changes, *options)
                spec = RunSpec(name, recipe_name(recipe), seed, settings, run, arguments, hashes[name])
                if run in specs:
                    raise InputError(
                        f"the run {spec.name} is named twice; each recipe and seed needs a directory of its own."
                    )
                spec.check_unchanged()
                specs[run] = spec
    return [*specs.values()]


def recipe_name(recipe: str) -> str:
    """The name of a recipe or a file of settings, without its folder.

    >>> recipe_name("ablation/12-joint"), recipe_name("mine/fast.toml")
    ('12-joint', 'fast')
    """
    return Path(recipe).name.removesuffix(".toml")


# Processes


def run_all(specs: Sequence[RunSpec], jobs: int, report: Callable[[str], None]) -> dict[str, str]:
    """Run what is not done yet, `jobs` at once; returns the names of the runs that failed, and why."""
    waiting = [spec for spec in specs if not spec.done]
    running: dict[RunSpec, subprocess.Popen[bytes] | None] = {}  # None: by a process of an earlier experiment
    failed: dict[str, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                spec = waiting.pop(0)
                event = "resumed " if spec.resumable else "started "
                spec.hash_file.parent.mkdir(parents=True, exist_ok=True)
                write_text(spec.hash_file, spec.data_hash)
                try:
                    running[spec] = start(spec, jobs)
                    report(f"{event}  {spec.name}; its output: {spec.output}")
                except BlockingIOError:
                    running[spec] = None
                    report(f"waiting   {spec.name}: another process is training it")
            time.sleep(POLL_SECONDS)
            for spec, process in [*running.items()]:
                if is_locked(spec) if process is None else process.poll() is None:
                    continue
                del running[spec]
                if spec.done and not (process and process.returncode):
                    scores = ", ".join(f"{name} {value:.2f}" for name, value in scores_of(spec).items())
                    left = len(waiting) + len(running)
                    report(f"finished  {spec.name}: {scores}" + (f"; {left} to go" if left else ""))
                elif process is None:
                    waiting.insert(0, spec)
                else:
                    code = process.returncode
                    lines = spec.output.read_text("utf-8", "replace").strip().splitlines()
                    reason = lines[-1] if lines else f"exit code {code}"
                    if code < 0:
                        reason = f"ended by {signal.Signals(-code).name}"
                    failed[spec.name] = f"{reason} ({spec.output})"
                    report(f"failed    {spec.name}: {reason}")
    finally:
        processes = [process for process in running.values() if process]
        for process in processes:  # after Ctrl-C: each of them saves and stops
            process.terminate()
        for process in processes:
            process.wait()
    return failed


def start(spec: RunSpec, jobs: int) -> "subprocess.Popen[bytes]":
    """Start a process in a session of its own, so that Ctrl-C in a terminal reaches only us.

    Raises BlockingIOError if another process trains this run: a run locks its output file until it ends.
    """
    spec.folder.parent.mkdir(parents=True, exist_ok=True)
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))} if jobs > 1 else {}
    with open(spec.output, "ab") as file:
        lock(file)
        streams: dict[str, Any] = {"stdout": file, "stderr": file, "stdin": subprocess.DEVNULL}
        environment = {**threads, **os.environ}
        return subprocess.Popen(spec.command(), **streams, env=environment, start_new_session=True)


def is_locked(spec: RunSpec) -> bool:
    """Whether another process trains this run."""
    try:
        with open(spec.output, "ab") as file:
            lock(file)
    except BlockingIOError:
        return True
    return False


def lock(file: IO[bytes]) -> None:
    """Lock a file until all processes that have it open close it; does nothing where there are no locks."""
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# Results


@dataclass(frozen=True)
class Group:
    """The results of one recipe on one data set, by seed."""

    data: str
    recipe: str
    seeds: list[int]
    values: dict[str, list[float | None]]  # column -> one value per seed; None: this run lacks it

    def as_json(self) -> dict[str, Any]:
        """All values, not rounded."""
        columns: dict[str, Any] = {}
        for name, values in self.values.items():
            found = [value for value in values if value is not None]
            deviation = statistics.stdev(found) if len(found) > 1 else None
            columns[name] = {"mean": statistics.fmean(found), "deviation": deviation, "values": values}
        return {"data": self.data, "recipe": self.recipe, "seeds": self.seeds, **columns}


# The columns of the table, in their order; some runs lack some of them.
COLUMNS = (*(f"{part} {score}" for part in ("dev", "test") for score in ("P", "R", "F1", "heads")), "epoch s")


def scores_of(spec: RunSpec) -> dict[str, float]:
    """The columns of the table for one run: scores in per cent, times in seconds."""
    scores: dict[str, Any] = json.loads(RunDir(spec.folder).scores.read_text(encoding="utf-8"))
    values: dict[str, float] = {}
    for part in ("dev", "test"):
        if part in scores:
            entities, heads = scores[part]["entities"], scores[part]["heads"]
            if part == "test" or "test" not in scores:
                values |= {f"{part} P": 100 * entities["precision"], f"{part} R": 100 * entities["recall"]}
            values[f"{part} F1"] = 100 * entities["f1"]
            if heads and heads.get("accuracy") is not None:
                values[f"{part} heads"] = 100 * heads["accuracy"]
    return {**values, "epoch s": scores["seconds_per_epoch"]}


def group_results(specs: Iterable[RunSpec]) -> list[Group]:
    """The results of the finished runs by data set and recipe."""
    groups: dict[tuple[str, str], Group] = {}
    for spec in specs:
        if spec.done:
            group = groups.setdefault((spec.data, spec.recipe), Group(spec.data, spec.recipe, [], {}))
            scores, before = scores_of(spec), len(group.seeds)
            group.seeds.append(spec.seed)
            for name in {**group.values, **scores}:
                group.values.setdefault(name, [None] * before).append(scores.get(name))
    return [*groups.values()]


def table(groups: Sequence[Group]) -> list[list[str]]:
    """A header, and for each group a row of means and standard deviations over seeds."""
    names = [name for name in COLUMNS if any(name in group.values for group in groups)]
    rows = [["data", "recipe", "seeds", *names]]
    for group in groups:
        cells = [mean_and_deviation(group.values.get(name, [])) for name in names]
        rows.append([group.data, group.recipe, str(len(group.seeds)), *cells])
    return rows


def mean_and_deviation(values: Sequence[float | None]) -> str:
    """
    >>> mean_and_deviation([80.0, 81.0]), mean_and_deviation([80.0]), mean_and_deviation([])
    ('80.50 ± 0.71', '80.00', '')
    >>> mean_and_deviation([80.0, None])
    '80.00 (1 of 2 seeds)'
    """
    found = [value for value in values if value is not None]
    if not found:
        return ""
    mean = f"{statistics.fmean(found):.2f}" + (f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else "")
    return mean if len(found) == len(values) else f"{mean} ({len(found)} of {len(values)} seeds)"
