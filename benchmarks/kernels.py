"""Tuning of the CUDA kernels and of the shapes of training batches.

    python -m benchmarks.kernels layouts [--sizes 64x50,...]     device time of candidate layouts of the kernels
    python -m benchmarks.kernels buckets --data FILE --encoder PATH [--epochs 10]     shapes after padding to buckets

`layouts` compiles all candidates in several processes, then times each by replaying a CUDA graph: inside, inside and
outside, best trees. triton_kernels.shape_for holds the fastest. `buckets` needs no GPU and trains nothing.
"""

import argparse
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.timing import Row, graph_clock, provenance, store
from nestree.config import Settings
from nestree.data import formats
from nestree.nn.batch import Batch, Collator, pad_to_bucket
from nestree.nn.encoder import load_tokenizer
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.training.cuda_graphs import shape_key
from nestree.training.dataset import batches
from nestree.treecrf import LexicalPotentials, raise_pending
from nestree.types import Sentence

try:
    from nestree.treecrf import triton_kernels
except ImportError:  # without Triton, only `buckets` works
    triton_kernels = None  # type: ignore[assignment]

SIZES = "64x10,64x20,64x30,256x30,64x50,144x56,64x80,96x80,32x120,16x150"
POSITIONS = 512  # of the encoders here; tokenizers of sentence-transformers have fewer
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
            yield triton_kernels.Shape(
                terms, blocks, 4, unroll, hooks, warps, programs, bool(far), *tile, registers
            )


def random_potentials(batch: int, n: int) -> tuple[LexicalPotentials, torch.Tensor]:
    torch.manual_seed(batch * 1000 + n)
    sizes = ((n + 1, n + 1), (n, n), (n,), (n + 1, n + 1))
    scores = LexicalPotentials(*(torch.randn(batch, *size, device="cuda") for size in sizes))
    return scores, torch.full((batch,), n, device="cuda")


def make_passes(batch: int, n: int, shape: "triton_kernels.Shape") -> dict[str, Callable[[], object]]:
    triton_kernels.shape_for = lambda task, *_: shape._replace(FAR=shape.FAR and task != "best")
    scores, lengths = random_potentials(batch, n)
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


def device_ms(run: Callable[[], object]) -> float:
    """The median device time of one call, by graph replay."""
    sample = graph_clock(run, [run], raise_pending)
    return median(sample()["device"] for _ in range(5))


def measure_layouts(sizes: Sequence[tuple[int, int]]) -> Iterator[str]:
    jobs = [(batch, n, shape) for batch, n in sizes for shape in candidate_layouts(batch, n)]
    with multiprocessing.get_context("spawn").Pool(16) as pool:
        failures = pool.map(compile_layout, jobs, chunksize=1)
    for (batch, n, shape), failure in zip(jobs, failures, strict=True):
        passes = {} if failure else make_passes(batch, n, shape)
        columns = failure or " ".join(f"{name} {device_ms(run):8.4f}" for name, run in passes.items())
        yield f"{batch:4d} x {n:3d}  {tuple(shape)}  {columns}"


def count_buckets(sentences: Sequence[Sentence], tokenizer: Any, epochs: int) -> Row:
    """Shapes of the batches of the default recipe after padding, and by how much padding enlarges them.

    `once`: shapes that occur once, and are never captured. `subwords`, `charts`: how many times as many subwords, and
    cells of charts over spans and heads, as without padding to buckets.
    """
    training = Settings.read("default").training
    labels = sorted({entity.label for sentence in sentences for entity in sentence.entities})
    splitter = SubwordTokenizer(tokenizer, min(POSITIONS, tokenizer.model_max_length))
    collate = Collator(splitter, labels, trees=True, shapes=True).collate
    lengths = [len(sentence.words) for sentence in sentences]
    shapes: Counter[Any] = Counter()
    new_shapes, before, after = [], [0, 0], [0, 0]
    for epoch in range(1, epochs + 1):
        known = len(shapes)
        for batch in batches(lengths, training.batch_words, training.seed, epoch):
            plain = collate([sentences[k] for k in batch])
            padded = pad_to_bucket(plain, splitter.pad, splitter.longest)
            if padded is not None:
                shapes[shape_key(padded)] += 1
                before = [a + b for a, b in zip(before, batch_sizes(plain), strict=True)]
                after = [a + b for a, b in zip(after, batch_sizes(padded), strict=True)]
        new_shapes.append(len(shapes) - known)
    return {
        "epochs": epochs,
        "updates": sum(shapes.values()),
        "shapes": len(shapes),
        "new": new_shapes,
        "once": sum(count == 1 for count in shapes.values()),
        "subwords": after[0] / max(1, before[0]),
        "charts": after[1] / max(1, before[1]),
    }


def batch_sizes(batch: Batch) -> tuple[int, int]:
    """Subwords, and cells of a chart over spans and heads."""
    n = batch.longest
    return batch.subwords.numel(), len(batch.lengths) * (n + 1) ** 2 * n


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("layouts", "buckets"))
    parser.add_argument("--sizes", default=SIZES, help="batch x words, such as 64x50,16x150")
    parser.add_argument("--data", type=Path, metavar="FILE", help="annotated sentences (buckets)")
    parser.add_argument("--encoder", metavar="PATH", help="its tokenizer is used (buckets)")
    parser.add_argument("--epochs", type=int, default=10, help="(buckets)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the JSON file (buckets)")
    options = parser.parse_args(arguments)
    if options.command == "buckets":
        if options.data is None or options.encoder is None:
            parser.error("buckets needs --data FILE and --encoder PATH.")
        sentences = [s for document in formats.read(options.data) for s in document.sentences]
        row = count_buckets(sentences, load_tokenizer(options.encoder), options.epochs)
        name = f"{options.data.parent.name}/{options.data.name}"
        result = {"benchmark": "bucketing", **provenance("cpu", None), "data": name, "rows": [row]}
        print(store(result, options.out))
        return
    sizes = [(int(batch), int(n)) for batch, n in (size.split("x") for size in options.sizes.split(","))]
    for line in measure_layouts(sizes):
        print(line, flush=True)


if __name__ == "__main__":
    main()
