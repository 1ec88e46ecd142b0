"""The command `analyse`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestree.cli.data import JsonOrText, options_for, reading
from nestree.cli.learning import Device, Model, predicted_with, read_with
from nestree.cli.options import From, Read, Sentences, Shape, Words
from nestree.cli.running import Quiet, Verbose, print_json, print_page, say
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.model import Recognizer
    from nestree.sentence import Sentence

HEAD_WORDS = 10  # of each label


def analyse(
    source: Annotated[Path, typer.Argument(metavar="DATA", help="Annotated data; - is standard input.")],
    model: Model,
    costs: Annotated[
        str, typer.Option("--sharing", metavar="C,...", help="Costs of sharing a head to decode with.")
    ] = "-2,0,0.2,0.4,0.6,1",
    drawn: Annotated[int, typer.Option("--trees", metavar="N", min=0, help="Sentences to draw.")] = 2,
    device: Device = "auto",
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    format: JsonOrText = Shape.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Look into a model: heads, who shares them at what cost, errors by label, trees."""
    from nestree import report
    from nestree.data import formats
    from nestree.evaluation import evaluate

    values = numbers(costs)
    with reading([source]):
        options = options_for([source], source_format, read, words, sentences)
        documents = list(formats.read(source, source_format, **options))
    recognizer = read_with(model, device)
    gold = recognizer.sentences_of(documents)
    evaluation = evaluate(gold, predicted_with(recognizer, gold), resamples=0)
    rows = sweep(recognizer, gold, values)
    if format is Shape.json:
        print_json({**report.as_json(evaluation), "sharing": rows})
        return
    print_page(*page(evaluation, rows))
    print_page(*drawings(recognizer, gold[:drawn]), no_wrap=True, crop=False)


def numbers(costs: str) -> list[float]:
    try:
        return [float(cost) for cost in costs.split(",") if cost]
    except ValueError:
        raise InputError(
            f"--sharing {costs}: write numbers with commas between them, such as 0,0.4,1."
        ) from None


def sweep(model: "Recognizer", gold: "Sequence[Sentence]", costs: Sequence[float]) -> list[dict[str, Any]]:
    """How heads and scores change if sharing a head costs this much in decoding: that of best trees, by definition."""
    from nestree.evaluation import evaluate
    from nestree.pipeline import decoding_with

    if model.settings.model.structure != "lexical" or model.settings.decoding.by == "spans":
        say("this model has no heads, so there is nothing to share.")
        return []
    rows = []
    for cost in costs:
        with decoding_with(model, by="tree", threshold=0.0, sharing=cost, forms=0.0):
            found = evaluate(gold, predicted_with(model, gold), resamples=0)
        heads = found.heads
        rows.append(
            {
                "cost": cost,
                "f1": found.entities.f1,
                "shared": heads.shared if heads else None,
                "head_accuracy": heads.accuracy if heads else None,
            }
        )
    return rows


def page(evaluation: Any, rows: Sequence[dict[str, Any]]) -> list[Any]:
    """The tables of this command."""
    from nestree.report import tables
    from nestree.report.texts import drawn, line, narrowed

    found = []
    if rows:
        cells = [
            (
                f"{row['cost']:g}",
                tables.percent(row["f1"]),
                "" if row["shared"] is None else str(row["shared"]),
                "" if row["head_accuracy"] is None else tables.percent(row["head_accuracy"]),
            )
            for row in rows
        ]
        note = "Best trees, with a cost for each entity that lends its head to a larger one."
        found.append(
            tables.Table("Sharing heads", ("cost", "F1", "shared heads", "head accuracy"), tuple(cells), note)
        )
    if evaluation.heads:
        found += [
            tables.heads(evaluation.heads),
            tables.words_of(evaluation.heads, evaluation.labels, HEAD_WORDS),
        ]
    found.append(tables.distribution(evaluation))
    pages: list[Any] = []
    for table in map(narrowed, map(tables.filled, found)):
        pages += [line(table.title, "bold"), drawn(table), line(table.note, "dim"), ""]
    return pages


def drawings(model: "Recognizer", sentences: "Sequence[Sentence]") -> list[Any]:
    """These sentences with the entities and trees that the model finds."""
    from rich.console import Console

    from nestree.pipeline.sentences import Asked
    from nestree.show import draw_sentence

    if not sentences or model.settings.decoding.by == "spans":
        return []
    width = Console().width
    found = predicted_with(model, sentences, Asked(trees=True))
    return [part for sentence in found for part in ("", draw_sentence(sentence, width))]
