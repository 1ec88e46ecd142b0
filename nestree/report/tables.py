"""Examples of each kind of error: which ones, which words of the sentence, and as brackets in one line."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from nestree.evaluation import (
    KINDS,
    Calibration,
    Comparison,
    Difference,
    EntityError,
    Evaluation,
    Heads,
    Score,
)
from nestree.evaluation.heads import Words
from nestree.evaluation.metrics import LEVEL, Range
from nestree.types import Entity, Sentence, Span, crossing_pairs

CONTEXT = 4  # words on either side


def examples(evaluation: Evaluation, most: int) -> dict[str, list[EntityError]]:
    """Up to so many errors of each kind that occurs, taken evenly from the first sentence to the last."""
    found: defaultdict[str, list[EntityError]] = defaultdict(list)
    for mistake in (*evaluation.mistakes, *(evaluation.heads.mistakes if evaluation.heads else ())):
        found[mistake.kind].append(mistake)
    return {kind: spread(found[kind], most) for kind in (*KINDS, "head") if found[kind]}


def spread(items: Sequence[EntityError], most: int) -> list[EntityError]:
    """So many of them, at equal distances."""
    if len(items) <= most:
        return list(items)
    return [items[k * len(items) // most] for k in range(most)]


def window(mistake: EntityError) -> Span:
    """The words to show: those of the entities in question, and some on either side."""
    concerned = [entity for entity in (mistake.gold, mistake.predicted) if entity]
    start, end = min(e.start for e in concerned), max(e.end for e in concerned)
    return max(0, start - CONTEXT), min(len(mistake.sentence.words), end + CONTEXT)


def described(mistake: EntityError) -> str:
    """The error in words.

    >>> words = "the University of California".split()
    >>> gold, off = Entity(0, 4, "ORG"), Entity(1, 4, "ORG")
    >>> described(EntityError("boundary", gold, off, 1, Sentence(words, [gold]), Sentence(words, [off])))
    "ORG 'the University of California' was predicted as 'University of California'"
    """
    gold, predicted = mistake.gold, mistake.predicted
    if gold is None:
        assert predicted is not None
        return f"{predicted.label} {mistake.sentence.phrase(predicted)!r} is not gold"
    phrase = f"{gold.label} {mistake.sentence.phrase(gold)!r}"
    if predicted is None:
        return f"{phrase} was not predicted"
    if mistake.kind == "type":
        return f"{phrase} was predicted as {predicted.label}"
    if mistake.kind == "boundary":
        return f"{phrase} was predicted as {mistake.sentence.phrase(predicted)!r}"
    heads = [mistake.sentence.words[e.head] if e.head is not None else "none" for e in (gold, predicted)]
    return f"{phrase} has the head {heads[0]!r}, predicted was {heads[1]!r}"


def brackets(sentence: Sentence, entities: Iterable[Entity], shown: Span) -> str:
    """The words shown, with brackets around the entities that lie among them; those that cross others come after.

    >>> sentence = Sentence("at the University of California".split())
    >>> brackets(sentence, [Entity(1, 5, "ORG"), Entity(4, 5, "GPE")], (1, 5))
    '… [the University of [California GPE] ORG]'
    >>> brackets(sentence, [Entity(0, 3, "ORG"), Entity(2, 5, "ORG")], (0, 5))
    '[at the University ORG] of California + [University of California ORG]'
    """
    start, end = shown
    nested: list[Entity] = []
    crossed: list[Entity] = []
    inside = {(e.start, e.end, e.label): e for e in entities if start <= e.start and e.end <= end}
    for key in sorted(inside, key=lambda key: (key[1] - key[0], key)):  # the innermost first
        (crossed if crossing_pairs([*nested, inside[key]]) else nested).append(inside[key])
    words = list(sentence.words)
    for entity in nested:
        words[entity.start] = "[" + words[entity.start]
        words[entity.end - 1] += f" {entity.label}]"
    beside = [" ".join(["+", "[" + sentence.phrase(entity), f"{entity.label}]"]) for entity in crossed]
    return " ".join((["…"] * (start > 0)) + words[start:end] + (["…"] * (end < len(words))) + beside)


def in_brackets(mistake: EntityError) -> Iterator[tuple[str, str]]:
    """Both sides of an error, a line each."""
    for name, sentence in (("gold", mistake.sentence), ("predicted", mistake.prediction)):
        yield name, brackets(sentence, sentence.entities, window(mistake))


def levels(spans: Sequence[Span]) -> list[int]:
    """A row for each span so that none overlaps another in its row, the inner ones in the first rows.

    >>> levels([(0, 4), (3, 4), (2, 6), (0, 4)])
    [1, 0, 2, 3]
    """
    rows: dict[int, int] = {}
    for k in sorted(range(len(spans)), key=lambda k: (spans[k][1] - spans[k][0], k)):
        i, j = spans[k]
        around = [rows[m] for m in rows if spans[m][0] < j and i < spans[m][1]]
        rows[k] = max(around, default=-1) + 1
    return [rows[k] for k in range(len(spans))]


ERRORS = {
    "type": "wrong type",
    "boundary": "wrong border",
    "missed": "missed",
    "spurious": "spurious",
    "head": "wrong head",
}
MEANINGS = {
    "type": "the span is gold, the label is not",
    "boundary": "the label is gold, the span shares words with it",
    "missed": "gold, and nothing that explains it was predicted",
    "spurious": "predicted, and nothing in gold explains it",
    "head": "the span is gold, the head is another word",
}
MEASURES = {"precision": "P", "recall": "R", "f1": "F1"}
UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # all but the end of a line
NOTHING = "-"  # where there is nothing to divide by
PRF = ("P", "R", "F1", "F1 95 %")


@dataclass(frozen=True)
class Table:
    """Rows of strings; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    text: bool = False  # its columns are text, not numbers


def all_tables(evaluation: Evaluation, comparison: Comparison | None, head_words: int) -> Iterator[Table]:
    """Every table that has something to say, in the order of a report."""
    yield overall(evaluation)
    if comparison:
        yield compared(comparison)
        yield compared_labels(comparison)
    if evaluation.labels:
        yield same_counts("By label", "label", evaluation.labels)
        yield by_depth(evaluation)
        yield same_counts("By length", "words", evaluation.lengths)
        yield kinds_of_errors(evaluation)
        yield errors_by_label(evaluation)
    if evaluation.confusion:
        yield distribution(evaluation)
    if evaluation.heads:
        yield heads(evaluation.heads)
        yield words_of(evaluation.heads, evaluation.labels, head_words)
    if evaluation.calibration:
        yield calibration(evaluation.calibration)


def filled(table: Table) -> Table:
    """Without columns that have nothing in them.

    >>> filled(Table("", ("label", "F1", "95 %"), (("ORG", "50.00", ""),))).columns
    ('label', 'F1')
    """
    kept = [k for k in range(len(table.columns)) if k == 0 or any(row[k] for row in table.rows)]
    rows = tuple(tuple(row[k] for k in kept) for row in table.rows)
    return Table(table.title, tuple(table.columns[k] for k in kept), rows, table.note, table.text)


def are_words(table: Table) -> list[bool]:
    """Of each column, whether it holds words; numbers are aligned on the right."""
    return [k == 0 or table.text or name == "meaning" for k, name in enumerate(table.columns)]


def visible(text: str) -> str:
    """Without what could steer a terminal or cannot be written as UTF-8: control characters, lone surrogates."""
    return UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)


def summary(evaluation: Evaluation) -> str:
    """The evaluation in a line or two."""
    said = (
        f"{counted(evaluation.sentences, 'sentence', 'sentences')}, "
        f"{counted(evaluation.entities.gold, 'gold entity', 'gold entities')}, "
        f"{number(evaluation.entities.predicted)} predicted."
    )
    if evaluation.incomplete:
        said += (
            f" {counted(evaluation.incomplete, 'gold sentence is', 'gold sentences are')} marked as incomplete: what "
            "is predicted beyond the annotation counts as wrong."
        )
    return said


def overall(evaluation: Evaluation) -> Table:
    rows = [
        ("entities", *numbers(evaluation.entities)),
        ("duplicates counted", *numbers(evaluation.duplicates)),
        ("labels aside", *numbers(evaluation.spans)),
    ]
    if len(evaluation.labels) > 1:
        rows.append(("mean of labels", "", "", percent(evaluation.macro_f1), "", "", "", ""))
    return Table(
        "Scores",
        ("", *PRF, "right", "predicted", "gold"),
        tuple(rows),
        f"95 %: bootstrap over sentences, {number(evaluation.resamples)} resamples, seed {evaluation.seed}."
        if evaluation.resamples
        else "",
    )


def same_counts(title: str, name: str, groups: Mapping[str, Score]) -> Table:
    """A row for each group; an entity is in the same group of gold and prediction."""
    rows = tuple((group, *numbers(score)) for group, score in groups.items())
    return Table(title, (name, *PRF, "right", "predicted", "gold"), rows)


def by_depth(evaluation: Evaluation) -> Table:
    groups = {**{str(k): s for k, s in evaluation.depths.items()}, **evaluation.nesting}
    rows = tuple(
        (
            name,
            *ratios(score),
            *map(number, (score.right, score.predicted, score.found, score.gold)),
        )
        for name, score in groups.items()
    )
    return Table(
        "By depth",
        ("depth", *PRF, "right", "predicted", "found", "gold"),
        rows,
        "Depth: how many other spans enclose it; R by depth in gold, P by depth in the prediction. "
        "Nested: inside or around another entity, or on its span.",
    )


def kinds_of_errors(evaluation: Evaluation) -> Table:
    rows = []
    for kind in KINDS:
        count = evaluation.count(kind)
        of_gold = share(count, evaluation.entities.gold) if kind != "spurious" else ""
        of_predicted = share(count, evaluation.entities.predicted) if kind != "missed" else ""
        rows.append((ERRORS[kind], number(count), of_gold, of_predicted, MEANINGS[kind]))
    return Table("Errors", ("", "errors", "% gold", "% pred.", "meaning"), tuple(rows))


def errors_by_label(evaluation: Evaluation) -> Table:
    rows = tuple(
        (
            label,
            number(score.gold),
            number(score.found),
            *(number(evaluation.count(kind, label)) for kind in KINDS),
        )
        for label, score in evaluation.labels.items()
    )
    return Table(
        "Errors by label",
        ("label", "gold", "right", "type", "border", "missed", "spurious"),
        rows,
        "gold = right + type + border + missed, by the label in gold.",
    )


def distribution(evaluation: Evaluation) -> Table:
    columns = evaluation.distribution
    rows = [*columns, *sorted({r for c in columns.values() for r in c if r is not None} - columns.keys())]
    cells = [
        (
            name,
            *(percent(columns[label].get(row, 0.0), 1) if row in columns[label] else "" for label in columns),
        )
        for name, row in [*((row, row) for row in rows), ("missed", None)]
    ]
    return Table(
        "Error distribution",
        ("predicted \\ gold", *columns),
        tuple(cells),
        "In %, by the label that the same span was predicted with; each column sums to 100.",
    )


def heads(found: Heads) -> Table:
    rows = []
    if found.judged:
        rows.append(
            (
                "head accuracy",
                share(found.right, found.judged),
                f"{number(found.right)} of {number(found.judged)}",
            )
        )
    if found.left_out:
        rows.append(("left out: no gold head", "", number(found.left_out)))
    if found.candidates:
        rows.append(
            (
                "of these, a candidate",
                share(found.among, found.candidates),
                f"{number(found.among)} of {number(found.candidates)}",
            )
        )
        right, judged = found.right + found.among, found.judged + found.candidates
        rows.append(("accuracy with these", share(right, judged), f"{number(right)} of {number(judged)}"))
    if found.headless:
        rows.append(("predicted without a head", "", number(found.headless)))
    for name, shared, headed in (
        ("shared heads, predicted", found.shared, found.headed),
        ("shared heads, gold", found.gold_shared, found.gold_headed),
    ):
        if headed:
            rows.append((name, share(shared, headed), f"{number(shared)} of {number(headed)}"))
    return Table(
        "Heads",
        ("", "%", "count"),
        tuple(rows),
        ("Accuracy: over predicted spans of several words that are gold spans. " if found.judged else "")
        + ("Candidate: one of the words that gold names instead. " if found.candidates else "")
        + "Shared: entities whose head also heads an entity on another span.",
    )


def words_of(found: Heads, labels: Iterable[str], most: int) -> Table:
    def listed(words: Iterable[tuple[str, int]]) -> str:
        return ", ".join(f"{word} ({number(times)})" for word, times in list(words)[:most])

    sides = {"predicted": found.words, "gold": found.gold_words}
    known = {name: words for name, words in sides.items() if words}
    rows = tuple((label, *(listed(words.get(label, ())) for words in known.values())) for label in labels)
    return Table("Most frequent head words", ("label", *known), rows, text=True)


def calibration(found: Calibration) -> Table:
    rows = tuple(
        (
            f"{bin.low:.1f}-{bin.high:.1f}",
            number(bin.entities),
            percent(bin.score),
            percent(bin.precision),
        )
        for bin in found.bins
    )
    return Table(
        "Calibration",
        ("score", "entities", "mean score", "right %"),
        rows,
        f"Expected calibration error {percent(found.error)} %, Brier score {found.brier:.4f}, "
        f"over {number(found.scored)} entities"
        + (f"; {number(found.unscored)} have no score." if found.unscored else "."),
    )


def compared(comparison: Comparison) -> Table:
    first, second = comparison.first.entities, comparison.second.entities
    rows = tuple(
        (
            MEASURES[name],
            percent(getattr(first, name)),
            percent(getattr(second, name)),
            signed(found.value),
            span(found.interval),
            chance(found.p),
        )
        for name, found in comparison.overall.items()
    )
    return Table(
        f"{comparison.names[0]} against {comparison.names[1]}",
        ("", "first", "second", "difference", "95 %", "p"),
        rows,
        f"p: approximate randomisation, {number(comparison.swaps)} swaps; 95 %: paired bootstrap, "
        f"{number(comparison.resamples)} resamples; seed {comparison.seed}. "
        f"Fewer errors in {number(comparison.better)} sentences, more in {number(comparison.worse)}.",
    )


def compared_labels(comparison: Comparison) -> Table:
    rows = tuple(
        (
            label,
            *(
                percent(side.labels[label].f1) if label in side.labels else NOTHING
                for side in (comparison.first, comparison.second)
            ),
            signed(found.value),
            span(found.interval),
            chance(found.p),
        )
        for label, found in comparison.labels.items()
    )
    return Table(
        "Difference in F1 by label",
        ("label", "first", "second", "difference", "95 %", "p"),
        rows,
        "These p are not corrected for the number of labels." if len(rows) > 1 else "",
    )


def numbers(score: Score) -> tuple[str, ...]:
    return (*ratios(score), number(score.right), number(score.predicted), number(score.gold))


def ratios(score: Score) -> tuple[str, ...]:
    """P, R, F1 and the interval of F1."""
    return (
        percent(score.precision) if score.predicted else NOTHING,
        percent(score.recall) if score.gold else NOTHING,
        percent(score.f1) if score.has_f1 else NOTHING,
        (between(score.intervals.f1) if score.has_f1 else NOTHING) if score.intervals else "",
    )


def number(count: int) -> str:
    return f"{count:,}"


def counted(count: int, one: str, several: str) -> str:
    return f"{number(count)} {one if count == 1 else several}"


def percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f}"


def share(part: int, whole: int) -> str:
    return percent(part / whole) if whole else NOTHING


def between(interval: Range) -> str:
    return f"{percent(interval[0], 1)}-{percent(interval[1], 1)}"


def span(interval: Range) -> str:
    return f"{signed(interval[0])} to {signed(interval[1])}"


def signed(value: float) -> str:
    """In points, with a sign; no sign for what rounds to nothing.

    >>> signed(0.0123), signed(-0.5), signed(-0.000001)
    ('+1.23', '-50.00', '0.00')
    """
    text = f"{100 * value:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text


def chance(p: float) -> str:
    return f"{p:.4f}"


if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

TERMINAL_WORDS, MARKDOWN_WORDS = 5, 10  # head words of each label
TERMINAL_EXAMPLES, MARKDOWN_EXAMPLES = 1, 3  # of each kind of error
LONGEST_NAME = 24  # columns that names of rows may take before they are broken
WIDTH = 78  # columns that a table of many labels may take in a terminal


def terminal(
    evaluation: Evaluation, comparison: Comparison | None = None, title: str = "Evaluation"
) -> "list[RenderableType]":
    """Renderables of rich, to be printed one below the other; 80 columns are enough."""
    from rich.table import Table as Grid

    page: list[RenderableType] = [line(title, "bold"), line(summary(evaluation))]
    for table in all_tables(evaluation, comparison, TERMINAL_WORDS):
        cut = narrowed(filled(table))
        page += [line(""), line(cut.title, "bold"), drawn(cut)]
        if cut.note:
            page.append(line(cut.note, "dim"))
    chosen = examples(evaluation, TERMINAL_EXAMPLES)
    if chosen:
        page += [line(""), line("Examples", "bold")]
    for kind, mistakes in chosen.items():
        for mistake in mistakes:
            place = line(f"{ERRORS[kind]}, sentence {mistake.number}: ", "bold")
            grid = Grid.grid(padding=(0, 1))
            for side, words in in_brackets(mistake):
                grid.add_row(line(f"  {side}", "dim"), line(words))
            page += [place + line(described(mistake)), grid]
    return page


def line(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(visible(text), style)


def drawn(table: Table) -> "RenderableType":
    from rich.table import Table as Drawing

    drawing = Drawing(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name, words in zip(table.columns, are_words(table), strict=True):
        justify: Literal["left", "right"] = "left" if words else "right"
        drawing.add_column(line(name), justify=justify, no_wrap=not words, overflow="fold")
    for row in table.rows:
        drawing.add_row(*map(line, row))
    return drawing


def narrowed(table: Table) -> Table:
    """Without the columns of numbers that are too many for a terminal, and a word on where they are."""
    from rich.cells import cell_len

    if all(are_words(table)[1:]) or "meaning" in table.columns:
        return table
    wide = [max(map(cell_len, column)) + 2 for column in zip(table.columns, *table.rows, strict=True)]
    wide[0] = min(wide[0], LONGEST_NAME + 2)
    kept = len(wide)
    while kept > 1 and sum(wide[:kept]) > WIDTH:
        kept -= 1
    if kept == len(wide):
        return table
    left = f"{len(wide) - kept} more columns do not fit here: see Markdown, JSON or HTML."
    rows = tuple(row[:kept] for row in table.rows)
    return Table(table.title, table.columns[:kept], rows, f"{table.note} {left}".strip())


def markdown(evaluation: Evaluation, comparison: Comparison | None = None, title: str = "Evaluation") -> str:
    """Tables and examples in GitHub's Markdown."""
    parts = [f"# {plain(title)}", summary(evaluation)]
    for table in all_tables(evaluation, comparison, MARKDOWN_WORDS):
        parts += [f"## {plain(table.title)}", piped(filled(table)), *([table.note] if table.note else [])]
    chosen = examples(evaluation, MARKDOWN_EXAMPLES)
    if chosen:
        parts.append("## Examples")
    for kind, mistakes in chosen.items():
        parts.append(f"### {ERRORS[kind].capitalize()}")
        for mistake in mistakes:
            lines = "\n".join(f"    {side:9} {line}" for side, line in in_brackets(mistake))
            parts += [f"Sentence {mistake.number}: {plain(described(mistake))}", lines]
    return visible("\n\n".join(parts) + "\n")


def piped(table: Table) -> str:
    below = ["---" if words else "---:" for words in are_words(table)]
    rows = [list(map(plain, table.columns)), below, *(list(map(plain, row)) for row in table.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def plain(text: str) -> str:
    """Text in which Markdown finds nothing of its own.

    >>> plain("a|b *c* <d>")
    'a\\\\|b \\\\*c\\\\* \\\\<d>'
    """
    return "".join("\\" + c if c in "\\`*_|<[]~" else c for c in text).replace("\n", " ")


HEAD_WORDS = 20  # of each label


def as_json(evaluation: Evaluation, comparison: Comparison | None = None) -> dict[str, Any]:
    """What `json.dumps` takes; keys are those of Evaluation and Score."""
    values: dict[str, Any] = {
        "sentences": evaluation.sentences,
        "incomplete": evaluation.incomplete,
        "entities": of_score(evaluation.entities),
        "duplicates": of_score(evaluation.duplicates),
        "spans": of_score(evaluation.spans),
        "macro_f1": evaluation.macro_f1,
        "labels": of_groups(evaluation.labels),
        "depths": of_groups(evaluation.depths),
        "nesting": of_groups(evaluation.nesting),
        "lengths": of_groups(evaluation.lengths),
        "errors": {kind: evaluation.count(kind) for kind in KINDS},
        "errors_by_label": {
            label: {kind: evaluation.count(kind, label) for kind in KINDS} for label in evaluation.labels
        },
        "distribution": {
            label: {
                "predicted": {row: share for row, share in rows.items() if row is not None},
                "missed": rows.get(None, 0.0),
            }
            for label, rows in evaluation.distribution.items()
        },
        "heads": of_heads(evaluation.heads) if evaluation.heads else None,
        "calibration": of_calibration(evaluation.calibration) if evaluation.calibration else None,
        "level": LEVEL,
        "resamples": evaluation.resamples,
        "seed": evaluation.seed,
    }
    if comparison:
        values["comparison"] = of_comparison(comparison)
    return values


def of_score(score: Score) -> dict[str, Any]:
    return {
        "precision": score.precision,
        "recall": score.recall,
        "f1": score.f1,
        **asdict(score),
        "intervals": {name: list(value) for name, value in score.intervals._asdict().items()}
        if score.intervals
        else None,
    }


def of_groups(groups: Mapping[Any, Score]) -> dict[str, Any]:
    return {str(name): of_score(score) for name, score in groups.items()}


def of_heads(heads: Heads) -> dict[str, Any]:
    def most_frequent(words: Words) -> dict[str, Any]:
        return {label: [list(word) for word in found[:HEAD_WORDS]] for label, found in words.items()}

    counts = {name: value for name, value in vars(heads).items() if isinstance(value, int)}
    return {
        "accuracy": heads.accuracy,
        "accuracy_within": heads.accuracy_within,
        **counts,
        "words": most_frequent(heads.words),
        "gold_words": most_frequent(heads.gold_words),
    }


def of_calibration(found: Calibration) -> dict[str, Any]:
    return {**vars(found), "bins": [bin._asdict() for bin in found.bins]}


def of_comparison(comparison: Comparison) -> dict[str, Any]:
    def of_difference(found: Difference) -> dict[str, Any]:
        return {"difference": found.value, "interval": list(found.interval), "p": found.p}

    return {
        "names": list(comparison.names),
        "first": of_score(comparison.first.entities),
        "second": of_score(comparison.second.entities),
        **{name: of_difference(found) for name, found in comparison.overall.items()},
        "labels": {label: of_difference(found) for label, found in comparison.labels.items()},
        "better": comparison.better,
        "worse": comparison.worse,
        "resamples": comparison.resamples,
        "swaps": comparison.swaps,
        "seed": comparison.seed,
    }
