"""The temperatures that make probabilities honest: fitted on sentences whose entities are known.

Every span that might be an entity, with every label, is a forecast that comes true or does not. The temperatures are
those under which what came true was likeliest (with a weak wish to stay at 1, which matters where data are few).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nestree.decoding.probabilities import NO_CHANGE, Temperatures, chances_of, label_probabilities
from nestree.model import Recognizer
from nestree.nn.scorers import Labels, Scores
from nestree.pipeline.sentences import BATCH_WORDS, LONGEST, by_length, precision
from nestree.sentence import Sentence

MOST = 2_000  # sentences that are looked at
LIKELY = 0.02  # what a span needs to be a forecast
LOWEST, HIGHEST = -2.0, 2.0  # logarithms of temperatures
USUAL = 0.5  # how far from 0 these usually are
TINY = 1e-6


class Forecasts(NamedTuple):
    """Spans of a batch that may be entities, and which of their labels are right."""

    scores: Scores
    spans: Tensor  # [K, 3]
    right: Tensor  # [K, L]


class Looked(NamedTuple):
    """Label scores of the spans of a forecast, which were looked up before."""

    found: Tensor  # [K, ..., L]

    def of(self, b: Tensor, i: Tensor, j: Tensor, h: Tensor | None) -> Tensor:
        return self.found

    def chart(self) -> Tensor:
        raise NotImplementedError


def fitted(model: Recognizer, sentences: Sequence[Sentence]) -> Temperatures:
    """The temperatures of this model, from sentences that it was not trained on."""
    known = [s for s in sentences if s.complete and len(s.words) <= LONGEST]
    known = known[:: -(-len(known) // MOST)] if known else []
    training = model.training
    model.eval()
    try:
        with torch.inference_mode(), precision(model.device):
            batches = by_length([len(sentence.words) for sentence in known], BATCH_WORDS)
            forecasts = [forecast(model, [known[k] for k in batch]) for batch in batches]
            return likeliest(model, forecasts)
    finally:
        model.train(training)


def likeliest(model: Recognizer, forecasts: Sequence[Forecasts]) -> Temperatures:
    """Where the loss is least, sought along one temperature after the other."""

    def loss(mention: float, label: float) -> float:
        temperatures = Temperatures(2.718281828459045**mention, 2.718281828459045**label)
        total = sum(surprise(model, one, temperatures) for one in forecasts)
        return float(total) + 0.5 * (mention**2 + label**2) / USUAL**2

    if not any(len(one.spans) for one in forecasts):
        return NO_CHANGE
    mention = label = 0.0
    for _ in range(2):
        mention = lowest(lambda at: loss(at, label))  # noqa: B023 (called at once)
        label = lowest(lambda at: loss(mention, at))  # noqa: B023
    return Temperatures(2.718281828459045**mention, 2.718281828459045**label)


def lowest(function: Callable[[float], float], steps: int = 12) -> float:
    """Where a function with one valley is lowest, between LOWEST and HIGHEST: the golden section.

    >>> round(lowest(lambda x: (x - 0.7) ** 2, 30), 4)
    0.7
    """
    golden = (5**0.5 - 1) / 2
    low, high = LOWEST, HIGHEST
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(steps):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = function(right)
    return (low + high) / 2


def forecast(model: Recognizer, sentences: Sequence[Sentence]) -> Forecasts:
    """The spans of these sentences that may be entities, and those that are."""
    batch = model.collate_words(sentences).to(model.device)
    scores = model(batch)
    likely = chances_of(scores, model.settings, NO_CHANGE).yes >= LIKELY  # [B, n + 1, n + 1]
    number = {label: k for k, label in enumerate(model.labels)}
    gold = [
        (b, entity.start, entity.end, number[entity.label])
        for b, sentence in enumerate(sentences)
        for entity in sentence.entities
        if entity.label in number
    ]
    b, i, j, label = torch.tensor(gold, dtype=torch.long, device=model.device).view(-1, 4).unbind(1)
    likely[b, i, j] = True
    right = torch.zeros(*likely.shape, len(number), dtype=torch.bool, device=model.device)
    right[b, i, j, label] = True
    spans = likely.nonzero()  # [K, 3]
    b, i, j = spans.unbind(1)
    labels: Labels | None = scores.labels
    if labels is not None and model.settings.model.labelling == "head":
        word = torch.arange(likely.shape[1] - 1, device=model.device).expand(len(spans), -1)
        labels = Looked(labels.of(b[:, None], i[:, None], j[:, None], word))
    elif labels is not None:
        labels = Looked(labels.of(b, i, j, None))
    kept = Scores(scores.lengths, scores.mention, scores.arc, scores.root, labels)
    return Forecasts(kept, spans, right[b, i, j])


def surprise(model: Recognizer, one: Forecasts, temperatures: Temperatures) -> Tensor:
    """How unlikely what came true was, summed: the log loss."""
    chances = chances_of(one.scores, model.settings, temperatures)
    chance = label_probabilities(one.scores, model.settings, temperatures, chances, one.spans)  # [K, L]
    chance = chance.double().clamp(TINY, 1 - TINY)
    return -torch.where(one.right, chance, 1 - chance).log().sum()
