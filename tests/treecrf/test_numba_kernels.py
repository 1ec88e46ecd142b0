"""What only the CPU kernels have: three precisions, SIMD, threads, compilation.

test_backends.py tests that they equal the reference in float32, together with the other backends.
"""

import ctypes
import math
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from nestree.treecrf import (
    IMPOSSIBLE,
    log_partition,
    marginals,
    numba_kernels,
    reference,
    use_backend,
)
from nestree.treecrf.numba_kernels import jit, scheduling, simd
from nestree.treecrf.potentials import NO_TREE
from tests.conftest import ROOT
from tests.treecrf.cases import SMALL, lexical, plain, rows, to
from tests.treecrf.checks import everything, same_bits
from tests.treecrf.data_parallel import Scorer, gradients
from tests.treecrf.sweep import Case

TOO_FAR_APART = Case((9, 6, 1), 1000.0)
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


@pytest.mark.parametrize("name", SMALL)
def test_the_chart_in_logs_is_that_of_the_reference(name):
    given, lengths = SMALL[name](), torch.tensor([1, 2, 3, 4, 5, 6])
    found = numba_kernels.log_chart(numba_kernels.inside(given, lengths)[1])
    right = reference.inside(given, lengths)[1].clamp(min=IMPOSSIBLE)
    assert found.shape == right.shape
    for b, n in enumerate(lengths.tolist()):
        one, other = (chart[b, : n + 1, : n + 1, :n].clamp(min=NO_TREE) for chart in (found, right))
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


# Precisions


def precisions(std: float, dtype: torch.dtype) -> list[tuple[np.dtype, bool]]:
    given = to(lexical([17, 9, 1], std=std), dtype)
    _, charts = numba_kernels.inside(given, torch.tensor([17, 9, 1]))
    return [(chart.cells.dtype, chart.exponents.size == 0) for chart in charts.charts]


def test_a_precision_is_used_where_it_is_needed():
    single, double, logs = (np.float32, False), (np.float64, False), (np.float64, True)
    assert precisions(1.0, torch.float32) == [single]
    assert precisions(15.0, torch.float32) == [single, double]
    assert precisions(15.0, torch.float64) == [double]
    assert precisions(1000.0, torch.float32) == [single, double, logs]


def test_sums_in_logs_equal_the_reference():
    given, lengths = TOO_FAR_APART.potentials(), TOO_FAR_APART.lengths
    with use_backend("numba"):
        found, part = log_partition(given, lengths), marginals(given, lengths)
    with use_backend("reference"):
        exact = to(given, torch.float64)
        expected, right = log_partition(exact, lengths), marginals(exact, lengths)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-3)
    for name in given._fields:
        assert (getattr(part, name) - getattr(right, name)).abs().max() < 1e-5, name


def test_one_sentence_in_logs_leaves_the_others_as_they_are():
    calm, wild = Case((9, 9)).potentials(), Case((9, 9), 1000.0).potentials()
    mixed = type(calm)(*(torch.stack([one[0], other[1]]) for one, other in zip(calm, wild, strict=True)))
    before = numba_kernels.logspace_count
    with use_backend("numba"):
        assert log_partition(mixed, (9, 9))[0] == log_partition(calm, (9, 9))[0]
    assert numba_kernels.logspace_count == before + 1


@pytest.mark.parametrize("field", ["span", "arc", "root", "inherit", "head"])
@pytest.mark.parametrize("score", [-1000.0, 1000.0])
def test_scores_of_a_thousand_beside_small_ones(field, score):
    given = lexical([7, 7])
    cells = getattr(given, field)
    cells[1] = torch.where(
        torch.rand(cells[1].shape, generator=torch.Generator().manual_seed(0)) < 0.3, score, cells[1]
    )
    lengths = torch.tensor([7, 7])
    for dtype, allowed in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        rounded = to(given, dtype)
        log_z, part = numba_kernels.inside_outside(rounded, lengths, True)
        right_z, right = reference.inside_outside(to(rounded, torch.float64), lengths, True)
        torch.testing.assert_close(log_z.double(), right_z, rtol=1e-6, atol=0)
        for found, expected in zip(part, right, strict=True):
            assert (found - expected).abs().max() < allowed


def test_a_tree_of_parts_that_are_all_very_unlikely_is_not_lost():
    """Each choice for the better forbids what is needed later: only one tree is left, and each part of it is bad."""
    n = 12
    given = lexical([n], std=0.0, head=False)
    given.arc[0] = IMPOSSIBLE
    given.root[0, 1:] = IMPOSSIBLE
    given.arc[0, 0, 1:] = -30.0 * torch.arange(1, n)
    lengths = torch.tensor([n])
    for dtype in (torch.float32, torch.float64):
        rounded = to(given, dtype)
        log_z, _ = numba_kernels.inside(rounded, lengths)
        right, _ = reference.inside(to(rounded, torch.float64), lengths)
        torch.testing.assert_close(log_z.double(), right, rtol=1e-6, atol=0)


def test_no_tree_at_all():
    given = lexical([4, 4])
    given.span[1, 0, 4] = IMPOSSIBLE
    log_z, part = numba_kernels.inside_outside(given, torch.tensor([4, 4]), False)
    assert log_z[0] > NO_TREE > log_z[1]
    assert part.span[0].sum() == pytest.approx(7)
    assert part.span[1].count_nonzero() == 0


# Vectors


@pytest.mark.parametrize("number", [np.float32, np.float64])
@pytest.mark.parametrize("width", range(10))
def test_exponentials(number, width):
    @jit.compiled
    def split(scores, least, numbers, powers):
        return simd.exponentials(scores, 1, width, None, 0, least, 300.0, numbers, 2, powers, 0)

    scores = np.random.default_rng(width).normal(0, 40, 16).astype(number)
    scores[3], scores[width + 1 :] = IMPOSSIBLE, np.nan
    numbers, powers = np.full(16, np.nan), np.zeros(16, np.int64)
    assert split(scores, -300.0, numbers, powers) == 0
    assert split(scores, -1e-9, numbers.copy(), powers.copy()) == any(
        -300 < x < -1e-9 for x in scores[1 : width + 1]
    )
    for t, score in enumerate(scores[1 : width + 1].tolist()):
        if score == IMPOSSIBLE:
            assert numbers[2 + t] == 0
            assert powers[t] == simd.ZERO_EXPONENT
        else:
            assert 0.7 < numbers[2 + t] < 1.42
            assert math.ldexp(numbers[2 + t], int(powers[t])) == pytest.approx(
                math.exp(score), rel=1e-11 if number is np.float32 else 1e-15
            )


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_what_is_done_to_a_row_stops_at_its_end(number):
    @jit.compiled
    def look(row, width):
        return (
            simd.row_max(row, 2, width),
            simd.small_flags(row, 2, width, 0.5),
            simd.dot(row, 2, row, 2, width),
        )

    for width in range(11):
        row = np.full(20, np.nan, number)
        row[2 : 2 + width] = np.arange(width) / 4
        high, found, square = look(row, width)
        assert high == max((width - 1) / 4, 0)
        assert found == 2 * (width > 0) + (width > 1)
        assert square == pytest.approx(sum((x / 4) ** 2 for x in range(width)))


# Threads, batches, buffers: none of them may matter, to the bit


KINDS = {
    "calm": lambda: to(lexical(LENGTHS), torch.float32),
    "no head": lambda: to(lexical(LENGTHS, head=False), torch.float32),
    "float64": lambda: lexical(LENGTHS),
    "far apart": lambda: to(lexical(LENGTHS, std=60.0), torch.float32),
    "inherit impossible": lambda: forbidden_inherits(LENGTHS),
    "plain": lambda: to(plain(LENGTHS), torch.float32),
}


def forbidden_inherits(lengths):
    given = to(lexical(lengths), torch.float32)
    given.inherit[:, 1, 2] = given.inherit[:, 2, 7] = IMPOSSIBLE
    given.span[:, 3, 5] = given.arc[:, 2, :2] = IMPOSSIBLE
    return given


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_change_the_bits(kind, monkeypatch):
    potentials, long = KINDS[kind](), rows(KINDS[kind](), 0)
    torch.set_num_threads(1)
    one_thread = passes(potentials, LENGTHS), passes(long, LENGTHS[:1])
    monkeypatch.setattr(scheduling, "MIN_THREAD_NANOSECONDS", 1.0)
    monkeypatch.setattr(scheduling, "MIN_SPLIT_WORDS", 1)
    for threads in (2, 3):  # by sentences, and within the only sentence
        torch.set_num_threads(threads)
        assert same_bits(passes(potentials, LENGTHS), one_thread[0])
        assert same_bits(passes(long, LENGTHS[:1]), one_thread[1])


def test_threads_inside_a_long_sentence():
    case = Case((scheduling.MIN_SPLIT_WORDS + 13,), 60.0, head=False)
    potentials = case.potentials()
    torch.set_num_threads(1)
    one_thread = everything("numba", potentials, case.lengths)
    torch.set_num_threads(3)
    assert same_bits(everything("numba", potentials, case.lengths), one_thread)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_and_its_sentences_one_by_one(kind):
    given = KINDS[kind]()
    log_z, part = numba_kernels.inside_outside(given, torch.tensor(LENGTHS), len(given) == 5)
    trees = numba_kernels.viterbi(given, torch.tensor(LENGTHS))
    for b, n in enumerate(LENGTHS):
        one = rows(given, b, n)
        z, alone = numba_kernels.inside_outside(one, torch.tensor([n]), len(given) == 5)
        assert same_bits([z], [log_z[b : b + 1]])
        for found, expected in zip(alone, part, strict=True):
            if found is not None:
                cut = expected[b : b + 1][tuple(slice(0, size) for size in found.shape)]
                assert same_bits([found], [cut.contiguous()])
        assert numba_kernels.viterbi(one, torch.tensor([n]))[0] == trees[b]


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_buffers_before(kind, monkeypatch):
    given = KINDS[kind]()
    expected = passes(given, LENGTHS)
    for number, whole in ((math.nan, -1), (1e30, 1 << 27), (0.0, 0)):

        def filled(*shape, dtype=np.float64, number=number, whole=whole):
            return np.full(shape, number if np.dtype(dtype).kind == "f" else whole, dtype)

        monkeypatch.setattr(numba_kernels, "buffer", filled)
        assert same_bits(passes(given, LENGTHS), expected)


def test_nothing_is_written_beyond_a_buffer(monkeypatch):
    made = []

    def guarded(*shape, dtype=np.float64):
        size, item = math.prod(shape) * np.dtype(dtype).itemsize, 64
        memory = np.full(size + 2 * item, 0xA5, np.uint8)
        made.append((memory[:item], memory[item + size :]))
        return memory[item : item + size].view(dtype).reshape(shape)

    monkeypatch.setattr(numba_kernels, "buffer", guarded)
    for kind in KINDS.values():
        passes(kind(), LENGTHS)
        passes(rows(kind(), 3, 1), [1])
    assert made
    for before, after in made:
        assert (before == 0xA5).all()
        assert (after == 0xA5).all()


def test_several_threads_of_python_at_once():
    given = [to(lexical([12, 20, 5], seed=seed), torch.float32) for seed in range(4)]
    expected = [passes(one, [12, 20, 5]) for one in given]
    with ThreadPoolExecutor(4) as callers:
        for found, right in zip(
            callers.map(lambda k: passes(given[k % 4], [12, 20, 5]), range(40)), expected * 10, strict=True
        ):
            assert same_bits(found, right)


def test_an_error_in_a_thread_is_not_lost():
    def work(thread):
        if thread == 1:
            raise ValueError("in the second")

    with pytest.raises(ValueError, match="in the second"):
        scheduling.run_in_threads(work, 2)


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
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert answer.returncode == 0, answer.stderr


def test_data_parallel_training_averages_the_gradients_of_two_processes(tmp_path):
    out = [str(tmp_path / f"gradients.{rank}") for rank in range(2)]
    command = [sys.executable, "-m", "tests.treecrf.data_parallel"]
    workers = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "rendezvous"), out[rank]], cwd=ROOT)
        for rank in range(2)
    ]
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
    averaged = [torch.load(path) for path in out]
    alone = [gradients(Scorer(), rank) for rank in range(2)]
    assert not torch.allclose(alone[0][0], alone[1][0])
    for first, second, a, b in zip(*averaged, *alone, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, (a + b) / 2)


# Compilation


COUNT_TREES = """
import logging
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
    other = kernels / "logspace.py"  # plain_kernel is in plain.py, and calls `log_score` of this file
    text = other.read_text()
    changed = text.replace("return np.float64(score) if", "return np.float64(score) + math.log(2) if")
    assert changed != text
    other.write_text(changed)
    assert count_trees()[:2] == (5 * 2**7, 0)


def test_importing_compiles_nothing():
    program = (
        "from nestree.treecrf import numba_kernels as k\n"
        "print(len(k.inside_kernel.signatures), len(k.viterbi_kernel.signatures))"
    )
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert answer.stdout.split() == ["0", "0"], answer.stderr
