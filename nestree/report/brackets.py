"""An error in HTML: its words in a row, gold entities as brackets above them, predicted ones below."""

from collections.abc import Iterable, Iterator
from html import escape
from typing import NamedTuple

from nestree.evaluation import Mistake
from nestree.evaluation.alignment import named
from nestree.report.examples import described, levels, window
from nestree.sentence import Entity, Sentence


class Bracket(NamedTuple):
    """An entity as it is drawn."""

    level: int  # 0: next to the words
    start: int  # words that are shown, from 0
    end: int
    label: str
    style: str


def example(mistake: Mistake) -> str:
    """One error; the brackets in question stand out."""
    start, end = window(mistake)
    words = list(mistake.sentence.words[start:end])
    above = list(placed(mistake.sentence, mistake.gold, mistake))
    below = list(placed(mistake.prediction, mistake.predicted, mistake))
    middle = 2 + max((bracket.level for bracket in above), default=-1)  # the row of the words
    cells = [
        *(drawn(bracket, middle - 1 - bracket.level, "above") for bracket in above),
        *(cell(middle, 3 + k, 4 + k, "word", word) for k, word in enumerate(words)),
        *(drawn(bracket, middle + 1 + bracket.level, "below") for bracket in below),
    ]
    if above:
        cells.append(cell(middle - 1, 1, 2, "side", "gold"))
    if below:
        cells.append(cell(middle + 1, 1, 2, "side", "predicted"))
    if start:
        cells.append(cell(middle, 2, 3, "word", "…"))
    if end < len(mistake.sentence.words):
        cells.append(cell(middle, 3 + len(words), 4 + len(words), "word", "…"))
    caption = f"{named(mistake.number, mistake.sentence)}: {described(mistake)}"
    return (
        f'<figure class="example"><figcaption>S{escape(caption[1:])}</figcaption>'
        + scrolling(caption, f'<div class="words">{"".join(cells)}</div>')
        + "</figure>"
    )


def placed(sentence: Sentence, concerned: Entity | None, mistake: Mistake) -> Iterator[Bracket]:
    """The entities that have words among those shown, cut where these end."""
    start, end = window(mistake)
    entities = unique(e for e in sentence.entities if e.start < end and start < e.end)
    for entity, level in zip(entities, levels([e.span for e in entities]), strict=True):
        style = "wrong" if entity == concerned else "other"
        style += " cut-left" if entity.start < start else ""
        style += " cut-right" if entity.end > end else ""
        label = entity.label
        if mistake.kind == "head" and entity == concerned:
            label += f", head {sentence.words[entity.head]}" if entity.head is not None else ", no head"
        yield Bracket(level, max(entity.start, start) - start, min(entity.end, end) - start, label, style)


def unique(entities: Iterable[Entity]) -> list[Entity]:
    """Each span and label once."""
    return list({(e.start, e.end, e.label): e for e in entities}.values())


def drawn(bracket: Bracket, row: int, side: str) -> str:
    style = f"bracket {side} {bracket.style}"
    return cell(row, 3 + bracket.start, 3 + bracket.end, style, bracket.label)


def cell(row: int, column: int, until: int, style: str, content: str) -> str:
    return (
        f'<span class="{style}" style="grid-area:{row}/{column}/{row + 1}/{until}">{escape(content)}</span>'
    )


def scrolling(name: str, content: str) -> str:
    """Content that may be wider than the page; reachable by keyboard."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">{content}</div>'
