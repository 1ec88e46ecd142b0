"""Nested entities as nested boxes in HTML: they run with the text, wrap with it, and go as deep as entities do.

A fragment for notebooks, which pages are made of, too. Without any style it still reads: labels follow what they label,
and heads are underlined.
"""

from collections.abc import Mapping, Sequence
from html import escape

from nestree.sentence import Document, TextEntity
from nestree.show.characters import direction, on_one_line, visible
from nestree.show.labels import Colours
from nestree.show.nesting import Box, Edge, Stretch, boxes_of, laid_out
from nestree.show.style import BOXES
from nestree.show.trees import short, shortened

BLANK = "\N{NO-BREAK SPACE}"
LONGEST = 60  # columns of a word in what is shown on hovering

SWITCH = '<label class="switch"><input type="checkbox">show probabilities</label>'


def boxes(document: Document) -> str:
    """The text of a document with a box around each entity: HTML that a notebook shows as it is.

    >>> from nestree.sentence import Entity, Sentence
    >>> "California" in boxes(Document([Sentence(["California"], [Entity(0, 1, "GPE")])]))
    True
    """
    switch = f"<div>{SWITCH}</div>" if has_scores([document]) else ""
    return f'<div class="nestree"><style>{BOXES}</style>{flow(document, Colours())}{switch}</div>'


def has_scores(documents: Sequence[Document]) -> bool:
    return any(entity.score is not None for document in documents for entity in document.entities)


def flow(document: Document, colours: Colours, after: Mapping[int, str] | None = None) -> str:
    """The text as it runs; `after` has what is to stand behind the sentences with these numbers.

    What is written in the other direction than the text around it, a sentence or an entity, says so.
    """
    document = document.with_text()
    text, entities = document.text or "", document.entities
    main = direction(text)
    parts, at, k = [], 0, 0
    for number, sentence in enumerate(document.sentences):
        end = sentence.start + len(sentence.text or "")
        first = k
        while k < len(entities) and entities[k].start < end:
            k += 1
        parts.append(written(text[at : sentence.start]))
        own = direction(sentence.text or "", main)
        drawn = nested(text, entities[first:k], sentence.start, end, colours, own)
        parts.append(drawn if own == main else f'<span class="s" dir="{own}">{drawn}</span>')
        parts.append(after.get(number, "") if after else "")
        at = end
    return f'<div class="text" dir="{main}">{"".join(parts)}{written(text[at:])}</div>'


def nested(
    text: str, entities: Sequence[TextEntity], start: int, end: int, colours: Colours, around: str
) -> str:
    """The text from start to end, its entities in boxes; `around` is its direction."""
    layout = laid_out(entities, start, end)
    boxes = iter(boxes_of([part for part in layout if isinstance(part, Edge)]))
    directions = [around]
    parts = []
    for part in layout:
        if isinstance(part, Stretch):
            words = written(text[part.start : part.end])
            twice = " twice" if len(part.head_of) > 1 else ""
            parts.append(f'<u class="head{twice}">{words}</u>' if part.head_of else words)
        elif part.opens:
            own = direction(part.entity.text, directions[-1])
            parts.append(opening(part, next(boxes), colours, "" if own == directions[-1] else own))
            directions.append(own)
        else:
            directions.pop()
            parts.append(label(part) + "</span>")
    return "".join(parts)


def opening(edge: Edge, box: Box, colours: Colours, turned: str) -> str:
    kind = f"e c{colours[edge.entity.label]}" + " from" * edge.cut + " on" * box.cut
    way = f' dir="{turned}"' if turned else ""
    return f'<span class="{kind}"{way} style="--h:{box.height}" title="{escape(told(edge.entity))}">'


def told(entity: TextEntity) -> str:
    """All that there is to say of an entity, line by line."""
    lines = [f"{name} {score:.3f}" if score is not None else name for name, score in named(entity)]
    if entity.head:
        lines.append(f"head: {shortened(on_one_line(entity.head.text), LONGEST)}")
    return "\n".join(lines)


def named(entity: TextEntity) -> list[tuple[str, float | None]]:
    return [(on_one_line(name), score) for name, score in zip(entity.labels, entity.scores, strict=True)]


def label(edge: Edge) -> str:
    """The labels of an entity, where it ends or is cut; blanks part them from the words where there is no style."""
    names = ", ".join(
        escape(name) + ("" if score is None else f"<i>{BLANK}{short(score)}</i>")
        for name, score in named(edge.entity)
    )
    return f'<small class="label">{BLANK}<bdi>{"…" * edge.cut}{names}</bdi></small>'


def written(text: str) -> str:
    """As a browser reads it back: the text itself."""
    return escape(visible(text), quote=False).replace("\r", "&#13;")
