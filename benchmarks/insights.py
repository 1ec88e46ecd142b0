"""Tables about what models do, and not only how well: heads, errors, depths and lengths, probabilities, costs."""

import re
from collections.abc import Callable, Sequence
from itertools import chain

from benchmarks.markdown import ABLATION, NAMES, table, where
from benchmarks.stored import Row, analysed, at, changes, epochs, grouped, results, spread, trainings

Groups = dict[tuple[str, str, tuple[str, ...]], list[Row]]
SHARING = "loss.head_sharing_penalty="
# Rows of the ablation that were trained with several costs of sharing a head: what they are called, and their own cost.
# The first is the second without a cost.
COSTED = {
    "07-lexical-yes-no": ("two losses, labels without heads", 0.0),
    "09-head-regularisation": ("two losses, labels without heads", 0.4),
    "12-joint": ("joint likelihood", 0.4),
}


def name_of(recipe: str, changes: Sequence[str] = ()) -> str:
    """
    >>> name_of("box"), name_of("ablation/12-joint", ["loss.head_sharing_penalty=0"])
    ('bundled model', 'joint likelihood, loss.head_sharing_penalty=0')
    """
    row = recipe.removeprefix("ablation/")
    title = ABLATION[row][0] if row in ABLATION else {"box": "bundled model"}.get(recipe, recipe)
    return ", ".join([title, *changes])


def with_details(data: str | None = None) -> Groups:
    """The default recipe's runs and the bundled model, of which everything is known; on all data, or one."""
    groups = grouped(analysed())
    return {
        key: runs
        for key, runs in groups.items()
        if key[1] in ("box", "default") and not key[2] and data in (None, key[0])
    }


def share(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


# Heads


def heads() -> str:
    """Whose heads are right, and who shares them, on GUM-open."""
    groups = grouped([*(run for run in analysed() if run["recipe"] == "box"), *trainings()])
    rows, used = [], []
    for (data, recipe, changed), runs in groups.items():
        if data == "gum_open" and any(at(run, "test.heads.accuracy") is not None for run in runs):
            used += runs
            cells = [
                spread([at(run, f"test.heads.{what}") for run in runs], 1) for what in ("accuracy", "shared")
            ]
            rows.append(
                [
                    name_of(recipe, changed),
                    str(len(runs)),
                    spread([at(run, "test.f1") for run in runs]),
                    *cells,
                ]
            )
    last = next(filter(None, (at(run, "test.last_word.accuracy") for run in used)), None)
    if last is not None:
        rows.append(["the last word of each gold span", "", "", f"{last:.1f}", ""])
    rows.append(["a rule over gold part-of-speech tags, quoted", "", "", "82.5", ""])
    gold = {f"{value:.1f}" for run in used if (value := at(run, "test.heads.gold_shared")) is not None}
    of_gold = f" Gold entities that share a head: {', '.join(sorted(gold))} %." if gold else ""
    return (
        table("GUM-open, test|seeds|F1|heads right, %|entities that share a head, %", rows)
        + f"\n\n{where(used)}{of_gold}"
    )


def head_errors() -> str:
    """What wrong heads are."""
    groups = with_details("gum_open")
    kinds: dict[str, dict[str, None]] = {}  # with examples, each once
    for run in chain(*groups.values()):
        for kind, found in at(run, "test.details.head_errors").items():
            named = (f"{whole}: *{gold}*, not *{ours}*" for whole, gold, ours in found["examples"])
            kinds.setdefault(kind, {}).update(dict.fromkeys(named))
    rows = []
    for kind, examples in kinds.items():
        shares = []
        for runs in groups.values():
            counts = [at(run, "test.details.head_errors") for run in runs]
            shares.append(spread([share(at(one, f"{kind}.count") or 0, total(one)) for one in counts], 0))
        rows.append([kind, *shares, "; ".join([*examples][:2])])
    rows.sort(key=lambda row: -float(row[1].split()[0]))
    names = [f"{name_of(recipe)}, %" for _, recipe, _ in groups]
    return (
        table("|".join(["instead of the gold head", *names, "for example"]), rows)
        + "\n\n"
        + where(chain(*groups.values()))
    )


def total(errors: Row) -> int:
    return sum(kind["count"] for kind in errors.values())


def head_words() -> str:
    """The words that head entities of each label, in the first run of the best model that is stored."""
    groups = with_details("gum_open")
    if not groups:
        return where([])
    (_, recipe, _), runs = sorted(groups.items(), key=lambda item: item[0][1] != "default")[0]
    rows = [
        [label, ", ".join(f"{word} {count}" for word, count in words)]
        for label, words in at(runs[0], "test.details.head_words").items()
    ]
    return table(f"label, {name_of(recipe)}|its most frequent heads", rows) + "\n\n" + where(runs[:1])


def decoding_cost() -> str:
    """Best trees with several costs of sharing a head."""
    groups = with_details("gum_open")
    rows = []
    for (_, recipe, _), runs in groups.items():
        decoders: list[Row] = [run["test"]["decoders"] for run in runs]
        for name in (name for name in decoders[0] if name.startswith("tree ")):
            scores = [one[name] for one in decoders]
            cells = [spread([at(one, path) for one in scores], digits) for path, digits in PATHS.items()]
            rows.append([name_of(recipe), name.removeprefix("tree "), str(len(runs)), *cells])
    return (
        table("GUM-open, test|c|seeds|F1|heads right, %|entities that share a head, %", rows)
        + "\n\n"
        + where(chain(*groups.values()))
    )


def head_forms() -> str:
    """How many heads are right, by the weight of what the forms of words say and the cost of sharing one."""
    runs = [run for key, some in with_details("gum_open").items() if key[1] == "default" for run in some]
    runs = [run for run in runs if any(name.startswith("forms ") for name in at(run, "dev.decoders") or ())]
    names = [name for name in at(runs[0], "dev.decoders") if name.startswith("forms ")] if runs else []
    rows = [
        [
            *weight_and_cost(name),
            str(len(runs)),
            *(
                spread([at(run[part]["decoders"][name], f"heads.{what}") for run in runs], 1)
                for part, what in (("dev", "accuracy"), ("test", "accuracy"), ("test", "shared"))
            ),
        ]
        for name in names
    ]
    header = "weight of forms|cost of sharing|seeds|heads right, dev, %|test, %|entities that share a head, test, %"
    return table(header, rows) + "\n\n" + where(runs)


def weight_and_cost(name: str) -> tuple[str, str]:
    """
    >>> weight_and_cost("forms 1.5 sharing 2.0"), weight_and_cost("forms 1.5")
    (('1.5', '2.0'), ('1.5', '0.0'))
    """
    weight, _, cost = name.removeprefix("forms ").partition(" sharing ")
    return weight, cost or "0.0"


PATHS = {"f1": 2, "heads.accuracy": 1, "heads.shared": 1}


def training_cost() -> str:
    """LitBank, trained with several costs of sharing a head."""
    found: dict[tuple[str, float], list[Row]] = {}
    for (data, recipe, changed), runs in grouped(trainings()).items():
        row = recipe.removeprefix("ablation/")
        if data == "litbank" and row in COSTED and all(change.startswith(SHARING) for change in changed):
            title, cost = COSTED[row]
            found.setdefault(
                (title, float(changed[0].removeprefix(SHARING)) if changed else cost), []
            ).extend(runs)
    rows = [
        [
            title,
            f"{c:g}",
            str(len(runs)),
            epochs(runs),
            *(spread([at(run, path) for run in runs]) for path in ("dev.f1", "test.f1", "test.heads.shared")),
        ]
        for (title, c), runs in sorted(found.items())
    ]
    return (
        table("trained as|c|seeds|epochs|dev F1|test F1|entities that share a head, %", rows)
        + "\n\n"
        + where(chain(*found.values()))
    )


# Errors, depth and length, probabilities


def errors() -> str:
    """How errors are distributed."""
    groups = with_details()
    kinds = list(
        dict.fromkeys(chain(*(at(run, "test.details.errors") for runs in groups.values() for run in runs)))
    )
    rows = []
    for (data, recipe, _), runs in groups.items():
        counts = [at(run, "test.details.errors") for run in runs]
        rows.append(
            [
                f"{NAMES[data]}, {name_of(recipe)}",
                str(len(runs)),
                *(spread([share(one[kind], sum(one.values())) for one in counts], 1) for kind in kinds),
            ]
        )
    return (
        table("|".join(["errors on test, %", "seeds", *kinds]), rows)
        + "\n\n"
        + where(chain(*groups.values()))
    )


def nesting() -> str:
    """Recall and precision of entities by depth and by length."""
    groups = with_details()
    pages = []
    for what, title in (
        ("depths", "F1 by how many entities enclose one"),
        ("lengths", "F1 by length in words"),
    ):
        sizes = sorted(
            {
                size
                for run in chain(*groups.values())
                for size, (*_, gold) in at(run, f"test.details.{what}").items()
                if gold
            },
            key=first_number,
        )
        rows = []
        for (data, recipe, _), runs in groups.items():
            counts = [at(run, f"test.details.{what}") for run in runs]
            cells = [spread([f1(*one[size]) for one in counts if size in one], 1) for size in sizes]
            gold = [max(one[size][3] if size in one else 0 for one in counts) for size in sizes]
            shown = [f"{cell} ({many:,})" if many else "" for cell, many in zip(cells, gold, strict=True)]
            rows.append([f"{NAMES[data]}, {name_of(recipe)}", str(len(runs)), *shown])
        pages.append(table("|".join([title, "seeds", *sizes]), rows))
    return "\n\n".join([*pages, where(chain(*groups.values()))])


def f1(right: int, predicted: int, found: int, gold: int) -> float:
    """
    >>> f1(right=6, predicted=8, found=6, gold=8)
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


def calibration() -> str:
    """How honest probabilities are."""
    groups = with_details()
    rows = []
    for (data, recipe, _), runs in groups.items():
        cells = [
            spread([at(run, f"{part}.details.calibration.error") for run in runs], 1)
            for part in ("dev", "test")
        ]
        brier = spread([at(run, "test.details.calibration.brier") for run in runs], 3)
        rows.append([f"{NAMES[data]}, {name_of(recipe)}", str(len(runs)), *cells, brier])
    return (
        table("calibration error, points|seeds|dev|test|Brier score, test", rows)
        + "\n\n"
        + where(chain(*groups.values()))
    )


# What was tried


def exploration() -> str:
    """The best dev F1 of runs that changed one thing or several, by data; of several seeds, their mean."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for result in results("training"):
        if result["file"].startswith("exploration"):
            source = {key: result[key] for key in ("device", "date", "commit", "file")}
            for run in filter(near_its_end, result["rows"]):
                encoder = next(c.split("=")[1] for c in run["changes"] if c.startswith("encoder.path="))
                short = ", ".join(change.split(".", 1)[1] for change in changes(run))
                key = "MiniLM" if "MiniLM" in encoder else "mpnet", result["commit"], short
                found.setdefault(key, []).append({**run, **source})
    rows = []
    for key, runs in found.items():
        cells = [spread([best(run) for run in runs if run["data"] == data]) for data in NAMES]
        encoder, commit, short = key
        rows.append(
            [
                encoder,
                commit,
                short or "none",
                *cells,
                spread([at(run, "dev.heads.accuracy") for run in runs], 1),
            ]
        )
    header = "|".join(["encoder", "default of", "change", *NAMES.values(), "heads, %"])
    return table(header, rows) + "\n\n" + where(chain(*found.values()))


def near_its_end(run: Row) -> bool:
    """Did it come to its last epoch but two? Machines end before runs do."""
    return bool(run.get("epochs")) and len(run["epochs"]) >= run["epochs"][0]["epochs"] - 2


def best(run: Row) -> float:
    return max(100 * epoch["f1"] for epoch in run["epochs"])


# the bundled model


def boxes() -> str:
    """Models that fit into the package beside those of the default recipe."""
    groups = grouped(analysed())
    small = [run for run in trainings(small=True) if run["data"] != "gum_open"]  # that one is the box itself
    found = {
        "bundled model, 8 bits": groups.get(("gum_open", "box", ()), []),
        "default, mpnet": groups.get(("gum_open", "default", ()), []),
        "GENIA, MiniLM-L6": [run for run in small if run["data"] == "genia"],
        "GENIA, default, mpnet": groups.get(("genia", "default", ()), []),
    }
    rows = []
    for name, runs in found.items():
        cells = (
            spread([at(run, path) for run in runs], digits)
            for path, digits in {
                "dev.f1": 2,
                "test.f1": 2,
                "test.heads.accuracy": 1,
                "test.details.calibration.error": 1,
            }.items()
        )
        rows.append([name if "GENIA" in name else f"GUM-open, {name}", str(len(runs)), *cells])
    header = "model|seeds|dev F1|test F1|heads right, test, %|calibration error, test, points"
    return table(header, rows) + "\n\n" + where(chain(*found.values()))


# The paper's own setting


def paper_genia() -> str:
    """GENIA as the paper has it, with another encoder."""
    groups: Groups = {key: runs for key, runs in grouped(trainings()).items() if key[0] == "genia_paper"}
    rows = [
        [
            name_of(recipe, changes),
            str(len(runs)),
            *(
                spread([at(run, path) for run in runs])
                for path in ("test.precision", "test.recall", "test.f1")
            ),
        ]
        for (_, recipe, changes), runs in groups.items()
    ]
    rows.append(["as published, BioBERT-large", "", "", "", "78.44"])
    return table("GENIA, the paper's setting|seeds|P|R|F1", rows) + "\n\n" + where(chain(*groups.values()))


TABLES: dict[str, Callable[[], str]] = {
    "heads": heads,
    "head-errors": head_errors,
    "head-words": head_words,
    "head-forms": head_forms,
    "decoding-cost": decoding_cost,
    "training-cost": training_cost,
    "errors": errors,
    "nesting": nesting,
    "calibration": calibration,
    "boxes": boxes,
    "paper-genia": paper_genia,
    "exploration": exploration,
}
