"""What a trained model is asked before its weights are gone: all that later tables and tests need, as numbers."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nestree.config import Settings
from nestree.evaluation import Evaluation, evaluate
from nestree.evaluation.heads import Heads
from nestree.model import Recognizer
from nestree.pipeline import PredictOptions, predict
from nestree.types import Sentence

Row = dict[str, Any]
THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
HEAD_WORDS = 5  # of each label
EXAMPLES = 3  # of each kind of wrong head
LITTLE = re.compile(
    r"an?|and|as|at|but|by|during|for|from|in|of|on|or|that|the|through|to|which|who|with|\W+"
)
# How heads are chosen by marginals: weights of what the forms of words say, with costs of sharing one.
HEADS = (
    (0.0, 0.0),
    (1.0, 0.0),
    (2.0, 0.0),
    (3.0, 0.0),
    (0.0, 2.0),
    (1.0, 2.0),
    (2.0, 1.0),
    (2.0, 2.0),
    (2.0, 3.0),
    (3.0, 2.0),
    (5.0, 0.0),
    (5.0, 2.0),
    (8.0, 2.0),
)
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
    if evaluation.calibration is not None:
        row["calibration_error"] = 100 * evaluation.calibration.error
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
    if evaluation.heads is not None:
        row |= {
            "head_words": most_frequent(evaluation.heads.words),
            "head_errors": head_errors(evaluation.heads),
        }
    row["errors"] = {kind: counts[None] for kind, counts in evaluation.error_counts.items()}
    if evaluation.calibration is not None:
        row["calibration"] = {
            "error": 100 * evaluation.calibration.error,
            "brier": evaluation.calibration.brier,
            "bins": [list(one) for one in evaluation.calibration.bins],
        }
    return row


def most_frequent(words: Mapping[str, Sequence[tuple[str, int]]]) -> Row:
    return {label: [list(pair) for pair in found[:HEAD_WORDS]] for label, found in words.items()}


def head_errors(heads: Heads) -> Row:
    """How many wrong heads are of which kind, and some of them: the entity, its gold head, ours."""
    found: Row = {}
    for wrong in heads.mistakes:
        gold, said, words = wrong.gold, wrong.predicted, wrong.sentence.words
        if gold is None or said is None or gold.head is None or said.head is None:
            continue
        kind = found.setdefault(kind_of_head(words, gold.head, said.head), {"count": 0, "examples": []})
        kind["count"] += 1
        example = [" ".join(words[gold.start : gold.end]), words[gold.head], words[said.head]]
        if len(kind["examples"]) < EXAMPLES and example not in kind["examples"]:
            kind["examples"].append(example)
    return found


def kind_of_head(words: Sequence[str], gold: int, said: int) -> str:
    """What kind of mistake a wrong head is, as far as the words tell.

    >>> kind_of_head("April 12 , 1981".split(), 1, 2), kind_of_head("a lot of money".split(), 1, 3)
    ('no word with a meaning', 'what something is of')
    >>> kind_of_head("New Zealand".split(), 0, 1), kind_of_head("Figure 2".split(), 0, 1)
    ('another word of a name', 'a number or not')
    """
    true, ours = words[gold], words[said]
    if LITTLE.fullmatch(ours.lower()):
        return "no word with a meaning"
    if gold < said and "of" in (word.lower() for word in words[gold:said]):
        return "what something is of"
    if any(map(str.isdigit, true + ours)):
        return "a number or not"
    if true[0].isupper() and ours[0].isupper():
        return "another word of a name"
    return "other"


def by_sentence(gold: Sequence[Sentence], found: Sequence[Sentence]) -> list[list[int]]:
    """[right, predicted, gold] of each sentence: enough to test whether two runs differ."""
    rows = []
    for one, other in zip(gold, found, strict=True):
        truth = {(e.start, e.end, e.label) for e in one.entities}
        said = {(e.start, e.end, e.label) for e in other.entities}
        rows.append([len(truth & said), len(said), len(truth)])
    return rows


def other_decoders(model: Recognizer, sentences: Sequence[Sentence]) -> Row:
    """The same scores decoded otherwise: by thresholds, by best trees with costs of sharing; other heads."""
    found: Row = {}
    if model.settings.model.structure != "none" and model.settings.decoding.method != "spans":
        for threshold in THRESHOLDS:
            found[f"marginals {threshold}"] = decoded(model, sentences, method="mbr", threshold=threshold)
        for cost in COSTS if model.settings.model.structure == "lexical" else COSTS[1:2]:
            found[f"tree {cost}"] = decoded(
                model,
                sentences,
                method="viterbi",
                threshold=0,
                head_sharing_penalty=cost,
                head_prior_weight=0,
            )
        for weight, cost in HEADS if model.settings.model.head_prior else ():
            name = f"forms {weight} sharing {cost}"
            found[name] = decoded(
                model, sentences, method="mbr", head_prior_weight=weight, head_sharing_penalty=cost
            )
    return found


def decoded(model: Recognizer, sentences: Sequence[Sentence], **decoding: Any) -> Row:
    settings: Settings = model.settings.changed(
        [f"decoding.{key}={value}" for key, value in decoding.items()]
    )
    return summary(
        evaluate(sentences, predict(model, sentences, asked=PredictOptions(settings=settings)), resamples=0)
    )
