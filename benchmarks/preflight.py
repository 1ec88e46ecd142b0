"""Before anything is timed: do the tests pass, and what does the first call cost, compilation included?

`python -m benchmarks.preflight cpu` prints the seconds of the first call of every operation in a process.
Loading torch is not counted, loading the kernels and their compiler is.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.engines import OPERATIONS, OURS, engine, random_inputs
from benchmarks.timing import ROOT, Call, wait

TESTS = {
    "cpu": ["tests/treecrf", "-m", "not cuda", "-k", "numba"],
    "cuda": ["tests/treecrf", "-m", "cuda"],
}
COUNTED = ("tests", "failures", "errors", "skipped")
BATCH, N = 16, 20  # of the first call


def run_tests(device: str, log: Path | None = None) -> dict[str, Any]:
    """Run the backend's tests, unless there is a log of them; ends the program if one fails or none passes."""
    ended = 0
    with tempfile.TemporaryDirectory() as folder:
        if log is None:
            print(f"tests first: pytest {' '.join(TESTS[device])}", file=sys.stderr)
            log = Path(folder) / "tests.xml"
            command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={log}", *TESTS[device]]
            ended = subprocess.run(command, cwd=ROOT, stdout=sys.stderr).returncode
        suites = list(ElementTree.parse(log).getroot().iter("testsuite")) if log.exists() else []
    counts = {key: sum(int(suite.get(key, 0)) for suite in suites) for key in COUNTED}
    counts["passed"] = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    if ended or counts["failures"] or counts["errors"] or not counts["passed"]:
        raise SystemExit(f"no speed is reported: of the tests of the {device} backend {counts}.")
    return {"selection": TESTS[device], "at": [suite.get("timestamp") for suite in suites], **counts}


def first_calls(device: str) -> dict[str, Any]:
    """Seconds of the first call of each operation, with nothing compiled, and in a process after that."""
    print("first calls: compiling in fresh processes", file=sys.stderr)
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache}
        for state in ("compiling", "cached"):
            command = [sys.executable, "-m", "benchmarks.preflight", device]
            answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
            if answer.returncode:
                raise SystemExit(f"the first call failed:\n{answer.stderr}")
            seconds = json.loads(answer.stdout.splitlines()[-1])
            found[state] = {"all": sum(seconds.values()), **seconds}
    return found


def main(device: str) -> None:
    ours = engine(OURS, device)
    if device == "cuda":
        torch.zeros(1, device=device)  # the driver's own start is not ours
    first = {}
    with ours.setting():
        for trees, operations in OPERATIONS.items():
            inputs = random_inputs(trees, BATCH, N, device, 0, torch.float32)
            for operation in operations:
                call = partial(ours.operations[operation], inputs)
                first[f"{trees} {operation}"] = seconds(call, device)
    print(json.dumps(first))


def seconds(call: Call, device: str) -> float:
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - start


if __name__ == "__main__":
    main(sys.argv[1])
