"""What is trained on: sentences for training and for choosing the best epoch, and what is odd about them."""

import hashlib
import logging
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nestree.config import Settings
from nestree.data import split
from nestree.errors import TrainingError
from nestree.types import Document, Entity, Sentence, crossing_pairs, with_context

log = logging.getLogger(__name__)
DEV_SHARE = 15  # per cent of the data that are set aside if there is no dev file
STRATIFIED = 2_000  # of fewer units each part gets its share of every label; of more it does anyway
MIN_UPDATES = 300  # a run has at least so many, in more epochs if need be
GOOD_UPDATES = 600  # batches become smaller to reach these
SMALL_BATCH = 150  # words: fewer make gradients too noisy
SHOWN = 5


@dataclass(frozen=True)
class Corpus:
    train: tuple[Sentence, ...]
    dev: tuple[Sentence, ...]
    labels: tuple[str, ...]  # of the training data, the most frequent first
    notes: tuple[str, ...] = ()  # what the user should know, in sentences

    @property
    def fingerprint(self) -> str:
        """The same for the same data in the same order."""
        digest = hashlib.sha256()
        for sentence in (*self.train, *self.dev):
            entities = [(e.start, e.end, e.label) for e in sentence.entities]
            digest.update(repr((sentence.words, entities, sentence.complete)).encode("utf-8", "replace"))
        return digest.hexdigest()[:16]


def corpus(
    train: Sequence[Document],
    dev: Sequence[Document] | None,
    *,
    seed: int,
    crossing_gold: str = "skip",
    context: int = 0,
) -> Corpus:
    """The sentences of these documents; without any for `dev`, a part of `train` is set aside.

    `context`: words on either side of each that the encoder will read along (`encoder.context` of the settings).
    """
    notes = []
    train, dev = with_context(train, context), None if dev is None else with_context(dev, context)
    if dev is None:
        train, dev = divided(train, seed)
        count = sum(len(document.sentences) for document in dev)
        notes.append(
            f"no dev data: {count:,} sentences ({DEV_SHARE} % of the data, drawn by seed {seed}) are set aside."
        )
    training = [sentence for document in train for sentence in document.sentences]
    choosing = [sentence for document in dev for sentence in document.sentences]
    counts = Counter(entity.label for sentence in training for entity in sentence.entities)
    if not counts:
        raise TrainingError(
            "the training data has no entities, so there is nothing to learn. Check the file and its format with "
            "`nestree stats`."
        )
    if not any(sentence.entities for sentence in choosing):
        raise TrainingError("the dev data has no entities, so no epoch can be chosen by it. Give other data.")
    unknown = {e.label for s in choosing for e in s.entities} - set(counts)
    if unknown:
        notes.append(f"labels of dev that training never sees: {', '.join(sorted(unknown))}.")
    training, found = without_crossing(training, crossing_gold)
    notes += found
    labels = tuple(sorted(counts, key=lambda label: (-counts[label], label)))
    for note in notes:
        log.info(note)
    return Corpus(tuple(training), tuple(choosing), labels, tuple(notes))


def for_small_data(settings: Settings, corpus: Corpus, epochs: int | None = None) -> tuple[Settings, Corpus]:
    """Smaller batches and more epochs, if there would be too few updates to learn anything; the corpus notes it.

    `epochs`: so many, whatever comes of it; None: as many as it takes.
    """
    training, words = settings.training, sum(len(sentence.words) for sentence in corpus.train)
    fewest, good = (updates * training.gradient_accumulation for updates in (MIN_UPDATES, GOOD_UPDATES))
    if words * training.epochs >= good * training.batch_words:
        return settings, corpus
    batch = min(training.batch_words, max(SMALL_BATCH, words * training.epochs // good))
    epochs = epochs or max(training.epochs, math.ceil(fewest * batch / words))
    patience = training.early_stopping_patience or max(10, epochs // 4)
    if (epochs, batch) == (training.epochs, training.batch_words):
        return settings, corpus
    until = f", until dev F1 has not risen for {patience}" if patience < epochs else ""
    note = (
        f"{words:,} words are little to learn from: {'up to ' * bool(until)}{epochs} epochs with batches of {batch} "
        f"words instead of {training.epochs} with {training.batch_words}{until}. To decide yourself, set "
        "training.batch_words."
    )
    changed = settings.changed(
        [
            f"training.epochs={epochs}",
            f"training.batch_words={batch}",
            f"training.early_stopping_patience={patience}",
        ]
    )
    return changed, replace(corpus, notes=(*corpus.notes, note))


def divided(documents: Sequence[Document], seed: int) -> tuple[list[Document], list[Document]]:
    """A part for training and one for dev, by document if there are enough of them with names."""
    named = {document.id for document in documents}
    by = "document" if None not in named and len(named) * DEV_SHARE >= 200 else "sentence"
    units = split.units(documents, by)
    if len(units) < 4:
        raise TrainingError(
            f"{len(units)} sentences are too few to set some aside. Name dev data with --dev."
        )
    choose = split.split_stratified if len(units) < STRATIFIED else split.split_shuffled
    names = choose(units, {"train": 100 - DEV_SHARE, "dev": DEV_SHARE}, seed)
    parts = split.assemble_parts(units, names)
    return parts["train"], parts["dev"]


def without_crossing(sentences: Sequence[Sentence], how: str) -> tuple[list[Sentence], list[str]]:
    """What to do with sentences whose entities cross: `skip` their trees, `drop` entities, or `refuse` them."""
    odd = {k: pairs for k, s in enumerate(sentences) if (pairs := crossing_pairs(s.entities))}
    if not odd:
        return list(sentences), []
    places = "; ".join(place(k + 1, sentences[k], pairs[0]) for k, pairs in [*odd.items()][:SHOWN])
    more = "" if len(odd) <= SHOWN else "; ..."
    many = (
        f"{len(odd):,} training {'sentence has' if len(odd) == 1 else 'sentences have'} entities that cross"
    )
    if how == "refuse":
        raise TrainingError(
            f"{many}, and no tree holds both: {places}{more}. Mend them, or choose training.crossing skip or drop."
        )
    if how == "skip":
        return list(sentences), [
            f"{many}, and no tree holds both: trees are not trained on them. {places}{more}."
        ]
    kept = [replace(s, entities=uncrossed(s.entities)) if k in odd else s for k, s in enumerate(sentences)]
    lost = sum(len(s.entities) - len(t.entities) for s, t in zip(sentences, kept, strict=True))
    return kept, [f"{many}: {lost:,} of these entities are left out of training. {places}{more}."]


def place(number: int, sentence: Sentence, pair: tuple[Entity, Entity]) -> str:
    name = f"sentence {number}" + (f" ({sentence.id})" if sentence.id is not None else "")
    return f"{name}: {pair[0]} and {pair[1]}"


def uncrossed(entities: Sequence[Entity]) -> tuple[Entity, ...]:
    """Those that remain if, again and again, the entity that crosses most others goes; of equals the longest.

    >>> uncrossed([Entity(0, 3, "A"), Entity(2, 5, "B"), Entity(4, 6, "C")])
    (Entity(start=0, end=3, label='A', ...), Entity(start=4, end=6, label='C', ...))
    """
    left = list(entities)
    while pairs := crossing_pairs(left):
        times = Counter(span for pair in pairs for span in {entity.span for entity in pair})
        worst = max(times, key=lambda span: (times[span], span[1] - span[0], span))
        left = [entity for entity in left if entity.span != worst]
    return tuple(left)


def mentions(sentence: Sentence, trees: bool) -> int:
    """How many spans of a sentence are learned from: with trees, none where they cross."""
    return (
        0
        if trees and crossing_pairs(sentence.entities)
        else len({entity.span for entity in sentence.entities})
    )


JITTER = (
    0.1  # lengths are blurred by so much before sentences are sorted, so that each epoch has other batches
)
PADDED = 2  # times its words, with padding, is a batch at most: the longest sentence makes charts large


def batches(lengths: Sequence[int], words: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch, as numbers of sentences: each sentence once, the shorter first within a batch.

    No batch has more than `words` words, or more than twice as many with its padding, unless it is a single sentence.

    >>> batches([3, 30, 4, 31, 3], words=12, seed=1, epoch=1)
    [[3], [1], [0, 4, 2]]
    """
    chance = random.Random(f"batches {seed} {epoch}")
    blurred = [length * (1 + JITTER * (2 * chance.random() - 1)) for length in lengths]
    found: list[list[int]] = [[]]
    size = longest = 0
    for sentence in sorted(range(len(lengths)), key=lambda k: (blurred[k], k)):
        length = lengths[sentence]
        padded = (len(found[-1]) + 1) * max(longest, length)
        if found[-1] and (size + length > words or padded > PADDED * words):
            found.append([])
            size = longest = 0
        found[-1].append(sentence)
        size, longest = size + length, max(longest, length)
    found = [sorted(batch, key=lambda k: (lengths[k], k)) for batch in found if batch]
    chance.shuffle(found)
    return found


def rank_share(batch: Sequence[int], process: int, processes: int) -> list[int]:
    """What one of several processes takes of a batch: long and short sentences alike.

    >>> rank_share([7, 8, 9], 0, 2), rank_share([7, 8, 9], 1, 2)
    ([7, 9], [8])
    """
    return list(batch[process::processes])


def microbatches(batch: Sequence[int], lengths: Sequence[int], count: int) -> list[list[int]]:
    """A batch in up to `count` pieces of about as many words, in its order; none is empty.

    >>> microbatches([0, 1, 2, 3], [3, 3, 3, 3], 2)
    [[0, 1], [2, 3]]
    """
    total, before = sum(lengths[k] for k in batch), 0
    found: list[list[int]] = [[] for _ in range(count)]
    for k in batch:
        found[min(before * count // max(total, 1), count - 1)].append(k)
        before += lengths[k]
    return [piece for piece in found if piece]
