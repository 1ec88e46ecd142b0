"""What the formats share: skipping bad records, checking options and fields, comparing phrases, JSON output."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nestree.data.io import ConversionReport, read_lines_or_errors
from nestree.errors import DataError, InputError
from nestree.types import Document, Entity, Sentence, Span, shift_sentence

FRAGMENTS_JOINED = "fragments joined: the entity holds what is between them, too"
NOT_COMPARED = "annotations without their text: not compared"
STRAY_TAGS = "tags that continue no entity: taken as the beginning of one"
TEXT_NOT_KEPT = "texts not kept: the words do not follow each other in them"


@contextmanager
def skip_bad(tally: ConversionReport) -> Iterator[None]:
    """A DataError within this ends the block: `tally` records it, or raises it if bad records are not skipped."""
    try:
        yield
    except DataError as error:
        tally.bad(error)


@contextmanager
def locate_errors(place: str) -> Iterator[None]:
    """A DataError within this, which says what is wrong but not where, begins with the place."""
    try:
        yield
    except DataError as error:
        raise error.at(place) from None


def check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        names = ", ".join(choice for choice in choices if choice)
        raise InputError(f"{option} is one of {names}, not {value!r}.")


def find_files(path: Path, pattern: str, layout: str) -> list[Path]:
    """The file itself, or the files in a folder and its subfolders, sorted. `layout` is the advice if there is none."""
    if not path.is_dir():
        return [path]
    files = sorted(path.rglob(pattern))
    if not files:
        raise DataError(f"{path} holds no {pattern.removeprefix('*')} file. {layout}")
    return files


def line_blocks(path: Path) -> Iterator[list[tuple[int, str | DataError]]]:
    """The numbered lines between blank lines; the error of each line that cannot be decoded."""
    block: list[tuple[int, str | DataError]] = []
    for number, line in read_lines_or_errors(path):
        if isinstance(line, DataError) or line.strip():
            block.append((number, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


def optional_str(value: Any) -> str | None:
    return None if value is None else str(value)


def require_text(record: dict[str, Any], place: str) -> str:
    """The text of a JSON record."""
    if not isinstance(record.get("text"), str):
        raise DataError(f"{place}: a record needs a `text`, and has {', '.join(record)[:60] or 'nothing'}.")
    return str(record["text"])


def require_offsets(span: dict[str, Any], place: str) -> Span:
    """The start and end of a JSON object."""
    start, end = span.get("start"), span.get("end")
    if type(start) is not int or type(end) is not int:
        raise DataError(f"{place}: a span needs `start` and `end` in characters: {span!r:.80}.")
    return start, end


def check_phrase(
    phrase: str, fragments: Sequence[Span], text: str, place: str, source: Path | str = "the text"
) -> None:
    """Raise if the phrase that an annotation repeats is not at its offsets. Blanks count as equal.

    Offsets outside of the text are left to the alignment, which has a better message for them.
    """
    inside = all(start >= 0 and end <= len(text) for start, end in fragments)
    actual = " ".join(text[start:end] for start, end in fragments)
    if inside and actual.split() != phrase.split():
        raise DataError(
            f"{place}: the annotation says {phrase!r:.60}, but at its offsets {source} says {actual!r:.60}. "
            "Offsets must count characters (not bytes), and the text must be the one that was annotated."
        )


def join_fragments(fragments: Iterable[Span], text: str, tally: ConversionReport, place: str) -> Span:
    """The span from the first fragment to the last."""
    fragments = sorted(fragments)
    gaps = [text[max(0, end) : max(0, start)] for (_, end), (start, _) in itertools.pairwise(fragments)]
    if any(gap.strip() for gap in gaps):
        tally.note(FRAGMENTS_JOINED, place)
    return fragments[0][0], max(end for _, end in fragments)


def locate_words(words: Iterable[Any], text: str) -> tuple[Span, ...]:
    """The offsets of words that follow each other in a text with only blanks between them."""
    offsets, at = [], 0
    for word in words:
        start = text.find(word, at) if isinstance(word, str) else -1
        if start < 0 or text[at:start].strip():
            raise DataError(
                f"word {word!r:.40} does not come next in `text`: {text[at : at + 40]!r}. Give the `offsets` of "
                "the words, or leave out `text`."
            )
        at = start + len(word)
        offsets.append((start, at))
    return tuple(offsets)


def join_sentences(sentences: Iterable[tuple[str, Sentence]], after: str = "") -> tuple[list[Sentence], str]:
    """Sentences shifted to their place in the text of the document, and this text.

    Each comes with the characters before it; `after` follows the last one.
    """
    text, shifted = "", []
    for before, sentence in sentences:
        text += before
        shifted.append(shift_sentence(sentence, len(text)))
        text += sentence.text or ""
    return shifted, text + after


def mark_incomplete(document: Document) -> Document:
    """The document; entities may be missing in each of its sentences."""
    return replace(document, sentences=tuple(replace(s, complete=False) for s in document.sentences))


def entity_offsets(document: Document) -> Iterator[tuple[Entity, int, int]]:
    """Each entity with its start and end in the text of the document."""
    for sentence in document.sentences:
        for entity in sentence.entities:
            yield entity, *sentence.characters(entity)


def word_offsets(document: Document) -> list[Span]:
    """The start and end of each word in the text of the document."""
    return [(s.start + i, s.start + j) for s in document.sentences for i, j in s.offsets or ()]


def replace_forbidden(
    text: str, pattern: str, change: str, tally: ConversionReport, place: str, by: str = "_"
) -> str:
    """The text without the characters that a format has no place for; `change` is the phrase to count it under."""
    replaced = re.sub(pattern, by, text)
    if replaced != text:
        tally.note(change, place)
    return replaced


def dump_json(record: Mapping[str, Any], place: str) -> str:
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as why:
        raise DataError(f"{place}: `extra` holds what JSON cannot: {why}.") from None
