"""How many threads a worker has, and modules whose packages are not installed, where pytest looks for no examples."""

import importlib.util
import os

# Before anything imports torch. Several workers that each use all cores wait for each other at every sum.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(1, cores // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    os.environ |= {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}

PACKAGES = {
    "triton": "nestree/treecrf/triton_kernels/*",
    "spacy": "nestree/integrations/spacy.py",
    "fastapi": "nestree/serve/*",
    "ray": "nestree/integrations/ray.py",
}
collect_ignore_glob = [modules for name, modules in PACKAGES.items() if not importlib.util.find_spec(name)]
