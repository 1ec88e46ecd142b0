"""Documents and trees in a terminal: brackets, labels and heads, within the given width."""

import itertools
import random
import re
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from nestree.show import draw_document, draw_sentence, to_ascii
from nestree.types import Document, Entity, Sentence, Tree

from .cases import ARMY, CROSSING, PRESIDENT, documents, lexical_tree


def drawing(picture: str) -> str:
    return dedent(picture).strip("\n")


def test_brackets_with_labels_and_probabilities():
    assert draw_document(PRESIDENT, 100, head_mark="_").plain == (
        "[The _president_ of [the _University_ of [_California_|GPE .75, LOC .25]|ORG .80]|PER .90]"
    )
    assert draw_document(CROSSING, 80).plain == "[a [b…|Y]|X][… c|Y]"


def test_long_lines_are_wrapped_and_indented():
    assert draw_document(PRESIDENT, 40).plain == drawing("""
    [The president of [the University of
      [California|GPE .75, LOC .25]|ORG .80]
      |PER .90]
    """)
    assert draw_document(PRESIDENT, 60).plain == drawing("""
    [The president of [the University of
      [California|GPE .75, LOC .25]|ORG .80]|PER .90]
    """)
    document = Document([Sentence(["a", "b" * 50, "c"], [Entity(1, 2, "L" * 30)])])
    lines = draw_document(document, 20).plain.split("\n")
    assert all(len(line) <= 20 for line in lines)
    assert "".join(lines).replace(" ", "") == f"a[{'b' * 50}|{'L' * 30}]c"


def test_heads_are_underlined_and_a_label_has_one_color():
    text = draw_document(PRESIDENT, 100)
    styles = [(text.plain[span.start : span.end], str(span.style)) for span in text.spans]
    underlined = [part for part, style in styles if "underline" in style]
    assert underlined == ["president", "University", "California"]
    colors = {part: style for part, style in styles if part.startswith(("PER", "ORG", "GPE", "LOC"))}
    assert len(set(colors.values())) == 4
    closing = [style for part, style in styles if part == "]"]
    assert closing == [colors[name] for name in ("GPE .75", "ORG .80", "PER .90")]
    text = draw_sentence(ARMY, 80)
    styles = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert styles["┍"] == styles["╰─ ORG ──╯"] != styles["╰─── PER .90 ────╯"] == styles["┍━"]


def test_line_ends_of_the_text_are_kept():
    text = "Rome  is\tbig.\r\n\rParis, too."
    offsets = [word.span() for word in re.finditer(r"\w+|[.,]", text)]
    words = [text[i:j] for i, j in offsets]
    document = Document([Sentence(words, [Entity(0, 1, "GPE"), Entity(4, 5, "GPE")], text, offsets)], text)
    assert draw_document(document, 80).plain == "[Rome|GPE]  is    big.\n\n[Paris|GPE], too."


@settings(max_examples=25)
@given(documents(), st.integers(20, 60))
def test_any_document_fits_and_is_complete(document, width):
    plain = draw_document(document, width).plain
    assert all(cell_len(line) <= width for line in plain.split("\n"))
    assert not re.search("[\x00-\x08\x1b\ud800-\udfff\u202e\u2066]", plain)
    characters = iter(re.sub(r"\s", "", plain))
    text = re.sub(r"[\s\x00-\x1f\ud800-\udfff\u202e\u2066]", "", document.with_text().text)
    assert all(character in characters for character in text)  # in this order, with brackets between
    drawings = [draw_sentence(sentence, width).plain for sentence in document.sentences]
    drawn = "".join(character for character in "".join([plain, *drawings]) if character in "─├┤╭╮━┝┥┍┑│╰╯╵…")
    assert to_ascii(drawn).isascii()


BRACKETS = "a    b    c\n╰────╯\n╰─────────╯"
INCOMPLETE = {
    ((0, 3, 2), (0, 2, 1), (0, 1, 0), (1, 2, 1), (2, 3, None)): BRACKETS,  # no head
    ((0, 3, 2), (0, 2, 1), (0, 1, 0), (1, 2, 1)): BRACKETS,  # a word is missing
    ((0, 3, 0), (0, 2, 1), (0, 1, 0), (1, 2, 1), (2, 3, 2)): BRACKETS,  # of no child
    ((0, 3, 2), (0, 1, 0), (1, 2, 1), (2, 3, 2), (2, 3, 2)): "a    b    c\n╰─────────╯",  # a span twice
    (): "a    b    c",
}


@pytest.mark.parametrize(
    ("sentence", "picture"),
    [
        (
            ARMY,
            """
                 root
           ┍━1.00━┥
      ┍.93━┥      │
    Iraqi army leaders
    ╰GPE╯
    ╰─ ORG ──╯
    ╰─── PER .90 ────╯
    """,
        ),
        (
            Sentence(
                ["met", "army", "leaders"],
                tree=Tree(((0, 3, 0), (0, 1, 0), (1, 3, 1), (1, 2, 1), (2, 3, 2)), ((0, 1), (1, 2)), 0),
            ),
            """
    root
     ├────╮
     │    ├──────╮
    met  army leaders
    """,
        ),
        (Sentence(["Iraq"], tree=Tree(((0, 1, 0),), (), 0)), "root\nIraq"),
        (
            Sentence(["a", "big", "dog"], [Entity(0, 3, "X")], tree=Tree(((0, 3, None), (1, 3, None)))),
            """
    a    big  dog
         ╰──────╯
    ╰──── X ────╯
    """,
        ),
        (
            Sentence(["I", "am"], [Entity(0, 1, "person", score=0.5), Entity(0, 2, "an_even_longer_label")]),
            """
    I            am
    ╰person .50╯
    ╰an_even_longer_label╯
    """,
        ),
        (Sentence(["no", "entity", "here"]), "no   entity here"),
        *(  # incomplete trees have brackets only
            (Sentence(list("abc"), tree=Tree(spans)), picture) for spans, picture in INCOMPLETE.items()
        ),
        (
            Sentence(["東京", "大学", "cafe\N{COMBINING ACUTE ACCENT}", "x"], [Entity(0, 2, "ORG"), Entity(2, 3, "X")]),
            "東京 大学 cafe\N{COMBINING ACUTE ACCENT} x\n╰─ ORG ─╯ ╰X─╯",
        ),
    ],
)
def test_sentences(sentence, picture):
    assert draw_sentence(sentence, 80).plain == drawing(picture)


@pytest.mark.parametrize("n", [2, 5, 13, 40])
def test_trees_are_connected(n):
    """Below each joint or bar is a bar, a joint, a corner or a word; no line runs through another."""
    rng = random.Random(n)
    for _ in range(10):
        words = ["w" * rng.randint(1, 9) for _ in range(n)]
        rows = draw_sentence(Sentence(words, tree=lexical_tree(n, rng)), 10_000).plain.split("\n")
        joined = "".join(rows)
        assert joined.count("├") + joined.count("┤") == n - 1  # one for each arc
        assert joined.count("╭") + joined.count("╮") == n - 1
        for above, below in itertools.pairwise(rows[1:]):
            for column, character in enumerate(above):
                if character in "│├┤╭╮":
                    assert below[column : column + 1] in tuple("│├┤w")


@pytest.mark.parametrize("width", [30, 120])
def test_wide_trees_are_cut_into_stretches(width):
    rng = random.Random(width)
    words = [rng.choice("abcdefgh") * rng.randint(1, 9) for _ in range(40)]
    entities = [Entity(0, 40, "ALL", score=0.5), Entity(3, 17, "SOME"), Entity(10, 30, "CROSSING")]
    sentence = Sentence(words, entities, tree=lexical_tree(40, rng))
    lines = draw_sentence(sentence, width).plain.split("\n")
    assert all(len(line) <= width for line in lines)
    drawn = [word for line in lines for word in line.split() if re.fullmatch(r"([a-h])\1*", word)]
    assert drawn == words
    joined = "".join(lines)
    assert sum(joined.count(joint) for joint in "├┤┝┥") == 39
    assert all(label in joined for label in ("ALL .50", "SOME", "CROSSING"))
    assert not [line for line in lines if line and not line.strip(" │")]
