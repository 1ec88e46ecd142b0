"""Trees as SVG: the lines of the spans above the words, the brackets of the entities below them."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from rich.cells import cell_len

from nestree.show.layout import (
    LabelColors,
    entity_brackets,
    format_probability,
    lexicalized_spans,
    pad_words,
    single_line,
    span_levels,
    span_modifiers,
    span_probabilities,
    stack_spans,
    text_direction,
    width,
    word_columns,
)
from nestree.types import Sentence, Span

CELL_WIDTH = 8.43  # pixels of a character at a font size of 14 pixels
TREE_ROW = 26  # pixels
BRACKET_ROW = 24
WORD_GAP = 5  # between words, in addition to a space
MARGIN = 16


def add_element(
    parent: ElementTree.Element, tag: str, content: str = "", title: str = "", **attributes: str | float
) -> ElementTree.Element:
    """Append an SVG element. In the names of attributes, _ stands for -, and a trailing _ is dropped.

    `title` is what a browser shows when the mouse is over the element. Numbers are rounded to a tenth; empty
    attributes are left out.
    """
    values = {
        name.rstrip("_").replace("_", "-"): value if isinstance(value, str) else f"{value:.1f}"
        for name, value in attributes.items()
        if value != ""
    }
    element = ElementTree.SubElement(parent, tag, values)
    element.text = content or None
    if title:
        ElementTree.SubElement(element, "title").text = title
    return element


class WordPositions:
    """The x coordinates of the words in pixels; from right to left for text of that direction."""

    def __init__(self, words: Sequence[str]) -> None:
        starts = [CELL_WIDTH * column + WORD_GAP * w for w, column in enumerate(word_columns(words)[:-1])]
        ends = [x + CELL_WIDTH * cell_len(word) for x, word in zip(starts, words, strict=True)]
        centers = [x + CELL_WIDTH * cell_len(w.rstrip()) / 2 for x, w in zip(starts, words, strict=True)]
        self.width = 2 * MARGIN + max(ends)
        rtl = text_direction(" ".join(words)) == "rtl"
        self.start, self.end, self.center = (
            [self.width - MARGIN - x if rtl else MARGIN + x for x in xs] for xs in (starts, ends, centers)
        )


def draw_svg(sentence: Sentence, colors: LabelColors) -> str:
    """The tree, words and entities of a sentence; needs the style of trees.css inside an element of class `nestree`."""
    brackets, labels = entity_brackets(sentence)
    words = pad_words([single_line(word) for word in sentence.words], brackets)
    classes = {span: f"entity c{colors[label]}" for span, label in labels.items()}
    x = WordPositions(words)
    svg = ElementTree.Element("svg", {"class": "tree", "role": "img", "aria-label": describe(sentence)})
    tree, tree_height = sentence.tree, float(MARGIN)
    bracket_spans = list(brackets)
    if heads := lexicalized_spans(tree, len(words)):
        assert tree is not None
        tree_height = TREE_ROW * (span_levels(heads)[0, len(words)] + 1) + MARGIN
        add_tree(svg, sentence.words, heads, span_probabilities(tree), x.center, tree_height, classes)
    elif tree is not None:
        bracket_spans += [(i, j) for i, j, _ in tree.spans if j - i > 1]
    baseline = tree_height + 18
    entity_heads = {entity.head for entity in sentence.entities}
    for w, word in enumerate(words):
        add_text(svg, x.center[w], baseline, word.rstrip(), "word head" if w in entity_heads else "word")
    bracket_spans = sorted(dict.fromkeys(bracket_spans), key=width)
    rows = stack_spans(bracket_spans)
    for span, row in zip(bracket_spans, rows, strict=True):
        a, b = sorted((x.start[span[0]], x.end[span[1] - 1]))
        y = baseline + 8 + BRACKET_ROW * row
        center, text = (a + b) / 2, brackets.get(span, "")
        room = 3.6 * cell_len(text) + 3
        gap = f"H{center - room:.1f}M{center + room:.1f} {y + 8:.1f}" if text else ""
        path = f"M{a:.1f} {y:.1f}v3q0 5 5 5{gap}H{b - 5:.1f}q5 0 5 -5v-3"
        add_element(svg, "path", class_=f"{classes.get(span, '')} bracket".strip(), d=path)
        if text:
            add_text(svg, center, y + 12, text, "small")
    height = baseline + 12 + BRACKET_ROW * (1 + max(rows, default=-1)) + MARGIN / 2
    svg.attrib |= {
        "width": f"{x.width:.0f}",
        "height": f"{height:.0f}",
        "viewBox": f"0 0 {x.width:.0f} {height:.0f}",
    }
    return ElementTree.tostring(svg, encoding="unicode")


def add_tree(
    svg: ElementTree.Element,
    words: Sequence[str],
    heads: Mapping[Span, int],
    probabilities: Mapping[Span, float],
    x: Sequence[float],
    bottom: float,
    classes: Mapping[Span, str],
) -> None:
    """Add the spans and arcs above the words, which begin at `bottom`; `x` are the centers of the words."""
    level = span_levels(heads)
    root = (0, len(words))
    top = bottom - TREE_ROW * (level[root] + 0.5)
    add_element(svg, "path", d=f"M{x[heads[root]]:.1f} {top + 4:.1f}V{bottom:.1f}")
    add_text(svg, x[heads[root]], top, "root", "small")
    for span, modifier in span_modifiers(heads).items():
        head = heads[span]
        y = bottom - TREE_ROW * (level[span] - 0.5)
        a, b = x[head], x[modifier]
        sign = 1 if b > a else -1
        probability = format_probability(probabilities[span]) if probabilities else ""
        labeled = probability and abs(b - a) > 7.6 * len(probability) + 22
        center, room = (a + b) / 2, 3.8 * len(probability) + 3
        start, end = f"M{a:.1f} {y:.1f}", f"H{b - 6 * sign:.1f}q{6 * sign} 0 {6 * sign} 6"
        gap = f"H{center - sign * room:.1f}M{center + sign * room:.1f} {y:.1f}" if labeled else ""
        lines = [" ".join(words[slice(*span)]), f"head: {words[head]}, modifier: {words[modifier]}"]
        lines += [f"probability {probabilities[span]:.3f}"] if probabilities else []
        group = add_element(svg, "g", title="\n".join(map(single_line, lines)))
        add_element(group, "path", class_="hit", d=start + end)
        add_element(group, "path", class_=classes.get(span, ""), d=start + gap + end)
        add_element(group, "path", class_="arrow", d=f"M{b - 3.5:.1f} {y + 6:.1f}h7l-3.5 7z")
        if labeled:
            add_text(group, center, y + 4, probability, "small")
        add_element(svg, "path", d=f"M{b:.1f} {y + 12:.1f}V{bottom:.1f}")


def add_text(parent: ElementTree.Element, x: float, y: float, text: str, style: str) -> None:
    """Add centered text. Words that fonts may draw wider than their cells are fitted to them."""
    fit: dict[str, Any] = {}
    if style.startswith("word") and not text.isascii() and cell_len(text):
        fit = {"textLength": CELL_WIDTH * cell_len(text), "lengthAdjust": "spacingAndGlyphs"}
    add_element(parent, "text", text, x=x, y=y, class_=f"{style} middle", **fit)


def describe(sentence: Sentence) -> str:
    """The tree in words, for screen readers."""
    words = [single_line(word) for word in sentence.words]
    tree = sentence.tree
    if tree is None:
        return f"Words: {' '.join(words)}"
    root = "" if tree.root is None else f" Root: {words[tree.root]}."
    modifiers_of: dict[int, list[str]] = {}
    for head, modifier in tree.arcs:
        modifiers_of.setdefault(head, []).append(words[modifier])
    arcs = "; ".join(f"{words[head]} governs {', '.join(names)}" for head, names in modifiers_of.items())
    return f"Tree of: {' '.join(words)}.{root}{f' {arcs}.' if arcs else ''}"
