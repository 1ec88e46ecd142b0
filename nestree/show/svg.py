"""The tree of a sentence as a drawing in SVG, laid out like the one in a terminal.

A line is a span, the words below it. It starts at the head of the span, whose own line goes on upwards, and its arrow
points down at a new modifier: one arc. Entities have heavy lines, and brackets with their labels below the words.
"""

from collections.abc import Mapping, Sequence
from html import escape

from rich.cells import cell_len

from nestree.sentence import Sentence, Span
from nestree.show.characters import direction, on_one_line
from nestree.show.labels import Colours
from nestree.show.sentences import brackets_of, chances, is_lexical
from nestree.show.trees import levels, modifiers, roomy, short, stacked, starts

CELL = 8.43  # pixels of a character of 14 pixels
ROW = 26  # of the tree
BRACKETS = 24  # a row of them
BETWEEN = 5  # pixels between words, beyond a cell
MARGIN = 16


class Grid:
    """Where words stand, in pixels; from right to left if they are written so."""

    def __init__(self, words: Sequence[str]) -> None:
        left = [CELL * column + BETWEEN * w for w, column in enumerate(starts(words))]
        right = [x + CELL * cell_len(word) for x, word in zip(left, words, strict=True)]
        middle = [x + CELL * cell_len(word.rstrip()) / 2 for x, word in zip(left, words, strict=True)]
        self.width = 2 * MARGIN + max(right)
        self.turned = direction(" ".join(words)) == "rtl"
        self.left, self.right, self.middle = ([self.at(x) for x in xs] for xs in (left, right, middle))

    def at(self, x: float) -> float:
        return self.width - MARGIN - x if self.turned else MARGIN + x


def draw_svg(sentence: Sentence, colours: Colours) -> str:
    """The tree, words and entities of a sentence; needs the style TREES inside an element of class `nestree`."""
    entities, labels = brackets_of(sentence)
    words = roomy([on_one_line(word) for word in sentence.words], entities)
    colour = {span: f"c{colours[label]}" for span, label in labels.items()}
    grid = Grid(words)
    tree, top, parts = sentence.tree, float(MARGIN), []
    spans = dict.fromkeys(entities, "")
    if tree is not None and is_lexical(tree, len(words)):
        heads = {(i, j): h for i, j, h in tree.spans if h is not None}
        top = ROW * (levels(heads)[0, len(words)] + 1) + MARGIN
        parts = lines(sentence.words, heads, chances(tree), grid, top, colour)
    elif tree is not None:
        spans |= {(i, j): "" for i, j, _ in tree.spans if j - i > 1}
    words_at = top + 18
    headed = {entity.head for entity in sentence.entities}
    for w, word in enumerate(words):
        parts.append(placed(grid.middle[w], words_at, word.rstrip(), "word head" if w in headed else "word"))
    rows = stacked(spans)
    for span, row in rows.items():
        parts.append(
            bracket(span, words_at + 8 + BRACKETS * row, grid, entities.get(span, ""), colour.get(span, ""))
        )
    height = words_at + 12 + BRACKETS * (1 + max(rows.values(), default=-1)) + MARGIN / 2
    return (
        f'<svg class="tree" role="img" aria-label="{escape(described(sentence))}" '
        f'width="{grid.width:.0f}" height="{height:.0f}" viewBox="0 0 {grid.width:.0f} {height:.0f}">'
        + "".join(parts)
        + "</svg>"
    )


def lines(
    words: Sequence[str],
    tree: Mapping[Span, int],
    probability: Mapping[int, Mapping[int, float]] | None,
    grid: Grid,
    bottom: float,
    colour: Mapping[Span, str],
) -> list[str]:
    """The spans and arcs above the words, which begin at `bottom`."""
    height = levels(tree)
    middle = grid.middle
    whole = tree[0, len(words)]
    parts = [
        f'<path d="M{middle[whole]:.1f} {bottom - ROW * (height[0, len(words)] + 0.5) + 4:.1f}V{bottom:.1f}"/>',
        placed(middle[whole], bottom - ROW * (height[0, len(words)] + 0.5), "root", "small"),
    ]
    for (i, j), modifier in modifiers(tree).items():
        head = tree[i, j]
        y = bottom - ROW * (height[i, j] - 0.5)
        a, b = middle[head], middle[modifier]
        bend = 6 if b > a else -6
        number = short(probability[i][j]) if probability else ""
        room = 3.8 * len(number) + 3 if number and abs(b - a) > 7.6 * len(number) + 22 else 0
        centre, way = (a + b) / 2, 1 if b > a else -1
        start = f"M{a:.1f} {y:.1f}"
        gap = f"H{centre - way * room:.1f}M{centre + way * room:.1f} {y:.1f}" if room else ""
        end = f"H{b - bend:.1f}q{bend} 0 {bend} 6"
        kind = f' class="entity {colour[i, j]}"' if (i, j) in colour else ""
        told = f"{' '.join(words[i:j])}\nhead: {words[head]}, modifier: {words[modifier]}"
        told += f"\nprobability {probability[i][j]:.3f}" if probability else ""
        parts.append(
            f"<g><title>{escape(on_lines(told))}</title>"
            f'<path class="hit" d="{start}{end}"/><path{kind} d="{start}{gap}{end}"/>'
            f'<path class="arrow" d="M{b - 3.5:.1f} {y + 6:.1f}h7l-3.5 7z"/>'
            + (placed(centre, y + 4, number, "small") if room else "")
            + "</g>"
        )
        parts.append(f'<path d="M{b:.1f} {y + 12:.1f}V{bottom:.1f}"/>')
    return parts


def on_lines(text: str) -> str:
    return "\n".join(map(on_one_line, text.split("\n")))


def bracket(span: Span, y: float, grid: Grid, label: str, colour: str) -> str:
    """Below the words of a span; entities have a colour and a label."""
    i, j = span
    a, b = sorted((grid.left[i], grid.right[j - 1]))
    centre, room = (a + b) / 2, 3.6 * cell_len(label) + 3
    kind = f"entity bracket {colour}" if colour else "bracket"
    gap = f"H{centre - room:.1f}M{centre + room:.1f} {y + 8:.1f}" if label else ""
    drawn = f'<path class="{kind}" d="M{a:.1f} {y:.1f}v3q0 5 5 5{gap}H{b - 5:.1f}q5 0 5 -5v-3"/>'
    return drawn + (placed(centre, y + 12, label, "small") if label else "")


def placed(x: float, y: float, text: str, kind: str) -> str:
    """Text around a middle. What fonts may draw wider than its cells is made to fit."""
    fit = (
        "" if text.isascii() else f' textLength="{CELL * cell_len(text):.1f}" lengthAdjust="spacingAndGlyphs"'
    )
    fit = fit if kind.startswith("word") and cell_len(text) else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind} middle"{fit}>{escape(text)}</text>'


def described(sentence: Sentence) -> str:
    """The tree in words, for those who do not see it."""
    words = [on_one_line(word) for word in sentence.words]
    tree = sentence.tree
    if tree is None:
        return f"Words: {' '.join(words)}"
    root = "" if tree.root is None else f" Root: {words[tree.root]}."
    modifiers_of: dict[int, list[str]] = {}
    for head, modifier in tree.arcs:
        modifiers_of.setdefault(head, []).append(words[modifier])
    arcs = "; ".join(f"{words[head]} governs {', '.join(found)}" for head, found in modifiers_of.items())
    return f"Tree of: {' '.join(words)}.{root}{f' {arcs}.' if arcs else ''}"
