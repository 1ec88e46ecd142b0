"""Files that do not fit together: one sentence that says where, and what to do."""

import pytest

from nestree.errors import DataError
from nestree.evaluation import compare, evaluate
from nestree.types import Sentence


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
def test_each_kind_of_trouble_is_named(gold, predicted, message):
    with pytest.raises(DataError) as error:
        evaluate(gold, predicted)
    assert str(error.value) == message


def test_a_comparison_says_which_prediction_does_not_fit():
    gold = corpus("a b")
    with pytest.raises(DataError, match=r"^best\.jsonl: sentence 1, word 2"):
        compare(gold, gold, corpus("a c"), names=("mine.jsonl", "best.jsonl"))
