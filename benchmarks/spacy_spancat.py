"""spaCy's span categorizer for `benchmarks.inference texts --peer`, in an environment of its own.

    python -m venv PEER && PEER/bin/pip install spacy
    nestree convert ../shared/data/gum_open/train.jsonl.gz train.spacy
    nestree convert ../shared/data/gum_open/dev.jsonl.gz dev.spacy
    PEER/bin/python benchmarks/spacy_spancat.py train train.spacy dev.spacy MODEL [--sizes 12] [--steps 200]
    PEER/bin/python benchmarks/spacy_spancat.py read MODEL TEXTS

`train` uses the recipe of `spacy init config --pipeline spancat` for a CPU. The speed of inference does not depend on
the number of steps, but on the sizes of spans that it considers: 1 to 3 words are its default; up to 12 words are 97 %
of GUM's entities. `read` reads the texts of a JSON file once for each line on standard input and answers with a line of
JSON; the last line describes the model.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    train_parser = commands.add_parser("train")
    for name in ("train", "dev", "model"):
        train_parser.add_argument(name, type=Path)
    train_parser.add_argument("--sizes", type=int, default=12, help="words of the longest span")
    train_parser.add_argument("--steps", type=int, default=200)
    read_parser = commands.add_parser("read")
    read_parser.add_argument("model", type=Path)
    read_parser.add_argument("texts", type=Path, help="a JSON list of strings")
    options = parser.parse_args()
    if options.command == "train":
        train(options.train, options.dev, options.model, options.sizes, options.steps)
    else:
        read(options.model, options.texts)


def train(train: Path, dev: Path, model: Path, sizes: int, steps: int) -> None:
    """Leaves the model in model/model-last."""
    from spacy.cli.init_config import init_config
    from spacy.cli.train import train as train_spacy

    config = init_config(lang="en", pipeline=["spancat"], optimize="efficiency", gpu=False)
    suggester = {"@misc": "spacy.ngram_range_suggester.v1", "min_size": 1, "max_size": sizes}
    config["components"]["spancat"]["suggester"] = suggester
    model.mkdir(parents=True, exist_ok=True)
    config.to_disk(model / "config.cfg")
    paths = {"paths.train": str(train), "paths.dev": str(dev)}
    length = {"training.max_steps": steps, "training.eval_frequency": steps}
    train_spacy(model / "config.cfg", model, overrides={**paths, **length})


def read(model: Path, texts: Path) -> None:
    """Reads the texts once for each line that arrives."""
    started = time.perf_counter()
    import spacy

    imported = time.perf_counter()
    nlp = spacy.load(model)
    loaded = time.perf_counter()
    documents = json.loads(texts.read_text(encoding="utf-8"))
    for _ in sys.stdin:
        begun, used = time.perf_counter(), time.process_time()
        words = spans = 0
        for document in nlp.pipe(documents):
            words += len(document)
            spans += len(document.spans["sc"])
        seconds = {"wall": time.perf_counter() - begun, "processor": time.process_time() - used}
        print(json.dumps({"seconds": seconds, "words": words, "spans": spans}), flush=True)
    suggester = nlp.config["components"]["spancat"]["suggester"]
    about = {
        "peer": f"spaCy {spacy.__version__}, spancat",
        "sizes": [suggester["min_size"], suggester["max_size"]],
        "import_seconds": imported - started,
        "load_seconds": loaded - imported,
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(about), flush=True)


if __name__ == "__main__":
    main()
