"""The command `evaluate`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestree.cli.data import Table, options_for, reading, say_account
from nestree.cli.learning import Device, predicted_with
from nestree.cli.options import From, Read, Sentences, TableShape, Words
from nestree.cli.predicting import Threshold, loaded
from nestree.cli.running import QUIET, Commands, Quiet, Verbose, print_json, print_page, say
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.evaluation import Evaluation
    from nestree.pipeline import Pipeline


def evaluate(
    gold: Annotated[Path, typer.Argument(metavar="GOLD", help="The annotated data; - is standard input.")],
    predicted: Annotated[
        Path | None, typer.Argument(metavar="PRED", help="The same sentences as predicted.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Instead of PRED: let this model predict. A directory, OWNER/NAME on the hub, or box.",
        ),
    ] = None,
    threshold: Threshold = None,
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
    format: Table = TableShape.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Score predicted entities against gold ones.

    An entity is right if its span and its label are; each counts once, however often it is given. With --quiet, one
    line for each prediction: precision, recall and F1. With --model, that model predicts, instead of PRED: text is
    split into words as it knows them, and its probabilities are scored, too.
    """
    from nestree import report
    from nestree.data import formats
    from nestree.data.files import check_place, written
    from nestree.data.tally import Tally
    from nestree.evaluation import compare
    from nestree.evaluation import evaluate as evaluated

    if (predicted is None) == (model is None):
        raise InputError("name a prediction or --model DIR, and not both.")
    if threshold is not None and model is None:
        raise InputError("--threshold is for what a model finds: name --model.")
    paths = [path for path in (gold, predicted, other) if path]
    if other and not resamples:
        raise InputError("--compare draws samples, so --bootstrap must be 1 or more.")
    if html:
        check_place(html, paths)
    one_line = Commands.verbosity == QUIET and format is TableShape.text
    if one_line and not (other or html):
        resamples = 0  # nobody would see the intervals
    tally = Tally()
    pipeline = loaded(model, device, None)[0] if model else None
    with reading(paths):
        options = options_for(paths, source_format, read, words, sentences)
        documents = [
            list(formats.read(path, kind, tally, **more))
            for path, kind, more in as_read(paths, source_format, options, pipeline)
        ]
    say_account(tally)
    data = [[sentence for each in some for sentence in each.sentences] for some in documents]
    if pipeline:
        asked = pipeline.asked(threshold, trees=False)
        given = pipeline.model.sentences_of(documents[0])
        data.insert(1, predicted_with(pipeline.reader, given, asked))
    if other:
        names = (str(predicted or model), str(other))
        comparison = compare(*data, names=names, resamples=resamples, seed=seed)
        evaluation = comparison.first
    else:
        comparison, evaluation = None, evaluated(*data, resamples=resamples, seed=seed)
    say_if_strangers(evaluation)
    title = f"{predicted or model} against {gold}"
    if html:
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


def say_if_strangers(evaluation: "Evaluation") -> None:
    """Nothing can be right where the two sides have no label in common."""
    gold = {label for label, score in evaluation.labels.items() if score.gold}
    found = {label for label, score in evaluation.labels.items() if score.predicted}
    if gold and found and not gold & found:
        say(
            f"no label is on both sides: gold has {', '.join(sorted(gold))}; predicted are {', '.join(sorted(found))}. "
            "So nothing can be right; give both the same labels."
        )


def as_read(
    paths: Sequence[Path], format: str | None, options: Mapping[str, Any], pipeline: "Pipeline | None"
) -> Iterator[tuple[Path, str | None, Mapping[str, Any]]]:
    """Each file with its format and options; text is split as the model knows it, if nothing else was said."""
    for path in paths:
        if pipeline is None:
            yield path, format, options
            continue
        from nestree.data.formats import guess
        from nestree.pipeline.files import with_rules

        kind = format or guess(path)
        yield path, kind, with_rules(options, kind, pipeline.model.text_rules)


def headline(evaluation: "Evaluation", duplicates: bool) -> str:
    """Precision, recall and F1 in a line."""
    score = evaluation.duplicates if duplicates else evaluation.entities
    counted = " (each copy counted)" if duplicates else ""
    return f"P {100 * score.precision:.2f}  R {100 * score.recall:.2f}  F1 {100 * score.f1:.2f}{counted}"
