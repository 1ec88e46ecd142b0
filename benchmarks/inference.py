"""Speed of inference.

    sentences     sentences a second, from words to entities, and of the encoder alone
    texts         words a second on a CPU, from text to entities, in turns with spaCy (`--peer`)
    words         words a second on a CPU, from words to entities, for each int8 kernel and number of cores; and the
                  latency of one sentence on the same cores: loading, the first call, and 300 more. With `--onnx`,
                  exported models too, in ONNX Runtime and, if it is installed, in OpenVINO

For example: `python -m benchmarks.inference sentences --model DIR --data FILE --device cuda`. Each command prints one
line of JSON at its end and stores it with `--out`.
"""

import argparse
import gc
import importlib.util
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import nestree
from benchmarks.timing import QUIET, ROOT, Row, other_cpu_seconds, provenance, store, synchronize
from nestree import checkpoint
from nestree.data import formats
from nestree.errors import NestreeError
from nestree.model import Recognizer, autocast
from nestree.nn.batch import BATCH_WORDS, Batch, batches_by_length
from nestree.nn.devices import select_device
from nestree.nn.int8 import KERNEL_VARIABLE, available_kernels
from nestree.pipeline import Pipeline, bf16_weights, map_threaded, predict
from nestree.types import Sentence

SPANCAT = Path(__file__).with_name("spacy_spancat.py")
START_UP = """
import json, os, time
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cores}])
clock = time.perf_counter
times = [clock()]
import torch
torch.set_num_threads({cores})
times.append(clock())
import nestree
ner = nestree.load({model!r}, device="cpu")
times.append(clock())
text = "The mayor of Lisbon opened a new museum in Porto last week."
ner(text)
times.append(clock())
names = "torch_seconds", "load_seconds", "first_call_seconds"
result = dict(zip(names, (b - a for a, b in zip(times, times[1:]))))
calls = []
for _ in range({calls}):
    started = clock(), time.process_time()
    ner(text)
    calls.append((clock() - started[0], time.process_time() - started[1]))
for name, seconds in zip(("call", "call_cpu"), zip(*calls)):
    ordered = sorted(seconds)
    for percent in (50, 99):
        result[f"{{name}}_p{{percent}}_ms"] = 1000 * ordered[len(ordered) * percent // 100]
result["resident_mb"] = int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0]) / 1024
print(json.dumps(result))
"""
CALLS = 300  # of a new process
WORDS_PER_CORE = 8_000  # at least: the data is read several times where there are many cores


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inference", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run in (("sentences", measure_sentences), ("texts", measure_texts), ("words", measure_words)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        add = command.add_argument
        add("--model", type=Path, metavar="DIR", help="default: the bundled model")
        add("--rounds", type=int, default=5, help="the median of this many")
        add("--out", type=Path, metavar="FILE", help="the JSON file")
        add("--device", default="cpu" if name == "words" else "auto", help="auto, cpu, cuda or mps")
        add("--threads", type=int, help="of the CPU")
        add("--commit", help="the commit to record outside a git checkout")
        if name == "sentences":
            add("--data", type=Path, required=True, metavar="FILE", help="in any format of nestree")
            add("--batch-words", default=str(BATCH_WORDS), help="words in a batch; several sizes with commas")
            add("--limit", type=int, help="only the first sentences")
            add("--set", action="append", default=[], metavar="DECODING.KEY=VALUE")
            add("--text", action="store_true", help="also measure from text to entities")
        elif name == "words":
            add("--data", type=Path, required=True, metavar="FILE", help="annotated data")
            add("--cores", default="1,2", help="numbers of cores, with commas; the first ones are used")
            add("--workers", action="store_true", help="also with one worker process for each core")
            add("--fastest", action="store_true", help="only the int8 kernel that is chosen by itself")
            add("--onnx", type=Path, nargs="+", default=[], metavar="DIR", help="exported models")
        else:
            add("--shared", type=Path, default=Path("../shared"), metavar="DIR", help="holds GUM's documents")
            add("--peer", nargs=2, action="append", default=[], metavar="X", help="PYTHON MODEL: see spacy_spancat.py")
            add("--precision", default="auto", help="auto, float32 or int8")
    options = parser.parse_args(arguments)
    try:
        device = select_device(options.device)
        if options.threads:
            torch.set_num_threads(options.threads)
        model_name = options.model.name if options.model else "bundled"
        result = {"benchmark": "inference", "model": model_name, **options.run(options, device)}
    except NestreeError as error:
        raise SystemExit(str(error)) from None
    print(store({**provenance(device.type, options.commit), **result}, options.out))
    if options.out:
        options.out.with_suffix(".unfinished.json").unlink(missing_ok=True)
    return 0


# sentences


def measure_sentences(options: argparse.Namespace, device: torch.device) -> Row:
    model = checkpoint.load(options.model or checkpoint.bundled_model(), device)
    model.settings = model.settings.with_overrides(options.set)
    sentences = model.sentences_with_context(formats.read(options.data))[: options.limit]
    gc.freeze()  # as `nestree predict` does
    words = sum(len(sentence.words) for sentence in sentences)
    result: Row = {
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
        print(f"{stage}, batches of {batch_words} words: {len(sentences) / median:,.0f} sentences/s", file=sys.stderr)

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
    """Of the subwords of words."""
    model.collator.tokenizer.clear_cache()


def count_entities(pipeline: Pipeline, texts: Sequence[str]) -> int:
    clear_caches(pipeline.model)
    return sum(len(document.entities) for document in pipeline.pipe(texts, trees=False))


def make_batches(
    collate: Callable[[list[Sentence]], Batch], sentences: Sequence[Sentence], batch_words: int, device: torch.device
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


# words


def measure_words(options: argparse.Namespace, device: torch.device) -> Row:
    """Int8 kernels and exported models, each in a process of its own on the first cores; float32 on most cores."""
    kernels = [kernel.name for kernel in available_kernels()][: 1 if options.fastest else None]
    engines = ["onnxruntime", *(["openvino"] if importlib.util.find_spec("openvino") else [])]
    exported = {f"{engine} {folder.name}": folder for folder in options.onnx for engine in engines}
    rows: list[Row] = []
    for cores in sorted(map(int, options.cores.split(",")), reverse=True):
        for kernel in [*kernels, *([] if rows else ["float32"]), *(exported if cores > 1 else ())]:
            for workers in [0, cores] if options.workers and cores > 1 and kernel in kernels[:1] else [0]:
                context = multiprocessing.get_context("spawn")
                with ProcessPoolExecutor(1, context, set_up_process, (cores, kernel)) as pool:
                    model = exported.get(kernel, options.model)
                    row = pool.submit(
                        measure_configuration, model, options.data, kernel, workers, options.rounds
                    ).result()
                rows.append({"cores": cores, "kernel": kernel, "workers": workers, **row})
                shown = [{key: value for key, value in row.items() if key != "entities"} for row in rows]
                print(json.dumps(shown[-1]), file=sys.stderr, flush=True)
                if options.out:  # in case that the program is stopped
                    unfinished = provenance("cpu", options.commit) | {"rows": shown}
                    store(unfinished, options.out.with_suffix(".unfinished.json"))
    reference = next(row["entities"] for row in rows if row["kernel"] == "float32")
    for row in rows:
        row["equal"] = len(reference & row.pop("entities")) / len(reference)
    latency = [measure_start_up(options.model, cores) for cores in sorted({min(2, row["cores"]) for row in rows})]
    return {"data": f"{options.data.parent.name}/{options.data.name}", "rows": rows, "latency": latency}


def set_up_process(cores: int, kernel: str) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    torch.set_num_threads(cores)
    if kernel != "float32" and " " not in kernel:
        os.environ[KERNEL_VARIABLE] = kernel


class OpenvinoSession:
    """A graph in OpenVINO, with the interface of a session of ONNX Runtime that nestree.nn.onnx uses."""

    def __init__(self, content: bytes, cores: int) -> None:
        import openvino

        core = openvino.Core()
        settings = {
            "INFERENCE_NUM_THREADS": cores,
            "NUM_STREAMS": cores,  # a thread for each batch, as we do it
            "INFERENCE_PRECISION_HINT": "bf16" if platform.machine() == "x86_64" else "f32",  # float16 overflows
        }
        self.compiled = core.compile_model(core.read_model(content, b""), "CPU", settings)
        self.requests = threading.local()

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name=output.any_name) for output in self.compiled.outputs]

    def run(self, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        if not hasattr(self.requests, "own"):
            self.requests.own = self.compiled.create_infer_request()
        outputs = self.requests.own.infer(inputs)
        return [outputs[name].copy() for name in names]


def measure_configuration(model: Path | None, data: Path, kernel: str, workers: int, rounds: int) -> Row:
    engine, _, exported = kernel.partition(" ")
    precision = "auto" if exported else "float32" if kernel == "float32" else "int8"
    pipeline = nestree.load(model, "cpu", precision=precision, workers=workers)
    if engine == "openvino":
        network: Any = pipeline.model.network
        cores = torch.get_num_threads()
        network.sessions = {name: OpenvinoSession(graph, cores) for name, graph in network.graphs.items()}
    gold = pipeline.model.sentences_with_context(formats.read(data))
    words = sum(len(sentence.words) for sentence in gold)
    timed = gold * -(-WORDS_PER_CORE * torch.get_num_threads() // words)
    batches = make_batches(pipeline.model.collate_words, timed, 500, torch.device("cpu"))
    gc.freeze()
    calls: dict[str, Callable[[], object]] = {"whole": lambda: pipeline.words(timed)}
    if not workers and not exported:
        calls["encoder"] = lambda: list(map_threaded(lambda batch: encode(pipeline.inference_model, [batch]), batches))
    predicted = pipeline.words(gold)  # worker processes start
    seconds = time_rounds(calls, rounds)
    pipeline.close()
    evaluation = nestree.evaluate(gold, predicted, resamples=0)
    calibration = evaluation.calibration
    return {
        **{
            f"{name}_words_per_second": words * len(timed) / len(gold) / statistics.median(s)
            for name, s in seconds.items()
        },
        "f1": evaluation.entities.f1,
        "calibration error": calibration.error if calibration else None,
        "entities": {(k, e.start, e.end, e.label) for k, s in enumerate(predicted) for e in s.entities},
    }


# texts


def measure_texts(options: argparse.Namespace, device: torch.device) -> Row:
    """Words a second of the bundled model by threads and precision, in turns with spaCy."""
    from benchmarks.text import gum  # needs defusedxml, which other measurements do not

    dev = {document.id for document in formats.read(options.shared / "data/gum_open/dev.jsonl.gz")}
    texts = [document.text for document in gum(options.shared) if document.name in dev]
    if not texts:
        raise SystemExit(f"{options.shared}: there are no documents of GUM dev here; name a directory with --shared.")
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
        print(f"{name}: {row['words_per_second']:,.0f} words/s, others {row['other_cores']:.2f} cores", file=sys.stderr)
    return {
        "data": "GUM dev, raw text",
        "texts": len(texts),
        "characters": sum(map(len, texts)),
        "words": words,
        "rows": rows,
        "startup": measure_start_up(options.model, threads),
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
def start_peer(python: str, model: str, texts: Sequence[str], description: Row) -> Iterator[Callable[[], Row]]:
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
    wall, processor, others = (statistics.median(t[k] for t in quiet) for k in ("wall", "processor", "others"))
    speeds = {"words_per_second": words / wall, "words_per_cpu_second": words / processor}
    return {**speeds, "other_cores": others, "turns": len(quiet), "of": len(turns)}


def measure_start_up(model: Path | None, cores: int) -> Row:
    """Seconds until a new process can predict, its memory, and milliseconds of CALLS further calls."""
    code = START_UP.format(model=None if model is None else str(model), cores=cores, calls=CALLS)
    # It may cache the bytecode of modules, as an installed package does.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}
    output = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    return {"cores": cores, **json.loads(output)}


if __name__ == "__main__":
    sys.exit(main())
