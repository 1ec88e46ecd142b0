"""From spans of characters to entities of words: what every format that annotates characters has in common.

>>> tally = Tally()
>>> text = "She left Duffy Inc. They stayed."
>>> document = annotated(text, [CharacterSpan(9, 18, "ORG", head=(9, 14))], tally=tally, place="a.ann:1")
>>> [(sentence.words, sentence.entities[0]) for sentence in document.sentences if sentence.entities]
[(('She', 'left', 'Duffy', 'Inc.'), Entity(start=2, end=4, label='ORG', head=2, ...))]
>>> tally.counts  # the period belongs to the word, and was not marked
Counter({'widened to word borders': 1})
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from nestree.data.tally import Tally
from nestree.errors import DataError
from nestree.sentence import Document, Entity, Sentence, Span
from nestree.text import SentenceSplit, split

NOTHING: Mapping[str, Any] = MappingProxyType({})

WIDENED = "widened to word borders"
JOINED = "sentences joined around an entity"
TRIMMED = "blanks at the borders of an entity left out"
BLANK = "dropped: an entity of blanks only"
BLANK_HEAD = "dropped: a head of blanks only"


class CharacterSpan(NamedTuple):
    """An entity as characters of a text; `end` is exclusive."""

    start: int
    end: int
    label: str
    head: Span | None = None  # characters too
    score: float | None = None
    extra: Mapping[str, Any] = NOTHING
    place: str | None = (
        None  # where its annotation stands, such as a line, if known better than that of the text
    )


def annotated(
    text: str,
    spans: Iterable[CharacterSpan],
    *,
    id: str | None = None,
    words: str = "treebank",
    sentences: str = "rules",
    tally: Tally,
    place: str,
    extra: Mapping[str, Any] = NOTHING,
) -> Document:
    """The text split into sentences and words, with the spans as entities of words, in their order.

    A span that cuts a word is widened to all of it, and sentences are joined around a span that runs across
    their border; both are counted, and so is each span that holds no word and is dropped. A head of one word
    becomes `head`; one of several becomes `heads`. A span that is wrong goes through `tally.bad`.
    """
    sound = [good for span in spans if (good := checked(span, text, tally, span.place or place)) is not None]
    parts = split(text, words, sentences)
    if count_joined(sound, parts, tally, place):
        parts = split(text, words, sentences, keep=[(span.start, span.end) for span in sound])
    starts = [part.start for part in parts]
    inside: dict[int, list[Entity]] = {}
    for span in sound:
        k = bisect_right(starts, span.end - 1) - 1
        try:
            entity = entity_of(span, parts[k].words, text, tally, span.place or place)
        except DataError as error:
            tally.bad(error)
            continue
        inside.setdefault(k, []).append(entity)
    found = tuple(sentence_of(part, text, inside.get(k, ())) for k, part in enumerate(parts))
    return Document(found, text, id, dict(extra))


def checked(span: CharacterSpan, text: str, tally: Tally, place: str) -> CharacterSpan | None:
    """The span without blanks at its borders; None: it is wrong, or there is nothing else in it."""
    try:
        check(span, text, place)
    except DataError as error:
        tally.bad(error)
        return None
    if span.start < span.end and not (text[span.start].isspace() or text[span.end - 1].isspace()):
        return span
    if not text[span.start : span.end].strip():
        tally.note(BLANK, place)
        return None
    return trimmed(span, text, place, tally)


def check(span: CharacterSpan, text: str, place: str) -> None:
    name = f"{place}: entity {span.start!r:.20}-{span.end!r:.20} {span.label!s:.40}"
    head = span.head or (span.start, span.end)
    if not all(type(offset) is int for offset in (span.start, span.end, *head)):
        raise DataError(f"{name} has an offset that is not a whole number. Offsets count characters from 0.")
    if not isinstance(span.label, str) or not span.label:
        raise DataError(f"{name.rstrip()} has no label. It must be a string that is not empty.")
    if span.start < 0:
        raise DataError(f"{name} begins before the text. Offsets count characters from 0.")
    if span.end < span.start:
        raise DataError(f"{name} ends before it begins. Exchange its start and its end.")
    if span.end > len(text):
        raise DataError(
            f"{name} ends after the text, which has {len(text)} characters. Offsets count characters, not bytes, "
            "of the text as it stands in the file."
        )
    if not span.start <= head[0] <= head[1] <= span.end:
        raise DataError(f"{name} has its head at {head[0]}-{head[1]}, and not inside. Mark a part of it.")


def trimmed(span: CharacterSpan, text: str, place: str, tally: Tally) -> CharacterSpan:
    phrase = text[span.start : span.end]
    start = span.start + len(phrase) - len(phrase.lstrip())
    end = span.end - len(phrase) + len(phrase.rstrip())
    if (start, end) == (span.start, span.end):
        return span
    tally.note(TRIMMED, place)
    return span._replace(start=start, end=end)


def count_joined(
    spans: Iterable[CharacterSpan], parts: Sequence[SentenceSplit], tally: Tally, place: str
) -> bool:
    """Counts each border between sentences that falls inside a span; False: there is none."""
    starts = [part.start for part in parts]
    counted = 0  # the borders up to this sentence
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        first, last = bisect_right(starts, span.start) - 1, bisect_right(starts, span.end - 1) - 1
        borders = last - max(first, counted)
        if borders > 0:
            tally.note(JOINED, span.place or place, borders)
            counted = last
    return counted > 0


def entity_of(span: CharacterSpan, words: Sequence[Span], text: str, tally: Tally, place: str) -> Entity:
    """The entity of those words that the span has a character of; there must be one."""
    first, last = touched(words, span.start, span.end)
    if (words[first][0], words[last - 1][1]) != (span.start, span.end):
        tally.note(WIDENED, place)
    heads = range(0)
    if span.head is not None and text[slice(*span.head)].strip():
        heads = range(*touched(words, *span.head))
    elif span.head is not None:
        tally.note(BLANK_HEAD, place)
    head, several = (heads[0], ()) if len(heads) == 1 else (None, tuple(heads))
    try:
        return Entity(first, last, span.label, head, span.score, several, dict(span.extra))
    except DataError as error:
        raise DataError(f"{place}: {error}") from None


def touched(words: Sequence[Span], start: int, end: int) -> Span:
    """The first of those words that share a character with this span, and the one after the last."""
    return bisect_right(words, start, key=lambda word: word[1]), bisect_left(words, (end, 0))


def sentence_of(part: SentenceSplit, text: str, entities: Iterable[Entity]) -> Sentence:
    return Sentence(
        tuple(text[i:j] for i, j in part.words),
        tuple(entities),
        text[part.start : part.end],
        tuple((i - part.start, j - part.start) for i, j in part.words),
        part.start,
    )
