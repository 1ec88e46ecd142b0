"""Streams, errors, exit codes and shared options of all commands; in another process where that matters."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nestree import __version__
from nestree.cli import app

COMMAND = [sys.executable, "-m", "nestree"]
COUNTED = Path(__file__).parent.parent / "data" / "fixtures" / "commands" / "counted.jsonl"
ENVIRONMENT = {**os.environ, "PYTHONIOENCODING": "utf-8"}


def nestree(*arguments: str | Path, **more) -> subprocess.CompletedProcess[str]:
    environment = ENVIRONMENT | more.pop("env", {})
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        check=False,
        text=True,
        encoding="utf-8",
        env=environment,
        **more,
    )


def test_help_imports_nothing_heavy():
    """So it comes at once; how fast, only a benchmark can tell."""
    code = (
        "import sys\n"
        "from nestree.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'transformers', 'numpy', 'numba', 'safetensors', 'accelerate', 'spacy', 'rich'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def invoke(*arguments: object, **options) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="nestree", **options)


def test_help_and_version():
    text = invoke("--help").stdout
    for name in (
        "convert",
        "check",
        "stats",
        "split",
        "evaluate",
        "formats",
        "demo",
        "--version",
        "-q",
        "-v",
    ):
        assert name in text
    assert "Exit codes: 0" in text
    for command in ("convert", "check", "stats", "split", "evaluate", "formats", "demo"):
        assert invoke(command, "--help").stdout.startswith(f"Usage: nestree {command} ")
    assert nestree("--version").stdout == f"nestree {__version__}\n"


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("nestree conv", ["convert"]),
        ("nestree convert a b --from pro", ["prodigy"]),
        ("nestree convert a b --to ge", []),
        ("nestree convert a b --words tre", ["treebank"]),
    ],
)
def test_shell_completion(words, completions):
    """`genia` can only be read: --to does not offer it."""
    count = str(len(words.split()) - 1)
    complete = {"_NESTREE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": count}
    assert nestree(env=complete).stdout.split() == completions


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_completion_can_be_installed(tmp_path):
    in_bash = ["bash", "-c", f'"{sys.executable}" -m nestree --install-completion; exit $?']
    done = subprocess.run(
        in_bash, env={**ENVIRONMENT, "HOME": str(tmp_path)}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_NESTREE_COMPLETE=" in text for text in written)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chekc"], "chekc"),
        (["stats"], "Usage: nestree stats"),
        (["stats"], "Missing argument"),
        (["stats", COUNTED, "--formt", "json"], "--formt"),
        (["stats", COUNTED, "--format", "xml"], "--format is xml; 'xml' is not one of 'text', 'markdown', 'json'.\n"),
        (["check", COUNTED, "--long-sentence", "no"], "--long-sentence"),
        (["predict", "a.txt", "--batch-words", "0"], "--batch-words is 0; it should be greater than or equal to 1.\n"),
        (["predict", "a.txt", "--threshold=abc"], "Error: --threshold is abc; it should be a valid number.\n"),
        (["convert", COUNTED, COUNTED / "below" / "a.jsonl"], "below/a.jsonl cannot be written: Not a directory"),
        (["stats", "missing.jsonl"], "Error: missing.jsonl does not exist."),
        (["stats", "-", "-", "--from", "jsonl"], "- is named twice"),
        (["stats", COUNTED, COUNTED], "is named twice"),
    ],
)  # fmt: skip
def test_bad_usage_is_told_in_a_sentence(arguments, said):
    done = invoke(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert isinstance(done.exception, SystemExit)


def test_quiet_and_verbose_before_and_after_the_name_of_the_command(tmp_path):
    out = tmp_path / "a.data"

    def said(*arguments: str) -> str:
        done = invoke(*arguments, COUNTED, out)
        assert (done.exit_code, done.stdout) == (0, "")
        return done.stderr

    assert "read " in said("convert")
    for arguments in (["-q", "convert"], ["convert", "-q"], ["convert", "--quiet"]):
        assert said(*arguments) == ""
    assert "done in" not in said("convert")  # it was quiet only once
    assert "done in" in said("-v", "convert")
    assert "is written as triplets" in said("convert", "-v")


@pytest.fixture(scope="module")
def big(tmp_path_factory) -> Path:
    """Data, with odd entities and many labels, of which every command has more to say than a pipe holds."""
    path = tmp_path_factory.mktemp("big") / "big.jsonl"
    entities = [
        [{"start": 0, "end": 2, "label": f"L{k}"}, {"start": 1, "end": 3, "label": "X"}] for k in range(3000)
    ]
    path.write_text(
        "".join(
            json.dumps({"doc_id": f"d{k}", "tokens": ["a", "b", "c"], "entities": e}) + "\n"
            for k, e in enumerate(entities)
        )
    )
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes")
@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", "BIG", "-", "--to", "jsonl"],
        ["stats", "BIG"],
        ["check", "BIG", "--all"],
        ["show", "BIG"],
        ["predict", "BIG", "-q"],
        ["UNBUFFERED", "stats", "BIG"],  # as in many containers
    ],
    ids=" ".join,
)
def test_a_reader_that_has_seen_enough(big, arguments):
    unbuffered = "1" if arguments[0] == "UNBUFFERED" else ""
    with subprocess.Popen(
        [*COMMAND, *(str(big) if each == "BIG" else each for each in arguments if each != "UNBUFFERED")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes")
@pytest.mark.parametrize("arguments", [["--help"], ["formats"]], ids=" ".join)
def test_no_reader_at_all(arguments):
    nobody, pipe = os.pipe()
    os.close(nobody)
    done = subprocess.run(
        [*COMMAND, *arguments], stdout=pipe, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False
    )
    os.close(pipe)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="no such shell")
@pytest.mark.parametrize("arguments", ["stats DATA", "show DATA", "convert DATA - --to jsonl", "--help"])
def test_closed_streams(arguments):
    def run(closed: str) -> subprocess.CompletedProcess[str]:
        command = f"exec '{sys.executable}' -m nestree {arguments.replace('DATA', str(COUNTED))} {closed}"
        return subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, check=False
        )

    usual = run("")
    without_messages = run("2>&-")
    assert (without_messages.returncode, without_messages.stdout) == (usual.returncode, usual.stdout)
    done = run(">&-")
    assert (done.returncode, done.stderr) == (2, "Error: standard output: Bad file descriptor.\n")
    assert run(">&- 2>&-").returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="no such shell")
def test_a_result_in_a_file_needs_no_standard_output(tmp_path):
    command = f"exec '{sys.executable}' -m nestree convert '{COUNTED}' '{tmp_path / 'a.jsonl'}' -q >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "a.jsonl").is_file()


STEERING = "\x1b]0;title\x07\x1b[8m\x9b31m\x7f\u202e"  # a title, invisible, red, delete, from right to left


@pytest.fixture(scope="module")
def steering(tmp_path_factory) -> Path:
    """A folder of files with characters that steer terminals in words, labels, ids and names."""
    folder = tmp_path_factory.mktemp("steering")
    entities = [{"start": 0, "end": 2, "label": f"A{STEERING}"}, {"start": 1, "end": 3, "label": "B"}]
    document = {"doc_id": f"d{STEERING}", "tokens": ["a", f"b{STEERING}", "c"], "entities": entities}
    (folder / "a.jsonl").write_text(
        "".join(json.dumps(document | {"doc_id": f"{k}"}) + "\n" for k in range(20))
    )
    (folder / f"bad{STEERING}.jsonl").write_text(json.dumps(document) + "\n{\n")
    (folder / "a.txt").write_text(f"Anna {STEERING} of Lisbon met Bob{STEERING}.", encoding="utf-8")
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="no such terminals")
@pytest.mark.parametrize(
    "arguments",
    [
        ["stats", "a.jsonl"],
        ["stats", f"bad{STEERING}.jsonl"],
        ["check", "a.jsonl"],
        ["check", f"bad{STEERING}.jsonl"],
        ["convert", "a.jsonl", "-", "--to", "columns"],
        ["split", "a.jsonl", "parts"],
        ["evaluate", "a.jsonl", "a.jsonl"],
        ["show", "a.jsonl"],
        ["predict", "a.txt"],
        ["predict", f"bad{STEERING}.jsonl", "--skip-bad"],
        [f"no-command{STEERING}"],
    ],
    ids=ascii,
)
def test_data_cannot_steer_a_terminal(steering, arguments):
    import pty

    terminal, end = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm"}
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=end,
        stderr=end,
        cwd=steering,
        env=environment,
    ):
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


def test_data_in_a_pipe_stay_as_they_are(steering):
    data = steering / "a.jsonl"
    assert f"b{STEERING}" in invoke("convert", data, "-", "--to", "columns", "-q").stdout
    assert "A\\u001b]0;title\\u0007\\u001b[8m\\u009b31m\\u007f\\u202e" in invoke("stats", data).stdout
    report = json.loads(invoke("stats", data, "--format", "json").stdout)
    assert report["a"]["labels"] == {f"A{STEERING}": 20, "B": 20}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "stats", str(COUNTED)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "Error: standard output: No space left on device.\n")
    written = invoke("convert", COUNTED, "/dev/full", "--to", "jsonl")
    message = "/dev/full cannot be written: No space left on device. Make room, or choose another place.\n"
    assert (written.exit_code, written.stderr) == (2, f"Error: {message}")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do everything")
def test_no_permission(tmp_path):
    secret = tmp_path / "a.jsonl"
    secret.write_text("{}")
    secret.chmod(0)
    done = invoke("stats", secret)
    assert (done.exit_code, done.stderr) == (2, f"Error: {secret} cannot be read: Permission denied.\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(tmp_path, number):
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        [*COMMAND, "convert", "-", str(out), "--from", "jsonl"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdin is not None
    process.stdin.write('{"tokens": ["a"], "entities": []}\n')
    process.stdin.flush()
    deadline = time.monotonic() + 60
    while not any(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)  # it has begun to write
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "Interrupted.\n")
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_that_lacks_characters(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"tokens": ["Ünï", "a"], "entities": []}\n' * 3, encoding="utf-8")
    done = nestree("check", path, "--long-sentence", "1", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "Ünï a" in done.stdout or r"\xdcn\xef a" in done.stdout
    done = nestree("convert", path, "-", "--to", "jsonl", "-q", env={"PYTHONIOENCODING": "ascii"})
    assert "Ünï" in done.stdout  # data is UTF-8


def test_standard_input_and_output():
    convert = ["convert", "-", "-", "--from", "jsonl", "--to", "jsonl"]
    once = invoke(*convert, input=COUNTED.read_bytes())
    assert once.stdout.count("\n") == 5
    assert "12 entities from -" in once.stderr
    again = invoke(*convert, "--format", "json", input=once.stdout_bytes)
    assert again.stdout == once.stdout
    assert '"entities": 12' in again.stderr
    done = invoke("stats", "-", input=COUNTED.read_bytes())
    assert done.exit_code == 2
    assert "--from" in done.stderr
