"""What a model does on dev and test, in all detail.

    python -m benchmarks.analysis --data DIR --out FILE [--model DIR]

The model in the box, or another one; the data are files called dev and test. Rows are like those of
`benchmarks.training --analyse`, which asks the same of models whose weights do not stay.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runs import scored
from benchmarks.timing import one_line, provenance, write_whole
from nestree import checkpoint
from nestree.data import formats
from nestree.errors import NestreeError
from nestree.hub import find
from nestree.pipeline import best_device
from nestree.training.experiment import parts_of


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.analysis", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="with files called dev and test"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the JSON file")
    parser.add_argument("--model", metavar="DIR", help="default: the model in the box")
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
    device = best_device(options.device)
    model = checkpoint.load(find(options.model), device)
    name = Path(options.model).name if options.model else "box"
    scores = {}
    for part, path in parts_of(options.data).items():
        if part != "train":
            sentences = model.sentences_of(list(formats.read(path)))
            scores[part] = scored(model, sentences, analyse=True, every_way=True)[0]
            print(f"{part}: F1 {scores[part]['f1']:.2f}", file=sys.stderr)
    result = {
        "benchmark": "analysis",
        **provenance(device.type, options.commit),
        "rows": [{"name": name, "data": options.data.name, "recipe": name, "changes": [], **scores}],
    }
    write_whole(options.out, one_line(result) + "\n")
    print(one_line(result)[:200])
    return 0


if __name__ == "__main__":
    sys.exit(main())
