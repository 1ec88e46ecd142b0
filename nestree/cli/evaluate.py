"""The commands `evaluate` and `analyze`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestree.cli.data import JsonOrText, Table, print_report, read_options, read_progress
from nestree.cli.predict import Threshold, load_pipeline
from nestree.cli.runtime import (
    QUIET,
    Commands,
    Device,
    From,
    Model,
    OutputFormat,
    Quiet,
    Read,
    Sentences,
    TableFormat,
    Verbose,
    Words,
    format_scores,
    print_json,
    print_line,
    print_page,
)
from nestree.cli.train import load_model, predict_sentences
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.evaluation import Evaluation
    from nestree.model import Recognizer
    from nestree.types import Sentence

HEAD_WORDS = 10  # of each label


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
            help="Instead of PRED: let this model predict. A directory, OWNER/NAME on the hub, or gum-minilm.",
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
    format: Table = TableFormat.text,
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
    from nestree.data.io import ConversionReport, atomic_writer, check_output_path
    from nestree.evaluation import compare
    from nestree.evaluation import evaluate as evaluate_sentences

    if (predicted is None) == (model is None):
        raise InputError("name a prediction or --model DIR, and not both.")
    if threshold is not None and model is None:
        raise InputError("--threshold is for what a model finds: name --model.")
    paths = [path for path in (gold, predicted, other) if path]
    if other and not resamples:
        raise InputError("--compare draws samples, so --bootstrap must be 1 or more.")
    if html:
        check_output_path(html, paths)
    one_line = Commands.verbosity == QUIET and format is TableFormat.text
    if one_line and not (other or html):
        resamples = 0  # intervals would not be shown
    conversion = ConversionReport()
    pipeline = load_pipeline(model, device, None)[0] if model else None
    documents = []
    with read_progress(paths):
        options = read_options(paths, source_format, read, words, sentences)
        for path in paths:
            path_format, path_options = source_format, options
            if pipeline:  # text is split as for the model, unless options say otherwise
                from nestree.predict_files import with_text_rules

                path_format = source_format or formats.detect_format(path)
                path_options = dict(with_text_rules(options, path_format, pipeline.model.text_rules))
            documents.append(list(formats.read(path, path_format, conversion, **path_options)))
    print_report(conversion)
    data = [[sentence for document in part for sentence in document.sentences] for part in documents]
    if pipeline:
        predict_options = pipeline.predict_options(threshold, trees=False)
        gold_sentences = pipeline.model.sentences_with_context(documents[0])
        data.insert(1, predict_sentences(pipeline.inference_model, gold_sentences, predict_options))
    comparison = None
    if other:
        names = (str(predicted or model), str(other))
        comparison = compare(*data, names=names, resamples=resamples, seed=seed)
        evaluation = comparison.first
    else:
        evaluation = evaluate_sentences(*data, resamples=resamples, seed=seed)
    warn_if_labels_differ(evaluation)
    title = f"{predicted or model} against {gold}"
    if html:
        options = {"threshold": threshold, "words": words, "sentences": sentences, "from": source_format}
        settings = ", ".join(f"{name} {value}" for name, value in options.items() if value is not None)
        about = {"model": model or "none", "predictions": str(predicted or "by the model"), "data": str(gold)}
        with atomic_writer(html) as file:
            page = report.to_html(
                evaluation, comparison, title, {**about, "settings": settings or "defaults"}
            )
            file.write(page)
        print_line(f"written: {html}")
    if format is TableFormat.json:
        print_json(report.to_json(evaluation, comparison))
    elif one_line:
        for each in (comparison.first, comparison.second) if comparison else (evaluation,):
            typer.echo(format_scores(each, duplicates))
    elif format is TableFormat.markdown:
        typer.echo(report.to_markdown(evaluation, comparison, title), nl=False)
    else:
        print_page(*report.to_terminal(evaluation, comparison, title))
        typer.echo(f"\n{format_scores(evaluation, duplicates)}")


def warn_if_labels_differ(evaluation: "Evaluation") -> None:
    """Say so if gold and prediction have no label in common."""
    gold = {label for label, score in evaluation.labels.items() if score.gold}
    predicted = {label for label, score in evaluation.labels.items() if score.predicted}
    if gold and predicted and not gold & predicted:
        print_line(
            f"no label is on both sides: gold has {', '.join(sorted(gold))}; predicted are "
            f"{', '.join(sorted(predicted))}. So nothing can be right; give both the same labels."
        )


def analyze(
    source: Annotated[Path, typer.Argument(metavar="DATA", help="Annotated data; - is standard input.")],
    model: Model,
    penalties: Annotated[
        str,
        typer.Option(
            "--head-sharing-penalties", metavar="C,...", help="Penalties on shared heads to decode with."
        ),
    ] = "-2,0,0.2,0.4,0.6,1",
    trees: Annotated[int, typer.Option("--trees", metavar="N", min=0, help="Sentences to draw.")] = 2,
    device: Device = "auto",
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    format: JsonOrText = OutputFormat.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Analyze a model: head accuracy, shared heads by penalty, errors by label, trees."""
    from rich.console import Console

    from nestree import report
    from nestree.data import formats
    from nestree.evaluation import evaluate
    from nestree.pipeline import PredictOptions
    from nestree.show import draw_sentence

    try:
        values = [float(penalty) for penalty in penalties.split(",") if penalty]
    except ValueError:
        raise InputError(
            f"--head-sharing-penalties {penalties}: write numbers with commas between them, such as 0,0.4,1."
        ) from None
    with read_progress([source]):
        options = read_options([source], source_format, read, words, sentences)
        documents = list(formats.read(source, source_format, **options))
    recognizer = load_model(model, device)
    gold = recognizer.sentences_with_context(documents)
    evaluation = evaluate(gold, predict_sentences(recognizer, gold), resamples=0)
    rows = vary_penalty(recognizer, gold, values)
    if format is OutputFormat.json:
        print_json({**report.to_json(evaluation), "head_sharing": rows})
        return
    print_page(*analysis_tables(evaluation, rows))
    if trees and gold and recognizer.settings.decoding.method != "spans":
        width = Console().width
        parsed = predict_sentences(recognizer, gold[:trees], PredictOptions(trees=True))
        drawings = [part for sentence in parsed for part in ("", draw_sentence(sentence, width))]
        print_page(*drawings, no_wrap=True, crop=False)


def vary_penalty(
    model: "Recognizer", gold: "Sequence[Sentence]", penalties: Sequence[float]
) -> list[dict[str, Any]]:
    """F1 and heads of Viterbi decoding with each head-sharing penalty."""
    from nestree.evaluation import evaluate
    from nestree.pipeline import override_decoding

    if model.settings.model.structure != "lexical" or model.settings.decoding.method == "spans":
        print_line("this model has no heads, so there is nothing to share.")
        return []
    rows = []
    for penalty in penalties:
        with override_decoding(
            model, method="viterbi", threshold=0.0, head_sharing_penalty=penalty, head_prior_weight=0.0
        ):
            evaluation = evaluate(gold, predict_sentences(model, gold), resamples=0)
        heads = evaluation.heads
        rows.append(
            {
                "penalty": penalty,
                "f1": evaluation.entities.f1,
                "shared": heads.shared if heads else None,
                "head_accuracy": heads.accuracy if heads else None,
            }
        )
    return rows


def analysis_tables(evaluation: "Evaluation", rows: Sequence[dict[str, Any]]) -> list[Any]:
    from nestree.report.tables import (
        Table,
        distribution_table,
        head_words_table,
        heads_table,
        percent,
        terminal_table,
    )

    tables = []
    if rows:
        cells = [
            (
                f"{row['penalty']:g}",
                percent(row["f1"]),
                "" if row["shared"] is None else str(row["shared"]),
                "" if row["head_accuracy"] is None else percent(row["head_accuracy"]),
            )
            for row in rows
        ]
        note = "Viterbi decoding, with a penalty for each entity that shares its head with a larger one."
        tables.append(Table("Shared heads", ("penalty", "F1", "shared heads", "head accuracy"), cells, note))
    if evaluation.heads:
        tables += [
            heads_table(evaluation.heads),
            head_words_table(evaluation.heads, evaluation.labels, HEAD_WORDS),
        ]
    tables.append(distribution_table(evaluation))
    return [part for table in tables for part in (*terminal_table(table), "")]
