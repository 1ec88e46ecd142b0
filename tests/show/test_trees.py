"""Drawings, compared with what they should look like, character by character."""

import itertools
import random
import subprocess
import sys
from textwrap import dedent

import pytest
from rich.console import Console

from nestree.show import draw_entities, draw_tree, in_ascii, shortened, tabulate
from nestree.show.terminal import labelled

ARMY = ["Iraqi", "army", "leaders"]
ARMY_TREE = [(0, 3, 2), (0, 2, 1), (0, 1, 0), (1, 2, 1), (2, 3, 2)]


def drawn(picture: str) -> str:
    return dedent(picture).strip("\n")


def test_a_tree_with_probabilities_and_entities():
    probability = [[0.0, 1.0, 0.93, 0.987], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0] * 4]
    drawing = draw_tree(ARMY, ARMY_TREE, probability, {(0, 3): "leaders", (0, 1): ""}, "root .88")
    assert drawing.plain == drawn("""
               root .88
           ┍━.99━━┥
      ╭.93─┤      │
    Iraqi army leaders
    ╰───╯
    ╰─── leaders ────╯
    """)


def test_a_head_on_the_left_takes_modifiers_on_its_right():
    spans = [(0, 3, 0), (0, 1, 0), (1, 3, 1), (1, 2, 1), (2, 3, 2)]
    assert draw_tree(["met", "army", "leaders"], spans).plain == drawn("""
    root
     ├────╮
     │    ├──────╮
    met  army leaders
    """)


def test_one_word_is_a_tree():
    assert draw_tree(["Iraq"], [(0, 1, 0)]).plain == "root\nIraq"


def test_wide_and_combining_characters_keep_their_columns():
    words = ["東京", "大学", "cafe\N{COMBINING ACUTE ACCENT}", "x"]
    assert draw_entities(words, {(0, 2): "ORG", (2, 3): "", (3, 4): "X"}).plain == (
        "東京 大学 cafe\N{COMBINING ACUTE ACCENT} x\n╰─ ORG ─╯ ╰──╯ ╵"
    )


def test_without_entities_there_are_only_the_words():
    assert draw_entities(["no", "entity", "here"], {}).plain == "no   entity here"


def test_an_entity_has_one_colour_in_the_tree_and_in_its_bracket():
    drawing = draw_tree(ARMY, ARMY_TREE, entities={(0, 2): "army", (0, 3): "leaders"})
    styles = {(span.style, drawing.plain[span.start : span.end]) for span in drawing.spans}
    assert {("cyan", "┍━━"), ("cyan", "╰─ army ─╯"), ("magenta", "╰─── leaders ────╯")} <= styles


@pytest.mark.parametrize("n", [2, 3, 5, 8, 13, 40])
def test_every_tree_hangs_together(n):
    """Below each joint or bar stands a bar, a joint, a corner or a word; no line runs through another."""
    chance = random.Random(n)
    for _ in range(20):
        words = ["w" * chance.randint(1, 9) for _ in range(n)]
        spans: list[tuple[int, int, int]] = []
        grow(0, n, chance.randrange(n), chance, spans)
        rows = draw_tree(words, spans).plain.split("\n")
        assert len([c for row in rows for c in row if c in "├┤"]) == n - 1  # as many joins as arcs
        assert len([c for row in rows for c in row if c in "╭╮"]) == n - 1
        for above, below in itertools.pairwise(rows[1:]):
            for at, character in enumerate(above):
                if character in "│├┤╭╮":
                    assert below[at : at + 1] in tuple("│├┤w")


def grow(i: int, j: int, head: int, chance: random.Random, spans: list[tuple[int, int, int]]) -> None:
    spans.append((i, j, head))
    if j - i > 1:
        k = chance.randrange(i + 1, j)
        left, right = chance.randrange(i, k), chance.randrange(k, j)
        grow(i, k, head if head < k else left, chance, spans)
        grow(k, j, head if head >= k else right, chance, spans)


def test_the_table_has_a_row_for_every_join():
    certain = [[1.0] * 4] * 4
    table = tabulate(ARMY, ARMY_TREE, certain, [[[0.5] * 3] * 4] * 4, [[0.25] * 3] * 3)
    console = Console(width=80)
    with console.capture() as page:
        console.print(table)
    rows = [line.split() for line in page.get().splitlines()]
    assert rows == [
        ["span", "P", "head", "P", "modifier", "P"],
        ["Iraqi", "army", "leaders", "1.000", "leaders", "0.500", "army", "0.250"],
        ["Iraqi", "army", "1.000", "army", "0.500", "Iraqi", "0.250"],
    ]


@pytest.mark.parametrize(
    ("text", "cells"), [("", 3), ("one", 3), ("one two three four", 12), ("overlong", 4)]
)
def test_what_is_shortened_fits(text, cells):
    assert len(shortened(text, cells)) <= cells


@pytest.mark.parametrize("cells", range(9))
@pytest.mark.parametrize("label", ["", ".5", "label"])
def test_a_labelled_line_is_as_long_as_asked(label, cells):
    assert len("".join(labelled(label, cells, "─"))) == cells


def test_ascii_has_a_character_for_everything_drawn():
    drawing = draw_tree(ARMY, ARMY_TREE, entities={(0, 3): "…", (0, 1): ""})
    assert in_ascii(drawing.plain).isascii()
    assert in_ascii(shortened("one two three four", 12)).isascii()


def test_drawing_does_not_import_torch():
    code = "import sys, nestree.show; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
