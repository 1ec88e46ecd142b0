"""Nested entities and trees to look at: in a terminal, in a notebook, and as a page.

Drawn from sentences and documents, never from tensors.
"""

from nestree.show.boxed import boxes
from nestree.show.labels import Colours
from nestree.show.pages import page
from nestree.show.svg import draw_svg
from nestree.show.terminal import draw_document, draw_sentence
from nestree.show.trees import (
    draw_entities,
    draw_tree,
    in_ascii,
    levels,
    modifiers,
    short,
    shortened,
    tabulate,
)

__all__ = [
    "Colours",
    "boxes",
    "draw_document",
    "draw_entities",
    "draw_sentence",
    "draw_svg",
    "draw_tree",
    "in_ascii",
    "levels",
    "modifiers",
    "page",
    "short",
    "shortened",
    "tabulate",
]
