"""The types at both ends of everything: entities in sentences of words, sentences in documents of characters."""

from nestree.sentence.characters import Arc, Constituent, TextEntity, TextSpan, TextTree, rounded
from nestree.sentence.document import Document, in_context, moved
from nestree.sentence.entity import (
    Context,
    Entity,
    Sentence,
    Span,
    Tree,
    crossing,
    depths,
    sound_entity,
    with_found,
)

__all__ = [
    "Arc",
    "Constituent",
    "Context",
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
    "in_context",
    "moved",
    "rounded",
    "sound_entity",
    "with_found",
]
