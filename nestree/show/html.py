"""Documents as HTML: nested boxes in a notebook, and pages. Templates and styles are in `templates`.

Boxes and trees have no background of their own: they are drawn on that of the notebook or the page, light or dark.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from nestree import __version__
from nestree.show.layout import (
    HTML_COLORS,
    Edge,
    LabelColors,
    escape_invisible,
    format_probability,
    lay_out,
    lexicalized_spans,
    single_line,
    text_direction,
)
from nestree.show.svg import draw_svg
from nestree.types import Document, TextEntity

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_OPEN_TREES = 3  # a page with more trees opens with all of them folded


def render(template: str, **values: object) -> str:
    """Render a template, such as "show/templates/page.html.jinja"; every value is escaped for HTML."""
    return environment().get_template(template).render(values)


@cache
def environment() -> "Environment":
    """The Jinja environment of all pages; its templates are named by their paths in the package."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup, escape

    def verbatim(text: str) -> Markup:
        """Text that a browser reads back unchanged; it would turn a bare carriage return into a line feed."""
        return escape(escape_invisible(text)).replace("\r", Markup("&#13;"))

    jinja = Environment(
        loader=FunctionLoader(lambda name: files("nestree").joinpath(name).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters.update(short=format_probability, single_line=single_line, verbatim=verbatim)
    jinja.globals.update(label_colors=HTML_COLORS, version=__version__)
    return jinja


def draw_boxes(document: Document) -> str:
    """The text of a document with a box around each entity, as HTML for a notebook.

    >>> from nestree.types import Entity, Sentence
    >>> "California" in draw_boxes(Document([Sentence(["California"], [Entity(0, 1, "GPE")])]))
    True
    """
    values = text_values(document, LabelColors())
    return render("show/templates/boxes.html.jinja", scored=has_scores(document), **values)


def draw_page(documents: Sequence[Document], title: str = "Nested entities") -> str:
    """A complete HTML page that needs no other files.

    >>> draw_page([Document([])], "empty").startswith("<!DOCTYPE html>")
    True
    """
    documents = [document.with_text() for document in documents]
    entities = [entity for document in documents for entity in document.entities]
    counts = Counter(label for entity in entities for label in entity.labels)
    colors = LabelColors()
    trees = sum(sentence.tree is not None for document in documents for sentence in document.sentences)
    return render(
        "show/templates/page.html.jinja",
        title=title,
        legend=[(label, colors[label], count) for label, count in counts.most_common()],
        documents=[document_values(document, k, colors) for k, document in enumerate(documents, 1)],
        sentences=sum(len(document.sentences) for document in documents),
        entities=len(entities),
        open_trees=trees <= MAX_OPEN_TREES,
        scored=any(map(has_scores, documents)),
        headed=any(entity.head for entity in entities),
        crossing=any(has_crossing(document.entities) for document in documents),
    )


def has_scores(document: Document) -> bool:
    return any(entity.score is not None for entity in document.entities)


def has_crossing(entities: Sequence[TextEntity]) -> bool:
    """Whether any entities cross; they are sorted by their starts."""
    open_entities: list[TextEntity] = []
    for entity in entities:
        open_entities = [other for other in open_entities if other.end > entity.start]
        if any(other.start < entity.start and other.end < entity.end for other in open_entities):
            return True
        open_entities.append(entity)
    return False


def document_values(document: Document, number: int, colors: LabelColors) -> dict[str, Any]:
    """What the template of the page shows of a document."""
    id = f"d{number}"
    trees: list[dict[str, Any]] = [
        {
            "number": k,
            "id": f"{id}s{k}",
            "name": sentence.id,
            "words": " ".join(sentence.words[:40]),
            "direction": text_direction(" ".join(sentence.words)),
            "lexicalized": lexicalized_spans(sentence.tree, len(sentence.words)) is not None,
            "svg": draw_svg(sentence, colors),
        }
        for k, sentence in enumerate(document.sentences, 1)
        if sentence.tree is not None
    ]
    return {
        "id": id,
        "name": document.id or f"Document {number}",
        "entities": document.entities,
        "scored": has_scores(document),
        "incomplete": sum(not sentence.complete for sentence in document.sentences),
        "windowed": len(document.windowed_sentences),
        "trees": trees,
        **text_values(document, colors, {tree["number"]: tree["id"] for tree in trees}),
    }


def text_values(
    document: Document, colors: LabelColors, tree_ids: dict[int, str] | None = None
) -> dict[str, Any]:
    """The values of text.html.jinja: the direction of the text, and its parts.

    `tree_ids` has the ids of trees by the numbers of their sentences, which then link to them.
    """
    document = document.with_text()
    text, entities = document.text or "", document.entities
    main = text_direction(text)
    parts: list[dict[str, Any]] = []
    position = k = 0
    for number, sentence in enumerate(document.sentences, 1):
        end = sentence.start + len(sentence.text or "")
        first = k
        while k < len(entities) and entities[k].start < end:
            k += 1
        parts.append({"kind": "text", "text": text[position : sentence.start], "head_of": 0})
        direction = text_direction(sentence.text or "", main)
        boxes = box_parts(text, entities[first:k], sentence.start, end, colors, direction)
        if direction == main:
            parts += boxes
        else:
            parts += [{"kind": "open sentence", "direction": direction}, *boxes, {"kind": "close sentence"}]
        if tree_ids and number in tree_ids:
            parts.append({"kind": "link", "id": tree_ids[number], "number": number})
        position = end
    parts.append({"kind": "text", "text": text[position:], "head_of": 0})
    return {"direction": main, "parts": parts}


def box_parts(
    text: str, entities: Sequence[TextEntity], start: int, end: int, colors: LabelColors, direction: str
) -> Iterator[dict[str, Any]]:
    """The text from start to end with the edges of its boxes; an entity of the other direction states its own."""
    directions = [direction]
    for part in lay_out(entities, start, end):
        if not isinstance(part, Edge):
            yield {"kind": "text", "text": text[part.start : part.end], "head_of": len(part.head_of)}
            continue
        entity = part.entity
        labels = [(single_line(x), score) for x, score in zip(entity.labels, entity.scores, strict=True)]
        if not part.opens:
            directions.pop()
            yield {"kind": "close", "cut": part.cut, "labels": labels}
            continue
        lines = [label if score is None else f"{label} {score:.3f}" for label, score in labels]
        if entity.head:
            lines.append(f"head: {truncate(single_line(entity.head.text))}")
        own = text_direction(entity.text, directions[-1])
        yield {
            "kind": "open",
            "color": colors[entity.label],
            "cut": part.cut,
            "cut_at_end": part.cut_at_end,
            "direction": "" if own == directions[-1] else own,
            "height": part.height,
            "title": "\n".join(lines),
        }
        directions.append(own)


def truncate(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
