"""Documents in a terminal: brackets, labels and heads, within the width that there is."""

import random
import re
from dataclasses import replace
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from nestree.show import LabelColors, draw_document, draw_sentence, in_ascii
from nestree.types import Document, Entity, Sentence, Tree

from .cases import documents, lexical_tree
from .test_boxed import PRESIDENT
from .test_svg import ARMY


def drawn(picture: str) -> str:
    return dedent(picture).strip("\n")


def test_brackets_with_labels_and_probabilities():
    assert draw_document(PRESIDENT, 100, head_mark="_").plain == (
        "[The _president_ of [the _University_ of [_California_|GPE .75, LOC .25]|ORG .80]|PER .90]"
    )


def test_long_texts_are_wrapped_and_what_goes_on_is_indented():
    assert draw_document(PRESIDENT, 40).plain == drawn("""
    [The president of [the University of
      [California|GPE .75, LOC .25]|ORG .80]
      |PER .90]
    """)
    assert draw_document(PRESIDENT, 60).plain == drawn("""
    [The president of [the University of
      [California|GPE .75, LOC .25]|ORG .80]|PER .90]
    """)


def test_what_is_wider_than_a_line_is_broken_anywhere():
    document = Document([Sentence(["a", "b" * 50, "c"], [Entity(1, 2, "L" * 30)])])
    lines = draw_document(document, 20).plain.split("\n")
    assert all(len(line) <= 20 for line in lines)
    assert "".join(lines).replace(" ", "") == f"a[{'b' * 50}|{'L' * 30}]c"


def test_heads_are_underlined_and_brackets_coloured_by_label():
    drawing = draw_document(PRESIDENT, 100)
    styled = [(drawing.plain[span.start : span.end], str(span.style)) for span in drawing.spans]
    assert [text for text, style in styled if "underline" in style] == [
        "president",
        "University",
        "California",
    ]
    colour = {text: style for text, style in styled if text.startswith(("PER", "ORG", "GPE", "LOC"))}
    assert len(set(colour.values())) == 4
    closing = [style for text, style in styled if text == "]"]
    assert closing == [colour[name] for name in ("GPE .75", "ORG .80", "PER .90")]


def test_colours_go_on_from_document_to_document():
    colours = LabelColors()
    styles = [
        str(draw_document(Document([Sentence(["a"], [Entity(0, 1, label)])]), 80, colours).spans[0].style)
        for label in ("PER", "ORG", "PER")
    ]
    assert styles[0] == styles[2] != styles[1]


def test_crossing_entities_are_cut():
    document = Document([Sentence(list("abcd"), [Entity(0, 2, "X"), Entity(1, 3, "Y")])])
    assert draw_document(document, 80).plain == "[a [b…|Y]|X][… c|Y] d"


def test_lines_of_the_text_stay_lines():
    text = "Rome  is\tbig.\n\nParis, too."
    words, at, offsets = ["Rome", "is", "big", ".", "Paris", ",", "too", "."], 0, []
    for word in words:
        at = text.index(word, at)
        offsets.append((at, at + len(word)))
        at += len(word)
    document = Document([Sentence(words, [Entity(0, 1, "GPE"), Entity(4, 5, "GPE")], text, offsets)], text)
    assert draw_document(document, 80).plain == "[Rome|GPE]  is    big.\n\n[Paris|GPE], too."


def test_ascii_has_a_character_for_everything_drawn():
    document = Document([replace(ARMY, entities=[*ARMY.entities, Entity(1, 3, "X")])])
    assert in_ascii(draw_document(document, 80).plain).isascii()
    assert in_ascii(draw_sentence(document.sentences[0], 80).plain).isascii()


@settings(deadline=None, max_examples=40)
@given(documents(), st.integers(20, 60))
def test_any_document_fits_and_nothing_of_it_is_lost(document, width):
    drawing = draw_document(document, width)
    assert all(cell_len(line) <= width for line in drawing.plain.split("\n"))
    assert not re.search("[\x00-\x08\x1b\ud800-\udfff\u202e\u2066]", drawing.plain)
    kept = iter(re.sub(r"\s", "", drawing.plain))
    text = re.sub(r"[\s\x00-\x1f\ud800-\udfff\u202e\u2066]", "", document.with_text().text)
    assert all(character in kept for character in text)  # in this order, with brackets between


def test_a_sentence_with_its_tree():
    assert draw_sentence(ARMY, 80).plain == drawn("""
                 root
           ┍━1.00━┥
      ┍.93━┥      │
    Iraqi army leaders
    ╰GPE╯
    ╰─ ORG ──╯
    ╰─── PER .90 ────╯
    """)


def test_labels_always_find_room():
    sentence = Sentence(
        ["I", "am"], [Entity(0, 1, "person", score=0.5), Entity(0, 2, "an_even_longer_label")]
    )
    assert draw_sentence(sentence, 80).plain == drawn("""
    I            am
    ╰person .50╯
    ╰an_even_longer_label╯
    """)


def test_a_tree_without_heads_is_drawn_as_brackets():
    sentence = Sentence(["a", "big", "dog"], [Entity(0, 3, "X")], tree=Tree(((0, 3, None), (1, 3, None))))
    assert draw_sentence(sentence, 80).plain == drawn("""
    a    big  dog
         ╰──────╯
    ╰──── X ────╯
    """)


@pytest.mark.parametrize("width", [30, 60, 120])
def test_wide_trees_are_cut_into_stretches(width):
    chance = random.Random(width)
    words = [chance.choice("abcdefgh") * chance.randint(1, 9) for _ in range(40)]
    entities = [Entity(0, 40, "ALL", score=0.5), Entity(3, 17, "SOME"), Entity(10, 30, "CROSSING")]
    sentence = Sentence(words, entities, tree=lexical_tree(40, chance))
    lines = draw_sentence(sentence, width).plain.split("\n")
    assert all(len(line) <= width for line in lines)
    shown = [word for line in lines for word in line.split() if re.fullmatch(r"([a-h])\1*", word)]
    assert shown == words
    joined = "".join(lines)
    assert joined.count("├") + joined.count("┤") + joined.count("┝") + joined.count("┥") == 39
    assert "ALL .50" in joined
    assert all(label in joined for label in ("SOME", "CROSSING"))
    assert not [line for line in lines if line and not line.strip(" │")]
