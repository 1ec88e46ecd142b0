"""The types at both ends of everything: entities in sentences of words, sentences in documents of characters."""

from nestree.sentence.characters import Arc, Constituent, TextEntity, TextSpan, TextTree, rounded
from nestree.sentence.document import Document, moved
from nestree.sentence.entity import Entity, Sentence, Span, Tree, crossing, depths

__all__ = [
    "Arc",
    "Constituent",
    "Document",
    "Entity",
    "Sentence",
    "Span",
    "TextEntity",
    "TextSpan",
    "TextTree",
    "Tree",
    "crossing",
    "depths",
    "moved",
    "rounded",
]
