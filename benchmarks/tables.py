"""Tables of the docs and the README, generated from benchmarks/results.

    python -m benchmarks.tables            rewrite every table between `<!-- table NAME -->` and `<!-- end -->`
    python -m benchmarks.tables --check    write nothing; fail if a table differs from the results
    python -m benchmarks.tables NAME ...   print tables; those of PRINTED are shown in no page

Each line of a results file is the JSON object that a benchmark printed at its end.
"""

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
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
    "07-lexical-yes-no": ("+ yes and no", "06-lexical-two-stage"),
    "08-without-parsing": ("- parsing", "07-lexical-yes-no"),
    "09-head-regularisation": ("+ head regularisation", "07-lexical-yes-no"),
    "10-head-aware-labels": ("+ head-aware labels", "07-lexical-yes-no"),
    "11-both": ("+ both", "07-lexical-yes-no"),
    "12-joint": ("joint likelihood", "11-both"),
}
JOINT = "ablation/12-joint"
PENALTY = "loss.head_sharing_penalty="
PARTIAL = {"negatives": "no entity", "unknown": "unknown"}  # data of benchmarks.datasets partial: title
# Test F1 of W2NER and of a prototype of this method: same encoder and data, one seed each, measured on an H200.
PEERS = {"genia": (76.43, 76.65), "litbank": (82.23, 82.16), "gum_open": (76.02, 77.85)}
ENGINE_OPERATIONS = ("forward + backward", "best trees")  # those of benchmarks.treecrf that are shown


# Reading results


def load_results(benchmark: str, reruns: bool = False) -> Iterator[Row]:
    """The stored results of a benchmark, each with the name of its file; `reruns`: from reruns*.json only."""
    for path in sorted(RESULTS.glob("*.json")):
        if path.name.startswith("reruns") == reruns:
            for result in read_results(path):
                if result.get("benchmark") == benchmark:
                    yield {**result, "file": path.name}


@cache
def read_results(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def load_scored(benchmark: str, reruns: bool = False) -> list[Row]:
    """The rows that have scores on test, each with its device, date, commit and file."""
    return [
        {**row, **{key: result[key] for key in ("device", "date", "commit", "file")}}
        for result in load_results(benchmark, reruns)
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


def analyzed_groups(data: str | None = None) -> dict[Key, list[Row]]:
    """The bundled model and the default recipe, on all data sets or on one."""
    return {
        key: runs
        for key, runs in group_runs(load_analyzed()).items()
        if key[1] in ("bundled", "default") and not key[2] and data in (None, key[0])
    }


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
    digits = {
        path: 3 if "brier" in path else 1 if "heads" in path or "error" in path else 2
        for path in paths.split()
    }
    return [format_mean([get(run, path) for run in runs], digits[path]) for path in digits]


def markdown_table(header: str, rows: Sequence[Sequence[str]], sources: Iterable[Row] | None = None) -> str:
    """
    >>> print(markdown_table("a|b", [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    names = header.split("|")
    cells = [names, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    lines = [f"| {' | '.join(line)} |" for line in cells]
    lines.insert(1, "|---" * len(names) + "|")
    return "\n".join(lines) + ("" if sources is None else "\n\n" + format_sources(sources))


def format_sources(rows: Iterable[Row]) -> str:
    """Device, date, commit (+: with uncommitted changes) and file of results."""
    sources = {
        f"{row['device']}, {row['date'][:10]}, {row['commit'][:7]}{'+' * row['commit'].endswith('+')}, {row['file']}"
        for row in rows
    }
    return "From " + "; ".join(sorted(sources)) + "."


def variant_name(recipe: str, changes: Sequence[str] = ()) -> str:
    """
    >>> variant_name("bundled"), variant_name("ablation/12-joint", ["loss.head_sharing_penalty=0"])
    ('bundled model', 'joint likelihood, loss.head_sharing_penalty=0')
    """
    row = recipe.removeprefix("ablation/")
    title = ABLATION[row][0] if row in ABLATION else {"bundled": "bundled model"}.get(recipe, recipe)
    return ", ".join([title, *changes])


def data_name(data: str) -> str:
    """
    >>> data_name("gum_open"), data_name("genia_paper"), data_name("unknown-50")
    ('GUM-open', "GENIA, the paper's", 'LitBank, 50 % unknown')
    """
    kind, _, share = data.partition("-")
    if kind in PARTIAL:
        return f"LitBank, {share or 50} % {PARTIAL[kind]}"
    return {**DATA, "genia_paper": "GENIA, the paper's"}[data]


# Scores


def recipes() -> str:
    """The default recipe and the paper's, beside other systems."""
    rows, used = [], []
    for (data, recipe, changes), runs in group_runs(load_runs()).items():
        if data in DATA and recipe in ("default", "paper"):
            used += runs
            dev, precision, recall, f1, heads = format_means(
                runs, "dev.f1 test.precision test.recall test.f1 test.heads.accuracy"
            )
            epochs = ", ".join(f"{run['best_epoch']} of {run['epochs_planned']}" for run in runs)
            peers = [f"{value:.2f}" if recipe == "default" else "" for value in PEERS[data]]
            name = " ".join([recipe, *changes])
            scores = [dev, precision, recall, f"**{f1}**", *peers, heads]
            rows.append([DATA[data], name, str(len(runs)), epochs, *scores])
    header = "data|recipe|seeds|best epoch|dev F1|test P|R|F1|W2NER|prototype|heads %"
    return markdown_table(header, rows, used)


def headline() -> str:
    """The default recipe, and the same after continued pretraining, with the number of passes that is best on dev."""
    groups = group_runs(load_runs())
    rows = []
    for data, name in DATA.items():
        runs = groups.get((data, "default", ()), [])
        pretrained = [
            others
            for (where, recipe, changes), others in groups.items()
            if (where, recipe, len(changes)) == (data, "default", 1)
            and re.match(rf"encoder\.path=all-mpnet-base-v2-{data}(-\d+)?$", changes[0])
        ]
        best = max(
            pretrained, key=lambda group: statistics.mean(run["dev"]["f1"] for run in group), default=[]
        )
        scores = [
            cell for group in (runs, best) for cell in format_means(group, "test.f1 test.heads.accuracy")
        ]
        rows.append([name, str(len(runs)), *scores, f"{PEERS[data][0]:.2f}"])
    return markdown_table("test F1|seeds|nestree|heads, %|after `pretrain`|heads, %|W2NER", rows)


def bundled() -> str:
    """Small models beside those of the default recipe."""
    groups = group_runs(load_analyzed())
    models = {
        "GUM-open, bundled model, 8 bits": groups.get(("gum_open", "bundled", ()), []),
        "GUM-open, default, mpnet": groups.get(("gum_open", "default", ()), []),
        "GENIA, MiniLM-L6": [run for run in load_runs(minilm=True) if run["data"] == "genia"],
        "GENIA, default, mpnet": groups.get(("genia", "default", ()), []),
    }
    paths = "dev.f1 test.f1 test.heads.accuracy test.analysis.calibration.error"
    rows = [[name, str(len(runs)), *format_means(runs, paths)] for name, runs in models.items()]
    header = "model|seeds|dev F1|test F1|heads right, test, %|calibration error, test, points"
    return markdown_table(header, rows, chain(*models.values()))


def ablation() -> str:
    return ablation_of("litbank", ABLATION)


def ablation_elsewhere() -> str:
    names = [name for name in ABLATION if name[:2] in ("03", "07", "11", "12")]
    return "\n\n".join(f"{DATA[data]}:\n\n{ablation_of(data, names)}" for data in ("gum_open", "genia"))


def ablation_of(data: str, names: Iterable[str]) -> str:
    """Rows of the ablation; p compares a row with the one that it modifies, over the seeds that both have."""
    runs: dict[str, list[Row]] = {}
    for (where, recipe, changes), group in group_runs(load_runs()).items():
        epochs_only = all(change.startswith("training.epochs=") for change in changes)  # GENIA needs fewer
        if where == data and recipe.startswith("ablation/") and epochs_only:
            runs.setdefault(recipe.removeprefix("ablation/"), []).extend(group)
    rows = []
    for name in names:
        title, base = ABLATION[name]
        group, others = runs.get(name, []), runs.get(base, [])
        seeds = {run["seed"] for run in group} & {run["seed"] for run in others}
        pair = [[run for run in some if run["seed"] in seeds] for some in (group, others)]
        p = permutation_test(*pair) if seeds else None
        scores = format_means(group, "test.precision test.recall test.f1")
        count = str(len(group) or "")
        rows.append([name[:2], title, count, *scores, base[:2], "" if p is None else f"{p:.3f}"])
    return markdown_table("row|variant|seeds|P|R|F1|against|p", rows, chain(*runs.values()))


def permutation_test(first: Sequence[Row], second: Sequence[Row], permutations: int = 10_000) -> float | None:
    """p of the difference in F1 between two variants; None if the runs did not store counts by sentence.

    Counts are means over seeds; the counts of a sentence are swapped together.
    """
    if not all("by_sentence" in row["test"] for row in (*first, *second)):
        return None
    a, b = (
        np.mean([row["test"]["by_sentence"] for row in rows], 0) for rows in (first, second)
    )  # [sentences, 3]

    def f1(counts: Any) -> Any:  # [..., 3]
        return 2 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1e-9)

    observed, generator, extreme = abs(f1(a.sum(0)) - f1(b.sum(0))), np.random.default_rng(0), 0
    for size in [1000] * (permutations // 1000) + [permutations % 1000]:
        moved = (generator.random((size, len(a))) < 0.5) @ (b - a)  # [size, 3]
        extreme += int((abs(f1(a.sum(0) + moved) - f1(b.sum(0) - moved)) >= observed - 1e-12).sum())
    return (extreme + 1) / (permutations + 1)


def paper_genia() -> str:
    """GENIA as the paper has it, with another encoder."""
    groups = {key: runs for key, runs in group_runs(load_runs()).items() if key[0] == "genia_paper"}
    rows = [
        [
            variant_name(recipe, changes),
            str(len(runs)),
            *format_means(runs, "test.precision test.recall test.f1"),
        ]
        for (_, recipe, changes), runs in groups.items()
    ]
    rows.append(["as published, BioBERT-large", "", "", "", "78.44"])
    return markdown_table("GENIA, the paper's setting|seeds|P|R|F1", rows, chain(*groups.values()))


def partial() -> str:
    """LitBank with entities removed, unmarked or marked as incomplete."""
    groups = group_runs(load_runs())
    variants = {("none", ""): groups.get(("litbank", JOINT, ()), [])}
    for (data, recipe, changes), runs in groups.items():
        kind, _, share = data.partition("-")
        if kind in PARTIAL and recipe == JOINT:
            variants[f"{share or 50} %", " ".join([PARTIAL[kind], *changes])] = runs
    rows = [
        [*names, str(len(runs)), *format_means(runs, "dev.f1 test.precision test.recall test.f1")]
        for names, runs in sorted(variants.items(), key=lambda item: (item[0][0] != "none", item[0]))
        if runs
    ]
    header = "entities removed|what is missing counts as|seeds|dev F1|test P|R|F1"
    return markdown_table(header, rows, chain(*variants.values()))


def proxies() -> str:
    """Dev and test F1 on data sets that no recipe was tuned on; without runs that were stopped early."""
    runs = [row for row in load_scored("proxies") if row["status"] == "finished"]
    groups = group_runs(runs)
    names = list(dict.fromkeys(data for data, _, _ in groups))
    rows = []
    for recipe, changes in dict.fromkeys(key[1:] for key in groups):
        for part in ("dev", "test"):
            cells = (format_means(groups.get((name, recipe, changes), []), f"{part}.f1")[0] for name in names)
            rows.append([variant_name(recipe, changes) if part == "dev" else "", part, *cells])
    return markdown_table("|".join(["F1", "", *names]), rows, runs)


def distillation() -> str:
    """Small students of large teachers on GUM-open, beside the teachers."""
    runs = [
        row
        for row in load_scored("distillation")
        if row["status"] == "finished" and ("distill" in row or not changes_of(row))
    ]
    rows = []
    for row in runs:
        title, words, options = "mpnet, default", "", row.get("distill")
        if options is not None:
            title = f"MiniLM-L6, {options.get('teachers', 1):.0f} teacher{'s' * ('teachers' in options)}"
            title += ", hard labels" * ("hard" in options)
            words = f"{options['words']:,.0f}"
        others = [c for c in changes_of(row) if not c.startswith(("training.e", "training.warmup"))]
        lr = next(
            (c.partition("=")[2] for c in row["changes"] if c.startswith("training.encoder_lr")), "5e-5"
        )
        paths = ["dev.f1", "test.f1", "test.heads.accuracy"]
        paths += [f"robustness.{kind}" for kind in ("upper", "lower", "no_punctuation")]
        scores = [f"{get(row, path):.2f}" for path in paths]
        rows.append(
            [", ".join([title, *others]), str(row["seed"]), words, lr, str(row["epochs_done"]), *scores]
        )
    header = "model|seed|unlabelled words|encoder lr|epochs|dev F1|test F1|heads, %"
    header += "|upper case|lower case|no punctuation"
    return markdown_table(header, rows, runs)


# Heads, errors, calibration


def heads() -> str:
    """Right and shared heads on GUM-open: the ablation and the default recipe as it is."""
    bundled_runs = [run for run in load_analyzed() if run["recipe"] == "bundled"]
    rows, used = [], []
    for (data, recipe, changes), runs in group_runs([*bundled_runs, *load_runs()]).items():
        known = any(get(run, "test.heads.accuracy") is not None for run in runs)
        if data == "gum_open" and known and all(change.startswith(PENALTY) for change in changes):
            used += runs
            scores = format_means(runs, "test.f1 test.heads.accuracy test.heads.shared")
            rows.append([variant_name(recipe, changes), str(len(runs)), *scores])
    last_word = next(filter(None, (get(run, "test.last_word.accuracy") for run in used)))
    rows.append(["the last word of each gold span", "", "", f"{last_word:.1f}", ""])
    rows.append(["a rule over gold part-of-speech tags, quoted", "", "", "82.5", ""])
    gold = {f"{value:.1f}" for run in used if (value := get(run, "test.heads.gold_shared")) is not None}
    table = markdown_table("GUM-open, test|seeds|F1|heads right, %|entities that share a head, %", rows, used)
    return f"{table} Gold entities that share a head: {', '.join(sorted(gold))} %."


def head_errors() -> str:
    """Kinds of wrong heads, with examples."""
    groups = analyzed_groups("gum_open")
    examples: dict[str, dict[str, None]] = {}  # by kind, without duplicates
    for run in chain(*groups.values()):
        for kind, errors in get(run, "test.analysis.head_errors").items():
            described = (f"{entity}: *{gold}*, not *{head}*" for entity, gold, head in errors["examples"])
            examples.setdefault(kind, {}).update(dict.fromkeys(described))
    rows = []
    for kind, described in examples.items():
        cells = []
        for runs in groups.values():
            errors = [get(run, "test.analysis.head_errors") for run in runs]
            totals = [sum(one["count"] for one in kinds.values()) for kinds in errors]
            counts = [get(kinds, f"{kind}.count") or 0 for kinds in errors]
            cells.append(format_mean([100 * c / total for c, total in zip(counts, totals, strict=True)], 0))
        rows.append([kind, *cells, "; ".join([*described][:2])])
    rows.sort(key=lambda row: -float(row[1].split()[0]))
    names = [f"{variant_name(recipe)}, %" for _, recipe, _ in groups]
    return markdown_table(
        "|".join(["instead of the gold head", *names, "for example"]), rows, chain(*groups.values())
    )


def head_prior() -> str:
    """Right heads by the weight of the head prior and the head sharing penalty in decoding."""
    runs = [run for run in load_analyzed() if (run["data"], run["recipe"]) == ("gum_open", "default")]
    runs = [run for run in runs if not changes_of(run) and get(run, "dev.decoders")]
    rows = []
    for name in runs[0]["dev"]["decoders"]:
        if match := re.match(r"head_prior (\S+) head_sharing_penalty (\S+)", name):
            cells = (
                format_mean([run[part]["decoders"][name]["heads"][what] for run in runs], 1)
                for part, what in (("dev", "accuracy"), ("test", "accuracy"), ("test", "shared"))
            )
            rows.append([*match.groups(), str(len(runs)), *cells])
    header = "head prior|head sharing penalty|seeds|heads right, dev, %|test, %|entities that share a head, test, %"
    return markdown_table(header, rows, runs)


def errors() -> str:
    """Kinds of errors, and calibration."""
    groups = analyzed_groups()
    kinds = list(
        dict.fromkeys(kind for runs in groups.values() for run in runs for kind in error_counts(run))
    )
    rows = []
    for (data, recipe, _), runs in groups.items():
        counts = [error_counts(run) for run in runs]
        shares = (format_mean([100 * one[kind] / sum(one.values()) for one in counts], 1) for kind in kinds)
        paths = (
            "dev.analysis.calibration.error test.analysis.calibration.error test.analysis.calibration.brier"
        )
        rows.append(
            [f"{DATA[data]}, {variant_name(recipe)}", str(len(runs)), *shares, *format_means(runs, paths)]
        )
    names = [f"{kind}, %" for kind in kinds]
    header = "|".join(
        ["errors on test", "seeds", *names, "calibration error, dev", "test", "Brier score, test"]
    )
    return markdown_table(header, rows, chain(*groups.values()))


def error_counts(run: Row) -> dict[str, int]:
    return run["test"]["analysis"]["errors"]


def nesting() -> str:
    """F1 of entities by depth and by length."""
    groups = analyzed_groups()
    tables = []
    for name, title in (
        ("depths", "F1 by how many entities enclose one"),
        ("lengths", "F1 by length in words"),
    ):
        counts = {key: [run["test"]["analysis"][name] for run in runs] for key, runs in groups.items()}
        with_gold = {size for run in chain(*counts.values()) for size, (*_, gold) in run.items() if gold}
        sizes = sorted(with_gold, key=first_number)
        rows = []
        for (data, recipe, _), runs in counts.items():
            cells = []
            for size in sizes:
                gold = max(run[size][3] if size in run else 0 for run in runs)
                mean = format_mean([f1_of_counts(*run[size]) for run in runs if size in run], 1)
                cells.append(f"{mean} ({gold:,})" if gold else "")
            rows.append([f"{DATA[data]}, {variant_name(recipe)}", str(len(runs)), *cells])
        tables.append(markdown_table("|".join([title, "seeds", *sizes]), rows))
    return "\n\n".join([*tables, format_sources(chain(*groups.values()))])


def f1_of_counts(right: int, predicted: int, found: int, gold: int) -> float:
    """F1 in per cent; `right` of the predicted, `found` of the gold entities.

    >>> f1_of_counts(right=6, predicted=8, found=6, gold=8)
    75.0
    """
    precision, recall = right / predicted if predicted else 0.0, found / gold if gold else 0.0
    return 200 * precision * recall / (precision + recall) if precision + recall else 0.0


def first_number(group: str) -> int:
    """
    >>> [first_number(group) for group in ("3", "6-10", "11+")]
    [3, 6, 11]
    """
    return int(re.split("[-+]", group)[0])


# Reproducibility and exploration


def reruns() -> str:
    """Runs that were repeated from their commands.

    Their distance from the mean of all seeds is given in standard deviations of their row, and in the pooled standard
    deviation of all rows of the data set, as three seeds give a poor estimate.
    """
    repeated, rows, first = load_scored("training", reruns=True), [], []
    groups, small = group_runs(load_runs()), load_runs(minilm=True)
    for run in repeated:
        if uses_minilm(run):  # one for each data set, whatever the default settings of its commit
            group, variant = [other for other in small if other["data"] == run["data"]], "MiniLM-L6"
        else:
            group = groups.get((run["data"], run["recipe"], changes_of(run)), [])
            variant = variant_name(run["recipe"], changes_of(run))
        scores = [other["test"]["f1"] for other in group]
        distance = abs(run["test"]["f1"] - statistics.mean(scores))
        same_seed = [other for other in group if other["seed"] == run["seed"]]
        first += same_seed
        f1 = [format_means(some, "test.f1")[0] for some in (same_seed, [run], group)]
        deviation = f"{distance / statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
        pooled = f"{distance / pooled_deviation(groups, run['data']):.1f}"
        right_heads = [format_means(some, "test.heads.accuracy")[0] for some in ([run], group)]
        cells = [*f1, str(len(group)), deviation, pooled, *right_heads]
        rows.append([data_name(run["data"]), variant, str(run["seed"]), *cells])
    header = (
        "data|variant|seed|test F1|rerun|all seeds|seeds|distance in std of the row|pooled|heads, %|all seeds"
    )
    return markdown_table(header, rows, [*first, *repeated])


def pooled_deviation(groups: Mapping[Key, Sequence[Row]], data: str) -> float:
    """Of test F1 over seeds; without row 8 of the ablation, whose precision is next to zero."""
    variances = [
        statistics.variance([run["test"]["f1"] for run in runs])
        for (where, recipe, _), runs in groups.items()
        if where == data and len(runs) > 1 and not recipe.startswith("ablation/08")
    ]
    return math.sqrt(statistics.mean(variances))


def exploration() -> str:
    """The best dev F1 of runs that changed some settings, and reached their last epoch but two."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for result in load_results("training"):
        if result["file"].startswith("exploration"):
            for run in result["rows"]:
                if run.get("epochs") and len(run["epochs"]) >= run["epochs"][0]["epochs"] - 2:
                    encoder = "MiniLM" if uses_minilm(run) else "mpnet"
                    changes = ", ".join(change.split(".", 1)[1] for change in changes_of(run))
                    source = {key: result[key] for key in ("device", "date", "commit", "file")}
                    best = max(100 * epoch["f1"] for epoch in run["epochs"])
                    groups.setdefault((encoder, result["commit"], changes), []).append(
                        {**run, **source, "best": best}
                    )
    rows = []
    for (encoder, commit, changes), runs in groups.items():
        cells = (format_mean([run["best"] for run in runs if run["data"] == data]) for data in DATA)
        rows.append([encoder, commit, changes or "none", *cells, *format_means(runs, "dev.heads.accuracy")])
    header = "|".join(["encoder", "default of", "change", *DATA.values(), "heads, %"])
    return markdown_table(header, rows, chain(*groups.values()))


# Speed


def engine_gpu() -> str:
    """Milliseconds of the tree engine on a GPU, beside the published code."""
    (result,) = (one for one in load_results("treecrf") if one["file"] == "treecrf-cuda.json")
    rows: dict[str, list[str]] = {}
    for row in result["rows"]:
        if row["trees"] == "lexical" and row["operation"] in ENGINE_OPERATIONS:
            size = f"{row['batch']} x {row['n']}"
            cell = f"{row['ours']['device']['median']:.3g} ({row['ratio']['published']:.0f} x)"
            rows.setdefault(size, [size]).append(cell)
    return markdown_table("batch x words, GPU|forward + backward|best trees", list(rows.values()))


def engine_cpu() -> str:
    """Speed of the tree engine on a CPU, relative to its reference and to SuPar."""
    (result,) = (one for one in load_results("treecrf") if one["file"] == "treecrf-cpu.json")
    rows: dict[str, list[str]] = {}
    for row in result["rows"]:
        size, ratio = f"{row['batch']} x {row['n']}", row["ratio"]
        shown = row["trees"] == "lexical" and row["operation"] in ENGINE_OPERATIONS
        if shown and row["batch"] == 16 and row["n"] >= 20:
            cell = f"{ratio['reference']['wall']:.0f} x ({ratio['SuPar']['wall']:.0f} x)"
            rows.setdefault(size, [size]).append(cell)
    return markdown_table("batch x words, CPU|forward + backward|best trees", list(rows.values()))


def steps() -> str:
    """Milliseconds of a training step."""
    rows, used = [], []
    for result in load_results("training"):
        for row in result["rows"]:
            if "profile" in row.get("step", {}):
                step, profile = row["step"], row["step"]["profile"]
                changes = ", ".join(c.split(".", 1)[1] for c in row["changes"] if "path=" not in c)
                name = ", ".join(filter(None, [DATA[row["data"]], row["recipe"], changes]))
                numbers = [str(step["steps"]), str(step.get("longest", "")), f"{step['mean_ms']:.1f}"]
                numbers += [f"{profile['busy_ms']:.1f}", f"{profile['launches']:,.0f}"]
                numbers += [f"{100 * step['tree_share']:.1f}", f"{step['epoch_seconds']:.1f}"]
                rows.append([name, *numbers, result["commit"]])
                used.append(result)
    header = "a step of|steps|longest sentence|ms|GPU busy, ms|operations|tree sums, %|epoch, s|commit"
    return markdown_table(header, rows, used)


def lengths() -> str:
    """Sentences a second in training and inference, by sentence length."""
    results = list(load_results("lengths"))
    rows = [
        [
            row["words"],
            variant_name(re.sub(r"^[a-z_]+-(.+)-\d+$", r"ablation/\1", row["model"])),
            row["structure"],
            *(f"{row[f'{phase}_per_second']:,.0f}" for phase in ("training", "inference")),
        ]
        for result in results
        for row in result["rows"]
    ]
    return markdown_table(
        "words|row of the ablation|trees|training, sentences/s|inference, sentences/s", rows, results
    )


def inference_gpu() -> str:
    """Sentences a second on a GPU, from words to entities."""
    results = [result for result in load_results("inference") if "H200" in result["device"]]
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
        [name, f"{row['words_per_second']:,.0f}", f"{row['other_cores']:.2f}"]
        for name, row in result["rows"].items()
    ]
    header = "two cores, text to entities|words/s|cores used by other programs"
    return markdown_table(header, rows, [result])


TABLES: dict[str, Callable[[], str]] = {
    "headline": headline,
    "recipes": recipes,
    "bundled": bundled,
    "ablation": ablation,
    "ablation-elsewhere": ablation_elsewhere,
    "paper-genia": paper_genia,
    "partial": partial,
    "proxies": proxies,
    "distillation": distillation,
    "heads": heads,
    "head-errors": head_errors,
    "errors": errors,
    "nesting": nesting,
    "engine-gpu": engine_gpu,
    "engine-cpu": engine_cpu,
    "inference-gpu": inference_gpu,
    "inference-cpu": inference_cpu,
}
PRINTED: dict[str, Callable[[], str]] = {  # behind numbers in the text
    "head-prior": head_prior,
    "reruns": reruns,
    "exploration": exploration,
    "steps": steps,
    "lengths": lengths,
}


def fill_tables(text: str, name: str) -> str:
    """The text of a page with its tables as the results are now."""

    def fill(region: re.Match[str]) -> str:
        if region.group(2) not in TABLES:
            raise SystemExit(f"{name}: there is no table {region.group(2)}; there are {', '.join(TABLES)}.")
        return f"{region.group(1)}{TABLES[region.group(2)]()}\n{region.group(3)}"

    return REGION.sub(fill, text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"print: {', '.join({**TABLES, **PRINTED})}")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table differs")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in {**TABLES, **PRINTED}:
            parser.error(f"there is no table {name}; there are {', '.join({**TABLES, **PRINTED})}.")
        print({**TABLES, **PRINTED}[name]())
    if options.names:
        return 0
    stale = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        before = path.read_text(encoding="utf-8")
        after = fill_tables(before, path.name)
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
