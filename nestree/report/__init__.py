"""Numbers of an evaluation -> terminal, Markdown, JSON, and one HTML page that needs nothing else."""

from nestree.report.html import to_html
from nestree.report.tables import to_json, to_markdown, to_terminal

__all__ = ["to_html", "to_json", "to_markdown", "to_terminal"]
