"""Constraints in characters are aligned with words as a look at every word would do it; contradictions are errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestree.data.alignment import AnnotatedText, align
from nestree.decoding import decode_batch, predictions
from nestree.decoding.constraints import (
    Constraints,
    SpanConstraint,
    align_constraints,
    apply_constraints,
    parse_char_spans,
)
from nestree.errors import InputError
from nestree.text import split, split_at_boundaries
from tests.decoding.test_probabilities import SENTENCES, random_scores, settings_of
from tests.test_losses import LABELS

texts = st.text("ab. \nC-", max_size=40).filter(str.strip)


@given(texts, st.data())
def test_words_at_characters(text, data):
    document = align(AnnotatedText(text, [], "here"))
    sentence = data.draw(st.sampled_from(document.sentences))
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    content = text[start:end]
    if not content.strip():
        return
    forbidden = align_constraints(document, (), parse_char_spans([(start, end)], "forbidden", text, ()))
    start, end = start + content.index(content.lstrip()), start + len(content.rstrip())
    exact = [
        (index, i, j)
        for index, sentence in enumerate(document.sentences)
        for i in range(len(sentence.words))
        for j in range(i + 1, len(sentence.words) + 1)
        if (sentence.start + sentence.offsets[i][0], sentence.start + sentence.offsets[j - 1][1]) == (start, end)
    ]
    assert [(n, span.start, span.end) for n, (_, spans) in forbidden.items() for span in spans] == exact
    low, high = max(start, sentence.start), min(end, sentence.start + len(sentence.text))
    if low < high and text[low:high].strip():
        known = align_constraints(document, parse_char_spans([(low, high)], "known", text, ()), ())
        ((index, ([span], _)),) = known.items()
        places = [(sentence.start + i, sentence.start + j) for i, j in sentence.offsets]
        touched = [word for word, (i, j) in enumerate(places) if i < high and low < j]
        assert document.sentences[index] is sentence
        assert (span.start, span.end) == (touched[0], touched[-1] + 1)


@given(texts, st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=5))
def test_words_are_split_at_every_boundary_and_nowhere_else(text, spans):
    keep = [(start, start + size) for start, size in spans]
    words = [word for sentence in split(text) for word in sentence.words]
    parts = split_at_boundaries(words, keep)
    assert all(i < j for i, j in parts)
    assert "".join(text[i:j] for i, j in parts) == "".join(text[i:j] for i, j in words)
    new = set().union(*parts) - set().union(*words)
    assert new == {boundary for span in keep for boundary in span if any(i < boundary < j for i, j in words)}


@pytest.mark.parametrize(
    ("known", "forbidden", "message"),
    [
        ([SpanConstraint(0, 3)], [SpanConstraint(0, 3, l) for l in LABELS], "every label of it is forbidden"),
        ([SpanConstraint(0, 3)], [SpanConstraint(0, 3, l) for l in [*LABELS, "A"]], "every label of it is forbidden"),
        ([SpanConstraint(0, 2, l) for l in "AB"], [], "labels A and B, and this model gives a span one label"),
    ],
)  # fmt: skip
def test_contradictions_are_errors(known, forbidden, message):
    """Those between spans: tests/pipeline/test_pipeline.py."""
    one_label = "gives a span one label" in message
    settings = settings_of("ablation/03-tree-one-stage" if one_label else "default")
    constraints = Constraints([[]] * 4 + [known], [[]] * 4 + [forbidden])
    with pytest.raises(InputError, match=message):
        apply_constraints(random_scores(SENTENCES, settings), constraints, settings, LABELS)


def test_two_labels_of_a_known_span_need_a_loss_that_gives_several():
    settings = settings_of("default").with_overrides(["loss.label=softmax"])
    constraints = Constraints([[]] * 4 + [[SpanConstraint(0, 2, "A"), SpanConstraint(0, 2, "B")]], [[]] * 5)
    with pytest.raises(InputError, match="labels A and B, and this model gives a span one label"):
        apply_constraints(random_scores(SENTENCES, settings), constraints, settings, LABELS)


@pytest.mark.parametrize("threshold", [0, 0.3])
def test_the_same_label_may_be_forbidden_twice(threshold):
    settings = settings_of("default")
    settings = settings.with_overrides(["decoding.method=mbr", f"decoding.threshold={threshold}"])
    constraints = Constraints(
        [[]] * 4 + [[SpanConstraint(0, 3)]], [[]] * 4 + [[SpanConstraint(0, 3, l) for l in "ABB"]]
    )
    scores = apply_constraints(random_scores(SENTENCES, settings), constraints, settings, LABELS)
    entities = predictions(decode_batch(scores, settings), LABELS, 5)[4].entities
    assert [e.label for e in entities if e.span == (0, 3)] == ["C"]
