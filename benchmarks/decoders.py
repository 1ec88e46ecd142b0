"""Which decoder is better, and are probabilities honest? On data that a model was not trained on.

    python -m benchmarks.decoders DATA [--judge MORE_DATA] [--model DIR] [--out FILE]

Temperatures are fitted on the first half of DATA, and all numbers are of the second; or fitted on all of it, and the
numbers are of MORE_DATA. For the best tree and for marginals at several thresholds: precision, recall, F1, how many
heads are right (where gold heads are known), calibration error and Brier score, with and without temperatures. Then
where scores are too high or too low: mean score and share of right entities, for some groups of entities, and for the
parts of a probability: is this span an entity, and if so, which label has it? Beside calibration errors stands what
honest scores of so many entities would have by chance.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import nestree
from benchmarks.timing import one_line, provenance, write_whole
from nestree.data.formats import read
from nestree.decoding import NO_TEMPERATURES, Temperatures
from nestree.evaluation import evaluate
from nestree.evaluation.calibration import BINS, calibrate
from nestree.model import Recognizer
from nestree.pipeline import PredictOptions, predict
from nestree.temperature import calibration_set, fit_temperatures, probabilities, spans_at
from nestree.types import Entity, Sentence, depths

WAYS = [("viterbi", 0.0), *(("mbr", at) for at in (0.1, 0.3, 0.35, 0.4, 0.45, 0.5))]
GROUPS: dict[str, Callable[[Entity, int, int], bool]] = {
    "all": lambda entity, depth, words: True,
    "of one word": lambda entity, depth, words: entity.end - entity.start == 1,
    "of 2 to 5 words": lambda entity, depth, words: 2 <= entity.end - entity.start <= 5,
    "of more": lambda entity, depth, words: entity.end - entity.start > 5,
    "in no other": lambda entity, depth, words: depth == 0,
    "in one other": lambda entity, depth, words: depth == 1,
    "in several": lambda entity, depth, words: depth > 1,
    "sentence below 15 words": lambda entity, depth, words: words < 15,
    "sentence of 15 to 30": lambda entity, depth, words: 15 <= words <= 30,
    "sentence of more": lambda entity, depth, words: words > 30,
}


def found(model: Recognizer, gold: Sequence[Sentence], by: str, threshold: float) -> list[Sentence]:
    settings = model.settings.changed([f"decoding.method={by}", f"decoding.threshold={threshold}"])
    return predict(model, gold, asked=PredictOptions(True, False, settings))


def measured(model: Recognizer, gold: Sequence[Sentence], by: str, threshold: float) -> dict[str, Any]:
    """All numbers of one way to decode."""
    scored = evaluate(gold, found(model, gold, by, threshold), resamples=0)
    heads, honest = scored.heads, scored.calibration
    return {
        "by": by,
        "threshold": threshold,
        "precision": scored.entities.precision,
        "recall": scored.entities.recall,
        "f1": scored.entities.f1,
        "heads": heads.accuracy if heads and heads.judged else None,
        "calibration error": honest.error if honest else None,
        "brier": honest.brier if honest else None,
    }


def groups(model: Recognizer, gold: Sequence[Sentence]) -> Iterator[dict[str, Any]]:
    """Are some kinds of predicted entities surer than they should be?"""
    settings = model.settings.decoding
    each = [
        (entity, depth, len(true.words), (entity.start, entity.end, entity.label) in right)
        for true, guess in zip(gold, found(model, gold, settings.method, settings.threshold), strict=True)
        for right in [{(entity.start, entity.end, entity.label) for entity in true.entities}]
        for entity, depth in zip(guess.entities, depths(guess.entities), strict=True)
    ]
    for name, within in GROUPS.items():
        yield honesty(name, [(one[0].score or 0.0, one[3]) for one in each if within(*one[:3])])


def parts(model: Recognizer, gold: Sequence[Sentence]) -> Iterator[dict[str, Any]]:
    """Which part of a probability is too high? Of the spans that temperatures are fitted on."""
    settings, temperatures = model.settings, model.temperatures
    entity, label = [], []
    with torch.inference_mode():
        for one in calibration_set(model, gold):
            there = spans_at(one, settings, temperatures.tree)  # [M]
            whole = probabilities(one, there, settings, temperatures)  # [K, L]
            unlabelled = one._replace(labels=None if one.labels is None else torch.full_like(one.labels, 1e4))
            yes = probabilities(unlabelled, there, settings, temperatures)
            yes = yes.sum(1) if one.labels is None else yes.amax(1)  # [K]
            best, which = (whole / yes[:, None].clamp(min=1e-9)).max(1)
            true = one.right.any(1)
            entity += list(zip(yes.tolist(), true.tolist(), strict=True))
            chosen = one.right.gather(1, which[:, None])[:, 0]
            label += list(zip(best[true].tolist(), chosen[true].tolist(), strict=True))
    yield honesty("is it an entity?", entity)
    yield honesty("if so, its best label", label)


def honesty(name: str, scored: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    judged = calibrate((min(score, 1.0), right) for score, right in scored)
    if judged is None:
        return {"group": name, "number": 0}
    return {
        "group": name,
        "number": judged.scored,
        "score": sum(score for score, _ in scored) / len(scored),
        "right": sum(right for _, right in scored) / len(scored),
        "calibration error": judged.error,
        "by chance": by_chance([score for score, _ in scored]),
        "brier": judged.brier,
        "bins": [list(bin) for bin in judged.bins] if name == "all" else None,
    }


def by_chance(scores: Sequence[float]) -> float:
    """The calibration error to expect of so many entities if their scores are honest."""
    spread = [0.0] * BINS  # the variance of the number of right ones
    for score in scores:
        spread[min(int(score * BINS), BINS - 1)] += max(0.0, score * (1 - score))
    return sum(math.sqrt(2 / math.pi * variance) for variance in spread) / len(scores)


def show(row: dict[str, Any]) -> None:
    if "group" in row and row["number"]:
        print(
            f"  {row['group']:24s} {row['number']:6,d}  score {100 * row['score']:.1f}  right "
            f"{100 * row['right']:.1f}  ECE {100 * row['calibration error']:.2f}  "
            f"(by chance {100 * row['by chance']:.2f})"
        )
    elif "by" in row:
        heads = "" if row["heads"] is None else f"heads {100 * row['heads']:.2f}  "
        print(
            f"  {row['by']:9s} {row['threshold']:4.2f}  P {100 * row['precision']:.2f}  "
            f"R {100 * row['recall']:.2f}  F1 {100 * row['f1']:.2f}  {heads}"
            f"ECE {100 * (row['calibration error'] or 0):.2f}  Brier {row['brier'] or 0:.4f}",
            flush=True,
        )


def everything(model: Recognizer, gold: Sequence[Sentence], temperatures: Temperatures) -> dict[str, Any]:
    """All numbers at these temperatures."""
    model.temperatures = temperatures
    print(
        "temperatures: " + ", ".join(f"{name} {value:.3f}" for name, value in temperatures._asdict().items())
    )
    made: dict[str, Any] = {"temperatures": temperatures._asdict(), "ways": [], "groups": []}
    for by, threshold in WAYS:
        if by != "viterbi" or model.settings.model.structure != "none":
            made["ways"].append(measured(model, gold, by, threshold))
            show(made["ways"][-1])
    for row in (*groups(model, gold), *parts(model, gold)):
        made["groups"].append(row)
        show(row)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "--judge", type=Path, help="data that numbers are of; default: the second half of DATA"
    )
    parser.add_argument("--model", help="a directory; default: the bundled model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    model = nestree.load(given.model, given.device).model
    learnt = model.sentences_of(read(given.data))
    if given.judge:
        judged = model.sentences_of(read(given.judge))
    else:
        learnt, judged = learnt[: len(learnt) // 2], learnt[len(learnt) // 2 :]
    result = {
        "benchmark": "decoders",
        **provenance(model.device.type, given.commit),
        "model": given.model or "box",
        "data": given.data.name,
        "judge": given.judge.name if given.judge else None,
        "sentences": {"fitted on": len(learnt), "judged on": len(judged)},
        "unfitted": everything(model, judged, NO_TEMPERATURES),
        "fitted": everything(model, judged, fit_temperatures(model, learnt)),
    }
    print(one_line(result))
    if given.out:
        write_whole(given.out, one_line(result) + "\n")


if __name__ == "__main__":
    main()
