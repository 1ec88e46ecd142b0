"""Nested entities and trees, drawn from documents and sentences: in a terminal, in a notebook, and as a page."""

from nestree.display import format_probability
from nestree.show.html import draw_boxes, draw_page, draw_svg
from nestree.show.layout import span_levels, span_modifiers
from nestree.show.terminal import draw_document, draw_sentence, to_ascii

__all__ = [
    "draw_boxes", "draw_document", "draw_page", "draw_sentence", "draw_svg", "format_probability",
    "span_levels", "span_modifiers", "to_ascii",
]  # fmt: skip
