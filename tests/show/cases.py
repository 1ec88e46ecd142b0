"""Documents to draw: nested and crossing entities over words that are hard to draw, with or without texts and trees."""

import random
from html.parser import HTMLParser

from hypothesis import strategies as st

from nestree.types import Document, Entity, Sentence, Tree

HOSTILE = [
    "<script>alert(1)</script>", "&amp;", '"\'>', "]]>", "-->", "</style>", "\x00", "\x1b[31m", "\ud800", "\udc00x",
    "שלום", "(بيت)", "\u202eevil", "\u2066", "e\u0301\u0301", "\u0301", "👨‍👩‍👧", "東京",
    "a\u00a0b", "\u200b", "|", "[", "]",
    "w" * 70, "x", "…",
]  # fmt: skip
words = st.sampled_from(HOSTILE) | st.text('abc<&"\u05d0\u0301\x00 \r', min_size=1, max_size=4)
labels = st.sampled_from(["PER", "ORG", "<b>&", "a\nb", "\u202eX", "שם", "\ud800", "very_long_label_" * 3])
between = st.sampled_from([" ", "", " " * 90, "\n", "\r\n", "\t", "\u2028", "  ", " <br> "])


def lexical_tree(n: int, chance: random.Random, numbers: bool = True) -> Tree:
    """Any tree over n words."""
    spans: list[tuple[int, int, int]] = []
    arcs: list[tuple[int, int]] = []

    def grow(i: int, j: int, head: int) -> None:
        spans.append((i, j, head))
        if j - i > 1:
            k = chance.randrange(i + 1, j)
            other = chance.randrange(i, k) if head >= k else chance.randrange(k, j)
            arcs.append((head, other))
            grow(i, k, head if head < k else other)
            grow(k, j, head if head >= k else other)

    root = chance.randrange(n)
    grow(0, n, root)
    return Tree(tuple(spans), tuple(arcs), root, tuple(chance.random() for _ in spans) if numbers else ())


@st.composite
def sentences(draw):
    found = draw(st.lists(words, min_size=1, max_size=8))
    n = len(found)
    entities = []
    for _ in range(draw(st.integers(0, 5))):
        i = draw(st.integers(0, n - 1))
        j = draw(st.integers(i + 1, n))
        head = draw(st.none() | st.integers(i, j - 1))
        entities.append(Entity(i, j, draw(labels), head, draw(st.none() | st.floats(0, 1))))
    kind = draw(st.sampled_from(["no tree", "lexical", "plain"]))
    tree = lexical_tree(n, random.Random(draw(st.integers(0, 99)))) if kind != "no tree" else None
    if tree and kind == "plain":
        tree = Tree(tuple((i, j, None) for i, j, _ in tree.spans))
    return Sentence(found, entities, tree=tree, complete=draw(st.booleans()))


@st.composite
def documents(draw):
    """With words only, or in a text with anything between its words."""
    found = draw(st.lists(sentences(), max_size=3))
    id = draw(st.none() | labels)
    if draw(st.booleans()):
        return Document(found, None, id)
    text, placed = draw(between), []
    for sentence in found:
        start, offsets = len(text), []
        for k, word in enumerate(sentence.words):
            text += draw(between) if k else ""
            offsets.append((len(text) - start, len(text) - start + len(word)))
            text += word
        placed.append(
            Sentence(
                sentence.words, sentence.entities, text[start:], offsets, start, None, True, {}, sentence.tree
            )
        )
        text += draw(between)
    return Document(placed, text, id)


class Page(HTMLParser):
    """Reads HTML strictly: every element is closed in its turn. Collects text, boxes, and what tests ask for."""

    EMPTY = frozenset({"meta", "br", "input"})

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, dict[str, str]]] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []  # of each element of class text, without labels and links
        self.boxes: list[tuple[int, int, str, dict[str, str]]] = []  # start, end, label, attributes
        self.heads: list[tuple[int, int]] = []
        self.starts: list[int] = []
        self.label = ""
        self.feed(source)
        self.close()
        assert self.open == []

    def inside(self, kind: str) -> bool:
        return any(kind in values.get("class", "").split() for _, values in self.open)

    def handle_starttag(self, tag, attributes):
        values = {name: value or "" for name, value in attributes}
        assert len(values) == len(attributes)
        self.elements.append((tag, values))
        if tag in self.EMPTY:
            return
        self.open.append((tag, values))
        kinds = values.get("class", "").split()
        if "text" in kinds:
            self.texts.append("")
        if "e" in kinds or tag == "u":
            self.starts.append(len(self.texts[-1]))
        if "label" in kinds:
            self.label = ""

    def handle_endtag(self, tag):
        opened, values = self.open.pop()
        assert opened == tag
        kinds = values.get("class", "").split()
        if "e" in kinds:
            self.boxes.append((self.starts.pop(), len(self.texts[-1]), self.label.strip("\xa0"), values))
        elif tag == "u":
            self.heads.append((self.starts.pop(), len(self.texts[-1])))

    def handle_data(self, data):
        if self.inside("label"):
            self.label += data
        elif self.inside("text") and not self.inside("to-tree"):
            self.texts[-1] += data
