"""Which decoder is better, and are probabilities honest? On data that a model was not trained on.

    python -m benchmarks.decoders DATA [--model DIR] [--out FILE]

Temperatures are fitted on every other sentence; all numbers are of the rest. For the best tree and for marginals at
several thresholds: precision, recall, F1, how many heads are right (where gold heads are known), calibration error and
Brier score; and the two last before temperatures were fitted.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nestree
from benchmarks.timing import one_line, provenance, write_whole
from nestree.data.formats import read
from nestree.decoding import NO_CHANGE
from nestree.evaluation import evaluate
from nestree.model import Recognizer
from nestree.pipeline import predict
from nestree.pipeline.calibration import fitted
from nestree.pipeline.sentences import Asked
from nestree.sentence import Sentence

THRESHOLDS = {"tree": (0.0, 0.3, 0.5), "marginals": (0.25, 0.3, 0.35, 0.4, 0.45, 0.5)}


def measured(model: Recognizer, gold: Sequence[Sentence], by: str, threshold: float) -> dict[str, Any]:
    """All numbers of one way to decode."""
    settings = model.settings.changed([f"decoding.by={by}", f"decoding.threshold={threshold}"])
    found = evaluate(gold, predict(model, gold, asked=Asked(True, False, settings)), resamples=0)
    heads, honest = found.heads, found.calibration
    return {
        "by": by,
        "threshold": threshold,
        "precision": found.entities.precision,
        "recall": found.entities.recall,
        "f1": found.entities.f1,
        "heads": heads.accuracy if heads and heads.judged else None,
        "calibration error": honest.error if honest else None,
        "brier": honest.brier if honest else None,
    }


def show(name: str, row: dict[str, Any]) -> None:
    heads = "" if row["heads"] is None else f"heads {100 * row['heads']:.2f}  "
    print(
        f"{name:11s} {row['by']:9s} {row['threshold']:4.2f}  P {100 * row['precision']:.2f}  "
        f"R {100 * row['recall']:.2f}  F1 {100 * row['f1']:.2f}  {heads}"
        f"ECE {100 * (row['calibration error'] or 0):.2f}  Brier {row['brier'] or 0:.4f}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", help="a directory; default: the model in the box")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    model = nestree.load(given.model, given.device).model
    sentences = [s for document in read(given.data) for s in document.sentences]
    learnt, judged = sentences[::2], sentences[1::2]
    model.temperatures = NO_CHANGE
    before = measured(model, judged, "tree", 0.0)
    show("unfitted", before)
    model.temperatures = fitted(model, learnt)
    print(f"temperatures: mention {model.temperatures.mention:.3f}, label {model.temperatures.label:.3f}")
    rows = []
    for by, thresholds in THRESHOLDS.items():
        for threshold in thresholds:
            rows.append(measured(model, judged, by, threshold))
            show("fitted", rows[-1])
    result = {
        "benchmark": "decoders",
        **provenance(model.device.type, given.commit),
        "model": given.model or "box",
        "data": given.data.name,
        "sentences": {"fitted on": len(learnt), "judged on": len(judged)},
        "temperatures": model.temperatures._asdict(),
        "unfitted": before,
        "rows": rows,
    }
    print(one_line(result))
    if given.out:
        write_whole(given.out, one_line(result) + "\n")


if __name__ == "__main__":
    main()
