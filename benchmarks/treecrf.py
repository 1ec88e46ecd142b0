"""Speed and memory of the tree engine beside its reference and other libraries.

    python -m benchmarks.treecrf [--device cpu|cuda] [--supar DIR] [--sizes 16x20,64x30]
    python -m benchmarks.treecrf --device cuda --eager

Runs the tests of the backend first and reports no speed if one fails. Prints tables and one line of JSON, which is also
written to benchmarks/results; rows are stored as they are measured, in a file beside it.

Times are medians over several runs in one process, libraries in turns, on three sets of normal scores. `wall` is host
time of the public call; on a GPU, `device` is a replayed CUDA graph of it, or CUDA events around it where it
synchronizes and cannot be captured, as the reference does.

`--eager` measures what a call costs beyond the work of the device: `log_partition` of lexical potentials with its
gradient, beside an autograd.Function that computes nothing, with the same inputs.
"""

import argparse
import gc
import importlib
import importlib.util
import re
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.timing import (
    QUIET,
    ROOT,
    Call,
    Competitor,
    Row,
    Sample,
    event_clock,
    graph_clock,
    interleave,
    peak_cpu,
    peak_cuda,
    provenance,
    rotate,
    store,
    wall_clock,
)
from nestree.errors import ChartMemoryError
from nestree.treecrf import (
    LexicalPotentials,
    PlainPotentials,
    best_trees,
    head_marginals,
    log_partition,
    raise_pending,
    reference,
    use_backend,
)
from nestree.treecrf.ops import free_bytes
from nestree.treecrf.potentials import Potentials

FORWARD, BACKWARD, BEST, HEADS = "forward", "forward + backward", "best trees", "head marginals"
OPERATIONS = {"lexical": (FORWARD, BACKWARD, BEST, HEADS), "plain": (FORWARD, BACKWARD, BEST)}
OURS, REFERENCE, TORCH_STRUCT, SUPAR = "ours", "reference", "torch-struct", "SuPar"
TESTS = {
    "cpu": ["tests/treecrf", "-m", "not cuda", "-k", "numba"],
    "cuda": ["tests/treecrf", "-m", "cuda"],
}
SIZES = {
    "cpu": "16x10,16x20,16x30,16x40,16x60,64x10,1x100",
    "cuda": "64x10,64x20,64x30,64x50,64x80,32x120,16x150,256x30",
}
INPUT_SETS = 3
MAX_SECONDS = {"cpu": 60.0, "cuda": 10.0}  # a library that is expected to take longer for one run is skipped
LIBRARY_SECONDS = {"cpu": 8.0, "cuda": 1.0}  # for the runs of another library, for each operation and size
OWN_SECONDS = 0.3  # for our runs, in each round
ROUNDS = (2, 7)
PEAK = {
    "cpu": "rise of the resident memory of a new process during one call (VmHWM, reset before the call)",
    "cuda": "rise of torch.cuda.max_memory_allocated during one call",
}
# Milliseconds on one H200 by (batch, n): forward, forward + backward, best trees of the code released with the paper
# (PyTorch, one step per width, recomputation): device time, float32, median. Measured by us at another time.
PUBLISHED = {
    (64, 10): (8.3, 23.9, 22.9),
    (64, 20): (21.2, 61.5, 50.3),
    (64, 30): (39.7, 90.4, 76.6),
    (64, 50): (54.5, 155.0, 137.0),
    (64, 80): (87.6, 264.0, 205.0),
    (32, 120): (160.0, 503.0, 448.0),
    (16, 150): (162.0, 600.0, 548.0),
    (256, 30): (43.5, 94.7, 61.1),
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    result: Row = {"benchmark": "treecrf", **provenance(options.device, options.commit)}
    if options.eager:
        result |= {"benchmark": "eager", "rows": [measure_eager(*size) for size in options.sizes]}
        print(store(result, options.out))
        return
    result["tests"] = None if options.skip_tests else run_tests(options.device)
    libraries, result["peers"] = load_libraries(options.device, options.supar)
    result["rows"] = []
    unfinished = options.out.with_suffix(".unfinished.json")
    plan = [(t, op, batch, n) for t, ops in OPERATIONS.items() for op in ops for batch, n in options.sizes]
    for number, (trees, operation, batch, n) in enumerate(plan, 1):
        print(f"{number}/{len(plan)}: {trees} {operation} {batch}x{n}", file=sys.stderr)
        row = {"trees": trees, "operation": operation, "batch": batch, "n": n}
        result["rows"].append(measure(libraries[trees], row, options, result["rows"]))
        store(result, unfinished)
    result["peak_memory"] = PEAK[options.device]
    show(result, options.device)
    print(store(result, options.out))
    unfinished.unlink(missing_ok=True)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.treecrf", description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--supar", type=Path, help="a checkout of SuPar's source, to be measured too")
    parser.add_argument("--sizes", type=parse_sizes, help="batch x words, as in 16x20,64x30")
    parser.add_argument("--eager", action="store_true", help="only the overhead of calls, on a CUDA device")
    parser.add_argument("--skip-tests", action="store_true", help="for trials; the result says so")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/treecrf-DEVICE.json")
    parser.add_argument("--commit", help="the commit to record outside a git checkout")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; leave --device out to measure the CPU.")
    options.sizes = options.sizes or parse_sizes(SIZES[options.device])
    if options.eager and options.device != "cuda":
        parser.error("--eager needs --device cuda.")
    name = f"{'eager' if options.eager else 'treecrf'}-{options.device}.json"
    options.out = options.out or ROOT / "benchmarks" / "results" / name
    return options


def parse_sizes(text: str) -> list[tuple[int, int]]:
    """
    >>> parse_sizes("16x20,64x30")
    [(16, 20), (64, 30)]
    """
    return [(int(batch), int(n)) for batch, n in (size.split("x") for size in text.split(","))]


def run_tests(device: str) -> Row:
    """Run the tests of the backend; ends the program if one fails or none passes."""
    print(f"tests first: pytest {' '.join(TESTS[device])}", file=sys.stderr)
    command = [sys.executable, "-m", "pytest", "-q", *TESTS[device]]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    passed = re.search(r"(\d+) passed", done.stdout)
    if done.returncode or passed is None:
        raise SystemExit(f"no speed is reported: tests of the {device} backend fail.\n{done.stdout[-2000:]}")
    return {"selection": TESTS[device], "passed": int(passed[1])}


# Libraries


class Inputs(NamedTuple):
    potentials: Potentials
    lengths: Tensor


class Library(NamedTuple):
    name: str
    convert: Callable[[Inputs], Any]  # our potentials to its own
    operations: Mapping[str, Callable[[Any], Any]]
    captured: bool  # in CUDA graphs; False: it synchronizes
    context: Callable[[], Any]  # to run it in

    def run(self, operation: str, inputs: Any) -> Any:
        with self.context():
            return self.operations[operation](inputs)


def random_inputs(trees: str, batch: int, n: int, device: str, seed: int, dtype: torch.dtype) -> Inputs:
    """Standard normal scores; all sentences have n words."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype).to(device).requires_grad_()

    lengths = torch.full((batch,), n, device=device)
    span = normal(batch, n + 1, n + 1)
    if trees == "plain":
        return Inputs(PlainPotentials(span), lengths)
    arc, root, inherit = normal(batch, n, n), normal(batch, n), normal(batch, n + 1, n + 1)
    return Inputs(LexicalPotentials(span, arc, root, inherit), lengths)


def load_libraries(device: str, supar: Path | None) -> tuple[dict[str, list[Library]], Row]:
    """The libraries by kind of trees, ours and the reference first; and how much others differ, or why they are
    skipped."""
    both = [load_library(OURS, device), load_library(REFERENCE, device)]
    libraries, notes = {"lexical": both, "plain": both}, Row()
    if importlib.util.find_spec("torch_struct"):
        libraries["plain"] = [*both, load_library(TORCH_STRUCT, device)]
    else:
        notes[TORCH_STRUCT] = "skipped: the package torch-struct is not installed"
    if supar is not None:
        libraries["lexical"] = [*both, load_library(SUPAR, device, supar)]
    else:
        notes[SUPAR] = "skipped: pass a checkout of its source with --supar"
    for trees, some in libraries.items():
        for library in some[2:]:
            notes[library.name] = {"difference from ours": check_agreement(library, trees, device)}
    return libraries, notes


def load_library(name: str, device: str, supar: Path | None = None) -> Library:
    if name == TORCH_STRUCT:
        return load_torch_struct()
    if name == SUPAR:
        return load_supar(supar or Path())
    backend = "reference" if name == REFERENCE else "triton" if device == "cuda" else "numba"

    def forward(inputs: Inputs) -> Tensor:
        with torch.no_grad():
            return log_partition(*inputs)

    def backward(inputs: Inputs) -> tuple[Tensor, ...]:
        leaves = [tensor for tensor in inputs.potentials if tensor is not None]
        return torch.autograd.grad(log_partition(*inputs).sum(), leaves)

    operations: dict[str, Callable[[Inputs], Any]] = {
        FORWARD: forward,
        BACKWARD: backward,
        BEST: lambda inputs: best_trees(*inputs),
        HEADS: lambda inputs: head_marginals(inputs.potentials, inputs.lengths),  # type: ignore[arg-type]
    }
    return Library(name, lambda inputs: inputs, operations, name == OURS, partial(use_backend, backend))


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Other libraries warn of changes in torch since they were written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def semiring_library(
    name: str,
    convert: Callable[[Inputs], Any],
    build: Callable[[Any], tuple[Callable[[Any], Tensor], Sequence[Tensor]]],
    semirings: Any,
) -> Library:
    """A library whose trees are gradients; `build` returns its sum over a semiring, and the scores."""

    def forward(inputs: Any) -> Tensor:
        with torch.no_grad():
            return build(inputs)[0](semirings.LogSemiring)

    def gradient(semiring: Any, inputs: Any) -> tuple[Tensor, ...]:
        total, scores = build(inputs)
        return torch.autograd.grad(total(semiring).sum(), scores)

    operations = {
        FORWARD: forward,
        BACKWARD: partial(gradient, semirings.LogSemiring),
        BEST: partial(gradient, semirings.MaxSemiring),
    }
    return Library(name, convert, operations, False, ignore_warnings)


def load_torch_struct() -> Library:
    """TreeCRF, over binary trees with one label: its potentials are [batch, first word, last word, 1].

    The structure behind it, CKY_CRF, is called directly: the properties of the distribution turn gradients on even
    where they are not needed, and would slow its forward pass down.
    """
    with ignore_warnings():
        package: Any = importlib.import_module("torch_struct")

    def convert(inputs: Inputs) -> tuple[Tensor, Tensor]:
        span = inputs.potentials.span.detach()[:, :-1, 1:, None]
        return span.contiguous().requires_grad_(), inputs.lengths

    def build(inputs: Any) -> Any:
        return lambda semiring: package.CKY_CRF(semiring).sum(*inputs), inputs[:1]

    return semiring_library(TORCH_STRUCT, convert, build, package)


def load_supar(path: Path) -> Library:
    """BiLexicalizedConstituencyCRF from a checkout of SuPar's main branch.

    It reads three scores, with words from 1 on and 0 for the root: dependencies [batch, modifier, head], spans
    [batch, i, j], and heads [batch, i, j, head], zero here. It has no `inherit`. The batch must be the innermost
    dimension in memory: otherwise it writes to copies of its charts, and log Z is -1e32.
    """
    crf = import_supar(path).BiLexicalizedConstituencyCRF

    def convert(inputs: Inputs) -> tuple[list[Tensor], Tensor]:
        p = inputs.potentials
        assert isinstance(p, LexicalPotentials)
        batch, n = p.root.shape
        dependency = p.span.new_zeros(batch, n + 1, n + 1)
        dependency[:, 1:, 1:] = p.arc.detach().mT
        dependency[:, 1:, 0] = p.root.detach()
        head = p.span.new_zeros(batch, n + 1, n + 1, n + 1)
        scores = (dependency, p.span.detach(), head)
        return [tensor.movedim(0, -1).contiguous().movedim(-1, 0) for tensor in scores], inputs.lengths

    def build(inputs: Any) -> Any:
        distribution = crf(*inputs)
        return distribution.forward, distribution.scores[:2]  # dependencies and spans

    return semiring_library(SUPAR, convert, build, importlib.import_module("supar.structs.semiring"))


def import_supar(path: Path) -> ModuleType:
    """supar.structs.tree of a checkout, without the __init__ of its packages, which import all of its parsers."""
    if not (path / "supar" / "structs" / "tree.py").is_file():
        raise SystemExit(f"{path} has no supar/structs/tree.py; pass a checkout of SuPar's source to --supar.")
    for name in ("supar", "supar.structs", "supar.utils"):
        package = ModuleType(name)
        package.__path__ = [str(path.joinpath(*name.split(".")))]
        sys.modules[name] = package
    try:
        structs = importlib.import_module("supar.structs.tree")
    except ImportError as error:
        raise SystemExit(f"SuPar at {path} does not load: {error}; install what it lacks.") from error
    if not hasattr(structs, "BiLexicalizedConstituencyCRF"):
        raise SystemExit(f"SuPar at {path} has no BiLexicalizedConstituencyCRF; its main branch has.")
    return structs


def check_agreement(library: Library, trees: str, device: str) -> dict[str, float]:
    """How much a library differs from us on a small batch; ends the program if it computes something else.

    log Z, its gradient and the best score against the reference in float64, log Z against our backend in float32.
    """
    inputs = random_inputs(trees, 5, 9, device, 0, torch.float64)
    p = inputs.potentials
    if isinstance(p, LexicalPotentials):
        p = p._replace(inherit=torch.zeros_like(p.inherit).requires_grad_())
    inputs = Inputs(p, torch.tensor([9, 1, 6, 2, 8], device=device))
    with use_backend("reference"):
        log_z = log_partition(*inputs)
        log_z.sum().backward()
        score = best_trees(*inputs).score
    converted = library.convert(inputs)
    values, gradient, best = (library.run(name, converted) for name in (FORWARD, BACKWARD, BEST))
    assert p.span.grad is not None
    if isinstance(p, LexicalPotentials):
        (dependency, span), scores = gradient, converted[0]
        pairs = [
            (dependency[:, 1:, 1:].mT, p.arc.grad),
            (dependency[:, 1:, 0], p.root.grad),
            (span, p.span.grad),
        ]
        other_score = sum((a * b).flatten(1).sum(1) for a, b in zip(best, scores, strict=False))
    else:
        pairs = [(gradient[0][..., 0], p.span.grad[:, :-1, 1:])]
        other_score = (best[0] * converted[0]).flatten(1).sum(1)
    single = type(p)(**{k: t.detach().float() for k, t in p._asdict().items() if t is not None})
    own_log_z = load_library(OURS, device).run(FORWARD, Inputs(single, inputs.lengths))

    def distance(a: Tensor, b: Tensor) -> float:
        return float((a.detach().double() - b.detach().double()).abs().max())

    difference = {
        "log Z": distance(values, log_z),
        "gradient": max(distance(a, b) for a, b in pairs),
        "best score": distance(other_score, score),
        "log Z, ours": distance(values, own_log_z),
    }
    if max(list(difference.values())[:3]) > 1e-8 or difference["log Z, ours"] > 1e-4:
        raise SystemExit(f"{library.name} and nestree do not compute the same: {difference}.")
    return difference


# Measuring


def measure(libraries: Sequence[Library], row: Row, options: argparse.Namespace, previous: Sequence[Row]) -> Row:
    """Times and memory of one operation at one size, by library."""
    device, operation = options.device, row["operation"]
    sizes = row["trees"], row["batch"], row["n"]
    sets = [random_inputs(*sizes, device, seed, torch.float32) for seed in range(INPUT_SETS)]
    if operation == FORWARD and reason_to_skip(libraries[1], row, sets[0], device, previous) is None:
        check_log_z(sets[0], libraries[:2])
    competitors, slowest = {}, 0.0
    for library in libraries:
        if operation not in library.operations:
            continue
        own = library.name == OURS
        reason = None if own else reason_to_skip(library, row, sets[0], device, previous)
        try:
            if reason is None:
                sample, seconds, row[library.name] = prepare(library, row, sets, options)
        except (torch.OutOfMemoryError, ChartMemoryError) as error:
            reason = str(error).split("\n")[0]
        if reason is not None:
            row[library.name] = {"skipped": reason}
            continue
        competitors[library.name] = Competitor(sample, count_runs(OWN_SECONDS, seconds, 1, 10) if own else 1)
        slowest = max(slowest, 0.0 if own else seconds)
    rounds = count_runs(LIBRARY_SECONDS[device], slowest, *ROUNDS)
    times, row["other_busy_cores"] = interleave(competitors, rounds)
    for name, spreads in times.items():
        row[name].update(spreads)
    row["ratio"] = {
        name: {clock: row[name][clock].median / row[OURS][clock].median for clock in clocks(device)}
        for name in competitors
        if name != OURS
    }
    published = dict(zip(OPERATIONS["lexical"], PUBLISHED.get(sizes[1:], ()), strict=False))
    on_h200 = device == "cuda" and "H200" in torch.cuda.get_device_name()
    if on_h200 and sizes[0] == "lexical" and operation in published:
        row["published_ms"] = published[operation]
        row["ratio"]["published"] = published[operation] / row[OURS]["device"].median
    competitors.clear()
    gc.collect()
    if device == "cuda":
        raise_pending()
        torch.cuda.empty_cache()
    return row


def prepare(
    library: Library, row: Row, sets: Sequence[Inputs], options: argparse.Namespace
) -> tuple[Sample, float, Row]:
    """A sample of a library after warmup, about how many seconds it takes, and its peak memory."""
    operation, device = row["operation"], options.device
    inputs = [library.convert(some) for some in sets]
    calls = [partial(library.run, operation, some) for some in inputs]
    facts: Row = {}
    clock = wall_clock(calls[0], device)
    seconds = clock()["wall"] / 1e3
    if library.name == OURS or seconds < 1:  # the first call compiled, or filled caches
        seconds = clock()["wall"] / 1e3
    if device == "cuda":
        sample, facts["device_by"] = device_clock(library, calls)
        facts["peak_mib"] = peak_cuda(calls[0])
    else:
        sample = wall_clock(rotate(calls), device)
        size = row["trees"], operation, row["batch"], row["n"]
        facts["peak_mib"] = peak_cpu(calls_for_memory, library.name, options.supar, *size)
    return sample, seconds, facts


def device_clock(library: Library, calls: Sequence[Call]) -> tuple[Sample, str]:
    """CUDA graphs where the library can be captured, else events."""
    if not library.captured:
        return event_clock(rotate(calls)), "events"
    try:
        return graph_clock(rotate(calls), calls, raise_pending), "graph"
    except RuntimeError as error:
        return event_clock(rotate(calls)), f"events; not captured: {str(error).splitlines()[0]}"


def calls_for_memory(
    name: str, supar: Path | None, trees: str, operation: str, batch: int, n: int
) -> tuple[Call, Call]:
    """For `peak_cpu`: the operation on a sentence of two words, and on the inputs to be measured."""
    library = load_library(name, "cpu", supar)
    inputs = (random_inputs(trees, *size, "cpu", 0, torch.float32) for size in ((1, 2), (batch, n)))
    small, large = (partial(library.run, operation, library.convert(some)) for some in inputs)
    return small, large


def check_log_z(inputs: Inputs, libraries: Sequence[Library]) -> None:
    """Ends the program unless our backend and the reference have the same log Z of the inputs to be timed."""
    fast, slow = (library.run(FORWARD, inputs) for library in libraries)
    difference = float(((fast - slow).abs() / slow.abs().clamp(min=1)).max())
    if not difference < 1e-4:
        raise SystemExit(f"no speed is reported: log Z of ours and of the reference differ by {difference:.2g}.")


def reason_to_skip(library: Library, row: Row, inputs: Inputs, device: str, previous: Sequence[Row]) -> str | None:
    """Why a library cannot run at this size: its memory, or its time, extrapolated from a smaller size."""
    gradient = row["operation"] not in (FORWARD, BEST)
    needed = 2 * reference.chart_bytes(inputs.potentials, gradient)
    free = free_bytes(torch.device(device))
    if free is not None and needed > free:
        return f"it would need about {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
    measured = [
        (operations_of(past), past[library.name]["wall"].median)
        for past in previous
        if (past["trees"], past["operation"]) == (row["trees"], row["operation"])
        and "wall" in past.get(library.name, {})
    ]
    if measured:
        largest, milliseconds = max(measured)
        seconds = milliseconds / 1e3 * operations_of(row) / largest
        if seconds > MAX_SECONDS[device]:
            return f"one run would take about {seconds:.0f} s"
    return None


def operations_of(row: Row) -> float:
    """O(n^4) for lexicalised trees, O(n^3) for plain ones."""
    return row["batch"] * float(row["n"]) ** (4 if row["trees"] == "lexical" else 3)


def count_runs(budget: float, seconds: float, least: int, most: int) -> int:
    return max(least, min(most, int(budget / max(seconds, 1e-6))))


def clocks(device: str) -> tuple[str, ...]:
    return ("device", "wall") if device == "cuda" else ("wall",)


class Nothing(torch.autograd.Function):
    """A function of all potentials that computes nothing."""

    @staticmethod
    def forward(ctx: Any, log_z: Tensor, *potentials: Tensor) -> Tensor:
        ctx.save_for_backward(*potentials)
        return log_z

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, *ctx.saved_tensors


def measure_eager(batch: int, n: int, rounds: int = 200) -> Row:
    """Milliseconds of `log_partition` and its gradient: of the device, of the call, and of a call that does nothing."""
    inputs = random_inputs("lexical", batch, n, "cuda", 1, torch.float32)
    tensors = [tensor for tensor in inputs.potentials if tensor is not None]
    zeros = torch.zeros(batch, device="cuda")
    ours = partial(load_library(OURS, "cuda").operations[BACKWARD], inputs)
    empty = wall_clock(lambda: torch.autograd.grad(Nothing.apply(zeros, *tensors).sum(), tensors), "cuda")
    for _ in range(10):
        ours()
    device = graph_clock(ours, [ours], raise_pending)
    wall = wall_clock(ours, "cuda")
    samples = [(device()["device"], wall()["wall"], empty()["wall"]) for _ in range(rounds)]
    medians = map(statistics.median, zip(*samples, strict=True))
    row = {"batch": batch, "n": n, **dict(zip(("device", "ours", "empty"), medians, strict=True))}
    print(row, file=sys.stderr)
    return row


def show(result: Row, device: str) -> None:
    """Print each library's times: median, quartiles, ratio to ours; and its peak memory."""
    tests = result["tests"]
    print(f"{result['device']}, torch {result['versions']['torch']}, commit {result['commit']}")
    print(f"tests: {tests['passed']} passed" if tests else "tests: SKIPPED, do not report these numbers")
    for row in result["rows"]:
        print(f"{row['trees']} trees, {row['operation']}, {row['batch']} x {row['n']}")
        for name in (OURS, REFERENCE, TORCH_STRUCT, SUPAR):
            times = row.get(name, {"skipped": "not in this run"})
            if "skipped" in times:
                print(f"  {name:12}  skipped: {times['skipped']}")
                continue
            for clock in clocks(device):
                median, low, high, *_ = times[clock]
                ratio = row["ratio"].get(name, {}).get(clock, 1.0)
                print(
                    f"  {name:12}  {clock:6} {median:10.4g} ms ({low:.4g} to {high:.4g}), {ratio:.3g} x ours, "
                    f"peak {times['peak_mib']} MiB"
                )
        if "published_ms" in row:
            print(f"  published     device {row['published_ms']:10.4g} ms, {row['ratio']['published']:.3g} x ours")
        if row["other_busy_cores"] > QUIET:
            print(f"  do not trust: other programs used {row['other_busy_cores']:.2f} cores")
    for name, note in result["peers"].items():
        print(f"{name}: {note}")


if __name__ == "__main__":
    main()
