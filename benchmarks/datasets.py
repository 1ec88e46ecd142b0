"""Data sets derived from the shared ones.

    python -m benchmarks.datasets proxies SHARED_DATA OUT     to judge a recipe on data that it was not tuned on
    python -m benchmarks.datasets genres GUM_OPEN OUT         to judge a model on genres that it never saw
    python -m benchmarks.datasets partial DATA OUT [--share 0.5] [--seed 1]     with entities removed

Proxies; dev and test data are whole where nothing else is said:

    genia-fine             GENIA's articles in XML with their 35 types; train 70 %, dev 15 %, test 15 % of the articles
    gum-fine               GUM-open; the type with the part of speech of the head, 94 labels, and `name` as a second
                           label of names of one word; two of every five training sentences
    NAME-fifth             every fifth sentence of the training data of GENIA, LitBank and GUM-open

Genres: OUT/without-GENRE has the train and dev data of all other genres, and all documents of this one as test data.

Partial annotation: each training entity is removed with probability `--share`. In OUT/negatives-50 what is missing
counts as no entity. OUT/unknown-50 marks the sentences that lost one as incomplete ("complete": false), so that what is
missing is summed out. Dev and test stay whole.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

from nestree.data import formats
from nestree.types import Document, Sentence

PARTS = ("train", "dev", "test")
Parts = dict[str, list[Document]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.datasets", description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=("proxies", "genres", "partial"))
    parser.add_argument("data", type=Path, help="proxies: a directory of data sets; else one data set")
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", type=float, default=0.5, help="of the entities to remove (partial)")
    parser.add_argument("--seed", type=int, default=1, help="of the removal (partial)")
    options = parser.parse_args(arguments)
    if options.kind == "proxies":
        data_sets = make_proxies(options.data)
    elif options.kind == "genres":
        data_sets = leave_one_genre_out(options.data)
    else:
        data_sets = make_partial(options.data, options.share, options.seed)
    for name, parts in data_sets:
        (options.out / name).mkdir(parents=True, exist_ok=True)
        for part, documents in parts.items():
            formats.write(documents, options.out / name / f"{part}.jsonl.gz", "jsonl")
        sizes = {part: sum(len(d.sentences) for d in documents) for part, documents in parts.items()}
        entities = [e for d in parts["train"] for s in d.sentences for e in s.entities]
        incomplete = sum(not s.complete for d in parts["train"] for s in d.sentences)
        labels = len({e.label for e in entities})
        print(f"{name}: {labels} labels, sentences {sizes}; train: {len(entities):,} entities, {incomplete} incomplete")


def make_partial(data: Path, share: float, seed: int) -> Iterator[tuple[str, Parts]]:
    """The data set with the same entities removed, without and with marks."""
    parts = {part: list(formats.read(next(data.glob(f"{part}.*")))) for part in PARTS}
    for name in ("negatives", "unknown"):
        generator = random.Random(seed)
        train = [
            replace(d, sentences=tuple(drop_entities(s, share, generator, name == "unknown") for s in d.sentences))
            for d in parts["train"]
        ]
        yield f"{name}-{100 * share:g}", {**parts, "train": train}


def drop_entities(sentence: Sentence, share: float, generator: random.Random, mark: bool) -> Sentence:
    """The sentence with some spans removed, with all of their labels."""
    spans = dict.fromkeys(entity.span for entity in sentence.entities)
    dropped = {span for span in spans if generator.random() < share}
    kept = tuple(entity for entity in sentence.entities if entity.span not in dropped)
    return replace(sentence, entities=kept, complete=sentence.complete and not (mark and dropped))


def make_proxies(shared: Path) -> Iterator[tuple[str, Parts]]:
    """Names and documents of the proxies."""
    articles = list(formats.read(shared / "raw" / "genia_gpml", "genia", types="all"))
    boundaries = [len(articles) * share // 100 for share in (0, 70, 85, 100)]
    cuts = zip(PARTS, pairwise(boundaries), strict=True)
    yield "genia-fine", {part: articles[first:last] for part, (first, last) in cuts}
    for source in ("genia", "litbank", "gum_open"):
        parts = {part: list(formats.read(shared / source / f"{part}.jsonl.gz")) for part in PARTS}
        yield (
            f"{source.removesuffix('_open')}-fifth",
            {**parts, "train": keep_sentences(parts["train"], 1, 5)},
        )
    fine = {part: [with_fine_labels(document) for document in parts[part]] for part in PARTS}
    yield "gum-fine", {**fine, "train": keep_sentences(fine["train"], 2, 5)}


def leave_one_genre_out(gum: Path) -> Iterator[tuple[str, Parts]]:
    """GUM without one genre, which is the test data: the names of its documents are GUM_GENRE_TITLE."""
    parts = {part: list(formats.read(gum / f"{part}.jsonl.gz")) for part in PARTS}
    everything = [document for documents in parts.values() for document in documents]
    for genre in sorted({document.id.split("_")[1] for document in everything}):
        others = {part: [d for d in parts[part] if d.id.split("_")[1] != genre] for part in ("train", "dev")}
        yield f"without-{genre}", {**others, "test": [d for d in everything if d.id.split("_")[1] == genre]}


def keep_sentences(documents: Sequence[Document], kept: int, of: int) -> list[Document]:
    """The first `kept` of every `of` sentences, counted over all documents, without empty documents."""
    number = count()
    shorter = [replace(d, sentences=tuple(s for s in d.sentences if next(number) % of < kept)) for d in documents]
    return [document for document in shorter if document.sentences]


def with_fine_labels(document: Document) -> Document:
    """The document with the labels of `gum-fine`."""

    def relabel(sentence: Sentence) -> Sentence:
        entities = []
        for entity in sentence.entities:
            head = entity.end - 1 if entity.head is None else entity.head
            entities.append(replace(entity, label=f"{entity.label}:{sentence.extra['upos'][head]}"))
            if entity.extra.get("named") and entity.end - entity.start == 1:
                entities.append(replace(entity, label="name"))
        return replace(sentence, entities=tuple(entities))

    return replace(document, sentences=tuple(map(relabel, document.sentences)))


if __name__ == "__main__":
    main()
