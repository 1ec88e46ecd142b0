"""The end of a training run in a few lines: how good the model is, and five typical mistakes."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

from nestree.checkpoint import CARD, write_text
from nestree.evaluation import Evaluation, Mistake
from nestree.report import as_json
from nestree.report.examples import described
from nestree.training.folder import Folder
from nestree.training.starting import Result

MISTAKES = 5


def summary(result: Result) -> str:
    """For people."""
    epochs = "1 epoch" if result.epochs == 1 else f"{result.epochs} epochs"
    lines = [f"{epochs} in {duration(result.seconds)}; {result.why}."]
    if result.evaluation is not None:
        score = result.evaluation.entities
        lines += [
            f"best epoch {result.best_epoch}: dev P {100 * score.precision:.2f}  R {100 * score.recall:.2f}  "
            f"F1 {100 * score.f1:.2f} (calibrated)",
            f"model: {result.folder}",
        ]
        found = typical(result.evaluation)
        if found:
            lines += ["", f"typical mistakes on dev, of {len(result.evaluation.mistakes):,}:"]
            lines += [f"  {times:>4} x {kind}, such as: {described(one)}" for kind, times, one in found]
        lines += ["", next_step(result, score.f1)]
    return "\n".join(lines)


def next_step(result: Result, f1: float) -> str:
    """What to do with the model, or to get one."""
    if f1 == 0:
        return (
            "It has learned nothing yet. Give it more updates: more epochs (--set training.epochs=40), or smaller "
            "batches (--set training.batch_words=150)."
        )
    return f"Try it: nestree show TEXT.txt --model {result.folder}"


def keep_scores(result: Result, test: Evaluation | None) -> None:
    """Write down how good the model is: for programs and, if it was tested, in its card."""
    values: dict[str, Any] = {"seconds_per_epoch": result.seconds / max(1, result.epochs)}
    for name, evaluation in (("dev", result.evaluation), ("test", test)):
        if evaluation is not None:
            values[name] = as_json(evaluation)
    if result.card is not None and test is not None:
        tested = replace(result.card, evaluations={**result.card.evaluations, "test": test})
        write_text(result.folder / CARD, str(tested))
    write_text(
        Folder(result.folder).scores, json.dumps(values, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    )


def typical(evaluation: Evaluation) -> list[tuple[str, int, Mistake]]:
    """The most frequent kinds of mistakes by their labels: what, how often, and one from the middle of them."""
    counts = Counter(map(what, evaluation.mistakes))
    found = []
    for kind, times in counts.most_common(MISTAKES):
        alike = [mistake for mistake in evaluation.mistakes if what(mistake) == kind]
        found.append((kind, times, alike[len(alike) // 2]))
    return found


def what(mistake: Mistake) -> str:
    gold, predicted = mistake.gold, mistake.predicted
    if mistake.kind == "type" and gold and predicted:
        return f"{gold.label} taken for {predicted.label}"
    entity = gold or predicted
    assert entity is not None
    kinds = {"boundary": "wrong borders of", "missed": "missed", "spurious": "invented"}
    return f"{kinds[mistake.kind]} {entity.label}"


def duration(seconds: float) -> str:
    """
    >>> duration(59.6), duration(125), duration(7300)
    ('60 s', '2 min 5 s', '2 h 1 min')
    """
    if round(seconds) < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
