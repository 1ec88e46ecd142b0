"""The report as one HTML page with plots and examples. The template and its style are in `templates`."""

from typing import Any

from nestree.evaluation import Comparison, EntityError, Evaluation
from nestree.evaluation.metrics import sentence_name
from nestree.report import plots, tables
from nestree.report.tables import describe_error, interval_text, percent, select_examples, signed, window
from nestree.show.html import render
from nestree.show.layout import stack_spans
from nestree.types import Entity, Sentence

HEAD_WORDS = 10  # of each label
EXAMPLES = 8  # of each kind of error
MAX_COLUMNS = 40  # labels in the table of the error distribution


def to_html(evaluation: Evaluation, comparison: Comparison | None = None, title: str = "Evaluation") -> str:
    """A complete HTML page that needs no other files."""
    examples = select_examples(evaluation, EXAMPLES)
    sections = {
        "Scores": True,
        "Comparison": comparison,
        "Labels": evaluation.labels,
        "Depth and length": evaluation.labels,
        "Errors": evaluation.errors,
        "Error distribution": evaluation.confusion,
        "Heads": evaluation.heads,
        "Calibration": evaluation.calibration,
        "Examples": examples,
    }
    page = render(
        "report/templates/report.html.jinja",
        title=title,
        evaluation=evaluation,
        comparison=comparison,
        sections=[name for name, content in sections.items() if content],
        tiles=headline_tiles(evaluation, comparison),
        heat=heat_values(evaluation),
        examples={kind: list(map(example_values, errors)) for kind, errors in examples.items()},
        head_words=HEAD_WORDS,
        plots=plots,
        tables=tables,
    )
    return tables.visible(page)


def headline_tiles(evaluation: Evaluation, comparison: Comparison | None) -> list[tuple[str, str, str]]:
    """Name, value and details of the most important numbers."""
    score, heads = evaluation.entities, evaluation.heads
    interval = f"95 %: {interval_text(score.intervals.f1)}" if score.intervals else ""
    tiles = [
        ("F1", percent(score.f1), interval),
        ("precision", percent(score.precision), f"{score.right:,} of {score.predicted:,}"),
        ("recall", percent(score.recall), f"{score.found:,} of {score.gold:,}"),
    ]
    if heads and heads.accuracy is not None:
        tiles.append(("head accuracy", percent(heads.accuracy), f"{heads.right:,} of {heads.judged:,}"))
    if comparison:
        f1 = comparison.overall["f1"]
        tiles.append((f"F1 against {comparison.names[1]}", signed(f1.value), f"p = {f1.p:.4f}"))
    return tiles


def heat_values(evaluation: Evaluation) -> dict[str, Any]:
    """The error distribution with the strength of each cell's color; errors have a color of their own."""
    table = tables.distribution_table(evaluation)
    columns = dict(list(evaluation.distribution.items())[:MAX_COLUMNS])
    rows = []
    for row in table.rows:
        predicted = None if row is table.rows[-1] else row[0]
        cells = []
        for label, shares in columns.items():
            share = shares.get(predicted, 0.0)
            kind, strength = ("right", share) if predicted == label else ("wrong", share**0.5)
            cells.append((kind, f"{100 * strength:.0f}%", percent(share, 1) if share else ""))
        rows.append((row[0], cells))
    left_out = len(evaluation.distribution) - len(columns)
    note = table.note + (f" {left_out} rarer labels are left out." if left_out else "")
    return {"title": table.title, "columns": [table.columns[0], *columns], "rows": rows, "note": note}


def example_values(error: EntityError) -> dict[str, Any]:
    """An error as cells of a grid: gold brackets above the words, predicted ones below; the wrong ones stand out."""
    start, end = window(error)
    words = error.sentence.words[start:end]
    above = brackets(error.sentence, error.gold, error)
    below = brackets(error.prediction, error.predicted, error)
    middle = 2 + max((level for level, *_ in above), default=-1)  # the row of the words
    cells = [
        (middle - 1 - level, a, b, f"bracket above {style}", label) for level, a, b, style, label in above
    ]
    cells += [(middle, 3 + k, 4 + k, "word", word) for k, word in enumerate(words)]
    cells += [
        (middle + 1 + level, a, b, f"bracket below {style}", label) for level, a, b, style, label in below
    ]
    if above:
        cells.append((middle - 1, 1, 2, "side", "gold"))
    if below:
        cells.append((middle + 1, 1, 2, "side", "predicted"))
    if start:
        cells.append((middle, 2, 3, "word", "…"))
    if end < len(error.sentence.words):
        cells.append((middle, 3 + len(words), 4 + len(words), "word", "…"))
    return {
        "caption": f"{sentence_name(error.number, error.sentence)}: {describe_error(error)}",
        "cells": cells,
    }


def brackets(
    sentence: Sentence, wrong: Entity | None, error: EntityError
) -> list[tuple[int, int, int, str, str]]:
    """Level, columns, style and label of the entities in the window, which are cut where it ends."""
    start, end = window(error)
    entities = {(e.start, e.end, e.label): e for e in sentence.entities if e.start < end and start < e.end}
    cells = []
    levels = stack_spans([entity.span for entity in entities.values()])
    for entity, level in zip(entities.values(), levels, strict=True):
        style = "wrong" if entity == wrong else "other"
        style += " cut-left" if entity.start < start else ""
        style += " cut-right" if entity.end > end else ""
        label = entity.label
        if error.kind == "head" and entity == wrong:
            label += f", head {sentence.words[entity.head]}" if entity.head is not None else ", no head"
        a, b = max(entity.start, start) - start, min(entity.end, end) - start
        cells.append((level, 3 + a, 3 + b, style, label))
    return cells
