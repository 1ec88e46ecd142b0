"""What structure costs, by the length of sentences: sentences a second that models learn from, and that they read.

    python -m benchmarks.lengths MODEL... --data FILE --out FILE [--device cuda]

Models are directories, such as those that `benchmarks.training --keep-models` leaves behind.
`learning` is the loss and its gradient, of batches that lie on the device already; `reading` is words in, entities out.
Models take turns, so that what disturbs one disturbs all.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from benchmarks.pipeline import read
from benchmarks.report import console
from benchmarks.timing import one_line, provenance, write_whole
from nestree import checkpoint
from nestree.data import formats
from nestree.errors import InputError, NestreeError
from nestree.model import Recognizer
from nestree.pipeline import batches_by_length, precision, select_device
from nestree.types import Sentence

Row = dict[str, Any]
GROUPS = ((1, 10), (11, 20), (21, 40), (41, 80), (81, 200))  # words, both included
MOST = 400  # sentences of a group, the first ones
ROUNDS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    try:
        device = select_device(options.device)
        models = {path.name: checkpoint.load(path, device) for path in options.models}
        if len(models) < len(options.models):
            raise InputError("two models have one name. Rename a folder: rows are told apart by it.")
        return compare(models, device, options)
    except NestreeError as why:
        raise SystemExit(str(why)) from None


def compare(models: dict[str, Recognizer], device: torch.device, options: argparse.Namespace) -> int:
    """Group by group, each kept as soon as it is known."""
    sentences = [s for d in formats.read(options.data) for s in d.sentences]
    result = {
        "benchmark": "lengths",
        **provenance(device.type, options.commit),
        "data": f"{options.data.parent.name}/{options.data.name}",
        "batch_words": options.batch_words,
        "rounds": options.rounds,
        "rows": [],
    }
    for group, some in grouped(sentences).items():
        result["rows"] += measured(models, some, group, options)
        print(f"{group} words: {len(some)} sentences", file=sys.stderr)
        write_whole(options.out, one_line(result) + "\n")
    show(result["rows"])
    print(one_line(result))
    return 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lengths", description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="a model directory")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="in any format of nestree")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the JSON file")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--batch-words", type=int, default=2000, help="words in a batch")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the median of so many counts")
    parser.add_argument("--commit", help="where there is no git")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: it must be 1 or more.")
    if options.batch_words < 1:
        parser.error(f"--batch-words {options.batch_words}: it must be 1 or more.")
    if not options.out.absolute().parent.is_dir():
        parser.error(
            f"--out {options.out}: there is no folder {options.out.parent}. Make it, or name another."
        )
    return options


def grouped(sentences: Sequence[Sentence]) -> dict[str, list[Sentence]]:
    """Sentences by length; groups that there are none of are left out."""
    found = {
        f"{least}-{most}": [s for s in sentences if least <= len(s.words) <= most][:MOST]
        for least, most in GROUPS
    }
    return {group: some for group, some in found.items() if some}


def measured(
    models: dict[str, Recognizer], sentences: Sequence[Sentence], group: str, options: argparse.Namespace
) -> list[Row]:
    """A row for each model, from medians over rounds; the first round is for warming up."""
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    for name, model in models.items():
        numbers = batches_by_length([len(sentence.words) for sentence in sentences], options.batch_words)
        held = [model.collate([sentences[k] for k in batch]).to(model.device) for batch in numbers]
        calls[name, "learning"] = lambda m=model, b=held: learn(m, b)
        calls[name, "reading"] = lambda m=model: read(m, sentences, options.batch_words)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for number in range(options.rounds + 1):
        for key, call in calls.items():
            started = time.perf_counter()
            call()
            if number:
                seconds[key].append(time.perf_counter() - started)
    facts = {"words": group, "sentences": len(sentences)}
    return [
        {
            "model": name,
            "structure": model.settings.model.structure,
            **facts,
            **{
                f"{what}_per_second": len(sentences) / statistics.median(seconds[name, what])
                for what in ("learning", "reading")
            },
        }
        for name, model in models.items()
    ]


def learn(model: Recognizer, batches: Sequence[Any]) -> None:
    """Losses and their gradients, as in training; no step is taken."""
    model.train()
    for batch in batches:
        model.zero_grad(set_to_none=True)
        with precision(model.device):
            losses = model.losses(batch)
        (losses.total / max(1, losses.mentions)).backward()
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    model.zero_grad(set_to_none=True)
    model.eval()


def show(rows: Sequence[Row]) -> None:
    table = Table(title="sentences a second", title_justify="left")
    for name in ("words", "model", "structure", "learning", "reading"):
        table.add_column(name, justify="right" if name.endswith("ing") else "left")
    for row in rows:
        rates = (f"{row[f'{what}_per_second']:,.0f}" for what in ("learning", "reading"))
        table.add_row(row["words"], row["model"], row["structure"], *rates)
    console().print(table)


if __name__ == "__main__":
    sys.exit(main())
