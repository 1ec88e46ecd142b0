"""The command quantize."""

from pathlib import Path
from typing import Annotated

import typer

from nestree.cli.data import read_options, read_progress
from nestree.cli.runtime import Device, From, Quiet, Read, Sentences, Verbose, Words, print_line, total_bytes
from nestree.cli.train import predict_documents
from nestree.data.io import atomic_path


def quantize(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A directory, gum-minilm, or OWNER/NAME on the hub.")
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

    The small model is used as any other. With --gold both are evaluated, and the card of the small one has the scores.
    """
    from nestree import checkpoint, hub
    from nestree.data import formats
    from nestree.evaluation import evaluate

    documents = []
    if gold:
        with read_progress([gold]):
            options = read_options([gold], source_format, read, words, sentences)
            documents = list(formats.read(gold, source_format, **options))
    folder = hub.resolve(model)
    with atomic_path(out) as temporary:
        checkpoint.quantize(folder, temporary)
        if gold:
            annotated = [sentence for document in documents for sentence in document.sentences]
            before, after = (predict_documents(path, documents, device) for path in (folder, temporary))
            f1_before, f1_after, agreement = (
                100 * evaluate(reference, predicted, resamples=0).entities.f1
                for reference, predicted in ((annotated, before), (annotated, after), (before, after))
            )
            cost = (
                f"F1 {f1_before:.2f} with all bits, {f1_after:.2f} with 8; "
                f"both agree on {agreement:.1f} % of entities (F1)."
            )
            checkpoint.add_to_card(temporary, f"{gold.name}: {cost}")
            print_line(cost)
    size_before = sum(path.stat().st_size for path in checkpoint.model_files(folder))
    print_line(f"{size_before / 1e6:.1f} MB -> {total_bytes(out) / 1e6:.1f} MB: {out}")
