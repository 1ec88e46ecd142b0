"""Tables of docs and README, made from the stored results: `python -m benchmarks.tables [--check]`.

What stands between `<!-- table NAME -->` and `<!-- end -->` is written anew. With --check nothing is written, and the
program fails if anything would change.
"""

import argparse
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from benchmarks import insights
from benchmarks.markdown import ABLATION, NAMES, table, where
from benchmarks.significance import chance
from benchmarks.stored import (
    RESULTS,
    Row,
    at,
    changes,
    epochs,
    grouped,
    is_small,
    reruns,
    results,
    scored,
    spread,
    trainings,
)

ROOT = Path(__file__).resolve().parent.parent
REGION = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
JOINT = "ablation/12-joint"
PARTIAL = {"negatives": "no entity", "unknown": "unknown"}
# What may differ from a row of the ablation: GENIA needs fewer epochs.
EPOCHS = re.compile(r"training\.epochs=")
SHOWN = ("forward + backward", "best trees")  # of the engine
PEERS = {  # W2NER and a prototype: test F1 with the same encoder and data, one seed each, measured on an H200
    "genia": (76.43, 76.65),
    "litbank": (82.23, 82.16),
    "gum_open": (76.02, 77.85),
}


def recipes() -> str:
    """The default recipe and the paper's, beside their peers."""
    rows, used = [], []
    for (data, recipe, changed), runs in grouped(trainings()).items():
        if data not in NAMES or recipe not in ("default", "paper"):
            continue
        used += runs
        peers = [f"{value:.2f}" if recipe == "default" else "" for value in PEERS[data]]
        rows.append(
            [
                NAMES[data],
                " ".join([recipe, *changed]),
                str(len(runs)),
                ", ".join(f"{run['best_epoch']} of {run['epochs_planned']}" for run in runs),
                *(
                    spread([at(run, path) for run in runs])
                    for path in ("dev.f1", "test.precision", "test.recall")
                ),
                f"**{spread([at(run, 'test.f1') for run in runs])}**",
                *peers,
                spread([at(run, "test.heads.accuracy") for run in runs], 1),
            ]
        )
    header = "data|recipe|seeds|best epoch|dev F1|test P|R|F1|W2NER|prototype|heads %"
    return table(header, rows) + "\n\n" + where(used)


def headline() -> str:
    """The default recipe in one line for each data set, and with an encoder that was pretrained on its texts; of
    several numbers of passes, the one with the best dev F1."""
    groups = grouped(trainings())
    rows = []
    for data, name in NAMES.items():
        runs = groups.get((data, "default", ()), [])
        own = re.compile(rf"encoder\.path=all-mpnet-base-v2-{data}(-\d+)?$")  # and the number of passes
        variants = [
            some
            for (where_from, recipe, changed), some in groups.items()
            if (where_from, recipe, len(changed)) == (data, "default", 1) and own.match(changed[0])
        ]
        pretrained = max(
            variants, key=lambda some: statistics.mean(at(run, "dev.f1") for run in some), default=[]
        )
        values = (
            spread([at(run, path) for run in some], digits)
            for some in (runs, pretrained)
            for path, digits in (("test.f1", 2), ("test.heads.accuracy", 1))
        )
        rows.append([name, str(len(runs)), *values, f"{PEERS[data][0]:.2f}"])
    return table("test F1|seeds|nestree|heads, %|after `pretrain`|heads, %|W2NER", rows)


def ablation() -> str:
    """The paper's rows and ours, on LitBank; p: is it chance that a row differs from the one that it modifies?"""
    return ablated("litbank", ABLATION)


def ablation_elsewhere() -> str:
    """Some of these rows on the other data."""
    rows = [name for name in ABLATION if name[:2] in ("03", "07", "11", "12")]
    return "\n\n".join(f"{NAMES[data]}:\n\n{ablated(data, rows)}" for data in ("gum_open", "genia"))


def ablated(data: str, names: Iterable[str]) -> str:
    runs: dict[str, list[Row]] = {}
    for (found, recipe, changed), some in grouped(trainings()).items():
        if found == data and recipe.startswith("ablation/") and all(map(EPOCHS.match, changed)):
            runs.setdefault(recipe.removeprefix("ablation/"), []).extend(some)
    rows = []
    for name in names:
        (title, base), some = ABLATION[name], runs.get(name, [])
        others = runs.get(base or "", [])
        seeds = {run["seed"] for run in some} & {run["seed"] for run in others}  # those that both have
        alike = [[run for run in each if run["seed"] in seeds] for each in (some, others)]
        p = chance(*alike) if seeds else None
        rows.append(
            [
                name[:2],
                title,
                str(len(some) or ""),
                *(
                    spread([at(run, f"test.{what}") for run in some])
                    for what in ("precision", "recall", "f1")
                ),
                base[:2] if base else "",
                "" if p is None else f"{p:.3f}",
            ]
        )
    return table("row|variant|seeds|P|R|F1|against|p", rows) + "\n\n" + where(chain(*runs.values()))


def partial() -> str:
    """LitBank with entities taken away: nothing said of them, or their sentences marked incomplete."""
    groups = grouped(trainings())
    kept = {("none", ""): groups.get(("litbank", JOINT, ()), [])}
    for (data, recipe, changed), runs in groups.items():
        kind, _, share = data.partition("-")  # a folder of benchmarks.partial
        if kind in PARTIAL and recipe == JOINT:
            kept[f"{share or 50} %", " ".join([PARTIAL[kind], *changed])] = runs
    paths = ("dev.f1", "test.precision", "test.recall", "test.f1")
    rows = [
        [*names, str(len(runs)), epochs(runs), *(spread([at(run, path) for run in runs]) for path in paths)]
        for names, runs in sorted(kept.items(), key=lambda item: (item[0][0] != "none", item[0]))
        if runs
    ]
    header = "entities taken away|and what is missing is|seeds|epochs|dev F1|test P|R|F1"
    return table(header, rows) + "\n\n" + where(chain(*kept.values()))


def rerun() -> str:
    """Runs that were made once more from their commands, beside the first.

    How far they lie from the mean of all seeds is told in deviations of the row, and in those of all rows of the data,
    as three seeds hardly tell one.
    """
    again, rows, first = reruns(), [], []
    runs, small = grouped(trainings()), trainings(small=True)
    for run in again:
        if is_small(run):  # there is one for each data set, whatever settings a commit had as its default
            group, variant = [one for one in small if one["data"] == run["data"]], "MiniLM-L6"
        else:
            group = runs.get((run["data"], run["recipe"], changes(run)), [])
            variant = insights.name_of(run["recipe"], changes(run))
        scores = [at(one, "test.f1") for one in group]
        away = abs(at(run, "test.f1") - statistics.mean(scores))
        before = [one for one in group if one["seed"] == run["seed"]]
        first += before
        rows.append(
            [
                name_of_data(run["data"]),
                variant,
                str(run["seed"]),
                *(spread([at(one, "test.f1") for one in some]) for some in (before, [run], group)),
                str(len(group)),
                f"{away / statistics.stdev(scores):.1f}" if len(scores) > 1 else "",
                f"{away / pooled(runs, run['data']):.1f}",
                *(spread([at(one, "test.heads.accuracy") for one in some], 1) for some in ([run], group)),
            ]
        )
    header = (
        "data|variant|seed|test F1|once more|of all seeds|seeds|deviations of the row away|of all rows"
        "|heads, %|of all seeds"
    )
    return table(header, rows) + "\n\n" + where([*first, *again])


def name_of_data(data: str) -> str:
    """
    >>> name_of_data("gum_open"), name_of_data("genia_paper"), name_of_data("unknown-50")
    ('GUM-open', "GENIA, the paper's", 'LitBank, 50 % unknown')
    """
    kind, _, share = data.partition("-")  # a folder of benchmarks.partial
    if kind in PARTIAL:
        return f"LitBank, {share or 50} % {PARTIAL[kind]}"
    return {**NAMES, "genia_paper": "GENIA, the paper's"}[data]


def pooled(runs: Mapping[tuple[str, str, tuple[str, ...]], Sequence[Row]], data: str) -> float:
    """The standard deviation of F1 over seeds, of all rows of this data; not of the one that finds next to nothing."""
    variances = [
        statistics.variance([at(run, "test.f1") for run in some])
        for (where_from, recipe, _), some in runs.items()
        if where_from == data and len(some) > 1 and not recipe.startswith("ablation/08")
    ]
    return math.sqrt(statistics.mean(variances))


def proxies(part: str) -> str:
    """F1 on data sets that no recipe was tuned on; runs that were stopped early are left out."""
    finished = [row for row in scored("proxies", RESULTS) if row["status"] == "finished"]
    groups = grouped(finished)
    data = list(dict.fromkeys(where_from for where_from, _, _ in groups))
    rows = [
        [
            insights.name_of(recipe, changed),
            *(
                spread([at(run, f"{part}.f1") for run in groups.get((name, recipe, changed), [])])
                for name in data
            ),
        ]
        for recipe, changed in dict.fromkeys(key[1:] for key in groups)
    ]
    return table("|".join([f"{part} F1", *data]), rows) + "\n\n" + where(finished)


def distillation() -> str:
    """Small students of large teachers on GUM-open, beside the large models."""
    found = [
        row
        for row in scored("distillation", RESULTS)
        if row["status"] == "finished" and ("distill" in row or not changes(row))
    ]
    rows = []
    for row in found:
        student = row.get("distill")
        others = [c for c in changes(row) if not c.startswith(("training.e", "training.warmup"))]
        title = "mpnet, default" if student is None else "MiniLM-L6"
        if student is not None:
            title += f", {student.get('teachers', 1):.0f} teacher{'s' * ('teachers' in student)}"
            title += ", hard labels" * ("hard" in student)
        rows.append(
            [
                ", ".join([title, *others]),
                str(row["seed"]),
                f"{student['words']:,.0f}" if student else "",
                str(row["epochs_done"]),
                *(f"{at(row, path):.2f}" for path in ("dev.f1", "test.f1", "test.heads.accuracy")),
                *(f"{at(row, f'robustness.{kind}'):.2f}" for kind in ("upper", "lower", "no_punctuation")),
            ]
        )
    header = "model|seed|unlabelled words|epochs|dev F1|test F1|heads, %|upper case|lower case|no punctuation"
    return table(header, rows) + "\n\n" + where(found)


def engine_gpu() -> str:
    """The tree engine on a GPU beside the published code."""
    (result,) = (one for one in results("treecrf") if one["file"] == "treecrf-cuda.json")
    rows: dict[str, list[str]] = {}
    for row in result["rows"]:
        if row["trees"] == "lexical" and row["operation"] in SHOWN:
            size = f"{row['batch']} x {row['n']}"
            mine = row["ours"]["device"]["median"]
            rows.setdefault(size, [size]).append(f"{mine:.3g} ({row['ratio']['published']:.0f} x)")
    return table("batch x words, GPU|forward + backward|best trees", list(rows.values()))


def engine_cpu() -> str:
    """The tree engine on a CPU beside its reference and SuPar's."""
    (result,) = (one for one in results("treecrf") if one["file"] == "treecrf-cpu.json")
    rows: dict[str, list[str]] = {}
    for row in result["rows"]:
        if row["trees"] == "lexical" and row["operation"] in SHOWN and row["batch"] == 16 and row["n"] >= 20:
            size, ratio = f"16 x {row['n']}", row["ratio"]
            cell = f"{ratio['reference']['wall']:.0f} x ({ratio['SuPar']['wall']:.0f} x)"
            rows.setdefault(size, [size]).append(cell)
    return table("batch x words, CPU|forward + backward|best trees", list(rows.values()))


def steps() -> str:
    """Where the time of a step goes."""
    rows, used = [], []
    for result in results("training"):
        for row in result["rows"]:
            if "step" in row and "profile" in row["step"]:
                step, parts = row["step"], row["step"]["parts"]
                changed = ", ".join(c.split(".", 1)[1] for c in row["changes"] if "path=" not in c)
                used.append({**row, **{key: result[key] for key in ("device", "date", "commit", "file")}})
                rows.append(
                    [
                        ", ".join(filter(None, [NAMES[row["data"]], row["recipe"], changed])),
                        str(step["steps"]),
                        str(step.get("longest", "")),
                        f"{step['mean_ms']:.1f}",
                        f"{step['profile']['busy_ms']:.1f}",
                        f"{step['profile']['launches']:,.0f}",
                        *(
                            f"{parts[p]['device_ms']:.1f}" if p in parts else ""
                            for p in ("encoder", "backward", "tree sums")
                        ),
                        f"{100 * step['tree_share']:.1f}",
                        f"{step['epoch_seconds']:.1f}",
                        result["commit"],
                    ]
                )
    header = "a step of|steps|longest sentence|ms|GPU busy|operations|encoder|backward|tree sums"
    return table(header + "|tree sums, %|epoch, s|commit", rows) + "\n\n" + where(used)


def by_length() -> str:
    """What trees cost in learning and reading, by the words of a sentence."""
    found = list(results("lengths"))
    rows = [
        [
            row["words"],
            insights.name_of(re.sub(r"^[a-z_]+-(.+)-\d+$", r"ablation/\1", row["model"])),
            row["structure"],
            *(f"{row[f'{what}_per_second']:,.0f}" for what in ("learning", "reading")),
        ]
        for result in found
        for row in result["rows"]
    ]
    header = "words|row of the ablation|trees|sentences learned from, /s|read, /s"
    return table(header, rows) + "\n\n" + where(found)


def reading() -> str:
    """Sentences a second on a GPU, words in, entities out."""
    rows, used = [], []
    for result in results("pipeline"):
        if "H200" in result["device"]:
            used.append(result)
            asked = (c.split("=")[1] for c in result["changes"] if c.startswith("decoding.method="))
            by = next(asked, "mbr")  # as the default recipe has it
            part = result["data"].split("/")[1].split(".")[0]
            for row in result["rows"]:
                name = f"{row['lane']}, by {by}" if row["lane"] != "encoder alone" else row["lane"]
                sizes = f"{result['sentences']:,}", f"{row['batch_words']:,}"
                rows.append([part, name, *sizes, f"{row['sentences_per_second']:,.0f}"])
    return table("GENIA||sentences|words in a batch|sentences/s", rows) + "\n\n" + where(used)


def reading_cpu() -> str:
    """Words a second on a CPU, text in, entities out, beside spaCy in the same run."""
    (result,) = (one for one in results("pipeline") if one["file"] == "pipeline-cpu.json")
    rows = [
        [name, f"{row['words_per_second']:,.0f}", f"{row['others_cores']:.2f}"]
        for name, row in result["rows"].items()
    ]
    return (
        table("two cores, text in, entities out|words/s|cores that others took", rows)
        + "\n\n"
        + where([result])
    )


TABLES: dict[str, Callable[[], str]] = {
    "headline": headline,
    "recipes": recipes,
    "ablation": ablation,
    "ablation-elsewhere": ablation_elsewhere,
    **insights.TABLES,
    "partial": partial,
    "rerun": rerun,
    "proxies-dev": lambda: proxies("dev"),
    "proxies-test": lambda: proxies("test"),
    "distillation": distillation,
    "engine-gpu": engine_gpu,
    "engine-cpu": engine_cpu,
    "steps": steps,
    "by-length": by_length,
    "reading": reading,
    "reading-cpu": reading_cpu,
}


def filled(text: str, name: str) -> str:
    """The text of a page with its tables as the results are now."""

    def made(region: re.Match[str]) -> str:
        if region.group(2) not in TABLES:
            raise SystemExit(f"{name}: there is no table {region.group(2)}; there are {', '.join(TABLES)}.")
        return f"{region.group(1)}{TABLES[region.group(2)]()}\n{region.group(3)}"

    return REGION.sub(made, text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if anything would change")
    options = parser.parse_args(arguments)
    stale = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        before = path.read_text(encoding="utf-8")
        after = filled(before, path.name)
        if after != before:
            stale.append(path.name)
            if not options.check:
                path.write_text(after, encoding="utf-8")
    if stale and options.check:
        print(f"{', '.join(stale)}: tables differ from benchmarks/results; run python -m benchmarks.tables.")
        return 1
    print(f"{', '.join(stale)}: written anew." if stale else "All tables are as the results say.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
