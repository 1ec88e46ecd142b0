"""Examples of each kind of error: which ones, which words of the sentence, and as brackets in one line."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from nestree.evaluation import KINDS, Evaluation, Mistake
from nestree.sentence import Entity, Sentence, Span, crossing

CONTEXT = 4  # words on either side


def examples(evaluation: Evaluation, most: int) -> dict[str, list[Mistake]]:
    """Up to so many errors of each kind that occurs, taken evenly from the first sentence to the last."""
    found: defaultdict[str, list[Mistake]] = defaultdict(list)
    for mistake in (*evaluation.mistakes, *(evaluation.heads.mistakes if evaluation.heads else ())):
        found[mistake.kind].append(mistake)
    return {kind: spread(found[kind], most) for kind in (*KINDS, "head") if found[kind]}


def spread(items: Sequence[Mistake], most: int) -> list[Mistake]:
    """So many of them, at equal distances."""
    if len(items) <= most:
        return list(items)
    return [items[k * len(items) // most] for k in range(most)]


def window(mistake: Mistake) -> Span:
    """The words to show: those of the entities in question, and some on either side."""
    concerned = [entity for entity in (mistake.gold, mistake.predicted) if entity]
    start, end = min(e.start for e in concerned), max(e.end for e in concerned)
    return max(0, start - CONTEXT), min(len(mistake.sentence.words), end + CONTEXT)


def described(mistake: Mistake) -> str:
    """The error in words.

    >>> words = "the University of California".split()
    >>> gold, off = Entity(0, 4, "ORG"), Entity(1, 4, "ORG")
    >>> described(Mistake("boundary", gold, off, 1, Sentence(words, [gold]), Sentence(words, [off])))
    "ORG 'the University of California' was predicted as 'University of California'"
    """
    gold, predicted = mistake.gold, mistake.predicted
    if gold is None:
        assert predicted is not None
        return f"{predicted.label} {mistake.sentence.phrase(predicted)!r} is not gold"
    phrase = f"{gold.label} {mistake.sentence.phrase(gold)!r}"
    if predicted is None:
        return f"{phrase} was not predicted"
    if mistake.kind == "type":
        return f"{phrase} was predicted as {predicted.label}"
    if mistake.kind == "boundary":
        return f"{phrase} was predicted as {mistake.sentence.phrase(predicted)!r}"
    heads = [mistake.sentence.words[e.head] if e.head is not None else "none" for e in (gold, predicted)]
    return f"{phrase} has the head {heads[0]!r}, predicted was {heads[1]!r}"


def brackets(sentence: Sentence, entities: Iterable[Entity], shown: Span) -> str:
    """The words shown, with brackets around the entities that lie among them; those that cross others come after.

    >>> sentence = Sentence("at the University of California".split())
    >>> brackets(sentence, [Entity(1, 5, "ORG"), Entity(4, 5, "GPE")], (1, 5))
    '… [the University of [California GPE] ORG]'
    >>> brackets(sentence, [Entity(0, 3, "ORG"), Entity(2, 5, "ORG")], (0, 5))
    '[at the University ORG] of California + [University of California ORG]'
    """
    start, end = shown
    nested: list[Entity] = []
    crossed: list[Entity] = []
    inside = {(e.start, e.end, e.label): e for e in entities if start <= e.start and e.end <= end}
    for key in sorted(inside, key=lambda key: (key[1] - key[0], key)):  # the innermost first
        (crossed if crossing([*nested, inside[key]]) else nested).append(inside[key])
    words = list(sentence.words)
    for entity in nested:
        words[entity.start] = "[" + words[entity.start]
        words[entity.end - 1] += f" {entity.label}]"
    beside = [" ".join(["+", "[" + sentence.phrase(entity), f"{entity.label}]"]) for entity in crossed]
    return " ".join((["…"] * (start > 0)) + words[start:end] + (["…"] * (end < len(words))) + beside)


def in_brackets(mistake: Mistake) -> Iterator[tuple[str, str]]:
    """Both sides of an error, a line each."""
    for name, sentence in (("gold", mistake.sentence), ("predicted", mistake.prediction)):
        yield name, brackets(sentence, sentence.entities, window(mistake))


def levels(spans: Sequence[Span]) -> list[int]:
    """A row for each span so that none overlaps another in its row, the inner ones in the first rows.

    >>> levels([(0, 4), (3, 4), (2, 6), (0, 4)])
    [1, 0, 2, 3]
    """
    rows: dict[int, int] = {}
    for k in sorted(range(len(spans)), key=lambda k: (spans[k][1] - spans[k][0], k)):
        i, j = spans[k]
        around = [rows[m] for m in rows if spans[m][0] < j and i < spans[m][1]]
        rows[k] = max(around, default=-1) + 1
    return [rows[k] for k in range(len(spans))]
