"""Prediction on Ray: efficiency, memory of the driver, and what is left after kill -9.

    speed     words a second of 1 and 2 workers (`--workers`), in turns with the command without Ray on as many threads
    scaling   words a second of each number of workers while all of them are busy, and the speedup over the fewest
    driver    memory and CPU time of the driver while documents stream through it, and for files that workers read and
              write; the workers have no model, and copy
    kill      an actor, a node or the driver is killed at random moments: after --resume, all bytes must be the same

For example: `python -m benchmarks.ray speed --data TEXTS --out FILE`. Each command prints one line of JSON at its end
and stores it with `--out`.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.timing import Row, provenance, read_status, store
from nestree.predict_files import (
    LOCK_FILE,
    LOG_FILE,
    FilePredictOptions,
    Summary,
    open_resume_log,
    plan_jobs,
    predict_files,
)

COMMAND = [sys.executable, "-m", "nestree", "predict"]
VICTIMS = ("actor", "node", "driver")
AFTER_A_FILE = 0.3  # seconds at most between the end of a file and a kill
FILES_PER_WORKER = 60  # of `scaling`
WHILE_STARTING = 8.0  # seconds at most between the start of a run and a kill


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run in (
        ("speed", measure_speed),
        ("scaling", measure_scaling),
        ("driver", measure_driver),
        ("kill", measure_kills),
    ):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        add = command.add_argument
        add("--model", default="gum-minilm", metavar="DIR", help="default: the bundled model")
        add("--out", type=Path, metavar="FILE", help="the JSON file")
        add("--commit", help="the commit to record outside a git checkout")
        if name == "driver":
            add("--documents", type=int, default=1_000_000, help="in one file")
            add("--files", type=int, default=2000)
        else:
            add("--data", type=Path, required=True, metavar="DIR", help="a folder of texts")
        if name in ("speed", "scaling"):
            add("--workers", default="1,2", help="numbers of workers, with commas")
        if name == "speed":
            add("--rounds", type=int, default=3, help="the median of this many")
        if name == "kill":
            add("--moments", type=int, default=20, help="of each kind of victim")
            add("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    result = {"benchmark": f"ray {options.run.__name__.removeprefix('measure_')}", **options.run(options)}
    print(store({**provenance("cpu", options.commit), "model": Path(options.model).name, **result}, options.out))
    return 0


def run_command(*arguments: object, threads: int = 1) -> Row:
    """Run `nestree predict` to its end: wall seconds, and CPU seconds of it and of all processes that it started.

    Processes are sampled, because Ray does not wait for those that it ends, so that their time is not in getrusage.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "RAY_worker_niceness": "0"}
    command = [*COMMAND, *map(str, arguments)]
    started = time.perf_counter()
    cpu: dict[int, float] = {}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=environment)
        while process.poll() is None:
            cpu.update(family_cpu_seconds(process.pid))
            time.sleep(0.1)
        seconds = time.perf_counter() - started
        said.seek(0)
        text = said.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: {text}")
    return {"seconds": seconds, "cpu_seconds": sum(cpu.values()), "said": "".join(text.splitlines()[-1:])}


def family_cpu_seconds(root: int) -> dict[int, float]:
    """The CPU seconds of a process and of all processes that descend from it, by their ids."""
    children: dict[int, list[int]] = {}
    seconds = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.name))
            seconds[int(path.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    found, todo = {}, [root]
    while todo:
        pid = todo.pop()
        found[pid] = seconds.get(pid, 0.0)
        todo += children.get(pid, [])
    return found


def outputs(folder: Path) -> dict[str, bytes]:
    """All files of a folder of predictions but the log and the lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in (LOG_FILE, LOCK_FILE))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


# kill


@contextmanager
def two_nodes(**options: Any) -> Iterator[Any]:
    """A Ray cluster of a head without CPUs and two nodes with one CPU each, in processes of this machine."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else any other process on this machine comes first
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **options})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, **options)
        yield cluster
    finally:
        cluster.shutdown()


def raylets(cluster: Any) -> dict[Any, int]:
    """The process ids of the raylets of the nodes with CPUs."""
    return {node: node.all_processes["raylet"][0].process.pid for node in cluster.worker_nodes}


def actors(cluster: Any) -> list[int]:
    """The process ids of our actors: children of the raylets that are called after our class."""
    parents, found = set(raylets(cluster).values()), []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            name = (path / "cmdline").read_bytes()
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
        if name.startswith(b"ray::Worker") and parent in parents:
            found.append(int(path.name))
    return found


def kill(victim: str, cluster: Any, driver: "subprocess.Popen[str]", draw: random.Random) -> bool:
    """kill -9 of an actor, a node, which another one replaces, or the driver; False: there is none."""
    if victim == "driver":
        driver.kill()
    elif victim == "node":
        node = draw.choice(list(cluster.worker_nodes))
        os.kill(raylets(cluster)[node], signal.SIGKILL)
        cluster.remove_node(node, allow_graceful=False)
        cluster.add_node(num_cpus=1)
    else:
        pids = actors(cluster)
        if not pids:
            return False
        os.kill(draw.choice(pids), signal.SIGKILL)
    return True


def run_killed(
    victim: str, cluster: Any, arguments: Sequence[object], out: Path, is_time: Callable[[], bool], draw: random.Random
) -> Row:
    """Predict on the cluster, kill the victim when it is time, and resume if the command did not end well."""
    command = [*COMMAND, *map(str, arguments), "--out", str(out), "--ray", cluster.address, "--workers", "2"]
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while driver.poll() is None and not is_time():
        time.sleep(0.01)
    row: Row = {"victim": victim, "files_done": len(log_entries(out))}
    row["killed"] = driver.poll() is None and kill(victim, cluster, driver, draw)
    said = driver.communicate()[1]
    row |= {"code": driver.returncode, "resumed": driver.returncode != 0}
    if row["resumed"]:
        resume = ["--resume"] if (out / LOG_FILE).exists() else []
        again = subprocess.run([*command, *resume], capture_output=True, text=True, check=False)
        row |= {"code": again.returncode, "said": said + again.stderr}
    return row


def log_entries(out: Path) -> list[str]:
    """The files that are done, as the log of a folder of predictions has them."""
    log = out / LOG_FILE
    lines = log.read_text().splitlines(keepends=True)[1:] if log.exists() else []
    return [json.loads(line)["file"] for line in lines if line.endswith("\n")]


def compare(out: Path, expected: dict[str, bytes]) -> Row:
    """What is lost, doubled or different in a folder of predictions."""
    found = outputs(out)
    entries = log_entries(out)
    lines = {name: (expected[name].splitlines(), found.get(name, b"").splitlines()) for name in expected}
    return {
        "lost": sum(len(set(old) - set(new)) for old, new in lines.values()),
        "doubled": sum(len(new) - len(set(new)) for _, new in lines.values()) + len(entries) - len(set(entries)),
        "identical": found == expected,
    }


def measure_kills(options: argparse.Namespace) -> Row:
    draw, rows = random.Random(options.seed), []
    arguments = [options.data, "--model", options.model, "--device", "cpu", "-q"]
    with tempfile.TemporaryDirectory() as temporary, two_nodes() as cluster:
        folder = Path(temporary)
        run_command(*arguments, "--out", folder / "local")
        expected = outputs(folder / "local")
        run_command(*arguments, "--out", folder / "ray", "--ray", cluster.address)
        assert outputs(folder / "ray") == expected
        for number in range(options.moments * len(VICTIMS)):
            out = folder / str(number)
            victim = VICTIMS[number % len(VICTIMS)]
            # After so many files and seconds; a tenth of the kills come while the workers start.
            files = draw.randrange(len(expected)) if draw.random() < 0.9 else 0
            seconds = draw.uniform(0, AFTER_A_FILE if files else WHILE_STARTING)
            reached: list[float] = []  # when so many files were done

            def is_time() -> bool:
                if not reached and (out / LOCK_FILE).exists() and len(log_entries(out)) >= files:  # noqa: B023
                    reached.append(time.time())  # noqa: B023
                return bool(reached) and time.time() - reached[0] >= seconds  # noqa: B023

            row = run_killed(victim, cluster, arguments, out, is_time, draw)
            rows.append({"after_files": files, "seconds": seconds, **row, **compare(out, expected)})
            print(json.dumps(rows[-1]), file=sys.stderr)
    total = {key: sum(row[key] for row in rows) for key in ("killed", "resumed", "lost", "doubled", "identical")}
    documents = sum(len(content.splitlines()) for content in expected.values())
    return {"files": len(expected), "documents": documents, "runs": len(rows), **total, "rows": rows}


# speed


def measure_speed(options: argparse.Namespace) -> Row:
    """The command with and without Ray, on the same texts, in turns; each number of workers against as many threads.

    The time of a run on very short texts, which is that of starting, is subtracted.
    """
    counts = list(map(int, options.workers.split(",")))
    kinds = ("local", "ray")
    runs: dict[str, list[Row]] = {}
    results = set()
    with tempfile.TemporaryDirectory() as temporary:
        short = Path(temporary, "short")
        short.mkdir()
        for number in range(max(counts)):
            (short / f"{number}.txt").write_text("Ann lives in Lisbon.\n")
        for turn in range(options.rounds):
            for count, kind in product(counts, kinds):
                for data in (short, options.data):
                    name = f"{kind} {count} {'short' if data is short else 'all'}"
                    out = Path(temporary, f"{name} {turn}")
                    ray = ["--ray", "--workers", count] if kind == "ray" else []
                    arguments = [data, "--out", out, "--model", options.model, "--device", "cpu", *ray]
                    runs.setdefault(name, []).append(run_command(*arguments, threads=count))
                    if data is not short:
                        results.add(tuple(sorted(outputs(out).items())))
                    print(name, json.dumps(runs[name][-1]), file=sys.stderr)
    words = int(runs[f"{kinds[0]} {counts[0]} all"][0]["said"].split("; ")[1].split()[0].replace(",", ""))
    rows: Row = {}
    for count, kind in product(counts, kinds):
        row = rows[f"{kind} {count}"] = {}
        for unit in ("seconds", "cpu_seconds"):
            whole, start = ([run[unit] for run in runs[f"{kind} {count} {data}"]] for data in ("all", "short"))
            row[unit], row[f"start_{unit}"] = whole, start
            name = "words_per_second" if unit == "seconds" else "words_per_cpu_second"
            row[name] = words / (statistics.median(whole) - statistics.median(start))
    return {
        "words": words,
        "identical": len(results) == 1,
        "overhead": {
            unit: {count: rows[f"local {count}"][unit] / rows[f"ray {count}"][unit] - 1 for count in counts}
            for unit in ("words_per_second", "words_per_cpu_second")
        },
        "speedup": {
            count: rows[f"ray {count}"]["words_per_second"] / rows[f"ray {counts[0]}"]["words_per_second"]
            for count in counts
        },
        "rows": rows,
    }


# scaling


def measure_scaling(options: argparse.Namespace) -> Row:
    """The command on Ray with as many files for each worker, read while the middle of them is being written.

    Workers start one after another, and the last files leave some idle: the time from 40 to 90 % of the files counts.
    """
    texts = sorted(path for path in options.data.iterdir() if path.is_file())
    rows: list[Row] = []
    for count in sorted(map(int, options.workers.split(","))):
        with tempfile.TemporaryDirectory() as temporary:
            data, out = Path(temporary, "texts"), Path(temporary, "entities")
            data.mkdir()
            for number in range(FILES_PER_WORKER * count):
                copy = data / f"{number}{texts[0].suffix}"
                copy.write_bytes(texts[number % len(texts)].read_bytes())
            run = run_command(
                data, "--out", out, "--model", options.model, "--device", "cpu", "--ray", "--workers", count
            )
            words = int(run["said"].split("; ")[1].split()[0].replace(",", ""))
            written = sorted((path.stat().st_mtime, path.stem) for path in out.rglob("*.jsonl"))
        window = written[len(written) * 2 // 5 : len(written) * 9 // 10]
        rate = words * (len(window) - 1) / len(written) / (window[-1][0] - window[0][0])
        rows.append({"workers": count, "words": words, "seconds": run["seconds"], "words_per_second": rate})
        print(json.dumps(rows[-1]), file=sys.stderr)
        if options.out:  # in case that the program is stopped
            unfinished = provenance("cpu", options.commit) | {"rows": rows}
            store(unfinished, options.out.with_suffix(".unfinished.json"))
    if options.out:
        options.out.with_suffix(".unfinished.json").unlink()
    speedup = {row["workers"]: row["words_per_second"] / rows[0]["words_per_second"] for row in rows}
    return {"speedup": speedup, "rows": rows}


# driver


class CopyWorker:
    """In place of `nestree.integrations.ray.Worker`: returns documents as they are, and says that files are done."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def ready(self) -> None:
        pass

    def predict(self, groups: Sequence[Sequence[Any]]) -> list[Any]:
        return [document for group in groups for document in group]

    def predict_jobs(self, jobs: Sequence[tuple[Any, list[int]]]) -> list[Any]:
        return [({"source": source, "written": [], "skipped": []}, Summary(files=1)) for _, source in jobs]


def measure_driver(options: argparse.Namespace) -> Row:
    """What the driver costs, and its resident memory after each twentieth of the documents, which are in one file."""
    import nestree
    from nestree.integrations import ray

    pipeline = nestree.load(options.model, "cpu")
    options_to_predict = FilePredictOptions(pipeline.predict_options(None, False))
    samples: list[Row] = []

    def sample(progress: Any) -> None:
        if (progress.share or 0) * 20 >= len(samples):
            samples.append({"share": progress.share, "rss": read_status("VmRSS")})
            print(json.dumps(samples[-1]), file=sys.stderr)

    def run(cluster: Any, plan: Any, log: Any, on_progress: Any) -> Row:
        cluster = replace(cluster, worker_class=CopyWorker)
        started, cpu = time.perf_counter(), time.process_time()
        summary = predict_files(pipeline, plan, options_to_predict, log, on_progress, cluster)
        cluster.close()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        return {"words": summary.words, "seconds": seconds, "cpu_seconds": cpu}

    with tempfile.TemporaryDirectory() as temporary, ray.connect("local", options.model, 2, "cpu") as cluster:
        source, out = Path(temporary, "in.jsonl"), Path(temporary, "out.jsonl")
        with open(source, "w") as file:
            for number in range(options.documents):
                text = f"Ann met the mayor of town {number} in Lisbon."
                file.write(json.dumps({"text": text, "doc_id": str(number)}) + "\n")
        documents = run(cluster, plan_jobs([source], None, out, "jsonl"), None, sample)
        with open(out) as file:
            in_order = all(json.loads(line)["doc_id"] == str(number) for number, line in enumerate(file))
        texts = Path(temporary, "texts")
        texts.mkdir()
        for number in range(options.files):
            with open(texts / f"{number}.txt", "w") as file:
                file.truncate(ray.TASK_BYTES)
        plan = plan_jobs([texts], None, Path(temporary, "out"), "jsonl")
        files = run(cluster, plan, open_resume_log(plan, {}, False), None)
    settled = [row["rss"] for row in samples if row["share"] >= 0.1]
    return {
        "documents": {"count": options.documents, "in_order": in_order, **documents},
        "words_per_driver_cpu_second": documents["words"] / documents["cpu_seconds"],
        "growth_mb_after_a_tenth": (settled[-1] - settled[0]) / 1e6,
        "files": {"count": options.files, **files},
        "files_per_driver_cpu_second": options.files / files["cpu_seconds"],
        "samples": samples,
    }


if __name__ == "__main__":
    sys.exit(main())
