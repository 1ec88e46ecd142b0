"""Which layout of the CUDA kernels is fastest for which size: `python -m benchmarks.shapes [--sizes 64x50,...]`.

Compiles all candidates side by side in several processes, then times each alone by replaying a CUDA graph, and
prints the device milliseconds of inside, inside + outside, and best trees. triton_kernels.shape_for holds the winners.
With --spread: how many sentences need the LOGSPACE sums as scores spread out, and what that costs. With --epoch FILE:
what a sum over trees takes, inside and outside, in all batches that training makes of the sentences of a file: one by
itself, and the three of a pass together.
"""

import argparse
import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial

import torch

from nestree.treecrf import LexicalPotentials, log_partitions
from nestree.treecrf import triton_kernels as backend

SIZES = (
    (64, 10),
    (64, 20),
    (64, 30),
    (256, 30),
    (64, 50),
    (144, 56),
    (64, 80),
    (96, 80),
    (32, 120),
    (16, 150),
)
TILES = {  # by padded length: BT, BI, UNROLL, HOOKS, num_warps, FAR, FT, FI
    16: ((4, 32, 1, 2, 4, 0, 4, 64), (4, 32, 1, 1, 4, 0, 4, 64)),
    32: ((2, 128, 1, 2, 8, 1, 2, 128), (2, 128, 2, 2, 8, 1, 4, 64), (2, 128, 4, 4, 8, 0, 4, 64)),
    64: ((2, 128, 2, 4, 8, 1, 4, 64), (2, 128, 1, 4, 8, 1, 4, 64), (4, 128, 2, 2, 16, 1, 4, 128)),
    256: ((2, 256, 2, 8, 16, 1, 4, 128), (2, 128, 2, 4, 8, 1, 4, 64), (2, 128, 2, 8, 8, 1, 2, 128)),
}
TILES[128] = TILES[256]


def candidates(batch: int, n: int) -> Iterator[backend.Shape]:
    """Layouts to try; those of few warps also with two programs on each processor: one works while the other waits."""
    alone = batch if n <= 32 else max(1, 132 // batch) * batch
    twice = 2 * batch if n <= 32 else 264
    more = batch < twice and (n > 32 or (n > 16 and 2 * batch <= 132))
    for terms, blocks, unroll, hooks, warps, far, *tile in TILES[max(16, backend.power_of_two(n))]:
        for programs in (alone, twice) if more and warps <= 8 else (alone,):
            registers = 128 if programs > alone and n > 32 else None  # two programs of 8 warps share 65,536
            yield backend.Shape(terms, blocks, 4, unroll, hooks, warps, programs, bool(far), *tile, registers)


def potentials(batch: int, n: int) -> tuple[LexicalPotentials, torch.Tensor]:
    torch.manual_seed(batch * 1000 + n)
    sizes = ((n + 1, n + 1), (n, n), (n,), (n + 1, n + 1))
    return LexicalPotentials(*(torch.randn(batch, *size, device="cuda") for size in sizes)), torch.full(
        (batch,), n, device="cuda"
    )


def passes(batch: int, n: int, shape: backend.Shape) -> dict[str, Callable[[], object]]:
    backend.shape_for = lambda task, *_: shape._replace(FAR=shape.FAR and task != "best")
    given, lengths = potentials(batch, n)
    return {
        "inside": lambda: backend.inside(given, lengths),
        "both": partial(backend.inside_outside, given, lengths, False),
        "best": lambda: backend.viterbi(given, lengths),
    }


def compile_all(job: tuple[int, int, backend.Shape]) -> str | None:
    batch, n, shape = job
    try:
        for run in passes(batch, n, shape).values():
            run()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    return None


def device_ms(run: Callable[[], object], repeats: int = 20) -> float:
    """The median device time of one call, by graph replay."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(repeats):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after))
    return sorted(times)[repeats // 2]


def spread(batch: int, n: int) -> Iterator[str]:
    """Share of LOGSPACE sentences and milliseconds of inside + outside, by standard deviation of the scores; at last
    for peaked scores, such as a trained model gives: five spans and one arc into each word stand out."""
    for std in (1.0, 2.0, 3.0, 5.0, 8.0, 15.0, None):
        given, lengths = potentials(batch, n)
        given = LexicalPotentials(*(part * (0.3 if std is None else std) for part in given[:4]))
        if std is None:
            given.inherit.zero_()
            for b in range(batch):
                for start in torch.randint(0, n - 6, (5,)).tolist():
                    given.span[b, start, start + 2 + start % 4] += 14
                given.arc[b, torch.randint(0, n, (n,)), torch.arange(n)] += 8

        chart, _ = backend.run_inside_outside(given, lengths, None)
        share = float((chart.report[4] != 0).float().mean())
        name = "peaked" if std is None else f"std {std:g}"
        ms = device_ms(partial(backend.inside_outside, given, lengths, False))
        yield f"{batch:4d} x {n:3d}  {name:8s} careful {share:4.2f} both {ms:8.4f}"


def epoch(path: str) -> Iterator[str]:
    """Milliseconds of inside + outside for all batches of the default recipe's first epoch, padded as for records: of
    one sum, and of the three that a pass of training asks for: all trees, those that hold the gold entities, and all
    trees once more, with a cost of sharing."""
    from nestree.config import Settings
    from nestree.data import formats
    from nestree.nn.batch import room_for, rounded
    from nestree.training.dataset import batches

    training = Settings.read("default").training
    words = [len(sentence.words) for document in formats.read(path) for sentence in document.sentences]
    found: dict[int, list[tuple[float, float]]] = {}
    for batch in batches(words, training.batch_words, training.seed, 1):
        rows, longest = room_for(len(batch)), max(words[k] for k in batch)
        given, lengths = potentials(rows, rounded(longest, 8, 8))
        lengths[:] = torch.tensor([words[k] for k in batch] + [1] * (rows - len(batch)))
        n = given.span.shape[1] - 1
        several = [given, given._replace(head=torch.zeros(rows, n + 1, n + 1, n, device="cuda")), given]
        one = device_ms(partial(log_partitions, [given], lengths), repeats=3)
        three = device_ms(partial(log_partitions, several, lengths, [False, True, False]), repeats=3)
        found.setdefault(n, []).append((one, three))
    every = [times for some in found.values() for times in some]
    for name, some in [*((f"{n:4d}", some) for n, some in sorted(found.items())), (" all", every)]:
        one, three = (sum(column) / len(some) for column in zip(*some, strict=True))
        yield f"{name} words  {len(some):3d} batches  one {one:8.4f}  three {three:8.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", help="such as 64x50,16x150; default: those of the benchmark")
    parser.add_argument("--spread", action="store_true", help="the cost of spread-out scores instead")
    parser.add_argument("--epoch", metavar="FILE", help="the sums of an epoch over these sentences instead")
    options = parser.parse_args()
    if options.epoch:
        for line in epoch(options.epoch):
            print(line, flush=True)
        return
    given = options.sizes
    sizes = [tuple(map(int, size.split("x"))) for size in given.split(",")] if given else SIZES
    if options.spread:
        for batch, n in sizes:
            for line in spread(batch, n):
                print(line, flush=True)
        return
    jobs = [(batch, n, shape) for batch, n in sizes for shape in candidates(batch, n)]
    with multiprocessing.get_context("spawn").Pool(16) as pool:
        failures = pool.map(compile_all, jobs, chunksize=1)
    for (batch, n, shape), failure in zip(jobs, failures, strict=True):
        label = f"{batch:4d} x {n:3d}  {tuple(shape)}"
        if failure:
            print(f"{label}  {failure}", flush=True)
            continue
        times = {name: device_ms(run) for name, run in passes(batch, n, shape).items()}
        print(label, *(f"{name} {ms:8.4f}" for name, ms in times.items()), flush=True)


if __name__ == "__main__":
    main()
