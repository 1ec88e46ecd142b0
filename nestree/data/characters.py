"""From spans of characters to entities of words: what every format that annotates characters has in common."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from nestree.data.tally import Tally
from nestree.errors import DataError
from nestree.sentence import Document, Entity, Sentence, Span
from nestree.text import SentenceSplit, split

NOTHING: Mapping[str, Any] = MappingProxyType({})


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
    """The text split into sentences and words, with the spans as entities of words.

    A span that cuts a word is widened to all of it, and sentences are joined around a span that runs across
    their border; both are counted, and so is each span that holds no word and is dropped. A span that is
    wrong goes through `tally.bad`.
    """
    good = []
    for span in spans:
        where = span.place or place
        try:
            check(span, text, where)
        except DataError as error:
            tally.bad(error)
            continue
        if not text[span.start : span.end].strip():
            tally.note("dropped: an entity of blanks only", where)
            continue
        good.append(trimmed(span, text, where, tally))
    parts = split(text, words, sentences)
    kept = split(text, words, sentences, keep=[(s.start, s.end) for s in good])
    if len(kept) < len(parts):
        tally.note("sentences joined around an entity", place, len(parts) - len(kept))
    by_sentence: dict[int, list[CharacterSpan]] = {}
    k = 0
    ordered = sorted(range(len(good)), key=lambda i: good[i].start)
    for i in ordered:
        while kept[k].end <= good[i].start:
            k += 1
        by_sentence.setdefault(k, []).append(good[i])
    return Document(
        tuple(sentence(text, part, by_sentence.get(k, []), tally, place) for k, part in enumerate(kept)),
        text,
        id,
        dict(extra),
    )


def check(span: CharacterSpan, text: str, place: str) -> None:
    name = f"{place}: entity {span.start}-{span.end} {span.label}"
    if span.start < 0:
        raise DataError(f"{name} begins before the text. Offsets are counted from 0.")
    if span.end < span.start:
        raise DataError(f"{name} ends before it begins. Exchange its start and its end.")
    if span.end > len(text):
        raise DataError(f"{name} ends after the text, which has {len(text)} characters.")


def trimmed(span: CharacterSpan, text: str, place: str, tally: Tally) -> CharacterSpan:
    phrase = text[span.start : span.end]
    start = span.start + len(phrase) - len(phrase.lstrip())
    end = span.end - len(phrase) + len(phrase.rstrip())
    if (start, end) != (span.start, span.end):
        tally.note("blanks at the borders of an entity left out", place)
    return span._replace(start=start, end=end)


def sentence(
    text: str, part: SentenceSplit, spans: list[CharacterSpan], tally: Tally, place: str
) -> Sentence:
    entities = []
    for span in spans:
        inside = [k for k, (i, j) in enumerate(part.words) if i < span.end and j > span.start]
        first, last = inside[0], inside[-1]
        if (part.words[first][0], part.words[last][1]) != (span.start, span.end):
            tally.note("widened to word borders", span.place or place)
        heads: list[int] = []
        if span.head is not None:
            i, j = span.head
            heads = [k for k in inside if part.words[k][0] < j and part.words[k][1] > i]
        entities.append(
            Entity(
                first,
                last + 1,
                span.label,
                heads[0] if len(heads) == 1 else None,
                span.score,
                tuple(heads) if len(heads) > 1 else (),
                dict(span.extra),
            )
        )
    return Sentence(
        tuple(text[i:j] for i, j in part.words),
        tuple(entities),
        text[part.start : part.end],
        tuple((i - part.start, j - part.start) for i, j in part.words),
        part.start,
    )
