"""The report as one HTML page: plots, tables and examples, with its style inside and nothing to fetch."""

from collections.abc import Iterator
from html import escape

from nestree import __version__
from nestree.evaluation import Calibration, Comparison, Evaluation, Mistake
from nestree.report import plots, tables
from nestree.report.brackets import example, scrolling
from nestree.report.examples import examples
from nestree.report.style import STYLE
from nestree.report.tables import (
    ERRORS,
    MEANINGS,
    Table,
    are_words,
    between,
    filled,
    number,
    percent,
    signed,
    summary,
    visible,
)

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


def shown(evaluation: Evaluation, kind: str, mistakes: list[Mistake]) -> str:
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
