"""Device time of candidate layouts of the CUDA kernels: `python -m benchmarks.kernels [--sizes 64x50,...]`.

Compiles all candidates in several processes, then times each by replaying a CUDA graph: inside, inside and outside,
best trees. triton_kernels.shape_for holds the fastest.
"""

import argparse
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from statistics import median

import torch

from benchmarks.timing import graph_clock
from benchmarks.treecrf import parse_sizes, random_inputs
from nestree.treecrf import raise_pending

with suppress(ImportError):  # where Triton is not installed, this module can still be imported
    from nestree.treecrf import triton_kernels

SIZES = "64x10,64x20,64x30,256x30,64x50,144x56,64x80,96x80,32x120,16x150"
TILES = {  # by padded length: BT, BI, UNROLL, HOOKS, num_warps, FAR, FT, FI
    16: ((4, 32, 1, 2, 4, 0, 4, 64), (4, 32, 1, 1, 4, 0, 4, 64)),
    32: ((2, 128, 1, 2, 8, 1, 2, 128), (2, 128, 2, 2, 8, 1, 4, 64), (2, 128, 4, 4, 8, 0, 4, 64)),
    64: ((2, 128, 2, 4, 8, 1, 4, 64), (2, 128, 1, 4, 8, 1, 4, 64), (4, 128, 2, 2, 16, 1, 4, 128)),
    256: ((2, 256, 2, 8, 16, 1, 4, 128), (2, 128, 2, 4, 8, 1, 4, 64), (2, 128, 2, 8, 8, 1, 2, 128)),
}
TILES[128] = TILES[256]


def candidate_layouts(batch: int, n: int) -> "Iterator[triton_kernels.Shape]":
    """Layouts to try; those of few warps also with two programs per processor."""
    alone = batch if n <= 32 else max(1, 132 // batch) * batch
    twice = 2 * batch if n <= 32 else 264
    more = batch < twice and (n > 32 or (n > 16 and 2 * batch <= 132))
    for terms, blocks, unroll, hooks, warps, far, *tile in TILES[max(16, triton_kernels.power_of_two(n))]:
        for programs in (alone, twice) if more and warps <= 8 else (alone,):
            registers = 128 if programs > alone and n > 32 else None  # two programs of 8 warps share 65,536
            yield triton_kernels.Shape(terms, blocks, 4, unroll, hooks, warps, programs, bool(far), *tile, registers)


def make_passes(batch: int, n: int, shape: "triton_kernels.Shape") -> dict[str, Callable[[], object]]:
    triton_kernels.shape_for = lambda task, *_: shape._replace(FAR=shape.FAR and task != "best")
    scores, lengths = random_inputs("lexical", batch, n, "cuda", 0, torch.float32)
    scores = type(scores)(*(tensor.detach() for tensor in scores if tensor is not None))
    return {
        "inside": lambda: triton_kernels.inside(scores, lengths),
        "both": partial(triton_kernels.inside_outside, scores, lengths, False),
        "best": lambda: triton_kernels.viterbi(scores, lengths),
    }


def compile_layout(job: "tuple[int, int, triton_kernels.Shape]") -> str | None:
    batch, n, shape = job
    try:
        for run in make_passes(batch, n, shape).values():
            run()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=SIZES, type=parse_sizes, help="batch x words, such as 64x50,16x150")
    sizes = parser.parse_args(arguments).sizes
    jobs = [(batch, n, shape) for batch, n in sizes for shape in candidate_layouts(batch, n)]
    with multiprocessing.get_context("spawn").Pool(16) as pool:
        failures = pool.map(compile_layout, jobs, chunksize=1)
    for (batch, n, shape), failure in zip(jobs, failures, strict=True):
        columns = [failure] if failure else []
        for name, run in ({} if failure else make_passes(batch, n, shape)).items():
            sample = graph_clock(run, [run], raise_pending)
            columns.append(f"{name} {median(sample()['device'] for _ in range(5)):8.4f}")
        print(f"{batch:4d} x {n:3d}  {tuple(shape)}  {' '.join(columns)}", flush=True)


if __name__ == "__main__":
    main()
