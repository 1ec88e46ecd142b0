"""What a trained model is asked before its weights are gone: all that later tables and tests need, as numbers."""

from collections.abc import Sequence
from typing import Any

from nestree.config import Settings
from nestree.evaluation import Evaluation, evaluate
from nestree.model import Recognizer
from nestree.pipeline import predict
from nestree.pipeline.sentences import Asked
from nestree.sentence import Sentence

Row = dict[str, Any]
THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
COSTS = (-2.0, 0.0, 0.2, 0.4, 0.6, 1.0)  # of sharing a head, in decoding


def summary(evaluation: Evaluation) -> Row:
    """Percentages."""
    score, heads = evaluation.entities, evaluation.heads
    row: Row = {
        "precision": 100 * score.precision,
        "recall": 100 * score.recall,
        "f1": 100 * score.f1,
        "sentences": evaluation.sentences,
    }
    if heads is not None:
        row["heads"] = {
            "accuracy": None if heads.accuracy is None else 100 * heads.accuracy,
            "judged": heads.judged,
            "shared": 100 * heads.shared / heads.headed if heads.headed else None,
            "gold_shared": 100 * heads.gold_shared / heads.gold_headed if heads.gold_headed else None,
        }
    return row


def details(evaluation: Evaluation) -> Row:
    """Counts by depth, length and label (right, predicted, found, gold), kinds of errors, and how honest scores are."""
    row: Row = {
        name: {str(k): [s.right, s.predicted, s.found, s.gold] for k, s in getattr(evaluation, name).items()}
        for name in ("depths", "lengths", "nesting", "labels")
    }
    row["errors"] = {kind: counts[None] for kind, counts in evaluation.error_counts.items()}
    if evaluation.calibration is not None:
        row["calibration"] = {
            "error": 100 * evaluation.calibration.error,
            "brier": evaluation.calibration.brier,
            "bins": [list(one) for one in evaluation.calibration.bins],
        }
    return row


def by_sentence(gold: Sequence[Sentence], found: Sequence[Sentence]) -> list[list[int]]:
    """[right, predicted, gold] of each sentence: enough to test whether two runs differ."""
    rows = []
    for one, other in zip(gold, found, strict=True):
        truth = {(e.start, e.end, e.label) for e in one.entities}
        said = {(e.start, e.end, e.label) for e in other.entities}
        rows.append([len(truth & said), len(said), len(truth)])
    return rows


def other_decoders(model: Recognizer, sentences: Sequence[Sentence]) -> Row:
    """The same scores decoded otherwise: by several thresholds, and by best trees with several costs of sharing."""
    found: Row = {}
    if model.settings.model.structure != "none" and model.settings.decoding.by != "spans":
        for threshold in THRESHOLDS:
            found[f"marginals {threshold}"] = decoded(model, sentences, by="marginals", threshold=threshold)
        for cost in COSTS if model.settings.model.structure == "lexical" else COSTS[1:2]:
            found[f"tree {cost}"] = decoded(model, sentences, by="tree", threshold=0, sharing=cost)
    return found


def decoded(model: Recognizer, sentences: Sequence[Sentence], **decoding: Any) -> Row:
    settings: Settings = model.settings.changed(
        [f"decoding.{key}={value}" for key, value in decoding.items()]
    )
    return summary(
        evaluate(sentences, predict(model, sentences, asked=Asked(settings=settings)), resamples=0)
    )
