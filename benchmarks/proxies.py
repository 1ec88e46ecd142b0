"""Data sets for judging whether a recipe holds on data it was not tuned on, made from the shared ones.

    python -m benchmarks.proxies SHARED_DATA OUT

    genia-fine             GENIA's articles in XML with their 35 types; train 70 %, dev 15 %, test 15 % of the articles
    gum-two-labels         GUM-open; a span has its entity type and its information status
    gum-fine               GUM-open; the type with the part of speech of the head, 94 labels, and `name` as a second
                           label of names of one word; two of every five training sentences
    gum-without-GENRE      trained and tuned on the other genres, tested on this one (academic, conversation)
    NAME-fifth             every fifth sentence of the training data of GENIA, LitBank and GUM-open

Dev and test data are whole where nothing else is said. The same input gives the same files.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

from nestree.data import formats
from nestree.types import Document, Entity, Sentence

PARTS = ("train", "dev", "test")
GENRES = ("academic", "conversation")
Parts = dict[str, list[Document]]


def main(arguments: Sequence[str] | None = None) -> None:
    shared, out = map(Path, arguments or sys.argv[1:])
    for name, parts in proxies(shared):
        (out / name).mkdir(parents=True, exist_ok=True)
        for part, documents in parts.items():
            formats.write(documents, out / name / f"{part}.jsonl.gz", "jsonl")
        sizes = {part: sum(len(d.sentences) for d in documents) for part, documents in parts.items()}
        labels = {e.label for d in parts["train"] for s in d.sentences for e in s.entities}
        print(f"{name}: {len(labels)} labels, sentences {sizes}")


def proxies(shared: Path) -> Iterator[tuple[str, Parts]]:
    """The name and the documents of each data set."""
    articles = list(formats.read(shared / "raw" / "genia_gpml", "genia", types="all"))
    borders = [len(articles) * share // 100 for share in (0, 70, 85, 100)]
    cuts = zip(PARTS, pairwise(borders), strict=True)
    yield "genia-fine", {part: articles[first:last] for part, (first, last) in cuts}
    for source in ("genia", "litbank", "gum_open"):
        parts = {part: list(formats.read(shared / source / f"{part}.jsonl.gz")) for part in PARTS}
        yield f"{source.removesuffix('_open')}-fifth", {**parts, "train": thinned(parts["train"], 1, 5)}
    two = {part: relabelled(documents, with_status) for part, documents in parts.items()}
    yield "gum-two-labels", two
    fine = {part: relabelled(documents, fine_labels) for part, documents in parts.items()}
    yield "gum-fine", {**fine, "train": thinned(fine["train"], 2, 5)}
    for genre in GENRES:
        own = {part: [d for d in documents if genre in str(d.id)] for part, documents in parts.items()}
        rest = {part: [d for d in parts[part] if d not in own[part]] for part in ("train", "dev")}
        yield f"gum-without-{genre}", {**rest, "test": [d for part in PARTS for d in own[part]]}


def thinned(documents: Sequence[Document], kept: int, of: int) -> list[Document]:
    """The first `kept` of each `of` sentences, counted through all documents; none of them stays empty."""
    number = count()
    few = [replace(d, sentences=tuple(s for s in d.sentences if next(number) % of < kept)) for d in documents]
    return [document for document in few if document.sentences]


def relabelled(
    documents: Sequence[Document], labels: Callable[[Entity, Sentence], Iterator[str]]
) -> list[Document]:
    """The same documents, each entity once for each of its new labels."""
    return [
        replace(
            document,
            sentences=tuple(
                replace(
                    sentence,
                    entities=tuple(
                        replace(entity, label=label)
                        for entity in sentence.entities
                        for label in labels(entity, sentence)
                    ),
                )
                for sentence in document.sentences
            ),
        )
        for document in documents
    ]


def with_status(entity: Entity, sentence: Sentence) -> Iterator[str]:
    yield entity.label
    yield str(entity.extra.get("infstat", "undefined"))


def fine_labels(entity: Entity, sentence: Sentence) -> Iterator[str]:
    head = entity.end - 1 if entity.head is None else entity.head
    yield f"{entity.label}:{sentence.extra['upos'][head]}"
    if entity.extra.get("named") and entity.end - entity.start == 1:
        yield "name"


if __name__ == "__main__":
    main()
