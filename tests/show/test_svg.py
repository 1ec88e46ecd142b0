"""Trees as SVG: every word, span, arc and entity is drawn in its place."""

import itertools
import random
from xml.etree import ElementTree

import pytest

from nestree.show import LabelColors, draw_svg
from nestree.types import Entity, Sentence, Tree

from .cases import ARMY, lexical_tree


def drawn(sentence):
    return ElementTree.fromstring(draw_svg(sentence, LabelColors()))


def of_class(root, kind):
    return [element for element in root.iter() if kind in element.get("class", "").split()]


def test_words_lines_arcs_and_brackets():
    root = drawn(ARMY)
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
    assert root.get("aria-label") == (
        "Tree of: Iraqi army leaders. Root: leaders. leaders governs army; army governs Iraqi."
    )


def test_a_tree_without_heads_has_brackets_only():
    root = drawn(
        Sentence(ARMY.words, ARMY.entities[:1], tree=Tree(((0, 3, None), (0, 2, None), (0, 1, None))))
    )
    assert of_class(root, "arrow") == []
    assert len(of_class(root, "bracket")) == 2
    assert len(of_class(root, "entity")) == 1


def test_from_right_to_left():
    words = ["האוניברסיטה", "של", "חיפה"]
    root = drawn(Sentence(words, tree=lexical_tree(3, random.Random(0))))
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
        root = drawn(Sentence(words, entities, tree=tree))
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
