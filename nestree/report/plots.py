"""Plots as SVG, drawn here: no library, no script, colours from the style of the page, a table beside each one.

Each mark has a title, which a browser shows when it is pointed at, and each plot a description for those who
cannot see it.
"""

from collections.abc import Callable, Iterable, Mapping
from html import escape
from math import floor, log10

from nestree.evaluation import Calibration, Comparison, Difference, Evaluation, Score
from nestree.report.tables import ERRORS, MEASURES, NOTHING, number, percent, ratios, signed, span

MOST_ROWS = 30  # labels in a plot; the tables have all of them
LABEL = 150  # pixels for names on the left
ROW = 26  # pixels from one bar to the next
WIDE = 720
RIGHT = 56  # pixels for numbers on the right
STACKED = ("type", "boundary", "missed", "spurious")


def bars(groups: Mapping[str, Score]) -> str:
    """F1 as a bar with its interval, P and R as marks on it; a row for each group."""
    rows = list(groups.items())[:MOST_ROWS]
    high = len(rows) * ROW
    left, scale = LABEL, (WIDE - LABEL - RIGHT) / 1.0
    parts = [grid_x(left, scale, high, [(k / 5, f"{20 * k}") for k in range(6)])]
    for k, (name, score) in enumerate(rows):
        y = k * ROW + ROW / 2
        parts += [
            text(left - 8, y, shortened(name), "end", title=name),
            box(left, y - 7, scale * score.f1, 14, "f1", told(name, score)),
            text(WIDE - RIGHT + 8, y, percent(score.f1, 1), "start", "value"),
        ]
        if score.intervals:
            low, up = score.intervals.f1
            parts.append(whisker_x(left + scale * low, left + scale * up, y))
        parts += marks(score, lambda value, off: (left + scale * value, y + off))  # noqa: B023
    return drawing(WIDE, high + 24, parts, describe("F1", groups))


def columns(groups: Mapping[str, Score]) -> str:
    """The same upright, for groups that have an order; below each the number of its gold entities."""
    rows = list(groups.items())
    step = min(64, 300 / max(1, len(rows)))
    left, high = 36, 180
    wide = left + step * len(rows) + 8
    parts = [
        line(left, high * (1 - k / 5), wide, high * (1 - k / 5), "grid")
        + text(left - 6, high * (1 - k / 5), f"{20 * k}", "end", "tick")
        for k in range(6)
    ]
    for k, (name, score) in enumerate(rows):
        x = left + step * (k + 0.5)
        half = min(14, step * 0.3)
        parts += [
            box(x - half, high * (1 - score.f1), 2 * half, high * score.f1, "f1", told(name, score)),
            text(x, high + 14, name, "middle"),
            text(x, high + 30, number(score.gold), "middle", "tick"),
        ]
        if score.intervals and score.has_f1:
            low, up = score.intervals.f1
            parts.append(whisker_y(x, high * (1 - low), high * (1 - up)))
        parts += marks(score, lambda value, off: (x + 1.6 * off, high * (1 - value)))  # noqa: B023
    parts.append(text(left - 6, high + 30, "gold", "end", "tick"))
    return drawing(wide, high + 40, parts, describe("F1", groups), top=10)


def marks(score: Score, place: Callable[[float, float], tuple[float, float]]) -> list[str]:
    """A diamond where P is, a ring where R is, on either side of the bar's middle."""
    found = []
    if score.predicted:
        x, y = place(score.precision, -4.5)
        path = f"M{x:.1f} {y - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5z"
        found.append(f'<path class="p" d="{path}"><title>P {percent(score.precision)}</title></path>')
    if score.gold:
        x, y = place(score.recall, 4.5)
        found.append(
            f'<circle class="r" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>R {percent(score.recall)}</title></circle>'
        )
    return found


def stacked(evaluation: Evaluation) -> str:
    """How many errors of each kind, a row for each label."""
    rows = [
        (label, [evaluation.count(kind, label) for kind in STACKED])
        for label in list(evaluation.labels)[:MOST_ROWS]
    ]
    most = max(1, *(sum(counts) for _, counts in rows))
    high = len(rows) * ROW
    left, scale = LABEL, (WIDE - LABEL - RIGHT) / most
    parts = [grid_x(left, scale, high, [(v, number(int(v))) for v in steps(most, 8) if v == int(v)])]
    for k, (label, counts) in enumerate(rows):
        y, x = k * ROW + ROW / 2, float(left)
        parts.append(text(left - 8, y, shortened(label), "end", title=label))
        for kind, count in zip(STACKED, counts, strict=True):
            if count:
                wide = scale * count
                parts.append(box(x, y - 9, wide, 18, kind, f"{label}, {ERRORS[kind]}: {number(count)}"))
                if wide > 8 * len(number(count)) + 4:
                    parts.append(text(x + wide / 2, y, number(count), "middle", f"on {kind}"))
                x += wide
        parts.append(text(x + 6, y, number(sum(counts)), "start", "value"))
    said = "; ".join(f"{label} {number(sum(counts))}" for label, counts in rows)
    return drawing(WIDE, high + 24, parts, f"Errors by label: {said}.")


def reliability(found: Calibration) -> str:
    """The share of entities that are right against their mean score; on the diagonal, scores are honest."""
    left, size = 44, 260
    most = max(bin.entities for bin in found.bins)
    parts = []
    for k in range(6):
        at = size * k / 5
        parts += [
            line(left, size - at, left + size, size - at, "grid"),
            text(left - 6, size - at, f"{20 * k}", "end", "tick"),
            text(left + at, size + 14, f"{20 * k}", "middle", "tick"),
        ]
    parts.append(line(left, size, left + size, 0, "diagonal"))
    points = [(left + size * bin.score, size * (1 - bin.precision)) for bin in found.bins]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline class="curve" points="{path}"/>')
    for (x, y), bin in zip(points, found.bins, strict=True):
        radius = 3 + 7 * (bin.entities / most) ** 0.5
        told = f"mean score {percent(bin.score)}, right {percent(bin.precision)} %, {number(bin.entities)} entities"
        parts.append(
            f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"><title>{told}</title></circle>'
        )
    parts += [
        text(left + size / 2, size + 32, "mean score, %", "middle", "tick"),
        f'<text class="tick" transform="translate(10 {size / 2}) rotate(-90)" text-anchor="middle">right, %</text>',
    ]
    said = f"Reliability diagram. Expected calibration error {percent(found.error)} %."
    return drawing(left + size + 12, size + 40, parts, said, top=12)


def differences(comparison: Comparison) -> str:
    """Each difference with its interval; what does not touch the line in the middle is unlikely to be chance."""
    overall = [(MEASURES[name], found) for name, found in comparison.overall.items()]
    rows: list[tuple[str, Difference]] = [*overall, *list(comparison.labels.items())[:MOST_ROWS]]
    reach = max(0.001, *(abs(end) for _, found in rows for end in found.interval))
    high, left = len(rows) * ROW + 10, LABEL
    scale = (WIDE - LABEL - RIGHT) / 2 / reach
    middle = left + scale * reach
    points = [side * tick / 100 for tick in steps(100 * reach, 3)[1:] for side in (-1, 1)]
    parts = [
        grid_x(middle, scale, high, [(point, f"{100 * point:+g}") for point in points]),
        line(middle, 0, middle, high, "zero") + text(middle, high + 14, "0", "middle", "tick"),
    ]
    for k, (name, found) in enumerate(rows):
        y = k * ROW + ROW / 2 + (10 if k >= len(overall) else 0)
        low, up = (middle + scale * end for end in found.interval)
        told = f"{name}: {signed(found.value)} ({span(found.interval)}), p {found.p:.4f}"
        style = "point sure" if found.interval[0] > 0 or found.interval[1] < 0 else "point unsure"
        parts += [
            text(left - 8, y, shortened(name), "end", title=name),
            whisker_x(low, up, y),
            f'<circle class="{style}" cx="{middle + scale * found.value:.1f}" cy="{y:.1f}" r="5">'
            f"<title>{escape(told)}</title></circle>",
            text(WIDE - RIGHT + 8, y, signed(found.value), "start", "value"),
        ]
    parts.append(line(8, len(overall) * ROW + 5, WIDE - 8, len(overall) * ROW + 5, "grid"))
    said = "; ".join(f"{name} {signed(found.value)}" for name, found in rows)
    return drawing(WIDE, high + 24, parts, f"Differences, first minus second, in points: {said}.")


def drawing(width: float, height: float, parts: Iterable[str], description: str, top: float = 4) -> str:
    return (
        f'<svg role="img" aria-label="{escape(description)}" viewBox="0 {-top} {width:.0f} {height + top:.0f}" '
        f'width="{width:.0f}">{"".join(parts)}</svg>'
    )


def grid_x(zero: float, scale: float, high: float, at: Iterable[tuple[float, str]]) -> str:
    return "".join(
        line(zero + scale * value, 0, zero + scale * value, high, "grid")
        + text(zero + scale * value, high + 14, label, "middle", "tick")
        for value, label in at
    )


def text(x: float, y: float, content: str, anchor: str, style: str = "", title: str = "") -> str:
    tip = f"<title>{escape(title)}</title>" if title else ""
    kind = f' class="{style}"' if style else ""
    return (
        f'<text{kind} x="{x:.1f}" y="{y:.1f}" dy=".35em" text-anchor="{anchor}">{escape(content)}{tip}</text>'
    )


def box(x: float, y: float, width: float, height: float, style: str, title: str) -> str:
    return (
        f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{max(0, width):.1f}" height="{max(0, height):.1f}">'
        f"<title>{escape(title)}</title></rect>"
    )


def line(x: float, y: float, to_x: float, to_y: float, style: str) -> str:
    return f'<line class="{style}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def whisker_x(low: float, high: float, y: float) -> str:
    return f'<path class="whisker" d="M{low:.1f} {y - 4:.1f}v8m0 -4H{high:.1f}m0 -4v8"/>'


def whisker_y(x: float, low: float, high: float) -> str:
    return f'<path class="whisker" d="M{x - 4:.1f} {low:.1f}h8m-4 0V{high:.1f}m-4 0h8"/>'


def steps(most: float, intervals: int) -> list[float]:
    """Round numbers at equal distances from 0 to the largest that is not above `most`: so many at most after 0.

    >>> steps(249, 8), steps(3, 8), steps(0.31, 3)
    ([0.0, 50.0, 100.0, 150.0, 200.0], [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0], [0.0, 0.1, 0.2, 0.3])
    """
    size = 10.0 ** floor(log10(most / intervals))
    step = next(factor * size for factor in (1, 2, 5, 10) if int(most / (factor * size)) <= intervals)
    return [round(k * step, 9) for k in range(int(most / step + 1e-9) + 1)]


def told(name: str, score: Score) -> str:
    precision, recall, f1, interval = ratios(score)
    there = f" ({interval})" if interval not in ("", NOTHING) else ""
    return f"{name}: F1 {f1}{there}, P {precision}, R {recall}, {number(score.gold)} gold"


def describe(what: str, groups: Mapping[str, Score]) -> str:
    return (
        f"{what} in %: "
        + "; ".join(
            f"{name} {percent(score.f1, 1) if score.has_f1 else NOTHING}" for name, score in groups.items()
        )
        + "."
    )


def shortened(name: str, most: int = 20) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
