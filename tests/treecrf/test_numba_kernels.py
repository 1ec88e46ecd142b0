"""What only the CPU kernels have: three precisions, SIMD, threads, compilation.

test_backends.py tests that they equal the reference in float32, together with the other backends.
"""

import ctypes
import math
import os
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest
import torch

from nestree.treecrf import IMPOSSIBLE, numba_kernels, reference
from nestree.treecrf.numba_kernels import simd
from tests.conftest import ROOT
from tests.treecrf.cases import Case, lexical, plain, rows, to
from tests.treecrf.test_backends import same_bits

LENGTHS = [17, 3, 9, 1, 16]


def passes(given, lengths):
    """log Z, all marginals, the chart in logs and the best trees, straight from the kernels."""
    lengths = torch.as_tensor(lengths)
    heads = len(given) == 5
    log_z, chart = numba_kernels.inside(given, lengths)
    with_part, part = numba_kernels.inside_outside(given, lengths, heads)
    trees = numba_kernels.viterbi(given, lengths)
    logs = numba_kernels.log_chart(chart)
    tensors = [log_z, with_part, *part, logs, trees.score, trees.spans, trees.arcs, trees.root]
    return [tensor for tensor in tensors if tensor is not None]


def test_no_foreign_memory_is_read_or_written(monkeypatch):
    arrays = numba_kernels.copy_to_arrays(lexical([5, 3]), torch.tensor([5, 3]))
    for array in (arrays.span, arrays.arc, arrays.root):
        assert array.base.size == array.size + numba_kernels.SIMD_SLACK
    borders = []

    def guarded(*shape, dtype=np.float64):
        size, item = math.prod(shape) * np.dtype(dtype).itemsize, 64
        memory = np.full(size + 2 * item, 0xA5, np.uint8)
        borders.append((memory[:item], memory[item + size :]))
        return memory[item : item + size].view(dtype).reshape(shape)

    monkeypatch.setattr(numba_kernels, "buffer", guarded)
    for kind in KINDS.values():
        passes(kind(), LENGTHS)
        passes(rows(kind(), 3, 1), [1])
    assert borders
    for before, after in borders:
        assert (before == 0xA5).all()
        assert (after == 0xA5).all()


# Precisions


def assert_sums_are_right(given, lengths, allowed, rtol=1e-6, atol=0.0):
    """log Z within the tolerances of the reference in float64, and marginals within `allowed`."""
    log_z, part = numba_kernels.inside_outside(given, lengths, True)
    right_z, right = reference.inside_outside(to(given, torch.float64), lengths, True)
    torch.testing.assert_close(log_z.double(), right_z, rtol=rtol, atol=atol)
    for found, expected in zip(part, right, strict=True):
        assert (found - expected).abs().max() < allowed


@pytest.mark.parametrize(
    ("std", "dtype", "used"),
    [
        (1.0, torch.float32, [(np.float32, False)]),
        (15.0, torch.float32, [(np.float32, False), (np.float64, False)]),
        (15.0, torch.float64, [(np.float64, False)]),
        (1000.0, torch.float32, [(np.float32, False), (np.float64, False), (np.float64, True)]),
    ],
)
def test_a_precision_is_used_where_it_is_needed(std, dtype, used):
    lengths = torch.tensor([17, 9, 1])
    given = to(lexical(lengths.tolist(), std=std), dtype)
    _, (_, charts) = numba_kernels.inside(given, lengths)
    assert [(chart.slots.cells.dtype, chart.slots.exponents.size == 0) for chart in charts] == used
    assert_sums_are_right(given, lengths, 2e-5, atol=1e-3)


def test_one_sentence_in_logs_leaves_the_others_as_they_are():
    calm, wild = Case((9, 9)).potentials(), Case((9, 9), 1000.0).potentials()
    mixed = type(calm)(*(torch.stack([one[0], other[1]]) for one, other in zip(calm, wild, strict=True)))
    lengths = torch.tensor([9, 9])
    (right, _), (found, (_, charts)) = (numba_kernels.inside(given, lengths) for given in (calm, mixed))
    assert found[0] == right[0]
    assert charts[-1].slots.exponents.size == 0
    assert charts[-1].sentences.tolist() == [1]


@pytest.mark.parametrize("field", ["span", "arc", "root", "inherit", "head"])
@pytest.mark.parametrize("score", [-1000.0, 1000.0])
def test_scores_of_a_thousand_beside_small_ones(field, score):
    given = lexical([7, 7])
    cells = getattr(given, field)
    chosen = torch.rand(cells[1].shape, generator=torch.Generator().manual_seed(0)) < 0.3
    cells[1] = torch.where(chosen, score, cells[1])
    lengths = torch.tensor([7, 7])
    for dtype, allowed in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        assert_sums_are_right(to(given, dtype), lengths, allowed)


def test_a_tree_of_parts_that_are_all_very_unlikely_is_not_lost():
    """Each choice for the better forbids what is needed later: only one tree is left, and each part of it is bad."""
    n = 12
    given = lexical([n], std=0.0, head=False)
    given.arc[0] = IMPOSSIBLE
    given.root[0, 1:] = IMPOSSIBLE
    given.arc[0, 0, 1:] = -30.0 * torch.arange(1, n)
    lengths = torch.tensor([n])
    for dtype in (torch.float32, torch.float64):
        assert_sums_are_right(to(given, dtype), lengths, 1e-5)


# Threads, batches, buffers: none of them may matter, to the bit


def forbidden_inherits():
    given = to(lexical(LENGTHS), torch.float32)
    given.inherit[:, 1, 2] = given.inherit[:, 2, 7] = IMPOSSIBLE
    given.span[:, 3, 5] = given.arc[:, 2, :2] = IMPOSSIBLE
    return given


KINDS = {
    "calm": lambda: to(lexical(LENGTHS), torch.float32),
    "no head": lambda: to(lexical(LENGTHS, head=False), torch.float32),
    "float64": lambda: lexical(LENGTHS),
    "far apart": lambda: to(lexical(LENGTHS, std=60.0), torch.float32),
    "inherit impossible": forbidden_inherits,
    "plain": lambda: to(plain(LENGTHS), torch.float32),
}


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_change_the_bits(kind, monkeypatch):
    potentials, long = KINDS[kind](), rows(KINDS[kind](), 0)
    torch.set_num_threads(1)
    one_thread = passes(potentials, LENGTHS), passes(long, LENGTHS[:1])
    monkeypatch.setattr(numba_kernels, "MIN_THREAD_NANOSECONDS", 1.0)
    monkeypatch.setattr(numba_kernels, "MIN_SPLIT_WORDS", 1)
    for threads in (2, 3):  # by sentences, and within the only sentence
        torch.set_num_threads(threads)
        assert same_bits(passes(potentials, LENGTHS), one_thread[0])
        assert same_bits(passes(long, LENGTHS[:1]), one_thread[1])


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_buffers_before(kind, monkeypatch):
    given = KINDS[kind]()
    expected = passes(given, LENGTHS)
    for number, whole in ((math.nan, -1), (1e30, 1 << 27), (0.0, 0)):

        def filled(*shape, dtype=np.float64, number=number, whole=whole):
            return np.full(shape, number if np.dtype(dtype).kind == "f" else whole, dtype)

        monkeypatch.setattr(numba_kernels, "buffer", filled)
        assert same_bits(passes(given, LENGTHS), expected)


def test_several_threads_of_python_at_once():
    given = [to(lexical([12, 20, 5], seed=seed), torch.float32) for seed in range(4)]
    expected = [passes(one, [12, 20, 5]) for one in given]
    with ThreadPoolExecutor(4) as callers:
        for found, right in zip(
            callers.map(lambda k: passes(given[k % 4], [12, 20, 5]), range(40)), expected * 10, strict=True
        ):
            assert same_bits(found, right)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork():
    program = """
import os, torch
torch.set_num_threads(2)
from nestree.treecrf import PlainPotentials, LexicalPotentials, numba_kernels
n = 24
given = LexicalPotentials(*(torch.zeros(shape) for shape in ((8, n + 1, n + 1), (8, n, n), (8, n), (8, n + 1, n + 1))))
before, _ = numba_kernels.inside(given, torch.full((8,), n))
child = os.fork()
if child == 0:
    after, _ = numba_kernels.inside(given, torch.full((8,), n))
    os._exit(0 if torch.equal(before, after) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert answer.returncode == 0, answer.stderr


# Compilation


COUNT_TREES = """
import logging, sys
sys.modules["dill"] = None  # torch.utils.data imports it where it is installed, and it needs a temporary folder
logging.basicConfig(level=logging.INFO)
import torch
from nestree.treecrf import PlainPotentials, log_partition, numba_kernels, use_backend
with use_backend("numba"):
    count = round(log_partition(PlainPotentials(torch.zeros(1, 5, 5)), [4]).exp().item())
print(numba_kernels.__file__, count, sum(numba_kernels.plain_kernel.stats.cache_hits.values()))
"""


@pytest.fixture
def installed(tmp_path):
    """A copy of the package, and a function that counts trees with it: where it lies, how many, code from disk."""
    site, home, temporary = tmp_path / "site", tmp_path / "home", tmp_path / "temporary"
    shutil.copytree(ROOT / "nestree", site / "nestree", ignore=shutil.ignore_patterns("__pycache__"))
    home.mkdir()
    temporary.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    environment |= {"PYTHONPATH": str(site), "HOME": str(home), "XDG_CACHE_HOME": str(home)}
    environment["TMPDIR"] = str(temporary)

    def count_trees(**options):
        how = {"cwd": home, "env": environment, "capture_output": True, "text": True}
        answer = subprocess.run([sys.executable, "-c", COUNT_TREES], **how, **options)
        assert answer.returncode == 0, answer.stderr
        place, trees, from_disk = answer.stdout.split()
        assert Path(place).is_relative_to(site)
        return int(trees), int(from_disk), answer.stderr

    yield tmp_path, count_trees
    for path in (site, home, temporary):
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
    trees, from_disk, messages = count_trees(preexec_fn=without_override)
    assert (trees, from_disk) == (5, 0)
    assert "WARNING:nestree.treecrf.numba_kernels.simd:compiling kernels" in messages  # Python shows it unasked
    written = [path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc", ".pyc")]
    assert written
    private = folder / "temporary" / f"nestree-cache-{os.getuid()}"
    assert all(path.is_relative_to(private) for path in written)
    assert private.stat().st_mode & 0o777 == 0o700
    trees, from_disk, messages = count_trees(preexec_fn=without_override)
    assert (trees, from_disk) == (5, 1)
    assert "compiling kernels" not in messages

    def nowhere_to_write() -> None:  # so that there is no temporary folder, either
        without_override()
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    trees, from_disk, messages = count_trees(preexec_fn=nowhere_to_write)
    assert (trees, from_disk) == (5, 0)
    assert "compiled code is not kept" in messages


@pytest.mark.skipif(sys.platform != "linux", reason="modes and rights as Linux has them")
def test_code_in_a_folder_that_others_can_write_to_is_not_run(installed):
    folder, count_trees = installed
    shared = folder / "temporary" / f"nestree-cache-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o777)
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
    other = kernels / "inside.py"  # plain_kernel is in outside.py, and calls `log_score` of this file
    text = other.read_text()
    changed = text.replace("return np.float64(score) if", "return np.float64(score) + math.log(2) if")
    assert changed != text
    other.write_text(changed)
    assert count_trees()[:2] == (5 * 2**7, 0)


def test_importing_compiles_nothing():
    kernels = "len(k.sum_kernel.signatures), len(k.viterbi_kernel.signatures)"
    program = f"from nestree.treecrf import numba_kernels as k; print({kernels})"
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert answer.stdout.split() == ["0", "0"], answer.stderr


def plus_one(x):
    return x + 1


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    compiled, before = simd.kernel(plus_one), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))  # as on a full disk
    try:
        assert compiled(1) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*(tmp_path / "cache").rglob("*.nbc")]
