"""`nestree serve` under load, against the library on the same machine.

    python -m benchmarks.serving --clients 1000 --minutes 10

A process of its own sends texts of `--words` words from many clients at once, each of which waits for its answer and
retries as Retry-After says; every answer is compared with that of the library. Speeds are words a second, of the server
and, before and after it, of `Pipeline.pipe` in this process. The latency of one sentence is measured in turns with that
of a direct call. Prints one line of JSON at its end and stores it with `--out`.
"""

import argparse
import asyncio
import json
import math
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from typing import Any

import nestree
from benchmarks.timing import ROOT, Row, provenance, read_status, store
from nestree.pipeline import Pipeline

SENTENCE = "The president of the University of California met leaders of the Iraqi army."
HEAD = "POST /v1/entities HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model directory (default: the bundled model)")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--words", type=int, default=200, help="of a request")
    parser.add_argument("--sentences", type=int, default=100, help="to measure latencies with")
    parser.add_argument("--offline-seconds", type=float, default=10.0, help="to measure the library")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--generate", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a file for each client
    if options.generate:
        print(json.dumps(asyncio.run(generate(options, json.load(sys.stdin)))))
        return 0
    print(store({**provenance("cpu", None), **measure(options)}, options.out))
    return 0


def measure(options: argparse.Namespace) -> Row:
    pipeline = nestree.load(options.model, device="cpu")
    texts = make_texts(options.words)
    expected = {text: pipeline(text, trees=False).to_dict()["entities"] for text in texts}
    words = statistics.mean(len(pipeline.split(text).words) for text in texts)
    offline = [offline_speed(pipeline, texts, options.offline_seconds)]
    with server(options.model) as (process, port):
        direct, served = latencies(pipeline, port, options.sentences)
        command = [sys.executable, "-m", "benchmarks.serving", "--generate", str(port)]
        command += ["--clients", str(options.clients), "--minutes", str(options.minutes)]
        with tempfile.TemporaryFile("w+") as texts_file:
            json.dump(expected, texts_file)
            texts_file.seek(0)
            generator = subprocess.Popen(command, stdin=texts_file, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            time.sleep(min(60.0, 15 * options.minutes))  # a quarter, until every client has been served
            before = read_status("VmRSS", process.pid)
            load = json.loads(generator.communicate()[0])
        after = read_status("VmRSS", process.pid)
        process.terminate()
        exit_code = process.wait(60)
    offline.append(offline_speed(pipeline, texts, options.offline_seconds))
    speed = load["answers"] * words / load["seconds"]
    return {
        "clients": options.clients,
        "minutes": options.minutes,
        "words_per_request": round(words, 1),
        **load,
        "words_per_second": round(speed, 1),
        "offline_words_per_second": [round(each, 1) for each in offline],
        "share_of_offline": round(speed / statistics.mean(offline), 3),
        "resident_mb": [round(size / 1e6, 1) for size in (before, after)],
        "sentence_ms_direct": direct,
        "sentence_ms_served": served,
        "sentence_ms_difference": round(served - direct, 2),
        "exit_code": exit_code,
    }


def make_texts(words: int, count: int = 50) -> list[str]:
    """Texts of about so many words, from the examples."""
    documents = nestree.read(ROOT / "examples" / "train.jsonl")
    sentences = [sentence.words for document in documents for sentence in document.sentences]
    texts, endless = [], cycle(sentences)
    while len(texts) < count:
        text: list[str] = []
        while len(text) < words:
            text += next(endless)
        texts.append(" ".join(text[:words]))
    return texts


def offline_speed(pipeline: Pipeline, texts: Sequence[str], seconds: float) -> float:
    """Words a second of `Pipeline.pipe`."""
    words, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for document in pipeline.pipe(texts, trees=False):
            words += len(document.words)
    return words / (time.perf_counter() - started)


def latencies(pipeline: Pipeline, port: int, count: int) -> tuple[float, float]:
    """Median milliseconds of a sentence, by a direct call and over HTTP, in turns."""
    connection = HTTPConnection("127.0.0.1", port)
    body = json.dumps({"texts": [SENTENCE]})
    direct, served = [], []
    for _ in range(count):
        started = time.perf_counter()
        pipeline(SENTENCE, trees=False).to_json()
        direct.append(1000 * (time.perf_counter() - started))
        started = time.perf_counter()
        connection.request("POST", "/v1/entities", body, {"Content-Type": "application/json"})
        connection.getresponse().read()
        served.append(1000 * (time.perf_counter() - started))
    connection.close()
    return round(statistics.median(direct), 2), round(statistics.median(served), 2)


@contextmanager
def server(model: str | None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A running `nestree serve` and its port."""
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "nestree", "serve", "--port", "0", "--device", "cpu"]
        command += ["--model", model] if model else []
        process = subprocess.Popen(command, stderr=log, text=True, cwd=ROOT)
        try:
            while not (found := re.search(r"at http://[^:]+:(\d+)", log.read())):
                if process.poll() is not None:
                    raise SystemExit("the server did not start")
                time.sleep(0.1)
                log.seek(0)
            port = int(found[1])
            ready = False
            while not ready:
                connection = HTTPConnection("127.0.0.1", port)
                connection.request("GET", "/ready")
                ready = connection.getresponse().status == 200
                connection.close()
                time.sleep(0.1)
            yield process, port
        finally:
            process.kill()
            process.wait()


# The load generator


async def generate(options: argparse.Namespace, expected: dict[str, Any]) -> Row:
    """What so many clients got in so many minutes."""
    texts = list(expected)
    keys = {text: entity_keys(entities) for text, entities in expected.items()}
    statuses: Counter[str] = Counter()
    milliseconds: list[float] = []
    wrong = 0
    end = time.monotonic() + 60 * options.minutes

    async def client(number: int) -> None:
        nonlocal wrong
        reader, writer = await asyncio.open_connection("127.0.0.1", options.generate)
        turn = number
        while time.monotonic() < end:
            text = texts[turn % len(texts)]
            body = json.dumps({"texts": [text]}).encode()
            started = time.monotonic()
            writer.write(HEAD.format(len(body)).encode() + body)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            content = await reader.readexactly(int(re.search(r"content-length: (\d+)", head)[1]))  # type: ignore[index]
            status = head.split()[1]
            statuses[status] += 1
            if status == "200":
                milliseconds.append(1000 * (time.monotonic() - started))
                wrong += not same_entities(json.loads(content)["documents"][0]["entities"], keys[text])
                turn += 1
            elif retry := re.search(r"retry-after: (\d+)", head):
                seconds = int(retry[1]) * random.uniform(0.5, 1.5)
                await asyncio.sleep(min(seconds, max(0.0, end - time.monotonic())))
        writer.close()

    started = time.monotonic()
    results = await asyncio.gather(*map(client, range(options.clients)), return_exceptions=True)
    errors = [repr(result) for result in results if result is not None]
    ordered = sorted(milliseconds) or [math.nan]
    return {
        "seconds": round(time.monotonic() - started, 2),
        "answers": len(milliseconds),
        "statuses": dict(sorted(statuses.items())),
        "wrong_answers": wrong,
        "client_errors": len(errors),
        "first_errors": errors[:3],
        "ms_p50": round(ordered[len(ordered) // 2], 1),
        "ms_p99": round(ordered[int(0.99 * len(ordered))], 1),
    }


def entity_keys(entities: Sequence[dict[str, Any]]) -> dict[tuple[Any, ...], float]:
    """Probabilities by span and label."""
    return {
        (entity["start"], entity["end"], label["label"]): label["score"]
        for entity in entities
        for label in entity["labels"]
    }


def same_entities(entities: Sequence[dict[str, Any]], expected: dict[tuple[Any, ...], float]) -> bool:
    """Whether these are the expected entities; probabilities may differ by rounding in another batch."""
    found = entity_keys(entities)
    return found.keys() == expected.keys() and all(abs(found[key] - expected[key]) < 1e-3 for key in found)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    raise SystemExit(main())
