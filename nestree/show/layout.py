"""What terminal and HTML drawings share: the layout of nested brackets in running text, and of trees above words."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.cells import cell_len

from nestree.display import format_probability, single_line
from nestree.types import CharSpan, Sentence, Span, TextEntity, Tree, enclosing_spans


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


def with_probability(label: str, probability: float | None) -> str:
    """A label as drawings show it: "GPE .90", or "GPE" if the probability is not known."""
    return single_line(label) + ("" if probability is None else f" {format_probability(probability)}")


# Entities as brackets or boxes in running text


class Bracket(NamedTuple):
    """Where an entity, or a part of it, opens or closes. Crossing entities are cut into parts that nest."""

    position: int  # in characters
    opens: bool
    entity: TextEntity
    cut: bool  # the entity itself does not begin or end here: it is cut by another one that it crosses
    height: int = 0  # of an opening bracket: how many levels of boxes this box contains
    cut_at_end: bool = False  # of an opening bracket: the entity goes on in another box


class Segment(NamedTuple):
    """Text between two brackets, never empty; `head_of` are the entities of which it is the head."""

    start: int
    end: int
    head_of: Sequence[TextEntity]


def find_brackets(entities: Iterable[TextEntity]) -> list[Bracket]:
    """The matching brackets of all entities in text order."""
    starting: defaultdict[int, list[TextEntity]] = defaultdict(list)
    ends = set()
    for entity in entities:
        starting[entity.start].append(entity)
        ends.add(entity.end)
    brackets: list[Bracket] = []
    open_entities: list[TextEntity] = []  # the outermost first
    open_brackets: list[int] = []  # their opening brackets
    for position in sorted({*starting, *ends}):
        cut: list[TextEntity] = []
        ending = (k for k, entity in enumerate(open_entities) if entity.end == position)
        outermost = next(ending, len(open_entities))
        while len(open_entities) > outermost:
            entity = open_entities.pop()
            is_cut = entity.end > position
            brackets.append(Bracket(position, False, entity, is_cut))
            inner = open_brackets.pop()
            brackets[inner] = brackets[inner]._replace(cut_at_end=is_cut)
            if open_brackets:
                outer = brackets[open_brackets[-1]]
                brackets[open_brackets[-1]] = outer._replace(height=max(outer.height, brackets[inner].height + 1))
            if is_cut:
                cut.append(entity)
        opening = sorted([*reversed(cut), *starting.get(position, ())], key=lambda entity: -entity.end)
        for entity in opening:
            open_brackets.append(len(brackets))
            brackets.append(Bracket(position, True, entity, entity.start < position))
        open_entities += opening
    return brackets


def lay_out(entities: Sequence[TextEntity], start: int, end: int) -> list[Bracket | Segment]:
    """The text from start to end, divided at brackets and heads: everything to draw, in order."""
    brackets: defaultdict[int, list[Bracket]] = defaultdict(list)
    for bracket in find_brackets(entities):
        brackets[bracket.position].append(bracket)
    heads: dict[int, tuple[CharSpan, list[TextEntity]]] = {}
    for entity in entities:
        if entity.head is not None:
            heads.setdefault(entity.head.start, (entity.head, []))[1].append(entity)
    boundaries = {start, end, *brackets, *heads, *(span.end for span, _ in heads.values())}
    parts: list[Bracket | Segment] = []
    head_end, head_of = start, list[TextEntity]()
    for position, next_position in pairwise(sorted(boundaries)):
        parts += brackets[position]
        if position in heads:
            head_end, head_of = heads[position][0].end, heads[position][1]
        parts.append(Segment(position, next_position, head_of if position < head_end else ()))
    return parts + brackets[end]


# Trees


class SentenceLayout:
    """What the drawings of a sentence share: its words, its tree if it is a lexicalized one, its entities as brackets.

    >>> from nestree.types import Entity
    >>> layout = SentenceLayout(Sentence(["Rome"], [Entity(0, 1, "ORG", score=0.2), Entity(0, 1, "GPE", score=0.9)]))
    >>> layout.brackets, layout.labels, layout.words
    ({(0, 1): 'GPE .90, ORG .20'}, {(0, 1): 'GPE'}, ['Rome              '])
    """

    def __init__(self, sentence: Sentence) -> None:
        self.brackets: dict[Span, str] = {}  # the text of each; empty: a span of the tree that is no entity
        self.labels: dict[Span, str] = {}  # of entities: the label that determines the color
        for entity in sorted(sentence.entities, key=lambda entity: -(entity.score or 0)):
            text = with_probability(entity.label, entity.score)
            others = self.brackets.get(entity.span)
            self.brackets[entity.span] = f"{others}, {text}" if others else text
            self.labels.setdefault(entity.span, entity.label)
        self.words = pad_words([single_line(word) for word in sentence.words], self.brackets)
        self.head_words = {entity.head for entity in sentence.entities}
        tree = sentence.tree
        self.heads = lexicalized_spans(tree, len(self.words)) if tree else None
        self.probabilities: dict[Span, float] = {}  # of the spans of the tree
        if tree and self.heads:
            pairs = zip(tree.spans, tree.probabilities, strict=False)
            self.probabilities = {(i, j): p for (i, j, _), p in pairs}
        elif tree:
            for i, j, _ in tree.spans:
                if j - i > 1:
                    self.brackets.setdefault((i, j), "")


def lexicalized_spans(tree: Tree, n: int) -> dict[Span, int] | None:
    """The head of each span; None unless this is a complete binary tree over n words with consistent heads."""
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


def width(span: Span) -> int:
    return span[1] - span[0]


def span_levels(spans: Iterable[Span]) -> dict[Span, int]:
    """0 for spans that contain no other; otherwise one more than the highest level inside."""
    level: dict[Span, int] = {}
    for i, j in sorted(spans, key=width):
        level[i, j] = 1 + max((at for (a, b), at in level.items() if i <= a and b <= j), default=-1)
    return level


def parent_spans(tree: Iterable[Span]) -> dict[Span, Span]:
    """The smallest span around each span except the outermost."""
    return {span: around[-1] for span, around in enclosing_spans(tree).items() if around}


def span_modifiers(tree: Mapping[Span, int]) -> dict[Span, int]:
    """The modifier that the head of each span of two or more words gains there, in the tree's order."""
    parents = parent_spans(tree).items()
    modifier = {parent: tree[span] for span, parent in parents if tree[span] != tree[parent]}
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
