"""An HTTP server for one model: entities of texts as JSON, a web page, and backends of annotation tools."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nestree.data.io import optional_import
from nestree.serve.options import ServeOptions

if TYPE_CHECKING:
    from nestree.serve.app import create_app
    from nestree.serve.server import run

__all__ = ["ServeOptions", "create_app", "run"]


def __getattr__(name: str) -> Any:
    """The application, with FastAPI and torch, is imported on first use: `nestree serve --help` needs neither."""
    if name not in __all__:
        raise AttributeError(f"nestree.serve has no {name}; it has {', '.join(__all__)}.")
    for module in ("fastapi", "uvicorn"):
        optional_import(module, "nestree serve", "serve")
    return getattr(import_module(f"nestree.serve.{'app' if name == 'create_app' else 'server'}"), name)
