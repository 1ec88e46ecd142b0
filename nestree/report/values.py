"""An evaluation as plain values, for JSON. Ratios are between 0 and 1; nothing is rounded."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nestree.evaluation import KINDS, Calibration, Comparison, Difference, Evaluation, Heads, Score
from nestree.evaluation.heads import Words
from nestree.evaluation.scores import LEVEL

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
