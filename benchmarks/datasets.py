"""Data sets derived from the shared ones.

    python -m benchmarks.datasets proxies SHARED_DATA OUT     to judge a recipe on data that it was not tuned on
    python -m benchmarks.datasets genres GUM_OPEN OUT         to judge a model on genres that it never saw
    python -m benchmarks.datasets partial DATA OUT [--share 0.5] [--seed 1]     with entities removed

Proxies; dev and test data are whole where nothing else is said:

    genia-fine             GENIA's articles in XML with their 35 types; train 70 %, dev 15 %, test 15 % of the articles
    gum-fine               GUM-open; the type with the part of speech of the head, 94 labels, and `name` as a second
                           label of names of one word; two of every five training sentences
    gum-parts              names, times and numbers of GUM-open with their parts, in the manner of NNE: a person has a
                           FIRST and a NAME, a date a MONTH and a YEAR, 61 years a CARDINAL and a UNIT; sentences of ten
                           words and more, 2,936 of them for training
    NAME-fifth             every fifth sentence of the training data of GENIA, LitBank and GUM-open

Genres: OUT/without-GENRE has the train and dev data of all other genres, and all documents of this one as test data.

Partial annotation: each training entity is removed with probability `--share`. In OUT/negatives-50 what is missing
counts as no entity. OUT/unknown-50 marks the sentences that lost one as incomplete ("complete": false), so that what is
missing is summed out. Dev and test stay whole.
"""

import argparse
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

from nestree.data import formats
from nestree.training.dataset import drop_crossing
from nestree.types import Document, Entity, Sentence

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
        yield f"{source.removesuffix('_open')}-fifth", {**parts, "train": keep_sentences(parts["train"], 1, 5)}
    fine = {part: [with_fine_labels(document) for document in parts[part]] for part in PARTS}
    yield "gum-fine", {**fine, "train": keep_sentences(fine["train"], 2, 5)}
    with_parts = {part: [with_named_parts(document) for document in parts[part]] for part in PARTS}
    yield "gum-parts", {**with_parts, "train": keep_sentences(with_parts["train"], 3, 4, most=2_936)}


def leave_one_genre_out(gum: Path) -> Iterator[tuple[str, Parts]]:
    """GUM without one genre, which is the test data: the names of its documents are GUM_GENRE_TITLE."""
    parts = {part: list(formats.read(gum / f"{part}.jsonl.gz")) for part in PARTS}
    everything = [document for documents in parts.values() for document in documents]
    for genre in sorted({document.id.split("_")[1] for document in everything}):
        others = {part: [d for d in parts[part] if d.id.split("_")[1] != genre] for part in ("train", "dev")}
        yield f"without-{genre}", {**others, "test": [d for d in everything if d.id.split("_")[1] == genre]}


def keep_sentences(documents: Sequence[Document], kept: int, of: int, most: int | None = None) -> list[Document]:
    """The first `kept` of every `of` sentences, counted over all documents, up to `most`, without empty documents."""
    number = count()
    chosen = {k for k, _ in zip((k for k in count() if k % of < kept), range(most or 10**6), strict=False)}
    shorter = [replace(d, sentences=tuple(s for s in d.sentences if next(number) in chosen)) for d in documents]
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


NAMED = {
    "person": "PER",
    "organization": "ORG",
    "place": "PLACE",
    "event": "EVENT",
    "object": "PRODUCT",
    "time": "DATE",
}
MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
WORDS = {  # label: words that have it wherever they stand in a name, a time or a number
    "HON": {"Mr", "Mr.", "Mrs", "Mrs.", "Ms", "Ms.", "Dr", "Dr.", "Sir", "Prof.", "Senator", "President", "Justice"},
    "CORPJARGON": {
        "Inc", "Inc.", "Corp", "Corp.", "Co.", "Company", "Corporation", "Ltd", "Ltd.", "Group", "Foundation",
    },
    "ORGEDU": {"University", "College", "School", "Institute", "Academy"},
    "GOVERNMENT": {"Court", "Senate", "Congress", "House", "Parliament", "Government", "Department", "Ministry"},
    "MONTH": set(MONTHS),
    "DAY": set(DAYS),
    "REL": {"last", "next", "this", "ago", "later", "earlier", "past", "recent", "recently", "before", "after"},
    "QUAL": {"about", "around", "approximately", "over", "nearly", "almost", "roughly", "least"},
    "DIRECTION": {"North", "South", "East", "West", "New", "Northern", "Southern", "Eastern", "Western", "Central"},
}  # fmt: skip
TIME_UNITS = re.compile(r"(second|minute|hour|day|week|month|year|decade|century|centurie|yr|min)s?$")
MEASURES = re.compile(r"(km|mile|meter|metre|foot|feet|inche?|pound|kg|gram|ton|acre|degree|dollar|euro|percent|%)s?$")
NATIONALITY = re.compile(r"[A-Z][a-z]+(ian|ese|ish|can|ean|rench|utch|reek|erman)s?$")
YEAR = re.compile(r"(1[0-9]|20)[0-9]{2}$")


def with_named_parts(document: Document) -> Document:
    """The document with the entities of `gum-parts`, in sentences of ten words and more."""
    return replace(document, sentences=tuple(map(name_parts, (s for s in document.sentences if len(s.words) >= 10))))


def name_parts(sentence: Sentence) -> Sentence:
    words, tags = sentence.words, sentence.extra["upos"]
    found: set[tuple[int, int, str]] = set()
    for entity in sentence.entities:
        start, end = entity.start, entity.end
        while end - start > 1 and tags[start] in ("DET", "ADP", "PRON", "PUNCT"):
            start += 1
        while end - start > 1 and tags[end - 1] in ("PART", "PUNCT"):
            end -= 1
        if not entity.extra.get("named") and entity.label != "time":
            if (
                entity.label == "person"
                and entity.head is not None
                and tags[entity.head] == "NOUN"
                and end - start <= 3
            ):
                found.add((entity.head, entity.head + 1, "ROLE"))
            continue
        if end - start > 12 or not {"PROPN", "NUM", "NOUN", "ADJ"} & set(tags[start:end]):
            continue
        found.add((start, end, NAMED.get(entity.label, "OTHER")))
        labels = {k: label for k in range(start, end) for label, known in WORDS.items() if words[k] in known}
        found |= {(k, k + 1, label) for k, label in labels.items()}
        names = [k for k in range(start, end) if tags[k] == "PROPN" and k not in labels]
        if entity.label == "person" and names:
            found.add((names[-1], names[-1] + 1, "NAME"))
            found |= {
                (k, k + 1, "INI" if len(words[k].strip(".")) == 1 else "FIRST") for k in names[:1] if len(names) > 1
            }
            found |= {(k, k + 1, "MIDDLE") for k in names[1:-1]}
            if names[-1] - names[0] == len(names) - 1 < end - start - 1:
                found.add((names[0], names[-1] + 1, "PER"))
        elif entity.label == "organization" and names and names[-1] - names[0] == len(names) - 1:
            found.add((names[0], names[-1] + 1, "NAME"))
        elif entity.label == "time":
            found |= {
                (k, k + 1, label) for k in range(start, end) if YEAR.match(words[k]) for label in ("YEAR", "DATE")
            }
            for k in range(start, end - 1):
                if words[k] in MONTHS and tags[k + 1] == "NUM" and not YEAR.match(words[k + 1]):
                    found |= {(k + 1, k + 2, "NUMDAY"), (k, k + 2, "DATE")}
    for k, (word, tag) in enumerate(zip(words, tags, strict=True)):
        in_date = {(k, k + 1, "YEAR"), (k, k + 1, "NUMDAY")} & found
        if tag == "NUM" and not in_date:
            found.add((k, k + 1, "CARDINAL"))
            following = words[k + 1].lower() if k + 1 < len(words) else ""
            for pattern, whole in ((TIME_UNITS, "DURATION"), (MEASURES, "QUANTITY")):
                if pattern.match(following):
                    start = k - 1 if k and words[k - 1].lower() in WORDS["QUAL"] else k
                    found |= {(k + 1, k + 2, "UNIT"), (start, k + 2, "PERCENT" if following[:1] in "%p" else whole)}
            if k and words[k - 1] in ("$", "£", "€"):
                found |= {(k - 1, k, "UNIT"), (k - 1, k + 1, "MONEY")}
        if NATIONALITY.match(word) and tag in ("ADJ", "PROPN"):
            found |= {(k, k + 1, "NATIONALITY")} | ({(k, k + 1, "NORP")} if tag == "ADJ" else set())
        if re.match(r"(first|second|third|fourth|[0-9]+(st|nd|rd|th))$", word.lower()) and tag == "ADJ":
            found.add((k, k + 1, "ORDINAL"))
    return replace(sentence, entities=drop_crossing([Entity(*each) for each in sorted(found)]))


if __name__ == "__main__":
    main()
