"""Nested named entity recognition with exact inference over latent lexicalised trees.

>>> import nestree
>>> nestree.Entity(3, 4, "GPE").span
(3, 4)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nestree import hub as hub
    from nestree import show as show
    from nestree.pipeline import Pipeline as Pipeline
    from nestree.pipeline import load as load
    from nestree.types import Document as Document
    from nestree.types import Entity as Entity
    from nestree.types import Sentence as Sentence
    from nestree.types import TextEntity as TextEntity

__version__ = "0.1.0"

# Imported when they are asked for: importing nestree imports nothing.
PUBLIC = {
    "load": "pipeline",
    "Pipeline": "pipeline",
    "hub": "hub",
    "show": "show",
    "Document": "types",
    "Entity": "types",
    "Sentence": "types",
    "TextEntity": "types",
}


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"nestree has no {name}; it has {', '.join(PUBLIC)}.")
    module = import_module(f"nestree.{PUBLIC[name]}")
    return module if name == PUBLIC[name] else getattr(module, name)


def __dir__() -> list[str]:
    return [*globals(), *PUBLIC]
