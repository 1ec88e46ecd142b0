"""The command that makes models small: shrink."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestree.cli.data import options_for, reading
from nestree.cli.runtime import Device, From, Quiet, Read, Sentences, Verbose, Words, print_line, size
from nestree.cli.train import predicted_by
from nestree.data.io import atomic_path

if TYPE_CHECKING:
    from nestree.types import Document


def quantize(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A directory, box, or OWNER/NAME on the hub.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new directory for the small model.")],
    gold: Annotated[
        Path | None,
        typer.Option("--gold", metavar="FILE", help="Annotated data, to measure what 8 bits cost."),
    ] = None,
    device: Device = "auto",
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Store the weights of a model in 8 bits each: a quarter of its size, and nearly the same entities.

    The small model is used as any other. With --gold both are scored, and the card of the small one says how they did.
    """
    from nestree import checkpoint, hub

    judged = gold_documents(gold, source_format, read, words, sentences) if gold else []
    folder = hub.resolve(model)
    with atomic_path(out) as temporary:
        checkpoint.quantize(folder, temporary)
        if gold:
            cost = what_it_costs(judged, folder, temporary, device)
            checkpoint.add_to_card(temporary, f"{gold.name}: {cost}")
            print_line(cost)
    before = sum(path.stat().st_size for path in checkpoint.files_of(folder))
    print_line(f"{before / 1e6:.1f} MB -> {size(out) / 1e6:.1f} MB: {out}")


def gold_documents(
    gold: Path,
    source_format: str | None,
    read: list[str] | None,
    words: str | None,
    sentences: str | None,
) -> "list[Document]":
    from nestree.data import formats

    with reading([gold]):
        how = options_for([gold], source_format, read, words, sentences)
        return list(formats.read(gold, source_format, **how))


def what_it_costs(documents: "Sequence[Document]", model: Path, small: Path, device: str) -> str:
    """F1 with all bits and with 8, and how many entities differ."""
    from nestree.evaluation import evaluate

    gold = [sentence for document in documents for sentence in document.sentences]
    before, after = (predicted_by(folder, documents, device) for folder in (model, small))
    full, less = (100 * evaluate(gold, each, resamples=0).entities.f1 for each in (before, after))
    same = 100 * evaluate(before, after, resamples=0).entities.f1
    return f"F1 {full:.2f} with all bits, {less:.2f} with 8; both agree on {same:.1f} % of entities (F1)."
