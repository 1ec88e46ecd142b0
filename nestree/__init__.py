"""Nested named entity recognition with exact inference over latent lexicalised trees.

>>> import nestree
>>> nestree.Entity(3, 4, "GPE").span
(3, 4)
"""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nestree import data, errors, evaluation, hub, report, show, treecrf
    from nestree.acquisition import select
    from nestree.api import evaluate, export, read, write
    from nestree.model import Recognizer
    from nestree.pipeline import Pipeline, load
    from nestree.training.train import train
    from nestree.types import Document, Entity, Sentence, TextEntity

__version__ = "0.1.0"
__all__ = [
    "Document", "Entity", "Pipeline", "Recognizer", "Sentence", "TextEntity", "__version__", "data", "errors",
    "evaluate", "evaluation", "export", "hub", "load", "read", "report", "select", "show", "train", "treecrf", "write",
]  # fmt: skip

# Imported on first use, so that importing nestree does not import torch. An empty string is a module itself.
ORIGINS = {
    "load": "pipeline", "train": "training", "evaluate": "api", "export": "api", "read": "api", "write": "api",
    "select": "acquisition",
    "Recognizer": "model", "Pipeline": "pipeline",
    "Document": "types", "Entity": "types", "Sentence": "types", "TextEntity": "types",
    "data": "", "errors": "", "evaluation": "", "hub": "", "report": "", "show": "", "treecrf": "",
}  # fmt: skip


HINTS = {
    "predict": "nestree.load()(text) finds entities",
    "convert": "nestree.write(nestree.read(source), target) converts files",
    "check": "the command `nestree check`, or `from nestree.data.checks import check`, finds problems in data",
    "split": "the command `nestree split` divides data",
    "stats": "the command `nestree stats` counts entities",
    "compare": "use nestree.evaluation.compare",
    "Doc": "use Document",
    "Span": "use Entity (words) or TextEntity (characters)",
    "load_model": "use nestree.load",
    **dict.fromkeys(("list_models", "models", "download"), 'nestree.load("gum-minilm") is the model that comes along'),
    **dict.fromkeys(("NER", "pipeline", "from_pretrained"), "nestree.load() returns a Pipeline"),
    "serve": "the command `nestree serve` starts a server",
    "version": "nestree.__version__ is the version",
}


def __getattr__(name: str) -> Any:
    if name not in ORIGINS:
        hint = HINTS.get(name, f"it has {', '.join(ORIGINS)}")
        raise AttributeError(f"nestree has no {name}; {hint}.")
    origin = ORIGINS[name]
    collecting = gc.isenabled()
    gc.disable()  # a collection while modules are imported visits all objects of PyTorch, which takes 0.1 s
    try:
        return getattr(import_module(f"nestree.{origin}"), name) if origin else import_module(f"nestree.{name}")
    finally:
        if collecting:
            gc.enable()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
