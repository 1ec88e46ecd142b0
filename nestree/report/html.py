"""The report as one HTML page with charts and examples. The template and its style are in `templates`."""

from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import Any, NamedTuple

from nestree.display import color_index, render_page, stack_spans
from nestree.evaluation import KINDS, Comparison, Difference, EntityError, Evaluation, Score, sentence_name
from nestree.report import tables
from nestree.report.tables import METRIC_NAMES, describe_error, metrics, percent, signed
from nestree.types import Entity, Sentence

HEAD_WORDS = 10  # of each label
EXAMPLES = 8  # of each kind of error and label,
MAX_EXAMPLES = 300  # unless there would be more than this
MAX_COLUMNS = 40  # labels in the table of the error distribution
MAX_ROWS = 30  # labels in a chart; the tables have all of them


def to_html(
    evaluation: Evaluation,
    comparison: Comparison | None = None,
    title: str = "Evaluation",
    about: Mapping[str, str] | None = None,
) -> str:
    """A complete HTML page that needs no other files; `about` says what was evaluated, such as {"model": ...}."""
    errors = (*evaluation.errors, *(evaluation.heads.errors if evaluation.heads else ()))
    groups = {(error.kind, error.label) for error in errors}
    limit = max(1, min(EXAMPLES, MAX_EXAMPLES // max(1, len(groups))))
    sections = {
        "Scores": True,
        "Comparison": comparison,
        "Labels": evaluation.labels,
        "Depth and length": evaluation.labels,
        "Errors": evaluation.errors,
        "Error distribution": evaluation.confusion,
        "Heads": evaluation.heads,
        "Calibration": evaluation.calibration,
        "Thresholds": evaluation.thresholds,
        "Examples": errors,
    }
    page = render_page(
        "report/templates/report.html.jinja",
        title,
        {**(about or {}), "bootstrap": f"{evaluation.resamples:,} resamples, seed {evaluation.seed}"},
        evaluation=evaluation,
        comparison=comparison,
        sections=[name for name, content in sections.items() if content],
        **{f.__name__: f for f in (score_chart, error_chart, difference_chart, reliability_curve, threshold_curve)},
        all_tables={table.title: table for table in tables.all_tables(evaluation, comparison, HEAD_WORDS)},
        max_columns=MAX_COLUMNS,
        label_indices={label: k for k, label in enumerate(evaluation.labels)},
        kinds=[kind for kind in tables.ERROR_NAMES if any(error.kind == kind for error in errors)],
        examples=list(map(example_values, tables.select_examples(evaluation, limit, by_label=True))),
        total_errors=len(errors),
        limit=limit,
        tables=tables,
    )
    return tables.visible(page)


# Charts of rows: HTML, so that they use the width of the page. Lengths and positions are in % of the track.


class Mark(NamedTuple):
    kind: str  # the CSS class
    left: float
    width: float = 0.0
    title: str = ""
    text: str = ""


class Chart(NamedTuple):
    rows: Sequence[tuple[str, int | None, Sequence[Mark], str]]  # name, color of the label, marks, value
    ticks: Sequence[tuple[float, str]]


def score_chart(groups: Mapping[Any, Score], labels: bool = False) -> Chart:
    """A row for each group: F1 as a bar with its interval, P and R as marks."""
    rows = []
    for name, score in list(groups.items())[:MAX_ROWS]:
        precision, recall, f1, interval, *_ = metrics(score)
        interval = f" ({interval})" if interval else ""
        title = f"{name}: F1 {f1}{interval}, P {precision}, R {recall}, {score.gold:,} gold"
        if not score.predicted or not score.gold:
            marks = [Mark("none", 0, 0, title, "no prediction" if score.gold else "not in gold")]
        else:
            marks = [Mark("bar", 0, 100 * score.f1, title)]
            if score.intervals:
                low, high = score.intervals.f1
                marks.append(Mark("whisker", 100 * low, 100 * (high - low)))
            marks.append(Mark("p", 100 * score.precision, title=f"P {precision}"))
            marks.append(Mark("r", 100 * score.recall, title=f"R {recall}"))
        rows.append((str(name), color_index(str(name)) if labels else None, marks, f1))
    return Chart(rows, [(20 * k, f"{20 * k}") for k in range(6)])


def error_chart(evaluation: Evaluation) -> Chart:
    """A row for each label with the number of its errors of each kind."""
    labels = list(evaluation.labels)[:MAX_ROWS]
    counts = {label: [evaluation.count(kind, label) for kind in KINDS] for label in labels}
    largest = max(1, *map(sum, counts.values()))
    rows = []
    for label, numbers in counts.items():
        marks, left = [], 0.0
        for kind, number in zip(KINDS, numbers, strict=True):
            width = 100 * number / largest
            title = f"{label}, {tables.ERROR_NAMES[kind]}: {number:,}"
            marks += [Mark(kind, left, width, title, f"{number:,}" if width > 6 else "")] if number else []
            left += width
        rows.append((label, color_index(label), marks, f"{sum(numbers):,}"))
    return Chart(rows, [(100 * t / largest, f"{t:,.0f}") for t in round_ticks(largest, 5) if t == int(t)])


def difference_chart(comparison: Comparison) -> Chart:
    """Each difference with its interval; one whose interval excludes 0 is significant."""
    rows: list[tuple[str, int | None, Difference]]
    rows = [(METRIC_NAMES[name], None, difference) for name, difference in comparison.overall.items()]
    rows += [(name, color_index(name), d) for name, d in list(comparison.labels.items())[:MAX_ROWS]]
    reach = max(0.01, *(abs(x) for *_, d in rows for x in (*d.interval, d.value)))
    drawn = []
    for name, color, (value, (low, high), p) in rows:
        title = f"{name}: {signed(value)} ({signed(low)} to {signed(high)}), p {p:.4f}"
        style = "point sure" if low > 0 or high < 0 else "point unsure"
        whisker = Mark("whisker", 50 + 50 * low / reach, 50 * (high - low) / reach)
        drawn.append((name, color, [whisker, Mark(style, 50 + 50 * value / reach, 0, title)], signed(value)))
    ticks = [sign * tick for tick in round_ticks(100 * reach, 2)[1:] for sign in (-1, 1)]
    return Chart(drawn, [(50, "0"), *((50 + tick / 2 / reach, f"{tick:+g}") for tick in ticks)])


def round_ticks(largest: float, intervals: int) -> list[float]:
    """Round numbers at equal distances from 0 to `largest` or less, with at most this many intervals.

    >>> round_ticks(249, 8), round_ticks(3, 8), round_ticks(0.31, 3)
    ([0.0, 50.0, 100.0, 150.0, 200.0], [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0], [0.0, 0.1, 0.2, 0.3])
    """
    size = 10.0 ** floor(log10(largest / intervals))
    step = next(factor * size for factor in (1, 2, 5, 10) if int(largest / (factor * size)) <= intervals)
    return [round(k * step, 9) for k in range(int(largest / step + 1e-9) + 1)]


# Curves, which the template draws as square plots


class Curve(NamedTuple):
    points: Sequence[tuple[float, float, float, str]]  # x, precision (both 0 to 1), radius and title, joined by a line
    x_name: str
    description: str
    has_diagonal: bool = False


def reliability_curve(evaluation: Evaluation) -> Curve:
    """Precision against mean score; calibrated scores lie on the diagonal."""
    calibration = evaluation.calibration
    assert calibration is not None
    largest = max(bin.entities for bin in calibration.bins)
    points = []
    for _, _, count, score, precision in calibration.bins:
        title = f"mean score {percent(score)} %, precision {percent(precision)} %, {count:,} entities"
        points.append((score, precision, 3 + 7 * (count / largest) ** 0.5, title))
    description = f"Reliability diagram. Expected calibration error {percent(calibration.error)} %."
    return Curve(points, "mean score, %", description, has_diagonal=True)


def threshold_curve(evaluation: Evaluation) -> Curve:
    """Precision against recall, a point for each threshold with predictions."""
    points = [
        (s.recall, s.precision, 3.5, f"threshold {t:.2f}: P {percent(s.precision)}, R {percent(s.recall)}")
        for t, s in evaluation.thresholds.items()
        if s.predicted
    ]
    description = "; ".join(title for *_, title in points)
    return Curve(points, "recall, %", f"Precision and recall. {description}.")


# Examples


def example_values(error: EntityError) -> dict[str, Any]:
    """An error as cells of a grid: gold brackets above the words, predicted ones below; the wrong ones stand out."""
    start, end = tables.window(error)
    words = error.sentence.words[start:end]
    above = brackets(error.sentence, error.gold, error)
    below = brackets(error.prediction, error.predicted, error)
    middle = 2 + max((level for level, *_ in above), default=-1)  # the row of the words
    cells = [(middle - 1 - level, a, b, f"bracket above {css}", text) for level, a, b, css, text in above]
    cells += [(middle, 3 + k, 4 + k, "word", word) for k, word in enumerate(words)]
    cells += [(middle + 1 + level, a, b, f"bracket below {css}", text) for level, a, b, css, text in below]
    cells += [(middle - 1, 1, 2, "side", "gold")] if above else []
    cells += [(middle + 1, 1, 2, "side", "predicted")] if below else []
    cells += [(middle, 2, 3, "word", "…")] if start else []
    if end < len(error.sentence.words):
        cells.append((middle, 3 + len(words), 4 + len(words), "word", "…"))
    return {
        "kind": error.kind,
        "labels": {entity.label for entity in (error.gold, error.predicted) if entity},
        "caption": f"{sentence_name(error.number, error.sentence)}: {describe_error(error)}",
        "cells": cells,
    }


def brackets(sentence: Sentence, wrong: Entity | None, error: EntityError) -> list[tuple[int, int, int, str, str]]:
    """Level, columns, style and label of the entities in the window, which are cut where it ends."""
    start, end = tables.window(error)
    entities = {(e.start, e.end, e.label): e for e in sentence.entities if e.start < end and start < e.end}
    cells = []
    levels = stack_spans([entity.span for entity in entities.values()])
    for entity, level in zip(entities.values(), levels, strict=True):
        style = f"c{color_index(entity.label)} {'wrong' if entity == wrong else 'other'}"
        style += " cut-left" if entity.start < start else ""
        style += " cut-right" if entity.end > end else ""
        label = entity.label
        if error.kind == "head" and entity == wrong:
            label += f", head {sentence.words[entity.head]}" if entity.head is not None else ", no head"
        a, b = max(entity.start, start) - start, min(entity.end, end) - start
        cells.append((level, 3 + a, 3 + b, style, label))
    return cells
