"""The command `show`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestree.cli.data import options_for, reading, say_account
from nestree.cli.runtime import (
    Device,
    From,
    Quiet,
    Read,
    Sentences,
    SkipBad,
    Verbose,
    Words,
    print_line,
    print_page,
)
from nestree.errors import InputError

if TYPE_CHECKING:
    from rich.text import Text

    from nestree.data.io import ConversionReport
    from nestree.types import Document


def show(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A file or folder; - is standard input.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Show what this model finds: a directory, or OWNER/NAME on the hub. For plain text, the model in "
            "the box if none is named.",
        ),
    ] = None,
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
    device: Device = "auto",
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    skip_bad: SkipBad = False,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Draw nested entities: brackets in the terminal, or boxes on an HTML page.

    Heads are underlined; labels come with their probabilities if these are known. Any format that `nestree formats`
    lists can be shown as it is, or as a model sees it. Plain text (.txt, standard input) is read by a model.
    """
    from nestree.data.io import ConversionReport, check_output_path

    if out:
        check_output_path(out, [source])
    tally = ConversionReport(skip_bad)
    source_format = source_format or text_or_lines(source)
    with reading([source]):
        options = options_for([source], source_format, read, words, sentences)
        documents = documents_of(source, source_format, options, tally)
        documents = chosen(documents, only, first)
        if model or source_format == "text":
            split = source_format == "text" and not (words or sentences)
            documents = recognised(documents, model, device, split)
        if tree:
            documents = with_trees(documents, source)
        if out:
            write_page(documents, out, source.name if source.name != "-" else "Nested entities")
        else:
            print_documents(documents, tree)
    say_account(tally)


def text_or_lines(source: Path) -> str | None:
    """What is called .txt is a text, if there are no annotations beside it; so is what comes in, if it is not JSON."""
    from nestree.data.formats.detect import detect_stdin
    from nestree.data.formats.text import ENDINGS
    from nestree.data.io import STDIO

    if source == STDIO:
        return detect_stdin()
    annotated = source.with_suffix(".ann").exists()
    return "text" if source.name.endswith(ENDINGS) and source.is_file() and not annotated else None


def documents_of(
    source: Path, format: str | None, options: dict[str, Any], tally: "ConversionReport"
) -> "Iterator[Document]":
    """Annotated or predicted data of any format, or texts."""
    from nestree.data import formats

    return formats.read(source, format, tally, **options)


def chosen(
    documents: "Iterator[Document]", only: Sequence[str] | None, first: int | None
) -> "Iterator[Document]":
    from nestree.show.filters import first_sentences, select_documents

    documents = iter(select_documents(documents, only)) if only else documents
    return first_sentences(documents, first) if first else documents


def recognised(
    documents: "Iterable[Document]", model: str | None, device: str, split: bool
) -> "Iterator[Document]":
    """The same with the entities and trees that a model finds; `split`: into words and sentences as it knows them."""
    from nestree.pipeline import load

    pipeline = load(model, device)
    asked = pipeline.asked(threshold=None, trees=True)
    for document in documents:
        if split:
            document = replace(pipeline.split(document.text or ""), id=document.id, extra=document.extra)
        yield pipeline.recognised([document], asked)[0]


def with_trees(documents: "Iterable[Document]", source: Path) -> "Iterator[Document]":
    found = list(documents)
    if not any(sentence.tree for document in found for sentence in document.sentences):
        raise InputError(
            f"--tree: no sentence of {source} has a tree. Name a --model that makes trees, or leave this out."
        )
    return iter(found)


def write_page(documents: "Iterable[Document]", out: Path, title: str) -> None:
    from nestree.data.io import atomic_writer
    from nestree.show import page

    with atomic_writer(out) as file:
        file.write(page(list(documents), title))
    print_line(f"written: {out}")


def print_documents(documents: "Iterable[Document]", trees: bool) -> None:
    """One after the other, as they come, and a line about all of them."""
    from rich.console import Console

    from nestree.show import LabelColors, draw_document, draw_sentence

    console, colours = Console(), LabelColors()
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
    print_line(f"{entities} in {within}" + (f": {labels}" if labels else ""))


def titled(document: "Document", number: int) -> "list[Text | str]":
    """A line with the id of the document, if it has one, and a blank one between documents."""
    from rich.text import Text

    from nestree.show.layout import single_line

    between: Sequence[Text | str] = [""] if number else []
    return [*between, *([Text(single_line(document.id), "bold reverse")] if document.id else [])]


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
    """Find the nested entities of a few sentences with the bundled model, and draw them."""
    from rich.console import Console
    from rich.text import Text

    from nestree.data.io import atomic_writer
    from nestree.pipeline import load
    from nestree.show import draw_document, draw_sentence, page

    document = load()(TEXT)
    width = Console().width
    with atomic_writer(out) as file:
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
