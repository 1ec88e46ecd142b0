"""The command `evaluate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestree.cli.data import Table, options_for, reading, say_account
from nestree.cli.learning import Device, predicted_by
from nestree.cli.options import From, LongestLine, Read, Sentences, TableShape, Words
from nestree.cli.running import QUIET, Commands, Quiet, Verbose, print_json, print_page, say
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.evaluation import Evaluation


def evaluate(
    gold: Annotated[Path, typer.Argument(metavar="GOLD", help="The annotated data; - is standard input.")],
    predicted: Annotated[
        Path | None, typer.Argument(metavar="PRED", help="The same sentences as predicted.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="DIR", help="Instead of PRED: let this model predict."),
    ] = None,
    device: Device = "auto",
    other: Annotated[
        Path | None,
        typer.Option("--compare", metavar="OTHER", help="Another prediction: is the difference significant?"),
    ] = None,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="In the headline, count each copy of an entity.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots and errors, too.")
    ] = None,
    resamples: Annotated[
        int,
        typer.Option("--bootstrap", metavar="N", min=0, help="Resamples for confidence intervals; 0: none."),
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed, the same intervals.")] = 0,
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    longest_line: LongestLine = None,
    format: Table = TableShape.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Score predicted entities against gold ones.

    An entity is right if its span and its label are; each counts once, however often it is given. With --quiet, one
    line for each prediction: precision, recall and F1.
    """
    from nestree import report
    from nestree.data import formats
    from nestree.data.tally import Tally
    from nestree.evaluation import compare
    from nestree.evaluation import evaluate as evaluated

    if (predicted is None) == (model is None):
        raise InputError("name a prediction or --model DIR, and not both.")
    paths = [path for path in (gold, predicted, other) if path]
    if other and not resamples:
        raise InputError("--compare draws samples, so --bootstrap must be 1 or more.")
    one_line = Commands.verbosity == QUIET and format is TableShape.text
    if one_line and not (other or html):
        resamples = 0  # nobody would see the intervals
    tally = Tally()
    with reading(paths, longest_line):
        options = options_for(paths, source_format, read, words, sentences)
        data = [
            [s for each in formats.read(path, source_format, tally, **options) for s in each.sentences]
            for path in paths
        ]
    say_account(tally)
    if model:
        data.insert(1, predicted_by(model, data[0], device))
    if other:
        names = (str(predicted or model), str(other))
        comparison = compare(*data, names=names, resamples=resamples, seed=seed)
        evaluation = comparison.first
    else:
        comparison, evaluation = None, evaluated(*data, resamples=resamples, seed=seed)
    title = f"{predicted or model} against {gold}"
    if html:
        from nestree.data.files import written

        with written(html) as file:
            file.write(report.html(evaluation, comparison, title))
        say(f"written: {html}")
    if format is TableShape.json:
        print_json(report.as_json(evaluation, comparison))
    elif one_line:
        for each in (comparison.first, comparison.second) if comparison else (evaluation,):
            typer.echo(headline(each, duplicates))
    elif format is TableShape.markdown:
        typer.echo(report.markdown(evaluation, comparison, title), nl=False)
    else:
        print_page(*report.terminal(evaluation, comparison, title))
        typer.echo(f"\n{headline(evaluation, duplicates)}")


def headline(evaluation: "Evaluation", duplicates: bool) -> str:
    """Precision, recall and F1 in a line."""
    score = evaluation.duplicates if duplicates else evaluation.entities
    counted = " (each copy counted)" if duplicates else ""
    return f"P {100 * score.precision:.2f}  R {100 * score.recall:.2f}  F1 {100 * score.f1:.2f}{counted}"
