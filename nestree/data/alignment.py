"""Alignment of character spans with words, for all formats that annotate characters.

>>> tally = ConversionReport()
>>> text = "She left Duffy Inc. They stayed."
>>> document = align_spans(text, [LabeledSpan(9, 18, "ORG", head=(9, 14))], tally=tally, place="a.ann:1")
>>> [(sentence.words, sentence.entities[0]) for sentence in document.sentences if sentence.entities]
[(('She', 'left', 'Duffy', 'Inc.'), Entity(start=2, end=4, label='ORG', head=2, ...))]
>>> tally.counts  # the period belongs to the word, and was not marked
Counter({'widened to word borders': 1})
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from nestree.data.io import ConversionReport
from nestree.errors import DataError, EmptySpanError, InputError, SpanRangeError
from nestree.text import split
from nestree.types import Document, Entity, Sentence, Span, build

NO_EXTRA: Mapping[str, Any] = MappingProxyType({})
MAX_GAP = 1_000_000  # characters that may be missing between the passages of a document

# Changes that a ConversionReport counts.
WIDENED = "widened to word borders"
JOINED = "sentences joined around an entity"
TRIMMED = "blanks at the borders of an entity left out"
BLANK = "dropped: an entity of blanks only"
BLANK_HEAD = "dropped: a head of blanks only"
NO_WORD = "dropped: an entity that holds no word"


class LabeledSpan(NamedTuple):
    """An annotated entity in characters of a text; `end` is exclusive."""

    start: int
    end: int
    label: str
    head: Span | None = None  # in characters, too
    score: float | None = None
    extra: Mapping[str, Any] = NO_EXTRA
    place: str | None = None  # of the annotation, such as file and line; None: that of the text


def align_spans(
    text: str,
    spans: Iterable[LabeledSpan],
    *,
    id: str | None = None,
    words: str = "treebank",
    sentences: str = "rules",
    tally: ConversionReport,
    place: str,
    extra: Mapping[str, Any] = NO_EXTRA,
) -> Document:
    """The text split into sentences and words, with the spans as entities of words, in their order.

    A span that cuts a word is widened to the whole word, and sentences are joined around a span that runs across
    their border; both are counted, and so is each span that holds no word and is dropped. A head of one word
    becomes `head`; one of several becomes `heads`. Invalid spans go through `tally.bad`.
    """
    valid = list(valid_spans(text, spans, tally, place))
    parts = split(text, words, sentences)
    if joined_borders([part.start for part in parts], valid, tally, place):
        parts = split(text, words, sentences, keep=[(span.start, span.end) for span in valid])
    all_words = [word for part in parts for word in part.words]
    starts = [*accumulate((len(part.words) for part in parts), initial=0)][:-1]
    entities = word_entities(text, all_words, valid, tally, place)
    return Document(word_sentences(text, all_words, starts, entities), text, id, dict(extra))


def align_to_words(
    text: str,
    words: Sequence[Span],
    spans: Iterable[LabeledSpan],
    *,
    starts: Iterable[int] | None = None,
    sentences: str = "rules",
    id: str | None = None,
    tally: ConversionReport,
    place: str,
    extra: Mapping[str, Any] = NO_EXTRA,
) -> Document:
    """A document of these words, in order, with the spans as entities; see `align_spans`.

    `starts`: the indices of the words that begin a sentence; None: found by the rule `sentences`.
    """
    valid = valid_spans(text, spans, tally, place)
    entities = word_entities(text, words, valid, tally, place)
    return align_entities(
        text,
        words,
        entities,
        starts=starts,
        sentences=sentences,
        id=id,
        tally=tally,
        place=place,
        extra=extra,
    )


def align_entities(
    text: str,
    words: Sequence[Span],
    entities: Sequence[Entity],
    *,
    starts: Iterable[int] | None = None,
    sentences: str = "rules",
    id: str | None = None,
    tally: ConversionReport,
    place: str,
    extra: Mapping[str, Any] = NO_EXTRA,
) -> Document:
    """A document of these words, in order, and of entities that count the words of the whole text."""
    if starts is None:
        borders = [part.start for part in split(text, "whitespace", sentences)]
        starts = {bisect_left(words, (border, 0)) for border in borders}
    valid_starts = sorted({0, *starts} & set(range(len(words))))
    joined = joined_borders(valid_starts, entities, tally, place)
    kept = [start for start in valid_starts if start not in joined]
    return Document(word_sentences(text, words, kept, entities), text, id, dict(extra))


def valid_spans(
    text: str, spans: Iterable[LabeledSpan], tally: ConversionReport, place: str
) -> Iterator[LabeledSpan]:
    """The spans without blanks at their borders; those that are invalid or hold only blanks are counted."""
    for span in spans:
        span_place = span.place or place
        try:
            check_span(span, text, span_place)
        except DataError as error:
            tally.bad(error)
            continue
        phrase = text[span.start : span.end]
        if not phrase or phrase.isspace():
            tally.note(BLANK, span_place)
            continue
        start = span.end - len(phrase.lstrip())
        end = span.start + len(phrase.rstrip())
        if (start, end) != (span.start, span.end):
            tally.note(TRIMMED, span_place)
            span = span._replace(start=start, end=end)
        yield span


def check_span(span: LabeledSpan, text: str, place: str) -> None:
    name = f"{place}: entity {span.start!r:.20}-{span.end!r:.20} {span.label!s:.40}"
    head = span.head or (span.start, span.end)
    if not all(type(offset) is int for offset in (span.start, span.end, *head)):
        raise DataError(f"{name} has an offset that is not a whole number. Offsets count characters from 0.")
    if not isinstance(span.label, str) or not span.label:
        raise DataError(f"{name.rstrip()} has no label. It must be a string that is not empty.")
    if span.start < 0:
        raise SpanRangeError(f"{name} begins before the text. Offsets count characters from 0.")
    if span.end < span.start:
        raise EmptySpanError(f"{name} ends before it begins. Exchange its start and its end.")
    if span.end > len(text):
        raise SpanRangeError(
            f"{name} ends after the text, which has {len(text)} characters. Offsets count characters, not bytes, "
            "of the text as it stands in the file."
        )
    if not span.start <= head[0] <= head[1] <= span.end:
        raise DataError(f"{name} has its head at {head[0]}-{head[1]}, and not inside. Mark a part of it.")


def joined_borders(
    borders: Sequence[int],
    spans: Iterable[LabeledSpan | Entity],
    tally: ConversionReport,
    place: str,
) -> set[int]:
    """The borders that fall inside a span. Each is counted once, at the place of the first span around it."""
    joined: set[int] = set()
    done = 0  # how many borders were looked at
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        first, last = max(done, bisect_right(borders, span.start)), bisect_left(borders, span.end)
        if first < last:
            tally.note(JOINED, getattr(span, "place", None) or place, last - first)
            joined.update(borders[first:last])
            done = last
    return joined


def word_entities(
    text: str, words: Sequence[Span], spans: Iterable[LabeledSpan], tally: ConversionReport, place: str
) -> list[Entity]:
    """An entity for each span, of all words that share a character with it."""
    entities = []
    for span in spans:
        span_place = span.place or place
        first, last = overlapping_words(words, span.start, span.end)
        if first == last:
            tally.note(NO_WORD, span_place)
            continue
        if (words[first][0], words[last - 1][1]) != (span.start, span.end):
            tally.note(WIDENED, span_place)
        heads = range(0)
        if span.head is not None and text[slice(*span.head)].strip():
            heads = range(*overlapping_words(words, *span.head))
        elif span.head is not None:
            tally.note(BLANK_HEAD, span_place)
        head, several = (heads[0], ()) if len(heads) == 1 else (None, tuple(heads))
        try:
            entities.append(Entity(first, last, span.label, head, span.score, several, dict(span.extra)))
        except DataError as error:
            tally.bad(error.at(span_place))
    return entities


def overlapping_words(words: Sequence[Span], start: int, end: int) -> Span:
    """The words that share a character with this span: the first, and the one after the last."""
    return bisect_right(words, start, key=lambda word: word[1]), bisect_left(words, (end, 0))


def word_sentences(
    text: str, words: Sequence[Span], starts: Sequence[int], entities: Iterable[Entity]
) -> tuple[Sentence, ...]:
    """The sentences that begin at these words; entities count the words of the whole text."""
    by_sentence: list[list[Entity]] = [[] for _ in starts]
    for e in entities:
        k = bisect_right(starts, e.start) - 1
        first = starts[k]
        head = None if e.head is None else e.head - first
        heads = tuple(head - first for head in e.heads)
        shifted = build(Entity, e.start - first, e.end - first, e.label, head, e.score, heads, e.extra)
        by_sentence[k].append(shifted)
    sentences = []
    for (first, last), inside in zip(pairwise([*starts, len(words)]), by_sentence, strict=True):
        start, end = words[first][0], words[last - 1][1]
        sentences.append(
            Sentence(
                tuple(text[i:j] for i, j in words[first:last]),
                tuple(inside),
                text[start:end],
                tuple((i - start, j - start) for i, j in words[first:last]),
                start,
            )
        )
    return tuple(sentences)


UNITS = ("characters", "utf-16", "graphemes")
AMBIGUOUS_OFFSETS = "offsets in a text with emoji taken as characters: some tools count UTF-16 units"


def to_code_points(text: str, unit: str) -> Callable[[int], int]:
    """A function from offsets in this unit to offsets in characters (code points).

    Offsets before or after the text stay outside of it.
    """
    if unit not in UNITS:
        raise InputError(f"offsets cannot count {unit!r}. Choose one of {', '.join(UNITS)}.")
    if unit == "utf-16" and has_surrogate_pairs(text):
        utf16 = list(accumulate((1 + (c > "\uffff") for c in text), initial=0))  # offset of each character
        return lambda offset: bisect_right(utf16, offset) - 1 + max(0, offset - utf16[-1])
    if unit == "graphemes" and not (text.isascii() and "\r\n" not in text):
        import regex

        starts = [match.start() for match in regex.finditer(r"\X", text)] + [len(text)]
        return lambda offset: (
            starts[offset] if 0 <= offset < len(starts) else offset + len(text) * (offset > 0)
        )
    return lambda offset: offset


def has_surrogate_pairs(text: str) -> bool:
    """Whether some characters take two units of UTF-16."""
    return not text.isascii() and max(text) > "\uffff"


class Token(NamedTuple):
    """A token of spaCy or Prodigy: tokens and the blanks after them spell the whole text."""

    start: int
    end: int
    blank: bool  # a single blank follows
    word: int | None  # the index of the word; None: text between words


def tokens(text: str, words: Iterable[Span]) -> list[Token]:
    """The words of a text, and what stands between them except single blanks.

    >>> [(text, token.blank, token.word) for token in tokens("a b\\n\\nc", [(0, 1), (2, 3), (5, 6)])
    ...  for text in ["a b\\n\\nc"[token.start : token.end]]]
    [('a', True, 0), ('b', False, 1), ('\\n\\n', False, None), ('c', False, 2)]
    """
    result: list[Token] = []
    previous_end = 0
    for word, (start, end) in [*enumerate(words), (None, (len(text), len(text)))]:
        for match in re.finditer(r"\s+|\S+", text[previous_end:start]):
            first, last = previous_end + match.start(), previous_end + match.end()
            if result and text[first] == " ":
                result[-1] = result[-1]._replace(blank=True)
                first += 1
            if first < last:
                result.append(Token(first, last, False, None))
        if word is not None:
            result.append(Token(start, end, False, word))
        previous_end = end
    return result


def note_stray_tokens(pieces: Iterable[Token], text: str, tally: ConversionReport, place: str) -> None:
    """Count the tokens that are neither words nor blanks: readers of the file take them for words."""
    strays = sum(t.word is None and not text[t.start : t.end].isspace() for t in pieces)
    if strays:
        tally.note("characters that belong to no word written as words", place, strays)


class Passage(NamedTuple):
    """A part of a text; no sentence runs across its border."""

    start: int  # in the text of the document
    text: str
    sentence: bool = False  # it is one sentence, and not to be split


def whole_text(passages: Iterable[Passage], place: str) -> str:
    """The text of a document; gaps between its passages are filled with line breaks."""
    parts: list[str] = []
    end = missing = 0
    for passage in passages:
        if passage.start < end:
            raise DataError(
                f"{place}: the passage at offset {passage.start} begins inside the one before, which ends at "
                f"{end}. Offsets must count characters."
            )
        missing += passage.start - end
        if missing > MAX_GAP:
            raise DataError(
                f"{place}: the passage at offset {passage.start} begins far behind the one before, which ends at "
                f"{end}: more than {MAX_GAP:,} characters of this document are missing. Offsets must count "
                "characters."
            )
        parts += ["\n" * (passage.start - end), passage.text]
        end = passage.start + len(passage.text)
    return "".join(parts)


def align_to_passages(
    text: str,
    passages: Sequence[Passage],
    spans: Iterable[LabeledSpan],
    *,
    words: str,
    sentences: str,
    id: str | None = None,
    tally: ConversionReport,
    place: str,
    extra: Mapping[str, Any] = NO_EXTRA,
) -> Document:
    """A document of these passages, in order; `text` is their `whole_text`. A span across a border joins passages."""
    valid = sorted(valid_spans(text, spans, tally, place), key=lambda span: span.start)
    joined = joined_borders([passage.start for passage in passages[1:]], valid, tally, place)
    groups: list[list[Passage]] = []
    for passage in passages:
        if groups and passage.start in joined:
            groups[-1].append(passage)
        else:
            groups.append([passage])
    starts = [group[0].start for group in groups]
    spans_in: list[list[LabeledSpan]] = [[] for _ in groups]
    for span in valid:
        k = max(0, bisect_right(starts, span.start) - 1)
        start = starts[k]
        head = span.head and (span.head[0] - start, span.head[1] - start)
        spans_in[k].append(span._replace(start=span.start - start, end=span.end - start, head=head))
    all_sentences: list[Sentence] = []
    for group, start, inside in zip(groups, starts, spans_in, strict=True):
        part = text[start : group[-1].start + len(group[-1].text)]
        if group[0].sentence:
            pieces = split(part, words, keep=[(0, len(part))])
            part_words = [word for piece in pieces for word in piece.words]
            document = align_to_words(part, part_words, inside, starts=[], tally=tally, place=place)
        else:
            document = align_spans(part, inside, words=words, sentences=sentences, tally=tally, place=place)
        all_sentences += [replace(sentence, start=start + sentence.start) for sentence in document.sentences]
    return Document(tuple(all_sentences), text, id, dict(extra))
