"""An HTTP server for one model: entities of texts as JSON, a web page, and backends of annotation tools."""

from nestree.serve.app import create_app
from nestree.serve.options import ServeOptions
from nestree.serve.server import run

__all__ = ["ServeOptions", "create_app", "run"]
