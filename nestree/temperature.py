"""What is fitted on dev at the end of training: temperatures that make probabilities honest, then the decoder.

Every span that may well be an entity with some label is a forecast that comes true or does not. The temperatures are
those under which what came true was likeliest (with a weak wish to stay at 1, which matters where data are few).
Forecasts are chosen by what the model believes, never by what came true: it would look less sure than it is.

The decoder, Viterbi or minimum Bayes risk (MBR) at one of several thresholds, is the one with the best F1. All of them
are scored in one pass: the encoder and the sums over trees run once for each batch.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp
from typing import NamedTuple

import torch
from torch import Tensor

from nestree.config import DecodingSettings, Settings
from nestree.decoding import mbr, viterbi
from nestree.decoding.probabilities import (
    NO_TEMPERATURES,
    Temperatures,
    label_probabilities,
    log_labels,
    span_marginals,
)
from nestree.decoding.probabilities import probabilities as probabilities_of
from nestree.decoding.viterbi import biased
from nestree.model import Recognizer
from nestree.nn.scorers import Scores
from nestree.pipeline import (
    BATCH_WORDS,
    MAX_SENTENCE_WORDS,
    batches_by_length,
    eval_mode,
    precision,
)
from nestree.types import Sentence

MOST = 2_000  # sentences that are looked at
LIKELY = 0.1  # what a span with a label needs to be a forecast, at temperatures of 1
LOWEST, HIGHEST = -2.0, 2.0  # logarithms of temperatures, and the doubt about labels
ROUNDS = 3
USUAL = 0.5  # how far from 0 these usually are
TINY = 1e-6
THRESHOLDS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)  # of MBR decoding


class CalibrationSet(NamedTuple):
    """Spans of a batch that may be entities, and which of their labels are right."""

    scores: Scores  # of spans and arcs
    spans: Tensor  # [K, 3]
    words: Tensor  # [M, 2] each word that may head each of these spans: which span, which word
    labels: Tensor | None  # [M, L] scores
    asked: Tensor  # [K, L] is this a forecast?
    right: Tensor  # [K, L] did it come true?


def fit_temperatures(model: Recognizer, sentences: Sequence[Sentence]) -> Temperatures:
    """The temperatures of this model, from sentences that it was not trained on."""
    with torch.inference_mode(), eval_mode(model), precision(model.device):
        return likeliest(calibration_set(model, usable(sentences)), model.settings)


def best_decoder(model: Recognizer, sentences: Sequence[Sentence]) -> DecodingSettings:
    """The decoder with the highest F1 on these sentences; in a tie, the model's own."""
    scores = decoder_f1(model, sentences)
    return max(scores, key=scores.__getitem__)  # the first of equals


def decoder_f1(model: Recognizer, sentences: Sequence[Sentence]) -> dict[DecodingSettings, float]:
    """The F1 of each decoder at the temperatures of the model, its own decoder first."""
    counts: Counter[tuple[DecodingSettings, str]] = Counter()
    decoders = decoders_for(model.settings)
    known = usable(sentences)
    with torch.inference_mode(), eval_mode(model), precision(model.device):
        for batch in batches_by_length([len(sentence.words) for sentence in known], BATCH_WORDS):
            scores = model(model.collate_words([known[k] for k in batch]).to(model.device))
            gold = gold_chart([known[k] for k in batch], scores, model.labels)
            for decoder, rows in decoded_by(decoders, scores, model).items():
                counts[decoder, "right"] += int(gold[rows.unbind(1)].sum())
                counts[decoder, "predicted"] += len(rows)
    gold_count = sum(len({(e.span, e.label) for e in sentence.entities}) for sentence in known)
    return {d: 2 * counts[d, "right"] / max(1, counts[d, "predicted"] + gold_count) for d in decoders}


def decoders_for(settings: Settings) -> list[DecodingSettings]:
    """The model's own decoder, MBR at each threshold and, where there are trees, Viterbi."""
    own = settings.decoding
    found = [own, *(replace(own, method="mbr", threshold=threshold) for threshold in THRESHOLDS)]
    if settings.model.structure != "none":
        sharing = (
            own.head_sharing_penalty if settings.model.head_prior and own.head_prior_weight else 0.0
        )  # else it would change entities
        found.append(replace(own, method="viterbi", threshold=0.0, head_sharing_penalty=sharing))
    return list(dict.fromkeys(found))


def decoded_by(
    decoders: Sequence[DecodingSettings], scores: Scores, model: Recognizer
) -> dict[DecodingSettings, Tensor]:
    """[R, 4] sentence, start, end and label of each entity that each decoder finds."""
    chances = span_marginals(scores, model.settings, model.temperatures)
    lowest = min(decoder.threshold for decoder in decoders if decoder.method == "mbr")
    spans = mbr.likely_spans(chances, scores, lowest)  # [K, 3]
    chance = label_probabilities(scores, model.settings, model.temperatures, chances, spans)  # [K, L]
    found = {}
    for decoder in decoders:
        settings = replace(model.settings, decoding=decoder)
        if decoder.method == "mbr":
            taken = mbr.choose(spans, chance, scores, settings, decoder.threshold)
            k, label = taken.nonzero().unbind(1)
            found[decoder] = torch.cat([spans[k], label[:, None]], 1)
            continue
        rows = viterbi.viterbi_search(scores, settings)[0]
        score = probabilities_of(scores, settings, model.temperatures, chances, rows)
        found[decoder] = rows[score >= decoder.threshold, :4]
    return found


def usable(sentences: Sequence[Sentence]) -> list[Sentence]:
    """Completely annotated sentences that are read at once, evenly chosen if there are many."""
    known = [s for s in sentences if s.complete and len(s.words) <= MAX_SENTENCE_WORDS]
    return known[:: -(-len(known) // MOST)] if known else []


def gold_chart(sentences: Sequence[Sentence], scores: Scores, labels: Sequence[str]) -> Tensor:
    """[B, n + 1, n + 1, L] which spans are entities with which labels."""
    number = {label: k for k, label in enumerate(labels)}
    chart = torch.zeros(*scores.mention.shape[:3], len(labels), dtype=torch.bool)
    for at, sentence in enumerate(sentences):
        for entity in sentence.entities:
            if entity.label in number:
                chart[at, entity.start, entity.end, number[entity.label]] = True
    return chart.to(scores.mention.device)


def calibration_set(model: Recognizer, sentences: Sequence[Sentence]) -> list[CalibrationSet]:
    """In batches; those without any are left out."""
    batches = batches_by_length([len(sentence.words) for sentence in sentences], BATCH_WORDS)
    found = (collect(model, [sentences[k] for k in batch]) for batch in batches)
    return [one for one in found if len(one.spans)]


def collect(model: Recognizer, sentences: Sequence[Sentence]) -> CalibrationSet:
    """What the model takes for likely in these sentences, and what is there."""
    scores, settings = model(model.collate_words(sentences).to(model.device)), model.settings
    chances = span_marginals(scores, settings, NO_TEMPERATURES)
    spans = (chances.yes >= LIKELY).nonzero()  # [K, 3]
    asked = label_probabilities(scores, settings, NO_TEMPERATURES, chances, spans) >= LIKELY  # [K, L]
    spans, asked = spans[asked.any(1)], asked[asked.any(1)]
    b, i, j = spans.unbind(1)
    right = gold_chart(sentences, scores, model.labels)
    word = torch.arange(chances.span.shape[1] - 1, device=model.device)
    heads = settings.model.labeling == "head"
    within = (i[:, None] <= word) & (word < j[:, None]) if heads else torch.ones_like(i[:, None])
    k, h = within.nonzero().unbind(1)  # [M]
    labels = None if scores.labels is None else scores.labels.of(b[k], i[k], j[k], h if heads else None)
    kept = Scores(scores.lengths, scores.mention, scores.arc, scores.root, None)
    return CalibrationSet(kept, spans, torch.stack([k, h], 1), labels, asked, right[b, i, j])


def likeliest(forecasts: Sequence[CalibrationSet], settings: Settings) -> Temperatures:
    """Where the loss is least. Trees are summed once for each temperature of theirs that is tried."""
    if not forecasts:
        return NO_TEMPERATURES

    def viterbi(tree: float) -> tuple[float, Temperatures]:
        there = [spans_at(one, settings, exp(tree)) for one in forecasts]

        def loss(mention: float, label: float, doubt: float) -> float:
            temperatures = Temperatures(exp(mention), exp(label), exp(tree), doubt)
            pairs = zip(forecasts, there, strict=True)
            total = torch.stack([nll(*pair, settings, temperatures) for pair in pairs]).sum()
            return float(total) + 0.5 * (mention**2 + label**2 + tree**2 + doubt**2) / USUAL**2

        mention = label = doubt = 0.0
        for _ in range(ROUNDS):  # one after the other
            mention = minimize(lambda at: loss(at, label, doubt))  # noqa: B023 (called at once)
            label = minimize(lambda at: loss(mention, at, doubt))  # noqa: B023
            doubt = minimize(lambda at: loss(mention, label, at))  # noqa: B023
        return loss(mention, label, doubt), Temperatures(exp(mention), exp(label), exp(tree), doubt)

    return viterbi(minimize(lambda at: viterbi(at)[0]))[1]


def spans_at(one: CalibrationSet, settings: Settings, tree: float) -> Tensor:
    """[M] the probability that each span is in the tree with each head, at this temperature of trees."""
    chances = span_marginals(one.scores, settings, Temperatures(tree=tree))
    k, h = one.words.unbind(1)
    b, i, j = one.spans[k].unbind(1)
    return chances.span[b, i, j] if chances.head is None else chances.head[b, i, j, h]


def nll(one: CalibrationSet, there: Tensor, settings: Settings, temperatures: Temperatures) -> Tensor:
    """How unlikely what came true was, summed: the log loss."""
    chance = probabilities(one, there, settings, temperatures).double().clamp(TINY, 1 - TINY)
    return -torch.where(one.right, chance, 1 - chance).log().masked_fill(~one.asked, 0.0).sum()


def probabilities(
    one: CalibrationSet, there: Tensor, settings: Settings, temperatures: Temperatures
) -> Tensor:
    """[K, L] that each span is an entity with each label, if `there` [M] is how likely it is in the tree."""
    said = biased(one.scores, settings)[one.spans.unbind(1)] / temperatures.mention  # [K, C]
    mention, chance = said.softmax(-1), there[:, None]
    if one.labels is not None:
        chance = chance * log_labels(one.labels, settings, temperatures).exp()  # [M, L]
    chance = chance.new_zeros(len(said), chance.shape[1]).index_add(0, one.words[:, 0], chance)  # [K, L]
    if settings.model.mention == "score":
        return chance
    return chance * (mention[:, 1:] if one.labels is None else 1 - mention[:, :1])


def minimize(function: Callable[[float], float], steps: int = 5) -> float:
    """Where a function with one valley is lowest, between LOWEST and HIGHEST: golden sections, then a parabola.

    >>> round(minimize(lambda x: (x - 0.7) ** 2), 6)
    0.7
    """
    golden = (5**0.5 - 1) / 2
    low, high = LOWEST, HIGHEST
    left, right = high - golden * (high - low), low + golden * (high - low)
    tried = {left: function(left), right: function(right)}
    for _ in range(steps):
        if tried[left] < tried[right]:
            high, right = right, left
            new = left = high - golden * (high - low)
        else:
            low, left = left, right
            new = right = low + golden * (high - low)
        tried[new] = function(new)
    return bottom(sorted(tried.items()))


def bottom(points: Sequence[tuple[float, float]]) -> float:
    """Where the parabola through the lowest point and those beside it is lowest; if it is at an end, this point."""
    k = min(range(len(points)), key=lambda k: points[k][1])
    if k in (0, len(points) - 1):
        return points[k][0]
    (a, at_a), (b, at_b), (c, at_c) = points[k - 1 : k + 2]
    left, right = (b - a) * (at_b - at_c), (b - c) * (at_b - at_a)
    return b - 0.5 * ((b - a) * left - (b - c) * right) / (left - right) if left != right else b
