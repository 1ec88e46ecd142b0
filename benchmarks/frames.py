"""What it takes to pad the batches of training to few shapes: how many there are, and how much is added.

    python -m benchmarks.frames --data DIR/genia/train.jsonl.gz --encoder PATH [--epochs 10] [--out FILE]

Nothing is trained: batches are those of the default recipe, and only the tokenizer of the encoder is used. `once`:
shapes that a run of so many epochs has in one update only, which are never recorded. `pieces` and `charts`: how many
times as many pieces, and cells of charts over spans and heads, as without this padding.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import one_line, provenance, write_whole
from nestree.config import Settings
from nestree.data import formats
from nestree.nn.batch import Batch, Collator, pad_to_bucket
from nestree.nn.encoder import load_tokenizer
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.training.cuda_graphs import Shape, shape_key
from nestree.training.dataset import batches
from nestree.types import Sentence

POSITIONS = 512  # of the encoders here; their tokenizers may say less, as sentence-transformers' do


def counted(sentences: Sequence[Sentence], tokenizer: Any, epochs: int) -> dict[str, Any]:
    """Shapes and sizes of all batches of these epochs."""
    training = Settings.read("default").training
    labels = sorted({entity.label for sentence in sentences for entity in sentence.entities})
    splitter = SubwordTokenizer(tokenizer, min(POSITIONS, tokenizer.model_max_length))
    collate = Collator(splitter, labels, trees=True, shapes=True).with_gold
    lengths = [len(sentence.words) for sentence in sentences]
    seen: Counter[Shape] = Counter()
    new, before, after = [], [0, 0], [0, 0]
    for epoch in range(1, epochs + 1):
        known = len(seen)
        for batch in batches(lengths, training.batch_words, training.seed, epoch):
            plain = collate([sentences[k] for k in batch])
            padded = pad_to_bucket(plain, splitter.pad, splitter.longest)
            if padded is not None:
                seen[shape_key(padded)] += 1
                before = [a + b for a, b in zip(before, sizes(plain), strict=True)]
                after = [a + b for a, b in zip(after, sizes(padded), strict=True)]
        new.append(len(seen) - known)
    return {
        "epochs": epochs,
        "updates": sum(seen.values()),
        "shapes": len(seen),
        "new": new,
        "once": sum(count == 1 for count in seen.values()),
        "pieces": after[0] / max(1, before[0]),
        "charts": after[1] / max(1, before[1]),
    }


def sizes(batch: Batch) -> tuple[int, int]:
    """Pieces, and cells of a chart over spans and heads."""
    n = batch.longest
    return batch.pieces.numel(), len(batch.lengths) * (n + 1) ** 2 * n


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frames", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="annotated sentences")
    parser.add_argument("--encoder", required=True, metavar="PATH")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, metavar="FILE", help="the JSON file")
    given = parser.parse_args(arguments)
    sentences = [s for document in formats.read(given.data) for s in document.sentences]
    row = counted(sentences, load_tokenizer(given.encoder), given.epochs)
    name = f"{given.data.parent.name}/{given.data.name}"
    result = {"benchmark": "frames", **provenance("cpu", None), "data": name, "rows": [row]}
    print(one_line(result))
    if given.out:
        write_whole(given.out, one_line(result) + "\n")


if __name__ == "__main__":
    main()
