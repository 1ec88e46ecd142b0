"""Speed and quality of inference.

    sentences     sentences a second, from words to entities, and of the encoder alone
    texts         words a second on a CPU, from text to entities, in turns with spaCy (`--peer`)
    lengths       sentences a second in training and inference, by sentence length, of several models in turns
    calibration   F1 by decoder, and calibration, with and without temperatures fitted on other data
    raw-text      F1 by characters on raw text, against F1 with gold words and sentences

For example: `python -m benchmarks.inference sentences --model DIR --data FILE --device cuda`. Each command prints one
line of JSON at its end and stores it with `--out`.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import nestree
from benchmarks.timing import QUIET, ROOT, Row, other_cpu_seconds, provenance, store, synchronize
from nestree import checkpoint
from nestree.data import formats
from nestree.decoding import NO_TEMPERATURES, Temperatures
from nestree.errors import InputError, NestreeError
from nestree.evaluation import evaluate
from nestree.evaluation.metrics import Score
from nestree.model import Recognizer, autocast
from nestree.nn.batch import BATCH_WORDS, Batch, batches_by_length
from nestree.nn.devices import select_device
from nestree.pipeline import Pipeline, PredictOptions, bf16_weights, predict
from nestree.temperature import fit_temperatures
from nestree.types import Document, Sentence

LENGTH_GROUPS = ((1, 10), (11, 20), (21, 40), (41, 80), (81, 200))  # words, both included
MAX_GROUP = 400  # sentences of a length group, the first ones
DECODERS = [("viterbi", 0.0), *(("mbr", threshold) for threshold in (0.1, 0.3, 0.35, 0.4, 0.45, 0.5))]
SPANCAT = Path(__file__).with_name("spacy_spancat.py")
STARTUP = """
import json, time
clock = time.perf_counter
times = [clock()]
import nestree
times.append(clock())
ner = nestree.load({model!r}, device="cpu")
times.append(clock())
for text in ("Ann lives in Lisbon.", "Bob lives in Porto."):
    ner(text)
    times.append(clock())
names = "import_seconds", "load_seconds", "first_text_seconds", "second_text_seconds"
resident = int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0]) / 1024
seconds = dict(zip(names, (b - a for a, b in zip(times, times[1:]))))
print(json.dumps(seconds | {{"resident_mb": resident}}))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        device = select_device(options.device)
        if options.threads:
            torch.set_num_threads(options.threads)
        result = {**provenance(device.type, options.commit), **options.run(options, device)}
    except NestreeError as error:
        raise SystemExit(str(error)) from None
    print(store(result, options.out))
    return 0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.inference",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add_command(name: str, run: Callable[[argparse.Namespace, torch.device], Row]) -> Callable[..., Any]:
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--out", type=Path, metavar="FILE", help="the JSON file")
        command.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
        command.add_argument("--threads", type=int, help="of the CPU")
        command.add_argument("--commit", help="the commit to record outside a git checkout")
        return command.add_argument

    def add_model(add: Callable[..., Any]) -> None:
        add("--model", type=Path, metavar="DIR", help="default: the bundled model")

    add = add_command("sentences", measure_sentences)
    add_model(add)
    add("--data", type=Path, required=True, metavar="FILE", help="in any format of nestree")
    add("--batch-words", default=str(BATCH_WORDS), help="words in a batch; several sizes with commas")
    add("--rounds", type=positive, default=5, help="the median of this many")
    add("--limit", type=positive, help="only the first sentences")
    add("--set", action="append", default=[], metavar="DECODING.KEY=VALUE")
    add("--text", action="store_true", help="also measure from text to entities")

    add = add_command("texts", measure_texts)
    add_model(add)
    add("--shared", type=Path, default=Path("../shared"), metavar="DIR", help="holds GUM's documents")
    add(
        "--peer",
        nargs=2,
        action="append",
        default=[],
        metavar=("PYTHON", "MODEL"),
        help="see spacy_spancat.py",
    )
    add("--precision", default="auto", help="auto, float32 or int8")
    add("--rounds", type=positive, default=5, help="the median of this many")

    add = add_command("lengths", measure_lengths)
    add("models", nargs="+", type=Path, metavar="MODEL", help="a model directory")
    add("--data", type=Path, required=True, metavar="FILE", help="in any format of nestree")
    add("--batch-words", type=positive, default=2000, help="words in a batch")
    add("--rounds", type=positive, default=5, help="the median of this many")

    add = add_command("calibration", measure_calibration)
    add_model(add)
    add("data", type=Path, help="the data to fit temperatures on")
    add("--eval", type=Path, help="the data to score; default: the second half of DATA")

    add = add_command("raw-text", measure_raw_text)
    add_model(add)
    add("--shared", type=Path, default=Path("../shared"), metavar="DIR", help="holds the data")
    add("--sets", nargs="*", default=["gum dev", "gum test"])
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return int(text)


def model_name(options: argparse.Namespace) -> str:
    return options.model.name if options.model else "bundled"


# sentences


def measure_sentences(options: argparse.Namespace, device: torch.device) -> Row:
    model = checkpoint.load(options.model or checkpoint.bundled_model(), device)
    model.settings = model.settings.with_overrides(options.set)
    sentences = model.sentences_with_context(formats.read(options.data))[: options.limit]
    gc.freeze()  # as `nestree predict` does
    words = sum(len(sentence.words) for sentence in sentences)
    result: Row = {
        "benchmark": "inference",
        "model": model_name(options),
        "changes": options.set,
        "encoder": Path(model.settings.encoder.path).name,
        "data": f"{options.data.parent.name}/{options.data.name}",
        "sentences": len(sentences),
        "words": words,
        "rows": [],
    }

    def add_row(stage: str, batch_words: int, call: Callable[[], object]) -> None:
        times = time_rounds({stage: call}, options.rounds)[stage]
        median = statistics.median(times)
        row: Row = {"stage": stage, "batch_words": batch_words, "seconds": times}
        row |= {"sentences_per_second": len(sentences) / median, "words_per_second": words / median}
        result["rows"].append(row)
        print(
            f"{stage}, batches of {batch_words} words: {len(sentences) / median:,.0f} sentences/s",
            file=sys.stderr,
        )

    for batch_words in map(int, options.batch_words.split(",")):
        add_row("words to entities", batch_words, lambda w=batch_words: predict_uncached(model, sentences, w))
        on_device = make_batches(model.collate_words, sentences, batch_words, device)
        add_row("encoder alone", batch_words, lambda b=on_device: encode(model, b))
        del on_device
    if options.text:
        texts, pipeline = [" ".join(sentence.words) for sentence in sentences], Pipeline(model)
        add_row("text to entities", BATCH_WORDS, lambda: count_entities(pipeline, texts))
    return result


def time_rounds(calls: Mapping[Any, Callable[[], object]], rounds: int) -> dict[Any, list[float]]:
    """Seconds of each call in turns, after one round of warmup."""
    seconds: dict[Any, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def predict_uncached(model: Recognizer, sentences: Sequence[Sentence], batch_words: int) -> list[Sentence]:
    clear_caches(model)
    return predict(model, sentences, batch_words)


def clear_caches(model: Recognizer) -> None:
    """Of the subwords of sentences and words."""
    tokenizer = model.collator.tokenizer
    tokenizer.kept.clear()
    tokenizer.known.clear()


def count_entities(pipeline: Pipeline, texts: Sequence[str]) -> int:
    clear_caches(pipeline.model)
    return sum(len(document.entities) for document in pipeline.pipe(texts, trees=False))


def make_batches(
    collate: Callable[[list[Sentence]], Batch],
    sentences: Sequence[Sentence],
    batch_words: int,
    device: torch.device,
) -> list[Batch]:
    """All batches, on the device."""
    numbers = batches_by_length([len(sentence.words) for sentence in sentences], batch_words)
    return [collate([sentences[k] for k in batch]).to(device) for batch in numbers]


def encode(model: Recognizer, batches: Sequence[Batch]) -> None:
    """The pretrained encoder alone."""
    with torch.inference_mode(), autocast(model.device), bf16_weights(model):
        for batch in batches:
            model.encoder.hidden_states(batch.subwords, batch.attention_mask)
    synchronize(model.device.type)


# texts


def measure_texts(options: argparse.Namespace, device: torch.device) -> Row:
    """Words a second of the bundled model by threads and precision, in turns with spaCy."""
    texts = [document.text or "" for document in read_gum(options.shared, "dev")]
    if not texts:
        raise SystemExit(
            f"{options.shared}: there are no documents of GUM dev here; name a directory with --shared."
        )
    pipeline = nestree.load(options.model, device.type, precision=options.precision)
    words = sum(len(s.words) for text in texts for s in pipeline.split(text).sentences)
    threads = torch.get_num_threads()
    readers = {f"nestree, {threads} threads": make_reader(pipeline, texts, threads)}
    if threads > 1:
        readers["nestree, 1 thread"] = make_reader(pipeline, texts, 1)
    if pipeline.int8_model:
        exact = Pipeline(pipeline.model, pipeline.max_sentence_words, "float32")
        readers[f"nestree, float32, {threads} threads"] = make_reader(exact, texts, threads)
    descriptions: dict[str, Row] = {}
    with ExitStack() as stack:
        for python, model in options.peer:
            description = descriptions[f"peer {model}"] = {}
            readers[f"peer {model}"] = stack.enter_context(start_peer(python, model, texts, description))
        turns = take_turns(readers, options.rounds)
    rows: Row = {}
    for name, taken in turns.items():
        row, description = summarize_turns(taken, words), descriptions.get(name, {})
        if description:
            name = f"{description['peer']}, spans of up to {description['sizes'][1]} words"
            ours = next(iter(rows.values()))["words_per_second"]
            row |= {"ratio_of_ours": ours / row["words_per_second"], **description}
        rows[name] = row
        print(
            f"{name}: {row['words_per_second']:,.0f} words/s, others {row['other_cores']:.2f} cores",
            file=sys.stderr,
        )
    return {
        "benchmark": "inference",
        "model": model_name(options),
        "data": "GUM dev, raw text",
        "texts": len(texts),
        "characters": sum(map(len, texts)),
        "words": words,
        "rows": rows,
        "startup": measure_startup(options.model),
    }


def make_reader(pipeline: Pipeline, texts: Sequence[str], threads: int) -> Callable[[], Row]:
    """Reads all texts once, without cached words; returns its seconds `wall` and `processor`."""

    def read() -> Row:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        wall, processor = time.perf_counter(), time.process_time()
        count_entities(pipeline, texts)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        torch.set_num_threads(before)
        return {"wall": wall, "processor": processor}

    return read


@contextmanager
def start_peer(
    python: str, model: str, texts: Sequence[str], description: Row
) -> Iterator[Callable[[], Row]]:
    """A reader in another environment, which describes itself at its end."""
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "texts.json"
        path.write_text(json.dumps(list(texts)), encoding="utf-8")
        command = [python, str(SPANCAT), "read", model, str(path)]
        process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        requests, answers = process.stdin, process.stdout
        assert requests is not None
        assert answers is not None

        def read() -> Row:
            print("read", file=requests, flush=True)
            return json.loads(answers.readline())["seconds"]

        yield read
        requests.close()
        description.update(json.loads(answers.readline()))


def take_turns(readers: Mapping[str, Callable[[], Row]], rounds: int) -> dict[str, list[Row]]:
    """Every reader in turn, with the number of cores that other programs used meanwhile."""
    turns: dict[str, list[Row]] = {name: [] for name in readers}
    for read in readers.values():
        read()
    for _ in range(rounds):
        for name, read in readers.items():
            read()  # a virtual core that was idle is slower at first
            before, own, started = other_cpu_seconds(), time.process_time(), time.perf_counter()
            turn = read()
            wall = time.perf_counter() - started
            in_peer = max(0.0, turn["processor"] - (time.process_time() - own))
            others = (other_cpu_seconds() - before - in_peer) / wall
            turns[name].append({**turn, "others": max(0.0, others)})
    return turns


def summarize_turns(turns: Sequence[Row], words: int) -> Row:
    """Medians over the turns without other programs; if there are fewer than three, over the three quietest."""
    quiet = [turn for turn in turns if turn["others"] <= QUIET]
    if len(quiet) < 3:
        quiet = sorted(turns, key=lambda turn: turn["others"])[:3]
    wall, processor, others = (
        statistics.median(t[k] for t in quiet) for k in ("wall", "processor", "others")
    )
    speeds = {"words_per_second": words / wall, "words_per_cpu_second": words / processor}
    return {**speeds, "other_cores": others, "turns": len(quiet), "of": len(turns)}


def measure_startup(model: Path | None, rounds: int = 3) -> Row:
    """Seconds until a new process can read, and its memory, with compiled kernels in the cache; medians."""
    code = STARTUP.format(model=None if model is None else str(model))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    rows = [
        json.loads(subprocess.check_output([sys.executable, "-c", code], text=True, env=environment))
        for _ in range(rounds + 1)
    ][1:]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


# lengths


def measure_lengths(options: argparse.Namespace, device: torch.device) -> Row:
    """Throughput of losses and gradients (`training`), and of prediction (`inference`)."""
    models = {path.name: checkpoint.load(path, device) for path in options.models}
    if len(models) < len(options.models):
        raise InputError("two models have one name. Rename a directory: rows are identified by it.")
    sentences = [s for document in formats.read(options.data) for s in document.sentences]
    rows = []
    for least, most in LENGTH_GROUPS:
        group = [s for s in sentences if least <= len(s.words) <= most][:MAX_GROUP]
        calls: dict[tuple[str, str], Callable[[], object]] = {}
        for name, model in models.items():
            batches = make_batches(model.collate, group, options.batch_words, device)
            calls[name, "training"] = lambda m=model, b=batches: compute_gradients(m, b)
            calls[name, "inference"] = lambda m=model, g=group: predict_uncached(m, g, options.batch_words)
        seconds = time_rounds(calls, options.rounds) if group else {}
        for name, model in models.items() if group else ():
            row = {"model": name, "structure": model.settings.model.structure}
            row |= {"words": f"{least}-{most}", "sentences": len(group)}
            for phase in ("training", "inference"):
                row[f"{phase}_per_second"] = len(group) / statistics.median(seconds[name, phase])
            rows.append(row)
            print(json.dumps(row), file=sys.stderr)
    return {
        "benchmark": "lengths",
        "data": f"{options.data.parent.name}/{options.data.name}",
        "batch_words": options.batch_words,
        "rounds": options.rounds,
        "rows": rows,
    }


def compute_gradients(model: Recognizer, batches: Sequence[Batch]) -> None:
    """Losses and gradients as in training, without updates."""
    model.train()
    for batch in batches:
        model.zero_grad(set_to_none=True)
        with autocast(model.device):
            losses = model.losses(batch)
        (losses.total / max(1, losses.mentions)).backward()
    synchronize(model.device.type)
    model.zero_grad(set_to_none=True)
    model.eval()


# calibration


def measure_calibration(options: argparse.Namespace, device: torch.device) -> Row:
    model = nestree.load(options.model, device.type).model
    fit = model.sentences_with_context(formats.read(options.data))
    if options.eval:
        gold = model.sentences_with_context(formats.read(options.eval))
    else:
        fit, gold = fit[: len(fit) // 2], fit[len(fit) // 2 :]
    return {
        "benchmark": "calibration",
        "model": model_name(options),
        "data": options.data.name,
        "eval_data": options.eval.name if options.eval else None,
        "sentences": {"fit": len(fit), "eval": len(gold)},
        "unfitted": score_temperatures(model, gold, NO_TEMPERATURES),
        "fitted": score_temperatures(model, gold, fit_temperatures(model, fit)),
    }


def score_temperatures(model: Recognizer, gold: Sequence[Sentence], temperatures: Temperatures) -> Row:
    """Scores by decoder, and the reliability diagram of the model's own decoder."""
    model.temperatures = temperatures
    result: Row = {"temperatures": temperatures._asdict(), "decoders": [], "groups": []}
    print(f"temperatures: {result['temperatures']}", file=sys.stderr)
    for method, threshold in DECODERS:
        if method == "viterbi" and model.settings.model.structure == "none":
            continue
        evaluation = evaluate(gold, decode(model, gold, method, threshold), resamples=0)
        score, heads, calibration = evaluation.entities, evaluation.heads, evaluation.calibration
        row: Row = {"by": method, "threshold": threshold}
        row |= {"precision": score.precision, "recall": score.recall, "f1": score.f1}
        row["heads"] = heads.accuracy if heads and heads.judged else None
        row["calibration error"] = calibration.error if calibration else None
        row["brier"] = calibration.brier if calibration else None
        result["decoders"].append(row)
        print(
            f"{method} {threshold:.2f}  F1 {100 * score.f1:.2f}  Brier {row['brier'] or 0:.4f}",
            file=sys.stderr,
        )
    decoding = model.settings.decoding
    calibration = evaluate(
        gold, decode(model, gold, decoding.method, decoding.threshold), resamples=0
    ).calibration
    if calibration is not None:
        group = {"group": "all", "number": calibration.scored, "calibration error": calibration.error}
        result["groups"].append({**group, "brier": calibration.brier, "bins": [*map(list, calibration.bins)]})
    return result


def decode(model: Recognizer, gold: Sequence[Sentence], method: str, threshold: float) -> list[Sentence]:
    decoding = replace(model.settings.decoding, method=method, threshold=threshold)
    settings = replace(model.settings, decoding=decoding)
    return predict(model, gold, options=PredictOptions(True, False, settings))


# raw-text

NO_SPACE_BEFORE = {".", ",", ";", ":", "!", "?", ")", "]", "'", "''", "’", "”", "%", "n't", "n’t"}
NO_SPACE_AFTER = {"(", "[", "``", "“", "‘", "$"}


def measure_raw_text(options: argparse.Namespace, device: torch.device) -> Row:
    """An entity is right if its characters and its label are those of a gold entity."""
    ner = nestree.load(options.model, device.type)
    rows = {}
    for name in options.sets:
        source, part = name.split()
        golds = list({"gum": read_gum, "litbank": read_litbank}[source](options.shared, part))
        from_text = score_characters(golds, ner.pipe([gold.text or "" for gold in golds], trees=False))
        with_words = (
            Document(tuple(ner.words(ner.model.sentences_with_context([gold]))), gold.text) for gold in golds
        )
        from_words = score_characters(golds, with_words)
        rows[name] = {
            "documents": len(golds),
            "entities": from_words.gold,
            "text": {key: getattr(from_text, key) for key in ("precision", "recall", "f1")},
            "gold words": {key: getattr(from_words, key) for key in ("precision", "recall", "f1")},
            "difference": from_text.f1 - from_words.f1,
        }
        scores = f"text {100 * from_text.f1:.2f}, gold words {100 * from_words.f1:.2f}"
        print(f"{name}: {len(golds)} documents, {from_words.gold} entities, {scores}", file=sys.stderr)
    words = ner.model.text_rules.words
    return {"benchmark": "raw-text", "model": model_name(options), "words": words, "rows": rows}


def score_characters(golds: Sequence[Document], predicted: Iterable[Document]) -> Score:
    def keys(document: Document) -> set[tuple[int, int, str]]:
        return {(*s.characters(e), e.label) for s in document.sentences for e in s.entities}

    counts = [0, 0, 0]
    for gold, document in zip(golds, predicted, strict=True):
        true, found = keys(gold), keys(document)
        counts = [a + b for a, b in zip(counts, (len(true & found), len(found), len(true)), strict=True)]
    return Score(*counts)


def read_gum(shared: Path, part: str) -> Iterator[Document]:
    """The documents of a part of GUM-open that are available as CoNLL-U.

    Their text is the `# text` of their sentences, joined by a space, or a newline where a paragraph begins.
    """
    names = {document.id for document in formats.read(shared / f"data/gum_open/{part}.jsonl.gz")}
    for path in sorted((shared / "data/raw/gum_conllu").glob("*.conllu")):
        if path.stem in names:
            texts = []
            for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
                lines = block.split("\n")
                text = next(line for line in lines if line.startswith("# text = ")).removeprefix("# text = ")
                paragraph = any(line.startswith("# newpar") for line in lines)
                texts.append(("" if not texts else "\n" if paragraph else " ", text))
            sentences = [s for document in formats.read(path, "gum") for s in document.sentences]
            yield with_text(sentences, texts)


def read_litbank(shared: Path, part: str) -> Iterator[Document]:
    """LitBank's documents, whose text is restored from their words by rules."""
    by_name: dict[str, list[Sentence]] = {}
    for document in formats.read(shared / f"data/litbank/{part}.jsonl.gz"):
        by_name.setdefault(document.id or "", []).extend(document.sentences)
    for sentences in by_name.values():
        yield with_text(sentences, [(" " if k else "", detokenize(s.words)) for k, s in enumerate(sentences)])


def with_text(sentences: Sequence[Sentence], texts: Sequence[tuple[str, str]]) -> Document:
    """A document of sentences; `texts` are the separator before each and its text."""
    from benchmarks.text import word_places

    placed, whole = [], ""
    for sentence, (separator, text) in zip(sentences, texts, strict=True):
        whole += separator
        offsets = tuple(word_places(text, 0, [["1", word] for word in sentence.words]))
        placed.append(Sentence(sentence.words, sentence.entities, text, offsets, len(whole)))
        whole += text
    return Document(tuple(placed), whole)


def detokenize(words: Sequence[str]) -> str:
    """
    >>> detokenize(["He", "said", ":", "``", "I", "do", "n't", "(", "know", ")", "Ann", "'s", "."])
    "He said: ``I don't (know) Ann's."
    """
    text, last = "", None
    for word in words:
        attached = word in NO_SPACE_BEFORE or (len(word) < 4 and word[0] in "'’" and word[1:].isalpha())
        if text and not attached and last not in NO_SPACE_AFTER:
            text += " "
        text, last = text + word, word
    return text


if __name__ == "__main__":
    sys.exit(main())
