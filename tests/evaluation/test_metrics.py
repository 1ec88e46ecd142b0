"""Metrics: by brute force, by another library, and properties of any prediction.

tests/test_report.py has all numbers of an example that was counted by hand.
"""

import itertools
import re
from collections import Counter
from dataclasses import replace

import nervaluate
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestree.errors import DataError, InputError
from nestree.evaluation import KINDS, compare, evaluate
from nestree.report.tables import heads_table
from nestree.types import Entity, Sentence
from tests.evaluation.cases import predictions


def counts(score):
    return score.correct, score.predicted, score.gold


def group_counts(scores):
    return {group: counts(score) for group, score in scores.items()}


def evaluate_entities(gold, predicted=()):
    """The evaluation of one sentence of eight words."""
    return evaluate(*([Sentence(list("abcdefgh"), side)] for side in (gold, predicted)), resamples=0)


def entities(*keys):
    return [Entity(*key) for key in keys]


def test_depth_and_nesting():
    """Nothing was predicted around a right entity, and yet no recall stands beside zero predictions."""
    result = evaluate_entities(entities((0, 4, "A"), (1, 2, "B")), entities((1, 2, "B"), (2, 3, "B")))
    assert group_counts(result.depths) == {0: (0, 1, 1), 1: (1, 1, 1)}
    assert group_counts(result.nesting) == {"nested": (1, 1, 2), "flat": (0, 1, 0)}
    spans = [(0, 2, "A"), (0, 2, "B"), (2, 4, "A"), (3, 5, "A"), (5, 8, "A"), (6, 7, "A")]
    found = group_counts(evaluate_entities(entities(*spans)).nesting)
    assert found == {"nested": (0, 0, 4), "flat": (0, 0, 2)}


@pytest.mark.parametrize(
    ("gold", "predicted", "kinds", "pair"),  # the pair of a boundary error has the largest intersection over union
    [
        ([(0, 2, "A"), (0, 2, "B")], [(0, 2, "A"), (0, 2, "C")], ["type"], None),
        ([(0, 2, "A")], [(0, 2, "A"), (0, 2, "C")], ["spurious"], None),
        ([(0, 2, "A"), (0, 2, "B")], [(0, 2, "A")], ["missed"], None),
        ([(0, 4, "A")], [(0, 3, "A"), (0, 4, "B")], ["type", "spurious"], None),  # span before label
        ([(0, 5, "A")], [(0, 1, "A"), (0, 4, "A")], ["boundary", "spurious"], ((0, 5), (0, 4))),
        ([(0, 2, "A"), (2, 4, "A")], [(0, 4, "A")], ["boundary", "missed"], ((0, 2), (0, 4))),
        ([(0, 2, "A")], [(0, 6, "A"), (1, 2, "A")], ["boundary", "spurious"], ((0, 2), (1, 2))),  # 1/2 > 2/6
        ([(0, 2, "A")], [(2, 4, "A")], ["missed", "spurious"], None),  # side by side: no word is shared
        ([(0, 3, "A")], [(1, 3, "B")], ["missed", "spurious"], None),  # neither label nor span
    ],
)
def test_kinds_of_errors(gold, predicted, kinds, pair):
    result = evaluate_entities(entities(*gold), entities(*predicted))
    assert [mistake.kind for mistake in result.errors] == kinds
    boundary = [(m.gold.span, m.predicted.span) for m in result.errors if m.kind == "boundary"]
    assert boundary == ([pair] if pair else [])


def test_heads_that_gold_leaves_open_are_left_out_and_counted():
    gold = [
        Entity(0, 3, "A", heads=(0, 2)),  # two candidates: left out; the prediction is one of them
        Entity(0, 2, "A"),  # no head: left out
        Entity(3, 6, "A", head=5),
        Entity(4, 6, "A", head=5),
        Entity(3, 5, "A", head=3),
    ]
    predicted = [
        Entity(0, 3, "A", head=2),
        Entity(0, 2, "A", head=0),
        Entity(3, 6, "B", head=5),  # the label does not matter
        Entity(4, 6, "A"),  # no head: wrong
        Entity(3, 5, "A", head=4),
    ]
    heads = evaluate_entities(gold, predicted).heads
    assert (heads.correct, heads.judged, heads.left_out) == (1, 3, 2)
    assert (heads.candidates, heads.correct_candidates, heads.headless) == (1, 1, 1)
    assert heads.accuracy_any_head == (heads.correct + 1) / (heads.judged + 1)
    rows = {row[0]: row[2] for row in heads_table(heads).rows}
    assert rows["accuracy, any annotated head"] == f"{heads.correct + 1} of {heads.judged + 1}"


def test_heads_are_judged_by_span_and_may_be_missing():
    one, two = entities((0, 2, "A", 1)), entities((0, 2, "A", 1), (0, 2, "B", 0))
    assert evaluate_entities(one, two).heads.correct == 0  # all must be right
    assert evaluate_entities(two, one).heads.correct == 1
    copies = entities((0, 2, "A"), (0, 2, "A", 1))
    heads = evaluate_entities(copies, copies[::-1]).heads
    assert (heads.correct, heads.judged, heads.left_out) == (1, 1, 0)  # the copy with a head counts
    same_span = entities((0, 2, "A", 1), (0, 2, "B", 1))
    assert evaluate_entities(same_span, same_span).heads.shared == 0
    three = [*same_span, Entity(0, 3, "A", 1)]
    assert evaluate_entities(three, three).heads.shared == 3
    headless = entities((0, 2, "A"), (1, 2, "A", 1))
    assert evaluate_entities(headless, headless).heads is None
    heads = evaluate_entities(headless, entities((0, 2, "A", 1))).heads
    assert (heads.accuracy, heads.judged, heads.headed, heads.gold_headed) == (None, 0, 1, 0)
    assert heads.gold_words == {}


@pytest.mark.parametrize("predicted", [[], [Entity(0, 1, "A")]])
def test_no_gold_entities(predicted):
    result = evaluate([Sentence(["a"], complete=False)], [Sentence(["a"], predicted)])
    assert result.incomplete == 1
    assert counts(result.entities) == (0, len(predicted), 0)
    assert result.entities.precision == result.entities.recall == result.entities.f1 == result.macro_f1 == 0


# Properties


def brute_force(gold, predicted, duplicates=False):
    """The few lines that everything is compared with."""
    totals = Counter()
    for sentences in zip(gold, predicted, strict=True):
        g, p = (Counter((e.start, e.end, e.label) for e in s.entities) for s in sentences)
        if not duplicates:
            g, p = Counter(set(g)), Counter(set(p))
        totals += Counter(correct=(g & p).total(), predicted=p.total(), gold=g.total())
    return totals["correct"], totals["predicted"], totals["gold"]


def only(sentences, keep):
    return [replace(s, entities=tuple(e for e in s.entities if keep(e))) for s in sentences]


@settings(max_examples=40)
@given(predictions())
def test_counts_equal_those_of_brute_force(corpora):
    gold, predicted = corpora
    result = evaluate(gold, predicted, resamples=0)
    assert counts(result.entities) == brute_force(gold, predicted)
    assert counts(result.duplicates) == brute_force(gold, predicted, duplicates=True)
    for label, score in result.labels.items():
        assert counts(score) == brute_force(*(only(c, lambda e, k=label: e.label == k) for c in corpora))
    for length, score in result.lengths.items():
        words = range(6, 11) if length == "6-10" else [int(length)]
        kept = [only(c, lambda e, k=words: e.end - e.start in k) for c in corpora]
        assert counts(score) == brute_force(*kept)
    blank = [[replace(s, entities=[replace(e, label="X") for e in s.entities]) for s in c] for c in corpora]
    assert counts(result.spans) == brute_force(*blank)


@settings(max_examples=40)
@given(predictions())
def test_every_entity_is_right_or_one_kind_of_error(corpora):
    result = evaluate(*corpora, resamples=0)
    kinds = {kind: result.count(kind) for kind in KINDS}
    both = kinds["type"] + kinds["boundary"]
    assert result.entities.correct + both + kinds["missed"] == result.entities.gold
    assert result.entities.correct + both + kinds["spurious"] == result.entities.predicted
    for label, rows in result.confusion.items():
        assert sum(result.distribution[label].values()) == pytest.approx(1)
        assert sum(rows.values()) == result.labels[label].gold
    for groups in (result.labels, result.lengths, result.depths, result.nesting):
        assert all(score.correct <= min(score.predicted, score.gold) for score in groups.values())
        total = [sum(c) for c in zip(*map(counts, groups.values()), strict=True)]
        assert total in ([], list(counts(result.entities)))
    for number, _ in enumerate(corpora[0], 1):
        left = [m for m in result.errors if m.number == number]
        for m, s in itertools.product(left, left):
            if m.kind == "missed" and s.kind == "spurious":
                assert m.gold.span != s.predicted.span
                overlap = min(m.gold.end, s.predicted.end) > max(m.gold.start, s.predicted.start)
                assert not (overlap and m.gold.label == s.predicted.label)


def all_scores(result):
    whole = {name: getattr(result, name) for name in ("entities", "duplicates", "spans")}
    return {**whole, **{("label", k): v for k, v in result.labels.items()}, **result.lengths}


@settings(max_examples=30)
@given(predictions())
def test_swapping_gold_and_predicted_swaps_precision_and_recall(corpora):
    there, back = evaluate(*corpora, resamples=0), evaluate(*reversed(corpora), resamples=0)
    swapped = all_scores(back)
    assert swapped.keys() == all_scores(there).keys()
    for name, score in all_scores(there).items():
        assert (score.precision, score.f1) == (swapped[name].recall, swapped[name].f1)
    opposite = {"missed": "spurious", "spurious": "missed"}
    assert all(there.count(kind) == back.count(opposite.get(kind, kind)) for kind in KINDS)
    if there.heads:
        assert (there.heads.shared, there.heads.gold_shared) == (back.heads.gold_shared, back.heads.shared)


@settings(max_examples=15)
@given(predictions(sides=1))
def test_gold_itself_is_perfect(corpora):
    result = evaluate(corpora[0], corpora[0], resamples=50)
    assert result.errors == ()
    if result.entities.gold:
        assert result.entities.f1 == result.duplicates.f1 == result.spans.f1 == 1
        scores = [result.entities, result.duplicates, result.spans, *result.labels.values()]
        assert all(interval == (1, 1) for score in scores for interval in score.intervals)


def as_dicts(sentences):  # their ends are inclusive
    return [[{"label": e.label, "start": e.start, "end": e.end - 1} for e in s.entities] for s in sentences]


@settings(max_examples=30)
@given(predictions(flat=True))
def test_where_nothing_is_nested_scores_are_nervaluates_strict_ones(corpora):
    theirs = nervaluate.Evaluator(*map(as_dicts, corpora), tags=list("ABC"), loader="dict").evaluate()
    ours = evaluate(*corpora, resamples=0)
    strict = theirs["overall"]["strict"]
    assert (ours.entities.precision, ours.entities.recall) == (strict.precision, strict.recall)
    assert ours.entities.f1 == pytest.approx(strict.f1)
    assert ours.entities.correct == strict.correct
    for label, found in theirs["entities"].items():
        score, strict = ours.labels[label], found["strict"]
        assert (score.precision, score.recall) == (strict.precision, strict.recall)


# Alignment


def corpus(*texts, ids=False):
    return [Sentence(text.split(), id=f"s{k}" if ids else None) for k, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("gold", "predicted", "place", "remedy"),
    [
        (corpus("a b", "do n't go", ids=True), corpus("a b", "don't go"), "sentence 2 (s1), word 1", "--words"),
        ([Sentence(["New York", "."])], corpus("New York ."), "sentence 1, word 1", "--words"),
        (corpus("a b . c d", "e"), corpus("a b .", "c d f"), "sentence 1, word 4", "--words"),
        (corpus("a b", "c d", "e"), corpus("a b", "e", "c d"), "sentence 2, word 1", "bring both into the same order"),
        (corpus("a b"), corpus("a c"), "sentence 1, word 2: gold has 'b', predicted has 'c'", "for this gold file"),
        (corpus("a b", "c", "d e", ids=True), corpus("a b"), "sentence 2 (s1), 'c'", "Predict the whole gold file"),
        (corpus("a b", "c"), corpus("a b", "c", "d"), "sentence 3, 'd'", "the file that was predicted"),
        ([], [], "no sentences to score", "Name a gold file that has some"),
    ],
)  # fmt: skip
def test_misaligned_sentences(gold, predicted, place, remedy):
    with pytest.raises(DataError, match=re.escape(place) + ".*" + re.escape(remedy)):
        evaluate(gold, predicted)


@settings(max_examples=50)
@given(predictions(sides=3), st.data())
def test_sentences_that_end_in_different_places_are_joined(corpora, data):
    def join_some(sentences):
        joined, k = [], 0
        while k < len(sentences):
            words, entities = [], []
            for sentence in sentences[k : (k := k + data.draw(st.integers(1, 3)))]:
                for e in sentence.entities:
                    head = None if e.head is None else e.head + len(words)
                    entities.append(Entity(e.start + len(words), e.end + len(words), e.label, head))
                words += sentence.words
            joined.append(Sentence(words, entities))
        return joined

    expected, found = evaluate(*corpora[:2], resamples=0), evaluate(*map(join_some, corpora[:2]), resamples=0)
    assert counts(found.entities) == counts(expected.entities)
    assert group_counts(found.labels) == group_counts(expected.labels)
    assert group_counts(found.depths) == group_counts(expected.depths)
    assert (found.heads and replace(found.heads, errors=())) == (expected.heads and replace(expected.heads, errors=()))
    comparison = compare(*map(join_some, corpora), resamples=1, swaps=1)
    assert counts(comparison.second.entities) == counts(evaluate(corpora[0], corpora[2], resamples=0).entities)


@pytest.mark.parametrize("options", [{"resamples": -1}, {"resamples": "many"}, {"seed": -1}])
def test_numbers_out_of_range(options):
    [(name, value)] = options.items()
    with pytest.raises(InputError, match=rf"{name} is {value!r}; it must be a whole number, 0 or more"):
        evaluate(corpus("a b"), corpus("a b"), **options)


def test_a_comparison_names_the_misaligned_prediction():
    gold = corpus("a b")
    with pytest.raises(DataError, match=r"^best\.jsonl: sentence 1, word 2"):
        compare(gold, gold, corpus("a c"), names=("mine.jsonl", "best.jsonl"))


# Calibration


def evaluate_scores(*scored):
    """One-word entities with a score (or None), right or not, and one more gold entity."""
    words = ["w"] * (len(scored) + 1)
    gold = [Entity(k, k + 1, "A") for k, (_, right) in enumerate(scored) if right]
    predicted = [Entity(k, k + 1, "A", score=score) for k, (score, _) in enumerate(scored)]
    gold.append(Entity(len(scored), len(words), "A"))
    return evaluate([Sentence(words, gold)], [Sentence(words, predicted)], resamples=0)


def test_calibration():
    scored = [(0.95, True), (0.85, True), (0.85, False), (1.0, True), (0.0, False), (None, True)]
    calibration = evaluate_scores(*scored).calibration
    bins = [(b.low, b.entities, b.precision) for b in calibration.bins]
    assert bins == [(0.0, 1, 0), (0.8, 2, 0.5), (0.9, 2, 1)]
    assert (calibration.scored, calibration.unscored) == (5, 1)
    assert calibration.error == pytest.approx((1 * 0 + 2 * 0.35 + 2 * 0.025) / 5)
    assert calibration.brier == pytest.approx((0.05**2 + 0.15**2 + 0.85**2) / 5)
    bins = evaluate_scores((0.27, True), (0.2, False), (0.3, True), (1.0, True)).calibration.bins
    assert [(bin.low, bin.entities) for bin in bins] == [(0.2, 2), (0.3, 1), (0.9, 1)]
    unscored = evaluate_scores((None, True))
    assert (unscored.calibration, unscored.thresholds) == (None, {})
    predicted = [Entity(0, 2, "A", score=0.9), Entity(0, 2, "B", score=0.4)]
    bins = evaluate_entities(entities((0, 2, "A")), predicted).calibration.bins
    assert [(b.score, b.precision) for b in bins] == [(0.4, 0), (0.9, 1)]
    scored = [(0.42, False), (0.55, True), (0.7, True), (0.7, False), (0.97, True), (None, True)]
    found = evaluate_scores(*scored)
    assert min(found.thresholds) == 0.4  # the highest that keeps all
    assert found.thresholds[0.4].f1 == found.entities.f1
    for threshold, score in found.thresholds.items():
        kept = [right for value, right in scored if value is None or value >= threshold]
        assert (score.correct, score.predicted, score.gold) == (sum(kept), len(kept), 5)
    assert found.thresholds[0.99].precision == 1  # the entity without a score is always kept
