"""How fast a model reads: words or sentences a second, and which part of it takes how long.

    python -m benchmarks.pipeline --device cpu [--model DIR] [--peer PYTHON MODEL]
    python -m benchmarks.pipeline --model DIR --data FILE [--device cuda] [--batch-words 1000,4000,16000]

Without data, text in, entities out: documents of GUM dev, with the bundled model. `--peer` reads the same texts with
spaCy, in another environment; peer_spacy.py says how to make one.

With data, words in, entities out. `words in` is `nestree.pipeline.predict` on sentences that it has not seen: their
pieces are made anew each time. Beside it stands the floor, `encoder alone`: the pretrained encoder on the same batches,
which lie on the device already. `--text` adds `text in`: the words of each sentence joined by blanks, through
`nestree.pipeline.Pipeline`.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

import nestree
import nestree.pipeline
from benchmarks.parts import REST, Timeline, replaced, table
from benchmarks.reading import measured, raw_texts
from benchmarks.report import console
from benchmarks.timing import one_line, provenance, write_whole
from nestree import checkpoint
from nestree.data import formats
from nestree.errors import NestreeError
from nestree.model import Recognizer
from nestree.nn.batch import Batch
from nestree.pipeline import (
    BATCH_WORDS,
    Pipeline,
    batches_by_length,
    bf16_weights,
    precision,
    predict,
    select_device,
)
from nestree.types import Sentence

Row = dict[str, Any]
ROUNDS = 5
WORDS_IN, ENCODER, TEXT_IN = "words in", "encoder alone", "text in"
DECODERS = ["nestree.decoding.viterbi", "nestree.decoding.mbr", "nestree.decoding.probabilities"]
TREES = {"best_trees": "best trees", "log_partitions": "tree sums", "head_marginals": "tree sums"}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    try:
        device = select_device(options.device)
        if options.threads:
            torch.set_num_threads(options.threads)
        return (read_raw_texts if options.data is None else read_sentences)(options, device)
    except NestreeError as why:
        raise SystemExit(str(why)) from None


def read_sentences(options: argparse.Namespace, device: torch.device) -> int:
    """With data: words in, entities out."""
    model = checkpoint.load(options.model or checkpoint.bundled_model(), device)
    model.settings = model.settings.changed(options.set)
    sentences = model.sentences_of(formats.read(options.data))[: options.limit]
    gc.freeze()  # as `nestree predict` does
    result = {
        "benchmark": "pipeline",
        **provenance(device.type, options.commit),
        "model": options.model.name if options.model else "box",
        "changes": options.set,
        "encoder": Path(model.settings.encoder.path).name,
        "data": f"{options.data.parent.name}/{options.data.name}",
        "sentences": len(sentences),
        "words": sum(len(sentence.words) for sentence in sentences),
        "rows": [],
    }
    for row in rows(model, sentences, options):
        result["rows"].append(row)
        print(
            f"{row['lane']}, batches of {row['batch_words']}: {row['sentences_per_second']:,.0f} /s",
            file=sys.stderr,
        )
        if options.out:
            write_whole(options.out, one_line(result) + "\n")
    show(result)
    print(one_line(result))
    return 0


def read_raw_texts(options: argparse.Namespace, device: torch.device) -> int:
    """Without data: text in, entities out."""
    texts = raw_texts(options.shared)
    pipeline = nestree.load(options.model, device.type, precision=options.precision)
    result = {
        "benchmark": "pipeline",
        **provenance(device.type, options.commit),
        "model": options.model.name if options.model else "box",
        "data": "GUM dev, raw text",
        **measured(pipeline, options.model, texts, options.peer, options.rounds),
        "parts": parts_of_texts(pipeline, texts),
    }
    if options.out:
        write_whole(options.out, one_line(result) + "\n")
    show_texts(result)
    print(one_line(result))
    return 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, metavar="DIR", help="a model directory; default: the box")
    parser.add_argument("--data", type=Path, metavar="FILE", help="in any format of nestree")
    parser.add_argument("--shared", type=Path, default=Path("../shared"), metavar="DIR", help="real data")
    parser.add_argument("--peer", nargs=2, action="append", default=[], metavar=("PYTHON", "MODEL"))
    parser.add_argument("--precision", default="auto", help="auto, float32 or int8")
    parser.add_argument("--out", type=Path, metavar="FILE", help="for the JSON line that is also printed")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--batch-words", default=str(BATCH_WORDS), help="sizes of batches, with commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the median of so many counts")
    parser.add_argument("--limit", type=int, help="only so many sentences")
    parser.add_argument("--threads", type=int, help="of the CPU")
    parser.add_argument("--set", action="append", default=[], metavar="DECODING.KEY=VALUE")
    parser.add_argument("--text", action="store_true", help="measure text in, too")
    parser.add_argument("--commit", help="where there is no git")
    return parser.parse_args(arguments)


def rows(model: Recognizer, sentences: Sequence[Sentence], options: argparse.Namespace) -> Iterator[Row]:
    """A row for each lane and size of batches, as it is measured."""
    for words in map(int, options.batch_words.split(",")):
        yield {
            **lane(WORDS_IN, lambda w=words: read(model, sentences, w), sentences, words, options),
            **parts_of(model, sentences, words),
        }
        held = batches(model, sentences, words)
        yield lane(ENCODER, lambda b=held: encode(model, b), sentences, words, options)
        del held
    if options.text:
        texts, pipeline = [" ".join(sentence.words) for sentence in sentences], Pipeline(model)
        yield lane(TEXT_IN, lambda: read_texts(pipeline, texts), sentences, BATCH_WORDS, options)


def lane(
    name: str,
    call: Callable[[], object],
    sentences: Sequence[Sentence],
    words: int,
    options: argparse.Namespace,
) -> Row:
    """The median of some rounds, the first of them aside."""
    call()
    seconds = []
    for _ in range(options.rounds):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds)
    return {
        "lane": name,
        "batch_words": words,
        "seconds": seconds,
        "sentences_per_second": len(sentences) / median,
        "words_per_second": sum(len(sentence.words) for sentence in sentences) / median,
    }


# What is measured


def read(model: Recognizer, sentences: Sequence[Sentence], words: int) -> list[Sentence]:
    forget(model)
    return predict(model, sentences, words)


def forget(model: Recognizer) -> None:
    """What the model remembers of sentences and words that it has read."""
    splitter = model.collator.splitter
    splitter.kept.clear()
    splitter.known.clear()


def read_texts(pipeline: Pipeline, texts: Sequence[str]) -> int:
    forget(pipeline.model)
    return sum(len(document.entities) for document in pipeline.pipe(texts, trees=False))


def batches(model: Recognizer, sentences: Sequence[Sentence], words: int) -> list[Batch]:
    """All batches, on the device."""
    numbers = batches_by_length([len(sentence.words) for sentence in sentences], words)
    return [model.collate_words([sentences[k] for k in batch]).to(model.device) for batch in numbers]


def encode(model: Recognizer, held: Sequence[Batch]) -> None:
    """The pretrained encoder, and nothing else."""
    with torch.inference_mode(), precision(model.device), bf16_weights(model):
        for batch in held:
            model.encoder.states(batch.pieces, batch.attention)
    if model.device.type == "cuda":
        torch.cuda.synchronize()


# Part by part


def parts_of(model: Recognizer, sentences: Sequence[Sentence], words: int) -> Row:
    """Microseconds of a sentence, by part."""
    timeline = Timeline(model.device.type)
    with watched(model, timeline), timeline.running():
        read(model, sentences, words)
    spent = table(timeline.spent(), len(sentences))
    return {
        "parts": {
            name: {
                "host_us": 1e3 * part["host_ms"],
                "device_us": 1e3 * part["device_ms"],
                "share": part["share"],
            }
            for name, part in spent.items()
        },
        "other_threads_us": {name: 1e6 * s / len(sentences) for name, s in timeline.elsewhere.items()},
    }


def parts_of_texts(pipeline: Pipeline, texts: Sequence[str]) -> dict[str, float]:
    """Microseconds of a word on one thread, by part."""
    timeline, reader = Timeline(pipeline.device.type), pipeline.reader
    read_texts(pipeline, texts)
    with (
        watched(reader, timeline),
        replaced((Pipeline, "split", timeline.around("splitting", Pipeline.split))),
        timeline.running(),
    ):
        read_texts(pipeline, texts)
    words = sum(len(s.words) for text in texts for s in pipeline.split(text).sentences)
    return {name: 1e6 * spent.host / words for name, spent in timeline.spent().items()}


@contextmanager
def watched(model: Recognizer, line: Timeline) -> Iterator[None]:
    """Within this, a timeline knows the parts of reading; one batch after another."""
    steps = nestree.pipeline
    with replaced(
        (steps, "cuda_streams", lambda device: (None, None)),
        (steps, "map_threaded", map),
        (model.collator, "splitter", Watched(model.collator.splitter, line)),
        (Recognizer, "collate_words", line.around("collate", Recognizer.collate_words)),
        (Batch, "to", line.around("moving", Batch.to)),
        (model.encoder, "forward", line.around("encoder", model.encoder.forward)),
        (model.scorer, "forward", line.around("scorers", model.scorer.forward)),
        (Recognizer, "found", line.around("labels", Recognizer.found)),
        *(
            (module, name, line.around(part, getattr(module, name)))
            for module in map(import_module, DECODERS)
            for name, part in TREES.items()
            if hasattr(module, name)
        ),
        (steps, "predictions", line.around("entities", steps.predictions)),
    ):
        yield


class Watched:
    """A splitter whose calls are a part of a timeline."""

    def __init__(self, splitter: Any, line: Timeline) -> None:
        self.splitter, self.line = splitter, line

    def __call__(self, sentences: Sequence[Sentence]) -> Any:
        with self.line.part("pieces"):
            return self.splitter(sentences)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.splitter, name)


def show(result: Row) -> None:
    names = list(
        dict.fromkeys(name for row in result["rows"] for name in row.get("parts", {}) if name != REST)
    )
    shown = Table(
        title=f"{result['sentences']:,} sentences of {result['data']}; µs of a sentence, host / device"
    )
    for name in ("lane", "batch words", "sentences/s", "words/s", *names, REST):
        shown.add_column(name, justify="left" if name == "lane" else "right")
    for row in result["rows"]:
        parts = row.get("parts", {})
        cells = [
            f"{parts[n]['host_us']:.0f} / {parts[n]['device_us']:.0f}" if n in parts else ""
            for n in (*names, REST)
        ]
        speeds = f"{row['sentences_per_second']:,.0f}", f"{row['words_per_second']:,.0f}"
        shown.add_row(row["lane"], str(row["batch_words"]), *speeds, *cells)
    console().print(shown)


def show_texts(result: Row) -> None:
    shown = Table(title=f"{result['words']:,} words of {result['data']}: text in, entities out")
    for name in ("reader", "words/s", "of processor time", "ours / it", "others kept busy"):
        shown.add_column(name, justify="left" if name == "reader" else "right")
    for name, row in result["rows"].items():
        ratio = f"{row['ratio_of_ours']:.2f}" if "ratio_of_ours" in row else ""
        speeds = (f"{row[key]:,.0f}" for key in ("words_per_second", "words_per_processor_second"))
        shown.add_row(name, *speeds, ratio, f"{row['others_cores']:.2f} cores")
    console().print(shown)
    parts = ", ".join(f"{name} {spent:.0f}" for name, spent in result["parts"].items())
    print(f"µs of a word on one thread: {parts}")
    print(", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in result["starting"].items()))


if __name__ == "__main__":
    sys.exit(main())
