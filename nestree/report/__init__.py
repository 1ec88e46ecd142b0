"""Numbers of an evaluation -> terminal, Markdown, JSON, and one HTML page that needs nothing else."""

from nestree.report.html import html
from nestree.report.tables import as_json, markdown, terminal

__all__ = ["as_json", "html", "markdown", "terminal"]
