"""What is known in characters becomes words: as a look at every word would have it."""

from hypothesis import given
from hypothesis import strategies as st

from nestree.pipeline import as_forbidden, as_known, split_at_borders, to_word_constraints
from nestree.text import split
from nestree.types import Document, Sentence


def document_of(text: str) -> Document:
    return Document(
        tuple(
            Sentence(
                tuple(text[i:j] for i, j in words),
                (),
                text[start:end],
                tuple((i - start, j - start) for i, j in words),
                start,
            )
            for start, end, words in split(text)
        ),
        text,
    )


texts = st.text("ab. \nC-", max_size=40).filter(str.strip)


@given(texts, st.data())
def test_words_at_characters(text, data):
    document = document_of(text)
    sentence = data.draw(st.sampled_from(document.sentences))
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    if not text[start:end].strip():
        return
    forbidden = to_word_constraints(document, (), [as_forbidden((start, end), text)])
    start, end = (
        start + text[start:end].index(text[start:end].lstrip()),
        start + len(text[start:end].rstrip()),
    )
    exact = [
        (number, i, j)
        for number, sentence in enumerate(document.sentences)
        for i in range(len(sentence.words))
        for j in range(i + 1, len(sentence.words) + 1)
        if (sentence.start + sentence.offsets[i][0], sentence.start + sentence.offsets[j - 1][1])
        == (start, end)
    ]
    assert [(n, f.start, f.end) for n, (_, all_of_them) in forbidden.items() for f in all_of_them] == exact
    lo, hi = max(start, sentence.start), min(end, sentence.start + len(sentence.text))
    if lo < hi and text[lo:hi].strip():
        known = to_word_constraints(document, [as_known((lo, hi), text)], ())
        ((number, ([one], _)),) = known.items()
        touched = [
            w
            for w, (i, j) in enumerate(sentence.offsets)
            if sentence.start + i < hi and lo < sentence.start + j
        ]
        assert document.sentences[number] is sentence
        assert (one.start, one.end) == (touched[0], touched[-1] + 1)


@given(texts, st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=5))
def test_words_are_cut_at_every_border_and_nowhere_else(text, spans):
    keep = [(start, start + size) for start, size in spans]
    words = [place for sentence in split(text) for place in sentence.words]
    cut = split_at_borders(words, keep)
    inner = {border for span in keep for border in span}
    assert [text[i:j] for i, j in cut if i >= j] == []
    assert "".join(text[i:j] for i, j in cut) == "".join(text[i:j] for i, j in words)
    borders = {i for i, _ in cut} | {j for _, j in cut}
    assert borders - {i for i, _ in words} - {j for _, j in words} == {
        b for b in inner if any(i < b < j for i, j in words)
    }
