"""Bootstrap intervals and significance: against all possible resamples and swaps, and on real data."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from nestree.data import formats
from nestree.errors import InputError
from nestree.evaluation import compare, evaluate
from nestree.types import Entity, Sentence
from tests.evaluation.cases import predictions

WORDS = ["a", "b"]
RIGHT, WRONG = Entity(0, 1, "A"), Entity(1, 2, "A")


def corpus(*sentences):
    return [Sentence(WORDS, entities) for entities in sentences]


def f1(gold, predicted):
    sides = ([set(map(str, s.entities)) for s in side] for side in (gold, predicted))
    pairs = list(zip(*sides, strict=True))
    size = sum(len(g) + len(p) for g, p in pairs)
    return 2 * sum(len(g & p) for g, p in pairs) / size if size else 0.0


def test_intervals_equal_those_of_all_resamples():
    gold = corpus([RIGHT], [RIGHT, WRONG], [RIGHT], [], [RIGHT])
    predicted = corpus([RIGHT], [RIGHT], [WRONG], [WRONG], [RIGHT])
    resamples = itertools.product(range(5), repeat=5)  # all 3125, each as likely as the others
    values = sorted(f1([gold[k] for k in drawn], [predicted[k] for k in drawn]) for drawn in resamples)
    result = evaluate(gold, predicted, resamples=20_000).entities
    low, high = result.intervals.f1
    assert low == pytest.approx(np.quantile(values, 0.025), abs=0.02)
    assert high == pytest.approx(np.quantile(values, 0.975), abs=0.02)
    assert low < result.f1 == f1(gold, predicted) < high


def test_a_resample_without_entities_has_no_f1():
    """Of three sentences only one has entities: every third resample or so has none, and says nothing about F1."""
    gold = corpus([RIGHT], [], [])
    perfect, missed = evaluate(gold, gold), evaluate(gold, corpus([], [], []))
    assert perfect.entities.intervals == ((1, 1), (1, 1), (1, 1))
    assert perfect.labels["A"].intervals == ((1, 1), (1, 1), (1, 1))
    assert missed.entities.intervals == ((0, 0), (0, 0), (0, 0))
    difference = compare(gold, gold, corpus([], [], []), swaps=10).overall["f1"]
    assert (difference.value, difference.interval) == (1, (1, 1))


def test_equal_counts_and_seeds_give_equal_intervals():
    gold = corpus(*[[RIGHT]] * 9, *[[RIGHT, WRONG]] * 4, *[[]] * 3)
    result = evaluate(gold, corpus(*[[RIGHT]] * 6, *[[WRONG]] * 6, *[[RIGHT, WRONG]] * 4))
    low, high = result.entities.intervals.f1
    assert low < high
    assert result.entities == result.duplicates == result.spans == result.labels["A"]
    assert result.entities == result.lengths["1"]
    gold = corpus(*[[RIGHT]] * 40)
    predicted = corpus(*[[RIGHT]] * 25, *[[WRONG]] * 15)
    one, same, other = (evaluate(gold, predicted, seed=seed).entities.intervals for seed in (1, 1, 2))
    assert one == same != other
    assert evaluate(gold, predicted, resamples=0).entities.intervals is None


def test_p_equals_that_of_all_swaps():
    gold = corpus(*[[RIGHT]] * 9)
    first = corpus(*[[RIGHT]] * 7, [WRONG], [])
    second = corpus(*[[RIGHT]] * 2, *[[RIGHT, WRONG]] * 2, *[[]] * 3, [RIGHT], [WRONG])
    seen = f1(gold, first) - f1(gold, second)
    extreme = 0
    for swaps in itertools.product((False, True), repeat=9):
        sides = [(b, a) if swap else (a, b) for a, b, swap in zip(first, second, swaps, strict=True)]
        one, other = zip(*sides, strict=True)
        extreme += abs(f1(gold, one) - f1(gold, other)) >= abs(seen) - 1e-12
    found = compare(gold, first, second).overall["f1"]
    assert found.value == pytest.approx(seen)
    assert found.p == pytest.approx(extreme / 2**9, abs=0.02)
    assert 0.02 < found.p < 0.9


def test_intervals_of_differences_equal_those_of_all_paired_resamples():
    gold = corpus([RIGHT], [RIGHT], [RIGHT, WRONG], [RIGHT])
    first, second = corpus([RIGHT], [RIGHT], [RIGHT], []), corpus([RIGHT], [WRONG], [RIGHT, WRONG], [])
    values = []
    for k in itertools.product(range(4), repeat=4):
        g, a, b = ([side[i] for i in k] for side in (gold, first, second))
        values.append(f1(g, a) - f1(g, b))
    found = compare(gold, first, second, resamples=20_000).overall["f1"]
    assert found.interval == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])), abs=0.03)


@settings(max_examples=12)
@given(predictions(sides=3))
def test_comparing_the_other_way_round_changes_the_sign(corpora):
    gold, a, b = corpora
    assert compare(gold, a, a, resamples=2, swaps=20).overall["f1"] == (0, (0, 0), 1)
    there, back = (compare(gold, x, y, resamples=20, swaps=200) for x, y in ((a, b), (b, a)))
    for name, found in there.overall.items():
        assert found.value == pytest.approx(-back.overall[name].value)
        assert 0 < found.p <= 1
    assert there.overall["f1"].value == pytest.approx(there.first.entities.f1 - there.second.entities.f1)
    assert (there.better, there.worse) == (back.worse, back.better)
    for label in there.first.labels.keys() & there.second.labels.keys():
        ours = there.first.labels[label].f1 - there.second.labels[label].f1
        assert there.labels[label].value == pytest.approx(ours)


def test_p_is_calibrated_under_the_null_hypothesis():
    rng = random.Random(0)
    below = 0
    for trial in range(30):  # two predictions that are equally good
        gold = corpus(*[[RIGHT]] * 60)
        a, b = (corpus(*[[RIGHT] if rng.random() < 0.7 else [] for _ in range(60)]) for _ in range(2))
        below += compare(gold, a, b, resamples=1, swaps=300, seed=trial).overall["f1"].p < 0.2
    assert 1 <= below <= 12  # of 30, at 0.2: 6 are expected


def test_a_comparison_needs_resamples():
    gold = corpus([RIGHT])
    with pytest.raises(InputError, match="0 resamples"):
        compare(gold, gold, gold, resamples=0)


def noisy(sentences, rate=0.2):
    """The same sentences with some of their entities moved, relabelled or lost."""
    rng = random.Random(0)
    labels = sorted({e.label for s in sentences for e in s.entities})
    changed = []
    for sentence in sentences:
        entities = []
        for e in sentence.entities:
            kind = rng.choice(["move", "label", "lose"]) if rng.random() < rate else ""
            if kind == "move":
                e = replace(e, start=max(0, e.start - 1))
            elif kind == "label":
                e = replace(e, label=rng.choice(labels))
            if kind != "lose":
                entities.append(e)
        changed.append(replace(sentence, entities=entities))
    return changed


def read(path):
    return [sentence for document in formats.read(path) for sentence in document.sentences]


def test_a_thousand_resamples_of_genia_give_a_narrow_interval(shared):
    gold = read(shared / "data" / "genia" / "test.jsonl.gz")
    result = evaluate(gold, noisy(gold))
    assert result.sentences == 1855
    assert result.entities.gold == 5476
    assert result.resamples == 1000
    low, high = result.entities.intervals.f1
    assert low < result.entities.f1 < high < low + 0.03


def test_the_last_word_is_the_head_of_half_the_entities_of_gum(shared):
    gold = read(shared / "data" / "gum_open" / "test.jsonl.gz")
    last = [replace(s, entities=[replace(e, head=e.end - 1, heads=()) for e in s.entities]) for s in gold]
    heads = evaluate(gold, last, resamples=0).heads
    assert (heads.judged, heads.left_out, heads.candidates) == (2977, 64, 64)
    assert heads.accuracy == pytest.approx(0.531, abs=0.0005)
