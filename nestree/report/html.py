"""How the HTML page looks: one style for light and dark, screen and paper."""

from collections.abc import Iterable, Iterator
from html import escape
from typing import NamedTuple

from nestree import __version__
from nestree.evaluation import Calibration, Comparison, EntityError, Evaluation
from nestree.evaluation.metrics import named
from nestree.report import plots, tables
from nestree.report.tables import (
    ERRORS,
    MEANINGS,
    Table,
    are_words,
    between,
    described,
    examples,
    filled,
    levels,
    number,
    percent,
    signed,
    summary,
    visible,
    window,
)
from nestree.types import Entity, Sentence

STYLE = """
:root {
  --page: #fff; --text: #1c2128; --quiet: #57606a; --line: #d4dae0; --panel: #f5f7f9; --link: #0b5cad;
  --f1: #6894c2; --p: #a3470a; --r: #12684a; --heat-right: #a9cdf0; --heat-wrong: #f6b26b; --wrong: #b42318;
  --type: #bf7ca3; --boundary: #b38a31; --missed: #8b9198; --spurious: #d57753;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181d; --text: #e4e8ec; --quiet: #a0a9b3; --line: #39424c; --panel: #1d2329; --link: #7fb8f2;
    --f1: #3268a0; --p: #f0a36b; --r: #6fd0a8; --heat-right: #24588c; --heat-wrong: #9a5410; --wrong: #ff8b7d;
    --type: #925079; --boundary: #816014; --missed: #5e666f; --spurious: #a04f30;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 3rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1rem 0 .5rem; }
header p, .note, .key, figcaption, footer { color: var(--quiet); }
.note, .key, figcaption, footer { font-size: .875rem; }
a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; font-size: .9375rem; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; }

.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0; }
.tiles div { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem 1rem;
  flex: 1 1 9rem; }
.tiles dt { color: var(--quiet); font-size: .875rem; overflow-wrap: anywhere; }
.tiles dd { margin: 0; }
.tiles b { font-size: 1.5rem; font-variant-numeric: tabular-nums; margin-right: .25rem; }
.tiles small { color: var(--quiet); white-space: nowrap; }

.scroll { overflow-x: auto; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; font-size: .9375rem; font-variant-numeric: tabular-nums; margin: .5rem 0; }
caption { text-align: left; font-weight: 600; padding: .75rem 0 .25rem; }
th, td { padding: .25rem .75rem; text-align: left; vertical-align: top; }
th:first-child { padding-left: .25rem; }
thead th { color: var(--quiet); font-weight: 500; border-bottom: 1px solid var(--line); vertical-align: bottom; }
tbody th { font-weight: 500; white-space: nowrap; }
table:not(.shares) tbody tr:nth-child(even) { background: var(--panel); }
.num { text-align: right; white-space: nowrap; }
.heat { background: color-mix(in srgb, var(--heat-wrong) var(--share), transparent); }
.heat.right { background: color-mix(in srgb, var(--heat-right) var(--share), transparent); font-weight: 600; }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--link); width: max-content; max-width: 100%; }
summary h3 { display: inline-block; margin: .75rem 0 .25rem; color: var(--text); }
.beside { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; align-items: flex-start; }

figure { margin: .75rem 0; overflow-x: auto; }
svg[width="720"] { min-width: 34rem; }
svg { max-width: 100%; height: auto; display: block; font-size: 13px; }
svg text { fill: var(--text); }
svg .tick { fill: var(--quiet); font-size: 12px; }
svg .value { font-variant-numeric: tabular-nums; }
.grid { stroke: var(--line); } .zero { stroke: var(--text); }
.f1 { fill: var(--f1); } .whisker { stroke: var(--text); fill: none; stroke-width: 1.25; }
.p { fill: var(--p); } .r { fill: var(--page); stroke: var(--r); stroke-width: 2; }
.diagonal { stroke: var(--quiet); stroke-dasharray: 5 4; } .curve { fill: none; stroke: var(--link); }
.point { fill: var(--link); stroke: var(--page); }
.point.unsure { fill: var(--page); stroke: var(--link); stroke-width: 2; }
.type { fill: var(--type); } .boundary { fill: var(--boundary); } .missed { fill: var(--missed); }
.spurious { fill: var(--spurious); } svg text.on { fill: var(--text); font-size: 12px; }
.swatch { display: inline-block; width: .9em; height: .9em; border-radius: 2px; vertical-align: -.1em;
  margin-left: .75rem; }
.swatch:first-child { margin-left: 0; }
.swatch.f1 { background: var(--f1); } .swatch.type { background: var(--type); }
.swatch.boundary { background: var(--boundary); } .swatch.missed { background: var(--missed); }
.swatch.spurious { background: var(--spurious); }
.whisker-key { display: inline-block; width: 1.5em; height: .6em; margin-left: .75rem; border: solid var(--text);
  border-width: 0 1px; background: linear-gradient(var(--text), var(--text)) center / 100% 1px no-repeat; }
.p-key { color: var(--p); margin-left: .75rem; } .r-key { color: var(--r); margin-left: .75rem; font-weight: 700; }

.example { margin: 0 0 .75rem; padding: .6rem .9rem; background: var(--panel); border: 1px solid var(--line);
  border-radius: .5rem; }
.words { display: inline-grid; gap: 3px 8px; align-items: end; padding: .35rem 0; }
.word { white-space: pre; text-align: center; }
.side { color: var(--quiet); font-size: .8125rem; padding-right: .75rem; align-self: center; }
.bracket { font-size: .75rem; line-height: 1.1; text-align: center; white-space: nowrap; padding: 0 4px;
  color: var(--quiet); border: 1.5px solid var(--quiet); }
.bracket.above { border-bottom: 0; border-radius: 4px 4px 0 0; padding-top: 1px; }
.bracket.below { border-top: 0; border-radius: 0 0 4px 4px; padding-bottom: 1px; align-self: start; }
.bracket.wrong { color: var(--wrong); border-color: var(--wrong); border-width: 2.5px; font-weight: 700; }
.bracket.wrong.above { border-bottom-width: 0; } .bracket.wrong.below { border-top-width: 0; }
.cut-left { border-left-style: dotted; } .cut-right { border-right-style: dotted; }
@media print { nav { display: none; } .scroll { overflow: visible; } section { break-inside: avoid-page; } }
"""


class Bracket(NamedTuple):
    """An entity as it is drawn."""

    level: int  # 0: next to the words
    start: int  # words that are shown, from 0
    end: int
    label: str
    style: str


def example(mistake: EntityError) -> str:
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


def placed(sentence: Sentence, concerned: Entity | None, mistake: EntityError) -> Iterator[Bracket]:
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


HEAD_WORDS = 10  # of each label
EXAMPLES = 8  # of each kind of error
MOST_COLUMNS = 40  # labels in the table of what gold entities became

GAINS = "first minus second, in points of 100; a point is filled where its 95 % interval leaves out 0"
SCORE_KEY = (
    '<p class="key"><span class="f1 swatch"></span> F1 <span class="whisker-key"></span> its 95 % interval '
    '<span class="p-key">◆</span> P <span class="r-key">○</span> R</p>'
)


def html(evaluation: Evaluation, comparison: Comparison | None = None, title: str = "Evaluation") -> str:
    """A whole page, to be written to a file and opened in any browser."""
    sections = list(parts(evaluation, comparison))
    links = "".join(f'<a href="#{anchor(name)}">{escape(name)}</a>' for name, _ in sections)
    body = "".join(
        f'<section id="{anchor(name)}"><h2>{escape(name)}</h2>{content}</section>'
        for name, content in sections
    )
    return visible(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><header><h1>{escape(title)}</h1><p>{escape(summary(evaluation))}</p>"
        f"{tiles(evaluation, comparison)}<nav aria-label='Sections'>{links}</nav></header>\n"
        f"<main>{body}</main>\n"
        f"<footer>nestree {escape(__version__)}. An entity is right if start, end and label are those of a gold "
        "entity.</footer></body></html>\n"
    )


def parts(evaluation: Evaluation, comparison: Comparison | None) -> Iterator[tuple[str, str]]:
    """Name and content of each section that has something to say."""
    yield "Scores", table(tables.overall(evaluation))
    if comparison:
        yield "Comparison", of_comparison(comparison)
    if evaluation.labels:
        numbers = folded("Numbers", table(tables.same_counts("By label", "label", evaluation.labels)))
        yield "Labels", SCORE_KEY + figure(plots.bars(evaluation.labels)) + numbers
        yield "Depth and length", of_depth_and_length(evaluation)
    if evaluation.mistakes:
        yield "Errors", of_errors(evaluation)
    if evaluation.confusion:
        yield "Error distribution", heat(evaluation)
    if evaluation.heads:
        words = tables.words_of(evaluation.heads, evaluation.labels, HEAD_WORDS)
        yield "Heads", table(tables.heads(evaluation.heads)) + table(words, caption=True)
    if evaluation.calibration:
        yield "Calibration", of_calibration(evaluation.calibration)
    chosen = examples(evaluation, EXAMPLES)
    if chosen:
        yield "Examples", "".join(shown(evaluation, kind, mistakes) for kind, mistakes in chosen.items())


def of_comparison(comparison: Comparison) -> str:
    overall = tables.compared(comparison)
    return (
        f"<h3>{escape(overall.title)}</h3>"
        + figure(plots.differences(comparison), GAINS)
        + table(overall)
        + folded("Numbers by label", table(tables.compared_labels(comparison)))
    )


def of_depth_and_length(evaluation: Evaluation) -> str:
    depths = {str(depth): score for depth, score in evaluation.depths.items()}
    return (
        SCORE_KEY
        + '<div class="beside">'
        + figure(plots.columns(depths), "by depth: how many other spans enclose an entity")
        + figure(plots.columns(evaluation.lengths), "by length in words")
        + "</div>"
        + folded("Numbers by depth", table(tables.by_depth(evaluation)))
        + folded("Numbers by length", table(tables.same_counts("By length", "words", evaluation.lengths)))
    )


def of_errors(evaluation: Evaluation) -> str:
    key = "".join(f'<span class="{kind} swatch"></span> {ERRORS[kind]} ' for kind in plots.STACKED)
    return (
        table(tables.kinds_of_errors(evaluation))
        + f'<p class="key">{key}</p>'
        + figure(plots.stacked(evaluation), "number of errors")
        + folded("Numbers by label", table(tables.errors_by_label(evaluation)))
    )


def of_calibration(calibration: Calibration) -> str:
    found = tables.calibration(calibration)
    return (
        f"<p>{escape(found.note)}</p>"
        + '<div class="beside">'
        + figure(plots.reliability(calibration), "on the broken line, scores are honest")
        + table(found, note=False)
        + "</div>"
    )


def tiles(evaluation: Evaluation, comparison: Comparison | None) -> str:
    """The numbers that everybody looks for."""
    score = evaluation.entities
    interval = f"95 %: {between(score.intervals.f1)}" if score.intervals else ""
    cards = [
        ("F1", percent(score.f1), interval),
        ("precision", percent(score.precision), f"{number(score.right)} of {number(score.predicted)}"),
        ("recall", percent(score.recall), f"{number(score.found)} of {number(score.gold)}"),
    ]
    heads = evaluation.heads
    if heads and heads.accuracy is not None:
        cards.append(
            ("head accuracy", percent(heads.accuracy), f"{number(heads.right)} of {number(heads.judged)}")
        )
    if comparison:
        found = comparison.overall["f1"]
        cards.append((f"F1 against {comparison.names[1]}", signed(found.value), f"p = {found.p:.4f}"))
    return (
        '<dl class="tiles">'
        + "".join(
            f"<div><dt>{escape(name)}</dt><dd><b>{value}</b> <small>{escape(more)}</small></dd></div>"
            for name, value, more in cards
        )
        + "</dl>"
    )


def table(content: Table, caption: bool = False, note: bool = True) -> str:
    content, words = filled(content), are_words(filled(content))
    head = "".join(
        f'<th scope="col"{"" if left else num()}>{escape(name)}</th>'
        for name, left in zip(content.columns, words, strict=True)
    )
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(
            f"<td{'' if left else num()}>{escape(cell)}</td>"
            for cell, left in zip(row[1:], words[1:], strict=True)
        )
        + "</tr>"
        for row in content.rows
    )
    title = f"<caption>{escape(content.title)}</caption>" if caption else ""
    below = f'<p class="note">{escape(content.note)}</p>' if note and content.note else ""
    return (
        scrolling(content.title, f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
        + below
    )


def num() -> str:
    return ' class="num"'


def heat(evaluation: Evaluation) -> str:
    """Gold labels as columns; the darker, the larger the share of the column. Errors have a colour of their own."""
    content = tables.distribution(evaluation)
    columns = list(evaluation.distribution.items())[:MOST_COLUMNS]
    head = "".join(f'<th scope="col" class="num">{escape(label)}</th>' for label, _ in columns)
    body = ""
    for row in content.rows:
        name = row[0]
        key = None if row is content.rows[-1] else name
        cells = ""
        for label, shares in columns:
            share = shares.get(key, 0.0)
            kind = "right" if key == label else "wrong"
            strength = 100 * (share if kind == "right" else share**0.5)
            value = percent(share, 1) if share else ""
            cells += f'<td class="num heat {kind}" style="--share:{strength:.0f}%">{value}</td>'
        body += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
    left = len(evaluation.distribution) - len(columns)
    note = content.note + (f" {left} rarer labels are left out." if left else "")
    top = f'<tr><th scope="col">{escape(content.columns[0])}</th>{head}</tr>'
    drawn = f'<table class="shares"><thead>{top}</thead><tbody>{body}</tbody></table>'
    return scrolling(content.title, drawn) + f'<p class="note">{escape(note)}</p>'


def shown(evaluation: Evaluation, kind: str, mistakes: list[EntityError]) -> str:
    """Examples of one kind."""
    heads = evaluation.heads
    count = len(heads.mistakes) if kind == "head" and heads else evaluation.count(kind)
    title = f"{ERRORS[kind].capitalize()}: {number(len(mistakes))} of {number(count)}"
    return (
        f'<details open><summary><h3>{title}</h3></summary><p class="note">{escape(MEANINGS[kind])}</p>'
        + "".join(example(mistake) for mistake in mistakes)
        + "</details>"
    )


def figure(drawing: str, caption: str = "") -> str:
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{drawing}{below}</figure>"


def folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def anchor(name: str) -> str:
    return name.lower().replace(" ", "-")
