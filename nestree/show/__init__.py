"""Nested entities and trees to look at: in a terminal, in a notebook, and as a page.

Drawn from sentences and documents, never from tensors.
"""

from nestree.show.html import boxes, draw_svg, page
from nestree.show.layout import LabelColors
from nestree.show.terminal import (
    draw_document,
    draw_entities,
    draw_sentence,
    draw_tree,
    in_ascii,
    levels,
    modifiers,
    short,
    shortened,
    tabulate,
)

__all__ = [
    "LabelColors",
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
