"""When the CPU kernels are compiled, and what is kept of that on disk."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

COUNT_TREES = """
import logging
logging.basicConfig(level=logging.INFO)
import torch
from nestree.treecrf import PlainPotentials, log_partition, numba_kernels, use_backend
with use_backend("numba"):
    count = round(log_partition(PlainPotentials(torch.zeros(1, 5, 5)), [4]).exp().item())
print(numba_kernels.__file__, count, sum(numba_kernels.plain_part.stats.cache_hits.values()))
"""


@pytest.fixture
def installed(tmp_path):
    """A copy of the package, and a function that counts trees with it: where it lies, how many, code from disk."""
    site, home = tmp_path / "site", tmp_path / "home"
    shutil.copytree(ROOT / "nestree", site / "nestree", ignore=shutil.ignore_patterns("__pycache__"))
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    environment |= {"PYTHONPATH": str(site), "HOME": str(home), "XDG_CACHE_HOME": str(home)}

    def count_trees(**options):
        answer = subprocess.run(
            [sys.executable, "-c", COUNT_TREES],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            **options,
        )
        assert answer.returncode == 0, answer.stderr
        place, trees, from_disk = answer.stdout.split()
        assert Path(place).is_relative_to(site)
        return int(trees), int(from_disk), answer.stderr

    yield tmp_path, count_trees
    for path in (site, home):
        set_modes(path, 0o755)


def set_modes(top: Path, mode: int) -> None:
    for path in (top, *top.rglob("*")):
        path.chmod(mode)


def without_override() -> None:
    """From the next program on, root may write only where the mode allows it, like any user."""
    drop_from_bounding_set, dac_override = 24, 1
    if os.geteuid() == 0 and ctypes.CDLL(None).prctl(drop_from_bounding_set, dac_override, 0, 0, 0):
        raise OSError("the right to override modes cannot be dropped")


@pytest.mark.skipif(sys.platform != "linux", reason="modes and rights as Linux has them")
def test_a_read_only_install(installed):
    folder, count_trees = installed
    for path in (folder / "site", folder / "home"):
        set_modes(path, 0o555)
    trees, _, messages = count_trees(preexec_fn=without_override)
    assert trees == 5
    assert "compiled code is not kept between runs" in messages
    assert not [path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc", ".pyc")]


def test_kept_code_is_out_of_date_when_any_of_its_files_changes(installed):
    folder, count_trees = installed
    assert count_trees()[:2] == (5, 0)
    assert count_trees()[:2] == (5, 1)
    kernels = folder / "site" / "nestree" / "treecrf" / "numba_kernels"
    other = (
        kernels / "logspace.py"
    )  # plain_part is in plain.py, and calls `minus_inf_if_impossible` in this one
    text = other.read_text()
    changed = text.replace("return np.float64(score) if", "return np.float64(score) + math.log(2) if")
    assert changed != text
    other.write_text(changed)
    assert count_trees()[:2] == (5 * 2**7, 0)


def test_importing_compiles_nothing():
    program = (
        "from nestree.treecrf import numba_kernels as k\n"
        "print(len(k.inside_part.signatures), len(k.best_part.signatures))"
    )
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert answer.stdout.split() == ["0", "0"], answer.stderr
