"""`nestree demo`: the model in the box reads a few sentences."""

from pathlib import Path
from typing import Annotated

import typer

from nestree.cli.running import print_page

TEXT = """\
The president of the University of California met Iraqi army leaders.
Scientists from the Max Planck Institute in Leipzig discovered how the brains of young apes grow.
She was born in a small village in the north of Portugal, and her grandmother's house still stands there.
Her brother works for the Bank of Portugal.
"""


def demo(
    out: Annotated[Path, typer.Option("--out", metavar="PAGE", help="The HTML page to write.")] = Path(
        "demo.html"
    ),
) -> None:
    """Find the nested entities of a few sentences with the model in the box, and draw them."""
    from rich.console import Console
    from rich.text import Text

    from nestree.data.files import written
    from nestree.pipeline import load
    from nestree.show import draw_document, draw_sentence, page

    document = load()(TEXT)
    width = Console().width
    with written(out) as file:
        file.write(page([document], "nestree demo"))
    print_page(
        draw_document(document, width),
        Text(),
        Text("[...|label probability] is an entity; its head word is underlined.", "dim"),
        Text(),
        draw_sentence(document.sentences[-1], width),
        Text(),
        Text(
            "The tree that the last sentence was read with. A line is a span: the words below\n"
            "it. It joins the span's head, whose own line goes on upwards, to its modifier;\n"
            "its number is its probability.",
            "dim",
        ),
        Text(),
        Text.assemble(("Written: ", "bold"), f"{out}, the same as a page. Next:"),
        Text("  echo 'Your own text.' | nestree show -        look at it", "default"),
        Text("  nestree predict FILES --out FOLDER            entities of many texts", "default"),
        Text(
            "  nestree train --train DATA --out MODEL        your own model: docs/tutorial.md",
            "default",
        ),
        soft_wrap=True,
    )
