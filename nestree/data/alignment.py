"""Alignment of annotated characters with words. Format modules parse files into AnnotatedText; `align` does the rest.

>>> report = ConversionReport()
>>> text = "She left Duffy Inc. They stayed."
>>> document = align(AnnotatedText(text, [Mention(9, 18, "ORG", head=(9, 14))], "a.ann:1"), report)
>>> [(sentence.words, sentence.entities[0]) for sentence in document.sentences if sentence.entities]
[(('She', 'left', 'Duffy', 'Inc.'), Entity(start=2, end=4, label='ORG', head=2, ...))]
>>> report.counts  # the period belongs to the word, and was not marked
Counter({'widened to word boundaries': 1})
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from nestree.data.io import ConversionReport
from nestree.errors import DataError, EmptySpanError, SpanRangeError
from nestree.text import split
from nestree.types import Document, Entity, Sentence, Span, build

MAX_GAP = 1_000_000  # characters that may be missing between the passages of a document

# Changes that a ConversionReport counts.
WIDENED = "widened to word boundaries"
JOINED = "sentences joined around an entity"
FRAGMENTS_JOINED = "fragments joined: the entity holds what is between them, too"
TRIMMED = "spaces at the ends of an entity removed"
BLANK = "dropped: an entity of white space only"
BLANK_HEAD = "dropped: a head of white space only"
OUTSIDE_BODY = "sentences outside of <TEXT> without entities left out"
NARROWED = "narrowed: an entity begins or ends outside of all words"
NO_WORD = "dropped: an entity that holds no word"
NOT_WORDS = "dropped: a forbidden span that is no span of words in a sentence"


class Mention(NamedTuple):
    """An annotated entity in characters of a text; `end` is exclusive."""

    start: int
    end: int
    label: str
    head: Span | None = None  # in characters, too
    score: float | None = None
    extra: Mapping[str, Any] = MappingProxyType({})
    place: str | None = None  # of the annotation, such as file and line; None: that of the text
    phrase: str | None = None  # the text that the annotation repeats, to be compared
    fragments: Sequence[Span] = ()  # if there are several, from `start` to `end`
    heads: Sequence[Span] = ()  # all words that may be the head, in characters

    def matches(self, text: str) -> bool:
        """Whether the phrase, if there is one, is at these offsets of the text. All white space is equal."""
        fragments = self.fragments or [(self.start, self.end)]
        actual = " ".join(text[max(0, start) : max(0, end)] for start, end in fragments)
        return not self.phrase or (self.end <= len(text) and actual.split() == self.phrase.split())


class Passage(NamedTuple):
    """A part of a text; no sentence crosses its boundary."""

    start: int  # in the text of the document
    text: str
    sentence: bool = False  # it is one sentence, and not to be split


@dataclass
class AnnotatedText:
    """A text with mentions and, if the file has them, its words and sentences: what format modules yield."""

    text: str
    mentions: Iterable[Mention]
    place: str
    id: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    complete: bool = True
    source: str = "the text"  # the name of the text in messages
    passages: Sequence[Passage] = ()
    body: Sequence[Span] = ()  # sentences without entities that begin outside of it are left out; (): none
    words: Sequence[Span] | None = None
    starts: Iterable[int] | None = None  # the first word of each sentence, if `words` are given
    entities: Sequence[Entity] = ()  # in these words
    sentence_ids: Sequence[Any] = ()  # used if there is one for each sentence
    only_words: bool = False  # the text was made by joining the words
    forbidden: Sequence[Span] = ()  # spans of characters that are no entities


def align(
    annotated: AnnotatedText, report: ConversionReport | None = None, words: str = "treebank", sentences: str = "rules"
) -> Document:
    """A document of sentences and words, with the mentions as entities of words, in their order.

    Text without given words is split by the rules `words` and `sentences` (see nestree.text). A mention that cuts a
    word is widened to the whole word, and sentences are joined around a mention that crosses their boundary; both are
    counted, and so is each mention that holds no word and is dropped. A head of one word becomes `head`; one of
    several becomes `heads`. Invalid mentions go through `report.bad`.
    """
    report = report or ConversionReport()
    text, place = annotated.text, annotated.place
    mentions = list(valid_mentions(annotated, report))
    if annotated.passages:
        mentions.sort(key=lambda mention: mention.start)
    spans: Sequence[Span]
    if annotated.words is None:
        spans, starts = split_passages(annotated, mentions, report, words, sentences)
        entities = word_entities(text, spans, mentions, report, place, is_split=True)
    else:
        spans = annotated.words
        entities = [*annotated.entities, *word_entities(text, spans, mentions, report, place)]
        given = annotated.starts
        if given is None:
            given = (bisect_left(spans, (part.start, 0)) for part in split(text, "whitespace", sentences))
        starts = sorted({0, *given} & set(range(len(spans))))
        joined = joined_boundaries(starts, entities, report, place)
        starts = [start for start in starts if start not in joined]
    parts = word_sentences(annotated, spans, starts, entities, report)
    if annotated.only_words:
        bare = tuple(replace(part, text=None, offsets=None, start=0) for part in parts)
        return Document(bare, None, annotated.id, annotated.extra)
    if body := annotated.body:
        kept = [part for part in parts if part.entities or any(i <= part.start < j for i, j in body)]
        if len(kept) < len(parts):
            report.note(OUTSIDE_BODY, place, len(parts) - len(kept))
            parts = tuple(kept)
    return Document(parts, text, annotated.id, annotated.extra)


def valid_mentions(annotated: AnnotatedText, report: ConversionReport) -> Iterator[Mention]:
    """The valid mentions, without spaces at their ends; invalid ones and those of white space only are counted."""
    text = annotated.text
    for mention in annotated.mentions:
        place = mention.place or annotated.place
        try:
            check_mention(mention, annotated, place)
        except DataError as error:
            report.bad(error)
            continue
        fragments = sorted(mention.fragments)
        if any(text[end:start].strip() for (_, end), (start, _) in pairwise(fragments)):
            report.note(FRAGMENTS_JOINED, place)
        phrase = text[mention.start : mention.end]
        if not phrase or phrase.isspace():
            report.note(BLANK, place)
            continue
        start, end = mention.end - len(phrase.lstrip()), mention.start + len(phrase.rstrip())
        if (start, end) != (mention.start, mention.end):
            report.note(TRIMMED, place)
            mention = mention._replace(start=start, end=end)
        yield mention


def check_mention(mention: Mention, annotated: AnnotatedText, place: str) -> None:
    text, source = annotated.text, annotated.source
    name = f"{place}: entity {mention.start!r:.20}-{mention.end!r:.20} {mention.label!s:.40}"
    heads = [mention.head, *mention.heads] if mention.head else mention.heads
    if not all(type(offset) is int for span in (mention[:2], *heads) for offset in span):
        raise DataError(f"{name} has an offset that is not a whole number. Offsets count characters from 0.")
    if not isinstance(mention.label, str) or not mention.label:
        raise DataError(f"{name.rstrip()} has no label. It must be a string that is not empty.")
    if mention.start < 0:
        raise SpanRangeError(f"{name} begins before the text. Offsets count characters from 0.")
    if any(end < start for start, end in (*mention.fragments, (mention.start, mention.end))):
        raise EmptySpanError(f"{name} ends before it begins. Exchange its start and its end.")
    if mention.end > len(text):
        raise SpanRangeError(
            f"{name} ends after the text: {source} has {len(text)} characters. Offsets count characters, not bytes, "
            "of the text as it stands in the file."
        )
    if not mention.matches(text):
        actual = " ".join(text[i:j] for i, j in mention.fragments or [(mention.start, mention.end)])
        raise DataError(
            f"{place}: the annotation says {mention.phrase!r:.60}, but at its offsets {source} says {actual!r:.60}. "
            "Offsets must count characters (not bytes), and the text must be the one that was annotated."
        )
    for i, j in heads:
        if not mention.start <= i <= j <= mention.end:
            raise DataError(f"{name} has its head at {i}-{j}, and not inside. Mark a part of it.")


def split_passages(
    annotated: AnnotatedText, mentions: list[Mention], report: ConversionReport, words: str, sentences: str
) -> tuple[list[Span], list[int]]:
    """The words of the text, and the indices of those that begin a sentence; mentions join passages."""
    text, place = annotated.text, annotated.place
    passages = annotated.passages or [Passage(0, text)]
    joined = joined_boundaries([passage.start for passage in passages[1:]], mentions, report, place)
    groups: list[list[Passage]] = []
    for passage in passages:
        if groups and passage.start in joined:
            groups[-1].append(passage)
        else:
            groups.append([passage])
    group_starts = [group[0].start for group in groups]
    mentions_in: list[list[Mention]] = [[] for _ in groups]
    for mention in mentions:
        k = max(0, bisect_right(group_starts, mention.start) - 1)
        shift = group_starts[k]
        mentions_in[k].append(mention._replace(start=mention.start - shift, end=mention.end - shift))
    spans: list[Span] = []
    starts: list[int] = []
    for group, start, inside in zip(groups, group_starts, mentions_in, strict=True):
        part = text[start : group[-1].start + len(group[-1].text)]
        if group[0].sentence:
            pieces = split(part, words, keep=[(0, len(part))])
        else:
            pieces = split(part, words, sentences)
            if joined_boundaries([piece.start for piece in pieces], inside, report, place):
                pieces = split(part, words, sentences, keep=[(m.start, m.end) for m in inside])
        for piece in pieces:
            starts.append(len(spans))
            spans += [(start + i, start + j) for i, j in piece.words] if start else piece.words
    return spans, starts


def joined_boundaries(
    boundaries: Sequence[int], spans: Iterable[Mention | Entity], report: ConversionReport, place: str
) -> set[int]:
    """The boundaries that fall inside a span. Each is counted once, at the place of the first span around it."""
    joined: set[int] = set()
    done = 0  # how many boundaries were looked at
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        first, last = max(done, bisect_right(boundaries, span.start)), bisect_left(boundaries, span.end)
        if first < last:
            report.note(JOINED, getattr(span, "place", None) or place, last - first)
            joined.update(boundaries[first:last])
            done = last
    return joined


def count_fitting_styles(text: str, mention: Mention, report: ConversionReport) -> None:
    """Count the finer word styles that have a word boundary at both ends of this mention."""
    start = 1 + max(text.rfind(space, 0, mention.start) for space in " \n\t")
    end = next((k for k in range(mention.end, len(text)) if text[k].isspace()), len(text))
    for style in ("ud", "split-hyphens"):
        pieces = split(text[start:end], style, "lines")
        spans = [span for piece in pieces for span in piece.words]
        begins = mention.start - start in {i for i, _ in spans}
        report.fitting_styles[style] += begins and mention.end - start in {j for _, j in spans}


def word_entities(
    text: str,
    words: Sequence[Span],
    mentions: Iterable[Mention],
    report: ConversionReport,
    place: str,
    is_split: bool = False,
) -> list[Entity]:
    """An entity for each mention, of all words that share a character with it. `is_split`: by a word style of ours."""

    def head_words(spans: Iterable[Span]) -> list[int]:
        found: dict[int, None] = {}  # each word once
        for span in spans:
            if not text[slice(*span)].strip():
                report.note(BLANK_HEAD, mention_place)
            else:
                found |= dict.fromkeys(range(*overlapping_words(words, *span)))
        return list(found)

    entities = []
    for mention in mentions:
        mention_place = mention.place or place
        first, last = overlapping_words(words, mention.start, mention.end)
        if first == last:
            report.note(NO_WORD, mention_place)
            continue
        start, end = words[first][0], words[last - 1][1]
        if mention.start < start or end < mention.end:
            report.note(NARROWED, mention_place)
        if start < mention.start or mention.end < end:
            report.note(WIDENED, mention_place)
            if is_split:
                count_fitting_styles(text, mention, report)
        one, several = head_words([mention.head] if mention.head else []), head_words(mention.heads)
        head, heads = (one[0], several) if len(one) == 1 else (None, several or one)
        try:
            extra = dict(mention.extra)
            entities.append(Entity(first, last, mention.label, head, mention.score, tuple(heads), extra))
        except DataError as error:
            report.bad(error.at(mention_place))
    return entities


def overlapping_words(words: Sequence[Span], start: int, end: int) -> Span:
    """The words that share a character with this span: the first, and the one after the last."""
    return bisect_right(words, start, key=lambda word: word[1]), bisect_left(words, (end, 0))


def word_sentences(
    annotated: AnnotatedText,
    words: Sequence[Span],
    starts: Sequence[int],
    entities: Iterable[Entity],
    report: ConversionReport,
) -> tuple[Sentence, ...]:
    """The sentences that begin at these words; entities count the words of the whole text."""
    text, complete, boundaries, sentences = annotated.text, annotated.complete, [*starts, len(words)], []
    ids = annotated.sentence_ids if len(annotated.sentence_ids) == len(starts) else [None] * len(starts)
    by_sentence: list[list[Entity]] = [[] for _ in starts]
    forbidden: list[list[Span]] = [[] for _ in starts]
    for e in entities:
        k = bisect_right(starts, e.start) - 1
        first = starts[k]
        head = None if e.head is None else e.head - first
        heads = tuple(head - first for head in e.heads)
        shifted = build(Entity, e.start - first, e.end - first, e.label, head, e.score, heads, e.extra)
        by_sentence[k].append(shifted)
    for start, end in annotated.forbidden:
        first, last = overlapping_words(words, start, end)
        k = bisect_right(starts, first) - 1
        fits = first < last and (words[first][0], words[last - 1][1]) == (start, end)
        if fits and last <= boundaries[k + 1]:
            forbidden[k].append((first - starts[k], last - starts[k]))
        else:
            report.note(NOT_WORDS, annotated.place)  # no model can predict it
    for k, (first, last) in enumerate(pairwise(boundaries)):
        start, end = words[first][0], words[last - 1][1]
        forms = [text[i:j] for i, j in words[first:last]]
        offsets = [(i - start, j - start) for i, j in words[first:last]]
        part, id = text[start:end], str(ids[k]) if ids[k] else None
        try:
            sentence = Sentence(forms, by_sentence[k], part, offsets, start, id, complete, forbidden=forbidden[k])
        except DataError as error:
            raise error.at(annotated.place) from None
        sentences.append(sentence)
    return tuple(sentences)


def join_passages(passages: Iterable[Passage]) -> str:
    """The text of a document; gaps between its passages are filled with line breaks."""
    parts: list[str] = []
    end = missing = 0
    for passage in passages:
        missing += passage.start - end
        if passage.start < end or missing > MAX_GAP:
            problem = f"inside the one before, which ends at {end}"
            if passage.start >= end:
                problem = f"far behind the one before: more than {MAX_GAP:,} characters of this document are missing"
            raise DataError(f"the passage at offset {passage.start} begins {problem}. Offsets must count characters.")
        parts += ["\n" * (passage.start - end), passage.text]
        end = passage.start + len(passage.text)
    return "".join(parts)


Unit = Literal["characters", "utf-16", "graphemes"]  # of offsets
AMBIGUOUS_OFFSETS = "offsets in a text with emoji taken as characters: some tools count UTF-16 units"


def to_code_points(text: str, unit: Unit) -> Callable[[int], int]:
    """A function from offsets in this unit to offsets in characters (code points).

    Offsets before or after the text stay outside of it.
    """
    if unit == "utf-16" and has_surrogate_pairs(text):
        utf16 = list(accumulate((1 + (c > "\uffff") for c in text), initial=0))  # offset of each character
        return lambda offset: bisect_right(utf16, offset) - 1 + max(0, offset - utf16[-1])
    if unit == "graphemes" and not (text.isascii() and "\r\n" not in text):
        import regex

        starts = [match.start() for match in regex.finditer(r"\X", text)] + [len(text)]
        return lambda offset: starts[offset] if 0 <= offset < len(starts) else offset + len(text) * (offset > 0)
    return lambda offset: offset


def has_surrogate_pairs(text: str) -> bool:
    """Whether some characters take two units of UTF-16."""
    return not text.isascii() and max(text) > "\uffff"


class Token(NamedTuple):
    """A token of spaCy or Prodigy: tokens and the spaces after them spell the whole text."""

    start: int
    end: int
    space: bool  # a single space follows
    word: int | None  # the index of the word; None: text between words


def tokens(text: str, words: Iterable[Span], report: ConversionReport) -> list[Token]:
    """The words of a text, and what stands between them except single spaces.

    Tokens that are neither words nor white space are counted: readers of the file take them for words.

    >>> [(token.start, token.end, token.space, token.word)
    ...  for token in tokens("a b\\n\\nc", [(0, 1), (2, 3), (5, 6)], ConversionReport())]
    [(0, 1, True, 0), (2, 3, False, 1), (3, 5, False, None), (5, 6, False, 2)]
    """
    result: list[Token] = []
    previous_end = 0
    for word, (start, end) in [*enumerate(words), (None, (len(text), len(text)))]:
        for match in re.finditer(r"\s+|\S+", text[previous_end:start]):
            first, last = previous_end + match.start(), previous_end + match.end()
            if not match[0].isspace():
                report.note("characters that belong to no word written as words")
            if result and text[first] == " ":
                result[-1] = result[-1]._replace(space=True)
                first += 1
            if first < last:
                result.append(Token(first, last, False, None))
        if word is not None:
            result.append(Token(start, end, False, word))
        previous_end = end
    return result
