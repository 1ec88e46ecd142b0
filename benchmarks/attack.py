"""Attack nestree: every case holds, or breaks with a reason.

    python -m benchmarks.attack [--only SECTION[/CASE]] [--cases N] [--seed N] [--json FILE]

Each case runs in a forked process of its own, in an empty folder, with limits on memory and time, so that a crash or a
hang is a broken case and not the end of the attack. Cases depend on nothing but the seed and their names. The result is
counts; the exit code is 1 if anything broke.
"""

import argparse
import base64
import contextlib
import gzip
import json
import multiprocessing
import os
import pickle
import pty
import random
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from typer.testing import CliRunner

import nestree
from benchmarks.timing import ROOT, provenance, store
from nestree import treecrf
from nestree.checkpoint import bundled_model
from nestree.cli import app
from nestree.data.formats import FORMATS
from nestree.errors import NestreeError
from nestree.types import Document


class Case(NamedTuple):
    """The arguments of a check."""

    rng: random.Random
    folder: Path  # empty at first


Cases = Iterator[
    tuple[str, Callable[[Case], object]]
]  # names and checks; a check raises if an invariant is broken

MEMORY = 2 * 2**30  # bytes, the limit of a case beyond the program itself
SECONDS = 90  # the limit of a case
EXAMPLES, FIXTURES = ROOT / "examples", ROOT / "tests" / "data" / "fixtures"
TEXT = "The mayor of Lisbon met the president of the Bank of Portugal in the University of Oslo on Monday."


class BrokenError(Exception):
    """An invariant does not hold."""


def require(holds: object, why: str) -> None:
    if not holds:
        raise BrokenError(why)


@cache
def load_model() -> Any:
    return nestree.load(device="cpu")


def check_message(message: str) -> None:
    """Require an error message of one line without a traceback."""
    one = message.strip() and "\n" not in message.strip() and "Traceback" not in message
    require(one and len(message) < 1000, f"not a sentence: {message!r:.300}")


class Done(NamedTuple):
    code: int
    out: str
    err: str


def command(*arguments: object, stdin: str = "") -> Done:
    """Run a command in this process; it ends with 0, 1 or 2, and with 2 it says why in one sentence."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    require(done.exit_code in (0, 1, 2), f"exit code {done.exit_code}: {done.stderr!r:.300}")
    require("Traceback" not in done.output, f"a traceback: {done.output[-300:]!r}")
    if done.exit_code == 2 and arguments[0] != "check":  # which reports errors in its own way
        lines = done.stderr.splitlines() or [""]
        errors = [line for line in lines if line.startswith("Error: ")]
        require(errors == lines[-1:], f"not one error at the end: {done.stderr!r:.300}")
        check_message(lines[-1])
    return Done(done.exit_code, done.stdout, done.stderr)


def start(*arguments: object, output: int) -> int:
    """Run a command in a fork, with its output to a file descriptor; returns the process id."""
    if pid := os.fork():
        return pid
    code = 70
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", encoding="utf-8"), os.fdopen(2, "w", encoding="utf-8")
        app([str(argument) for argument in arguments])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# texts: offsets, nesting and scores are right whatever the characters

FRAGMENTS = [
    *"\ud800\udfff\ud83d\x00\ufeff\ufffe\U0010ffff\ue000\x85\u2028\u2029\r\t\u00a0\u3000\u200b\u200d\u00ad\u202e\u202c",
    *"\u2066\u0301\u0338ﬁİßǅ각٣'\"\\\x1b\x9b\x07\x08\x7f",
    *("\r\n", "\n\n", "e\u0301", "각", "กรุงเทพ", "東京都知事は", "مرحبا", "שלום", "👩‍👩‍👧‍👦", "🇳🇴", "👍🏽"),
    *("\x1b[31m", "<script>", "&amp;", "]]>", "Ann", "met", "the mayor", "of", "Oslo", ".", "Dr.", "U.S."),
    *("...", "?!", "don't", "()", "1,000", "x" * 300),
]
LONG = 100_000  # characters without a blank
HOSTILE_TEXTS = {
    "nothing": "",
    "white space": " \n\t\u00a0\u2003\u3000",
    "NULs": "\x00Ann\x00 met\x00 the mayor of Oslo\x00",
    "lone surrogates": "\ud800 Ann met \udfff the mayor\ud83d of Oslo \udc00",
    "right to left": "שלום עולם, Ann met مرحبا بالعالم in Oslo \u202eof mayor the\u202c",
    "emoji": "👩‍👩‍👧‍👦 Ann 🇳🇴 met 👍🏽 the ❤️ mayor of Oslo 🏳️‍🌈",
    "combining marks": "A\u0301n\u0303n\u0327\u0308 met the mayor\u0301 of O\u0338slo" + "\u0301" * 200,
    "HTML": "<script>alert('Ann & Bob')</script> the <mayor onclick=\"x\">mayor</mayor> of Oslo &amp; <!-- ]]>",
    "control characters": "\x1b[31mAnn\x1b[0m met\x07 the\x08 mayor\r of\x9b1m Oslo\x7f",
    "line ends": "Ann met\r\nthe mayor\rof\x0bOslo\x0c and\x1cBob\x85from\u2028Rome\u2029.\r\n\r\n",
    "scripts without blanks": "東京都知事は大阪市長と会った。กรุงเทพมหานคร" * 20,
    **{f"only {letter!a}": letter * LONG for letter in "aé.\x00\u0301\ud800\u200d\n"},
    "base64": base64.b64encode(random.Random(0).randbytes(LONG)).decode(),
    "brackets": "(" * 2_000 + "Ann" + ")" * 2_000,
    "abbreviations": "U.S." * 2_000,
    "many sentences": "Ann met Bob. " * 500,
    "one sentence": " ".join(["the mayor of Oslo met"] * 300),
}


def texts(rounds: int) -> Cases:
    for name, text in HOSTILE_TEXTS.items():
        yield name, partial(read_text, text)
    yield "stream", stream
    for number in range(rounds):
        yield f"random {number}", lambda case: read_text(random_text(case.rng), case)


def random_text(rng: random.Random) -> str:
    return rng.choice(["", " ", " "]).join(rng.choices(FRAGMENTS, k=rng.randrange(1, 60)))


def read_text(text: str, case: Case) -> None:
    document = load_model()(text)
    check_document(document, text)
    if len(text) < LONG:
        check_rendering(document)


def check_document(document: Document, text: str) -> None:
    """No word is lost, offsets slice to what they claim, entities nest, scores are probabilities, JSON keeps it all."""
    require(document.text == text, "the document has another text")
    at = 0
    for sentence in document.sentences:
        for word, (i, j) in zip(sentence.words, sentence.offsets or (), strict=True):
            start, end = sentence.start + i, sentence.start + j
            require(text[start:end] == word, f"word {word!r} is not at {start}-{end}")
            require(not text[at:start].strip(), f"{text[at:start]!r} is in no word")
            at = end
    require(not text[at:].strip(), f"{text[at:]!r:.60} is in no word")
    spans = [(entity.start, entity.end) for entity in document.entities]
    require(spans == sorted(set(spans), key=lambda span: (span[0], -span[1])), "entities are out of order")
    enclosing: list[int] = []  # the ends of the entities around the current one
    for entity in document.entities:
        require(text[entity.start : entity.end] == entity.text, f"{entity} is not what its offsets slice")
        if head := entity.head:
            inside = entity.start <= head.start < head.end <= entity.end
            require(inside and text[head.start : head.end] == head.text, f"the head of {entity} is wrong")
        require(all(score is not None and 0 <= score <= 1 for score in entity.scores), f"{entity}: scores")
        while enclosing and enclosing[-1] <= entity.start:
            enclosing.pop()
        require(not enclosing or entity.end <= enclosing[-1], f"{entity} crosses another")
        enclosing.append(entity.end)
    again = json.loads(document.to_json())
    require(again["text"] == text, "JSON has another text")
    require([(e["start"], e["end"]) for e in again["entities"]] == spans, "JSON has other entities")


class TagCollector(HTMLParser):
    """The tags and attributes that a browser would see."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen |= {tag, *(name for name, _ in attrs)}


def check_rendering(document: Document) -> None:
    """Nothing in a text becomes a tag of a page or a control character of a terminal."""
    show = nestree.show
    for html in (show.draw_boxes(document), show.draw_page([document])):
        html.encode()
        require(not {"script", "mayor", "onclick"} & TagCollector(html).seen, "a text becomes a tag")
    trees = [show.draw_sentence(sentence, 80) for sentence in document.sentences[:20]]
    for drawing in (show.draw_document(document, 80), *trees):
        drawing.plain.encode()
        require(
            not re.search("[\x00\x07\x08\x1b\x7f\x9b\r\u202e]", drawing.plain), "a drawing steers a terminal"
        )


def stream(case: Case) -> None:
    """Documents come in order; a text that cannot be read is skipped and named."""
    given: list[Any] = [None if n % 50 == 25 else f"{n} {case.rng.choice(FRAGMENTS)} Ann" for n in range(200)]
    found = list(load_model().pipe(given, on_error="skip"))
    require([document.text for document in found] == given, "documents are out of order")
    for number, document in enumerate(found):
        said = document.extra.get("error", "")
        named = f"text {number} " in said if given[number] is None else not said
        require(named, f"text {number}: {said!r}")


# constraints: an error in one sentence, or a result that obeys

VARIANTS: dict[str, Callable[[str, int, int], tuple[Any, Any]]] = {
    "own entities": lambda text, start, end: (start, end),
    "NumPy integers": lambda text, start, end: (np.int64(start), np.int32(end)),
    "white space around": lambda text, start, end: widen(text, start, end),
}


def constraints(rounds: int) -> Cases:
    for number in range(rounds):
        yield f"random {number}", random_constraints
        for variant in VARIANTS:
            yield f"{variant} {number}", partial(constrain_own_entities, VARIANTS[variant])


def entities_in(document: Document) -> list[tuple[Any, ...]]:
    return [(e.start, e.end, e.labels, tuple(round(s or 0, 4) for s in e.scores)) for e in document.entities]


def widen(text: str, start: int, end: int) -> tuple[int, int]:
    before, after = text[:start], text[end:]
    return len(before.rstrip()), end + len(after) - len(after.lstrip())


def constrain_own_entities(variant: Callable[[str, int, int], tuple[Any, Any]], case: Case) -> None:
    """Some entities known, others forbidden: accepted in every variant, with the same result."""
    text = TEXT.replace(" ", case.rng.choice([" ", "  ", "\t", "\n "])) + " "
    entities = list(load_model()(text).entities)
    case.rng.shuffle(entities)
    half = len(entities) // 2
    known = [(e.start, e.end, *case.rng.choice([(), (e.label,)])) for e in entities[:half]]
    forbidden = [(e.start, e.end) for e in entities[half:]]
    expected = predict_constrained(text, known, forbidden)
    require(expected is not None, f"known {known} and forbidden {forbidden} are refused")
    others = [[(*variant(text, *each[:2]), *each[2:]) for each in some] for some in (known, forbidden)]
    found = load_model()(text, known=others[0], forbidden=others[1])
    require(entities_in(found) == expected, f"{others} give other entities than {known}, {forbidden}")


def random_constraints(case: Case) -> None:
    rng = case.rng
    text = rng.choice([TEXT, TEXT + " Ann fell. " + TEXT, random_text(rng) + " Ann of Oslo"])
    words = [match.span() for match in re.finditer(r"\S+", text)]
    labels = [None, None, *load_model().labels, "no such label"]

    def span() -> tuple[Any, ...]:
        if rng.random() < 0.3:
            start = rng.randrange(-1, len(text) + 1)
            return start, start + rng.randrange(12), rng.choice(labels)
        first = rng.randrange(len(words))
        start, end = words[first][0], words[min(len(words) - 1, first + rng.choice([0, 1, 1, 2, 5]))][1]
        return *(widen(text, start, end) if rng.random() < 0.3 else (start, end)), rng.choice(labels)

    known = [span() for _ in range(rng.randrange(4))]
    known = [(*each, each[0] + rng.randrange(5)) if rng.random() < 0.2 else each for each in known]
    predict_constrained(text, known, [span() for _ in range(rng.randrange(6))])


def predict_constrained(
    text: str, known: Sequence[Any], forbidden: Sequence[Any]
) -> list[tuple[Any, ...]] | None:
    """The entities, which must obey the constraints; None if the constraints are refused."""
    try:
        document = load_model()(text, known=known, forbidden=forbidden)
    except NestreeError as error:
        check_message(str(error))
        return None
    check_document(document, text)
    found = {widen(text, e.start, e.end): e for e in document.entities}
    for start, end, *more in known:
        label, head = [*more, None, None][:2]
        entity = found.get(widen(text, start, end))
        if entity is None:
            raise BrokenError(f"known {(start, end)} of {text!r} is not found")
        require(label is None or label in entity.labels, f"known {(start, end, label)} has {entity.labels}")
        require(head is None or (entity.head and entity.head.start <= head < entity.head.end), f"head {head}")
    for start, end, *more in forbidden:
        entity, label = found.get(widen(text, start, end)), more[0] if more else None
        allowed = entity is None or (label and label not in entity.labels)
        require(allowed, f"forbidden {(start, end, label)} of {text!r} is found")
    return entities_in(document)


# kills: after SIGKILL at any moment the same command completes, and nothing is left over


def kills(rounds: int) -> Cases:
    yield "two predictions into one folder", predict_twice
    yield "output folder deleted", delete_output
    for number in range(rounds):
        yield f"predict {number}", kill_predict
        yield f"convert {number}", kill_convert


def predict_texts(folder: Path, count: int, out: str) -> list[object]:
    """A command that predicts `count` texts."""
    (folder / "texts").mkdir(exist_ok=True)
    for number in range(count):
        path = folder / "texts" / f"{number:03}.txt"
        if not path.exists():
            path.write_text(f"{number}. {TEXT} {TEXT} {TEXT}\n")
    return ["predict", path.parent, "--out", folder / out, "--device", "cpu", "--batch-words", "10"]


def start_logged(folder: Path, *arguments: object) -> int:
    with open(folder / "log", "w") as log:
        return start(*arguments, output=log.fileno())


def kill_after(seconds: float, pid: int) -> None:
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def wait_for(path: Path) -> None:
    end = time.monotonic() + SECONDS / 2
    while not path.exists():
        require(time.monotonic() < end, f"{path.name} does not appear")
        time.sleep(0.005)


def kill_predict(case: Case) -> None:
    out, again = case.folder / "out", predict_texts(case.folder, 8, "out")
    since = time.monotonic()
    command(*predict_texts(case.folder, 8, "whole"))
    took = time.monotonic() - since
    for _ in range(case.rng.choice([1, 1, 3])):
        pid = start_logged(case.folder, *again, *["--resume"] * out.exists())
        kill_after(case.rng.random() * took, pid)
    done = command(*again, *["--resume"] * out.exists())
    require(done.code == 0, f"going on fails: {done.err!r:.300}")
    found, whole = contents(out), contents(case.folder / "whole")
    require(found.keys() == whole.keys(), f"left over: {sorted(found.keys() - whole.keys())}")
    different = [name for name in whole if not name.startswith(".") and found[name] != whole[name]]
    require(not different, f"{different} are not what an uninterrupted run writes")


def kill_convert(case: Case) -> None:
    to = case.rng.choice(["jsonl", "brat", "columns", "bioc", "label-studio"])
    (case.folder / "source.jsonl").write_bytes((EXAMPLES / "train.jsonl").read_bytes() * 40)
    commands = []
    for name in ("whole", "again"):
        (case.folder / name).mkdir()
        out = case.folder / name / f"out{ENDINGS[to]}"
        commands.append(["convert", case.folder / "source.jsonl", out, "--to", to])
    since = time.monotonic()
    require(command(*commands[0]).code == 0, "convert fails")
    took = time.monotonic() - since
    kill_after(case.rng.random() * took, start_logged(case.folder, *commands[1]))
    if not (out.is_dir() and any(out.iterdir())):  # a folder that is complete is not written over
        require(command(*commands[1]).code == 0, "convert fails after a kill")
    found, whole = contents(case.folder / "again"), contents(case.folder / "whole")
    require(found.keys() == whole.keys(), f"left over: {sorted(found.keys() - whole.keys())}")
    require(found == whole, "the output is not what an uninterrupted run writes")


def predict_twice(case: Case) -> None:
    first = start_logged(case.folder, *predict_texts(case.folder, 40, "out"))
    wait_for(case.folder / "out" / "001.jsonl")
    second = command(*predict_texts(case.folder, 40, "out"), "--resume")
    require(exit_code(first) == 0, "the first prediction fails")
    require(second.code == 2, f"a second prediction into the same folder ends with {second.code}")


def delete_output(case: Case) -> None:
    pid = start_logged(case.folder, *predict_texts(case.folder, 40, "out"))
    wait_for(case.folder / "out" / "001.jsonl")
    while (case.folder / "out").exists():
        shutil.rmtree(case.folder / "out", ignore_errors=True)
    code, said = exit_code(pid), (case.folder / "log").read_text()
    require(code == 2, f"exit code {code} though the output is gone: {said[-300:]!r}")
    check_message(said.splitlines()[-1])


# files: corrupted files of every format, given to `check` and `convert`

TOKENS = [
    *rb'\ud800 null NaN 1e999 {} [ ] ( < > & | { " -1 <!-- ]]> &x; &#0; B- T1 #'.split(),
    *b"\0 \n \r\n \n\n \t \xff \xef\xbb\xbf \x1f\x8b \x1b[2J \xc2\x85 \xe2\x80\xa8".split(b" "),
    *(b"9" * 20, b"9" * 5000, b"[" * 2000),
]
ENDINGS = {
    **{"jsonl": ".jsonl", "doccano": ".jsonl", "prodigy": ".jsonl", "label-studio": ".json", "bioc": ".xml"},
    **{"brat": "", "columns": ".iob2", "triplets": ".data", "pubtator": ".pubtator", "spacy": ".spacy"},
    "datasets": ".parquet",
}  # of every format that can be written
ORIGINALS = {"genia": "genia.xml", "ace": "ace/timex2norm", "gum": "gum.conllu", "nne": "nne_standoff/00"}


def files(rounds: int) -> Cases:
    for number in range(rounds):
        for name in FORMATS:
            yield f"{name} {number}", partial(corrupt_file, name)


def copy_original(name: str, folder: Path) -> Path:
    """A valid file or directory of a format."""
    if name in ENDINGS:
        command("convert", EXAMPLES / "train.jsonl", path := folder / f"data{ENDINGS[name]}", "--to", name)
    elif name == "text":
        (path := folder / "data.txt").write_text(f"{TEXT}\n\n{TEXT}\n")
    else:
        source = FIXTURES / ORIGINALS.get(name, "tools/peers_index.json")
        path = folder / f"data{source.suffix}"
        (shutil.copytree if source.is_dir() else shutil.copy)(source, path)
    return path


def corrupt_file(name: str, case: Case) -> None:
    rng = case.rng
    (case.folder / "in").mkdir()
    source = copy_original(name, case.folder / "in")
    victim = rng.choice(sorted(path for path in (case.folder / "in").rglob("*") if path.is_file()))
    for _ in range(rng.choice([1, 1, 1, 4])):
        victim.write_bytes(corrupt(victim.read_bytes(), rng))
    to, skip = rng.choice([*ENDINGS]), ["--skip-bad"] * rng.randrange(2)
    command("check", source, "--from", name)
    out = case.folder / f"out{ENDINGS[to]}"
    done = command("convert", source, out, "--from", name, "--to", to, *skip)
    require(out.exists() == (done.code == 0), f"exit code {done.code}, and there is output: {out.exists()}")
    if done.code == 0:
        again = command("stats", out, "--from", to)
        nothing = re.search("is empty|holds no|no text", again.err)
        require(again.code == 0 or nothing, f"its output cannot be read: {again.err!r:.300}")
    require({path.name for path in case.folder.iterdir()} <= {"in", out.name}, "files are left over")


def corrupt(data: bytes, rng: random.Random) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.choice([1, 2, 5, 40])
    match rng.randrange(8):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[at + length :]
        case 2:
            return data[:at] + rng.choice(TOKENS) + data[at + rng.choice([0, length]) :]
        case 3:
            return data[:at] + data[at : at + length] * rng.choice([2, 1000]) + data[at + length :]
        case 4:
            return data.decode("utf-8", "replace").encode(rng.choice(["utf-16", "utf-32", "utf-7"]))
        case 5:
            return gzip.compress(data)[: rng.choice([None, -5, 10])]
        case 6:
            return data[:at] + rng.randbytes(length) + data[at:]
        case _:
            return flip_bits(data or b"\n", rng, length)


def flip_bits(data: bytes, rng: random.Random, bits: int = 1) -> bytes:
    changed = bytearray(data)
    for _ in range(bits):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


# models: a corrupted or malicious model is refused or predicts the same entities; its code never runs

Change = Callable[[Path, random.Random], object]
CHANGES: dict[str, Change] = {
    "missing": lambda path, rng: path.unlink(),
    "empty": lambda path, rng: path.write_bytes(b""),
    "folder": lambda path, rng: path.unlink() or path.mkdir(),  # type: ignore[func-returns-value]
    "pipe": lambda path, rng: path.unlink() or os.mkfifo(path),  # type: ignore[func-returns-value]
    "deep": lambda path, rng: path.write_text("a = " * (path.suffix == ".toml") + "[" * 200_000),
    "huge header": lambda path, rng: path.write_bytes(struct.pack("<Q", 2**62) + path.read_bytes()[8:]),
}
RANDOM_CHANGES: dict[str, Change] = {
    "truncated": lambda path, rng: os.truncate(path, rng.randrange(path.stat().st_size)),
    "flipped": lambda path, rng: path.write_bytes(flip_bits(path.read_bytes(), rng)),
}
SETTINGS = {  # sizes, by the file that they stand in
    "config.toml": "encoder.mix_layers encoder.word_shape_size encoder.lstm_layers encoder.lstm_size model.rank",
    "encoder/config.json": "num_hidden_layers hidden_size intermediate_size vocab_size max_position_embeddings",
}
LABELS: list[Any] = [None, "x", [], [""], [1], ["x"], ["x", "x"], ["\ud800"], ["\x1b[2J"], list("x" * 10**6)]
CODE = "import os\nos.mkdir({marker!r})\nclass AutoConfig: pass\nAutoModel = AutoTokenizer = AutoConfig\n"


def models(rounds: int) -> Cases:
    for name in sorted(contents(bundled_model())):
        for title, change in CHANGES.items():
            yield f"{title} {name}", partial(change_file, name, change)
        for number in range(rounds):
            for title, change in RANDOM_CHANGES.items():
                yield f"{title} {name} {number}", partial(change_file, name, change)
    yield "NaN weight", partial(change_file, "weights.safetensors", write_nan)
    for value in (10**5, 10**9, 10**18, -1, 0.5, "x"):
        for name, keys in SETTINGS.items():
            for key in keys.split():
                yield f"{key} = {value}", partial(change_file, name, partial(write_setting, key, value))
    for labels in LABELS:
        change = partial(write_setting, "labels", labels)
        yield f"labels {labels!a:.20}", partial(change_file, "labels.json", change)
    for kind in ("bert", "evil", None):
        yield f"code in a model, {kind}", partial(code_in_model, kind)
        yield f"code in an encoder, {kind}", partial(code_in_encoder, kind)
    yield "pickle in an encoder", pickle_in_encoder


def copy_model(folder: Path) -> Path:
    shutil.copytree(bundled_model(), folder / "model", copy_function=os.symlink)
    return folder / "model"


def copy_link(link: Path) -> Path:
    """A copy of a file in place of the link to it."""
    target = link.resolve()
    link.unlink()
    return Path(shutil.copyfile(target, link))


def predict_with(model: Path) -> list[Any] | None:
    """The entities that a model predicts; None if it is refused."""
    done = command("predict", "-", "--from", "text", "--model", model, stdin=TEXT)
    require(done.code in (0, 2), f"exit code {done.code}")
    require("enough memory" not in done.err, f"memory is not bounded: {done.err!r}")
    if done.code == 2:
        require(not done.out, f"an error, and on standard output {done.out!r:.100}")
        return None
    entities = [entity for line in done.out.splitlines() for entity in json.loads(line)["entities"]]
    return [(e["start"], e["end"], e["label"], e.get("score")) for e in entities]


def change_file(name: str, change: Change, case: Case) -> None:
    model = copy_model(case.folder)
    change(copy_link(model / name), case.rng)
    if (found := predict_with(model)) is not None:
        different = {*found} ^ {*(predict_with(bundled_model()) or ())}
        require(not different, f"other entities, without an error: {sorted(different)}")


def write_nan(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    nan = {"F32": b"\x00\x00\xc0\x7f", "F16": b"\x00\x7e", "BF16": b"\xc0\x7f"}
    header = json.loads(data[8 : 8 + size])
    tensor = header[rng.choice(sorted(name for name in header if header[name].get("dtype") in nan))]
    at, value = 8 + size + tensor["data_offsets"][0], nan[tensor["dtype"]]
    data[at : at + len(value)] = value
    path.write_bytes(data)


def write_setting(key: str, value: object, path: Path, rng: random.Random) -> None:
    if path.suffix == ".json":
        return write_json(path, {key: value})
    section, _, name = key.partition(".")
    before, after = path.read_text().split(f"[{section}]\n")
    after = re.sub(rf"(?m)^{name} = \S+", f"{name} = {json.dumps(value)}", after, count=1)
    path.write_text(f"{before}[{section}]\n{after}")


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def write_code(encoder: Path, model_type: str | None, marker: Path) -> None:
    names = {name: f"evil.{name}" for name in ("AutoConfig", "AutoModel", "AutoTokenizer")}
    write_json(copy_link(encoder / "config.json"), {"auto_map": names, "model_type": model_type})
    names["AutoTokenizer"] = [names["AutoTokenizer"]] * 2  # type: ignore[assignment]
    write_json(
        copy_link(encoder / "tokenizer_config.json"), {"auto_map": names, "tokenizer_class": "AutoTokenizer"}
    )
    (encoder / "evil.py").write_text(CODE.format(marker=str(marker)))


def code_in_model(kind: str | None, case: Case) -> None:
    model, marker = copy_model(case.folder), case.folder / "marker"
    write_code(model / "encoder", kind, marker)
    (case.folder / "a.txt").write_text(TEXT)
    command("predict", case.folder / "a.txt", "--model", model, stdin="y\n" * 20)
    require(not marker.exists(), "code of the model ran")
    require(predict_with(model) in (None, predict_with(bundled_model())), "other entities, without an error")


def train_on(encoder: Path, case: Case) -> None:
    options = ["--set", f"encoder.path={encoder}", "--set", "training.epochs=1", "--set", "model.size=8"]
    data, out = EXAMPLES / "train.jsonl", case.folder / "trained"
    command("train", "--train", data, "--out", out, "--device", "cpu", *options, stdin="y\n" * 20)
    require(not (case.folder / "marker").exists(), "code of the encoder ran")


def code_in_encoder(kind: str | None, case: Case) -> None:
    encoder = copy_model(case.folder) / "encoder"
    write_code(encoder, kind, case.folder / "marker")
    train_on(encoder, case)


class Evil:
    """Creates a directory when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def pickle_in_encoder(case: Case) -> None:
    encoder = copy_model(case.folder) / "encoder"
    (encoder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(case.folder / "marker")))
    train_on(encoder, case)


# bombs: small files that expand to much memory or time are handled within the limits

DEEP = 100_000
DEEP_JSON = {
    "lists": "[" * DEEP,
    "objects": '{"text":' * DEEP,
    "closed": "[" * DEEP + "]" * DEEP,
    "number": '{"text": ' + "9" * 10**6 + "}",
}
DEEP_XML = {
    "genia": ("<set><article><title><sentence>", "cons sentence article x"),
    "bioc": ("<collection><document><passage>", "passage document annotation infon x"),
    "ace": ("<source_file><document>", "entity entity_mention charseq x"),
}


def bombs(rounds: int) -> Cases:
    for name in FORMATS:
        if not FORMATS[name].folder:
            yield (
                f"gzip of NULs, {name}",
                partial(bomb, name, partial(write_gzip_bomb, bytes(2**26), 1 if name == "text" else 40)),
            )
            yield (
                f"gzip of lines, {name}",
                partial(bomb, name, partial(write_gzip_bomb, b"a b c d\n" * 2**19, 1)),
            )
    for name in ("jsonl", "label-studio", "doccano", "prodigy", "bioc", "research-json"):
        for kind, text in DEEP_JSON.items():
            yield f"deep {kind}, {name}", partial(bomb, name, lambda path, text=text: path.write_text(text))
    for name, (around, tags) in DEEP_XML.items():
        for tag in tags.split():
            yield f"nested {tag}, {name}", partial(bomb, name, partial(write_xml_bomb, around, tag))
    yield "DocBin of NULs", partial(bomb, "spacy", write_docbin_bomb)
    many = zlib.compress(b"\xdd\xff\xff\xff\xff")  # a list of 2**32 - 1 items, says msgpack
    yield "DocBin of many", partial(bomb, "spacy", lambda path: path.write_bytes(many))
    for to in ENDINGS:
        yield f"16,000 nested entities, {to}", partial(nested_entities, f"convert DATA OUT --to {to}")
    for name in ("check", "stats", "show"):
        yield f"16,000 nested entities, {name}", partial(nested_entities, f"{name} DATA")


def write_gzip_bomb(data: bytes, copies: int, path: Path) -> None:
    """Several gzip members one after the other."""
    path.write_bytes(gzip.compress(data, 1) * copies)


def write_docbin_bomb(path: Path) -> None:
    """4 GiB in one zlib stream: the same block again and again."""
    packer = zlib.compressobj(1)
    first, block = (packer.compress(bytes(2**24)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    path.write_bytes(first + block * 255)


def write_xml_bomb(around: str, tag: str, path: Path) -> None:
    end = "".join(f"</{name}>" for name in reversed(re.findall(r"\w+", around)))
    path.write_text(f"{around}{f'<{tag}>' * DEEP}a{f'</{tag}>' * DEEP}{end}")


def bomb(name: str, make: Callable[[Path], object], case: Case) -> None:
    (case.folder / "in").mkdir()
    if name == "ace":
        source = copy_original(name, case.folder / "in")
        make(next(source.glob("*.apf.xml")))
    else:
        make(source := case.folder / "in" / "data")
    if case.rng.random() < 0.3:
        command("check", source, "--from", name)
    else:
        skip = ["--skip-bad"] * case.rng.randrange(2)
        command("convert", source, case.folder / "out.jsonl", "--from", name, *skip)
    require({path.name for path in case.folder.iterdir()} <= {"in", "out.jsonl"}, "files are left over")


def nested_entities(line: str, case: Case) -> None:
    data, out = str(case.folder / "data.jsonl"), str(case.folder / "out")
    entities = [{"start": n, "end": 16_000, "label": "X"} for n in range(16_000)]
    Path(data).write_text(json.dumps({"tokens": ["a"] * 16_000, "entities": entities}) + "\n")
    command(*line.replace("DATA", data).replace("OUT", out).split())


# terminal: control characters in data never reach a terminal; a closed pipe causes no traceback

CONTROL_TEXT = "\x1b[6;66mAnn\x1b]0;owned\x07 of\x1b[2J\x9b2J \x08Oslo\x7f \u202eBob\rEve"
RAW_CONTROL = re.compile(
    r"\x1b\[6;66m|\x1b\]|\x1b\[2J|[\x00\x07\x08\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\rEve"
)
SHOWN = """check DATA; check DATA OTHER --all -v; check BROKEN; check BAD; check DATA --from BAD
check DATA --read BAD=1; stats DATA; stats BROKEN --skip-bad; stats BAD; show DATA; show DATA --tree --model gum-minilm
show TEXT; show BAD; show DATA --only BAD; predict TEXT; predict DATA --trees; predict BAD; predict TEXT --model BAD
BAD; evaluate DATA DATA; evaluate DATA OTHER; split DATA --out NEW; convert DATA NEW.iob2
train --train DATA --out NEW --set BAD=1"""
PIPES = """formats | head -1; stats DATA | head -1; predict TEXT | head -c 1; convert DATA - --to jsonl | head -c 1
show DATA | head -1; formats >&-; stats DATA >&-; predict TEXT >&-; check DATA 2>&-; check DATA >&- 2>&-; check - <&-
show DATA >/dev/full; convert DATA - --to jsonl >/dev/full; predict TEXT >/dev/full"""


def terminal(rounds: int) -> Cases:
    for line in [*re.split("; |\n", SHOWN), *(f"convert DATA - --to {name}" for name in ENDINGS)]:
        yield f"control characters: {line}", partial(run_on_terminal, line)
    for line in re.split("; |\n", PIPES):
        yield f"shell: {line}", partial(run_in_shell, line)


def write_control_files(folder: Path) -> dict[str, str]:
    """Paths and values by their placeholders in the command lines above."""
    label: dict[str, Any] = {"start": 0, "end": 2, "label": CONTROL_TEXT}
    words = [*CONTROL_TEXT.split(), CONTROL_TEXT]
    line: dict[str, Any] = {
        "tokens": words,
        "entities": [label],
        "doc_id": CONTROL_TEXT,
        "sent_id": CONTROL_TEXT,
    }
    other = {**line, "entities": [{**label, "start": 1, "end": 4}, {**label, "label": "other"}]}
    bad = [{**line, "entities": [{**label, "end": 99}]}, {CONTROL_TEXT: 1}, {**line, "tokens": CONTROL_TEXT}]
    for name, lines in {"DATA": [line, line], "OTHER": [other, line], "BROKEN": [*bad, line]}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    with open(folder / "BROKEN.jsonl", "a", newline="") as file:
        file.write(f'{{"tokens": {CONTROL_TEXT}')
    (folder / "TEXT.txt").write_text(f"{TEXT} {CONTROL_TEXT} {TEXT}", newline="")
    names = {name: str(folder / f"{name}.jsonl") for name in ("DATA", "OTHER", "BROKEN")}
    return {**names, "TEXT": str(folder / "TEXT.txt"), "NEW": str(folder / "new"), "BAD": CONTROL_TEXT}


def run_on_terminal(line: str, case: Case) -> None:
    names = write_control_files(case.folder)
    filled = [re.sub("[A-Z]{3,}", lambda word: names[word[0]], argument) for argument in line.split()]
    mine, theirs = pty.openpty()
    pid = start(*filled, output=theirs)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(mine, 2**16):
            seen += data
    code, said = exit_code(pid), seen.decode("utf-8", "replace").replace("\r\n", "\n")
    require("Traceback" not in said and code in (0, 1, 2), f"exit code {code}: {said[-300:]!r}")
    if raw := RAW_CONTROL.search(said):
        raise BrokenError(f"raw {raw[0]!r} in {said[max(0, raw.start() - 40) : raw.end() + 40]!r}")


def run_in_shell(line: str, case: Case) -> None:
    names = write_control_files(case.folder)
    filled = re.sub("[A-Z]{3,}", lambda word: names[word[0]], line)
    script = f"set -o pipefail; {sys.executable} -m nestree {filled}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, timeout=SECONDS - 5)
    said = done.stderr.decode("utf-8", "replace")
    ended = f"exit code {done.returncode}: {said[-300:]!r}"
    require("Traceback" not in said and "Exception ignored" not in said, ended)
    require(done.returncode in ((2,) if "/dev/full" in line else (0, 1, 2, 141)), ended)


# forks: forked processes and threads predict the same as one thread, and none hangs

FORK_TEXTS = [f"{number}. {TEXT} Ann met {number} friends of the mayor." for number in range(8)]


def forks(rounds: int) -> Cases:
    for precision in ("auto", "float32"):
        for name in PROCESSES:
            yield f"{name}, {precision}", partial(run_in_new_process, name, precision)


def run_in_new_process(name: str, precision: str, case: Case) -> None:
    """In a process that is no fork, and may use several threads."""
    script = f"from benchmarks import attack; attack.compare_process({name!r}, {precision!r})"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=SECONDS - 5)
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    require(done.returncode == 0, said[-1] if said else f"exit code {done.returncode}")


def compare_process(name: str, precision: Any) -> None:
    global pipeline
    torch.set_num_threads(4)
    torch.ones(999, 999).exp()  # on four threads
    torch.nn.functional.linear(torch.ones(999, 256), torch.ones(256, 256))
    pipeline = nestree.load(device="cpu", precision=precision)
    expected = predict_inherited()
    for found in PROCESSES[name](precision):
        require(found == expected, f"other entities: {found!r:.200}")


pipeline: Any = None  # that forks inherit


def predict_inherited(_: object = None) -> list[Any]:
    return [entities_in(document) for document in pipeline(FORK_TEXTS)]


def predict_reloaded(precision: Any) -> list[Any]:
    return [entities_in(document) for document in nestree.load(device="cpu", precision=precision)(FORK_TEXTS)]


def in_fork(call: Callable[[], Any]) -> Any:
    mine, theirs = multiprocessing.Pipe()
    if (pid := os.fork()) == 0:
        try:
            theirs.send(call())
        except BaseException as error:
            theirs.send(f"{type(error).__name__}: {error}")
        os._exit(0)
    arrived = mine.poll(30)
    kill_after(0, pid)
    require(arrived, "the fork hangs")
    return mine.recv()


def in_pool(precision: str) -> list[Any]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map_async(predict_inherited, range(4)).get(timeout=60)


def beside_threads(precision: str) -> list[Any]:
    with ThreadPoolExecutor(2) as threads:
        others = [threads.submit(predict_inherited) for _ in range(4)]
        time.sleep(0.1)
        return [in_fork(predict_inherited), *(other.result() for other in others)]


PROCESSES: dict[str, Callable[[str], Any]] = {
    "fork": lambda precision: [in_fork(predict_inherited)],
    "fork of a fork": lambda precision: [in_fork(lambda: in_fork(predict_inherited))],
    "load in a fork": lambda precision: [in_fork(lambda: predict_reloaded(precision))],
    "pool of forks": in_pool,
    "fork beside threads": beside_threads,
    "eight threads": lambda precision: ThreadPoolExecutor(8).map(predict_inherited, range(8)),
}


# engine: marginals are probabilities, however large the potentials


def engine(rounds: int) -> Cases:
    for number in range(rounds):
        for scale in (1.0, 1e2, 1e4, 1e6, 1e8, 1e12, 1e30):
            for backend in ("reference", "numba"):
                yield f"{backend} {scale:g} {number}", partial(check_marginals, backend, scale)


def check_marginals(backend: str, scale: float, case: Case) -> None:
    rng = case.rng
    torch.manual_seed(rng.randrange(2**31))
    n, dtype = rng.choice([1, 2, 3, 7, 13]), rng.choice([torch.float32, torch.float64])
    kind = rng.choice(["normal", "one", "shifted", "impossible"])

    def potential(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, dtype=dtype) * (1 if kind in ("one", "shifted") else scale)
        if kind == "one":
            values.view(-1)[rng.randrange(values.numel())] = rng.choice([-scale, scale])
        elif kind == "impossible":
            values[torch.rand(shape) < 0.2] = treecrf.IMPOSSIBLE
        return values + scale if kind == "shifted" else values

    shapes = [(1, n + 1, n + 1), (1, n, n), (1, n), (1, n + 1, n + 1), (1, n + 1, n + 1, n)]
    given = [potential(*shape) for shape in shapes][: rng.choice([1, 4, 5])]
    potentials = treecrf.PlainPotentials(*given) if len(given) == 1 else treecrf.LexicalPotentials(*given)
    try:
        with treecrf.use_backend(backend):
            found = treecrf.marginals(potentials, [n])
    except NestreeError as error:
        check_message(str(error))
        return
    totals = {"span": 2 * n - 1, "arc": n - 1, "root": 1, "head": 2 * n - 1}
    for name, part in found._asdict().items():
        if part is not None:
            what = f"{kind}, {n} words, {dtype}: {name}"
            low, high, total = float(part.min()), float(part.max()), float(part.double().sum())
            require(low >= -1e-6 and high <= 1 + 1e-6, f"{what} is from {low} to {high}")
            near = abs(total - totals.get(name, total)) < 1e-3 * (n + 1)
            require(near, f"{what} sums to {total}, not {totals.get(name)}")


# The attack

SECTIONS: dict[str, tuple[Callable[[int], Cases], int]] = {  # with the rounds of random cases
    **{"texts": (texts, 200), "constraints": (constraints, 60), "kills": (kills, 10), "files": (files, 20)},
    **{"models": (models, 6), "bombs": (bombs, 0), "terminal": (terminal, 0), "forks": (forks, 0)},
    "engine": (engine, 20),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__.split("\n")[0])
    parser.add_argument("--only", metavar="SECTION[/CASE]", help=f"one of {', '.join(SECTIONS)}, or one case")
    parser.add_argument("--cases", type=int, metavar="N", help="at most this many of each section")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="counts and broken cases")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # a fork has only its first thread
    section, _, name = (options.only or "").partition("/")
    cases: dict[str, list[Any]] = {}
    for key, (make_cases, rounds) in SECTIONS.items():
        if section in ("", key):
            made = list(make_cases(rounds))
            count = len(made) if options.cases is None else min(options.cases, len(made))
            numbers = sorted(random.Random(f"{options.seed} {key}").sample(range(len(made)), count))
            cases[key] = [made[n] for n in numbers if name in ("", made[n][0])]
    if not any(cases.values()):
        print(f"There is no case {options.only!r}; sections are {', '.join(SECTIONS)}.", file=sys.stderr)
        return 2
    sections, broken, since = {}, {}, time.monotonic()
    print(f"{'section':<12} {'cases':>6} {'held':>6} {'broken':>6} {'seconds':>8}", flush=True)
    with tempfile.TemporaryDirectory(prefix="attack-") as work:
        warm_up("engine" in cases)
        for key, chosen in cases.items():
            began, broken[key] = time.monotonic(), {}
            for title, check in chosen:
                if reason := run_case(check, f"{options.seed} {key} {title}", Path(work)):
                    broken[key][title] = reason = reason.replace(work, "")
                    print(f"broken: {key}/{title}: {reason!a:.500}", file=sys.stderr, flush=True)
            held, bad, seconds = len(chosen) - len(broken[key]), len(broken[key]), time.monotonic() - began
            sections[key] = {"cases": len(chosen), "held": held, "broken": bad}
            print(f"{key:<12} {len(chosen):>6} {held:>6} {bad:>6} {seconds:>8.0f}", flush=True)
    if options.json:
        result = {"benchmark": "attack", "seed": options.seed, "seconds": time.monotonic() - since}
        store({**result, **provenance("cpu", None), "sections": sections, "broken": broken}, options.json)
    return int(any(broken.values()))


def warm_up(engine: bool) -> None:
    """Load and compile what cases share, before the first fork."""
    load_model()(TEXT)
    for dtype in (torch.float32, torch.float64) if engine else ():
        for scale in (1.0, 1e4):
            span, arc = scale * torch.randn(1, 5, 5, dtype=dtype), scale * torch.randn(1, 4, 4, dtype=dtype)
            lexical = treecrf.LexicalPotentials(span, arc, arc[:, 0], span)
            with_head = lexical._replace(head=span[..., None].repeat(1, 1, 1, 4))
            for potentials in (treecrf.PlainPotentials(span), lexical, with_head):
                treecrf.marginals(potentials, [4])


def run_case(check: Callable[[Case], object], seed: str, work: Path) -> str:
    """Run a case in a fork with limits; returns why it broke, or an empty string. Its processes end with it."""
    read, write = os.pipe()
    folder = Path(tempfile.mkdtemp(dir=work))
    if (pid := os.fork()) == 0:
        os.setsid()
        why = case_failure(check, Case(random.Random(seed), folder)) or "held"
        os.write(write, why.encode("utf-8", "backslashreplace")[:2000])
        os._exit(0)
    os.close(write)
    arrived = select.select([read], [], [], SECONDS)[0]
    why = os.read(read, 4000).decode("utf-8", "replace") if arrived else f"not done after {SECONDS} s"
    os.close(read)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    code = exit_code(pid)
    shutil.rmtree(folder, ignore_errors=True)
    return "" if why == "held" else why or f"the process died of signal {-code}"


def case_failure(check: Callable[[Case], object], case: Case) -> str:
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    try:
        check(case)
    except BrokenError as why:
        return str(why)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {error!s:.300}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
