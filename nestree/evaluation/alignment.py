"""Gold and predicted sentences must be the same sentences; if they are not, where and why."""

from collections.abc import Sequence

from nestree.errors import DataError
from nestree.sentence import Sentence

SAME_SPLIT = "convert both from the same text with the same"


def check_alignment(gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> None:
    """Raise unless both have the same words, sentence by sentence.

    >>> check_alignment([Sentence(["a", "b-c"])], [Sentence(["a", "b", "-", "c"])])
    Traceback (most recent call last):
        ...
    nestree.errors.DataError: sentence 1, word 2: gold has 'b-c', predicted has 'b'. The text is the same, its words
    are not: predict on the words of the gold file, or convert both from the same text with the same --words.
    """
    for number, (g, p) in enumerate(zip(gold, predicted, strict=False), 1):
        if g.words != p.words:
            raise DataError(difference(number, gold, predicted))
    if len(gold) == len(predicted):
        return
    shorter, longer = sorted((gold, predicted), key=len)
    name, other = ("gold", "predicted") if shorter is gold else ("predicted", "gold")
    first = longer[len(shorter)]
    raise DataError(
        f"{name} ends after {counted(len(shorter))}, {other} has {len(longer)}; the first that is missing is "
        f"{named(len(shorter) + 1, first)}: {first}. "
        + (
            "Predict the whole gold file."
            if shorter is predicted
            else "Score against the file that was predicted."
        )
    )


def difference(number: int, gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> str:
    """What differs in this sentence, and what to do about it."""
    g, p = gold[number - 1], predicted[number - 1]
    k = next(
        (k for k, (a, b) in enumerate(zip(g.words, p.words, strict=False)) if a != b),
        min(len(g.words), len(p.words)),
    )
    there = [repr(s.words[k]) if k < len(s.words) else "no more words" for s in (g, p)]
    place = f"{named(number, g)}, word {k + 1}: gold has {there[0]}, predicted has {there[1]}."
    a, b = "".join(g.words), "".join(p.words)
    if a == b:
        return (
            f"{place} The text is the same, its words are not: predict on the words of the gold file, or "
            f"{SAME_SPLIT} --words."
        )
    if a.startswith(b) or b.startswith(a):
        return (
            f"{place} The text is the same, its sentences end in different places: predict on the sentences of the "
            f"gold file, or {SAME_SPLIT} --sentences."
        )
    elsewhere = next((n for n, s in enumerate(predicted, 1) if s.words == g.words), None)
    if elsewhere is not None:
        return f"{place} This gold sentence is {elsewhere} of the predicted ones: bring both into the same order."
    return f"{place} These are not the same texts: score a prediction for this gold file."


def named(number: int, sentence: Sentence) -> str:
    return f"sentence {number}" + (f" ({sentence.id})" if sentence.id else "")


def counted(sentences: int) -> str:
    return f"{sentences} sentence" + ("" if sentences == 1 else "s")
