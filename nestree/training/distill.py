"""Distillation: a student learns the teachers' distribution over all labelled trees of a sentence, heads included.

The student's cross-entropy under that distribution needs only its marginals (losses.cross_entropy), and these come from
one inside-outside run of each teacher. They are computed batch by batch beside the student's step, and never stored.
Teachers read the text as it was written; the student may read it in upper case or in lower case.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from nestree.config import Settings
from nestree.decoding.probabilities import apply_temperatures, log_labels, potentials
from nestree.errors import TrainingError
from nestree.model import Recognizer
from nestree.nn.batch import Batch, Targets
from nestree.nn.scorers import Scores
from nestree.pipeline import precision, predict
from nestree.training.dataset import Corpus
from nestree.treecrf import LexicalPotentials, log_partitions
from nestree.types import Entity, Sentence

MAX_UNLABELED_WORDS = 120  # words of an unlabelled sentence; charts grow with the cube
PAIRS_PER_WORD = (
    8  # entities with heads, the likeliest of a sentence, whose labels are distilled, for each of its words
)
LABELED_COPIES = 4  # copies of the labelled sentences in an epoch
AUGMENTATION_RATE = 0.25  # share of the sentences that the student reads in another form
FRAGMENT_RATE = 0.25  # share of these, where entities are known, of which one entity is left


@dataclass(frozen=True)
class Teachers:
    """The teachers, and what they have to say about each training sentence."""

    teachers: tuple[Recognizer, ...]
    labels: tuple[str, ...]  # the student's
    originals: Sequence[Sentence]  # what teachers read: as many words as the student reads
    labelled: Sequence[bool]  # are the entities of the sentence known?
    taught: Sequence[bool]  # do the teachers have a say?
    mentions_per_word: float  # of labelled sentences: what unlabelled ones are assumed to have

    def __post_init__(self) -> None:
        for teacher in self.teachers:
            teacher.eval().requires_grad_(False)
            if teacher.device.type == "cuda":  # once, not for each batch
                teacher.encoder.keeper.freeze(teacher.encoder.transformer)

    def check_student(self, settings: Settings) -> None:
        """Raise if a student of these settings cannot learn what the teachers say."""
        reason = without_distribution(settings)
        if reason:
            raise TrainingError(
                f"a student learns a distribution over lexicalised trees and labels, and its {reason}. Change that, or "
                "distil what a teacher finds with --hard."
            )
        several = any(teacher.settings.loss.label != "softmax" for teacher in self.teachers)
        if settings.loss.label == "softmax" and several:
            raise TrainingError(
                'the student has loss.label = "softmax", one label for a span, and a teacher gives several. Set it to '
                '"sigmoid" or "ranking".'
            )

    def mentions(self, known: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """The mentions of each sentence: where they are not known, as many as is usual."""
        return [
            count if labelled else round(self.mentions_per_word * length)
            for count, labelled, length in zip(known, self.labelled, lengths, strict=True)
        ]

    def attach(self, batch: Batch, numbers: Sequence[int]) -> Batch:
        """The batch of these training sentences, on the host, with what the teachers read."""
        assert batch.gold is not None
        labelled = torch.tensor([self.labelled[k] for k in numbers])
        originals = [self.originals[k] for k in numbers]
        return replace(
            batch,
            gold=replace(batch.gold, used=batch.gold.used & labelled),
            readings=tuple(teacher.collate_words(originals) for teacher in self.teachers),
            taught=torch.tensor([self.taught[k] for k in numbers]),
        )

    @torch.no_grad()
    def targets(self, batch: Batch) -> Targets:
        """The marginals of the teachers, averaged, in the shape of the student's batch."""
        assert batch.taught is not None
        rows, n = len(batch.lengths), batch.longest
        with precision(batch.pieces.device):
            scores = [
                teacher(reading) for teacher, reading in zip(self.teachers, batch.readings, strict=True)
            ]
        taught = batch.taught.to(scores[0].mention.dtype)  # [B]
        parts = [
            marginals(each, teacher, taught[: len(each.lengths)])
            for each, teacher in zip(scores, self.teachers, strict=True)
        ]
        no, yes, arc, root, headed = (mean(each) for each in zip(*parts, strict=True))
        size = min(PAIRS_PER_WORD * headed.shape[-1], headed[0].numel())
        at = headed.flatten(1).topk(size).indices  # [B, size]
        counts = torch.arange(size, device=at.device) < PAIRS_PER_WORD * scores[0].lengths[:, None]
        cells = cells_of(at, headed)  # [B, size, 4]
        weights = [part[-1].flatten(1).gather(1, at) * counts for part in parts]
        labels = mean(
            [
                weight[..., None] * self.label_probabilities(each, teacher, cells)
                for each, teacher, weight in zip(scores, self.teachers, weights, strict=True)
            ]
        )  # [B, size, L]
        more, words, missing = rows - len(no), n - arc.shape[1], PAIRS_PER_WORD * n - size
        entities = nowhere(rows, PAIRS_PER_WORD * n, n, at.device)
        entities[: len(no), :size] = cells
        return Targets(
            taught,
            pad(no, (0, words, 0, words, 0, more)),
            pad(yes, (0, words, 0, words, 0, more)),
            pad(arc, (0, words, 0, words, 0, more)),
            pad(root, (0, words, 0, more)),
            pad(headed.sum((1, 2)), (0, words, 0, more)),
            entities.flatten(0, 1),
            pad(mean(weights), (0, missing, 0, more)).flatten(),
            pad(labels, (0, 0, 0, missing, 0, more)).flatten(0, 1),
        )

    def label_probabilities(self, scores: Scores, teacher: Recognizer, entities: Tensor) -> Tensor:
        """[..., L] P(label | span, head) of entities [..., 4], the student's labels in their order."""
        assert scores.labels is not None
        order = [teacher.labels.index(label) for label in self.labels]
        found = log_labels(scores.labels.of(*entities.unbind(-1)), teacher.settings, teacher.temperatures)
        return found.exp() if order == [*range(len(order))] else found.exp()[..., order]


def marginals(scores: Scores, teacher: Recognizer, taught: Tensor) -> tuple[Tensor, ...]:
    """P(no), P(yes), P(arc), P(root), P(yes with head): zero where teachers have no say, taught [B]."""
    share, log_mention = apply_temperatures(scores.mention, teacher.temperatures)
    trees = potentials(scores, share[..., 0], teacher.temperatures)
    found = log_partitions([trees], scores.lengths, [True])[0].marginals
    assert isinstance(found, LexicalPotentials)
    assert found.head is not None
    no, yes = (log_mention.exp() * taught[:, None, None, None]).unbind(-1)
    return (
        found.span * no,
        found.span * yes,
        found.arc * taught[:, None, None],
        found.root * taught[:, None],
        found.head * yes[..., None],
    )


def cells_of(at: Tensor, headed: Tensor) -> Tensor:
    """[B, K, 4] (b, i, j, h) of places [B, K] in [n + 1, n + 1, n] in one row."""
    posts, words = headed.shape[2:]
    row = torch.arange(len(at), device=at.device)[:, None].expand_as(at)
    return torch.stack([row, at // words // posts, at // words % posts, at % words], -1)


def nowhere(rows: int, size: int, words: int, device: torch.device) -> Tensor:
    """[rows, size, 4] entities of one word that weigh nothing; few of them twice, as a GPU adds up these in turn."""
    word = (torch.arange(size, device=device) % words).expand(rows, -1)
    row = torch.arange(rows, device=device)[:, None].expand_as(word)
    return torch.stack([row, word, word + 1, word], -1)


def mean(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack([*tensors]).mean(0)


# What is learned from


def make_teachers(
    corpus: Corpus,
    unlabelled: Sequence[Sentence],
    teachers: Sequence[Recognizer],
    *,
    hard: bool = False,
    repeat: int = LABELED_COPIES,
    varied: float = AUGMENTATION_RATE,
    seed: int = 1,
    tell: Callable[[int], None] | None = None,
) -> tuple[Corpus, Teachers | None]:
    """The labelled sentences of a corpus `repeat` times and unlabelled ones, and what teachers say about all of them.

    `hard`: the entities that the teacher finds in unlabelled sentences are their gold, and the rest is ordinary
    training (no lessons). `varied`: the share of sentences that the student reads in another form, see `vary`. `tell`
    hears how many unlabelled sentences have been labelled.
    """
    labels = teachers[0].labels
    notes = [*corpus.notes, *check(corpus, teachers, hard)]
    texts = [sentence for sentence in unlabelled if len(sentence.words) <= MAX_UNLABELED_WORDS]
    if len(texts) < len(unlabelled):
        notes.append(
            f"{len(unlabelled) - len(texts):,} unlabelled sentences have more than {MAX_UNLABELED_WORDS} words and are "
            "left out."
        )
    texts = (
        predict(teachers[0], texts, tell=tell)
        if hard
        else [replace(text, entities=(), complete=True) for text in texts]
    )
    chance = random.Random(f"distillation {seed}")
    sentences: list[Sentence] = []
    originals: list[Sentence] = []
    labelled: list[bool] = []
    taught: list[bool] = []

    def add(original: Sentence, known: bool, vary_it: bool) -> None:
        form = Form(original, original, True)
        if vary_it and chance.random() < varied:
            form = vary(original, chance, known)
        sentences.append(form.student)
        originals.append(form.teacher)
        labelled.append(known)
        taught.append(form.taught)

    for copy in range(repeat):
        for sentence in corpus.train:
            add(sentence, True, copy > 0 or repeat == 1)
    for sentence in texts:
        add(sentence, hard, True)
    mentions = sum(len({e.span for e in s.entities}) for s in corpus.train)
    rate = mentions / max(1, sum(len(s.words) for s in corpus.train))
    made = replace(corpus, train=tuple(sentences), labels=labels, notes=tuple(notes))
    if hard:
        return made, None
    return made, Teachers(tuple(teachers), labels, originals, labelled, taught, rate)


def check(corpus: Corpus, teachers: Sequence[Recognizer], hard: bool) -> list[str]:
    """What users should know of these teachers; raise if they cannot teach."""
    known = set(teachers[0].labels)
    for number, teacher in enumerate(teachers, 1):
        if set(teacher.labels) != known:
            raise TrainingError(
                f"teacher {number} has the labels {', '.join(sorted(teacher.labels))}, and the first one "
                f"{', '.join(sorted(known))}. Teachers of one student need the same labels."
            )
        reason = None if hard else without_distribution(teacher.settings)
        if reason:
            raise TrainingError(
                f"teacher {number} has no distribution over lexicalised trees and labels: its {reason}. Take one of "
                "the default recipe, or distil what it finds with --hard."
            )
    if hard and len(teachers) > 1:
        raise TrainingError(f"--hard takes what one teacher finds, and {len(teachers)} are given. Name one.")
    foreign = sorted(set(corpus.labels) - known)
    if foreign:
        raise TrainingError(
            f"the labelled data has labels that the teacher does not know: {', '.join(foreign)}. It knows "
            f"{', '.join(sorted(known))}. Take data and teachers of the same labels."
        )
    absent = sorted(known - set(corpus.labels))
    return [f"labels that only the teacher knows: {', '.join(absent)}."] if absent else []


def without_distribution(settings: Settings) -> str | None:
    """The setting that keeps a model from having a distribution over lexicalised trees with labels; None: it has."""
    needed = {"structure": "lexical", "mention": "yes-no", "labeling": "head"}
    for name, value in needed.items():
        found = getattr(settings.model, name)
        if found != value:
            return f'model.{name} is "{found}", not "{value}"'
    return None


@dataclass(frozen=True)
class Form:
    """A sentence as the student and as the teachers read it."""

    student: Sentence
    teacher: Sentence
    taught: bool  # False: only its gold entities teach


def vary(sentence: Sentence, chance: random.Random, known: bool) -> Form:
    """Another form of a sentence: in upper or lower case, without punctuation or the final stop, or one name alone.

    Teachers read the words as they were written. Of a name out of context they know less than its annotation says
    (`known`), so they have no say there.
    """
    names = [entity for entity in sentence.entities if is_name(sentence.words[entity.start : entity.end])]
    if known and names and chance.random() < FRAGMENT_RATE:
        name = chance.choice(names)
        inner = [e for e in sentence.entities if name.start <= e.start and e.end <= name.end]
        kept = [name.start <= k < name.end for k in range(len(sentence.words))]
        alone = reduced(replace(sentence, entities=tuple(inner)), kept)
        if chance.random() < 0.5:
            alone = replace(alone, words=(*alone.words, "."))
        return Form(alone, alone, False)
    how = chance.choice(["upper", "lower", "no stop", "no punctuation", "lower, no punctuation"])
    if "no punctuation" in how:
        sentence = without_punctuation(sentence)
    elif how == "no stop" and not is_word(sentence.words[-1]):
        sentence = reduced(sentence, [True] * (len(sentence.words) - 1) + [len(sentence.words) == 1])
    seen = sentence
    if how.startswith(("upper", "lower")):
        seen = in_case(sentence, str.upper if how == "upper" else str.lower)
    return Form(seen, sentence, True)


def in_case(sentence: Sentence, change: Callable[[str], str]) -> Sentence:
    """The same sentence in upper or lower case."""
    words = tuple(change(word) for word in sentence.words)
    return replace(sentence, words=words, text=None, offsets=None)


def without_punctuation(sentence: Sentence) -> Sentence:
    """The words with a letter or digit; if there are none, all."""
    kept = [is_word(word) for word in sentence.words]
    return reduced(sentence, kept) if any(kept) else sentence


def reduced(sentence: Sentence, kept: Sequence[bool]) -> Sentence:
    """The words that are kept, with what is left of each entity."""
    before = [0]  # words that are kept before each fencepost
    for keep in kept:
        before.append(before[-1] + keep)
    entities = {}
    for entity in sentence.entities:
        start, end = before[entity.start], before[entity.end]
        head = None if entity.head is None or not kept[entity.head] else before[entity.head]
        if start < end:
            entities[start, end, entity.label] = Entity(start, end, entity.label, head)
    words = tuple(word for word, keep in zip(sentence.words, kept, strict=True) if keep)
    return replace(
        sentence, words=words, entities=tuple(entities.values()), text=None, offsets=None, tree=None
    )


def is_word(word: str) -> bool:
    return any(character.isalnum() for character in word)


def is_name(words: Sequence[str]) -> bool:
    """Whether it looks like a name: its first and its last word begin with a capital."""
    return words[0][:1].isupper() and words[-1][:1].isupper()
