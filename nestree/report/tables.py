"""The tables of a report and examples of errors: in a terminal, in Markdown, and as JSON."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nestree.display import REPLACEMENT, escape_bidi, escape_invisible, escape_markdown, markdown_table
from nestree.errors import plural
from nestree.evaluation import (
    KINDS,
    LEVEL,
    Calibration,
    Comparison,
    Difference,
    EntityError,
    Evaluation,
    HeadScores,
    Score,
)
from nestree.types import Entity, Sentence, Span, crossing_pairs

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

ERROR_NAMES = dict(zip(KINDS, ("wrong type", "wrong boundary", "missed", "spurious"), strict=True))
ERROR_NAMES["head"] = "wrong head"
ERROR_MEANINGS = {
    "type": "right span, wrong label",
    "boundary": "right label, overlapping span",
    "missed": "other gold entities, not predicted",
    "spurious": "other predicted entities, not gold",
}
METRIC_NAMES = {"precision": "P", "recall": "R", "f1": "F1"}
METRICS = ("P", "R", "F1", "F1 95 %", "correct", "predicted", "gold")
DEPTH_NOTE = (
    "Depth: how many other spans enclose an entity. Nested: inside or around another entity, or on its span; flat: "
    "the others. Predicted entities that are gold are grouped as in gold, the others as in the prediction."
)
UNDEFINED = "-"  # shown where there is nothing to divide by


def visible(text: str) -> str:
    """Replace control characters except line feeds, bidirectional controls, and lone surrogates."""
    return re.sub("[\t\r]", REPLACEMENT, escape_bidi(escape_invisible(text)))


# Numbers


def percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f}"


def signed(value: float) -> str:
    """A difference in percentage points; no sign if it rounds to zero.

    >>> signed(0.0123), signed(-0.5), signed(-0.000001)
    ('+1.23', '-50.00', '0.00')
    """
    text = f"{100 * value:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text


def metrics(score: Score) -> tuple[str, ...]:
    """P, R, F1, the interval of F1, and the counts."""
    predicted, gold = score.predicted, score.gold
    ratios = (score.precision, predicted), (score.recall, gold), (score.f1, predicted or gold)
    interval = "-".join(percent(end, 1) for end in score.intervals.f1) if score.intervals else ""
    counts = (f"{count:,}" for count in (score.correct, predicted, gold))
    return *(percent(ratio) if whole else UNDEFINED for ratio, whole in ratios), interval, *counts


def summary(evaluation: Evaluation) -> str:
    """The evaluation in one or two sentences."""
    entities, incomplete = evaluation.entities, evaluation.incomplete
    text = f"{plural(evaluation.sentences, 'sentence')}, {plural(entities.gold, 'gold entity')}, "
    text += f"{entities.predicted:,} predicted."
    if incomplete:
        text += (
            f" {plural(incomplete, 'gold sentence')} {'is' if incomplete == 1 else 'are'} marked as incomplete: what "
            "is predicted beyond the annotation counts as wrong."
        )
    return text


# Tables


@dataclass(frozen=True)
class Table:
    """Rows of strings; the first column names the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    text: bool = False  # the columns hold text, not numbers

    @property
    def left_aligned(self) -> list[bool]:
        """Of each column, whether it holds text; numbers are aligned on the right."""
        return [k == 0 or self.text or name == "meaning" for k, name in enumerate(self.columns)]

    def without_empty_columns(self) -> "Table":
        """The table without columns in which every row is empty.

        >>> Table("", ("label", "F1", "95 %"), [("ORG", "50.00", "")]).without_empty_columns().columns
        ['label', 'F1']
        """
        kept = [k for k in range(len(self.columns)) if k == 0 or any(row[k] for row in self.rows)]
        columns, *rows = ([row[k] for k in kept] for row in (self.columns, *self.rows))
        return replace(self, columns=columns, rows=rows)


def all_tables(evaluation: Evaluation, comparison: Comparison | None, head_words: int) -> list[Table]:
    """Every table of a report that has content, in order."""
    tables = [scores_table(evaluation)]
    if comparison:
        tables += comparison_tables(comparison)
    if evaluation.labels:
        tables += [
            group_table("By label", "label", evaluation.labels),
            group_table("By depth", "depth", {**evaluation.depths, **evaluation.nesting}, DEPTH_NOTE),
            group_table("By length", "words", evaluation.lengths),
            errors_table(evaluation),
            label_errors_table(evaluation),
        ]
    if evaluation.confusion:
        tables.append(distribution_table(evaluation))
    if heads := evaluation.heads:
        tables += [heads_table(heads), head_words_table(heads, evaluation.labels, head_words)]
    if evaluation.calibration:
        thresholds = {f"{threshold:.2f}": score for threshold, score in evaluation.thresholds.items()}
        note = "If only predicted entities with this score or a higher one were kept."
        tables.append(calibration_table(evaluation.calibration))
        tables.append(group_table("By threshold", "threshold", thresholds, note))
    return tables


def group_table(title: str, name: str, groups: Mapping[Any, Score], note: str = "") -> Table:
    """A row for each group of entities."""
    rows = [(str(group), *metrics(score)) for group, score in groups.items()]
    return Table(title, (name, *METRICS), rows, note)


def scores_table(evaluation: Evaluation) -> Table:
    groups = {
        "entities": evaluation.entities,
        "duplicates counted": evaluation.duplicates,
        "spans only": evaluation.spans,
    }
    notes = []
    if evaluation.resamples:
        sizes = f"{evaluation.resamples:,} resamples, seed {evaluation.seed}"
        notes = [f"95 %: bootstrap over sentences, {sizes}."]
    if any(not score.gold for score in evaluation.labels.values()):
        notes.append("Macro average: labels that are not in gold count with an F1 of 0.")
    table = group_table("Scores", "", groups, " ".join(notes))
    macro = ("macro average", "", "", percent(evaluation.macro_f1), "", "", "", "")
    return replace(table, rows=[*table.rows, macro]) if len(evaluation.labels) > 1 else table


def errors_table(evaluation: Evaluation) -> Table:
    gold, predicted = evaluation.entities.gold, evaluation.entities.predicted
    rows = []
    for kind in KINDS:
        errors = evaluation.count(kind)
        of_gold = percent(errors / gold) if gold and kind != "spurious" else ""
        of_predicted = percent(errors / predicted) if predicted and kind != "missed" else ""
        rows.append((ERROR_NAMES[kind], f"{errors:,}", of_gold, of_predicted, ERROR_MEANINGS[kind]))
    return Table("Errors", ("", "errors", "% gold", "% pred.", "meaning"), rows)


def label_errors_table(evaluation: Evaluation) -> Table:
    rows = [
        (label, f"{s.gold:,}", f"{s.correct:,}", *(f"{evaluation.count(kind, label):,}" for kind in KINDS))
        for label, s in evaluation.labels.items()
    ]
    note = "gold = correct + type + boundary + missed, by the label in gold."
    return Table("Errors by label", ("label", "gold", "correct", *KINDS), rows, note)


def distribution_table(evaluation: Evaluation) -> Table:
    columns = evaluation.distribution
    labels: list[str | None] = [*columns]
    labels += sorted({label for shares in columns.values() for label in shares if label} - columns.keys())
    rows = []
    for label in [*labels, None]:
        cells = (percent(shares[label], 1) if label in shares else "" for shares in columns.values())
        rows.append((label or "missed", *cells))
    note = "In %, by the label that the same span was predicted with; each column sums to 100."
    return Table("Error distribution", ("predicted \\ gold", *columns), rows, note)


def heads_table(heads: HeadScores) -> Table:
    ratios = {
        "head accuracy": (heads.correct, heads.judged),
        "left out: no single gold head": (heads.left_out, 0),
        "correct, any annotated head": (heads.correct_candidates, heads.candidates),
        "accuracy, any annotated head": (
            heads.correct + heads.correct_candidates,
            heads.candidates and heads.judged + heads.candidates,
        ),
        "predicted without a head": (heads.headless, 0),
        "shared heads, predicted": (heads.shared, heads.headed),
        "shared heads, gold": (heads.gold_shared, heads.gold_headed),
    }
    rows = [
        (name, percent(part / whole), f"{part:,} of {whole:,}") if whole else (name, "", f"{part:,}")
        for name, (part, whole) in ratios.items()
        if whole or (part and name in ("left out: no single gold head", "predicted without a head"))
    ]
    notes = {
        "Accuracy: over predicted spans of several words that are gold spans.": heads.judged,
        "Any annotated head: of the spans left out, gold names several heads for some; one of these counts as "
        "correct.": heads.candidates,
        "Shared: entities whose head also heads an entity on another span.": True,
    }
    note = " ".join(note for note, applies in notes.items() if applies)
    return Table("Heads", ("", "%", "count"), rows, note)


def head_words_table(heads: HeadScores, labels: Iterable[str], limit: int) -> Table:
    sides = {name: words for name, words in (("predicted", heads.words), ("gold", heads.gold_words)) if words}

    def frequent(words: Sequence[tuple[str, int]]) -> str:
        return ", ".join(f"{word} ({times:,})" for word, times in words[:limit])

    rows = [(label, *(frequent(words.get(label, ())) for words in sides.values())) for label in labels]
    return Table("Most frequent head words", ("label", *sides), rows, text=True)


def calibration_table(calibration: Calibration) -> Table:
    rows = [
        (f"{b.low:.1f}-{b.high:.1f}", f"{b.entities:,}", percent(b.score), percent(b.precision))
        for b in calibration.bins
    ]
    unscored = f"; {calibration.unscored:,} have no score" if calibration.unscored else ""
    note = (
        f"Expected calibration error {percent(calibration.error)} %, Brier score {calibration.brier:.4f}, "
        f"over {calibration.scored:,} entities{unscored}."
    )
    return Table("Calibration", ("score", "entities", "mean score", "precision %"), rows, note)


def comparison_tables(comparison: Comparison) -> tuple[Table, Table]:
    """The differences in precision, recall and F1, and those in F1 by label."""
    sides = comparison.first, comparison.second
    columns = (*short_names(comparison.names), "difference", "95 %", "p")

    def row(name: str, values: Iterable[str], difference: Difference) -> tuple[str, ...]:
        low, high = map(signed, difference.interval)
        return name, *values, signed(difference.value), f"{low} to {high}", f"{difference.p:.4f}"

    overall = [
        row(METRIC_NAMES[name], (percent(getattr(side.entities, name)) for side in sides), difference)
        for name, difference in comparison.overall.items()
    ]
    labels = []
    for label, difference in comparison.labels.items():
        scores = (percent(side.labels[label].f1) if label in side.labels else UNDEFINED for side in sides)
        labels.append(row(label, scores, difference))
    note = (
        f"p: permutation test, {comparison.swaps:,} permutations; 95 %: paired bootstrap, "
        f"{comparison.resamples:,} resamples; seed {comparison.seed}. "
        f"Fewer errors in {comparison.better:,} sentences, more in {comparison.worse:,}."
    )
    label_note = "These p are not corrected for the number of labels." if len(labels) > 1 else ""
    return (
        Table(f"{comparison.names[0]} against {comparison.names[1]}", ("", *columns), overall, note),
        Table("Difference in F1 by label", ("label", *columns), labels, label_note),
    )


def short_names(names: Iterable[str]) -> list[str]:
    """The names of predictions, cut on the left so that a table fits.

    >>> short_names(["pred.jsonl", "runs/of/yesterday/pred.jsonl"])
    ['pred.jsonl', '…erday/pred.jsonl']
    """
    return [name if len(name) <= 17 else f"…{name[-16:]}" for name in names]


# Examples of errors

CONTEXT = 4  # words on either side


def select_examples(evaluation: Evaluation, limit: int, by_label: bool = False) -> list[EntityError]:
    """Up to `limit` errors of each kind, or of each kind and label, evenly spaced over the sentences; by kind."""
    groups: defaultdict[tuple[str, str], list[EntityError]] = defaultdict(list)
    for error in (*evaluation.errors, *(evaluation.heads.errors if evaluation.heads else ())):
        groups[error.kind, error.label if by_label else ""].append(error)
    examples = []
    for errors in groups.values():
        n = min(limit, len(errors))
        examples += [errors[k * len(errors) // n] for k in range(n)]
    return sorted(examples, key=lambda error: (list(ERROR_NAMES).index(error.kind), error.number))


def window(error: EntityError) -> Span:
    """The words to show: those of the entities in question, and some on either side."""
    entities = [entity for entity in (error.gold, error.predicted) if entity]
    start, end = min(e.start for e in entities), max(e.end for e in entities)
    return max(0, start - CONTEXT), min(len(error.sentence.words), end + CONTEXT)


def describe_error(error: EntityError) -> str:
    """The error in words.

    >>> words = "the University of California".split()
    >>> gold, predicted = Entity(0, 4, "ORG"), Entity(1, 4, "ORG")
    >>> sentences = [Sentence(words, [entity]) for entity in (gold, predicted)]
    >>> describe_error(EntityError("boundary", gold, predicted, 1, *sentences))
    "ORG 'the University of California' was predicted as 'University of California'"
    """
    gold, predicted, sentence = error.gold, error.predicted, error.sentence
    if gold is None:
        assert predicted is not None
        return f"{predicted.label} {sentence.phrase(predicted)!r} is not gold"
    phrase = f"{gold.label} {sentence.phrase(gold)!r}"
    if predicted is None:
        return f"{phrase} was not predicted"
    if error.kind == "type":
        return f"{phrase} was predicted as {predicted.label}"
    if error.kind == "boundary":
        return f"{phrase} was predicted as {sentence.phrase(predicted)!r}"
    heads = [sentence.words[e.head] if e.head is not None else "none" for e in (gold, predicted)]
    return f"{phrase} has the head {heads[0]!r}, predicted was {heads[1]!r}"


def bracket_lines(error: EntityError) -> Iterator[tuple[str, str]]:
    """The words of the window with their gold entities in brackets, and with the predicted ones."""
    for side, sentence in (("gold", error.sentence), ("predicted", error.prediction)):
        yield side, bracket_line(sentence, window(error))


def bracket_line(sentence: Sentence, window: Span) -> str:
    """The words of the window with its entities in brackets; entities that cross others come after the words.

    >>> words = "at the University of California".split()
    >>> bracket_line(Sentence(words, [Entity(1, 5, "ORG"), Entity(4, 5, "GPE")]), (1, 5))
    '… [the University of [California GPE] ORG]'
    >>> bracket_line(Sentence(words, [Entity(0, 3, "ORG"), Entity(2, 5, "ORG")]), (0, 5))
    '[at the University ORG] of California + [University of California ORG]'
    """
    start, end = window
    nested: list[Entity] = []
    crossing: list[Entity] = []
    inside = {(e.start, e.end, e.label): e for e in sentence.entities if start <= e.start and e.end <= end}
    for key in sorted(inside, key=lambda key: (key[1] - key[0], key)):  # the innermost first
        (crossing if crossing_pairs([*nested, inside[key]]) else nested).append(inside[key])
    words = list(sentence.words)
    for entity in nested:
        words[entity.start] = "[" + words[entity.start]
        words[entity.end - 1] += f" {entity.label}]"
    after = [f"+ [{sentence.phrase(entity)} {entity.label}]" for entity in crossing]
    return " ".join(["…"] * (start > 0) + words[start:end] + ["…"] * (end < len(words)) + after)


# Terminal

TERMINAL_HEAD_WORDS = 5  # of each label
TERMINAL_EXAMPLES = 1  # of each kind of error
MAX_NAME_WIDTH = 24  # columns that names of rows may take before they are wrapped


def to_terminal(
    evaluation: Evaluation, comparison: Comparison | None = None, title: str = "Evaluation", width: int | None = 80
) -> "list[RenderableType]":
    """The report as rich renderables for a terminal of this width; None: tables have every column, as in a file."""
    from rich.table import Table as RichTable

    parts: list[RenderableType] = [styled(title, "bold"), styled(summary(evaluation))]
    for table in all_tables(evaluation, comparison, TERMINAL_HEAD_WORDS):
        parts += [styled(""), *terminal_table(table, width)]
    examples = select_examples(evaluation, TERMINAL_EXAMPLES)
    if examples:
        parts += [styled(""), styled("Examples", "bold")]
    for error in examples:
        place = styled(f"{ERROR_NAMES[error.kind]}, sentence {error.number}: ", "bold")
        grid = RichTable.grid(padding=(0, 1))
        for side, line in bracket_lines(error):
            grid.add_row(styled(f"  {side}", "dim"), styled(line))
        parts += [place + styled(describe_error(error)), grid]
    return parts


def styled(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(visible(text), style)


def terminal_table(table: Table, width: int | None = 80) -> "list[RenderableType]":
    """Title, table and note; columns of numbers that do not fit are left out, and the note says so."""
    from rich.cells import cell_len
    from rich.table import Table as RichTable

    table = table.without_empty_columns()
    note, kept, grid_width = table.note, len(table.columns), None
    if not (all(table.left_aligned[1:]) or "meaning" in table.columns):
        columns = zip(table.columns, *table.rows, strict=True)
        widths = [max(cell_len(visible(cell)) for cell in column) + 2 for column in columns]
        if width is None:
            grid_width = sum(widths) - 2  # nothing follows the last column
        else:
            widths[0] = min(widths[0], MAX_NAME_WIDTH + 2)
            while kept > 1 and sum(widths[:kept]) - 2 > width:
                kept -= 1
    if kept < len(table.columns):
        left_out = len(table.columns) - kept
        more = "more column does" if left_out == 1 else "more columns do"
        note = f"{note} {left_out} {more} not fit here: see Markdown, JSON or HTML.".strip()
    grid = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", width=grid_width)
    for name, left in zip(table.columns[:kept], table.left_aligned, strict=False):
        grid.add_column(styled(name), justify="left" if left else "right", no_wrap=not left, overflow="fold")
    for row in table.rows:
        grid.add_row(*map(styled, row[:kept]))
    return [styled(table.title, "bold"), grid, *([styled(note, "dim")] if note else [])]


# Markdown

MARKDOWN_HEAD_WORDS = 10
MARKDOWN_EXAMPLES = 3


def to_markdown(evaluation: Evaluation, comparison: Comparison | None = None, title: str = "Evaluation") -> str:
    """Tables and examples in GitHub's Markdown."""
    parts = [f"# {escape_markdown(title)}", summary(evaluation)]
    for table in all_tables(evaluation, comparison, MARKDOWN_HEAD_WORDS):
        table = table.without_empty_columns()
        rows = markdown_table([table.columns, *table.rows], table.left_aligned)
        parts += [f"## {escape_markdown(table.title)}", rows]
        parts += [table.note] if table.note else []
    examples = select_examples(evaluation, MARKDOWN_EXAMPLES)
    parts += ["## Examples"] if examples else []
    for error in examples:
        name = f"{ERROR_NAMES[error.kind].capitalize()}, sentence {error.number}: {describe_error(error)}"
        lines = [f"    {side:9} {line}" for side, line in bracket_lines(error)]
        parts += [escape_markdown(name), "\n".join(lines)]
    return visible("\n\n".join(parts) + "\n")


# JSON

JSON_HEAD_WORDS = 20


def to_json(evaluation: Evaluation, comparison: Comparison | None = None) -> dict[str, Any]:
    """The report as values for `json.dumps`; keys are the fields of Evaluation, Score, HeadScores and Calibration."""
    values: dict[str, Any] = {
        **{name: plain(value) for name, value in vars(evaluation).items() if name not in NOT_IN_JSON},
        "macro_f1": evaluation.macro_f1,
        "errors": {kind: evaluation.count(kind) for kind in KINDS},
        "errors_by_label": {
            label: {kind: evaluation.count(kind, label) for kind in KINDS} for label in evaluation.labels
        },
        "distribution": {
            label: {"predicted": {k: v for k, v in row.items() if k}, "missed": row.get(None, 0.0)}
            for label, row in evaluation.distribution.items()
        },
        "level": LEVEL,
    }
    for side in ("words", "gold_words") if evaluation.heads else ():
        words = values["heads"][side]
        values["heads"][side] = {label: counts[:JSON_HEAD_WORDS] for label, counts in words.items()}
    if comparison:
        values["comparison"] = {
            **plain(comparison),
            "first": plain(comparison.first.entities),
            "second": plain(comparison.second.entities),
            **plain(comparison.overall),
        }
        del values["comparison"]["overall"]
    return values


NOT_IN_JSON = ("errors", "confusion", "error_counts")  # replaced by counts and shares
PROPERTIES = {Score: ("precision", "recall", "f1"), HeadScores: ("accuracy", "accuracy_any_head")}


def plain(value: Any) -> Any:
    """Dataclasses and named tuples as dictionaries of plain values, without lists of errors."""
    if isinstance(value, Score | HeadScores | Calibration | Comparison | Evaluation):
        fields = {name: plain(field) for name, field in vars(value).items() if name not in NOT_IN_JSON}
        return {name: getattr(value, name) for name in PROPERTIES.get(type(value), ())} | fields
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value
