"""Nested named entity recognition with exact inference over latent lexicalised trees.

>>> import nestree
>>> nestree.Entity(3, 4, "GPE").span
(3, 4)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nestree import data as data
    from nestree import errors as errors
    from nestree import evaluation as evaluation
    from nestree import hub as hub
    from nestree import show as show
    from nestree import treecrf as treecrf
    from nestree.pipeline import Pipeline as Pipeline
    from nestree.pipeline import load as load
    from nestree.types import Document as Document
    from nestree.types import Entity as Entity
    from nestree.types import Sentence as Sentence
    from nestree.types import TextEntity as TextEntity

__version__ = "0.1.0"

# Imported on first use, so that importing nestree does not import torch.
MODULES = ("data", "errors", "evaluation", "hub", "show", "treecrf")
CLASSES = {
    "load": "pipeline",
    "Pipeline": "pipeline",
    "Document": "types",
    "Entity": "types",
    "Sentence": "types",
    "TextEntity": "types",
}
__all__ = ["__version__", *CLASSES, *MODULES]


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return import_module(f"nestree.{name}")
    if name in CLASSES:
        return getattr(import_module(f"nestree.{CLASSES[name]}"), name)
    raise AttributeError(f"nestree has no {name}; it has {', '.join([*CLASSES, *MODULES])}.")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
