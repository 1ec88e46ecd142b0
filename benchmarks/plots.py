"""Plots of docs/results.md, drawn from benchmarks/results: `python -m benchmarks.plots [--out DIR]`.

A line is the mean over seeds, and its bars reach from the lowest seed to the highest. The same results give the same
bytes.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.tables import DATA, ENGINE_OPERATIONS, ROOT, Row, get, group_runs, load_results, load_runs

Values = Mapping[float, Sequence[float]]  # x: the values of all seeds
MIN_ENTITIES = 20  # of a point; fewer are noise
LIBRARIES = {
    "ours": "nestree",
    "reference": "plain PyTorch",
    "published": "published with the paper",
    "SuPar": "SuPar",
    "torch-struct": "torch-struct",
}
STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.constrained_layout.w_pad": 0.09,  # inches
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "legend.handlelength": 3.4,  # shows dashes and dots
    "lines.markersize": 5,
    "lines.linewidth": 1.4,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],  # the widest first: narrower fonts fit, too
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "svg.hashsalt": "nestree",
}
LINE_STYLES: list[dict[str, Any]] = [  # that differ without colours, too
    {"color": "#0072b2", "marker": "o", "linestyle": "-"},
    {"color": "#d55e00", "marker": "s", "linestyle": "--"},
    {"color": "#00795a", "marker": "^", "linestyle": "-."},
    {"color": "#8a4a7d", "marker": "D", "linestyle": ":"},
    {"color": "#333333", "marker": "v", "linestyle": (0, (5, 1, 1, 1, 1, 1))},
]


# Drawing


def make_figure(title: str, columns: int, rows: int = 1, size: tuple[float, float] = (8, 3.6)) -> tuple[Figure, Any]:
    """A figure with a title, and its axes [rows, columns]."""
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title)
    return figure, figure.subplots(rows, columns, squeeze=False, sharey="col")


def draw_line(axes: Axes, label: str, style: int, values: Values, offset: float = 0.0) -> None:
    """Means with a bar from the lowest to the highest; `offset` keeps the bars of several lines apart."""
    points = [(x + offset, mean(values[x]), values[x]) for x in sorted(values)]
    xs, means, _ = zip(*points, strict=True)
    bars = [[m - min(seeds) for _, m, seeds in points], [max(seeds) - m for _, m, seeds in points]]
    several = any(len(seeds) > 1 for _, _, seeds in points)
    look: dict[str, Any] = {"capsize": 2.5, "elinewidth": 1, **LINE_STYLES[style]}
    axes.errorbar(xs, means, bars if several else None, label=label, **look)


def add_legend(figure: Figure, columns: int = 5) -> None:
    """One legend for all axes, below them."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    position = "outside lower center"
    figure.legend(list(handles.values()), list(handles), loc=position, ncols=min(columns, len(handles)))


# F1 by depth and length


def default_runs(path: str) -> dict[str, list[Row]]:
    """The runs of the default recipe that have a value at this path, by data set."""
    groups = group_runs(run for run in load_runs() if get(run, path))
    return {data: groups[data, "default", ()] for data in DATA if (data, "default", ()) in groups}


def f1_of_counts(right: int, predicted: int, found: int, gold: int) -> float:
    """F1 in per cent; `right` of the predicted, `found` of the gold entities.

    >>> f1_of_counts(right=6, predicted=8, found=6, gold=8)
    75.0
    """
    precision, recall = right / predicted if predicted else 0.0, found / gold if gold else 0.0
    return 200 * precision * recall / (precision + recall) if precision + recall else 0.0


def data_label(data: str, runs: Sequence[Row]) -> str:
    """
    >>> data_label("genia", [{}]), data_label("genia", [{}, {}])
    ('GENIA, 1 seed', 'GENIA, 2 seeds')
    """
    return f"{DATA[data]}, {len(runs)} seed{'s' * (len(runs) > 1)}"


def nesting() -> Figure:
    """F1 by depth and by length."""
    runs = default_runs("test.analysis")
    figure, panels = make_figure("Test F1 of entities, by depth and by length", 2)
    for axes, name in zip(panels[0], ("depths", "lengths"), strict=True):
        scores: dict[str, dict[str, list[float]]] = {data: {} for data in runs}
        for data, group in runs.items():
            for run in group:
                for size, counts in run["test"]["analysis"][name].items():
                    if counts[3] >= MIN_ENTITIES:
                        scores[data].setdefault(size, []).append(f1_of_counts(*counts))
        found = {size for by_size in scores.values() for size in by_size}  # such as 3, 6-10 and 11+
        sizes = sorted(found, key=lambda size: int(re.split("[-+]", size)[0]))
        for style, (data, group) in enumerate(runs.items()):
            values = {float(sizes.index(size)): f1 for size, f1 in scores[data].items()}
            draw_line(axes, data_label(data, group), style, values, 0.06 * (style - (len(runs) - 1) / 2))
        axes.set_xticks(range(len(sizes)), sizes)
        axes.set_ylabel("F1, %")
    panels[0, 0].set_xlabel("depth: how many entities enclose it")
    panels[0, 1].set_xlabel("length in words")
    add_legend(figure)
    return figure


# Calibration


def calibration() -> Figure:
    """Precision by score."""
    figure, panels = make_figure("Reliability diagram, default recipe, test", 1, size=(5, 4.9))
    axes: Axes = panels[0, 0]
    axes.plot([0, 100], [0, 100], color="#777777", linewidth=1, label="calibrated")
    for style, (data, runs) in enumerate(default_runs("test.analysis.calibration").items()):
        error = mean(get(run, "test.analysis.calibration.error") for run in runs)
        bins: dict[float, list[tuple[float, float]]] = {}  # low: mean score and precision in %, by seed
        for low, _, entities, *values in chain(*(get(run, "test.analysis.calibration.bins") for run in runs)):
            if entities >= MIN_ENTITIES:
                bins.setdefault(low, []).append((100 * values[0], 100 * values[1]))
        points = {mean(score for score, _ in seeds): [p for _, p in seeds] for seeds in bins.values()}
        draw_line(axes, f"{data_label(data, runs)}: error {error:.1f}", style, points)
    axes.set(xlabel="mean score of predicted entities, %", ylabel="precision, %")
    axes.set(xlim=(0, 102), ylim=(0, 102))
    axes.set_aspect("equal")
    add_legend(figure, 2)
    return figure


# Time of the engine


def engine() -> Figure:
    """Time against the number of words, for each machine and kind of trees that has another library."""
    kinds: dict[tuple[str, str, str], list[Row]] = {}
    for result in load_results("treecrf"):
        clock = "device" if any("device" in row["ours"] for row in result["rows"]) else "wall"
        for trees in ("lexical", "plain"):
            rows = [r for r in result["rows"] if r["trees"] == trees and r["operation"] in ENGINE_OPERATIONS]
            if any(milliseconds(row, clock).keys() - {"ours", "reference"} for row in rows):
                kinds[result["device"], clock, trees] = rows
    title = "Time of the tree engine against the length of sentences"
    size = (3.1 * len(kinds) + 0.4, 6)
    figure, panels = make_figure(title, len(kinds), len(ENGINE_OPERATIONS), size)
    for column, ((device, clock, trees), rows) in zip(panels.T, kinds.items(), strict=True):
        batch = Counter(row["batch"] for row in rows).most_common(1)[0][0]
        for axes, operation in zip(column, ENGINE_OPERATIONS, strict=True):
            shown = [row for row in rows if (row["batch"], row["operation"]) == (batch, operation)]
            times = {row["n"]: milliseconds(row, clock) for row in shown}
            for style, (name, label) in enumerate(LIBRARIES.items()):
                if values := {n: [ms[name]] for n, ms in times.items() if name in ms}:
                    draw_line(axes, label, style, values)
            axes.set(xscale="log", yscale="log")
            axes.set_xticks(sorted(times), [str(n) for n in sorted(times)])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:,g}"))
            kind = "lexicalised" if trees == "lexical" else trees
            axes.set_title(f"{operation}, {batch} sentences\n{kind} trees, {device}")
            axes.set_ylabel("ms, GPU's clock" if clock == "device" else "ms, wall clock")
        column[-1].set_xlabel("words in a sentence")
    add_legend(figure)
    return figure


def milliseconds(row: Row, clock: str) -> dict[str, float]:
    """Of each library that was measured."""
    times = {name: row[name][clock]["median"] for name in LIBRARIES if clock in row.get(name, {})}
    return times | ({"published": row["published_ms"]} if "published_ms" in row else {})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", metavar="DIR")
    out = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    for plot in (nesting, calibration, engine):
        with matplotlib.style.context(["default", STYLE]):
            figure = plot()
            metadata = {"Title": figure.get_suptitle(), "Date": None, "Creator": None}
            figure.savefig(out / f"{plot.__name__}.svg", metadata=metadata)
    print(f"3 plots written to {out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
