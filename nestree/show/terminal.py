"""What a sentence gives to the drawing of its tree: what brackets say, probabilities, whether it is a whole tree."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len, chop_cells
from rich.table import Table
from rich.text import Text

from nestree.show.layout import (
    Edge,
    LabelColors,
    escape_invisible,
    isolate_direction,
    lay_out_boxes,
    on_one_line,
)
from nestree.types import Document, Sentence, Span, TextEntity, Tree


def brackets_of(sentence: Sentence) -> tuple[dict[Span, str], dict[Span, str]]:
    """Of each span that is an entity: what stands in its bracket, and the label that gives it its colour.

    >>> from nestree.types import Entity
    >>> brackets_of(Sentence(["Rome"], [Entity(0, 1, "ORG", score=0.2), Entity(0, 1, "GPE", score=0.9)]))
    ({(0, 1): 'GPE .90, ORG .20'}, {(0, 1): 'GPE'})
    """
    names: dict[Span, str] = {}
    labels: dict[Span, str] = {}
    for entity in sorted(sentence.entities, key=lambda entity: -(entity.score or 0)):
        name = on_one_line(entity.label) + ("" if entity.score is None else f" {short(entity.score)}")
        names[entity.span] = f"{names[entity.span]}, {name}" if entity.span in names else name
        labels.setdefault(entity.span, entity.label)
    return names, labels


def is_lexical(tree: Tree, n: int) -> bool:
    """Is it a whole binary tree with heads, so that it can be drawn as one?"""
    heads = {(i, j): h for i, j, h in tree.spans if h is not None}
    if (0, n) not in heads or not len(heads) == len(tree.spans) == 2 * n - 1:
        return False
    inside: dict[Span, list[Span]] = {}
    for span, above in parents(heads).items():
        inside.setdefault(above, []).append(span)
    for (i, j), found in inside.items():
        (a, b), (c, d) = min(found), max(found)
        if len(found) != 2 or (a, b, d) != (i, c, j) or heads[i, j] not in (heads[a, b], heads[c, d]):
            return False
    return True


def span_probabilities(tree: Tree) -> dict[int, dict[int, float]] | None:
    """The probability of each span, [i][j], if they are known."""
    found: dict[int, dict[int, float]] = {}
    for (i, j, _), probability in zip(tree.spans, tree.probabilities, strict=False):
        found.setdefault(i, {})[j] = probability
    return found or None


Matrix = Sequence[Sequence[float]]
Chances = Matrix | Mapping[int, Mapping[int, float]]  # of the spans of a tree: [i][j]

LONGEST = 32  # columns of a span in a table
NUMBER = 3  # columns of a probability
MIN_TREE_WIDTH = 4  # columns of the shortest word, so that a probability fits between any two
COLOURS = ("cyan", "magenta", "green", "yellow", "blue")  # of entities, innermost first
LIGHT = tuple("─├┤╭╮")
HEAVY = tuple("━┝┥┍┑")  # for the spans that are entities, to be told apart without colour too
CUTTABLE = {*LIGHT, *HEAVY, "│"}
ASCII = str.maketrans("─├┤╭╮━┝┥┍┑│╰╯╵…", "-++,.=++,.|`'|~")


def draw_tree(
    words: Sequence[str],
    spans: Iterable[Sequence[int]],
    span_probability: Chances | None = None,
    entities: Mapping[Span, str] | None = None,
    root: str = "root",
) -> Text:
    """The lexicalised tree of these spans (i, j, head) above its words, and brackets for its entities below.

    span_probability[i][j] stands on the line of its span, `root` above the tree, an entity's string in its
    bracket. The drawing is as wide as its words: it is not wrapped.
    """
    entities = entities or {}
    styles = colours(entities)
    tree = tree_canvas(words, spans, span_probability, styles, root)
    return Text("\n").join([*tree.lines(), *entity_canvas(words, entities, styles).lines()])


def draw_entities(words: Sequence[str], entities: Mapping[Span, str]) -> Text:
    """The words in a row and, below them, each entity (i, j) as a bracket that holds its string if that fits.

    >>> print(draw_entities(["the", "University", "of", "California"], {(0, 4): "ORG", (3, 4): "GPE"}))
    the  University of   California
                         ╰─ GPE ──╯
    ╰──────────── ORG ────────────╯
    """
    return Text("\n").join(entity_canvas(words, entities, colours(entities)).lines())


def tree_canvas(
    words: Sequence[str],
    spans: Iterable[Sequence[int]],
    span_probability: Chances | None,
    styles: Mapping[Span, str],
    root: str = "root",
) -> "Canvas":
    """The lines of a tree; those of the spans that have a style, the entities, are heavy."""
    tree = {(i, j): head for i, j, head in spans}
    parent = parents(tree)
    modifier = modifiers(tree)
    height = levels(tree)
    column = centres(words)
    whole = (0, len(words))
    rows = height[whole] + 1  # one for each height above that of the words, and the root's on top
    canvas = Canvas(rows)

    canvas.write(0, max(0, column[tree[whole]] - (cell_len(root) - 1) // 2), root, "bold")
    for span, head in tree.items():
        style = styles.get(span, "")
        row, row_above = (rows - height[s] if s else 0 for s in (span, parent.get(span)))
        for between in range(row_above + 1, row):
            canvas.write(between, column[head], "│", style or "dim")
        if span in modifier:
            dash, right, left, left_corner, right_corner = HEAVY if span in styles else LIGHT
            a, b = sorted((column[head], column[modifier[span]]))
            begin, end = (right, right_corner) if head < modifier[span] else (left_corner, left)
            label = short(span_probability[span[0]][span[1]]) if span_probability else ""
            before, label, after = labelled(label, b - a - 1, dash)
            canvas.write(row, a, begin + before, style or "dim")
            canvas.write(row, a + 1 + len(before), label, style)
            canvas.write(row, b - len(after), after + end, style or "dim")
    return canvas


def entity_canvas(
    words: Sequence[str],
    entities: Mapping[Span, str],
    styles: Mapping[Span, str],
    stretch: Span | None = None,
    heads: Collection[int] = (),
) -> "Canvas":
    """The words and brackets of a stretch; a bracket that reaches beyond it is open there. Heads are underlined."""
    first, last = stretch or (0, len(words))
    start = starts(words)
    rows = stacked(entities)
    canvas = Canvas(2 + max(rows.values(), default=-1))
    for w in range(first, last):
        around = [span for span in entities if span[0] <= w < span[1]]
        style = f"bold {styles[min(around, key=width)]}" if around else "bold"
        bare = words[w].rstrip() or words[w]
        canvas.write(0, start[w], bare, f"{style.strip()} underline" if w in heads else style.strip())
    for (i, j), label in entities.items():
        a, b = max(i, first), min(j, last)
        if a >= b:
            continue
        cells = start[b - 1] + cell_len(words[b - 1]) - start[a]
        opening, closing = "╰" if a == i else "─", "╯" if b == j else "─"
        bracket = opening + "".join(labelled(label, cells - 2, "─")) + closing if cells > 1 else "╵"
        canvas.write(1 + rows[i, j], start[a], bracket, styles[i, j])
    return canvas


def tabulate(
    words: Sequence[str],
    spans: Iterable[Sequence[int]],
    span_probability: Matrix,
    head_probability: Sequence[Matrix],
    arc_probability: Matrix,
    entities: Iterable[Span] = (),
) -> Table:
    """Each span (i, j, head) of two words or more, its head, and the modifier that its head gained there.

    Probabilities: span_probability[i][j], head_probability[i][j][head] (the span with this head), and
    arc_probability[head][modifier].
    """
    tree = {(i, j): head for i, j, head in spans}
    colour = colours(entities)
    table = Table(box=None, padding=0, header_style="dim")
    for name in ("span", "   head", "   modifier"):
        table.add_column(name, no_wrap=True)
        table.add_column(" P", justify="right")
    for (i, j), modifier in modifiers(tree).items():
        head = tree[i, j]
        text = shortened(" ".join(words[i:j]), LONGEST)
        table.add_row(
            Text(text, colour.get((i, j), "")),
            f" {span_probability[i][j]:.3f}",
            f"   {words[head]}",
            f" {head_probability[i][j][head]:.3f}",
            f"   {words[modifier]}",
            f" {arc_probability[head][modifier]:.3f}",
        )
    return table


def in_ascii(drawing: str) -> str:
    """The same drawing for a terminal that has no lines and corners.

    >>> in_ascii("├─ .93 ─╮")
    '+- .93 -.'
    """
    return drawing.translate(ASCII)


def short(probability: float) -> str:
    """Two decimals, without the zero before them.

    >>> short(0.973), short(1.0), short(0.004)
    ('.97', '1.00', '.00')
    """
    return f"{probability:.2f}".removeprefix("0")


def shortened(text: str, cells: int) -> str:
    """The text if it fits; else its first and its last words.

    >>> shortened("The president of the University of California", 30)
    'The president … of California'
    """
    words = text.split()
    for kept in range(len(words) - 1, 1, -1):
        if cell_len(text) <= cells:
            break
        last = kept // 2
        text = " ".join([*words[: kept - last], "…", *words[-last:]])
    return text if cell_len(text) <= cells else text[: max(0, cells - 1)] + "…"


class Canvas:
    """Rows that strings are written onto, in any order, each in its own place."""

    def __init__(self, rows: int) -> None:
        self.rows: list[list[tuple[int, str, str]]] = [[] for _ in range(rows)]

    def write(self, row: int, column: int, text: str, style: str) -> None:
        self.rows[row].append((column, text, style))

    def lines(self, left: int = 0, right: int | None = None) -> list[Text]:
        """What is written, or that of some columns: lines are cut there; words belong where they begin."""
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


def starts(words: Sequence[str]) -> list[int]:
    """The first column of each word."""
    column, columns = 0, []
    for word in words:
        columns.append(column)
        column += max(MIN_TREE_WIDTH, cell_len(word)) + 1
    return columns


def centres(words: Sequence[str]) -> list[int]:
    """The column in which each word's own line comes down."""
    return [
        start + max(0, cell_len(word.rstrip()) - 1) // 2
        for start, word in zip(starts(words), words, strict=True)
    ]


def roomy(words: Sequence[str], entities: Mapping[Span, str]) -> list[str]:
    """The words, with blanks after some of them so that each entity's string fits into its bracket.

    >>> roomy(["we", "met"], {(0, 1): "person .98"})
    ['we          ', 'met']
    """
    padded = list(words)
    for (i, j), label in sorted(entities.items(), key=lambda entity: width(entity[0])):
        start = starts(padded[i:j])
        missing = cell_len(label) + 2 - (start[-1] + cell_len(padded[j - 1]))
        padded[j - 1] += " " * missing
    return padded


def stretches(words: Sequence[str], cells: int) -> list[Span]:
    """Which words fit into lines of so many cells; a word that is wider has a line of its own.

    A line of a tree goes on up to the next stretch, and a number on it may reach beyond.
    """
    start = [*starts(words), sum(max(MIN_TREE_WIDTH, cell_len(word)) + 1 for word in words)]
    if start[-2] + cell_len(words[-1]) <= cells:
        return [(0, len(words))]
    found, first = [], 0
    for w in range(1, len(words)):
        if start[w + 1] - start[first] > cells - NUMBER:
            found.append((first, w))
            first = w
    return [*found, (first, len(words))]


def labelled(label: str, cells: int, dash: str) -> tuple[str, str, str]:
    """A line of so many cells in three pieces, the label in its middle; without it if it does not fit."""
    room = cells - cell_len(label)
    if room < 0:
        return dash * cells, "", ""
    if label and room >= 4:
        label, room = f" {label} ", room - 2
    return dash * (room // 2), label, dash * (room - room // 2)


def width(span: Span) -> int:
    return span[1] - span[0]


def levels(spans: Iterable[Span]) -> dict[Span, int]:
    """0 for spans that contain none of the others; for the rest, one more than the highest level inside."""
    level: dict[Span, int] = {}
    for i, j in sorted(spans, key=width):
        level[i, j] = 1 + max((at for (a, b), at in level.items() if i <= a and b <= j), default=-1)
    return level


def stacked(spans: Iterable[Span]) -> dict[Span, int]:
    """A row for each span so that none overlaps another in its row, the inner ones in the first rows.

    >>> stacked([(0, 4), (3, 4), (2, 6)])
    {(3, 4): 0, (0, 4): 1, (2, 6): 2}
    """
    row: dict[Span, int] = {}
    for i, j in sorted(spans, key=width):
        row[i, j] = 1 + max((at for (a, b), at in row.items() if a < j and i < b), default=-1)
    return row


def colours(entities: Iterable[Span]) -> dict[Span, str]:
    return {span: COLOURS[level % len(COLOURS)] for span, level in levels(entities).items()}


def modifiers(tree: Mapping[Span, int]) -> dict[Span, int]:
    """The word that became a modifier where each span of two words or more was made, in the tree's order."""
    parent = parents(tree)
    modifier = {above: tree[span] for span, above in parent.items() if tree[span] != tree[above]}
    return {span: modifier[span] for span in tree if span in modifier}


def parents(tree: Iterable[Span]) -> dict[Span, Span]:
    """The smallest span around each one; the whole sentence has none."""
    parent: dict[Span, Span] = {}
    open_spans: list[Span] = []
    for span in sorted(tree, key=lambda span: (span[0], -span[1])):
        while open_spans and open_spans[-1][1] <= span[0]:
            open_spans.pop()
        if open_spans:
            parent[span] = open_spans[-1]
        open_spans.append(span)
    return parent


BASIC = ("cyan", "magenta", "green", "yellow", "blue", "red")
ANSI = (*BASIC, *(f"bright_{colour}" for colour in BASIC))  # of labels
MIN_TEXT_WIDTH = 20  # columns of a terminal; in a narrower one, lines are too long
TAB = 4
INDENT = "  "
# What may be parted from what follows: blanks, but for those that forbid it, and ends of lines.
BLANKS = re.compile("(\r\n|[\n\r\u2028\u2029]|[ \t\u1680\u2000-\u2006\u2008-\u200a\u205f\u3000]+)")


class Run(NamedTuple):
    """Characters of one style."""

    text: str
    style: str = ""


def draw_document(
    document: Document, width: int, colours: LabelColors | None = None, head_mark: str = ""
) -> Text:
    """The text of a document with its entities in brackets, no wider than this."""
    colours, width = colours or LabelColors(), max(MIN_TEXT_WIDTH, width)
    document = document.with_text()
    text = document.text or ""
    chunks: list[list[list[Run]]] = [
        []
    ]  # each kept on a line if it fits there; blanks and line ends are chunks
    opened = False
    for part in lay_out_boxes(document.entities, 0, len(text)):
        if isinstance(part, Edge):
            add(chunks[-1], bracket(part, colours), opened)
            opened = part.opens
            continue
        mark, style = (head_mark, "bold underline") if part.head_of else ("", "")
        for k, piece in enumerate(
            BLANKS.split(isolate_direction(escape_invisible(text[part.start : part.end])))
        ):
            if k % 2:
                chunks += [[[Run(piece)]], []]
            elif piece:
                add(chunks[-1], [Run(f"{mark}{piece}{mark}", style)], opened)
                opened = False
    return wrapped(chunks, width)


def add(chunk: list[list[Run]], part: list[Run], opened: bool) -> None:
    """What follows an opening bracket is not parted from it."""
    if opened and chunk:
        chunk[-1] += part
    else:
        chunk.append(part)


def bracket(edge: Edge, colours: LabelColors) -> list[Run]:
    """The first label gives the colour of the brackets."""
    style = f"bold {ANSI[colours[edge.entity.label]]}"
    if edge.opens:
        return [Run("[…" if edge.cut else "[", style)]
    found = [Run("…|" if edge.cut else "|", style)]
    for k, name in enumerate(named(edge.entity)):
        label_style = f"bold {ANSI[colours[edge.entity.labels[k]]]}"
        found += [Run(", ", style)] * (k > 0) + [Run(name, label_style)]
    return [*found, Run("]", style)]


def named(entity: TextEntity) -> list[str]:
    """Each label and its probability, if there is one."""
    return [
        on_one_line(label) + ("" if score is None else f" {short(score)}")
        for label, score in zip(entity.labels, entity.scores, strict=True)
    ]


def wrapped(chunks: Iterable[Sequence[Sequence[Run]]], width: int) -> Text:
    """Lines of these chunks; one that is wider than a line is broken between its parts or, if need be, anywhere."""
    lines, column, blank = [Text()], 0, ""
    for chunk in chunks:
        first = chunk[0][0].text if chunk else ""
        if not first.strip():
            if first[:1] in tuple("\n\r\u2028\u2029"):
                lines.append(Text())
                column = 0
            blank = first.expandtabs(TAB).strip("\n\r\u2028\u2029")[: width // 2]
            continue
        whole = [run for part in chunk for run in part]
        room = width - len(INDENT)
        for part in [whole] if breadth(whole) <= room else chunk:
            for piece in [part] if breadth(part) <= room else chopped(part, room):
                wide = cell_len(blank) + breadth(piece)
                if column + wide > width and lines[-1].plain.strip():
                    lines.append(Text())
                    column, blank, wide = 0, INDENT, len(INDENT) + breadth(piece)
                elif column + wide > width:  # a line of blanks alone: fewer of them
                    blank = blank[: max(0, width - column - breadth(piece))]
                    wide = cell_len(blank) + breadth(piece)
                lines[-1].append(blank)
                for run in piece:
                    lines[-1].append(run.text, run.style)
                column, blank = column + wide, ""
    return Text("\n").join(lines)


def breadth(runs: Iterable[Run]) -> int:
    return sum(cell_len(run.text) for run in runs)


def chopped(runs: Iterable[Run], width: int) -> Iterator[list[Run]]:
    """The same in pieces that fit into a line."""
    for run in runs:
        for piece in chop_cells(run.text, width) if cell_len(run.text) > width else [run.text]:
            yield [Run(piece, run.style)]


def draw_sentence(sentence: Sentence, width: int, colours: LabelColors | None = None) -> Text:
    """The tree of a sentence above its words and its entities below them, in stretches that fit into the width."""
    colours = colours or LabelColors()
    entities, labels = brackets_of(sentence)
    styles = {span: ANSI[colours[label]] for span, label in labels.items()}
    words = roomy([on_one_line(word) for word in sentence.words], entities)
    heads = {entity.head for entity in sentence.entities if entity.head is not None}
    tree = sentence.tree
    above = None
    if tree is not None and is_lexical(tree, len(words)):
        above = tree_canvas(
            words, [(i, j, h or 0) for i, j, h in tree.spans], span_probabilities(tree), styles
        )
    elif tree is not None:
        more = {(i, j): "" for i, j, _ in tree.spans if j - i > 1 and (i, j) not in entities}
        entities, styles = {**entities, **more}, {**styles, **dict.fromkeys(more, "dim")}
    lines, start = [], starts(words)
    for first, last in stretches(words, width):
        left = start[first]
        right = start[last] if last < len(words) else None
        if above is not None:
            lines += [line for line in above.lines(left, right) if line.plain.strip(" │")]
        below = entity_canvas(words, entities, styles, (first, last), heads)
        lines += [line for k, line in enumerate(below.lines(left, right)) if line or k == 0]
        lines += [Text()] if right else []
    return Text("\n").join(lines)
