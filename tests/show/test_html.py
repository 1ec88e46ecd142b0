"""Boxes and pages: boxes nest as entities do, the text stays as it is, and nothing in it is read as HTML."""

import re
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from nestree.data import formats
from nestree.show import draw_boxes, draw_page
from nestree.show.html import render
from nestree.show.layout import HTML_COLORS, escape_invisible
from nestree.types import Document, Entity, Sentence, Tree, crossing_pairs

from .cases import CROSSING, EVIL, PARSED, PRESIDENT, WORDS, Page, contrast, css_colors, documents


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


def test_annotated_entities_have_no_probabilities():
    document = Document([Sentence(["Rome"], [Entity(0, 1, "GPE")])])
    assert Page(draw_boxes(document)).boxes[0][2] == "GPE"
    assert "checkbox" not in draw_boxes(document)
    assert "probability</th>" not in draw_page([document])


def test_shared_heads_are_underlined_twice():
    entities = [Entity(0, 2, "A", head=1), Entity(1, 2, "B", head=1)]
    source = draw_boxes(Document([Sentence(["old", "Rome"], entities)]))
    assert source.count('<u class="head twice">Rome</u>') == source.count("<u") == 1


def test_crossing_entities_are_drawn_in_parts():
    read = Page(draw_boxes(CROSSING))
    assert read.texts == ["a b c"]
    parts = [(read.texts[0][i:j], label, values["class"].split()[2:]) for i, j, label, values in read.boxes]
    assert parts == [("b", "…Y", ["on"]), ("a b", "X", []), (" c", "Y", ["from"])]


def test_text_directions():
    hebrew = Sentence(
        ["שלום", "עולם", "U.S.A.", "5"], [Entity(0, 2, "A"), Entity(2, 3, "B"), Entity(3, 4, "C")]
    )
    source = draw_boxes(Document([hebrew]))
    assert '<div class="text" dir="rtl">' in source
    directions = {label: values.get("dir") for *_, label, values in Page(source).boxes}
    assert directions == {"A": None, "B": "ltr", "C": None}
    mixed = draw_boxes(Document([Sentence(["hello"]), hebrew]))
    assert '<div class="text" dir="ltr">hello\n<span class="s" dir="rtl">' in mixed


def test_labels_keep_their_colors():
    sentences = [Sentence(["a", "b"], [Entity(0, 1, f"L{k}"), Entity(1, 2, f"L{k + 1}")]) for k in range(40)]
    colors = {}
    for *_, label, values in Page(draw_boxes(Document(sentences))).boxes:
        assert colors.setdefault(label, values["class"]) == values["class"]
    assert len(set(colors.values())) == len(HTML_COLORS)


@settings(deadline=None, max_examples=40)
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
    if not any(crossing_pairs(sentence.entities) for sentence in document.sentences):
        drawn = sorted((i, j) for i, j, *_ in read.boxes)
        assert drawn == sorted((entity.start, entity.end) for entity in document.entities)
    assert set(read.heads) == {entity.head[:2] for entity in document.entities if entity.head}

    source = draw_page([document, document])
    source.encode("utf-8")
    assert Page(source).texts == 2 * read.texts
    drawings = re.findall(r"<svg.*?</svg>", source, re.S)
    assert len(drawings) == 2 * sum(sentence.tree is not None for sentence in document.sentences)
    for drawing in drawings:
        assert "nan" not in drawing.split(">")[0]
        ElementTree.fromstring(drawing)


@pytest.mark.parametrize(
    "shown",
    [[], [Document([])], [PRESIDENT], [PARSED] * 5, [EVIL, PARSED]],
    ids=["none", "empty", "one", "many", "evil"],
)
def test_pages_are_well_formed_and_need_no_other_files(shown):
    source = draw_page(shown, "</title><script>")
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
    assert read.texts == [escape_invisible(document.with_text().text) for document in shown]
    for drawing in re.findall(r"<svg.*?</svg>", source, re.S):
        root = ElementTree.fromstring(drawing)
        assert root.get("role") == "img"
        assert root.get("aria-label")


def test_the_legend_counts_labels():
    source = draw_page([PRESIDENT, Document([Sentence(["Rome"], [Entity(0, 1, "GPE")])])])
    legend = re.search(r'<ul class="legend".*?</ul>', source, re.S)[0]
    counts = re.findall(r"<bdi>(\w+)</bdi></b> <span>(\d+)</span>", legend)
    assert counts == [("GPE", "2"), ("PER", "1"), ("ORG", "1"), ("LOC", "1")]
    colors = dict(re.findall(r'<li class="c(\d+)"><b><bdi>(\w+)<', legend))
    boxes = dict(re.findall(r'<span class="e c(\d+)"[^>]* title="(\w+)', source))
    assert {number: colors[number] for number in boxes} == boxes
    assert "2 documents, 2 sentences, 4 entities." in source


def test_the_table_of_entities():
    rows = re.findall(r"<tr>(<td.*?)</tr>", draw_page([PRESIDENT]), re.S)
    cells = [[re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?</td>", row)] for row in rows]
    assert cells == [
        [" ".join(WORDS), "PER", "0.900", "president", "0", "0–45"],
        ["the University of California", "ORG", "0.800", "University", "1", "17–45"],
        ["California", "GPE, LOC", "0.750, 0.250", "California", "2", "35–45"],
    ]


def test_many_trees_are_folded_and_each_kind_is_explained():
    few, many = draw_page([PARSED]), draw_page([PARSED] * 5)
    assert few.count("<details open") == few.count("<svg") == 1
    assert (many.count("<details open"), many.count("<svg")) == (0, 5)
    assert many.count("1 sentence as a tree") == 5
    links = [values["href"] for tag, values in Page(many).elements if values.get("class") == "to-tree"]
    assert links == [f"#d{k}s1" for k in range(1, 6)]
    tree = PARSED.sentences[0].tree
    plain = replace(PARSED.sentences[0], tree=Tree(tuple((i, j, None) for i, j, _ in tree.spans)))
    notes = [
        [text in source for text in ("one arc", "A bracket is a span")]
        for source in (few, draw_page([Document([plain])]))
    ]
    assert notes == [[True, False], [False, True]]


def test_notes():
    crossing, president = draw_page([CROSSING]), draw_page([PRESIDENT])
    assert "1 sentence is marked as incomplete" in crossing
    assert ["drawn in parts" in source for source in (crossing, president)] == [True, False]
    assert ["Heads are underlined" in source for source in (crossing, president)] == [False, True]
    windows = Document([Sentence(["a"], extra={"windows": 2})])
    assert "1 sentence was too long to be read at once" in draw_page([windows])


@pytest.mark.parametrize("name", ["gum_open", "genia", "litbank"])
def test_real_documents(shared, name):
    shown = list(islice(formats.read(shared / "data" / name / "dev.jsonl.gz"), 3))
    read = Page(draw_page(shown))
    assert read.texts == [document.with_text().text for document in shown]
    entities = [entity for document in shown for entity in document.entities]
    whole = [values for *_, values in read.boxes if not {"from", "on"} & set(values["class"].split())]
    assert 0 < len(whole) <= len(entities) <= len(read.boxes)


def test_the_style_of_boxes_applies_to_nothing_else_in_a_notebook():
    style = re.sub(r"/\*.*?\*/", "", render("show/templates/boxes.css.jinja"), flags=re.S)
    rules = re.findall(r"([^{}]+)\{", re.sub(r"@media[^{]*\{", "", style))
    assert len(rules) > 20
    assert all(rule.strip().startswith(".nestree") for rule in rules)


def test_colors_have_enough_contrast():
    for background in ("#ffffff", "#f5f7f9", "#14181d", "#1d2329", "#20242a"):
        assert min(contrast(color, background) for color in HTML_COLORS) >= 3
    for colors in css_colors("show/templates/base.css"):
        assert len(colors) == 6
        for name in ("text", "quiet", "link"):
            assert min(contrast(colors[name], colors[background]) for background in ("page", "panel")) >= 4.5


def test_show_imports_neither_torch_nor_jinja():
    code = "import sys, nestree.show; sys.exit(bool({'torch', 'jinja2'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
