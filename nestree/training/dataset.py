"""Sentences for training and for choosing the best epoch, and their batches."""

import hashlib
import logging
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from nestree.config import Settings
from nestree.data import split
from nestree.data.checks import SentenceKey, find_contradiction, sentence_keys
from nestree.errors import InputError, TrainingError, plural
from nestree.nn.batch import MAX_SENTENCE_WORDS
from nestree.types import Document, Entity, Sentence, crossing_pairs, with_context

PARTS = ("train", "dev", "test")
DEV_SHARE = 15  # per cent of the data that become dev data if there is no dev file
MAX_STRATIFIED = 2_000  # units: more are split at random, which is close to stratified
MAX_RHO_PER_WORD = 0.2 / 1000  # of a batch of small data: SAM does not pay where gradients are noisy
ADAPTED_SETTINGS = ("epochs", "batch_words", "rho")  # of `default`, to small data
MIN_UPDATES = 300  # fewer are raised to this by smaller batches and more passes over the data
MAX_EPOCHS = 20  # of small data: an epoch ends with an evaluation; several passes over little data are one
GOOD_UPDATES = 600  # data with fewer is small
SMALL_DATA_BATCH_WORDS = 500  # at most, for small data: see "Small data" in docs/results.md
MIN_BATCH_WORDS = 150  # gradients of smaller batches are too noisy
SHOWN_CROSSINGS = 5
LENGTH_JITTER = 0.1  # relative noise on the lengths by which sentences are sorted: new batches in each epoch
MAX_PADDING = 2  # a padded batch has at most so many times `batch_words`; charts grow with sentences
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    train: tuple[Sentence, ...]
    dev: tuple[Sentence, ...]
    labels: tuple[str, ...]  # of the training data, the most frequent first
    notes: tuple[str, ...] = ()  # sentences for the user
    passes: int = 1  # over the training data in an epoch
    originals: tuple[Sentence, ...] = ()  # what is annotated, if `train` has copies of it, or texts, for distillation

    @property
    def annotated(self) -> tuple[Sentence, ...]:
        return self.originals or self.train

    @property
    def fingerprint(self) -> str:
        """A hash of the sentences, entities, heads and context, in their order."""
        digest = hashlib.sha256()
        for sentence in (*self.train, *self.dev):
            entities = [(e.start, e.end, e.label, e.head, *e.heads) for e in sentence.entities]
            more = [part for part in (sentence.forbidden, sentence.context) if part]
            parts = sentence.words, entities, sentence.complete, *more
            digest.update(repr(parts).encode("utf-8", "replace"))
        return digest.hexdigest()[:16]


def make_corpus(
    train: Sequence[Document],
    dev: Sequence[Document] | None,
    test: Sequence[Document] | None = None,
    *,
    seed: int,
    crossing_gold: str = "skip",
    context: int = 0,
) -> Corpus:
    """The sentences of documents; without `dev`, a part of `train` becomes the dev data.

    `test` is only compared with the training data. `crossing_gold` and `context` are the settings training.crossing and
    encoder.context.
    """
    notes = []
    train = with_context(merge_answers(train), context)
    if dev is None:
        train, dev = split_dev(train, seed)
        count = sum(len(document.sentences) for document in dev)
        units, are = ("sentence", "is") if count == 1 else ("sentences", "are")
        whole = all(sentence.complete for document in train for sentence in document.sentences)
        share = f"{DEV_SHARE} % of {'the data' if whole else 'what is complete'}, drawn by seed {seed}"
        notes.append(f"no dev data: {count:,} {units} ({share}) {are} set aside.")
    else:
        dev = with_context(dev, context)
    train_sentences: Sequence[Sentence] = [sentence for document in train for sentence in document.sentences]
    dev_sentences = [sentence for document in dev for sentence in document.sentences]
    counts = Counter(entity.label for sentence in train_sentences for entity in sentence.entities)
    dev_labels = {entity.label for sentence in dev_sentences for entity in sentence.entities}
    if not counts:
        raise TrainingError(
            "the training data has no entities, so there is nothing to learn. Check the file and its format with "
            "`nestree stats`."
        )
    if not dev_labels:
        raise TrainingError("the dev data has no entities, so no epoch can be chosen by it. Give other data.")
    test_labels = {entity.label for document in test or () for s in document.sentences for entity in s.entities}
    for part, names in {"dev": dev_labels, "test": test_labels}.items():
        if unseen := sorted(names - set(counts)):
            notes.append(f"labels in {part} that the training data lacks: {', '.join(unseen)}.")
    if partial := sum(not sentence.complete for sentence in dev_sentences):
        notes.append(
            f"{partial:,} of {len(dev_sentences):,} dev sentences are not completely annotated: entities that lack "
            "count as errors where the best epoch is chosen. Give dev data that is complete."
        )
    train_sentences, crossing_notes = resolve_crossing(train_sentences, crossing_gold)
    train_sentences, length_notes = cut_long_sentences(train_sentences)
    labels = tuple(sorted(counts, key=lambda label: (-counts[label], label)))
    notes += [*crossing_notes, *length_notes]
    return Corpus(tuple(train_sentences), tuple(dev_sentences), labels, tuple(notes))


def merge_answers(documents: Sequence[Document]) -> list[Document]:
    """The documents; what is known of a sentence that several documents of the same id annotate in part is joined."""
    merged: dict[SentenceKey, Sentence] = {}
    numbers: dict[SentenceKey, int] = {}  # of the document that was merged last
    incomplete = {d.id for d in documents if d.id and any(not s.complete for s in d.sentences)}
    results: dict[object, Document] = {}
    for number, document in enumerate(documents):
        if document.id not in incomplete:
            results[number] = document
            continue
        for key, sentence in zip(sentence_keys(document), document.sentences, strict=True):
            if key in merged:
                place = f"document {document.id} (documents {numbers[key]:,} and {number + 1:,} of the training data)"
                sentence = join_annotations(place, merged[key], sentence)
            merged[key], numbers[key] = sentence, number + 1
        results.setdefault((document.id, document.words), document)
    return [
        replace(d, sentences=tuple(merged[key] for key in dict.fromkeys(sentence_keys(d)))) if d.id in incomplete else d
        for d in results.values()
    ]


def join_annotations(place: str, first: Sentence, second: Sentence) -> Sentence:
    """One sentence with what two annotations know; raise if they contradict each other."""
    if found := find_contradiction(first, second):
        phrase = f"{found.entity} ({found.known.phrase(found.entity)!r:.40})"
        raise TrainingError(
            f"two annotations of {place} contradict each other: {phrase} of one {found.why} in the other: "
            f"{found.known} Correct one of them."
        )
    if first.complete != second.complete:
        return first if first.complete else second
    entities = {(entity.span, entity.label): entity for entity in (*first.entities, *second.entities)}
    return replace(first, entities=tuple(entities.values()), forbidden=(*first.forbidden, *second.forbidden))


def cut_long_sentences(sentences: Sequence[Sentence]) -> tuple[Sequence[Sentence], list[str]]:
    """The sentences, those of more than MAX_SENTENCE_WORDS words in pieces, and notes about them.

    No piece ends within an entity. A sentence with an entity that is longer than a piece is left out.
    """
    long = [k for k, sentence in enumerate(sentences) if len(sentence.words) > MAX_SENTENCE_WORDS]
    if not long:
        return sentences, []
    pieces = {k: cut_sentence(sentences[k]) for k in long}
    longest = max(long, key=lambda k: len(sentences[k].words))
    count = f"{len(long):,} training sentence{'s have' if len(long) > 1 else ' has'}"
    left_out = sum(not parts for parts in pieces.values())
    note = (
        f"{count} more than {MAX_SENTENCE_WORDS} words, and trees over so many take long: they are cut between entities"
        f"{f', and {left_out} left out, as an entity is longer' if left_out else ''}. The longest has "
        f"{len(sentences[longest].words):,} words: {' '.join(sentences[longest].words)[:60]}..."
    )
    return [piece for k, s in enumerate(sentences) for piece in pieces.get(k, [s])], [note]


def cut_sentence(sentence: Sentence) -> list[Sentence]:
    """Pieces of at most MAX_SENTENCE_WORDS words that hold all entities; none if there are no such pieces."""
    within = {post for entity in sentence.entities for post in range(entity.start + 1, entity.end)}
    pieces, start = [], 0
    while start < len(sentence.words):
        end = min(start + MAX_SENTENCE_WORDS, len(sentence.words))
        while end in within:
            end -= 1
        if end <= start:
            return []
        inside = tuple(e for e in sentence.entities if start <= e.start and e.end <= end)
        kept = [start <= k < end for k in range(len(sentence.words))]
        pieces.append(keep_words(replace(sentence, entities=inside, context=None), kept))
        start = end
    return pieces


def keep_words(sentence: Sentence, kept: Sequence[bool]) -> Sentence:
    """The sentence reduced to some of its words, what is left of each entity, and forbidden spans that are whole."""
    new_post = [0]  # of each old fencepost
    for keep in kept:
        new_post.append(new_post[-1] + keep)
    entities = {}
    for entity in sentence.entities:
        start, end = new_post[entity.start], new_post[entity.end]
        head = None if entity.head is None or not kept[entity.head] else new_post[entity.head]
        if start < end:
            heads = tuple(new_post[word] for word in entity.heads if kept[word])
            entities[start, end, entity.label] = Entity(start, end, entity.label, head, heads=heads)
    words = tuple(word for word, keep in zip(sentence.words, kept, strict=True) if keep)
    taken = {(start, end) for start, end, _ in entities}
    forbidden = ((new_post[i], new_post[j]) for i, j in sentence.forbidden if all(kept[i:j]))
    open_spans = tuple(span for span in forbidden if span not in taken)
    bare = replace(sentence, entities=(), text=None, offsets=None, tree=None, forbidden=())
    return replace(bare, words=words, entities=tuple(entities.values()), forbidden=open_spans)


def part_files(folder: Path) -> dict[str, Path]:
    """The files of a data set: those of a folder whose names begin with train, dev and test."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder. Name one that holds files called train, dev and test.")
    parts: dict[str, Path] = {}
    for part in PARTS:
        paths = sorted(path for path in folder.iterdir() if path.name.split(".")[0] == part)
        if len(paths) > 1:
            raise InputError(f"{folder} has several files for {part}: {', '.join(p.name for p in paths)}.")
        if paths:
            parts[part] = paths[0]
    if "train" not in parts:
        raise InputError(f"{folder} has no file called train. Name one that holds train, dev and test.")
    return parts


def split_dev(documents: Sequence[Document], seed: int) -> tuple[list[Document], list[Document]]:
    """Training and dev data, split by document if enough of them have names and complete annotations.

    What is not completely annotated is training data: in dev data, missing entities would count as errors.
    """
    names = {document.id for document in documents}
    by_document = None not in names and len(names) * DEV_SHARE >= 200
    for unit in ("document", "sentence") if by_document else ("sentence",):
        units = split.make_units(documents, unit)
        complete = [u for u in units if all(s.complete for d in u.documents for s in d.sentences)]
        if len(complete) * DEV_SHARE >= 200:
            break
    if len(complete) < 4:
        kind = "completely annotated sentence" if len(complete) < len(units) else "sentence"
        raise TrainingError(f"too little to set dev data aside: {plural(len(complete), kind)}. Name dev data.")
    assign = split.split_stratified if len(complete) < MAX_STRATIFIED else split.split_shuffled
    names_of_parts = assign(complete, {"train": 100 - DEV_SHARE, "dev": DEV_SHARE}, seed)
    part_of = dict(zip(map(id, complete), names_of_parts, strict=True))
    parts = split.assemble_parts(units, [part_of.get(id(unit), "train") for unit in units])
    return parts["train"], parts["dev"]


def adapt_to_small_data(settings: Settings, corpus: Corpus, epochs: int | None = None) -> tuple[Settings, Corpus]:
    """Smaller batches and more passes over the data, with a note in the corpus, if there would be too few updates.

    SAM's rho shrinks with the batches. `epochs` fixes the number of passes; None: as many as needed.
    """
    training, words = settings.training, sum(len(sentence.words) for sentence in corpus.train)
    fewest, good = (updates * training.gradient_accumulation for updates in (MIN_UPDATES, GOOD_UPDATES))
    if words * training.epochs >= good * training.batch_words:
        return settings, corpus
    least = max(MIN_BATCH_WORDS, words * training.epochs // fewest)
    batch_words = min(training.batch_words, SMALL_DATA_BATCH_WORDS, least)
    all_passes = epochs or max(training.epochs, math.ceil(fewest * batch_words / words))
    passes = 1 if epochs else math.ceil(all_passes / max(training.epochs, MAX_EPOCHS))
    epochs = math.ceil(all_passes / passes)
    if (epochs, passes, batch_words) == (training.epochs, 1, training.batch_words):
        return settings, corpus
    rho = min(training.rho, max_rho(batch_words))
    lower_rho = f"; rho = {rho} instead of {training.rho}" if rho < training.rho else ""
    lengths = [len(sentence.words) for sentence in corpus.train]
    updates = sum(
        math.ceil(len(epoch_batches(lengths, batch_words, training.seed, k, passes)) / training.gradient_accumulation)
        for k in range(1, epochs + 1)
    )
    of_passes = f" of {passes} passes over the data" if passes > 1 else ""
    distilled = " with copies and texts" if corpus.originals else ""
    note = (
        f"small training set ({words:,} words{distilled}): {plural(updates, 'update')}, in {plural(epochs, 'epoch')}"
        f"{of_passes} with batches of {batch_words} words instead of {training.epochs} with {training.batch_words}"
        f"{lower_rho}. To decide yourself, set training.batch_words."
    )
    adapted = replace(training, epochs=epochs, batch_words=batch_words, rho=rho)
    return replace(settings, training=adapted), replace(corpus, notes=(*corpus.notes, note), passes=passes)


def load_init_settings(folder: Path) -> Settings:
    """The settings of a model to start from; if they were adapted to small data, batches and epochs of `default`."""
    path, default = folder / "config.toml", Settings.read("default").training
    settings = Settings.load(path)
    training = settings.training
    adapted = MIN_BATCH_WORDS <= training.batch_words <= SMALL_DATA_BATCH_WORDS
    if adapted and training.rho <= max_rho(training.batch_words):
        anew = {name: getattr(default, name) for name in ADAPTED_SETTINGS if name != "rho" or training.rho}
        log.warning(
            "%s has %s, which look adapted to small data: unless you set them, %s take their place. To keep them, name "
            "%s as the config.",
            folder.name,
            ", ".join(f"{name} = {getattr(training, name):g}" for name in anew),
            ", ".join(f"{value:g}" for value in anew.values()),
            path,
        )
        training = replace(training, **anew)
    return replace(settings, training=training)


def max_rho(batch_words: int) -> float:
    return round(MAX_RHO_PER_WORD * batch_words, 3)


def resolve_crossing(sentences: Sequence[Sentence], mode: str) -> tuple[Sequence[Sentence], list[str]]:
    """The sentences after training.crossing is applied to those whose entities cross, and notes about them."""
    crossing = {k: pairs[0] for k, s in enumerate(sentences) if (pairs := crossing_pairs(s.entities))}
    if not crossing:
        return sentences, []
    places = [f"{id_or_words(sentences[k])}: {a} and {b}" for k, (a, b) in islice(crossing.items(), SHOWN_CROSSINGS)]
    listing = "; ".join(places) + ("; ..." if len(crossing) > SHOWN_CROSSINGS else "")
    have = "sentence has" if len(crossing) == 1 else "sentences have"
    count = f"{len(crossing):,} training {have} entities that cross"
    if mode == "refuse":
        raise TrainingError(
            f"{count}, and no tree holds both: {listing}. Correct them, or set training.crossing to skip or drop."
        )
    if mode == "skip":
        return sentences, [f"{count}, and no tree holds both: trees are not trained on them. {listing}."]
    kept = [replace(s, entities=drop_crossing(s.entities)) if k in crossing else s for k, s in enumerate(sentences)]
    dropped = sum(len(s.entities) - len(t.entities) for s, t in zip(sentences, kept, strict=True))
    are = "is" if dropped == 1 else "are"
    return kept, [f"{count}: {dropped:,} of these entities {are} left out of training. {listing}."]


def id_or_words(sentence: Sentence) -> str:
    """The id of a sentence or, without one, its first words: its number in the file is unknown."""
    return sentence.id or f"{' '.join(sentence.words)!r:.60}"


def drop_crossing(entities: Sequence[Entity]) -> tuple[Entity, ...]:
    """Remove the span that crosses most others, the longest of equals, until none cross.

    >>> drop_crossing([Entity(0, 3, "A"), Entity(2, 5, "B"), Entity(4, 6, "C")])
    (Entity(start=0, end=3, label='A', ...), Entity(start=4, end=6, label='C', ...))
    """
    kept = list(entities)
    while pairs := crossing_pairs(kept):
        counts = Counter(span for pair in pairs for span in {entity.span for entity in pair})
        worst = max(counts, key=lambda span: (counts[span], span[1] - span[0], span))
        kept = [entity for entity in kept if entity.span != worst]
    return tuple(kept)


def count_mentions(sentence: Sentence, trees: bool) -> int:
    """The number of gold spans that count in the loss: with trees, none of a sentence whose entities cross."""
    if trees and crossing_pairs(sentence.entities):
        return 0
    return len({entity.span for entity in sentence.entities})


def batches(lengths: Sequence[int], words: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch, as indices of sentences: each sentence once, the shorter first within a batch.

    No batch has more than `words` words, or more than twice as many with padding, unless it is a single sentence.

    >>> batches([3, 30, 4, 31, 3], words=12, seed=1, epoch=1)
    [[3], [1], [0, 4, 2]]
    """
    rng = random.Random(f"batches {seed} {epoch}")
    noisy = [length * (1 + LENGTH_JITTER * (2 * rng.random() - 1)) for length in lengths]
    batches: list[list[int]] = [[]]
    size = longest = 0
    for sentence in sorted(range(len(lengths)), key=lambda k: (noisy[k], k)):
        length = lengths[sentence]
        padded = (len(batches[-1]) + 1) * max(longest, length)
        if batches[-1] and (size + length > words or padded > MAX_PADDING * words):
            batches.append([])
            size = longest = 0
        batches[-1].append(sentence)
        size, longest = size + length, max(longest, length)
    batches = [sorted(batch, key=lambda k: (lengths[k], k)) for batch in batches if batch]
    rng.shuffle(batches)
    return batches


def epoch_batches(lengths: Sequence[int], words: int, seed: int, epoch: int, passes: int) -> list[list[int]]:
    """The batches of an epoch of several passes over the data."""
    numbers = range((epoch - 1) * passes + 1, epoch * passes + 1)
    return [batch for number in numbers for batch in batches(lengths, words, seed, number)]


def microbatches(batch: Sequence[int], lengths: Sequence[int], count: int) -> list[list[int]]:
    """Split a batch, in its order, into up to `count` nonempty parts of about equally many words.

    >>> microbatches([0, 1, 2, 3], [3, 3, 3, 3], 2)
    [[0, 1], [2, 3]]
    """
    total, words = sum(lengths[k] for k in batch), 0
    parts: list[list[int]] = [[] for _ in range(count)]
    for k in batch:
        parts[min(words * count // max(total, 1), count - 1)].append(k)
        words += lengths[k]
    return [part for part in parts if part]
