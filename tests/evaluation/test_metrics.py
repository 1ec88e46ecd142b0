"""Metrics: counted by hand, by brute force, by another library, and properties of any prediction."""

import itertools
from dataclasses import replace

import nervaluate
import pytest
from hypothesis import given, settings

from nestree.errors import DataError
from nestree.evaluation import KINDS, compare, evaluate
from nestree.report.tables import heads_table
from nestree.types import Entity, Sentence
from tests.evaluation.cases import GOLD, PREDICTED, predictions


def counts(score):
    return score.correct, score.predicted, score.gold


@pytest.fixture(scope="module")
def example():
    return evaluate([GOLD], [PREDICTED])


def test_scores_of_the_example(example):
    assert counts(example.entities) == (3, 6, 6)
    assert (example.entities.precision, example.entities.recall, example.entities.f1) == (0.5, 0.5, 0.5)
    assert counts(example.duplicates) == (3, 6, 7)
    assert example.duplicates.f1 == 2 * 3 / (6 + 7)
    assert counts(example.spans) == (4, 6, 6)
    assert example.macro_f1 == pytest.approx((4 / 5 + 2 / 4 + 0) / 3)
    groups = {"PER": (2, 3, 2), "GPE": (1, 2, 2), "ORG": (0, 1, 2)}
    assert {label: counts(score) for label, score in example.labels.items()} == groups
    groups = {0: (2, 2, 2), 1: (0, 3, 2), 2: (1, 1, 2)}
    assert {depth: counts(score) for depth, score in example.depths.items()} == groups
    groups = {"1": (1, 2, 2), "2": (0, 1, 1), "3": (1, 2, 1), "4": (0, 0, 1), "6-10": (1, 1, 1)}
    assert {length: counts(score) for length, score in example.lengths.items()} == groups
    assert {kind: counts(score) for kind, score in example.nesting.items()} == {"nested": (3, 6, 6)}


def test_the_errors_of_the_example(example):
    assert [(m.kind, str(m.gold), str(m.predicted)) for m in example.errors] == [
        ("type", "8-10 ORG", "8-10 GPE"),
        ("boundary", "3-7 ORG", "4-7 ORG"),
        ("missed", "8-9 GPE", "None"),
        ("spurious", "None", "10-11 PER"),
    ]
    assert [example.count(kind) for kind in KINDS] == [1, 1, 1, 1]
    assert (example.count("type", "ORG"), example.count("type", "GPE")) == (1, 0)
    rows = {"GPE": {"GPE": 1, None: 1}, "ORG": {"GPE": 1, None: 1}, "PER": {"PER": 2}}
    assert example.confusion == rows
    assert example.distribution["ORG"] == {"GPE": 0.5, None: 0.5}


def test_the_heads_of_the_example(example):
    heads = example.heads
    assert (heads.correct, heads.judged, heads.left_out) == (2, 3, 0)  # 0-7 and 8-10, not 8-11
    assert heads.accuracy == 2 / 3
    assert (heads.shared, heads.headed) == (2, 6)  # army: 8-11 and 8-10
    assert (heads.gold_shared, heads.gold_headed) == (0, 6)
    assert heads.words == {
        "GPE": (("California", 1), ("army", 1)),
        "ORG": (("University", 1),),
        "PER": (("army", 1), ("leaders", 1), ("president", 1)),
    }
    assert [(m.gold.head, m.predicted.head) for m in heads.errors] == [(10, 9)]


def test_a_right_entity_has_its_depth_in_gold():
    """Nothing was predicted around it, and yet no recall stands beside zero predictions."""
    words = list("abcd")
    gold = [Sentence(words, [Entity(0, 4, "A"), Entity(1, 2, "B")])]
    result = evaluate(gold, [Sentence(words, [Entity(1, 2, "B"), Entity(2, 3, "B")])])
    assert {depth: counts(score) for depth, score in result.depths.items()} == {0: (0, 1, 1), 1: (1, 1, 1)}
    nesting = {kind: counts(score) for kind, score in result.nesting.items()}
    assert nesting == {"nested": (1, 1, 2), "flat": (0, 1, 0)}


def test_nested_means_inside_around_or_on_the_same_span():
    spans = [(0, 2, "A"), (0, 2, "B"), (2, 4, "A"), (3, 5, "A"), (5, 8, "A"), (6, 7, "A")]
    words = list("abcdefgh")
    nesting = evaluate([Sentence(words, [Entity(*e) for e in spans])], [Sentence(words)]).nesting
    assert {kind: score.gold for kind, score in nesting.items()} == {"nested": 4, "flat": 2}


@pytest.mark.parametrize(
    ("gold", "predicted", "kinds"),
    [
        ([(0, 2, "A"), (0, 2, "B")], [(0, 2, "A"), (0, 2, "C")], ["type"]),
        ([(0, 2, "A")], [(0, 2, "A"), (0, 2, "C")], ["spurious"]),
        ([(0, 2, "A"), (0, 2, "B")], [(0, 2, "A")], ["missed"]),
        ([(0, 4, "A")], [(0, 3, "A"), (0, 4, "B")], ["type", "spurious"]),  # span before label
        ([(0, 5, "A")], [(0, 1, "A"), (0, 4, "A")], ["boundary", "spurious"]),
        ([(0, 2, "A"), (2, 4, "A")], [(0, 4, "A")], ["boundary", "missed"]),
        ([(0, 2, "A")], [(0, 6, "A"), (1, 2, "A")], ["boundary", "spurious"]),  # 1/2 > 2/6
        ([(0, 2, "A")], [(2, 4, "A")], ["missed", "spurious"]),  # side by side: no word is shared
        ([(0, 3, "A")], [(1, 3, "B")], ["missed", "spurious"]),  # neither label nor span
    ],
)
def test_kinds_of_errors(gold, predicted, kinds):
    words = list("abcdef")
    result = evaluate(
        [Sentence(words, [Entity(*e) for e in gold])], [Sentence(words, [Entity(*e) for e in predicted])]
    )
    assert [mistake.kind for mistake in result.errors] == kinds
    pairs = [(m.gold, m.predicted) for m in result.errors if m.kind == "boundary"]
    for one, other in pairs:  # the largest intersection over union
        assert str(other) == {"0-5 A": "0-4 A", "0-2 A": "1-2 A" if len(predicted) > 1 else "0-4 A"}[str(one)]


def test_heads_that_gold_leaves_open_are_left_out_and_counted():
    words = list("abcdef")
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
    heads = evaluate([Sentence(words, gold)], [Sentence(words, predicted)]).heads
    assert (heads.correct, heads.judged, heads.left_out) == (1, 3, 2)
    assert (heads.candidates, heads.correct_candidates, heads.headless) == (1, 1, 1)
    assert heads.accuracy_any_head == (heads.correct + 1) / (heads.judged + 1)
    rows = {row[0]: row[2] for row in heads_table(heads).rows}
    assert rows["accuracy, any annotated head"] == f"{heads.correct + 1} of {heads.judged + 1}"


def test_heads_are_judged_by_span():
    words = list("abc")
    one = [Sentence(words, [Entity(0, 2, "A", head=1)])]
    two = [Sentence(words, [Entity(0, 2, "A", head=1), Entity(0, 2, "B", head=0)])]
    assert (evaluate(one, two).heads.correct, evaluate(two, one).heads.correct) == (0, 1)  # all must be right
    copies = [Entity(0, 2, "A"), Entity(0, 2, "A", head=1)]
    heads = evaluate([Sentence(words, copies)], [Sentence(words, copies[::-1])]).heads
    assert (heads.correct, heads.judged, heads.left_out) == (1, 1, 0)  # the copy with a head counts
    same_span = Sentence(words, [Entity(0, 2, "A", head=1), Entity(0, 2, "B", head=1)])
    assert evaluate([same_span], [same_span]).heads.shared == 0
    three = replace(same_span, entities=(*same_span.entities, Entity(0, 3, "A", head=1)))
    assert evaluate([three], [three]).heads.shared == 3


def test_missing_heads():
    sentence = Sentence(list("abc"), [Entity(0, 2, "A"), Entity(1, 2, "A", head=1)])
    assert evaluate([sentence], [sentence]).heads is None
    headed = Sentence(list("abc"), [Entity(0, 2, "A", head=1)])
    heads = evaluate([sentence], [headed]).heads
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
    """The ten lines that everything is compared with."""
    right = guessed = wanted = 0
    for g, p in zip(gold, predicted, strict=True):
        want = [(e.start, e.end, e.label) for e in g.entities]
        guess = [(e.start, e.end, e.label) for e in p.entities]
        if not duplicates:
            want, guess = list(set(want)), list(set(guess))
        guessed, wanted = guessed + len(guess), wanted + len(want)
        for entity in guess:
            if entity in want:
                want.remove(entity)
                right += 1
    return right, guessed, wanted


def only(sentences, keep):
    return [replace(s, entities=tuple(e for e in s.entities if keep(e))) for s in sentences]


@settings(deadline=None, max_examples=40)
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
        assert counts(score) == brute_force(
            *(only(c, lambda e, k=words: e.end - e.start in k) for c in corpora)
        )
    blank = [[replace(s, entities=[replace(e, label="X") for e in s.entities]) for s in c] for c in corpora]
    assert counts(result.spans) == brute_force(*blank)


@settings(deadline=None, max_examples=40)
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
        assert [sum(c) for c in zip(*map(counts, groups.values()), strict=True)] in (
            [],
            list(counts(result.entities)),
        )
    for number, _ in enumerate(corpora[0], 1):
        left = [m for m in result.errors if m.number == number]
        for m, s in itertools.product(left, left):
            if m.kind == "missed" and s.kind == "spurious":
                assert m.gold.span != s.predicted.span
                overlap = min(m.gold.end, s.predicted.end) > max(m.gold.start, s.predicted.start)
                assert not (overlap and m.gold.label == s.predicted.label)


@settings(deadline=None, max_examples=30)
@given(predictions())
def test_swapping_gold_and_predicted_swaps_precision_and_recall(corpora):
    there, back = evaluate(*corpora, resamples=0), evaluate(*reversed(corpora), resamples=0)
    for groups, swapped in [
        ({"": there.entities}, {"": back.entities}),
        ({"": there.duplicates}, {"": back.duplicates}),
        ({"": there.spans}, {"": back.spans}),
        (there.labels, back.labels),
        (there.lengths, back.lengths),
    ]:
        assert groups.keys() == swapped.keys()
        for name, score in groups.items():
            assert score.precision == swapped[name].recall
            assert score.f1 == swapped[name].f1
    assert [there.count(k) for k in KINDS] == [
        back.count(k) for k in ("type", "boundary", "spurious", "missed")
    ]
    if there.heads:
        assert (there.heads.shared, there.heads.gold_shared) == (back.heads.gold_shared, back.heads.shared)


@settings(deadline=None, max_examples=15)
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


@settings(deadline=None, max_examples=30)
@given(predictions(flat=True))
def test_where_nothing_is_nested_scores_are_nervaluates_strict_ones(corpora):
    theirs = nervaluate.Evaluator(*map(as_dicts, corpora), tags=list("ABC"), loader="dict").evaluate()
    ours = evaluate(*corpora, resamples=0)
    strict = theirs["overall"]["strict"]
    assert (ours.entities.precision, ours.entities.recall) == (strict.precision, strict.recall)
    assert ours.entities.f1 == pytest.approx(strict.f1)
    assert ours.entities.correct == strict.correct
    for label, found in theirs["entities"].items():
        assert (ours.labels[label].precision, ours.labels[label].recall) == (
            found["strict"].precision,
            found["strict"].recall,
        )


# Alignment


def corpus(*texts, ids=False):
    return [Sentence(text.split(), id=f"s{k}" if ids else None) for k, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        (
            corpus("a b", "do n't go", ids=True),
            corpus("a b", "don't go"),
            "sentence 2 (s1), word 1: gold has 'do', predicted has \"don't\". The text is the same, its words are "
            "not: predict on the words of the gold file, or convert both from the same text with the same --words.",
        ),
        (
            corpus("a b . c d", "e"),
            corpus("a b .", "c d e"),
            "sentence 1, word 4: gold has 'c', predicted has no more words. The text is the same, its sentences end "
            "in different places: predict on the sentences of the gold file, or convert both from the same text "
            "with the same --sentences.",
        ),
        (
            corpus("a b", "c d", "e"),
            corpus("a b", "e", "c d"),
            "sentence 2, word 1: gold has 'c', predicted has 'e'. This gold sentence is 3 of the predicted ones: "
            "bring both into the same order.",
        ),
        (
            corpus("a b"),
            corpus("a c"),
            "sentence 1, word 2: gold has 'b', predicted has 'c'. These are not the same texts: score a prediction "
            "for this gold file.",
        ),
        (
            corpus("a b", "c", "d e", ids=True),
            corpus("a b"),
            "predicted ends after 1 sentence, gold has 3; the first that is missing is sentence 2 (s1): c. Predict "
            "the whole gold file.",
        ),
        (
            corpus("a b", "c"),
            corpus("a b", "c", "d"),
            "gold ends after 2 sentences, predicted has 3; the first that is missing is sentence 3: d. Score "
            "against the file that was predicted.",
        ),
        ([], [], "there are no sentences to score. Name a gold file that has some."),
    ],
)
def test_misaligned_sentences(gold, predicted, message):
    with pytest.raises(DataError) as error:
        evaluate(gold, predicted)
    assert str(error.value) == message


def test_a_comparison_names_the_misaligned_prediction():
    gold = corpus("a b")
    with pytest.raises(DataError, match=r"^best\.jsonl: sentence 1, word 2"):
        compare(gold, gold, corpus("a c"), names=("mine.jsonl", "best.jsonl"))
