"""From spans of characters to entities of words: what every format that annotates characters has in common.

>>> tally = ConversionReport()
>>> text = "She left Duffy Inc. They stayed."
>>> document = align_spans(text, [CharacterSpan(9, 18, "ORG", head=(9, 14))], tally=tally, place="a.ann:1")
>>> [(sentence.words, sentence.entities[0]) for sentence in document.sentences if sentence.entities]
[(('She', 'left', 'Duffy', 'Inc.'), Entity(start=2, end=4, label='ORG', head=2, ...))]
>>> tally.counts  # the period belongs to the word, and was not marked
Counter({'widened to word borders': 1})
"""

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

from nestree.data.io import ConversionReport
from nestree.errors import DataError, InputError
from nestree.text import SentenceSplit, split
from nestree.types import Document, Entity, Sentence, Span, shift_sentence

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


def align_spans(
    text: str,
    spans: Iterable[CharacterSpan],
    *,
    id: str | None = None,
    words: str = "treebank",
    sentences: str = "rules",
    tally: ConversionReport,
    place: str,
    extra: Mapping[str, Any] = NOTHING,
) -> Document:
    """The text split into sentences and words, with the spans as entities of words, in their order.

    A span that cuts a word is widened to all of it, and sentences are joined around a span that runs across
    their border; both are counted, and so is each span that holds no word and is dropped. A head of one word
    becomes `head`; one of several becomes `heads`. A span that is wrong goes through `tally.bad`.
    """
    sound = [
        good for span in spans if (good := check_spans(span, text, tally, span.place or place)) is not None
    ]
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


def check_spans(span: CharacterSpan, text: str, tally: ConversionReport, place: str) -> CharacterSpan | None:
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
    return trim_span(span, text, place, tally)


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


def trim_span(span: CharacterSpan, text: str, place: str, tally: ConversionReport) -> CharacterSpan:
    phrase = text[span.start : span.end]
    start = span.start + len(phrase) - len(phrase.lstrip())
    end = span.end - len(phrase) + len(phrase.rstrip())
    if (start, end) == (span.start, span.end):
        return span
    tally.note(TRIMMED, place)
    return span._replace(start=start, end=end)


def count_joined(
    spans: Iterable[CharacterSpan], parts: Sequence[SentenceSplit], tally: ConversionReport, place: str
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


def entity_of(
    span: CharacterSpan, words: Sequence[Span], text: str, tally: ConversionReport, place: str
) -> Entity:
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


UNITS = ("characters", "utf-16", "graphemes")
UNSURE = "offsets in a text with emoji taken as characters: some tools count UTF-16 units"  # to be counted


def to_code_points(text: str, unit: str) -> Callable[[int], int]:
    """A function from offsets that count this unit to offsets that count characters.

    What lies before or after the text stays so.
    """
    if unit not in UNITS:
        raise InputError(f"offsets cannot count {unit!r}. Choose one of {', '.join(UNITS)}.")
    if unit == "utf-16" and has_surrogate_pairs(text):
        before = list(accumulate((1 + (c > "\uffff") for c in text), initial=0))
        return lambda offset: bisect_right(before, offset) - 1 + max(0, offset - before[-1])
    if unit == "graphemes" and not (text.isascii() and "\r\n" not in text):
        import regex

        starts = [found.start() for found in regex.finditer(r"\X", text)] + [len(text)]
        return lambda offset: (
            starts[offset] if 0 <= offset < len(starts) else offset + len(text) * (offset > 0)
        )
    return lambda offset: offset


def has_surrogate_pairs(text: str) -> bool:
    """Are there characters that are two units of UTF-16?"""
    return not text.isascii() and max(text) > "\uffff"


FARTHEST = 1_000_000  # characters that may be missing between the passages of a document


def align_to_words(
    text: str,
    words: Sequence[Span],
    spans: Iterable[CharacterSpan],
    *,
    starts: Iterable[int] | None = None,
    sentences: str = "rules",
    id: str | None = None,
    tally: ConversionReport,
    place: str,
    extra: Mapping[str, Any] = NOTHING,
) -> Document:
    """A document of these words, in order. `starts` are those that begin a sentence; None: by the rule `sentences`.

    What is done to spans that do not fit is the same as in `annotated`, and counted in the same words.
    """
    found = []
    for span in spans:
        where = span.place or place
        good = check_spans(span, text, tally, where)
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
    tally: ConversionReport,
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


def note_strays(pieces: Iterable[Token], text: str, tally: ConversionReport, place: str) -> None:
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


def align_to_passages(
    text: str,
    passages: Sequence[Passage],
    spans: Iterable[CharacterSpan],
    *,
    words: str,
    sentences: str,
    id: str | None = None,
    tally: ConversionReport,
    place: str,
    extra: Mapping[str, Any] = NOTHING,
) -> Document:
    """A document of these passages, in order; `text` is their `whole_text`."""
    sound = [
        good for span in spans if (good := check_spans(span, text, tally, span.place or place)) is not None
    ]
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
            document = align_to_words(part, given, near, starts=[], tally=tally, place=place)
        else:
            document = align_spans(part, near, words=words, sentences=sentences, tally=tally, place=place)
        found.extend(shift_sentence(sentence, start + sentence.start) for sentence in document.sentences)
    return Document(tuple(found), text, id, dict(extra))


def grouped(
    passages: Sequence[Passage], spans: list[CharacterSpan], tally: ConversionReport, place: str
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
