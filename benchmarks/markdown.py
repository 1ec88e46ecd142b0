"""Tables in Markdown, and the names that they give to data, recipes and runs."""

from collections.abc import Iterable, Sequence

from benchmarks.stored import Row

NAMES = {"genia": "GENIA", "litbank": "LitBank", "gum_open": "GUM-open"}
ABLATION = {  # row: what the table calls it, and the row that it modifies
    "01-unstructured-one-stage": ("unstructured, one stage", None),
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


def table(header: str, rows: Sequence[Sequence[str]]) -> str:
    """
    >>> print(table("a|b", [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    names = header.split("|")
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(
        "|---" * len(names) + "|" if line is lines[1] else f"| {' | '.join(line)} |" for line in lines
    )


def where(rows: Iterable[Row]) -> str:
    """The machine, the days and the commits of some runs; + is for changes that were not committed."""
    found = {f"{row['device']}, {row['date'][:10]}, {short(row['commit'])}, {row['file']}" for row in rows}
    return "From " + "; ".join(sorted(found)) + "." if found else "Not run yet."


def short(commit: str) -> str:
    """
    >>> short("0992c7285f45e60a"), short("e9e94306656a91f0+")
    ('0992c72', 'e9e9430+')
    """
    return commit[:7] + "+" * commit.endswith("+")
