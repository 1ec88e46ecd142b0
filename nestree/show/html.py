"""How boxes, trees and pages look: on light and dark grounds, on screen and on paper.

Boxes and trees bring no ground of their own: they stand on whatever a notebook or a page has. So their colours are of a
lightness between, seen on white as well as on black, and all letters have the colour of the text around them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from rich.cells import cell_len

from nestree import __version__
from nestree.show.layout import (
    Box,
    Edge,
    LabelColors,
    Segment,
    boxes_of,
    direction,
    escape_invisible,
    lay_out_boxes,
    on_one_line,
)
from nestree.show.terminal import (
    brackets_of,
    is_lexical,
    levels,
    modifiers,
    roomy,
    short,
    shortened,
    span_probabilities,
    stacked,
    starts,
)
from nestree.types import Document, Sentence, Span, TextEntity

# Of labels, by number: relative luminance 0.185 each, so at least 3 : 1 on white and on any ground as dark as #20242a.
COLOURS = (
    "#1f77db", "#c35710", "#228844", "#cd39a1", "#108390", "#d6404a",
    "#8b5fd7", "#678112", "#9b6f2d", "#597b94", "#d53a73", "#636dd8",
)  # fmt: skip

BOXES = (
    "".join(f".nestree .c{k}{{--c:{colour}}}" for k, colour in enumerate(COLOURS))
    + """
.nestree .text { line-height: 1.75; white-space: pre-wrap; overflow-wrap: anywhere; tab-size: 4; }
.nestree .e { --gap: calc(.1em + var(--h) * .26em); line-height: calc(1.75em + var(--h) * .56em);
  padding: var(--gap) .3em; margin: 0 .08em; border: 1.5px solid var(--c); border-radius: .3em;
  background: color-mix(in srgb, var(--c) 9%, transparent);
  color: inherit; unicode-bidi: isolate; }
.nestree .e.from { border-inline-start: 2px dotted var(--c); border-start-start-radius: 0; border-end-start-radius: 0; }
.nestree .e.on { border-inline-end: 2px dotted var(--c); border-start-end-radius: 0; border-end-end-radius: 0; }
.nestree .e:hover:not(:has(.e:hover)) { box-shadow: 0 0 0 1.5px var(--c); }
.nestree .label { font: 600 .68em/1 system-ui, sans-serif; letter-spacing: .02em; margin-inline-start: .15em;
  vertical-align: .08em; white-space: nowrap; user-select: none; -webkit-user-select: none; }
.nestree .label i { font-style: normal; font-weight: 400; display: none;
  font-variant-numeric: tabular-nums; }
.nestree .head { text-decoration: underline 2px; text-underline-offset: .18em; text-decoration-skip-ink: none; }
.nestree .head.twice { text-decoration: underline double 1.5px; }
.nestree .switch { font: .8125rem/1.5 system-ui, sans-serif; display: inline-block; margin: .25rem 0; cursor: pointer;
  user-select: none; -webkit-user-select: none; }
.nestree .switch input { margin: 0 .4em 0 0; vertical-align: -.1em; }
.nestree:has(.switch input:checked) .label i { display: inline; }
@media print { .nestree .label i { display: inline; } .nestree .switch { display: none; } }
"""
)

TREES = """
.nestree svg.tree { display: block; overflow: visible; max-width: none; direction: ltr; }
.nestree .tree text { font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace;
  fill: currentColor; }
.nestree .tree .small { font-size: 12px; } .nestree .tree .word { font-weight: 600; }
.nestree .tree .middle { text-anchor: middle; } .nestree .tree .head { text-decoration: underline; }
.nestree .tree path { fill: none; stroke: currentColor; stroke-opacity: .5; stroke-width: 1.25; }
.nestree .tree .arrow { fill: currentColor; fill-opacity: .6; stroke: none; }
.nestree .tree .entity { stroke: var(--c); stroke-opacity: 1; stroke-width: 3; }
.nestree .tree .bracket { stroke-width: 2; }
.nestree .tree .hit { stroke: transparent; stroke-width: 14; }
.nestree .tree g:hover path:not(.hit):not(.arrow) { stroke-opacity: 1; stroke-width: 3.5; }
"""

PAGE = """
:root { --page: #fff; --text: #1c2128; --quiet: #57606a; --line: #d4dae0; --panel: #f5f7f9; --link: #0b5cad; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14181d; --text: #e4e8ec; --quiet: #a0a9b3; --line: #39424c; --panel: #1d2329; --link: #7fb8f2; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 3rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line);
  overflow-wrap: anywhere; }
h2 small { font-weight: 400; font-size: .875rem; color: var(--quiet); margin-inline-start: .75rem; }
header p, .note, footer { color: var(--quiet); margin: .25rem 0 .75rem; }
.note, footer { font-size: .875rem; }
a { color: var(--link); }
nav ul { columns: 14rem; margin: .25rem 0; padding-inline-start: 1.25rem; font-size: .9375rem; }
nav a { overflow-wrap: anywhere; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .4rem .6rem; margin: .75rem 0; padding: 0; }
.legend li { border: 1.5px solid var(--c); border-radius: .3em; padding: .1rem .5rem; font-size: .8125rem;
  background: color-mix(in srgb, var(--c) 9%, transparent); overflow-wrap: anywhere; }
.legend b { font-weight: 600; } .legend span { color: var(--quiet); font-variant-numeric: tabular-nums; }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--link); width: max-content; max-width: 100%; }
summary:focus-visible, .scroll:focus-visible, a:focus-visible, input:focus-visible { outline: 2px solid var(--link);
  outline-offset: 2px; }
.trees details > summary { width: auto; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
details.trees > :not(summary) { margin-inline-start: 1rem; }
.scroll { overflow-x: auto; }
.trees .scroll { padding: .5rem; background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; }
.to-tree { font-size: .7em; vertical-align: .45em; line-height: 1; margin-inline-start: .25em; padding: 0 .2em;
  text-decoration: none; user-select: none; -webkit-user-select: none; }
.to-tree:hover { text-decoration: underline; }
figure { margin: .25rem 0 1rem; scroll-margin-top: 3rem; }
figure:target .scroll { border-color: var(--link); }
table { border-collapse: collapse; font-size: .9375rem; font-variant-numeric: tabular-nums; margin: .5rem 0; }
th, td { padding: .2rem .75rem; text-align: start; vertical-align: top; }
thead th { color: var(--quiet); font-weight: 500; border-bottom: 1px solid var(--line); }
tbody tr:nth-child(even) { background: var(--panel); }
td:first-child { padding-inline-start: calc(.5rem + var(--d, 0) * 1.1rem); max-width: 34rem; overflow-wrap: anywhere;
  white-space: pre-wrap; }
.num { text-align: end; white-space: nowrap; }
@media print { nav, .to-tree { display: none; } body { max-width: none; padding: 0; } .scroll { overflow: visible; }
  .trees svg { max-width: 100%; height: auto; } tr, figure { break-inside: avoid; } h2 { break-after: avoid; } }
"""


CELL = 8.43  # pixels of a character of 14 pixels
ROW = 26  # of the tree
BRACKETS = 24  # a row of them
BETWEEN = 5  # pixels between words, beyond a cell
MARGIN = 16


class Grid:
    """Where words stand, in pixels; from right to left if they are written so."""

    def __init__(self, words: Sequence[str]) -> None:
        left = [CELL * column + BETWEEN * w for w, column in enumerate(starts(words))]
        right = [x + CELL * cell_len(word) for x, word in zip(left, words, strict=True)]
        middle = [x + CELL * cell_len(word.rstrip()) / 2 for x, word in zip(left, words, strict=True)]
        self.width = 2 * MARGIN + max(right)
        self.turned = direction(" ".join(words)) == "rtl"
        self.left, self.right, self.middle = ([self.at(x) for x in xs] for xs in (left, right, middle))

    def at(self, x: float) -> float:
        return self.width - MARGIN - x if self.turned else MARGIN + x


def draw_svg(sentence: Sentence, colours: LabelColors) -> str:
    """The tree, words and entities of a sentence; needs the style TREES inside an element of class `nestree`."""
    entities, labels = brackets_of(sentence)
    words = roomy([on_one_line(word) for word in sentence.words], entities)
    colour = {span: f"c{colours[label]}" for span, label in labels.items()}
    grid = Grid(words)
    tree, top, parts = sentence.tree, float(MARGIN), []
    spans = dict.fromkeys(entities, "")
    if tree is not None and is_lexical(tree, len(words)):
        heads = {(i, j): h for i, j, h in tree.spans if h is not None}
        top = ROW * (levels(heads)[0, len(words)] + 1) + MARGIN
        parts = lines(sentence.words, heads, span_probabilities(tree), grid, top, colour)
    elif tree is not None:
        spans |= {(i, j): "" for i, j, _ in tree.spans if j - i > 1}
    words_at = top + 18
    headed = {entity.head for entity in sentence.entities}
    for w, word in enumerate(words):
        parts.append(placed(grid.middle[w], words_at, word.rstrip(), "word head" if w in headed else "word"))
    rows = stacked(spans)
    for span, row in rows.items():
        parts.append(
            bracket(span, words_at + 8 + BRACKETS * row, grid, entities.get(span, ""), colour.get(span, ""))
        )
    height = words_at + 12 + BRACKETS * (1 + max(rows.values(), default=-1)) + MARGIN / 2
    return (
        f'<svg class="tree" role="img" aria-label="{escape(described(sentence))}" '
        f'width="{grid.width:.0f}" height="{height:.0f}" viewBox="0 0 {grid.width:.0f} {height:.0f}">'
        + "".join(parts)
        + "</svg>"
    )


def lines(
    words: Sequence[str],
    tree: Mapping[Span, int],
    probability: Mapping[int, Mapping[int, float]] | None,
    grid: Grid,
    bottom: float,
    colour: Mapping[Span, str],
) -> list[str]:
    """The spans and arcs above the words, which begin at `bottom`."""
    height = levels(tree)
    middle = grid.middle
    whole = tree[0, len(words)]
    parts = [
        f'<path d="M{middle[whole]:.1f} {bottom - ROW * (height[0, len(words)] + 0.5) + 4:.1f}V{bottom:.1f}"/>',
        placed(middle[whole], bottom - ROW * (height[0, len(words)] + 0.5), "root", "small"),
    ]
    for (i, j), modifier in modifiers(tree).items():
        head = tree[i, j]
        y = bottom - ROW * (height[i, j] - 0.5)
        a, b = middle[head], middle[modifier]
        bend = 6 if b > a else -6
        number = short(probability[i][j]) if probability else ""
        room = 3.8 * len(number) + 3 if number and abs(b - a) > 7.6 * len(number) + 22 else 0
        centre, way = (a + b) / 2, 1 if b > a else -1
        start = f"M{a:.1f} {y:.1f}"
        gap = f"H{centre - way * room:.1f}M{centre + way * room:.1f} {y:.1f}" if room else ""
        end = f"H{b - bend:.1f}q{bend} 0 {bend} 6"
        kind = f' class="entity {colour[i, j]}"' if (i, j) in colour else ""
        told = f"{' '.join(words[i:j])}\nhead: {words[head]}, modifier: {words[modifier]}"
        told += f"\nprobability {probability[i][j]:.3f}" if probability else ""
        parts.append(
            f"<g><title>{escape(on_lines(told))}</title>"
            f'<path class="hit" d="{start}{end}"/><path{kind} d="{start}{gap}{end}"/>'
            f'<path class="arrow" d="M{b - 3.5:.1f} {y + 6:.1f}h7l-3.5 7z"/>'
            + (placed(centre, y + 4, number, "small") if room else "")
            + "</g>"
        )
        parts.append(f'<path d="M{b:.1f} {y + 12:.1f}V{bottom:.1f}"/>')
    return parts


def on_lines(text: str) -> str:
    return "\n".join(map(on_one_line, text.split("\n")))


def bracket(span: Span, y: float, grid: Grid, label: str, colour: str) -> str:
    """Below the words of a span; entities have a colour and a label."""
    i, j = span
    a, b = sorted((grid.left[i], grid.right[j - 1]))
    centre, room = (a + b) / 2, 3.6 * cell_len(label) + 3
    kind = f"entity bracket {colour}" if colour else "bracket"
    gap = f"H{centre - room:.1f}M{centre + room:.1f} {y + 8:.1f}" if label else ""
    drawn = f'<path class="{kind}" d="M{a:.1f} {y:.1f}v3q0 5 5 5{gap}H{b - 5:.1f}q5 0 5 -5v-3"/>'
    return drawn + (placed(centre, y + 12, label, "small") if label else "")


def placed(x: float, y: float, text: str, kind: str) -> str:
    """Text around a middle. What fonts may draw wider than its cells is made to fit."""
    fit = (
        "" if text.isascii() else f' textLength="{CELL * cell_len(text):.1f}" lengthAdjust="spacingAndGlyphs"'
    )
    fit = fit if kind.startswith("word") and cell_len(text) else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind} middle"{fit}>{escape(text)}</text>'


def described(sentence: Sentence) -> str:
    """The tree in words, for those who do not see it."""
    words = [on_one_line(word) for word in sentence.words]
    tree = sentence.tree
    if tree is None:
        return f"Words: {' '.join(words)}"
    root = "" if tree.root is None else f" Root: {words[tree.root]}."
    modifiers_of: dict[int, list[str]] = {}
    for head, modifier in tree.arcs:
        modifiers_of.setdefault(head, []).append(words[modifier])
    arcs = "; ".join(f"{words[head]} governs {', '.join(found)}" for head, found in modifiers_of.items())
    return f"Tree of: {' '.join(words)}.{root}{f' {arcs}.' if arcs else ''}"


BLANK = "\N{NO-BREAK SPACE}"
LONGEST = 60  # columns of a word in what is shown on hovering

SWITCH = '<label class="switch"><input type="checkbox">show probabilities</label>'


def boxes(document: Document) -> str:
    """The text of a document with a box around each entity: HTML that a notebook shows as it is.

    >>> from nestree.types import Entity, Sentence
    >>> "California" in boxes(Document([Sentence(["California"], [Entity(0, 1, "GPE")])]))
    True
    """
    switch = f"<div>{SWITCH}</div>" if has_scores([document]) else ""
    return f'<div class="nestree"><style>{BOXES}</style>{flow(document, LabelColors())}{switch}</div>'


def has_scores(documents: Sequence[Document]) -> bool:
    return any(entity.score is not None for document in documents for entity in document.entities)


def flow(document: Document, colours: LabelColors, after: Mapping[int, str] | None = None) -> str:
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
    text: str, entities: Sequence[TextEntity], start: int, end: int, colours: LabelColors, around: str
) -> str:
    """The text from start to end, its entities in boxes; `around` is its direction."""
    layout = lay_out_boxes(entities, start, end)
    boxes = iter(boxes_of([part for part in layout if isinstance(part, Edge)]))
    directions = [around]
    parts = []
    for part in layout:
        if isinstance(part, Segment):
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


def opening(edge: Edge, box: Box, colours: LabelColors, turned: str) -> str:
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
    return escape(escape_invisible(text), quote=False).replace("\r", "&#13;")


OPEN_TREES = 3  # are unfolded when the page opens; if it has more, none is
LEXICAL = (
    "A line is a span: the words below it. It joins the head of the span, which goes on upwards, to a modifier, at "
    "which its arrow points: one arc. A number is the probability of the span. Heavy lines are entities; the brackets "
    "below the words name them."
)
PLAIN = "A bracket is a span of the tree: the words above it. Heavy ones are entities, with their labels."


def page(documents: Sequence[Document], title: str = "Nested entities") -> str:
    """A whole page, to be written to a file and opened in any browser.

    >>> page([Document([])], "empty").startswith("<!DOCTYPE html>")
    True
    """
    documents = [document.with_text() for document in documents]
    counts = Counter(label for d in documents for entity in d.entities for label in entity.labels)
    colours = LabelColors()
    legend = "".join(
        f'<li class="c{colours[label]}"><b><bdi>{said(label)}</bdi></b> <span>{count:,}</span></li>'
        for label, count in counts.most_common()
    )
    few = sum(sentence.tree is not None for d in documents for sentence in d.sentences) <= OPEN_TREES
    body = "".join(section(d, k, colours, few) for k, d in enumerate(documents, 1))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{said(title)}</title><style>{PAGE}{BOXES}{TREES}</style></head>\n"
        f'<body class="nestree"><header><h1><bdi>{said(title)}</bdi></h1><p>{summary(documents)}</p>'
        + (f'<ul class="legend" aria-label="Labels and how often they occur">{legend}</ul>' if legend else "")
        + (SWITCH if has_scores(documents) else "")
        + contents(documents)
        + f"</header>\n<main>{body}</main>\n<footer>nestree {escape(__version__)}. {notes(documents)}"
        "</footer></body></html>\n"
    )


def said(text: str) -> str:
    return escape(on_one_line(text))


def counted(number: int, one: str, more: str) -> str:
    return f"{number:,} {one if number == 1 else more}"


def summary(documents: Sequence[Document]) -> str:
    sentences = sum(len(document.sentences) for document in documents)
    entities = sum(len(document.entities) for document in documents)
    parts = [
        counted(len(documents), "document", "documents"),
        counted(sentences, "sentence", "sentences"),
        counted(entities, "entity", "entities"),
    ]
    return ", ".join(parts) + "."


def notes(documents: Sequence[Document]) -> str:
    """How to read the page, as far as it has such things."""
    found = [entity for document in documents for entity in document.entities]
    parts = []
    if any(entity.head for entity in found):
        parts.append("Heads are underlined; doubly, where a word is the head of several entities.")
    if has_scores(documents):
        parts.append("Hover over a box, or show probabilities, or unfold a table to see them.")
    if any(entity_crosses(document.entities) for document in documents):
        parts.append(
            "Entities that cross others are drawn in parts, dotted and with dots where they are cut."
        )
    return " ".join(parts)


def entity_crosses(entities: Sequence[TextEntity]) -> bool:
    around: list[TextEntity] = []
    for entity in entities:
        around = [other for other in around if other.end > entity.start]
        if any(other.start < entity.start and other.end < entity.end for other in around):
            return True
        around.append(entity)
    return False


def contents(documents: Sequence[Document]) -> str:
    """Links to the documents, if there are several."""
    if len(documents) < 2:
        return ""
    links = "".join(
        f'<li><a href="#d{k}"><bdi>{name(document, k)}</bdi></a></li>'
        for k, document in enumerate(documents, 1)
    )
    return f"<nav><details><summary>{len(documents):,} documents</summary><ul>{links}</ul></details></nav>"


def name(document: Document, number: int) -> str:
    return said(document.id) if document.id else f"Document {number}"


def section(document: Document, number: int, colours: LabelColors, few_trees: bool) -> str:
    """A document: its text, its trees, its entities."""
    links = {
        k: f'<a class="to-tree" href="#d{number}s{k + 1}" title="the tree of sentence {k + 1}">{k + 1}</a>'
        for k, sentence in enumerate(document.sentences)
        if sentence.tree is not None
    }
    return (
        f'<section id="d{number}"><h2><bdi>{name(document, number)}</bdi>'
        f"<small>{counted(len(document.entities), 'entity', 'entities')}</small></h2>"
        + "".join(f'<p class="note">{note}</p>' for note in remarks(document))
        + flow(document, colours, links)
        + (trees(document, number, colours, few_trees) if links else "")
        + (table(document) if document.entities else "")
        + "</section>\n"
    )


def remarks(document: Document) -> Iterator[str]:
    """What a reader has to know of this document."""
    open_ended = sum(not sentence.complete for sentence in document.sentences)
    if open_ended:
        yield f"{counted(open_ended, 'sentence is', 'sentences are')} marked as incomplete: there may be more entities."
    if document.windowed:
        yield (
            f"{counted(len(document.windowed), 'sentence was', 'sentences were')} too long to be read at once, and "
            "read through windows."
        )


def trees(document: Document, number: int, colours: LabelColors, few: bool) -> str:
    """Each in its own fold, and where there are many on the page, all in another."""
    drawn, kinds = [], set()
    for k, sentence in enumerate(document.sentences, 1):
        if sentence.tree is None:
            continue
        kinds.add(LEXICAL if is_lexical(sentence.tree, len(sentence.words)) else PLAIN)
        words = said(" ".join(sentence.words[:40]))
        id = f" <bdi>({said(sentence.id)})</bdi>" if sentence.id else ""
        drawn.append(
            f"<details{' open' * few}><summary>Sentence {k}{id}: <bdi>{words}</bdi></summary>"
            f'<figure id="d{number}s{k}"><div class="scroll" role="region" tabindex="0" '
            f'dir="{direction(" ".join(sentence.words))}" aria-label="Tree of sentence {k}">'
            f"{draw_svg(sentence, colours)}</div></figure></details>"
        )
    content = "".join(drawn) + f'<p class="note">{" ".join(sorted(kinds))}</p>'
    if few:
        return f'<div class="trees">{content}</div>'
    title = counted(len(drawn), "sentence as a tree", "sentences as trees")
    return f'<details class="trees"><summary>{title}</summary>{content}</details>'


def table(document: Document) -> str:
    """All entities, each with what boxes show only on hovering."""
    scored = has_scores([document])
    rows = "".join(
        f'<tr><td style="--d:{entity.depth}"><bdi>{written(entity.text)}</bdi></td>'
        f"<td><bdi>{said(', '.join(entity.labels))}</bdi></td>"
        + (f'<td class="num">{", ".join(map(probability, entity.scores))}</td>' if scored else "")
        + f"<td><bdi>{written(entity.head.text) if entity.head else ''}</bdi></td>"
        f'<td class="num">{entity.depth}</td><td class="num">{entity.start}–{entity.end}</td></tr>'
        for entity in document.entities
    )
    chance = '<th scope="col" class="num">probability</th>' if scored else ""
    count = counted(len(document.entities), "entity", "entities")
    return (
        f"<details><summary>Table of {count}</summary>"
        '<div class="scroll" role="region" tabindex="0" aria-label="Entities"><table><thead><tr>'
        f'<th scope="col">text</th><th scope="col">labels</th>{chance}<th scope="col">head</th>'
        '<th scope="col" class="num">depth</th><th scope="col" class="num">characters</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def probability(score: float | None) -> str:
    return "" if score is None else f"{score:.3f}"
