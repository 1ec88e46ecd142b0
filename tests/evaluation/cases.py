"""Sentences to score: an example to count by hand, and any others."""

from hypothesis import strategies as st

from nestree.types import Entity, Sentence

# The worked example of docs/evaluation.md.
WORDS = ["The", "president", "of", "the", "University", "of", "California", "met", "Iraqi", "army", "leaders"]
GOLD = Sentence(
    WORDS,
    [
        Entity(0, 7, "PER", head=1),
        Entity(3, 7, "ORG", head=4),
        Entity(6, 7, "GPE"),
        Entity(6, 7, "GPE"),  # annotated twice
        Entity(8, 11, "PER", head=10),
        Entity(8, 10, "ORG", head=9),
        Entity(8, 9, "GPE"),
    ],
)
PREDICTED = Sentence(
    WORDS,
    [
        Entity(0, 7, "PER", head=1),
        Entity(4, 7, "ORG", head=4),  # without "the"
        Entity(6, 7, "GPE"),
        Entity(8, 11, "PER", head=9),  # "army", not "leaders"
        Entity(8, 10, "GPE", head=9),  # not ORG
        Entity(10, 11, "PER"),  # not there at all
    ],
)


@st.composite
def predictions(draw, sides=2, most=5, flat=False):
    """Sentences of up to six words with any entities, duplicates and crossing ones too: gold, predicted, ..."""
    corpora = [[] for _ in range(sides)]
    for _ in range(draw(st.integers(1, 4))):
        n = draw(st.integers(1, 6))
        for corpus in corpora:
            spans = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(1, n)), max_size=most))
            entities, end = [], 0
            for i, j in sorted(spans) if flat else spans:
                i, j = min(i, j - 1), max(i + 1, j)
                if not flat or i >= end:
                    head = draw(st.none() | st.integers(i, j - 1))
                    entities.append(Entity(i, j, draw(st.sampled_from("ABC")), head=head))
                    end = j
            corpus.append(Sentence(["w"] * n, entities))
    return corpora
