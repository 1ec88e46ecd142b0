"""Plots of docs/results.md, drawn from benchmarks/results: `python -m benchmarks.plots [--out DIR]`.

A line is the mean over seeds, and its bars reach from the lowest seed to the highest. The same results give the same
bytes.
"""

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from benchmarks.tables import (
    DATA,
    ENGINE_OPERATIONS,
    PENALTY,
    ROOT,
    Row,
    changes_of,
    f1_of_counts,
    first_number,
    get,
    group_runs,
    load_results,
    load_runs,
)

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


def make_figure(
    title: str, columns: int, rows: int = 1, size: tuple[float, float] = (8, 3.6)
) -> tuple[Figure, Any]:
    """A figure with a title, and its axes [rows, columns]."""
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title)
    return figure, figure.subplots(rows, columns, squeeze=False, sharey="col")


def draw_line(axes: Axes, label: str, style: int, values: Values, offset: float = 0.0) -> None:
    """Means with a bar from the lowest to the highest; `offset` keeps the bars of several lines apart."""
    xs = sorted(values)
    means = [mean(values[x]) for x in xs]
    below = [m - min(values[x]) for m, x in zip(means, xs, strict=True)]
    above = [max(values[x]) - m for m, x in zip(means, xs, strict=True)]
    bars = (below, above) if any(len(values[x]) > 1 for x in xs) else None
    shifted = [x + offset for x in xs]
    axes.errorbar(shifted, means, bars, label=label, capsize=2.5, elinewidth=1, **LINE_STYLES[style])


def add_legend(figure: Figure, columns: int = 5) -> None:
    """One legend for all axes, below them."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    position = "outside lower center"
    figure.legend(list(handles.values()), list(handles), loc=position, ncols=min(columns, len(handles)))


# F1 by depth, length, epoch


def default_runs(path: str) -> dict[str, list[Row]]:
    """The runs of the default recipe that have a value at this path, by data set."""
    groups = group_runs(run for run in load_runs() if get(run, path))
    return {data: groups[data, "default", ()] for data in DATA if (data, "default", ()) in groups}


def format_seeds(counts: Iterable[int]) -> str:
    """
    >>> format_seeds([1, 1]), format_seeds([3]), format_seeds([1, 3, 1])
    ('1 seed', '3 seeds', '1 to 3 seeds')
    """
    *fewer, most = sorted(set(counts))
    return (f"{fewer[0]} to " if fewer else "") + (f"{most} seeds" if most > 1 else "1 seed")


def data_label(data: str, runs: Sequence[Row]) -> str:
    return f"{DATA[data]}, {format_seeds([len(runs)])}"


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
        sizes = sorted({size for by_size in scores.values() for size in by_size}, key=first_number)
        for style, (data, group) in enumerate(runs.items()):
            values = {float(sizes.index(size)): f1 for size, f1 in scores[data].items()}
            draw_line(axes, data_label(data, group), style, values, 0.06 * (style - (len(runs) - 1) / 2))
        axes.set_xticks(range(len(sizes)), sizes)
        axes.set_ylabel("F1, %")
    panels[0, 0].set_xlabel("depth: how many entities enclose it")
    panels[0, 1].set_xlabel("length in words")
    add_legend(figure)
    return figure


def training_curve() -> Figure:
    """F1 on dev after each epoch, as far as all seeds went."""
    figure, panels = make_figure("Dev F1 after each epoch, default recipe", 1, size=(6, 3.8))
    for style, (data, runs) in enumerate(default_runs("epochs").items()):
        epochs = zip(*(run["epochs"] for run in runs), strict=False)
        values = {ends[0]["epoch"]: [100 * end["f1"] for end in ends] for ends in epochs}
        draw_line(panels[0, 0], data_label(data, runs), style, values)
    panels[0, 0].set(xlabel="epoch", ylabel="F1, %")
    panels[0, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(figure)
    return figure


# Calibration


def reliability_diagram(title: str, lines: Mapping[str, Sequence[Sequence[Sequence[float]]]]) -> Figure:
    """The share of right entities by score; a line has bins (low, high, entities, mean score, precision) by seed."""
    figure, panels = make_figure(title, 1, size=(5, 4.9))
    axes: Axes = panels[0, 0]
    axes.plot([0, 100], [0, 100], color="#777777", linewidth=1, label="calibrated")
    for style, (label, runs) in enumerate(lines.items()):
        bins: dict[float, list[Sequence[float]]] = {}
        for low, *rest in (one for run in runs for one in run if one[2] >= MIN_ENTITIES):
            bins.setdefault(low, []).append(rest)
        values = {mean(100 * b[2] for b in seeds): [100 * b[3] for b in seeds] for seeds in bins.values()}
        draw_line(axes, label, style, values)
    axes.set(xlabel="mean score of predicted entities, %", ylabel="right, %", xlim=(0, 102), ylim=(0, 102))
    axes.set_aspect("equal")
    add_legend(figure, 2)
    return figure


def calibration() -> Figure:
    lines = {}
    for data, runs in default_runs("test.analysis.calibration").items():
        error = mean(get(run, "test.analysis.calibration.error") for run in runs)
        bins = [get(run, "test.analysis.calibration.bins") for run in runs]
        lines[f"{data_label(data, runs)}: error {error:.1f}"] = bins
    return reliability_diagram("Reliability diagram, default recipe, test", lines)


def calibration_bundled() -> Figure:
    """The bundled model before and after temperature scaling."""
    (result,) = (one for one in load_results("calibration") if one["model"] == "bundled" and one["eval_data"])
    lines = {}
    for name, title in (("unfitted", "as trained"), ("fitted", "with temperatures")):
        group = next(one for one in result[name]["groups"] if one["group"] == "all")
        lines[f"{title}: error {100 * group['calibration error']:.1f}"] = [group["bins"]]
    return reliability_diagram("Reliability diagram, bundled model, test", lines)


# The head sharing penalty c


def plot_penalty(title: str, xlabel: str, lines: Mapping[str, Mapping[float, Sequence[Row]]]) -> Figure:
    """F1, shared heads and right heads against c; each line has the scores of all seeds by c."""
    titles = {
        "f1": "F1, %",
        "heads.shared": "entities that share a head, %",
        "heads.accuracy": "right heads, %",
    }
    values = {
        path: {
            label: {
                c: known
                for c, seeds in scores.items()
                if (known := [value for one in seeds if (value := get(one, path)) is not None])
            }
            for label, scores in lines.items()
        }
        for path in titles
    }
    shown = [path for path in titles if any(values[path].values())]
    figure, panels = make_figure(title, len(shown), size=(3.3 * len(shown), 3.4))
    for axes, path in zip(panels[0], shown, strict=True):
        for style, label in enumerate(lines):
            if values[path][label]:
                draw_line(axes, label, style, values[path][label])
        axes.set(xlabel=xlabel, title=titles[path])
    add_legend(figure)
    return figure


def penalty_decoding() -> Figure:
    """Viterbi decoding of the default recipe's scores at several penalties."""
    lines = {}
    for data, runs in default_runs("test.decoders").items():
        scores: dict[float, list[Row]] = {}
        for run in runs:
            for name, score in run["test"]["decoders"].items():
                if name.startswith("viterbi "):
                    scores.setdefault(float(name.removeprefix("viterbi ")), []).append(score)
        if scores:
            lines[data_label(data, runs)] = scores
    return plot_penalty("Head sharing penalty in decoding, test", "c in decoding", lines)


def penalty_training() -> Figure:
    """Models that were trained with several penalties; recipes that differ in it alone are one line."""
    titles = {  # row 7 is row 9 without a penalty
        "ablation/07-lexical-yes-no": "two losses",
        "ablation/09-head-regularisation": "two losses",
        "ablation/12-joint": "joint likelihood",
    }
    groups: dict[tuple[str, str, tuple[str, ...]], dict[float, list[Row]]] = {}
    for run in load_runs():
        others = tuple(change for change in changes_of(run) if not change.startswith(PENALTY))
        penalty = tomllib.loads(run["settings"])["loss"]["head_sharing_penalty"]
        key = run["data"], titles.get(run["recipe"], run["recipe"]), others
        groups.setdefault(key, {}).setdefault(penalty, []).append(run["test"])
    lines = {
        ", ".join([DATA.get(data, data), title, *others, format_seeds(map(len, scores.values()))]): scores
        for (data, title, others), scores in groups.items()
        if len(scores) > 2
    }
    return plot_penalty("Head sharing penalty in training, test", "c in training", lines)


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


PLOTS: dict[str, Callable[[], Figure]] = {
    "nesting": nesting,
    "calibration": calibration,
    "calibration-bundled": calibration_bundled,
    "training-curve": training_curve,
    "penalty-decoding": penalty_decoding,
    "penalty-training": penalty_training,
    "engine": engine,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", metavar="DIR")
    out = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    for name, plot in PLOTS.items():
        with matplotlib.style.context(["default", STYLE]):
            figure = plot()
            metadata = {"Title": figure.get_suptitle(), "Date": None, "Creator": None}
            figure.savefig(out / f"{name}.svg", metadata=metadata)
    print(f"{len(PLOTS)} plots written to {out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
