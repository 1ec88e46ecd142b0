"""Pictures of docs/results.md, made from the stored results: `python -m benchmarks.plots [--out DIR] [--results DIR]`.

Nothing is trained or measured here. A line is the mean over seeds, and its bars reach from the lowest seed to the
highest. A picture whose data is not stored is left out, and a sentence says so. The same results give the same bytes.
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

from benchmarks.insights import COSTED, f1, first_number
from benchmarks.markdown import NAMES
from benchmarks.stored import RESULTS, Row, at, changes, grouped, results, trainings
from benchmarks.tables import ROOT, SHOWN

Values = Mapping[float, Sequence[float]]  # what stands on the x-axis: the values of all seeds
FEW = 20  # entities, of which no share is drawn: it would be noise
TREES = {"lexical": "lexicalised", "plain": "plain"}
ENGINES = {
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
    "legend.handlelength": 3.4,  # long enough to tell dashes from dots
    "lines.markersize": 5,
    "lines.linewidth": 1.4,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],  # the widest first: what is narrower fits, too
    "svg.fonttype": "none",  # text stays text: small files, and words that can be found
    "svg.hashsalt": "nestree",
}
LOOKS: list[dict[str, Any]] = [  # to be told apart without colours
    {"color": "#0072b2", "marker": "o", "linestyle": "-"},
    {"color": "#d55e00", "marker": "s", "linestyle": "--"},
    {"color": "#00795a", "marker": "^", "linestyle": "-."},
    {"color": "#8a4a7d", "marker": "D", "linestyle": ":"},
    {"color": "#333333", "marker": "v", "linestyle": (0, (5, 1, 1, 1, 1, 1))},
]


class NotStoredError(Exception):
    """The data of a picture is not among the results; says which."""


# Drawing


def figure(
    title: str, columns: int, rows: int = 1, size: tuple[float, float] = (8, 3.6)
) -> tuple[Figure, Any]:
    """A white page with a title, and its panels row by row."""
    page = Figure(figsize=size, layout="constrained")
    page.suptitle(title)
    return page, page.subplots(rows, columns, squeeze=False, sharey="col")


def line(axes: Axes, label: str, look: int, values: Values, aside: float = 0.0) -> None:
    """Means with a bar from the lowest to the highest; `aside` keeps bars of several lines apart."""
    places = sorted(values)
    means = [mean(values[x]) for x in places]
    below = [m - min(values[x]) for m, x in zip(means, places, strict=True)]
    above = [max(values[x]) - m for m, x in zip(means, places, strict=True)]
    bars = (below, above) if any(len(values[x]) > 1 for x in places) else None
    axes.errorbar(
        [x + aside for x in places],
        means,
        bars,
        label=label,
        capsize=2.5,
        elinewidth=1,
        **LOOKS[look % len(LOOKS)],
    )


def legend(page: Figure, columns: int = 5) -> None:
    """One for all panels, below them: it can hide nothing."""
    found: dict[str, Any] = {}
    for axes in page.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    page.legend(list(found.values()), list(found), loc="outside lower center", ncols=min(columns, len(found)))


# F1 by depth, length, epoch


def of_default(folder: Path, path: str) -> dict[str, list[Row]]:
    """The runs of the default recipe that say something at a path, by data."""
    groups = grouped(run for run in trainings(folder) if at(run, path))
    found = {data: groups[data, "default", ()] for data in NAMES if (data, "default", ()) in groups}
    if not found:
        raise NotStoredError(f"no run of the default recipe is stored with {path}")
    return found


def seeds(counts: Iterable[int]) -> str:
    """
    >>> seeds([1, 1]), seeds([3]), seeds([1, 3, 1])
    ('1 seed', '3 seeds', '1 to 3 seeds')
    """
    *fewer, most = sorted(set(counts))
    return (f"{fewer[0]} to " if fewer else "") + (f"{most} seeds" if most > 1 else "1 seed")


def named(data: str, runs: Sequence[Row]) -> str:
    return f"{NAMES[data]}, {seeds([len(runs)])}"


def by_group(runs: Iterable[Row], name: str) -> dict[str, list[float]]:
    """F1 of each depth or length that is not too rare in gold, of all runs."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for group, counts in at(run, f"test.details.{name}").items():
            if counts[3] >= FEW:
                found.setdefault(group, []).append(f1(*counts))
    return found


def nesting(folder: Path) -> Figure:
    """F1 by depth and by length."""
    runs = of_default(folder, "test.details")
    page, panels = figure("Test F1 of entities, by depth and by length", 2)
    for axes, name in zip(panels[0], ("depths", "lengths"), strict=True):
        found = {data: by_group(some, name) for data, some in runs.items()}
        groups = sorted({group for some in found.values() for group in some}, key=first_number)
        for look, (data, some) in enumerate(runs.items()):
            values = {float(groups.index(group)): scores for group, scores in found[data].items()}
            line(axes, named(data, some), look, values, 0.06 * (look - (len(runs) - 1) / 2))
        axes.set_xticks(range(len(groups)), groups)
        axes.set_ylabel("F1, %")
    panels[0, 0].set_xlabel("depth: how many entities enclose it")
    panels[0, 1].set_xlabel("length in words")
    legend(page)
    return page


def learning(folder: Path) -> Figure:
    """F1 on dev after each epoch, as far as all seeds went."""
    page, panels = figure("Dev F1 after each epoch, default recipe", 1, size=(6, 3.8))
    for look, (data, runs) in enumerate(of_default(folder, "epochs").items()):
        epochs = zip(*(run["epochs"] for run in runs), strict=False)
        values = {ends[0]["epoch"]: [100 * end["f1"] for end in ends] for ends in epochs}
        line(panels[0, 0], named(data, runs), look, values)
    panels[0, 0].set(xlabel="epoch", ylabel="F1, %")
    panels[0, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(page)
    return page


# Honesty of probabilities


def reliability(title: str, lines: Mapping[str, Sequence[Sequence[Sequence[float]]]]) -> Figure:
    """How many entities of a score are right; a line's bins are (low, high, entities, score, precision), by seed."""
    page, panels = figure(title, 1, size=(5, 4.9))
    axes: Axes = panels[0, 0]
    axes.plot([0, 100], [0, 100], color="#777777", linewidth=1, label="honest")
    for look, (label, runs) in enumerate(lines.items()):
        cells: dict[float, list[Sequence[float]]] = {}
        for low, *rest in (cell for bins in runs for cell in bins if cell[2] >= FEW):
            cells.setdefault(low, []).append(rest)
        values = {mean(100 * c[2] for c in some): [100 * c[3] for c in some] for some in cells.values()}
        line(axes, label, look, values)
    axes.set(xlabel="mean score of predicted entities, %", ylabel="right, %", xlim=(0, 102), ylim=(0, 102))
    axes.set_aspect("equal")
    legend(page, 2)
    return page


def calibration(folder: Path) -> Figure:
    """Of the default recipe."""
    runs = of_default(folder, "test.details.calibration")
    lines = {}
    for data, some in runs.items():
        error = mean(at(run, "test.details.calibration.error") for run in some)
        bins = [at(run, "test.details.calibration.bins") for run in some]
        lines[f"{named(data, some)}: error {error:.1f}"] = bins
    return reliability("Are probabilities honest? Default recipe, test", lines)


def calibration_box(folder: Path) -> Figure:
    """Of the bundled model, before and after its temperatures were fitted."""
    for result in results("decoders", folder):
        if result["model"] == "box" and result["judge"]:
            lines = {}
            for name, words in (("unfitted", "as trained"), ("fitted", "with temperatures")):
                group = next(one for one in result[name]["groups"] if one["group"] == "all")
                lines[f"{words}: error {100 * group['calibration error']:.1f}"] = [group["bins"]]
            return reliability("Are probabilities honest? Model in the box, test", lines)
    raise NotStoredError("no result of benchmarks.decoders --judge is stored for the bundled model")


# The cost c of sharing a head


def sweep(title: str, xlabel: str, lines: Mapping[str, Mapping[float, Sequence[Row]]]) -> Figure:
    """F1, shared heads and right heads against c; each line has the scores of all seeds by c."""
    paths = {
        "f1": "F1, %",
        "heads.shared": "entities that share a head, %",
        "heads.accuracy": "right heads, %",
    }
    wanted = {
        path: words
        for path, words in paths.items()
        if any(
            at(score, path) is not None
            for scores in lines.values()
            for some in scores.values()
            for score in some
        )
    }
    page, panels = figure(title, len(wanted), size=(3.3 * len(wanted), 3.4))
    for axes, (path, words) in zip(panels[0], wanted.items(), strict=True):
        for look, (label, scores) in enumerate(lines.items()):
            found = {c: [v for one in some if (v := at(one, path)) is not None] for c, some in scores.items()}
            if values := {c: some for c, some in found.items() if some}:
                line(axes, label, look, values)
        axes.set(xlabel=xlabel, title=words)
    legend(page)
    return page


def sharing_decoding(folder: Path) -> Figure:
    """Best trees of the default recipe's scores, at several costs."""
    lines = {}
    for data, runs in of_default(folder, "test.decoders").items():
        scores: dict[float, list[Row]] = {}
        for run in runs:
            for name, score in run["test"]["decoders"].items():
                if name.startswith("tree "):
                    scores.setdefault(float(name.removeprefix("tree ")), []).append(score)
        if scores:
            lines[named(data, runs)] = scores
    if not lines:
        raise NotStoredError("no run of the default recipe is stored with best trees at several costs")
    return sweep("What the cost of sharing a head does in decoding, test", "c in decoding", lines)


def sharing_training(folder: Path) -> Figure:
    """Models that were trained at several costs; recipes that differ in it alone are one line."""
    groups: dict[tuple[str, str, tuple[str, ...]], dict[float, list[Row]]] = {}
    for run in trainings(folder):
        others = tuple(
            change for change in changes(run) if not change.startswith("loss.head_sharing_penalty=")
        )
        cost = tomllib.loads(run["settings"])["loss"]["head_sharing_penalty"]
        title, _ = COSTED.get(run["recipe"].removeprefix("ablation/"), (run["recipe"], cost))
        key = run["data"], title.partition(",")[0], others
        groups.setdefault(key, {}).setdefault(cost, []).append(run["test"])
    lines = {
        ", ".join([NAMES.get(data, data), title, *others, seeds(map(len, scores.values()))]): scores
        for (data, title, others), scores in groups.items()
        if len(scores) > 2
    }
    if not lines:
        raise NotStoredError("no three runs are stored that differ in loss.head_sharing_penalty alone")
    return sweep("What the cost of sharing a head does in training, test", "c in training", lines)


# Time of the engine


def times(row: Row, clock: str) -> dict[str, float]:
    """Milliseconds of ours and each peer that was measured."""
    found = {name: row[name][clock]["median"] for name in ENGINES if clock in row.get(name, {})}
    return found | ({"published": row["published_ms"]} if "published_ms" in row else {})


def engine(folder: Path) -> Figure:
    """Time against the number of words, for each machine and kind of trees that has a peer."""
    kinds: dict[tuple[str, str, str], list[Row]] = {}
    for result in results("treecrf", folder):
        clock = "device" if any("device" in row["ours"] for row in result["rows"]) else "wall"
        for trees in TREES:
            rows = [row for row in result["rows"] if row["trees"] == trees and row["operation"] in SHOWN]
            if any(times(row, clock).keys() - {"ours", "reference"} for row in rows):
                kinds[result["device"], clock, trees] = rows
    if not kinds:
        raise NotStoredError("no result of benchmarks.treecrf is stored with a peer")
    size = (3.1 * len(kinds) + 0.4, 6)
    page, panels = figure(
        "Time of the tree engine against the length of sentences", len(kinds), len(SHOWN), size
    )
    for column, ((device, clock, trees), rows) in zip(panels.T, kinds.items(), strict=True):
        batch = Counter(row["batch"] for row in rows).most_common(1)[0][0]
        for axes, operation in zip(column, SHOWN, strict=True):
            costs(axes, [r for r in rows if (r["batch"], r["operation"]) == (batch, operation)], clock)
            axes.set_title(f"{operation}, {batch} sentences\n{TREES[trees]} trees, {device}")
            axes.set_ylabel("ms, GPU's clock" if clock == "device" else "ms, wall clock")
        column[-1].set_xlabel("words in a sentence")
    legend(page)
    return page


def costs(axes: Axes, rows: Sequence[Row], clock: str) -> None:
    """A panel of milliseconds, both axes logarithmic."""
    measured = {row["n"]: times(row, clock) for row in rows}
    for look, (name, words) in enumerate(ENGINES.items()):
        if values := {n: [ms[name]] for n, ms in measured.items() if name in ms}:
            line(axes, words, look, values)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(sorted(measured), [str(n) for n in sorted(measured)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:,g}"))


PICTURES: dict[str, Callable[[Path], Figure]] = {
    "nesting": nesting,
    "calibration": calibration,
    "calibration-box": calibration_box,
    "learning": learning,
    "sharing-decoding": sharing_decoding,
    "sharing-training": sharing_training,
    "engine": engine,
}


def draw(folder: Path, out: Path) -> list[str]:
    """Writes all pictures that the results allow; a sentence about each."""
    said = []
    for name, picture in PICTURES.items():
        with matplotlib.style.context(["default", STYLE]):
            try:
                page = picture(folder)
            except NotStoredError as why:
                said.append(f"{name}.svg: left out: {why}.")
                continue
            title = page.get_suptitle()
            page.savefig(out / f"{name}.svg", metadata={"Title": title, "Date": None, "Creator": None})
        said.append(f"{name}.svg: written.")
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", metavar="DIR")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    options = parser.parse_args(arguments)
    if not any(options.results.glob("*.json")):
        raise SystemExit(f"--results {options.results}: there are no results (*.json). Name another folder.")
    options.out.mkdir(parents=True, exist_ok=True)
    print("\n".join(draw(options.results, options.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
