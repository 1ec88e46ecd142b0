"""The plots of the report as SVG. Colors come from report.css; each mark has a title, each plot a description."""

from collections.abc import Callable, Iterable, Mapping
from math import floor, log10
from typing import Any
from xml.etree import ElementTree

from nestree.evaluation import Calibration, Comparison, Difference, Evaluation, Score
from nestree.report.tables import (
    ERROR_NAMES,
    METRIC_NAMES,
    UNDEFINED,
    metrics,
    percent,
    signed,
    signed_interval,
)
from nestree.show.svg import add_element

MAX_ROWS = 30  # labels in a plot; the tables have all of them
NAME_WIDTH = 150  # pixels for names on the left
ROW_HEIGHT = 26  # pixels from one bar to the next
WIDTH = 720
RIGHT = 56  # pixels for numbers on the right
STACKED_KINDS = ("type", "boundary", "missed", "spurious")


class Plot:
    """An SVG drawing with the marks that several plots share."""

    def __init__(self, width: float, height: float, description: str, top: float = 4) -> None:
        size = {"viewBox": f"0 {-top} {width:.0f} {height + top:.0f}", "width": f"{width:.0f}"}
        self.svg = ElementTree.Element("svg", {"role": "img", "aria-label": description, **size})

    def __str__(self) -> str:
        return ElementTree.tostring(self.svg, encoding="unicode")

    def text(self, x: float, y: float, content: str, anchor: str, style: str = "", title: str = "") -> None:
        place: dict[str, Any] = {"x": x, "y": y, "dy": ".35em", "text_anchor": anchor}
        add_element(self.svg, "text", content, title, class_=style, **place)

    def name(self, y: float, name: str) -> None:
        """The name of a row, shortened to its column."""
        shown = name if len(name) <= 20 else name[:19] + "…"
        self.text(NAME_WIDTH - 8, y, shown, "end", title=name)

    def bar(self, x: float, y: float, width: float, height: float, style: str, title: str) -> None:
        add_element(self.svg, "rect", "", title, class_=style, x=x, y=y, width=width, height=height)

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        add_element(self.svg, "line", class_=style, x1=x1, y1=y1, x2=x2, y2=y2)

    def circle(self, x: float, y: float, radius: float, style: str, title: str) -> None:
        add_element(self.svg, "circle", "", title, class_=style, cx=x, cy=y, r=radius)

    def vertical_grid(
        self, zero: float, scale: float, height: float, ticks: Iterable[tuple[float, str]]
    ) -> None:
        for value, label in ticks:
            x = zero + scale * value
            self.line(x, 0, x, height, "grid")
            self.text(x, height + 14, label, "middle", "tick")

    def precision_recall(self, score: Score, place: Callable[[float, float], tuple[float, float]]) -> None:
        """A diamond for P and a ring for R; `place` gives the coordinates of a value at an offset from its bar."""
        if score.predicted:
            x, y = place(score.precision, -4.5)
            path = f"M{x:.1f} {y - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5z"
            add_element(self.svg, "path", "", f"P {percent(score.precision)}", class_="p", d=path)
        if score.gold:
            self.circle(*place(score.recall, 4.5), 3.5, "r", f"R {percent(score.recall)}")

    def whisker(self, path: str) -> None:
        add_element(self.svg, "path", class_="whisker", d=path)


def horizontal_whisker(low: float, high: float, y: float) -> str:
    return f"M{low:.1f} {y - 4:.1f}v8m0 -4H{high:.1f}m0 -4v8"


def plot_labels(groups: Mapping[str, Score]) -> str:
    """A row for each group: F1 as a bar with its interval, P and R as marks."""
    rows = list(groups.items())[:MAX_ROWS]
    height = len(rows) * ROW_HEIGHT
    left, scale = NAME_WIDTH, WIDTH - NAME_WIDTH - RIGHT
    plot = Plot(WIDTH, height + 24, describe_f1(groups))
    plot.vertical_grid(left, scale, height, [(k / 5, f"{20 * k}") for k in range(6)])
    for k, (name, score) in enumerate(rows):
        y = k * ROW_HEIGHT + ROW_HEIGHT / 2
        plot.name(y, name)
        plot.bar(left, y - 7, scale * score.f1, 14, "f1", score_title(name, score))
        plot.text(WIDTH - RIGHT + 8, y, percent(score.f1, 1), "start", "value")
        if score.intervals:
            low, high = score.intervals.f1
            plot.whisker(horizontal_whisker(left + scale * low, left + scale * high, y))
        plot.precision_recall(score, lambda value, offset: (left + scale * value, y + offset))  # noqa: B023
    return str(plot)


def plot_columns(groups: Mapping[str, Score] | Mapping[int, Score]) -> str:
    """The same with upright bars, for ordered groups; below each is the number of its gold entities."""
    groups = {str(name): score for name, score in groups.items()}
    step = min(64, 300 / max(1, len(groups)))
    left, height = 36, 180
    width = left + step * len(groups) + 8
    plot = Plot(width, height + 40, describe_f1(groups), top=10)
    for k in range(6):
        y = height * (1 - k / 5)
        plot.line(left, y, width, y, "grid")
        plot.text(left - 6, y, f"{20 * k}", "end", "tick")
    for k, (name, score) in enumerate(groups.items()):
        x = left + step * (k + 0.5)
        half = min(14, step * 0.3)
        top = height * (1 - score.f1)
        plot.bar(x - half, top, 2 * half, height * score.f1, "f1", score_title(name, score))
        plot.text(x, height + 14, name, "middle")
        plot.text(x, height + 30, f"{score.gold:,}", "middle", "tick")
        if score.intervals and score.has_f1:
            low, high = (height * (1 - end) for end in score.intervals.f1)
            plot.whisker(f"M{x - 4:.1f} {low:.1f}h8m-4 0V{high:.1f}m-4 0h8")
        plot.precision_recall(score, lambda value, offset: (x + 1.6 * offset, height * (1 - value)))  # noqa: B023
    plot.text(left - 6, height + 30, "gold", "end", "tick")
    return str(plot)


def plot_errors(evaluation: Evaluation) -> str:
    """A row for each label with the number of its errors of each kind."""
    rows = {
        label: [evaluation.count(kind, label) for kind in STACKED_KINDS]
        for label in list(evaluation.labels)[:MAX_ROWS]
    }
    largest = max(1, *map(sum, rows.values()))
    height = len(rows) * ROW_HEIGHT
    scale = (WIDTH - NAME_WIDTH - RIGHT) / largest
    totals = "; ".join(f"{label} {sum(counts):,}" for label, counts in rows.items())
    plot = Plot(WIDTH, height + 24, f"Errors by label: {totals}.")
    ticks = [(value, f"{int(value):,}") for value in round_ticks(largest, 8) if value == int(value)]
    plot.vertical_grid(NAME_WIDTH, scale, height, ticks)
    for k, (label, counts) in enumerate(rows.items()):
        y, x = k * ROW_HEIGHT + ROW_HEIGHT / 2, float(NAME_WIDTH)
        plot.name(y, label)
        for kind, count in zip(STACKED_KINDS, counts, strict=True):
            if count:
                width = scale * count
                plot.bar(x, y - 9, width, 18, kind, f"{label}, {ERROR_NAMES[kind]}: {count:,}")
                if width > 8 * len(f"{count:,}") + 4:
                    plot.text(x + width / 2, y, f"{count:,}", "middle", f"on {kind}")
                x += width
        plot.text(x + 6, y, f"{sum(counts):,}", "start", "value")
    return str(plot)


def plot_reliability(calibration: Calibration) -> str:
    """The share of right entities against their mean score; calibrated scores lie on the diagonal."""
    left, size = 44, 260
    largest = max(bin.entities for bin in calibration.bins)
    description = f"Reliability diagram. Expected calibration error {percent(calibration.error)} %."
    plot = Plot(left + size + 12, size + 40, description, top=12)
    for k in range(6):
        offset = size * k / 5
        plot.line(left, size - offset, left + size, size - offset, "grid")
        plot.text(left - 6, size - offset, f"{20 * k}", "end", "tick")
        plot.text(left + offset, size + 14, f"{20 * k}", "middle", "tick")
    plot.line(left, size, left + size, 0, "diagonal")
    points = [(left + size * bin.score, size * (1 - bin.precision)) for bin in calibration.bins]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    add_element(plot.svg, "polyline", class_="curve", points=path)
    for (x, y), bin in zip(points, calibration.bins, strict=True):
        title = (
            f"mean score {percent(bin.score)}, right {percent(bin.precision)} %, {bin.entities:,} entities"
        )
        plot.circle(x, y, 3 + 7 * (bin.entities / largest) ** 0.5, "point", title)
    plot.text(left + size / 2, size + 32, "mean score, %", "middle", "tick")
    rotation = f"translate(10 {size / 2}) rotate(-90)"
    add_element(plot.svg, "text", "right, %", class_="tick", transform=rotation, text_anchor="middle")
    return str(plot)


def plot_differences(comparison: Comparison) -> str:
    """Each difference with its interval; one whose interval excludes 0 is significant."""
    overall = [(METRIC_NAMES[name], difference) for name, difference in comparison.overall.items()]
    rows: list[tuple[str, Difference]] = [*overall, *list(comparison.labels.items())[:MAX_ROWS]]
    reach = max(0.001, *(abs(end) for _, difference in rows for end in difference.interval))
    height = len(rows) * ROW_HEIGHT + 10
    scale = (WIDTH - NAME_WIDTH - RIGHT) / 2 / reach
    zero = NAME_WIDTH + scale * reach
    values = "; ".join(f"{name} {signed(difference.value)}" for name, difference in rows)
    plot = Plot(WIDTH, height + 24, f"Differences, first minus second, in points: {values}.")
    ticks = [sign * tick / 100 for tick in round_ticks(100 * reach, 3)[1:] for sign in (-1, 1)]
    plot.vertical_grid(zero, scale, height, [(tick, f"{100 * tick:+g}") for tick in ticks])
    plot.line(zero, 0, zero, height, "zero")
    plot.text(zero, height + 14, "0", "middle", "tick")
    for k, (name, difference) in enumerate(rows):
        y = k * ROW_HEIGHT + ROW_HEIGHT / 2 + (10 if k >= len(overall) else 0)
        value, (low, high) = difference.value, difference.interval
        plot.name(y, name)
        plot.whisker(horizontal_whisker(zero + scale * low, zero + scale * high, y))
        style = "point sure" if low > 0 or high < 0 else "point unsure"
        title = f"{name}: {signed(value)} ({signed_interval((low, high))}), p {difference.p:.4f}"
        plot.circle(zero + scale * value, y, 5, style, title)
        plot.text(WIDTH - RIGHT + 8, y, signed(value), "start", "value")
    plot.line(8, len(overall) * ROW_HEIGHT + 5, WIDTH - 8, len(overall) * ROW_HEIGHT + 5, "grid")
    return str(plot)


def round_ticks(largest: float, intervals: int) -> list[float]:
    """Round numbers at equal distances from 0 to `largest` or less, with at most this many intervals.

    >>> round_ticks(249, 8), round_ticks(3, 8), round_ticks(0.31, 3)
    ([0.0, 50.0, 100.0, 150.0, 200.0], [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0], [0.0, 0.1, 0.2, 0.3])
    """
    size = 10.0 ** floor(log10(largest / intervals))
    step = next(factor * size for factor in (1, 2, 5, 10) if int(largest / (factor * size)) <= intervals)
    return [round(k * step, 9) for k in range(int(largest / step + 1e-9) + 1)]


def score_title(name: str, score: Score) -> str:
    precision, recall, f1, interval = metrics(score)
    f1 += f" ({interval})" if interval not in ("", UNDEFINED) else ""
    return f"{name}: F1 {f1}, P {precision}, R {recall}, {score.gold:,} gold"


def describe_f1(groups: Mapping[str, Score]) -> str:
    values = (f"{name} {percent(s.f1, 1) if s.has_f1 else UNDEFINED}" for name, s in groups.items())
    return f"F1 in %: {'; '.join(values)}."
