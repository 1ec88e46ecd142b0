"""Scores of a trained model, and everything that tables and plots need beyond them.

    python -m benchmarks.analysis --data DIR --out FILE [--model DIR]

analyzes the bundled model, or another one, on files called dev and test. Rows are like those of
`benchmarks.training --analyze`, which does the same before the weights of a run are deleted.
"""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.timing import Row, provenance, store
from nestree import checkpoint
from nestree.data import formats
from nestree.errors import NestreeError
from nestree.evaluation import Evaluation, evaluate
from nestree.evaluation.heads import HeadScores, have_heads
from nestree.hub import resolve
from nestree.model import Recognizer
from nestree.nn.devices import select_device
from nestree.pipeline import Pipeline, PredictOptions, predict
from nestree.temperature import decoder_f1
from nestree.training.distill import change_case, without_punctuation
from nestree.training.experiment import data_files
from nestree.types import Sentence

THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of MBR decoding
PENALTIES = (-2.0, 0.0, 0.2, 0.4, 0.6, 1.0)  # head sharing penalties in Viterbi decoding
HEAD_DECODERS = (  # (head prior weight, head sharing penalty) in MBR decoding
    *((0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (3.0, 0.0), (0.0, 2.0), (1.0, 2.0), (2.0, 1.0)),
    *((2.0, 2.0), (2.0, 3.0), (3.0, 2.0), (5.0, 0.0), (5.0, 2.0), (8.0, 2.0)),
)
HEAD_WORDS = 5  # of each label
EXAMPLES = 3  # of each kind of wrong head
FUNCTION_WORDS = re.compile(
    r"an?|and|as|at|but|by|during|for|from|in|of|on|or|that|the|through|to|which|who|with|\W+"
)
NAMES = (
    *("Paris", "Apple", "Google", "London", "Microsoft", "Obama", "Germany"),
    *("Berlin", "Amazon", "Shakespeare", "Einstein", "Toyota", "Japan", "NASA"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.analysis", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="holds files called dev and test"
    )
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
        for part, path in data_files(options.data).items():
            if part != "train":
                sentences = model.sentences_with_context(list(formats.read(path)))
                row[part] = score_model(model, sentences, analyze=True, all_decoders=True)[0]
                if have_heads(sentences):
                    row[part]["last_word"] = last_word_heads(sentences)
                print(f"{part}: F1 {row[part]['f1']:.2f}", file=sys.stderr)
    except NestreeError as error:
        raise SystemExit(str(error)) from None
    print(
        store(
            {"benchmark": "analysis", **provenance(device.type, options.commit), "rows": [row]}, options.out
        )[:200]
    )
    return 0


def score_model(
    model: Recognizer, sentences: Sequence[Sentence], analyze: bool, all_decoders: bool = False
) -> tuple[Row, list[Sentence]]:
    """Scores in per cent, and the sentences with predicted entities.

    `analyze` adds an analysis and counts by sentence and, where gold heads are known or with `all_decoders`, the scores
    of other decoders.
    """
    started = time.perf_counter()
    predicted = predict(model, sentences, options=PredictOptions(scored=True))
    seconds = time.perf_counter() - started
    evaluation = evaluate(sentences, predicted, resamples=0)
    row = {**summarize(evaluation), "sentences_per_second": len(sentences) / seconds}
    row["f1_by_decoder"] = {
        f"{decoder.method} {decoder.threshold:g}": 100 * f1
        for decoder, f1 in decoder_f1(model, sentences).items()
    }
    if analyze:
        row |= {
            "analysis": analyze_errors(evaluation),
            "by_sentence": count_by_sentence(sentences, predicted),
        }
        if all_decoders or (evaluation.heads is not None and evaluation.heads.accuracy is not None):
            row["decoders"] = score_decoders(model, sentences)
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
        name: {str(k): [s.right, s.predicted, s.right, s.gold] for k, s in getattr(evaluation, name).items()}
        for name in ("depths", "lengths", "nesting", "labels")
    }
    if evaluation.heads is not None:
        words = evaluation.heads.words.items()
        row["head_words"] = {label: [list(pair) for pair in pairs[:HEAD_WORDS]] for label, pairs in words}
        row["head_errors"] = analyze_head_errors(evaluation.heads)
    row["errors"] = {kind: counts[None] for kind, counts in evaluation.error_counts.items()}
    if evaluation.calibration is not None:
        row["calibration"] = {
            "error": 100 * evaluation.calibration.error,
            "brier": evaluation.calibration.brier,
            "bins": [list(one) for one in evaluation.calibration.bins],
        }
    return row


def analyze_head_errors(heads: HeadScores) -> Row:
    """The number of wrong heads of each kind, with examples: the entity, its gold head, the predicted head."""
    kinds: Row = {}
    for mistake in heads.errors:
        gold, predicted, words = mistake.gold, mistake.predicted, mistake.sentence.words
        if gold is None or predicted is None or gold.head is None or predicted.head is None:
            continue
        name = head_error_kind(words, gold.head, predicted.head)
        kind = kinds.setdefault(name, {"count": 0, "examples": []})
        kind["count"] += 1
        example = [" ".join(words[gold.start : gold.end]), words[gold.head], words[predicted.head]]
        if len(kind["examples"]) < EXAMPLES and example not in kind["examples"]:
            kind["examples"].append(example)
    return kinds


def head_error_kind(words: Sequence[str], gold: int, predicted: int) -> str:
    """The kind of a wrong head, judged by spelling.

    >>> head_error_kind("April 12 , 1981".split(), 1, 2), head_error_kind("a lot of money".split(), 1, 3)
    ('no word with a meaning', 'what something is of')
    >>> head_error_kind("New Zealand".split(), 0, 1), head_error_kind("Figure 2".split(), 0, 1)
    ('another word of a name', 'a number or not')
    """
    right, wrong = words[gold], words[predicted]
    if FUNCTION_WORDS.fullmatch(wrong.lower()):
        return "no word with a meaning"
    if gold < predicted and "of" in (word.lower() for word in words[gold:predicted]):
        return "what something is of"
    if any(map(str.isdigit, right + wrong)):
        return "a number or not"
    if right[0].isupper() and wrong[0].isupper():
        return "another word of a name"
    return "other"


def count_by_sentence(gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> list[list[int]]:
    """[right, predicted, gold] of each sentence, for permutation tests."""
    rows = []
    for sentences in zip(gold, predicted, strict=True):
        right, found = ({(e.start, e.end, e.label) for e in sentence.entities} for sentence in sentences)
        rows.append([len(right & found), len(found), len(right)])
    return rows


def score_decoders(model: Recognizer, sentences: Sequence[Sentence]) -> Row:
    """The same scores under MBR decoding by threshold, Viterbi decoding by penalty, and other heads."""
    settings = model.settings
    if settings.model.structure == "none" or settings.decoding.method == "spans":
        return {}
    decoders: dict[str, Row] = {f"mbr {t}": {"method": "mbr", "threshold": t} for t in THRESHOLDS}
    for penalty in PENALTIES if settings.model.structure == "lexical" else (0.0,):
        decoders[f"viterbi {penalty}"] = {
            "method": "viterbi",
            "threshold": 0.0,
            "head_sharing_penalty": penalty,
            "head_prior_weight": 0.0,
        }
    for weight, penalty in HEAD_DECODERS if settings.model.head_prior else ():
        name = f"head_prior {weight} head_sharing_penalty {penalty}"
        decoders[name] = {"method": "mbr", "head_prior_weight": weight, "head_sharing_penalty": penalty}
    rows = {}
    for name, changes in decoders.items():
        changed = replace(settings, decoding=replace(settings.decoding, **changes))
        predicted = predict(model, sentences, options=PredictOptions(settings=changed))
        rows[name] = summarize(evaluate(sentences, predicted, resamples=0))
    return rows


def score_robustness(model: Recognizer, sentences: Sequence[Sentence]) -> dict[str, float]:
    """F1 on other forms of the sentences, and the share of single names in which the model finds an entity."""
    forms = {
        "upper": [change_case(sentence, str.upper) for sentence in sentences],
        "lower": [change_case(sentence, str.lower) for sentence in sentences],
        "no_punctuation": [without_punctuation(sentence) for sentence in sentences],
    }
    row = {
        name: 100 * evaluate(gold, predict(model, gold), resamples=0).entities.f1
        for name, gold in forms.items()
    }
    ner = Pipeline(model)
    for name, end in (("names", ""), ("names_with_period", ".")):
        row[name] = sum(bool(ner(word + end).entities) for word in NAMES) / len(NAMES)
    return row


def last_word_heads(sentences: Sequence[Sentence]) -> Row:
    """The accuracy of the last word of each gold span as its head."""
    predicted = [
        replace(s, entities=tuple(replace(e, head=e.end - 1, heads=()) for e in s.entities))
        for s in sentences
    ]
    return summarize(evaluate(sentences, predicted, resamples=0))["heads"]


if __name__ == "__main__":
    sys.exit(main())
