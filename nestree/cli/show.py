"""The commands `show` and `demo`."""

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from nestree.cli.data import print_report
from nestree.cli.options import Files, Reading
from nestree.cli.predict import check_files
from nestree.cli.runtime import print_line, print_rich, reading_progress
from nestree.errors import InputError, plural

if TYPE_CHECKING:
    from nestree.types import Document


def show(
    files: Files,
    reading: Reading,
    model: str | None = None,
    out: Path | None = None,
    tree: bool = False,
    only: list[str] | None = None,
    first: int | None = None,
    device: str = "auto",
    skip_bad: bool = False,
) -> None:
    """Draw nested entities: brackets in the terminal, or boxes on an HTML page.

    Heads are underlined; labels come with their probabilities if these are known. Any format that `nestree formats`
    lists is shown as it is or, with --model, as this model reads it. Plain text (.txt, standard input) is read by the
    bundled model if no other one is named.
    """
    from nestree.data.io import ConversionReport, atomic_writer, check_output_path
    from nestree.show import draw_page

    check_files(files, "show")
    if out:
        check_output_path(out, files)
        if out.suffix.lower() not in ("", ".html", ".htm"):
            raise InputError(f"--out {out}: a page is HTML. Name a file that ends in .html.")
    report = ConversionReport(skip_bad)
    readings = [replace(reading, source_format=reading.source_format or detect_text(file)) for file in files]
    is_text = readings[0].source_format == "text"
    if any((own.source_format == "text") != is_text for own in readings):
        raise InputError("some of the files are plain text, others are annotated. Show them with two commands.")
    name = ", ".join(map(str, files))
    with reading_progress(files):
        documents: Iterator[Document] = chain.from_iterable(
            own.documents(file, report) for own, file in zip(readings, files, strict=True)
        )
        if only:
            documents = iter(select_documents(documents, only))
        if first:
            documents = first_sentences(documents, first)
        if model or is_text:
            split = is_text and not (reading.words or reading.sentences)
            documents = predict_documents(documents, model, device, split)
        if tree:
            with_trees = list(documents)
            if not any(sentence.tree for document in with_trees for sentence in document.sentences):
                raise InputError(
                    f"--tree: no sentence of {name} has a tree. Name a --model that makes trees, or leave this out."
                )
            documents = iter(with_trees)
        if out:
            title = "Nested entities" if name == "-" else ", ".join(file.name for file in files)
            reader = model or ("gum-minilm" if is_text else "none: as annotated")
            given = {"only": only, "first": first, "words": reading.words, "sentences": reading.sentences}
            settings = ", ".join(f"{name} {value}" for name, value in given.items() if value) or "defaults"
            about = {"model": reader, "data": name, "settings": settings}
            with atomic_writer(out) as file:
                file.write(draw_page(list(documents), title, about))
            print_line(f"written: {out}")
        else:
            print_documents(documents, tree)
    print_report(report)


def detect_text(source: Path) -> str | None:
    """`text` for standard input that is not JSON, a .txt file without annotations beside it, a folder of .txt files."""
    from nestree.data.formats import detect_stdin
    from nestree.data.formats.text import is_text_name
    from nestree.data.io import list_files

    if str(source) == "-":
        return detect_stdin()
    if source.is_dir():
        paths = list_files(source)
        return "text" if paths and all(map(is_text_name, paths)) else None
    annotated = source.with_suffix(".ann").exists()
    return "text" if is_text_name(source) and source.is_file() and not annotated else None


def select_documents(documents: "Iterable[Document]", ids: Collection[str]) -> "list[Document]":
    """The documents with these ids; of other documents, the sentences with these ids.

    >>> from nestree.types import Document, Sentence
    >>> document = Document([Sentence(["a"], id="x"), Sentence(["b"], id="y")])
    >>> [str(sentence) for selected in select_documents([document], ["y"]) for sentence in selected.sentences]
    ['b']
    """
    from nestree.types import Document

    selected: list[Document] = []
    known: set[str] = set()
    for document in documents:
        known.update(s.id for s in document.sentences if s.id is not None)
        known.update([] if document.id is None else [document.id])
        if document.id in ids:
            selected.append(document)
        elif sentences := [sentence for sentence in document.sentences if sentence.id in ids]:
            selected.append(Document(tuple(sentences), None, document.id, document.extra))
    for id in ids:
        if id not in known:
            close = difflib.get_close_matches(id, sorted(known), n=1)
            more = ", ..." if len(known) > 5 else ""
            hint = f"Is {close[0]} meant?" if close else f"The ids are {', '.join(sorted(known)[:5])}{more}."
            raise InputError(f"no document and no sentence has the id {id}. {hint if known else 'None has an id.'}")
    return selected


def first_sentences(documents: "Iterable[Document]", count: int) -> "Iterator[Document]":
    """The documents up to the given number of sentences; nothing is read beyond that."""
    for document in documents:
        kept, text = document.sentences[:count], document.text
        if len(kept) < len(document.sentences):
            text = text and text[: kept[-1].start + len(kept[-1].text or "")]
            document = replace(document, sentences=kept, text=text)
        yield document
        count -= len(kept)
        if not count:
            return


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
        print_rich(*parts, soft_wrap=True)
        counts.update(label for entity in document.entities for label in entity.labels)
        sentences += len(document.sentences)
    labels = ", ".join(f"{label} {count:,}" for label, count in counts.most_common())
    entities = plural(counts.total(), "entity")
    within = plural(sentences, "sentence")
    print_line(f"{entities} in {within}" + (f": {labels}" if labels else ""))


DEMO_TEXT = """\
The president of the University of California met Iraqi army leaders.
Scientists from the Max Planck Institute in Leipzig discovered how the brains of young apes grow.
She was born in a small village in the north of Portugal, and her grandmother's house still stands there.
Her brother works for the Bank of Portugal.
"""
ENTITY_LEGEND = "[...|label probability] is an entity; its head word is underlined."
TREE_LEGEND = """\
The best tree of the last sentence. A line is a span: the words below it. It joins
the span's head, whose own line continues upwards, to its modifier; its number is
its probability."""
NEXT_STEPS = """\
  echo 'Your own text.' | nestree show -        look at it
  nestree predict FILES --out FOLDER            entities of many texts
  nestree train --train DATA --out MODEL        your own model: docs/tutorial.md"""


def demo(out: Path = Path("demo.html")) -> None:
    """Find the nested entities of a few sentences with the bundled model, and draw them."""
    from rich.console import Console
    from rich.text import Text

    from nestree.data.io import atomic_writer
    from nestree.pipeline import load
    from nestree.show import draw_document, draw_page, draw_sentence

    ner = load()
    ner.warm_up()  # so that all kernels are in the cache
    document = ner(DEMO_TEXT)
    width = Console().width
    drawing, tree = draw_document(document, width), draw_sentence(document.sentences[-1], width)
    parts = [drawing, Text(ENTITY_LEGEND, "dim"), tree, Text(TREE_LEGEND, "dim")]
    print_rich(*(line for part in parts for line in (part, "")), soft_wrap=True)
    with atomic_writer(out) as file:
        about = {"model": "gum-minilm", "data": "the sentences of the demo", "settings": "defaults"}
        file.write(draw_page([document], "nestree demo", about))
    written = Text.assemble(("Written: ", "bold"), f"{out}, the same as a page. Next:")
    print_rich(written, Text(NEXT_STEPS), soft_wrap=True)
