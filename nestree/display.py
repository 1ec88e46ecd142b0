"""What `show`, `report` and `serve` share: safe text, tables, the colors of labels, rows of brackets, and pages.

Templates and styles are files of the package, next to the code that uses them; those of every page are in `templates`.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING
from zlib import crc32

from nestree import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

# Text

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Control characters except line ends and tabs; lone surrogates.
INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
BIDI_CONTROLS = re.compile("[\u202a-\u202e\u2066-\u2069]")


def escape_invisible(text: str) -> str:
    """Replace each character that could control a terminal or cannot be encoded as UTF-8; the length stays the same.

    >>> escape_invisible("a\\x00b")
    'a�b'
    """
    return INVISIBLE.sub(REPLACEMENT, text)


def escape_bidi(text: str) -> str:
    """Replace bidirectional controls, which could change the direction of the text that follows."""
    return BIDI_CONTROLS.sub(REPLACEMENT, text)


def single_line(text: str) -> str:
    """A word or a label as it is drawn: without control characters, bidirectional controls, tabs and line ends."""
    return re.sub("[\t\n\r\u2028\u2029]", REPLACEMENT, escape_bidi(escape_invisible(text)))


def escape_markdown(text: str) -> str:
    """The text on one line, with a backslash before each character that is Markdown.

    >>> escape_markdown("a|b *c* <d>")
    'a\\\\|b \\\\*c\\\\* \\\\<d>'
    """
    return re.sub(r"([\\`*_|<\[\]~])", r"\\\1", text).replace("\n", " ")


def text_table(rows: Sequence[Sequence[str]], is_left: Sequence[bool]) -> str:
    """The rows in aligned columns, those with text on the left, numbers on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{'<' if left else '>'}{width}}}" for left, width in zip(is_left, widths, strict=True))
    return "\n".join(line.format(*row).rstrip() for row in rows)


def markdown_table(rows: Sequence[Sequence[str]], is_left: Sequence[bool]) -> str:
    """The rows, of which the first is the header, as a table in Markdown."""
    header, *body = ([escape_markdown(cell) for cell in row] for row in rows)
    rules = ["---" if left else "---:" for left in is_left]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rules, *body))


def format_probability(probability: float) -> str:
    """Two decimals, without the leading zero.

    >>> format_probability(0.973), format_probability(1.0), format_probability(0.004)
    ('.97', '1.00', '.00')
    """
    return f"{probability:.2f}".removeprefix("0")


# Colors of labels

# Each with a contrast of at least 3 : 1 on light and dark pages, and at a distance of 14 or more (CIE76) from the
# others, also for readers who do not see red, green or blue; and black or white, whichever is read better on it.
HTML_COLORS = (
    ("#0087fc", "#000"), ("#bd7e12", "#000"), ("#ea3663", "#000"), ("#008763", "#fff"), ("#875ac6", "#fff"),
    ("#5a7e2d", "#fff"), ("#bd3f99", "#fff"), ("#7e87c6", "#000"), ("#ab7590", "#000"), ("#e16348", "#000"),
)  # fmt: skip
TERMINAL_COLORS = (
    "blue", "yellow", "red", "green", "magenta",
    "bright_green", "bright_magenta", "cyan", "bright_blue", "bright_red",
)  # fmt: skip
# The usual labels by the index of their color: no two labels of a well-known corpus share one.
KNOWN_LABELS = (
    "org organization cell_line", "loc location place dna", "event rna wea", "per person protein", "date time",
    "gpe plant", "abstract", "object product veh", "animal fac", "cell_type substance",
)  # fmt: skip
COLOR_OF_LABEL = {label: k for k, labels in enumerate(KNOWN_LABELS) for label in labels.split()}


def color_index(label: str) -> int:
    """The index of a label's color in HTML_COLORS and TERMINAL_COLORS: the same on every page.

    >>> color_index("PER"), color_index("person"), color_index("a label of yours")
    (3, 3, 2)
    """
    unknown = crc32(label.encode("utf-8", "surrogatepass")) % len(HTML_COLORS)
    return COLOR_OF_LABEL.get(label.lower(), unknown)


# Brackets


def stack_spans(spans: Sequence[tuple[int, int]]) -> list[int]:
    """A row for each span so that spans of a row do not overlap; inner spans are in lower rows.

    >>> stack_spans([(0, 4), (3, 4), (2, 6), (0, 4)])
    [1, 0, 2, 3]
    """
    rows: dict[int, int] = {}
    for k in sorted(range(len(spans)), key=lambda k: spans[k][1] - spans[k][0]):
        i, j = spans[k]
        rows[k] = 1 + max((row for m, row in rows.items() if spans[m][0] < j and i < spans[m][1]), default=-1)
    return [rows[k] for k in range(len(spans))]


# HTML


@cache
def environment() -> "Environment":
    """The Jinja environment of all pages; its templates are named by their paths in the package."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    jinja = Environment(
        loader=FunctionLoader(lambda name: files("nestree").joinpath(name).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters.update(single_line=single_line, color_index=color_index)
    jinja.globals.update(label_colors=HTML_COLORS)
    return jinja


def render(template: str, **values: object) -> str:
    """Render a template, such as "show/templates/page.html.jinja"; every value is escaped for HTML."""
    return environment().get_template(template).render(values)


def render_page(template: str, title: str, about: Mapping[str, str] | None, **values: object) -> str:
    """Render a page. `about` says what it was made of, such as the model and the data; date and version are added."""
    facts = {**(about or {}), "date": date.today().isoformat(), "version": f"nestree {__version__}"}
    return escape_invisible(render(template, title=title, about=facts, **values))
