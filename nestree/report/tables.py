"""What a report says, as tables of strings: the same ones for terminal, Markdown and HTML."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from nestree.evaluation import KINDS, Calibration, Comparison, Evaluation, Heads, Score
from nestree.evaluation.scores import Range

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
