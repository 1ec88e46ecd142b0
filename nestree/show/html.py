"""Documents as HTML: nested boxes in a notebook, and pages with trees as SVG. Templates and styles are in `templates`.

Boxes and trees have no background of their own: they are drawn on that of the notebook or the page, light or dark.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from rich.cells import cell_len

from nestree.display import (
    color_index,
    escape_invisible,
    format_probability,
    render,
    render_page,
    single_line,
    stack_spans,
)
from nestree.show.layout import (
    Segment,
    SentenceLayout,
    lay_out,
    span_levels,
    span_modifiers,
    text_direction,
    width,
    word_columns,
)
from nestree.types import Document, Sentence, TextEntity, crossing_pairs

MAX_OPEN_TREES = 3  # a page with more trees opens with all of them folded
# Closing punctuation after a space, as in tokenized text; a line must not begin with it.
DETACHED_PUNCTUATION = re.compile(r" +[.,;:!?…)\]}]+(?=\s|$)")


def draw_boxes(document: Document) -> str:
    """The text of a document with a box around each entity, as HTML for a notebook.

    >>> from nestree.types import Entity, Sentence
    >>> "California" in draw_boxes(Document([Sentence(["California"], [Entity(0, 1, "GPE")])]))
    True
    """
    return render("show/templates/boxes.html.jinja", text=text_html(document), scored=has_scores(document))


def draw_page(
    documents: Sequence[Document], title: str = "Nested entities", about: Mapping[str, str] | None = None
) -> str:
    """A complete HTML page that needs no other files; `about` says what it shows, such as {"model": ..., "data": ...}.

    >>> draw_page([Document([])], "empty").startswith("<!DOCTYPE html>")
    True
    """
    documents = [document.with_text() for document in documents]
    sentences = [sentence for document in documents for sentence in document.sentences]
    entities = [entity for document in documents for entity in document.entities]
    counts = Counter(label for entity in entities for label in entity.labels)
    return render_page(
        "show/templates/page.html.jinja",
        title,
        about,
        legend=counts.most_common(),
        documents=[document_values(document, k) for k, document in enumerate(documents, 1)],
        sentences=len(sentences),
        entities=len(entities),
        open_trees=sum(sentence.tree is not None for sentence in sentences) <= MAX_OPEN_TREES,
        scored=any(map(has_scores, documents)),
        headed=any(entity.head for entity in entities),
        crossing=any(crossing_pairs(sentence.entities) for sentence in sentences),
    )


def has_scores(document: Document) -> bool:
    return any(entity.score is not None for entity in document.entities)


def document_values(document: Document, number: int) -> dict[str, Any]:
    """What the template of the page shows of a document."""
    scored = has_scores(document)
    trees: dict[int, dict[str, Any]] = {}
    for k, sentence in enumerate(document.sentences, 1):
        if sentence.tree is not None:
            direction, svg = text_direction(" ".join(sentence.words)), draw_svg(sentence)
            trees[k] = {"id": f"d{number}s{k}", "name": sentence.id, "direction": direction, "svg": svg}
    return {
        "id": f"d{number}",
        "name": document.id or f"Document {number}",
        "entities": len(document.entities),
        "scored": scored,
        "incomplete": sum(not sentence.complete for sentence in document.sentences),
        "windowed": len(document.windowed_sentences),
        "trees": trees,
        "text": text_html(document, {k: tree["id"] for k, tree in trees.items()}),
        "rows": "\n".join(table_row(entity, scored) for entity in document.entities),
    }


# Text with boxes. One part at a time in a template would take several times as long.


def text_html(document: Document, tree_ids: Mapping[int, str] | None = None) -> str:
    """The text with a box around each entity.

    With `tree_ids` (of a page) each sentence begins with its number, which links to its tree, if there is one.
    """
    document = document.with_text()
    text, entities = document.text or "", document.entities
    base_direction = text_direction(text)
    parts = [f'<div class="text" dir="{base_direction}">']
    position = k = 0
    for number, sentence in enumerate(document.sentences, 1):
        end = sentence.start + len(sentence.text or "")
        first = k
        while k < len(entities) and entities[k].start < end:
            k += 1
        direction = text_direction(sentence.text or "", base_direction)
        boxes = "".join(box_parts(text, entities[first:k], sentence.start, end, direction))
        parts.append(verbatim(text[position : sentence.start]))
        if tree_ids is not None and number in tree_ids:
            title = f"the tree of sentence {number}"
            boxes = f'<a class="number" href="#{tree_ids[number]}" title="{title}">{number}</a>{boxes}'
        elif tree_ids is not None:
            boxes = f'<span class="number">{number}</span>{boxes}'
        dir_attribute = "" if direction == base_direction else f' dir="{direction}"'
        if dir_attribute or tree_ids is not None:
            new_line = " line" if tree_ids is not None and "\n" in text[position : sentence.start] else ""
            boxes = f'<span class="s{new_line}"{dir_attribute}>{boxes}</span>'
        parts.append(boxes)
        position = end
    return "".join([*parts, verbatim(text[position:]), "</div>"])


def box_parts(text: str, entities: Sequence[TextEntity], start: int, end: int, direction: str) -> Iterator[str]:
    """The text from start to end with the edges of its boxes; an entity of the other direction states its own."""
    directions = [direction]
    for part in lay_out(entities, start, end):
        if isinstance(part, Segment):
            content = verbatim(text[part.start : part.end])
            twice = " twice" if len(part.head_of) > 1 else ""
            yield f'<u class="head{twice}">{content}</u>' if part.head_of else content
            continue
        entity = part.entity
        labels = [(single_line(x), score) for x, score in zip(entity.labels, entity.scores, strict=True)]
        if part.opens:
            lines = [label if score is None else f"{label} {score:.3f}" for label, score in labels]
            if entity.head:
                head = single_line(entity.head.text)
                lines.append(f"head: {head if len(head) <= 60 else head[:59] + '…'}")
            own = text_direction(entity.text, directions[-1])
            style = f"e c{color_index(entity.label)}{' from' * part.cut}{' on' * part.cut_at_end}"
            dir_attribute = "" if own == directions[-1] else f' dir="{own}"'
            title = escape("\n".join(lines))
            yield f'<span class="{style}"{dir_attribute} style="--h:{part.height}" title="{title}">'
            directions.append(own)
        else:
            directions.pop()
            names = ", ".join(
                escape(label) + ("" if score is None else f"<i>&#160;{format_probability(score)}</i>")
                for label, score in labels
            )
            # U+2060 keeps the label on the line of the last word, or of the label before it.
            names = f"&#8288;<bdi>{'…' if part.cut else ''}{names}</bdi>"
            yield f'<small class="label">{names}</small></span>'


def verbatim(text: str) -> str:
    """Text that a browser reads back unchanged; it would turn a bare carriage return into a line feed."""
    escaped = escape(escape_invisible(text), quote=False).replace("\r", "&#13;")
    return DETACHED_PUNCTUATION.sub(r'<span class="n">\g<0></span>', escaped)


def table_row(entity: TextEntity, scored: bool) -> str:
    """The row of an entity in the table below its document."""
    scores = ", ".join("" if score is None else f"{score:.3f}" for score in entity.scores)
    cells = [
        f'<td style="--d:{entity.depth}"><bdi>{verbatim(entity.text)}</bdi></td>',
        f"<td><bdi>{escape(single_line(', '.join(entity.labels)))}</bdi></td>",
        f'<td class="num">{scores}</td>' if scored else "",
        f"<td><bdi>{verbatim(entity.head.text) if entity.head else ''}</bdi></td>",
        f'<td class="num">{entity.depth}</td><td class="num">{entity.start}–{entity.end}</td>',
    ]
    return f"<tr>{''.join(cells)}</tr>"


# Trees

CELL_WIDTH = 8.43  # pixels of a character at a font size of 14 pixels
TREE_ROW = 26  # pixels
BRACKET_ROW = 24
WORD_GAP = 5  # between words, in addition to a space
MARGIN = 16


def draw_svg(sentence: Sentence) -> str:
    """The tree, words and entities of a sentence; needs the style of trees.css inside an element of class `nestree`."""
    layout = SentenceLayout(sentence)
    words = layout.words
    classes = {span: f"entity c{color_index(label)}" for span, label in layout.labels.items()}
    starts = [CELL_WIDTH * column + WORD_GAP * w for w, column in enumerate(word_columns(words)[:-1])]
    ends = [x + CELL_WIDTH * cell_len(word) for x, word in zip(starts, words, strict=True)]
    centers = [x + CELL_WIDTH * cell_len(w.rstrip()) / 2 for x, w in zip(starts, words, strict=True)]
    total = 2 * MARGIN + max(ends)
    rtl = text_direction(" ".join(words)) == "rtl"
    starts, ends, centers = ([total - MARGIN - x if rtl else MARGIN + x for x in xs] for xs in (starts, ends, centers))
    parts: list[str] = []
    tree_height = float(MARGIN)
    if layout.heads:
        tree_height += TREE_ROW * (span_levels(layout.heads)[0, len(words)] + 1)
        parts += tree_parts(sentence.words, layout, centers, tree_height, classes)
    baseline = tree_height + 18
    for w, word in enumerate(words):
        style = "word head" if w in layout.head_words else "word"
        parts.append(svg_text(centers[w], baseline, word.rstrip(), style))
    spans = sorted(layout.brackets, key=width)
    rows = stack_spans(spans)
    for span, row in zip(spans, rows, strict=True):
        a, b = sorted((starts[span[0]], ends[span[1] - 1]))
        y = baseline + 8 + BRACKET_ROW * row
        center, text = (a + b) / 2, layout.brackets[span]
        room = 3.6 * cell_len(text) + 3
        gap = f"H{center - room:.1f}M{center + room:.1f} {y + 8:.1f}" if text else ""
        style = f"{classes.get(span, '')} bracket".strip()
        path = f"M{a:.1f} {y:.1f}v3q0 5 5 5{gap}H{b - 5:.1f}q5 0 5 -5v-3"
        parts.append(f'<path class="{style}" d="{path}"/>')
        parts += [svg_text(center, y + 12, text, "small")] if text else []
    height = baseline + 12 + BRACKET_ROW * (1 + max(rows, default=-1)) + MARGIN / 2
    size = f'width="{total:.0f}" height="{height:.0f}" viewBox="0 0 {total:.0f} {height:.0f}"'
    label = escape(describe(sentence))
    return f'<svg class="tree" role="img" aria-label="{label}" {size}>{"".join(parts)}</svg>'


def tree_parts(
    words: Sequence[str],
    layout: SentenceLayout,
    x: Sequence[float],
    bottom: float,
    classes: Mapping[tuple[int, int], str],
) -> Iterator[str]:
    """The spans and arcs above the words, which begin at `bottom`; `x` are the centers of the words."""
    heads, probabilities = layout.heads or {}, layout.probabilities
    level = span_levels(heads)
    root = (0, len(words))
    top = bottom - TREE_ROW * (level[root] + 0.5)
    yield f'<path d="M{x[heads[root]]:.1f} {top + 4:.1f}V{bottom:.1f}"/>'
    yield svg_text(x[heads[root]], top, "root", "small")
    for span, modifier in span_modifiers(heads).items():
        head = heads[span]
        y = bottom - TREE_ROW * (level[span] - 0.5)
        a, b = x[head], x[modifier]
        sign = 1 if b > a else -1
        probability = format_probability(probabilities[span]) if probabilities else ""
        labeled = probability and abs(b - a) > 7.6 * len(probability) + 22
        center, room = (a + b) / 2, 3.8 * len(probability) + 3
        start, end = f"M{a:.1f} {y:.1f}", f"H{b - 6 * sign:.1f}q{6 * sign} 0 {6 * sign} 6"
        gap = f"H{center - sign * room:.1f}M{center + sign * room:.1f} {y:.1f}" if labeled else ""
        lines = [" ".join(words[slice(*span)]), f"head: {words[head]}, modifier: {words[modifier]}"]
        lines += [f"probability {probabilities[span]:.3f}"] if probabilities else []
        title = escape("\n".join(map(single_line, lines)))
        yield f'<g><title>{title}</title><path class="hit" d="{start}{end}"/>'
        style = f' class="{classes[span]}"' if span in classes else ""
        yield f'<path{style} d="{start}{gap}{end}"/>'
        yield f'<path class="arrow" d="M{b - 3.5:.1f} {y + 6:.1f}h7l-3.5 7z"/>'
        yield svg_text(center, y + 4, probability, "small") if labeled else ""
        yield f'</g><path d="M{b:.1f} {y + 12:.1f}V{bottom:.1f}"/>'


def svg_text(x: float, y: float, text: str, style: str) -> str:
    """Centered text. Words that fonts may draw wider than their cells are fitted to them."""
    fit = ""
    if style.startswith("word") and not text.isascii() and cell_len(text):
        fit = f' textLength="{CELL_WIDTH * cell_len(text):.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style} middle"{fit}>{escape(text)}</text>'


def describe(sentence: Sentence) -> str:
    """The tree in words, for screen readers."""
    words = [single_line(word) for word in sentence.words]
    tree = sentence.tree
    if tree is None:
        return f"Words: {' '.join(words)}"
    root = "" if tree.root is None else f" Root: {words[tree.root]}."
    modifiers: dict[int, list[str]] = {}
    for head, modifier in tree.arcs:
        modifiers.setdefault(head, []).append(words[modifier])
    arcs = "; ".join(f"{words[head]} governs {', '.join(names)}" for head, names in modifiers.items())
    return f"Tree of: {' '.join(words)}.{root}{f' {arcs}.' if arcs else ''}"
