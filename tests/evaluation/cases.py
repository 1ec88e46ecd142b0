"""Sentences to score: an example to count by hand, and any others."""

from hypothesis import strategies as st

from nestree.types import Entity, Sentence
from tests.tiny import sentence

# The worked example of docs/evaluation.md.
TEXT = "The president of the University of California met Iraqi army leaders"
GOLD = sentence(
    TEXT, "0-7@1 PER", "3-7@4 ORG", "6-7 GPE", "6-7 GPE", "8-11@10 PER", "8-10@9 ORG", "8-9 GPE"
)  # California is annotated twice
# "the University" without "the"; "army" as a head, not "leaders"; "Iraqi army" as GPE; "leaders" as an entity.
PREDICTED = sentence(TEXT, "0-7@1 PER", "4-7@4 ORG", "6-7 GPE", "8-11@9 PER", "8-10@9 GPE", "10-11 PER")


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
