"""The commands `show` and `demo`."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestree.cli.data import print_report, read_options, read_progress
from nestree.cli.runtime import (
    Device,
    From,
    Quiet,
    Read,
    Sentences,
    SkipBad,
    Verbose,
    Words,
    pluralize,
    print_line,
    print_page,
)
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.types import Document


def show(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A file or folder; - is standard input.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Show what this model finds: a directory, or OWNER/NAME on the hub. For plain text, the bundled "
            "model if none is named.",
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
    from nestree.data import formats
    from nestree.data.io import ConversionReport, atomic_writer, check_output_path
    from nestree.show import draw_page
    from nestree.show.filters import first_sentences, select_documents

    if out:
        check_output_path(out, [source])
    report = ConversionReport(skip_bad)
    source_format = source_format or detect_text(source)
    with read_progress([source]):
        options = read_options([source], source_format, read, words, sentences)
        documents = formats.read(source, source_format, report, **options)
        if only:
            documents = iter(select_documents(documents, only))
        if first:
            documents = first_sentences(documents, first)
        if model or source_format == "text":
            split = source_format == "text" and not (words or sentences)
            documents = predict_documents(documents, model, device, split)
        if tree:
            with_trees = list(documents)
            if not any(sentence.tree for document in with_trees for sentence in document.sentences):
                raise InputError(
                    f"--tree: no sentence of {source} has a tree. Name a --model that makes trees, or leave this out."
                )
            documents = iter(with_trees)
        if out:
            title = source.name if source.name != "-" else "Nested entities"
            reader = model or ("gum-minilm" if source_format == "text" else "none: as annotated")
            given = {"only": only, "first": first, "words": words, "sentences": sentences}
            settings = ", ".join(f"{name} {value}" for name, value in given.items() if value) or "defaults"
            about = {"model": reader, "data": str(source), "settings": settings}
            with atomic_writer(out) as file:
                file.write(draw_page(list(documents), title, about))
            print_line(f"written: {out}")
        else:
            print_documents(documents, tree)
    print_report(report)


def detect_text(source: Path) -> str | None:
    """`text` for a .txt file without annotations beside it and for standard input that is not JSON."""
    from nestree.data.formats.detect import detect_stdin
    from nestree.data.formats.text import TEXT_SUFFIXES
    from nestree.data.io import STDIO

    if source == STDIO:
        return detect_stdin()
    annotated = source.with_suffix(".ann").exists()
    return "text" if source.name.endswith(TEXT_SUFFIXES) and source.is_file() and not annotated else None


def predict_documents(
    documents: "Iterable[Document]", model: str | None, device: str, split: bool
) -> "Iterator[Document]":
    """The documents with the entities and trees of a model; `split`: into its own words and sentences."""
    from nestree.pipeline import load

    pipeline = load(model, device)
    options = pipeline.predict_options(threshold=None, trees=True)
    for document in documents:
        if split:
            document = replace(pipeline.split(document.text or ""), id=document.id, extra=document.extra)
        yield pipeline.predict_documents([document], options)[0]


def print_documents(documents: "Iterable[Document]", trees: bool) -> None:
    """Print each document when it is read, and then a summary."""
    from rich.console import Console
    from rich.text import Text

    from nestree.display import single_line
    from nestree.show import draw_document, draw_sentence

    console = Console()
    head_mark = "" if console.color_system else "_"  # without colors there is no underlining either
    counts: Counter[str] = Counter()
    sentences = 0
    for number, document in enumerate(documents):
        parts: list[Text | str] = [""] if number else []
        if document.id:
            parts.append(Text(single_line(document.id), "bold reverse"))
        if trees:
            for sentence in document.sentences:
                parts += [draw_sentence(sentence, console.width), ""]
        else:
            parts.append(draw_document(document, console.width, head_mark))
        print_page(*parts, soft_wrap=True)
        counts.update(label for entity in document.entities for label in entity.labels)
        sentences += len(document.sentences)
    labels = ", ".join(f"{label} {count:,}" for label, count in counts.most_common())
    entities = pluralize(counts.total(), "entity", "entities")
    within = pluralize(sentences, "sentence", "sentences")
    print_line(f"{entities} in {within}" + (f": {labels}" if labels else ""))


DEMO_TEXT = """\
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
    from nestree.show import draw_document, draw_page, draw_sentence

    document = load()(DEMO_TEXT)
    width = Console().width
    with atomic_writer(out) as file:
        about = {"model": "gum-minilm", "data": "the sentences of the demo", "settings": "defaults"}
        file.write(draw_page([document], "nestree demo", about))
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
        Text("  nestree train --train DATA --out MODEL        your own model: docs/tutorial.md", "default"),
        soft_wrap=True,
    )
