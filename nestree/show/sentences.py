"""What a sentence gives to the drawing of its tree: what brackets say, probabilities, whether it is a whole tree."""

from nestree.sentence import Sentence, Span, Tree
from nestree.show.characters import on_one_line
from nestree.show.trees import parents, short


def brackets_of(sentence: Sentence) -> tuple[dict[Span, str], dict[Span, str]]:
    """Of each span that is an entity: what stands in its bracket, and the label that gives it its colour.

    >>> from nestree.sentence import Entity
    >>> brackets_of(Sentence(["Rome"], [Entity(0, 1, "ORG", score=0.2), Entity(0, 1, "GPE", score=0.9)]))
    ({(0, 1): 'GPE .90, ORG .20'}, {(0, 1): 'GPE'})
    """
    names: dict[Span, str] = {}
    labels: dict[Span, str] = {}
    for entity in sorted(sentence.entities, key=lambda entity: -(entity.score or 0)):
        name = on_one_line(entity.label) + ("" if entity.score is None else f" {short(entity.score)}")
        names[entity.span] = f"{names[entity.span]}, {name}" if entity.span in names else name
        labels.setdefault(entity.span, entity.label)
    return names, labels


def is_lexical(tree: Tree, n: int) -> bool:
    """Is it a whole binary tree with heads, so that it can be drawn as one?"""
    heads = {(i, j): h for i, j, h in tree.spans if h is not None}
    if (0, n) not in heads or not len(heads) == len(tree.spans) == 2 * n - 1:
        return False
    inside: dict[Span, list[Span]] = {}
    for span, above in parents(heads).items():
        inside.setdefault(above, []).append(span)
    for (i, j), found in inside.items():
        (a, b), (c, d) = min(found), max(found)
        if len(found) != 2 or (a, b, d) != (i, c, j) or heads[i, j] not in (heads[a, b], heads[c, d]):
            return False
    return True


def chances(tree: Tree) -> dict[int, dict[int, float]] | None:
    """The probability of each span, [i][j], if they are known."""
    found: dict[int, dict[int, float]] = {}
    for (i, j, _), probability in zip(tree.spans, tree.probabilities, strict=False):
        found.setdefault(i, {})[j] = probability
    return found or None
