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
CUT_NUMBER = 3  # columns by which a number on a line of a tree may reach beyond its stretch
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
    chunks: list[list[Run]] = [[]]  # each is kept on a line, blanks and line ends apart
    for part in laid_out(document.entities, 0, len(text)):
        if isinstance(part, Edge):
            chunks[-1] += bracket(part, colours)
            continue
        mark, style = (head_mark, "bold underline") if part.head_of else ("", "")
        for k, piece in enumerate(BLANKS.split(unturned(visible(text[part.start : part.end])))):
            if k % 2:
                chunks += [[Run(piece)], []]
            elif piece:
                chunks[-1].append(Run(f"{mark}{piece}{mark}", style))
    return wrapped(chunks, width)


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


def wrapped(chunks: Iterable[Sequence[Run]], width: int) -> Text:
    """Lines of these chunks; what is wider than a line is broken after a closing bracket, or anywhere."""
    lines, line, blank = [], Text(), ""
    for chunk in chunks:
        if not chunk:
            continue
        if not chunk[0].text.strip():
            if chunk[0].text[0] in "\n\r\u2028\u2029":
                lines.append(line)
                line, blank = Text(), ""
            else:
                blank = chunk[0].text.expandtabs(TAB)
            continue
        wide = sum(cell_len(run.text) for run in chunk)
        if line.plain.strip() and line.cell_len + cell_len(blank) + wide > width:
            lines.append(line)
            line, blank = Text(), INDENT
        line.append(blank)
        blank = ""
        for run in broken(chunk, width - len(INDENT)) if line.cell_len + wide > width else chunk:
            if line.plain.strip() and line.cell_len + cell_len(run.text) > width:
                lines.append(line)
                line = Text(INDENT)
            line.append(run.text, run.style)
    return Text("\n").join([*lines, line])


def broken(chunk: Sequence[Run], width: int) -> Iterator[Run]:
    """The same in pieces that fit into a line: cut after brackets, and only where that is not enough, anywhere."""
    for run in chunk:
        for piece in chop_cells(run.text, width) if cell_len(run.text) > width else [run.text]:
            yield Run(piece, run.style)


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
    parts = stretches(words, width)
    for first, last in parts if len(parts) == 1 else stretches(words, width - CUT_NUMBER):
        left = start[first]
        right = start[last] if last < len(words) else None
        if above is not None:
            lines += [line for line in above.lines(left, right) if line.plain.strip(" │")]
        below = entity_canvas(words, entities, styles, (first, last), heads)
        lines += [line for k, line in enumerate(below.lines(left, right)) if line or k == 0]
        lines += [Text()] if right else []
    return Text("\n").join(lines)
