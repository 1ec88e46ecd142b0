"""Streams, errors, exit codes and shared options of all commands; in another process where that matters."""

import json
import logging
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nestree import __version__
from nestree.cli import app, runtime
from tests.cli.run import COMMAND, ENVIRONMENT, nestree, process, refuse
from tests.data.formats.reading import COUNTED
from tests.tiny import write_text

ROOT = Path(__file__).parents[2]
NAMES = [c.callback.__name__.replace("_", "-") for c in app.registered_commands if c.callback]


def test_help_and_version():
    text = nestree("--help").stdout
    assert all(name in text for name in (*NAMES, "--version", "-q", "-v", "Exit codes: 0"))
    assert nestree("--version").stdout == f"nestree {__version__}\n"


@pytest.mark.parametrize("command", NAMES)
def test_every_option_is_explained_and_documented(command):
    text = nestree(command, "--help", COLUMNS="200").stdout
    assert text.startswith(f"Usage: nestree {command} ")
    page = (ROOT / "docs" / "commands.md").read_text()
    for option, explanation in re.findall(r"^  (?:-\w, )?(--[\w-]+)[^\n]*?   *(\S.*)$", text, re.M):
        assert explanation, option
        assert option == "--help" or option in page, option
    writes_nothing = ("check", "stats", "formats", "analyze", "export", "serve", "label-config")
    assert command in writes_nothing or re.search(r"-o, .*--out|--out.*-o", text)


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("nestree conv", ["convert"]),
        ("nestree convert a b --from pro", ["prodigy"]),
        ("nestree convert a b --to ge", []),  # genia can only be read
        ("nestree convert a b --words tre", ["treebank"]),
    ],
)
def test_shell_completion(words, completions):
    count = str(len(words.split()) - 1)
    complete = {"_NESTREE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": count}
    assert nestree(**complete).stdout.split() == completions


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_completion_can_be_installed(tmp_path):
    in_bash = ["bash", "-c", f'"{sys.executable}" -m nestree --install-completion; exit $?']
    done = subprocess.run(in_bash, env={**ENVIRONMENT, "HOME": str(tmp_path)}, capture_output=True)
    assert done.returncode == 0, done.stderr
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_NESTREE_COMPLETE=" in text for text in written)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chekc"], "Error: No such command 'chekc'. Did you mean 'check'? `nestree --help` lists the commands.\n"),
        (["stats"], "Error: Missing argument 'FILES'. Usage: nestree stats [OPTIONS] {FILES}...\n"),
        (["stats", COUNTED, "--format", "xml"], "--format is xml; 'xml' is not one of 'text', 'markdown', 'json'.\n"),
        (["check", COUNTED, "--long-sentence", "no"], "--long-sentence"),
        (["predict", "a.txt", "--batch-words", "0"], "--batch-words is 0; it should be greater than or equal to 1.\n"),
        (["predict", "a.txt", "--threshold=abc"], "Error: --threshold is abc; it should be a valid number.\n"),
        (["convert", COUNTED, COUNTED / "below" / "a.jsonl"], "below/a.jsonl cannot be written: Not a directory"),
        (["convert", COUNTED], "Error: name the output: OUT, or --out OUT.\n"),
        (["convert", COUNTED, "a.jsonl", "-o", "b.jsonl"], "the output is named twice, a.jsonl and --out b.jsonl"),
        (["stats", "missing.jsonl"], "Error: missing.jsonl does not exist."),
        (["stats", "-", "-", "--from", "jsonl"], "- is named twice"),
        (["check", COUNTED, COUNTED], "is named twice"),
        (["stats", COUNTED, "--formt", "json"], "nestree stats has no option --formt. Did you mean --format?\n"),
        (["train", "--learning-rate", "1"], "nestree train has no option --learning-rate. Did you mean --lr?\n"),
        (["train", "--dropout", "1"], "write --set encoder.dropout=VALUE or --set model.dropout=VALUE.\n"),
        (["train", "--weight-decay", "1"], "It is a setting: write --set training.weight_decay=VALUE.\n"),
        (["predict", "--text", "Ann left."], "Pipe the text: echo TEXT | nestree predict -\n"),
        (["convert", "--input", "a", "--out", "b"], "has no option --input. Name files without an option.\n"),
        (["stats", COUNTED, "--json"], "Did you mean --format json?\n"),
        (["validate", COUNTED], "Error: nestree has no command validate. Did you mean nestree check?\n"),
        (["train", COUNTED], "Error: name a new folder for the model with --out DIR.\n"),
        (["evaluate", "gum-minilm", COUNTED], "gum-minilm is a model: name it with --model gum-minilm"),
        (["predict", "a.txt", "--format", "csv"], "Did you mean --to?\n"),
        (["convert", COUNTED, "a.ann", "--format", "brat"], "Formats of data are named with --from and --to.\n"),
        (["evaluate", COUNTED, "--model", "a", "--model=b"], "more than once. Name another model with --compare."),
        (["convert", COUNTED, "-o", "a", "--out", "b"], "Error: --out is given more than once. Give it once.\n"),
        (["stats", COUNTED, "--format"], "Error: Option '--format' requires an argument. `nestree COMMAND"),
        (["check", COUNTED, "--quiet=3"], "Error: Option '--quiet' does not take a value. `nestree COMMAND --help`"),
        (["check", "--zzzzzzzzzz"], "nestree check has no option --zzzzzzzzzz. `nestree check --help` lists all"),
    ],
)  # fmt: skip
def test_bad_usage_is_told_in_a_sentence(arguments, said):
    done = nestree(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_quiet_and_verbose_before_and_after_the_name_of_the_command(tmp_path):
    def stderr_of(*arguments: object) -> str:
        done = nestree(*arguments, COUNTED, tmp_path / "a.data")
        assert (done.exit_code, done.stdout) == (0, "")
        return done.stderr

    assert "read " in stderr_of("convert")
    for arguments in (["-q", "convert"], ["convert", "-q"], ["convert", "--quiet"]):
        assert stderr_of(*arguments) == ""
    assert "done in" not in stderr_of("convert")  # it was quiet only once
    assert "done in" in stderr_of("-v", "convert")
    for option, debug in (("-v", False), ("-vv", True)):
        assert "nestree.data.convert: " in stderr_of("convert", option)
        assert logging.getLogger("nestree.data.convert").isEnabledFor(logging.DEBUG) is debug
        assert not logging.getLogger("another library").isEnabledFor(logging.INFO)


@pytest.mark.parametrize(("verbosity", "said"), [(runtime.QUIET, ""), (runtime.NORMAL, "compiling\n")])
def test_compilation_is_announced_without_a_terminal(monkeypatch, capsys, verbosity, said):
    monkeypatch.setattr(runtime.Commands, "verbosity", verbosity)
    with runtime.show_log():
        logging.getLogger("nestree.treecrf.numba_kernels.simd").warning("compiling")
    assert capsys.readouterr().err == said


@pytest.fixture(scope="module")
def big(tmp_path_factory) -> Path:
    """Data, with odd entities and many labels, of which every command has more to say than a pipe holds."""
    path = tmp_path_factory.mktemp("big") / "big.jsonl"
    with open(path, "w") as file:
        for k in range(3000):
            entities = [{"start": 0, "end": 2, "label": f"L{k}"}, {"start": 1, "end": 3, "label": "X"}]
            document = {"doc_id": f"d{k}", "tokens": ["a", "b", "c"], "entities": entities}
            file.write(json.dumps(document) + "\n")
    return path


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [("convert BIG - --to jsonl", ""), ("check BIG --all", ""), ("show BIG", ""), ("stats BIG", "1")],
)
def test_a_reader_that_has_seen_enough(big, arguments, unbuffered):
    words = [*COMMAND, *arguments.replace("BIG", str(big)).split()]
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}  # as in many containers
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, env=environment) as running:
        os.read(running.stdout.fileno(), 1)
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 141


def test_no_reader_at_all():
    nobody, pipe = os.pipe()
    os.close(nobody)
    done = subprocess.run([*COMMAND, "formats"], stdout=pipe, stderr=subprocess.PIPE, env=ENVIRONMENT)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("arguments", ["show DATA", "convert DATA - --to jsonl", "convert DATA OUT -q", "--help"])
def test_closed_streams(tmp_path, arguments):
    arguments = arguments.replace("DATA", f"'{COUNTED}'").replace("OUT", f"'{tmp_path / 'a.jsonl'}'")

    def run(closed: str) -> subprocess.CompletedProcess[str]:
        command = f"exec '{sys.executable}' -m nestree {arguments} {closed}"
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=ENVIRONMENT)

    usual, without_messages = run(""), run("2>&-")
    assert (without_messages.returncode, without_messages.stdout) == (usual.returncode, usual.stdout)
    done = run(">&-")
    if "-q" in arguments:  # a result in a file needs no standard output
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert (done.returncode, done.stderr) == (2, "Error: standard output: Bad file descriptor.\n")
    assert run(">&- 2>&-").returncode == 2


STEERING = "\x1b]0;title\x07\x1b[8m\x9b31m\x7f\u202e"  # a title, invisible, red, delete, from right to left


@pytest.fixture(scope="module")
def escape_sequences(tmp_path_factory) -> Path:
    """A folder of files with characters that steer terminals in words, labels, ids and names."""
    folder = tmp_path_factory.mktemp("escape_sequences")
    entities = [{"start": 0, "end": 2, "label": f"A{STEERING}"}, {"start": 1, "end": 3, "label": "B"}]
    document = {"doc_id": f"d{STEERING}", "tokens": ["a", f"b{STEERING}", "c"], "entities": entities}
    documents = [json.dumps(document | {"doc_id": f"{k}"}) + "\n" for k in range(20)]
    (folder / "a.jsonl").write_text("".join(documents))
    (folder / f"bad{STEERING}.jsonl").write_text(json.dumps(document) + "\n{\n")
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["stats", f"bad{STEERING}.jsonl"],
        ["check", "a.jsonl"],
        ["convert", "a.jsonl", "-", "--to", "columns"],
        ["evaluate", "a.jsonl", "a.jsonl"],
        ["show", "a.jsonl"],
        ["stats", f"--{STEERING}"],
        [f"no-command{STEERING}"],
    ],
    ids=ascii,
)
def test_data_cannot_steer_a_terminal(escape_sequences, arguments):
    """benchmarks/attack.py tries many more commands."""
    terminal, end = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm"}
    words, nothing = [*COMMAND, *arguments], subprocess.DEVNULL
    with subprocess.Popen(words, stdin=nothing, stdout=end, stderr=end, cwd=escape_sequences, env=environment):
        os.close(end)
        said = b""
        with suppress(OSError):  # when the other end is closed
            while part := os.read(terminal, 2**16):
                said += part
    os.close(terminal)
    text = said.decode()
    assert [each for each in ("\x1b]", "\x07", "\x1b[8m", "\x9b", "\x7f", "\u202e") if each in text] == []
    assert "Traceback" not in text
    assert "title" in text


def test_data_in_a_pipe_stay_as_they_are(escape_sequences):
    data = escape_sequences / "a.jsonl"
    assert f"b{STEERING}" in nestree("convert", data, "-", "--to", "columns", "-q").stdout
    assert "A\\u001b]0;title\\u0007\\u001b[8m\\u009b31m\\u007f\\u202e" in nestree("stats", data).stdout
    report = json.loads(nestree("stats", data, "--format", "json").stdout)
    assert report["a"]["labels"] == {f"A{STEERING}": 20, "B": 20}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk():
    with open("/dev/full", "w") as full:
        words = [*COMMAND, "stats", str(COUNTED)]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "Error: standard output: No space left on device.\n")
    message = "/dev/full cannot be written: No space left on device. Make room, or choose another place."
    assert refuse("convert", COUNTED, "/dev/full", "--to", "jsonl") == message


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do everything")
def test_no_permission(tmp_path):
    secret = write_text(tmp_path / "a.jsonl", "{}")
    secret.chmod(0)
    assert refuse("stats", secret) == f"{secret} cannot be read: Permission denied."


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do everything")
def test_a_folder_within_a_folder_that_may_not_be_read_is_named(tmp_path):
    (tmp_path / "in" / "secret").mkdir(parents=True)
    (tmp_path / "in" / "a.jsonl").write_text('{"tokens": ["Rome"]}\n')
    (tmp_path / "in" / "secret").chmod(0)
    sentence = refuse("convert", tmp_path / "in", tmp_path / "out.jsonl")
    assert f"{tmp_path / 'in' / 'secret'} cannot be read: Permission denied" in sentence


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(tmp_path, number):
    words = [*COMMAND, "convert", "-", str(tmp_path / "out.jsonl"), "--from", "jsonl"]
    pipe = subprocess.PIPE
    running = subprocess.Popen(words, stdin=pipe, stderr=pipe, text=True, env=ENVIRONMENT)
    running.stdin.write('{"tokens": ["a"], "entities": []}\n')
    running.stdin.flush()
    deadline = time.monotonic() + 60
    while not any(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)  # it has begun to write
    running.send_signal(number)
    _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (130, "Interrupted.\n")
    assert list(tmp_path.iterdir()) == []


def test_interrupted_while_modules_are_imported(tmp_path):
    write_text(tmp_path / "typer.py", "raise KeyboardInterrupt")
    done = process("formats", env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_terminal_that_lacks_characters(tmp_path):
    path = write_text(tmp_path / "a.jsonl", '{"tokens": ["Ünï", "a"], "entities": []}\n' * 3)
    done = process("check", path, "--long-sentence", "1", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "Ünï a" in done.stdout or r"\xdcn\xef a" in done.stdout
    done = process("convert", path, "-", "--to", "jsonl", "-q", env={"PYTHONIOENCODING": "ascii"})
    assert "Ünï" in done.stdout  # data is UTF-8
    write_text(path, '{"tokens": ["a"], "entities": [{"start": 0, "end": 1, "label": "A"}]}\n')
    done = process("evaluate", path, path, env={"PYTHONIOENCODING": "ascii"})
    assert done.stdout.splitlines()[-1] == "P 100.00  R 100.00  F1 100.00"  # after the tables


def test_standard_input_and_output():
    convert = ["convert", "-", "-", "--from", "jsonl", "--to", "jsonl"]
    once = nestree(*convert, stdin=COUNTED.read_bytes())
    assert once.stdout.count("\n") == 5
    assert "12 entities from -" in once.stderr
    again = nestree(*convert, "--format", "json", stdin=once.stdout_bytes)
    assert again.stdout == once.stdout
    assert '"entities": 12' in again.stderr
    assert "--from" in refuse("stats", "-", stdin=COUNTED.read_bytes())
