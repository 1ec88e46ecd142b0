"""Scores of a trained model, and everything that tables and plots need beyond them.

    python -m benchmarks.analysis --data DIR --out FILE [--model DIR]

analyzes the bundled model, or another one, on files called dev and test. Rows are like those of
`benchmarks.training --analyze`, which does the same before the weights of a run are deleted.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.timing import Row, provenance, store
from nestree import checkpoint
from nestree.data import formats
from nestree.errors import NestreeError
from nestree.evaluation import Evaluation, evaluate, have_heads
from nestree.hub import resolve
from nestree.model import Recognizer
from nestree.nn.devices import select_device
from nestree.pipeline import PredictOptions, predict
from nestree.temperature import decoder_f1
from nestree.training.dataset import part_files
from nestree.training.distill import change_case, without_punctuation
from nestree.types import Sentence

MAX_DIFFERENCE = 0.3  # points of F1 between predictions in batches of different sizes, by rounding alone


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.analysis", description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="holds files called dev and test")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the JSON file")
    parser.add_argument("--model", metavar="DIR", help="default: the bundled model")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--commit", help="the commit to record outside a git checkout")
    options = parser.parse_args(arguments)
    name = Path(options.model).name if options.model else "bundled"
    row: Row = {"name": name, "data": options.data.name, "recipe": name, "changes": []}
    try:
        device = select_device(options.device)
        model = checkpoint.load(resolve(options.model), device)
        for part, path in part_files(options.data).items():
            if part != "train":
                sentences = model.sentences_with_context(list(formats.read(path)))
                row[part] = score_model(model, sentences, analyze=True)[0]
                if have_heads(sentences):
                    row[part]["last_word"] = last_word_heads(sentences)
                print(f"{part}: F1 {row[part]['f1']:.2f}", file=sys.stderr)
    except NestreeError as error:
        raise SystemExit(str(error)) from None
    source = provenance(device.type, options.commit)
    print(store({"benchmark": "analysis", **source, "rows": [row]}, options.out)[:200])
    return 0


def score_model(model: Recognizer, sentences: Sequence[Sentence], analyze: bool) -> tuple[Row, list[Sentence]]:
    """Scores in per cent, and the sentences with predicted entities; `analyze` adds errors and calibration."""
    started = time.perf_counter()
    predicted = predict(model, sentences, options=PredictOptions(scored=True))
    seconds = time.perf_counter() - started
    evaluation = evaluate(sentences, predicted, resamples=0)
    row = {**summarize(evaluation), "sentences_per_second": len(sentences) / seconds}
    by_decoder = decoder_f1(model, sentences)
    row["f1_by_decoder"] = {f"{d.method} {d.threshold:g}": 100 * f1 for d, f1 in by_decoder.items()}
    own = 100 * by_decoder[model.settings.decoding]  # in other batches
    if abs(own - row["f1"]) > MAX_DIFFERENCE:
        print(f"F1 is {row['f1']:.2f}, and {own:.2f} in smaller batches: is a kernel wrong?", file=sys.stderr)
    if analyze:
        row["analysis"] = analyze_errors(evaluation)
    return row, predicted


def summarize(evaluation: Evaluation) -> Row:
    """Scores in per cent."""
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


def analyze_errors(evaluation: Evaluation) -> Row:
    """Counts by depth, length and label (right, predicted, found, gold), kinds of errors, and calibration."""
    row: Row = {
        name: {str(k): [s.correct, s.predicted, s.correct, s.gold] for k, s in getattr(evaluation, name).items()}
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


def count_by_sentence(gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> list[list[int]]:
    """[right, predicted, gold] of each sentence, for permutation tests."""
    rows = []
    for sentences in zip(gold, predicted, strict=True):
        right, found = ({(e.start, e.end, e.label) for e in sentence.entities} for sentence in sentences)
        rows.append([len(right & found), len(found), len(right)])
    return rows


def score_robustness(model: Recognizer, sentences: Sequence[Sentence]) -> dict[str, float]:
    """F1 on other forms of the sentences."""
    forms = {
        "upper": [change_case(sentence, str.upper) for sentence in sentences],
        "lower": [change_case(sentence, str.lower) for sentence in sentences],
        "no_punctuation": [without_punctuation(sentence) for sentence in sentences],
    }
    return {name: 100 * evaluate(gold, predict(model, gold), resamples=0).entities.f1 for name, gold in forms.items()}


def last_word_heads(sentences: Sequence[Sentence]) -> Row:
    """The accuracy of the last word of each gold span as its head."""
    predicted = [
        replace(s, entities=tuple(replace(e, head=e.end - 1, heads=()) for e in s.entities)) for s in sentences
    ]
    return summarize(evaluate(sentences, predicted, resamples=0))["heads"]


if __name__ == "__main__":
    sys.exit(main())
