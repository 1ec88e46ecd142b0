"""Prediction on Ray: efficiency, memory of the driver, and what is left after kill -9.

    speed     words a second of 1 and 2 workers (`--workers`), in turns with the command without Ray on as many threads
    memory    memory of the driver while documents stream through it; workers copy them, without a model
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.timing import Row, provenance, read_status, store
from nestree.predict_files import LOCK_FILE, LOG_FILE

COMMAND = [sys.executable, "-m", "nestree", "predict"]
VICTIMS = ("actor", "node", "driver")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run in (("speed", measure_speed), ("memory", measure_memory), ("kill", measure_kills)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        add = command.add_argument
        add("--model", default="gum-minilm", metavar="DIR", help="default: the bundled model")
        add("--out", type=Path, metavar="FILE", help="the JSON file")
        add("--commit", help="the commit to record outside a git checkout")
        if name == "memory":
            add("--documents", type=int, default=1_000_000)
        else:
            add("--data", type=Path, required=True, metavar="DIR", help="a folder of texts")
        if name == "speed":
            add("--workers", default="1,2", help="numbers of workers, with commas")
            add("--rounds", type=int, default=3, help="the median of this many")
        if name == "kill":
            add("--moments", type=int, default=20, help="of each kind of victim")
            add("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    result = {"benchmark": f"ray {options.run.__name__.removeprefix('measure_')}", **options.run(options)}
    print(
        store({**provenance("cpu", options.commit), "model": Path(options.model).name, **result}, options.out)
    )
    return 0


def run_command(*arguments: object, threads: int = 1) -> Row:
    """Run `nestree predict` to its end."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    started = time.perf_counter()
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, env=environment, check=False
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.stderr}")
    return {"seconds": seconds, "said": "".join(done.stderr.splitlines()[-1:])}


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
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **options}
    )
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
    victim: str, cluster: Any, arguments: Sequence[object], out: Path, moment: float, draw: random.Random
) -> Row:
    """Predict on the cluster, kill the victim after so many seconds, and resume if the command did not end well."""
    command = [*COMMAND, *map(str, arguments), "--out", str(out), "--ray", cluster.address, "--workers", "2"]
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        driver.wait(moment)
        killed = False
    except subprocess.TimeoutExpired:
        killed = kill(victim, cluster, driver, draw)
    said = driver.communicate()[1]
    log = out / LOG_FILE
    done_before = max(0, len(log.read_text().splitlines()) - 1) if log.exists() else 0
    row: Row = {
        "victim": victim,
        "moment": moment,
        "killed": killed,
        "code": driver.returncode,
        "resumed": False,
    }
    row["files_done"] = done_before
    if driver.returncode:
        row["resumed"] = True
        if victim != "driver":
            row["said"] = said
        resume = ["--resume"] if log.exists() else []
        again = subprocess.run([*command, *resume], capture_output=True, text=True, check=False)
        row |= {"code": again.returncode} | ({"said": again.stderr} if again.returncode else {})
    return row


def compare(out: Path, expected: dict[str, bytes]) -> Row:
    """What is lost, doubled or different in a folder of predictions."""
    found = outputs(out)
    entries = [json.loads(line)["file"] for line in (out / LOG_FILE).read_text().splitlines()[1:]]
    lines = {name: (expected[name].splitlines(), found.get(name, b"").splitlines()) for name in expected}
    return {
        "lost": sum(len(set(old) - set(new)) for old, new in lines.values()),
        "doubled": sum(len(new) - len(set(new)) for _, new in lines.values())
        + len(entries)
        - len(set(entries)),
        "identical": found == expected,
    }


def measure_kills(options: argparse.Namespace) -> Row:
    draw, rows = random.Random(options.seed), []
    arguments = [options.data, "--model", options.model, "--device", "cpu", "-q"]
    with tempfile.TemporaryDirectory() as temporary, two_nodes() as cluster:
        folder = Path(temporary)
        run_command(*arguments, "--out", folder / "local")
        expected = outputs(folder / "local")
        whole = run_command(*arguments, "--out", folder / "ray", "--ray", cluster.address)["seconds"]
        assert outputs(folder / "ray") == expected
        for number in range(options.moments * len(VICTIMS)):
            out = folder / str(number)
            victim = VICTIMS[number % len(VICTIMS)]
            row = run_killed(victim, cluster, arguments, out, draw.uniform(0, whole), draw)
            rows.append(row | compare(out, expected))
            print(json.dumps(rows[-1]), file=sys.stderr)
    total = {
        key: sum(row[key] for row in rows) for key in ("killed", "resumed", "lost", "doubled", "identical")
    }
    documents = sum(len(content.splitlines()) for content in expected.values())
    return {
        "files": len(expected),
        "documents": documents,
        "seconds": whole,
        "runs": len(rows),
        **total,
        "rows": rows,
    }


# speed


def measure_speed(options: argparse.Namespace) -> Row:
    """The command with and without Ray, on the same texts, in turns; each number of workers against as many threads.

    The seconds are those between the start of the first and the end of the last prediction, as a long run has them: the
    time that a run on one short text takes is subtracted.
    """
    counts = list(map(int, options.workers.split(",")))
    runs: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        short = folder / "short"
        short.mkdir()
        for number in range(max(counts)):
            (short / f"{number}.txt").write_text("Ann lives in Lisbon.\n")
        for turn in range(options.rounds):
            for count in counts:
                for ray in ([], ["--ray", "--workers", count]):
                    name = f"{'ray' if ray else 'local'} {count}"
                    for data in (short, options.data):
                        out = folder / f"{name} {turn} {data.name}"
                        arguments = [data, "--out", out, "--model", options.model, "--device", "cpu", *ray]
                        row = run_command(*arguments, threads=count)
                        runs.setdefault(f"{name} {'short' if data is short else 'all'}", []).append(row)
                        print(name, data.name, json.dumps(row), file=sys.stderr)
        words = int(runs[f"local {counts[0]} all"][0]["said"].split("; ")[1].split()[0].replace(",", ""))
        identical = len({json.dumps({k: v.decode() for k, v in outputs(p).items()}, sort_keys=True)
                         for p in folder.iterdir() if p.name.endswith(f" {options.data.name}")}) == 1  # fmt: skip
    result: Row = {"words": words, "identical": identical, "rows": {}}
    for name in (f"{kind} {count}" for count in counts for kind in ("local", "ray")):
        seconds, start = (
            statistics.median(r["seconds"] for r in runs[f"{name} {data}"]) for data in ("all", "short")
        )
        result["rows"][name] = {
            "seconds": seconds,
            "start_seconds": start,
            "words_per_second": words / (seconds - start),
            "runs": [[r["seconds"] for r in runs[f"{name} {data}"]] for data in ("all", "short")],
        }
    rate = {name: row["words_per_second"] for name, row in result["rows"].items()}
    result["overhead"] = {count: 1 - rate[f"ray {count}"] / rate[f"local {count}"] for count in counts}
    result["speedup"] = {count: rate[f"ray {count}"] / rate[f"ray {counts[0]}"] for count in counts}
    return result


# memory


class CopyWorker:
    """In place of `nestree.integrations.ray.Worker`: returns documents as they are."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def ready(self) -> None:
        pass

    def predict(self, groups: Sequence[Sequence[Any]]) -> list[Any]:
        return [document for group in groups for document in group]


def measure_memory(options: argparse.Namespace) -> Row:
    """Resident memory of the driver after each twentieth of the documents, which are in one file."""
    import nestree
    from nestree.integrations import ray
    from nestree.predict_files import FilePredictOptions, plan_jobs, predict_files

    pipeline = nestree.load(options.model, "cpu")
    predict_options = pipeline.predict_options(None, False)
    with tempfile.TemporaryDirectory() as temporary, ray.connect("local", options.model, 2, "cpu") as cluster:
        source, out = Path(temporary, "in.jsonl"), Path(temporary, "out.jsonl")
        with open(source, "w") as file:
            for number in range(options.documents):
                file.write(
                    json.dumps(
                        {"text": f"Ann met the mayor of town {number} in Lisbon.", "doc_id": str(number)}
                    )
                )
                file.write("\n")
        samples: list[Row] = []

        def sample(progress: Any) -> None:
            if (progress.share or 0) * 20 >= len(samples):
                samples.append({"share": progress.share, "rss": read_status("VmRSS")})
                print(json.dumps(samples[-1]), file=sys.stderr)

        cluster = replace(cluster, worker_class=CopyWorker)
        started = time.perf_counter()
        plan = plan_jobs([source], None, out, "jsonl")
        summary = predict_files(pipeline, plan, FilePredictOptions(predict_options), None, sample, cluster)
        seconds = time.perf_counter() - started
        cluster.close()
        with open(out) as file:
            ids = [json.loads(line)["doc_id"] for line in file]
    settled = [row["rss"] for row in samples if row["share"] >= 0.1]
    return {
        "documents": summary.documents,
        "in_order": ids == [str(number) for number in range(options.documents)],
        "seconds": seconds,
        "documents_per_second": options.documents / seconds,
        "growth_mb_after_a_tenth": (settled[-1] - settled[0]) / 1e6,
        "samples": samples,
    }


if __name__ == "__main__":
    sys.exit(main())
