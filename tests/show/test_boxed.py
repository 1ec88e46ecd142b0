"""Boxes: they nest as entities do, the text stays as it is, and nothing in it is read as HTML."""

import re
import subprocess
import sys

import pytest
from hypothesis import given, settings

from nestree.show import boxes
from nestree.show.html import BOXES, COLOURS
from nestree.show.layout import escape_invisible
from nestree.types import Document, Entity, Sentence, crossing_pairs

from .cases import Page, documents

WORDS = ["The", "president", "of", "the", "University", "of", "California"]
PRESIDENT = Document(
    [
        Sentence(
            WORDS,
            [
                Entity(0, 7, "PER", head=1, score=0.9),
                Entity(3, 7, "ORG", head=4, score=0.8),
                Entity(6, 7, "GPE", head=6, score=0.75),
                Entity(6, 7, "LOC", head=6, score=0.25),
            ],
        )
    ]
)


def test_a_box_for_each_entity_with_labels_heads_and_probabilities():
    page = Page(boxes(PRESIDENT))
    text = " ".join(WORDS)
    assert page.texts == [text]
    assert [(text[i:j], label) for i, j, label, _ in page.boxes] == [
        ("California", "GPE\xa0.75, LOC\xa0.25"),
        ("the University of California", "ORG\xa0.80"),
        (text, "PER\xa0.90"),
    ]
    assert [values["title"] for *_, values in page.boxes] == [
        "GPE 0.750\nLOC 0.250\nhead: California",
        "ORG 0.800\nhead: University",
        "PER 0.900\nhead: president",
    ]
    assert [values["style"] for *_, values in page.boxes] == ["--h:0", "--h:1", "--h:2"]
    assert [text[i:j] for i, j in page.heads] == ["president", "University", "California"]
    assert [values["type"] for tag, values in page.elements if tag == "input"] == ["checkbox"]


def test_a_notebook_shows_them():
    assert PRESIDENT._repr_html_() == boxes(PRESIDENT)


def test_annotated_entities_have_no_probabilities_to_show():
    source = boxes(Document([Sentence(["Rome"], [Entity(0, 1, "GPE")])]))
    assert Page(source).boxes[0][2] == "GPE"
    assert "checkbox" not in source


def test_a_word_that_is_the_head_of_two_is_underlined_twice():
    source = boxes(
        Document([Sentence(["old", "Rome"], [Entity(0, 2, "A", head=1), Entity(1, 2, "B", head=1)])])
    )
    assert source.count('<u class="head twice">Rome</u>') == source.count("<u") == 1


def test_crossing_entities_are_drawn_in_parts_that_say_so():
    document = Document([Sentence(list("abc"), [Entity(0, 2, "X"), Entity(1, 3, "Y")])])
    page = Page(boxes(document))
    assert page.texts == ["a b c"]
    found = [(page.texts[0][i:j], label, values["class"].split()[2:]) for i, j, label, values in page.boxes]
    assert found == [("b", "…Y", ["on"]), ("a b", "X", []), (" c", "Y", ["from"])]


def test_what_is_written_in_another_direction_says_so():
    hebrew = Sentence(
        ["שלום", "עולם", "U.S.A.", "5"], [Entity(0, 2, "A"), Entity(2, 3, "B"), Entity(3, 4, "C")]
    )
    source = boxes(Document([hebrew]))
    assert '<div class="text" dir="rtl">' in source
    assert {label: values.get("dir") for *_, label, values in Page(source).boxes} == {
        "A": None,
        "B": "ltr",
        "C": None,
    }
    mixed = boxes(Document([Sentence(["hello"]), hebrew]))
    assert '<div class="text" dir="ltr">hello\n<span class="s" dir="rtl">' in mixed


def test_colours_of_labels_stay_the_same():
    document = Document(
        [Sentence(["a", "b"], [Entity(0, 1, f"L{k}"), Entity(1, 2, f"L{k + 1}")]) for k in range(40)]
    )
    colour = {}
    for *_, label, values in Page(boxes(document)).boxes:
        assert colour.setdefault(label, values["class"]) == values["class"]
    assert len(set(colour.values())) == len(COLOURS)


@settings(deadline=None, max_examples=40)
@given(documents())
def test_any_document_is_drawn_as_it_is(document):
    source = boxes(document)
    source.encode("utf-8")
    page = Page(source)
    text = document.with_text().text
    assert page.texts == [escape_invisible(text)]
    if not re.search("[\x00\x1b\ud800-\udfff]", text):
        assert page.texts == [text]
    assert {tag for tag, _ in page.elements} <= {
        "div",
        "style",
        "span",
        "u",
        "small",
        "bdi",
        "i",
        "label",
        "input",
    }
    if not any(crossing_pairs(sentence.entities) for sentence in document.sentences):
        drawn = sorted((i, j) for i, j, *_ in page.boxes)
        assert drawn == sorted((entity.start, entity.end) for entity in document.entities)
    assert set(page.heads) == {entity.head[:2] for entity in document.entities if entity.head}


def test_the_style_touches_nothing_else_in_a_notebook():
    rules = re.findall(r"([^{}]+)\{", re.sub(r"@media[^{]*\{", "", BOXES))
    assert len(rules) > 20
    for rule in rules:
        assert rule.strip().startswith(".nestree"), rule


def luminance(colour):
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("ground", ["#ffffff", "#f5f7f9", "#14181d", "#1d2329", "#20242a"])
def test_boxes_are_seen_on_light_and_dark(colour, ground):
    dark, light = sorted((luminance(colour), luminance(ground)))
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_drawing_does_not_import_torch():
    code = "import sys, nestree.show; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
