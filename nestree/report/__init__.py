"""Numbers of an evaluation -> terminal, Markdown, JSON, and one HTML page that needs nothing else."""

from nestree.report.page import html
from nestree.report.texts import markdown, terminal
from nestree.report.values import as_json

__all__ = ["as_json", "html", "markdown", "terminal"]
