"""The report for a terminal, and in Markdown."""

from typing import TYPE_CHECKING, Literal

from nestree.evaluation import Comparison, Evaluation
from nestree.report.examples import described, examples, in_brackets
from nestree.report.tables import ERRORS, Table, all_tables, are_words, filled, summary, visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

TERMINAL_WORDS, MARKDOWN_WORDS = 5, 10  # head words of each label
TERMINAL_EXAMPLES, MARKDOWN_EXAMPLES = 1, 3  # of each kind of error
LONGEST_NAME = 24  # columns that names of rows may take before they are broken
WIDTH = 78  # columns that a table of many labels may take in a terminal


def terminal(
    evaluation: Evaluation, comparison: Comparison | None = None, title: str = "Evaluation"
) -> "list[RenderableType]":
    """Renderables of rich, to be printed one below the other; 80 columns are enough."""
    from rich.table import Table as Grid

    page: list[RenderableType] = [line(title, "bold"), line(summary(evaluation))]
    for table in all_tables(evaluation, comparison, TERMINAL_WORDS):
        cut = narrowed(filled(table))
        page += [line(""), line(cut.title, "bold"), drawn(cut)]
        if cut.note:
            page.append(line(cut.note, "dim"))
    chosen = examples(evaluation, TERMINAL_EXAMPLES)
    if chosen:
        page += [line(""), line("Examples", "bold")]
    for kind, mistakes in chosen.items():
        for mistake in mistakes:
            place = line(f"{ERRORS[kind]}, sentence {mistake.number}: ", "bold")
            grid = Grid.grid(padding=(0, 1))
            for side, words in in_brackets(mistake):
                grid.add_row(line(f"  {side}", "dim"), line(words))
            page += [place + line(described(mistake)), grid]
    return page


def line(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(visible(text), style)


def drawn(table: Table) -> "RenderableType":
    from rich.table import Table as Drawing

    drawing = Drawing(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name, words in zip(table.columns, are_words(table), strict=True):
        justify: Literal["left", "right"] = "left" if words else "right"
        drawing.add_column(line(name), justify=justify, no_wrap=not words, overflow="fold")
    for row in table.rows:
        drawing.add_row(*map(line, row))
    return drawing


def narrowed(table: Table) -> Table:
    """Without the columns of numbers that are too many for a terminal, and a word on where they are."""
    from rich.cells import cell_len

    if all(are_words(table)[1:]) or "meaning" in table.columns:
        return table
    wide = [max(map(cell_len, column)) + 2 for column in zip(table.columns, *table.rows, strict=True)]
    wide[0] = min(wide[0], LONGEST_NAME + 2)
    kept = len(wide)
    while kept > 1 and sum(wide[:kept]) > WIDTH:
        kept -= 1
    if kept == len(wide):
        return table
    left = f"{len(wide) - kept} more columns do not fit here: see Markdown, JSON or HTML."
    rows = tuple(row[:kept] for row in table.rows)
    return Table(table.title, table.columns[:kept], rows, f"{table.note} {left}".strip())


def markdown(evaluation: Evaluation, comparison: Comparison | None = None, title: str = "Evaluation") -> str:
    """Tables and examples in GitHub's Markdown."""
    parts = [f"# {plain(title)}", summary(evaluation)]
    for table in all_tables(evaluation, comparison, MARKDOWN_WORDS):
        parts += [f"## {plain(table.title)}", piped(filled(table)), *([table.note] if table.note else [])]
    chosen = examples(evaluation, MARKDOWN_EXAMPLES)
    if chosen:
        parts.append("## Examples")
    for kind, mistakes in chosen.items():
        parts.append(f"### {ERRORS[kind].capitalize()}")
        for mistake in mistakes:
            lines = "\n".join(f"    {side:9} {line}" for side, line in in_brackets(mistake))
            parts += [f"Sentence {mistake.number}: {plain(described(mistake))}", lines]
    return visible("\n\n".join(parts) + "\n")


def piped(table: Table) -> str:
    below = ["---" if words else "---:" for words in are_words(table)]
    rows = [list(map(plain, table.columns)), below, *(list(map(plain, row)) for row in table.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def plain(text: str) -> str:
    """Text in which Markdown finds nothing of its own.

    >>> plain("a|b *c* <d>")
    'a\\\\|b \\\\*c\\\\* \\\\<d>'
    """
    return "".join("\\" + c if c in "\\`*_|<[]~" else c for c in text).replace("\n", " ")
