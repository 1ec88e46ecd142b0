"""Nested entities and trees, drawn from documents and sentences: in a terminal, in a notebook, and as a page."""

from nestree.show.html import boxes, page
from nestree.show.layout import LabelColors, levels, modifiers, short
from nestree.show.svg import draw_svg
from nestree.show.terminal import draw_document, draw_sentence, in_ascii

__all__ = [
    "LabelColors",
    "boxes",
    "draw_document",
    "draw_sentence",
    "draw_svg",
    "in_ascii",
    "levels",
    "modifiers",
    "page",
    "short",
]
