"""Nested entities and trees to look at: in a terminal, in a notebook, and as a page."""

from nestree.show.boxed import boxes
from nestree.show.pages import page
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
    "boxes",
    "draw_entities",
    "draw_tree",
    "in_ascii",
    "levels",
    "modifiers",
    "page",
    "short",
    "shortened",
    "tabulate",
]
