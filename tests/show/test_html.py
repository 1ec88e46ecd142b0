"""Boxes and pages: boxes nest as entities do, the text stays as it is, and nothing in it is read as HTML."""

import itertools
import random
import re
from datetime import date
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings

import nestree
from nestree.data import formats
from nestree.display import HTML_COLORS, color_index, escape_invisible
from nestree.show import draw_boxes, draw_page, draw_svg
from nestree.types import Document, Entity, Sentence, crossing_pairs

from .cases import (
    ARMY,
    CROSSING,
    EVIL,
    PARSED,
    PRESIDENT,
    WORDS,
    Page,
    check_page,
    contrast,
    css_colors,
    documents,
    lexical_tree,
)


def test_boxes_have_labels_heads_and_probabilities():
    read = Page(draw_boxes(PRESIDENT))
    text = " ".join(WORDS)
    assert read.texts == [text]
    assert [(text[i:j], label) for i, j, label, _ in read.boxes] == [
        ("California", "GPE\xa0.75, LOC\xa0.25"),
        ("the University of California", "ORG\xa0.80"),
        (text, "PER\xa0.90"),
    ]
    assert [values["title"] for *_, values in read.boxes] == [
        "GPE 0.750\nLOC 0.250\nhead: California",
        "ORG 0.800\nhead: University",
        "PER 0.900\nhead: president",
    ]
    assert [values["style"] for *_, values in read.boxes] == ["--h:0", "--h:1", "--h:2"]
    assert [text[i:j] for i, j in read.heads] == ["president", "University", "California"]
    assert [values["type"] for tag, values in read.elements if tag == "input"] == ["checkbox"]
    assert PRESIDENT._repr_html_() == draw_boxes(PRESIDENT)


def test_crossing_entities_are_drawn_in_parts():
    read = Page(draw_boxes(CROSSING))
    assert read.texts == ["a b c"]
    parts = [(read.texts[0][i:j], label, values["class"].split()[2:]) for i, j, label, values in read.boxes]
    assert parts == [("b", "…Y", ["on"]), ("a b", "X", []), (" c", "Y", ["from"])]
    deep = Document([Sentence(["w"] * 300, [Entity(0, k, "A") for k in range(1, 301)])])
    heights = [values["style"] for *_, values in Page(draw_boxes(deep)).boxes]
    assert heights == [f"--h:{k}" for k in range(300)]


def test_text_directions():
    entities = [Entity(0, 2, "A"), Entity(2, 3, "B"), Entity(3, 4, "C")]
    hebrew = Sentence(["שלום", "עולם", "U.S.A.", "5"], entities)
    source = draw_boxes(Document([hebrew]))
    assert '<div class="text" dir="rtl">' in source
    directions = {label: values.get("dir") for *_, label, values in Page(source).boxes}
    assert directions == {"A": None, "B": "ltr", "C": None}
    mixed = draw_boxes(Document([Sentence(["hello"]), hebrew]))
    assert '<div class="text" dir="ltr">hello\n<span class="s" dir="rtl">' in mixed


def test_a_label_has_the_same_color_on_every_page():
    entities = [Entity(k, k + 1, f"L{k}") for k in range(40)]
    together = Page(draw_boxes(Document([Sentence(["w"] * 40, entities)]))).boxes
    for (*_, label, values), entity in zip(together, entities, strict=True):
        (alone,) = Page(draw_page([Document([Sentence(["w"] * 40, [entity])])])).boxes
        assert (alone[2], alone[3]["class"]) == (label, values["class"])
    assert len({values["class"] for *_, values in together}) == len(HTML_COLORS)


def test_labels_of_well_known_corpora_have_colors_of_their_own(shared):
    for name in ("gum_open", "genia", "litbank"):
        documents = formats.read(shared / "data" / name / "dev.jsonl.gz")
        labels = {label for document in documents for entity in document.entities for label in entity.labels}
        assert len({color_index(label) for label in labels}) == len(labels) >= 5


@settings(max_examples=20)
@given(documents())
def test_any_document(document):
    source = draw_boxes(document)
    source.encode("utf-8")
    read = Page(source)
    text = document.with_text().text
    assert read.texts == [escape_invisible(text)]
    if not re.search("[\x00\x1b\ud800-\udfff]", text):
        assert read.texts == [text]
    allowed = {"div", "style", "span", "u", "small", "bdi", "i", "label", "input"}
    assert {tag for tag, _ in read.elements} <= allowed
    drawn = sorted((i, j) for i, j, *_ in read.boxes)
    if not any(crossing_pairs(sentence.entities) for sentence in document.sentences):
        assert drawn == sorted((entity.start, entity.end) for entity in document.entities)
    for entity in document.entities:  # boxes make it up, without gaps
        position = entity.start
        while position < entity.end:
            position = max(j for i, j in drawn if i == position and j <= entity.end)
    assert set(read.heads) == {entity.head[:2] for entity in document.entities if entity.head}

    source = draw_page([document, document])
    assert check_page(source).texts == 2 * read.texts
    trees = sum(sentence.tree is not None for sentence in document.sentences)
    assert source.count("<svg") == 2 * trees


@pytest.mark.parametrize("shown", [[], [Document([])], [EVIL, *[PARSED] * 5]], ids=["none", "empty", "evil"])
def test_pages_are_well_formed_and_need_no_other_files(shown):
    read = check_page(draw_page(shown, "</title><script>"))
    assert read.texts == [escape_invisible(document.with_text().text) for document in shown]


def test_the_head_and_foot_of_a_page():
    rome = Document([Sentence(["Rome"], [Entity(0, 1, "GPE")])])
    given = {"model": "gum-minilm", "data": "a&b.jsonl", "settings": "defaults"}
    source = draw_page([PRESIDENT, rome], "<b>", given)
    legend = re.search(r'<ul class="legend".*?</ul>', source, re.S)[0]
    counts = re.findall(r"<bdi>(\w+)</bdi></b> <span>(\d+)</span>", legend)
    assert counts == [("GPE", "2"), ("PER", "1"), ("ORG", "1"), ("LOC", "1")]
    colors = {label: color for color, label in re.findall(r'<li class="c(\d+)"><b><bdi>(\w+)<', legend)}
    boxes = re.findall(r'<span class="e c(\d+)"[^>]* title="(\w+)', source)
    assert [colors[label] for _, label in boxes] == [color for color, _ in boxes]
    assert "2 documents, 2 sentences, 4 entities." in source
    facts = re.findall(r"<dt>(\w+)</dt> <dd><bdi>(.*?)</bdi>", source)
    assert facts == [
        ("model", "gum-minilm"),
        ("data", "a&amp;b.jsonl"),
        ("settings", "defaults"),
        ("date", date.today().isoformat()),
        ("version", f"nestree {nestree.__version__}"),
    ]


def test_the_table_of_entities():
    rows = re.findall(r"<tr>(<td.*?)</tr>", draw_page([PRESIDENT]), re.S)
    cells = [[re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?</td>", row)] for row in rows]
    assert cells == [
        [" ".join(WORDS), "PER", "0.900", "president", "0", "0–45"],
        ["the University of California", "ORG", "0.800", "University", "1", "17–45"],
        ["California", "GPE, LOC", "0.750, 0.250", "California", "2", "35–45"],
    ]


def test_trees_numbers_and_notes_of_a_page():
    few, many = draw_page([PARSED]), draw_page([PARSED] * 5)
    assert few.count('<details class="trees" open') == few.count("<svg") == 1
    assert (many.count('<details class="trees">'), many.count("<svg")) == (5, 5)
    links = re.findall('<a class="number" href="(.*?)"', many)
    assert links == [f"#d{k}s1" for k in range(1, 6)]
    words = [Sentence(["a"]), Sentence(["b"]), Sentence(["c"])]
    source = draw_page([Document(words), PARSED])
    numbers = re.findall(r'<(?:span|a) class="number".*?>(\d+)</(?:span|a)>', source)
    assert numbers == ["1", "2", "3", "1"]
    assert source.count('<span class="s line">') == 2  # those that begin a line have a gap above
    assert "omitted where the line is too short" in source
    assert 'class="number"' not in draw_boxes(PRESIDENT)
    crossing, president = draw_page([CROSSING]), draw_page([PRESIDENT])
    assert "1 sentence is marked as incomplete" in crossing
    assert ["drawn in parts" in source for source in (crossing, president)] == [True, False]
    assert ["Heads are underlined" in source for source in (crossing, president)] == [False, True]
    windows = Document([Sentence(["a"], extra={"windows": 2})])
    assert "1 sentence was too long for one pass" in draw_page([windows])


def test_the_style_of_boxes_applies_to_nothing_else_in_a_notebook():
    style = re.search("<style>(.*?)</style>", draw_boxes(PRESIDENT), re.S)[1]
    style = re.sub(r"@media[^{]*\{", "", re.sub(r"/\*.*?\*/", "", style, flags=re.S))
    rules = re.findall(r"([^{}]+)\{", style)
    assert len(rules) > 20
    assert all(rule.strip().startswith(".nestree") for rule in rules)


# Colors. Simulations of color blindness: Machado et al., 2009, severity 1.

VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}  # fmt: skip
XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]


def rgb(color):
    return np.array([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])


def lab(color, vision):
    """CIELAB coordinates of an RGB color, as seen with this vision."""
    linear = np.where(color <= 0.04045, color / 12.92, ((color + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(VISION[vision] @ linear, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_colors_can_be_told_apart_and_read():
    for (color, text), vision in itertools.product(HTML_COLORS, VISION):
        assert contrast(color, "#000000" if text == "#000" else "#ffffff") >= 4.5
        for background in ("#ffffff", "#f5f7f9", "#14181d", "#1d2329", "#20242a"):
            assert contrast(color, background) >= 3
        others = [lab(rgb(other), vision) for other, _ in HTML_COLORS if other != color]
        assert min(np.linalg.norm(lab(rgb(color), vision) - other) for other in others) > 14


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_four_nested_tints_can_be_told_apart(mode):
    """Each box is darker on light pages, and lighter on dark ones, than the box around it, for all readers."""
    mix = r"color-mix\(in srgb, var\(--c\) (\d+)%, currentColor\) (\d+)%, transparent\)"
    pure, share = (int(value) / 100 for value in re.search(mix, draw_boxes(PRESIDENT)).groups())
    variables = css_colors("templates/base.css")[mode]
    rng = random.Random(0)
    chains = [[color] * 4 for color, _ in HTML_COLORS]
    chains += [[rng.choice(HTML_COLORS)[0] for _ in range(4)] for _ in range(100)]
    for chain, vision in itertools.product(chains, VISION):
        levels = [rgb(variables["page"])]
        for color in chain:
            tint = pure * rgb(color) + (1 - pure) * rgb(variables["text"])
            levels.append((1 - share) * levels[-1] + share * tint)
        seen = [lab(level, vision) for level in levels]
        assert min(np.linalg.norm(a - b) for a, b in itertools.pairwise(seen)) > 3, (chain, vision)
        as_hex = "#" + "".join(f"{round(255 * x):02x}" for x in levels[-1])
        assert contrast(as_hex, variables["text"]) >= 4.5


# Trees as SVG: every word, span, arc and entity is drawn in its place.


def parse_tree_svg(sentence):
    return ElementTree.fromstring(draw_svg(sentence))


def of_class(root, kind):
    return [element for element in root.iter() if kind in element.get("class", "").split()]


def test_words_lines_arcs_and_brackets():
    root = parse_tree_svg(ARMY)
    assert [word.text for word in of_class(root, "word")] == ["Iraqi", "army", "leaders"]
    assert [word.text for word in of_class(root, "head")] == ["army", "leaders"]
    assert [title.text for title in root.iter("title")] == [
        "Iraqi army leaders\nhead: leaders, modifier: army\nprobability 1.000",
        "Iraqi army\nhead: army, modifier: Iraqi\nprobability 0.930",
    ]
    assert len(of_class(root, "arrow")) == 2
    assert [text.text for text in of_class(root, "small")] == ["root", "1.00", ".93", "GPE", "ORG", "PER .90"]
    assert len(of_class(root, "bracket")) == 3
    assert len(of_class(root, "entity")) == 5  # three brackets, and two lines of the tree
    arcs = "leaders governs army; army governs Iraqi."
    assert root.get("aria-label") == f"Tree of: Iraqi army leaders. Root: leaders. {arcs}"


def test_from_right_to_left():
    words = ["האוניברסיטה", "של", "חיפה"]
    root = parse_tree_svg(Sentence(words, tree=lexical_tree(3, random.Random(0))))
    places = [float(word.get("x")) for word in of_class(root, "word")]
    assert places == sorted(places, reverse=True)
    assert all(word.get("textLength") for word in of_class(root, "word"))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 30])
def test_every_tree_fits_into_its_drawing(n):
    rng = random.Random(n)
    for _ in range(5):
        words = ["w" * rng.randint(1, 9) for _ in range(n)]
        entities = [Entity(w, w + 1, "a_long_label", score=0.5) for w in range(n) if rng.random() < 0.5]
        tree = lexical_tree(n, rng)
        root = parse_tree_svg(Sentence(words, entities, tree=tree))
        assert len(of_class(root, "arrow")) == len(list(root.iter("g"))) == n - 1
        wide, high = float(root.get("width")), float(root.get("height"))
        for text in root.iter("text"):
            half = 4.3 * len(text.text)
            assert float(text.get("x")) - half >= 0
            assert float(text.get("x")) + half <= wide
            assert 10 <= float(text.get("y")) <= high
        rows = {}
        for text in root.iter("text"):
            rows.setdefault(text.get("y"), []).append((float(text.get("x")), 3.6 * len(text.text)))
        for row in rows.values():
            row.sort()
            assert all(a + r <= b - s for (a, r), (b, s) in itertools.pairwise(row))
