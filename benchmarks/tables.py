"""Tables of the docs and the README, generated from benchmarks/results.

    python -m benchmarks.tables            rewrite every table between `<!-- table NAME -->` and `<!-- end -->`
    python -m benchmarks.tables --check    write nothing; fail if a table differs from the results
    python -m benchmarks.tables NAME ...   print tables

Each line of a results file is the JSON object that a benchmark printed at its end.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain, pairwise
from math import log
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
Key = tuple[str, str, tuple[str, ...]]  # data, recipe, changed settings
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
REGION = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
DATA = {"genia": "GENIA", "litbank": "LitBank", "gum_open": "GUM-open"}
ABLATION = {  # row: its title, and the row that it modifies
    "01-unstructured-one-stage": ("unstructured, one stage", ""),
    "02-unstructured-two-stage": ("unstructured, two stages", "01-unstructured-one-stage"),
    "03-tree-one-stage": ("tree, one stage", "01-unstructured-one-stage"),
    "04-lexical-one-stage": ("lexicalised tree, one stage", "03-tree-one-stage"),
    "05-tree-two-stage": ("tree, two stages", "03-tree-one-stage"),
    "06-lexical-two-stage": ("lexicalised tree, two stages", "05-tree-two-stage"),
    "07-lexical-yes-no": ("+ yes/no score", "06-lexical-two-stage"),
    "08-without-parsing": ("- parsing", "07-lexical-yes-no"),
    "09-head-regularisation": ("+ head regularisation", "07-lexical-yes-no"),
    "10-head-aware-labels": ("+ head-aware labels", "07-lexical-yes-no"),
    "11-both": ("+ both", "07-lexical-yes-no"),
    "12-joint": ("joint likelihood", "11-both"),
}
JOINT = "ablation/12-joint"
PARTIAL = {  # data of benchmarks.datasets partial, with changes: title
    "negatives": "missing ones count as no entity",
    "unknown": "as unknown",
    "unknown loss.negative_sampling_rate=0.35": "as unknown, with negative sampling",
}
W2NER = {"genia": 76.43, "litbank": 82.23, "gum_open": 76.02}  # test F1: same encoder and data, one seed, on an H200
PERMUTATIONS = 10_000
ENGINE_OPERATIONS = ("forward + backward", "best trees")  # those of benchmarks.treecrf that are shown


# Reading results


@cache
def load_results(benchmark: str) -> list[Row]:
    """The stored results of a benchmark, each with the name of its file; repeated runs (reruns-*) are left out."""
    paths = (path for path in sorted(RESULTS.glob("*.json")) if not path.name.startswith("reruns"))
    lines = ((path, line) for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    results = ({**json.loads(line), "file": path.name} for path, line in lines)
    return [result for result in results if result.get("benchmark") == benchmark]


def load_scored(benchmark: str) -> list[Row]:
    """The rows that have scores on test, each with its device, date, commit and file."""
    return [
        {**row, **{key: result[key] for key in ("device", "date", "commit", "file")}}
        for result in load_results(benchmark)
        for row in result["rows"]
        if "test" in row
    ]


def load_runs(minilm: bool = False) -> list[Row]:
    """Training runs with the large encoder, or with MiniLM, the encoder of the bundled model."""
    return [row for row in load_scored("training") if minilm == uses_minilm(row)]


def load_analyzed() -> list[Row]:
    """Runs with more than scores (`--analyse`), and the bundled model."""
    return [row for row in [*load_scored("analysis"), *load_runs()] if "analysis" in row["test"]]


def uses_minilm(row: Row) -> bool:
    return any(re.match(r"encoder\.path=.*MiniLM", change) for change in row["changes"])


def changes_of(row: Row) -> tuple[str, ...]:
    """The settings that a run changed, without those that do not define a variant.

    These are the encoder that all runs of a command share, MiniLM, and CUDA graphs.

    >>> changes_of({"changes": ["encoder.path=mpnet", "training.rho=0.3", "training.cuda_graphs=false"]})
    ('training.rho=0.3',)
    >>> changes_of({"changes": ["encoder.path=mpnet", "encoder.path=mpnet-litbank"]})
    ('encoder.path=mpnet-litbank',)
    """
    encoders = [change for change in row["changes"] if change.startswith("encoder.path=")]
    others = (c for c in row["changes"] if not c.startswith(("encoder.path=", "training.cuda_graphs=")))
    return (*([] if uses_minilm(row) else encoders[1:]), *others)


def group_runs(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """Runs that differ in their seed only."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault((row["data"], row["recipe"], changes_of(row)), []).append(row)
    return groups


def get(row: Row, path: str) -> Any:
    """
    >>> get({"test": {"f1": 3.0}}, "test.f1"), get({"test": {}}, "test.heads.accuracy")
    (3.0, None)
    """
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


# Formatting


def format_mean(values: Iterable[float | None], digits: int = 2) -> str:
    """The mean, and the standard deviation of several values.

    >>> format_mean([82.0, 83.0]), format_mean([82.0]), format_mean([None])
    ('82.50 ± 0.71', '82.00', '')
    """
    known = [value for value in values if value is not None]
    if not known:
        return ""
    mean = f"{statistics.mean(known):.{digits}f}"
    return f"{mean} ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else mean


def format_means(runs: Sequence[Row], paths: str) -> list[str]:
    """A mean for each path. Percentages of heads and calibration errors have one digit, Brier scores three."""
    digits = {path: 3 if "brier" in path else 1 if "heads" in path or "error" in path else 2 for path in paths.split()}
    return [format_mean([get(run, path) for run in runs], digits[path]) for path in digits]


def markdown_table(header: str, rows: Sequence[Sequence[str]], sources: Iterable[Row] | None = None) -> str:
    """A table and, with `sources`, their device, date, commit (+: with uncommitted changes) and file.

    >>> print(markdown_table("a|b", [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    names = header.split("|")
    cells = [names, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    lines = [f"| {' | '.join(line)} |" for line in cells]
    lines.insert(1, "|---" * len(names) + "|")
    if sources is not None:
        origins: dict[str, set[str]] = {}
        for row in sources:
            commit = row["commit"][:7] + "+" * row["commit"].endswith("+")
            origins.setdefault(f"{row['file']}, {row['device']}", set()).add(f"{row['date'][:10]} {commit}")
        stated = (f"{where}: {', '.join(sorted(when))}" for where, when in sorted(origins.items()))
        lines += ["", f"From {'; '.join(stated) or 'no measurement yet'}."]
    return "\n".join(lines)


def variant_name(recipe: str, changes: Sequence[str] = ()) -> str:
    """
    >>> variant_name("bundled"), variant_name("ablation/12-joint", ["loss.head_sharing_penalty=0"])
    ('bundled model', 'joint likelihood, loss.head_sharing_penalty=0')
    """
    row = recipe.removeprefix("ablation/")
    title = ABLATION[row][0] if row in ABLATION else {"bundled": "bundled model"}.get(recipe, recipe)
    return ", ".join([title, *changes])


# Scores


def default_runs(data: str) -> tuple[list[Row], list[Row]]:
    """The default recipe, and the same after continued pretraining with the number of passes that is best on dev."""
    groups = group_runs(load_runs())
    pretrained = [
        runs
        for (where, recipe, changes), runs in groups.items()
        if (where, recipe, len(changes)) == (data, "default", 1)
        and re.match(rf"encoder\.path=all-mpnet-base-v2-{data}(-\d+)?$", changes[0])
    ]
    best = max(pretrained, key=lambda runs: statistics.mean(get(run, "dev.f1") for run in runs), default=[])
    return groups.get((data, "default", ()), []), best


def best_epochs(runs: Iterable[Row]) -> str:
    return ", ".join(f"{run['best_epoch']} of {run['epochs_planned']}" for run in runs)


def recipes() -> str:
    """The default recipe, without and with continued pretraining, beside W2NER."""
    rows, used = [], []
    for data, name in DATA.items():
        for recipe, runs in zip(("default", "after `pretrain`"), default_runs(data), strict=True):
            used += runs
            scores = format_means(runs, "dev.f1 test.precision test.recall test.f1 test.heads.accuracy")
            scores[3:4] = [f"**{scores[3]}**", f"{W2NER[data]:.2f}"]
            rows.append([name, recipe, str(len(runs)), best_epochs(runs), *scores])
    header = "data|recipe|seeds|best epoch|dev F1|test P|R|F1|W2NER|heads, %"
    return markdown_table(header, rows, used)


def large() -> str:
    """`default` with encoders pretrained on unlabelled text, without and with context."""
    header = (
        "data|encoder|words of context|words in an update|runs|best epoch|dev F1|test P|R|F1|heads, %|calibration error"
    )
    paths = "dev.f1 test.precision test.recall test.f1 test.heads.accuracy test.calibration_error"
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in load_scored("large"):
        settings = dict(change.split("=", 1) for change in row["changes"])
        encoder = settings.get("encoder.path", "of a model of GUM-open")  # --init
        batch_words = int(settings.get("training.batch_words", 2_000))
        update_words = batch_words * int(settings.get("training.gradient_accumulation", 1))
        key = DATA[row["data"]], encoder, settings.get("encoder.context", "0"), f"{update_words:,}"
        groups.setdefault(key, []).append(row)
    groups = {key: runs for key, runs in groups.items() if len(runs) > 1}
    rows = [[*key, str(len(runs)), best_epochs(runs), *format_means(runs, paths)] for key, runs in groups.items()]
    rows.sort(key=lambda row: [*DATA.values()].index(row[0]))
    return markdown_table(header, rows, chain(*groups.values()))


def headline() -> str:
    """The F1 and heads of `recipes`, a line for each data set."""
    rows = []
    for data, name in DATA.items():
        runs, best = default_runs(data)
        scores = (format_means(group, "test.f1 test.heads.accuracy") for group in (runs, best))
        rows.append([name, str(len(runs)), *chain(*scores), f"{W2NER[data]:.2f}"])
    return markdown_table("test F1|seeds|nestree|heads, %|after `pretrain`|heads, %|W2NER", rows)


def ablation() -> str:
    """All rows on LitBank, some on the others; p compares a row with the one that it modifies, over common seeds."""
    runs: dict[str, dict[str, list[Row]]] = {data: {} for data in ("litbank", "gum_open", "genia")}
    for (data, recipe, changes), group in group_runs(load_runs()).items():
        epochs_only = all(change.startswith("training.epochs=") for change in changes)  # GENIA needs fewer
        if data in runs and recipe.startswith("ablation/") and epochs_only:
            runs[data].setdefault(recipe.removeprefix("ablation/"), []).extend(group)
    rows, used = [], []
    for name, (title, base) in ABLATION.items():
        cells = [name[:2], title, base[:2]]
        for data, groups in runs.items():
            shown = data == "litbank" or name[:2] in ("03", "07", "11", "12")
            group, others = groups.get(name, []) if shown else [], groups.get(base, [])
            used += group
            seeds = {run["seed"] for run in group} & {run["seed"] for run in others}
            pair = [[run for run in some if run["seed"] in seeds] for some in (group, others)]
            p = permutation_test(*pair) if seeds else None
            paths = "test.precision test.recall test.f1" if data == "litbank" else "test.f1"
            cells += [*format_means(group, paths), "" if p is None else f"{p:.3f}"]
        rows.append(cells)
    return markdown_table("row|variant|against|LitBank: P|R|F1|p|GUM-open: F1|p|GENIA: F1|p", rows, used)


def permutation_test(first: Sequence[Row], second: Sequence[Row]) -> float | None:
    """p of the difference in F1 between two variants; None if the runs did not store counts by sentence.

    Counts are means over seeds; the counts of a sentence are swapped together.
    """
    if not all("by_sentence" in row["test"] for row in (*first, *second)):
        return None
    counts = ([row["test"]["by_sentence"] for row in rows] for rows in (first, second))
    a, b = (np.mean(one, 0) for one in counts)  # [sentences, 3]

    def f1(counts: Any) -> Any:  # [..., 3]
        return 2 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1e-9)

    observed, generator, extreme = abs(f1(a.sum(0)) - f1(b.sum(0))), np.random.default_rng(0), 0
    for _ in range(PERMUTATIONS // 1000):
        moved = (generator.random((1000, len(a))) < 0.5) @ (b - a)  # [1000, 3]
        extreme += int((abs(f1(a.sum(0) + moved) - f1(b.sum(0) - moved)) >= observed - 1e-12).sum())
    return (extreme + 1) / (PERMUTATIONS + 1)


def partial() -> str:
    """LitBank with entities removed, unmarked or marked as incomplete."""
    groups = group_runs(load_runs())
    complete = groups.get(("litbank", JOINT, ()), [])
    variants = {("none", next(iter(PARTIAL))): complete}
    for (data, recipe, changes), runs in groups.items():
        kind, _, share = data.partition("-")
        if kind in ("negatives", "unknown") and recipe == JOINT:
            variants[f"{share or 50} %", " ".join([kind, *changes])] = runs
    rows = []
    for share in dict.fromkeys(share for share, _ in sorted(variants, key=lambda key: (key[0] != "none", key))):
        cells = (
            format_means(variants.get((share, kind), []), "test.precision test.recall test.f1") for kind in PARTIAL
        )
        rows.append([share, *(" / ".join(filter(None, scores)) for scores in cells)])
    header = "|".join(["test P / R / F1, entities removed", *PARTIAL.values()])
    return markdown_table(header, rows, chain(*variants.values()))


def proxies() -> str:
    """Dev and test F1 on data sets that no recipe was tuned on; without runs that were stopped early."""
    runs = [row for row in load_scored("proxies") if row["status"] == "finished"]
    for row in runs:
        changes = [change for change in row["changes"] if change != "training.cuda_graphs=false"]
        for note in row.get("notes", ()):  # what the rule for small data chose at that commit
            if rule := re.match(r"small training set .* batches of (\d+) words .*; rho = ([\d.]+)", note):
                changes += [f"training.batch_words={rule[1]}", f"training.rho={rule[2]}"]
        batch_words = next((int(change[21:]) for change in changes if "batch_words" in change), 2000)
        if batch_words == 850:  # what 300 updates of gum-fifth leave of 1,000
            changes = [changes[0], "training.batch_words=1000", "training.rho=0.2"]
        elif batch_words % 250:
            changes = [changes[0], "batches for 600 updates"]
        row["changes"] = sorted(change for change in changes if change != "training.batch_words=2000")
    groups = group_runs(runs)
    names = list(dict.fromkeys(data for data, _, _ in groups))
    rows = []
    for recipe, changes in dict.fromkeys(key[1:] for key in groups):
        scores = (format_means(groups.get((name, recipe, changes), []), "dev.f1 test.f1") for name in names)
        rows.append([variant_name(recipe, changes), *(" / ".join(filter(None, pair)) for pair in scores)])
    return markdown_table("|".join(["F1, dev / test", *names]), rows, runs)


def selection() -> str:
    """Active learning: test F1 by words annotated, the area under the curve, and the words for most of the full F1."""
    results = load_results("selection")
    return selection_table([row for result in results for row in result["rows"]], results)


def latest_runs(rows: Iterable[Row]) -> dict[tuple[str, str, int], list[Row]]:
    """The rounds of each simulation; of several with the same data, strategy and seed, the last one counts."""
    runs: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        run = runs.setdefault((row["data"], row["strategy"], row["seed"]), [])
        if run and row["budget"] <= run[-1]["budget"]:
            run.clear()
        run.append(row)
    return runs


def selection_table(rows: Sequence[Row], sources: Iterable[Row] | None = None) -> str:
    """The table of simulations."""
    runs = latest_runs(rows)
    budgets = sorted({row["budget"] for row in rows if row["strategy"] != "full"})
    last = min(max(budgets), 64_000)  # the largest that all simulations have
    lines = []
    for data in sorted({data for data, _, _ in runs}):
        full = [run[0]["f1"] for (name, strategy, _), run in runs.items() if (name, strategy) == (data, "full")]
        reference = statistics.mean(full) if full else None
        groups: dict[str, list[list[Row]]] = {}
        for (name, strategy, _), run in runs.items():
            if name == data and strategy != "full":
                groups.setdefault(strategy, []).append(run)
        title = f"all training data: {format_mean(full)}" if full else "all training data: not run"
        lines.append([DATA.get(data, data), title, str(len(full) or ""), *[""] * (len(budgets) + 3)])
        found = []
        for strategy, curves in groups.items():
            cells = ([r["f1"] for curve in curves for r in curve if r["budget"] == b] for b in budgets)
            up_to = [[row for row in curve if row["budget"] <= last] for curve in curves]
            areas = [area(curve) for curve in up_to if len(curve) > 1 and curve[-1]["budget"] == last]
            costs = []
            for share in (0.95, 0.99) if reference else ():
                words = [interpolate(curve, "words", share * reference) for curve in curves]
                reached = [count for count in words if count is not None]
                mean = f"{statistics.mean(reached):,.0f}" if reached else "not reached"
                costs.append(mean + f" ({len(reached)} of {len(words)})" * (0 < len(reached) < len(words)))
            line = [strategy, str(len(curves)), *map(format_mean, cells), format_mean(areas), *costs]
            found.append((-statistics.mean(areas) if areas else 0, [DATA.get(data, data), *line]))
        lines += [line for _, line in sorted(found)]
    head = ["data", "by", "seeds", *(f"{budget:,}" for budget in budgets)]
    head += [f"area to {last:,}", "words for 95 %", "words for 99 %"]
    return markdown_table("|".join(head), lines, sources)


def area(curve: Sequence[Row]) -> float:
    """The mean F1 over the logarithm of the words, by trapezoids.

    >>> round(area([{"words": 1, "f1": 50.0}, {"words": 2, "f1": 60.0}, {"words": 8, "f1": 60.0}]), 2)
    58.33
    """
    total = sum((log(b["words"] / a["words"])) * (a["f1"] + b["f1"]) / 2 for a, b in pairwise(curve))
    return total / log(curve[-1]["words"] / curve[0]["words"])


def interpolate(curve: Sequence[Row], cost: str, f1: float) -> float | None:
    """What it costs to reach this F1, linear in the logarithm; None: it is not reached.

    >>> curve = [{"words": 10, "f1": 50.0}, {"words": 40, "f1": 60.0}]
    >>> round(interpolate(curve, "words", 55.0)), interpolate(curve, "words", 61.0)
    (20, None)
    """
    if curve[0]["f1"] >= f1:
        return float(curve[0][cost])
    for a, b in pairwise(curve):
        if b["f1"] >= f1:
            share = (f1 - a["f1"]) / (b["f1"] - a["f1"])
            return float(a[cost] * (b[cost] / a[cost]) ** share)
    return None


def distillation() -> str:
    """Students, after their teachers, and models of the same size; without learning rates that were not chosen."""
    runs = [
        row
        for row in load_scored("distillation")
        if row["data"] in DATA
        and row["epochs_done"] == row["epochs_planned"]
        and not {"training.encoder_lr=1e-4", "training.encoder_lr=4e-4"} & set(row["changes"])
        and ("distill" in row or set(changes_of(row)) <= {"loss.gold_heads=true"})
    ]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in runs:
        title, words, options = "mpnet, default", "", row.get("distill")
        if options is not None:
            path = next(change for change in row["changes"] if change.startswith("encoder.path="))
            encoder = "mpnet" if "all-mpnet" in path else "MiniLM-L6"
            encoder += path.partition("-v2")[2]  # the texts of continued pretraining, as in all-MiniLM-L6-v2-litbank
            title = f"{encoder}, {options.get('teachers', 1):.0f} teacher{'s' * ('teachers' in options)}"
            title += ", hard labels" * ("hard" in options)
            words = f"{options['words']:,.0f}"
        shown = ("loss.gold_heads=true", "encoder.context=")
        others = [change for change in changes_of(row) if change.startswith(shown)]
        key = DATA[row["data"]], ", ".join([title, *others]), words, str(row["epochs_done"])
        groups.setdefault(key, []).append(row)
    genia = [row for row in load_runs(minilm=True) if row["data"] == "genia"]
    groups[DATA["genia"], "MiniLM-L6, no teacher", "0", str(genia[0]["epochs_done"])] = genia
    groups[DATA["gum_open"], "bundled model, MiniLM-L6, 8 bits", "", ""] = load_scored("analysis")
    paths = "dev.f1 test.f1 test.heads.accuracy robustness.upper robustness.lower robustness.no_punctuation"

    def order(row: list[str]) -> tuple[Any, ...]:
        """By data, teachers first, then students with more unlabelled text before those with less."""
        data, model, words, *_ = row
        return [*DATA.values()].index(data), "MiniLM" in model, bool(words), -int(words.replace(",", "") or 0), model

    rows = []
    for key, group in groups.items():
        means = format_means(group, paths)
        (error,) = format_means(group, "test.calibration_error")
        rows.append([*key, str(len(group)), *means, error or format_means(group, "test.analysis.calibration.error")[0]])
    rows.sort(key=order)
    header = "data|model|unlabelled words|epochs|runs|dev F1|test F1|heads, %"
    header += "|upper case|lower case|no punctuation|calibration error"
    return markdown_table(header, rows, chain(*groups.values()))


# Heads, errors, calibration


def heads() -> str:
    """Right and shared heads on GUM-open: the ablation and the default recipe as it is."""
    bundled_runs = [run for run in load_analyzed() if run["recipe"] == "bundled"]
    rows, used = [], []
    for (data, recipe, changes), runs in group_runs([*bundled_runs, *load_runs()]).items():
        known = any(get(run, "test.heads.accuracy") is not None for run in runs)
        if data == "gum_open" and known and all(change.startswith("loss.head_sharing_penalty=") for change in changes):
            used += runs
            scores = format_means(runs, "test.f1 test.heads.accuracy test.heads.shared")
            rows.append([variant_name(recipe, changes), str(len(runs)), *scores])
    last_word = next(filter(None, (get(run, "test.last_word.accuracy") for run in used)))
    rows.append(["the last word of each gold span", "", "", f"{last_word:.1f}", ""])
    rows.append(["a rule over gold part-of-speech tags, quoted", "", "", "82.5", ""])
    gold = {f"{value:.1f}" for run in used if (value := get(run, "test.heads.gold_shared")) is not None}
    header = "GUM-open, test|seeds|F1|head accuracy, %|entities that share a head, %"
    return f"{markdown_table(header, rows, used)} Gold entities that share a head: {', '.join(sorted(gold))} %."


def errors() -> str:
    """Kinds of errors, and calibration."""
    groups = {
        key: runs
        for key, runs in group_runs(load_analyzed()).items()
        if key[1] in ("bundled", "default") and not key[2]
    }
    kinds = ("type", "spurious", "missed", "boundary")
    paths = "dev.analysis.calibration.error test.analysis.calibration.error test.analysis.calibration.brier"
    rows = []
    for (data, recipe, _), runs in groups.items():
        counts = [run["test"]["analysis"]["errors"] for run in runs]
        shares = (format_mean([100 * one[kind] / sum(one.values()) for one in counts], 1) for kind in kinds)
        title = f"{DATA[data]}, {variant_name(recipe)}"
        rows.append([title, str(len(runs)), *shares, *format_means(runs, paths)])
    header = "errors on test|seeds|type, %|spurious, %|missed, %|boundary, %"
    header += "|calibration error, dev|test|Brier score, test"
    return markdown_table(header, rows, chain(*groups.values()))


# Speed


def engine_table(device: str, cell: str) -> str:
    """Rows are sizes, columns operations on lexicalised trees; `cell` is a format string."""
    (result,) = (one for one in load_results("treecrf") if one["file"] == f"treecrf-{device}.json")
    rows: dict[str, list[str]] = {}
    for row in result["rows"]:
        shown = device == "cuda" or (row["batch"] == 16 and row["n"] >= 20)
        if shown and row["trees"] == "lexical" and row["operation"] in ENGINE_OPERATIONS:
            size = f"{row['batch']} x {row['n']}"
            rows.setdefault(size, [size]).append(cell.format(**row))
    header = f"batch x words, {'GPU' if device == 'cuda' else 'CPU'}|forward + backward|best trees"
    return markdown_table(header, list(rows.values()))


def eager() -> str:
    """Device and wall time of eager calls on a GPU, of the last run; beside them, those of an empty function."""
    result = load_results("eager")[-1]
    rows = [
        [f"{row['batch']} x {row['n']}", *(f"{row[key]:.3g}" for key in ("device", "ours", "empty"))]
        for row in result["rows"]
    ]
    header = "batch x words|device, ms|wall, ms|wall of an empty function, ms"
    return markdown_table(header, rows, [result])


def inference_gpu() -> str:
    """Sentences a second on a GPU, from words to entities."""
    results = [one for one in load_results("inference") if "H200" in one["device"] and "changes" in one]
    rows = []
    for result in results:
        method = next((c.split("=")[1] for c in result["changes"] if c.startswith("decoding.method=")), "mbr")
        part = result["data"].split("/")[1].split(".")[0]
        for row in result["rows"]:
            stage = row["stage"] if row["stage"] == "encoder alone" else f"{row['stage']}, {method}"
            sizes = f"{result['sentences']:,}", f"{row['batch_words']:,}"
            rows.append([part, stage, *sizes, f"{row['sentences_per_second']:,.0f}"])
    return markdown_table("GENIA||sentences|words in a batch|sentences/s", rows, results)


def inference_cpu() -> str:
    """Words a second on a CPU, from text to entities, in turns with spaCy."""
    (result,) = (one for one in load_results("inference") if one["file"] == "inference-cpu.json")
    rows = [
        [name, f"{row['words_per_second']:,.0f}", f"{row['other_cores']:.2f}"] for name, row in result["rows"].items()
    ]
    header = "two cores, text to entities|words/s|load of other programs, cores"
    return markdown_table(header, rows, [result])


def word_results() -> list[Row]:
    """Results of `benchmarks.inference words`, one file for each machine."""
    return [result for result in load_results("inference") if result["file"].startswith("words-")]


def performance() -> str:
    """Words a second from words to entities, by machine, cores and kernel."""
    rows = []
    for result in word_results():
        for row in result["rows"]:
            encoder = row.get("encoder_words_per_second")
            cores = f"{row['cores']}{', a process each' if row['workers'] else ''}"
            speeds = f"{row['whole_words_per_second']:,.0f}", f"{encoder:,.0f}" if encoder else ""
            quality = f"{100 * row['f1']:.2f}", f"{100 * row['equal']:.1f}" if "equal" in row else ""
            rows.append([result["cpu"], cores, row["kernel"], *speeds, *quality])
    header = "processor|cores|kernel|words/s|encoder alone|F1|entities as in float32, %"
    return markdown_table(header, rows, word_results())


def latency() -> str:
    """Seconds until a new process can predict, and milliseconds of one sentence."""
    rows = [
        [
            result["cpu"],
            str(row["cores"]),
            *(f"{row[f'{name}_seconds']:.2f}" for name in ("torch", "load", "first_call")),
            *(f"{row[f'call_{name}_ms']:.1f}" for name in ("p50", "p99")),
        ]
        for result in word_results()
        for row in result.get("latency", [])
    ]
    header = "processor|cores|import torch, s|load, s|first call, s|then, p50, ms|p99, ms"
    return markdown_table(header, rows, word_results())


TABLES: dict[str, Callable[[], str]] = {
    "headline": headline,
    "recipes": recipes,
    "large": large,
    "ablation": ablation,
    "partial": partial,
    "proxies": proxies,
    "selection": selection,
    "distillation": distillation,
    "heads": heads,
    "errors": errors,
    # milliseconds, and how many times as many the published code takes
    "engine-gpu": lambda: engine_table("cuda", "{ours[device][median]:.3g} ({ratio[published]:.0f} x)"),
    # how many times as long the reference takes, and SuPar
    "engine-cpu": lambda: engine_table("cpu", "{ratio[reference][wall]:.0f} x ({ratio[SuPar][wall]:.0f} x)"),
    "eager": eager,
    "inference-gpu": inference_gpu,
    "inference-cpu": inference_cpu,
    "performance": performance,
    "latency": latency,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"print: {', '.join(TABLES)}")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table differs")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in TABLES:
            parser.error(f"there is no table {name}; there are {', '.join(TABLES)}.")
        print(TABLES[name]())
    if options.names:
        return 0
    stale = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        before = path.read_text(encoding="utf-8")
        after = REGION.sub(lambda region: f"{region[1]}{TABLES[region[2]]()}\n{region[3]}", before)
        if after != before:
            stale.append(path.name)
            if not options.check:
                path.write_text(after, encoding="utf-8")
    if stale and options.check:
        print(f"{', '.join(stale)}: tables differ from benchmarks/results; run python -m benchmarks.tables.")
        return 1
    print(f"{', '.join(stale)}: rewritten." if stale else "All tables match the results.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
