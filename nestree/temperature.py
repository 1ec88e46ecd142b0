"""What is tuned on dev when training ends: the temperatures, then the decoder.

Temperatures: a span with a label whose probability is at least MIN_PROBABILITY is an event of the calibration set; it
is true if the gold has it. Events are chosen by the model's probabilities alone: choosing them by gold would make the
model look less certain than it is. The temperatures minimise the negative log-likelihood (NLL) of the events plus a
Gaussian prior around 1, which matters for small data.

Decoder: Viterbi or minimum Bayes risk (MBR) at one of several thresholds, whichever has the highest F1. All are scored
in one pass: the encoder and the sums over trees run once for each batch.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, exp
from typing import NamedTuple

import torch
from torch import Tensor

from nestree.config import DecodingSettings, Settings
from nestree.decoding import mbr, viterbi
from nestree.decoding.probabilities import (
    UNIT_TEMPERATURES,
    Temperatures,
    biased_mention_scores,
    check_label_scores,
    entity_probabilities,
    label_log_probabilities,
    label_probabilities,
    span_marginals,
)
from nestree.model import Recognizer, autocast, eval_mode
from nestree.nn.batch import BATCH_WORDS, MAX_SENTENCE_WORDS, batches_by_length
from nestree.nn.scorers import Scores
from nestree.types import Sentence

MAX_SENTENCES = 2_000
MIN_PROBABILITY = 0.1  # of an event, at temperatures of 1
SEARCH_RANGE = (-2.0, 2.0)  # of log temperatures and of the label offset
SEARCH_STEPS = 5
COORDINATE_ROUNDS = 3
PRIOR_STD = 0.25  # of log temperatures and of the label offset
EPSILON = 1e-6
THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)  # of MBR decoding
LEAST_GAIN = 0.003  # of F1 on dev, for another decoder than the recipe's; chosen, not tuned


def sample_batches(sentences: Sequence[Sentence]) -> list[list[Sentence]]:
    """Batches of completely annotated sentences that need no windows, every k-th if there are many."""
    usable = [s for s in sentences if s.complete and len(s.words) <= MAX_SENTENCE_WORDS]
    sample = usable[:: max(1, ceil(len(usable) / MAX_SENTENCES))]
    batches = batches_by_length([len(sentence.words) for sentence in sample], BATCH_WORDS)
    return [[sample[k] for k in batch] for batch in batches]


def gold_chart(sentences: Sequence[Sentence], scores: Scores, labels: Sequence[str]) -> Tensor:
    """[B, n + 1, n + 1, L] which spans are entities with which labels."""
    label_index = {label: k for k, label in enumerate(labels)}
    chart = torch.zeros(*scores.mention.shape[:3], len(labels), dtype=torch.bool)
    for b, sentence in enumerate(sentences):
        for entity in sentence.entities:
            if entity.label in label_index:
                chart[b, entity.start, entity.end, label_index[entity.label]] = True
    return chart.to(scores.mention.device)


# Temperatures


class CalibrationSet(NamedTuple):
    """The events of a batch."""

    scores: Scores  # of spans and arcs
    spans: Tensor  # [K, 3]
    words: Tensor  # [M, 2] each word that may head each of these spans: (index of the span, word)
    label_scores: Tensor | None  # [M, L]
    events: Tensor  # [K, L] whether the span with the label is an event
    is_gold: Tensor  # [K, L] whether it is true


def fit_temperatures(model: Recognizer, sentences: Sequence[Sentence]) -> Temperatures:
    """The temperatures of this model, from sentences that it was not trained on."""
    with torch.inference_mode(), eval_mode(model), autocast(model.device):
        collected = [collect_events(model, batch) for batch in sample_batches(sentences)]
        return minimize_regularized_nll([batch for batch in collected if len(batch.spans)], model.settings)


def collect_events(model: Recognizer, sentences: Sequence[Sentence]) -> CalibrationSet:
    scores, settings = model(model.collate_words(sentences).to(model.device)), model.settings
    marginals = span_marginals(scores, settings, UNIT_TEMPERATURES)
    spans = (marginals.entity >= MIN_PROBABILITY).nonzero()  # [K, 3]
    probability = label_probabilities(scores, settings, UNIT_TEMPERATURES, marginals, spans)  # [K, L]
    check_label_scores(probability, spans)
    events = probability >= MIN_PROBABILITY
    spans, events = spans[events.any(1)], events[events.any(1)]
    b, i, j = spans.unbind(1)
    gold = gold_chart(sentences, scores, model.labels)[b, i, j]
    word = torch.arange(marginals.span.shape[1] - 1, device=model.device)
    by_head = settings.model.labeling == "head"
    within = (i[:, None] <= word) & (word < j[:, None]) if by_head else torch.ones_like(i[:, None])
    k, h = within.nonzero().unbind(1)  # [M]
    label_scores = scores.labels and scores.labels.score_spans(b[k], i[k], j[k], h if by_head else None)
    tree_scores = Scores(scores.lengths, scores.mention, scores.arc, scores.root, None)
    return CalibrationSet(tree_scores, spans, torch.stack([k, h], 1), label_scores, events, gold)


def minimize_regularized_nll(batches: Sequence[CalibrationSet], settings: Settings) -> Temperatures:
    """The temperatures with the lowest regularised NLL.

    An outer line search finds the temperature of trees, so that trees are summed once for each value of it that is
    tried; coordinate descent finds the others.
    """
    if not batches:
        return UNIT_TEMPERATURES

    def fit_others(log_tree: float) -> tuple[float, Temperatures]:
        """The lowest loss at this temperature of trees, and where it is."""
        marginals = [head_span_probabilities(batch, settings, exp(log_tree)) for batch in batches]
        parameters = [0.0, 0.0, 0.0]  # of `to_temperatures`

        def to_temperatures(log_mention: float, log_label: float, label_offset: float) -> Temperatures:
            return Temperatures(exp(log_mention), exp(log_label), exp(log_tree), label_offset)

        def loss(parameters: Sequence[float]) -> float:
            temperatures = to_temperatures(*parameters)
            pairs = zip(batches, marginals, strict=True)
            total = torch.stack([nll(*pair, settings, temperatures) for pair in pairs]).sum()
            return float(total) + 0.5 * (log_tree**2 + sum(x**2 for x in parameters)) / PRIOR_STD**2

        for _ in range(COORDINATE_ROUNDS):
            for k in range(3):
                parameters[k] = minimize(lambda x: loss([*parameters[:k], x, *parameters[k + 1 :]]))  # noqa: B023 (called now)
        return loss(parameters), to_temperatures(*parameters)

    return fit_others(minimize(lambda log_tree: fit_others(log_tree)[0]))[1]


def head_span_probabilities(batch: CalibrationSet, settings: Settings, tree_temperature: float) -> Tensor:
    """[M] the probability that each span is in the tree with each head, at this temperature of trees."""
    marginals = span_marginals(batch.scores, settings, Temperatures(tree=tree_temperature))
    k, h = batch.words.unbind(1)
    b, i, j = batch.spans[k].unbind(1)
    return marginals.span[b, i, j] if marginals.head is None else marginals.head[b, i, j, h]


def nll(batch: CalibrationSet, span_probability: Tensor, settings: Settings, temperatures: Temperatures) -> Tensor:
    """The negative log-likelihood of the events."""
    probability = event_probabilities(batch, span_probability, settings, temperatures)
    probability = probability.double().clamp(EPSILON, 1 - EPSILON)
    likelihood = torch.where(batch.is_gold, probability, 1 - probability)
    return -likelihood.log().masked_fill(~batch.events, 0.0).sum()


def event_probabilities(
    batch: CalibrationSet, span_probability: Tensor, settings: Settings, temperatures: Temperatures
) -> Tensor:
    """[K, L] that each span is an entity with each label, given `span_probability` [M]."""
    mention = biased_mention_scores(batch.scores, settings)[batch.spans.unbind(1)]  # [K, C]
    mention = (mention / temperatures.mention).softmax(-1)
    probability = span_probability[:, None]
    if batch.label_scores is not None:
        label_probability = label_log_probabilities(batch.label_scores, settings, temperatures).exp()
        probability = probability * label_probability  # [M, L]
    total = probability.new_zeros(len(mention), probability.shape[1])  # [K, L]
    total = total.index_add(0, batch.words[:, 0], probability)
    if settings.model.mention == "score":
        return total
    return total * (mention[:, 1:] if batch.label_scores is None else 1 - mention[:, :1])


def minimize(function: Callable[[float], float]) -> float:
    """The minimum of a unimodal function within SEARCH_RANGE: golden-section search, then a parabola.

    >>> round(minimize(lambda x: (x - 0.7) ** 2), 6)
    0.7
    """
    golden = (5**0.5 - 1) / 2
    low, high = SEARCH_RANGE
    left, right = high - golden * (high - low), low + golden * (high - low)
    values = {left: function(left), right: function(right)}
    for _ in range(SEARCH_STEPS):
        if values[left] < values[right]:
            high, right = right, left
            new = left = high - golden * (high - low)
        else:
            low, left = left, right
            new = right = low + golden * (high - low)
        values[new] = function(new)
    points = sorted(values.items())
    k = min(range(len(points)), key=lambda k: points[k][1])
    if k in (0, len(points) - 1):
        return points[k][0]
    (a, f_a), (b, f_b), (c, f_c) = points[k - 1 : k + 2]  # the vertex of the parabola through them:
    left, right = (b - a) * (f_b - f_c), (b - c) * (f_b - f_a)
    return b - 0.5 * ((b - a) * left - (b - c) * right) / (left - right) if left != right else b


# Decoder


def best_decoder(model: Recognizer, sentences: Sequence[Sentence]) -> DecodingSettings:
    """The decoder with the highest F1 on these sentences, if it gains enough; else the model's own."""
    scores = decoder_f1(model, sentences)
    best = max(scores, key=scores.__getitem__)
    own = model.settings.decoding
    return best if scores[best] - scores[own] >= LEAST_GAIN else own


def decoder_f1(model: Recognizer, sentences: Sequence[Sentence]) -> dict[DecodingSettings, float]:
    """The F1 of each decoder at the temperatures of the model, its own decoder first."""
    true_positives: Counter[DecodingSettings] = Counter()
    predicted: Counter[DecodingSettings] = Counter()
    gold_count = 0
    decoders = candidate_decoders(model.settings)
    with torch.inference_mode(), eval_mode(model), autocast(model.device):
        for batch in sample_batches(sentences):
            scores = model(model.collate_words(batch).to(model.device))
            gold = gold_chart(batch, scores, model.labels)
            gold_count += sum(len({(e.span, e.label) for e in sentence.entities}) for sentence in batch)
            for decoder, rows in decode_with_each(decoders, scores, model).items():
                true_positives[decoder] += int(gold[rows.unbind(1)].sum())
                predicted[decoder] += len(rows)
    return {d: 2 * true_positives[d] / max(1, predicted[d] + gold_count) for d in decoders}


def candidate_decoders(settings: Settings) -> list[DecodingSettings]:
    """The model's own decoder, MBR at each threshold and, where there are trees, Viterbi."""
    own = settings.decoding
    decoders = [own, *(replace(own, method="mbr", threshold=threshold) for threshold in THRESHOLDS)]
    if settings.model.structure != "none":
        # Without the head prior, the penalty would change the entities of the best tree.
        penalty = own.head_sharing_penalty if settings.model.head_prior and own.head_prior_weight else 0.0
        decoders.append(replace(own, method="viterbi", threshold=0.0, head_sharing_penalty=penalty))
    return list(dict.fromkeys(decoders))


def decode_with_each(
    decoders: Sequence[DecodingSettings], scores: Scores, model: Recognizer
) -> dict[DecodingSettings, Tensor]:
    """[R, 4] sentence, start, end and label of the entities of each decoder."""
    marginals = span_marginals(scores, model.settings, model.temperatures)
    lowest = min(decoder.threshold for decoder in decoders if decoder.method == "mbr")
    spans = mbr.candidate_spans(marginals, scores, lowest)  # [K, 3]
    probability = label_probabilities(scores, model.settings, model.temperatures, marginals, spans)  # [K, L]
    check_label_scores(probability, spans)
    decoded = {}
    for decoder in decoders:
        settings = replace(model.settings, decoding=decoder)
        if decoder.method == "mbr":
            chosen = mbr.choose_labels(spans, probability, scores, settings, decoder.threshold)
            k, label = chosen.nonzero().unbind(1)
            decoded[decoder] = torch.cat([spans[k], label[:, None]], 1)
            continue
        rows = viterbi.viterbi_search(scores, settings)[0]
        score = entity_probabilities(scores, settings, model.temperatures, marginals, rows)
        decoded[decoder] = rows[score >= decoder.threshold, :4]
    return decoded
