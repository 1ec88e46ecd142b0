"""Distillation: a student learns the teachers' distribution over all labelled trees of a sentence, heads included.

The student's cross-entropy under that distribution needs only its marginals (losses.cross_entropy), which come from one
inside-outside run of each teacher. They are computed batch by batch during training and never stored. Teachers read the
text as it was written; the student may read it in upper or lower case.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from nestree.config import Settings
from nestree.decoding.probabilities import apply_temperatures, label_log_probabilities
from nestree.errors import TrainingError
from nestree.model import Recognizer, autocast
from nestree.nn.batch import Batch, SoftTargets
from nestree.nn.scorers import Scores
from nestree.pipeline import predict
from nestree.training.dataset import Corpus, keep_words
from nestree.treecrf import LexicalPotentials, log_partitions
from nestree.types import Sentence

MAX_UNLABELED_WORDS = 120  # words of an unlabelled sentence; the time of tree sums grows with their cube
PAIRS_PER_WORD = 8  # (span, head) pairs per word whose labels are distilled: the likeliest of a sentence
LABELED_COPIES = 4  # copies of the labelled sentences in an epoch
AUGMENTATION_RATE = 0.25  # share of the sentences that the student reads in another form
FRAGMENT_RATE = 0.25  # share of these, if their entities are known, that are reduced to one entity


@dataclass(frozen=True)
class Teachers:
    """The teachers, and which of the training sentences they teach."""

    teachers: tuple[Recognizer, ...]
    labels: tuple[str, ...]  # the student's
    originals: Sequence[Sentence]  # what the teachers read; as many words as the student's sentences
    labeled: Sequence[bool]  # whether the entities of the sentence are known
    has_soft_targets: Sequence[bool]  # whether the teachers' distribution counts
    mentions_per_word: float  # of labelled sentences; assumed for unlabelled ones

    def __post_init__(self) -> None:
        for teacher in self.teachers:
            teacher.eval().requires_grad_(False)
            if teacher.device.type == "cuda":  # cast the weights once, not for each batch
                teacher.encoder.bf16_cache.freeze(teacher.encoder.transformer)

    def check_student(self, settings: Settings) -> None:
        """Raise if a student of these settings cannot learn the teachers' distribution."""
        if obstacle := distillation_obstacle(settings):
            raise TrainingError(
                f"a student learns a distribution over lexicalised trees and labels, and its {obstacle}. Change that, "
                "or distil what a teacher finds with --hard."
            )
        several_labels = any(teacher.settings.loss.label != "softmax" for teacher in self.teachers)
        if settings.loss.label == "softmax" and several_labels:
            raise TrainingError(
                'the student has loss.label = "softmax", one label for a span, and a teacher gives several. Set it to '
                '"sigmoid" or "ranking".'
            )

    def mentions(self, gold: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """The number of mentions of each sentence, estimated where the gold ones are unknown."""
        return [
            count if labeled else round(self.mentions_per_word * length)
            for count, labeled, length in zip(gold, self.labeled, lengths, strict=True)
        ]

    def attach(self, batch: Batch, numbers: Sequence[int]) -> Batch:
        """The batch of the training sentences with these indices, on the host, with the inputs of the teachers."""
        assert batch.gold is not None
        labeled = torch.tensor([self.labeled[k] for k in numbers])
        originals = [self.originals[k] for k in numbers]
        return replace(
            batch,
            gold=replace(batch.gold, used=batch.gold.used & labeled),
            teacher_batches=tuple(teacher.collate_words(originals) for teacher in self.teachers),
            has_soft_targets=torch.tensor([self.has_soft_targets[k] for k in numbers]),
        )

    @torch.no_grad()
    def soft_targets(self, batch: Batch) -> SoftTargets:
        """The teachers' marginals, averaged, in the shape of the student's batch."""
        assert batch.has_soft_targets is not None
        rows, n = len(batch.lengths), batch.longest
        with autocast(batch.subwords.device):
            scores = [teacher(own) for teacher, own in zip(self.teachers, batch.teacher_batches, strict=True)]
        has_soft_targets = batch.has_soft_targets.to(scores[0].mention.dtype)  # [B]
        marginals = [
            tree_marginals(each, teacher, has_soft_targets[: len(each.lengths)])
            for each, teacher in zip(scores, self.teachers, strict=True)
        ]
        no, yes, arc, root, headed = (mean(tensors) for tensors in zip(*marginals, strict=True))
        posts, words = headed.shape[2:]
        size = min(PAIRS_PER_WORD * words, headed[0].numel())
        top = headed.flatten(1).topk(size).indices  # [B, size]
        valid = torch.arange(size, device=top.device) < PAIRS_PER_WORD * scores[0].lengths[:, None]
        row = torch.arange(len(top), device=top.device)[:, None].expand_as(top)
        starts, ends = top // words // posts, top // words % posts
        cells = torch.stack([row, starts, ends, top % words], -1)  # [B, size, 4]
        weights = [parts[-1].flatten(1).gather(1, top) * valid for parts in marginals]
        labels = [
            weight[..., None] * self.label_probabilities(each, teacher, cells)
            for each, teacher, weight in zip(scores, self.teachers, weights, strict=True)
        ]  # [B, size, L] of each teacher
        # Pad to the student's batch: with sentences, with words, and with entities of one word and weight 0. These
        # differ from each other, as a GPU adds up gradients of equal ones one after another.
        more_rows, more_words, more_pairs = rows - len(no), n - words, PAIRS_PER_WORD * n - size
        by_word = (0, more_words, 0, more_rows)
        by_span = (0, more_words, *by_word)
        word = (torch.arange(PAIRS_PER_WORD * n, device=top.device) % n).expand(rows, -1)
        row = torch.arange(rows, device=top.device)[:, None].expand_as(word)
        entities = torch.stack([row, word, word + 1, word], -1)  # [rows, PAIRS_PER_WORD * n, 4]
        entities[: len(no), :size] = cells
        return SoftTargets(
            has_soft_targets,
            pad(no, by_span),
            pad(yes, by_span),
            pad(arc, by_span),
            pad(root, by_word),
            pad(headed.sum((1, 2)), by_word),
            entities.flatten(0, 1),
            pad(mean(weights), (0, more_pairs, 0, more_rows)).flatten(),
            pad(mean(labels), (0, 0, 0, more_pairs, 0, more_rows)).flatten(0, 1),
        )

    def label_probabilities(self, scores: Scores, teacher: Recognizer, entities: Tensor) -> Tensor:
        """[..., L] P(label | span, head) of entities [..., 4], in the order of the student's labels."""
        assert scores.labels is not None
        order = [teacher.labels.index(label) for label in self.labels]
        probabilities = label_log_probabilities(
            scores.labels.score_spans(*entities.unbind(-1)), teacher.settings, teacher.temperatures
        ).exp()
        return probabilities if order == [*range(len(order))] else probabilities[..., order]


def tree_marginals(scores: Scores, teacher: Recognizer, has_soft_targets: Tensor) -> tuple[Tensor, ...]:
    """P(no), P(yes), P(arc), P(root), P(yes with head): zero where has_soft_targets [B] is."""
    span, log_mention = apply_temperatures(scores.mention, teacher.temperatures)
    trees = scores.potentials(span[..., 0], teacher.temperatures.tree)
    marginals = log_partitions([trees], scores.lengths, [True])[0].marginals
    assert isinstance(marginals, LexicalPotentials)
    assert marginals.head is not None
    no, yes = (log_mention.exp() * has_soft_targets[:, None, None, None]).unbind(-1)
    return (
        marginals.span * no,
        marginals.span * yes,
        marginals.arc * has_soft_targets[:, None, None],
        marginals.root * has_soft_targets[:, None],
        marginals.head * yes[..., None],
    )


def mean(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack([*tensors]).mean(0)


# Training data


def make_teachers(
    corpus: Corpus,
    unlabeled: Sequence[Sentence],
    teachers: Sequence[Recognizer],
    *,
    hard: bool = False,
    labeled_copies: int = LABELED_COPIES,
    augmentation_rate: float = AUGMENTATION_RATE,
    seed: int = 1,
) -> tuple[Corpus, Teachers | None]:
    """Copies of the labelled sentences of a corpus plus unlabelled ones, and the teachers of all of them.

    `hard`: what the teacher predicts in unlabelled sentences becomes their gold, for ordinary training without
    `Teachers`. `augmentation_rate`: the share of sentences that the student reads in another form, see `augment`; the
    first copy of labelled ones stays as it is.
    """
    notes = [*corpus.notes, *check_teachers(corpus, teachers, hard)]
    texts = [sentence for sentence in unlabeled if len(sentence.words) <= MAX_UNLABELED_WORDS]
    if len(texts) < len(unlabeled):
        notes.append(
            f"{len(unlabeled) - len(texts):,} unlabelled sentences have more than {MAX_UNLABELED_WORDS} words and are "
            "left out."
        )
    blank = [replace(text, entities=(), complete=True) for text in texts]
    texts = predict(teachers[0], texts) if hard else blank
    copies = range(labeled_copies)
    items = [(s, True, copy > 0 or labeled_copies == 1) for copy in copies for s in corpus.train]
    items += [(text, hard, True) for text in texts]
    rng = random.Random(f"distillation {seed}")
    forms = [
        augment(s, rng, known) if may_vary and rng.random() < augmentation_rate else (s, s, True)
        for s, known, may_vary in items
    ]
    students, originals, has_soft_targets = zip(*forms, strict=True)
    labels = teachers[0].labels
    combined = replace(corpus, train=students, labels=labels, notes=tuple(notes), originals=corpus.train)
    if hard:
        return combined, None
    mentions = sum(len({e.span for e in s.entities}) for s in corpus.train)
    mentions_per_word = mentions / max(1, sum(len(s.words) for s in corpus.train))
    labeled = [known for _, known, _ in items]
    return combined, Teachers(tuple(teachers), labels, originals, labeled, has_soft_targets, mentions_per_word)


def check_teachers(corpus: Corpus, teachers: Sequence[Recognizer], hard: bool) -> list[str]:
    """Notes for the user about these teachers; raise if they cannot teach."""
    labels = set(teachers[0].labels)
    for number, teacher in enumerate(teachers, 1):
        if set(teacher.labels) != labels:
            raise TrainingError(
                f"teacher {number} has the labels {', '.join(sorted(teacher.labels))}, and the first one "
                f"{', '.join(sorted(labels))}. Teachers of one student need the same labels."
            )
        if not hard and (obstacle := distillation_obstacle(teacher.settings)):
            raise TrainingError(
                f"teacher {number} has no distribution over lexicalised trees and labels: its {obstacle}. Take one of "
                "the default recipe, or distil what it finds with --hard."
            )
    if hard and len(teachers) > 1:
        raise TrainingError(f"--hard takes what one teacher finds, and {len(teachers)} are given. Name one.")
    if foreign := sorted(set(corpus.labels) - labels):
        raise TrainingError(
            f"the labelled data has labels that the teacher does not know: {', '.join(foreign)}. It knows "
            f"{', '.join(sorted(labels))}. Take data and teachers of the same labels."
        )
    absent = sorted(labels - set(corpus.labels))
    return [f"labels that only the teacher knows: {', '.join(absent)}."] if absent else []


def distillation_obstacle(settings: Settings) -> str | None:
    """The setting for which a model has no distribution over lexicalised trees with labels; None: it has one."""
    for name, value in {"structure": "lexical", "mention": "yes-no", "labeling": "head"}.items():
        if (actual := getattr(settings.model, name)) != value:
            return f'model.{name} is "{actual}", not "{value}"'
    return None


# Other forms of a sentence


def augment(sentence: Sentence, rng: random.Random, known: bool) -> tuple[Sentence, Sentence, bool]:
    """Another form of a sentence: in upper or lower case, without punctuation or the final stop, or one name alone.

    Returns what the student reads, what the teachers read, and whether their distribution is a target.

    Teachers read the words in their original case. About a name out of context they know less than its annotation says
    (`known`), so they do not teach it.
    """
    words = sentence.words
    names = [e for e in sentence.entities if words[e.start][:1].isupper() and words[e.end - 1][:1].isupper()]
    if known and names and rng.random() < FRAGMENT_RATE:
        name = rng.choice(names)
        inner = tuple(e for e in sentence.entities if name.start <= e.start and e.end <= name.end)
        kept = [name.start <= k < name.end for k in range(len(words))]
        fragment = keep_words(replace(sentence, entities=inner, context=None), kept)
        if rng.random() < 0.5:
            fragment = replace(fragment, words=(*fragment.words, "."))
        return fragment, fragment, False
    kind = rng.choice(["upper", "lower", "no stop", "no punctuation", "lower, no punctuation"])
    if "no punctuation" in kind:
        sentence = without_punctuation(sentence)
    elif kind == "no stop" and not is_word(words[-1]):
        sentence = keep_words(sentence, [True] * (len(words) - 1) + [len(words) == 1])
    student = sentence
    if kind.startswith(("upper", "lower")):
        student = change_case(sentence, str.upper if kind == "upper" else str.lower)
    return student, sentence, True


def change_case(sentence: Sentence, change: Callable[[str], str]) -> Sentence:
    """The sentence in upper or lower case."""
    words = tuple(change(word) for word in sentence.words)
    return replace(sentence, words=words, text=None, offsets=None)


def without_punctuation(sentence: Sentence) -> Sentence:
    """The words with a letter or digit; if there are none, all."""
    kept = [is_word(word) for word in sentence.words]
    return keep_words(sentence, kept) if any(kept) else sentence


def is_word(word: str) -> bool:
    return any(character.isalnum() for character in word)
