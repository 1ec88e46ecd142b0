"""The command `show`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestree.cli.data import options_for, reading, say_account
from nestree.cli.options import From, LongestLine, Read, Sentences, SkipBad, Words
from nestree.cli.running import Quiet, Verbose, print_page, say
from nestree.errors import InputError

if TYPE_CHECKING:
    from rich.text import Text

    from nestree.data.tally import Tally
    from nestree.sentence import Document


def show(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A file or folder; - is standard input.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="PAGE", help="Write an HTML page, which needs nothing else."),
    ] = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="Draw the tree of each sentence; a page has them in any case.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ID", help="Show this document or sentence; may be repeated."),
    ] = None,
    first: Annotated[
        int | None, typer.Option("--first", metavar="N", min=1, help="Show the first N sentences.")
    ] = None,
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    skip_bad: SkipBad = False,
    longest_line: LongestLine = None,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Draw nested entities: brackets in the terminal, or boxes on an HTML page.

    Heads are underlined; labels come with their probabilities if these are known. Any format that `nestree formats`
    lists can be shown. Trees come from JSON lines, as models write them.
    """
    from nestree.data.tally import Tally
    from nestree.show import choosing, page

    tally = Tally(skip_bad)
    with reading([source], longest_line):
        options = options_for([source], source_format, read, words, sentences)
        documents: Iterable[Document] = documents_of(source, source_format, options, tally)
        if only:
            documents = choosing.only(documents, only)
        if first:
            documents = choosing.first(documents, first)
        if out or tree:
            documents = list(documents)
        if tree and not any(sentence.tree for document in documents for sentence in document.sentences):
            raise InputError(
                f"--tree: no sentence of {source} has a tree. Trees come from a model, in JSON lines; leave this out."
            )
        if out:
            from nestree.data.files import written

            with written(out) as file:
                file.write(page(list(documents), str(source)))
            say(f"written: {out}")
        else:
            print_documents(documents, tree)
    say_account(tally)


def documents_of(
    source: Path, format: str | None, options: dict[str, Any], tally: "Tally"
) -> "Iterator[Document]":
    """What is shown: annotated or predicted data of any format."""
    from nestree.data import formats

    return formats.read(source, format, tally, **options)


def print_documents(documents: "Iterable[Document]", trees: bool) -> None:
    """One after the other, as they come, and a line about all of them."""
    from rich.console import Console

    from nestree.show import Colours, draw_document, draw_sentence

    console, colours = Console(), Colours()
    mark = "" if console.color_system else "_"  # what cannot underline has no colours either
    counts: Counter[str] = Counter()
    sentences = 0
    for number, document in enumerate(documents):
        parts = titled(document, number)
        if trees:
            drawings = [draw_sentence(sentence, console.width, colours) for sentence in document.sentences]
        else:
            drawings = [draw_document(document, console.width, colours, mark)]
        for drawing in drawings:
            parts += [drawing, ""] if trees else [drawing]
        print_page(*parts, soft_wrap=True)
        counts.update(label for entity in document.entities for label in entity.labels)
        sentences += len(document.sentences)
    labels = ", ".join(f"{label} {count:,}" for label, count in counts.most_common())
    entities = f"{counts.total():,} {'entity' if counts.total() == 1 else 'entities'}"
    within = f"{sentences:,} {'sentence' if sentences == 1 else 'sentences'}"
    say(f"{entities} in {within}" + (f": {labels}" if labels else ""))


def titled(document: "Document", number: int) -> "list[Text | str]":
    """A line with the id of the document, if it has one, and a blank one between documents."""
    from rich.text import Text

    from nestree.show.characters import on_one_line

    between: Sequence[Text | str] = [""] if number else []
    return [*between, *([Text(on_one_line(document.id), "bold reverse")] if document.id else [])]
