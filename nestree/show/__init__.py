"""Nested entities and trees, drawn from documents and sentences: in a terminal, in a notebook, and as a page.

`nestree.show(document)` is `document.show()`.
"""

import sys
from types import ModuleType
from typing import Any

from nestree.display import format_probability
from nestree.errors import InputError
from nestree.show.html import draw_boxes, draw_page, draw_svg
from nestree.show.layout import span_levels, span_modifiers
from nestree.show.terminal import draw_document, draw_sentence, to_ascii
from nestree.types import Document

__all__ = [
    "draw_boxes",
    "draw_document",
    "draw_page",
    "draw_sentence",
    "draw_svg",
    "format_probability",
    "span_levels",
    "span_modifiers",
    "to_ascii",
]


class CallableModule(ModuleType):
    """This module, as a function too."""

    def __call__(self, document: Any, tree: bool = False) -> None:
        if not isinstance(document, Document):
            raise InputError(
                f"show takes a document, and this is {document!r:.60}. `nestree.load()(text)` makes one."
            )
        document.show(tree)


sys.modules[__name__].__class__ = CallableModule
