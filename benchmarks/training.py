"""How good models become, and how fast: recipes trained on data sets with seeds, several at once, into one JSON file.

    python -m benchmarks.training --data DIR --encoder PATH --out FILE genia:default litbank:default:1,2,3

A run is DATA:RECIPE[:SEEDS[:SETTING,SETTING...]]; DIR/DATA holds files called train, dev and test. Each run is a
process of its own that calls `nestree.training.train`. The file is written anew after each epoch of any of them, so
what was learned is never lost. When the `--budget` is nearly spent, runs stop after the update under way, and the best
epoch so far is scored and reported as such. Test data is scored once, with the model of the best epoch on dev.

With `--teachers` and `--unlabelled`, runs whose settings name `distill.KEY=VALUE` distil these models, with the keys

    words      of unlabelled text, at most              teachers   how many of them, the first ones [1]
    hard       1: what the teacher finds is gold [0]    repeat, varied   see nestree.training.distill.lessons
    raw        1: teachers' scores without their temperatures [0]

`--only-steps` trains nothing to the end: it measures a few steps of each run, one run after another.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import runs
from benchmarks.report import console
from benchmarks.runs import Job
from benchmarks.timing import one_line, provenance, write_whole
from nestree.training.experiment import short, spread

Row = dict[str, Any]
LOOK = 1.0  # seconds between two looks at the clock
TELL = 10.0  # seconds between two lines about what is under way
DISTILL = "distill."  # how settings of distillation begin
GRACE = 5.0  # seconds before the end of the budget at which what still runs is cut off


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    started = time.time()
    jobs = jobs_of(options, None if options.budget is None else started + options.budget)
    result = {
        "benchmark": "training",
        **provenance(device_of(options.device), options.commit),
        "side_by_side": 1 if options.only_steps else min(options.jobs, len(jobs)),
        "budget_seconds": options.budget,
        "rows": [{**about(job), "status": "waiting"} for job in jobs],
    }

    def keep() -> None:
        write_whole(options.out, one_line(result) + "\n")

    keep()
    Side(jobs, result["rows"], 1 if options.only_steps else options.jobs, keep).run_all()
    show(result["rows"], options.only_steps)
    print(one_line(result))
    return int(any(row["status"] == "failed" for row in result["rows"]))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", metavar="DATA:RECIPE[:SEEDS[:SETTINGS]]")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="a folder of data sets")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the JSON file")
    parser.add_argument("--folder", type=Path, help="for models and predictions; default: beside --out")
    parser.add_argument("--encoder", metavar="PATH", help="the encoder of all runs, in place of the recipe's")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument(
        "--teachers", type=Path, nargs="+", default=[], metavar="DIR", help="models to distil"
    )
    parser.add_argument(
        "--unlabelled", type=Path, nargs="+", default=[], metavar="FILE", help="texts for that"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for everything together")
    parser.add_argument("--steps", type=int, default=0, help="that are measured after each run, too")
    parser.add_argument("--only-steps", type=int, metavar="N", help="measure N steps of each run, no more")
    parser.add_argument("--keep-models", action="store_true", help="else only predictions are kept")
    parser.add_argument(
        "--analyse", action="store_true", help="details of each score, and other ways to decode"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--commit", help="where there is no git")
    options = parser.parse_args(arguments)
    options.folder = options.folder or options.out.parent / options.out.stem
    return options


def jobs_of(options: argparse.Namespace, deadline: float | None) -> list[Job]:
    """The runs that the command names, in their order, seed by seed."""
    everywhere = [*options.set, *([f"encoder.path={options.encoder}"] if options.encoder else [])]
    cores = os.cpu_count() or 1
    threads = max(1, cores // max(1, min(options.jobs, len(options.runs))))
    found = []
    for spec in options.runs:
        data, recipe, seeds, own = (*spec.split(":", 3), "", "", "")[:4]
        if not recipe:
            raise SystemExit(f"{spec}: name data and a recipe, such as genia:default.")
        every = [change for change in own.split(",") if change]
        changes = [change for change in every if not change.startswith(DISTILL)]
        distill = {
            k.removeprefix(DISTILL): float(v)
            for k, _, v in (c.partition("=") for c in every if c not in changes)
        }
        for seed in (seeds or "1").split(","):
            name = f"{data}-{short(recipe)}-{seed}" + (f"-{len(found) + 1}" if every else "")
            found.append(
                Job(
                    name=name,
                    data=str(options.data / data),
                    recipe=recipe,
                    seed=int(seed),
                    changes=(*everywhere, *changes),
                    folder=str(options.folder / name),
                    device=options.device,
                    threads=threads,
                    deadline=None if deadline is None else deadline - GRACE,
                    steps=options.only_steps or options.steps,
                    only_steps=bool(options.only_steps),
                    keep_model=options.keep_models,
                    analyse=options.analyse,
                    distill=distill,
                    teachers=tuple(map(str, options.teachers[: int(distill.get("teachers", 1))]))
                    if distill
                    else (),
                    unlabelled=tuple(map(str, options.unlabelled)) if distill else (),
                )
            )
    return found


def about(job: Job) -> Row:
    """What a row says from the beginning; no paths of this machine."""
    return {
        "name": job.name,
        "data": Path(job.data).name,
        "recipe": job.recipe,
        "seed": job.seed,
        "changes": [without_folder(change) for change in job.changes],
        **({"distill": job.distill} if job.distill else {}),
    }


def without_folder(change: str) -> str:
    """
    >>> without_folder("encoder.path=/some/where/all-mpnet-base-v2"), without_folder("training.epochs=3")
    ('encoder.path=all-mpnet-base-v2', 'training.epochs=3')
    """
    name, equals, value = change.partition("=")
    return name + equals + (Path(value).name if name == "encoder.path" else value)


def device_of(name: str) -> str:
    from nestree.pipeline import select_device

    return select_device(name).type


# Several at once


@dataclass
class Running:
    """A process, and what it said last."""

    job: Job
    row: Row
    process: Any
    ear: Connection
    said: str = "starting"


class Side:
    """Runs side by side, each in a process; their rows are filled in as they report."""

    def __init__(self, jobs: Sequence[Job], rows: Sequence[Row], at_once: int, keep: Any) -> None:
        self.waiting = list(zip(jobs, rows, strict=True))
        self.at_once, self.keep = at_once, keep
        self.running: list[Running] = []
        self.started = self.told = time.time()

    def run_all(self) -> None:
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.at_once:
                    self.start(*self.waiting.pop(0))
                self.listen()
                self.watch_clock()
        finally:
            for one in self.running:
                one.process.terminate()
            for one in self.running:
                one.process.join(10)
            self.keep()

    def start(self, job: Job, row: Row) -> None:
        if job.deadline is not None and time.time() > job.deadline:
            row["status"] = "not begun: the budget was spent"
            return
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.steps"])  # it imports what each process needs
        ear, mouth = context.Pipe(duplex=False)
        process = context.Process(target=runs.run, args=(job, mouth), name=job.name)
        process.start()
        mouth.close()
        row.update(status="running", epochs=[])
        self.running.append(Running(job, row, process, ear))

    def listen(self) -> None:
        """Whatever the processes have to say."""
        heard = wait([one.ear for one in self.running], LOOK) if self.running else []
        for one in [one for one in self.running if one.ear in heard]:
            try:
                kind, facts = one.ear.recv()
            except EOFError:
                self.ended(one)
                continue
            if kind == "step":
                one.said = facts
            elif kind == "epoch":
                one.row["epochs"].append(facts)
                self.keep()
            else:
                one.row.update(facts)
                self.keep()

    def ended(self, one: Running) -> None:
        one.process.join()
        self.running.remove(one)
        if one.row["status"] == "running":
            one.row.update(status="failed", why=f"its process ended with {one.process.exitcode}")
        self.say(f"{one.job.name}: {one.row['status']} {headline(one.row)}")
        self.keep()

    def watch_clock(self) -> None:
        now = time.time()
        for one in [*self.running]:
            if one.job.deadline is not None and now > one.job.deadline:
                one.process.kill()
                one.row["status"] = "cut off at the end of the budget"
                self.ended(one)
        if self.running and now - self.told > TELL:
            self.told = now
            self.say(" | ".join(f"{one.job.name} {one.said}" for one in self.running))

    def say(self, text: str) -> None:
        print(f"{time.time() - self.started:6.0f} s  {text}", file=sys.stderr, flush=True)


# What is printed at the end


def headline(row: Row) -> str:
    if "why" in row:
        return str(row["why"])
    if "test" in row:
        return f"dev F1 {row['dev']['f1']:.2f}, test F1 {row['test']['f1']:.2f}, {row['epochs_done']} epochs"
    return f"{row['step']['mean_ms']:.1f} ms a step" if "step" in row else ""


def show(rows: Sequence[Row], only_steps: bool) -> None:
    table = Table(title="steps" if only_steps else "runs", title_justify="left")
    names = STEP_COLUMNS if only_steps else RUN_COLUMNS
    for name in ("run", *names):
        table.add_column(name, justify="left" if name == "run" else "right")
    for row in rows:
        table.add_row(row["name"], *(cell(row, path) for path in names.values()))
    console().print(table)
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if "test" in row:
            key = row["data"], row["recipe"], " ".join(row["changes"]) + str(row.get("distill"))
            groups.setdefault(key, []).append(row["test"]["f1"])
    for (data, recipe, _), values in groups.items():
        if len(values) > 1:
            print(f"{data} {recipe}: test F1 {spread(values)} over {len(values)} seeds")


RUN_COLUMNS = {
    "status": "status",
    "epochs": "epochs_done",
    "best": "best_epoch",
    "dev F1": "dev.f1",
    "test P": "test.precision",
    "test R": "test.recall",
    "test F1": "test.f1",
    "heads %": "test.heads.accuracy",
    "shared %": "test.heads.shared",
    "epoch s": "train_seconds_per_epoch",
    "dev s": "dev_seconds_per_epoch",
    "sentences/s": "train_sentences_per_second",
    "decoding /s": "test.sentences_per_second",
    "tree sums": "step.tree_share",
}
STEP_COLUMNS = {
    "status": "status",
    "ms": "step.mean_ms",
    "sentences/s": "step.sentences_per_second",
    "epoch s": "step.epoch_seconds",
    "tree sums": "step.tree_share",
    **{name: f"step.parts.{name}.device_ms" for name in ("collate", "encoder", "scorers", "losses")},
    **{name: f"step.parts.{name}.device_ms" for name in ("backward", "clipping", "optimiser", "rest")},
    "busy": "step.profile.busy_share",
    "GiB": "step.peak_gib",
}


def cell(row: Row, path: str) -> str:
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, float):
        return f"{value:.3g}" if value < 1 else f"{value:.2f}" if value < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
