"""Documents and sentences as text with colors: entities in brackets, trees above their words."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from rich.cells import cell_len, chop_cells
from rich.text import Text

from nestree.display import TERMINAL_COLORS, color_index, escape_bidi, escape_invisible, format_probability, stack_spans
from nestree.show.layout import (
    Bracket,
    SentenceLayout,
    lay_out,
    parent_spans,
    span_levels,
    span_modifiers,
    width,
    with_probability,
    word_columns,
)
from nestree.types import Document, Sentence, Span

ASCII = str.maketrans("─├┤╭╮━┝┥┍┑│╰╯╵…", "-++,.=++,.|`'|~")


def to_ascii(drawing: str) -> str:
    """The drawing for a terminal that cannot show box-drawing characters.

    >>> to_ascii("├─ .93 ─╮")
    '+- .93 -.'
    """
    return drawing.translate(ASCII)


# Documents

MIN_WIDTH = 20  # columns; in a narrower terminal, lines are too long
TAB = 4
INDENT = "  "  # of lines that continue a line of the text
LINE_ENDS = "\n\u2028\u2029"
# Lines may be broken at line ends and at spaces, except no-break spaces.
BREAKS = re.compile(f"(\r\n?|[{LINE_ENDS}]|[ \t\u1680\u2000-\u2006\u2008-\u200a\u205f\u3000]+)")


def draw_document(document: Document, width: int, head_mark: str = "") -> Text:
    """The text of a document with its entities in brackets, wrapped to `width` columns.

    `head_mark` is written before and after each head, for terminals that cannot underline.
    """
    document = document.with_text()
    text = document.text or ""
    # A chunk stays on one line if it fits; otherwise it is broken between its parts. Spaces and line ends are
    # chunks of their own. Nothing is broken after an opening bracket.
    chunks: list[list[Text]] = [[]]
    after_opening = False
    for part in lay_out(document.entities, 0, len(text)):
        if isinstance(part, Bracket):
            pieces = [bracket_text(part)]
        else:
            mark, style = (head_mark, "bold underline") if part.head_of else ("", "")
            segment = escape_bidi(escape_invisible(text[part.start : part.end]))
            pieces = [
                # Rich removes carriage returns
                Text(piece.replace("\r", "\n")) if k % 2 else Text(f"{mark}{piece}{mark}", style)
                for k, piece in enumerate(BREAKS.split(segment))
                if piece
            ]
        for piece in pieces:
            if piece.plain.isspace():
                chunks += [[piece], []]
            elif after_opening and chunks[-1]:
                chunks[-1][-1].append_text(piece)
            else:
                chunks[-1].append(piece)
            after_opening = isinstance(part, Bracket) and part.opens
    return wrap(chunks, max(MIN_WIDTH, width))


def bracket_text(bracket: Bracket) -> Text:
    """A bracket; the closing one has the labels and their probabilities. The first label determines the color."""
    styles = [f"bold {TERMINAL_COLORS[color_index(label)]}" for label in bracket.entity.labels]
    if bracket.opens:
        return Text("[…" if bracket.cut else "[", styles[0])
    text = Text()
    for label, score, style in zip(bracket.entity.labels, bracket.entity.scores, styles, strict=True):
        text.append(", " if text else "…|" if bracket.cut else "|", styles[0])
        text.append(with_probability(label, score), style)
    return text.append("]", styles[0])


def wrap(chunks: Iterable[Sequence[Text]], width: int) -> Text:
    """Lines of at most `width` columns; a part that is wider than a line is broken anywhere."""
    lines, column, space, room = [Text()], 0, "", width - len(INDENT)
    for chunk in chunks:
        if not chunk:
            continue
        whole = chunk[0] if len(chunk) == 1 else Text().join(chunk)
        if whole.plain.isspace():
            if whole.plain[0] in LINE_ENDS:
                lines.append(Text())
                column = 0
            space = whole.plain.expandtabs(TAB).strip(LINE_ENDS)[: width // 2]
            continue
        pieces = [whole]
        if whole.cell_len > room:
            cuts = [(part, accumulate(map(len, chop_cells(part.plain, room)[:-1]))) for part in chunk]
            pieces = [piece for part, offsets in cuts for piece in part.divide(offsets)]
        for piece in pieces:
            cells = piece.cell_len
            if column + cell_len(space) + cells > width:
                if lines[-1].plain.strip():
                    lines.append(Text())
                    column, space = 0, INDENT
                else:  # a line of spaces alone: fewer of them
                    space = space[: max(0, width - column - cells)]
            lines[-1].append(space).append_text(piece)
            column, space = column + cell_len(space) + cells, ""
    return Text("\n").join(lines)


# Sentences and their trees

PROBABILITY_WIDTH = 3  # columns
LIGHT = tuple("─├┤╭╮")
HEAVY = tuple("━┝┥┍┑")  # for spans that are entities, so that they can be told apart without color
CUTTABLE = {*LIGHT, *HEAVY, "│"}


def draw_sentence(sentence: Sentence, width: int) -> Text:
    """The tree of a sentence above its words and its entities below them, wrapped to `width` columns."""
    layout = SentenceLayout(sentence)
    words, columns = layout.words, word_columns(layout.words)
    styles = {span: TERMINAL_COLORS[color_index(label)] for span, label in layout.labels.items()}
    tree = draw_tree(layout, styles) if layout.heads else None
    lines: list[Text] = []
    for first, last in wrap_words(words, width):
        left, right = columns[first], columns[last] if last < len(words) else None
        if tree is not None:
            lines += [line for line in tree.lines(left, right) if line.plain.strip(" │")]
        brackets = draw_brackets(layout, styles, first, last)
        lines += [line for k, line in enumerate(brackets.lines(left, right)) if line or k == 0]
        lines += [Text()] if right else []
    return Text("\n").join(lines)


def wrap_words(words: Sequence[str], width: int) -> list[Span]:
    """The words of each line of `width` columns; a wider word has a line of its own.

    There is room for a probability after a line: it may extend beyond the words.
    """
    columns = word_columns(words)
    if columns[-2] + cell_len(words[-1]) <= width:
        return [(0, len(words))]
    spans, first = [], 0
    for w in range(1, len(words)):
        if columns[w + 1] - columns[first] > width - PROBABILITY_WIDTH:
            spans.append((first, w))
            first = w
    return [*spans, (first, len(words))]


class Canvas:
    """Rows onto which strings are written at given columns, in any order."""

    def __init__(self, rows: int) -> None:
        self.rows: list[list[tuple[int, str, str]]] = [[] for _ in range(rows)]

    def write(self, row: int, column: int, text: str, style: str) -> None:
        self.rows[row].append((column, text, style))

    def lines(self, left: int, right: int | None) -> list[Text]:
        """The rows from column `left` to `right`. Tree lines are cut there; other strings belong where they begin."""
        lines = []
        for row in self.rows:
            line = Text()
            for column, text, style in sorted(row):
                if set(text) <= CUTTABLE:
                    text = text[max(0, left - column) : None if right is None else max(0, right - column)]
                    column = max(column, left)
                if left <= column and (right is None or column < right):
                    line.append(" " * (column - left - line.cell_len)).append(text, style)
            lines.append(line)
        return lines


def draw_tree(layout: SentenceLayout, styles: Mapping[Span, str]) -> Canvas:
    """The lines of a tree with the probabilities of its spans; spans with a style, the entities, have heavy lines."""
    words, heads, probabilities = layout.words, layout.heads or {}, layout.probabilities
    parent, modifier, level = parent_spans(heads), span_modifiers(heads), span_levels(heads)
    # The column in which each word's own line comes down.
    column = [
        start + max(0, cell_len(word.rstrip()) - 1) // 2
        for start, word in zip(word_columns(words), words, strict=False)
    ]
    root = (0, len(words))
    rows = level[root] + 1  # the top row is that of "root"
    canvas = Canvas(rows)
    canvas.write(0, max(0, column[heads[root]] - 1), "root", "bold")
    for span, head in heads.items():
        style = styles.get(span, "")
        row, row_above = (rows - level[s] if s else 0 for s in (span, parent.get(span)))
        for between in range(row_above + 1, row):
            canvas.write(between, column[head], "│", style or "dim")
        if span in modifier:
            dash, right, left, left_corner, right_corner = HEAVY if span in styles else LIGHT
            a, b = sorted((column[head], column[modifier[span]]))
            begin, end = (right, right_corner) if head < modifier[span] else (left_corner, left)
            probability = format_probability(probabilities[span]) if probabilities else ""
            before, probability, after = center(probability, b - a - 1, dash)
            canvas.write(row, a, begin + before, style or "dim")
            canvas.write(row, a + 1 + len(before), probability, style)
            canvas.write(row, b - len(after), after + end, style or "dim")
    return canvas


def draw_brackets(layout: SentenceLayout, styles: Mapping[Span, str], first: int, last: int) -> Canvas:
    """The words from `first` to `last` and the brackets below them, open where they go on. Heads are underlined."""
    words, brackets = layout.words, layout.brackets
    columns = word_columns(words)
    rows = dict(zip(brackets, stack_spans(list(brackets)), strict=True))
    canvas = Canvas(2 + max(rows.values(), default=-1))
    for w in range(first, last):
        around = [span for span in brackets if span[0] <= w < span[1]]
        style = f"bold {styles.get(min(around, key=width), 'dim')}" if around else "bold"
        word = words[w].rstrip() or words[w]
        canvas.write(0, columns[w], word, f"{style} underline" if w in layout.head_words else style)
    for (i, j), text in brackets.items():
        a, b = max(i, first), min(j, last)
        if a >= b:
            continue
        cells = columns[b - 1] + cell_len(words[b - 1]) - columns[a]
        opening, closing = "╰" if a == i else "─", "╯" if b == j else "─"
        bracket = opening + "".join(center(text, cells - 2, "─")) + closing if cells > 1 else "╵"
        canvas.write(1 + rows[i, j], columns[a], bracket, styles.get((i, j), "dim"))
    return canvas


def center(label: str, cells: int, dash: str) -> tuple[str, str, str]:
    """A line of the given number of cells in three parts with the label in the middle; no label if it does not fit."""
    room = cells - cell_len(label)
    if room < 0:
        return dash * cells, "", ""
    if label and room >= 4:
        label, room = f" {label} ", room - 2
    return dash * (room // 2), label, dash * (room - room // 2)
