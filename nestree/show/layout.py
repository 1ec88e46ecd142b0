"""What terminal and HTML drawings share: safe text, label colors, and the layout of nested brackets and of trees."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

from rich.cells import cell_len

from nestree.types import CharSpan, Sentence, Span, TextEntity, Tree

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


def text_direction(text: str, default: str = "ltr") -> str:
    """`ltr` or `rtl`, by the first letter of the text.

    >>> text_direction("... שלום, world"), text_direction("hello שלום"), text_direction("1.2", "rtl")
    ('rtl', 'ltr', 'rtl')
    """
    for character in text:
        kind = unicodedata.bidirectional(character)
        if kind in ("L", "R", "AL"):
            return "ltr" if kind == "L" else "rtl"
    return default


def format_probability(probability: float) -> str:
    """Two decimals, without the leading zero.

    >>> format_probability(0.973), format_probability(1.0), format_probability(0.004)
    ('.97', '1.00', '.00')
    """
    return f"{probability:.2f}".removeprefix("0")


# Colors of labels

# For HTML. The relative luminance of each is 0.185: a contrast of at least 3 : 1 on white and on #20242a or darker.
HTML_COLORS = (
    "#1f77db", "#c35710", "#228844", "#cd39a1", "#108390", "#d6404a",
    "#8b5fd7", "#678112", "#9b6f2d", "#597b94", "#d53a73", "#636dd8",
)  # fmt: skip
TERMINAL_COLORS = (
    "cyan", "magenta", "green", "yellow", "blue", "red",
    "bright_cyan", "bright_magenta", "bright_green", "bright_yellow", "bright_blue", "bright_red",
)  # fmt: skip


class LabelColors:
    """Assigns each label an index into HTML_COLORS and TERMINAL_COLORS at its first use.

    A label prefers the same color in every document. If that is taken, it gets the next free one; labels share
    colors once all are taken.

    >>> colors = LabelColors()
    >>> [colors[label] for label in ("PER", "ORG", "GPE", "PER")]
    [10, 11, 0, 10]
    """

    def __init__(self) -> None:
        self.indices: dict[str, int] = {}

    def __getitem__(self, label: str) -> int:
        if label not in self.indices:
            count = len(HTML_COLORS)
            preferred = crc32(label.encode("utf-8", "surrogatepass")) % count
            taken = set(self.indices.values())
            candidates = ((preferred + k) % count for k in range(count))
            self.indices[label] = next((index for index in candidates if index not in taken), preferred)
        return self.indices[label]


# Entities as brackets or boxes in running text


class Edge(NamedTuple):
    """Where an entity, or a part of it, opens or closes. Crossing entities are cut into parts that nest."""

    position: int  # in characters
    opens: bool
    entity: TextEntity
    cut: bool  # the entity itself does not begin or end here: it is cut by another one that it crosses
    height: int = 0  # of an opening edge: how many levels of boxes this box contains
    cut_at_end: bool = False  # of an opening edge: the entity goes on in another box


class Segment(NamedTuple):
    """Text between two edges, never empty; `head_of` are the entities of which it is the head."""

    start: int
    end: int
    head_of: Sequence[TextEntity]


def find_edges(entities: Iterable[TextEntity]) -> list[Edge]:
    """The edges of all entities in text order, as matching brackets."""
    starting: defaultdict[int, list[TextEntity]] = defaultdict(list)
    ends = set()
    for entity in entities:
        starting[entity.start].append(entity)
        ends.add(entity.end)
    edges: list[Edge] = []
    open_entities: list[TextEntity] = []  # the outermost first
    open_edges: list[int] = []  # their opening edges
    for position in sorted({*starting, *ends}):
        cut: list[TextEntity] = []
        outermost = next(
            (k for k, entity in enumerate(open_entities) if entity.end == position), len(open_entities)
        )
        while len(open_entities) > outermost:
            entity = open_entities.pop()
            is_cut = entity.end > position
            edges.append(Edge(position, False, entity, is_cut))
            inner = open_edges.pop()
            edges[inner] = edges[inner]._replace(cut_at_end=is_cut)
            if open_edges:
                outer = edges[open_edges[-1]]
                edges[open_edges[-1]] = outer._replace(height=max(outer.height, edges[inner].height + 1))
            if is_cut:
                cut.append(entity)
        opening = sorted([*reversed(cut), *starting.get(position, ())], key=lambda entity: -entity.end)
        for entity in opening:
            open_edges.append(len(edges))
            edges.append(Edge(position, True, entity, entity.start < position))
        open_entities += opening
    return edges


def lay_out(entities: Sequence[TextEntity], start: int, end: int) -> list[Edge | Segment]:
    """The text from start to end, divided at edges and heads: everything to draw, in order."""
    edges: defaultdict[int, list[Edge]] = defaultdict(list)
    for edge in find_edges(entities):
        edges[edge.position].append(edge)
    heads: dict[int, tuple[CharSpan, list[TextEntity]]] = {}
    for entity in entities:
        if entity.head is not None:
            heads.setdefault(entity.head.start, (entity.head, []))[1].append(entity)
    borders = {start, end, *edges, *heads, *(span.end for span, _ in heads.values())}
    parts: list[Edge | Segment] = []
    head_end, head_of = start, list[TextEntity]()
    for position, next_position in pairwise(sorted(borders)):
        parts += edges[position]
        if position in heads:
            head_end, head_of = heads[position][0].end, heads[position][1]
        parts.append(Segment(position, next_position, head_of if position < head_end else ()))
    return parts + edges[end]


# Trees


def entity_brackets(sentence: Sentence) -> tuple[dict[Span, str], dict[Span, str]]:
    """Of each entity span: the text of its bracket, and the label that determines its color.

    >>> from nestree.types import Entity
    >>> entity_brackets(Sentence(["Rome"], [Entity(0, 1, "ORG", score=0.2), Entity(0, 1, "GPE", score=0.9)]))
    ({(0, 1): 'GPE .90, ORG .20'}, {(0, 1): 'GPE'})
    """
    texts: dict[Span, str] = {}
    labels: dict[Span, str] = {}
    for entity in sorted(sentence.entities, key=lambda entity: -(entity.score or 0)):
        text = single_line(entity.label) + (
            "" if entity.score is None else f" {format_probability(entity.score)}"
        )
        texts[entity.span] = f"{texts[entity.span]}, {text}" if entity.span in texts else text
        labels.setdefault(entity.span, entity.label)
    return texts, labels


def lexicalized_spans(tree: Tree | None, n: int) -> dict[Span, int] | None:
    """The head of each span; None unless this is a complete binary tree over n words with consistent heads."""
    if tree is None:
        return None
    heads = {(i, j): h for i, j, h in tree.spans if h is not None}
    if (0, n) not in heads or not len(heads) == len(tree.spans) == 2 * n - 1:
        return None
    children: dict[Span, list[Span]] = {}
    for span, parent in parent_spans(heads).items():
        children.setdefault(parent, []).append(span)
    for (i, j), spans in children.items():
        (a, b), (c, d) = min(spans), max(spans)
        if len(spans) != 2 or (a, b, d) != (i, c, j) or heads[i, j] not in (heads[a, b], heads[c, d]):
            return None
    return heads


def span_probabilities(tree: Tree) -> dict[Span, float]:
    """The probability of each span; empty if the tree has none."""
    return {(i, j): p for (i, j, _), p in zip(tree.spans, tree.probabilities, strict=False)}


def width(span: Span) -> int:
    return span[1] - span[0]


def span_levels(spans: Iterable[Span]) -> dict[Span, int]:
    """0 for spans that contain no other; otherwise one more than the highest level inside."""
    level: dict[Span, int] = {}
    for i, j in sorted(spans, key=width):
        level[i, j] = 1 + max((at for (a, b), at in level.items() if i <= a and b <= j), default=-1)
    return level


def stack_spans(spans: Sequence[Span]) -> list[int]:
    """A row for each span so that spans of a row do not overlap; inner spans are in lower rows.

    >>> stack_spans([(0, 4), (3, 4), (2, 6), (0, 4)])
    [1, 0, 2, 3]
    """
    rows: dict[int, int] = {}
    for k in sorted(range(len(spans)), key=lambda k: width(spans[k])):
        i, j = spans[k]
        rows[k] = 1 + max((row for m, row in rows.items() if spans[m][0] < j and i < spans[m][1]), default=-1)
    return [rows[k] for k in range(len(spans))]


def parent_spans(tree: Iterable[Span]) -> dict[Span, Span]:
    """The smallest span around each span except the outermost."""
    parent: dict[Span, Span] = {}
    open_spans: list[Span] = []
    for span in sorted(tree, key=lambda span: (span[0], -span[1])):
        while open_spans and open_spans[-1][1] <= span[0]:
            open_spans.pop()
        if open_spans:
            parent[span] = open_spans[-1]
        open_spans.append(span)
    return parent


def span_modifiers(tree: Mapping[Span, int]) -> dict[Span, int]:
    """The modifier that the head of each span of two or more words gains there, in the tree's order."""
    modifier = {
        parent: tree[span] for span, parent in parent_spans(tree).items() if tree[span] != tree[parent]
    }
    return {span: modifier[span] for span in tree if span in modifier}


MIN_WORD_WIDTH = 4  # columns, so that a probability fits between any two words


def word_columns(words: Sequence[str]) -> list[int]:
    """The first column of each word, and the one behind the last word and its space."""
    columns = [0]
    for word in words:
        columns.append(columns[-1] + max(MIN_WORD_WIDTH, cell_len(word)) + 1)
    return columns


def pad_words(words: Sequence[str], brackets: Mapping[Span, str]) -> list[str]:
    """The words, with spaces after some of them so that each entity's text fits into its bracket.

    >>> pad_words(["we", "met"], {(0, 1): "person .98"})
    ['we          ', 'met']
    """
    padded = list(words)
    for (i, j), text in sorted(brackets.items(), key=lambda item: width(item[0])):
        available = word_columns(padded[i : j - 1])[-1] + cell_len(padded[j - 1])
        padded[j - 1] += " " * (cell_len(text) + 2 - available)
    return padded
