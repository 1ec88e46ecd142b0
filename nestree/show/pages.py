"""Documents as one HTML page: boxes, trees and tables, with its style inside, nothing to fetch and nothing to run."""

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from nestree import __version__
from nestree.sentence import Document, TextEntity
from nestree.show.boxed import SWITCH, flow, has_scores, written
from nestree.show.characters import direction, on_one_line
from nestree.show.labels import Colours
from nestree.show.sentences import is_lexical
from nestree.show.style import BOXES, PAGE, TREES
from nestree.show.svg import draw_svg

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
    colours = Colours()
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


def section(document: Document, number: int, colours: Colours, few_trees: bool) -> str:
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


def trees(document: Document, number: int, colours: Colours, few: bool) -> str:
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
