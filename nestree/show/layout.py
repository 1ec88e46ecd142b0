"""Characters that need care wherever text is drawn: those that steer, those that cannot be written, directions."""

import difflib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple
from zlib import crc32

from nestree.errors import InputError
from nestree.types import CharSpan, Document, TextEntity

# All control characters but the ends of lines and tabs, and halves of surrogate pairs.
UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
STRAY = "\N{REPLACEMENT CHARACTER}"


def escape_invisible(text: str) -> str:
    """As long as the text, without what could steer a terminal or cannot be written as UTF-8.

    >>> escape_invisible("a\\x00b")
    'a�b'
    """
    return UNSEEN.sub(STRAY, text)


def on_one_line(text: str) -> str:
    """For words and labels, which stand alone: without ends of lines, too, and without what turns what comes after."""
    return re.sub("[\t\n\r\u2028\u2029]", STRAY, isolate_direction(escape_invisible(text)))


def isolate_direction(text: str) -> str:
    """Without the characters that give directions to others, and might give them to what is not part of the text."""
    return re.sub("[\u202a-\u202e\u2066-\u2069]", STRAY, text)


def direction(text: str, otherwise: str = "ltr") -> str:
    """`ltr` or `rtl`, left to right or right to left: its first letter tells.

    >>> direction("... שלום, world"), direction("hello שלום"), direction("1.2", "rtl")
    ('rtl', 'ltr', 'rtl')
    """
    for character in text:
        kind = unicodedata.bidirectional(character)
        if kind in ("L", "R", "AL"):
            return "ltr" if kind == "L" else "rtl"
    return otherwise


PALETTE = 12  # on a page and in a terminal


class LabelColors:
    """Gives each label the number of a colour, from 0 on, when it is first asked for.

    A label likes one colour everywhere. If that is taken, it gets the next; labels share colours when all are taken.

    >>> colours = LabelColors()
    >>> [colours[label] for label in ("PER", "ORG", "GPE", "PER")]
    [10, 11, 0, 10]
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __getitem__(self, label: str) -> int:
        if label not in self.numbers:
            liked = crc32(label.encode("utf-8", "surrogatepass")) % PALETTE
            taken = set(self.numbers.values())
            order = [(liked + k) % PALETTE for k in range(PALETTE)]
            self.numbers[label] = next((number for number in order if number not in taken), liked)
        return self.numbers[label]


class Edge(NamedTuple):
    """An entity, or a part of it, opens or closes."""

    at: int  # a character of the text
    opens: bool
    entity: TextEntity
    cut: bool  # not where the entity begins or ends: another one crosses it here


def edges(entities: Iterable[TextEntity]) -> list[Edge]:
    """In the order of the text, as brackets that match."""
    starting: defaultdict[int, list[TextEntity]] = defaultdict(list)
    ends = set()
    for entity in entities:
        starting[entity.start].append(entity)
        ends.add(entity.end)
    found: list[Edge] = []
    around: list[TextEntity] = []  # the open ones, the outermost first
    for at in sorted({*starting, *ends}):
        cut: list[TextEntity] = []
        lowest = next((k for k, entity in enumerate(around) if entity.end == at), len(around))
        while len(around) > lowest:
            entity = around.pop()
            found.append(Edge(at, False, entity, entity.end > at))
            cut += [entity] if entity.end > at else []
        opening = sorted([*reversed(cut), *starting.get(at, ())], key=lambda entity: -entity.end)
        found += [Edge(at, True, entity, entity.start < at) for entity in opening]
        around += opening
    return found


class Box(NamedTuple):
    """What a box has to know when it opens."""

    height: int  # how many boxes it holds, one inside the other
    cut: bool  # at its end: the entity goes on in another box


def boxes_of(found: Sequence[Edge]) -> list[Box]:
    """The boxes of these edges, in the order in which they open."""
    boxes: list[Box] = []
    opened: list[int] = []
    for edge in found:
        if edge.opens:
            opened.append(len(boxes))
            boxes.append(Box(0, False))
            continue
        inner = opened.pop()
        boxes[inner] = boxes[inner]._replace(cut=edge.cut)
        if opened:
            outer = opened[-1]
            boxes[outer] = Box(max(boxes[outer].height, boxes[inner].height + 1), False)
    return boxes


def heads(entities: Iterable[TextEntity]) -> dict[CharSpan, list[TextEntity]]:
    """The words that are heads, in the order of the text, and of which entities."""
    found: defaultdict[CharSpan, list[TextEntity]] = defaultdict(list)
    for entity in entities:
        if entity.head is not None:
            found[entity.head].append(entity)
    return dict(sorted(found.items()))


class Segment(NamedTuple):
    """A stretch of the text between two edges, part of a head word or not; never empty."""

    start: int
    end: int
    head_of: Sequence[TextEntity]


def lay_out_boxes(entities: Sequence[TextEntity], start: int, end: int) -> list[Edge | Segment]:
    """The text from start to end, cut at its edges and heads: everything that there is to draw, in order."""
    marks = iter([*heads(entities).items(), (CharSpan(end, end, ""), [])])
    mark, of = next(marks)
    found: list[Edge | Segment] = []
    at = start

    def up_to(goal: int) -> None:
        nonlocal at, mark, of
        while at < goal:
            inside = mark.start <= at
            until = min(goal, mark.end if inside else mark.start)
            found.append(Segment(at, until, of if inside else ()))
            at = until
            if at >= mark.end and at < end:
                mark, of = next(marks)

    for edge in edges(entities):
        up_to(edge.at)
        found.append(edge)
    up_to(end)
    return found


def select_documents(documents: Iterable[Document], ids: Collection[str]) -> list[Document]:
    """The documents with these ids; of others, the sentences with these ids.

    >>> from nestree.types import Sentence
    >>> document = Document([Sentence(["a"], id="x"), Sentence(["b"], id="y")])
    >>> [str(sentence) for found in select_documents([document], ["y"]) for sentence in found.sentences]
    ['b']
    """
    found, seen, known = [], set(), set()
    for document in documents:
        names = {sentence.id for sentence in document.sentences if sentence.id is not None}
        known |= names if document.id is None else {*names, document.id}
        seen |= {id for id in ids if id == document.id or id in names}
        if document.id in ids:
            found.append(document)
        elif sentences := [sentence for sentence in document.sentences if sentence.id in ids]:
            found.append(Document(tuple(sentences), None, document.id, document.extra))
    for id in ids:
        if id not in seen:
            close = difflib.get_close_matches(id, sorted(known), n=1)
            has = f"Is {close[0]} meant?" if close else "It has " + (some(known) or "no ids at all") + "."
            raise InputError(f"no document and no sentence has the id {id}. {has}")
    return found


def some(names: Collection[str]) -> str:
    first = sorted(names)[:5]
    return ", ".join(first) + (f" and {len(names) - 5:,} others" if len(names) > 5 else "")


def first_sentences(documents: Iterable[Document], sentences: int) -> Iterator[Document]:
    """The first so many sentences, in their documents; what comes after them is not read."""
    left = sentences
    for document in documents:
        if len(document.sentences) >= left:
            yield beginning(document, left)
            return
        left -= len(document.sentences)
        yield document


def beginning(document: Document, sentences: int) -> Document:
    """The document up to the end of its n-th sentence."""
    if sentences >= len(document.sentences):
        return document
    kept = document.sentences[:sentences]
    text = document.text
    if text is not None:
        text = text[: kept[-1].start + len(kept[-1].text or "")]
    return replace(document, sentences=kept, text=text)
