"""Half-annotated data, made from a whole data set: entities are taken away, and sentences may say so or not.

    python -m benchmarks.partial ../shared/data/litbank --out DIR [--share 0.5] [--seed 1]
    python -m benchmarks.training --data DIR --encoder PATH --out FILE negatives-50:default unknown-50:default

Each entity of the training data is taken away with this chance. DIR/negatives-50 says nothing of it: what is missing
counts as no entity. DIR/unknown-50 marks the sentences that lost one ("complete": false): what is missing is unknown,
and summed out. DIR/whole has all of them. Dev and test are whole everywhere.
"""

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nestree.data.formats import read, write
from nestree.types import Document, Sentence

PARTS = ("train", "dev", "test")


def without(sentence: Sentence, share: float, chance: random.Random, marked: bool) -> Sentence:
    """The sentence after each of its entities was taken away with this chance; those of one span go together."""
    gone = {span for span in dict.fromkeys(e.span for e in sentence.entities) if chance.random() < share}
    kept = tuple(entity for entity in sentence.entities if entity.span not in gone)
    return replace(sentence, entities=kept, complete=sentence.complete and not (marked and gone))


def thinned(documents: Sequence[Document], share: float, seed: int, marked: bool) -> list[Document]:
    """The documents after that; the same entities go, `marked` or not."""
    chance = random.Random(seed)
    return [
        replace(d, sentences=tuple(without(s, share, chance, marked) for s in d.sentences)) for d in documents
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="a folder with files called train, dev and test")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    found = {part: list(read(next(given.data.glob(f"{part}.*")))) for part in PARTS}
    percent = f"{100 * given.share:g}"
    for name, marked in (("whole", None), (f"negatives-{percent}", False), (f"unknown-{percent}", True)):
        (given.out / name).mkdir(parents=True, exist_ok=True)
        for part, documents in found.items():
            if part == "train" and marked is not None:
                documents = thinned(documents, given.share, given.seed, marked)
            write(documents, given.out / name / f"{part}.jsonl", "jsonl")
            sentences = [s for d in documents for s in d.sentences]
            entities = sum(len(s.entities) for s in sentences)
            incomplete = sum(not s.complete for s in sentences)
            print(
                f"{name:12s} {part:5s} {len(sentences):6,} sentences {entities:7,} entities {incomplete:6,} incomplete"
            )


if __name__ == "__main__":
    main()
