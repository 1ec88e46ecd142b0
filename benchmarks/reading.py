"""Text in, entities out, on a CPU: words a second, where the time goes, what loading takes; other programs beside it.

All read the same texts in turns, again and again. How many cores other programs of the machine kept busy is noted for
each turn; the median is that of the quietest turns.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import QUIET, ROOT, others_seconds
from nestree.pipeline import Pipeline

Row = dict[str, Any]
Turn = Callable[[], Row]  # reads all texts once: seconds `wall` and `processor`
PEER = Path(__file__).with_name("peer_spacy.py")
STARTING = """
import json, time
clock = time.perf_counter
begun = clock()
import nestree
imported = clock()
ner = nestree.load({model!r}, device="cpu")
loaded = clock()
ner("Ann lives in Lisbon.")
first = clock()
ner("Bob lives in Porto.")
second = clock()
status = open("/proc/self/status").read().split("VmRSS:")[1].split()[0]
print(json.dumps({{
    "import_seconds": imported - begun, "load_seconds": loaded - imported, "first_text_seconds": first - loaded,
    "second_text_seconds": second - first, "resident_mb": int(status) / 1024,
}}))
"""


def raw_texts(shared: Path, part: str = "dev") -> list[str]:
    """The documents of GUM that are here in their original form, as text."""
    from benchmarks.raw_text import gum  # needs what a machine with a GPU may lack

    found = [gold.document.text or "" for gold in gum(shared, part)]
    if not found:
        raise SystemExit(f"{shared}: there are no documents of GUM {part} here; name a place with --shared")
    return found


def in_turns(readers: Mapping[str, Turn], rounds: int) -> dict[str, list[Row]]:
    """Every reader in turn, again and again, with the cores that others kept busy meanwhile."""
    taken: dict[str, list[Row]] = {name: [] for name in readers}
    for read in readers.values():
        read()
    for _ in range(rounds):
        for name, read in readers.items():
            read()  # a core that has slept gives less at first, where the machine is a guest
            before, own, begun = others_seconds(), time.process_time(), time.perf_counter()
            turn = read()
            wall = time.perf_counter() - begun
            elsewhere = turn["processor"] - (time.process_time() - own)  # a reader in another process
            others = (others_seconds() - before - max(0.0, elsewhere)) / wall
            taken[name].append({**turn, "others": max(0.0, others)})
    return taken


def summary(turns: Sequence[Row], words: int) -> Row:
    """Words a second of the quietest turns: those that others left alone or, failing that, three."""
    quiet = [turn for turn in turns if turn["others"] <= QUIET]
    if len(quiet) < 3:
        quiet = sorted(turns, key=lambda turn: turn["others"])[:3]
    wall = statistics.median(turn["wall"] for turn in quiet)
    processor = statistics.median(turn["processor"] for turn in quiet)
    return {
        "words_per_second": words / wall,
        "words_per_processor_second": words / processor,
        "others_cores": statistics.median(turn["others"] for turn in quiet),
        "turns": len(quiet),
        "of": len(turns),
    }


def ours(pipeline: Pipeline, texts: Sequence[str], threads: int) -> Turn:
    """A reader that has never seen these words."""

    def read() -> Row:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        splitter = pipeline.model.collator.splitter
        splitter.kept.clear()
        splitter.known.clear()
        begun, used = time.perf_counter(), time.process_time()
        entities = sum(len(document.entities) for document in pipeline.pipe(texts, trees=False))
        wall, processor = time.perf_counter() - begun, time.process_time() - used
        torch.set_num_threads(before)
        return {"wall": wall, "processor": processor, "entities": entities}

    return read


@contextmanager
def peer(python: str, model: str, texts: Sequence[str], about: Row) -> Iterator[Turn]:
    """A reader in another environment; what it says of itself comes into `about` at the end."""
    with ExitStack() as stack:
        given = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "texts.json"
        given.write_text(json.dumps(list(texts)), encoding="utf-8")
        command = [python, str(PEER), "read", model, str(given)]
        process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert process.stdin is not None
        assert process.stdout is not None
        told, heard = process.stdin, process.stdout

        def read() -> Row:
            print("go", file=told, flush=True)
            found = json.loads(heard.readline())
            return {**found["seconds"], "entities": found["spans"], "words": found["words"]}

        yield read
        told.close()
        about.update(json.loads(heard.readline()))


def starting(model: Path | None, rounds: int = 3) -> Row:
    """Seconds until a fresh process can read, and its memory; the median. Kernels were compiled before."""
    code = STARTING.format(model=None if model is None else str(model))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    taken = [
        json.loads(subprocess.check_output([sys.executable, "-c", code], text=True, env=environment))
        for _ in range(rounds + 1)
    ][1:]
    return {name: statistics.median(each[name] for each in taken) for name in taken[0]}


def measured(
    pipeline: Pipeline,
    model: Path | None,
    texts: Sequence[str],
    peers: Sequence[tuple[str, str]],
    rounds: int,
) -> Row:
    """Everything that is said at the top."""
    words = sum(len(s.words) for text in texts for s in pipeline.split(text).sentences)
    threads = torch.get_num_threads()
    exact = Pipeline(pipeline.model, pipeline.longest, "float32")
    readers: dict[str, Turn] = {f"nestree, {threads} threads": ours(pipeline, texts, threads)}
    if threads > 1:
        readers["nestree, 1 thread"] = ours(pipeline, texts, 1)
    if pipeline.int8_model:
        readers[f"nestree, float32, {threads} threads"] = ours(exact, texts, threads)
    abouts: list[Row] = [{} for _ in peers]
    with ExitStack() as stack:
        for (python, folder), about in zip(peers, abouts, strict=True):
            readers[f"peer {folder}"] = stack.enter_context(peer(python, folder, texts, about))
        taken = in_turns(readers, rounds)
    rows = {name: summary(turns, words) for name, turns in taken.items()}
    first = rows[next(iter(rows))]["words_per_second"]
    for (_, folder), about in zip(peers, abouts, strict=True):
        name = f"{about['peer']}, spans of up to {about['sizes'][1]} words"
        row = rows.pop(f"peer {folder}")
        rows[name] = {**row, "ratio_of_ours": first / row["words_per_second"], **about}
    return {
        "texts": len(texts),
        "characters": sum(map(len, texts)),
        "words": words,
        "rows": rows,
        "starting": starting(model),
    }
