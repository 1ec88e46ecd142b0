"""A page: whole, alone, safe, and with everything that there is to see."""

import random
import re
from dataclasses import replace
from itertools import islice
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from nestree.data import formats
from nestree.show import page
from nestree.show.html import PAGE
from nestree.show.layout import escape_invisible
from nestree.types import Document, Entity, Sentence, Tree

from .cases import HOSTILE, Page, documents, lexical_tree
from .test_boxed import PRESIDENT, WORDS, luminance

TREE = lexical_tree(len(WORDS), random.Random(0))
PARSED = Document([replace(PRESIDENT.sentences[0], tree=TREE, id="s1")], id="d1")
EVIL = Document(
    [
        Sentence(
            HOSTILE,
            [Entity(0, len(HOSTILE), "</title><script>"), Entity(2, 4, '"><img src=x>', head=3, score=0.5)],
            id="</summary>",
            tree=lexical_tree(len(HOSTILE), random.Random(1)),
        )
    ],
    id="</section>",
)


@pytest.mark.parametrize(
    "found",
    [[], [Document([])], [PRESIDENT], [PARSED] * 5, [EVIL, PARSED]],
    ids=["none", "empty", "one", "many", "evil"],
)
def test_the_page_is_whole_and_fetches_nothing(found):
    source = page(found, "</title><script>")
    source.encode("utf-8")
    read = Page(source)
    ids = [values["id"] for _, values in read.elements if "id" in values]
    links = [values["href"] for _, values in read.elements if "href" in values]
    assert len(ids) == len(set(ids))
    assert all(link.removeprefix("#") in ids for link in links)
    assert not {tag for tag, _ in read.elements} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "use",
        "image",
    }
    assert not [
        name for _, values in read.elements for name in values if name == "src" or name.startswith("on")
    ]
    assert "url(" not in source
    assert "@import" not in source
    assert "http" not in source
    assert read.texts == [escape_invisible(document.with_text().text) for document in found]
    for drawing in re.findall(r"<svg.*?</svg>", source, re.S):
        root = ElementTree.fromstring(drawing)
        assert root.get("role") == "img"
        assert root.get("aria-label")


@settings(deadline=None, max_examples=40)
@given(documents())
def test_any_document_becomes_a_page(document):
    source = page([document, document])
    source.encode("utf-8")
    assert Page(source).texts == 2 * [escape_invisible(document.with_text().text)]
    drawings = re.findall(r"<svg.*?</svg>", source, re.S)
    assert len(drawings) == 2 * sum(sentence.tree is not None for sentence in document.sentences)
    for drawing in drawings:
        assert "nan" not in drawing.split(">")[0]
        ElementTree.fromstring(drawing)


def test_labels_are_counted():
    source = page([PRESIDENT, Document([Sentence(["Rome"], [Entity(0, 1, "GPE")])])])
    legend = re.search(r'<ul class="legend".*?</ul>', source)[0]
    assert re.findall(r"<bdi>(\w+)</bdi></b> <span>(\d+)</span>", legend) == [
        ("GPE", "2"),
        ("PER", "1"),
        ("ORG", "1"),
        ("LOC", "1"),
    ]
    colours = dict(re.findall(r'<li class="c(\d+)"><b><bdi>(\w+)<', legend))
    boxes = dict(re.findall(r'<span class="e c(\d+)"[^>]* title="(\w+)', source))
    assert {number: colours[number] for number in boxes} == boxes
    assert "2 documents, 2 sentences, 4 entities." in source


def test_the_table_has_what_boxes_show_on_hovering():
    rows = re.findall(r"<tr>(<td.*?)</tr>", page([PRESIDENT]))
    cells = [[re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?</td>", row)] for row in rows]
    assert cells == [
        [" ".join(WORDS), "PER", "0.900", "president", "0", "0–45"],
        ["the University of California", "ORG", "0.800", "University", "1", "17–45"],
        ["California", "GPE, LOC", "0.750, 0.250", "California", "2", "35–45"],
    ]
    plain = page([Document([Sentence(["Rome"], [Entity(0, 1, "GPE")])])])
    assert "probability</th>" not in plain


def test_few_trees_are_open_and_many_are_folded():
    few, many = page([PARSED]), page([PARSED] * 5)
    assert few.count("<details open") == few.count("<svg") == 1
    assert many.count("<details open") == 0
    assert many.count("<svg") == 5
    assert many.count("1 sentence as a tree") == 5
    links = [values["href"] for tag, values in Page(many).elements if values.get("class") == "to-tree"]
    assert links == [f"#d{k}s1" for k in range(1, 6)]


def test_trees_are_explained_as_they_are_drawn():
    bare = replace(PARSED.sentences[0], tree=Tree(tuple((i, j, None) for i, j, _ in TREE.spans)))
    assert "one arc" in page([PARSED])
    assert "A bracket is a span" not in page([PARSED])
    assert "one arc" not in page([Document([bare])])
    assert "A bracket is a span" in page([Document([bare])])


def test_what_the_reader_has_to_know_is_said():
    crossing = Document([Sentence(list("abc"), [Entity(0, 2, "X"), Entity(1, 3, "Y")], complete=False)])
    assert "1 sentence is marked as incomplete" in page([crossing])
    assert "drawn in parts" in page([crossing])
    assert "drawn in parts" not in page([PRESIDENT])
    assert "Heads are underlined" in page([PRESIDENT])
    assert "Heads are underlined" not in page([crossing])
    long = Document([Sentence(["a"], extra={"windows": 2})])
    assert "1 sentence was too long to be read at once" in page([long])


@pytest.mark.parametrize("name", ["gum_open", "genia", "litbank"])
def test_real_documents(shared, name):
    found = list(islice(formats.read(shared / "data" / name / "dev.jsonl.gz"), 3))
    read = Page(page(found))
    assert read.texts == [document.with_text().text for document in found]
    entities = [entity for document in found for entity in document.entities]
    whole = [values for *_, values in read.boxes if not {"from", "on"} & set(values["class"].split())]
    assert 0 < len(whole) <= len(entities) <= len(read.boxes)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_letters_can_be_read(mode):
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w+);", part)) for part in PAGE.split("@media (prefers")[:2]
    )
    colours = {
        name: c if len(c) == 7 else "#" + "".join(2 * x for x in c[1:])
        for name, c in (light if mode == "light" else dark).items()
    }
    assert len(colours) == 6
    for name in ("text", "quiet", "link"):
        for ground in ("page", "panel"):
            low, high = sorted((luminance(colours[name]), luminance(colours[ground])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, name
