"""Documents to draw: nested and crossing entities over words that are hard to draw, with or without texts and trees."""

import random
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from xml.etree import ElementTree

import pytest
from hypothesis import strategies as st

from nestree.types import Document, Entity, Sentence, Tree

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next((found for found in map(shutil.which, NAMES) if found), None)
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason=f"no browser: none of {', '.join(NAMES)}")
HOSTILE = [
    "<script>alert(1)</script>", "&amp;", '"\'>', "]]>", "-->", "</style>", "\x00", "\x1b[31m", "\ud800", "\udc00x",
    "שלום", "(بيت)", "\u202eevil", "\u2066", "e\u0301\u0301", "\u0301", "👨‍👩‍👧", "東京",
    "a\u00a0b", "\u200b", "|", "[", "]",
    "w" * 70, "x", "…",
]  # fmt: skip
words = st.sampled_from(HOSTILE) | st.text('abc<&"\u05d0\u0301\x00 \r', min_size=1, max_size=4)
labels = st.sampled_from(["PER", "ORG", "<b>&", "a\nb", "\u202eX", "שם", "\ud800", "very_long_label_" * 3])
between = st.sampled_from([" ", "", " " * 90, "\n", "\r\n", "\t", "\u2028", "  ", " <br> "])


def lexical_tree(n: int, rng: random.Random) -> Tree:
    """A random tree over n words."""
    spans: list[tuple[int, int, int]] = []
    arcs: list[tuple[int, int]] = []

    def grow(i: int, j: int, head: int) -> None:
        spans.append((i, j, head))
        if j - i > 1:
            k = rng.randrange(i + 1, j)
            other = rng.randrange(i, k) if head >= k else rng.randrange(k, j)
            arcs.append((head, other))
            grow(i, k, head if head < k else other)
            grow(k, j, head if head >= k else other)

    root = rng.randrange(n)
    grow(0, n, root)
    return Tree(tuple(spans), tuple(arcs), root, tuple(rng.random() for _ in spans))


WORDS = ["The", "president", "of", "the", "University", "of", "California"]
ENTITIES = (0, 7, "PER", 1, 0.9), (3, 7, "ORG", 4, 0.8), (6, 7, "GPE", 6, 0.75), (6, 7, "LOC", 6, 0.25)
PRESIDENT = Document([Sentence(WORDS, [Entity(*values) for values in ENTITIES])])
TREE = lexical_tree(len(WORDS), random.Random(0))
PARSED = Document([replace(PRESIDENT.sentences[0], tree=TREE, id="s1")], id="d1")
CROSSING = Document([Sentence(list("abc"), [Entity(0, 2, "X"), Entity(1, 3, "Y")], complete=False)])
ARMY_TREE = ((0, 3, 2), (0, 2, 1), (0, 1, 0), (1, 2, 1), (2, 3, 2)), ((2, 1), (1, 0)), 2, (1.0, 0.93, 1, 1, 1)
ARMY = Sentence(
    ["Iraqi", "army", "leaders"],
    [Entity(0, 3, "PER", head=2, score=0.9), Entity(0, 2, "ORG", head=1), Entity(0, 1, "GPE")],
    tree=Tree(*ARMY_TREE),
)
EVIL_ENTITIES = Entity(0, len(HOSTILE), "</title><script>"), Entity(2, 4, '"><img src=x>', head=3, score=0.5)
EVIL_TREE = lexical_tree(len(HOSTILE), random.Random(1))
EVIL = Document([Sentence(HOSTILE, EVIL_ENTITIES, id="</summary>", tree=EVIL_TREE)], id="</section>")


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
        rest = (text[start:], offsets, start, None, True, {}, sentence.tree)
        placed.append(Sentence(sentence.words, sentence.entities, *rest))
        text += draw(between)
    return Document(placed, text, id)


class Page(HTMLParser):
    """Reads HTML strictly: every element is closed in its turn. Collects text, boxes, and what tests ask for."""

    EMPTY = frozenset({"meta", "br", "input"})

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, dict[str, str]]] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []  # of each element of class text, without labels and numbers
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

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.EMPTY:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        opened, values = self.open.pop()
        assert opened == tag
        kinds = values.get("class", "").split()
        if "e" in kinds:
            self.boxes.append((self.starts.pop(), len(self.texts[-1]), self.label.strip("\u2060"), values))
        elif tag == "u":
            self.heads.append((self.starts.pop(), len(self.texts[-1])))

    def handle_data(self, data):
        if self.inside("label"):
            self.label += data
        elif self.inside("text") and not self.inside("number"):
            self.texts[-1] += data


def luminance(color):
    channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(color, other):
    dark, light = sorted(map(luminance, (color, other)))
    return (light + 0.05) / (dark + 0.05)


def css_colors(*names):
    """The color variables of style sheets, in light and in dark mode."""
    modes = ({}, {})
    for name in names:
        source = files("nestree").joinpath(name).read_text("utf-8")
        for colors, part in zip(modes, source.split("@media (prefers")[:2], strict=True):
            for variable, color in re.findall(r"--([\w-]+): (#\w+);", part):
                colors[variable] = color if len(color) == 7 else "#" + "".join(2 * x for x in color[1:])
    return modes


def check_page(source):
    """The page, which is well-formed, runs nothing and needs no other files."""
    source.encode("utf-8")
    read = Page(source)
    ids = [values["id"] for _, values in read.elements if "id" in values]
    links = [values["href"] for _, values in read.elements if "href" in values]
    assert len(ids) == len(set(ids))
    assert all(link.removeprefix("#") in ids for link in links)
    tags = {tag for tag, _ in read.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "use", "image"}
    assert not [k for _, values in read.elements for k in values if k == "src" or k.startswith("on")]
    assert not [word for word in ("url(", "@import", "http") if word in source]
    for drawing in re.findall(r"<svg.*?</svg>", source, re.S):
        root = ElementTree.fromstring(drawing)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert "nan" not in drawing.split(">")[0]
    return read
