"""What a model does on dev and test, in all detail.

    python -m benchmarks.analysis --data DIR --out FILE [--model DIR]

the bundled model, or another one; the data are files called dev and test. Rows are like those of
`benchmarks.training --analyse`, which asks the same of models whose weights do not stay.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.details import Row, summary
from benchmarks.runs import scored
from benchmarks.timing import one_line, provenance, write_whole
from nestree import checkpoint
from nestree.data import formats
from nestree.errors import NestreeError
from nestree.evaluation import evaluate
from nestree.evaluation.heads import have_heads
from nestree.hub import resolve
from nestree.pipeline import select_device
from nestree.training.experiment import parts_of
from nestree.types import Sentence


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.analysis", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="with files called dev and test"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the JSON file")
    parser.add_argument("--model", metavar="DIR", help="default: the bundled model")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--commit", help="where there is no git")
    options = parser.parse_args(arguments)
    if not options.out.absolute().parent.is_dir():
        raise SystemExit(
            f"--out {options.out}: there is no folder {options.out.parent}. Make it, or name another."
        )
    try:
        return analyse(options)
    except NestreeError as why:
        raise SystemExit(str(why)) from None


def analyse(options: argparse.Namespace) -> int:
    device = select_device(options.device)
    model = checkpoint.load(resolve(options.model), device)
    name = Path(options.model).name if options.model else "box"
    scores = {}
    for part, path in parts_of(options.data).items():
        if part != "train":
            sentences = model.sentences_of(list(formats.read(path)))
            scores[part] = scored(model, sentences, analyse=True, every_way=True)[0]
            if (heads := last_words(sentences)) is not None:
                scores[part]["last_word"] = heads
            print(f"{part}: F1 {scores[part]['f1']:.2f}", file=sys.stderr)
    result = {
        "benchmark": "analysis",
        **provenance(device.type, options.commit),
        "rows": [{"name": name, "data": options.data.name, "recipe": name, "changes": [], **scores}],
    }
    write_whole(options.out, one_line(result) + "\n")
    print(one_line(result)[:200])
    return 0


def last_words(sentences: Sequence[Sentence]) -> Row | None:
    """How often the last word of a gold span of several words is its head; None: no heads are known."""
    guessed = [
        replace(s, entities=tuple(replace(e, head=e.end - 1, heads=()) for e in s.entities))
        for s in sentences
    ]
    return summary(evaluate(sentences, guessed, resamples=0)).get("heads") if have_heads(sentences) else None


if __name__ == "__main__":
    sys.exit(main())
