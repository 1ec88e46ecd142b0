"""Attack nestree with broken input: every case holds, or breaks with a reason.

    python -m benchmarks.attack [--only SECTION[/CASE]] [--cases N] [--seed N] [--json FILE]

SECTIONS is the table of cases: a case has a name and a check, which raises if an invariant is broken. Each case runs in
a forked process of its own, in an empty folder, with limits on memory and time, so that a crash or a hang is a broken
case and not the end of the attack. Cases depend on nothing but the seed and their names. The exit code is 1 if anything
broke.
"""

import argparse
import base64
import contextlib
import gzip
import json
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
from functools import partial
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

import nestree
from benchmarks.timing import ROOT, provenance, store
from nestree.checkpoint import bundled_model
from nestree.cli import app
from nestree.data.formats import FORMATS
from nestree.predict_files import ENDINGS

Check = Callable[[random.Random, Path], object]  # of a case: its random numbers and its folder
MEMORY = 2 * 2**30  # bytes, the limit of a case beyond the program itself
SECONDS = 90  # the limit of a case
EXAMPLES, FIXTURES = ROOT / "examples", ROOT / "tests" / "data" / "fixtures"
TEXT = "The mayor of Lisbon met the president of the Bank of Portugal in the University of Oslo on Monday."


class BrokenError(Exception):
    """An invariant does not hold."""


def require(holds: object, why: str) -> None:
    if not holds:
        raise BrokenError(why)


def command(*arguments: object, stdin: str = "") -> Any:
    """Run a command in this process; it ends with 0, 1 or 2, and with 2 it says why in one sentence."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    require(done.exit_code in (0, 1, 2), f"exit code {done.exit_code}: {done.stderr!r:.300}")
    require("Traceback" not in done.output, f"a traceback: {done.output[-300:]!r}")
    if done.exit_code == 2 and arguments[0] != "check":  # which reports errors in its own way
        *before, last = done.stderr.splitlines() or [""]
        one_error = re.fullmatch("Error: .{5,900}", last) and not any(l.startswith("Error: ") for l in before)
        require(one_error, f"not one error at the end: {done.stderr!r:.300}")
    return done


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


# texts: offsets and scores are right whatever the characters (tests/pipeline tries many more short texts)

LONG = 100_000  # characters without a blank
TEXTS = {
    **{f"only {letter!a}": letter * LONG for letter in "aé.\x00\u0301\u200d\n"},
    "base64": base64.b64encode(random.Random(0).randbytes(LONG)).decode(),
    "brackets": "(" * 2_000 + "Ann" + ")" * 2_000,
    "abbreviations": "U.S." * 2_000,
    "combining marks": "A\u0301n\u0303n\u0327\u0308 met the mayor\u0301 of O\u0338slo" + "\u0301" * 200,
    "right to left": "שלום עולם, Ann met مرحبا بالعالم in Oslo \u202eof mayor the\u202c",
    "emoji": "👩‍👩‍👧‍👦 Ann 🇳🇴 met 👍🏽 the ❤️ mayor of Oslo 🏳️‍🌈",
    "line ends": "Ann met\r\nthe mayor\rof\x0bOslo\x0c and\x1cBob\x85from\u2028Rome\u2029.\r\n\r\n",
    "many sentences": "Ann met Bob. " * 500,
    "one sentence": " ".join(["the mayor of Oslo met"] * 300),
}


def predict_text(text: str, rng: random.Random, folder: Path) -> None:
    (folder / "a.txt").write_bytes(text.encode())
    (line,) = command("predict", folder / "a.txt").stdout.splitlines()
    document = json.loads(line)
    require(document["text"] == text, "the document has another text")
    for entity in document["entities"]:
        for span in (entity, entity["head"]):
            sliced = text[span["start"] : span["end"]]
            require(sliced == span["text"], f"{span} is not what its offsets slice")
        require(0 <= entity["score"] <= 1, f"the score of {entity}")


# files: corrupted files of every format, given to `check` and `convert`

TOKENS = [
    *rb'\ud800 null NaN 1e999 {} [ ] ( < > & | { " -1 <!-- ]]> &x; &#0; B- T1 #'.split(),
    *b"\0 \n \r\n \n\n \t \xff \xef\xbb\xbf \x1f\x8b \x1b[2J \xc2\x85 \xe2\x80\xa8".split(b" "),
    *(b"9" * 20, b"9" * 5000, b"[" * 2000),
]
# csv is not among them: it is read with texts beside it
WRITTEN = {name: "" if name == "brat" else ending for name, ending in ENDINGS.items() if name != "csv"}
ORIGINALS = {"genia": "genia.xml", "ace": "ace/timex2norm", "gum": "gum.conllu", "nne": "nne_standoff/00"}


def copy_original(name: str, folder: Path) -> Path:
    """A valid file or folder of a format."""
    if name in WRITTEN:
        command("convert", EXAMPLES / "train.jsonl", path := folder / f"data{WRITTEN[name]}", "--to", name)
    elif name == "text":
        (path := folder / "data.txt").write_text(f"{TEXT}\n\n{TEXT}\n")
    else:
        source = FIXTURES / ORIGINALS.get(name, "tools/peers_index.json")
        path = folder / f"data{source.suffix}"
        (shutil.copytree if source.is_dir() else shutil.copy)(source, path)
    return path


def corrupt_file(name: str, rng: random.Random, folder: Path) -> None:
    (folder / "in").mkdir()
    source = copy_original(name, folder / "in")
    victim = rng.choice(sorted(path for path in (folder / "in").rglob("*") if path.is_file()))
    for _ in range(rng.choice([1, 1, 1, 4])):
        victim.write_bytes(corrupt(victim.read_bytes(), rng))
    to, skip = rng.choice([*WRITTEN]), ["--skip-bad"] * rng.randrange(2)
    command("check", source, "--from", name)
    out = folder / f"out{WRITTEN[to]}"
    done = command("convert", source, out, "--from", name, "--to", to, *skip)
    require(out.exists() == (done.exit_code == 0), f"exit code {done.exit_code}; output: {out.exists()}")
    if done.exit_code == 0:
        again = command("stats", out, "--from", to)
        nothing = re.search("is empty|holds no|no text", again.stderr)
        require(again.exit_code == 0 or nothing, f"its output cannot be read: {again.stderr!r:.300}")
    require({path.name for path in folder.iterdir()} <= {"in", out.name}, "files are left over")


def corrupt(data: bytes, rng: random.Random) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.choice([1, 2, 5, 40])
    before, middle, after = data[:at], data[at : at + length], data[at + length :]
    encoding = rng.choice(["utf-16", "utf-32", "utf-7"])
    return rng.choice(
        [
            lambda: before,
            lambda: before + after,
            lambda: before + rng.choice(TOKENS) + rng.choice([b"", middle]) + after,
            lambda: before + middle * rng.choice([2, 1000]) + after,
            lambda: data.decode("utf-8", "replace").encode(encoding),
            lambda: gzip.compress(data)[: rng.choice([None, -5, 10])],
            lambda: before + rng.randbytes(length) + middle + after,
            lambda: flip_bits(data or b"\n", rng, length),
        ]
    )()


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
    "folder": lambda path, rng: (path.unlink(), path.mkdir()),
    "pipe": lambda path, rng: (path.unlink(), os.mkfifo(path)),
    "deep": lambda path, rng: path.write_text("a = " * (path.suffix == ".toml") + "[" * 200_000),
    "huge header": lambda path, rng: path.write_bytes(struct.pack("<Q", 2**62) + path.read_bytes()[8:]),
    "truncated": lambda path, rng: os.truncate(path, rng.randrange(path.stat().st_size)),
    "flipped": lambda path, rng: path.write_bytes(flip_bits(path.read_bytes(), rng)),
}
SETTINGS = {  # sizes, by the file that they stand in
    "config.toml": "mix_layers word_shape_size lstm_layers lstm_size rank",
    "encoder/config.json": "num_hidden_layers hidden_size intermediate_size vocab_size max_position_embeddings",
}
LABELS: list[Any] = [None, "x", [], [""], [1], ["x"], ["x", "x"], ["\ud800"], ["\x1b[2J"], list("x" * 10**6)]


def models() -> Iterator[tuple[str, Check]]:
    for path in sorted(path for path in bundled_model().rglob("*") if path.is_file()):
        name = str(path.relative_to(bundled_model()))
        for title, change in CHANGES.items():
            for number in range(6 if title in ("truncated", "flipped") else 1):
                yield f"{title} {name} {number}", partial(change_model, name, change)
    for value in (10**5, 10**9, 10**18, -1, 0.5, "x"):
        for name, keys in SETTINGS.items():
            for key in keys.split():
                yield f"{key} = {value}", partial(change_model, name, partial(write_setting, key, value))
    for labels in LABELS:
        write_labels = partial(write_setting, "labels", labels)
        yield f"labels {labels!a:.20}", partial(change_model, "labels.json", write_labels)
    for kind in ("bert", "evil", None):
        yield f"code in an encoder, {kind}", partial(code_in_encoder, kind)


def copy_model(folder: Path, *changed: str) -> list[Path]:
    """A model of links to the files of the bundled one, with copies of the files that are changed."""
    shutil.copytree(bundled_model(), folder / "model", copy_function=os.symlink)
    for name in changed:
        (folder / "model" / name).unlink()
        shutil.copyfile(bundled_model() / name, folder / "model" / name)
    return [folder / "model", *(folder / "model" / name for name in changed)]


def predict_with(model: Path) -> list[Any] | None:
    """The entities that a model predicts; None if it is refused."""
    done = command("predict", "-", "--from", "text", "--model", model, stdin=TEXT)
    require(done.exit_code in (0, 2), f"exit code {done.exit_code}")
    require("enough memory" not in done.stderr, f"memory is not bounded: {done.stderr!r}")
    require(done.exit_code == 0 or not done.stdout, f"an error, and on standard output {done.stdout!r:.100}")
    entities = [entity for line in done.stdout.splitlines() for entity in json.loads(line)["entities"]]
    return None if done.exit_code else [(e["start"], e["end"], e["label"], e.get("score")) for e in entities]


def change_model(name: str, change: Change, rng: random.Random, folder: Path) -> None:
    model, file = copy_model(folder, name)
    change(file, rng)
    require(predict_with(model) in (None, predict_with(bundled_model())), "other entities, without an error")


def write_setting(key: str, value: object, path: Path, rng: random.Random) -> None:
    text = path.read_text()
    if path.suffix == ".json":
        text = json.dumps({**json.loads(text), key: value})
    path.write_text(re.sub(rf"(?m)^{key} = \S+", f"{key} = {json.dumps(value)}", text))


class Evil:
    """Creates a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def code_in_encoder(kind: str | None, rng: random.Random, folder: Path) -> None:
    """Neither Python modules nor pickles of an encoder run, in prediction and in training."""
    model, config, tokenizer = copy_model(folder, "encoder/config.json", "encoder/tokenizer_config.json")
    encoder, marker = config.parent, folder / "marker"
    names: dict[str, Any] = {name: f"evil.{name}" for name in ("AutoConfig", "AutoModel", "AutoTokenizer")}
    write_setting("auto_map", names, config, rng)
    write_setting("model_type", kind, config, rng)
    write_setting("auto_map", names | {"AutoTokenizer": ["evil.AutoTokenizer"] * 2}, tokenizer, rng)
    write_setting("tokenizer_class", "AutoTokenizer", tokenizer, rng)
    (encoder / "evil.py").write_text(f"import os\nos.mkdir({str(marker)!r})\nclass AutoConfig: pass\n")
    (encoder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(marker)))
    require(predict_with(model) in (None, predict_with(bundled_model())), "other entities, without an error")
    few = ["--encoder", encoder, "--epochs", 1, "--device", "cpu"]
    command("train", "--train", EXAMPLES / "train.jsonl", "-o", folder / "out", *few, stdin="y\n" * 20)
    require(not marker.exists(), "code of the encoder ran")


# bombs: small files that expand to much memory or time are handled within the limits

DEEP = 100_000
ENTITIES = [{"start": n, "end": 16_000, "label": "X"} for n in range(16_000)]
DEEP_JSON = ["[" * DEEP, '{"text":' * DEEP, "[" * DEEP + "]" * DEEP, '{"text": ' + "9" * 10**6 + "}"]
DEEP_XML = {
    "genia": ("<set><article><title><sentence>{}</sentence></title></article></set>", "cons sentence x"),
    "bioc": ("<collection><document><passage>{}</passage></document></collection>", "passage annotation x"),
}


def bombs() -> Iterator[tuple[str, Check]]:
    for name in FORMATS:
        if FORMATS[name].ending:
            yield f"gzip of NULs, {name}", partial(bomb, name, gzip.compress(bytes(2**26), 1) * 8)
            yield f"gzip of lines, {name}", partial(bomb, name, gzip.compress(b"a b c d\n" * 2**17, 1))
    for name in ("jsonl", "label-studio", "doccano", "prodigy", "bioc", "research-json"):
        for number, text in enumerate(DEEP_JSON):
            yield f"deep JSON {number}, {name}", partial(bomb, name, text.encode())
    for name, (around, tags) in DEEP_XML.items():
        for tag in tags.split():
            deep = around.format(f"<{tag}>" * DEEP + "a" + f"</{tag}>" * DEEP)
            yield f"nested {tag}, {name}", partial(bomb, name, deep.encode())
    packer = zlib.compressobj(1)
    first, block = (packer.compress(bytes(2**24)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    yield "DocBin of 4 GiB", partial(bomb, "spacy", first + block * 255)
    yield "DocBin of 2**32 items", partial(bomb, "spacy", zlib.compress(b"\xdd\xff\xff\xff\xff"))
    nested = json.dumps({"tokens": ["a"] * 16_000, "entities": ENTITIES}).encode()
    for line in ("check IN", "stats IN", "show IN", *(f"convert IN OUT --to {to}" for to in WRITTEN)):
        yield f"16,000 nested entities, {line}", partial(bomb, "jsonl", nested, line=line)


def bomb(name: str, data: bytes, rng: random.Random, folder: Path, line: str = "") -> None:
    (folder / "in").write_bytes(data)
    line = line or rng.choice(["check IN", *(f"convert IN OUT --to jsonl{skip}" for skip in ("", " --skip-bad"))])
    words = line.replace("IN", str(folder / "in")).replace("OUT", str(folder / "out")).split()
    command(*words, "--from", name)
    require({path.name for path in folder.iterdir()} <= {"in", "out"}, "files are left over")


# terminal: control characters in data never reach a terminal; a closed pipe causes no traceback

CONTROL_TEXT = "\x1b[6;66mAnn\x1b]0;owned\x07 of\x1b[2J\x9b2J \x08Oslo\x7f \u202eBob\rEve"
RAW_CONTROL = r"\x1b\[6;66m|\x1b\]|\x1b\[2J|[\x00\x07\x08\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\rEve"
SHOWN = """check DATA; check DATA OTHER --all -v; check BROKEN; check BAD; check DATA --from BAD
check DATA --read BAD=1; stats DATA; stats BROKEN --skip-bad; stats BAD; show DATA; show DATA --tree --model gum-minilm
show TEXT; show BAD; show DATA --only BAD; predict TEXT; predict DATA --trees; predict BAD; predict TEXT --model BAD
BAD; evaluate DATA DATA; evaluate DATA OTHER; split DATA --out NEW; convert DATA NEW.iob2; stats DATA --BAD
train --train DATA --out NEW --set BAD=1"""
PIPES = """formats | head -1; stats DATA | head -1; predict TEXT | head -c 1; convert DATA - --to jsonl | head -c 1
show DATA | head -1; formats >&-; stats DATA >&-; predict TEXT >&-; check DATA 2>&-; check DATA >&- 2>&-; check - <&-
show DATA >/dev/full; convert DATA - --to jsonl >/dev/full; predict TEXT >/dev/full"""


def fill(line: str, folder: Path) -> str:
    """A command line with files of control characters in place of the words in capitals."""
    label: dict[str, Any] = {"start": 0, "end": 2, "label": CONTROL_TEXT}
    good: dict[str, Any] = {"tokens": [*CONTROL_TEXT.split(), CONTROL_TEXT], "entities": [label]}
    good |= {"doc_id": CONTROL_TEXT, "sent_id": CONTROL_TEXT}
    other = {**good, "entities": [{**label, "start": 1, "end": 4}, {**label, "label": "other"}]}
    bad = [{**good, "entities": [{**label, "end": 99}]}, {CONTROL_TEXT: 1}, {**good, "tokens": CONTROL_TEXT}]
    names = {"BAD": CONTROL_TEXT.replace(" ", ""), "NEW": str(folder / "new"), "TEXT": str(folder / "TEXT.txt")}
    (folder / "TEXT.txt").write_text(f"{TEXT} {CONTROL_TEXT} {TEXT}", newline="")
    for name, lines in {"DATA": [good, good], "OTHER": [other, good], "BROKEN": [*bad, good]}.items():
        names[name] = str(folder / f"{name}.jsonl")
        Path(names[name]).write_text("".join(json.dumps(each) + "\n" for each in lines))
    return re.sub("[A-Z]{3,}", lambda word: names[word[0]], line)


def run_on_terminal(line: str, rng: random.Random, folder: Path) -> None:
    mine, theirs = pty.openpty()
    pid = start(*fill(line, folder).split(" "), output=theirs)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(mine, 2**16):
            seen += data
    code, said = exit_code(pid), seen.decode("utf-8", "replace").replace("\r\n", "\n")
    require("Traceback" not in said and code in (0, 1, 2), f"exit code {code}: {said[-300:]!r}")
    raw = re.search(RAW_CONTROL, said)
    require(not raw, f"raw {raw and raw[0]!r} in {said[-300:]!r}")


def run_in_shell(line: str, rng: random.Random, folder: Path) -> None:
    script = f"set -o pipefail; {sys.executable} -m nestree {fill(line, folder)}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, timeout=SECONDS - 5)
    said = done.stderr.decode("utf-8", "replace")
    ended = f"exit code {done.returncode}: {said[-300:]!r}"
    require("Traceback" not in said and "Exception ignored" not in said, ended)
    require(done.returncode in ((2,) if "/dev/full" in line else (0, 1, 2, 141)), ended)


# kills: after SIGKILL at any moment the same command completes, and nothing is left over


KILLED = [
    "predict IN --out OUT --device cpu --batch-words 10",
    *(f"convert IN/a.jsonl OUT --to {to}" for to in ("jsonl", "brat", "columns", "bioc")),
]


def kill(line: str, rng: random.Random, folder: Path) -> None:
    """Run a command undisturbed, then kill and repeat it: both write the same. `line` has IN and OUT."""
    (folder / "in").mkdir()
    (folder / "in" / "a.jsonl").write_bytes((EXAMPLES / "train.jsonl").read_bytes() * 20)
    for number in range(8):
        (folder / "in" / f"{number}.txt").write_text(f"{number}. {TEXT} {TEXT}\n")
    line = line.replace("IN", str(folder / "in"))
    before = time.monotonic()
    require(command(*line.replace("OUT", str(folder / "whole")).split()).exit_code == 0, "the command fails")
    seconds, again = time.monotonic() - before, line.replace("OUT", str(folder / "out")).split()
    with open(os.devnull, "w") as nowhere:
        pid = start(*again, output=nowhere.fileno())
    time.sleep(rng.random() * seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    out, whole = folder / "out", folder / "whole"
    if again[0] == "predict" or not out.exists():  # what `convert` has written is complete
        done = command(*again, *["--resume"] * (again[0] == "predict" and out.exists()))
        require(done.exit_code == 0, f"the command fails after a kill: {done.stderr!r:.300}")
    found, expected = (
        {str(path.relative_to(top)): path.read_bytes() for path in [*top.rglob("*"), top] if path.is_file()}
        for top in (out, whole)
    )
    require(found.keys() == expected.keys(), f"left over: {sorted(found.keys() ^ expected.keys())}")
    different = [name for name in found if not name.startswith(".nestree") and found[name] != expected[name]]
    require(not different, f"{different} are not what an undisturbed run writes")


# The attack

SECTIONS: dict[str, Callable[[], Iterator[tuple[str, Check]]]] = {
    "texts": lambda: ((name, partial(predict_text, text)) for name, text in TEXTS.items()),
    "files": lambda: ((f"{name} {n}", partial(corrupt_file, name)) for n in range(20) for name in FORMATS),
    "models": models,
    "bombs": bombs,
    "terminal": lambda: (
        (f"{title}: {line}", partial(run, line))
        for title, run, lines in (("control characters", run_on_terminal, SHOWN), ("shell", run_in_shell, PIPES))
        for line in re.split("; |\n", lines)
    ),
    "kills": lambda: ((f"{line} {n}", partial(kill, line)) for n in range(10) for line in KILLED),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__.split("\n")[0])
    parser.add_argument("--only", metavar="SECTION[/CASE]", default="", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--cases", type=int, default=10**9, metavar="N", help="at most, of each section")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="counts and broken cases")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # a fork has only its first thread
    section, _, name = options.only.partition("/")
    cases: dict[str, list[tuple[str, Check]]] = {}
    for key, make_cases in SECTIONS.items():
        if section in ("", key):
            made = [case for case in make_cases() if name in ("", case[0])]
            cases[key] = random.Random(f"{options.seed} {key}").sample(made, min(options.cases, len(made)))
    if not any(cases.values()):
        print(f"There is no case {options.only!r}; sections are {', '.join(SECTIONS)}.", file=sys.stderr)
        return 2
    nestree.load(device="cpu")(TEXT)  # compiled before the first fork
    sections, broken, since = {}, {}, time.monotonic()
    print(f"{'section':<12} {'cases':>6} {'held':>6} {'broken':>6} {'seconds':>8}", flush=True)
    with tempfile.TemporaryDirectory(prefix="attack-") as work:
        for key, chosen in cases.items():
            began, broken[key] = time.monotonic(), {}
            for title, check in chosen:
                if reason := run_case(check, f"{options.seed} {key} {title}", Path(work)):
                    broken[key][title] = reason = reason.replace(work, "")
                    print(f"broken: {key}/{title}: {reason!a:.500}", file=sys.stderr, flush=True)
            bad = len(broken[key])
            counts = sections[key] = {"cases": len(chosen), "held": len(chosen) - bad, "broken": bad}
            columns = " ".join(f"{count:>6}" for count in counts.values())
            print(f"{key:<12} {columns} {time.monotonic() - began:>8.0f}", flush=True)
    if options.json:
        result = {"benchmark": "attack", "seed": options.seed, "seconds": time.monotonic() - since}
        store({**result, **provenance("cpu", None), "sections": sections, "broken": broken}, options.json)
    return int(any(broken.values()))


def run_case(check: Check, seed: str, work: Path) -> str:
    """Run a case in a fork with limits; returns why it broke, or an empty string. Its processes end with it."""
    read, write = os.pipe()
    folder = Path(tempfile.mkdtemp(dir=work))
    if (pid := os.fork()) == 0:
        os.setsid()
        why = failure(check, random.Random(seed), folder) or "held"
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


def failure(check: Check, rng: random.Random, folder: Path) -> str:
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    try:
        check(rng, folder)
    except BrokenError as why:
        return str(why)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {error!s:.300}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
