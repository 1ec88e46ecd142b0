"""`python -m nestree` is the command `nestree`."""

from nestree.cli import app

app(prog_name="nestree")
