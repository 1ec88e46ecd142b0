"""A document in a terminal: brackets around its entities, each with labels and probability; heads are underlined.

The text stays as it is, and is wrapped to the width of the terminal. Where a terminal cannot underline, a mark stands
on both sides of heads.

>>> from nestree.sentence import Document, Entity, Sentence
>>> words = "the University of California".split()
>>> entities = [Entity(0, 4, "ORG", head=1, score=0.93), Entity(3, 4, "GPE", head=3, score=0.98)]
>>> print(draw_document(Document([Sentence(words, entities)]), 80, head_mark="_"))
[the _University_ of [_California_|GPE .98]|ORG .93]

Entities that cross others are cut in two, with dots at the cut. Lines that go on are indented.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len, chop_cells
from rich.text import Text

from nestree.sentence import Document, Sentence, TextEntity
from nestree.show.characters import on_one_line, unturned, visible
from nestree.show.labels import Colours
from nestree.show.nesting import Edge, laid_out
from nestree.show.sentences import brackets_of, chances, is_lexical
from nestree.show.trees import entity_canvas, roomy, short, starts, stretches, tree_canvas

BASIC = ("cyan", "magenta", "green", "yellow", "blue", "red")
ANSI = (*BASIC, *(f"bright_{colour}" for colour in BASIC))  # of labels
NARROWEST = 20  # columns of a terminal; in a narrower one, lines are too long
TAB = 4
INDENT = "  "
# What may be parted from what follows: blanks, but for those that forbid it, and ends of lines.
BLANKS = re.compile("(\r\n|[\n\r\u2028\u2029]|[ \t\u1680\u2000-\u2006\u2008-\u200a\u205f\u3000]+)")


class Run(NamedTuple):
    """Characters of one style."""

    text: str
    style: str = ""


def draw_document(
    document: Document, width: int, colours: Colours | None = None, head_mark: str = ""
) -> Text:
    """The text of a document with its entities in brackets, no wider than this."""
    colours, width = colours or Colours(), max(NARROWEST, width)
    document = document.with_text()
    text = document.text or ""
    chunks: list[list[list[Run]]] = [
        []
    ]  # each kept on a line if it fits there; blanks and line ends are chunks
    opened = False
    for part in laid_out(document.entities, 0, len(text)):
        if isinstance(part, Edge):
            add(chunks[-1], bracket(part, colours), opened)
            opened = part.opens
            continue
        mark, style = (head_mark, "bold underline") if part.head_of else ("", "")
        for k, piece in enumerate(BLANKS.split(unturned(visible(text[part.start : part.end])))):
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


def bracket(edge: Edge, colours: Colours) -> list[Run]:
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


def draw_sentence(sentence: Sentence, width: int, colours: Colours | None = None) -> Text:
    """The tree of a sentence above its words and its entities below them, in stretches that fit into the width."""
    colours = colours or Colours()
    entities, labels = brackets_of(sentence)
    styles = {span: ANSI[colours[label]] for span, label in labels.items()}
    words = roomy([on_one_line(word) for word in sentence.words], entities)
    heads = {entity.head for entity in sentence.entities if entity.head is not None}
    tree = sentence.tree
    above = None
    if tree is not None and is_lexical(tree, len(words)):
        above = tree_canvas(words, [(i, j, h or 0) for i, j, h in tree.spans], chances(tree), styles)
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
