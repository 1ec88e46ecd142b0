"""Documents whose words, sentences or passages are given, with entities as spans of characters.

Where only a text is given, nestree.data.characters splits it.
"""

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nestree.data.characters import (
    JOINED,
    NOTHING,
    CharacterSpan,
    annotated,
    checked,
    entity_of,
    sentence_of,
    touched,
)
from nestree.data.tally import Tally
from nestree.errors import DataError
from nestree.sentence import Document, Entity, Sentence, Span, moved
from nestree.text import SentenceSplit, split

FARTHEST = 1_000_000  # characters that may be missing between the passages of a document


def with_words(
    text: str,
    words: Sequence[Span],
    spans: Iterable[CharacterSpan],
    *,
    starts: Iterable[int] | None = None,
    sentences: str = "rules",
    id: str | None = None,
    tally: Tally,
    place: str,
    extra: Mapping[str, Any] = NOTHING,
) -> Document:
    """A document of these words, in order. `starts` are those that begin a sentence; None: by the rule `sentences`.

    What is done to spans that do not fit is the same as in `annotated`, and counted in the same words.
    """
    found = []
    for span in spans:
        where = span.place or place
        good = checked(span, text, tally, where)
        if good is None:
            continue
        first, last = touched(words, good.start, good.end)
        if first == last:
            tally.note("dropped: an entity that holds no word", where)
            continue
        try:
            found.append(entity_of(good, words, text, tally, where))
        except DataError as error:
            tally.bad(error)
    return arranged(
        text, words, found, starts=starts, sentences=sentences, id=id, tally=tally, place=place, extra=extra
    )


def arranged(
    text: str,
    words: Sequence[Span],
    entities: Sequence[Entity],
    *,
    starts: Iterable[int] | None = None,
    sentences: str = "rules",
    id: str | None = None,
    tally: Tally,
    place: str,
    extra: Mapping[str, Any] = NOTHING,
) -> Document:
    """The same for entities of words that are counted over the whole text."""
    if starts is None:
        borders = [part.start for part in split(text, "whitespace", sentences)]
        starts = {bisect_left(words, (border, 0)) for border in borders}
    begins = {0, *starts} & set(range(len(words)))
    cut = within(begins, entities)
    if cut:
        tally.note(JOINED, place, len(cut))
    return Document(made(text, words, sorted(begins - cut), entities), text, id, dict(extra))


def within(borders: Iterable[int], entities: Iterable[Entity]) -> set[int]:
    """The borders between words that fall inside an entity."""
    found, reach = set(), 0  # how far the entities go that start before a border
    ahead = sorted((e.span for e in entities), reverse=True)
    for border in sorted(borders):
        while ahead and ahead[-1][0] < border:
            reach = max(reach, ahead.pop()[1])
        if border < reach:
            found.add(border)
    return found


def made(
    text: str, words: Sequence[Span], begins: list[int], entities: Iterable[Entity]
) -> tuple[Sentence, ...]:
    """Sentences of words that are counted over the whole text."""
    inside: dict[int, list[Entity]] = {}
    for e in entities:
        inside.setdefault(bisect_right(begins, e.start) - 1, []).append(e)
    found = []
    for k, first in enumerate(begins):
        last = begins[k + 1] if k + 1 < len(begins) else len(words)
        part = SentenceSplit(words[first][0], words[last - 1][1], list(words[first:last]))
        found.append(sentence_of(part, text, [shifted(e, first) for e in inside.get(k, [])]))
    return tuple(found)


def shifted(e: Entity, by: int) -> Entity:
    head = None if e.head is None else e.head - by
    heads = tuple(head - by for head in e.heads)
    return Entity(e.start - by, e.end - by, e.label, head, e.score, heads, e.extra)


class Token(NamedTuple):
    """A piece of a text, as spaCy and Prodigy cut it: together with their blanks, the pieces spell the text."""

    start: int
    end: int
    blank: bool  # a blank follows and belongs to it
    word: int | None  # which word it is; None: none, but what stands between words


def tokens(text: str, words: Iterable[Span]) -> list[Token]:
    """The words of a text and what stands between them, beyond single blanks.

    >>> [(text, token.blank, token.word) for token in tokens("a b\\n\\nc", [(0, 1), (2, 3), (5, 6)])
    ...  for text in ["a b\\n\\nc"[token.start : token.end]]]
    [('a', True, 0), ('b', False, 1), ('\\n\\n', False, None), ('c', False, 2)]
    """
    found: list[Token] = []
    at = 0
    for word, (start, end) in [*enumerate(words), (None, (len(text), len(text)))]:
        for between in re.finditer(r"\s+|\S+", text[at:start]):
            first, last = at + between.start(), at + between.end()
            if found and text[first] == " ":
                found[-1] = found[-1]._replace(blank=True)
                first += 1
            if first < last:
                found.append(Token(first, last, False, None))
        if word is not None:
            found.append(Token(start, end, False, word))
        at = end
    return found


def note_strays(pieces: Iterable[Token], text: str, tally: Tally, place: str) -> None:
    """Count what is between words and no blank: who reads the pieces takes it for words."""
    strays = sum(t.word is None and not text[t.start : t.end].isspace() for t in pieces)
    if strays:
        tally.note("characters that belong to no word written as words", place, strays)


class Passage(NamedTuple):
    """A part of a text that no sentence reaches out of."""

    start: int  # in the text of the document
    text: str
    sentence: bool = False  # it is one sentence, and not to be split


def whole_text(passages: Iterable[Passage], place: str) -> str:
    """The text of a document; where nothing is known of what is between its passages, line breaks are."""
    parts: list[str] = []
    end = missing = 0
    for passage in passages:
        if passage.start < end:
            raise DataError(
                f"{place}: the passage at offset {passage.start} begins inside the one before, which ends at "
                f"{end}. Offsets must count characters."
            )
        missing += passage.start - end
        if missing > FARTHEST:
            raise DataError(
                f"{place}: the passage at offset {passage.start} begins far behind the one before, which ends at "
                f"{end}: more than {FARTHEST:,} characters of this document are missing. Offsets must count "
                "characters."
            )
        parts += ["\n" * (passage.start - end), passage.text]
        end = passage.start + len(passage.text)
    return "".join(parts)


def with_passages(
    text: str,
    passages: Sequence[Passage],
    spans: Iterable[CharacterSpan],
    *,
    words: str,
    sentences: str,
    id: str | None = None,
    tally: Tally,
    place: str,
    extra: Mapping[str, Any] = NOTHING,
) -> Document:
    """A document of these passages, in order; `text` is their `whole_text`."""
    sound = [good for span in spans if (good := checked(span, text, tally, span.place or place)) is not None]
    found: list[Sentence] = []
    for group, inside in grouped(passages, sound, tally, place):
        start, end = group[0].start, group[-1].start + len(group[-1].text)
        near = [
            span._replace(
                start=span.start - start,
                end=span.end - start,
                head=span.head and (span.head[0] - start, span.head[1] - start),
            )
            for span in inside
        ]
        part = text[start:end]
        if group[0].sentence:
            whole = split(part, words, keep=[(0, len(part))])
            given = [word for sentence in whole for word in sentence.words]
            document = with_words(part, given, near, starts=[], tally=tally, place=place)
        else:
            document = annotated(part, near, words=words, sentences=sentences, tally=tally, place=place)
        found.extend(moved(sentence, start + sentence.start) for sentence in document.sentences)
    return Document(tuple(found), text, id, dict(extra))


def grouped(
    passages: Sequence[Passage], spans: list[CharacterSpan], tally: Tally, place: str
) -> list[tuple[list[Passage], list[CharacterSpan]]]:
    """Passages, each with the spans in it; those that a span joins are together."""
    groups: list[tuple[list[Passage], list[CharacterSpan]]] = []
    waiting = deque(sorted(spans, key=lambda span: span.start))
    reach = 0  # how far the spans of the last group go
    for k, passage in enumerate(passages):
        following = passages[k + 1].start if k + 1 < len(passages) else float("inf")
        here = []
        while waiting and waiting[0].start < following:
            here.append(waiting.popleft())
        if groups and reach > passage.start:
            tally.note(JOINED, place)
            groups[-1][0].append(passage)
            groups[-1][1].extend(here)
        else:
            groups.append(([passage], here))
        reach = max([reach, *(span.end for span in here)])
    return groups
