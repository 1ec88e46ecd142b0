"""The commands `evaluate` and `analyze`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

from nestree.cli.data import print_report
from nestree.cli.options import OutputFormat, Reading, TableFormat, parse_numbers
from nestree.cli.predict import load_pipeline, model_name, predict_sentences
from nestree.cli.runtime import QUIET, Commands, print_json, print_line, print_rich, reading_progress, terminal_width
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.evaluation import Evaluation
    from nestree.model import Recognizer
    from nestree.types import Sentence

HEAD_WORDS = 10  # of each label


def evaluate(
    gold: Annotated[Path, Argument(metavar="GOLD", help="The annotated data; - is standard input.")],
    reading: Reading,
    predicted: Annotated[Path | None, Argument(metavar="PRED", help="The same sentences as predicted.")] = None,
    model: str | None = None,
    threshold: float | None = None,
    device: str = "auto",
    compare: str | None = None,
    duplicates: bool = False,
    html: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
    format: TableFormat = "text",
) -> None:
    """Score predicted entities against gold ones.

    An entity is correct if its span and its label are; each counts once, however often it is given. With --quiet, one
    line for each prediction: precision, recall and F1. With --model, that model predicts, instead of PRED: text is
    split into words as it knows them, and its probabilities are scored, too.
    """
    from nestree import evaluation as library
    from nestree import report
    from nestree.data.formats import select_test_part
    from nestree.data.io import ConversionReport, atomic_writer, check_output_path

    is_name = str(gold) == gold.name != "-" and not gold.exists()
    if (gold.is_dir() or is_name) and is_model(str(gold)):
        raise InputError(f"{gold} is a model: name it with --model {gold}, and the gold data without an option.")
    if (predicted is None) == (model is None):
        raise InputError("name either a file of predictions or a model: --model MODEL.")
    folder, gold = gold, select_test_part(gold)
    predicted = predicted and select_test_part(predicted)
    if gold != folder:
        print_line(f"{folder} has several parts: {gold} is scored.")
    sides = [str(predicted or model), *([compare] if compare else [])]
    models = [side for side in sides if side == model or (side == compare and is_model(side))]
    if threshold is not None and not models:
        raise InputError("--threshold selects the entities of a model: name one with --model.")
    if compare and not resamples:
        raise InputError("--compare draws samples, so --bootstrap must be 1 or more.")
    paths = [gold, *(Path(side) for side in sides if side not in models)]
    if html:
        check_output_path(html, paths)
    in_one_line = Commands.verbosity == QUIET and format == "text"
    if in_one_line and not (compare or html):
        resamples = 0  # intervals would not be shown
    conversion = ConversionReport()
    pipelines = {side: load_pipeline(side, device)[0] for side in models}
    rules = next((pipeline.model.text_rules._asdict() for pipeline in pipelines.values()), {})
    with reading_progress(paths):
        documents = list(reading.documents(gold, conversion, **rules))
        data = [[sentence for document in documents for sentence in document.sentences]]
        for side in sides:
            if pipeline := pipelines.get(side):
                options = pipeline.predict_options(threshold, trees=False)
                with_context = pipeline.model.sentences_with_context(documents)
                data.append(predict_sentences(pipeline.inference_model, with_context, options))
            else:
                found = reading.documents(Path(side), conversion, **rules)
                data.append([sentence for document in found for sentence in document.sentences])
    print_report(conversion)
    comparison = None
    if compare:
        names = tuple(model_name(side) if side in models else Path(side).name for side in sides)
        names = names if names[0] != names[1] else tuple(sides)
        comparison = library.compare(*data, names=(names[0], names[1]), resamples=resamples, seed=seed)
        evaluation = comparison.first
    else:
        evaluation = library.evaluate(*data, resamples=resamples, seed=seed)
    evaluations = (comparison.first, comparison.second) if comparison else (evaluation,)
    for each in evaluations:
        library.warn_disjoint_labels(each)
    title = f"{sides[0]} against {gold}"
    if html:
        given = {"threshold": threshold, "words": reading.words, "sentences": reading.sentences}
        given["from"] = reading.source_format
        settings = ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
        about = {"model": model or "none", "predictions": str(predicted or "by the model"), "data": str(gold)}
        about["settings"] = settings or "defaults"
        with atomic_writer(html) as file:
            file.write(report.to_html(evaluation, comparison, title, about))
        print_line(f"written: {html}")
    if format == "json":
        print_json(report.to_json(evaluation, comparison))
    elif in_one_line:
        for number, each in enumerate(evaluations):
            name = f"{comparison.names[number]}: " if comparison else ""
            typer.echo(f"{name}{format_scores(each, duplicates)}")
    elif format == "markdown":
        typer.echo(report.to_markdown(evaluation, comparison, title), nl=False)
    else:
        print_rich(*report.to_terminal(evaluation, comparison, title, terminal_width()), crop=False)
        typer.echo(f"\n{format_scores(evaluation, duplicates)}")


def is_model(name: str) -> bool:
    """Whether this names a model rather than a file of predictions."""
    from nestree import hub
    from nestree.checkpoint import LABELS
    from nestree.data.formats import SUFFIXES

    if Path(name).exists():
        return (Path(name) / LABELS).is_file()
    is_file_name = any(suffix in SUFFIXES for suffix in Path(name).suffixes)
    return hub.is_bundled(name) or (bool(hub.HUB_NAME.fullmatch(name)) and not is_file_name)


def format_scores(evaluation: "Evaluation", duplicates: bool) -> str:
    """Precision, recall and F1 in one line."""
    score = evaluation.duplicates if duplicates else evaluation.entities
    note = " (each copy counted)" if duplicates else ""
    return f"P {100 * score.precision:.2f}  R {100 * score.recall:.2f}  F1 {100 * score.f1:.2f}{note}"


def analyze(
    source: Annotated[Path, Argument(metavar="DATA", help="Annotated data; - is standard input.")],
    reading: Reading,
    model: str | None = None,
    penalties: str = "-2,0,0.2,0.4,0.6,1",
    drawn: int = 2,
    device: str = "auto",
    format: OutputFormat = "text",
) -> None:
    """Analyze a model: head accuracy, shared heads by penalty, errors by label, trees."""
    from rich.console import Console

    from nestree import report
    from nestree.evaluation import evaluate, warn_disjoint_labels
    from nestree.pipeline import PredictOptions
    from nestree.show import draw_sentence

    values = parse_numbers(penalties, "--head-sharing-penalties", float, "0,0.4,1")
    with reading_progress([source]):
        documents = list(reading.documents(source))
    recognizer = load_pipeline(model, device)[0].inference_model
    gold = recognizer.sentences_with_context(documents)
    evaluation = evaluate(gold, predict_sentences(recognizer, gold), resamples=0)
    warn_disjoint_labels(evaluation)
    rows = vary_penalty(recognizer, gold, values)
    if format == "json":
        print_json({**report.to_json(evaluation), "head_sharing": rows})
        return
    print_rich(*analysis_tables(evaluation, rows), crop=False)
    if drawn and gold and recognizer.settings.decoding.method != "spans":
        width = Console().width
        parsed = predict_sentences(recognizer, gold[:drawn], PredictOptions(trees=True))
        drawings = [part for sentence in parsed for part in ("", draw_sentence(sentence, width))]
        print_rich(*drawings, no_wrap=True, crop=False)


def vary_penalty(model: "Recognizer", gold: "Sequence[Sentence]", penalties: Sequence[float]) -> list[dict[str, Any]]:
    """F1 and heads of Viterbi decoding with each head-sharing penalty."""
    from nestree.evaluation import evaluate
    from nestree.pipeline import override_decoding

    if model.settings.model.structure != "lexical" or model.settings.decoding.method == "spans":
        print_line("This model has no heads: there is no table of shared heads.")
        return []
    rows = []
    changed = {"method": "viterbi", "threshold": 0.0, "head_prior_weight": 0.0}
    for penalty in penalties:
        with override_decoding(model, head_sharing_penalty=penalty, **changed):
            evaluation = evaluate(gold, predict_sentences(model, gold), resamples=0)
        heads = evaluation.heads
        shared, accuracy = (heads.shared, heads.accuracy) if heads else (None, None)
        f1 = evaluation.entities.f1
        rows.append({"penalty": penalty, "f1": f1, "shared": shared, "head_accuracy": accuracy})
    return rows


def analysis_tables(evaluation: "Evaluation", rows: Sequence[dict[str, Any]]) -> list[Any]:
    from nestree.report import tables as report

    tables = []
    if rows:
        cells = [
            (
                f"{row['penalty']:g}",
                report.percent(row["f1"]),
                "" if row["shared"] is None else str(row["shared"]),
                "" if row["head_accuracy"] is None else report.percent(row["head_accuracy"]),
            )
            for row in rows
        ]
        note = "Viterbi decoding, with a penalty for each entity that shares its head with a larger one."
        columns = ("penalty", "F1", "shared heads", "head accuracy")
        tables.append(report.Table("Shared heads", columns, cells, note))
    if heads := evaluation.heads:
        tables += [report.heads_table(heads), report.head_words_table(heads, evaluation.labels, HEAD_WORDS)]
    tables.append(report.distribution_table(evaluation))
    return [part for table in tables for part in (*report.terminal_table(table, terminal_width()), "")]
